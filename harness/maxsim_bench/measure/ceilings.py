"""What this device reaches, measured in the same session by the same timer: products, reads, copies, empty launch.

Room: `measure`. Imports nothing else of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from maxsim_bench.measure import memory
from maxsim_bench.measure.failures import describe
from maxsim_bench.measure.statistics import quantile
from maxsim_bench.measure.timer import Call, Policy, Timing, TimingBudget, time_callables

Binding = Literal["compute", "memory", "copy", "launch"]

_MATRIX = {"cuda": 8192, "cpu": 1024}
_STREAM_BYTES = {"cuda": 1 << 31, "cpu": 1 << 27}
# Documents of 300 tokens of 128 fp16: a thousand and ten thousand of them. A processor reads less in the same time.
_SHORT_BYTES = {"cuda": (76_800_000, 768_000_000), "cpu": (1 << 22, 1 << 25)}
_SHORT_BUDGET = TimingBudget(seconds=0.1, warmup_seconds=0.05)  # of each, to stay below a second in all
_COPY_BYTES = 1 << 28  # a block of `maxsim.search`, which streams a corpus from host memory in such copies
_COPY_BUDGET = TimingBudget(seconds=0.2, warmup_seconds=0.05)  # beside some 0.1 s for pinning

_FAST_END = 0.05  # quantile of the samples that a ceiling is taken from; the very fastest may be a glitch

# An fp32 product can be had from three of TF32 halves (Markidis et al. 2018; Ootomo & Yokota 2022), so a third of that
# rate is a ceiling for fp32 where it is higher than the fp32 units'. Not of fp16 halves: fp32 has numbers beyond their
# exponents, so an operator that takes any operand cannot be made of them. Six of bf16 parts are no faster.
_SPLIT_PRODUCTS = 3


@dataclass(frozen=True)
class Ceilings:
    """Measured upper bounds.

    Attributes:
        device: "cuda" or "cpu".
        matmul_tflops: unit ("fp16", "bf16", "tf32", "fp32", "int8") → TFLOP/s (TOP/s).
        read_gbs: GB/s (10⁹) of the best streaming read; None if none could be measured.
        launch_ms: event time of an empty kernel; None on a processor.
        host_launch_ms: host time of an empty kernel and the wait for it, or of a call that does nothing.
        sources: which measurement each ceiling came from.
        all_measured: every candidate, by name, in its unit.
        missing: what could not be measured, and why.
        read_by_bytes: bytes (as text) → GB/s of one launch that only reads so many, with a cold L2 as rows are timed: a
            launch begins and ends, so one that reads little stays below `read_gbs` whatever it does.
        host_copy_gbs: GB/s of copies from pinned host memory to the device, in blocks as large as a search streams;
            None on a processor, and in records of before it was measured.
    """

    device: str
    matmul_tflops: dict[str, float]
    read_gbs: float | None
    launch_ms: float | None
    host_launch_ms: float | None
    sources: dict[str, str] = field(default_factory=dict)
    all_measured: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    read_by_bytes: dict[str, float] = field(default_factory=dict)
    host_copy_gbs: float | None = None

    def to_record(self) -> dict[str, Any]:
        """Plain mapping, for `environment.json`."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Ceilings:
        """Inverse of `to_record`."""
        return cls(**record)

    def compute_tflops(self, unit: str) -> float | None:
        """Best rate at which operands of `unit` can be multiplied to their accuracy; None if not measured."""
        rates = [self.matmul_tflops.get(unit)]
        if unit == "fp32":
            tf32 = self.matmul_tflops.get("tf32")
            rates.append(None if tf32 is None else tf32 / _SPLIT_PRODUCTS)
        known = [rate for rate in rates if rate is not None]
        return max(known) if known else None


@dataclass(frozen=True)
class Offer:
    """A further candidate for a ceiling: an MMA-only loop of a kernel's own tile, a TMA read.

    Attributes:
        name: what it is called in `sources`.
        unit: matrix unit it raises the ceiling of, or "read".
        make: builds the callable, on the device; what it raises is recorded as missing.
        amount: operations or bytes of one call.
    """

    name: str
    unit: str
    make: Callable[[], Call]
    amount: float


def measure_ceilings(device: str, budget: TimingBudget | None = None, offers: Iterable[Offer] = ()) -> Ceilings:
    """Measure every ceiling of `device`; what fails is named in `missing` and stops nothing."""
    budget = budget or TimingBudget(seconds=0.2, warmup_seconds=0.2)
    found: dict[str, float] = {}
    missing: dict[str, str] = {}
    best: dict[str, tuple[float, str]] = {}
    for offer in [*_matrix_offers(device), *_read_offers(device), *offers]:
        try:
            ms = _time(offer.make, "warm_l2", budget, device)
        except Exception as error:
            missing[offer.name] = describe(error)
            continue
        rate = offer.amount / ms / (1e6 if offer.unit == "read" else 1e9)
        found[offer.name] = rate
        if rate > best.get(offer.unit, (0.0, ""))[0]:
            best[offer.unit] = (rate, offer.name)
    launch = _time(_empty_kernel, "warm_l2", budget, device) if device == "cuda" else None
    host = _time(_empty_kernel if device == "cuda" else _nothing, "host", budget, device)
    short: dict[str, float] = {}
    for size in _SHORT_BYTES[device]:
        try:
            short[str(size)] = size / _time(_only_read(size, device), "cold_l2", _SHORT_BUDGET, device) / 1e6
        except Exception as error:  # as above: what cannot be measured is named, and stops nothing
            missing[f"read_by_bytes {size}"] = describe(error)
    copied: float | None = None
    if device == "cuda":
        try:
            copied = _copy_gbs(device)
        except Exception as error:  # as above; a host may refuse to pin so much
            missing["host_copy"] = describe(error)
    read = best.pop("read", (None, ""))
    sources = {unit: name for unit, (_, name) in best.items()} | ({"read": read[1]} if read[0] else {})
    rates = {unit: rate for unit, (rate, _) in best.items()}
    return Ceilings(device, rates, read[0], launch, host, sources, found, missing, short, copied)


def percent_of_ceiling(
    latency_ms: float, flops: float, bytes_min: float, unit: str, ceilings: Ceilings, host_bytes: float = 0.0
) -> tuple[float, Binding] | None:
    """How close a call comes to the least time that the measured ceilings allow, and which of them binds.

    The least time is the longest of flops over the matrix rate, bytes over the read bandwidth, bytes that have to come
    from host memory over the rate of such copies, and an empty launch.

    Returns:
        (percent, binding), None where no ceiling is known for it.
    """
    least: dict[Binding, float] = {}
    rate = ceilings.compute_tflops(unit)
    if rate:
        least["compute"] = flops / rate / 1e9
    if ceilings.read_gbs:
        least["memory"] = bytes_min / ceilings.read_gbs / 1e6
    if ceilings.host_copy_gbs:
        least["copy"] = host_bytes / ceilings.host_copy_gbs / 1e6
    if ceilings.launch_ms:
        least["launch"] = ceilings.launch_ms
    if not least:
        return None
    binding = max(least, key=lambda name: least[name])
    return 100.0 * least[binding] / latency_ms, binding


def _time(make: Callable[[], Call], policy: Policy, budget: TimingBudget, device: str) -> float:
    """Milliseconds of what `make` builds when it goes well; raises what it or its call raises.

    A ceiling is what the device was seen to reach, so the fast end of the samples counts and not their median, which on
    a shared processor a kernel would beat.
    """
    result = time_callables({"ceiling": [make()]}, policy, budget, device)["ceiling"]
    if not isinstance(result, Timing):
        raise result.error
    return quantile(result.samples_ms, _FAST_END)


def _matrix_offers(device: str) -> list[Offer]:
    n = _MATRIX[device]
    units = ("fp16", "bf16", "tf32", "fp32", "int8") if device == "cuda" else ("fp32", "bf16", "fp16")
    return [Offer(f"matmul_{unit}", unit, _matmul(unit, n, device), 2.0 * n**3) for unit in units]


def _matmul(unit: str, n: int, device: str) -> Callable[[], Call]:
    def make() -> Call:
        import torch

        if unit == "int8":
            a = torch.randint(-127, 128, (n, n), dtype=torch.int8, device=device)
            b = torch.randint(-127, 128, (n, n), dtype=torch.int8, device=device).t()
            return lambda: torch._int_mm(a, b)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(unit, torch.float32)
        # random unit rows, as in the cells: the values of the operands move the clock of a card at its power cap
        x, y = (torch.nn.functional.normalize(torch.randn(n, n, device=device), dim=1).to(dtype) for _ in range(2))
        out = torch.empty(n, n, dtype=dtype, device=device)

        def multiply() -> object:
            before = torch.backends.cuda.matmul.allow_tf32
            torch.backends.cuda.matmul.allow_tf32 = unit == "tf32"
            try:
                return torch.mm(x, y.t(), out=out)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = before

        return multiply

    return make


def _read_offers(device: str) -> list[Offer]:
    size = _STREAM_BYTES[device]

    def copy() -> Call:
        import torch

        x = _source(size, device)
        y = torch.empty_like(x)
        return lambda: y.copy_(x)

    def reduction() -> Call:
        x = _source(size, device)
        return lambda: x.sum()

    offers = [Offer("read_copy", "read", copy, 2.0 * size), Offer("read_reduction", "read", reduction, float(size))]
    if device == "cuda":
        offers.append(Offer("read_triton", "read", _only_read(size, device), float(size)))
    return offers


def _only_read(size: int, device: str) -> Callable[[], Call]:
    """Makes a call that reads `size` bytes once: the Triton kernel, on a processor a sum."""

    def make() -> Call:
        x = _source(size, device)
        if device != "cuda":
            return lambda: x.sum()
        from maxsim_bench.measure.streaming import streaming_read

        return streaming_read(x)

    return make


def _source(size: int, device: str) -> Any:
    """[size / 4] fp32 ones."""
    import torch

    return torch.ones(size // 4, dtype=torch.float32, device=device)


def _copy_gbs(device: str) -> float:
    """GB/s of copies of a block from pinned host memory, which is given back; raises what pinning or copying raises."""
    try:
        return _COPY_BYTES / _time(_host_copy, "warm_l2", _COPY_BUDGET, device) / 1e6
    finally:
        memory.release_pinned()


def _host_copy() -> Call:
    """A call that copies one block from pinned host memory to the device, as `maxsim.search` does."""
    import torch

    block = torch.ones(_COPY_BYTES // 4, dtype=torch.float32, pin_memory=True)
    there = torch.empty_like(block, device="cuda")
    return lambda: there.copy_(block, non_blocking=True)


def _empty_kernel() -> Call:
    import torch

    return lambda: torch.cuda._sleep(0)


def _nothing() -> Call:
    return lambda: None
