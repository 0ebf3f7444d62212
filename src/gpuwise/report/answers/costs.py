"""Rent, own or mix for so many GPU-hours; the bill of a training run; rules of thumb about buying."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gpuwise.interval import P80
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
    Picture,
    Row,
    Section,
    Table,
    span,
)
from gpuwise.report.answers.drawings import Line, Part, around, bars, ranges, stacks
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.training import BILLED
from gpuwise.report.answers.values import At
from gpuwise.text import capital
from gpuwise.units import GIGA, HOUR_S, KILO, MEGA, format_duration, format_number, format_usd

OWN, RUN = PARTS["cost own"], PARTS["cost run"]
RULES = "Share of the futures in which owning is cheaper, by hours a month"
PRICES = 4
"""Of the assumptions, those on the first screen: rental price, its future, GPU price, capital."""
LARGEST, SURE = 8, 0.995
"""GPUs of a bar of the parts of each option; a share of the futures that is nearly all of them."""


def cost_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of any question of ``cost``."""
    if "bill" in document:
        return run_answer(document)
    return rules_answer(document) if "checks" in document else own_answer(document)


def dollars(value: float) -> str:
    """``$1.24M``, ``-$340k``, ``$12.50``."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    for scale, letter in ((GIGA, "B"), (MEGA, "M"), (KILO, "k")):
        if size >= scale:
            return f"{sign}${size / scale:.3g}{letter}" if size < 999.5 * scale else f"{sign}${size / scale:,.0f}{letter}"
    return f"{sign}{format_usd(size)}" if size else "$0"


def share(value: float) -> str:
    """A share of one in percent: no decimal from a tenth upwards, else one."""
    return f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.1f} %"


def _of(place: At, say: Callable[[float], str]) -> Phrase:
    """The number at ``place`` in words; a dash where there is none."""
    return Number(place, say) if place.expected.value is not None else "-"


def _texts(place: At) -> list[str]:
    return [str(v) for v in place.value or ()]


def _months(months: float) -> str:
    return f"{months / 12:.0f} years" if months % 12 == 0 and months > 12 else f"{months:.0f} months"


# --- rent or own ---


def own_answer(document: Mapping[str, Any]) -> Answer:
    """Every way to get the GPU-hours, the cheapest first, and what would change that."""
    d = At(document)
    if "options" not in document:
        return rules_answer(document)
    by_name = {o["name"].text: o for o in d["options"]}
    best, horizon = by_name[d["best"].text], Number(d["horizon_months"], _months)
    name = d["accelerator"].text
    what = () if best["name"].text == "own" else ("Rent: " if not best["owned_gpus"].number else "Mix: ",)
    label = capital(best["label"].text) if not what else best["label"].text
    verdict: Phrase = (what, label, ": ", Number(best["total_usd"], dollars), " over ", horizon)
    charts = [*_over_time(d), *_prices(d), *_mixes(d)]
    return Answer(
        "cost own",
        verdict,
        "yes",
        (_demanded(d), _surer(d, by_name), _served(d["served"])),
        list(_own_figures(d, best)),
        [
            Section("ways", OWN["ways"], [*_ways(d), _regret(d), *_shares(d)], first=True),
            *([Section("steps", OWN["steps"], [_steps(d["steps"])], first=True)] if d["steps"] else []),
            *([Section("drivers", OWN["drivers"], [_drivers(d), _tornado(d)], first=True)] if d["drivers"] else []),
            *_energy(d, by_name),
            *([Section("time", OWN["time"], charts)] if charts else []),
            Section("assumptions", OWN["assumptions"], [_assumptions(d)]),
        ],
        _own_next(best, name),
        warnings=_texts(d["notes"]),
        assumed=[f"{a['label'].text} {a['value'].text} ({a['source'].text})" for a in list(d["assumptions"])[:PRICES]],
    )


def _demanded(d: At) -> Phrase:
    wanted = d["demand"]
    peaks: Phrase = (", peaks of ", wanted["peak_over_mean"], " times the mean") if wanted["shape"].text != "steady" else ()
    growth = wanted["growth_per_year"]
    grows: Phrase = (", ", Number(growth, lambda g: f"{100 * g:+.0f} %"), " a year") if growth.number else ()
    name = f"{d['accelerator'].text}: " if d["accelerator"].text else ""
    return (name, Number(wanted["gpu_hours_per_month"], "{:,.0f}".format), " GPU-hours a month", peaks, grows)


def _surer(d: At, by_name: Mapping[str, At]) -> Phrase:
    """In how many futures the cheapest beats what it is compared with."""
    best = d["best"].text
    against = "own" if not by_name[best]["owned_gpus"].number else d["best_rent"].text
    if against == best or against not in by_name:
        return ()
    sure = Number(d["beats"][against], lambda s: "nearly every future" if s > SURE else f"{share(s)} of the futures")
    return ("; costs less than to ", by_name[against]["label"].text, " in ", sure)


def _served(served: At) -> Phrase:
    """The fleet that the hours are for."""
    if not served:
        return ()
    fleet = served["fleet"]
    n = fleet["copies_peak"]
    replicas: Phrase = (n, " replicas") if n.number > 1 else ("one replica",)
    on_average = Number(fleet["mean_accelerators"], format_number)
    return ("; ", replicas, " at the peak (", served["words"].text, "), ", on_average, " GPUs over the day")


def _own_figures(d: At, best: At) -> Iterator[Figure]:
    total, hour, less, even = best["total_usd"], best["usd_per_gpu_hour"], d["own_minus_rent_usd"], d["break_even"]
    yield Figure("total", Number(total, dollars), span(total, dollars))
    yield Figure("a GPU-hour", Number(hour, format_usd), span(hour, format_usd))
    wins: Phrase = ("owning is cheaper in ", Number(d["own_wins"], share), " of the futures")
    yield Figure("own - rent", Number(less, dollars), span(less, dollars), wins)
    years = Number(even["months_looked_at"], lambda m: f"{m / 12:.0f} years")
    owned = next((o["owned_gpus"] for o in d["options"] if o["name"].text == "own"), At(None))
    gpus: Phrase = (owned, " owned GPUs" if owned.number > 1 else " owned GPU")
    yield _even("pays back", even["months"], "months", even["months_never"], gpus, ("within ", years))
    of: Phrase = ("of ", Number(even["hours_in_a_month"], "{:.0f}".format), " a month and GPU")
    yield _even("owning wins", even["hours_per_month_and_gpu"], "hours", even["hours_never"], of, "")


def _even(name: str, place: At, unit: str, never: At, of: Phrase, within: Phrase) -> Figure:
    """A break-even; where most futures have none, how many."""
    if place.expected.value is None:
        return Figure(name, "never", "", ("in ", Number(never, share), " of the futures", " " if within else "", within))
    say = "{:.1f}".format if unit == "months" else "{:,.0f}".format
    seldom: Phrase = ("; never in ", Number(never, share)) if never.number >= 1 - SURE else ()
    more = "from " if unit == "hours" else "after "
    return Figure(name, (more, Number(place, say), f" {unit}"), span(place, say), (of, seldom))


def _ways(d: At) -> Iterator[Table]:
    """What each costs, and how sure that is."""
    columns = [Column("way", words=True), Column("total"), Column("a GPU-hour"), Column("cheapest in")]
    rows: list[Row] = []
    spans: list[Row] = []
    for o in d["options"]:
        total, hour, busy = o["total_usd"], o["usd_per_gpu_hour"], o["utilisation"]
        label: Phrase = o["label"].text.replace(", the rest on", " + on")
        mark = "best" if o["name"].text == d["best"].text else ""
        cells = [Cell(label), Cell(Number(total, dollars)), Cell(Number(hour, format_usd))]
        rows.append(Row([*cells, Cell(Number(o["cheapest_share"], share))], mark=mark))
        spans.append(Row([Cell(label), Cell(span(total, dollars)), Cell(span(hour, format_usd)), Cell(_of(busy, share))]))
    yield Table(OWN["ways"], columns, rows)
    title = f"{P80} intervals"
    yield Table(title, [Column(title, words=True), Column("total"), Column("a GPU-hour"), Column("busy")], spans)


def _regret(d: At) -> Notes:
    low, high = Number(d["regret_usd"]["low"], dollars), Number(d["regret_usd"]["high"], dollars)
    notes: list[Phrase] = [("Today's dollars; ", Number(d["scenarios"], "{:,.0f}".format), " futures of prices and demand")]
    if d["regret_usd"]["high"].number > 0 and len(d["options"].value) > 1:
        notes.append(("Chosen now, the first costs ", low, " to ", high, " more than what turns out cheapest"))
    return Notes(notes)


def _shares(d: At) -> Iterator[Picture]:
    """What each option's money is for."""
    rows = [
        (o["label"].text, [Part(n, p) for n, p in o["parts_usd"].items() if p.number > 0]) for o in list(d["options"])[:LARGEST]
    ]
    yield Picture(stacks("parts", "What the money is for", rows, dollars))


def _drivers(d: At) -> Table:
    columns = [
        Column("what", words=True),
        Column("10 % to 90 %", words=True, leaves=1),
        Column("own - rent", words=True),
        Column("variance"),
    ]
    rows: list[Row] = []
    for b in d["drivers"]:
        say = partial(_driven, b["unit"].text)
        between: Phrase = (Number(b["low"], say), " to ", Number(b["high"], say))
        ends: Phrase = (Number(b["usd_at_low"], dollars), " to ", Number(b["usd_at_high"], dollars))
        rows.append(Row([Cell(b["label"]), Cell(between), Cell(ends), Cell(Number(b["variance_share"], share))]))
    return Table(OWN["drivers"], columns, rows)


def _driven(unit: str, value: float) -> str:
    if unit.startswith("$"):
        return f"${value:,.0f}" if value >= 100 else f"${value:.2f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _tornado(d: At) -> Picture:
    rows = [(r["label"].text, r["usd_at_low"], r["usd_at_high"]) for r in d["drivers"]]
    return Picture(ranges("drivers", "What moves owning minus renting", rows, d["own_minus_rent_usd"], format_usd))


def _thousandth(value: float) -> str:
    value /= KILO
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


ENERGY_KEYS = ("kwh", "operational_kgco2e", "embodied_kgco2e")


def _energy(d: At, by_name: Mapping[str, At]) -> Iterator[Section]:
    names = dict.fromkeys([d["best"].text, "own", d["best_rent"].text])
    shown = [o for n in names if (o := by_name.get(n)) is not None and o["kwh"].expected.value is not None]
    if not shown:
        return
    columns = [Column("way", words=True), Column("MWh", small=True), Column("its price", small=True)]
    columns += [Column("t CO2e running", small=True), Column("t CO2e making", small=True)]

    def cells(o: At) -> Iterator[Cell]:
        energy, *carbon = (Cell(_of(o[k], _thousandth), span(o[k], _thousandth)) for k in ENERGY_KEYS)
        powered = dict(o["parts_usd"].items()).get("power")
        yield from (Cell(o["label"]), energy, Cell("in the rent" if powered is None else Number(powered, dollars)), *carbon)

    rows = [Row(list(cells(o))) for o in shown]
    table: list[Block] = [Table(OWN["energy"], columns, rows)]
    if all(o["operational_kgco2e"].expected.value is None for o in shown):
        table.append(Notes(["The carbon of the electricity needs its place: --country DE"]))
    yield Section("energy", OWN["energy"], table, verdict=_drawn(d, next((o for o in shown if o["owned_gpus"].number), shown[0])))


def _drawn(d: At, way: At) -> Phrase:
    """Mean power, energy and its price of one way to have the GPUs."""
    from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH  # a page is served without what only answers need

    hours = d["horizon_months"].number * HOURS_PER_MONTH
    kwh, usd = way["kwh"], dict(way["parts_usd"].items()).get("power")
    n = way["owned_gpus"].number
    name = f"{n:.0f}x {d['accelerator'].text}" if n else f"{d['accelerator'].text}, rented"
    power = Number(kwh, lambda value: f"{format_number(value / hours)} kW")
    price: Phrase = () if usd is None else (" for ", Number(usd, dollars))
    over = Number(d["horizon_months"], _months)
    return (name, ": ", power, " on average at the meter, ", Number(kwh, _thousandth), " MWh", price, " over ", over)


def _steps(steps: At) -> Table:
    columns = [Column("component", words=True), Column("alone, months", leaves=1), Column("own - rent, alone")]
    columns += [Column("months"), Column("own - rent"), Column("own wins")]

    def sums(place: At) -> list[Cell]:
        months = place["break_even_months"]
        even = Number(months, "{:.1f}".format) if months.value is not None else "never"
        return [Cell(even), Cell(Number(place["own_minus_rent_usd"], dollars))]

    bare = steps["bare"]
    rows = [Row([Cell(bare["label"]), *sums(bare), Cell(""), Cell(""), Cell("")])]
    for one, so_far in zip(steps["alone"], steps["together"], strict=True):
        rows.append(Row([Cell(("+ ", one["label"])), *sums(one), *sums(so_far), Cell(_of(so_far["own_wins"], share))]))
    return Table(OWN["steps"], columns, rows)


def _chart(key: str, title: str, named: tuple[str, str], lines: list[Line], marks: list[tuple[float, str]]) -> Iterator[Chart]:
    """Dollars over what ``named`` first names."""
    lines = [s for s in lines if len(s.points) > 2]
    if lines:
        x = around(named[0], [a for s in lines for a, _ in s.points], "{:,.0f}".format, zero=True)
        y = around(named[1], [b for s in lines for _, b in s.points], dollars, zero=True)
        yield Chart(key, title, x, y, lines, marks)


def _over_time(d: At) -> Iterator[Chart]:
    """The expected sums, month by month."""
    lines = [Line(o["label"].text, [(float(m), p.number) for m, p in enumerate(o["cumulative_usd"][1])]) for o in d["options"]]
    even = d["break_even"]["months"]
    within = even.expected.value is not None and even.number <= d["horizon_months"].number
    marks = [(even.number, "own pays back")] if within else []
    yield from _chart("spent", "Spent over time", ("months from today", "spent"), lines, marks)


def _prices(d: At) -> Iterator[Chart]:
    """Rental prices published so far, and the futures of them."""
    fan, history = d["rental_prices"], [(p[0].text, p[1].number) for p in d["rental_prices"]["history"]]
    past = [(12 * int(m[:4]) + int(m[5:7]), usd) for m, usd in history]
    lines = [Line("published", [(float(m - past[-1][0]), usd) for m, usd in past])] if past else []
    for percentile, path in zip(fan["percentiles"], fan["usd_per_hour"], strict=True):
        if percentile.number in (0.1, 0.5, 0.9):
            name = f"{100 * percentile.number:.0f} % of the futures are below"
            lines.append(Line(name, [(float(m), p.number) for m, p in enumerate(path)]))
    yield from _chart("prices", "What a rented GPU-hour may cost", ("months from today", "a GPU-hour"), lines, [])


def _mixes(d: At) -> Iterator[Chart]:
    mixes = d["mixes"]
    owned = [n.number for n in mixes["owned_gpus"]]
    lines = [
        Line(f"{100 * q.number:.0f} % of the futures are below", [(n, p.number) for n, p in zip(owned, row, strict=True)])
        for q, row in zip(mixes["percentiles"], mixes["usd"], strict=True)
    ]
    yield from _chart("mix", "How many to own", ("GPUs owned, the rest rented", "total"), lines, [])


def _assumptions(d: At) -> Table:
    columns = [Column("what", words=True), Column("value", words=True), Column("source", under=True)]
    rows = [
        Row([Cell(a["label"]), Cell(f"{'~' if a['estimate'].value else ''}{a['value'].text}"), Cell(a["source"])])
        for a in d["assumptions"]
    ]
    return Table(OWN["assumptions"], columns, rows, "~ an estimate, not measured")


def _own_next(best: At, name: str) -> Command | None:
    if not name:
        return None
    if best["owned_gpus"].number:
        return Command("What it costs to buy", words=["gpuwise", "prices", f"'{name}'", "--buy"])
    return Command("Who rents it out", words=["gpuwise", "prices", f"'{name}'"])


def rules_answer(document: Mapping[str, Any]) -> Answer:
    """Where the rule of thumb "rent below 100 hours a month, buy above 1,000" holds."""
    d = At(document)
    if not d["checks"]:
        return Answer("cost own", "Nothing to compare", "no")
    words = {(True, True): "holds", (True, False): "rent holds, buy does not", (False, True): "buy holds, rent does not"}
    rows: list[Row] = []
    for c in d["checks"]:
        low, high = (p for _, p in c["own_wins"].items())
        even = c["break_even_hours_per_month"]
        holds = (bool(c["rent_holds"].value), bool(c["buy_holds"].value))
        from_hours: Phrase = Number(even, "{:,.0f}".format) if even.expected.value is not None else "never"
        cells = [Cell(c["accelerator"]), Cell(Number(c["usd_per_gpu_hour"], format_usd)), Cell(Number(low, share))]
        cells += [Cell(Number(high, share)), Cell(from_hours, span(even, "{:,.0f}".format))]
        rows.append(Row([*cells, Cell(words.get(holds, "does not hold"))], mark="good" if all(holds) else ""))
    columns = [
        Column("GPU", words=True),
        Column("a GPU-hour"),
        Column("own wins at 100"),
        Column("at 1,000"),
        Column("hours to break even", small=True),
        Column("the rule", words=True, leaves=1),
    ]
    table = Table(RULES, columns, rows)
    n = sum(r.mark == "good" for r in rows)
    verdict = f"Rent below 100 GPU-hours a month, buy above 1,000: holds for {n} of {len(rows)}"
    lead = f"over {_months(d['horizon_months'].number)}"
    one = ["gpuwise", "cost", "own", "--on", f"'{d['checks'][0]['accelerator'].text}'", "--hours", "500/month"]
    return Answer("cost own", verdict, "", lead, [], [Section("ways", RULES, [table], first=True)], Command("One of them", one))


# --- a training run ---


def run_answer(document: Mapping[str, Any]) -> Answer:
    """The bill of a training run: money, time, energy, carbon, and what would change them."""
    d = At(document)
    own_machine, total, wall = not d["price"], d["total_usd"], d["wall_s"]
    amount, unit = (d["tokens"], " tokens") if d["tokens"] else (d["samples"], " samples")
    name = d["model"]["name"].text
    verdict: Phrase = (name, ", ", amount, unit, " on ", d["cluster"]["label"].text, ": ", Number(total, format_usd))
    carbon, kwh = d["carbon"], d["kwh"]
    figures = [
        Figure("cost", Number(total, format_usd), span(total, format_usd), "electricity and storage" if own_machine else ""),
        Figure("time", wall, span(wall), (Number(d["effective"], share), " of it training")),
    ]
    if kwh:
        figures.append(Figure("energy", kwh.expected, span(kwh)))
    if carbon["total_kg"]:
        whole, making = carbon["total_kg"], carbon["embodied_kg"]
        figures.append(Figure("CO2e", Number(whole, _kg), span(whole, _kg), (Number(making, _kg), " from making the machines")))
    return Answer(
        "cost run",
        (verdict, ", ", wall),
        "yes",
        _rent_words(d),
        figures,
        [
            Section("bill", RUN["bill"], [_bill(d), _bill_drawn(d)], first=True),
            *_changes(d),
            *_power(d),
            Section("stops", RUN["stops"], [_stops(d)]),
            *_published(d),
        ],
        Command("How it is laid out", command="plan", drops=BILLED),
        warnings=[w for w in _texts(d["warnings"]) if not w.startswith(("the price is", "no rental price"))],
        assumed=[*_texts(d["assumed"]), *_left_open(d, own_machine)],
    )


def _rent_words(d: At) -> Phrase:
    """``$3.87 a GPU-hour, median of 16 providers ($2.10 to $6.90), 2026-07-30, 122 days old``."""
    price = d["price"]
    if not price:
        return "nobody rents this accelerator out: the machine is not in the bill; --rent-price gives a rent"
    usd, age = price["usd_per_gpu_hour"], price["age_days"]
    ends = span(usd, format_usd)
    between: Phrase = (" (", ends, ")") if ends else ()
    old: Phrase = (", ", price["as_of"].text, (", ", age, " days old") if age.number else "") if price["as_of"] else ()
    spot = d["spot_usd_per_gpu_hour"]
    blended: Phrase = ("; on spot ", spot, ", with the hours on demand ", d["usd_per_gpu_hour"]) if spot else ()
    return (Number(usd, format_usd), " a GPU-hour, ", price["provider"].text, between, old, blended)


def _left_open(d: At, own_machine: bool) -> Iterator[str]:
    if not own_machine:
        yield "the rental price stays as it is"
    if d["samples"]:
        yield f"steps of {d['batch'].text} samples on each GPU; the data are not in the bill"
    if not d["grid"]:
        yield "no place, so no carbon (--country DE, --country aws:us-east-1)"
    elif not d["electricity"]:
        yield f"no electricity price is known for {d['grid']['name'].text}"


def _bill(d: At) -> Table:
    hourly = bool(d["price"])
    columns = [
        Column("item", words=True),
        Column("US dollars"),
        Column(P80, leaves=1),
        Column("hours"),
        Column("why", under=True),
    ]
    rows = [
        Row(
            [
                Cell(b["item"]),
                Cell(Number(b["usd"], _usd) if hourly or not b["hours"] else ""),
                Cell(span(b["usd"], _usd)),
                Cell(Number(b["hours"], _count) if b["hours"] else ""),
                Cell(b["why"]),
            ]
        )
        for b in d["bill"]
    ]
    hours = Number(d["wall_s"], lambda s: _count(s / HOUR_S))
    total = [Cell("total"), Cell(Number(d["total_usd"], _usd)), Cell(span(d["total_usd"], _usd)), Cell(hours), Cell("")]
    return Table(RUN["bill"], columns, [Row(total, mark="best"), *rows])


def _bill_drawn(d: At) -> Picture:
    rows = [(b["item"].text, b["usd"], b["usd"]) for b in d["bill"] if b["usd"].number > 0]
    return Picture(bars("bill", "The bill", rows, format_usd))


def _power(d: At) -> Iterator[Section]:
    budget, kwh = d["power"], d["kwh"]
    if not budget or not kwh:
        note = f"The design power of {d['cluster']['accelerator'].text} is not published"
        yield Section("power", RUN["power"], [Notes([note])])
        return
    watts = ("accelerators_w", "host_w", "network_w", "cooling_w")
    rows = [
        Row([Cell(name), Cell(Number(w, _kw)), Cell(span(w, _kw)), Cell(Number(energy, _count)), Cell(_part(energy, kwh))])
        for (name, energy), w in zip(d["kwh_parts"].items(), (budget[n] for n in watts), strict=True)
        if w.number > 0
    ]
    whole = budget["total_w"]
    meter = [Cell("at the meter"), Cell(Number(whole, _kw)), Cell(span(whole, _kw)), Cell(Number(kwh, _count)), Cell("")]
    columns = [Column("part", words=True), Column("kW"), Column(P80), Column("kWh"), Column("of it")]
    place, grid, price = budget["site"].text.replace("-", " "), d["grid"], d["electricity"]
    most: Phrase = (" of hosts that draw ", Number(budget["most_w"], _kw), " kW at most") if budget["most_w"] else ()
    pue: Phrase = ("; PUE ", Number(budget["pue"], "{:.2f}".format), " (", place, ")")
    notes: list[Phrase] = [("GPUs are ", Number(budget["design_w"], _kw), " kW by design", most, pue)]
    if grid:
        grams = Number(grid["kg_co2e_per_kwh"], lambda kg: f"{KILO * kg:.0f} g CO2e a kWh")
        notes.append((grid["name"].text, ": ", grams, f" in {grid['year'].value}, location-based"))
    if price:
        paid: Phrase = (Number(price["usd_per_kwh"], "{:.3f}".format), " $/kWh, so ", Number(d["electricity_usd"], format_usd))
        notes.append((paid, " of electricity", ", inside the rent" if d["price"] else ""))
    drawn = Picture(
        stacks(
            "power",
            "Power while training",
            [
                (
                    "at work",
                    [Part(n, budget[w]) for n, w in zip(("accelerators", "hosts", "network", "cooling"), watts, strict=True)],
                )
            ],
            "{:,.0f} W".format,
        )
    )
    blocks: list[Block] = [Table(RUN["power"], columns, [*rows, Row(meter, mark="best")]), Notes(notes), drawn]
    carbon = (("electricity", d["carbon"]["operational_kg"]), ("making the machines", d["carbon"]["embodied_kg"]))
    kg = [(name, p, p) for name, p in carbon]
    if d["carbon"]["operational_kg"]:
        blocks.append(Picture(bars("carbon", "Carbon", kg, _kg)))
    yield Section("power", RUN["power"], blocks)


def _part(place: At, whole: At) -> Phrase:
    return Number(place, lambda n: share(n / whole.number))


def _stops(d: At) -> Table:
    s, size = d["interruptions"], Number(d["checkpoint_bytes"]["state"], _gb)
    n, every = Number(s["checkpoints"], lambda n: f"{max(n, 1):,.0f}"), s["interval_s"]
    lost: Phrase = (Number(s["overhead"], share), " of the work")
    rows: list[tuple[str, Phrase, Phrase]] = [
        ("stops expected", Number(s["stops"], _count), span(s["stops"], _count)),
        ("mean time between them", s["mtbf_s"], span(s["mtbf_s"])),
        ("a checkpoint every", every, ("of work, ", n, " in all")),
        ("written in", s["save_s"], size),
        ("a restart takes", s["restart_s"], "reading the checkpoint included"),
        ("lost to both", lost, ""),
    ]
    columns = [Column("what", words=True), Column("value", words=True), Column("more", words=True)]
    return Table(RUN["stops"], columns, [Row([Cell(name), Cell(v), Cell(more)]) for name, v, more in rows])


def _changes(d: At) -> Iterator[Section]:
    if not d["changes"]:
        return
    columns = [Column("change", words=True), Column("cost"), Column("time"), Column("CO2e")]
    rows = [
        Row(
            [
                Cell(c["change"]),
                Cell(Number(c["usd"], partial(_signed, format_usd))),
                Cell(Number(c["wall_s"], partial(_signed, format_duration))),
                Cell(Number(c["kg_co2e"], partial(_signed, _kg)) if c["kg_co2e"].value is not None else ""),
            ]
        )
        for c in d["changes"]
    ]
    yield Section("changes", RUN["changes"], [Table(RUN["changes"], columns, rows)], first=True)


def _published(d: At) -> Iterator[Section]:
    notes: list[Phrase] = [*_texts(d["published"])]
    for usd in d["published_usd"]:
        words = Number(usd, format_usd)
        notes.append(("At this rent, for as many tokens as here, the published GPU hours cost ", words))
    if notes:
        yield Section("published", RUN["published"], [Notes(notes)])


def _usd(usd: float) -> str:
    if usd >= MEGA:
        return f"{usd / MEGA:,.2f} M"
    return f"{usd:,.0f}" if usd >= 100 else f"{usd:.2f}" if usd >= 0.005 else "0" if usd == 0 else "<0.01"


def _count(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}" if value < MEGA else f"{value / MEGA:,.4g} M"
    return f"{value:.3g}" if value >= 0.01 else "<0.01" if value > 0 else "0"


def _kw(watts: float) -> str:
    kw = watts / KILO
    return f"{kw:,.0f}" if kw >= 100 else f"{kw:.2f}" if kw < 10 else f"{kw:.1f}"


def _kg(kg: float) -> str:
    tonnes = kg / KILO
    if tonnes >= 10:
        return f"{tonnes:,.0f} t" if tonnes >= 100 else f"{tonnes:.1f} t"
    return f"{kg:,.0f} kg" if kg >= 10 else f"{kg:.2g} kg"


def _gb(size: float) -> str:
    return f"{size / GIGA:,.0f} GB" if size >= 10 * GIGA else f"{size / GIGA:.2g} GB"


def _signed(say: Callable[[float], str], value: float) -> str:
    return ("-" if value < 0 else "+") + say(abs(value)) if value else "0"
