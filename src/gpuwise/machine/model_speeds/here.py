"""Speeds of models on this machine: from a program to the records, and from these to predictions and calibration."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuwise.calibrate.machine.calibration import DeviceCoefficients, FamilyCoefficients, load, newest, save
from gpuwise.calibrate.machine.decode import decode_fits
from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model_to_run
from gpuwise.machine.bench.run import new_run
from gpuwise.machine.bench.subjects import machine_id, processor_name, this_processor
from gpuwise.machine.this import gpu_cards, machine_here
from gpuwise.predict.estimate import Estimate, to_document
from gpuwise.records.record import Record
from gpuwise.records.store import Records, records_path
from gpuwise.serve.engines.engine import ENGINES
from gpuwise.serve.formats import find_format
from gpuwise.serve.local_machine import LocalMachine
from gpuwise.serve.local_measured import KINDS, MeasuredSpeed, plain, predicted, record_of, shape_of, speed_of


@dataclass(frozen=True, slots=True)
class Here:
    """A device of this machine that runs models. ``spec`` is it as its kind is, without corrections."""

    device: str
    name: str
    spec: Accelerator | Cpu | None
    count: int = 1

    @property
    def catalogued(self) -> str | None:
        return None if self.spec is None or self.spec.id == "this-machine" else self.spec.id


@dataclass(frozen=True, slots=True)
class Beside:
    """What was measured beside what a device of its kind is predicted to have, in tokens a second."""

    record: Record
    speed: MeasuredSpeed
    predicted: Estimate | None

    @property
    def difference(self) -> float | None:
        """Measured over predicted, minus 1."""
        return None if self.predicted is None else self.speed.tokens_per_s / self.predicted.expected - 1

    def document(self) -> dict[str, Any]:
        s = self.speed
        return {
            "kind": s.kind,
            "weights": s.weights,
            "engine": s.engine,
            "program": s.program,
            "build": s.build,
            "tokens": s.tokens,
            "before": s.before,
            "sequences": s.sequences,
            "whole": s.whole,
            "measured_tokens_per_s": s.tokens_per_s,
            "samples": s.samples,
            "predicted_tokens_per_s": to_document(self.predicted),
            "difference": self.difference,
            "at_s": self.record.at_s,
        }


def device_here(machine: LocalMachine, *, on_processor: bool) -> Here:
    """The processor, or the GPUs of ``machine``. Raises InputError where it has none."""
    if on_processor or machine.cluster is None:
        if not on_processor and machine.cluster is None and gpu_cards():
            raise InputError("the GPUs of this machine differ", hint="choose one with --device gpu0")
        return Here("cpu", processor_name(), None if machine.processor is None else plain(machine.processor))
    cards = gpu_cards()
    accelerator = machine.cluster.accelerator
    name = accelerator.name.removesuffix(" (this machine)")
    known = accelerators().get(accelerator.id)
    for identity in cards:
        return Here(identity.uuid or identity.name, identity.name, known or plain(accelerator), machine.n_devices)
    return Here(accelerator.id, name, known or plain(accelerator), machine.n_devices)


def check_here(speeds: Iterable[MeasuredSpeed], here: Here) -> None:
    """Raises InputError for speeds of a machine that names other devices than this one has."""
    for speed in speeds:
        named = speed.gpus if here.device != "cpu" else (speed.processor,) if speed.processor else ()
        if named and not any(_alike(one, here.name) for one in named):
            raise InputError(
                f"these speeds are of {named[0][:80]}, and this machine has {here.name}",
                hint="import them on the machine that they were measured on",
            )


def _alike(one: str, other: str) -> bool:
    a, b = ("".join(c for c in text.lower() if c.isalnum()).removeprefix("nvidia").removeprefix("amd") for text in (one, other))
    return a in b or b in a


def model_of(speed: MeasuredSpeed, asked: str | None) -> tuple[str, Architecture, str]:
    """The model of a speed, as it can be found again, and the format of its weights. ``asked`` is its name where it was given.

    Raises InputError where neither says which model or format it is.
    """
    text = asked or speed.model
    if not text:
        raise InputError(f"{speed.program} does not print which model it ran", hint="name it: gpuwise bench MODEL --import FILE")
    if asked is None and text.endswith(".gguf") and not Path(text).is_file():
        text = text.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    try:
        arch = find_model_to_run(text)
    except InputError as error:
        if asked is not None:
            raise
        hint = "name the model: gpuwise bench MODEL --import FILE"
        raise InputError(f"the model {text[:80]!r} of {speed.program} is not known: {error.message}", hint=hint) from None
    engine = ENGINES[speed.engine]
    # a checkpoint without a format is of 16 bits; files of local programs have one
    form = arch.stored_format or speed.weights or ("" if engine.streams else engine.by_bits[16])
    if not form:
        raise InputError(
            f"{speed.program} does not print the format of the weights",
            hint="name it behind the model, as in llama-3.1-8b-Q4_K_M (llama.cpp) or qwen3-8b-4bit (MLX)",
        )
    return str(Path(text).resolve()) if Path(text).is_file() else text, arch, find_format(form).name


def added(
    speeds: Iterable[MeasuredSpeed],
    machine: LocalMachine,
    asked: str | None,
    store: Records | None,
    command: str,
    *,
    once: tuple[str, float] | None = None,
) -> Iterator[tuple[Here, Beside]]:
    """Each of ``speeds`` beside its prediction; stored as it comes. ``once`` is the id of the run and the time of an imported
    text, which adds its records once. Raises what the functions above raise."""
    run = new_run([this_processor()], command, time.time())
    run = run if once is None else replace(run, id=once[0])
    started = False
    for speed in speeds:
        here = device_here(machine, on_processor=speed.on_processor)
        check_here([speed], here)
        name, arch, weights = model_of(speed, asked)
        n_devices = len(speed.gpus) or here.count
        record = record_of(
            replace(speed, weights=weights),
            arch,
            weights,
            asked=name,
            device=here.device,
            device_name=here.name,
            accelerator=here.catalogued,
            n_devices=n_devices,
            at_s=time.time() if once is None else once[1],
        )
        if store is not None:
            if not started:
                store.start(run)
            started = True
            store.add(run, record)
        yield here, Beside(record, replace(speed, weights=weights), _predicted(speed, arch, here, weights, n_devices))


def _predicted(speed: MeasuredSpeed, arch: Architecture, here: Here, weights: str, n_devices: int) -> Estimate | None:
    return None if here.spec is None else predicted(speed, arch, here.spec, weights, n_devices)


def speeds_here(arch: Architecture, machine: LocalMachine) -> list[Beside]:
    """The newest of each measurement of ``arch`` on ``machine``, which is this one, in formats and tokens."""
    if not records_path().exists():
        return []
    shape = shape_of(arch)
    found: list[Beside] = []
    with Records(create=False) as store:
        for here in {h.device: h for h in (device_here(machine, on_processor=on) for on in (False, True))}.values():
            rows = [r for kind in KINDS for r in store.query(family=kind, device=here.device, machine_id=machine_id())]
            for record in newest([r for r in rows if _same(r.parameters, shape)]):
                speed, n = speed_of(record), int(record.parameters.get("devices") or 1)
                found.append(Beside(record, speed, _predicted(speed, arch, here, record.dtype, n)))
    return sorted(found, key=lambda b: (b.speed.weights, KINDS.index(b.speed.kind), b.speed.before, b.speed.tokens))


def _same(parameters: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    return all(parameters.get(k) == v for k, v in shape.items() if k != "parameters") and _near(parameters, shape)


def _near(parameters: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    """Counts of parameters of a file and of the catalogue differ by small tensors."""
    mine = float(parameters.get("parameters") or 0)
    return abs(mine / float(shape["parameters"]) - 1) <= 0.02


def calibrate_again(store: Records) -> None:
    """:func:`calibrate` of this machine's devices, after their other coefficients were written anew."""
    with suppress(InputError):  # GPUs that differ, or an unknown device
        machine = machine_here()
        for here in {h.device: h for h in (device_here(machine, on_processor=on) for on in (False, True))}.values():
            calibrate(here, store)


def calibrate(here: Here, store: Records) -> Mapping[str, FamilyCoefficients]:
    """Fit how fast this device writes against its kind from all records of it, and save that with what was learned of it before.
    The fits by key of a correction."""
    if here.spec is None:
        return {}
    rows: Sequence[Record] = newest(store.query(family="decode", device=here.device, machine_id=machine_id()))
    fits = decode_fits(rows, here.spec)
    if fits:
        before = next((d for d in load() if d.device == here.device), None)
        if before is None:
            before = DeviceCoefficients(here.device, here.name, here.catalogued, rows[-1].at_s, {}, {})
        others = {key: f for key, f in before.families.items() if not key.startswith("decode/")}
        save([replace(before, families=others | fits)])
    return fits
