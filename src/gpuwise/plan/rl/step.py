"""Seconds and memory of one step that is more than an update: rollouts, passes of frozen models or of GradCache, updates, weight
synchronisation. Reinforcement learning, DPO, distillation and contrastive training are such steps.

Nothing is timed here: rollouts are the simulated engine's (:mod:`gpuwise.serve.simulate`), passes and updates the training step's
(:mod:`gpuwise.predict.step`), the weights' way into the engine a collective's (:mod:`gpuwise.predict.comm`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import GpuwiseError, LayoutError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.interval import Z80
from gpuwise.plan.goal import Goal, Wishes, make_goal
from gpuwise.plan.promise import promised
from gpuwise.plan.space.search import find_fastest
from gpuwise.predict.comm.collectives import collective_time
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.kernels.transfer import transfer_time
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.step.training import TrainingEstimate, estimates
from gpuwise.serve.engines.engine import tensor_parallel
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.load.lengths import Lengths
from gpuwise.serve.load.requests import Requests
from gpuwise.serve.replica import most_ranks
from gpuwise.serve.simulate import Server
from gpuwise.units import GIGA
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.tasks import Task
from gpuwise.workload.transformer.parameters import count_parameters

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
LENGTH_CV = 0.5
"""Coefficient of variation of the lengths of responses: 0.4 % of 5,120 responses of 325 tokens on average reach 1,024
(verl-project/verl issue 1208), the longest of 512 of 288 tokens has 675 (pull request 5637): 0.51 and 0.30 of a log-normal."""
HALF_BYTES = 2.0
"""Bytes of a weight in the engine, and of a frozen copy."""
MOST_SEQUENCES = 1024
"""Sequences at once of an engine: verl's ``rollout.max_num_seqs``."""
ENGINE_SHARE = 0.85
"""Most of a GPU's memory that an engine gets beside a training that sleeps: DeepScaleR's ``gpu_memory_utilization``."""
SPARE_BYTES = 2.0 * GIGA
"""Left to torch beside the engine: contexts and communicators of two programs."""
SLOWDOWN: Mapping[bool, float] = {False: 1.25, True: 1.05}
"""A measured step over the sum of its phases, where the engine shares the GPUs of the training and where it has its own: waking
and sleeping, batches of unequal length, the program between the phases. Geometric means of six and six published
steps of Llama 3.1 8B and Qwen3 32B (``studies/reports/rl.toml``); other models are the check."""
PLAIN_EXPERTS: Mapping[str, Any] = {"expert_dispatch": "all-to-all", "overlap_ep": False, "cuda_graphs": "none"}
"""How programs of reinforcement learning run experts, unlike recipes of pre-training: NVIDIA-NeMo/RL v0.6.0
examples/configs/grpo_math_1B.yaml (``moe_token_dispatcher_type: alltoall``, ``moe_enable_deepep: false``, no CUDA graphs)."""
LOAD_S = 1.3e-4
"""Of the engine's loader for one tensor of a checkpoint: what published transfers take beyond the gather (NVIDIA-NeMo/RL pull
requests 1379 and 3461: Qwen3 235B 5.5 s, DeepSeek-V3 14 s, Qwen3 30B on GB200 1.9 s: 1.2, 2.2 and 0.9e-4, geometric mean)."""
LAYER_TENSORS = 9
"""Of a layer beside its experts: four of attention, three of the MLP, two norms."""
LOG_SIGMA = 0.29
"""Spread of log(measured / predicted) of the 16 steps of other models."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What one step trains on: ``prompts`` of ``prompt_tokens``, ``group`` responses to each, of ``mean_tokens`` on average
    and at most ``most_tokens``."""

    prompts: int
    group: int
    prompt_tokens: int
    mean_tokens: float
    most_tokens: int

    beside: int = 0
    """Sequences of a prompt beside its group: the query of contrastive training."""

    @property
    def sequences(self) -> int:
        return self.prompts * (self.group + self.beside)

    @property
    def mean_length(self) -> int:
        """Tokens of a prompt with its response, on average."""
        return max(round(self.prompt_tokens + self.mean_tokens), 1)

    @property
    def longest(self) -> int:
        return self.prompt_tokens + self.most_tokens

    @property
    def tokens(self) -> float:
        """Tokens of a step, prompts included."""
        return float(self.sequences * self.mean_length)

    def requests(self, engines: int) -> Requests:
        """The share of one of ``engines``, all sent at once; the longest of all engines among them. Responses to one prompt share
        its text."""
        prompts = -(-self.prompts // engines)
        n = prompts * self.group
        levels = (np.arange(n) + 0.5) / n
        levels[-1] = 1.0 - 0.5 / max(self.sequences, n)
        output = np.random.default_rng(0).permutation(_cut(self.mean_tokens, self.most_tokens, levels))
        texts = np.repeat(np.arange(prompts), self.group).astype(np.int64)
        return Requests(np.zeros(n), np.full(n, self.prompt_tokens, np.int64), output, text=texts)


def _cut(mean: float, most: int, levels: F64) -> I64:
    """Lengths at ``levels`` that are ``mean`` on average, after those beyond ``most`` are cut there."""
    low, high = mean, 64.0 * mean
    for _ in range(40):
        middle = math.sqrt(low * high)
        cut = np.minimum(Lengths(middle, cv=LENGTH_CV).at(levels), most).mean()
        low, high = (middle, high) if cut < mean else (low, middle)
    return np.minimum(Lengths(low, cv=LENGTH_CV).tokens(levels), most)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One algorithm on one split of the GPUs."""

    task: Task
    rollouts: Rollouts
    updates: int
    reference: bool = True
    """A frozen copy of the first weights is read for the KL term."""
    engine_gpus: int = 0
    """GPUs that only generate; 0: the training's own GPUs, while it sleeps."""
    engine_ranks: int | None = None
    """Tensor-parallel ranks of an engine; None: the fastest."""
    engine_version: str | None = None
    """Version of vLLM; None: the newest with known costs."""
    teacher: Architecture | None = None
    """Frozen model that is learnt from; None: its logits are stored."""

    @property
    def passes(self) -> tuple[str, ...]:
        """Forward passes over a step's tokens."""
        return tuple(p for p in self.task.passes if self._there(p))

    @property
    def frozen(self) -> tuple[str, ...]:
        """Frozen models in memory."""
        return tuple(c for c in self.task.copies if self._there(c))

    def _there(self, name: str) -> bool:
        return self.reference if name == "reference" else self.teacher is not None if name == "teacher" else True

    def reads(self, name: str, arch: Architecture) -> Architecture:
        """The model of that pass or copy, where ``arch`` is trained."""
        return self.teacher if name == "teacher" and self.teacher is not None else arch


@dataclass(frozen=True, slots=True)
class Generation:
    """Rollouts on ``engines`` of ``ranks`` GPUs each, of whose memory they take ``share``; ``offloaded``: the training's states
    are in host memory meanwhile."""

    ranks: int
    engines: int
    share: float
    offloaded: bool
    seconds: float
    log_sigma: float
    move_s: float
    """Seconds to move the training's states to the host and back."""
    sync_s: float
    """Seconds until the engine has new weights."""

    @property
    def total_s(self) -> float:
        return self.seconds + self.move_s + self.sync_s


@dataclass(frozen=True, slots=True)
class RlStep:
    """One step. ``training`` is the update at the longest sequence, whose memory counts."""

    recipe: Recipe
    cluster: Cluster
    goal: Goal
    training: TrainingEstimate
    packed: Strategy
    """``training``'s strategy with sequences of mean length."""
    generation: Generation | None
    parts_s: Mapping[str, float]
    step_time_s: Estimate
    memory_bytes: Mapping[str, float]
    """Of the fullest GPU in each phase."""
    update_bytes: Mapping[str, float]
    """What fills it in the update."""
    other: tuple[Generation, ...] = ()
    """Other ways to generate, fastest first."""


def trained_on(recipe: Recipe, cluster: Cluster) -> Cluster:
    """The GPUs that train."""
    return replace(cluster, n_accelerators=cluster.n_accelerators - recipe.engine_gpus)


def rl_step(arch: Architecture, cluster: Cluster, recipe: Recipe, wishes: Wishes) -> RlStep:
    """The fastest step that fits. Raises LayoutError where none does, InputError and UnpredictableError."""
    r, train = recipe.rollouts, trained_on(recipe, cluster)
    frozen = sum(HALF_BYTES * count_parameters(recipe.reads(c, arch)).total for c in recipe.frozen) / train.n_accelerators
    each = r.sequences // recipe.updates
    asked = replace(wishes, task=recipe.task.name, seq_len=r.longest, global_batch=each)
    if arch.moe is not None:
        asked = replace(asked, **{k: v for k, v in PLAIN_EXPERTS.items() if getattr(wishes, k) is None})
    unread = _unread_logits(arch, train, r, asked)
    goal, training = _layout(arch, train, asked, frozen - unread)
    taught = _taught_logits(training, r.longest, recipe)
    if recipe.task.critic or taught:  # its states, or the teacher's logits, take memory too
        more = _states(training) if recipe.task.critic else taught
        goal, training = _layout(arch, train, asked, frozen - unread + more)
    if recipe.task.contrastive:
        training = _at_once(arch, train, asked, training, frozen, r) or training
    packed = at_length(training.strategy, each, r.longest, r.mean_length)
    update = promised(arch, train, estimates(arch, train, [packed], r.mean_length)[0])
    times = {f"{name} pass": forward_s(recipe.reads(name, arch), train, packed, r.mean_length) for name in recipe.passes}
    if recipe.task.contrastive and training.strategy.accumulation > 1:
        times["GradCache pass"] = forward_s(arch, train, packed, r.mean_length)
    copies = 2.0 if recipe.task.critic else 1.0
    parts = {name: s * recipe.updates for name, s in times.items()}
    parts["update"] = update.step_time_s.expected * recipe.updates * copies
    resident = sum(training.memory_parts[name] for name in ("weights", "optimizer"))
    states = resident * copies + frozen
    ways = sorted(_ways(arch, cluster, recipe, states, training), key=lambda g: g.total_s) if recipe.task.rollouts else []
    if recipe.task.rollouts and not ways:
        raise LayoutError("fits", "no engine fits beside the training", hint="give more GPUs, or --engine-ranks 2 or more")
    best = ways[0] if ways else None
    if best is not None:
        parts = {"rollouts": best.seconds, **parts, "weights to the engine": best.sync_s}
        parts |= {"states to the host and back": best.move_s} if best.move_s else {}
    parts = {name: between_phases(recipe) * s for name, s in parts.items()}
    apart = parts["rollouts"] if best is not None and recipe.engine_gpus else 0.0
    rest = sum(parts.values()) - apart
    whole = max(apart, rest)
    shares = [(best.log_sigma if best else 0.0) * parts.get("rollouts", 0.0) / sum(parts.values())]
    shares += [math.log(update.step_time_s.high / update.step_time_s.expected) / Z80 * parts["update"] / sum(parts.values())]
    sigma = (
        math.hypot(*shares, LOG_SIGMA)
        if best is not None
        else math.log(update.step_time_s.high / update.step_time_s.expected) / Z80
    )
    step = Estimate.from_log_sigma(whole, sigma, update.step_time_s.basis)
    held = {name: b - unread * (name == "logits") for name, b in training.memory_parts.items() if b}
    held |= {" and ".join(recipe.frozen): frozen} if frozen else {}
    held |= {"critic": _states(training)} if recipe.task.critic else {}
    held |= {"teacher's logits": _taught_logits(training, r.longest, recipe)} if recipe.frozen and taught else {}
    extra = sum(held.values()) - sum(training.memory_parts.values())
    memory = {"update": training.needed_bytes.expected + extra}
    if best is not None:
        beside = 0.0 if best.offloaded or recipe.engine_gpus else states
        memory["rollouts"] = best.share * cluster.accelerator.memory_bytes + beside
    return RlStep(recipe, cluster, goal, training, packed, best, parts, step, memory, held, tuple(ways[1:]))


def between_phases(recipe: Recipe) -> float:
    """A step over the sum of its phases: of steps with an engine (:data:`SLOWDOWN`); others are one program's."""
    return SLOWDOWN[bool(recipe.engine_gpus)] if recipe.task.rollouts else 1.0


def _taught_logits(training: TrainingEstimate, length: int, recipe: Recipe) -> float:
    """Bytes of the teacher's logits of a micro-batch, in 16 bits beside the student's (``gkd_trainer.py`` of TRL holds both; a
    chunked loss has neither whole)."""
    s = training.strategy
    if recipe.teacher is None or s.fused_loss:
        return 0.0
    return HALF_BYTES * s.micro_batch * length * recipe.teacher.vocab / (s.tp * s.cp)


def _at_once(
    arch: Architecture, cluster: Cluster, wishes: Wishes, cached: TrainingEstimate, taken_bytes: float, r: Rollouts
) -> TrainingEstimate | None:
    """The layout whose batch is one micro-batch a GPU, which needs no GradCache, where it fits and is faster than ``cached`` with
    the pass of GradCache (arXiv 2101.06983: each text is read once without and once with a graph). None otherwise."""
    if cached.strategy.accumulation == 1 or "accumulation" in wishes.fixed:
        return None
    try:
        _, whole = _layout(arch, cluster, replace(wishes, fixed={**wishes.fixed, "accumulation": 1}), taken_bytes)
    except LayoutError:
        return None
    again = forward_s(arch, cluster, cached.strategy, r.longest)
    return whole if whole.step_time_s.expected < cached.step_time_s.expected + again else None


def _layout(arch: Architecture, cluster: Cluster, wishes: Wishes, taken_bytes: float) -> tuple[Goal, TrainingEstimate]:
    """The fastest layout of the update beside ``taken_bytes`` on each GPU. Raises LayoutError where none fits."""
    goal = make_goal(arch, _without(cluster, taken_bytes), wishes)
    found = find_fastest(goal)
    if found is None:
        raise LayoutError("fits", f"no layout of {arch.name} divides over {cluster.label}", hint="give another number of GPUs")
    if found.estimate is None:
        needs = f"{(found.smallest_bytes + taken_bytes) / GIGA:.0f} GB of {usable_bytes(cluster.accelerator) / GIGA:.0f}"
        raise LayoutError("fits", f"the update needs {needs} on each GPU", hint="more GPUs, a shorter --response, or --lora")
    return goal, found.estimate


def _states(training: TrainingEstimate) -> float:
    """Bytes of weights, gradients and optimizer of a second model laid out like the first."""
    return sum(training.memory_parts[name] for name in ("weights", "gradients", "optimizer"))


def _unread_logits(arch: Architecture, cluster: Cluster, r: Rollouts, wishes: Wishes) -> float:
    """Bytes of the prompts' logits that a step of the plainest layout would hold, and TRL does not: its loss has the logits of
    responses alone (``logits_to_keep`` of trl/trainer/grpo_trainer.py)."""
    goal = make_goal(arch, cluster, wishes)
    if not find_stack(goal.bases[0].stack).export.shards_by_deepspeed:
        return 0.0
    micro = int(wishes.fixed.get("micro_batch", 1))
    plain = goal.bases[0].with_(dp=cluster.n_accelerators, micro_batch=micro)
    return estimates(arch, cluster, [plain], r.longest)[0].memory_parts["logits"] * r.prompt_tokens / r.longest


def _without(cluster: Cluster, taken_bytes: float) -> Cluster:
    """``cluster`` with that much less memory on each GPU, at least a tenth of it."""
    a = cluster.accelerator
    room = usable_bytes(a)
    less = replace(a, memory_visible_bytes=max(room - taken_bytes, 0.1 * room))
    return replace(cluster, system=replace(cluster.system, accelerator=less)) if taken_bytes else cluster


def at_length(strategy: Strategy, sequences: int, longest: int, length: int) -> Strategy:
    """``strategy``, which holds micro-batches of sequences of ``longest`` tokens, for ``sequences`` of ``length``: as many tokens
    a micro-batch, as programs pack them."""
    micro = min(max(strategy.micro_batch * longest // length, 1), max(sequences // strategy.dp, 1))
    return strategy.with_(micro_batch=micro, accumulation=max(math.ceil(sequences / (strategy.dp * micro)), 1))


def forward_s(arch: Architecture, cluster: Cluster, strategy: Strategy, seq_len: int) -> float:
    """Seconds of one forward pass over the batch of ``strategy``: what full recomputation of its layers adds to a step, with
    the share of the head."""
    again = estimates(arch, cluster, [strategy.with_(recompute="full", recompute_every=1)], seq_len)[0]
    slower = promised(arch, cluster, again).step_time_s.expected / again.step_time_s.expected
    count = count_parameters(arch)
    head = 0 if arch.pooled else arch.vocab * arch.hidden
    return slower * again.breakdown_s["recompute"] * (1.0 + head / count.active)


def _ways(
    arch: Architecture, cluster: Cluster, recipe: Recipe, states: float, training: TrainingEstimate
) -> Iterator[Generation]:
    """Each number of ranks of an engine, beside the training's states or with these in host memory."""
    a, n = cluster.accelerator, recipe.engine_gpus or cluster.n_accelerators
    weights = HALF_BYTES * count_parameters(arch).total
    asked, leaves = recipe.engine_ranks, find_stack(training.strategy.stack).leaves_for_rollouts
    for ranks in (asked,) if asked else (k for k in (1, 2, 4, 8, 16) if n % k == 0 and k <= most_ranks(cluster.system)):
        for offloaded in (False,) if recipe.engine_gpus else (True,) if leaves else (False, True):
            beside = 0.0 if offloaded or recipe.engine_gpus else states
            share = min((usable_bytes(a) - beside - SPARE_BYTES) / a.memory_bytes, ENGINE_SHARE)
            if share * a.memory_bytes * ranks <= weights:
                continue
            try:
                seconds, sigma = _generated(arch, cluster, ranks, max(n // ranks, 1), recipe, share)
            except GpuwiseError:
                if asked and (offloaded or recipe.engine_gpus):
                    raise
                continue
            move = _moved_s(a, states) if offloaded else 0.0
            yield Generation(ranks, max(n // ranks, 1), share, offloaded, seconds, sigma, move, sync_s(arch, cluster))
            if not offloaded and share >= ENGINE_SHARE:
                break


def _generated(
    arch: Architecture, cluster: Cluster, ranks: int, engines: int, recipe: Recipe, share: float
) -> tuple[float, float]:
    """Seconds of the last response of an engine in vLLM, and their spread. Raises InputError where the model does not fit."""
    requests, longest = recipe.rollouts.requests(engines), recipe.rollouts.longest
    settings = Settings(
        max_num_seqs=min(len(requests), MOST_SEQUENCES), max_model_len=longest, memory_share=share, in_process=True
    )
    config = replace(tensor_parallel(arch, "bf16", ranks), version=recipe.engine_version)
    run = Server(arch, cluster.system, config, settings).run(requests)
    return float(run.e2e_s.max()), run.log_sigma


def _moved_s(accelerator: Accelerator, states: float) -> float:
    """Seconds to move ``states`` bytes to the host and back, in memory that is not pinned (``state.to("cpu")`` of NeMo RL's
    megatron_policy_worker.py v0.6.0 and of verl's fsdp_utils.py); 0 where the host's link is unknown."""
    try:
        return sum(float(transfer_time(accelerator, states, way, pinned=False).time_s[0]) for way in ("d2h", "h2d"))
    except UnpredictableError:
        return 0.0


def sync_s(arch: Architecture, cluster: Cluster) -> float:
    """Seconds until every engine has the weights: each rank gathers all of them (verl's sharding manager, TRL's
    ``gather_if_zero3``), and the engine loads one tensor after another (:data:`LOAD_S`)."""
    experts = 0 if arch.moe is None else 3 * arch.moe.n_experts * arch.n_moe_layers
    loaded = LOAD_S * (experts + LAYER_TENSORS * arch.n_layers)
    if cluster.n_accelerators == 1:
        return loaded
    local = min(cluster.system.count, cluster.n_accelerators)
    payload = HALF_BYTES * count_parameters(arch).total
    return loaded + float(collective_time(cluster.system, "all_gather", payload, cluster.n_accelerators, local).time_s[0])
