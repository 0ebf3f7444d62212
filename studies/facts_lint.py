"""What arithmetic can prove about the fact files.

A rate is units x FLOP per clock x clock; a bandwidth is bus width x pin rate; a label's GB is GiB; a link
carries what its generation carries, one direction. Public tables break each of these: sparse rates stored as
dense (PyTorch's ``device_info.py``: 1979 for H100 bf16), a bandwidth ten times too high (3350 GB/s for an
L4), both directions of a link added up, 80 GB read as 80e9 bytes. :func:`lint` returns one :class:`Finding`
for each; shipped data has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuwise.errors import AmbiguousNameError, GpuwiseError
from gpuwise.facts.hardware.accelerators import (
    ACCELERATOR_SCHEMA,
    EXTRA_RATE_COLUMNS,
    RATE_COLUMNS,
    Architecture,
    accelerators,
    architecture_key,
    architectures,
    rate_factors,
)
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.hardware.systems import LinkGeneration, System, default_system, link_generations, systems
from gpuwise.facts.loading import Record, parse_csv, shipped_text
from gpuwise.facts.offers.offer import Offer, offers
from gpuwise.facts.sources import cell_sources, sources
from gpuwise.units import GIGA

RATE_TOLERANCE = 0.03
"""Vendors round rates to two or three digits and clocks to 5 MHz."""
RATIO_TOLERANCE = 0.01
"""Two rates of one device share its clock; only rounding is left."""
BANDWIDTH_TOLERANCE = 0.025
"""Apple prints 100 GB/s for 102.4."""
_HALVED_BY_FP32_ACCUMULATION = ("tf32", "fp16", "bf16", "fp8", "mxfp8")
_AT_BOOST = ("fp32", "fp64", "fp64_vector")
"""Rates vendors state at the boost clock; matrix rates are at ``tensor_mhz`` where a device has one."""

_PIN_GBIT_S = {
    "GDDR5": (4, 9),
    "GDDR5X": (9, 12),
    "GDDR6": (10, 20.5),
    "GDDR6X": (18, 24),
    "GDDR7": (18, 32),
    "HBM2": (1.3, 2.5),
    "HBM2e": (1.1, 3.7),
    "HBM3": (5, 6.5),
    "HBM3e": (5.9, 9.8),
    "HBM4": (6, 13),
    "LPDDR4X": (3.2, 4.3),
    "DDR4": (2.1, 3.3),
    "DDR5": (4.4, 6.5),
    "LPDDR5": (4.2, 6.5),  # 2133 MHz on the first Jetson Orin Nano
    "LPDDR5X": (7.4, 10.7),
    "LPDDR unified": (4.2, 9.7),
}
"""Pin rates of JEDEC generations as shipped (Gbit/s), lowest and highest."""
_BANDWIDTH_PER_GB = {"GDDR": (8, 90), "HBM": (8, 80), "LPDDR": (0.8, 13), "DDR": (2, 10)}
"""GB/s per GB: how fast a memory technology can be read out once; a misplaced digit falls out of it."""
_ECC_IN_BAND = 15 / 16
"""GDDR cards with ECC on give a sixteenth of the memory to it (T4: 15360 of 16384 MiB)."""
_DECIMAL_FOR_BINARY = 1e9 / 2**30
_MOST_MATRIX_FLOP_PER_W = 2.7e12
"""Above any device so far (MI355X 1.8, B200 2.3 TFLOP/s of FP16 per watt), below their sparse figures."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that cannot be right."""

    rule: str
    where: str
    message: str


def lint() -> list[Finding]:
    """Every finding in the shipped accelerators, names, systems and offers. Raises DataError on a corrupt
    file."""
    records = parse_csv(shipped_text("accelerators.csv"), ACCELERATOR_SCHEMA, "accelerators.csv")
    return [
        *lint_accelerators(records, architectures(), link_generations()),
        *lint_names(records),
        *lint_systems(systems().values(), link_generations()),
        *lint_offers(offers()),
    ]


def lint_accelerators(
    records: Iterable[Record], units: Mapping[str, Architecture], links: Mapping[str, LinkGeneration]
) -> list[Finding]:
    """Findings in rows of ``accelerators.csv``."""
    findings: list[Finding] = []
    places: set[str] = set()
    for record in records:
        where = record.text("id")
        problems = [
            *_rates(record, units),
            *_clocks(record),
            *_bandwidth(record),
            *_memory(record),
            *_link(record, links),
            *_power(record),
            *_provenance(record, units),
        ]
        if where in places:
            problems.append(("id", "appears twice"))
        places.add(where)
        findings += [Finding(rule, where, message) for rule, message in problems]
    return findings


def expected_rate(record: Record, architecture: Architecture, dtype: str) -> float | None:
    """TFLOP/s of ``dtype`` by arithmetic: units x FLOP per clock x clock x the product's own factor.

    ``dtype`` is a key of ``flop_per_clock`` or ``fp16_fp16acc``. None when a factor of the product is
    unknown.
    """
    width = architecture.flop_per_clock.get("fp16" if dtype == "fp16_fp16acc" else dtype)
    units, boost_mhz = record.maybe("compute_units"), record.maybe("boost_mhz")
    if width is None or units is None or boost_mhz is None:
        return None
    clock_mhz = boost_mhz if dtype in _AT_BOOST else record.maybe("tensor_mhz") or boost_mhz
    halved = dtype in _HALVED_BY_FP32_ACCUMULATION and record.text("fp32_accumulate") == "half"
    factor = rate_factors(record).get("fp16" if dtype == "fp16_fp16acc" else dtype, 1.0)
    return units * width * clock_mhz * 1e-6 * factor * (0.5 if halved else 1.0)


Problem = tuple[str, str]


def _rates(record: Record, units: Mapping[str, Architecture]) -> list[Problem]:
    key = architecture_key(record.text("compute_capability") or None, record.text("family"))
    architecture = units.get(key)
    if architecture is None:
        return [("architecture", f"compute capability of no table: {key}")] if key.startswith("sm_") else []
    problems: list[Problem] = []
    if architecture.family != record.text("family"):
        problems.append(("family", f"{record.text('family')}, but {key} is {architecture.family}"))
    off: dict[str, float] = {}
    for dtype, column in (RATE_COLUMNS | EXTRA_RATE_COLUMNS).items():
        stated = record.maybe(column)
        if stated is None:
            continue
        expected = expected_rate(record, architecture, dtype)
        if expected is None:
            if architecture.flop_per_clock and dtype not in architecture.flop_per_clock and dtype != "fp16_fp16acc":
                problems.append(("rate", f"{column}: {key} has no {dtype} unit"))
            continue
        off[dtype] = stated / expected
        if abs(off[dtype] - 1) > RATE_TOLERANCE:
            problems.append(("rate", f"{column} is {stated:g}, arithmetic gives {expected:.4g}{_guess(off[dtype])}"))
    matrix = {d: r for d, r in off.items() if d not in _AT_BOOST and d != "fp32_matrix" and r > 0}
    if matrix and max(matrix.values()) / min(matrix.values()) > 1 + RATIO_TOLERANCE + RATE_TOLERANCE:
        problems.append(
            (
                "ratio",
                "matrix rates do not share a clock: " + ", ".join(f"{d} x{r:.3f}" for d, r in matrix.items()),
            )
        )
    return problems


def _guess(ratio: float) -> str:
    if abs(ratio - 2) < 2 * RATE_TOLERANCE:
        return ": a sparse rate, or twice the rate with FP32 accumulation"
    if abs(ratio - 0.5) < RATE_TOLERANCE:
        return ": half of it, set fp32_accumulate or rate_factors if that is meant"
    return ""


def _clocks(record: Record) -> list[Problem]:
    base, boost, tensor = (record.maybe(c) for c in ("base_mhz", "boost_mhz", "tensor_mhz"))
    problems: list[Problem] = []
    if boost is not None and not 300 <= boost <= 3500:
        problems.append(("clock", f"boost_mhz {boost:g} is not a clock in MHz"))
    if base is not None and boost is not None and base > boost:
        problems.append(("clock", f"base_mhz {base:g} above boost_mhz {boost:g}"))
    if tensor is not None and boost is not None and not 0.7 <= tensor / boost <= 1.1:
        problems.append(("clock", f"tensor_mhz {tensor:g} far from boost_mhz {boost:g}"))
    return problems


def _bandwidth(record: Record) -> list[Problem]:
    stated, kind = record.number("bandwidth_gb_s"), record.text("memory_type")
    bus, rate = record.maybe("memory_bus_bits"), record.maybe("memory_gbit_s")
    problems: list[Problem] = []
    if bus is not None and rate is not None:
        expected = bus * rate / 8
        ratio = stated / expected
        if abs(ratio - 1) > BANDWIDTH_TOLERANCE:
            slip = ": a digit too many" if 9 < ratio < 12 else ": a digit too few" if ratio < 0.12 else ""
            problems.append(("bandwidth", f"{stated:g} GB/s, bus x rate gives {expected:.4g}{slip}"))
    low, high = _PIN_GBIT_S.get(kind, (0.0, 100.0))
    if rate is not None and not low <= rate <= high:
        problems.append(("bandwidth", f"{kind} at {rate:g} Gbit/s per pin, made at {low:g} to {high:g}"))
    for technology, (least, most) in _BANDWIDTH_PER_GB.items():
        if kind.startswith(technology):
            per_gb = stated / record.number("memory_gb")
            if not least <= per_gb <= most:
                problems.append(("bandwidth", f"{per_gb:.3g} GB/s per GB of {kind}, usual {least:g} to {most:g}"))
    return problems


def _memory(record: Record) -> list[Problem]:
    """The reported total against the label: equal in GiB, or 15/16 of it with ECC in band."""
    total, nominal = record.maybe("memory_mib"), record.number("memory_gb")
    problems: list[Problem] = []
    if total is not None:
        ratio = total / (nominal * 1024)
        in_band = record.text("memory_type").startswith("GDDR") and abs(ratio - _ECC_IN_BAND) < 0.0011
        before_510 = record.text("memory_type") == "GDDR5" and 0.925 < ratio < 0.94  # older cards, ECC on
        if not (0.985 <= ratio <= 1.0005 or in_band or before_510):
            why = ": GB (1e9) taken for GiB" if abs(ratio - _DECIMAL_FOR_BINARY) < 0.004 else ""
            problems.append(("memory", f"{total:g} MiB is {ratio:.4f} of {nominal:g} GiB{why}"))
    visible = record.maybe("visible_mib")
    whole = total if total is not None else nominal * 1024
    if visible is not None and not 0.93 <= visible / whole <= 1.0005:
        problems.append(("memory", f"visible {visible:g} MiB of {whole:g}"))
    return problems


def _link(record: Record, links: Mapping[str, LinkGeneration]) -> list[Problem]:
    kind, rate = record.text("link_kind"), record.maybe("link_gb_s")
    if not kind and rate is None:
        return []
    if kind not in links or rate is None:
        return [("link", f"link {kind!r} at {rate} GB/s: links.toml knows {', '.join(links)}")]
    most = links[kind].most_bytes_per_s / GIGA
    if rate > most * 1.001:
        both = ": both directions added" if abs(rate / most - 2) < 0.02 else ""
        return [("link", f"{rate:g} GB/s one direction, {links[kind].name} carries {most:g}{both}")]
    return []


def _power(record: Record) -> list[Problem]:
    tdp_w = record.maybe("tdp_w")
    if tdp_w is None:
        return []
    if not 2 <= tdp_w <= 2500:
        return [("power", f"{tdp_w:g} W")]
    rate = record.maybe("bf16_tflops") or record.maybe("fp16_tflops")
    if rate is not None and rate * 1e12 / tdp_w > _MOST_MATRIX_FLOP_PER_W:
        return [("power", f"{rate / tdp_w:.2f} TFLOP/s per watt at 16 bits: sparse, or the power is wrong")]
    return []


def _provenance(record: Record, units: Mapping[str, Architecture]) -> list[Problem]:
    problems: list[Problem] = []
    for column in cell_sources(record, ACCELERATOR_SCHEMA):
        if column not in record.values:
            problems.append(("source", f"cell_sources names {column}, which is empty"))
    for column in record.names("weak"):
        if column != "*" and column not in ACCELERATOR_SCHEMA:
            problems.append(("source", f"weak names {column!r}, which is no column"))
    if (record.maybe("list_price_usd") is None) != (not record.text("list_price_kind")):
        problems.append(("price", "list_price_usd and list_price_kind come together"))
    capability = record.text("compute_capability")
    if record.text("vendor") == "NVIDIA" and not capability and record.text("family") not in ("Rubin",):
        problems.append(("architecture", "no compute capability"))
    if capability and not re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability):
        problems.append(("architecture", f"compute capability {capability!r}"))
    return problems


def lint_names(records: Iterable[Record]) -> list[Finding]:
    """Ids, names and aliases that do not lead back to their own device, or are claimed twice."""
    findings: list[Finding] = []
    claimed: dict[str, str] = {}
    for record in records:
        row_id = record.text("id")
        for text in dict.fromkeys((row_id, record.text("name"), *record.names("aliases"))):
            if _is_shared(text, row_id):
                continue
            other = claimed.setdefault(text.lower(), row_id)
            if other != row_id:
                findings.append(Finding("name", row_id, f"{text!r} is also {other}"))
                continue
            try:
                accelerator_id = find_accelerator(text).id
            except GpuwiseError as error:
                findings.append(Finding("name", row_id, f"{text!r}: {error.message}"))
            else:
                if accelerator_id != row_id:
                    findings.append(Finding("name", row_id, f"{text!r} leads to {accelerator_id}"))
    return findings


def _is_shared(text: str, row_id: str) -> bool:
    """Whether a name is kept for several devices, this one among them, of which one is usually meant (``MI300``)."""
    try:
        find_accelerator(text)
    except AmbiguousNameError as error:
        return error.usual and row_id in error.candidates
    except GpuwiseError:
        return False
    return False


def lint_systems(built: Iterable[System], links: Mapping[str, LinkGeneration]) -> list[Finding]:
    """Findings in systems, and devices that fit in none."""
    findings: list[Finding] = []
    named: dict[str, str] = {}
    for system in built:

        def report(rule: str, message: str, where: str = system.id) -> None:
            findings.append(Finding(rule, where, message))

        if system.link_kind in links and system.link_bytes_per_s > links[system.link_kind].most_bytes_per_s * 1.001:
            report("link", f"{system.link_bytes_per_s / GIGA:g} GB/s on {system.link_kind}")
        if max(system.count, system.domain_size) % min(system.count, system.domain_size):
            report("domain", f"domain of {system.domain_size} in hosts of {system.count}")
        if not 0.05e9 <= system.network_bytes_per_s <= 200e9:
            report("network", f"{system.network_bytes_per_s / GIGA:g} GB/s per accelerator")
        devices_w = system.count * (system.accelerator.tdp_w or 0.0)
        if system.max_power_w is not None and not 1.05 * devices_w <= system.max_power_w <= 3 * devices_w:
            report("power", f"{system.max_power_w:g} W for accelerators of {devices_w:g} W")
        for name in (system.id, *system.aliases):
            if named.setdefault(name.lower(), system.id) != system.id:
                report("name", f"{name!r} is also {named[name.lower()]}")
    for accelerator in accelerators().values():
        try:
            default_system(accelerator)
        except GpuwiseError as error:
            findings.append(Finding("system", accelerator.id, error.message))
    return findings


def lint_offers(listed: Iterable[Offer]) -> list[Finding]:
    """Findings in prices: a placeholder, a price ten times the others, a spot price above on-demand, a
    copy."""
    findings: list[Finding] = []
    by_accelerator: dict[str, list[float]] = {}
    every = list(listed)
    for offer in every:
        by_accelerator.setdefault(offer.accelerator_id, []).append(offer.on_demand_usd_per_hour)
    keys: set[tuple[str, ...]] = set()
    for offer in every:
        where = f"{offer.provider}/{offer.region}/{offer.instance}"
        prices = sorted(by_accelerator[offer.accelerator_id])
        middle = prices[len(prices) // 2]
        price = offer.on_demand_usd_per_hour
        if not middle / 15 <= price <= middle * 15 or not 0.01 <= price <= 150:
            findings.append(Finding("price", where, f"{price:g} USD/h per accelerator, others around {middle:g}"))
        for name, other in (("spot", offer.spot_usd_per_hour), ("reserved", offer.reserved_usd_per_hour)):
            if other is not None and not 0.05 * price <= other <= price:
                findings.append(Finding("price", where, f"{name} {other:g} against on-demand {price:g}"))
        key = (where, offer.accelerator_id, str(offer.count))
        if key in keys:
            findings.append(Finding("price", where, "appears twice"))
        keys.add(key)
    cited = sources()
    findings += [
        Finding("source", f"{o.provider}/{o.instance}", f"source {o.source_key!r} is not in sources.csv")
        for o in every
        if o.source_key not in cited
    ]
    return findings
