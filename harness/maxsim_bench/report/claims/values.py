"""The number of a claim's metric from the rows that answer it.

Room: `report`. May import: record, declare.

Every function takes an `Asked` and returns the value in the claim's unit, or raises `NoValue` with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import DTYPE_BYTES, known_gpus
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import common_rounds
from maxsim_bench.report import counted, names
from maxsim_bench.report.claims.match import Index
from maxsim_bench.report.claims.paper import Answering, Claim, Peak
from maxsim_bench.report.load import Results

GIB = 2.0**30
_COMPUTED_GB = "hbm_gb_computed"  # of a row's extra: the paper's arithmetic, 10^9 bytes
_RESIDENT: dict[str, Callable[[Row], int]] = {
    "inputs": lambda row: row.input_bytes or 0,
    "prepared": lambda row: row.prepare_bytes or 0,
    "own": lambda row: row.prepare_bytes or row.input_bytes or 0,
    "fp32_inputs": lambda row: (row.input_bytes or 0) * (1 if row.cell.dtype == "fp32" else 2),
    "queries": lambda row: _queries_bytes(row.cell),
}


class NoValue(LookupError):  # noqa: N818  # it is a finding, not an error of the program
    """The rows do not hold the number; the message says why.

    Attributes:
        again: the rows are there, but have to be measured again to hold it.
    """

    def __init__(self, why: str, *, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True)
class Asked:
    """One row that answers a claim, with what its metric may need."""

    claim: Claim
    row: Row
    baseline: Row | None
    peak: Peak
    who: Answering
    index: Index
    results: Results

    def extra(self, key: str, *, again: bool = False) -> float:
        """A figure that not every row holds; `again` where one measured now would."""
        found = json.loads(self.row.extra or "{}").get(key)
        if not isinstance(found, (int, float)):
            raise NoValue(f"the row {'was measured without' if again else 'holds no'} {key}", again=again)
        return float(found)

    def like(self, **changes: Any) -> Row | None:
        """The same backend's row on the cell that differs by these axes only."""
        cell = self.row.cell.model_copy(update=changes)
        return self.index.cells.get(cell.hash(), {}).get(self.row.backend)

    def samples(self, row: Row) -> list[float]:
        """Raw times in ms."""
        return list(self._record(row)["ms"])

    def rounds(self, base: Row) -> tuple[list[float], list[float]]:
        """Times of the row and of another of its cell, entry i of both from one round; empty if not timed in turn."""
        return common_rounds(self._record(self.row), self._record(base))

    def in_turn(self, base: Row) -> Row | None:
        """The measurement of the baseline that took turns with the row: the newest, else an earlier one, else None."""
        if len(self.rounds(base)[0]) >= 2:
            return base
        mine = self._kept(self.row)
        return next((b for b in self.index.earlier(base) if len(common_rounds(mine, self._kept(b))[0]) >= 2), None)

    def _kept(self, row: Row) -> Any:
        source = self.index.sources[row.key]
        return _samples(self.results, source).get(row.key) if source in self.results.paths else None

    def _record(self, row: Row) -> dict[str, Any]:
        kept = self._kept(row)
        if not isinstance(kept, dict) or "ms" not in kept:
            raise NoValue("no raw samples were kept for this row", again=True)
        return kept


_CACHE: dict[int, tuple[Results, dict[str, dict[str, Any]]]] = {}


def _samples(results: Results, source: str) -> dict[str, Any]:
    """Samples of one CSV, read once for a set of results."""
    if id(results) not in _CACHE or _CACHE[id(results)][0] is not results:
        _CACHE.clear()
        _CACHE[id(results)] = (results, {})
    kept = _CACHE[id(results)][1]
    if source not in kept:
        kept[source] = results.samples(source)
    return kept[source]


def footprint(row: Row, peak: Peak) -> float:
    """Bytes: what a call allocated at most, and what was resident beside it under that reading."""
    if row.peak_extra_bytes is None:
        raise NoValue("the row holds no memory reading", again=True)
    scratched = [one for one in peak.scratched if one.held_by(row.backend)]
    holders = [peak.resident, *(one.resident for one in scratched)]
    resident = sum(_RESIDENT[name](row) for holder in holders for name in holder)
    fixed = peak.bytes + sum(one.bytes.get(peak.card, one.bytes.get("any", 0)) for one in scratched)
    first = [_argmax_bytes(row.cell) + one.beside_argmax for one in scratched if one.beside_argmax]
    kept = _kept_bytes(row, peak) if peak.kept_counts else 0
    return max(row.peak_extra_bytes, *first, 0) + resident + fixed + kept


def _queries_bytes(cell: Cell) -> int:
    return (cell.Nq or 1) * (cell.Lq or 0) * (cell.d or 0) * DTYPE_BYTES[cell.dtype or "fp16"]


def _argmax_bytes(cell: Cell) -> int:
    """The winning token of every query token and document, int32."""
    return 4 * (cell.Nq or 1) * (cell.B or 0) * (cell.Lq or 0)


def _kept_bytes(row: Row, peak: Peak) -> int:
    """What the published script held and ours does not, by the sizes of the cell; less than 0 for the reverse."""
    kept, cell = peak.kept.get(row.backend), row.cell
    if kept is None:
        return 0
    documents = cell.B or 0
    if kept.tensor == "gathered":  # nothing is gathered where one rank has all documents
        alone = documents <= (cell.Nq or 0)
        return 0 if alone else -2 * documents * (cell.Ld or 0) * (cell.d or 0) * kept.element_bytes
    if kept.tensor == "corpus_block":  # in place of what ours holds
        return kept.documents * (cell.Ld or 0) * (cell.d or 0) * kept.element_bytes - (row.peak_extra_bytes or 0)
    if kept.tensor == "fp32_gradients":  # beside those of 16 bits, where the newer version keeps no others
        few = min(cell.Nq or 1, documents) < 256 or (cell.Lq or 0) > 64
        return 0 if few else (row.input_bytes or 0) // DTYPE_BYTES[cell.dtype or "fp16"] * kept.element_bytes
    if kept.tensor == "former_block":  # beside a full block; a single block has none before it
        block = cell.chunk or documents
        documents = max(0, min(block, documents - block))
    similarities = (cell.Nq or 1) * documents * (cell.Lq or 0) * (cell.Ld or 0) * kept.element_bytes
    if kept.tensor == "graph_slack":  # a graph holds its own copies of what it is called with, and the similarities
        return similarities + (row.prepare_bytes or row.input_bytes or 0) - (row.peak_extra_bytes or 0)
    return similarities


def _column(name: str, factor: float = 1.0) -> Callable[[Asked], float]:
    def read(asked: Asked) -> float:
        value = getattr(asked.row, name)
        if value is None:
            raise NoValue(f"the row was measured without {name}", again=True)
        return float(value) * factor

    return read


def _quantiles(low: float, high: float | None = None) -> Callable[[Asked], float]:
    def read(asked: Asked) -> float:
        samples = asked.samples(asked.row)
        first = float(np.quantile(samples, low))
        return first if high is None else float(np.quantile(samples, high)) - first

    return read


def _peak_gb(asked: Asked) -> float:
    return footprint(asked.row, asked.peak) / (GIB if asked.claim.unit == "GiB" else 1e9)


def _memory_ratio(asked: Asked) -> float:
    return footprint(_baseline(asked), asked.peak) / footprint(asked.row, asked.peak)


def _baseline(asked: Asked) -> Row:
    if asked.baseline is None:
        raise NoValue(f"the baseline {asked.claim.baseline or '(none named)'} was not measured on the same cell")
    if asked.baseline.status != "ok":
        raise NoValue(f"the baseline {asked.baseline.backend} is {asked.baseline.status} on this cell")
    return asked.baseline


def _speedup(asked: Asked) -> float:
    """Median of paired ratios: the row's own where its baseline is the claim's, else from the samples' rounds.

    Rows of two cells were not timed in turn: their ratio is one of medians, which the ledger says.
    """
    base, row = _baseline(asked), asked.row
    if row.speedup is not None and row.speedup_baseline == base.backend and row.cell == base.cell:
        return row.speedup
    if row.cell != base.cell:
        return _column("latency_ms")(replace(asked, row=base)) / _column("latency_ms")(asked)
    partner = asked.in_turn(base)
    if partner is None:
        raise NoValue(
            f"{row.backend} and {base.backend} were measured in different runs, never in turn: no ratio can be paired",
            again=True,
        )
    mine, theirs = asked.rounds(partner)
    return float(np.median(np.array(theirs) / np.array(mine)))


def _share(asked: Asked) -> float:
    """Percent of one piece of a backward pass in the sum of its three pieces, each timed alone."""
    stage = {"csr": "csr_build", "dQ": "dq", "dD": "dd"}[asked.claim.variants["stage"]]
    ms = {}
    for piece in ("csr_build", "dq", "dd"):
        variant = (asked.row.cell.variant or "").replace(f"stage={stage}", f"stage={piece}")
        found = asked.like(variant=variant)
        if found is None or found.latency_ms is None:
            raise NoValue(f"the piece {piece} was not measured on the same cell")
        ms[piece] = found.latency_ms
    return 100 * ms[stage] / sum(ms.values())


def _error_ratio(asked: Asked) -> float:
    """Largest error over that of the baseline, on the same cell and inputs."""
    base = _baseline(asked)
    if not base.max_abs_err:
        raise NoValue(f"{base.backend} has no error on this cell to divide by")
    return _column("max_abs_err")(asked) / base.max_abs_err


def _residual_gb(asked: Asked) -> float:
    """Peak beside inputs, gradients (as large as the inputs) and, for a kernel that keeps one, the int32 argmax."""
    row, cell = asked.row, asked.row.cell
    argmax = 0 if "eager" in asked.claim.backend else _argmax_bytes(cell)
    beside = asked.peak.model_copy(update={"resident": (), "bytes": 0})
    return (footprint(row, beside) - _RESIDENT["inputs"](row) - argmax) / 1e9


def _mean_tokens(asked: Asked) -> float:
    """Mean tokens a document of a packed corpus, from its bytes."""
    cell = asked.row.cell
    if cell.layout != "packed" or cell.dtype == "fp32" or not asked.row.input_bytes:
        raise NoValue("only a packed 16-bit corpus tells how long its documents are")
    rows = asked.row.input_bytes / (2 * (cell.d or 1)) - (cell.Nq or 1) * (cell.Lq or 0)
    return rows / (cell.B or 1)


def _achieved(asked: Asked) -> float:
    """The traffic that the paper computes over the time; without that figure the compulsory bytes over the time."""
    try:
        return asked.extra(_COMPUTED_GB) / (_column("latency_ms")(asked) * 1e-3)
    except NoValue:
        return _column("achieved_gbs")(asked)


def rate_readings(row: Row) -> tuple[str, str]:
    """Whose bytes an achieved rate divides by the time, and the rate of those that counters saw, in words."""
    computed = _COMPUTED_GB in json.loads(row.extra or "{}")
    read = "computed bytes, as published, over the time measured here"
    try:
        _counted_gb(row)
    except NoValue as told:
        other = f"no rate of counted bytes: {told}"
    else:
        other = f"counted bytes over that time: {names.number(counted.traffic_gbs(row), 4)} GB/s"
    return read if computed else "compulsory bytes over the time measured here", other


def _extra(key: str) -> Callable[[Asked], float]:
    return lambda asked: asked.extra(key)


def _counted_gb(row: Row) -> float:
    gigabytes = counted.traffic_gb(row)
    if gigabytes is None:
        raise NoValue("no hardware counter was read", again=True)
    refuted = counted.refuted(row)
    if refuted is not None:
        raise NoValue(f"{gigabytes:.4g} GB were counted of {row.backend}: {refuted}", again=True)
    return gigabytes


def _per_second(count: Callable[[Row], float]) -> Callable[[Asked], float]:
    def read(asked: Asked) -> float:
        return count(asked.row) / (_column("latency_ms")(asked) * 1e-3)

    return read


def _pairs(row: Row) -> float:
    return float((row.cell.Nq or 1) * (row.cell.B or 0))


def _price(asked: Asked) -> float:
    """ "1.50 USD per GPU-hour" among the claim's variants → 1.5."""
    stated = next((word for word in asked.claim.variants if word.endswith("USD per GPU-hour")), None)
    if stated is None:
        raise NoValue("the claim names no price of a GPU-hour")
    return float(stated.split()[0])


def _status(asked: Asked) -> float:
    raise NoValue("a status is compared as a word")


METRICS: dict[str, Callable[[Asked], float]] = {
    "latency_ms": _column("latency_ms"),
    "latency_p20_ms": _column("latency_p20_ms"),
    "latency_p80_ms": _column("latency_p80_ms"),
    "latency_p25_ms": _quantiles(0.25),
    "latency_p75_ms": _quantiles(0.75),
    "latency_min_ms": _quantiles(0.0),
    "latency_max_ms": _quantiles(1.0),
    "latency_iqr_ms": _quantiles(0.25, 0.75),
    "wall_s": _column("latency_ms", 1e-3),
    "peak_gb": _peak_gb,
    "memory_ratio": _memory_ratio,
    "speedup": _speedup,
    "status": _status,
    "qps": _per_second(lambda row: float(row.cell.Nq or 1)),
    "docs_per_s": _per_second(_pairs),
    "us_per_candidate": lambda asked: _column("latency_ms", 1e3)(asked) / _pairs(asked.row),
    "gpu_s_per_1M_candidates": lambda asked: _column("latency_ms", 1e3)(asked) / _pairs(asked.row),
    # 10^9 candidates take 10^3 times the microseconds of one in seconds; the price of a GPU-hour is the claim's own.
    "usd_per_1B_candidates": lambda asked: _price(asked) * 1e3 * METRICS["us_per_candidate"](asked) / 3600,
    "gather_ms": _column("latency_ms"),
    "total_ms": _column("latency_ms"),
    "stage1_ms_per_query": _column("latency_ms"),
    "warmup_wall_s": _column("latency_ms", 1e-3),
    "achieved_gb_per_s": _achieved,
    "gradient_gb_per_s": _column("achieved_gbs"),
    "share_of_backward": _share,
    "residual_transient_gb": _residual_gb,
    "hbm_gb": lambda asked: _counted_gb(asked.row),
    "hbm_ratio": lambda asked: _counted_gb(_baseline(asked)) / _counted_gb(asked.row),
    "mean_doc_len": _mean_tokens,
    "max_doc_len": lambda asked: asked.extra("longest_document", again=True),
    "fill_ratio": lambda asked: _mean_tokens(asked) / (asked.row.cell.Ld or 1),
    "error_ratio": _error_ratio,
    "error_reduction": lambda asked: 1 / _error_ratio(asked),
    "max_abs_err": _column("max_abs_err"),
    "mean_abs_err": _column("mean_abs_err"),
    "max_rel_err": _column("max_rel_err"),
    "mean_rel_err": _extra("mean_rel_err"),
    "rel_err_grad_d": _extra("rel_err_grad_d"),
    "cosine_grad_d": _extra("cosine_grad_d"),
    "cosine_grad_q": _extra("cosine_grad_q"),
    "spearman": _column("spearman"),
    "topk_overlap@10": _column("topk_overlap"),
    "topk_overlap@20": _column("topk_overlap_20"),
    "topk_overlap@50": _extra("topk_overlap_50"),
    "ndcg@10": _column("ndcg_at_10"),
    "ndcg@5": _column("ndcg_at_5"),
    "ndcg_delta@10": lambda asked: abs(_column("delta")(asked)),
    "recall@10": _column("recall_at_10"),
    "mrr@10": _column("mrr_at_10"),
}


def value(asked: Asked) -> float:
    """The claim's number from one row. Raises `NoValue`."""
    key = asked.who.extra.get(asked.claim.metric)
    if key is not None:
        return asked.extra(key)
    read = METRICS.get(asked.claim.metric)
    if read is None:
        raise NoValue(f"no column of the rows holds {asked.claim.metric}")
    return read(asked)


# What follows from a claim's own sizes, measured by nobody: the published arithmetic is redone.
def arithmetic(claim: Claim) -> float | None:
    """The number of a claim that is arithmetic, None for one that is not (or names too few sizes)."""
    Nq, B, Lq, Ld, d = claim.Nq or 1, claim.B, claim.Lq, claim.Ld, claim.d or 128
    if claim.metric == "ridge_point":
        card = known_gpus()[claim.gpu.lower()]
        return card.fp16_tflops * 1e3 / card.bandwidth_gbs
    if claim.metric == "arithmetic_intensity" and Lq and Ld:
        return d / 2.0 if "eager" in claim.backend else Lq * Ld / (Lq + Ld)
    if claim.metric == "storage_ratio":
        return 2.0 * d / (d + 2.0)
    if not (B and Ld):
        return None
    size = 4 if claim.dtype == "fp32" else 2
    documents = size * float(B) * Ld * d
    if claim.metric in ("corpus_gb", "embeddings_gb"):
        return 2.0 * B * Ld * d / 1e9
    if claim.metric == "storage_bytes":
        return B * Ld * (d + 2.0 if claim.dtype == "int8" else 2.0 * d)  # codes and an FP16 scale a token
    if not Lq:
        return None
    inputs = documents + size * float(Nq) * Lq * d
    tensor = float(Nq) * B * Lq * Ld
    return {
        "sim_tensor_gb": size * tensor / 1e9,
        "analytic_s_gb": 4 * tensor / 1e9,
        "analytic_argmax_gb": 4.0 * Nq * B * Lq / 1e9,
        "baseline_qd_gb": 2.0 * d * (Nq * Lq + B * Ld) / 1e9,
        "grads_gb": 2.0 * d * (Nq * Lq + B * Ld) / 1e9,  # gradients have the dtype and shape of the inputs
        "hbm_gb": (2 * 4 * tensor + inputs if "eager" in claim.backend else inputs + 4.0 * Nq * B) / 1e9,
        "hbm_ratio": (2 * 4 * tensor + inputs) / (inputs + 4.0 * Nq * B),
        "compute_floor_ms": 2 * tensor * d / {"A100": 156e12, "H100": 312e12}.get(claim.gpu[:4], 156e12) * 1e3,
    }.get(claim.metric)
