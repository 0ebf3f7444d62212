"""Accelerators: one device as the software sees it (an MI250X is two).

Rates are dense. Link rates are per device, one direction. Memory is what the device reports as its total.
The catalogue is ``data/accelerators.csv`` (one device, one line), what a unit does per clock is
``data/architectures.toml``, and the sources both cite are ``data/sources.csv``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

from gpuwise.errors import UnsupportedFormatError
from gpuwise.facts.hardware.corrections import Correction
from gpuwise.facts.loading import Field, Record, Rows, ShippedData, parse_toml, shipped_text
from gpuwise.facts.sources import cell_sources, check_source, sources
from gpuwise.units import GIB, GIGA, KIB, MEGA, MIB, TERA

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "mxfp4", "nvfp4", "int8", "int4")
"""Numeric formats a matrix rate may be given for. ``fp32`` is the vector (non tensor-core) rate."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The specification of one device.

    ``peak_flop_per_s`` maps a dtype of :data:`DTYPES` to the dense rate with FP32 accumulation; a dtype that
    is absent is unsupported or unpublished. ``None`` means unknown, never zero.
    """

    id: str
    name: str
    vendor: str
    family: str
    """Micro-architecture as coefficients are shared by it: Pascal, Volta, Turing, Ampere-GA100, Ampere, Ada,
    Hopper, Blackwell, Blackwell-RTX, CDNA2, ..."""
    year: int
    compute_units: int | None
    """Streaming multiprocessors, compute units or cores."""
    boost_hz: float | None
    peak_flop_per_s: Mapping[str, float]
    memory_bytes: float
    memory_type: str
    memory_bandwidth_bytes_per_s: float
    l2_bytes: float | None
    shared_memory_per_unit_bytes: float | None
    registers_per_unit: int | None
    max_warps_per_unit: int | None
    compute_capability: str | None
    tdp_w: float | None
    form: str
    pcie_bytes_per_s: float | None
    """Host link, one direction."""
    link_kind: str | None
    """``nvlink3``, ``nvlink4``, ``nvlink5``, ``xgmi``, ``ici``, ... or None."""
    link_bytes_per_s: float | None
    """Device-to-device link, one direction, all lanes together."""
    list_price_usd: float | None
    source: str
    """Source of the row; cells with another source are listed in the catalogue file."""
    weak: tuple[str, ...] = ()
    """Fields whose source is not the vendor or that were inferred; results that lean on one say so."""
    base_hz: float | None = None
    tensor_hz: float | None = None
    """Clock at which the vendor states the matrix rates, where it is not the boost clock (H100 SXM: 1830
    MHz)."""
    fp16_accumulate_flop_per_s: float | None = None
    """Dense FP16 rate with FP16 accumulation: twice ``peak('fp16')`` on GeForce cards, equal elsewhere."""
    fp32_matrix_flop_per_s: float | None = None
    """FP32 rate of the matrix cores where they have one (CDNA); elsewhere FP32 matmuls run at
    ``peak('fp32')``."""
    fp64_vector_flop_per_s: float | None = None
    """Vector FP64 rate where ``peak('fp64')`` is that of matrix cores."""
    memory_visible_bytes: float | None = None
    """Total memory a process is shown (``torch.cuda.get_device_properties().total_memory``): ``memory_bytes`` less the
    driver's share. Varies by about 0.3 % with the driver; None if unpublished."""
    memory_nominal_gb: float | None = None
    """The capacity on the label; vendors mean GiB."""
    memory_sizes_gb: tuple[float, ...] = ()
    """Every size that this very chip is sold with, where the memory is its buyer's choice (Macs, graphics in a processor, cards
    of two sizes); empty elsewhere. ``memory_bytes`` is the largest of a Mac, else the most common."""
    memory_bus_bits: int | None = None
    memory_rate_bit_per_s: float | None = None
    """Data rate of one pin."""
    l1_bytes: float | None = None
    """First-level cache of one unit, shared memory included where they are one."""
    l3_bytes: float | None = None
    """Infinity Cache."""
    fp32_flop_per_clock_per_unit: float | None = None
    """Vector FP32 width of one unit: two per lane."""
    aliases: tuple[str, ...] = ()
    cell_sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Columns of the catalogue whose source is not ``source``, with the key of theirs in
    ``data/sources.csv``."""
    list_price_kind: str | None = None
    """``launch`` (vendor), ``list`` or ``street`` (what resellers asked)."""
    notes: str = ""
    corrections: Mapping[str, Correction] = field(default_factory=dict[str, Correction])
    """Corrections of a measured device (``--on this``), by family and format: ``matmul/bf16``, ``memory``. Rows of the
    catalogue have none."""

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def unified_memory(self) -> bool:
        """Host and device share ``memory_bytes``: there is nothing to offload to."""
        return self.form in ("SoC", "APU")

    @property
    def typed(self) -> str:
        """The name that leads to exactly this device: its id, with the memory where that is not the catalogue's."""
        chosen = self.memory_sizes_gb and self.name.endswith(f" {self.memory_nominal_gb:g} GB")
        return f"{self.id}-{self.memory_nominal_gb:g}gb" if chosen else self.id

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s for ``dtype``.

        Raises UnsupportedFormatError when the catalogue has no rate for it.
        """
        rate = self.peak_flop_per_s.get(dtype)
        if rate is None:
            have = ", ".join(self.peak_flop_per_s)
            raise UnsupportedFormatError(
                f"no {dtype} rate for accelerator",
                f"{self.name} has no published dense {dtype} rate",
                hint=f"it has {have}" if have else "none of its rates is published: name another GPU, `gpuwise gpus` lists them",
            )
        return rate


@dataclass(frozen=True, slots=True)
class Architecture:
    """Per-clock rates and sizes of one compute unit; the key is ``sm_80`` or a family."""

    key: str
    family: str
    flop_per_clock: Mapping[str, float]
    """Dense FLOP per clock and unit by dtype at the full rate; also ``fp64_vector`` and ``fp32_matrix``."""
    shared_memory_bytes: float | None
    l1_bytes: float | None
    registers: int | None
    max_warps: int | None
    source: str


FILE = "accelerators.csv"
PCIE_BYTES_PER_S = {
    "3.0 x4": 3.938e9,
    "3.0 x8": 7.877e9,
    "3.0 x16": 15.754e9,
    "4.0 x4": 7.877e9,
    "4.0 x8": 15.754e9,
    "4.0 x16": 31.508e9,
    "5.0 x8": 31.508e9,
    "5.0 x16": 63.015e9,
    "6.0 x16": 121.0e9,
}
"""One direction after line coding: 8, 16, 32 GT/s per lane x 128/130 (PCI Express Base 3.0 to 5.0), 64 GT/s x
242/256 in FLIT mode (6.0)."""

RATE_COLUMNS = {dtype: f"{dtype}_{'tops' if dtype.startswith('int') else 'tflops'}" for dtype in DTYPES}
EXTRA_RATE_COLUMNS = {name: f"{name}_tflops" for name in ("fp16_fp16acc", "fp32_matrix", "fp64_vector")}
_OPTIONAL_NUMBERS = (
    *("base_mhz", "boost_mhz", "tensor_mhz", *RATE_COLUMNS.values(), *EXTRA_RATE_COLUMNS.values()),
    "memory_mib",
    "visible_mib",
    "memory_gbit_s",
    "l2_mib",
    "l3_mib",
    "tdp_w",
    "link_gb_s",
    "list_price_usd",
)
_FIELD_OF_COLUMN = {
    "boost_mhz": "boost_hz",
    "base_mhz": "base_hz",
    "tensor_mhz": "tensor_hz",
    "memory_gb": "memory_bytes",
    "memory_mib": "memory_bytes",
    "visible_mib": "memory_visible_bytes",
    "bandwidth_gb_s": "memory_bandwidth_bytes_per_s",
    "memory_gbit_s": "memory_rate_bit_per_s",
    "l2_mib": "l2_bytes",
    "l3_mib": "l3_bytes",
    "pcie": "pcie_bytes_per_s",
    "link_gb_s": "link_bytes_per_s",
    "fp16_fp16acc_tflops": "fp16_accumulate_flop_per_s",
    "fp32_matrix_tflops": "fp32_matrix_flop_per_s",
    "fp64_vector_tflops": "fp64_vector_flop_per_s",
    **{column: f"peak_flop_per_s.{dtype}" for dtype, column in RATE_COLUMNS.items()},
}

_text, _optional_text = Field("text"), Field("text", required=False)
ACCELERATOR_SCHEMA: dict[str, Field] = {
    **dict.fromkeys(("id", "name", "vendor", "family", "form", "memory_type", "source"), _text),
    "year": Field("integer", minimum=2010, maximum=2030),
    "compute_units": Field("integer", required=False),
    "memory_gb": Field("number"),
    "bandwidth_gb_s": Field("number"),
    "memory_bus_bits": Field("integer", required=False),
    "fp32_accumulate": Field("text", required=False, choices=("full", "half")),
    "pcie": Field("text", required=False, choices=tuple(PCIE_BYTES_PER_S)),
    "list_price_kind": Field("text", required=False, choices=("launch", "list", "street")),
    "aliases": Field("names", required=False),
    "memory_sizes_gb": Field("names", required=False),
    "weak": Field("names", required=False),
    **dict.fromkeys(("rate_factors", "compute_capability", "link_kind", "cell_sources", "notes"), _optional_text),
    **dict.fromkeys(_OPTIONAL_NUMBERS, Field("number", required=False)),
}
ARCHITECTURE_SCHEMA: dict[str, Field] = {
    "family": _text,
    "source": _text,
    "flop_per_clock": Field("numbers", choices=(*DTYPES, "fp64_vector", "fp32_matrix")),
    "shared_memory_kib": Field("number", required=False),
    "l1_kib": Field("number", required=False),
    "registers": Field("integer", required=False),
    "max_warps": Field("integer", required=False),
}


@cache
def accelerators() -> Rows[Accelerator]:
    """The catalogue by id, in the order of the file, with a person's own rows, which win. Raises DataError when a shipped file is
    corrupt, FieldError for a row of their own."""
    with ShippedData():
        units = architectures()
    return Rows(FILE, shipped_text(FILE), ACCELERATOR_SCHEMA, lambda record: accelerator_from_record(record, units))


def with_memory(accelerator: Accelerator, gb: float) -> Accelerator:
    """``accelerator`` with ``gb`` GiB of memory: one of ``memory_sizes_gb``, or less than it has."""
    if gb not in accelerator.memory_sizes_gb and gb * GIB >= accelerator.memory_bytes * 0.99:
        return accelerator
    if gb == accelerator.memory_nominal_gb:
        return accelerator
    name = f"{accelerator.name} {gb:g} GB"
    return replace(accelerator, name=name, memory_bytes=gb * GIB, memory_nominal_gb=gb, memory_visible_bytes=None)


NEAR_RATE, NEAR_BANDWIDTH, NEAR_MEMORY = 1.2, 1.13, 1.05
"""Boards of one product differ by no more: A100 SXM, PCIe and A800, the three RTX PRO 6000, H200 SXM and NVL."""


@cache
def product_of(accelerator_id: str) -> str:
    """The first of the catalogue that is the same chip with the same memory, as another board or for another country: what one
    buys or rents is either. Itself where no other is."""
    mine, every = accelerators()[accelerator_id], accelerators().values()
    return next((one.id for one in every if _same_product(one, mine)), accelerator_id)


def _same_product(a: Accelerator, b: Accelerator) -> bool:
    if (a.vendor, a.family, a.memory_type, a.compute_units) != (b.vendor, b.family, b.memory_type, b.compute_units):
        return False
    if a.compute_units is None or {a.form, b.form} - {"PCIe", "SXM", "OAM"}:
        return False
    pairs = (
        (a.peak_flop_per_s.get("fp16"), b.peak_flop_per_s.get("fp16"), NEAR_RATE),
        (a.memory_bandwidth_bytes_per_s, b.memory_bandwidth_bytes_per_s, NEAR_BANDWIDTH),
        (a.memory_bytes, b.memory_bytes, NEAR_MEMORY),
    )
    return all(x is not None and y is not None and max(x, y) <= most * min(x, y) for x, y, most in pairs)


@cache
def architectures() -> Mapping[str, Architecture]:
    """Per-clock rates and sizes of a compute unit, by compute capability (``sm_80``) or family. Raises DataError."""
    with ShippedData():
        tables = parse_toml(shipped_text("architectures.toml"), ARCHITECTURE_SCHEMA, "architectures.toml")
    return MappingProxyType({name: _architecture(name, table) for name, table in tables.items()})


def check_accelerator(record: Record, accelerator_ids: Iterable[str] | None = None, *, field: str = "accelerator") -> None:
    """Reject a row of another file that names a device outside the catalogue: any of ``accelerator_ids``, or the text of
    ``field`` if they are None. Raises FieldError that points at ``field``."""
    for accelerator_id in (record.text(field),) if accelerator_ids is None else accelerator_ids:
        if accelerator_id not in accelerators():
            raise record.error(
                f"accelerator {accelerator_id!r} is not in accelerators.csv", field=field, hint="use an id such as h100-sxm-80gb"
            )


def architecture_key(compute_capability: str | None, family: str) -> str:
    """The key into :func:`architectures`: ``sm_80`` for an NVIDIA device, else the family."""
    return f"sm_{compute_capability.replace('.', '')}" if compute_capability else family


def accelerator_from_record(record: Record, units: Mapping[str, Architecture]) -> Accelerator:
    """One row of ``accelerators.csv`` in SI units. Raises FieldError on a source that is not in
    ``sources.csv``."""
    unit = units.get(architecture_key(record.text("compute_capability") or None, record.text("family")))
    check_source(record)
    cells = cell_sources(record, ACCELERATOR_SCHEMA)
    nominal = record.number("memory_gb")
    memory_mib = record.maybe("memory_mib")
    origin = sources()[record.text("source")]
    return Accelerator(
        id=record.text("id"),
        name=record.text("name"),
        vendor=record.text("vendor"),
        family=record.text("family"),
        year=record.integer("year"),
        compute_units=record.maybe_integer("compute_units"),
        boost_hz=_scaled(record, "boost_mhz", MEGA),
        peak_flop_per_s=MappingProxyType(
            {d: rate * TERA for d, c in RATE_COLUMNS.items() if (rate := record.maybe(c)) is not None}
        ),
        # The label's "GB" is GiB of DRAM (H200: "141 GB" is 143771 MiB), so it replaces an unread total.
        memory_bytes=(memory_mib or nominal * 1024) * MIB,
        memory_type=record.text("memory_type"),
        memory_bandwidth_bytes_per_s=record.number("bandwidth_gb_s") * GIGA,
        l2_bytes=_scaled(record, "l2_mib", MIB),
        shared_memory_per_unit_bytes=unit.shared_memory_bytes if unit else None,
        registers_per_unit=unit.registers if unit else None,
        max_warps_per_unit=unit.max_warps if unit else None,
        compute_capability=record.text("compute_capability") or None,
        tdp_w=record.maybe("tdp_w"),
        form=record.text("form"),
        pcie_bytes_per_s=PCIE_BYTES_PER_S.get(record.text("pcie")),
        link_kind=record.text("link_kind") or None,
        link_bytes_per_s=_scaled(record, "link_gb_s", GIGA),
        list_price_usd=record.maybe("list_price_usd"),
        source=f"{origin.title} <{origin.url}>" if origin.url else origin.title,
        weak=_weak(record, cells),
        base_hz=_scaled(record, "base_mhz", MEGA),
        tensor_hz=_scaled(record, "tensor_mhz", MEGA),
        fp16_accumulate_flop_per_s=_scaled(record, "fp16_fp16acc_tflops", TERA),
        fp32_matrix_flop_per_s=_scaled(record, "fp32_matrix_tflops", TERA),
        fp64_vector_flop_per_s=_scaled(record, "fp64_vector_tflops", TERA),
        memory_visible_bytes=_scaled(record, "visible_mib", MIB),
        memory_nominal_gb=nominal,
        memory_sizes_gb=tuple(float(gb) for gb in record.names("memory_sizes_gb")),
        memory_bus_bits=record.maybe_integer("memory_bus_bits"),
        memory_rate_bit_per_s=_scaled(record, "memory_gbit_s", GIGA),
        l1_bytes=unit.l1_bytes if unit else None,
        l3_bytes=_scaled(record, "l3_mib", MIB),
        fp32_flop_per_clock_per_unit=unit.flop_per_clock.get("fp32") if unit else None,
        aliases=record.names("aliases"),
        cell_sources=MappingProxyType(cells),
        list_price_kind=record.text("list_price_kind") or None,
        notes=record.text("notes"),
    )


def rate_factors(record: Record) -> dict[str, float]:
    """Dtypes with another product rate than their architecture's: ``"int8:0.5;fp64:0.016"``.

    Raises FieldError.
    """
    factors: dict[str, float] = {}
    for part in filter(None, record.text("rate_factors").split(";")):
        dtype, colon, factor = part.partition(":")
        try:
            value = float(factor)
        except ValueError:
            value = -1.0
        if not colon or not 0 < value < 10:
            raise record.error(f"rate_factors holds {part!r}", field="rate_factors", hint="write dtype:factor")
        factors[dtype] = value
    return factors


def _architecture(name: str, table: Record) -> Architecture:
    return Architecture(
        key=name,
        family=table.text("family"),
        flop_per_clock=MappingProxyType(table.numbers("flop_per_clock")),
        shared_memory_bytes=_scaled(table, "shared_memory_kib", KIB),
        l1_bytes=_scaled(table, "l1_kib", KIB),
        registers=table.maybe_integer("registers"),
        max_warps=table.maybe_integer("max_warps"),
        source=table.text("source"),
    )


def _scaled(record: Record, field: str, unit: float) -> float | None:
    value = record.maybe(field)
    return None if value is None else value * unit


def _weak(record: Record, key_by_column: Mapping[str, str]) -> tuple[str, ...]:
    """Fields named weak in the row, and those whose source is neither the vendor, a reading nor
    arithmetic."""
    named = record.names("weak")
    doubtful = {column for column, key in key_by_column.items() if sources()[key].doubtful}
    if named == ("*",) or sources()[record.text("source")].doubtful:
        columns = [c for c in record.values if c in _FIELD_OF_COLUMN or c == "compute_units" or c == "tdp_w"]
        columns = [c for c in columns if c not in key_by_column or c in doubtful or named == ("*",)]
        columns += [c for c in named if c != "*"]
    else:
        columns = [*named, *(c for c in key_by_column if c in doubtful)]
    fields = (_FIELD_OF_COLUMN.get(column, column) for column in columns)
    return tuple(dict.fromkeys(fields))
