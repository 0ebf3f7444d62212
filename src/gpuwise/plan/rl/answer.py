"""A whole run of reinforcement learning, DPO, distillation or contrastive training: its step, time, cost, what would change it,
and the settings of the programs that run it."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from gpuwise.errors import GpuwiseError, InputError, UnpredictableError
from gpuwise.facts.hardware.naming import USUAL, find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.money.cost import Price, price_of, rent
from gpuwise.money.run.cost import run_usd
from gpuwise.money.run.goodput import Run, operate
from gpuwise.plan.cluster_document import cluster_document
from gpuwise.plan.goal import Wishes
from gpuwise.plan.rl.settings import settings_of
from gpuwise.plan.rl.step import Recipe, RlStep, Rollouts, between_phases, rl_step
from gpuwise.plan.whole_run import run_of
from gpuwise.predict.estimate import Estimate, to_document
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, ENGINES
from gpuwise.units import format_count
from gpuwise.workload.tasks import find_task, tasks
from gpuwise.workload.transformer.parameters import count_parameters

Document = dict[str, Any]
MEAN_SHARE = 0.5
"""Mean length of responses over the longest, where none is given: from 0.24 (Llama 3.1 8B, 910 of 3,946 tokens) to 0.78 (Qwen3
32B, 3,100 of 3,946) in NeMo RL's performance tables, 0.32 in verl issue 1208."""


@dataclass(frozen=True, slots=True)
class RlWishes:
    """What of an algorithm is asked for; ``None``: as is usual for it."""

    task: str
    steps: int | None = None
    prompts: int | None = None
    group: int | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    mean_response: float | None = None
    updates: int | None = None
    reference: bool | None = None
    engine_gpus: int = 0
    engine_ranks: int | None = None
    engine_version: str | None = None
    teacher: str | Architecture | None = None
    """A model, or :data:`STORED`."""
    tokens: float | None = None
    """Of the whole run, instead of ``steps``."""


STORED = "stored"
"""As a teacher: its logits were computed before, and are data."""
SAME_VOCABULARY = 0.02
"""Largest difference of two vocabularies that are one with other padding (Qwen2.5: 151,936 and 152,064)."""


@dataclass(frozen=True, slots=True)
class RlRun:
    """All steps on one cluster."""

    arch: Architecture
    step: RlStep
    steps: int
    run: Run
    """With its checkpoints and data, before stops."""
    wishes: Wishes
    assumed: tuple[str, ...]

    @property
    def tokens(self) -> float:
        """Tokens of all steps, prompts included."""
        return self.step.recipe.rollouts.tokens * self.steps


def plan_rl(
    model: str | Architecture,
    on: str | Cluster,
    asked: RlWishes,
    wishes: Wishes | None = None,
    *,
    usd_per_hour: float | None = None,
    provider: str | None = None,
    today: datetime.date | None = None,
) -> RlRun:
    """The fastest way to do the run. Raises InputError, LayoutError where nothing fits, and UnpredictableError."""
    arch = find_model(model) if isinstance(model, str) else model
    cluster = find_cluster(on, prefer=USUAL) if isinstance(on, str) else on
    plain = wishes or Wishes()
    if find_task(asked.task).contrastive:
        arch = replace(arch, pooled=True, lm_head=False)
    recipe, assumed = recipe_of(arch, cluster, asked, plain)
    usual = recipe.task.stacks[0] if cluster.n_accelerators > 1 else recipe.task.stack_alone
    plain = replace(plain, stack=plain.stack or usual)
    step = rl_step(arch, cluster, recipe, plain)
    steps = steps_of(asked, recipe, assumed)
    price = price_of(cluster, today or datetime.date.today(), usd_per_hour=usd_per_hour, provider=provider)
    assumed += [a for a in step.goal.assumed if a.startswith(("precision", "attention")) or "any of" in a]
    one = run_of(arch, cluster, step.training, recipe.rollouts.tokens * steps, price, provider)
    return RlRun(arch, step, steps, replace(one, time_s=step.step_time_s.scaled(steps)), plain, tuple(assumed))


def make_rl(
    model: str | Architecture,
    on: str | Cluster,
    asked: RlWishes,
    wishes: Wishes | None = None,
    *,
    usd_per_hour: float | None = None,
    provider: str | None = None,
    today: datetime.date | None = None,
) -> Document:
    """:func:`plan_rl` as one document, with the changes that were tried. Raises the same."""
    planned = plan_rl(model, on, asked, wishes, usd_per_hour=usd_per_hour, provider=provider, today=today)
    return cast(Document, to_document(_document(planned)))


def recipe_of(arch: Architecture, cluster: Cluster, asked: RlWishes, wishes: Wishes) -> tuple[Recipe, list[str]]:
    """What is asked for with its gaps filled, and what was assumed. Raises InputError for what cannot be meant."""
    task, assumed = find_task(asked.task), list[str]()
    if not task.prompts:
        raise InputError(
            f"{task.title} has no phases", hint="take --for " + ", ".join(t.name for t in tasks().values() if t.prompts)
        )
    if wishes.stack is not None and wishes.stack.partition("@")[0] not in task.stacks:
        raise InputError(f"{wishes.stack} has no {task.title} here", hint="it is planned with --stack " + ", ".join(task.stacks))
    if cluster.accelerator.vendor.lower() not in ("nvidia", "amd"):
        raise InputError(
            f"no program of {task.title} is known here for {cluster.accelerator.name}", hint="plan it on GPUs of NVIDIA or AMD"
        )
    if (asked.teacher is None) == task.teacher:
        raise InputError(
            f"{task.title} {'needs a' if task.teacher else 'has no'} teacher",
            hint="--teacher llama-3.1-70b, or --teacher stored where its logits are data"
            if task.teacher
            else "leave --teacher out",
        )
    prompt = asked.prompt_tokens or min(task.prompt_tokens, arch.max_seq_len // 4)
    response = asked.response_tokens or min(task.response_tokens, arch.max_seq_len - prompt)
    group, prompts = asked.group or task.group, asked.prompts or task.prompts
    if prompt + response > arch.max_seq_len and task.of_texts:
        raise InputError(
            f"texts of {response:,} tokens are longer than the context of {arch.name}, {arch.max_seq_len:,}",
            hint=f"use --seq {arch.max_seq_len} or less",
        )
    if prompt + response > arch.max_seq_len:
        raise InputError(
            f"a prompt of {prompt:,} and a response of {response:,} tokens are longer than the context of {arch.name}, "
            f"{arch.max_seq_len:,}",
            hint=f"use --response {max(arch.max_seq_len - prompt, 1)} or less, or a shorter --prompt",
        )
    if task.rollouts and not (task.critic or task.teacher) and group < 2:
        raise InputError(
            "a group of one has nothing to be compared with", hint="give --group 8, or --for ppo, which has a critic"
        )
    if not (task.rollouts or task.contrastive) and group != task.group:
        what = "reads texts" if task.of_texts else "compares pairs"
        raise InputError(f"{task.title} {what}, not groups of {group}", hint="leave --group out")
    mean = asked.mean_response or (1.0 if task.packed else MEAN_SHARE) * response
    if mean > response:
        raise InputError(
            f"responses of {mean:,.0f} tokens on average are longer than the longest, {response:,}", hint="give --response more"
        )
    updates = asked.updates or task.updates
    if prompts % updates:
        raise InputError(
            f"{updates} updates do not divide {prompts} prompts", hint=f"--prompts {-(-prompts // updates) * updates}"
        )
    n = cluster.n_accelerators
    if asked.engine_gpus >= n or (asked.engine_gpus and not task.rollouts):
        why = f"{n - 1} or fewer of the {n} GPUs" if task.rollouts else "GRPO, RLOO, PPO and on-policy distillation"
        raise InputError(f"--engine-gpus {asked.engine_gpus} leaves nothing to train on", hint=f"it is for {why}")
    sizes = [("queries" if task.contrastive else "sequences" if task.of_texts else "prompts", "a step", asked.prompts, prompts)]
    sizes += [] if task.of_texts else [("longest prompt", "", asked.prompt_tokens, prompt)]
    assumed += [
        f"{' '.join((name, per)).strip()} {value:,} ({task.source})" for name, per, given, value in sizes if given is None
    ]
    kind = "texts" if task.of_texts else "responses"
    if asked.response_tokens is None:
        assumed.append(f"{kind} of at most {response:,} tokens ({task.source})")
    if asked.mean_response is None and not task.packed:
        assumed.append(f"{mean:,.0f} tokens a {kind[:-1]} on average (half of the longest: --mean-response)")
    if asked.group is None and (task.rollouts or task.contrastive) and not task.teacher:
        assumed.append(
            f"{group} {kind} to a {'query, the right one among them' if task.contrastive else 'prompt'} ({task.source})"
        )
    if task.rollouts and not task.teacher:
        assumed.append("rewards by rule, in no time")
    reference = asked.reference is not False
    kept = task if not wishes.fine_tuning else replace(task, copies=())  # adapters are switched off for the reference
    if task.teacher:
        kept = task
    rollouts = Rollouts(prompts, group, prompt, mean, response, beside=int(task.contrastive))
    engine = (asked.engine_gpus, asked.engine_ranks, asked.engine_version)
    return Recipe(kept, rollouts, updates, reference, *engine, _teacher(arch, asked.teacher)), assumed


def _teacher(arch: Architecture, named: str | Architecture | None) -> Architecture | None:
    """The teacher, or None where its logits are stored. Raises InputError where it has another vocabulary."""
    if named is None or named == STORED:
        return None
    teacher = find_model(named) if isinstance(named, str) else named
    if abs(teacher.vocab / arch.vocab - 1.0) > SAME_VOCABULARY:
        raise InputError(
            f"{teacher.name} has a vocabulary of {teacher.vocab:,} tokens and {arch.name} of {arch.vocab:,}: their logits differ",
            hint="name a teacher of the same family",
        )
    return teacher


def steps_of(asked: RlWishes, recipe: Recipe, assumed: list[str]) -> int:
    """Steps of the run; what was assumed is added."""
    task, r = recipe.task, recipe.rollouts
    if asked.tokens is not None:
        return max(math.ceil(asked.tokens / r.tokens), 1)
    if asked.steps is not None:
        return asked.steps
    if task.tokens is not None:
        assumed.append(f"{format_count(task.tokens)} tokens ({task.tokens_source}: --tokens)")
        return math.ceil(task.tokens / r.tokens)
    assumed.append(f"{task.steps} steps (--steps)")
    return task.steps


def _whole(run: Run) -> tuple[Estimate, Estimate | None]:
    """Time and cost of all steps, with checkpoints and stops."""
    try:
        done = operate(run)
    except UnpredictableError:
        return run.time_s, None if run.price is None else rent(run.time_s, run.cluster.n_accelerators, run.price)
    return done.wall_s, None if run.price is None else run_usd(run, done)


def _changes(arch: Architecture, step: RlStep, wishes: Wishes) -> list[Document]:
    """Single changes and the step they make, fastest first."""
    made: list[Document] = []
    for name, recipe, sets, same in _other(step):
        try:
            other = rl_step(arch, step.cluster, recipe, wishes)
        except GpuwiseError:
            continue
        slower = other.step_time_s.expected / step.step_time_s.expected - 1.0
        made.append({"name": name, "step_time_s": other.step_time_s, "slower": slower, "same_result": same, "sets": sets})
    return sorted(made, key=lambda c: c["slower"])


def _other(step: RlStep) -> Iterator[tuple[str, Recipe, Mapping[str, str], bool]]:
    """Name, recipe, options, and whether the training learns the same."""
    recipe, r, n = step.recipe, step.recipe.rollouts, step.cluster.n_accelerators
    half = r.most_tokens // 2
    shorter = replace(r, most_tokens=half, mean_tokens=r.mean_tokens / 2.0)
    kind, option = ("texts", "seq") if recipe.task.of_texts else ("responses", "response")
    yield f"{kind} half as long, at most {half:,} tokens", replace(recipe, rollouts=shorter), {option: str(half)}, False
    if recipe.teacher is not None and not recipe.task.rollouts:
        yield "logits of the teacher computed before", replace(recipe, teacher=None), {"teacher": STORED}, True
    if recipe.task.rollouts and r.group > 2 and not r.group % 2:
        fewer = replace(recipe, rollouts=replace(r, group=r.group // 2))
        yield f"{r.group // 2} responses to a prompt", fewer, {"group": str(r.group // 2)}, False
    if recipe.reference and "reference" in recipe.task.passes and recipe.task.rollouts:
        yield "no reference model (no KL term)", replace(recipe, reference=False), {"reference": "no"}, False
    if step.generation is not None:
        for ranks in dict.fromkeys(g.ranks for g in step.other if g.ranks != step.generation.ranks):
            yield f"{ranks} tensor ranks an engine", replace(recipe, engine_ranks=ranks), {"engine-ranks": str(ranks)}, True
        if not recipe.engine_gpus and n > 1 and n % 2 == 0:
            own = replace(recipe, engine_gpus=n // 2, engine_ranks=None)
            yield "half of the GPUs generate, one step ahead", own, {"engine-gpus": str(n // 2)}, False


def _document(planned: RlRun) -> Document:
    arch, step, steps, price = planned.arch, planned.step, planned.steps, planned.run.price
    cluster, (time_s, cost) = step.cluster, _whole(planned.run)
    recipe, r, g, count = step.recipe, step.recipe.rollouts, step.generation, count_parameters(arch)
    device = usable_bytes(cluster.accelerator)
    fullest = max(step.memory_bytes, key=lambda name: step.memory_bytes[name])
    return {
        "for": recipe.task.name,
        "title": recipe.task.title,
        "model": {"id": arch.id, "name": arch.name, "parameters": count.total, "active_parameters": count.active},
        "cluster": cluster_document(cluster),
        "goal": {
            "task": recipe.task.name,
            "steps": steps,
            "prompts": r.prompts,
            "group": r.group,
            "prompt_tokens": r.prompt_tokens,
            "response_tokens": r.most_tokens,
            "mean_response": r.mean_tokens,
            "updates": recipe.updates,
            "reference": recipe.reference and "reference" in recipe.task.passes,
            "learning_rate": recipe.task.learning_rate,
            "texts": recipe.task.of_texts,
            "contrastive": recipe.task.contrastive,
            "teacher": None if recipe.teacher is None else recipe.teacher.name,
        },
        "fits": True,
        "time_s": time_s,
        "cost_usd": cost,
        "price": price,
        "step_time_s": step.step_time_s,
        "breakdown_s": step.parts_s,
        "tokens_per_s": step.step_time_s.inverse(r.tokens),
        "between_phases": between_phases(recipe),
        "training_gpus": cluster.n_accelerators - recipe.engine_gpus,
        "engine": None
        if g is None
        else {
            "program": ENGINES[DEFAULT_ENGINE].title,
            "gpus": recipe.engine_gpus or cluster.n_accelerators,
            "own_gpus": bool(recipe.engine_gpus),
            "ranks": g.ranks,
            "engines": g.engines,
            "memory_share": g.share,
            "training_offloaded": g.offloaded,
        },
        "strategy": {**cast(Document, to_document(step.training.strategy)), "global_batch": step.training.strategy.global_batch},
        "fit_probability": step.training.fit_probability,
        "device_bytes": device,
        "memory_bytes": step.memory_bytes[fullest],
        "memory_phases_bytes": step.memory_bytes,
        "memory_parts_bytes": step.update_bytes,
        "fullest": fullest,
        "changes": _changes(arch, step, planned.wishes),
        "settings": settings_of(arch, step, steps),
        "assumed": list(planned.assumed),
        "warnings": list(_warnings(step, price)),
    }


def _warnings(step: RlStep, price: Price | None) -> Iterator[str]:
    if step.recipe.engine_gpus:
        yield "the engine is one step ahead: it generates with the weights before the last updates"
    if price is None:
        yield "no rental price is known for this accelerator: give one with --price"
    elif price.stale:
        yield f"the price is {price.age_days} days old"
