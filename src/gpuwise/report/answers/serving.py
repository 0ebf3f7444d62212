"""What a load takes: which GPUs and how many, latency against load, what is full first, what single changes would bring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwise.facts.models.architecture import READ_AS
from gpuwise.facts.models.catalogue import models
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
    Points,
    Row,
    Section,
    Table,
    span,
)
from gpuwise.report.answers.drawings import Dot, Line, around
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.passes import passes_answer
from gpuwise.report.answers.values import BASIS, At
from gpuwise.serve.load.targets import METRICS, statistic_words
from gpuwise.units import format_bytes, format_duration, format_number, format_usd

TITLES = PARTS["capacity"]
OTHER = "the model answers otherwise"
WEAK_GAIN, GAIN_STEP = 0.1, 5
"""A change by less is "as much": it is the chance of so few requests (600 and 4,800 differ by up to 18 points:
benchmarks/records/serving/capacity_2026-11-27e.md). Gains are rounded to so many per cent."""
LEAST_SHARE = 0.005
PERCENTILES = ("p50", "p90", "p95", "p99", "mean")


def capacity_answer(document: Mapping[str, Any], budget_usd_per_hour: float | None = None) -> Answer:
    """The answer for a load of tokens; over ``budget_usd_per_hour`` it is a no."""
    if "forward" in document:
        return passes_answer(document)
    if "closed" in document:
        return _closed(At(document), budget_usd_per_hour)
    d = At(document)
    ranked = list(_ranked(d["ranked"])) if d["ranked"] else []
    if "model" not in document:
        return Answer("capacity", "Nothing that can be had keeps the targets within the limits", "no", parts=ranked)
    served, notes = d["served"], [str(n.value) for n in d["notes"]]
    source = d["workload"]["source"].text
    read_as, others = [n for n in notes if READ_AS in n], [n for n in notes if READ_AS not in n]
    assumed = [*read_as, *([] if source in ("given", "-") else [f"load: {source}"]), *others]
    if not served:
        return _missed(d, ranked, assumed)
    fleet, load, each = served["fleet"], served["at_load"] or served["at_limit"], served["requests_per_s_of_a_copy"]
    gpu, usd = d["on"].text.partition("x ")[2], fleet["usd_per_hour"]
    asked = bool(d["demand"]["requests_per_s"] or d["demand"]["users"])
    dear = budget_usd_per_hour is not None and usd and usd.number > budget_usd_per_hour
    more = fleet["accelerators_peak"].number > d["accelerators"].number
    paid: Phrase = (", ", usd, " an hour") if usd else ""
    over = f", over the budget of {format_usd(budget_usd_per_hour or 0.0)} an hour" if dear else ""
    who: Phrase = (d["demand"]["users"], " users") if d["demand"]["users"] else _requests(fleet["requests_per_s"])
    gpus = ("the ", d["accelerators"], " asked about are not enough, ") if more else ""
    verdict: Phrase = (
        _named(d["model"].text),
        " on ",
        d["on"].text,
        " carries ",
        _requests(served["requests_per_s"]),
        *([", ", Number(fleet["users"], _people), " users"] if fleet["users"] else []),
        paid,
        over,
    )
    if asked:
        name = (_named(d["model"].text), " for ", who, " (", d["workload"]["title"].text, "): ")
        verdict = (*name, gpus, fleet["accelerators_peak"], "x ", gpu, paid, over)
    return Answer(
        "capacity",
        verdict,
        "no" if dear else "maybe" if asked and more else "yes",
        (_count(served, asked), served["words"].text, "; ", _within(d), _wider(d)),
        list(_figures(d, served, load, each, asked)),
        [
            *ranked,
            *_changes(d["changes"]),
            Section("latency", TITLES["latency"], [_latency(load)]),
            Section("rates", TITLES["rates"], [*_curve(served), _rates(served["curve"])]),
            Section("limits", TITLES["limits"], [_limits(served)]),
            Section("fleet", TITLES["fleet"], [_fleet(fleet)]),
            *_minute(served["timeline"]),
            *_front(d["pareto"]),
            Section("start", TITLES["start"], list(_commands(served["start_all"]))),
            Section("prove", TITLES["prove"], [*_commands(served["load_tests"]), Notes([_basis(each)])]),
        ],
        Command("Start it", words=(served["start"]["command"].text,)) if served["start"] else None,
        assumed=assumed,
    )


def _wider(d: At) -> str:
    """Why the targets are wider than the typical ones; empty where they are not."""
    return f", wider than usual. {d['nearest_miss']['why'].text}" if d["nearest_miss"] else ""


def _named(model: str) -> str:
    """What the catalogue calls a model by its id; the id where it is not in there."""
    arch = models().get(model)
    return model if arch is None else arch.name


def _count(served: At, asked: bool) -> Phrase:
    n = served["fleet"]["copies_peak"] if asked else served["copies"]
    return "One replica: " if n.number == 1 else (n, " replicas, each ")


def _within(d: At) -> str:
    """The targets in words."""
    return " and ".join(
        f"{statistic_words(t['target'].text)} within {format_duration(t['limit_s'].number)}" for t in d["targets"]
    )


def _requests(place: At, like: At | None = None) -> Number:
    """``4.61 requests/s``; slow ones by the minute or hour, or as ``like`` is, fast ones without a fraction."""
    scale = (like or place).number

    def words(rate: float) -> str:
        if rate >= 1000:
            return f"{rate:,.0f} requests/s"
        for unit, seconds in (("s", 1.0), ("min", 60.0)):
            if scale * seconds >= 1:
                return f"{rate * seconds:.3g} requests/{unit}"
        return f"{rate * 3600:.3g} requests/h"

    return Number(place, words)


def _people(users: float) -> str:
    """A number of users, as exact as such a number is."""
    step = 10.0 ** max(len(f"{users:.0f}") - 2, 0)
    return f"about {users // step * step:,.0f}"


def _figures(d: At, served: At, load: At, each: At, asked: bool) -> Iterator[Figure]:
    """What they send and what a replica carries, the first word and the rest, the price."""
    fleet = served["fleet"]
    if asked:
        peak, mean = fleet["peak_requests_per_s"], fleet["requests_per_s"]
        at_peak: Phrase = ("on average, ", Number(peak, format_number), "/s at the peak") if peak.number > mean.number else ""
        yield Figure("they send", _requests(mean), "", at_peak)
    yield Figure("a replica carries", _requests(each), span(each, _requests(each).say))
    if fleet["users"]:
        pause: Phrase = ("each pauses ", d["demand"]["think_s"], " after an answer")
        yield Figure("users", Number(fleet["users"], _people), "", pause)
    if d["targets"]:
        key = next(iter(d["targets"]))["target"].text
        metric, _, quantile = key.rpartition("_")
        reached = load["latency_s"][metric][quantile]
        if reached:
            yield Figure(f"{quantile} {METRICS[metric]}", reached, "", ("at the peak" if asked else "at that rate"))
    user = load["output_tokens_per_s_of_a_user"]
    if user:
        yield Figure("each reads", user, "", "tokens a second; people read 5")
    written = fleet["usd_per_million_output_tokens"]
    if written:
        yield Figure("a million written", written, span(written), "tokens")
    yield _cache(served["memory"])


def _cache(memory: At, fill: Phrase = "") -> Figure:
    """Tokens of the cache, and whether a request of the longest length fits."""
    tokens, most, asked = (Number(memory[key], "{:,.0f}".format) for key in ("kv_tokens", "longest_request", "max_model_len"))
    fits: Phrase = "fits" if memory["max_model_len_fits"].value else ("does not fit: at most ", most)
    size: Phrase = (fill, Number(memory["kv_bytes"], format_bytes), " a GPU; max_model_len ", asked, " ", fits)
    return Figure("cache", (tokens, " tokens"), "", size)


def _closed(d: At, budget_usd_per_hour: float | None) -> Answer:
    """What a number of requests in flight get."""
    c = d["closed"]
    load, n, usd, asked = c["at_load"], c["in_flight"], c["usd_per_hour"], bool(d["targets"])
    dear = budget_usd_per_hour is not None and not (usd and usd.number <= budget_usd_per_hour)
    written = Number(c["output_tokens_per_s"].expected, format_number)
    verdict: list[Phrase] = [_named(d["model"].text), " on ", d["on"].text, " with ", n, " in flight: ", written, " tokens/s"]
    if asked:
        missed = [t for t in load["targets"] if not t["met"].value]
        verdict += [
            ("; ", statistic_words(t["target"].text), " ", t["value_s"], ", target ", _limit(d, t["target"].text)) for t in missed
        ]
        verdict += [] if missed else ["; within the targets"]
    if dear:
        verdict.append(f"; over the budget of {format_usd(budget_usd_per_hour or 0.0)} an hour")
    each = f"{c['copies'].text} replicas, each " if c["copies"].number > 1 else "One replica: "
    waiting = n.number > c["most_at_once"].number
    latency, cache = load["latency_s"], c["memory"]
    figures = [
        Figure("tokens/s", written, span(c["output_tokens_per_s"], format_number), (_requests(c["requests_per_s"]), " answered")),
        Figure("first token", latency["ttft"]["p50"], "", ("median; 95 of 100 within ", latency["ttft"]["p95"])),
        Figure(
            "then", latency["tpot"]["p50"], "", ("a token in the median, ", load["output_tokens_per_s_of_a_user"], " a second")
        ),
        Figure("an answer", latency["e2e"]["p50"], "", ("median; 95 of 100 within ", latency["e2e"]["p95"])),
    ]
    if asked:
        most = c["most_in_flight"]
        words: Phrase = (most, " in flight") if most.value is not None else "none in flight"
        figures.append(Figure("at most", words, "", "within the targets"))
    if c["usd_per_million_output_tokens"]:
        price = c["usd_per_million_output_tokens"]
        figures.append(Figure("a million written", price.expected, span(price), ("tokens; ", usd, " an hour")))
    figures.append(_cache(cache, (Number(load["kv_fill"], _percent), " full; ")))
    rows = [
        Row(
            [
                Cell(p["in_flight"]),
                Cell(Number(p["output_tokens_per_s"].expected, format_number)),
                *(Cell(p["latency_s"][m][q]) for m, q in (("ttft", "p50"), ("ttft", "p95"), ("tpot", "p50"), ("e2e", "p50"))),
                Cell(Number(p["kv_fill"], _percent)),
            ],
            mark="best" if p["in_flight"].number == n.number else "",
        )
        for p in reversed(list(c["curve"]))
    ]
    columns = [
        Column("in flight", words=True),
        Column("tokens/s"),
        Column("TTFT p50"),
        Column("TTFT p95"),
        Column("a token p50"),
        Column("whole p50", leaves=1),
        Column("cache", leaves=2),
    ]
    others = [f"{o['configuration'].text}: {o['why_not'].text}" for o in d["considered"]]
    source = d["workload"]["source"].text
    engine = [f"the engine runs at most {c['most_at_once'].text} at once, the others wait"] if waiting else []
    return Answer(
        "capacity",
        verdict,
        "no" if dear or not c["met"].value else "yes",
        (each, c["words"].text, f"; {d['workload']['title'].text}"),
        figures,
        [
            Section("flight", TITLES["flight"], [Table(TITLES["flight"], columns, rows)], first=True),
            Section("latency", TITLES["latency"], [_latency(load)]),
            *([Section("layouts", TITLES["layouts"], [Notes(others)])] if others else []),
            Section("start", TITLES["start"], list(_commands(c["start_all"]))),
            Section("prove", TITLES["prove"], list(_commands(c["load_tests"]))),
        ],
        Command("Start it", words=(c["start"]["command"].text,)),
        assumed=[
            "a request is sent as soon as an answer has come",
            *engine,
            *([] if source in ("given", "-") else [f"load: {source}"]),
            *(str(x.value) for x in d["notes"]),
        ],
    )


def _missed(d: At, ranked: list[Section], assumed: list[str]) -> Answer:
    """Why the targets are not met, and near ones that are."""
    miss = d["nearest_miss"]
    alone = bool(miss) and all(t["met"].value for t in miss["alone"]["targets"])
    feasible = miss["feasible"]
    words = [w.text for w in (miss["why"], feasible["sentence"]) if w]
    rows = [
        Row(
            [
                Cell(t["target"]),
                Cell(_limit(d, t["target"].text)),
                Cell(t["value_s"]),
                Cell("kept" if t["met"].value else "missed"),
            ]
        )
        for t in (miss["alone"]["targets"] if miss else ())
    ]
    columns = [Column("target", words=True), Column("allowed"), Column("a request alone"), Column("", words=True)]
    title = TITLES["miss"]
    nearest = [Section("miss", title, [Table(title, columns, rows), Notes([miss["words"].text])], first=True)] if rows else []
    slo = ",".join(f"{t['target'].text}={1000 * t['limit_s'].number:g}ms" for t in feasible["targets"]) if feasible else ""
    return Answer(
        "capacity",
        f"{_named(d['model'].text)} on {d['on'].text}: nothing here keeps {_within(d)}" + (" reliably" if alone else ""),
        "no",
        " ".join(words),
        [_cache(miss["memory"])] if miss else [],
        [
            *ranked,
            *nearest,
            *_changes(d["changes"], missed=True),
            *_front(d["pareto"]),
        ],
        Command("With targets that are kept", sets={"slo": slo}) if slo else None,
        assumed=assumed,
    )


def _limit(d: At, key: str) -> Phrase:
    return next((t["limit_s"] for t in d["targets"] if t["target"].text == key), "")


def _ranked(place: At) -> Iterator[Section]:
    """GPUs by what the load costs on them, and why others are not among them."""
    rows = [
        Row(
            [
                Cell(o["name"]),
                Cell(o["how"]),
                Cell(o["fleet"]["copies_peak"]),
                Cell(o["fleet"]["accelerators_peak"]),
                Cell(o["fleet"]["usd_per_hour"]),
                Cell(o["fleet"]["usd_per_million_output_tokens"], span(o["fleet"]["usd_per_million_output_tokens"])),
                Cell(o["fleet"]["wh_per_million_output_tokens"]),
            ]
        )
        for o in place["options"]
    ]
    columns = [
        Column("GPU", words=True),
        Column("how", leaves=1),
        Column("replicas"),
        Column("GPUs"),
        Column("an hour"),
        Column("a million tokens"),
        Column("Wh a million", leaves=2),
    ]
    notes: list[Phrase] = [f"each replica on {o['name'].text}: {o['configuration'].text}" for o in place["options"]]
    mixed = place["mixed"]
    if mixed:
        kinds = " and ".join(_kind(k) for k in mixed["kinds"])
        alone = mixed["usd_per_hour_of_one_kind"]
        notes.append(("Two kinds together: ", kinds, ": ", mixed["usd_per_hour"], " an hour; of one kind ", alone))
    why = [(o["name"].text, o["why"].text) for o in place["left_out"]]
    notes += [f"{name}: {words}" for name, words in why if "allowed" in words or "budget" in words]
    notes.append((place["simulated"], " accelerators simulated; the others do not hold the model or cost more"))
    table = [Table(TITLES["ranked"], columns, rows)] if rows else []
    yield Section("ranked", TITLES["ranked"], [*table, Notes(notes)], first=True)


def _kind(k: At) -> str:
    """``2 replicas on 2 H100 SXM5 80GB, 60 % of the requests``."""
    n, share = k["copies"].text, 100 * k["share_of_requests"].number
    return f"{n} replicas on {k['accelerators'].text} {k['name'].text}, {share:.0f} % of the requests"


def _changes(place: At, *, missed: bool = False) -> Iterator[Section]:
    """What single changes would bring, those that matter first; on the first screen where nothing serves the load."""
    rows: list[Row] = []
    strong = [c for c in place if c["requests_per_s"].value is not None and abs(c["gain"].number) >= WEAK_GAIN]
    weak = [c for c in place if c["requests_per_s"].value is not None and c not in strong]
    for c in (*strong, *weak, *(c for c in place if c["requests_per_s"].value is None)):
        carried = c["requests_per_s"]
        model = " (another model's answers)" if c["kind"].text == OTHER else ""
        rows.append(
            Row(
                [
                    Cell((c["change"], model)),
                    Cell(_requests(carried) if carried.number else "nothing"),
                    Cell(Number(c["gain"], _gain) if c["gain"].value is not None and carried.number else ""),
                    Cell(c["ttft_alone_s"] if missed else ""),
                    Cell(c["why_not"] if c["why_not"] else ""),
                ]
            )
        )
    columns = [
        Column("change", words=True),
        Column("as many GPUs carry"),
        Column("gain"),
        Column("TTFT alone"),
        Column("", under=True),
    ]
    if rows or place.value is None:  # not worked out: named for who asks
        yield Section("changes", TITLES["changes"], [Table(TITLES["changes"], columns, rows)], first=missed)


def _gain(gain: float) -> str:
    return "about as much" if abs(gain) < WEAK_GAIN else f"about {GAIN_STEP * round(100 * gain / GAIN_STEP):+d} %"


def _latency(load: At) -> Table:
    rows = [Row([Cell(words), *(Cell(load["latency_s"][metric][q]) for q in PERCENTILES)]) for metric, words in METRICS.items()]
    columns = [Column("", words=True), *(Column(q, leaves={"p90": 2, "mean": 1}.get(q, 0)) for q in PERCENTILES)]
    return Table(TITLES["latency"], columns, rows, _at(load))


def _at(load: At) -> Phrase:
    return ("at ", _requests(load["requests_per_s"]), " a replica", ", where queues grow" if load["saturated"].value else "")


def _rate(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _curve(served: At) -> Iterator[Chart]:
    """Latency against load."""
    curve = [p for p in served["curve"] if not p["saturated"].value]
    named = (("ttft", "p95", "first token, 95th"), ("itl", "p99", "between tokens, 99th"))
    series = [
        Line(name, [(p["requests_per_s"].number, p["latency_s"][m][q].number) for p in curve if p["latency_s"][m][q]])
        for m, q, name in named
    ]
    series = [s for s in series if len(s.points) > 1]
    if series:
        knee = served["knee_requests_per_s_of_a_copy"].number
        x = around("requests a second of one replica", [0.0, knee, *(a for s in series for a, _ in s.points)], _rate, zero=True)
        y = around("latency", [b for s in series for _, b in s.points], format_duration, zero=True)
        yield Chart("latency", "Latency against load", x, y, series, [(knee, "queues grow")])


SHOWN = (("ttft", "p50"), ("ttft", "p95"), ("itl", "p50"), ("itl", "p99"), ("e2e", "p95"))
QUEUES = "*"
"""Marks a rate at which queues grow."""


def _rates(place: At) -> Table:
    rows = [
        Row(
            [
                Cell((Number(p["requests_per_s"], format_number), "/s", f" {QUEUES}" if p["saturated"].value else "")),
                *(
                    Cell(p["latency_s"][m][q])
                    for m, q in (("ttft", "p50"), ("ttft", "p95"), ("itl", "p50"), ("itl", "p99"), ("e2e", "p95"))
                ),
                Cell(p["output_tokens_per_s_per_accelerator"]),
                Cell(p["kv_fill"]),
            ]
        )
        for p in place
    ]
    columns = [
        Column("rate", words=True),
        Column("TTFT p50", leaves=3),
        Column("TTFT p95"),
        Column("ITL p50", leaves=1),
        Column("ITL p99"),
        Column("whole p95", leaves=2),
        Column("tokens/s a GPU", leaves=4),
        Column("cache", leaves=5),
    ]
    below = f"{QUEUES} queues grow: a latency depends on how long one waits" if any(p["saturated"].value for p in place) else ""
    return Table(TITLES["rates"], columns, rows, below)


def _pairs(title: str, rows: list[tuple[str, Phrase]]) -> Table:
    return Table(title, [Column("what", words=True), Column("value", words=True)], [Row([Cell(n), Cell(v)]) for n, v in rows])


def _limits(served: At) -> Table:
    """What is full first, and where the time goes."""
    s, memory, busy = served["saturates_first"], served["memory"], served["saturates_first"]["busy"]
    breaks = f"; {statistic_words(s['target'].text)} breaks" if s["target"] else "; queues grow"
    shares = sorted(busy.items(), key=lambda kv: -kv[1].number)
    items: list[Phrase] = [(name, " ", Number(p, _percent)) for name, p in shares if p.number >= LEAST_SHARE]
    knee = served["knee_requests_per_s_of_a_copy"]
    cache = (Number(s["kv_fill"], _percent), " full at the limit, of ", memory["kv_tokens"], " tokens (")
    return _pairs(
        TITLES["limits"],
        [
            ("first", s["words"].text + breaks),
            ("queues grow from", (_requests(knee), " a replica")),
            ("time goes to", [x for item in items for x in (", ", item)][1:]),
            ("cache", (*cache, Number(memory["kv_bytes"], format_bytes), " a GPU)")),
        ],
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def _fleet(f: At) -> Table:
    """Replicas, rent, price of a million tokens, energy."""
    mean, peak = f["requests_per_s"], f["peak_requests_per_s"]
    gpus: Phrase = (f["accelerators_peak"], " at the peak, in ", f["systems_peak"], " systems; following the day ")
    rows: list[tuple[str, Phrase]] = [
        ("load", (_requests(mean), " on average, ", _requests(peak, mean), " at the peak")),
        ("replicas", (f["copies_now"], " now, ", f["copies_peak"], " at the peak")),
        ("GPUs", (gpus, f["mean_accelerators"])),
    ]
    price, written = f["price"], f["usd_per_million_output_tokens"]
    if price and f["usd_per_hour"]:
        day = f", {price['as_of'].text}" if price["as_of"] else ""
        rows.append(("rent", (f["usd_per_hour"], " an hour; ", price["usd_per_gpu_hour"], " a GPU, ", price["provider"], day)))
        rows.append(
            ("a million tokens", (written, " written (", span(written), "), ", f["usd_per_million_tokens"], " read and written"))
        )
        following = f["usd_per_million_output_tokens_following_the_day"]
        if following and f["copies_peak"].number > 1:
            rows.append(("following the load", (following, " written, where replicas come and go by the hour")))
    else:
        rows.append(("rent", "no known rental offer"))
    wh = f["wh_per_million_output_tokens"]
    if wh and f["power_w"]:
        rows.append(("energy", (Number(wh, "{:,.0f}".format), " Wh a million tokens written, ", f["power_w"])))
    return _pairs(TITLES["fleet"], rows)


def _minute(place: At) -> Iterator[Section]:
    moments = list(place)
    if len(moments) < 2:
        return
    series = [
        Line(name, [(m["s"].number, m[key].number) for m in moments])
        for key, name in (("running", "decoding"), ("waiting", "waiting"))
    ]
    x = around("seconds", [m["s"].number for m in moments], _rate, zero=True)
    y = around("requests", [b for s in series for _, b in s.points], _rate, zero=True)
    yield Section("minute", TITLES["minute"], [Chart("minute", TITLES["minute"], x, y, series)])


def _front(place: At) -> Iterator[Section]:
    """Tokens a second of a GPU against those of a user."""
    front = list(place)
    if len(front) < 2 and place.value is not None:  # not worked out: named for who asks
        return
    user, gpu = "output_tokens_per_s_of_a_user", "output_tokens_per_s_per_accelerator"
    x = around("tokens a second of a user", [p[user].number for p in front], _rate, zero=True)
    y = around("tokens a second of a GPU", [p[gpu].number for p in front], _rate, zero=True)
    words = [f"{p[user].text} a user, {p[gpu].text} a GPU: {p['configuration'].text}" for p in front]
    dots = [Dot(p[user].number, p[gpu].number, w) for p, w in zip(front, words, strict=True)]
    rows = [Row([Cell(p[user]), Cell(p[gpu]), Cell(p["configuration"].text)]) for p in front]
    columns = [Column("a user's tokens/s"), Column("a GPU's tokens/s"), Column("with", words=True)]
    title = TITLES["front"]
    yield Section("front", title, [Table(title, columns, rows), Points("front", title, x, y, dots)])


def _commands(place: At) -> Iterator[Block]:
    """Commands, each with what it is for and the file it reads."""
    for c in place:
        why = c["for"].text + (f": {c['note'].text}" if c["note"] else "")
        file = c["file"]
        yield Command(why, words=(c["command"].text,), file=(file["name"].text, file["text"].text) if file else None)


def _basis(each: At) -> str:
    return f"Basis: {BASIS.get(each['basis'].text, '')}; latencies are simulated"
