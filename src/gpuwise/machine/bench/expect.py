"""Expected range of a measurement: from the specification, from the kernel model of this device, and from the records of this
machine.

The range is the central 95 % of the prediction's spread on held-out rows, combined with the spread between healthy cards of
one kind: the model was fitted on one card of a kind, with one version of the libraries. A healthy card is not expected to
reach its peak: the model uses the clock that its power limit allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.sampling import NODE_SPREAD, outliers
from gpuwise.machine.bench.subjects import Subject
from gpuwise.predict.estimate import Basis, Estimate
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.records.record import Record

CACHES = 4.0
"""Arrays this many times the last-level cache are the memory's alone, as STREAM asks (McCalpin, run rules)."""
Z95 = 1.959963984540054
"""Standard normal quantile of 0.975."""


class Verdict(StrEnum):
    """How a measurement compares with its expected range."""

    NORMAL = "normal"
    LOW = "low"
    HIGH = "high"
    UNKNOWN = "unknown"
    """No expectation; a reason is given."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """In the case's unit. ``peak`` is what the specification promises, None where it promises nothing."""

    low: float
    expected: float
    high: float
    basis: Basis
    peak: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A record and its verdict. ``reason`` explains a missing expectation or a low rate."""

    case: BenchCase
    subject: Subject
    record: Record
    expectation: Expectation | None
    verdict: Verdict
    reason: str
    before: float | None
    """Median of this device's earlier records of the same measurement."""
    slow_among: int = 0
    """The number of cards of its kind it falls out of; 0 if it does not."""

    @property
    def of_expected(self) -> float | None:
        """Measured over expected: below 1 is slower, for times too."""
        if self.expectation is None or self.record.value is None:
            return None
        ratio = self.record.value / self.expectation.expected
        return 1.0 / ratio if self.case.unit == "s" else ratio

    @property
    def of_peak(self) -> float | None:
        """Measured rate over the specified peak; None without one."""
        if self.expectation is None or self.expectation.peak is None or self.record.value is None:
            return None
        return self.record.value / self.expectation.peak


def expectation(case: BenchCase, subject: Subject) -> tuple[Expectation | None, str]:
    """Expected result of ``subject`` in ``case``; None and a reason if unknown."""
    if subject.slice:
        return None, "a slice of a GPU: the catalogue knows whole ones"
    try:
        if subject.kind == "cuda":
            if subject.accelerator is None:
                return None, "unknown GPU"
            return _of_gpu(case, subject.accelerator)
        if subject.processor is None:
            return None, "unknown processor"
        return _of_processor(case, subject.processor, subject.units)
    except GpuwiseError as error:
        return None, error.message


def _of_gpu(case: BenchCase, a: Accelerator) -> tuple[Expectation | None, str]:
    p = {k: int(v) for k, v in case.parameters.items()}
    if case.family == "matmul":
        from gpuwise.predict.kernels.gemm.formats import math_dtype
        from gpuwise.predict.kernels.single import matmul

        kernel = "fp8_gemm" if case.dtype == "fp8" else case.dtype
        time = matmul(a, case.dtype, p["m"], p["n"], p["k"])
        flop, peak = 2.0 * p["m"] * p["n"] * p["k"], a.peak(math_dtype(a, kernel))
        return _range(time, flop, peak, a), ""
    if case.family == "attention":
        if case.variant == "decode":
            return None, "PyTorch's kernel for one query is not among those the model knows"
        return _attention(case, a, p), ""
    if case.family == "memory":
        from gpuwise.predict.kernels.single import stream

        if p["bytes"] < CACHES * (a.l2_bytes or 0.0):
            return None, "a size that the cache has a part in"
        reads, writes = (1, 1) if case.variant == "copy" else (2, 1)
        family = "copy" if case.variant == "copy" else "elementwise"
        time = stream(a, float(reads * p["bytes"]), float(writes * p["bytes"]), family)
        return _range(time, float((reads + writes) * p["bytes"]), a.memory_bandwidth_bytes_per_s, a), ""
    if case.family == "copy":
        from gpuwise.predict.kernels.transfer import transfer_time

        direction, _, kind = case.variant.partition("-")
        if p["bytes"] < 2**24:
            return None, "too short for the link's rate"
        time = transfer_time(a, float(p["bytes"]), direction, kind == "pinned")
        return _range(time, float(p["bytes"]), a.pcie_bytes_per_s, a), ""
    return None, "depends on the box"


def _attention(case: BenchCase, a: Accelerator, p: dict[str, int]) -> Expectation:
    from gpuwise.predict.kernels.single import attention
    from gpuwise.workload.attention_flop import attention_pairs

    flop = 4.0 * p["batch"] * p["heads"] * p["head_dim"] * float(attention_pairs(p["queries"], p["keys"], causal=True))
    time = attention(a, case.dtype, p["batch"], p["queries"], p["keys"], p["heads"], p["kv_heads"], p["head_dim"], causal=True)
    return _range(time, flop, a.peak(case.dtype), a)


def _range(time: KernelTime, amount: float, peak: float | None, a: Accelerator) -> Expectation:
    return range_of(Estimate.from_log_sigma(float(time.time_s[0]), float(time.log_sigma[0]), time.basis), amount, peak, a.source)


def range_of(time: Estimate, amount: float, peak: float | None, source: str) -> Expectation:
    """The rate of ``amount`` in ``time``, with the central 95 %. No range goes beyond the peak."""
    spread = math.exp(Z95 * math.hypot(time.log_sigma, NODE_SPREAD))
    expected = amount / time.expected
    high = expected * spread
    return Expectation(expected / spread, expected, high, time.basis, peak, source)


def _of_processor(case: BenchCase, c: Cpu, cores: int) -> tuple[Expectation | None, str]:
    """Only for a whole processor: the share of memory channels of a part is unknown."""
    from gpuwise.predict import cpu

    if cores < c.cores:
        return None, f"{cores} of {c.cores} cores"
    p = {k: int(v) for k, v in case.parameters.items()}
    if case.family == "matmul":
        if cpu.computing_dtype(c, case.dtype) != case.dtype:
            return None, f"no {case.dtype} rate for this processor"
        time = cpu.matmul_time(c, case.dtype, p["m"], p["n"], p["k"])
        return range_of(time.time_s, 2.0 * p["m"] * p["n"] * p["k"], c.peak(case.dtype), c.source), ""
    if case.family == "memory" and case.variant == "copy":
        time = cpu.stream_time(c, float(p["bytes"]), float(p["bytes"]))
        return range_of(time.time_s, 2.0 * p["bytes"], c.memory_bandwidth_bytes_per_s, c.source), ""
    return None, "depends on the box"


def judge(case: BenchCase, subject: Subject, record: Record, earlier: Sequence[Record] = ()) -> Judgement:
    """Compare ``record`` with the expected range of its device and with earlier records."""
    expected, reason = expectation(case, subject)
    past = sorted(r.value for r in earlier if r.value is not None and r.measurement == record.measurement)
    before = past[len(past) // 2] if past else None
    verdict = Verdict.UNKNOWN
    if record.value is not None and expected is not None:
        verdict = Verdict.NORMAL
        if record.value < expected.low:
            verdict = Verdict.LOW
        elif record.value > expected.high or (expected.peak is not None and record.value > expected.peak):
            verdict = Verdict.HIGH
    if verdict is Verdict.LOW:
        reason = throttle_text(record)
    return Judgement(case, subject, record, expected, verdict, reason, before)


def throttle_text(record: Record) -> str:
    """Reasons for which the clocks were reduced during the measurement, the longest first: ``SW_POWER_CAP 98 %``."""
    shares = {k.removeprefix("event "): v for k, v in record.conditions.items() if k.startswith("event ")}
    events = [(float(share), name) for name, share in shares.items() if isinstance(share, int | float)]
    parts = [f"{name} {share:.0%}" for share, name in sorted(events, reverse=True)]
    width = record.conditions.get("pcie_width")
    if record.family in ("copy", "peer") and width is not None:
        parts.append(f"PCIe x{width:.0f}" if isinstance(width, float | int) else "")
    return ", ".join(s for s in parts if s)


def judge_all(
    results: Sequence[tuple[BenchCase, Subject, Record]], history: Callable[[Subject], Sequence[Record]] = lambda _: ()
) -> list[Judgement]:
    """Every result, judged; then each card against its siblings: equal cards in this machine, same measurement."""
    by_device: dict[str, Sequence[Record]] = {}
    judged: list[Judgement] = []
    for case, subject, record in results:
        if subject.device not in by_device:
            by_device[subject.device] = history(subject)
        judged.append(judge(case, subject, record, by_device[subject.device]))
    groups: dict[tuple[str, str], list[int]] = {}
    for i, j in enumerate(judged):
        if j.subject.kind == "cuda" and j.record.value is not None:
            groups.setdefault((j.subject.name, j.case.key), []).append(i)
    for members in groups.values():
        values = [judged[i].record.value or 0.0 for i in members]
        rates = [1.0 / v for v in values] if judged[members[0]].case.unit == "s" else values
        for position in outliers(rates):
            i = members[position]
            judged[i] = replace(judged[i], slow_among=len(members))
    return judged
