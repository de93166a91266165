"""Copies in pieces: all of it, in order, and no buffer is touched before the copy that uses it is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from maxsim_bench.run import staging
from maxsim_bench.run.staging import Staging

SIZES = [0, 1, 7, 8, 9, 16, 17, 24, 41]  # elements; a buffer holds 8


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_BUFFER_BYTES", 16)


class _Late(staging._Lane):
    """Does what a busy card may: no copy happens before somebody waits for it."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.begun: list[Callable[[], object]] = []

    def start(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.begun.append(lambda: target.copy_(source))

    def wait(self) -> None:
        for copy in self.begun:
            copy()
        self.begun.clear()


class _Eager(_Late):
    """Waits by itself, as an idle card seems to."""

    def start(self, target: torch.Tensor, source: torch.Tensor) -> None:
        super().start(target, source)
        self.wait()


@pytest.mark.parametrize("lane", [staging._Lane, _Late, _Eager])
@pytest.mark.parametrize("size", SIZES)
def test_every_element_arrives_whenever_the_card_gets_to_it(
    monkeypatch: pytest.MonkeyPatch, lane: type[staging._Lane], size: int
) -> None:
    monkeypatch.setattr(staging, "_Lane", lane)
    copies = Staging("cpu")
    for turn in range(2):  # the buffers hold what the first turn left there
        source = torch.arange(size, dtype=torch.float16) + 100 * turn
        for copy in (copies.to_host, copies.to_device):
            target = torch.full((size,), -1.0, dtype=torch.float16)
            copy(target, source)
            assert torch.equal(target, source)


def test_only_like_tensors_are_copied() -> None:
    copies = Staging("cpu")
    for other in (torch.zeros(4, dtype=torch.bfloat16), torch.zeros(5, dtype=torch.float16)):
        for copy in (copies.to_host, copies.to_device):
            with pytest.raises(ValueError, match="as they are"):
                copy(torch.zeros(4, dtype=torch.float16), other)


@pytest.mark.gpu
def test_a_card_and_pageable_memory_exchange_every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_BUFFER_BYTES", 1 << 20)
    copies = Staging("cuda")
    there = torch.randn(5_000_003, device="cuda").half()
    here, back = torch.empty(there.shape, dtype=there.dtype), torch.empty_like(there)
    for _ in range(3):
        there.add_(1.0)  # still under way when the copy is asked for
        copies.to_host(here, there)
        copies.to_device(back, here)
        assert torch.equal(back, there)
        assert torch.equal(here, there.cpu())
