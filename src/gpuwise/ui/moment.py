"""What a slider asks: one layout, at once, in the server's own process; a search follows behind.

The plan is that of :func:`gpuwise.plan.one_strategy.plan_strategy`, its document the one of ``gpuwise plan`` with every part of
the layout given.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from gpuwise.cli.options import (
    Fixed,
    Training,
    money,
    positive_count,
    positive_duration,
    sequence_length,
    share,
    whole_number,
    wishes_of,
)
from gpuwise.errors import InputError
from gpuwise.ui.questions import QUESTIONS, checked

WHOLE = "global_batch lora_rank tp pp cp ep dp micro_batch accumulation virtual_stages shard_group recompute_every"
_READ: Mapping[str, Callable[[str, str], Any]] = {
    "tokens": positive_count,
    "deadline": positive_duration,
    "budget": money,
    "price": money,
    "seq": sequence_length,
    "packed": sequence_length,
    "risk": share,
    **dict.fromkeys(WHOLE.split(" "), whole_number),
}
"""How the command line reads a value that is no word."""


def moment(query: Mapping[str, str], today: datetime.date | None = None) -> dict[str, Any]:
    """The document of one layout, with prices of ``today``. Raises what the command raises."""
    asked = {field.name: field for field in QUESTIONS["plan"].fields}
    for key in query:
        if key not in asked:
            raise InputError(f"the page does not ask for {key!r}", hint="use its own fields")
    from gpuwise.cli.this_machine import cluster_or_text
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.plan.document import answer_document
    from gpuwise.plan.one_strategy import plan_strategy
    from gpuwise.plan.planner import Pricing

    read = {k: _value(k, checked(asked[k], v.strip())) for k, v in query.items() if v.strip()}
    for needed in ("model", "on"):
        if needed not in read:
            raise InputError(f"no {needed} is given", hint="fill in the model and the GPUs")
    training = Training(**{f.name: read[f.name] for f in fields(Training) if f.name in read})
    fixed = Fixed(**{f.name: read[f.name] for f in fields(Fixed) if f.name in read})
    wishes = wishes_of(
        training,
        fixed,
        tokens=read.get("tokens"),
        deadline_s=read.get("deadline"),
        budget_usd=read.get("budget"),
        exhaustive=False,
    )
    named = cluster_or_text(read["on"])
    cluster = find_cluster(named) if isinstance(named, str) else named
    pricing = Pricing(today or datetime.date.today(), read.get("price"), read.get("provider"))
    return answer_document(plan_strategy(find_model(read["model"]), cluster, wishes, pricing))


def _value(name: str, text: str) -> Any:
    if text in ("yes", "no"):
        return text == "yes"
    reader = _READ.get(name)
    return text if reader is None else reader(text, f"--{name.replace('_', '-')}")
