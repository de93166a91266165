"""CUDA graphs of a callable, one for each input set, so that replays cost no dispatch.

Room: `measure`. Imports nothing else of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class CaptureError(RuntimeError):
    """The callable does something that a CUDA graph cannot hold, such as waiting for the device."""


def capture(calls: Sequence[Callable[[], object]]) -> list[Callable[[], object]]:
    """Capture each call; the results replay it and return the output that the capture wrote to.

    Raises:
        CaptureError: with the driver's reason.
    """
    import torch

    replays: list[Callable[[], object]] = []
    for call in calls:
        # PyTorch asks for a few calls on a side stream first, so that lazy initialisation is not captured.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                output = call()
        except Exception as error:
            raise CaptureError(f"cannot be captured in a CUDA graph: {str(error).splitlines()[0]}") from error
        replays.append(_replay(graph.replay, output, graph))
    return replays


def _replay(replay: Callable[[], None], output: object, graph: object) -> Callable[[], object]:
    def call(_keep: object = graph) -> object:
        replay()
        return output

    return call
