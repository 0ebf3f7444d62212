"""``gpuwise prices --history``: how prices moved, down and up."""

from __future__ import annotations

import datetime
from typing import Any

from gpuwise.errors import UnpredictableError

Points = list[tuple[datetime.date, float]]
KEPT = "kept here"
"""The series made of what was fetched on this machine."""


def history(query: str) -> dict[str, Any]:
    """Every price series of the accelerators that ``query`` means. Raises UnpredictableError when there is none."""
    from gpuwise.facts.offers.price_history import price_history

    known = list(price_history())
    names = _meant(query, known)
    by_name = {name: _series(name) for name in names}
    by_name = {name: series for name, series in by_name.items() if series}
    if not by_name:
        raise UnpredictableError(
            "no price history",
            f"no price history of {query!r} is known",
            hint="there is one for " + ", ".join(known[:6]) + (f" and {len(known) - 6} more" if len(known) > 6 else ""),
        )
    return {"history": [_document(name, s, points) for name, series in by_name.items() for s, points in series.items()]}


def _meant(query: str, names: list[str]) -> tuple[str, ...]:
    from gpuwise.facts.offers.search import accelerators_of

    if not query.strip():
        return tuple(names)
    return accelerators_of(query)


def _series(name: str) -> dict[str, Points]:
    from gpuwise.facts.offers.offer import stored_history
    from gpuwise.facts.offers.price_history import history_of, series_of

    by_source: dict[str, Points] = {
        series: [(p.month, p.usd_per_hour) for p in history_of(name, series)] for series in series_of(name)
    }
    medians = [(day, median) for day, median, _ in stored_history(name)]
    return by_source | ({KEPT: medians} if medians else {})


def _document(name: str, series: str, points: Points) -> dict[str, object]:
    from gpuwise.facts.offers.price_moves import moves

    return {
        "accelerator": name,
        "series": series,
        "points": [{"date": day.isoformat(), "usd_per_hour": price} for day, price in points],
        "moves": [
            {"from": m.start.isoformat(), "to": m.end.isoformat(), "share": m.share, "share_a_year": m.share_a_year}
            for m in moves(points)
        ],
    }
