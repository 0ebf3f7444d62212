"""Processors (CPUs), for comparison with a GPU and for running a model without one.

One row of ``data/cpus.csv`` is one socket with the fastest memory in its vendor's specification. Peak rates are cores x clock
with all cores busy x operations per clock; ``bf16`` and ``int8`` on x86 without AMX, and on Arm, are dot-product instructions
of the vector unit. A format without dedicated instructions (``bf16`` on Zen 3) is absent: libraries then compute in fp32.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

from gpuwise.errors import AmbiguousNameError, InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.corrections import Correction
from gpuwise.facts.hardware.ram import CHANNEL_BYTES, Ram, memory_text, take_ram, take_size
from gpuwise.facts.loading import Field, Record, Rows, shipped_text
from gpuwise.facts.sources import cell_sources, check_source, sources
from gpuwise.units import GIGA, MEGA

FILE = "cpus.csv"
CPU_DTYPES = ("fp32", "bf16", "int8")
"""Formats a rate may be given for."""
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
    """Core micro-architecture; ``unknown`` if a machine does not report it, as are ``vendor``, ``kind``, ``memory_type``."""
    year: int
    kind: str
    """``desktop``, ``laptop``, ``server``, ``board`` (a single-board computer) or ``phone``."""
    cores: int
    """Large cores; a hybrid part has ``efficiency_cores`` too."""
    efficiency_cores: int
    base_hz: float | None
    """None, like the next one, for a processor that was only measured and whose clock is unknown."""
    allcore_hz: float | None
    """Clock with all cores busy. Wide vector work runs below it; the measured shares of peak account for that."""
    peak_flop_per_s: Mapping[str, float]
    """Peak by dtype of :data:`CPU_DTYPES`, all cores at their all-core clock."""
    matrix_dtypes: tuple[str, ...]
    """Formats computed on a matrix unit (Intel's or Apple's AMX) rather than on the vector unit."""
    memory_bandwidth_bytes_per_s: float
    memory_type: str
    tdp_w: float | None
    list_price_usd: float | None
    rental: Rental | None
    source: str
    weak: tuple[str, ...]
    """Columns from third parties or estimated; ``all`` first where the whole line is."""
    aliases: tuple[str, ...] = ()
    notes: str = ""
    memory_channels: float = 0.0
    """Channels of one socket, 64 bits each; 0 if unknown, like the next one."""
    memory_mt_s: float = 0.0
    memory_also: tuple[str, ...] = ()
    """Other memory that it takes: ``LPDDR5X-7500``."""
    sockets: int = 1
    """How many of them all figures above are of."""
    assumption: str = ""
    """Assumptions for an ambiguous name, in words."""
    corrections: Mapping[str, Correction] = field(default_factory=dict[str, Correction])
    """What was measured on this very processor, by key; empty in the catalogue."""

    @property
    def memory(self) -> str:
        """``DDR4-3200 x 2``: of one socket."""
        return memory_text(self.memory_type, self.memory_mt_s or None, self.memory_channels or None)

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
    "year": Field("integer", minimum=2008, maximum=2030),
    "kind": Field("text", choices=("desktop", "laptop", "server", "board", "phone")),
    "aliases": Field("names", required=False),
    "cores": Field("integer", maximum=1024),
    **dict.fromkeys(("base_mhz", "allcore_mhz", "max_mhz"), Field("number", minimum=500, maximum=8000)),
    "fp32_per_clock": Field("number"),
    **dict.fromkeys(("bf16_per_clock", "int8_per_clock"), _optional),
    "matrix_dtypes": Field("names", required=False, choices=CPU_DTYPES),
    "efficiency_cores": Field("integer", required=False, maximum=1024),
    **dict.fromkeys(("efficiency_mhz", "efficiency_fp32_per_clock", "tdp_w", "list_price_usd"), _optional),
    "memory_channels": Field("number", maximum=64),
    "memory_also": Field("names", required=False),
    "memory_mt_s": Field("number", maximum=20_000),
    "bandwidth_gb_s": Field("number"),
    "rental_usd_h": _optional,
    "rental_instance": _optional_text,
    "rental_cores": Field("integer", required=False),
    "rental_as_of": Field("date", required=False),
    **dict.fromkeys(("cell_sources", "notes"), _optional_text),
}


@cache
def cpus() -> Rows[Cpu]:
    """The catalogue by id, in the order of the file, with a person's own rows, which win. Raises DataError when the shipped file
    is corrupt, FieldError for a row of their own."""
    return Rows(FILE, shipped_text(FILE), CPU_SCHEMA, cpu_from_record)


def find_cpu(text: str, ram: Ram | None = None) -> Cpu:
    """The processor meant by a name: ``EPYC 9654``, ``xeon 8480+``, ``i5-12400``, ``m2 ultra cpu``; as a system prints it (``11th
    Gen Intel(R) Core(TM) i7-11700K @ 3.60GHz``, ``AMD Ryzen 7 5700G with Radeon Graphics``); several sockets (``2x EPYC 9334``);
    with its memory (``Ryzen 7 5700G ddr4-3200x2``), or that of ``ram``.

    A full name or alias wins; else the one that has every word. ``assumption`` of the processor states the open points. Raises
    UnknownNameError with the nearest names, AmbiguousNameError with the matching ids, or InputError for memory that it does
    not support.
    """
    if len(text) <= _LONGEST_NAME:
        named, rest = take_ram(text)
        if named is not None and ram is not None and named != ram:
            raise InputError(f"{text!r} names its memory, and --ram another", hint="name it once")
        sockets, rest = _sockets(take_size(rest)[1])
        for attempt in _attempts(rest):
            cpu = _named(_words(_LARGE_AND_SMALL.sub(" ", attempt)), text)
            if cpu is not None:
                return _with_sockets(_with_memory(cpu, ram or named, _other_cores(cpu, rest)), sockets)
    if names_no_processor(text):
        hint = "write the model name that `lscpu` prints, like 'Ryzen 7 5700G' or 'i5-12400'"
        raise UnknownNameError("processor", text[:_LONGEST_NAME], (), hint=hint)
    raise UnknownNameError(
        "processor", text[:_LONGEST_NAME], all_cpu_names(), otherwise="one is called 'EPYC 9654', 'i9-13900K' or 'Apple M2'"
    )


def names_no_processor(text: str) -> bool:
    """Whether ``text`` is an instruction set or a maker alone: ``x86 8 cores``."""
    plain = _REMARK.sub(" ", _DECORATION.sub(" ", text[:_LONGEST_NAME]))
    return re.search("[a-zA-Z]", text) is not None and _NAMES_NO_PROCESSOR.fullmatch(plain) is not None


@cache
def all_cpu_names() -> tuple[str, ...]:
    """Ids, names and aliases of the catalogue."""
    return tuple(name for names in cpus().names().values() for name in names)


_SOCKETS = (
    re.compile(r"\s*(?:([1-8])\s*[x×*]\s*|(dual|two|quad|four|single|one)[\s-]+(?:socket\s+)?)(?=\S\S)", re.IGNORECASE),
    re.compile(r"(?<=\S\S)[\s(,]*(?:[x×*]\s*([1-8])|\b([1-8]|dual|two|quad|four|single|one)[\s-]sockets?)[\s)]*$", re.IGNORECASE),
)
_SPELLED_SOCKETS = {"single": 1, "one": 1, "dual": 2, "two": 2, "quad": 4, "four": 4}
_DECORATION = re.compile(
    r"\((?:r|tm|c)\)|[®™]|@\s*[0-9.]+\s*[gm]hz|\b(?:with|w/)\s.*|\b[0-9]{1,2}(?:st|nd|rd|th)\s+gen(?:eration)?\b"
    r"|\b(?:arm64|aarch64)\b|\b(?:[0-9]{1,3}|dual|triple|quad|four|six|eight|ten|twelve|sixteen)[\s-]cores?\b"
    r"|\bmodel [ab](?: plus|\+)?\b"
    r"|\brev(?:ision)? ?[0-9.]+|^\s*cpu\s*:|\bmac\s?book(?:\s(?:pro|air))?\b|\bmac[\s-]?(?:studio|mini|pro)\b|\bimac\b",
    re.IGNORECASE,
)
"""Words that systems and shops add to the name."""
_LARGE_AND_SMALL = re.compile(r"\b([0-9]{1,2})p\s*\+\s*([0-9]{1,2})e\b", re.IGNORECASE)
_NAMES_NO_PROCESSOR = re.compile(
    r"(?:[\s(),.+/_-]|[0-9]+(?:gb|[\s-]?(?:cores?|threads?|v?cpus?))?|x86(?:[_-]64)?|amd64|arm64|aarch64|riscv(?:64)?|risc-v"
    r"|x86|intel|amd|apple|qualcomm|arm|core|cpu|processor|virtual|version|qemu|kvm|common|unnamed|generic)*",
    re.IGNORECASE,
)
"""An instruction set or a maker alone."""
_REMARK = re.compile(r"\(([^()]*)\)")


def _sockets(text: str) -> tuple[int, str]:
    """How many sockets ``text`` counts, and the name beside the count."""
    for found in filter(None, (_SOCKETS[0].match(text), _SOCKETS[1].search(text))):
        count = (found[1] or found[2]).lower()
        return int(_SPELLED_SOCKETS.get(count, count)), f"{text[: found.start()]} {text[found.end() :]}"
    return 1, text


def _attempts(text: str) -> Iterator[str]:
    """``text`` without decoration, without parentheses, only their content, and without the part after a comma."""
    plain = _DECORATION.sub(" ", text)
    yield plain
    yield _REMARK.sub(" ", plain)
    yield from _REMARK.findall(plain)
    yield plain.split(",")[0]


def _named(spelling: tuple[str, ...], text: str) -> Cpu | None:
    """The processor with this name, or the one with every word of it. Raises AmbiguousNameError."""
    by_spelling, words_of = _index()
    for words in (spelling, tuple(w for w in spelling if w not in _OFTEN_LEFT_OUT)):
        if exact := by_spelling.get(words):
            return cpus()[exact]
        if any(len(word) > 2 or word.isalpha() for word in words):  # a bare 1 is of no processor
            fitting = [key for key, every in words_of.items() if every.issuperset(words)]
            if len(fitting) == 1:
                return cpus()[fitting[0]]
            if fitting:
                raise AmbiguousNameError("processor", text, fitting[:8])
    return None


_NOISE_WORDS = "intel amd aws apple nvidia qualcomm huawei google broadcom rockchip r tm processor platinum cpu core the of inc"
_SAID_OR_NOT = frozenset(_NOISE_WORDS.split())
_OFTEN_LEFT_OUT = frozenset({"pro", "ryzen", "oryon"})
"""A PRO part is the plain one with management; the exact name wins where both exist."""


_WORD = re.compile(r"[a-z]+|[0-9]+[a-z]*\+?")


def _words(text: str) -> tuple[str, ...]:
    return _words_of(_spelled(text))


def _spelled(text: str) -> str:
    return re.sub(r"\b([mi])([1-9])\b", r"\1_\2", text.lower())


def _words_of(spelled: str) -> tuple[str, ...]:
    return tuple([w for w in _WORD.findall(spelled) if w not in _SAID_OR_NOT])


@cache
def _index() -> tuple[Mapping[tuple[str, ...], str], Mapping[str, frozenset[str]]]:
    """Ids by the words of each way to write them in full, and all words by id."""
    by_spelling: dict[tuple[str, ...], str] = {}
    words_of: dict[str, frozenset[str]] = {}
    names_of = cpus().names()
    spelled = iter(_spelled("\n".join(name for names in names_of.values() for name in names)).split("\n"))
    for key, names in names_of.items():
        spellings = [_words_of(next(spelled)) for _ in names]
        words_of[key] = frozenset[str]().union(*spellings)
        for spelling in spellings:
            by_spelling.setdefault(spelling, key)
    return by_spelling, words_of


def _other_cores(cpu: Cpu, text: str) -> str:
    """Assumption if ``text`` states other cores (``M1 Pro 6P+2E``); else empty."""
    counted = _LARGE_AND_SMALL.search(text)
    if counted is None or (int(counted[1]), int(counted[2])) == (cpu.cores, cpu.efficiency_cores):
        return ""
    return f"{cpu.name} is taken with {cpu.cores} large and {cpu.efficiency_cores} small cores"


def _with_memory(cpu: Cpu, ram: Ram | None, assumption: str) -> Cpu:
    """``cpu`` with the memory of ``ram``, and what is assumed where that leaves something open. Raises InputError."""
    also = dict(part.rsplit("-", 1) for part in cpu.memory_also)
    if ram is None or ram.type is None:
        fixed = cpu.memory_type.startswith("LP") and not also
        others = f" (it also takes {' and '.join(cpu.memory_also)})" if also else ""
        assumed = "" if fixed else f"memory is taken as {cpu.memory}, the fastest stated for it{others}: --ram names another"
        return replace(cpu, assumption="; ".join(filter(None, (assumption, assumed))))
    rates = {cpu.memory_type: cpu.memory_mt_s} | {type_: float(rate) for type_, rate in also.items()}
    if not any(_generation(type_) == _generation(ram.type) for type_ in rates):
        raise InputError(
            f"{cpu.name} takes {' or '.join(rates)}, not {ram.type}",
            hint=f"write --ram {cpu.memory_type.lower()}-{cpu.memory_mt_s:.0f}, or what yours has",
        )
    if ram.channels is not None and ram.channels > cpu.memory_channels:
        most = f"{cpu.memory_channels:g} memory channel{'s' * (cpu.memory_channels > 1)}"
        raise InputError(f"{cpu.name} has {most}, not {ram.channels:g}", hint="count channels, not modules")
    mt_s = ram.mt_s or rates.get(ram.type) or cpu.memory_mt_s
    channels = ram.channels or cpu.memory_channels
    left_open = [] if ram.mt_s and ram.channels else [f"memory is taken as {memory_text(ram.type, mt_s, channels)}"]
    return replace(
        cpu,
        memory_type=ram.type,
        memory_mt_s=mt_s,
        memory_channels=channels,
        memory_bandwidth_bytes_per_s=channels * CHANNEL_BYTES * mt_s * MEGA,
        assumption="; ".join(filter(None, (assumption, *left_open))),
    )


def _generation(memory_type: str) -> str:
    """``DDR5`` of LPDDR5X."""
    return memory_type.removeprefix("LP").removesuffix("X")


def _with_sockets(cpu: Cpu, sockets: int) -> Cpu:
    """``sockets`` of ``cpu`` in one machine: cores, rates, memory and power together."""
    if sockets == 1:
        return cpu
    return replace(
        cpu,
        name=f"{sockets}x {cpu.name}",
        sockets=sockets,
        cores=sockets * cpu.cores,
        efficiency_cores=sockets * cpu.efficiency_cores,
        peak_flop_per_s=MappingProxyType({dtype: sockets * rate for dtype, rate in cpu.peak_flop_per_s.items()}),
        memory_bandwidth_bytes_per_s=sockets * cpu.memory_bandwidth_bytes_per_s,
        tdp_w=None if cpu.tdp_w is None else sockets * cpu.tdp_w,
        list_price_usd=None if cpu.list_price_usd is None else sockets * cpu.list_price_usd,
    )


def with_cores(cpu: Cpu, cores: int) -> Cpu:
    """The part of ``cpu`` that a machine with ``cores`` cores has, as a virtual machine: their share of the arithmetic, and the
    memory of the whole, which few cores do not fill. ``cpu`` itself where it has no more. Small cores count as large ones."""
    total = cpu.cores + cpu.efficiency_cores
    if cores >= total:
        return cpu
    share = cores / total
    return replace(
        cpu,
        id=f"{cpu.id}-{cores}-cores",
        name=f"{cores} core{'s' * (cores > 1)} of {cpu.name}",
        cores=cores,
        efficiency_cores=0,
        peak_flop_per_s=MappingProxyType({dtype: share * rate for dtype, rate in cpu.peak_flop_per_s.items()}),
        tdp_w=None,
        list_price_usd=None,
        rental=None,
    )


def cpu_from_record(r: Record) -> Cpu:
    """One row of ``cpus.csv`` in SI units. Raises FieldError where its figures contradict each other."""
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
        weak=(*(["all"] if origin.doubtful else []), *(c for c, key in cells.items() if sources()[key].doubtful)),
        aliases=r.names("aliases"),
        notes=r.text("notes"),
        memory_channels=r.number("memory_channels"),
        memory_mt_s=r.number("memory_mt_s"),
        memory_also=r.names("memory_also"),
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
    """Arithmetic checks of a row. Raises FieldError."""
    product = r.number("memory_channels") * CHANNEL_BYTES * r.number("memory_mt_s") * MEGA / GIGA
    if abs(product / r.number("bandwidth_gb_s") - 1) > _BANDWIDTH_ROUNDING:
        raise r.error(
            f"bandwidth_gb_s is {r.number('bandwidth_gb_s'):g} where the channels give {product:.1f}",
            field="bandwidth_gb_s",
            hint="channels of 64 bits x MT/s x 8 bytes",
        )
    if bad := next((part for part in r.names("memory_also") if not re.fullmatch(r"(LP)?DDR[2-5]X?-[0-9]{3,5}", part)), None):
        raise r.error(f"memory_also has {bad!r}", field="memory_also", hint="write type-rate, like DDR4-3200;LPDDR4X-4267")
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
