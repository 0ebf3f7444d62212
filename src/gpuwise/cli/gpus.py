"""``gpuwise gpus``: the catalogue of accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

if TYPE_CHECKING:
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.facts.hardware.systems import System


GIVES_WAY = ("family", "link", "W", "fp8", "year", "bandwidth", "bf16")
"""Columns left out, in this order, until the others stand whole."""


def gpus(*query: str, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List the known accelerators; with a name: all its figures and their sources.

    Parameters
    ----------
    query
        A name (h100-sxm, 4090), or words to search for (hopper, amd 192).
    json
        One JSON document on the last line of stdout.
    """
    matches = _search(" ".join(query))
    if json:
        from gpuwise.cli.out import print_json

        print_json({"accelerators": [_document(a) for a in matches]})
    elif len(matches) == 1:
        _show(matches[0])
    else:
        _list(matches)
    return 0


def _search(query: str) -> list[Accelerator]:
    """The accelerators ``query`` means: the one so named, or all that contain its words. Raises
    UnknownNameError."""
    from gpuwise.errors import AmbiguousNameError, UnknownNameError
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.hardware.naming import find_accelerator, named_with_count

    catalogue = accelerators()
    if not query:
        return list(catalogue.values())
    try:
        return [find_accelerator(query)]
    except AmbiguousNameError as error:
        return [catalogue[name] for name in error.candidates if name in catalogue] or list(catalogue.values())
    except UnknownNameError:
        words = query.lower().split()
        matches = [a for a in catalogue.values() if words and all(w in _text(a) for w in words)]
        return matches or [catalogue[name] for name in named_with_count(query)]


def _text(a: Accelerator) -> str:
    memory = "" if a.memory_nominal_gb is None else f" {a.memory_nominal_gb:g}gb"
    return f"{a.id} {a.name} {a.vendor} {a.family} {a.memory_type} {a.form} {a.year}{memory}".lower()


def _list(matches: list[Accelerator]) -> None:
    from gpuwise.cli.out import console, table_of
    from gpuwise.units import format_bytes, format_rate

    to = console()
    rows: list[dict[str, str]] = []
    for a in sorted(matches, key=lambda a: (a.vendor != "NVIDIA", a.vendor, a.year, a.name)):
        cells = {
            "name": a.name.replace(" Blackwell", "").replace("Workstation", "WS"),
            "family": a.family,
            "year": str(a.year),
            "memory": format_bytes(a.memory_bytes),
            "bandwidth": format_rate(a.memory_bandwidth_bytes_per_s, "B/s"),
            "bf16": _rate(a, "bf16"),
            "fp8": _rate(a, "fp8"),
            "link": a.link_kind or "-",
            "W": "-" if a.tdp_w is None else f"{a.tdp_w:.0f}",
            "$/h": _price(a),
        }
        rows.append(cells)
    table = table_of([*rows[0]], left=("name", "family"), wrap=("name",), gives_way=GIVES_WAY)
    for row in rows:
        table.add_row(*row.values())
    to.print(table)
    to.print(
        f"{len(matches)} accelerators; dense rates in FLOP/s with FP32 accumulation; $/h: median rental price of a GPU hour",
        style="dim",
    )


def _rate(a: Accelerator, dtype: str) -> str:
    from gpuwise.units import TERA

    rate = a.peak_flop_per_s.get(dtype)
    return "-" if rate is None else f"{rate / TERA:{'.4g' if rate < 9999.5 * TERA else '.0f'}}T"


def _price(a: Accelerator) -> str:
    from gpuwise.errors import DataError, UnpredictableError
    from gpuwise.facts.offers.offer import typical_price_usd_per_hour

    try:
        return f"{typical_price_usd_per_hour(a.id).median:.2f}"
    except (DataError, UnpredictableError):  # damaged prices of one's own: `gpuwise prices` names the file
        return "-"


def _show(a: Accelerator) -> None:
    """One accelerator with the source of each figure."""
    from rich.text import Text

    from gpuwise.cli.out import console, grid, section, table_of
    from gpuwise.errors import DataError
    from gpuwise.facts.hardware.systems import systems_of
    from gpuwise.facts.offers.offer import offers_for
    from gpuwise.facts.sources import sources

    to = console()
    to.print(Text.assemble((a.name, "bold"), f"  {a.vendor} {a.family}, {a.year}, {a.form}, id {a.id}"))
    table = grid(2)
    for name, value in _facts(a):
        table.add_row(name, value)
    section(to, "Figures (dense, one direction)", table)
    rates = grid(2)
    for dtype, rate in a.peak_flop_per_s.items():
        from gpuwise.units import format_rate

        rates.add_row(dtype, format_rate(rate, "OP/s" if dtype.startswith("int") else "FLOP/s"))
    section(to, "Matrix rates", rates)
    systems = systems_of(a)
    if systems:
        section(
            to,
            "Systems",
            "\n".join(f"{s.name}: {_layout_words(s)}  {s.id}" for s in systems),
        )
    try:
        offers = offers_for(a.id)
    except DataError:  # damaged prices of one's own: `gpuwise prices` names the file
        offers = ()
    if offers:
        prices = grid(4)
        for o in offers[:8]:
            prices.add_row(
                o.provider,
                f"${o.on_demand_usd_per_hour:.2f}/h",
                f"{o.count}x",
                f"{o.kind}, {o.as_of.isoformat()}",
            )
        section(to, "Rent, a GPU and hour", prices)
    by_key = sources()
    cited = table_of(["of", "source"], left=("of",), wrap=("of",), under="source")
    cited.header = False
    for key in dict.fromkeys([a.source, *a.cell_sources.values()]):
        cells = [c for c, s in a.cell_sources.items() if s == key]
        title = by_key[key].title + (f"\n{by_key[key].url}" if by_key[key].url else "") if key in by_key else key
        cited.add_row("all else" if key == a.source else ", ".join(cells), title)
    section(to, "Sources", cited)
    if a.weak:
        to.print(f"\nWeak: {', '.join(a.weak)} (no vendor source, or inferred)", style="yellow")
    if a.notes:
        to.print(f"\n{a.notes}", style="dim")


def _layout_words(s: System) -> str:
    """Its devices, unless its name counts them, and how they and the systems are joined."""
    count = [] if f"{s.count}x" in s.name else [f"{s.count}x"]
    return ", ".join([*count, s.topology, s.network_kind])


def _facts(a: Accelerator) -> list[tuple[str, str]]:
    from gpuwise.units import GIGA, format_bytes, format_rate

    rows: list[tuple[str, str | None]] = [
        ("compute units", None if a.compute_units is None else str(a.compute_units)),
        ("boost clock", None if a.boost_hz is None else f"{a.boost_hz / GIGA:.3g} GHz"),
        ("memory", f"{format_bytes(a.memory_bytes)} {a.memory_type}"),
        ("bandwidth", format_rate(a.memory_bandwidth_bytes_per_s, "B/s")),
        ("L2", None if a.l2_bytes is None else format_bytes(a.l2_bytes)),
        ("compute capability", a.compute_capability),
        ("design power", None if a.tdp_w is None else f"{a.tdp_w:.0f} W"),
        ("host link", None if a.pcie_bytes_per_s is None else format_rate(a.pcie_bytes_per_s, "B/s")),
        (
            "device link",
            None if a.link_bytes_per_s is None else f"{a.link_kind}, {format_rate(a.link_bytes_per_s, 'B/s')}",
        ),
        ("price", None if a.list_price_usd is None else f"${a.list_price_usd:,.0f} ({a.list_price_kind})"),
    ]
    return [(name, value) for name, value in rows if value is not None]


def _document(a: Accelerator) -> dict[str, object]:
    from dataclasses import fields

    out: dict[str, object] = {}
    for f in fields(a):
        value: Any = getattr(a, f.name)
        out[f.name] = dict(value) if hasattr(value, "keys") else [*value] if isinstance(value, tuple) else value
    return out
