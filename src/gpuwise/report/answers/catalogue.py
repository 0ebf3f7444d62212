"""The catalogues of accelerators and of processors: one with its figures and their sources, or a list."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from gpuwise.errors import DataError, UnpredictableError
from gpuwise.report.answers.answer import Answer, Block, Cell, Column, Command, Figure, Notes, Number, Phrase, Row, Section, Table
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.units import GIGA, TERA, format_rate

TITLES, CPUS = PARTS["gpus"], PARTS["cpus"]
MANY = 20
"""Accelerators from which a list begins with their families."""
FORMATS = ("bf16", "fp8")
"""Rates in a list."""


def gpus_answer(document: Mapping[str, Any]) -> Answer:
    """The answer for the accelerators of the document."""
    found = list(At(document)["accelerators"])
    return _one(found[0]) if len(found) == 1 else _list(found)


def _name(a: At) -> str:
    return a["name"].text.replace(" Blackwell", "").replace("Workstation", "WS")


def _list(found: list[At]) -> Answer:
    from gpuwise.facts.offers.sightings import sightings

    seen = sightings()
    found = sorted(found, key=lambda a: (-seen[a["id"].text], -a["year"].number, a["name"].text))
    rows = [
        Row(
            [
                Cell(_name(a)),
                Cell(a["family"]),
                Cell(f"{a['year'].value}"),
                Cell(a["memory_bytes"]),
                Cell(a["memory_bandwidth_bytes_per_s"]),
                *(Cell(_rate(a["peak_flop_per_s"][f])) for f in FORMATS),
                Cell(a["link_kind"]),
                Cell(a["tdp_w"]),
                Cell(_rent(a["id"].text)),
            ]
        )
        for a in found
    ]
    columns = [
        Column("name", words=True),
        Column("family", words=True, leaves=1),
        Column("year", leaves=5),
        Column("memory"),
        Column("bandwidth", leaves=6),
        Column("bf16", leaves=7),
        Column("fp8", leaves=4),
        Column("link", leaves=2),
        Column("power", leaves=3),
        Column("$/h"),
    ]
    table = Section("list", TITLES["list"], [Table(TITLES["list"], columns, rows)], first=True)
    rented = sum(r.cells[-1].value != "-" for r in rows)
    return Answer(
        "gpus",
        f"{len(found)} accelerators, {rented} of them with a rental price",
        "",
        "rates without sparsity, in FLOP/s; $/h: median rental price of a GPU-hour; most offered first",
        [],
        [table, *([_families(found)] if len(found) > MANY else [])],
        Command("One with its sources", ["gpuwise", "gpus", found[0]["id"].text]),
    )


def _families(found: list[At]) -> Section:
    """Vendors and their families, in the order of their first accelerators."""
    by_family: dict[tuple[str, str], list[At]] = {}
    for a in found:
        by_family.setdefault((a["vendor"].text, a["family"].text), []).append(a)
    rows: list[Row] = []
    for (vendor, family), members in by_family.items():
        years = sorted({int(a["year"].number) for a in members})
        span = f"{years[0]}" if len(years) == 1 else f"{years[0]}-{years[-1]}"
        cells = (f"{vendor} {family}", span, f"{len(members)}", ", ".join(_name(a) for a in members[:3]))
        rows.append(Row([Cell(words) for words in cells]))
    columns = [Column("family", words=True), Column("years"), Column("GPUs"), Column("like", words=True)]
    return Section("families", TITLES["families"], [Table(TITLES["families"], columns, rows)], first=True)


def _rate(place: At) -> Phrase:
    if place.value is None:
        return "-"
    return Number(place, lambda rate: f"{rate / TERA:{'.4g' if rate < 9999.5 * TERA else '.0f'}}T")


def _rent(name: str) -> str:
    from gpuwise.facts.offers.offer import typical_price_usd_per_hour

    try:
        return f"{typical_price_usd_per_hour(name).median:.2f}"
    except (DataError, UnpredictableError):  # damaged own prices: `gpuwise prices` names the file
        return "-"


BY_USE = ("bf16", "fp16", "fp8", "nvfp4", "mxfp4", "int8", "tf32", "fp32")
"""Formats in the order of use; others come after."""


def _place(dtype: str) -> int:
    return BY_USE.index(dtype) if dtype in BY_USE else len(BY_USE)


def _one(a: At) -> Answer:
    """One accelerator with the source of each figure."""
    head = f"{a['vendor'].text} {a['family'].text}, {a['year'].value}, {a['form'].text}, id {a['id'].text}"
    weak = ", ".join(w.text for w in a["weak"])
    rates: list[Row] = []
    for dtype, rate in sorted(a["peak_flop_per_s"].items(), key=lambda item: _place(item[0])):
        unit = "OP/s" if dtype.startswith("int") else "FLOP/s"
        rates.append(Row([Cell(dtype), Cell(Number(rate, lambda n, unit=unit: format_rate(n, unit)))]))
    memory: Phrase = (a["memory_bytes"], " of ", a["memory_type"].text, ", ", a["memory_bandwidth_bytes_per_s"])
    return Answer(
        "gpus",
        (a["name"].text, ": ", memory),
        "",
        head,
        list(_figures(a)),
        [
            Section(
                "rates", TITLES["rates"], [Table(TITLES["rates"], [Column("format", words=True), Column("rate")], rates)], True
            ),
            *_offers(a["id"].text),
            *_systems(a["id"].text),
            Section("sources", TITLES["sources"], list(_sources(a))),
        ],
        Command("Beside another", ["gpuwise", "compare", a["id"].text, "4090" if a["id"].text != "rtx-4090" else "l40s"]),
        warnings=[f"weak: {weak} (no vendor source, or inferred)"] if weak else [],
        assumed=[a["notes"].text] if a["notes"].value else [],
    )


def _figures(a: At) -> Iterator[Figure]:
    clock = Number(a["boost_hz"], lambda hz: f"{hz / GIGA:.3g} GHz")
    link: Phrase = (a["link_kind"].text, ", ", a["link_bytes_per_s"])
    kind = f"{a['list_price_kind'].value}" if a["list_price_kind"].value else ""
    named: list[tuple[str, At, Phrase, str]] = [
        ("compute units", a["compute_units"], a["compute_units"], ""),
        ("boost clock", a["boost_hz"], clock, ""),
        ("L2", a["l2_bytes"], a["l2_bytes"], ""),
        ("compute capability", a["compute_capability"], a["compute_capability"], ""),
        ("design power", a["tdp_w"], a["tdp_w"], ""),
        ("host link", a["pcie_bytes_per_s"], a["pcie_bytes_per_s"], "one direction"),
        ("device link", a["link_bytes_per_s"], link, "one direction"),
        ("price", a["list_price_usd"], a["list_price_usd"], kind),
    ]
    yield from (Figure(name, value, "", note) for name, place, value, note in named if place.value is not None)


def _systems(name: str) -> Iterator[Section]:
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.hardware.systems import systems_of

    rows = [
        Row([Cell(s.name), Cell(f"{s.count}"), Cell(f"{s.topology}, {s.network_kind}"), Cell(s.id)])
        for s in systems_of(accelerators()[name])
    ]
    columns = [Column("system", words=True), Column("GPUs"), Column("joined by", words=True), Column("id", words=True)]
    if rows:
        yield Section("systems", TITLES["systems"], [Table(TITLES["systems"], columns, rows)])


def _offers(name: str) -> Iterator[Section]:
    from gpuwise.facts.offers.offer import offers_for

    try:
        offers = offers_for(name)
    except DataError:  # damaged own prices: `gpuwise prices` names the file
        offers = ()
    rows = [
        Row(
            [
                Cell(o.provider),
                Cell(f"${o.on_demand_usd_per_hour:.2f}"),
                Cell(f"{o.count}"),
                Cell(o.kind),
                Cell(o.as_of.isoformat()),
            ]
        )
        for o in offers
    ]
    columns = [Column("provider", words=True), Column("a GPU-hour"), Column("GPUs"), Column("kind", words=True)]
    columns.append(Column("of", words=True))
    if rows:
        yield Section("rent", TITLES["rent"], [Table(TITLES["rent"], columns, rows)], first=True)


def _sources(a: At) -> Iterator[Block]:
    from gpuwise.facts.sources import sources

    by_key, cells = sources(), a["cell_sources"].items()
    notes: list[Phrase] = [f"All else: {a['source'].text}"]
    for key in dict.fromkeys(str(place.value) for _, place in cells):
        of = ", ".join(cell for cell, place in cells if place.value == key)
        known = by_key.get(key)
        notes.append(f"For {of}: {key if known is None else f'{known.title} {known.url}'.strip()}")
    yield Notes(notes)


# --- processors ---


def cpus_answer(document: Mapping[str, Any]) -> Answer:
    """The answer for the processors of the document, the newest first."""
    found = sorted(At(document)["processors"], key=lambda c: (-c["year"].number, c["vendor"].text, c["name"].text))
    one = found[0]
    sources: list[Phrase] = []
    if len(found) == 1:
        verdict: Phrase = (f"{one['name'].text}: ", one["cores"], " cores, memory of ", one["memory_bandwidth_bytes_per_s"])
        sources = [f"Source: {one['source'].text}", *([one["notes"].text] if one["notes"].value else [])]
    else:
        years = [int(c["year"].number) for c in found]
        verdict = f"{len(found):,} processors, of {min(years)} to {max(years)}"
    name = one["id"].text
    return Answer(
        "cpus",
        verdict,
        "",
        "clock: all cores busy; memory: type-MT/s x channels of 64 bits, the fastest stated",
        [],
        [
            Section("list", CPUS["list"], [_processors(found)], first=True),
            *([_cpu_families(found)] if len(found) > MANY else []),
            *([Section("sources", CPUS["sources"], [Notes(sources)])] if sources else []),
        ],
        Command("Which models run on it", ["gpuwise", "models", "--on", shlex.quote(one["name"].text)])
        if len(found) == 1
        else Command("One with its source", ["gpuwise", "cpus", shlex.quote(name)]),
        [f"no vendor source for {', '.join(w.text for w in one['weak'])}"] if len(found) == 1 and one["weak"] else [],
        [one["assumption"].text] if len(found) == 1 and one["assumption"].value else [],
    )


def _processors(found: list[At]) -> Table:
    columns = [Column("name", words=True), Column("family", words=True, leaves=2), Column("year", leaves=3), Column("cores")]
    columns += [Column("clock", leaves=5), Column("memory", words=True), Column("bandwidth"), Column("fp32", leaves=1)]
    columns.append(Column("power", leaves=4))
    rows: list[Row] = []
    for c in found:
        more = c["efficiency_cores"]
        cores: Phrase = (c["cores"], "+", more) if more.value else c["cores"]
        clock = c["allcore_hz"]
        cells: list[Phrase] = [c["name"], c["family"], f"{c['year'].value}", cores]
        cells.append("-" if clock.value is None else Number(clock, lambda hz: f"{hz / GIGA:.2g} GHz"))
        fp32 = Number(c["peak_flop_per_s"]["fp32"], lambda n: format_rate(n, "FLOP/s"))
        cells += [_memory(c), c["memory_bandwidth_bytes_per_s"], fp32, c["tdp_w"]]
        rows.append(Row([Cell(cell) for cell in cells]))
    return Table(CPUS["list"], columns, rows)


def _memory(c: At) -> str:
    from gpuwise.facts.hardware.ram import memory_text

    return memory_text(c["memory_type"].text, c["memory_mt_s"].value or None, c["memory_channels"].value or None)


def _cpu_families(found: list[At]) -> Section:
    by_family: dict[tuple[str, str], list[At]] = {}
    for c in found:
        by_family.setdefault((c["vendor"].text, c["family"].text), []).append(c)
    rows: list[Row] = []
    for (vendor, family), members in by_family.items():
        last, first = members[0]["year"].value, members[-1]["year"].value
        years = f"{first}" if first == last else f"{first}-{last}"
        rows.append(Row([Cell(w) for w in (vendor, family, years, f"{len(members)}", members[len(members) // 2]["name"].text)]))
    columns = [Column("vendor", words=True), Column("family", words=True), Column("years"), Column("processors")]
    columns.append(Column("like", words=True))
    return Section("families", CPUS["families"], [Table(CPUS["families"], columns, rows)], first=True)
