"""Long tensors between a device and pageable host memory, in pieces through two page-locked buffers.

Room: `run`. May import: declare, record, measure, backends.

Given pageable memory, the CUDA driver copies it with one thread, which also faults in the pages of memory that nobody
has touched yet: for a corpus of tens of gigabytes that takes longer than all else that a cell does. Here every thread
of the processor copies one buffer (and touches the pages of its share) while the card copies the other. The reference
reads a corpus this way too, so it shares no code with the copies of the search that it judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_BUFFER_BYTES = 1 << 26


class Staging:
    """Two buffers, kept as long as this object. On a processor they are ordinary memory, and copies take turns."""

    def __init__(self, device: str) -> None:
        """Buffers for copies from and to `device`, "cuda" or "cpu"; none is allocated there."""
        self._lanes = [_Lane(device), _Lane(device)]

    def to_host(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Overwrite `target` in host memory with `source` on the device; done on return. Both contiguous, one dtype.

        Raises:
            ValueError: for tensors of different numbers of elements or dtypes.
        """
        waiting: tuple[_Lane, torch.Tensor, torch.Tensor] | None = None
        for lane, there, here in self._pieces(source, target):
            buffer = lane.buffer_like(there)
            lane.start(buffer, there)
            if waiting is not None:
                _finish(*waiting)
            waiting = lane, here, buffer
        if waiting is not None:
            _finish(*waiting)

    def to_device(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Overwrite `target` on the device with `source` in host memory; done on return. Both contiguous, one dtype.

        Raises:
            ValueError: for tensors of different numbers of elements or dtypes.
        """
        for lane, there, here in self._pieces(target, source):
            lane.wait()  # for the piece before the last, which lies in the same buffer
            buffer = lane.buffer_like(here)
            buffer.copy_(here)
            lane.start(there, buffer)
        for lane in self._lanes:
            lane.wait()

    def _pieces(self, there: torch.Tensor, here: torch.Tensor) -> Iterator[tuple[_Lane, torch.Tensor, torch.Tensor]]:
        """Equal stretches of both tensors, each as long as a buffer, with the lanes in turn."""
        if there.dtype != here.dtype or there.numel() != here.numel():
            raise ValueError(
                f"copies {there.dtype} {list(there.shape)} and {here.dtype} {list(here.shape)} as they are"
            )
        elements = _BUFFER_BYTES // there.element_size()
        pairs = zip(there.view(-1).split(elements), here.view(-1).split(elements), strict=True)
        for number, (piece_there, piece_here) in enumerate(pairs):
            yield self._lanes[number % len(self._lanes)], piece_there, piece_here


class _Lane:
    """A buffer and the stream of its copies; `wait` before the buffer is read or written by the processor."""

    def __init__(self, device: str) -> None:
        import torch

        self.stream = torch.cuda.Stream() if device == "cuda" else None
        self.memory = torch.empty(_BUFFER_BYTES, dtype=torch.uint8, pin_memory=device == "cuda")

    def buffer_like(self, piece: torch.Tensor) -> torch.Tensor:
        """The first bytes of the buffer, as many elements as `piece` has."""
        return self.memory[: piece.nbytes].view(piece.dtype)

    def start(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begin a copy between the buffer and the device, after what the current stream was given before."""
        import torch

        if self.stream is None:
            target.copy_(source)
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)

    def wait(self) -> None:
        """Until the copy begun last is done."""
        if self.stream is not None:
            self.stream.synchronize()


def _finish(lane: _Lane, here: torch.Tensor, buffer: torch.Tensor) -> None:
    """Wait for a copy into a buffer, and copy that to where it belongs in host memory."""
    lane.wait()
    here.copy_(buffer)
