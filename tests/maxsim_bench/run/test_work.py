"""Operations and compulsory bytes of a cell, against figures worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from maxsim_bench.backends import registry
from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.datasheet import impossible, peak_of
from maxsim_bench.run.work import Work, unit_of, work_of, work_served

QUANTISED = (
    "flash_maxsim_int8", "flash_maxsim_int8_mixed", "lik_fp8", "dequantise_eager", "fused_int8", "fused_int8_doc",
    "fused_int8_mixed", "fused_fp8", "fused_fp8_doc",
)  # fmt: skip


def test_every_query_meets_every_document(make_cell: Callable[..., Cell]) -> None:
    work = work_of(make_cell(Nq=2, B=3, Lq=4, Ld=5, d=8, dtype="fp16"))
    assert work.flops == 2 * 2 * 3 * 4 * 5 * 8
    assert work.bytes_min == 2 * 4 * 8 * 2 + 3 * 5 * 8 * 2 + 2 * 3 * 4
    assert work.pairs == 6


def test_only_real_tokens_count(make_cell: Callable[..., Cell]) -> None:
    work = work_of(make_cell(Nq=1, B=3, Lq=4, Ld=5, d=8, dtype="fp32", layout="masked"), [1, 0, 5])
    assert work.flops == 2 * 4 * 6 * 8
    assert work.bytes_min == 4 * 8 * 4 + 6 * 8 * 4 + 3 * 4


def test_a_search_reads_the_corpus_and_writes_k_results(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(op="search", k=2, Nq=2, B=3, Lq=4, Ld=5, d=8, dtype="fp16")
    assert work_of(cell).bytes_min == 2 * 4 * 8 * 2 + 3 * 5 * 8 * 2 + 2 * 2 * 12
    coded = make_cell(op="search", k=2, Nq=2, B=3, Lq=4, Ld=5, d=8, dtype="fp16", quantiser="int8_per_token")
    assert work_of(coded).bytes_min == 2 * 4 * 8 * 2 + 3 * 5 * 8 + 2 * 2 * 12


def test_pairs_and_candidates_meet_once(make_cell: Callable[..., Cell]) -> None:
    pairs = work_of(make_cell(Nq=3, B=3, Lq=4, Ld=5, d=8, pairing="pairs"))
    assert (pairs.pairs, pairs.flops) == (3, 2 * 3 * 4 * 5 * 8)
    candidates = work_of(make_cell(Nq=2, B=3, Lq=4, Ld=5, d=8, pairing="candidates"))
    assert (candidates.pairs, candidates.flops) == (6, 2 * 6 * 4 * 5 * 8)


def test_a_training_step_adds_sparse_gradients_and_writes_both(make_cell: Callable[..., Cell]) -> None:
    forward = work_of(make_cell(Nq=2, B=3, Lq=4, Ld=5, d=8))
    step = work_of(make_cell(Nq=2, B=3, Lq=4, Ld=5, d=8, op="training_step"))
    assert step.flops - forward.flops == 4 * 6 * 4 * 8
    assert step.bytes_min - forward.bytes_min == (2 * 4 + 3 * 5) * 8 * 4


@pytest.mark.parametrize(("checkpoint", "passes"), [("false", 3), ("true", 4)])
def test_a_complete_step_multiplies_its_encoders_weights_too(
    make_cell: Callable[..., Cell], checkpoint: str, passes: int
) -> None:
    """Of BERT: 84 934 656 weights for each token of a query, a positive and a negative; bytes are the embeddings'."""
    sizes = {"op": "training_step", "Nq": 2, "B": 2, "Lq": 4, "Ld": 6, "d": 128, "dtype": "bf16"}
    scores = work_of(make_cell(**sizes))
    step = work_of(make_cell(**sizes, variant=f"checkpoint={checkpoint};encoder=bert-base"))
    assert step.flops - scores.flops == 2 * 84_934_656 * (2 * 4 + 2 * 2 * 6) * passes
    assert step.bytes_min == scores.bytes_min


@pytest.mark.parametrize(
    ("axes", "unit"),
    [
        ({"dtype": "bf16"}, "bf16"),
        ({"dtype": "fp32"}, "fp32"),
        ({"dtype": "fp32", "precision": "tf32"}, "tf32"),
        ({"dtype": "fp16", "quantiser": "int8_per_token"}, "int8"),
    ],
)
def test_the_unit_follows_the_operands(make_cell: Callable[..., Cell], axes: dict[str, str], unit: str) -> None:
    assert unit_of(make_cell(**axes)) == unit


def test_a_cell_without_sizes_has_no_work(make_cell: Callable[..., Cell]) -> None:
    with pytest.raises(ValueError, match="B is not set"):
        work_of(make_cell(B=None))


def test_a_quantised_backend_is_charged_its_own_bytes_and_unit() -> None:
    """INT8 documents are one byte an element and their scales; the products are the int8 unit's."""
    cell = Cell(experiment="t", gpu="cpu", op="forward", Nq=2, B=10, Lq=4, Ld=30, d=16, dtype="fp16", layout="dense")
    given, token, document = (
        work_served(cell, registry.get(name)) for name in ("fused", "fused_int8", "fused_int8_doc")
    )
    assert given == work_of(cell)
    assert (token.unit, document.unit) == ("int8", "int8")
    assert token.flops == given.flops
    assert given.bytes_min - token.bytes_min == 10 * 30 * 16 * 2 - (10 * 30 * 16 + 4 * 10 * 30)
    assert token.bytes_min - document.bytes_min == 4 * (10 * 30 - 10)


def test_what_a_peer_quantised_is_charged_as_it_reads_it() -> None:
    """A byte an element and the peer's own scales, on the unit that multiplies."""
    cell = Cell(experiment="t", gpu="h200", op="forward", Nq=1, B=10, Lq=4, Ld=30, d=16, dtype="fp16", layout="dense")
    rest = 4 * 16 * 2 + 10 * 4  # the query as given, the scores
    charged = {name: work_served(cell, registry.get(name)) for name in QUANTISED}
    assert {name: (work.bytes_min - rest, work.unit) for name, work in charged.items()} == {
        "flash_maxsim_int8": (300 * (16 + 2), "int8"),
        "flash_maxsim_int8_mixed": (300 * (16 + 2), "fp16"),
        "lik_fp8": (300 * (16 + 4), "fp8"),
        "dequantise_eager": (300 * (16 + 4), "fp16"),
        "fused_int8": (300 * (16 + 4), "int8"),
        "fused_int8_doc": (300 * 16 + 10 * 4, "int8"),
        "fused_int8_mixed": (300 * (16 + 4), "fp16"),
        "fused_fp8": (300 * (16 + 4), "fp8"),
        "fused_fp8_doc": (300 * 16 + 10 * 4, "fp8"),
    }
    assert len({work.flops for work in charged.values()}) == 1
    asked = cell.model_copy(update={"quantiser": "int8_per_token"})
    assert all(work_served(asked, registry.get(name)) == work for name, work in charged.items())


SEARCH = Cell(
    experiment="t", gpu="h200", op="search", k=2, Nq=3, B=100, Lq=4, Ld=30, d=16, dtype="fp16", layout="dense",
)  # fmt: skip


def test_a_search_copies_the_corpus_as_its_backend_holds_it() -> None:
    """Embeddings; codes and a scale a token; and with rescoring what 3 queries choose of 100 documents, 20 each."""
    codes = 100 * 30 * (16 + 4)
    candidates = 100 * 30 * 16 * 2 * (1 - 0.8**3)
    held = {"search": 100 * 30 * 16 * 2, "search_int8": codes, "search_int8_rescored": codes + candidates}
    rest = 3 * 4 * 16 * 2 + 3 * 2 * 12  # the queries as given, the results
    for name, expected in held.items():
        streamed = work_served(SEARCH, registry.get(name), from_host=True)
        assert streamed.host_bytes == pytest.approx(expected), name
        assert streamed.bytes_min == pytest.approx(rest + expected), name
        assert streamed.flops == work_of(SEARCH).flops
    assert work_served(SEARCH, registry.get("search"), from_host=True).unit == "fp16"
    assert work_served(SEARCH, registry.get("search_int8"), from_host=True).unit == "int8"


def test_a_search_that_rescores_everything_copies_every_document_once() -> None:
    few = SEARCH.model_copy(update={"B": 20, "k": 5})
    backend = registry.get("search_int8_rescored")
    assert work_served(few, backend, from_host=True).host_bytes == 20 * 30 * (16 + 4) + 20 * 30 * 16 * 2


def test_only_real_tokens_are_copied() -> None:
    packed = SEARCH.model_copy(update={"B": 3, "layout": "packed"})
    assert work_served(packed, registry.get("search"), [1, 0, 30], from_host=True).host_bytes == 31 * 16 * 2


@pytest.mark.parametrize("name", ["search", "search_int8", "search_int8_rescored"])
def test_what_lies_on_the_device_is_not_copied(name: str) -> None:
    there = work_served(SEARCH, registry.get(name))
    assert there.host_bytes == 0
    assert there == replace(work_served(SEARCH, registry.get(name), from_host=True), host_bytes=0.0)
    assert work_of(SEARCH).host_bytes == 0


def test_every_backend_of_a_quantiser_says_what_its_documents_take() -> None:
    named = {name for name in registry.backends() if "int8" in name or "fp8" in name or "dequantise" in name}
    scoring = {name for name in named if not name.startswith("search")}
    assert scoring == set(QUANTISED)


@pytest.mark.parametrize("name", ["flash_maxsim_int8", "lik_fp8"])
def test_a_peer_that_reads_codes_at_the_rate_of_the_card_is_believed(name: str) -> None:
    """0.1287 ms for ten thousand documents of 300 tokens, as an H200 measured: 3.0 TB/s of codes, not 6 of fp16."""
    cell = Cell(experiment="t", gpu="h200", op="forward", Nq=1, B=10000, Lq=32, Ld=300, d=128, dtype="fp16")
    work, sheet = work_served(cell, registry.get(name)), peak_of("NVIDIA H200")
    assert impossible(0.1287, work.flops, work.bytes_min, work.unit, sheet, cold=True) is None
    as_given = work_of(cell)
    assert impossible(0.1287, as_given.flops, as_given.bytes_min, as_given.unit, sheet, cold=True) is not None


def piece(stage: str, **axes: object) -> Work:
    shape: dict[str, object] = {"Nq": 2, "B": 3, "Lq": 4, "Ld": 5, "d": 8, "dtype": "fp16"}
    told = {"experiment": "t", "gpu": "cpu", "op": "training_step", "layout": "dense", "variant": f"stage={stage}"}
    return work_served(Cell.model_validate(told | shape | axes), registry.get("train_stage"))


def test_a_piece_of_a_step_is_charged_its_own_work() -> None:
    entries, q, d, scores, offsets = 2 * 3 * 4, 2 * 4 * 8 * 2, 3 * 5 * 8 * 2, 4 * 6, 4 * (15 + 3)
    won = 15 * (1 - (4 / 5) ** 8) * 8 * 2  # rows that eight winners among five tokens hit
    assert (piece("forward").flops, piece("forward").bytes_min) == (2 * entries * 5 * 8, q + d + scores + 2 * entries)
    assert (piece("csr_build").flops, piece("csr_build").bytes_min) == (0, 2 * entries + 2 * entries + offsets)
    assert piece("dq").flops == piece("dd").flops == 2 * entries * 8
    assert piece("dq").bytes_min == pytest.approx(2 * entries + scores + won + q)
    assert piece("dd").bytes_min == 2 * entries + offsets + scores + q + d
    assert piece("backward").flops == 4 * entries * 8
    assert piece("backward").bytes_min == pytest.approx(2 * entries + scores + 2 * q + won + d)


def test_an_entry_beyond_sixteen_bits_and_a_document_of_its_own_query_cost_more_and_less() -> None:
    wide = piece("csr_build", Nq=256, B=256, Lq=512)
    assert wide.bytes_min == 256 * 256 * 512 * (2 + 4) + 4 * (256 * 5 + 256)
    pairs = piece("dd", Nq=3, pairing="pairs")
    assert pairs.flops == 2 * 3 * 4 * 8


@pytest.mark.parametrize(
    ("stage", "ms"), [("csr_build", 0.1647), ("dq", 0.1576), ("dd", 0.238), ("backward", 0.5353), ("forward", 1.7725)]
)
def test_times_of_pieces_that_an_h200_measured_are_believed(stage: str, ms: float) -> None:
    work = piece(stage, Nq=64, B=64, Lq=1024, Ld=1024, d=128)
    assert impossible(ms, work.flops, work.bytes_min, work.unit, peak_of("NVIDIA H200"), cold=True) is None
