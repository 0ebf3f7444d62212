"""``gpuwise plan``: which GPUs, which layout, how long, how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import (
    LEFT_OPEN,
    NOTHING_FIXED,
    Count,
    Duration,
    LayoutOptions,
    Money,
    Training,
    wishes_of,
)
from gpuwise.cli.reports import report
from gpuwise.cli.rollouts import NO_ROLLOUTS, RolloutOptions, has_phases, refuse_rollouts, rl_wishes
from gpuwise.cli.shown import options_shown
from gpuwise.cli.step.named import NO_PICTURES, PictureOptions, refuse_pictures
from gpuwise.cli.step.options import NO_CODE, OwnCode, is_own_code, refuse_arguments, refuse_own
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
else:
    Shown = options_shown("plan")


def plan(
    model: Annotated[str, Parameter(metavar="MODEL")],
    *arguments: str,
    on: Annotated[str | None, Parameter(show_default="rented systems, compared", metavar="GPUS")] = None,
    tokens: Count | None = None,
    samples: Count | None = None,
    deadline: Duration | None = None,
    budget: Money | None = None,
    training: Training = LEFT_OPEN,
    rollouts: RolloutOptions = NO_ROLLOUTS,
    fixed: LayoutOptions = NOTHING_FIXED,
    pictures: PictureOptions = NO_PICTURES,
    code: OwnCode = NO_CODE,
    price: Money | None = None,
    provider: Annotated[str | None, Parameter(metavar="NAME")] = None,
    exhaustive: Annotated[bool, Parameter(negative="")] = False,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Which GPUs, which layout, how long, how much, to train this?

    Searches precision, micro-batch, accumulation, sharding, tensor, pipeline, context and expert
    parallelism, recompute and offload, and explains the winner. For your own script (train.py, train.py:make_step), gpuwise
    traces one step without a GPU and reports its time, bottlenecks and cost.

    Parameters
    ----------
    model
        A model by name (llama-3.1-8b), a Hugging Face config.json, dimensions (layers=32,hidden=4096,...), or your
        own code: train.py (the whole script; its own arguments come after --), train.py:make_step,
        package.module:function, hf:path/to/config.json.
    arguments
        The script's own arguments, after --.
    on
        The GPUs: 8xH100-SXM, 2x8xH200, dgx-a100, this (the GPUs of this machine, as measured here), slurm:PARTITION or k8s (the
        nodes of a scheduler; see the guide "Plan for the cluster that is there").
    tokens
        Tokens to train on: 15B, 300M.
    samples
        Own code and image models: samples to train on, 1.28M for an epoch of ImageNet.
    deadline
        Longest time: 12h, 3d.
    budget
        Most US dollars: 2000.
    price
        US dollars per GPU and hour, instead of the catalogue's price.
    provider
        Use the price of this provider instead of the median over providers.
    exhaustive
        Search every degree, schedule and offload, not only the common ones.
    json
        One JSON document on the last line of stdout.
    """
    if is_own_code(model):
        from gpuwise.cli.step.plan import plan_own

        refuse_rollouts(rollouts)
        if tokens is not None or deadline is not None or budget is not None or exhaustive:
            raise InputError(
                "--tokens, --deadline, --budget and --exhaustive are for models of the catalogue",
                hint="with your own code and ResNets give --samples",
            )
        return plan_own(
            model,
            on,
            training,
            fixed,
            code,
            arguments,
            pictures,
            samples=samples,
            price=price,
            provider=provider,
            shown=shown,
            json=json,
        )
    refuse_pictures(pictures)
    refuse_own(code)
    refuse_arguments(arguments)
    if has_phases(training.purpose):
        if (samples, deadline, budget) != (None,) * 3 or exhaustive:
            raise InputError(
                f"--samples, --deadline, --budget and --exhaustive mean nothing for --for {training.purpose}",
                hint="its length is --steps 500",
            )
        from gpuwise.plan.rl.answer import make_rl
        from gpuwise.report.answers.rl import rl_answer

        if on is None:
            raise InputError(f"--for {training.purpose} needs GPUs", hint="name them with --on 8xH100-SXM")
        asked = rl_wishes(rollouts, training, fixed, tokens)
        document = make_rl(model, on, *asked, usd_per_hour=price, provider=provider)
        report(document, rl_answer, shown, json=json)
        return 0
    refuse_rollouts(rollouts)
    from gpuwise.plan.api import make_plan

    if samples is not None:
        from gpuwise.plan.job import tokens_of_samples

        tokens = tokens_of_samples(model, samples, tokens)
    wishes = wishes_of(training, fixed, tokens=tokens, deadline_s=deadline, budget_usd=budget, exhaustive=exhaustive)
    from gpuwise.plan.document import answer_document

    answer = make_plan(model, on, wishes, usd_per_hour=price, provider=provider)
    from gpuwise.report.answers.training import plan_answer

    report(answer_document(answer), plan_answer, shown, json=json)
    return 0 if answer.best is not None and answer.best.estimate.fits else 1
