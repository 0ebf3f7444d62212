"""What a model costs on one device or one host: a generated token, or a training run, on GPUs beside a processor.

Decoding comes in two kinds. Formats of a local program (llama.cpp: F16, Q8_0, Q4_K_M ...) are one sequence;
formats of a serving engine (bf16, fp8, int4_wo ...) are a batch in vLLM, split over all GPUs named. A processor
decodes as llama.cpp does, in the nearest of its formats.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwise.errors import InputError, UnpredictableError, UnsupportedFormatError
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.hardware.targets import Target
from gpuwise.facts.models.architecture import Architecture
from gpuwise.plan.defaults import default_global_batch, default_seq_len
from gpuwise.plan.one_op import ratio
from gpuwise.predict import cpu as processor
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.memory.kv_cache import kv_cache_bytes
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, ENGINES, LOCAL_ENGINE, engine_of, tensor_parallel
from gpuwise.serve.formats import FORMATS, find_format, local_form, weight_bytes, weight_bytes_read
from gpuwise.serve.memory import cache_layout
from gpuwise.serve.processor import token_time
from gpuwise.serve.replica import EngineReplica, NoReplica, Replica, most_ranks, serve
from gpuwise.serve.splits import tensor_degrees, why_refused
from gpuwise.units import HOUR_S, format_bytes, format_duration
from gpuwise.workload.tasks import Task
from gpuwise.workload.transformer.parameters import count_parameters
from gpuwise.workload.transformer.tables import model_flop_per_token

if TYPE_CHECKING:
    from gpuwise.plan.goal import Wishes

LONGEST = 1e18
"""Tokens; beyond it a count is a slip of the keyboard."""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One device's answer. ``time_s`` is a decode step, or the whole training; None when it does not fit."""

    device: str
    id: str
    kind: str
    """``gpu`` or ``cpu``."""
    time_s: Estimate | None
    tokens_per_s: Estimate | None
    bound: str
    needs_bytes: float | None
    """Memory of weights, cache and context (decode) or of the fullest GPU (training); None on a processor."""
    has_bytes: float | None
    cost_usd: Estimate | None = None
    notes: tuple[str, ...] = ()
    speedup: Estimate | None = None
    first_token_s: Estimate | None = None
    """Decoding in an engine: time to the first token of a prompt as long as the context, without other requests, at the
    client."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """``kind`` is ``decode`` or ``train``; FLOP and bytes are of one token, or of the whole training."""

    kind: str
    model: Architecture
    text: str
    flop: float
    weight_bytes: float
    """Bytes of all weights in the requested format."""
    cache_bytes: float | None
    """Bytes of the key-value cache of every sequence at the requested context."""
    rows: tuple[ModelRow, ...]
    against: ModelRow | None


def decode(
    arch: Architecture,
    weights: str,
    on: Sequence[Target],
    against: Cpu | None = None,
    *,
    context: int = 1024,
    batch: int = 1,
) -> ModelAnswer:
    """One more token for each of ``batch`` sequences with ``context`` tokens in the cache.

    Raises UnknownNameError for an unknown format, InputError for a model that does not generate or a context beyond it,
    UnpredictableError when a device has no rate for the format.
    """
    form = find_format(weights).name
    _check_decode(arch, form, context, batch)
    weight_total = weight_bytes(arch, form)
    cache = batch * float(kv_cache_bytes(arch, context, cache_layout(form)))
    flop = batch * model_flop_per_token(arch, min(context, arch.max_seq_len)) / 3.0
    base = None if against is None else _cpu_decode(against, arch, form, context, batch)
    rows: list[ModelRow] = []
    for target in on:
        if isinstance(target, Cpu):
            row = _cpu_decode(target, arch, form, context, batch)
        else:
            row = _gpu_decode(target, arch, form, context, batch)
        if base is not None and base.time_s is not None and row.time_s is not None:
            row = replace(row, speedup=ratio(base.time_s, row.time_s))
        rows.append(row)
    text = f"{form} weights, {context:,} tokens of context, batch {batch:,}"
    return ModelAnswer("decode", arch, text, flop, weight_total, cache, tuple(rows), base)


def train(
    arch: Architecture,
    tokens: float,
    on: Sequence[Target],
    against: Cpu | None = None,
    *,
    today: datetime.date,
    seq_len: int | None = None,
    precision: str | None = None,
    task: str | None = None,
) -> ModelAnswer:
    """Training on ``tokens``: on GPUs the best plan there is, on a processor forward and backward in the best
    format it has. ``task``: pretrain, continue or full; None: judged as ``plan`` does.

    Raises what :func:`gpuwise.plan.api.make_plan` raises, and InputError for a count that cannot be meant.
    """
    from gpuwise.plan.goal import Wishes, as_trained, task_of  # with the search, which decoding does not need: half of its time

    if not 1 <= tokens <= LONGEST:
        raise InputError(f"{tokens:g} tokens", hint="from 1 to 1e18, like 300B")
    taken, guess = task_of(arch, Wishes(tokens=tokens, task=task))
    if taken.prompts:
        raise InputError(f"{taken.title} is planned alone", hint=f"gpuwise plan MODEL --on GPUS --for {taken.name}")
    arch = as_trained(arch, taken)
    length = seq_len or default_seq_len(arch, taken)[0]
    if length > arch.max_seq_len:
        raise InputError(f"{arch.name} takes up to {arch.max_seq_len:,} tokens", hint="give a shorter --seq")
    tokens = max(tokens, float(length))
    base = None if against is None else _cpu_train(against, arch, tokens, length, taken)
    wishes = Wishes(task=taken.name, tokens=tokens, seq_len=length, precision=(precision,) if precision else ())
    rows: list[ModelRow] = []
    for target in on:
        cpu = isinstance(target, Cpu)
        row = _cpu_train(target, arch, tokens, length, taken) if cpu else _gpu_train(target, arch, wishes, today)
        if base is not None and base.time_s is not None and row.time_s is not None:
            row = replace(row, speedup=ratio(base.time_s, row.time_s))
        rows.append(row)
    flop = tokens * model_flop_per_token(arch, length)
    text = f"{tokens:.4g} tokens, sequences of {length:,}" + (f", taken as {taken.title}" if guess or task else "")
    return ModelAnswer("train", arch, text, flop, count_parameters(arch).total * 2.0, None, tuple(rows), base)


# --- one device each ---


def _cpu_decode(cpu: Cpu, arch: Architecture, form: str, context: int, batch: int) -> ModelRow:
    used = FORMATS[form].llama_cpp
    time = token_time(cpu, arch, used, context=context, batch=batch)
    notes = (*([cpu.assumption] if cpu.assumption else []), *([] if used == form else [f"as {used} in {LOCAL_ENGINE}"]))
    return ModelRow(cpu.name, cpu.id, "cpu", time.time_s, time.time_s.inverse(batch), time.bound, None, None, notes=notes)


def _gpu_decode(target: Cluster, arch: Architecture, form: str, context: int, batch: int) -> ModelRow:
    """The way to serve it on all GPUs of ``target`` together."""
    a, n = target.accelerator, target.n_accelerators
    if not FORMATS[form].local and n > most_ranks(target.system):
        raise InputError(f"{target.label} is more than one host", hint="one engine runs in one host here")
    split = tensor_parallel(arch, form, n) if not FORMATS[form].local else None
    why = "" if split is None else why_refused(arch, split)
    fewer = tensor_degrees(arch, split, n)[-1:] if split is not None and why else ()
    served = serve(arch, target.system, (form,), (n, *fewer), sequences=batch, context=context)
    local = None if FORMATS[form].local or batch > 1 else local_form(form)
    if isinstance(served, NoReplica) and isinstance(served.error, UnsupportedFormatError) and local is not None:
        # no engine has rates of the format there: a local program has its own of the same numbers
        row = _gpu_decode(target, arch, local, context, batch)
        return replace(row, notes=(*row.notes, f"as {local} of a local program"))
    if isinstance(served, NoReplica):
        if served.error is not None or served.memory is None:
            raise served.error or UnpredictableError(f"{form} weights are not predicted on {a.name} with a batch of {batch:,}")
        needs, has = n * served.memory.total, n * served.memory.most
        short = f"needs {format_bytes(needs)}, has {format_bytes(has)}"
        return ModelRow(target.label, a.id, "gpu", None, None, "does not fit", needs, has, notes=(*_assumed(target, arch), short))
    replica = served.replica
    needs, has = replica.ranks * served.memory.total, replica.ranks * served.memory.most
    together = replica.ranks if isinstance(replica, EngineReplica) else 1
    cache_read = float(kv_cache_bytes(arch, context, cache_layout(replica.weights).unpadded))
    read = weight_bytes_read(arch, replica.weights) + batch * cache_read
    reading = read / (a.memory_bandwidth_bytes_per_s * together)
    bound = "memory" if reading > 0.5 * served.step.expected else "software" if batch == 1 else "mixed"
    first = replica.first_token(context) if isinstance(replica, EngineReplica) else None
    said = () if first is None else (f"first token of a prompt of {context:,} tokens after {format_duration(first.expected)}",)
    notes = (*_assumed(target, arch), *_how(replica, form, why), *replica.notes, *said)
    rate = served.tokens_per_s(batch)
    return ModelRow(target.label, a.id, "gpu", served.step, rate, bound, needs, has, notes=notes, first_token_s=first)


def _assumed(target: Cluster, arch: Architecture) -> tuple[str, ...]:
    """Which part was taken for a name that means several, which model for a name near one."""
    return tuple(filter(None, (arch.assumption, target.assumption)))


def _how(replica: Replica, form: str, why: str) -> tuple[str, ...]:
    """The program that runs it, if the requested format does not determine it; ``why`` an engine does not split it over all
    devices."""
    if isinstance(replica, EngineReplica):
        split = "on one GPU" if why and replica.ranks == 1 else f"tensor parallel {replica.ranks}" if replica.ranks > 1 else ""
        return (", ".join(filter(None, (replica.program, split))) + (f": {why}" if why else ""),)
    if replica.weights == form:
        return ()
    return (f"as {replica.weights} in {replica.program}", *((f"not in {ENGINES[DEFAULT_ENGINE].title}: {why}",) if why else ()))


def _cpu_train(cpu: Cpu, arch: Architecture, tokens: float, length: int, task: Task) -> ModelRow:
    fastest = max(("fp32", "bf16"), key=lambda d: cpu.peak_flop_per_s.get(d, 0.0))
    batch, _ = default_global_batch(arch, length, task, tokens=tokens)
    time = processor.training_time(cpu, arch, tokens, length, tokens_per_step=min(tokens, batch * length), dtype=fastest)
    price = cpu.usd_per_hour
    cost = None if price is None else time.time_s.scaled(price / HOUR_S)
    per_s = time.time_s.inverse(tokens)
    notes = (*([cpu.assumption] if cpu.assumption else []), f"in {fastest}")
    return ModelRow(cpu.name, cpu.id, "cpu", time.time_s, per_s, time.bound, None, None, cost, notes)


def _gpu_train(target: Cluster, arch: Architecture, wishes: Wishes, today: datetime.date) -> ModelRow:
    from gpuwise.plan.api import make_plan

    plan = make_plan(arch, target, wishes, today=today)
    a = target.accelerator
    if plan.best is None:
        assert plan.smallest is not None
        needs = plan.smallest.needed_bytes.expected
        return ModelRow(
            target.label, a.id, "gpu", None, None, "does not fit", needs, plan.smallest.device_bytes, notes=_assumed(target, arch)
        )
    best = plan.best
    part, share = best.estimate.bottleneck()
    notes = (
        *_assumed(target, arch),
        f"{best.estimate.strategy.precision}, MFU {100 * best.estimate.mfu.expected:.0f} %",
    )
    return ModelRow(
        target.label,
        a.id,
        "gpu",
        best.time_s,
        best.estimate.tokens_per_s,
        f"{part} ({100 * share:.0f} %)",
        best.estimate.memory_bytes.expected,
        best.estimate.device_bytes,
        best.cost_usd,
        notes,
    )


def _check_decode(arch: Architecture, form: str, context: int, batch: int) -> None:
    if arch.kind != "decoder":
        raise InputError(f"{arch.name} is not a decoder: it does not generate token by token", hint="try llama-3.1-8b")
    if not 1 <= context <= arch.max_seq_len:
        raise InputError(f"{arch.name} takes up to {arch.max_seq_len:,} tokens", hint="give a shorter --context")
    if not 1 <= batch <= 100_000:
        raise InputError(f"{batch:,} sequences at once", hint="from 1 to 100,000")
    if FORMATS[form].local and batch > 1:
        raise InputError(
            f"{form} is one sequence in {engine_of(form).title}", hint="for a batch take --weights bf16, fp8 or int4_wo"
        )
