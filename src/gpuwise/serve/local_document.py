"""The answer of a model on your own device as a document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpuwise.errors import InputError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.estimate import to_document
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE
from gpuwise.serve.local_changes import CACHE_TYPES, Change
from gpuwise.serve.local_commands import LocalCommand
from gpuwise.serve.local_run import CONTEXT, FormatFit, LocalRun, Offload, cache_bytes, names_of, parts
from gpuwise.serve.memory import local_memory
from gpuwise.units import format_bytes
from gpuwise.workload.transformer.parameters import count_parameters


def run_document(
    run: LocalRun,
    changes: Iterable[Change] = (),
    commands: Iterable[LocalCommand] = (),
    measured: Sequence[Mapping[str, object]] = (),
) -> dict[str, object]:
    """The answer as ``--json`` prints it: bytes, seconds, tokens per second. ``measured``: on this machine."""
    count, chosen, machine = count_parameters(run.arch), run.chosen, run.machine
    device = None if machine.cluster is None else machine.cluster.accelerator
    return {
        "command": "fit",
        "for": "run",
        "model": {"id": run.arch.id, "name": run.arch.name, "parameters": count.total, "active_parameters": count.active},
        "cluster": {
            "label": machine.label,
            "accelerators": 0 if device is None else machine.n_devices,
            "accelerator": None if device is None else device.id,
        },
        "machine": {
            "here": machine.here,
            "processor": None if machine.processor is None else machine.processor.name,
            "ram_bytes": machine.ram_bytes,
            "free_bytes": machine.free_bytes,
        },
        "fits": chosen is not None,
        "weights": None if chosen is None else chosen.weights,
        "weights_asked": run.asked,
        "context": run.context,
        "most_context": run.arch.max_seq_len,
        "device_bytes": machine.most_bytes,
        "driver_bytes": None if device is None else device.memory_bytes - machine.most_bytes,
        "memory_bytes": None if chosen is None else chosen.memory.total,
        "memory_parts_bytes": dict(parts(run)),
        "cache_bytes": {dtype: cache_bytes(run.arch, machine, run.context, dtype) for dtype in CACHE_TYPES},
        "headroom_bytes": None if chosen is None else chosen.memory.most - chosen.memory.total,
        "longest_context": 0 if chosen is None else chosen.longest_context,
        "longest_context_q8_cache": run.longest_with_q8_cache,
        "users": run.users,
        "at_once": None if run.at_once is None else {"users": run.at_once[0], "tokens_per_s_each": to_document(run.at_once[1])},
        "speeds": [to_document(s) for s in run.speeds],
        **({"measured": [dict(m) for m in measured], "factor": run.machine.factor} if measured else {}),
        "formats": [_format_document(f) for f in run.formats],
        "offload": None if run.offload is None else _offload_document(run.offload, run.arch.n_layers),
        "changes": [_change_document(c) for c in changes],
        "commands": [_command_document(c) for c in commands],
        "assumed": list(_assumed(run)),
    }


def _command_document(c: LocalCommand) -> dict[str, object]:
    rate = {} if c.tokens_per_s is None else {"weights": c.weights, "tokens_per_s": to_document(c.tokens_per_s)}
    return {"name": c.name, "words": list(c.words), "file": list(c.file or ()), **rate}


def _change_document(c: Change) -> dict[str, object]:
    return {
        "name": c.name,
        "weights": c.weights,
        "memory_bytes": c.memory_bytes,
        "longest_context": c.longest_context,
        "tokens_per_s": to_document(c.tokens_per_s),
        "sets": dict(c.sets),
        "usd": c.usd,
        "as_of": None if c.as_of is None else c.as_of.isoformat(),
    }


def _format_document(f: FormatFit) -> dict[str, object]:
    return {
        "weights": f.weights,
        "bits": f.bits,
        "loss": f.loss,
        "memory_bytes": f.memory.total,
        "fits": f.memory.fits,
        "longest_context": f.longest_context,
        "tokens_per_s": to_document(f.tokens_per_s),
    }


def _offload_document(o: Offload, layers: int) -> dict[str, object]:
    return {
        "weights": o.weights,
        "device_layers": o.device_layers,
        "host_layers": layers - o.device_layers,
        "host_expert_layers": o.host_expert_layers,
        "host_bytes": o.host_bytes,
        "processor": o.processor.name,
        "tokens_per_s": to_document(o.tokens_per_s),
        "prompt_tokens_per_s": to_document(o.prompt_tokens_per_s),
    }


def memory_document(arch: Architecture, context: int | None = None) -> list[dict[str, Any]]:
    """Bytes that a local program takes on one device to run ``arch``, by format and by tokens of context, ``context`` first; none
    for a model that does not write text. Raises InputError for a context that it does not have."""
    if arch.kind != "decoder":
        return []
    engine, formats = ENGINES[LOCAL_ENGINE], names_of(arch, None)
    if context is not None and context > arch.max_seq_len:
        raise InputError(
            f"{arch.name} has a context of {arch.max_seq_len:,} tokens", hint=f"--context {arch.max_seq_len} or less"
        )
    first = context or CONTEXT
    lengths = sorted({min(tokens, arch.max_seq_len) for tokens in (first, 4 * first, arch.max_seq_len)})
    rows: list[dict[str, Any]] = []
    for name in ("BF16", *formats) if len(formats) > 1 else formats:
        held = [(tokens, local_memory(engine, arch, math.inf, name, n_devices=1, context=tokens)) for tokens in lengths]
        rows.append(
            {
                "weights": name,
                "weight_bytes": held[0][1].weights,
                "contexts": [{"context": tokens, "memory_bytes": memory.total} for tokens, memory in held],
            }
        )
    return rows


def _assumed(run: LocalRun) -> Iterator[str]:
    yield from filter(None, (run.arch.assumption, *run.machine.assumed))
    stands = run.formats[0].weights
    if run.asked is not None and run.asked.lower() != stands.lower():
        yield f"{run.asked} weights are {stands} in llama.cpp"
    yield "a recent llama.cpp with flash attention, one conversation at a time, a 16-bit cache"
    if run.offload is not None:
        p, ram = run.offload.processor, format_bytes(run.machine.ram_bytes)
        speed = f"{format_bytes(p.memory_bandwidth_bytes_per_s)}/s"
        yield f"the processor is {p.name} with memory of {speed}, which decides; {ram} of RAM are free"
