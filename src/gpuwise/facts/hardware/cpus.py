"""Processors (CPUs): what a GPU is compared with.

One row of ``data/cpus.csv`` is one socket. Peak rates are cores x clock with all cores busy x operations per
clock; ``bf16`` and ``int8`` on x86 without AMX, and on Arm, are dot-product instructions of the vector unit. A
format without instructions of its own (``bf16`` on Zen 3) is absent: libraries then compute in fp32.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import AmbiguousNameError, UnknownNameError, UnpredictableError
from gpuwise.facts.loading import Field, Record, ShippedData, parse_csv, shipped_text
from gpuwise.facts.sources import cell_sources, check_source, sources
from gpuwise.units import GIGA, MEGA

CPU_DTYPES = ("fp32", "bf16", "int8")
"""Formats a rate may be given for."""
_CHANNEL_BYTES = 8
_BANDWIDTH_ROUNDING = 0.005
"""A bandwidth may differ from channels x rate by this share: vendors round."""
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Cpu:
    """The specification of one processor; None means unknown, never zero."""

    id: str
    name: str
    vendor: str
    family: str
    """Core micro-architecture; ``unknown`` where a machine does not tell it, as are ``vendor``, ``kind``, ``memory_type``."""
    year: int
    kind: str
    """``desktop``, ``laptop`` or ``server``."""
    cores: int
    """Large cores; a hybrid part has ``efficiency_cores`` too."""
    efficiency_cores: int
    base_hz: float | None
    """None, as the next one: of a processor that was only measured, whose clock nobody tells."""
    allcore_hz: float | None
    """With all cores busy. Wide vector work runs below it; the measured shares of peak hold that."""
    peak_flop_per_s: Mapping[str, float]
    """By dtype of :data:`CPU_DTYPES`, all cores at their all-core clock."""
    matrix_dtypes: tuple[str, ...]
    """Formats computed on a matrix unit (Intel's or Apple's AMX) rather than on the vector unit."""
    memory_bandwidth_bytes_per_s: float
    memory_type: str
    tdp_w: float | None
    list_price_usd: float | None
    rental: Rental | None
    source: str
    weak: tuple[str, ...]
    """Columns from third parties or estimated."""
    aliases: tuple[str, ...] = ()
    notes: str = ""

    def peak(self, dtype: str) -> float:
        """FLOP/s (OP/s for int8). Raises UnpredictableError when it has no instructions for ``dtype``."""
        rate = self.peak_flop_per_s.get(dtype)
        if rate is None:
            raise UnpredictableError(
                f"no {dtype} rate for processor",
                f"{self.name} has no {dtype} instructions in the catalogue",
                hint="it has " + ", ".join(self.peak_flop_per_s),
            )
        return rate

    @property
    def usd_per_hour(self) -> float | None:
        """Rent of one socket's worth of cores; None when no instance with it is listed."""
        return None if self.rental is None else self.rental.usd_per_hour * self.cores / self.rental.cores


@dataclass(frozen=True, slots=True)
class Rental:
    """An instance with this processor: list price of the whole instance on a day."""

    instance: str
    cores: int
    usd_per_hour: float
    as_of: datetime.date


_text, _optional_text = Field("text"), Field("text", required=False)
_optional = Field("number", required=False)
CPU_SCHEMA: dict[str, Field] = {
    **dict.fromkeys(("id", "name", "vendor", "family", "memory_type", "source"), _text),
    "year": Field("integer", minimum=2010, maximum=2030),
    "kind": Field("text", choices=("desktop", "laptop", "server")),
    "aliases": Field("names", required=False),
    "cores": Field("integer", maximum=1024),
    **dict.fromkeys(("base_mhz", "allcore_mhz", "max_mhz"), Field("number", minimum=500, maximum=8000)),
    "fp32_per_clock": Field("number"),
    **dict.fromkeys(("bf16_per_clock", "int8_per_clock"), _optional),
    "matrix_dtypes": Field("names", required=False, choices=CPU_DTYPES),
    "efficiency_cores": Field("integer", required=False, maximum=1024),
    **dict.fromkeys(("efficiency_mhz", "efficiency_fp32_per_clock", "tdp_w", "list_price_usd"), _optional),
    "memory_channels": Field("integer", maximum=64),
    "memory_mt_s": Field("number", maximum=20_000),
    "bandwidth_gb_s": Field("number"),
    "rental_usd_h": _optional,
    "rental_instance": _optional_text,
    "rental_cores": Field("integer", required=False),
    "rental_as_of": Field("date", required=False),
    **dict.fromkeys(("cell_sources", "notes"), _optional_text),
}


@cache
def cpus() -> Mapping[str, Cpu]:
    """The catalogue by id, in the order of the file. Raises DataError when the shipped file is corrupt."""
    with ShippedData():
        return parse_cpus(shipped_text("cpus.csv"), "cpus.csv")


def parse_cpus(text: str, file: str) -> Mapping[str, Cpu]:
    """Processors from CSV text. Raises FieldError on a row that contradicts itself or cites no source."""
    by_id: dict[str, Cpu] = {}
    for record in parse_csv(text, CPU_SCHEMA, file):
        cpu = _cpu(record)
        if cpu.id in by_id:
            raise record.error(f"id {cpu.id!r} appears twice", field="id", hint="give each row its own id")
        by_id[cpu.id] = cpu
    return MappingProxyType(by_id)


def find_cpu(text: str) -> Cpu:
    """The processor a person means: ``EPYC 9654``, ``xeon 8480+``, ``i5-12400``, ``m2 ultra cpu``.

    A full name or alias wins; else the one that has every word. Raises UnknownNameError with the nearest
    names, or AmbiguousNameError with the ids that fit.
    """
    spelling = _words(text) if len(text) <= _LONGEST_NAME else ()
    if spelling:
        exact = [c for c in cpus().values() if any(spelling == words for words in _spellings(c))]
        telling = any(len(word) > 2 or word.isalpha() for word in spelling)  # a bare 1 is of no processor
        fitting = exact or [c for c in cpus().values() if telling and set(spelling) <= set().union(*_spellings(c))]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise AmbiguousNameError("processor", text, [c.id for c in fitting[:8]])
    names = [name for c in cpus().values() for name in (c.id, c.name, *c.aliases)]
    raise UnknownNameError(
        "processor", text[:_LONGEST_NAME], names, otherwise="one is called 'EPYC 9654', 'i9-13900K' or 'Apple M2'"
    )


_SAID_OR_NOT = frozenset({"intel", "amd", "aws", "apple", "r", "tm", "processor", "with", "platinum", "cpu"})


def _words(text: str) -> tuple[str, ...]:
    text = re.sub(r"\b[0-9]+-core\b", " ", text.lower())
    words = re.findall(r"[a-z]+|[0-9]+[a-z]*\+?", re.sub(r"\b([mi])([1-9])\b", r"\1_\2", text))
    return tuple(w for w in words if w not in _SAID_OR_NOT)


@cache
def _spellings_of(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(_words(name) for name in names)


def _spellings(cpu: Cpu) -> tuple[tuple[str, ...], ...]:
    return _spellings_of((cpu.id, cpu.name, *cpu.aliases))


def _cpu(r: Record) -> Cpu:
    """One row in SI units. Raises FieldError where its figures contradict each other."""
    _check(r)
    check_source(r)
    cells = cell_sources(r, CPU_SCHEMA)
    origin = sources()[r.text("source")]
    return Cpu(
        id=r.text("id"),
        name=r.text("name"),
        vendor=r.text("vendor"),
        family=r.text("family"),
        year=r.integer("year"),
        kind=r.text("kind"),
        cores=r.integer("cores"),
        efficiency_cores=r.maybe_integer("efficiency_cores") or 0,
        base_hz=r.number("base_mhz") * MEGA,
        allcore_hz=r.number("allcore_mhz") * MEGA,
        peak_flop_per_s=MappingProxyType(_peaks(r)),
        matrix_dtypes=r.names("matrix_dtypes"),
        memory_bandwidth_bytes_per_s=r.number("bandwidth_gb_s") * GIGA,
        memory_type=r.text("memory_type"),
        tdp_w=r.maybe("tdp_w"),
        list_price_usd=r.maybe("list_price_usd"),
        rental=_rental(r),
        source=f"{origin.title} <{origin.url}>" if origin.url else origin.title,
        weak=tuple(c for c, key in cells.items() if sources()[key].doubtful),
        aliases=r.names("aliases"),
        notes=r.text("notes"),
    )


def _peaks(r: Record) -> dict[str, float]:
    """FLOP/s: cores x clock x operations per clock. Small cores count where the vector unit does the work."""
    peaks: dict[str, float] = {}
    for dtype in CPU_DTYPES:
        per_clock = r.maybe(f"{dtype}_per_clock")
        if per_clock is None:
            continue
        peaks[dtype] = r.integer("cores") * r.number("allcore_mhz") * MEGA * per_clock
        if r.maybe_integer("efficiency_cores") and dtype not in r.names("matrix_dtypes"):
            share = per_clock / r.number("fp32_per_clock")
            small = r.integer("efficiency_cores") * r.number("efficiency_mhz") * MEGA
            peaks[dtype] += small * r.number("efficiency_fp32_per_clock") * share
    return peaks


def _rental(r: Record) -> Rental | None:
    price = r.maybe("rental_usd_h")
    if price is None:
        return None
    return Rental(r.text("rental_instance"), r.integer("rental_cores"), price, r.date("rental_as_of"))


def _check(r: Record) -> None:
    """What arithmetic can prove of a row. Raises FieldError."""
    product = r.integer("memory_channels") * _CHANNEL_BYTES * r.number("memory_mt_s") * MEGA / GIGA
    if abs(product / r.number("bandwidth_gb_s") - 1) > _BANDWIDTH_ROUNDING:
        raise r.error(
            f"bandwidth_gb_s is {r.number('bandwidth_gb_s'):g} where the channels give {product:.1f}",
            field="bandwidth_gb_s",
            hint="channels of 64 bits x MT/s x 8 bytes",
        )
    if not r.number("base_mhz") <= r.number("allcore_mhz") <= r.number("max_mhz"):
        raise r.error("allcore_mhz is not between base_mhz and max_mhz", field="allcore_mhz", hint="base <= all cores <= max")
    for group in (
        ("rental_usd_h", "rental_instance", "rental_cores", "rental_as_of"),
        ("efficiency_cores", "efficiency_mhz", "efficiency_fp32_per_clock"),
    ):
        present = [name for name in group if name in r.values]
        if present and len(present) < len(group):
            missing = next(name for name in group if name not in present)
            raise r.error(f"{missing} is empty", field=missing, hint="these go together: " + ", ".join(group))
