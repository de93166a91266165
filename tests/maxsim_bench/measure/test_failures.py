"""Which failure an exception is."""

from __future__ import annotations

import pytest
import torch

from maxsim_bench.measure.failures import describe, kind_of


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "oom"),
        (MemoryError(), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), "oom"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "fatal"),
        (RuntimeError("CUDA error: device-side assert triggered"), "fatal"),
        (RuntimeError("shapes differ"), "error"),
        (ValueError("out of memory, says a fool"), "error"),
    ],
)
def test_kinds(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_a_real_refusal_of_the_allocator_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert kind_of(caught.value) == "oom"


def test_a_description_is_one_line_with_the_place_and_no_directory() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        told = describe(error)
    assert told.startswith("ValueError: first (test_failures.py:")
