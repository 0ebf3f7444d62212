"""``gpuwise op``: what one operation costs, on GPUs beside a processor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.options import Converter, Length, Whole, positive_count, whole_number
from gpuwise.cli.options import task as task_word
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.facts.hardware.cpus import Cpu
    from gpuwise.facts.hardware.targets import Target
    from gpuwise.plan.one_model import ModelAnswer
    from gpuwise.plan.one_op import Answer
else:
    Shown = options_shown("op")

SHAPES: dict[str, tuple[tuple[str, ...], str]] = {
    "matmul": (("M", "N", "K"), "gpuwise op matmul 10000 10000 10000 --on a100"),
    "attention": (("BATCH", "HEADS", "SEQ", "HEAD_DIM"), "gpuwise op attention 1 32 8192 128 --on h100-sxm"),
    "stream": (("SIZE",), "gpuwise op stream 1GB --on a100"),
    "copy": (("SIZE",), "gpuwise op copy 10GB --on 8xh100-sxm"),
    "allreduce": (("SIZE",), "gpuwise op allreduce 1GB --on 8xH100-SXM"),
    "decode": (("MODEL",), "gpuwise op decode llama-3.1-8b --on 4090 --weights Q4_K_M"),
    "train": (("MODEL", "TOKENS"), "gpuwise op train bert-base 1.2M --on t4 --against i5-12400"),
}
"""Operation: what follows it, and an example."""
ALIASES = {
    **dict.fromkeys(("gemm", "mm", "bmm"), "matmul"),
    **dict.fromkeys(("sdpa", "flash-attention"), "attention"),
    **dict.fromkeys(("all-reduce", "all_reduce"), "allreduce"),
    **dict.fromkeys(("generate", "infer"), "decode"),
}
"""Other names of operations."""
_TIMES = re.compile("[x×*,]", re.IGNORECASE)
_JOINED = re.compile(r"\d+(?:[x×*,]\d+)+", re.IGNORECASE)
"""Counts in one word: 4096x4096x4096."""


def op(
    kind: str,
    *sizes: str,
    on: Annotated[list[str], Parameter(metavar="GPUS")],
    against: Annotated[str | None, Parameter(metavar="CPU")] = None,
    dtype: Annotated[str | None, Parameter(show_default="bf16", metavar="FORMAT")] = None,
    batch: Whole | None = None,
    kv_heads: Whole | None = None,
    causal: Annotated[bool | None, Parameter(show_default="yes", negative="--no-causal")] = None,
    weights: Annotated[str | None, Parameter(show_default="Q4_K_M", metavar="FORMAT")] = None,
    context: Length | None = None,
    seq: Length | None = None,
    task: Annotated[
        str | None, Parameter(name="--for", converter=Converter(task_word), show_default="judged by tokens", metavar="TASK")
    ] = None,
    precision: Annotated[str | None, Parameter(metavar="FORMAT")] = None,
    ram: Annotated[str | None, Parameter(metavar="MEMORY")] = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Predict the time, rate, share of peak and bottleneck of one operation, on a GPU or a CPU.

    matmul M N K; attention BATCH HEADS SEQ HEAD_DIM; stream SIZE (the device's own memory); copy SIZE (every path, one
    direction); allreduce SIZE; decode MODEL (a generated token); train MODEL TOKENS.

    Parameters
    ----------
    kind
        matmul, attention, stream, copy, allreduce, decode or train.
    sizes
        Sizes of the operation: counts for matmul and attention, 1GB for the others, a model by name.
    on
        A GPU or CPU (`gpuwise gpus`, `gpuwise cpus`), or this (this machine, as measured). To compare: several with commas, or
        --on again. Several GPUs (8xH100-SXM) for allreduce, decode, train.
    against
        A CPU to compare with: EPYC 9654, i5-12400, Xeon 8480+, or this (as measured).
    dtype
        Format of matmul and attention: fp64, fp32, tf32, fp16, bf16, fp8, mxfp8, nvfp4, int8.
    batch
        Batch size: products (matmul) or sequences (decode).
    kv_heads
        Key-value heads of attention, if fewer than the query heads.
    causal
        Causal attention: each token attends to earlier tokens only.
    weights
        Weight format of decode: Q4_K_M, Q8_0, F16 ... (llama.cpp), mlx_4bit ... (MLX) or bf16, fp8, int4_wo ... (vLLM).
    context
        Tokens in the KV cache when decoding: 1024.
    seq
        Sequence length of train.
    task
        Task of train: pretrain, continue or full (fine-tune every weight).
    precision
        Format of train: fp32, tf32, fp16, bf16, fp8.
    ram
        Memory of the CPU: ddr4-3200x2 (type, MT/s, channels). Default: the fastest that it takes.
    json
        One JSON document on the last line of stdout.
    """
    kind = ALIASES.get(kind.lower(), kind)
    words = _words(kind, sizes)
    values = {
        "dtype": dtype,
        "batch": batch,
        "kv_heads": kv_heads,
        "causal": causal,
        "weights": weights,
        "context": context,
        "seq": seq,
        "for": task,
        "precision": precision,
    }
    options = _options(kind, values)
    from gpuwise.facts.hardware.cpus import Cpu
    from gpuwise.facts.hardware.ram import read_ram
    from gpuwise.facts.hardware.targets import find_processor, find_target

    memory = None if ram is None else read_ram(ram)
    targets = [find_target(name, memory) for name in _names(on)]
    base = None if against is None else find_processor(against, memory)
    if memory is not None and base is None and not any(isinstance(target, Cpu) for target in targets):
        raise InputError("--ram is the memory of a CPU, and none is named", hint="name one: --on 'Ryzen 7 5700G'")
    answer: Answer | ModelAnswer
    text = ""
    if kind in ("decode", "train"):
        answer = _of_model(kind, words, targets, base, options)
    else:
        answer = _of_kernel(kind, words, targets, base, options)
        text = answer.work.text
    from gpuwise.plan.op_document import document
    from gpuwise.report.answers.operations import op_answer

    report(document(answer), lambda made: op_answer(made, text), shown, json=json)
    return 0


OPTIONS: dict[str, tuple[str, ...]] = {
    "matmul": ("dtype", "batch"),
    "attention": ("dtype", "kv_heads", "causal"),
    "stream": (),
    "copy": (),
    "allreduce": (),
    "decode": ("weights", "context", "batch"),
    "train": ("seq", "for", "precision"),
}
"""What else an operation takes; anything else given with it would change nothing, so it is refused."""


def _options(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given. Raises InputError for one that ``kind`` does not take."""
    options = {name: value for name, value in values.items() if value is not None}
    for name in options:
        if name not in OPTIONS[kind]:
            having = " and ".join(k for k, names in OPTIONS.items() if name in names)
            raise InputError(f"{kind} takes no --{name.replace('_', '-')}", hint=f"it belongs to {having}")
    return options


def _of_kernel(kind: str, words: Sequence[str], on: list[Target], against: Cpu | None, options: dict[str, Any]) -> Answer:
    from gpuwise.plan import one_op
    from gpuwise.units import parse_bytes

    if kind in ("matmul", "attention"):
        counts = [whole_number(w, name) for w, name in zip(words, SHAPES[kind][0], strict=True)]
        dtype = options.pop("dtype", "bf16")
        if kind == "matmul":
            m, n, k = counts
            return one_op.matmul(m, n, k, dtype, on, against, **options)
        batch, heads, seq, head_dim = counts
        return one_op.attention(batch, heads, seq, head_dim, dtype, on, against, **options)
    size = parse_bytes(words[0])
    if kind == "allreduce":
        if against is not None:
            raise InputError("an all-reduce has no processor to compare with", hint="leave --against out")
        return one_op.allreduce(size, on)
    return (one_op.copy if kind == "copy" else one_op.stream)(size, on, against)


def _of_model(kind: str, words: Sequence[str], on: list[Target], against: Cpu | None, options: dict[str, Any]) -> ModelAnswer:
    import datetime

    from gpuwise.facts.models.catalogue import find_model, find_model_to_run
    from gpuwise.facts.models.stored import check_agrees
    from gpuwise.plan import one_model
    from gpuwise.serve.formats import is_stored_as

    arch = find_model_to_run(words[0]) if kind == "decode" else find_model(words[0])
    if kind == "decode":
        asked, stored = options.pop("weights", None), arch.stored_format
        if asked is not None and stored is not None:
            check_agrees(arch, asked, [form for form in (stored,) if is_stored_as(form, asked)])
        usual = "MXFP4" if arch.published_experts == "mxfp4" else "Q4_K_M"  # its files are published in no other format
        return one_model.decode(arch, asked or stored or usual, on, against, **options)
    tokens = positive_count(words[1], "TOKENS")
    today = datetime.date.today()
    seq, precision = options.get("seq"), options.get("precision")
    asked = options.get("for")
    return one_model.train(arch, tokens, on, against, today=today, seq_len=seq, precision=precision, task=asked)


def _words(kind: str, sizes: tuple[str, ...]) -> tuple[str, ...]:
    """``sizes`` when their number is right. Raises InputError, UnknownNameError."""
    if kind not in SHAPES:
        raise UnknownNameError("operation", kind, SHAPES, hint="it is one of " + ", ".join(SHAPES))
    names, example = SHAPES[kind]
    if len(sizes) == 1 < len(names) and _JOINED.fullmatch(sizes[0]):
        sizes = tuple(_TIMES.split(sizes[0]))
    if len(sizes) != len(names):
        given = f"{len(sizes)} word{'s' * (len(sizes) != 1)}"
        raise InputError(f"{kind} takes {' '.join(names)}, not {given}", hint=f"write `{example}`")
    return sizes


def _names(on: list[str]) -> list[str]:
    """``a40,l40`` is two names. Raises InputError for more than 64."""
    names = [name.strip() for several in on for name in several.split(",") if name.strip()] or on
    if len(names) > 64:
        raise InputError(f"{len(names)} devices at once", hint="up to 64")
    return names
