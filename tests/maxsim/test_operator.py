"""The front door of the operator: dispatch, shapes of results, refusals, and what `explain` says."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import maxsim
from maxsim import LaunchPlan
from maxsim.fused import repeat
from maxsim.training import maxsim_autograd

Q, D = torch.randn(2, 5, 8), torch.randn(6, 7, 8)


def test_results_have_the_shape_of_their_pairing():
    assert maxsim.maxsim(Q, D).shape == (2, 6)
    assert maxsim.maxsim(Q[0], D).shape == (6,)
    assert maxsim.maxsim(Q[0], D[0]).shape == (1,)
    assert maxsim.maxsim(Q, D, pairing="candidates").shape == (2, 3)
    assert maxsim.maxsim(Q, D.view(2, 3, 7, 8), pairing="candidates").shape == (2, 3)
    assert maxsim.maxsim(Q, D[:2], pairing="pairs").shape == (2,)
    assert maxsim.maxsim(Q[0], D, q_cu_seqlens=torch.tensor([0, 5])).shape == (1, 6)
    assert maxsim.maxsim(maxsim.tokens(Q[0]), maxsim.tokens(D)).shape == (1, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"Q": Q.half()}, "D: dtype is torch.float32, of Q torch.float16"),
        ({"Q": Q[..., :7]}, "D: embedding dimension is 8, of Q 7"),
        ({"D": D.to("meta")}, "D: is on meta, Q on cpu"),
        ({"Q": Q.to("meta"), "D": D.to("meta")}, "^Q: is on the device meta, which holds no numbers"),
        ({"pairing": "pairs"}, "D: 6 documents for 2 queries"),
        ({"pairing": "each"}, "pairing: 'each' is not one of all, pairs, candidates"),
        ({"precision": "fp16"}, "precision: 'fp16' is not one of ieee, tf32"),
        ({"path": "cuda"}, "path: 'cuda' is not one of"),
        ({"pairing": ["all"]}, r"^pairing: \['all'\] is not one of all, pairs, candidates"),
        ({"precision": {"ieee"}}, r"^precision: \{'ieee'\} is not one of ieee, tf32"),
        ({"path": {}}, r"^path: \{\} is not one of"),
        ({"path": "hopper"}, 'path: "hopper" needs an NVIDIA GPU'),
        ({"path": "portable"}, 'path: "portable" needs an NVIDIA GPU'),
        ({"D": D.view(2, 3, 7, 8)}, 'needs pairing="candidates"'),
        ({"D": D.view(3, 2, 7, 8), "pairing": "candidates"}, "D: candidates for 3 queries, but Q has 2"),
        (
            {"D": D.view(2, 3, 7, 8), "pairing": "candidates", "d_lengths": torch.ones(6, dtype=torch.int32)},
            r"d_lengths: shape is \(6,\); expected \(2, 3\)",
        ),
        ({"D": D.view(2, 3, 7, 8), "pairing": "candidates", "d_mask": [1]}, "d_mask: is list; expected a tensor"),
        ({"q_lengths": torch.tensor([6, 1])}, "q_lengths: holds 6"),
        ({"d_lengths": torch.tensor([1])}, "d_lengths: shape"),
    ],
)
def test_a_bad_argument_is_named(options, message):
    arguments = {"Q": Q, "D": D, **options}
    with pytest.raises(ValueError, match=message):
        maxsim.maxsim(arguments.pop("Q"), arguments.pop("D"), **arguments)


ENTRANCES = pytest.mark.parametrize("call", [maxsim.maxsim, maxsim.maxsim_argmax, maxsim.explain])


@ENTRANCES
@pytest.mark.parametrize(
    ("query", "options", "Nq"),
    [
        (Q[0], {}, 1),
        (Q.flatten(0, 1), {"q_cu_seqlens": torch.tensor([0, 5, 10])}, 2),
        (Q, {}, 2),
        (Q, {"q_lengths": torch.tensor([5, 2])}, 2),
        (maxsim.tokens(Q, role="Q"), {}, 2),
        (Q[:0], {}, 0),
    ],
    ids=["one", "packed", "dense", "padded", "batch", "none"],
)
def test_candidates_for_another_number_of_queries_are_refused(call, query, options, Nq):
    """Flattened, they would be dealt out anew: six documents are three each for two queries, and two for three."""
    for count in {0, 1, 2, 3, 6} - {Nq}:
        some = torch.zeros(count, 6, 7, 8)
        with pytest.raises(ValueError, match=f"^D: candidates for {count} queries, but Q has {Nq}"):
            call(query, some, pairing="candidates", **options)
    call(query, torch.zeros(Nq, 6, 7, 8), pairing="candidates", **options)


@pytest.mark.parametrize("K", [0, 3])
@pytest.mark.parametrize("graded", [False, True])
def test_no_queries_have_no_candidates_each(K, graded):
    query, some = torch.zeros(0, 5, 8, requires_grad=graded), torch.zeros(0, K, 7, 8)
    assert maxsim.maxsim(query, some, pairing="candidates").shape == (0, K)
    packed = {"q_cu_seqlens": torch.zeros(1, dtype=torch.int64), "d_lengths": torch.zeros(0, K, dtype=torch.int32)}
    assert maxsim.maxsim(query.view(0, 8), some, pairing="candidates", **packed).shape == (0, K)
    scores, won = maxsim.maxsim_argmax(query, some, pairing="candidates")
    assert (scores.shape, won.shape) == ((0, K), (0, K, 5))


@ENTRANCES
@pytest.mark.parametrize("name", ["Q", "D"])
@pytest.mark.parametrize("documents", [D, D.view(2, 3, 7, 8)], ids=["documents", "candidates"])
def test_what_is_neither_tensor_nor_batch_is_a_type_error_that_names_it(call, name, documents):
    given = {"Q": Q, "D": documents, name: [[1.0]]}
    with pytest.raises(TypeError, match=f"^{name}: expected a torch.Tensor or TokenBatch, got list"):
        call(given["Q"], given["D"], pairing="candidates")


@ENTRANCES
@pytest.mark.parametrize("quantise", [maxsim.quantize_int8, maxsim.quantize_fp8])
@pytest.mark.parametrize("names", ["Q", "D", "QD"])
def test_codes_are_not_scored_as_if_they_were_embeddings(call, quantise, names):
    """A batch of them would be: their scales would be left out."""
    given = {"Q": maxsim.tokens(Q, role="Q"), "D": maxsim.tokens(D)}
    given |= {name: quantise(given[name]).codes for name in names}
    with pytest.raises(ValueError, match=rf"^{names[0]}: dtype is torch\.(int8|float8_e4m3fn); embeddings are float16"):
        call(given["Q"], given["D"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_reference_answers_in_float64_whatever_the_operands(dtype):
    scores = maxsim.maxsim(Q.to(dtype), D.to(dtype), path="reference")
    assert scores.dtype == torch.float64
    assert maxsim.maxsim(Q.to(dtype), D.to(dtype)).dtype == torch.promote_types(dtype, torch.float32)


def test_explain_gives_a_plan_that_can_be_printed_and_compared():
    plan = maxsim.explain(Q, D)
    assert plan == LaunchPlan("torch", why="no fused kernel for cpu")
    assert str(plan) == "torch (no fused kernel for cpu)"
    assert maxsim.explain(Q.double(), D.double()).kernel == "reference"
    assert maxsim.explain(Q, D, path="reference").kernel == "reference"


def test_argmax_says_which_token_won():
    scores, won = maxsim.maxsim_argmax(Q, D)
    similarity = torch.einsum("qid,bjd->qbij", Q, D)
    assert torch.equal(won.long(), similarity.argmax(-1))
    assert torch.equal(scores, maxsim.maxsim(Q, D))


def test_a_single_query_has_no_batch_dimension_in_its_argmax_either():
    scores, won = maxsim.maxsim_argmax(Q[0], D)
    assert (scores.shape, won.shape) == ((6,), (6, 5))


def test_gradients_reach_query_and_documents():
    a, b = Q.clone().requires_grad_(), D.clone().requires_grad_()
    maxsim.maxsim(a, b).sum().backward()
    x, y = Q.clone().requires_grad_(), D.clone().requires_grad_()
    torch.einsum("qid,bjd->qbij", x, y).max(-1).values.sum().backward()
    torch.testing.assert_close(a.grad, x.grad)
    torch.testing.assert_close(b.grad, y.grad)
    with torch.no_grad():
        assert not maxsim.maxsim(a, b).requires_grad


def test_importing_and_scoring_on_a_cpu_needs_neither_a_gpu_nor_triton():
    code = (
        "import sys, torch, maxsim\n"
        "maxsim.maxsim(torch.eye(2), torch.eye(2)[None])\n"
        "assert 'triton' not in sys.modules, 'triton was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def test_autocast_does_not_change_what_is_multiplied():
    expected = maxsim.maxsim(Q, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(maxsim.maxsim(Q, D), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"d_lengths": torch.tensor([7, 0, 1, 2, 3, 4])},
        {"q_mask": torch.tensor([[1, 0, 1, 1, 0], [0, 1, 1, 0, 0]])},
        {"precision": "tf32"},
    ],
    ids=["dense", "lengths", "mask", "tf32"],
)
def test_a_compiled_call_gives_the_scores_of_the_call_itself(options):
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, d: maxsim.maxsim(q, d, **options) * 2, backend="aot_eager")
    assert torch.equal(compiled(Q, D), maxsim.maxsim(Q, D, **options) * 2)


@pytest.mark.parametrize("name", ["Q", "D"])
def test_a_sparse_tensor_is_refused_by_name(name):
    X = torch.ones(2, 3, 4)
    given = {"Q": X, "D": X, name: X.to_sparse()}
    with pytest.raises(ValueError, match=rf"^{name}: layout is torch.sparse_coo; pass a strided"):
        maxsim.maxsim(given["Q"], given["D"])


@pytest.mark.parametrize("batched", [False, True])
def test_a_transform_of_torch_func_is_refused_with_a_sentence(batched):
    X = torch.ones(2, 3, 4)

    def score(q):
        return maxsim.maxsim(maxsim.tokens(q, role="Q") if batched else q, X)

    for transform in (lambda: torch.func.vmap(score)(X), lambda: torch.func.jvp(score, (X,), (X,))):
        with pytest.raises(ValueError, match=r"inside a transform of torch\.func"):
            transform()


# how a caller says which tokens are valid
FORMS = {
    "plain": {},
    "d_mask": {"d_mask": torch.ones(6, 7)},
    "d_mask with holes": {"d_mask": torch.tensor([[1, 0, 1, 1, 0, 1, 1]] * 6)},
    "q_mask": {"q_mask": torch.ones(2, 5)},
    "d_lengths": {"d_lengths": torch.full((6,), 3)},
    "q_lengths": {"q_lengths": torch.full((2,), 3)},
    "d_cu_seqlens": {"d_cu_seqlens": torch.tensor([0, 3, 42])},
    "q_cu_seqlens": {"q_cu_seqlens": torch.tensor([0, 10])},
    "candidates": {"pairing": "candidates"},
    "path": {"path": "reference"},
}
SCORERS = {
    "maxsim": maxsim.maxsim,
    "maxsim_argmax": lambda Q, D, **given: maxsim.maxsim_argmax(Q, D, **given)[0],
    "explain": lambda Q, D, **given: maxsim.explain(Q, D, **given) and Q.sum(),
    "no_grad": torch.no_grad()(maxsim.maxsim),
}
TRANSFORMS = {
    "vmap": lambda f, x: torch.func.vmap(f)(torch.stack((x, x))),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "vjp": lambda f, x: torch.func.vjp(f, x),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
}


def _operands(form: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, object]]:
    given = {k: v.bool() if k.endswith("mask") else v for k, v in FORMS[form].items()}
    return Q.flatten(0, 1) if "q_cu_seqlens" in given else Q, D.flatten(0, 1) if "d_cu_seqlens" in given else D, given


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scorer", SCORERS)
def test_every_transform_of_torch_func_is_refused_however_tokens_are_given(scorer, form, transform):
    q, d, given = _operands(form)
    for score, x in ((lambda x: SCORERS[scorer](x, d, **given), q), (lambda x: SCORERS[scorer](q, x, **given), d)):
        with pytest.raises(ValueError, match=r"inside a transform of torch\.func"):
            TRANSFORMS[transform](score, x)


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("plain", "candidates", "path")])
def test_masks_lengths_and_offsets_of_a_transform_are_refused_like_embeddings(scorer, form):
    q, d, given = _operands(form)
    ((name, x),) = given.items()
    with pytest.raises(ValueError, match=r"inside a transform of torch\.func"):
        torch.func.vmap(lambda x: SCORERS[scorer](q, d, **{name: x}))(torch.stack((x, x)))


def test_candidates_of_four_dimensions_and_batches_of_a_transform_are_refused_too():
    candidates = D.view(2, 3, 7, 8)
    built = maxsim.tokens(D)
    index = torch.tensor([[1, 0], [2, 2]])
    calls = (
        lambda: torch.func.vmap(lambda x: maxsim.maxsim(Q, x, pairing="candidates"))(candidates[None]),
        lambda: torch.func.vmap(lambda x: maxsim.tokens(x).count * x)(D[None]),
        lambda: torch.func.vmap(lambda x: built.select(x).starts)(index),
        lambda: torch.func.vmap(lambda x: maxsim.maxsim(Q, maxsim.TokenBatch(x, 6, 7, 7)))(D.view(1, 42, 8)),
        lambda: torch.func.vmap(lambda x: maxsim_autograd(maxsim.tokens(Q), built, d_values=x))(D.view(1, 42, 8)),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"inside a transform of torch\.func"):
            call()


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scorer", SCORERS)
def test_a_tangent_is_refused_however_tokens_are_given_and_never_dropped(scorer, form, graded):
    q, d, given = _operands(form)
    q, d = (x.clone().requires_grad_(graded) for x in (q, d))
    with torch.autograd.forward_ad.dual_level():
        SCORERS[scorer](q, d, **given)  # nothing has one yet
        for dual in ("q", "d"):
            a, b = (torch.autograd.forward_ad.make_dual(x, x) if n == dual else x for n, x in (("q", q), ("d", d)))
            with pytest.raises(ValueError, match="carry a tangent of forward-mode differentiation"):
                SCORERS[scorer](a, b, **given)
            if form == "plain":
                with pytest.raises(ValueError, match="carry a tangent of forward-mode differentiation"):
                    maxsim_autograd(maxsim.tokens(Q), maxsim.tokens(D), a.view(-1, 8), b.view(-1, 8))


def test_no_launch_is_repeated_for_operands_that_may_have_tangents(monkeypatch):
    """It looks at addresses, and a tangent lies at another one."""
    asked = []
    monkeypatch.setattr(repeat, "scores", lambda *of: asked.append(of))
    with torch.autograd.forward_ad.dual_level():
        maxsim.maxsim(Q, D)
    assert not asked
    maxsim.maxsim(Q, D)
    assert len(asked) == 1


@pytest.mark.parametrize("wrapped", [False, True], ids=["tensors", "batches"])
@pytest.mark.parametrize("graded", ["", "Q", "D"])
def test_a_launch_is_repeated_only_where_nothing_is_differentiated_or_compiled(monkeypatch, graded, wrapped):
    """It gives scores without a graph: a gradient would vanish in silence."""
    asked = []
    monkeypatch.setattr(repeat, "scores", lambda *of: asked.append(of))  # None: not scored before
    Q, D = torch.randn(2, 3, 4), torch.randn(5, 6, 4)
    if graded:
        {"Q": Q, "D": D}[graded].requires_grad_()
    if wrapped:
        Q, D = maxsim.tokens(Q, role="Q"), maxsim.tokens(D)
    assert maxsim.maxsim(Q, D).requires_grad == bool(graded)
    assert len(asked) == (0 if graded else 1)
    with torch.no_grad():
        maxsim.maxsim(Q, D)
    assert len(asked) == (1 if graded else 2)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    maxsim.maxsim(Q, D)
    assert len(asked) == (1 if graded else 2)
