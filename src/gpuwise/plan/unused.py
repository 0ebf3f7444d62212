"""Notes beside a plan: options without effect, formats not requested, published runs, parts of training that the step omits.
Nothing is dropped silently."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.models.known_runs import known_runs
from gpuwise.facts.sources import sources
from gpuwise.plan.answer import Option, tokens_of
from gpuwise.plan.defaults import batch_for_devices, todays_year
from gpuwise.plan.goal import FASTER, Goal
from gpuwise.plan.space.search import estimate_all
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.units import HOUR_S, format_count, format_duration, percent
from gpuwise.workload.optimizer import PAGED
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.tasks import FEW_UPDATES


def unused(goal: Goal, s: Strategy) -> Iterator[str]:
    """Each option of the goal that the strategy ``s`` has no use for, a sentence."""
    wishes, fixed, arch = goal.wishes, goal.wishes.fixed, goal.arch
    if s.pp == 1 and fixed.get("schedule", "1f1b") != "1f1b":
        yield f"the {fixed['schedule']} schedule is not used: the plan has no pipeline (--pp 2 or more gives one)"
    if s.cp == 1 and wishes.context_parallel != "ring":
        yield f"{wishes.context_parallel} exchange is not used: the plan has no context parallelism (--cp)"
    if s.tp == 1 and fixed.get("sequence_parallel") is True:
        yield "sequence parallelism is not used: the plan has no tensor parallelism (--tp)"
    if arch.moe is None or s.ep == 1:
        why = "the model has no experts" if arch.moe is None else "each rank has all experts (--ep)"
        if wishes.expert_dispatch is not None:
            yield f"the exchange {wishes.expert_dispatch} is not used: {why}"
        if wishes.overlap_ep is not None:
            yield f"the overlap of experts' transfers makes no difference: {why}"
    if arch.moe is None and wishes.etp > 1:
        yield "experts over tensor ranks (--etp) make no difference: the model has no experts"
    if arch.moe is None and wishes.cuda_graphs == "none":
        yield "partial CUDA graphs make no difference: they are modelled for layers with experts"
    if wishes.fused_loss and not arch.lm_head:
        yield "a loss in chunks makes no difference: the model has no head over a vocabulary"
    if wishes.packed_document_len is not None and wishes.packed_document_len >= goal.seq_len:
        yield f"packing makes no difference: documents of {wishes.packed_document_len:,} tokens fill {goal.seq_len:,}"


def of_stack(s: Strategy) -> Iterator[str]:
    """Effects of the software of ``s`` that its time does not include."""
    if (script := find_stack(s.stack).instead.own_script) and s.sharding == "zero3" and s.recompute != "full":
        yield f"a model that is not made under deepspeed.zero.Init keeps gathered weights longer: --stack {script}"
    if s.optimizer in PAGED:
        yield "what moving pages of optimizer states costs where memory is short is not in the time"


def published(
    goal: Goal, best: Option[TrainingEstimate], of_year: Callable[[int], Option[TrainingEstimate] | None]
) -> Iterator[str]:
    """Published runs of the same model, each with its GPU hours beside those of this plan, stops included in both; of a run
    with older software also those of the plan ``of_year`` with that software (None where it has none), or with today's where this
    plan has that software unasked, and its energy."""
    if goal.wishes.fine_tuning:
        return

    def hours(option: Option[TrainingEstimate]) -> float:
        return option.time_s.expected * 1e12 / tokens_of(goal.wishes) * goal.cluster.n_accelerators / HOUR_S

    mine = hours(best)
    for run in known_runs().get(goal.arch.id, ()):
        name = accelerators()[run.accelerator_id].name
        where = f"{name}" if run.gpus is None else f"{run.gpus:,} {name}"
        took = [] if run.wall_s is None else [f"in {format_duration(run.wall_s)}"]
        took += [] if run.gpu_hours is None else [("" if took else "in ") + f"{run.gpu_hours:,.0f} GPU hours"]
        each = run.gpu_hours_per_token * 1e12
        took += [] if run.mwh is None else [f"{run.mwh:,.0f} MWh by its authors' count"]
        same = " here" if run.accelerator_id == goal.cluster.accelerator.id else f" on {goal.cluster.accelerator.name}"
        alike = goal.cluster.accelerator.family == accelerators()[run.accelerator_id].family
        dated = run.year is not None and alike and goal.wishes.year is None
        other = None if not dated or run.year is None else of_year(run.year if goal.year is None else todays_year(goal.arch))
        if other is not None:
            words = (
                f"the software of its time (--year {run.year})"
                if goal.year is None
                else f"today's (--year {todays_year(goal.arch)})"
            )
            same += f", with {words} {hours(other):,.0f}"
        older = other if goal.year is None else best
        if dated and run.mwh is not None and older is not None and older.energy is not None:
            kwh = older.energy.kwh.expected / tokens_of(goal.wishes) * run.tokens / older.energy.pue
            same += f" and {kwh / 1e3:,.0f} MWh" if goal.year is None else f"; {kwh / 1e3:,.0f} MWh here"
            same += " without cooling for as many tokens"
        yield (
            f"Published: {format_count(run.tokens)} tokens on {where} {', '.join(took)}"
            f"{f' ({run.notes})' if run.notes else ''}; {each:,.0f} GPU hours a trillion tokens, this plan {mine:,.0f}{same}. "
            f"{sources()[run.source_key].title}."
        )


def left_out(goal: Goal) -> Iterator[str]:
    """Parts of training the model that the prediction omits."""
    if goal.arch.id.startswith("clip"):
        yield (
            "trained by contrast, a tower gathers the embeddings of every rank for its loss and has a second tower beside it: "
            "neither is modelled"
        )
    if goal.arch.id.startswith("deberta"):
        yield from goal.arch.notes
    if goal.arch.patches is not None:
        yield "images must be read and decoded as fast as they are used: the loader is not modelled"
    if goal.arch.encoder is not None and goal.arch.encoder.n_mels:
        yield "sound must be read and made into spectrograms as fast as it is used: the loader is not modelled"


def step_note(goal: Goal) -> Iterator[str]:
    """Notes on a run of fewer than :data:`FEW_UPDATES`, and the batch that would give that many."""
    tokens, a_step, n = goal.wishes.tokens, goal.global_batch * goal.seq_len, goal.cluster.n_accelerators
    if tokens is None or tokens >= FEW_UPDATES * a_step:
        return
    updates = "less than one update" if tokens < a_step else f"{tokens / a_step:.0f} updates"
    batch = int(tokens // (FEW_UPDATES * goal.seq_len)) // n * n
    more = f": --global-batch {batch} makes {tokens / (batch * goal.seq_len):.0f}" if batch else ""
    yield f"{format_count(tokens)} tokens are {updates} of {format_count(a_step)} tokens{more}"


def batch_note(goal: Goal) -> Iterator[str]:
    """A batch given by hand that few data-parallel ranks divide, and one near it that they do."""
    n, batch = goal.cluster.n_accelerators, goal.global_batch
    fed = math.gcd(n, batch)
    if goal.wishes.global_batch is None or 2 * fed >= min(n, batch):
        return
    other = batch_for_devices(batch, n)
    if other != batch:
        ranks = "data-parallel rank" if fed == 1 else "data-parallel ranks"
        yield f"a global batch of {batch:,} divides over {fed} {ranks} of {n:,} GPUs at most: --global-batch {other} suits them"


def faster_formats(goal: Goal, best: TrainingEstimate) -> Iterator[str]:
    """Speed of each faster format that the accelerator and the stack's tool support and the user did not request, in the same
    layout."""
    s = best.strategy
    if s.precision in ("fp32", "tf32") or s.quantized_base:
        return
    from gpuwise.export.job import Job  # loads every tool; a fit needs none of them
    from gpuwise.export.targets import tool_of

    tool = tool_of(s.stack, adapters=s.lora_rank > 0)

    def lacking(strategy: Strategy) -> set[str]:
        return set(tool.gaps(Job(goal.arch, goal.cluster, strategy, goal.seq_len))) if tool else set()

    rates = goal.cluster.accelerator.peak_flop_per_s
    precisions = {b.precision for b in goal.bases}
    sentences: list[str] = []
    for form in (f for f in FASTER if f in rates and f not in precisions):
        if lacking(s.with_(precision=form)) - lacking(s):
            continue
        try:
            e = estimate_all(goal, [s.with_(precision=form)])[0]
        except UnpredictableError:
            continue
        less = 1 - e.step_time_s.expected / best.step_time_s.expected
        words = "no less" if less < 0.005 else f"{percent(less)} less"
        sentences.append(f"{words} in {form}" + ("" if e.fits else " (which does not fit)"))
    if sentences:
        yield f"Fewer bits (--precision): time would be {', '.join(sentences)}; whether it converges as well must be tried."
