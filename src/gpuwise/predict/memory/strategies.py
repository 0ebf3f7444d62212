"""Device memory of strategies, for columns at once: the fullest rank at its peak, by part.

    allocated = weights + gradients + optimizer + activations + logits + temporaries + communication
    reserved = allocated + allocator slack
    device = reserved + CUDA context, library modules and NCCL (what nvidia-smi shows)

The slack is fragmentation between blocks, and the contiguous memory that an update needs. When the device fills up, the allocator
returns cached blocks and retries before it fails, so the slack shrinks to a minimum. A strategy has two totals, with fitted and
with minimum slack. The second decides whether it fits, and neither is capped at the device's memory.

The fullest rank is the first, a middle or the last pipeline stage's. Its peak is one of

========  ====================================================================================================
loss      all micro-batches in flight are kept; the logits with their copies are there (stages with the head)
head      all are kept; the backward of the output projection makes its gradients
layer     all are kept; one layer's backward needs its recomputed activations, gradients and gathered weights
end       a backward ends: gradients that appear during it are all there, one layer's activations are left
update    no activations; gradients, and the temporaries of the update
========  ====================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from statistics import NormalDist
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.estimate import Estimate, fit_probability
from gpuwise.predict.memory.context import Loading, communicator_bytes, context_bytes
from gpuwise.predict.memory.device import StackMemory, stack_memory, usable_bytes
from gpuwise.predict.memory.library_workspaces import library_workspace_bytes
from gpuwise.predict.memory.saved import SavedBytes
from gpuwise.predict.memory.states import StageStates, fully_sharded, stage_states
from gpuwise.predict.parallel.pipeline import folded, in_flight
from gpuwise.predict.parallel.shards import Stages, stages
from gpuwise.workload.optimizer import PAGED, parameter_bytes
from gpuwise.workload.stacks.memory import MemoryRules
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import RECOMPUTES, SHARDINGS

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
STAGES = ("first", "middle", "last")
PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "temporaries",
    "communication",
    "context",
    "reserve",
)
_FIXED = ("weights", "gradients", "optimizer", "communication")


class CarriesSaved(Protocol):
    """Point costs, which have the saved bytes of their points with them."""

    @property
    def saved(self) -> SavedBytes[F64]: ...


class Moment(NamedTuple):
    """Bytes that come and go within a step, at one moment of one stage."""

    gradients: F64
    activations: F64
    logits: F64
    temporaries: F64

    @property
    def total(self) -> F64:
        """Bytes of the moment on top of what is there throughout."""
        return _sum(self.gradients, self.activations, self.logits, self.temporaries)

    @property
    def churned(self) -> F64:
        """Bytes freed and allocated again in every micro-batch, which cause fragmentation."""
        return _sum(self.activations, self.logits, self.temporaries)


def _sum(first: F64, *others: F64) -> F64:
    """The sum, without a pass over every strategy for what none of them has."""
    for other in others:
        first = other if _is_none(first) else first if _is_none(other) else first + other
    return first


def _is_none(part: F64) -> bool:
    return part.size == 1 and not part.item()


class StageMemory(NamedTuple):
    """One stage: bytes there throughout, and its moments. ``exists`` is False where a strategy has no such
    stage."""

    weights: F64
    gradients: F64
    optimizer: F64
    communication: F64
    moments: tuple[Moment, ...]
    contiguous: F64
    paged: F64
    exists: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """Bytes of every strategy's fullest rank at its worst moment that are the same on every accelerator; arrays broadcast to the
    columns' shape."""

    tensors: F64
    """With paged states, without workspaces."""
    slack: F64
    """Further bytes that the allocator reserves if there is room."""
    least_slack: F64
    """The same where memory is scarce."""
    paged: F64
    communicators: F64
    before_sharding: F64 | None
    """See :func:`_before_sharding`; None where the stack never holds whole weights first."""
    loading: Loading
    convolves: bool
    constants: StackMemory

    def on(self, accelerator: Accelerator) -> DeviceBytes:
        """The same with the workspaces and context of ``accelerator``."""
        workspace = library_workspace_bytes(accelerator) + self.constants.workspace_bytes
        context = context_bytes(accelerator, self.loading, cudnn=self.convolves) + self.communicators
        usable, slack = usable_bytes(accelerator), self.slack
        allocated = self.tensors + workspace
        bare = allocated + context
        needed = _less(bare + self.least_slack, self.paged)
        if self.before_sharding is not None:
            before = self.before_sharding
            slack = np.where(before + context <= usable, np.maximum(slack, before - allocated), slack)
        return DeviceBytes(
            bare + slack, needed, _less(allocated, self.paged), self.paged, context, self.constants, workspace, usable
        )


def _less(total: F64, part: F64) -> F64:
    return total if _is_none(part) else total - part


@dataclass(frozen=True)
class DeviceBytes:
    """Bytes of every strategy's fullest rank at its worst moment on one accelerator; arrays broadcast to the columns' shape.

    ``device_total`` is what nvidia-smi shows with the allocator's usual slack, had the device as much.
    """

    device_total: F64
    needed: F64
    """Minimum process memory in nvidia-smi when memory is scarce: the total with minimum slack."""
    allocated: F64
    """torch's max_memory_allocated: without paged states."""
    paged: F64
    """Optimizer states in unified memory, which no allocator of torch counts."""
    context: F64
    constants: StackMemory
    workspace: float
    usable: float
    """Device memory available to a process."""

    def fits(self, risk: float = 0.5) -> NDArray[np.bool_]:
        """Whether each strategy fits, the slack at its least if need be, but for a probability of ``risk``."""
        return self.needed <= self.usable * math.exp(NormalDist().inv_cdf(risk) * self.constants.log_sigma["device"])

    def fits_at_ease(self, spare: float = 0.0) -> NDArray[np.bool_]:
        """Whether each strategy is expected to fit with the allocator's usual slack and a share ``spare`` of the device."""
        return self.device_total <= self.usable * (1 - spare)

    def fit_probability(self, i: int) -> float:
        """Probability that strategy ``i`` fits."""
        return fit_probability(float(self.needed.flat[i]), self.constants.log_sigma["device"], self.usable)


@dataclass(frozen=True)
class MemoryColumns(DeviceBytes):
    """:class:`DeviceBytes` by part.

    ``worst_stage`` is an index into :data:`STAGES`. The parts (weights, gradients, optimizer, activations, logits,
    temporaries, communication, context, reserve) sum to ``device_total``; gradients that appear later in the step are not in
    the sum of an earlier peak.
    """

    worst_stage: I64
    worst_moment: I64
    stage_memory: tuple[StageMemory, ...]

    def _worst(self, part: str) -> F64:
        return self._chosen([partial(self._of_stage, part, stage) for stage in self.stage_memory], self.worst_stage)

    def _of_stage(self, part: str, stage: StageMemory) -> F64:
        fixed = getattr(stage, part) if part in _FIXED else np.zeros(1)
        if part not in Moment._fields:
            return fixed
        at = np.minimum(self.worst_moment, len(stage.moments) - 1)
        return fixed + self._chosen([partial(getattr, m, part) for m in stage.moments], at)

    def _chosen(self, choices: Sequence[Callable[[], F64]], at: I64) -> F64:
        """The choice of each strategy, evaluated only for choices that occur."""
        shape, first = self.device_total.shape, int(at.flat[0])
        if (at == first).all():
            return np.broadcast_to(choices[first](), shape)
        values = [np.broadcast_to(choice(), shape) for choice in choices]
        return np.take_along_axis(np.stack(values), np.broadcast_to(at, shape)[None], 0)[0]

    @property
    def weights(self) -> F64:
        return self._worst("weights")

    @property
    def gradients(self) -> F64:
        return self._worst("gradients")

    @property
    def optimizer(self) -> F64:
        return self._worst("optimizer")

    @property
    def activations(self) -> F64:
        return self._worst("activations")

    @property
    def logits(self) -> F64:
        return self._worst("logits")

    @property
    def temporaries(self) -> F64:
        """Transients of the worst moment, and library workspaces taken from the caching allocator."""
        return self._worst("temporaries") + self.workspace

    @property
    def communication(self) -> F64:
        return self._worst("communication")

    @property
    def reserve(self) -> F64:
        """Reserved less allocated: the caching allocator's fragments."""
        return self.reserved - self.allocated

    @property
    def reserved(self) -> F64:
        """torch's max_memory_reserved, had the device as much."""
        return self.device_total - self.context - self.paged

    @property
    def shown(self) -> F64:
        """Process memory in nvidia-smi on this device: at most the device's, as long as the slack can shrink."""
        return np.minimum(self.device_total, np.maximum(self.usable, self.needed))

    def estimate(self, i: int, metric: str = "device") -> Estimate:
        """Strategy ``i`` with its 80 % interval; ``metric`` is ``allocated``, ``reserved``, ``device`` or ``needed``."""
        values = {"allocated": self.allocated, "reserved": self.reserved, "device": self.device_total, "needed": self.needed}
        values = values[metric]
        sigma = self.constants.log_sigma["device" if metric == "needed" else metric]
        return Estimate.from_log_sigma(float(values.flat[i]), sigma, self.constants.basis)

    def parts(self, i: int) -> dict[str, Estimate]:
        """Every part of strategy ``i``. Each has the relative spread of the device total: parts err
        together."""
        sigma, basis = self.constants.log_sigma["device"], self.constants.basis
        return {p: Estimate.from_log_sigma(float(values.flat[i]), sigma, basis) for p, values in self._parts.items()}

    @cached_property
    def _parts(self) -> dict[str, F64]:
        """Every part for all strategies at once: plans read the parts of many of them."""
        return {p: np.broadcast_to(getattr(self, p), self.device_total.shape) for p in PARTS}


def memory_columns(
    arch: Architecture,
    system: System,
    saved: SavedBytes[F64] | CarriesSaved,
    c: Columns,
    point_index: I64,
    rules: MemoryRules | None = None,
    constants: StackMemory | None = None,
) -> MemoryColumns:
    """Memory of every strategy in ``c``; ``point_index`` is each one's point in ``saved`` (bytes, or point costs that carry
    them). ``rules`` and ``constants`` replace the stack's own."""
    made = _made(arch, system.count, saved, c, point_index, rules, constants)
    device = made.tensors.on(system.accelerator)
    parts = {f.name: getattr(device, f.name) for f in fields(device)}
    return MemoryColumns(**parts, worst_stage=made.worst_stage, worst_moment=made.worst_moment, stage_memory=made.stages)


def tensor_bytes(
    arch: Architecture, system_count: int, saved: SavedBytes[F64] | CarriesSaved, c: Columns, point_index: I64
) -> TensorBytes:
    """The part of :func:`memory_columns` that is the same on every accelerator, for systems of ``system_count`` of them."""
    return _made(arch, system_count, saved, c, point_index).tensors


def least_bytes(arch: Architecture, system_count: int, c: Columns) -> F64:
    """Lower bound of ``needed`` of the strategies in ``c``, without :func:`bare_bytes`, from the bytes present throughout a step.

    It needs no op table. The worst stage has the most bytes beside the usual slack, so it has at least those of the emptiest
    stage, and those of the fullest less that slack.
    """
    rules, constants = find_stack(c.base.stack).memory, stack_memory(c.base.stack)
    shape, paged = stages(arch, c, _n_layers(arch)), c.base.optimizer in PAGED
    emptiest: F64 = np.full(1, np.inf)
    fullest = contiguous = np.zeros(1)
    for i, states in enumerate(stage_states(arch, system_count, c, shape, rules)):
        gradients, late = _gradients_of(states, c, rules)
        always = states.weights + gradients + states.buckets + (0.0 if paged else states.optimizer)
        exists = _exists(i, c)
        emptiest = np.where(exists, np.minimum(emptiest, always + late / (1 + constants.slack)), emptiest)
        fullest = np.where(exists & (not paged), np.maximum(fullest, always + late), fullest)
        contiguous = np.maximum(contiguous, states.contiguous)
    least = np.maximum(emptiest, (fullest - contiguous) / (1 + constants.slack))
    return least + _communicators(c, _loading(rules))


def bare_bytes(arch: Architecture, stack: str, accelerator: Accelerator) -> float:
    """Bytes of ``accelerator`` that a process of ``stack`` uses before it has a tensor."""
    workspace = library_workspace_bytes(accelerator) + stack_memory(stack).workspace_bytes
    return workspace + context_bytes(accelerator, _loading(find_stack(stack).memory), cudnn=_convolves(arch))


def _loading(rules: MemoryRules) -> Loading:
    return "eager" if rules.eager_modules else "lazy"


def _n_layers(arch: Architecture) -> float:
    return float(arch.n_layers + (arch.encoder.n_layers if arch.encoder else 0))


class _Made(NamedTuple):
    """The bytes of the worst stage at its worst moment, which those are, and all stages."""

    tensors: TensorBytes
    worst_stage: I64
    worst_moment: I64
    stages: tuple[StageMemory, ...]


def _made(
    arch: Architecture,
    system_count: int,
    saved: SavedBytes[F64] | CarriesSaved,
    c: Columns,
    point_index: I64,
    rules: MemoryRules | None = None,
    constants: StackMemory | None = None,
) -> _Made:
    saved = saved if isinstance(saved, SavedBytes) else saved.saved
    rules = rules or find_stack(c.base.stack).memory
    constants = constants or stack_memory(c.base.stack)
    n_layers = _n_layers(arch)
    shape = stages(arch, c, n_layers)
    states = stage_states(arch, system_count, c, shape, rules)
    writer = _Making(arch, c, saved, point_index, rules, n_layers, constants.slack)
    memory = tuple(writer.stage(i, state, shape.layers[i]) for i, state in enumerate(states))
    full = np.broadcast_shapes(c.shape, *(_fixed(s).shape for s in memory))
    worst = moment = np.zeros(full, np.int64)
    best = churned = loose = np.zeros(full)
    paged = np.zeros(full if c.base.optimizer in PAGED else 1)
    for i, stage in enumerate(memory):
        total, churn, at = _stage_total(stage, constants.slack)
        more = total > best
        if i == 0 or more.any():
            worst, moment = np.where(more, i, worst), np.where(more, at, moment)
            best, churned = np.where(more, total, best), np.where(more, churn, churned)
            loose = np.where(more, constants.slack * churn + stage.contiguous, loose)
            paged = np.where(more, stage.paged, paged) if c.base.optimizer in PAGED else paged
    loading = _loading(rules)
    slack = loose + constants.reserve_bytes
    tensors = TensorBytes(
        tensors=best - loose,
        slack=slack,
        least_slack=np.minimum(slack, constants.least_slack * churned),
        paged=paged,
        communicators=_communicators(c, loading),
        before_sharding=_before_sharding(c, shape) if rules.loads_whole else None,
        loading=loading,
        convolves=_convolves(arch),
        constants=constants,
    )
    return _Made(tensors, worst, moment, memory)


def _before_sharding(c: Columns, shape: Stages) -> F64:
    """Bytes reserved for a fully sharded run's weights while they are sharded: the whole ones and the shards' one buffer, as
    the pieces that are freed are smaller; 0 for other runs. Where it is more than the device has, the model must have been
    sharded as it was made (``deepspeed.zero.Init``)."""
    full = (c.sharding == SHARDINGS.index("zero3")) | (c.sharding == SHARDINGS.index("hybrid"))
    parameters = shape.dense[0] + shape.expert[0]
    return np.where(full, parameters * (1.0 + 1.0 / (c.dp * c.cp)) * parameter_bytes(c.base).weight, 0.0)


def _convolves(arch: Architecture) -> bool:
    """Whether an operation runs in cuDNN: the patches of an image, the stem of an audio model."""
    return arch.patches is not None or (arch.encoder is not None and arch.encoder.n_mels > 0)


def _communicators(c: Columns, loading: Loading) -> F64:
    """NCCL's buffers: one communicator for each kind of group with more than one rank."""
    sizes = (c.tp, c.pp, c.dp * c.cp, np.where(c.dp > 1, c.cp, 1), c.ep)
    total: F64 = np.zeros(1)
    for size in sizes:
        total = total + communicator_bytes(size, loading)
    return total


def _fixed(stage: StageMemory) -> F64:
    return stage.weights + stage.gradients + stage.optimizer + stage.communication


def _stage_total(stage: StageMemory, slack: float) -> tuple[F64, F64, I64]:
    """A stage at its worst moment without workspaces: bytes with full slack, what churns of it, which moment
    it is."""
    churned, at = stage.moments[0].churned, np.zeros(1, np.int8)
    worst = _sum(stage.moments[0].gradients, (1 + slack) * churned)
    for k, moment in enumerate(stage.moments[1:], start=1):
        churn = moment.churned
        size = _sum(moment.gradients, (1 + slack) * churn)
        more = size > worst
        if more.any():
            at, worst = np.maximum(at, more * np.int8(k)), np.maximum(size, worst)
            churned = churn if more.all() else np.where(more, churn, churned)
    return np.where(stage.exists, _fixed(stage) + worst + stage.contiguous, 0.0), churned, at.astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Making:
    """Values shared by the three stages during the evaluation."""

    arch: Architecture
    c: Columns
    saved: SavedBytes[F64]
    at: I64
    rules: MemoryRules
    n_layers: float
    slack: float

    def stage(self, i: int, states: StageStates, layers: F64) -> StageMemory:
        c, rules, s, at = self.c, self.rules, self.saved, self.at
        one = c.pp == 1
        position = {0: np.zeros_like(c.pp), 1: np.minimum(1, c.pp - 1), 2: c.pp - 1}[i]
        flights = np.where(one, 1.0, in_flight(position, c.accumulation, c.pp, c.virtual_stages, c.schedule))
        layer_saved, excess = self._layer()
        alive = np.where(c.offload_activations > 0, np.minimum(flights * layers, 2.0), flights * layers)
        activations = alive * layer_saved + states.kept
        if i == 0:
            lead = self._by_policy(s.lead_extra) * (c.offload_activations == 0)
            activations = activations + flights * (s.embedding[at] + lead)
        ahead, scattered = self._unsharded(states)
        transient = excess + ahead + scattered + self._matrix()
        gradients, late = _gradients_of(states, c, rules)
        none = np.zeros(1)
        moments = [Moment(none, activations, none, transient)]
        if i != 1:
            has_head = one | folded(c.schedule, c.pp) if i == 0 else np.ones_like(one)
            head_weight = s.head_matrix[at] * self._element()
            gathered = ahead + states.gathered_head
            head = s.head_excess[at] + gathered + head_weight * (self.c.base.lora_rank == 0)
            # fully sharded runs hold the head's gradients beside the loss's copies (fitted on torchtitan's)
            at_loss = head if rules.master_is_weight else gathered
            for logits, more in ((s.loss[at], at_loss), (s.head_logits[at], head)):
                there = (activations + s.head[at], logits, more)
                moments.append(Moment(none, *(np.where(has_head, x, 0.0) for x in there)))
        rest = np.maximum(flights - 1, 0.0) * layers * layer_saved + layer_saved
        at_end = states.half_gradients * (rules.half_gradients == "end")
        moments.append(Moment(late + at_end, rest, none, transient))
        moments.append(Moment(late, none, none, states.updated))
        hops = np.where(one, 0.0, 2.0 * s.boundary[at])
        buffers = states.buckets + hops + s.weight_cache[at]
        return StageMemory(
            states.weights,
            gradients,
            states.optimizer,
            buffers,
            tuple(moments),
            states.contiguous,
            states.paged,
            _exists(i, c),
        )

    def _layer(self) -> tuple[F64, F64]:
        """Saved bytes of a layer and the excess of one layer's backward, under each strategy's policy."""
        return self._by_policy(self.saved.layer), self._by_policy(self.saved.excess, mixed=False)

    def _by_policy(self, values: dict[str, F64], *, mixed: bool = True) -> F64:
        """``values`` of each strategy's recompute policy; full recompute of every n-th layer mixes (not an
        excess)."""
        c, at = self.c, self.at
        share = np.ceil(self.n_layers / np.maximum(c.recompute_every, 1)) / self.n_layers if mixed else 1.0
        full = share * values["full"][at] + (1 - share) * values["none"][at]
        selective = c.recompute == RECOMPUTES.index("selective")
        out = np.where(selective, values["selective"][at], values["none"][at])
        return np.where(c.recompute == RECOMPUTES.index("full"), full, out)

    def _element(self) -> float:
        return 4.0 if self.c.base.precision in ("fp32", "tf32") else 2.0

    def _unsharded(self, states: StageStates) -> tuple[F64, F64]:
        """What of fully sharded weights is gathered at once, and what of their gradients waits to be scattered."""
        if not self.rules.gathers_by_matrix:
            return states.gathered, states.scattered
        matrix = self.saved.matrix[self.at] * self._element()
        return np.minimum(states.gathered, 2.0 * matrix), np.minimum(states.scattered, matrix)

    def _matrix(self) -> F64 | float:
        """A weight gradient before it is accumulated, or a 4-bit weight written out for its product."""
        transient = self.rules.weight_gradient == "transient" and not self.c.base.lora_rank
        has_copy = transient or self.c.base.quantized_base
        return self.saved.matrix[self.at] * self._element() if has_copy else 0.0


def _exists(i: int, c: Columns) -> NDArray[np.bool_]:
    """Whether a strategy has the first, a middle or the last of several stages."""
    return {0: np.ones_like(c.pp, dtype=bool), 1: c.pp > 2, 2: c.pp > 1}[i]


def _gradients_of(states: StageStates, c: Columns, rules: MemoryRules) -> tuple[F64, F64]:
    """(gradients there throughout, gradients that appear during the backward of a step's only micro-batch)."""
    always = states.half_gradients if rules.half_gradients == "always" else 0.0
    if rules.gradients == "buffer":
        return states.gradients + always, np.zeros(1)
    several = (c.accumulation > 1) | ((rules.flat_elements > 0) & fully_sharded(c))
    return np.where(several, states.gradients, 0.0) + always, np.where(several, 0.0, states.gradients)
