"""The two references agree with each other, with arithmetic by hand, and with the switches they promise to ignore."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from maxsim import reference
from maxsim.tokens import tokens


def batches(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    q = tokens(torch.randn(4, 5, 8, generator=g), lengths=torch.tensor([5, 0, 3, 1]))
    d = tokens(torch.randn(8, 6, 8, generator=g), mask=torch.rand(8, 6, generator=g) > 0.4)
    return q, d


def test_float64_is_the_sum_of_maxima_written_out():
    Q, D = [[1.0, 2.0], [0.0, 1.0]], [[3.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    scores, argmax = reference.float64(tokens(torch.tensor([Q])), tokens(torch.tensor([D])))
    similarity = [[sum(a * b for a, b in zip(i, j, strict=True)) for j in D] for i in Q]
    assert scores.item() == sum(max(row) for row in similarity)
    assert argmax.tolist() == [[[row.index(max(row)) for row in similarity]]]


@pytest.mark.parametrize("pairing", ["all", "candidates", "pairs"])
@pytest.mark.parametrize("block", [1, 31, 200, 1 << 24])
def test_blocks_of_any_size_give_what_float64_gives(pairing, block, monkeypatch):
    q, d = batches()
    if pairing == "pairs":
        d = d.select(torch.arange(4))
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", block)
    expected, winners = reference.float64(q, d, pairing=pairing)
    scores, won = reference.blocked(q, d, pairing=pairing, argmax=True)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)
    assert won is not None
    assert torch.equal(won, winners)
    assert torch.equal(reference.blocked_fp32(q, d, pairing=pairing), scores)


def test_the_fp32_reference_ignores_global_switches_and_autocast_and_leaves_them_alone():
    q, d = batches()
    expected = reference.blocked_fp32(q, d)
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(reference.blocked_fp32(q, d), expected)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before


def switches() -> list[object]:
    """What every switch of fp32 products says; "mixed" where torch refuses to read the older ones."""
    cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    seen: list[object] = [cuda.fp32_precision, cpu.fp32_precision]
    for read in (lambda: cuda.allow_tf32, torch.get_float32_matmul_precision):
        try:
            seen.append(read())
        except RuntimeError:
            seen.append("mixed")
    return seen


def newer_alone(value: str) -> None:
    torch.set_float32_matmul_precision("highest" if value == "tf32" else "high")
    torch.backends.cuda.matmul.fp32_precision = value


def processor_alone(older: str, cuda: str | None = None) -> None:
    """The processor's switch says a third thing, so that the older one cannot be read at all."""
    torch.set_float32_matmul_precision(older)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    if cuda is not None:
        torch.backends.cuda.matmul.fp32_precision = cuda


@pytest.mark.parametrize(
    "set_by_the_caller",
    [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: newer_alone("tf32"),
        lambda: newer_alone("ieee"),
        lambda: processor_alone("highest"),
        lambda: processor_alone("high"),
        lambda: processor_alone("high", "ieee"),
    ],
    ids=[
        "nothing", "high", "medium", "tf32 by the newer switch alone", "ieee by the newer switch alone",
        "highest, not for the processor", "high, not for the processor", "high for neither",
    ],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_inside_no_switch_contradicts_another_and_outside_all_are_as_before(set_by_the_caller, precision):
    """torch.compile reads the older switch and is refused where a newer one disagrees."""
    cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    untouched, newer = torch.get_float32_matmul_precision(), (cuda.fp32_precision, cpu.fp32_precision)
    try:
        set_by_the_caller()
        before = switches()
        with reference.matmul_precision(precision):
            older = "high" if precision == "tf32" else "highest"
            assert switches() == [precision, "ieee", precision == "tf32", older]
        assert switches() == before
    finally:
        torch.set_float32_matmul_precision(untouched)
        cuda.fp32_precision, cpu.fp32_precision = newer


@pytest.fixture
def untouched() -> Iterator[None]:
    """The switches of this process, put back whatever a test leaves."""
    cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    older, newer = torch.get_float32_matmul_precision(), (cuda.fp32_precision, cpu.fp32_precision)
    yield
    torch.set_float32_matmul_precision(older)
    cuda.fp32_precision, cpu.fp32_precision = newer


INSIDE = {"tf32": ["tf32", "ieee", True, "high"], "ieee": ["ieee", "ieee", False, "highest"]}


@pytest.mark.parametrize("callers", ["high", "highest"])
@pytest.mark.parametrize("first", INSIDE)
@pytest.mark.usefixtures("untouched")
def test_blocks_that_overlap_in_two_threads_leave_the_switches_as_they_were(first, callers):
    """The second opens while the first is open and closes after it: what it saved would be what the first had set."""
    torch.set_float32_matmul_precision(callers)
    before, opened, closed = switches(), threading.Event(), threading.Event()

    def second() -> None:
        with reference.matmul_precision(first):
            opened.set()
            assert closed.wait(10)
            assert switches() == INSIDE[first]

    with ThreadPoolExecutor(1) as pool:
        with reference.matmul_precision(first):
            done = pool.submit(second)
            assert opened.wait(10), "blocks of one precision run together"
        closed.set()
        done.result(10)
    assert switches() == before


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("untouched")
def test_a_block_of_the_other_precision_waits_until_the_first_is_closed():
    opened = threading.Event()

    def other() -> list[object]:
        with reference.matmul_precision("tf32"):
            opened.set()
            return switches()

    with ThreadPoolExecutor(1) as pool:
        with reference.matmul_precision("ieee"):
            seen = pool.submit(other)
            assert not opened.wait(0.2)
            assert switches() == INSIDE["ieee"]
        assert seen.result(10) == INSIDE["tf32"]


@pytest.mark.usefixtures("untouched")
def test_blocks_nest_in_one_thread_and_an_exception_closes_them():
    before = switches()

    def within(*precisions: str) -> None:
        if not precisions:
            raise KeyError("inside")
        with reference.matmul_precision(precisions[0]):
            try:
                within(*precisions[1:])
            finally:
                assert switches() == INSIDE[precisions[0]]

    with pytest.raises(KeyError, match="inside"):
        within("ieee", "tf32", "tf32", "ieee", "tf32")
    assert switches() == before


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("untouched")
def test_threads_that_nest_both_precisions_come_to_an_end_and_each_sees_its_own():
    """Two threads, each in a block and asking for what the other's forbids, would wait for each other for ever."""
    before, together = switches(), threading.Barrier(2)

    def turn(outer: str, inner: str, meet: Callable[[], object]) -> None:
        with reference.matmul_precision(outer):
            meet()
            assert switches() == INSIDE[outer]
            with reference.matmul_precision(inner):
                assert switches() == INSIDE[inner]
            assert switches() == INSIDE[outer]

    def both(seed: int) -> None:
        turn("ieee", "tf32", lambda: together.wait(10) if seed < 2 else None)
        for step in range(100):
            turn(*(("ieee", "tf32") if (seed + step) % 2 else ("tf32", "ieee")), lambda: None)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(both, range(2)))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(both, range(2, 8)))
    assert switches() == before


@pytest.mark.usefixtures("untouched")
def test_under_the_compiler_the_switches_are_those_of_the_call_and_not_of_the_tracing():
    Q, D = torch.randn(2, 5, 8), torch.randn(6, 7, 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda: reference.blocked_fp32(tokens(Q), tokens(D)) * 2, backend="eager")
    for callers in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(callers)
        before = switches()
        assert torch.equal(compiled(), reference.blocked_fp32(tokens(Q), tokens(D)) * 2)
        assert switches() == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_operands_are_upcast_exactly(dtype):
    g = torch.Generator().manual_seed(3)
    Q, D = torch.randn(2, 7, 64, generator=g).to(dtype), torch.randn(5, 9, 64, generator=g).to(dtype)
    scores = reference.blocked_fp32(tokens(Q), tokens(D))
    assert torch.equal(scores, reference.blocked_fp32(tokens(Q.float()), tokens(D.float())))
