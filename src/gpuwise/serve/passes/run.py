"""A model of passes on a person's own device: whether it fits, and the time of an image, a video, a recording or a passage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.facts.models.denoisers import Denoiser
from gpuwise.facts.software.speech_programs import find_speech_program
from gpuwise.predict.estimate import Estimate, to_document
from gpuwise.serve.local_machine import LocalMachine
from gpuwise.serve.passes.batches import BatchTimes
from gpuwise.serve.passes.capacity import kind_of, usual_workload
from gpuwise.serve.passes.images import as_asked, made_words
from gpuwise.serve.passes.kind import AS_USUAL, Model, PassKind, Way
from gpuwise.workload.convnet import parameter_count
from gpuwise.workload.transformer.parameters import count_parameters


@dataclass(frozen=True, slots=True)
class WayRun:
    """A way on the device; times are None where it does not fit."""

    way: Way
    fits: bool
    alone: Estimate | None
    """Seconds of one item."""
    per_s: Estimate | None
    """Items a second in batches of ``batch``."""
    batch: int


@dataclass(frozen=True, slots=True)
class PassRun:
    """``best`` is the first that fits of ways that change the model's numbers, the fastest of programs with the same ones; None
    where none fits."""

    model: Model
    machine: LocalMachine
    items: str
    tokens: int
    ways: tuple[WayRun, ...]
    best: WayRun | None


def run_passes(model: Model, machine: LocalMachine) -> PassRun:
    """How ``model`` runs on one GPU of ``machine``. Raises InputError for a processor and for a model without passes,
    UnpredictableError without a rate."""
    workload = usual_workload(model)
    if workload is None:
        raise InputError(f"how fast {model.name} writes is not predicted", hint="leave --for out: its training is")
    if machine.cluster is None:
        raise InputError(f"{model.name} on a processor is not predicted", hint="name a GPU with --on")
    kind = kind_of(model, workload)
    items, tokens = kind.shape(model, workload, None)
    runs = tuple(
        _run(kind, model, machine.cluster, machine.most_bytes, tokens, way)
        for way in kind.ways(model, machine.cluster.accelerator, tokens)
    )
    timed = [(run.per_s.expected, run) for run in runs if run.per_s is not None]
    if not isinstance(model, Denoiser):
        timed.sort(key=lambda one: one[0], reverse=True)
    return PassRun(model, machine, items, tokens, runs, timed[0][1] if timed else None)


def _run(kind: PassKind, model: Model, cluster: Cluster, most_bytes: float, tokens: int, way: Way) -> WayRun:
    if way.needed_bytes > most_bytes:
        return WayRun(way, False, None, None, 0)
    try:
        times = kind.times(model, cluster, tokens, way.how)
    except UnpredictableError:
        return WayRun(way, True, None, None, 0)
    return WayRun(way, True, *_speeds(times))


def _speeds(times: BatchTimes) -> tuple[Estimate, Estimate, int]:
    batch = max(times.sizes, key=lambda size: size / times.of(size))
    one = Estimate.from_log_sigma(times.of(1), times.log_sigma, times.basis)
    return one, Estimate.from_log_sigma(times.full_per_s, times.log_sigma, times.basis), batch


def parameters_of(model: Model) -> float:
    """Parameters of any model of passes."""
    if isinstance(model, Architecture):
        return float(count_parameters(model).total)
    return float(parameter_count(model)) if isinstance(model, ConvNet) else model.parameters


def pass_run_document(run: PassRun) -> dict[str, Any]:
    """JSON values."""
    machine, model = run.machine, run.model
    drawn = as_asked(model, AS_USUAL) if isinstance(model, Denoiser) else None
    document = {
        "command": "fit",
        "for": "run",
        "model": {"id": model.id, "name": model.name, "parameters": parameters_of(model)},
        "machine": {
            "label": machine.label,
            "gpus": machine.n_devices,
            "here": machine.here,
            "device_bytes": machine.most_bytes,
        },
        "items": run.items,
        "made": None if drawn is None else made_words(drawn),
        "tokens_each": run.tokens,
        "fits": run.best is not None or any(way.fits for way in run.ways),
        "best": None if run.best is None else _way(run, run.best),
        "ways": [_way(run, way) for way in run.ways],
        "assumed": list(_assumed(run)),
    }
    return {key: to_document(value) for key, value in document.items()}


def _way(run: PassRun, way: WayRun) -> Mapping[str, Any]:
    sound_s = find_speech_program(way.way.how.program).advance_s if run.items == "windows" else None
    real_time = None if sound_s is None or way.per_s is None else way.per_s.scaled(sound_s)
    return {
        "way": way.way.name,
        "needed_bytes": way.way.needed_bytes,
        "fits": way.fits,
        "alone_s": way.alone,
        "per_s": way.per_s,
        "batch": way.batch,
        "real_time": real_time,
    }


def _assumed(run: PassRun) -> Iterator[str]:
    yield from filter(None, run.machine.assumed)
    if run.machine.n_devices > 1:
        yield f"one of the {run.machine.n_devices} GPUs: each does its own"
    if run.items == "windows":
        yield "without the start of the program; the host's part as of a machine of the GPU's year"
    else:
        yield "16-bit kernels, without the network and the reading of files"
