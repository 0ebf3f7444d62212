"""``gpuwise plan``: which GPUs, which layout, how long, how much."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from gpuwise.cli.options import (
    LEFT_OPEN,
    NOTHING_FIXED,
    Count,
    Duration,
    Fixed,
    Money,
    Training,
    wishes_of,
)


def plan(
    model: str,
    *,
    on: str | None = None,
    tokens: Count | None = None,
    deadline: Duration | None = None,
    budget: Money | None = None,
    training: Training = LEFT_OPEN,
    fixed: Fixed = NOTHING_FIXED,
    price: Money | None = None,
    provider: str | None = None,
    exhaustive: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Which GPUs, which layout, how long, how much, to train this?

    Searches precision, micro-batch, accumulation, sharding, tensor, pipeline, context and expert
    parallelism, recompute and offload, and explains the winner.

    Parameters
    ----------
    model
        A model by name (llama-3.1-8b), a Hugging Face config.json, or dimensions (layers=32,hidden=4096,...).
    on
        The GPUs: 8xH100-SXM, 2x8xH200, dgx-a100. Left out, rented systems are compared.
    tokens
        Tokens to train on: 15B, 300M.
    deadline
        Longest time: 12h, 3d.
    budget
        Most US dollars: 2000.
    price
        US dollars per GPU and hour, in place of the catalogue's.
    provider
        Whose price to use, in place of the median over providers.
    exhaustive
        Search every degree, schedule and offload rather than what is usual.
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.plan.api import make_plan

    wishes = wishes_of(
        training, fixed, tokens=tokens, deadline_s=deadline, budget_usd=budget, exhaustive=exhaustive
    )
    answer = make_plan(model, on, wishes, usd_per_hour=price, provider=provider)
    if json:
        from gpuwise.cli.out import print_json
        from gpuwise.plan.document import plan_document

        print_json(plan_document(answer))
    else:
        from gpuwise.cli.plan_view import show_plan

        show_plan(answer)
    return 0 if answer.best is not None else 1
