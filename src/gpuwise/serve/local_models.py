"""Models that run on your own device, each in the format with the least loss that generates at reading speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import UnpredictableError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.estimate import Estimate, to_document
from gpuwise.serve.load.targets import READING_S
from gpuwise.serve.local_machine import LocalMachine
from gpuwise.serve.local_run import CLEAR, CONTEXT, FormatFit, Offload, format_fit, longest_context, names_of, offloaded
from gpuwise.units import format_bytes
from gpuwise.workload.transformer.parameters import count_parameters

LONG = 32768
"""Tokens of context that models before 2024 mostly lack: those that have it come first."""
WHOLE, PART, SLOW = "whole", "part", "slow"
"""On the device; with a part in RAM; either, slower than one reads."""


@dataclass(frozen=True, slots=True)
class ModelFit:
    """A model in the format that suits the machine."""

    arch: Architecture
    group: str
    weights: str
    loss: str
    memory_bytes: float
    """Of weights, cache and buffers on all devices and in RAM."""
    longest_context: int
    """On the device alone; with a part in RAM the one that was asked for."""
    tokens_per_s: Estimate
    offload: Offload | None


def models_on(archs: Iterable[Architecture], machine: LocalMachine, *, context: int = CONTEXT) -> list[ModelFit]:
    """Those of ``archs`` that can be had, write text and run on ``machine`` with ``context`` tokens in a format of small loss: by
    group, those of a long context first, of these the largest.

    Weights in more bits are taken as long as they write as fast as one reads. Models without a licence in the catalogue are not
    published.
    """
    offered = (a for a in archs if a.kind == "decoder" and a.license and a.max_seq_len >= context)
    found = [fit for arch in offered if (fit := _fit(arch, machine, context)) is not None]
    order = (WHOLE, PART, SLOW)
    return sorted(found, key=lambda f: (order.index(f.group), f.arch.max_seq_len < LONG, -size(f.arch), -f.tokens_per_s.expected))


def size(arch: Architecture) -> float:
    """Parameters that stand for what a model can do: of a mixture of experts the geometric mean of all and the active ones (a
    rule of thumb)."""
    count = count_parameters(arch)
    return math.sqrt(count.total * count.active)


def _fit(arch: Architecture, machine: LocalMachine, context: int) -> ModelFit | None:
    found: ModelFit | None = None
    seen: list[FormatFit] = []
    try:
        for name in names_of(arch, None):
            fit = format_fit(arch, machine, name, context, reach=False)
            if fit.loss in CLEAR:
                break
            seen.append(fit)
            if not fit.memory.fits or fit.tokens_per_s is None:
                continue
            fast = fit.tokens_per_s.expected >= 1 / READING_S
            held = fit.memory.total * machine.n_devices
            found = ModelFit(arch, WHOLE if fast else SLOW, name, fit.loss, held, 0, fit.tokens_per_s, None)
            if fast:
                break
        if found is not None:
            return replace(found, longest_context=longest_context(arch, machine, found.weights))
        return _in_part(arch, machine, context, seen)
    except UnpredictableError:
        return None


def _in_part(arch: Architecture, machine: LocalMachine, context: int, good: Sequence[FormatFit]) -> ModelFit | None:
    """With a part in RAM in one of the ``good`` formats."""
    o = offloaded(arch, machine, context, good) if good else None
    if o is None:
        return None
    fit = next(f for f in good if f.weights == o.weights)
    group = PART if o.tokens_per_s.expected >= 1 / READING_S else SLOW
    return ModelFit(arch, group, o.weights, fit.loss, fit.memory.total * machine.n_devices, context, o.tokens_per_s, o)


def models_document(found: Iterable[ModelFit], machine: LocalMachine, context: int, on: str | None) -> dict[str, object]:
    """As ``--json`` prints it: bytes, tokens per second; ``on`` is the device as it was named."""
    named = machine.cluster is not None and not machine.here and machine.ram_bytes
    ram = [f"{format_bytes(machine.ram_bytes)} of RAM are free: --ram 64GB names another size"] if named else []
    return {
        "command": "models",
        "machine": {
            "label": machine.label,
            "here": machine.here,
            "device_bytes": machine.most_bytes,
            "ram_bytes": machine.ram_bytes,
        },
        "on": on,
        "context": context,
        "models": [_document(f) for f in found],
        "assumed": [*machine.assumed, *ram, "a recent llama.cpp with flash attention, one conversation, a 16-bit cache"],
    }


def _document(f: ModelFit) -> dict[str, object]:
    count = count_parameters(f.arch)
    return {
        "id": f.arch.id,
        "name": f.arch.name,
        "license": f.arch.license,
        "parameters": count.total,
        "active_parameters": count.active,
        "group": f.group,
        "weights": f.weights,
        "loss": f.loss,
        "memory_bytes": f.memory_bytes,
        "host_bytes": 0.0 if f.offload is None else f.offload.host_bytes,
        "longest_context": f.longest_context,
        "tokens_per_s": to_document(f.tokens_per_s),
    }
