"""Options shared by commands: numbers as people write them, refused with a hint when they cannot be meant."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from cyclopts import Parameter

from gpuwise.errors import InputError
from gpuwise.units import (
    LARGEST_COUNT,
    LARGEST_USD,
    LONGEST_S,
    LONGEST_SEQUENCE,
    hint_for,
    parse_bytes,
    parse_count,
    parse_duration,
)

LARGEST_WHOLE = 10**12
"""No degree or batch is larger; bigger numbers are slips of the keyboard."""
SMALLEST = 1e-6
"""No count, time or sum of dollars is smaller."""
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")


def whole_number(text: str, name: str) -> int:
    """A whole number of at least 1: ``8``, ``8192``, ``8k``. Raises InputError."""
    cleaned = text.strip().replace("_", "")
    if _THOUSANDS.fullmatch(cleaned):
        cleaned = cleaned.replace(",", "")
    factor = 1
    if cleaned[-1:].lower() == "k":
        cleaned, factor = cleaned[:-1], 1024
    if not cleaned.isascii() or not cleaned.isdigit() or not 1 <= int(cleaned[:40]) * factor <= LARGEST_WHOLE:
        example = "8" if name == "value" else f"{name} 8"
        raise InputError(f"{name}: {text!r} is not a whole number of at least 1", hint=hint_for(text, example))
    return int(cleaned) * factor


def positive_count(text: str, name: str) -> float:
    """A count above zero: ``15B``, ``300M``, ``2e9``. Raises InputError."""
    try:
        value = parse_count(text)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=error.hint) from None
    return _within(value, LARGEST_COUNT, "1,000 trillion, which no run comes near", text, name, "15B")


def sequence_length(text: str, name: str) -> int:
    """Tokens of a sequence, of at most :data:`LONGEST_SEQUENCE`: ``8192``, ``8k``. Raises InputError."""
    value = whole_number(text, name)
    if value > LONGEST_SEQUENCE:
        raise InputError(
            f"{name}: {text!r} is longer than {LONGEST_SEQUENCE:,} tokens, ten times the longest context of a published model",
            hint=f"write it like {name} 8192",
        )
    return value


def _within(value: float, most: float, most_text: str, text: str, name: str, example: str) -> float:
    """``value`` where it is above zero and at most ``most``. Raises InputError that says which it is not."""
    hint = f"write it like {name} {example}"
    if not value > 0:
        raise InputError(f"{name}: {text!r} is not above zero", hint=hint)
    if value < SMALLEST:
        raise InputError(f"{name}: {text!r} is as good as zero", hint=hint)
    if value > most:
        raise InputError(f"{name}: {text!r} is more than {most_text}", hint=hint)
    return value


def positive_duration(text: str, name: str) -> float:
    """Seconds above zero: ``12h``, ``3d``. Raises InputError."""
    try:
        value = parse_duration(text)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=error.hint) from None
    return _within(value, LONGEST_S, "a hundred years", text, name, "3d")


def money(text: str, name: str) -> float:
    """US dollars above zero: ``2000``, ``$2,000``, ``2.5k``. Raises InputError."""
    try:
        value = parse_count(text.strip().removeprefix("$"))
    except InputError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: {text!r} is not an amount of US dollars", hint=hint_for(text, f"{name} 2000"))
    return _within(value, LARGEST_USD, "a trillion US dollars", text, name, "2000")


def size(text: str, name: str) -> float:
    """Bytes above zero: ``40GB``, ``24GiB``. Raises InputError."""
    try:
        value = parse_bytes(text)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=hint_for(text, f"{name} 40GB")) from None
    if not value > 0:
        raise InputError(f"{name}: {text!r} is not above zero", hint=f"write it like {name} 40GB")
    return value


def option_name(field: str) -> str:
    """``--max-watts`` of ``max_watts``."""
    return "--" + field.strip("_").replace("_", "-")


def given(options: Any, usual: Any) -> dict[str, object]:
    """Options of a group that are not as ``usual``, by field."""
    return {f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) != getattr(usual, f.name)}


def refuse(names: Collection[str], why: str, hint: str = "leave it out", allowed: Collection[str] = ()) -> None:
    """Raises InputError, ``--option why``, for the first of ``names`` that is not ``allowed``: what changes nothing in an answer
    is not taken silently."""
    for name in names:
        if name not in allowed:
            raise InputError(f"{option_name(name)} {why}", hint=hint)


def converter(parse: Any) -> Any:
    """What cyclopts calls for an option: ``parse`` of its text and its name."""

    def convert(_: Any, tokens: Sequence[Any]) -> Any:
        token = tokens[0]
        return parse(token.value, token.keyword or "value")

    return convert


def share(text: str, name: str) -> float:
    """A share between 0 and 1: ``0.1``, ``10%``. Raises InputError."""
    cleaned = text.strip()
    try:
        value = float(cleaned.rstrip(" %")) / (100.0 if cleaned.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1.0:
        raise InputError(f"{name}: {text!r} does not lie between 0 and 1", hint=hint_for(text, f"{name} 0.1"))
    return value


def new_file(text: str, name: str) -> str:
    """The name of a file to write, or ``-`` for stdout. Raises InputError for what reads as an option or a number."""
    try:
        float(text)
    except ValueError:
        if text == "-" or not text.startswith("-"):
            return text
    raise InputError(f"{name}: {text!r} is no name of a file", hint=f"name one, {name} ./{text.lstrip('-')}, or - to print it")


Whole = Annotated[int, Parameter(converter=converter(whole_number))]
Length = Annotated[int, Parameter(converter=converter(sequence_length))]
Count = Annotated[float, Parameter(converter=converter(positive_count))]
Duration = Annotated[float, Parameter(converter=converter(positive_duration))]
Money = Annotated[float, Parameter(converter=converter(money))]
Bytes = Annotated[float, Parameter(converter=converter(size))]
Share = Annotated[float, Parameter(converter=converter(share))]
NewFile = Annotated[str, Parameter(allow_leading_hyphen=True, converter=converter(new_file))]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Training:
    """How to train. Whatever is left out is chosen."""

    seq: Length | None = None
    """Sequence length in tokens."""
    global_batch: Whole | None = None
    """Sequences a step, over all accelerators."""
    precision: str | None = None
    """Format of the matrix products: fp32, tf32, fp16, bf16 (usual), fp8, mxfp8, nvfp4; several with
    commas; auto: the fastest of those that the GPU has."""
    optimizer: str | None = None
    """sgd, momentum, adamw (usual), adamw-bf16 (its moments), adamw8bit, paged-adamw, paged-adamw8bit, adafactor,
    lion or muon."""
    half_weights: Annotated[bool, Parameter(negative="")] = False
    """Weights and gradients in 16 bits, without fp32 copies."""
    step_in_backward: Annotated[bool, Parameter(negative="")] = False
    """Update each parameter as soon as its gradient is there: no gradients are kept, and none accumulated."""
    stack: str | None = None
    """Software: megatron-core, compiled-fsdp, eager-fsdp, composer, compiled, eager, megatron-deepspeed,
    megatron-legacy, nanotron, deepspeed, deepspeed-script, torchtune, hf-fsdp, trainer, litgpt, nanogpt, unsloth, hai-llm,
    vtrain."""
    year: Whole | None = None
    """The year whose software trains (usual: today's, or of the published run that this is): before 2023 attention was not
    fused, nor sequence parallel; before 2025 experts' exchange was not hidden."""
    lora: Annotated[bool, Parameter(negative="")] = False
    """Train low-rank adapters (rank 16) on frozen weights."""
    lora_rank: Whole | None = None
    """Rank of the adapters."""
    lora_targets: str | None = None
    """Linear layers with adapters: all-linear (usual), attention, mlp, or module names with commas (q_proj,v_proj)."""
    qlora: Annotated[bool, Parameter(negative="")] = False
    """Adapters on weights held in 4 bits."""
    packed: Length | None = None
    """Mean document length when sequences are packed and attention stays inside documents."""
    risk: Share | None = None
    """Probability, at the most, that memory does not suffice after all (usual: 0.1, a plan fits with 90 %)."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """Parts of the strategy to hold fast."""

    tp: Whole | None = None
    """Tensor parallel degree."""
    pp: Whole | None = None
    """Pipeline parallel degree."""
    cp: Whole | None = None
    """Context parallel degree."""
    ep: Whole | None = None
    """Expert parallel degree."""
    etp: Whole = 1
    """Tensor ranks that each expert is divided over (Megatron's --expert-tensor-parallel-size): 1 (usual) or those of --tp."""
    dp: Whole | None = None
    """Data parallel degree."""
    micro_batch: Whole | None = None
    """Sequences a micro-batch."""
    accumulation: Whole | None = None
    """Micro-batches a step."""
    virtual_stages: Whole | None = None
    """Virtual stages a pipeline stage."""
    schedule: str | None = None
    """Pipeline schedule: gpipe, 1f1b, interleaved, zero-bubble, dualpipe or dualpipe-v."""
    sharding: str | None = None
    """Data-parallel sharding: none, zero1, zero2, zero3 (FSDP) or hybrid."""
    shard_group: Whole | None = None
    """Ranks that a shard spans: with hybrid sharding a system (usual), with ZeRO all data-parallel ranks."""
    recompute: str | None = None
    """Activation recompute: none, selective or full."""
    recompute_every: Whole | None = None
    """With full recompute: one layer in this many."""
    context_parallel: str = "ring"
    """How context parallelism exchanges: ring or ulysses."""
    gradient_dtype: str | None = None
    """Format gradients are accumulated in: fp32 (usual), bf16 or fp16 (that of DeepSpeed's engine with fp16 weights)."""
    expert_dispatch: str | None = None
    """How tokens travel to experts: all-to-all (usual before 2025), deepep (one copy to each node: usual) or deepep-fp8."""
    overlap_experts: bool | None = None
    """Tokens travel to experts behind the work of another micro-batch (usual from 2025 on)."""
    cuda_graphs: str | None = None
    """What of layers with experts is a CUDA graph: none (usual before 2025), partial (attention and router: usual) or full."""
    sequence_parallel: bool | None = None
    """Split norms and residuals over the tensor ranks."""
    offload_optimizer: bool | None = None
    """Keep optimizer states in host memory; under FSDP the weights too."""
    offload_parameters: Annotated[bool, Parameter(negative="")] = False
    """Keep the weights in host memory beside the optimizer: DeepSpeed ZeRO-3's offload_param, or FSDP's offload."""
    offload_activations: bool | None = None
    """Keep activations in host memory between forward and backward."""
    chunked_loss: Annotated[bool, Parameter(negative="")] = False
    """Compute the loss in chunks that never hold all logits."""


LEFT_OPEN, NOTHING_FIXED = Training(), LayoutOptions()
FIXED_FIELDS = (
    "tp",
    "pp",
    "cp",
    "ep",
    "dp",
    "micro_batch",
    "accumulation",
    "virtual_stages",
    "schedule",
    "sharding",
    "shard_group",
    "recompute",
    "recompute_every",
    "sequence_parallel",
    "offload_optimizer",
    "offload_activations",
)


def wishes_of(training: Training, fixed: LayoutOptions, **more: Any) -> Any:
    """The two groups of options as :class:`gpuwise.plan.goal.Wishes`. Raises InputError on contradictions."""
    from gpuwise.plan.goal import LORA_RANK, RISK, Wishes
    from gpuwise.workload.adapters import DEFAULT_TARGETS, split_targets

    if training.lora and training.qlora:
        raise InputError("--lora and --qlora are two ways", hint="--qlora for 4-bit frozen weights, --lora for 16-bit ones")
    adapters = training.lora or training.qlora
    if adapters and (training.half_weights or training.step_in_backward):
        option = "--half-weights" if training.half_weights else "--step-in-backward"
        raise InputError(f"{option} with adapters", hint="the frozen weights have no fp32 copies and no gradients: leave it out")
    if training.lora_rank is not None and not adapters:
        raise InputError("--lora-rank without adapters", hint="add --lora or --qlora")
    if training.lora_targets is not None and not adapters:
        raise InputError("--lora-targets without adapters", hint="add --lora or --qlora")
    precision = tuple(p.strip().lower() for p in (training.precision or "").split(",") if p.strip())
    if training.precision is not None and not precision:
        raise InputError("--precision names no format", hint="for example --precision bf16")
    strategy_fields = {f: getattr(fixed, f) for f in FIXED_FIELDS if getattr(fixed, f) is not None}
    return Wishes(
        seq_len=training.seq,
        global_batch=training.global_batch,
        precision=precision,
        optimizer=training.optimizer,
        half_weights=training.half_weights,
        step_in_backward=training.step_in_backward,
        offload_parameters=fixed.offload_parameters,
        stack=training.stack,
        year=training.year,
        lora_rank=(training.lora_rank or LORA_RANK) if adapters else 0,
        lora_targets=DEFAULT_TARGETS if training.lora_targets is None else split_targets(training.lora_targets),
        quantized_base=training.qlora,
        context_parallel=fixed.context_parallel,
        gradient_dtype=fixed.gradient_dtype,
        etp=fixed.etp,
        expert_dispatch=fixed.expert_dispatch,
        overlap_ep=fixed.overlap_experts,
        cuda_graphs=fixed.cuda_graphs,
        fused_loss=fixed.chunked_loss or None,
        packed_document_len=training.packed,
        risk=RISK if training.risk is None else training.risk,
        fixed=strategy_fields,
        **more,
    )


def check_script(script: str, *, module: bool) -> None:
    """Raises InputError where a training script is not there or is not Python; a module is looked for when it is run."""
    from gpuwise.train.hook.script import file_code

    if not script.isprintable():
        raise InputError(f"{script!r} is no name of a file or module", hint="name a script: train.py")
    if not module:
        file_code(script)
