"""A layout that was scored before is scored again without deciding anything: only addresses change. No GPU."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from maxsim import tokens
from maxsim.fused import hopper, hopper_launch, repeat
from maxsim.fused.launch import LaunchPlan
from maxsim.tokens import TokenBatch


@pytest.fixture
def fired(monkeypatch):
    """Launches that reach the driver, as (kernel, grid, tensor maps, values); the processor stands in for a GPU."""
    seen = []

    class Launch:
        """Stands in for `RepeatedLaunch`."""

        def __init__(self, name, grid, maps, pointers, integers):
            self.name, self.grid, self.pointers, self.integers = name, grid, pointers, integers
            self.described = [one[1:] for one in maps]

        def __call__(self, stream, maps, pointers):
            assert (stream, len(pointers)) == (7, self.pointers)
            assert [one[1:] for one in maps] == self.described, "extents are packed once, for every call"
            seen.append((self.name, self.grid, list(maps), [*pointers, *self.integers]))

    kernels = SimpleNamespace(direct="score"), SimpleNamespace(direct="add")
    monkeypatch.setattr(hopper, "_kernels", lambda plan, q, d, winners: kernels)
    monkeypatch.setattr(repeat, "RepeatedLaunch", Launch)
    for module in (repeat, hopper_launch):
        monkeypatch.setattr(module, "tensor_map", lambda *described: described)
    monkeypatch.setattr(repeat, "_SEEN", {})
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    return seen


def remembered(Q, D, q, d, pairing="all", plan=None):
    repeat.remember(Q, D, q, d, pairing, "ieee", None, plan or hopper.plan(q, d, pairing=pairing))


def again(Q, D, pairing="all"):
    return repeat.scores(Q, D, pairing, "ieee", None)


def half(*shape):
    return torch.zeros(shape, dtype=torch.float16)


def test_what_was_never_scored_is_unknown(fired):
    assert again(half(32, 128), half(5, 40, 128)) is None


def test_other_memory_of_the_same_layout_is_scored_at_its_own_address(fired):
    Q, D = half(32, 128), half(5, 40, 128)
    remembered(Q, D, tokens(Q, role="Q"), tokens(D))
    Q2, D2 = half(32, 128), half(5, 40, 128)
    assert again(Q2, D2).shape == (1, 5)
    [(name, _, maps, values)] = fired
    assert name == "score"
    assert [one[0] for one in maps] == [Q2.data_ptr(), D2.data_ptr()]
    assert values[1:6] == [0, 0, 0, 0, 0], "neither an argmax nor starts nor lengths"


def test_batches_bring_their_starts_and_lengths(fired):
    offsets = torch.tensor([0, 3, 10])
    q = tokens(half(2, 8, 64), lengths=torch.tensor([8, 1]), role="Q")
    d = tokens(half(10, 64), cu_seqlens=offsets)
    remembered(q, d, q, d)
    assert again(q, d).shape == (2, 2)
    values = fired[0][3]
    assert values[2:6] == [0, q.lengths.data_ptr(), d.starts.data_ptr(), d.lengths.data_ptr()]


def test_partial_sums_of_a_long_query_are_added(fired):
    q, d = tokens(half(1, 1024, 128), role="Q"), tokens(half(300, 20, 128))
    plan = hopper.plan(q, d)
    assert plan.sums > 1
    remembered(q, d, q, d)
    scores = again(q, d)
    (_, _, _, first), (name, grid, maps, second) = fired
    assert (name, grid, maps) == ("add", (3, 1), []), "128 documents a program"
    assert second == [first[0], scores.data_ptr(), 1, 300, plan.sums]


def test_two_partial_sums_of_batches_with_starts_and_lengths_are_added(fired):
    q = tokens(half(2, 200, 768), lengths=torch.tensor([200, 1]), role="Q")
    d = tokens(half(10, 768), cu_seqlens=torch.tensor([0, 3, 10]))
    assert hopper.plan(q, d).sums == 2
    remembered(q, d, q, d)
    assert again(q, d).shape == (2, 2)
    (_, _, _, first), (name, *_) = fired
    assert name == "add"
    assert first[1:6] == [0, 0, q.lengths.data_ptr(), d.starts.data_ptr(), d.lengths.data_ptr()]


def test_rows_are_copied_in_the_boxes_of_the_plan(fired):
    """Query groups of one size, documents in tiles of another; what a tensor map describes is rows and columns."""
    q, d = tokens(half(3, 32, 128), role="Q"), tokens(half(5, 40, 192)[:, :, :128])
    plan = hopper.plan(q, d)
    assert plan.G != plan.BR
    remembered(q, d, q, d)
    again(q, d)
    [(_, _, maps, _)] = fired
    assert maps == [
        (q.values.data_ptr(), torch.float16, 96, 128, 128, plan.G, plan.BK),
        (d.values.data_ptr(), torch.float16, 200, 128, 192, plan.BR, plan.BK),
    ]


@pytest.mark.parametrize(("Lq", "sums"), [(128, 1), (300, 3)], ids=["scores", "partial sums"])
def test_numbers_that_two_units_add_to_are_zero_when_they_are_launched(fired, monkeypatch, Lq, sums):
    """Above d = 512 a query of more than 64 tokens has two units that add to one number, in scores or partial sums."""
    q, d = tokens(half(2, Lq, 768), role="Q"), tokens(half(7, 20, 768))
    plan = hopper.plan(q, d)
    assert (plan.added, plan.sums) == (True, sums)
    found = []

    def read(stream, maps, pointers):
        if len(pointers) == 6:
            found.append(list((ctypes.c_float * (2 * sums * 7)).from_address(pointers[0])))

    monkeypatch.setattr(repeat, "RepeatedLaunch", lambda *of: read)
    remembered(q, d, q, d)
    assert again(q, d).shape == (2, 7)
    assert found == [[0.0] * (2 * sums * 7)]


@pytest.mark.parametrize(
    "other",
    [
        half(6, 40, 128),
        half(5, 41, 128),
        half(5, 40, 256)[:, :, :128],
        half(5, 40, 128).bfloat16(),
        half(5 * 40 * 128 + 1)[1:].view(5, 40, 128),
    ],
    ids=["count", "length", "stride", "dtype", "alignment"],
)
def test_another_layout_is_another_launch(fired, other):
    Q, D = half(32, 128), half(5, 40, 128)
    remembered(Q, D, tokens(Q, role="Q"), tokens(D))
    assert again(Q, other) is None
    assert again(Q, D, pairing="pairs") is None
    assert again(Q, D) is not None


def test_a_copy_and_another_kernel_are_not_remembered(fired):
    Q, D = half(32, 128), half(5, 128, 40).transpose(1, 2)
    remembered(Q, D, tokens(Q, role="Q"), tokens(D))
    assert again(Q, D) is None
    D = half(5, 40, 128)
    remembered(Q, D, tokens(Q, role="Q"), tokens(D), plan=LaunchPlan("portable"))
    assert again(Q, D) is None


def test_a_kernel_that_was_not_compiled_yet_is_not_remembered(fired, monkeypatch):
    monkeypatch.setattr(hopper, "_kernels", lambda *of: (SimpleNamespace(direct=None), SimpleNamespace(direct=None)))
    Q, D = half(32, 128), half(5, 40, 128)
    remembered(Q, D, tokens(Q, role="Q"), tokens(D))
    assert again(Q, D) is None


def test_tensors_of_another_device_take_the_long_way(fired, monkeypatch):
    Q, D = half(32, 128), half(5, 40, 128)
    remembered(Q, D, tokens(Q, role="Q"), tokens(D))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 3, raising=False)
    assert again(Q, D) is None


def test_a_subclass_of_tensor_is_never_remembered(fired):
    """Two parameters must not share an entry, whatever their shapes; a subclass may be no memory at all."""
    D = half(5, 40, 128)
    for Lq in (32, 64):
        Q = torch.nn.Parameter(half(Lq, 128))
        assert again(Q, D) is None
        remembered(Q, D, tokens(Q.data, role="Q"), tokens(D))
    assert not repeat._SEEN


def test_a_view_with_the_negative_bit_is_never_remembered(fired):
    """Its memory holds the other signs, at an address that looks like any other."""
    z = torch.zeros(5, 40, 128, dtype=torch.complex64)
    plain, negative = z.imag, z.conj().imag
    assert (plain.stride(), plain.dtype) == (negative.stride(), negative.dtype)
    assert repeat.layout(plain) is not None
    assert repeat.layout(negative) is None


def test_the_table_does_not_grow_without_bound(fired, monkeypatch):
    monkeypatch.setattr(repeat, "_MOST", 3)
    Q = half(32, 128)
    for B in range(1, 9):
        D = half(B, 40, 128)
        remembered(Q, D, tokens(Q, role="Q"), tokens(D))
    assert len(repeat._SEEN) <= 3


@pytest.mark.parametrize(("Nq", "Lq", "B", "pairing"), [(3, 32, 5, "all"), (1, 300, 1, "all"), (4, 8, 4, "pairs")])
def test_scores_are_rows_of_fp32_of_their_own(fired, Nq, Lq, B, pairing):
    """They are made like a tensor whose elements are all one."""
    q, d = tokens(half(Nq, Lq, 128), role="Q"), tokens(half(B, 20, 128))
    remembered(q, d, q, d, pairing)
    first, second = again(q, d, pairing), again(q, d, pairing)
    shape = (Nq,) if pairing == "pairs" else (Nq, B)
    assert (first.shape, first.dtype, first.stride()) == (shape, torch.float32, torch.empty(shape).stride())
    assert first.untyped_storage().nbytes() == 4 * first.numel()
    assert first.data_ptr() != second.data_ptr()


def test_the_layout_of_a_batch_is_made_once_and_not_that_of_a_batch_made_of_it(fired):
    batch = tokens(half(5, 40, 128))
    assert batch.layout is batch.layout
    fewer = batch.select(torch.tensor([0, 3]))
    assert fewer.layout != batch.layout
    assert repeat.layout(tokens(half(5, 40, 128))) == repeat.layout(batch)


WIDE = torch.zeros(201 * 192, dtype=torch.float16)
BATCH = TokenBatch(WIDE[: 200 * 128].view(200, 128), count=5, pitch=40, max_length=40)


@pytest.mark.parametrize(
    "change",
    [
        {"count": 4},
        {"pitch": 39},
        {"max_length": 39},
        {"starts": torch.arange(5) * 40},
        {"lengths": torch.full((5,), 40, dtype=torch.int32)},
        {"total_rows": 200},
        {"values": WIDE[: 201 * 128].view(201, 128)},
        {"values": WIDE[: 200 * 192].view(200, 192)[:, :128]},
        {"values": WIDE[: 200 * 128].view(torch.bfloat16).view(200, 128)},
        {"values": WIDE[1 : 200 * 128 + 1].view(200, 128)},
        {"values": torch.empty(200, 128, dtype=torch.float16, device="meta")},
    ],
    ids=["count", "pitch", "length", "starts", "lengths", "total rows", "rows", "stride", "dtype", "alignment", "meta"],
)
def test_a_batch_that_differs_in_one_thing_is_another_launch(fired, monkeypatch, change):
    """Else it would be scored with the integers, the boxes or the kernel of this one."""
    monkeypatch.setattr(Tensor, "get_device", lambda self: 1 if self.is_meta else 0)
    monkeypatch.setattr(Tensor, "data_ptr", lambda self: 0 if self.is_meta else 2 * self.storage_offset())
    q = tokens(half(32, 128), role="Q")
    remembered(q, BATCH, q, BATCH)
    other = replace(BATCH, **change)
    assert again(q, other) is None
    assert layout_of(other) != layout_of(replace(BATCH))


def layout_of(batch):
    assert repeat.layout(batch) is batch.layout
    return batch.layout
