"""A training request, with gaps filled by stated defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.links import link_words, with_links
from gpuwise.facts.hardware.systems import Cluster, with_host_memory
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.stored import check_trainable
from gpuwise.plan.defaults import (
    FIRST_YEAR,
    FROZEN_BYTES,
    batch_for_devices,
    default_global_batch,
    default_seq_len,
    default_stack,
    published_run,
    todays_year,
    unfused_attention,
)
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.units import LARGEST_COUNT, LONGEST_SEQUENCE, format_count
from gpuwise.workload.adapters import DEFAULT_TARGETS, adapted_products
from gpuwise.workload.blocks.point import NF4_BYTES_PER_PARAMETER
from gpuwise.workload.changes.strategy import LORA_RANK, LOW_PRECISION
from gpuwise.workload.optimizer import BITSANDBYTES, parameter_bytes
from gpuwise.workload.stacks.stack import HIDDEN_EXPERTS_SINCE, find_stack, in_year, releases, with_whole_logits
from gpuwise.workload.strategy import CHOICES, COLUMNS, DEGREES, NEUTRAL, OPTIONS, Strategy
from gpuwise.workload.tasks import FEWEST_TOKENS, Task, leaves_method_open, task_for, task_of_method, tasks
from gpuwise.workload.transformer.parameters import count_parameters

RISK = 0.1
"""Default for the maximum accepted probability of running out of memory."""
AUTO = "auto"
"""As a precision: try every format of :data:`FASTER` that the accelerator has, and the default one."""
FASTER = ("fp8", "mxfp8", "nvfp4")


@dataclass(frozen=True, slots=True)
class Wishes:
    """The user's request. ``None`` means: choose.

    ``fixed``: values of other strategy fields that must not be searched (``{"tp": 4, "sharding": "zero3"}``), and options that
    the choice of the rest does not depend on.
    """

    tokens: float | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    precision: tuple[str, ...] = ()
    """Formats to compare; empty: the usual one of the accelerator; ``auto``: that and every faster one it has."""
    optimizer: str | None = None
    half_weights: bool = False
    """Weights and gradients in 16 bits, without fp32 copies."""
    step_in_backward: bool = False
    offload_parameters: bool = False
    task: str | None = None
    """What it is for, of :func:`gpuwise.workload.tasks.tasks`; ``None``: judged by adapters and tokens."""
    stack: str | None = None
    year: int | None = None
    """Year of the software; ``None``: that of the published run that the goal is, else today's."""
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = DEFAULT_TARGETS
    quantized_base: bool = False
    context_parallel: str = "ring"
    gradient_dtype: str | None = None
    """``None``: the stack's, fp32 but for DeepSpeed's fp16 engine."""
    etp: int = 1
    expert_dispatch: str | None = None
    """``None``, as with the next two: what the stacks of the year have."""
    overlap_ep: bool | None = None
    cuda_graphs: str | None = None
    fused_loss: bool | None = None
    packed_document_len: int | None = None
    fixed: Mapping[str, int | str | bool] = field(default_factory=dict[str, "int | str | bool"])
    exhaustive: bool = False
    risk: float = RISK
    """Maximum accepted probability of running out of memory."""
    host_memory_bytes: float | None = None
    """Memory of each host; ``None``: the system's."""
    link: str | None = None
    """Links inside each host, as :func:`gpuwise.facts.hardware.links.with_links` reads them; ``None``: the system's."""

    @property
    def fine_tuning(self) -> bool:
        """Whether adapters are trained and the weights are frozen."""
        return self.lora_rank > 0 or self.quantized_base

    @property
    def frozen_bytes(self) -> float:
        """Bytes of a frozen parameter under adapters."""
        return NF4_BYTES_PER_PARAMETER if self.quantized_base else FROZEN_BYTES


WISHED = tuple(f.name for f in fields(Wishes) if f.name in OPTIONS and f.name != "precision")
"""Fields of a strategy that wishes have as they are; the others are given by ``fixed``."""


@dataclass(frozen=True, slots=True)
class Goal:
    """All inputs of a search except the cluster's strategies. ``assumed`` lists which values were defaults, and why."""

    arch: Architecture
    cluster: Cluster
    seq_len: int
    global_batch: int
    bases: tuple[Strategy, ...]
    wishes: Wishes
    assumed: tuple[str, ...]
    task: Task
    year: int | None = None
    """Year of the software; ``None``: today's."""


def check_wishes(wishes: Wishes) -> None:
    """Raises InputError or UnknownNameError on a value that cannot be meant."""
    for name in ("tokens", "deadline_s", "budget_usd"):
        value = getattr(wishes, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(
                f"{name.split('_')[0]} must be a positive number, not {value}",
                hint="for example 15B, 3d or 2000",
            )
    if wishes.tokens is not None and wishes.tokens > LARGEST_COUNT:
        raise InputError(f"tokens must be at most {LARGEST_COUNT:g}, not {wishes.tokens:g}", hint="for example 15B")
    for name in ("seq_len", "global_batch", "packed_document_len", "year", "lora_rank", "etp"):
        value = getattr(wishes, name)
        if value is not None and (not math.isfinite(value) or value != int(value) or value > LARGEST_COUNT):
            raise InputError(f"{name.replace('_', ' ')} must be a whole number, not {value}", hint="for example 8")
    for name in ("seq_len", "packed_document_len"):
        value = getattr(wishes, name)
        if value is not None and value > LONGEST_SEQUENCE:
            label = name.replace("_", " ")
            raise InputError(f"{label} must be at most {LONGEST_SEQUENCE:,}, not {value:,}", hint="for example 8192")
    for name in ("seq_len", "global_batch", "packed_document_len", "etp"):
        value = getattr(wishes, name)
        if value is not None and value < 1:
            raise InputError(f"{name.replace('_', ' ')} must be at least 1, not {value}", hint="give a whole number")
    if wishes.year is not None and wishes.year < FIRST_YEAR:
        raise InputError(
            f"no software stack is known for {wishes.year}", hint=f"give a year from {FIRST_YEAR} on, or leave it out for today's"
        )
    if not 0.0 < wishes.risk < 1.0:
        raise InputError(f"risk must lie between 0 and 1, not {wishes.risk}", hint="for example 0.1: memory suffices with 90 %")
    if wishes.lora_rank < 0:
        raise InputError(f"adapter rank must be at least 1, not {wishes.lora_rank}", hint="for example --lora-rank 16")
    adapted_products(wishes.lora_targets)
    for name in CHOICES:
        if name in WISHED and getattr(wishes, name) is not None:
            _check_choice(name, getattr(wishes, name))
    for precision in wishes.precision:
        if precision != AUTO:
            _check_choice("precision", precision)
    _check_formats(wishes)
    _check_layout(wishes)
    for name, value in wishes.fixed.items():
        if name in CHOICES:
            _check_choice(name, str(value))
        elif name in DEGREES and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(
                f"{name.replace('_', '-')} must be a whole number of at least 1, not {value}",
                hint="for example 4",
            )


def _check_formats(wishes: Wishes) -> None:
    """Raises InputError where formats contradict one another."""
    full = [p for p in wishes.precision if p in ("fp32", "tf32")]
    if full and wishes.half_weights:
        raise InputError(f"16-bit weights with {full[0]} products", hint="leave out --half-weights, or take --precision bf16")
    if full and wishes.gradient_dtype not in (None, "fp32"):
        raise InputError(f"{wishes.gradient_dtype} gradients with {full[0]} products", hint="leave out --gradient-dtype")
    if wishes.gradient_dtype == "fp16" and wishes.precision and not {"fp16", AUTO} & set(wishes.precision):
        raise InputError(f"fp16 gradients with {wishes.precision[0]} products", hint="use --gradient-dtype bf16 or fp32")
    if wishes.half_weights and wishes.fine_tuning:
        raise InputError("16-bit weights without fp32 copies with adapters", hint="frozen weights have no copies: leave it out")


def _check_layout(wishes: Wishes) -> None:
    """Raises InputError where one part of a layout makes another pointless."""
    fixed = wishes.fixed
    if fixed.get("pp") == 1 and fixed.get("schedule", "1f1b") != "1f1b":
        raise InputError(
            f"a {fixed['schedule']} schedule without a pipeline", hint="leave out --schedule, or give --pp 2 or more"
        )
    if fixed.get("cp") == 1 and wishes.context_parallel != "ring":
        raise InputError(f"{wishes.context_parallel} exchange without context parallelism", hint="give --cp 2 or more")
    if fixed.get("tp") == 1 and fixed.get("sequence_parallel") is True:
        raise InputError("sequence parallelism splits over tensor ranks", hint="give --tp 2 or more")
    if fixed.get("sharding") == "none" and "shard_group" in fixed:
        raise InputError("a shard group without sharding", hint="give --sharding hybrid, zero1, zero2 or zero3")
    if wishes.step_in_backward and int(fixed.get("accumulation", 1)) > 1:
        raise InputError(
            f"an update in the backward pass accumulates nothing, not {fixed['accumulation']} micro-batches",
            hint="leave out --accumulation (and give a larger --micro-batch), or --step-in-backward",
        )
    every = int(fixed.get("recompute_every", 1))
    if every > 1 and fixed.get("recompute", "full") != "full":
        raise InputError(f"recompute of one layer in {every} with {fixed['recompute']} recompute", hint="use --recompute full")


def _check_choice(name: str, value: str) -> None:
    if name == "stack" and "@" in value:
        find_stack(value)
    elif value not in CHOICES[name]:
        raise UnknownNameError(name.replace("_", " "), value, CHOICES[name], hint=_choices_hint(name, value))


def _choices_hint(name: str, value: str) -> str:
    from gpuwise.errors import nearest_names

    near = nearest_names(value, CHOICES[name], 1)
    return (f"did you mean {near[0]!r}? " if near else "") + "it is one of " + ", ".join(CHOICES[name])


def task_of(arch: Architecture, wishes: Wishes) -> tuple[Task, str]:
    """What is asked for, and where that is a guess that surprises, the words for it. Raises UnknownNameError, InputError."""
    method = tasks()["qlora" if wishes.quantized_base else "lora"] if wishes.fine_tuning else None
    if wishes.task is None and method is not None:
        return method, ""
    if wishes.task is not None:
        task = task_for(wishes.task, arch.kind)
        if task.method != (method.method if method else "full") and not task.prompts:
            raise InputError(f"{task.title} with {method.title if method else 'every weight trained'}", hint="leave one out")
        return task, ""
    n = count_parameters(arch).active
    if wishes.tokens is None or arch.patches is not None or wishes.tokens >= FEWEST_TOKENS * n:
        return tasks()["pretrain"], ""
    words = f"{format_count(wishes.tokens)} tokens for {format_count(n)} parameters"
    return tasks()["full"], f"taken as full fine-tuning: {words}, --for pretrain to change"


def with_adapters_of_task(arch: Architecture, wishes: Wishes) -> Wishes:
    """``wishes`` with the name of their task, and with the adapters that it trains where none are given. Raises
    UnknownNameError."""
    if wishes.task is None:
        return wishes
    task = task_for(wishes.task, arch.kind)
    if leaves_method_open(wishes.task) and wishes.fine_tuning:
        task = tasks()["qlora" if wishes.quantized_base else "lora"]
    wishes = replace(wishes, task=task.name)
    if task.method == "full" or wishes.fine_tuning:
        return wishes
    return replace(wishes, lora_rank=LORA_RANK, quantized_base=task.method == "qlora")


def as_trained(arch: Architecture, task: Task) -> Architecture:
    """``arch`` with the head that ``task`` trains: an encoder is fine-tuned for classes or vectors, and the loss over the
    vocabulary is of its pre-training alone."""
    vectors = arch.kind == "encoder" and not arch.lm_head and task.name in ("full", "lora", "qlora")
    return replace(arch, pooled=True) if vectors else arch


def make_goal(arch: Architecture, cluster: Cluster, wishes: Wishes) -> Goal:
    """Fill the gaps of ``wishes`` as is usual for the task.

    Raises InputError, UnknownNameError or UnpredictableError on wishes that cannot be met.
    """
    wishes = with_adapters_of_task(arch, wishes)
    check_wishes(wishes)
    task, guess = task_of(arch, wishes)
    arch = as_trained(arch, task)
    check_trainable(arch, base_in_4_bits=wishes.quantized_base)
    cluster = with_links(with_host_memory(cluster, wishes.host_memory_bytes), wishes.link)
    tuning = task.checkpoint
    assumed = [words for words in (arch.assumption, cluster.assumption, guess) if words]
    if "count" in cluster.system.assumed and wishes.link is None and (words := link_words(cluster)):
        assumed.append(f"links {words}")
    seq_len = wishes.seq_len
    if seq_len is None:
        seq_len, why = default_seq_len(arch, task)
        assumed.append(f"sequence length {seq_len:,} ({why})")
    elif seq_len > arch.max_seq_len and arch.position == "learned":
        raise InputError(
            f"{arch.name} has learned positions for {arch.max_seq_len} tokens, not {seq_len}",
            hint=f"use --seq {arch.max_seq_len} or less",
        )
    global_batch = wishes.global_batch
    if global_batch is None:
        global_batch, why = _batch(arch, cluster, seq_len, task, wishes)
        if wishes.step_in_backward:
            global_batch = cluster.n_accelerators * int(wishes.fixed.get("micro_batch", 1))
            why = "one micro-batch on each accelerator: an update in the backward pass accumulates nothing"
        assumed.append(f"global batch {global_batch:,} sequences ({why})")
    if wishes.offload_parameters:
        wishes = replace(wishes, fixed={"offload_optimizer": True, **wishes.fixed})
    stack, year = wishes.stack, wishes.year
    options = {**wishes.fixed, "fused_loss": bool(wishes.fused_loss), "offload_parameters": wishes.offload_parameters}
    run = None if tuning else published_run(arch, cluster, options, stack)
    if year is None and run is not None:
        year = run.year
        assumed.append(f"software of {year}, as in the published run of this model (--year {todays_year(arch)}: today's)")
    if stack is None:
        stack, why = default_stack(
            arch,
            cluster,
            fine_tuning=wishes.fine_tuning,
            full=tuning and not wishes.fine_tuning,
            frozen_bytes=wishes.frozen_bytes,
            replica_bytes=_replica_bytes(wishes, cluster),
            options=options,
            updates_on_host=not wishes.step_in_backward and wishes.optimizer not in BITSANDBYTES,
            year=year,
        )
        assumed.append(f"stack {stack} ({why})")
    stack, newest = in_year(stack, year), stack
    if wishes.fused_loss is False and (whole := with_whole_logits(stack)) != stack:
        assumed.append(f"stack {whole} for {stack}: its last release whose loss holds whole logits")
        stack = newest = whole
    if stack != newest:
        assumed.append(f"{newest} as it was in {year}: " + "; ".join(r.what for r in releases(newest) if not r.is_in(str(year))))
    precisions = wishes.precision
    if not precisions:
        usual, why = default_precision(cluster.accelerator)
        if run is not None and run.year == year and run.precision in cluster.accelerator.peak_flop_per_s:
            usual, why = run.precision, "that of the published run"
        precisions = (usual,)
        if usual != "bf16":
            assumed.append(f"precision {usual} ({why})")
    if AUTO in precisions:
        precisions = formats_of(precisions, cluster.accelerator)
        assumed.append(f"the fastest of {', '.join(precisions)}")
    for precision in precisions:
        cluster.accelerator.peak(precision)
    lora_rank = wishes.lora_rank or (LORA_RANK if wishes.quantized_base else 0)
    if lora_rank > arch.hidden:
        raise InputError(
            f"adapter rank {lora_rank:,} is more than the model's width of {arch.hidden:,}: such adapters are larger than what "
            "they adapt",
            hint="usual ranks are 8 to 256: --lora-rank 16",
        )
    unfused = unfused_attention(stack, cluster.accelerator, year)
    if unfused:
        assumed.append(f"attention without a fused kernel ({unfused})")
    # frozen weights stay in the format of their checkpoint, with nothing to cast
    given = {name: value for name in WISHED if (value := getattr(wishes, name)) is not None}
    given |= {name: value for name, value in wishes.fixed.items() if name not in COLUMNS}
    base = NEUTRAL.with_(**given).with_(
        offload_parameters=wishes.offload_parameters and not _by_fsdp(stack, wishes),
        lora_rank=lora_rank,
        master_weights=not (lora_rank and find_stack(stack).weight_cast_per_micro_batch),
        stack=stack,
        fused_attention=not unfused,
    )
    base = _with_experts(base, wishes, arch, year)
    formed = [replace(base, precision=p, gradient_dtype=_gradients(wishes, stack, p)) for p in precisions]
    recipe = find_stack(stack).half_weights and not lora_rank
    bases = tuple(
        _halved(one) if wishes.half_weights or (recipe and one.precision in ("fp16", "bf16")) else one for one in formed
    )
    return Goal(arch, cluster, seq_len, global_batch, bases, wishes, tuple(assumed), task, year)


def formats_of(asked: tuple[str, ...], accelerator: Accelerator) -> tuple[str, ...]:
    """The formats of the products that are compared: as asked, or the usual one, with every faster one where it is left open."""
    usual = default_precision(accelerator)[0]
    if AUTO not in asked:
        return asked or (usual,)
    faster = (p for p in FASTER if p in accelerator.peak_flop_per_s)
    return tuple(dict.fromkeys([*(p for p in asked if p != AUTO), usual, *faster]))


def _replica_bytes(wishes: Wishes, cluster: Cluster) -> float:
    """Bytes of a trained parameter: weight, fp32 copy, gradient and optimizer states."""
    precision = next((p for p in wishes.precision if p != AUTO), default_precision(cluster.accelerator)[0])
    base = Strategy(precision=precision, optimizer=wishes.optimizer or "adamw", gradient_dtype=wishes.gradient_dtype or "fp32")
    b = parameter_bytes(_halved(base) if wishes.half_weights else base)
    return b.weight + b.master + b.gradient + b.state


def _by_fsdp(stack: str, wishes: Wishes) -> bool:
    """Whether ``stack`` keeps the weights in host memory with the optimizer, so that they need no option of their own."""
    return find_stack(stack).offloads_parameters and wishes.fixed.get("offload_optimizer") is not False


def on_stack(goal: Goal, stack: str, why: str) -> Goal:
    """``goal`` with another assumed stack, and the defaults that depend on it."""
    stack = in_year(stack, goal.year)
    stack = with_whole_logits(stack) if goal.wishes.fused_loss is False else stack
    fused = not unfused_attention(stack, goal.cluster.accelerator, goal.year)
    cast = find_stack(stack).weight_cast_per_micro_batch
    bases = tuple(
        b.with_(
            stack=stack,
            offload_parameters=b.offload_parameters and not _by_fsdp(stack, goal.wishes),
            master_weights=not (b.lora_rank and cast),
            gradient_dtype=_gradients(goal.wishes, stack, b.precision),
            fused_attention=fused,
        )
        for b in goal.bases
    )
    bases = tuple(_with_experts(b, goal.wishes, goal.arch, goal.year) for b in bases)
    assumed = tuple(f"stack {stack} ({why})" if a.startswith("stack ") else a for a in goal.assumed)
    return replace(goal, bases=bases, assumed=assumed)


def as_asked(goal: Goal, strategy: Strategy) -> Strategy:
    """``strategy`` on the default stack for it on the goal's cluster, with the defaults that depend on the stack; unchanged if
    the user named a stack. Raises what :func:`make_goal` raises."""
    wishes, base, own = goal.wishes, goal.bases[0], task_of_method(strategy)
    if wishes.stack is not None:
        return strategy
    offloads = {name: True for name in ("offload_optimizer", "offload_activations") if getattr(strategy, name)}
    halved = not (strategy.lora_rank or strategy.master_weights)
    same = strategy.precision == base.precision
    asked = replace(
        wishes,
        task=(goal.task if goal.task.method == own.method else own).name,
        seq_len=goal.seq_len,
        global_batch=goal.global_batch,
        precision=wishes.precision if same else (strategy.precision,),
        optimizer=wishes.optimizer if strategy.optimizer == base.optimizer else strategy.optimizer,
        gradient_dtype=wishes.gradient_dtype
        if halved or strategy.gradient_dtype == base.gradient_dtype
        else strategy.gradient_dtype,
        half_weights=halved,
        step_in_backward=strategy.step_in_backward,
        offload_parameters=strategy.offload_parameters,
        lora_rank=strategy.lora_rank,
        lora_targets=strategy.lora_targets,
        quantized_base=strategy.quantized_base,
        fused_loss=strategy.fused_loss or (None if wishes.fused_loss else wishes.fused_loss),
        fixed={**wishes.fixed, **offloads},
    )
    taken = make_goal(goal.arch, goal.cluster, asked).bases[0]
    fields = ("stack", "master_weights", "gradient_dtype", "fused_attention", "offload_parameters")
    return strategy.with_(**{name: getattr(taken, name) for name in fields})


def batch_as_asked(goal: Goal, strategy: Strategy) -> int:
    """The global batch with which ``strategy`` is trained on the goal's cluster: where that was left open, other adapters take
    that of their own task."""
    same = (strategy.lora_rank > 0, strategy.quantized_base) == (goal.bases[0].lora_rank > 0, goal.bases[0].quantized_base)
    wishes, task = goal.wishes, task_of_method(strategy)
    if same or wishes.global_batch is not None or wishes.step_in_backward:
        return goal.global_batch
    return _batch(goal.arch, goal.cluster, goal.seq_len, task, wishes)[0]


def _with_experts(base: Strategy, wishes: Wishes, arch: Architecture, year: int | None) -> Strategy:
    """``base`` with the requested expert all-to-all, or that of its stack in ``year``."""
    dated = arch.moe is not None and year is not None and year < HIDDEN_EXPERTS_SINCE
    stack = find_stack(base.stack)
    chosen = stack.layout.chooses_dispatch or stack.own_exchange or stack.one_program
    older = arch.moe is not None and (not chosen or (dated and not stack.own_exchange))
    return replace(
        base,
        etp=1 if arch.moe is None else wishes.etp,
        expert_dispatch=wishes.expert_dispatch or ("all-to-all" if older else "deepep"),
        overlap_ep=not older if wishes.overlap_ep is None else wishes.overlap_ep,
        cuda_graphs=wishes.cuda_graphs or ("none" if older else "partial"),
    )


def usual_recompute(base: Strategy) -> str:
    """Default recomputation: full if the stack's own tool turns that on, always or with frozen 4-bit weights."""
    stack = find_stack(base.stack)
    return "full" if stack.checkpoints or (base.quantized_base and stack.checkpoints_quantized) else "none"


def _gradients(wishes: Wishes, stack: str, precision: str) -> str:
    """Format that gradients are accumulated in: as asked, else the stack's."""
    half = precision == "fp16" and find_stack(stack).half_gradients
    return wishes.gradient_dtype or ("fp16" if half else "fp32")


def _halved(base: Strategy) -> Strategy:
    """``base`` with weights and gradients in 16 bits (gradients are in their parameter's format in PyTorch)."""
    form = base.precision if base.precision in ("fp16", "bf16") else "bf16"
    return LOW_PRECISION.apply(base, form)


def _batch(arch: Architecture, cluster: Cluster, seq_len: int, task: Task, wishes: Wishes) -> tuple[int, str]:
    """The default batch, moved to what the given parts of a batch, or else the cluster's devices, divide; adapters have no other
    layout than a sequence each."""
    usual, why = default_global_batch(arch, seq_len, task, tokens=wishes.tokens)
    n, given = cluster.n_accelerators, [name for name in ("micro_batch", "accumulation", "dp") if name in wishes.fixed]
    if "micro_batch" in given or "accumulation" in given:
        split = math.prod(int(wishes.fixed.get(name, 1)) for name in ("tp", "pp", "cp"))
        step = math.prod(int(wishes.fixed[name]) for name in given) * (1 if "dp" in given else max(n // split, 1))
        if len(given) == 3 or given == ["micro_batch", "accumulation"]:
            return step, "micro-batch x accumulation x data-parallel ranks"
        if usual % step:
            return max(round(usual / step), 1) * step, why + f", {usual:,} moved to a multiple of {step:,}, as given"
    if task.method != "full" and n > usual:
        return n, f"one for each of {n:,} accelerators"
    batch = batch_for_devices(usual, n)
    return batch, why if batch == usual else why + f", {usual:,} moved to suit {n:,} accelerators"
