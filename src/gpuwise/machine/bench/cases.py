"""The cases of ``gpuwise bench`` as one literal table: one row is one measurement of one size in one format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpuwise.errors import UnknownNameError
from gpuwise.units import GIB, KIB, MIB

FAMILIES: Mapping[str, tuple[str, str]] = {
    "matmul": ("FLOP/s", "matrix products by format and shape"),
    "attention": ("FLOP/s", "fused attention: prefill and decode"),
    "memory": ("B/s", "the device's own memory: copy and triad"),
    "launch": ("s", "what the host needs to issue one small operation"),
    "copy": ("B/s", "host to device and back, pinned and pageable"),
    "peer": ("B/s", "device to device"),
    "disk": ("B/s", "the disk: reads and writes, in order and at random"),
    "loader": ("1/s", "samples a second from a PyTorch data loader"),
    "collective": ("B/s", "all-reduce: NCCL on GPUs, gloo on the CPU"),
}
"""Family -> the unit of its result, what it is. A run that is cut short leaves out the last ones."""
SIZES = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
GPU, CPU, BOTH = frozenset({"cuda"}), frozenset({"cpu"}), frozenset({"cuda", "cpu"})


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One case. ``parameters`` suffice to measure it again; ``key`` names it in records."""

    family: str
    variant: str
    """Variant of the family: ``product``, ``prefill``, ``decode``, ``copy``, ``triad``, ``h2d``, ``read`` ..."""
    dtype: str
    parameters: Mapping[str, int]
    on: frozenset[str] = BOTH
    quick: bool = False

    @property
    def key(self) -> str:
        """``matmul-bf16-8192x8192x8192``, ``copy-h2d-pinned-256MiB``."""
        p = self.parameters
        if self.family == "matmul":
            sizes = f"{p['m']}x{p['n']}x{p['k']}"
        elif "bytes" in p:
            sizes = f"{p['bytes'] / MIB:g}MiB"
        else:
            sizes = "x".join(str(v) for v in p.values())
        parts = (self.family, self.variant if self.variant != "product" else "", self.dtype, sizes)
        return "-".join(part for part in parts if part)

    @property
    def words(self) -> str:
        """Label for a table: ``matmul bf16 8192x8192x8192``, ``copy h2d pinned 256 MiB``, ``attention decode bf16 32 x 4096``."""
        p = self.parameters
        parts = [self.family, self.variant.replace("-", " ") if self.variant != "product" else "", self.dtype]
        if self.family == "matmul":
            parts.append(f"{p['m']}x{p['n']}x{p['k']}")
        elif self.family == "attention":
            parts.append(f"{p['batch']} x {p['keys']}")
        elif "bytes" in p:
            size = p["bytes"]
            parts.append(next((f"{size / unit:g} {name}" for name, unit in SIZES if size >= unit), f"{size} B"))
        elif "workers" in p:
            parts.append(f"{p['workers']} workers")
        return " ".join(part for part in parts if part)

    @property
    def unit(self) -> str:
        """Unit of the result: ``FLOP/s``, ``B/s``, ``s`` or ``1/s``."""
        return "1/s" if self.variant == "random-read" else FAMILIES[self.family][0]


def product_case(dtype: str, m: int, n: int, k: int, on: frozenset[str], quick: bool = False) -> BenchCase:
    """The case of one matrix product C[m, n] = A[m, k] B[k, n]."""
    return BenchCase("matmul", "product", dtype, {"m": m, "n": n, "k": k}, on, quick)


def _attention(
    variant: str,
    dtype: str,
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    on: frozenset[str],
    quick: bool = False,
) -> BenchCase:
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": queries, "keys": keys, "head_dim": 128}
    return BenchCase("attention", variant, dtype, sizes, on, quick)


def _bytes_case(family: str, variant: str, dtype: str, size: float, on: frozenset[str], quick: bool = False) -> BenchCase:
    return BenchCase(family, variant, dtype, {"bytes": int(size)}, on, quick)


LAUNCH_CASE = BenchCase("launch", "eager", "", {"operations": 1}, BOTH, quick=True)
"""How fast the host issues operations."""
CASES: tuple[BenchCase, ...] = (
    # products: large ones show what the unit delivers, the others what models ask for (a layer of an 8B model)
    product_case("bf16", 8192, 8192, 8192, GPU, quick=True),
    product_case("fp16", 8192, 8192, 8192, GPU, quick=True),
    product_case("tf32", 8192, 8192, 8192, GPU, quick=True),
    product_case("fp32", 4096, 4096, 4096, GPU, quick=True),
    product_case("fp8", 8192, 8192, 8192, GPU, quick=True),
    product_case("int8", 8192, 8192, 8192, GPU, quick=True),
    product_case("fp64", 4096, 4096, 4096, GPU),
    product_case("bf16", 4096, 4096, 4096, GPU),
    product_case("bf16", 16384, 8192, 1280, GPU),
    product_case("bf16", 4096, 14336, 4096, GPU),
    product_case("bf16", 4096, 4096, 14336, GPU),
    product_case("bf16", 16, 14336, 4096, GPU, quick=True),
    product_case("bf16", 1, 14336, 4096, GPU),
    product_case("fp32", 512, 512, 512, CPU, quick=True),
    product_case("fp32", 2048, 2048, 2048, BOTH, quick=True),
    product_case("fp32", 1024, 1024, 1024, CPU),
    product_case("bf16", 2048, 2048, 2048, BOTH, quick=True),
    product_case("bf16", 1024, 1024, 1024, BOTH),
    product_case("int8", 1024, 1024, 1024, CPU, quick=True),
    product_case("fp32", 1, 4096, 4096, CPU, quick=True),
    product_case("fp64", 1024, 1024, 1024, CPU),
    # attention
    _attention("prefill", "bf16", 4, 32, 8, 4096, 4096, GPU, quick=True),
    _attention("prefill", "bf16", 1, 32, 8, 16384, 16384, GPU),
    _attention("prefill", "fp16", 4, 32, 32, 2048, 2048, GPU),
    _attention("decode", "bf16", 32, 32, 8, 1, 4096, GPU, quick=True),
    _attention("decode", "bf16", 1, 32, 8, 1, 32768, GPU),
    _attention("prefill", "fp32", 1, 8, 8, 512, 512, CPU, quick=True),
    _attention("prefill", "bf16", 1, 8, 8, 512, 512, CPU),
    _attention("decode", "fp32", 1, 8, 8, 1, 4096, CPU, quick=True),
    # the device's own memory
    _bytes_case("memory", "copy", "", GIB, GPU, quick=True),
    _bytes_case("memory", "triad", "fp32", GIB, GPU, quick=True),
    _bytes_case("memory", "copy", "", 64 * MIB, GPU),
    _bytes_case("memory", "copy", "", 128 * MIB, CPU, quick=True),
    _bytes_case("memory", "triad", "fp32", 128 * MIB, CPU, quick=True),
    # the host
    LAUNCH_CASE,
    BenchCase("launch", "graph", "", {"operations": 1}, GPU, quick=True),
    _bytes_case("copy", "h2d-pinned", "", 256 * MIB, GPU, quick=True),
    _bytes_case("copy", "d2h-pinned", "", 256 * MIB, GPU, quick=True),
    _bytes_case("copy", "h2d-pageable", "", 256 * MIB, GPU, quick=True),
    _bytes_case("copy", "d2h-pageable", "", 256 * MIB, GPU, quick=True),
    _bytes_case("copy", "h2d-pinned", "", 64 * KIB, GPU),
    _bytes_case("peer", "next", "", 256 * MIB, GPU, quick=True),
    _bytes_case("collective", "nccl-all-reduce", "bf16", GIB, GPU),
    _bytes_case("collective", "nccl-all-reduce", "bf16", 64 * MIB, GPU, quick=True),
    _bytes_case("collective", "nccl-all-reduce", "bf16", MIB, GPU),
    _bytes_case("collective", "gloo-all-reduce", "fp32", 16 * MIB, CPU, quick=True),
    _bytes_case("collective", "gloo-all-reduce", "fp32", 64 * KIB, CPU),
    BenchCase("loader", "images", "", {"workers": 0}, CPU, quick=True),
    BenchCase("loader", "images", "", {"workers": 2}, CPU, quick=True),
    BenchCase("loader", "images", "", {"workers": 4}, CPU),
    _bytes_case("disk", "write", "", 128 * MIB, CPU, quick=True),
    _bytes_case("disk", "read", "", 128 * MIB, CPU, quick=True),
    _bytes_case("disk", "random-read", "", 128 * MIB, CPU, quick=True),
)

_WIDTHS = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 14336)
CALIBRATION_SIZES = {"m": (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192), "n": _WIDTHS, "k": _WIDTHS}
"""Sides of products in transformers from a 0.1B to an 8B model, and rows from a decoding step to a training batch."""
CALIBRATION_PRODUCTS = 200
LARGEST_CPU_FLOP = 4e9


@cache
def calibration_cases(dtype: str, kind: str, n: int = CALIBRATION_PRODUCTS) -> tuple[BenchCase, ...]:
    """``n`` products spread over :data:`CALIBRATION_SIZES`, the same ones on every machine, then streams of every size.

    A fixed sequence (multiples of the golden section and its kin) fills the three sides evenly from the first row on, so a
    run that is cut short has seen all of them.
    """
    by_key: dict[str, BenchCase] = {}
    ms, ns, ks = (CALIBRATION_SIZES[side] for side in ("m", "n", "k"))
    # Roberts (2018), quasirandom sequence R3: powers of 1/g with g^4 = g + 1
    g = 1.2207440846057596
    i = 0
    while len(by_key) < n and i < 50 * n:
        i += 1
        at = [(0.5 + i / g**power) % 1.0 for power in (1, 2, 3)]
        m, n_, k = (sides[int(len(sides) * u)] for sides, u in zip((ms, ns, ks), at, strict=True))
        if kind == "cpu" and 2.0 * m * n_ * k > LARGEST_CPU_FLOP:
            continue
        case = product_case(dtype, m, n_, k, frozenset({kind}))
        by_key.setdefault(case.key, case)
    top = 30 if kind == "cuda" else 28
    streams = tuple(_bytes_case("memory", "copy", "", 2.0**power, frozenset({kind})) for power in range(20, top + 1))
    return (*by_key.values(), *streams)


def select_cases(only: tuple[str, ...], *, quick: bool) -> tuple[BenchCase, ...]:
    """The cases that ``only`` names: families, ``family-variant``, formats with a family (``matmul-bf16``), formats and variants
    of any family (``bf16``, ``nccl``, ``pinned``) or whole keys.

    Raises UnknownNameError for a word that names no row.
    """
    rows = tuple(c for c in CASES if c.quick or not quick)
    if not only:
        return rows
    picked: list[BenchCase] = []
    for word in only:
        name = word.lower()
        fitting = [c for c in CASES if c.key.lower() == name or c.key.lower().startswith(name + "-")]
        fitting = fitting or [c for c in CASES if name in _words_of(c)]
        if not fitting:
            raise UnknownNameError("measurement", word, _case_names(), hint=_hint(name))
        chosen = [c for c in fitting if c in rows]
        picked += chosen or fitting
    return tuple({(c.key, c.on): c for c in picked}.values())


def _words_of(case: BenchCase) -> set[str]:
    return {case.family, case.dtype, case.variant, *case.variant.split("-")} - {"", "product", "all", "reduce", "next"}


def _case_names() -> list[str]:
    return [*FAMILIES, *(c.key for c in CASES)]


def _hint(word: str) -> str:
    from difflib import get_close_matches

    names = [*FAMILIES, *sorted({w for c in CASES for w in _words_of(c)} - set(FAMILIES)), *(c.key for c in CASES)]
    close = get_close_matches(word, names, 1, 0.75)
    meant = f"did you mean {close[0]}? It" if close else "it"
    return f"{meant} is one of {', '.join(FAMILIES)}, a format, or a key of --list"
