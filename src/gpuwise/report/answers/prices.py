"""Prices of accelerators: to rent now, to buy, and month by month."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuwise.errors import DataError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.offers.sightings import sightings
from gpuwise.money.cost import STALE_DAYS
from gpuwise.report.answers.answer import (
    Answer,
    Block,
    Cell,
    Chart,
    Column,
    Command,
    Figure,
    Notes,
    Number,
    Phrase,
    Row,
    Section,
    Table,
)
from gpuwise.report.answers.drawings import Line, around
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.units import GIGA, PETA, format_usd

TITLES = PARTS["prices"]
KINDS = {"list": "list", "marketplace": "market", "contract": "contract"}
BY = {"price": "", "per-pflop": ", by price of a PFLOP-hour", "per-gb": ", by price of a GB-hour", "age": ", newest first"}
MEANINGS = {
    "contract": "contract: your own price, which other commands use",
    "market": "market: what one host asked on a marketplace",
    "fixed share": "fixed share: this provider's spot price is a set share of its list price, whatever the demand",
    "no stock": "no stock: not available on that day",
    "cheapest": "cheapest: the provider's cheapest configuration that day, in any region",
}
"""Of remarks."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
FETCHED = "kept here"
"""The series made of what was fetched on this machine."""
SERIES = {"median": "median of providers' list prices", FETCHED: "median of what was fetched on this machine"}


def _name(row: At) -> str:
    return accelerators()[row["accelerator"].text].name


def _money(place: At, per: float = 1.0) -> Number | str:
    return "-" if place.value is None else Number(place, lambda usd: format_usd(usd / per))


def _days(place: At) -> Number | str:
    return "undated" if place.value is None else Number(place, lambda days: f"{max(days, 0):.0f} d")


# --- to rent ---


def offers_answer(document: Mapping[str, Any], *, order: str = "", named: bool = True) -> Answer:
    """The answer for offers in ``order`` (empty: by price); where nothing is ``named``, the cheapest of each accelerator,
    the most offered first."""
    d = At(document)
    offers = list(d["offers"])
    best = _firsts(offers, by_provider=named)
    by_price = sorted(best, key=lambda o: o["usd_per_hour"].number)
    names = list(dict.fromkeys(o["accelerator"].text for o in best))
    one = len(names) == 1
    if not named and not order:
        best = _most_offered(best)
    title = TITLES["cheapest"] + (BY[order or "price"] if named or order else MOST)
    what = f"{_name(best[0])}: " if one else f"{len(names)} accelerators, an hour of one: "
    kind = d["kind"].text
    remarks = {word for o in offers for word in _remarks(o, kind)}
    old = sum(bool(o["stale"].value) for o in best)
    far: Phrase = (
        (" to ", _offered(by_price[-1], one)) if by_price[-1]["usd_per_hour"].number > by_price[0]["usd_per_hour"].number else ()
    )
    return Answer(
        "prices",
        (what, _offered(by_price[0], one), far, " an hour" if one else "", "" if kind == "on-demand" else f", {kind}"),
        "",
        "US dollars an hour for one accelerator; PFLOP: 1e15 bf16 FLOP/s at the peak",
        list(_typical(best[0]["accelerator"].text)) if one and kind == "on-demand" else [],
        [
            Section("cheapest", title, [_offers(title, best, kind)], first=True),
            Section("offers", TITLES["offers"], [_offers(TITLES["offers"], offers, kind)]),
        ],
        _rent_next(best[0]["accelerator"].text)
        if one
        else Command("One of them", ["gpuwise", "prices", best[0]["accelerator"].text]),
        [f"{old} of {len(best)} read more than {STALE_DAYS} days ago (old); `gpuwise prices --refresh` fetches new ones"]
        if old
        else [],
        [text for word, text in MEANINGS.items() if word in remarks],
    )


MOST = ", most offered first"


def _most_offered(rows: Sequence[At]) -> list[At]:
    seen = sightings()
    return sorted(rows, key=lambda r: -seen[r["accelerator"].text])


def _firsts(offers: Sequence[At], *, by_provider: bool) -> list[At]:
    """The first of each accelerator, or of each accelerator of each provider; a contract beside the provider's public price."""
    firsts: dict[tuple[str, str, bool], At] = {}
    for o in offers:
        provider = o["provider"].text if by_provider else ""
        firsts.setdefault((o["accelerator"].text, provider, o["price_kind"].value == "contract"), o)
    return list(firsts.values())


def _offered(o: At, one: bool) -> Phrase:
    where = f"at {o['provider'].text}"
    return (o["usd_per_hour"], f" {where}" if one else f" ({_name(o)} {where})")


def _typical(name: str) -> Iterator[Figure]:
    """The price that other commands use."""
    from gpuwise.facts.offers.offer import typical_price_usd_per_hour

    try:
        price = typical_price_usd_per_hour(name)
    except (DataError, UnpredictableError):
        return
    middle, low, high = map(format_usd, (price.median, price.low, price.high))
    yield Figure("typical", middle, f"{low} to {high}", "median of providers, which other commands use")


def _rent_next(name: str) -> Command:
    from gpuwise.facts.offers.purchases import typical_purchase_usd

    try:
        typical_purchase_usd(name)
    except UnpredictableError:
        return Command("Its figures and their sources", ["gpuwise", "gpus", name])
    return Command("What it costs to buy", ["gpuwise", "prices", name, "--buy"])


def _offers(title: str, offers: Sequence[At], kind: str) -> Table:
    beside = {"spot": "of list", "reserved": "3 years"}.get(kind)
    columns = [
        Column("accelerator", words=True),
        Column("provider", words=True),
        Column("region", words=True, leaves=1),
        Column("instance", words=True, leaves=4),
        Column("GPUs"),
        Column("$/h"),
        *([Column(beside)] if beside else []),
        Column("$/PFLOP-h", leaves=3),
        Column("$/GB-h", leaves=2),
        Column("age"),
        Column("remarks", words=True),
    ]
    return Table(title, columns, [Row([Cell(c) for c in _cells(o, kind)]) for o in offers])


def _cells(o: At, kind: str) -> Iterator[Phrase]:
    regions: Sequence[str] = o["regions"].value
    yield _name(o)
    yield o["provider"]
    yield (regions[0] + (f" +{len(regions) - 1}" if len(regions) > 1 else "")) if regions and regions != ["cheapest"] else "-"
    yield o["instance"]
    yield o["count"]
    yield _money(o["usd_per_hour"])
    if kind == "spot":
        share = o["usd_per_hour"].number / o["on_demand_usd_per_hour"].number
        yield f"{100 * share:.0f} %"
    elif kind == "reserved":
        yield _money(o["reserved_3y_usd_per_hour"])
    yield _money(o["usd_per_pflop_hour"])
    yield _money(o["usd_per_gb_hour"])
    yield _days(o["age_days"])
    yield ", ".join(_remarks(o, kind))


def _remarks(o: At, kind: str) -> list[str]:
    """What kind of price it is and what to beware of."""
    words = [KINDS[o["price_kind"].text]]
    if o["stale"].value:
        words.append("old")
    if kind == "spot" and o["spot_kind"].value == "policy":
        words.append("fixed share")
    if o["in_stock"].value is False:
        words.append("no stock")
    if o["regions"].value == ["cheapest"]:
        words.append("cheapest")
    if o["valid_to"].value is not None:
        words.append(f"to {o['valid_to'].text}")
    return words


# --- to buy ---


def purchases_answer(document: Mapping[str, Any], *, named: bool = True) -> Answer:
    """The answer for purchase prices, new and used; where nothing is ``named``, the most offered first."""
    rows = list(At(document)["purchases"])
    first, last = rows[0], rows[-1]
    if not named:
        rows = _most_offered(rows)
    names = list(dict.fromkeys(r["accelerator"].text for r in rows))
    if len(names) == 1:
        parts: list[Phrase] = [(_money(r["usd"]["median"]), f" {r['condition'].text}") for r in rows]
        verdict: Phrase = (f"{_name(first)} costs ", *(p for i, part in enumerate(parts) for p in (" or " if i else "", part)))
        after = Command("Own or rent", ["gpuwise", "cost", "--on", names[0]])
    else:
        least, most = ((_money(r["usd"]["median"]), f" ({_name(r)}, {r['condition'].text})") for r in (first, last))
        verdict = (f"{len(names)} accelerators cost ", least, " to ", most)
        after = Command("One of them", ["gpuwise", "prices", "--buy", names[0]])
    old = sum((r["age_days"].value or 0) > STALE_DAYS for r in rows)
    seen = [(r, o) for r in rows for o in r["observations"]]
    return Answer(
        "prices",
        verdict,
        "",
        "US dollars for one accelerator without tax; the age is that of the oldest price of the range",
        [],
        [
            Section("bought", TITLES["bought"] + ("" if named else MOST), [_bought(rows)], first=True),
            *([Section("seen", TITLES["seen"], [_seen(seen)])] if seen else []),
        ],
        after,
        [f"{old} of {len(rows)} are older than {STALE_DAYS} days (old)"] if old else [],
        ["undated: the vendor's list or launch price"] if any(r["age_days"].value is None for r in rows) else [],
    )


def _bought(rows: Sequence[At]) -> Table:
    columns = [
        Column("accelerator", words=True),
        Column("condition", words=True),
        Column("price"),
        Column("from", leaves=3),
        Column("to", leaves=4),
        Column("$/PFLOP/s", leaves=1),
        Column("$/GB", leaves=2),
        Column("kind", words=True, leaves=5),
        Column("age"),
    ]
    made: list[Row] = []
    for r in rows:
        a, usd = accelerators()[r["accelerator"].text], r["usd"]
        peak = a.peak_flop_per_s.get("bf16")
        spread = usd["low"].value != usd["high"].value
        cells: list[Phrase] = [a.name, r["condition"], _money(usd["median"])]
        cells += [_money(usd["low"]), _money(usd["high"])] if spread else ["", ""]
        cells.append("-" if peak is None else _money(usd["median"], peak / PETA))
        cells += [_money(usd["median"], a.memory_bytes / GIGA), _kind(r), _days(r["age_days"])]
        made.append(Row([Cell(c) for c in cells]))
    return Table(TITLES["bought"], columns, made)


def _kind(r: At) -> str:
    return r["kind"].text.replace("+", ", ") + (", old" if (r["age_days"].value or 0) > STALE_DAYS else "")


def _seen(seen: Sequence[tuple[At, At]]) -> Table:
    columns = [Column("accelerator", words=True), Column("condition", words=True), Column("price"), Column("region", words=True)]
    columns += [Column("kind", words=True), Column("age")]
    rows = [
        Row(
            [
                Cell(_name(r)),
                Cell(r["condition"]),
                Cell(_money(o["usd"])),
                *map(Cell, (o["region"], _kind(o), _days(o["age_days"]))),
            ]
        )
        for r, o in seen
    ]
    return Table(TITLES["seen"], columns, rows)


# --- month by month ---


def history_answer(document: Mapping[str, Any], *, today: datetime.date) -> Answer:
    """The answer for series of prices: how each moved, and each month."""
    series = list(At(document)["history"])
    first = series[0]
    points = list(first["points"])
    turn = max(first["moves"], key=lambda m: abs(m["share"].number), default=None)
    verdict: Phrase = (f"An hour of {_name(first)} costs ", points[-1]["usd_per_hour"], f" in {_month(points[-1])}")
    if turn is not None:
        verdict = (*verdict, f": the largest move, {_change(turn)} from {turn['from'].text[:7]} to {turn['to'].text[:7]}")
    names = list(dict.fromkeys(s["accelerator"].text for s in series))
    age = max((today - datetime.date.fromisoformat(list(s["points"])[-1]["date"].text)).days for s in series)
    return Answer(
        "prices",
        verdict,
        "",
        "",
        [],
        [
            Section("series", TITLES["series"], [_chart(series)], first=True),
            Section("moves", TITLES["moves"], [_moves(series)], first=True),
            Section("months", TITLES["months"], [b for s in series for b in _months(s)]),
            Section("sources", TITLES["sources"], [Notes([f"{accelerators()[n].name}: {', '.join(_cited(n))}" for n in names])]),
        ],
        Command("What it costs today, and where", ["gpuwise", "prices", names[0]]),
        [f"the newest price is {age} days old"] if age > STALE_DAYS else [],
    )


def _label(s: At) -> str:
    return f"{_name(s)}, {SERIES.get(s['series'].text, s['series'].text)}"


def _month(point: At) -> str:
    return f"{datetime.date.fromisoformat(point['date'].text):%b %Y}"


def _chart(series: Sequence[At]) -> Chart:
    def at(point: At) -> float:
        day = datetime.date.fromisoformat(point["date"].text)
        return day.year + (day.month - 1) / 12

    lines = [Line(_label(s), [(at(p), p["usd_per_hour"].number) for p in s["points"]]) for s in series]
    x = around("month", [a for line in lines for a, _ in line.points], lambda t: f"{int(t + 1e-6)}")
    y = around("US dollars an hour", [b for line in lines for _, b in line.points], format_usd, zero=True)
    return Chart("series", TITLES["series"], x, y, lines)


def _moves(series: Sequence[At]) -> Table:
    columns = [Column("accelerator", words=True), Column("series", words=True, leaves=1), Column("from"), Column("to")]
    columns += [Column("price"), Column("change", words=True)]
    rows = [
        Row(
            [
                Cell(_name(s)),
                Cell(s["series"]),
                Cell(m["from"].text[:7]),
                Cell(m["to"].text[:7]),
                Cell(_priced(s, m)),
                Cell(_change(m)),
            ]
        )
        for s in series
        for m in s["moves"]
    ]
    return Table(TITLES["moves"], columns, rows)


def _priced(s: At, m: At) -> Phrase:
    """The prices at the ends of a move."""
    by_date = {p["date"].text: p["usd_per_hour"] for p in s["points"]}
    return (by_date[m["from"].text], " to ", by_date[m["to"].text])


def _change(m: At) -> str:
    share, yearly = m["share"].number, m["share_a_year"].value
    if abs(share) < 0.005:
        return "stood still"
    rate = "" if yearly is None else f" ({100 * yearly:+.0f} % a year)"
    return f"{'rose' if share > 0 else 'fell'} by {100 * abs(share):.0f} %{rate}"


def _months(s: At) -> Iterator[Block]:
    """A row a year, half of it in each table; of what was fetched here, a row a day."""
    yield Notes([_label(s)])
    if s["series"].value == FETCHED:
        rows = [Row([Cell(p["date"]), Cell(p["usd_per_hour"])]) for p in s["points"]]
        yield Table(_label(s), [Column("day", words=True), Column("$/h")], rows)
        return
    by_month = {p["date"].text[:7]: p["usd_per_hour"] for p in s["points"]}
    years = sorted({int(month[:4]) for month in by_month})
    for first in (1, 7):
        rows = list[Row]()
        for year in range(years[0], years[-1] + 1):
            prices = [by_month.get(f"{year}-{m:02d}") for m in range(first, first + 6)]
            rows.append(Row([Cell(f"{year}"), *(Cell("" if p is None else Number(p, "{:.2f}".format)) for p in prices)]))
        yield Table(_label(s), [Column("year", words=True), *map(Column, MONTHS[first - 1 : first + 5])], rows)


def _cited(name: str) -> list[str]:
    from gpuwise.facts.offers.price_history import price_history
    from gpuwise.facts.sources import sources

    keys = dict.fromkeys(p.source_key for p in price_history().get(name, ()))
    return [sources()[key].title for key in keys] or ["feeds fetched on this machine"]
