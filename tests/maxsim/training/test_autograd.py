"""Training through the operator: what autograd sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import maxsim
from maxsim import baselines
from maxsim.training import maxsim_autograd, torch_path
from maxsim.training.autograd import SAVES

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def leaf(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()


def bytes_saved(call: Callable[[], Tensor], *known: Tensor) -> int:
    """Bytes that the forward pass keeps for the backward pass, beside the tensors in `known`."""
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        call()
    return sum(n for address, n in kept.items() if address not in {k.untyped_storage().data_ptr() for k in known})


def test_a_tie_gives_everything_to_the_first_token(device):
    q = torch.tensor([[[1.0, 0.0]]], device=device, requires_grad=True)
    D = torch.tensor([[[0.0, 0.0], [2.0, 1.0], [2.0, -1.0], [2.0, 0.0]]], device=device, requires_grad=True)
    maxsim.maxsim(q, D).sum().backward()
    assert D.grad.tolist() == [[[0, 0], [1, 0], [0, 0], [0, 0]]]
    assert q.grad.tolist() == [[[2, 1]]]


def test_a_tie_across_tiles_gives_everything_to_the_first_token(device):
    D = torch.zeros(1, 200, 8, device=device)
    D[0, [3, 130]] = 1.0
    D.requires_grad_()
    maxsim.maxsim(torch.ones(1, 3, 8, device=device), D).sum().backward()
    expected = torch.zeros(200)
    expected[3] = 3 * 8
    assert torch.equal(D.grad.sum(-1)[0].cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [1024, 4096])
def test_16_bit_gradients_do_not_stall_while_they_are_summed(device, n, dtype):
    D = torch.ones(1, 1, 1, dtype=dtype, device=device, requires_grad=True)
    maxsim.maxsim(torch.ones(1, n, 1, dtype=dtype, device=device), D).sum().backward()
    assert D.grad.item() == n


def test_an_empty_document_gets_exactly_zero_and_the_query_as_if_it_were_absent(device):
    q = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], device=device, requires_grad=True)
    POS = torch.tensor([[[0.2, 0.1], [0.1, 0.3], [0.0, 0.1]]], device=device)
    D = POS.repeat(2, 1, 1).requires_grad_()
    scores = maxsim.maxsim(q, D, d_lengths=torch.tensor([3, 0], device=device))
    assert scores.tolist() == [[pytest.approx(0.5), -torch.inf]]
    scores.backward(torch.ones_like(scores))
    assert not D.grad[1].any()
    alone = q.detach().clone().requires_grad_()
    maxsim.maxsim(alone, POS).sum().backward()
    assert torch.equal(q.grad, alone.grad)


def test_cross_entropy_over_an_empty_document_stays_finite(device):
    Q, D = leaf(3, 4, 8, device=device), leaf(3, 5, 8, device=device)
    scores = maxsim.maxsim(Q, D, d_lengths=torch.tensor([5, 5, 0], device=device))
    torch.nn.functional.cross_entropy(scores[:2], torch.arange(2, device=device)).backward()
    assert Q.grad.isfinite().all()
    assert D.grad.isfinite().all()
    assert not D.grad[2].any()


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize(
    "layout", ["dense", "lengths", "holes", "packed", "4-D candidates", "pairs", "pairs of one token"]
)
def test_gradcheck_in_float64(layout, save):
    Q, D = leaf(2, 3, 4, dtype=torch.float64), leaf(4, 5, 4, dtype=torch.float64, seed=1)
    options: dict[str, Any] = {}
    if layout == "lengths":
        options = {"d": {"lengths": torch.tensor([5, 2, 1, 3])}, "q": {"lengths": torch.tensor([3, 0])}}
    if layout == "holes":
        options = {"d": {"mask": torch.tensor([[1, 0, 1, 1, 0]] * 4)}}
    if layout == "packed":
        D = leaf(20, 4, dtype=torch.float64)
        options = {"d": {"cu_seqlens": torch.tensor([0, 7, 8, 20])}}
    pairing = {"4-D candidates": "candidates", "pairs": "pairs", "pairs of one token": "pairs"}.get(layout, "all")
    if pairing == "pairs":
        D = leaf(2, 5, 4, dtype=torch.float64)
    if layout == "pairs of one token":
        Q = leaf(2, 1, 4, dtype=torch.float64)

    def scores(Q: Tensor, D: Tensor) -> Tensor:
        q, d = maxsim.tokens(Q, **options.get("q", {})), maxsim.tokens(D, **options.get("d", {}))
        return maxsim_autograd(q, d, pairing=pairing, save=save)

    assert torch.autograd.gradcheck(scores, (Q, D))


def test_gradients_come_back_in_the_callers_shape_and_strides_do_not_matter(device):
    D = leaf(7, 4, 24, device=device)
    Q = leaf(1, 5, 48, device=device)
    maxsim.maxsim(Q.expand(3, 5, 48)[..., ::2], D.transpose(0, 1)).square().sum().backward()
    plain_q = Q.detach()[..., ::2].expand(3, 5, 24).contiguous().requires_grad_()
    plain_d = D.detach().transpose(0, 1).contiguous().requires_grad_()
    maxsim.maxsim(plain_q, plain_d).square().sum().backward()
    assert torch.equal(D.grad.transpose(0, 1), plain_d.grad)
    torch.testing.assert_close(Q.grad[..., ::2], plain_q.grad.sum(0, keepdim=True))
    assert not Q.grad[..., 1::2].any()


def test_holes_in_a_mask_get_zero_and_the_rest_what_they_would_get_alone(device):
    D = leaf(2, 6, 8, device=device)
    mask = torch.tensor([[1, 0, 1, 0, 0, 1], [0, 0, 1, 1, 0, 1]], device=device).bool()
    Q = leaf(3, 4, 8, device=device)
    maxsim.maxsim(Q, D, d_mask=mask).sum().backward()
    assert not D.grad[~mask].any()
    packed = D.detach()[mask].requires_grad_()
    maxsim.maxsim(Q.detach(), packed, d_cu_seqlens=torch.tensor([0, 3, 6], device=device)).sum().backward()
    assert torch.equal(D.grad[mask], packed.grad)


def test_the_same_tensor_as_query_and_document_adds_both_roles(device):
    X = leaf(3, 4, 8, device=device)
    maxsim.maxsim(X, X).sum().backward()
    Q, D = (X.detach().clone().requires_grad_() for _ in range(2))
    maxsim.maxsim(Q, D).sum().backward()
    torch.testing.assert_close(X.grad, Q.grad + D.grad)


def test_only_what_requires_grad_is_computed(device):
    Q, D = leaf(2, 3, 8, device=device), leaf(4, 5, 8, device=device)
    maxsim.maxsim(Q, D.detach()).sum().backward()
    both = Q.grad.clone()
    Q.grad = None
    maxsim.maxsim(Q, D).sum().backward()
    assert torch.equal(Q.grad, both)
    assert not maxsim.maxsim(Q.detach(), D.detach()).requires_grad
    with torch.no_grad():
        assert not maxsim.maxsim(Q, D).requires_grad


def test_autocast_changes_neither_scores_nor_gradients(device):
    grads = []
    for enabled in (False, True):
        Q, D = leaf(2, 3, 8, device=device), leaf(4, 5, 8, device=device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
            scores = maxsim.maxsim(Q, D)
            scores.sum().backward()
        assert scores.dtype == torch.float32
        grads.append((scores.detach(), Q.grad, D.grad))
    assert all(torch.equal(x, y) for x, y in zip(*grads, strict=True))


def test_16_bit_embeddings_of_an_autocast_encoder_train_their_fp32_weights(device):
    layer = torch.nn.Linear(8, 4, bias=False, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        Q = layer(leaf(2, 3, 8, device=device))
        assert Q.dtype == torch.bfloat16
        maxsim.maxsim(Q, layer(leaf(3, 5, 8, device=device))).sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("penalise", [lambda x: x.square().sum(), lambda x: x.sum()])
def test_a_second_derivative_raises_even_where_the_upstream_gradient_is_constant(device, penalise):
    Q, D = leaf(2, 3, 8, device=device), leaf(4, 5, 8, device=device)
    (grad,) = torch.autograd.grad(maxsim.maxsim(Q, D).sum(), Q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        penalise(grad).backward()


def test_embeddings_changed_in_place_between_forward_and_backward_are_noticed(device):
    D = leaf(4, 5, 8, device=device).detach()
    Q = leaf(2, 3, 8, device=device)
    loss = maxsim.maxsim(Q, D).sum()
    D.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_repeated_document_of_a_selection_collects_the_gradients_of_every_list_it_is_in(device):
    Q, D = leaf(2, 3, 8, device=device), leaf(4, 6, 8, device=device)
    index = torch.tensor([[0, 3, 3], [3, 1, 0]], device=device)
    g = torch.randn(2, 3, device=device)
    chosen = maxsim.tokens(D).select(index)
    maxsim.maxsim(maxsim.tokens(Q), chosen, pairing="candidates").backward(g)
    q, d = (x.detach().clone().requires_grad_() for x in (Q, D))
    maxsim.maxsim(q, d[index], pairing="candidates").backward(g)
    torch.testing.assert_close(D.grad, d.grad)
    torch.testing.assert_close(Q.grad, q.grad)
    assert not D.grad[2].any()


def test_a_repeated_query_of_a_selection_collects_its_gradients(device):
    Q, D = leaf(3, 4, 8, device=device), leaf(5, 6, 8, device=device)
    index = torch.tensor([2, 0, 2, 2, 1], device=device)
    maxsim.maxsim(maxsim.tokens(Q).select(index), maxsim.tokens(D), pairing="pairs").sum().backward()
    q, d = (x.detach().clone().requires_grad_() for x in (Q, D))
    maxsim.maxsim(q[index], d, pairing="pairs").sum().backward()
    torch.testing.assert_close(Q.grad, q.grad)
    torch.testing.assert_close(D.grad, d.grad)


def test_gradients_equal_those_of_eager_autograd_where_nothing_ties(device):
    Q, D = leaf(3, 4, 16, device=device), leaf(5, 6, 16, device=device)
    lengths = torch.tensor([6, 1, 3, 4, 2], device=device)
    target = torch.tensor([0, 2, 4], device=device)
    torch.nn.functional.cross_entropy(maxsim.maxsim(Q, D, d_lengths=lengths), target).backward()
    q, d = (x.detach().clone().requires_grad_() for x in (Q, D))
    torch.nn.functional.cross_entropy(baselines.eager(q, d, lengths), target).backward()
    torch.testing.assert_close(Q.grad, q.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(D.grad, d.grad, rtol=1e-5, atol=1e-6)


def test_two_bytes_a_query_token_and_document_are_saved_and_none_where_they_are_found_again(device):
    q, d = maxsim.tokens(leaf(6, 10, 8, device=device)), maxsim.tokens(leaf(7, 9, 8, device=device))
    entries = 6 * 7 * 10
    saved = {s: bytes_saved(lambda s=s: maxsim_autograd(q, d, save=s), q.values, d.values) for s in SAVES}
    assert saved == {"argmax": 2 * entries, "recompute": 0}


def test_an_unknown_way_to_save_is_refused_with_the_known_ones():
    q = maxsim.tokens(leaf(1, 2, 4))
    with pytest.raises(ValueError, match="save: 'nothing' is not one of argmax, recompute"):
        maxsim_autograd(q, q, save="nothing")  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize(("backward", "save", "most"), [(None, "argmax", 16), ("onehot", "argmax", 4)])
def test_memory_grows_by_a_few_bytes_per_query_token_and_document(backward, save, most):
    """Beside embeddings and their gradients; eager autograd needs two bytes or more per pair of tokens."""

    def peak(B: int) -> int:
        Q, D = leaf(B, 64, 128, device="cuda"), leaf(B, 256, 128, device="cuda")
        Q.grad, D.grad = torch.zeros_like(Q), torch.zeros_like(D)
        q, d = maxsim.tokens(Q), maxsim.tokens(D)
        maxsim_autograd(q, d, backward=backward, save=save).sum().backward()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        maxsim_autograd(q, d, backward=backward, save=save).sum().backward()
        gradients = 4 * (Q.numel() + D.numel())
        return torch.cuda.max_memory_allocated() - before - gradients

    small, large = peak(64), peak(192)
    entries = (192**2 - 64**2) * 64
    assert (large - small) / entries <= most


@pytest.mark.gpu
def test_a_step_is_captured_in_a_cuda_graph_and_replays_to_the_same_bits():
    Q, D = leaf(8, 32, 128, device="cuda", dtype=torch.float16), leaf(8, 100, 128, device="cuda", dtype=torch.float16)
    target = torch.arange(8, device="cuda")

    def step() -> tuple[Tensor, ...]:
        loss = torch.nn.functional.cross_entropy(maxsim.maxsim(Q, D), target)
        return loss, *torch.autograd.grad(loss, (Q, D))

    expected = [x.detach().clone() for x in step()]  # a graph kept alive ties the leaves to the stream it was made on
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for x in got:
        x.detach().fill_(float("nan"))
    graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))


@pytest.mark.gpu
def test_a_step_does_not_wait_for_the_device():
    Q, D = leaf(8, 32, 64, device="cuda"), leaf(8, 100, 64, device="cuda")
    q, d = maxsim.tokens(Q), maxsim.tokens(D, lengths=torch.randint(1, 100, (8,), device="cuda"))
    maxsim_autograd(q, d).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        maxsim_autograd(q, d).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_an_upstream_gradient_of_a_transform_is_refused_with_a_sentence():
    Q, D = leaf(2, 3, 8), leaf(4, 5, 8, seed=1)
    scores = maxsim.maxsim(Q, D)
    with pytest.raises(ValueError, match=r"inside a transform of torch\.func"):
        torch.func.vmap(lambda g: torch.autograd.grad(scores, (Q, D), g))(torch.randn(3, 2, 4))


def test_a_tangent_of_the_upstream_gradient_is_refused_and_not_dropped():
    Q, D = leaf(2, 3, 8), leaf(4, 5, 8, seed=1)
    with torch.autograd.forward_ad.dual_level():
        g = torch.autograd.forward_ad.make_dual(torch.randn(2, 4), torch.randn(2, 4))
        with pytest.raises(ValueError, match="carry a tangent of forward-mode"):
            torch.autograd.grad(maxsim.maxsim(Q, D), (Q, D), g)


def test_embeddings_that_a_transform_does_not_know_cannot_be_trained_inside_it_and_can_be_scored():
    Q, D = leaf(2, 3, 8), leaf(4, 5, 8, seed=1)
    x = torch.randn(3)
    with pytest.raises(ValueError, match=r"inside a transform of torch\.func"):
        torch.func.vmap(lambda y: y * maxsim.maxsim(Q, D).sum())(x)
    scored = torch.func.vmap(lambda y: y * maxsim.maxsim(Q.detach(), D.detach()).sum())(x)
    torch.testing.assert_close(scored, x * maxsim.maxsim(Q, D).sum().detach())


@pytest.mark.parametrize("form", ["dense", "lengths", "mask"])
@pytest.mark.parametrize("inside", ["checkpoint", "reentrant checkpoint", "save_on_cpu", "anomaly detection"])
def test_what_torch_does_around_autograd_changes_no_gradient(inside, form):
    given: dict[str, Any] = {"lengths": {"d_lengths": torch.tensor([5, 0, 2, 1])}}.get(form, {})
    if form == "mask":
        given = {"d_mask": torch.tensor([[1, 0, 1, 1, 0]] * 4)}

    def scores(Q: Tensor, D: Tensor) -> Tensor:
        return maxsim.maxsim(Q, D, **given)

    Q, D, g = leaf(2, 3, 8), leaf(4, 5, 8, seed=1), torch.randn(2, 4)
    expected = torch.autograd.grad(scores(Q, D), (Q, D), g)
    if "checkpoint" in inside:
        again = torch.utils.checkpoint.checkpoint(scores, Q, D, use_reentrant="reentrant" in inside)
        again.backward(g)
    elif inside == "save_on_cpu":
        with torch.autograd.graph.save_on_cpu():
            scores(Q, D).backward(g)
    else:
        with torch.autograd.detect_anomaly(check_nan=False):
            scores(Q, D).backward(g)
    assert all(torch.equal(x.grad, e) for x, e in zip((Q, D), expected, strict=True))


class _Calls(TorchDispatchMode):
    """Names of the operators called on other devices than the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(args[0], Tensor) and args[0].device.type != "cpu":
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_no_row_is_added_up_by_atomics_on_a_device_where_torch_has_such_an_operator():
    """What a GPU is asked for, told without one: an accumulating `index_put_` sorts there, `index_add_` does not."""
    with FakeTensorMode(), _Calls() as calls:
        total = torch.zeros(4, 8, device="cuda", dtype=torch.float64)
        torch_path._add_rows(total, torch.zeros(9, dtype=torch.int64, device="cuda"), total.new_ones(9, 8))
    assert "index_put_" in calls.names
    assert not {name for name in calls.names if name.startswith(("index_add", "scatter"))}


@pytest.fixture
def usual_algorithms() -> Iterator[None]:
    """What a user has: the tests' way to fill uninitialised memory asks torch for deterministic algorithms as well."""
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.mark.usefixtures("usual_algorithms")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_torch_path_gives_the_same_bits_every_run_where_a_row_wins_often(device, dtype):
    """Also on the side of a query that a selection repeats."""
    Q, D = leaf(64, 64, 32, device=device, dtype=dtype), leaf(3, 4, 32, device=device, dtype=dtype, seed=1)
    repeated = torch.arange(256, device=device) % 2
    for q in (maxsim.tokens(Q), maxsim.tokens(Q).select(repeated)):
        g = torch.randn(q.count, 3, generator=torch.Generator().manual_seed(2)).to(device, dtype)
        runs = [
            torch.autograd.grad(maxsim_autograd(q, maxsim.tokens(D), backward="torch"), (Q, D), g) for _ in range(5)
        ]
        assert all(torch.equal(x, y) for run in runs[1:] for x, y in zip(runs[0], run, strict=True))
