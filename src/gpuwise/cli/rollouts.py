"""``--for grpo|rloo|ppo|dpo|distill|opd|embed``: options of trainings whose step has phases, in ``plan`` and ``fit``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from gpuwise.cli.options import LEFT_OPEN, LayoutOptions, Length, Training, Whole, given, refuse, wishes_of
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.plan.goal import Wishes
    from gpuwise.plan.rl.answer import RlWishes

RL = Group("Of --for grpo, rloo, ppo, dpo, distill, opd and embed", sort_key=50)


@Parameter(name="*", group=RL)
@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """What a step learns from."""

    steps: Annotated[Whole | None, Parameter(show_default="the task's")] = None
    """Steps of the run: rollouts and their updates."""
    prompts: Annotated[Whole | None, Parameter(show_default="the algorithm's")] = None
    """Prompts a step."""
    group: Annotated[Whole | None, Parameter(show_default="the algorithm's")] = None
    """Responses to each prompt; embed: texts to each query, the right one and hard negatives."""
    prompt: Annotated[Length | None, Parameter(show_default="the algorithm's")] = None
    """Longest prompt."""
    response: Annotated[Length | None, Parameter(show_default="the algorithm's")] = None
    """Longest response."""
    mean_response: Annotated[Length | None, Parameter(show_default="half of the longest")] = None
    """Tokens of a response on average."""
    updates: Annotated[Whole | None, Parameter(show_default="the algorithm's")] = None
    """Updates a step."""
    teacher: Annotated[str | None, Parameter(metavar="MODEL")] = None
    """distill and opd: the model that is learnt from, or stored: its logits were computed before."""
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
"""Options of a training that mean something here; of texts also their length and number."""
OF_TEXTS, OF_PROMPTS = ("seq", "global_batch"), ("prompts", "prompt", "response")


def refuse_rollouts(rollouts: RolloutOptions) -> None:
    """Raises InputError when an option of phases is given with a task that has none."""
    refuse(given(rollouts, NO_ROLLOUTS), "is for trainings whose step has phases", "add --for " + ", ".join(_phased()))


def _phased() -> list[str]:
    from gpuwise.workload.tasks import tasks

    return [t.name for t in tasks().values() if t.prompts]


def has_phases(purpose: str | None) -> bool:
    """Whether the task's step has phases: rollouts, passes of frozen models, updates."""
    from gpuwise.workload.tasks import find_task

    return purpose not in (None, "run") and find_task(str(purpose)).prompts > 0


def rl_wishes(
    rollouts: RolloutOptions, training: Training, fixed: LayoutOptions, tokens: float | None = None
) -> tuple[RlWishes, Wishes]:
    """What is asked for. Raises InputError on options that mean nothing for the task."""
    from gpuwise.plan.rl.answer import RlWishes
    from gpuwise.workload.tasks import find_task

    task, name = find_task(training.purpose or ""), f"--for {training.purpose}"
    if task.of_texts:
        refuse(
            [name for name in given(rollouts, NO_ROLLOUTS) if name in OF_PROMPTS],
            f"means nothing for {name}",
            "--global-batch and --seq set it",
        )
    elif tokens is not None:
        raise InputError(f"--tokens mean nothing for {name}", hint="its length is --steps 500")
    if tokens is not None and rollouts.steps is not None:
        raise InputError("--tokens and --steps are two lengths of a run", hint="give one of them")
    taken = (*TAKEN, *OF_TEXTS) if task.of_texts else TAKEN
    refuse(given(training, LEFT_OPEN), f"means nothing for {name}", "--prompts, --prompt and --response set it", taken)
    asked = RlWishes(
        task.name,
        rollouts.steps,
        training.global_batch or rollouts.prompts,
        rollouts.group,
        rollouts.prompt,
        training.seq or rollouts.response,
        rollouts.mean_response,
        rollouts.updates,
        rollouts.reference,
        rollouts.engine_gpus or 0,
        rollouts.engine_ranks,
        rollouts.engine_version,
        rollouts.teacher,
        tokens,
    )
    return asked, wishes_of(replace(training, seq=None, global_batch=None), fixed)
