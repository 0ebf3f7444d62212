"""What changes do to a :class:`~gpuwise.workload.strategy.Strategy`, and which arguments are worth asking for.

An effect takes a strategy and the change's argument and gives the new strategy. Degrees trade against data parallelism, and
micro-batches against accumulation, so that the number of accelerators and the global batch stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from gpuwise.errors import InputError
from gpuwise.workload.adapters import DEFAULT_TARGETS
from gpuwise.workload.changes.change import Change
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import RECOMPUTES, SHARDINGS, Strategy

LORA_RANK = 16
"""Default adapter rank (torchtune and Unsloth recipes use 8 to 64)."""
FULL_PRECISIONS = ("fp32", "tf32")
DOUBLED = 0.5
"""Micro-batches a micro-batch is cut into when it becomes twice as large."""


def no_arguments(_: Strategy) -> Iterator[Any]:
    """A change without arguments."""
    return iter(())


@dataclass(frozen=True, slots=True)
class StrategyEffect:
    """``apply`` gives the changed strategy; ``lighter`` the arguments that may take less memory, ``near`` those one notch
    away in either direction. Whether the result is a legal layout is for the caller to check."""

    apply: Callable[[Strategy, Any], Strategy]
    lighter: Callable[[Strategy], Iterator[Any]] = no_arguments
    near: Callable[[Strategy], Iterator[Any]] = no_arguments


def _unless(field: str, argument: object = None) -> Callable[[Strategy], Iterator[Any]]:
    """``argument`` while ``field`` of the strategy is off."""

    def arguments(s: Strategy) -> Iterator[Any]:
        if not getattr(s, field):
            yield argument

    return arguments


# --- formats ---


def _half(s: Strategy) -> Iterator[Any]:
    if s.precision in FULL_PRECISIONS:
        yield from ("bf16", "fp16")


AUTOCAST = StrategyEffect(lambda s, form: s.with_(precision=form), _half)
TF32 = StrategyEffect(lambda s, allow: s.with_(precision="fp32" if allow is False else "tf32"))
FP8 = StrategyEffect(lambda s, recipe: s.with_(precision="fp8", row_scales=recipe == "rowwise"))


def _gradients(s: Strategy) -> Iterator[Any]:
    if not s.lora_rank and s.gradient_dtype == "fp32" and s.precision not in FULL_PRECISIONS:
        yield "bf16"


GRADIENT_DTYPE = StrategyEffect(lambda s, form: s.with_(gradient_dtype=form), _gradients)


def _weights(s: Strategy) -> Iterator[Any]:
    if not s.lora_rank and s.master_weights and s.precision == "bf16":
        yield "bf16"


def _halve(s: Strategy, form: str) -> Strategy:
    precision = form if s.precision in FULL_PRECISIONS else s.precision
    return s.with_(precision=precision, master_weights=False, gradient_dtype=form)


LOW_PRECISION = StrategyEffect(_halve, _weights)


def _optimizers(s: Strategy) -> Iterator[Any]:
    if not s.lora_rank:  # adapter states are a hundredth of the weights
        yield from (name for name in ("adamw8bit", "lion", "adafactor") if name != s.optimizer)


OPTIMIZER = StrategyEffect(lambda s, name: s.with_(optimizer=name), _optimizers)


# --- adapters ---


def _qlora_ranks(s: Strategy) -> Iterator[Any]:
    if not s.quantized_base:
        yield adapter_argument(s.lora_rank or LORA_RANK, s.lora_targets)


def rank_and_targets(argument: object) -> tuple[int, tuple[str, ...]]:
    """The argument of ``lora`` and ``qlora``: a rank, or a rank and the linear layers with adapters."""
    if isinstance(argument, tuple):
        rank, targets = cast("tuple[int, tuple[str, ...]]", argument)
        return rank, targets
    assert isinstance(argument, int)
    return argument, DEFAULT_TARGETS


def adapter_argument(rank: int, targets: tuple[str, ...]) -> object:
    """The inverse of :func:`rank_and_targets`: the rank alone where every linear layer has an adapter."""
    return rank if targets == DEFAULT_TARGETS else (rank, targets)


def _adapted(s: Strategy, argument: object) -> Strategy:
    rank, targets = rank_and_targets(argument)
    return s.with_(lora_rank=rank, lora_targets=targets)


LORA = StrategyEffect(_adapted, _unless("lora_rank", LORA_RANK))
QLORA = StrategyEffect(lambda s, argument: _adapted(s, argument).with_(quantized_base=True), _qlora_ranks)


# --- memory ---


def _cut(s: Strategy, parts: float) -> Strategy:
    size = int(s.micro_batch / parts)
    return s.with_(micro_batch=size, accumulation=s.micro_batch * s.accumulation // max(size, 1))


def _smaller_micro_batches(s: Strategy) -> Iterator[Any]:
    parts = 2
    while s.micro_batch // parts >= 1:
        if (s.micro_batch * s.accumulation) % (s.micro_batch // parts) == 0:
            yield parts
        parts *= 2


def _near_micro_batches(s: Strategy) -> Iterator[Any]:
    for parts in (DOUBLED, 2):
        size = int(s.micro_batch / parts)
        if size >= 1 and (s.micro_batch * s.accumulation) % size == 0:
            yield parts


MICRO_BATCHES = StrategyEffect(_cut, _smaller_micro_batches, _near_micro_batches)
BATCH = StrategyEffect(lambda s, size: s.with_(micro_batch=size))


def _recompute(s: Strategy, which: Any) -> Strategy:
    if which in ("off", "selective"):
        return s.with_(recompute="none" if which == "off" else "selective", recompute_every=1)
    if which is None or which == "blocks" or isinstance(which, int):
        return s.with_(recompute="full", recompute_every=which if isinstance(which, int) else 1)
    raise InputError(f"a strategy has no modules {which!r}", hint="no value for every layer, 2 for every second, selective, off")


def _more_recompute(s: Strategy) -> Iterator[Any]:
    for which, policy in (("selective", ("selective", 1)), (2, ("full", 2)), (None, ("full", 1))):
        if policy != (s.recompute, s.recompute_every):
            yield which


def _other_recompute(s: Strategy) -> Iterator[Any]:
    words: dict[str, Any] = {"none": "off", "selective": "selective", "full": None}
    yield from (words[policy] for policy in RECOMPUTES if policy != s.recompute)


CHECKPOINTING = StrategyEffect(_recompute, _more_recompute, _other_recompute)
PARAMETERS = "parameters"
"""Argument of an optimizer offload that includes the parameters."""


def _offload(s: Strategy, what: Any) -> Strategy:
    if what not in (None, PARAMETERS):
        raise InputError(f"nothing of a strategy is offloaded as {what!r}", hint=f"none for the optimizer alone, or {PARAMETERS}")
    return s.with_(offload_optimizer=True, offload_parameters=what == PARAMETERS)


def _more_offload(s: Strategy) -> Iterator[Any]:
    # states of adapters are next to nothing: beside them only weights are worth moving, FSDP's of several ranks or ZeRO-3's
    if not (s.offload_optimizer or (s.lora_rank and s.dp * s.cp == 1)):
        yield None
    if not s.offload_parameters:
        yield PARAMETERS


OFFLOAD_OPTIMIZER = StrategyEffect(_offload, _more_offload, lambda s: iter((None,)))
OFFLOAD_ACTIVATIONS = StrategyEffect(lambda s, _: s.with_(offload_activations=True), _unless("offload_activations"))
STEP_IN_BACKWARD = StrategyEffect(
    lambda s, _: s.with_(step_in_backward=True),
    lambda s: iter((None,)) if s.accumulation == 1 and not s.step_in_backward and not s.lora_rank else iter(()),
)
ATTENTION = StrategyEffect(lambda s, _: s.with_(fused_attention=True), _unless("fused_attention"))
CHUNKED_LOSS = StrategyEffect(lambda s, _: s.with_(fused_loss=True), _unless("fused_loss", 8))
COMPILE = StrategyEffect(lambda s, _: s.with_(stack=find_stack(s.stack).instead.compiled))


# --- several accelerators ---


def _shard(s: Strategy, kind: str) -> Strategy:
    return s.with_(sharding=kind)


def _states_sharded(s: Strategy) -> Iterator[Any]:
    if s.dp * s.cp > 1:
        yield from (kind for kind in ("zero1", "zero2", "zero3") if kind != s.sharding)


SHARDING = StrategyEffect(_shard, _states_sharded, lambda s: (kind for kind in SHARDINGS if kind != s.sharding))


def _degree(field: str) -> Callable[[Strategy, int], Strategy]:
    """A degree changed at the cost of data parallelism; the strategy as it is where the ranks do not divide."""

    def apply(s: Strategy, other: int) -> Strategy:
        ranks = s.dp * getattr(s, field)
        data_parallel = ranks // max(other, 1)
        batch = s.micro_batch * s.accumulation * s.dp
        if other < 1 or ranks % other or batch % (data_parallel * s.micro_batch):
            return s
        candidate = s.with_(**{field: other}, dp=data_parallel, accumulation=batch // (data_parallel * s.micro_batch))
        if field == "pp" and other == 1:
            candidate = candidate.with_(schedule="1f1b", virtual_stages=1)
        if s.sharding != "none" and candidate.dp * candidate.cp == 1:
            candidate = candidate.with_(sharding="none")
        return candidate

    return apply


def _degrees(field: str) -> Callable[[Strategy], Iterator[Any]]:
    """Twice and half the degree, where the ranks and the batch divide."""
    apply = _degree(field)

    def arguments(s: Strategy) -> Iterator[Any]:
        degree = getattr(s, field)
        yield from (other for other in (degree * 2, degree // 2) if apply(s, other) != s)

    return arguments


def _tensor_degrees(s: Strategy) -> Iterator[Any]:
    """Every power of two up to the data-parallel ranks, where nothing is cut into tensors yet."""
    degree = 2
    while degree <= s.dp and s.tp == 1:
        if TENSOR_PARALLEL.apply(s, degree) != s:
            yield degree
        degree *= 2


TENSOR_PARALLEL = StrategyEffect(_degree("tp"), _tensor_degrees, _degrees("tp"))
PIPELINE_PARALLEL = StrategyEffect(_degree("pp"), near=_degrees("pp"))
CONTEXT_PARALLEL = StrategyEffect(_degree("cp"), near=_degrees("cp"))


def _stages(s: Strategy, virtual: int) -> Strategy:
    return s.with_(schedule="1f1b" if virtual == 1 else "interleaved", virtual_stages=virtual)


def _near_stages(s: Strategy) -> Iterator[Any]:
    if s.pp > 1:
        if s.schedule != "1f1b":
            yield 1
        yield from (v for v in (s.virtual_stages * 2, s.virtual_stages // 2) if v > 1)


VIRTUAL_STAGES = StrategyEffect(_stages, near=_near_stages)


def changes_between(before: Strategy, after: Strategy) -> tuple[Change, ...]:
    """The changes that lead from one strategy to another, the most important first; differences without a change are omitted."""
    changes: list[Change] = []
    if after.quantized_base and not before.quantized_base:
        changes.append(Change("qlora", adapter_argument(after.lora_rank, after.lora_targets)))
    elif after.lora_rank and not before.lora_rank:
        changes.append(Change("lora", adapter_argument(after.lora_rank, after.lora_targets)))
    if after.precision != before.precision and after.precision in ("bf16", "fp16"):
        changes.append(Change("autocast", after.precision))
    for field, name in (("tp", "tensor_parallel"), ("pp", "pipeline_parallel"), ("cp", "context_parallel")):
        if getattr(after, field) != getattr(before, field):
            changes.append(Change(name, getattr(after, field)))
    if after.micro_batch != before.micro_batch:
        changes.append(Change("micro_batches", before.micro_batch / after.micro_batch))
    if after.sharding != before.sharding:
        changes.append(Change("sharding", after.sharding))
    if (after.recompute, after.recompute_every) != (before.recompute, before.recompute_every):
        changes.append(Change("checkpointing", _recompute_argument(after)))
    if after.optimizer != before.optimizer:
        changes.append(Change("optimizer", after.optimizer))
    if before.master_weights and not after.master_weights and not after.lora_rank:  # frozen weights have no copies to leave out
        changes.append(Change("low_precision", after.precision))
    elif after.gradient_dtype != before.gradient_dtype and bool(after.lora_rank) == bool(before.lora_rank):
        changes.append(Change("gradient_dtype", after.gradient_dtype))
    if after.fused_loss and not before.fused_loss:
        changes.append(Change("chunked_loss", 8))
    if after.offload_parameters and not before.offload_parameters:
        changes.append(Change("offload_optimizer", PARAMETERS))
    elif after.offload_optimizer and not before.offload_optimizer:
        changes.append(Change("offload_optimizer"))
    changes += [
        Change(name) for name in ("step_in_backward", "offload_activations") if getattr(after, name) and not getattr(before, name)
    ]
    return tuple(changes)


def _recompute_argument(s: Strategy) -> Any:
    if s.recompute == "full":
        return s.recompute_every if s.recompute_every > 1 else None
    return "off" if s.recompute == "none" else s.recompute
