"""The gradient audit: scores, row maxima, argmax and both gradients against float64, every discrepancy with its cause.

Room: `training`. In: a device and a path. Out: a report. May import: `maxsim.fused`, `maxsim.reference`,
`maxsim.tokens`. Meant for a harness and for tests; nothing in a training step comes here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from maxsim import fused, reference
from maxsim.fused.forward import Path
from maxsim.tokens import TokenBatch, tokens
from maxsim.training import torch_path
from maxsim.training.backward import BackwardPath, choose_backward, gradients
from maxsim.training.geometry import Geometry, geometry

LENGTHS = (128, 256, 512)
QUERIES, DOCUMENTS, DIMENSION = 3, 4, 128
SCORE_LIMIT = 1e-5  # relative, of scores and row maxima
GRADIENT_LIMIT = 1e-5  # normwise, of fp32 gradients at equal argmax
FP32_ROUNDING = 2.0**-24  # unit roundoff: one fp32 operation is off by at most this, relatively
MOST_LISTED = 1000

Cause = Literal["tie", "rounding", "bug"]


@dataclass(frozen=True)
class Finding:
    """One place where a result is not the reference's within the limit.

    `cause` is "tie" where the reference's own two best differ by less than fp32 accumulation can resolve, "rounding"
    where the difference is within the error bound of an fp32 sum of these very terms, else "bug".
    """

    case: str
    what: str
    where: tuple[int, ...]
    got: float
    expected: float
    cause: Cause


@dataclass
class Report:
    """What an audit found.

    Attributes:
        cases: (Lq, Ld) pairs audited.
        worst: largest error by kind: "score", "maximum" (relative), "dQ", "dD" (normwise, fp32), "dQ ulp", "dD ulp".
        findings: every discrepancy, the first `MOST_LISTED` of each kind and cause.
        counts: (what, cause) → how many there are, listed or not.
    """

    cases: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[tuple[str, Cause]] = field(default_factory=Counter)

    @property
    def passed(self) -> bool:
        """Whether nothing was off but ties and roundings."""
        return self.cases > 0 and not any(cause == "bug" for _, cause in self.counts)

    def note(self, kind: str, error: float) -> None:
        """Keep the largest error of a kind; NaN counts as infinite."""
        self.worst[kind] = max(self.worst.get(kind, 0.0), error if error == error else float("inf"))

    def add(
        self, case: str, what: str, bad: Tensor, got: Tensor, expected: Tensor, explained: Tensor, cause: Cause
    ) -> None:
        """List the places of `bad`; those that `explained` covers have `cause`, the others are bugs."""
        groups: tuple[tuple[Cause, Tensor], ...] = ((cause, bad & explained), ("bug", bad & ~explained))
        for name, marked in groups:
            places = marked.nonzero().tolist()
            room = MOST_LISTED - self.counts[what, name]
            self.counts[what, name] += len(places)
            for place in places[: max(0, room)]:
                at = tuple(place)
                self.findings.append(Finding(case, what, at, float(got[at]), float(expected[at]), name))
        self.counts = +self.counts


def shapes(pairs: int, seed: int) -> list[tuple[int, int, bool]]:
    """`pairs` random (Lq, Ld, ragged): half of the lengths 128, 256 and 512, half ragged below them or anywhere."""
    draw = random.Random(seed)
    found = []
    for i in range(pairs):
        if i % 4 == 3:
            found.append((draw.randint(1, max(LENGTHS)), draw.randint(1, max(LENGTHS)), True))
        elif i % 4 == 2:
            found.append((draw.choice(LENGTHS), draw.choice(LENGTHS), True))
        else:
            L = draw.choice(LENGTHS)
            found.append((L, L if i % 4 == 0 else draw.choice(LENGTHS), False))
    return found


def audit(
    dtypes: Iterable[torch.dtype] = (torch.float16, torch.bfloat16, torch.float32), *, pairs: int = 128, seed: int = 0,
    device: str = "cuda", path: Path | None = None, backward: BackwardPath | None = None,
) -> Report:  # fmt: skip
    """Audit `pairs` random (Lq, Ld) shapes in every dtype.

    Each shape is scored for three queries against four documents of random unit vectors, with random upstream
    gradients; ragged ones have random lengths, empty sequences included. The reference multiplies the same operands in
    float64 and
    materialises every similarity; its gradients are taken at the audited argmax, so that a tie is counted once.
    """
    report = Report()
    for dtype in dtypes:
        for number, (Lq, Ld, ragged) in enumerate(shapes(pairs, seed)):
            q, d, g = inputs(Lq, Ld, ragged, dtype, device, seed + number)
            name = f"{str(dtype).removeprefix('torch.')} Lq={Lq} Ld={Ld}{' ragged' if ragged else ''} #{number}"
            audit_case(report, name, q, d, g, path, backward)
            report.cases += 1
    return report


def inputs(
    Lq: int, Ld: int, ragged: bool, dtype: torch.dtype, device: str, seed: int
) -> tuple[TokenBatch, TokenBatch, Tensor]:
    """Queries [QUERIES, Lq, d], documents [DOCUMENTS, Ld, d], upstream gradient; d = DIMENSION; drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)

    def batch(count: int, L: int) -> TokenBatch:
        x = torch.nn.functional.normalize(torch.randn((count, L, DIMENSION), generator=generator), dim=-1)
        lengths = torch.randint(0, L + 1, (count,), generator=generator) if ragged else None
        return tokens(x.to(device, dtype), lengths=None if lengths is None else lengths.to(device))

    q, d = batch(QUERIES, Lq), batch(DOCUMENTS, Ld)
    return q, d, torch.randn((QUERIES, DOCUMENTS), generator=generator).to(device)


def audit_case(
    report: Report, name: str, q: TokenBatch, d: TokenBatch, g: Tensor, path: Path | None, backward: BackwardPath | None
) -> None:
    """Note in `report` how scores, maxima, winners and gradients (upstream g [Nq, B]) differ from float64's."""
    expected, best = reference.float64(q, d)
    scored = fused.forward(q, d, argmax=True, path=path)
    assert isinstance(scored, tuple)
    scores, winner = scored
    geo = geometry(q, d, "all")
    best = best[..., : geo.Lq]
    _audit_scores(report, name, "score", scores, expected)
    rows = replace(q, count=q.values.shape[0], pitch=1, max_length=1, starts=None, lengths=None, dense_shape=None)
    maxima = fused.forward(rows, d, path=path)
    assert isinstance(maxima, Tensor)
    _audit_maxima(report, name, maxima, rows, d, q)
    _audit_argmax(report, name, winner.long(), best, q, d)
    _audit_gradients(report, name, q, d, winner, g, geo, choose_backward(q, d, geo, backward))


def _audit_scores(report: Report, name: str, what: str, got: Tensor, expected: Tensor) -> None:
    same = (got == expected) | (got.isnan() & expected.isnan())  # infinities of one sign are equal
    error = torch.where(same, 0.0, (got.double() - expected).abs() / expected.abs().clamp_min(1e-30))
    report.note(what, error.max().item() if error.numel() else 0.0)
    bad = ~(error <= SCORE_LIMIT)
    report.add(name, what, bad, got, expected, torch.zeros_like(bad), "rounding")


def _audit_maxima(report: Report, name: str, got: Tensor, rows: TokenBatch, d: TokenBatch, q: TokenBatch) -> None:
    """Every query token as a query of its own: its score is its row maximum. Relative to the norms, which are one."""
    expected, _ = reference.float64(rows, d)
    _, valid = q.padded()
    keep = valid[:, : q.max_length].reshape(-1) if q.pitch == q.max_length else _valid_rows(q)
    got, expected = got[keep], expected[keep]
    same = got == expected
    error = torch.where(same, 0.0, (got.double() - expected).abs())
    report.note("maximum", error.max().item() if error.numel() else 0.0)
    bad = ~(error <= SCORE_LIMIT)
    report.add(name, "maximum", bad, got, expected, torch.zeros_like(bad), "rounding")


def _valid_rows(q: TokenBatch) -> Tensor:
    """[R] bool: rows that are some query's tokens."""
    row = torch.arange(q.values.shape[0], device=q.device)
    return row % q.pitch < q.row_lengths()[row // q.pitch]


def _audit_argmax(report: Report, name: str, got: Tensor, best: Tensor, q: TokenBatch, d: TokenBatch) -> None:
    """A different winner is a tie if the two similarities differ by less than the bound of both fp32 products."""
    bad = got != best
    places = bad.nonzero()
    tie = torch.zeros_like(bad)
    if len(places):
        n, k, i = places.unbind(1)
        both = (got[bad] >= 0) & (best[bad] >= 0)
        x = q.values[q.row_starts()[n] + i].double()
        ours = d.values[d.row_starts()[k] + got[bad].clamp_min(0)].double()
        theirs = d.values[d.row_starts()[k] + best[bad].clamp_min(0)].double()
        gap = (x * (theirs - ours)).sum(-1).abs()
        bound = DIMENSION * FP32_ROUNDING * ((x * ours).abs().sum(-1) + (x * theirs).abs().sum(-1))
        tie[bad] = both & (gap <= bound)
    report.add(name, "argmax", bad, got, best, tie, "tie")


def _audit_gradients(
    report: Report, name: str, q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry,
    path: BackwardPath,
) -> None:  # fmt: skip
    q64, d64 = (replace(b, values=b.values.double()) for b in (q, d))
    q_abs, d_abs = (replace(b, values=b.values.double().abs()) for b in (q, d))
    exact = torch_path.gradients(q64, d64, winner, g, geo, query=True, document=True)
    terms = torch_path.gradients(q_abs, d_abs, winner, g.abs(), geo, query=True, document=True)
    wide = gradients(
        path, q, d, winner, g, geo, query=True, document=True, query_dtype=torch.float32, document_dtype=torch.float32
    )
    cast = gradients(path, q, d, winner, g, geo, query=True, document=True)
    most = {"dQ": geo.K, "dD": geo.Nq * geo.Lq}  # terms of one sum
    for what, e, size, x, y in _named(exact, terms, wide, cast):
        norm = e.norm().item()
        error = (x.double() - e).norm().item() / norm if norm else float(x.abs().sum())
        report.note(what, error)
        beyond = torch.full((1,), not error <= GRADIENT_LIMIT, device=x.device)
        report.add(name, f"{what} normwise", beyond, beyond.new_full((1,), error, dtype=torch.float64),
                   beyond.new_zeros((1,), dtype=torch.float64), torch.zeros_like(beyond), "rounding")  # fmt: skip
        if q.dtype == torch.float32:
            continue
        unit = ulp(e, q.dtype)
        off = (y.double() - e).abs()
        report.note(f"{what} ulp", (off / unit).max().item() if off.numel() else 0.0)
        explained = off <= unit + (most[what] + 1) * FP32_ROUNDING * size
        report.add(name, what, ~(off <= unit), y, e, explained, "rounding")


def _named(*groups: tuple[Tensor | None, Tensor | None]) -> Iterator[tuple[str, Tensor, Tensor, Tensor, Tensor]]:
    for what, index in (("dQ", 0), ("dD", 1)):
        found = [group[index] for group in groups]
        present = [x for x in found if x is not None]
        assert len(present) == len(found) == 4
        yield what, present[0], present[1], present[2], present[3]


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float64: distance of neighbouring values of `dtype` around each x, at least that of its subnormals."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(x.double().abs().clamp_min(info.smallest_normal))
    return torch.ldexp(torch.full_like(x, info.eps, dtype=torch.float64), exponent - 1)
