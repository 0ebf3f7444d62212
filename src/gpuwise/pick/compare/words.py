"""Summary of a comparison in sentences derived from its rows: leaders and margins, bottlenecks, costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import combinations

from gpuwise.pick.compare.facts import WORK_DTYPE
from gpuwise.pick.compare.rows import TIE, Cell, FigureRow, Subject, find_row, say
from gpuwise.pick.compare.work import WAYS, ComparedWork
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, ENGINES
from gpuwise.serve.formats import weight_bytes_read

BOUND = 0.5
"""A step that spends more than this share of its time reading weights is called bound by memory."""


def verdict(subjects: Sequence[Subject], rows: Sequence[FigureRow], work: ComparedWork | None) -> tuple[str, ...]:
    """Three to six sentences, about the model first where there is one."""
    names = names_of(subjects)
    device = [_arithmetic(names, rows), _memory(names, rows)]
    if work is None:
        sentences = [*device, _ridge(names, rows), _efficiency(names, rows), _price(names, rows)]
    else:
        model = [_serving(names, rows), _training(names, rows, work)]
        sentences = [*model, _bound(names, subjects, rows, work), _money(names, rows), *device]
    return tuple(s for s in sentences if s)


def names_of(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """Names of the columns; equal names are numbered."""
    names = [s.name for s in subjects]
    return tuple(f"{n} ({names[: i + 1].count(n)})" if names.count(n) > 1 else n for i, n in enumerate(names))


def than(ratio: float, name: str, as_word: str, er_word: str) -> str:
    """``than(1.8, "L40S", "fast", "faster")``: ``"1.8 times as fast as L40S"``, or ``"12 % faster than L40S"``."""
    if ratio >= 9.95:
        return f"{ratio:,.0f} times as {as_word} as {name}"
    return f"{ratio:.1f} times as {as_word} as {name}" if ratio >= 1.495 else f"{100 * (ratio - 1):.0f} % {er_word} than {name}"


def listed(names: Iterable[str]) -> str:
    """``"A, B and C"``."""
    every = list(names)
    return every[0] if len(every) == 1 else ", ".join(every[:-1]) + " and " + every[-1]


def ranking(row: FigureRow | None) -> list[int]:
    """Columns with a value, best first."""
    if row is None:
        return []
    sign = -1.0 if row.better == "higher" else 1.0
    return [i for _, i in sorted((sign * c.value, i) for i, c in enumerate(row.cells) if c.value is not None)]


def _lead(row: FigureRow | None) -> tuple[int, int, float] | None:
    """Best column, the runner-up, and its advantage as a factor; None if fewer than two are known or they tie."""
    order = ranking(row)
    if row is None or len(order) < 2:
        return None
    ratio = row.ahead(order[0], order[1])
    return None if ratio is None or ratio < 1 + TIE else (order[0], order[1], ratio)


def _leads(row: FigureRow, a: int, b: int) -> bool:
    """Whether column ``a`` is better than ``b`` by more than a tie."""
    ratio = row.ahead(a, b)
    return ratio is not None and ratio >= 1 + TIE


def _value(row: FigureRow, i: int) -> str:
    cell: Cell = row.cells[i]
    return "unknown" if cell.value is None else say(row.unit, cell.value)


def _spread(names: Sequence[str], row: FigureRow) -> str:
    """``"A 729 TFLOP/s, B 253 TFLOP/s"``, best first."""
    return ", ".join(f"{names[i]} {_value(row, i)}" for i in ranking(row))


def _arithmetic(names: Sequence[str], rows: Sequence[FigureRow]) -> str:
    """The leader of the widest format all of them have."""
    for rate in (WORK_DTYPE, "fp16", "fp32"):
        row = find_row(rows, f"reached_{rate}")
        if row is not None and len(ranking(row)) == len(names):
            break
    else:
        return ""
    lead = _lead(row)
    if lead is None:
        return f"Large {rate} matrix products run alike on {_all(names)} ({_value(row, ranking(row)[0])})."
    top, next_, ratio = lead
    return (
        f"In long runs of large {rate} matrix products {names[top]} is {than(ratio, names[next_], 'fast', 'faster')}: "
        f"{_spread(names, row)}{_paper(names, rows, rate)}."
    )


def _paper(names: Sequence[str], rows: Sequence[FigureRow], rate: str) -> str:
    """Differences from the data-sheet order: pairs in which each leads once, by more than a tie."""
    peak, got = find_row(rows, f"peak_{rate}"), find_row(rows, f"reached_{rate}")
    on_paper = ranking(peak)
    if peak is None or got is None or not any(_leads(peak, a, b) and _leads(got, b, a) for a, b in combinations(on_paper, 2)):
        return ""
    return f"; on paper the order is {', '.join(names[i] for i in on_paper)}"


def _memory(names: Sequence[str], rows: Sequence[FigureRow]) -> str:
    room, stream = find_row(rows, "memory"), find_row(rows, "reached_stream")
    if room is None or stream is None:
        return ""
    size, speed = _lead(room), _lead(stream)
    if size is None and speed is None:
        return ""
    if size is None:
        assert speed is not None
        return f"They hold the same, but {names[speed[0]]} reads it {than(speed[2], names[speed[1]], 'fast', 'faster')}."
    if speed is None:
        return f"{names[size[0]]} holds {than(size[2], names[size[1]], 'much', 'more')}; they read memory equally fast."
    holds, reads = than(size[2], names[size[1]], "much", "more"), than(speed[2], names[speed[1]], "fast", "faster")
    against = f"{_value(stream, speed[0])} against {_value(stream, speed[1])}"
    if size[0] == speed[0]:
        return f"{names[size[0]]} holds {holds} and reads it {reads} ({against})."
    return (
        f"{names[size[0]]} holds the most memory ({_value(room, size[0])}, {holds}), but {names[speed[0]]} reads its own "
        f"{reads} ({against})."
    )


def _ridge(names: Sequence[str], rows: Sequence[FigureRow]) -> str:
    row = find_row(rows, "ridge_reached")
    ridges = [] if row is None else [(c.value, i) for i, c in enumerate(row.cells) if c.value is not None]
    if len(ridges) < 2:
        return ""
    (low, _), (high, j) = min(ridges), max(ridges)
    if high < low * (1 + TIE):
        return f"{_all(names).capitalize()} are memory-bound below {low:,.0f} FLOP per byte."
    return (
        f"Work below {low:,.0f} FLOP per byte is memory-bound on {_all(names)}; between that and {high:,.0f} it still is on "
        f"{names[j]}."
    )


def _efficiency(names: Sequence[str], rows: Sequence[FigureRow]) -> str:
    row = find_row(rows, "work_per_watt")
    lead = _lead(row)
    if row is None or lead is None:
        return ""
    return (
        f"For a watt of design power {names[lead[0]]} does {than(lead[2], names[lead[1]], 'much', 'more')} "
        f"({_spread(names, row)})."
    )


def _price(names: Sequence[str], rows: Sequence[FigureRow]) -> str:
    rent, room = find_row(rows, "usd_per_reached_pflop_hour"), find_row(rows, "usd_per_gib_hour")
    for candidates in ((rent, room), (find_row(rows, "usd_per_tflop"), find_row(rows, "usd_per_gib"))):
        work, memory = candidates
        order = ranking(work)
        if work is None or len(order) < 2:
            continue
        verb = "Rented" if work is rent else "Bought new"
        if _value(work, order[0]) == _value(work, order[-1]):
            text = f"{verb}, arithmetic costs the same on {_all(names)} ({_value(work, order[0])} for each {_per(work)})"
            clause, also = ", memory least", ""
        else:
            text = f"{verb}, arithmetic is cheapest on {names[order[0]]} ({_value(work, order[0])} for each {_per(work)}"
            text += f", {names[order[-1]]} {_value(work, order[-1])})"
            clause, also = " and memory", "also "
        best = ranking(memory)
        if memory is not None and len(best) >= 2 and _value(memory, best[0]) != _value(memory, best[-1]):
            again = also if best[0] == order[0] else ""
            text += f"{clause} {again}on {names[best[0]]} ({_value(memory, best[0])} a GiB)"
        return text + "."
    return ""


def _per(row: FigureRow) -> str:
    return "PFLOP/s" if "pflop" in row.key else "TFLOP/s"


def _training(names: Sequence[str], rows: Sequence[FigureRow], work: ComparedWork) -> str:
    training_rows = [r for way in WAYS if (r := find_row(rows, way.key)) is not None]
    fits = find_row(rows, "train_fits")
    if fits is None:
        return ""
    if not training_rows:
        return f"None of them can train {work.arch.name}, not even adapters on 4-bit weights."
    first, last = training_rows[0], training_rows[-1]
    out = [i for i, c in enumerate(first.cells) if c.value is None]
    text = ""
    if out:
        text = f" {listed(f'{names[i]} ({first.cells[i].words})' for i in out)} cannot train {_trained(first, work)}."
    row = last if len(ranking(last)) >= len(ranking(first)) else first
    lead = _lead(row)
    if lead is None:
        order = ranking(row)
        return (
            f"Only {names[order[0]]} trains {_trained(row, work)}: {_value(row, order[0])}."
            if len(order) == 1 and len(names) > 1
            else ""
        ) + text
    lead_words = than(lead[2], names[lead[1]], "fast", "faster")
    return f"Training {_trained(row, work)}, {names[lead[0]]} is {lead_words} ({_spread(names, row)}).{text}"


def _trained(row: FigureRow, work: ComparedWork) -> str:
    """The training and its method, as one of :data:`WAYS`."""
    return f"all of {work.arch.name}" if row.key == WAYS[0].key else f"{work.arch.name} with {row.title}"


def _serving(names: Sequence[str], rows: Sequence[FigureRow]) -> str:
    one, weights = find_row(rows, "decode_one"), find_row(rows, "serve_weights")
    many, alike = find_row(rows, "decode_batch"), find_row(rows, "decode_same_batch")
    if one is None or weights is None:
        return ""
    order = ranking(one)
    if not order:
        why = listed(f"{names[i]} {c.words}" for i, c in enumerate(one.cells) if c.words)
        return f"{'None of them' if len(names) > 2 else 'Neither'} can serve it{f': {why}' if why else ''}."
    parts: list[str] = []
    batch = (many, "full batches") if alike is None else (alike, f"{alike.title.removesuffix(' on each')} at once")
    for row, doing in ((one, "one sequence"), batch):
        lead = _lead(row)
        if row is not None and lead is not None:
            who, fast = names[lead[0]], than(lead[2], names[lead[1]], "fast", "faster")
            parts.append(
                f"{who} writes {doing} {fast} ({_spread(names, row)})" if not parts else f"with {doing} {_spread(names, row)}"
            )
    if not parts:
        return f"Only {names[order[0]]} can serve it." if len(order) == 1 else ""
    texts = {c.words for i, c in enumerate(weights.cells) if one.cells[i].value is not None}
    text = "; ".join(parts)
    unlike = _unlike(texts)
    return text + (f", though {unlike}." if unlike else ".")


def _unlike(texts: set[str]) -> str:
    """Differences between weight storage, each ``format (program)``, in words; a format's name includes its bits (fp8, Q8_0)."""
    programs = {words.partition(" (")[2] for words in texts}
    bits = {tuple(re.findall(r"[0-9]+", words.partition(" (")[0])[:1]) for words in texts}
    unlike = ["with weights of the same width"] * (len(bits) > 1) + ["by the same program"] * (len(programs) > 1)
    return "not " + " and ".join(unlike) if unlike else ""


def _all(names: Sequence[str]) -> str:
    return "both" if len(names) == 2 else "all of them"


def _bound(names: Sequence[str], subjects: Sequence[Subject], rows: Sequence[FigureRow], work: ComparedWork) -> str:
    """Share of a single sequence's step that reading the weights takes at the reached bandwidth."""
    one, stream, weights = find_row(rows, "decode_one"), find_row(rows, "reached_stream"), find_row(rows, "serve_weights")
    if one is None or stream is None or weights is None:
        return ""
    shares: list[tuple[float, int]] = []
    for i in ranking(one):
        rate, bandwidth = one.cells[i].value, stream.cells[i].value
        name = weights.cells[i].words.split(" ")[0]
        if (
            rate
            and bandwidth
            and ENGINES[DEFAULT_ENGINE].title in weights.cells[i].words
            and "parallel" not in one.cells[i].words
            and work.arch.moe is None
        ):
            of_one = bandwidth / subjects[i].count
            shares.append((min(1.0, weight_bytes_read(work.arch, name) / of_one * rate), i))
    if not shares:
        return ""
    bound = [i for share, i in shares if share >= BOUND]
    low, high = min(s for s, _ in shares), max(s for s, _ in shares)
    span = f"{100 * low:.0f}" if round(100 * low) == round(100 * high) else f"{100 * low:.0f} to {100 * high:.0f}"
    if not bound:
        return f"Reading the weights is only {span} % of a single sequence's step: the rest is launches and other kernels."
    who = _all(names) if len(bound) == len(names) else listed(names[i] for i in bound)
    return f"A single sequence is bound by memory on {who}: reading the weights takes {span} % of its step."


def _money(names: Sequence[str], rows: Sequence[FigureRow]) -> str:
    parts: list[str] = []
    for key, doing in (("train_usd", "trained"), ("serve_usd", "written")):
        row = find_row(rows, key)
        order = ranking(row)
        if row is not None and len(order) >= 2:
            parts.append(
                f"{row.title.removeprefix('rent for ').removesuffix(' written')} {doing} are cheapest on {names[order[0]]} "
                f"({_value(row, order[0])}; {names[order[-1]]} {_value(row, order[-1])})"
            )
    if not parts:
        return _price(names, rows)
    return f"At today's rents {', and '.join(parts)}."
