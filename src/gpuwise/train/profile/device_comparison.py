"""Measured against predicted time of every operation of a step, largest loss first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.predict.cpu import attention_time, matmul_time, stream_time
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.step.capture_time import times_of
from gpuwise.train.profile.products import Product
from gpuwise.train.profile.profile_data import ProfileData
from gpuwise.train.profile.trace_ops import BACKWARD_ATTENTION, trace_ops_of
from gpuwise.workload.capture.captured import Settings, Signature
from gpuwise.workload.capture.record.rows import convolution_row
from gpuwise.workload.capture.record.table import row_dtype, row_shape
from gpuwise.workload.row_codes import CAUSAL, FILTER_GRADIENT, IMAGE_GRADIENT, Kind

Target = Accelerator | Cpu


@dataclass(frozen=True, slots=True)
class Slower:
    """All calls in one step of one operation on inputs of one shape, measured and predicted."""

    op: str
    shape: str
    dtype: str
    count: int
    measured_s: float
    expected_s: float
    basis: str
    """Basis of the expectation: ``measured``, ``fitted``, ``derived``, ``specified``."""
    flop: float
    moved_bytes: float

    @property
    def lost_s(self) -> float:
        """Measured less predicted seconds a step, at least 0."""
        return max(self.measured_s - self.expected_s, 0.0)

    @property
    def flop_per_s(self) -> float:
        """FLOP/s reached."""
        return self.flop / self.measured_s if self.measured_s > 0 else 0.0


def against_device(data: ProfileData, target: Target | None) -> tuple[Slower, ...]:
    """The operations of a step beside their prediction; empty without a target, or where shapes were not recorded."""
    if target is None:
        return ()
    found = [*_products(data, target), *_trace_ops(data, target)]
    return tuple(sorted(found, key=lambda s: -s.lost_s))


def _trace_ops(data: ProfileData, target: Target) -> list[Slower]:
    found: list[Slower] = []
    settings = Settings("", data.capability or (0, 0))
    for op in trace_ops_of(data):
        s = op.signature
        with suppress(GpuwiseError):
            if isinstance(target, Cpu):
                time = on_processor(s, target)
                expected_s, basis = time.expected, str(time.basis)
            else:
                times = times_of([s], settings, target)
                expected_s, basis = float(times.time_s[0]), str(times.basis)
            found.append(
                Slower(
                    s.op.split(".")[1],
                    op.words,
                    row_dtype(s),
                    max(round(op.count), 1),
                    op.seconds,
                    expected_s * op.count,
                    basis,
                    s.flop * op.count,
                    (s.bytes_read + s.bytes_written) * op.count,
                )
            )
    return found


def on_processor(s: Signature, cpu: Cpu) -> Estimate:
    """Predicted seconds of one call on a processor. Raises InputError for impossible sizes."""
    dtype = row_dtype(s)
    kind, shape, flag = row_shape(s)
    if kind is Kind.ATTENTION and len(shape) == 7:
        b, q, _, heads, _, head_dim, _ = shape
        one = attention_time(cpu, dtype, b, heads, q, head_dim, causal=bool(flag & CAUSAL)).time_s
        return one.scaled(BACKWARD_ATTENTION) if "backward" in s.op else one
    conv = convolution_row(s) if kind is Kind.CONVOLUTION else None
    if conv is None or not conv.shape:
        return stream_time(cpu, s.bytes_read, s.bytes_written).time_s
    images, c_in, c_out, height, width, area, groups = conv.shape
    one = matmul_time(cpu, dtype, images * height * width, c_out / groups, c_in / groups * area, groups).time_s
    gradients = sum(1 for bit in (IMAGE_GRADIENT, FILTER_GRADIENT) if conv.flag & bit)
    return one.scaled(float(max(gradients, 1)))


def _products(data: ProfileData, target: Target) -> list[Slower]:
    found: list[Slower] = []
    for product in data.products:
        if product.seconds <= 0 or not product.count:
            continue
        with suppress(GpuwiseError):
            expected_s, basis = _expected(product, target)
            width = FORMAT_BYTES[product.dtype]
            moved = product.batch * width * (product.m * product.k + product.k * product.n + product.m * product.n)
            found.append(
                Slower(
                    product.op.removeprefix("aten::"),
                    product.words,
                    product.dtype,
                    product.count,
                    product.seconds,
                    expected_s * product.count,
                    basis,
                    product.flop * product.count,
                    float(moved * product.count),
                )
            )
    return found


def _expected(product: Product, target: Target) -> tuple[float, str]:
    """Seconds of one call."""
    if isinstance(target, Cpu):
        time = matmul_time(target, product.dtype, product.m, product.n, product.k, product.batch).time_s
        return time.expected, str(time.basis)
    from gpuwise.predict.kernels.single import matmul

    dtype = "tf32" if product.dtype == "fp32" and any("tf32" in k.lower() for k in product.kernels) else product.dtype
    time = matmul(target, dtype, product.m, product.n, product.k, product.batch)
    return float(time.time_s[0]), str(time.basis)


def utilisation(products: Sequence[Product], wall_s: float, peak_flop_per_s: float | None) -> float | None:
    """Share of the peak that the step's products reach (model FLOPs utilisation, of products alone)."""
    flop = sum(p.flop * p.count for p in products)
    return flop / (wall_s * peak_flop_per_s) if peak_flop_per_s and wall_s > 0 and flop else None
