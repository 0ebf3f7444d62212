"""What sliders ask: layouts, at once, in a process that does nothing else; a search follows behind.

The plan of each is that of :func:`gpuwise.plan.one_strategy.plans_of`, its document the one of ``gpuwise plan`` with every
part of the layout given.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpuwise.cli.options import (
    LayoutOptions,
    Training,
    money,
    positive_count,
    positive_duration,
    readers,
    whole_number,
    wishes_of,
)
from gpuwise.errors import GpuwiseError, InputError
from gpuwise.ui.questions import QUESTIONS, Field, checked, words_of
from gpuwise.workload.strategy import NEUTRAL, OPTIONS

if TYPE_CHECKING:
    from gpuwise.facts.hardware.systems import Cluster
    from gpuwise.plan.one_strategy import FixedGoal
    from gpuwise.plan.planner import Pricing

Query = Mapping[str, str]
_READ: Mapping[str, Callable[[str, str], Any]] = {
    "tokens": positive_count,
    "deadline": positive_duration,
    "budget": money,
    "price": money,
    **readers(Training),
    **dict.fromkeys((name for name in OPTIONS if type(getattr(NEUTRAL, name)) is int), whole_number),
}
"""How the command line reads a value that is no word."""


def replies(queries: Sequence[Query], today: datetime.date) -> Iterator[bytes]:
    """The answer to each as it is sent, or its error with its hint, as JSON."""
    from gpuwise.cli.app import usual_hint
    from gpuwise.ui.views import body_of

    for query, said in zip(queries, moments(queries, today), strict=True):
        if isinstance(said, GpuwiseError):
            body = {"error": said.message, "hint": said.hint or usual_hint(said)}
        else:
            body = body_of("plan", 0, words_of("plan", query), said)
        yield json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def moments(queries: Sequence[Query], today: datetime.date) -> list[dict[str, Any] | GpuwiseError]:
    """The document of each layout, with prices of ``today``, or what the command raises for it; in as few passes as may be."""
    from gpuwise.plan.document import answer_document
    from gpuwise.plan.one_strategy import plans_of

    asked = [_layout(query, today) for query in queries]
    alike: dict[Pricing, dict[int, FixedGoal]] = {}
    for i, one in enumerate(asked):
        if not isinstance(one, GpuwiseError):
            alike.setdefault(one[1], {})[i] = one[0]
    answers: dict[int, dict[str, Any] | GpuwiseError] = {i: one for i, one in enumerate(asked) if isinstance(one, GpuwiseError)}
    for pricing, layouts in alike.items():
        try:
            answers |= {i: answer_document(p) for i, p in zip(layouts, plans_of([*layouts.values()], pricing), strict=True)}
        except GpuwiseError as error:
            if len(layouts) == 1:
                answers |= dict.fromkeys(layouts, error)
            else:  # one of them cannot be estimated, and the others can
                answers |= {i: moments([queries[i]], today)[0] for i in layouts}
    return [answers[i] for i in range(len(queries))]


def _layout(query: Query, today: datetime.date) -> tuple[FixedGoal, Pricing] | GpuwiseError:
    """The layout of a query, and what its prices are those of."""
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.plan.one_strategy import fixed_goal
    from gpuwise.plan.planner import Pricing

    try:
        read = _read(query)
        training = Training(**{f.name: read[f.name] for f in fields(Training) if f.name in read})
        fixed = LayoutOptions(**{f.name: read[f.name] for f in fields(LayoutOptions) if f.name in read})
        wishes = wishes_of(
            training,
            fixed,
            tokens=read.get("tokens"),
            deadline_s=read.get("deadline"),
            budget_usd=read.get("budget"),
            exhaustive=False,
        )
        cluster = _cluster(read["on"])
        return fixed_goal(find_model(read["model"]), cluster, wishes), Pricing(today, read.get("price"), read.get("provider"))
    except GpuwiseError as error:
        return error


def _read(query: Query) -> dict[str, Any]:
    """The values of a query. Raises InputError."""
    fields_of = {field.name: field for field in QUESTIONS["plan"].fields}
    for key in query:
        if key not in fields_of:
            raise InputError(f"the page has no field {key!r}", hint="use its own fields")
    read = {k: _value(fields_of[k], checked(fields_of[k], v.strip())) for k, v in query.items() if v.strip()}
    for needed in ("model", "on"):
        if needed not in read:
            raise InputError(f"no {needed} is given", hint="fill in the model and the GPUs")
    return read


def _cluster(name: str) -> Cluster:
    from gpuwise.facts.hardware.this import is_this, this_cluster

    return this_cluster(name) if is_this(name) else _named(name)


@lru_cache(64)
def _named(name: str) -> Cluster:
    from gpuwise.facts.hardware.naming import USUAL, find_cluster

    return find_cluster(name, prefer=USUAL)


def _value(field: Field, text: str) -> Any:
    if field.kind in ("flag", "choice") and text in ("yes", "no"):
        return text == "yes"
    reader = _READ.get(field.name)
    return text if reader is None else reader(text, f"--{field.name.replace('_', '-')}")
