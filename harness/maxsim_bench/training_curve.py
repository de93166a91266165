"""The paper's loss curves: Q and D themselves are trained, by eager autograd and through fused operators, side by side.

    python -m maxsim_bench.training_curve                      # rows in results/local/training_curve.csv; needs a GPU
    python -m maxsim_bench.training_curve --profile smoke      # a small one: seconds on a processor

Orchestration beside `cli.py`. In: this machine. Out: a row a scorer with its peak and, in `extra`, the loss of every
step, wall seconds and how far the curve is from eager autograd's. The curve that others are compared with runs first.
Stopped by Ctrl-C, the same command goes on from the rows that are there. May import every room; torch only inside
functions. docs/training.md says where the published protocol can be read in two ways, and how it is read here.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.declare.cell import Cell, Dtype
from maxsim_bench.declare.experiment import axis_of
from maxsim_bench.machine import Machine, this_machine
from maxsim_bench.modules import Head, command_parser, ended_in_one_line
from maxsim_bench.record.row import Row

if TYPE_CHECKING:
    import torch

EXPERIMENT = "training_curve"
ELEMENT = "fig:training_parity"
BASELINE = "train_eager"
# Of all scorers, compilation included, for announcements: on a card with room for the similarities, and on two cores.
SECONDS, SMOKE_SECONDS = 120.0, 15.0
_SMALLEST = 1e-6  # of a loss that a relative drift is divided by

Score = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]  # [Nq, Lq, d], [B, Ld, d] → [Nq, B]


class CurveError(RuntimeError):
    """Rows that are there cannot stand beside what would be measured now; the text says which and what to do."""


@dataclass(frozen=True)
class Curve:
    """What is trained: `batch` queries and as many documents of `length` tokens, `d` wide, for `steps` Adam steps.

    Attributes:
        dtype: of the operands as they are scored; the parameters are fp32 and cast inside every step.
    """

    batch: int
    length: int
    d: int
    dtype: Dtype
    steps: int
    learning_rate: float = 1e-3
    seed: int = 42

    @property
    def temperature(self) -> float:
        """Scores are divided by it: the root of the query's length."""
        return math.sqrt(self.length)

    def cell(self, gpu: str) -> Cell:
        """The same cell for every scorer. `ties=one`: a tie's gradient goes to one token, as from every scorer here."""
        variant = {
            "learning_rate": f"{self.learning_rate:g}", "loss": "cross_entropy", "steps": self.steps,
            "temperature": f"{self.temperature:g}", "ties": "one",
        }  # fmt: skip
        return Cell(
            experiment=EXPERIMENT, gpu=gpu, op="training_step", Nq=self.batch, B=self.batch, Lq=self.length,
            Ld=self.length, d=self.d, dtype=self.dtype, layout="dense", pairing="all", inputs="random", seed=self.seed,
            variant=";".join(f"{k}={v}" for k, v in variant.items()),
        )  # fmt: skip


PROFILES = {
    "paper": Curve(batch=64, length=1024, d=128, dtype="fp16", steps=500),
    "smoke": Curve(batch=8, length=16, d=32, dtype="fp32", steps=40),
}


def eager(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    """[Nq, B] in the dtype of Q. Unlike `baselines.eager`, whose `amax` divides a tie's gradient among its tokens.

    The published peak has room for the similarities and their gradient, not for the masks and quotients of `amax`.
    """
    import torch

    return torch.einsum("qid,bjd->qbij", Q, D).max(dim=-1).values.sum(dim=-1)


def _fused(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    import maxsim

    return maxsim.maxsim(Q, D)


def _flash(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    from flash_maxsim import flash_maxsim_batched_train

    scores: torch.Tensor = flash_maxsim_batched_train(Q, D, shared_docs=True)
    return scores


# By backend, in the order in which they run: a peer that fails leaves the other curves behind.
SCORERS: Mapping[str, Score] = {BASELINE: eager, "train_fused": _fused, "train_flash_maxsim": _flash}


def version_of(backend: str) -> str:
    """The version that a row names: of eager autograd, whose expression lies here, a hash of it."""
    from maxsim_bench.backends.registry import get

    if backend == BASELINE:
        return hashlib.sha256(inspect.getsource(eager).encode()).hexdigest()[:12]
    return get(backend).version()


@dataclass
class Trained:
    """What training gave: the loss of every step, seconds of all steps and of the first one, bytes.

    Attributes:
        peak_extra_bytes: beside Q and D: gradients, moments and operands are in it. None on a processor.
    """

    losses: list[float] = field(default_factory=list)
    wall_s: float = math.nan
    first_step_s: float = math.nan
    input_bytes: int = 0
    peak_extra_bytes: int | None = None


def train(curve: Curve, score: Score, device: str) -> Trained:
    """Draw Q and D, unit tokens, and train both; nothing is normalised again, and the cross-entropy takes the scores'
    dtype.

    One pass gives time and peak, first call included, as published.
    """
    import torch

    from maxsim_bench.measure import clock, memory

    # A generator of its own draws what the device's default one would after `manual_seed`.
    generator = torch.Generator(device).manual_seed(curve.seed)
    shape = (curve.batch, curve.length, curve.d)
    Q, D = (
        torch.nn.functional.normalize(torch.randn(shape, generator=generator, device=device), dim=-1).requires_grad_()
        for _ in range(2)
    )
    optimiser = torch.optim.Adam([Q, D], lr=curve.learning_rate)
    target = torch.arange(curve.batch, device=device)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[curve.dtype]
    found = Trained(input_bytes=sum(x.numel() * x.element_size() for x in (Q, D)))

    def steps() -> None:
        began = clock.seconds()
        for _ in range(curve.steps):
            scores = score(Q.to(dtype), D.to(dtype)) / curve.temperature
            loss = torch.nn.functional.cross_entropy(scores, target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found.losses.append(loss.item())
            if len(found.losses) == 1:
                found.first_step_s = clock.seconds() - began

    meter = clock.HostMeter(device)
    timed: list[clock.Sample] = []
    reading = memory.measure_peak(lambda: timed.extend(meter.block([steps])), device)
    if not timed:  # on a processor there is no meter, and nothing ran
        timed = meter.block([steps])
    [sample] = timed
    if sample.error is not None:
        raise sample.error
    found.wall_s = sample.ms / 1e3
    found.peak_extra_bytes = None if reading is None else reading.peak_extra_bytes
    return found


def drift(losses: Sequence[float], baseline: Sequence[float]) -> dict[str, float]:
    """How far one curve is from another of as many steps, step by step: nats, and fractions of the other's loss."""
    apart = [abs(a - b) for a, b in zip(losses, baseline, strict=True)]
    return {
        "loss_max_abs_drift": max(apart),
        "loss_mean_abs_drift": sum(apart) / len(apart),
        "loss_max_rel_drift": max(x / max(abs(b), _SMALLEST) for x, b in zip(apart, baseline, strict=True)),
    }


def run(
    curve: Curve, machine: Machine, folder: Path, say: Callable[[str], None], *, force: bool = False,
    scorers: Mapping[str, Score] = SCORERS,
) -> list[Row]:  # fmt: skip
    """Train by every scorer that the store has no row of; all rows of this curve. Every curve is a row at once.

    Args:
        force: measure finished rows again.

    Raises:
        CurveError: if a row that is there was measured elsewhere, or its drift is from another curve than eager's.
    """
    from maxsim_bench.measure.environment import capture, environment_id
    from maxsim_bench.record.environments import add_environments
    from maxsim_bench.record.store import Store

    environment = capture(machine.device)
    identity = environment_id(environment)
    store = Store(folder / f"{EXPERIMENT}.csv")
    cell = curve.cell(machine.key)
    rows: list[Row] = []
    with store.lock():
        add_environments(folder, {identity: environment})
        known = {} if force else {row.key: row for row in store.rows()}
        for backend, score in scorers.items():
            base = rows[0] if rows and rows[0].status == "ok" else None
            head = Head(cell, backend, version_of(backend), machine, identity)
            row = known.get(head.row("skipped", error="not run").key)
            if row is not None:
                _refuse_contradictions(row, base, identity, store.path)
            else:
                row = _measured(head, curve, score, base)
                (store.replace if force else store.append)([row])
                say(_line(row))
            rows.append(row)
    return rows


def _measured(head: Head, curve: Curve, score: Score, base: Row | None) -> Row:
    """One curve as a row; one that does not fit, or that its scorer does not take, is a row as well."""
    from maxsim_bench.backends.registry import get
    from maxsim_bench.measure.failures import describe, kind_of

    refused = get(head.backend).supports(head.cell, head.machine.device)
    if refused is not None:
        return head.row("unsupported", error=refused)
    try:
        found = train(curve, score, head.machine.device)
    except (RuntimeError, MemoryError) as error:
        if kind_of(error) != "oom":
            raise
        return head.row("oom", error=describe(error))
    told: dict[str, Any] = {
        "wall_s": found.wall_s, "first_step_s": found.first_step_s, "loss_first": found.losses[0],
        "loss_final": found.losses[-1], "losses": found.losses,
    }  # fmt: skip
    if base is not None:
        told |= {"against": base.key, **drift(found.losses, _losses(base))}
    return head.row(
        "ok", input_bytes=found.input_bytes, peak_extra_bytes=found.peak_extra_bytes, extra=json.dumps(told)
    )


def _losses(row: Row) -> list[float]:
    return list(json.loads(row.extra or "{}")["losses"])


def _holds_curve(row: Row) -> bool:
    losses = json.loads(row.extra or "{}").get("losses")
    steps = axis_of(row.cell, "variant.steps")
    return isinstance(losses, list) and len(losses) == int(steps) and all(isinstance(loss, float) for loss in losses)


def _refuse_contradictions(row: Row, base: Row | None, environment: str, path: Path) -> None:
    """A finished row stands only beside curves of one machine, and with the drift that the two curves have."""
    remedy = "Measure all of them again with --force, or name another folder with --into."
    if row.environment_id != environment:
        raise CurveError(
            f"{path}: {row.backend} was measured in environment {row.environment_id}, this is {environment}; curves "
            f"of two machines or versions of libraries are not compared. {remedy}"
        )
    if row.status != "ok" or row.backend == BASELINE:
        return
    told = json.loads(row.extra or "{}")
    for one in (row, base):
        if one is not None and not _holds_curve(one):
            raise CurveError(f"{path}: {one.backend} holds no loss of every step. {remedy}")
    against = None if base is None else base.key
    if told.get("against") != against:
        raise CurveError(
            f"{path}: the drift of {row.backend} is from {told.get('against') or 'no curve'}, but the one of eager "
            f"autograd is {against or 'not there'}. {remedy}"
        )
    if base is not None:
        for name, value in drift(told["losses"], _losses(base)).items():
            if told.get(name) != value:
                raise CurveError(
                    f"{path}: {row.backend} says {name} = {told.get(name)}, but its curve and eager autograd's are "
                    f"{value} apart. {remedy}"
                )


def _line(row: Row) -> str:
    if row.status != "ok":
        return f"{row.backend}: {row.status}: {row.error}"
    told = json.loads(row.extra or "{}")
    peak = "" if row.peak_extra_bytes is None else f", {(row.input_bytes or 0) + row.peak_extra_bytes:.3e} bytes"
    apart = f", at most {told['loss_max_abs_drift']:.2e} from eager" if "loss_max_abs_drift" in told else ""
    return (
        f"{row.backend}: loss {told['loss_first']:.4f} to {told['loss_final']:.2e} in {told['wall_s']:.1f} s "
        f"(first step {told['first_step_s']:.1f} s){peak}{apart}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, train, print."""
    parser = command_parser("training_curve", __doc__ or "")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="paper")
    parser.add_argument("--into", type=Path, default=Path("results/local"), help=f"folder of {EXPERIMENT}.csv")
    parser.add_argument("--force", action="store_true", help="measure finished rows again")
    told = parser.parse_args(arguments)
    with ended_in_one_line():
        machine = this_machine()
        if told.profile == "paper" and machine.device != "cuda":
            parser.error("the published size needs an NVIDIA GPU; --profile smoke runs on a processor")
        rows = run(PROFILES[told.profile], machine, told.into, lambda line: print(line, flush=True), force=told.force)
    print(f"{len(rows)} rows in {told.into / EXPERIMENT}.csv")


if __name__ == "__main__":
    main()
