"""Matrix products C[m, n] = A[m, k] B[k, n] in PyTorch, or in numpy on a processor without it."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.machine.bench.bounds import SIGMAS, product_bound, random_growth
from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.subjects import Subject, has_torch
from gpuwise.machine.bench.torch_timing import copies_needed, sampler
from gpuwise.records.record import Value

SAMPLED = 64
"""Rows and columns of C that are compared element by element with a product in fp64."""
CHUNK = 2**24
"""Elements turned into fp64 at a time."""
CHEAP = 2**19
"""Elements whose fp64 sums a processor forms in some milliseconds."""
LEAST_CAPABILITY = {"fp8": (8, 9), "tf32": (8, 0), "bf16": (8, 0), "int8": (7, 5)}
"""Compute capability from which NVIDIA's units have the format (CUDA C++ Programming Guide, arithmetic instructions)."""


def make_product(case: BenchCase, subject: Subject) -> PreparedCase:
    """Prepare a matrix product. Raises NotHereError where the device or PyTorch has no such product."""
    m, n, k = (int(case.parameters[side]) for side in ("m", "n", "k"))
    if not has_torch():
        return _numpy_product(case.dtype, m, n, k)
    import torch

    _refuse(torch, case.dtype, subject)
    sets = copies_needed(subject, (m * k + k * n + m * n) * FORMAT_BYTES[case.dtype])
    generator = torch.Generator(device=subject.torch_name).manual_seed(20261122)
    operands = [_operands(torch, case.dtype, m, n, k, subject, generator) for _ in range(sets)]
    multiply = _multiply(torch, case.dtype)
    outputs: list[Any] = [None] * sets
    settings = _Settings(torch, case.dtype)

    def launch(i: int) -> None:
        a, b = operands[i]
        outputs[i] = multiply(a, b, outputs[i])

    try:
        for i in range(sets):
            launch(i)
        sample, how = sampler(subject, launch, sets)
    except BaseException:
        settings.restore()
        raise

    def check() -> Check:
        launch(0)
        return check_product(torch, case.dtype, *operands[0], outputs[0])

    def digest() -> Any:
        return multiply(*operands[0], None)

    def close() -> None:
        settings.restore()
        operands.clear()
        outputs.clear()
        if subject.kind == "cuda":
            torch.cuda.empty_cache()

    return PreparedCase(sample, 2.0 * m * n * k, check, close, how, digest)


class _Settings:
    """PyTorch's switches as the format needs them; put back afterwards."""

    def __init__(self, torch: Any, dtype: str) -> None:
        self._torch = torch
        self._precision = torch.get_float32_matmul_precision()
        flags = torch.backends.cuda.matmul
        self._names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
        self._reduced = [getattr(flags, name) for name in self._names]
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        for name in self._names:
            setattr(flags, name, False)

    def restore(self) -> None:
        self._torch.set_float32_matmul_precision(self._precision)
        for name, value in zip(self._names, self._reduced, strict=True):
            setattr(self._torch.backends.cuda.matmul, name, value)


def _refuse(torch: Any, dtype: str, subject: Subject) -> None:
    if subject.kind == "cpu":
        if dtype in ("tf32", "fp8"):
            raise NotHereError(f"processors have no {dtype} products")
        return
    if dtype == "fp8" and not hasattr(torch, "_scaled_mm"):
        raise NotHereError(f"PyTorch {torch.__version__} has no fp8 product")
    least = LEAST_CAPABILITY.get(dtype)
    if torch.version.hip is None and least and subject.capability and subject.capability < least:
        raise NotHereError(f"{subject.name} has no {dtype} unit (compute capability below {least[0]}.{least[1]})")


def _operands(torch: Any, dtype: str, m: int, n: int, k: int, subject: Subject, generator: Any) -> tuple[Any, Any]:
    """A [m, k] and B [k, n]; B is column-major if the unit requires it (int8, fp8)."""
    device = subject.torch_name
    if dtype == "int8":
        a = torch.randint(-64, 64, (m, k), dtype=torch.int8, device=device, generator=generator)
        b = torch.randint(-64, 64, (n, k), dtype=torch.int8, device=device, generator=generator)
        return a, b.t()
    if dtype == "fp8":
        a = torch.randn((m, k), device=device, generator=generator).to(torch.float8_e4m3fn)
        b = torch.randn((n, k), device=device, generator=generator).to(torch.float8_e4m3fn)
        return a, b.t()
    kind = {"fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}.get(dtype, torch.float32)
    a = torch.randn((m, k), dtype=kind, device=device, generator=generator)
    return a, torch.randn((k, n), dtype=kind, device=device, generator=generator)


def _multiply(torch: Any, dtype: str) -> Callable[[Any, Any, Any], Any]:
    if dtype == "int8":
        return lambda a, b, out: torch._int_mm(a, b) if out is None else torch._int_mm(a, b, out=out)
    if dtype == "fp8":
        ones: dict[Any, Any] = {}

        def scaled(a: Any, b: Any, out: Any) -> Any:
            one = ones.get(a.device)
            if one is None:  # before anything is captured: a graph would fill it at every replay
                one = ones[a.device] = torch.ones((), device=a.device)
            return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

        return scaled
    return lambda a, b, out: torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


def check_product(torch: Any, dtype: str, a: Any, b: Any, c: Any) -> Check:
    """``c`` against ``a @ b`` in fp64: a sample of elements, each within its bound, and the sum of every column.

    The sums hold every element of C to account (Huang and Abraham, Algorithm-based fault tolerance, 1984). The signs of
    ``a`` are taken to be random.
    """
    m, k = a.shape
    n = b.shape[1]
    if not bool(torch.isfinite(c.to(torch.float32)).all()):
        return Check(False, float("inf"), "not finite")
    rows = torch.linspace(0, m - 1, min(SAMPLED, m), device=a.device).long().unique()
    columns = torch.linspace(0, n - 1, min(SAMPLED, n), device=a.device).long().unique()
    # on the host: not every device has fp64, and a device should not check itself
    left, right = a[rows].cpu().to(torch.float64), b[:, columns].cpu().to(torch.float64)
    true, size, root = left @ right, left.abs() @ right.abs(), (left.square() @ right.square()).sqrt()
    computed = c[rows][:, columns].cpu().to(torch.float64)
    bound = torch.minimum(product_bound(dtype, k, 1.0, 0.0) * size, random_growth(dtype, k) * root)
    bound = bound + product_bound(dtype, k, 0.0, 1.0) * true.abs()
    worst = _worst(dtype, (computed - true).abs(), bound)
    sums, columns_summed = _column_sums(torch, dtype, a, b, c)
    worst = max(worst, sums)
    return Check(worst <= 1.0, worst, f"{computed.numel():,} elements and the sums of {columns_summed:,} columns")


def _worst(dtype: str, wrong: Any, bound: Any) -> float:
    """The largest error over its bound; integers are exact."""
    if dtype == "int8":
        return 0.0 if bool((wrong == 0).all()) else float("inf")
    return float((wrong / bound.clamp(min=1e-300)).max())


def _column_sums(torch: Any, dtype: str, a: Any, b: Any, c: Any) -> tuple[float, int]:
    """Largest |sum of a column of C - (sum of A's rows) B| over its bound, in fp64, and how many columns were summed.

    All of them on a GPU; on a processor an evenly spread subset that is cheap relative to the product. The errors of a column
    have random signs by row, so their sum grows with the root of their squares.
    """
    m, n = c.shape
    k = b.shape[0]
    unit, output = product_bound(dtype, k, 1.0, 0.0), product_bound(dtype, k, 0.0, 1.0)
    growth, together = random_growth(dtype, k), min(SIGMAS, m**0.5)
    row, size, squares = (_sum_rows(torch, a, of) for of in (lambda t: t, torch.abs, torch.square))
    on_gpu = a.device.type == "cuda"
    step = max(1, CHUNK // max(k, m))
    width = n if on_gpu else max(1, min(n, CHEAP // max(k, m)))
    stride = n // width
    worst, n_checked = 0.0, 0
    for start in range(0, n, step * stride):
        part = b[:, start : start + step * stride : stride].to(torch.float64)
        every = c[:, start : start + step * stride : stride].to(torch.float64)
        true, computed, magnitude = row @ part, every.sum(0), size @ part.abs()
        certain = unit * magnitude + output * every.abs().sum(0) * (1.0 + output)
        # the root of the sum of (e + v c)^2 is at most the root of 2 (e^2 + v^2 c^2)
        likely = together * (2.0 * (growth**2 * (squares @ part.square()) + output**2 * every.square().sum(0))).sqrt()
        # the last term: the fp64 sums themselves
        bound = torch.minimum(certain, likely) + (m + k) * 2.0**-52 * magnitude
        wrong = (computed - true).abs()
        n_checked += wrong.numel()
        worst = max(worst, _worst(dtype, wrong, bound))
    return worst, n_checked


def _sum_rows(torch: Any, a: Any, of: Callable[[Any], Any]) -> Any:
    total = torch.zeros(a.shape[1], dtype=torch.float64, device=a.device)
    step = max(1, CHUNK // a.shape[1])
    for start in range(0, a.shape[0], step):
        total += of(a[start : start + step].to(torch.float64)).sum(0)
    return total


def _numpy_product(dtype: str, m: int, n: int, k: int) -> PreparedCase:
    """Without PyTorch: numpy's own BLAS, fp32 and fp64."""
    import numpy as np

    from gpuwise.machine.bench.torch_timing import _host_sampler

    if dtype not in ("fp32", "fp64"):
        raise NotHereError(f"numpy has no fast {dtype} products", hint="pip install 'gpuwise[torch]'")
    kind = np.float32 if dtype == "fp32" else np.float64
    rng = np.random.default_rng(20261122)
    a, b = rng.standard_normal((m, k)).astype(kind), rng.standard_normal((k, n)).astype(kind)
    c = np.empty((m, n), kind)

    def launch(_: int) -> None:
        np.matmul(a, b, out=c)

    def check() -> Check:
        rows, columns = (np.unique(np.linspace(0, side - 1, min(SAMPLED, side)).astype(int)) for side in (m, n))
        left, right = a[rows].astype(np.float64), b[:, columns].astype(np.float64)
        true, size, root = left @ right, np.abs(left) @ np.abs(right), np.sqrt(np.square(left) @ np.square(right))
        bound = np.minimum(product_bound(dtype, k, 1.0, 0.0) * size, random_growth(dtype, k) * root)
        bound += product_bound(dtype, k, 0.0, 1.0) * np.abs(true)
        worst = float(np.max(np.abs(c[np.ix_(rows, columns)] - true) / bound))
        return Check(bool(np.isfinite(c).all()) and worst <= 1.0, worst, f"{true.size:,} elements")

    how: dict[str, Value] = {"timed by": "host clock", "library": "numpy"}
    return PreparedCase(
        _host_sampler(launch, 1), 2.0 * m * n * k, check, conditions=how, digest=lambda: np.matmul(a, b).tobytes()
    )
