"""The other ranks: processes beside this one, one a device, that make the same steps on their own shard.

Room: `backends`. May import: declare, `maxsim`. This process is rank 0. It deals out a cell's tensors, then says which
step comes next; collectives keep the ranks together. On GPUs they talk over NCCL, on processors over gloo.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
import weakref
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.backends.ddp_steps import Place

if TYPE_CHECKING:
    import torch

    from maxsim_bench.backends.ddp_steps import Step

_START_S = 60.0  # a process that imports torch and opens a device takes seconds
_STOP_S = 5.0
_PR_SET_PDEATHSIG = 1


class RankError(RuntimeError):
    """Another rank failed."""


class Ranks:
    """`world` - 1 processes. A failed step leaves them in unknown states, so it ends them; `ranks_for` starts more."""

    def __init__(self, world: int, device: str) -> None:
        import torch.distributed as dist

        self.world, self.device, self.open = world, device, True
        self._numbers = itertools.count()
        self._folder = tempfile.TemporaryDirectory(prefix="maxsim-bench-ranks-")
        store = (Path(self._folder.name) / "store").as_uri()
        context = multiprocessing.get_context("spawn")
        self._channels: list[Connection] = []
        self._processes = []
        for rank in range(1, world):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, world, device, store, os.getpid()), daemon=True
            )
            process.start()
            theirs.close()
            self._channels.append(mine)
            self._processes.append(process)
        dist.init_process_group(
            _backend(device), init_method=store, rank=0, world_size=world, timeout=timedelta(seconds=_START_S)
        )

    def prepare(self, step: str, tau: float, Q: torch.Tensor, D: torch.Tensor) -> Callable[[], Step]:
        """A step over all ranks.

        Args:
            step: name in `ddp.STEPS`.
            Q: [b, Lq, d] of rank 0; rank r gets Q with its dimensions rolled by r.
            D: [world · b, Ld, d]; rank r gets its part.
        """
        import torch
        import torch.distributed as dist

        from maxsim_bench.backends.ddp import STEPS

        key, b = next(self._numbers), Q.shape[0]
        self._say(("prepare", key, step, tau, tuple(Q.shape), (b, *D.shape[1:]), str(Q.dtype).removeprefix("torch.")))
        q, d = Q.clone(), D[:b].clone()
        dist.broadcast(q, 0)
        for rank in range(1, self.world):
            dist.send(D[rank * b : (rank + 1) * b].contiguous(), rank)
        place = Place(0, self.world, tau)

        def call() -> Step:
            self._say(("step", key))
            try:
                return STEPS[step](q, d, place)
            except BaseException:  # Ctrl-C included: no rank may outlive who started it
                self.close()
                raise

        weakref.finalize(call, self._forget, key)
        assert isinstance(q, torch.Tensor)
        return call

    def _say(self, message: tuple[Any, ...]) -> None:
        if not self.open:
            raise RankError("the other ranks were ended after a failed step. Measure this cell again.")
        for rank, channel in enumerate(self._channels, start=1):
            if channel.poll():
                told = channel.recv()
                self.close()
                raise RankError(f"rank {rank}: {told}")
            channel.send(message)

    def _forget(self, key: int) -> None:
        if self.open:
            for channel in self._channels:
                with contextlib.suppress(OSError):  # a rank that has ended holds nothing
                    channel.send(("forget", key))

    def close(self) -> None:
        """End the other ranks and leave the group."""
        if not self.open:
            return
        self.open = False
        import torch.distributed as dist

        for channel in self._channels:
            channel.close()  # a rank that waits for the next message ends by itself
        for process in self._processes:
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
        dist.destroy_process_group()
        self._folder.cleanup()


_CURRENT: list[Ranks] = []


def ranks_for(world: int, device: str) -> Ranks:
    """The open group of this size, started if there is none; a group of another size is ended first."""
    if _CURRENT and (_CURRENT[0].open, _CURRENT[0].world, _CURRENT[0].device) != (True, world, device):
        _CURRENT.pop().close()
    if not _CURRENT:
        _CURRENT.append(Ranks(world, device))
    return _CURRENT[0]


def _backend(device: str) -> str:
    return "nccl" if device == "cuda" else "gloo"


def _serve(channel: Connection, rank: int, world: int, device: str, store: str, parent: int) -> None:
    """The life of another rank: messages in, steps made; an exception is sent back and the rank goes on."""
    import torch
    import torch.distributed as dist

    from maxsim_bench.backends.ddp import STEPS

    if sys.platform == "linux":  # a rank that waits in a collective would never see that its parent is gone
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
    where = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(where)
    timeout = timedelta(seconds=_START_S)
    dist.init_process_group(_backend(device), init_method=store, rank=rank, world_size=world, timeout=timeout)
    kept: dict[int, tuple[str, Place, torch.Tensor, torch.Tensor]] = {}
    while True:
        try:
            message = channel.recv()
        except (EOFError, OSError):
            break
        try:
            if message[0] == "prepare":
                _, key, step, tau, q_shape, d_shape, dtype = message
                q = torch.empty(q_shape, dtype=getattr(torch, dtype), device=where)
                d = torch.empty(d_shape, dtype=q.dtype, device=where)
                dist.broadcast(q, 0)
                dist.recv(d, 0)
                kept[key] = (step, Place(rank, world, tau), rank_queries(q, rank), d)
            elif message[0] == "step":
                step, place, q, d = kept[message[1]]
                STEPS[step](q, d, place)
            else:
                kept.pop(message[1], None)
        except Exception as error:
            channel.send(f"{type(error).__name__}: {error}"[:500])
    dist.destroy_process_group()


def rank_queries(Q: torch.Tensor, rank: int) -> torch.Tensor:
    """The queries of a rank, made from those of rank 0: every vector rolled by the rank, so of length 1 as before."""
    return Q.roll(rank, -1).contiguous()
