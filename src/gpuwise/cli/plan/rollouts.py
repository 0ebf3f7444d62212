"""``gpuwise plan --for grpo|rloo|ppo|dpo``: options of algorithms that learn from several responses to a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from gpuwise.cli.options import LayoutOptions, Length, Training, Whole, given, refuse, wishes_of
from gpuwise.cli.reports import report
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown

RL = Group("Of --for grpo, rloo, ppo and dpo", sort_key=50)


@Parameter(name="*", group=RL)
@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """What a step learns from."""

    steps: Annotated[Whole | None, Parameter(show_default="500")] = None
    """Steps of the run: rollouts and their updates."""
    prompts: Annotated[Whole | None, Parameter(show_default="the algorithm's")] = None
    """Prompts a step."""
    group: Annotated[Whole | None, Parameter(show_default="the algorithm's")] = None
    """Responses to each prompt."""
    prompt: Annotated[Length | None, Parameter(show_default="the algorithm's")] = None
    """Longest prompt."""
    response: Annotated[Length | None, Parameter(show_default="the algorithm's")] = None
    """Longest response."""
    mean_response: Annotated[Length | None, Parameter(show_default="half of the longest")] = None
    """Tokens of a response on average."""
    updates: Annotated[Whole | None, Parameter(show_default="the algorithm's")] = None
    """Updates a step."""
    reference: bool = True
    """Read a frozen reference model for the KL term."""
    engine_gpus: Annotated[Whole | None, Parameter(show_default="those of the training")] = None
    """GPUs that only generate, one step ahead of the training."""
    engine_ranks: Annotated[Whole | None, Parameter(show_default="the fastest", metavar="RANKS")] = None
    """Tensor parallel ranks of an engine."""
    engine_version: Annotated[str | None, Parameter(show_default="the newest", metavar="VERSION")] = None
    """Version of vLLM that generates: 0.10.2."""


NO_ROLLOUTS = RolloutOptions()
TAKEN = ("purpose", "lora", "risk", "host_memory", "year", "half_weights")
"""Options of a training that mean something here."""


def refuse_rollouts(rollouts: RolloutOptions) -> None:
    """Raises InputError when an option of rollouts is given with a task that has none."""
    refuse(
        given(rollouts, NO_ROLLOUTS), "is for algorithms that learn from several responses", "add --for grpo, rloo, ppo or dpo"
    )


def plan_rollouts(
    model: str,
    on: str | None,
    rollouts: RolloutOptions,
    training: Training,
    fixed: LayoutOptions,
    *,
    price: float | None,
    provider: str | None,
    shown: Shown | None,
    json: bool,
) -> int:
    """Plan and show. Raises what :func:`gpuwise.plan.rl.answer.make_rl` raises."""
    from gpuwise.cli.options import LEFT_OPEN
    from gpuwise.plan.rl.answer import RlWishes, make_rl
    from gpuwise.report.answers.rl import rl_answer

    if on is None:
        raise InputError(f"--for {training.purpose} needs GPUs", hint="name them with --on 8xH100-SXM")
    refuse(
        given(training, LEFT_OPEN),
        f"means nothing for --for {training.purpose}",
        "--prompts, --prompt and --response set it",
        TAKEN,
    )
    asked = RlWishes(
        training.purpose or "",
        rollouts.steps,
        rollouts.prompts,
        rollouts.group,
        rollouts.prompt,
        rollouts.response,
        rollouts.mean_response,
        rollouts.updates,
        rollouts.reference,
        rollouts.engine_gpus or 0,
        rollouts.engine_ranks,
        rollouts.engine_version,
    )
    document = make_rl(model, on, asked, wishes_of(training, fixed), usd_per_hour=price, provider=provider)
    report(document, rl_answer, shown, json=json)
    return 0
