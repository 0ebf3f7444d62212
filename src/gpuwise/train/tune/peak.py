"""Peak FLOP/s of the device of a run by format: from the catalogue for a GPU, as measured here for a processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuwise.errors import GpuwiseError
from gpuwise.train.hook.journal import Journal


@dataclass(frozen=True, slots=True)
class Device:
    """The device that a run used."""

    kind: str
    """``cuda`` or ``cpu``."""
    name: str
    """Name from the driver or the system."""
    id: str = "cpu"
    """The driver's unique name; ``cpu``."""
    count: int = 1
    accelerator: str | None = None
    """Id in the catalogue."""
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Peaks:
    """FLOP/s by format, of all its devices; empty with a reason if unknown."""

    flop_per_s: Mapping[str, float] = field(default_factory=dict[str, float])
    basis: str | None = None
    """``catalogue`` (the vendor's dense rates) or ``measured here``."""
    why: str | None = None


def device_of(journal: Journal) -> Device | None:
    """Device of the run's tensors; None if it ended before reporting it."""
    event = journal.last("devices")
    if not event:
        return None
    used = event["devices"]
    if not used:
        from gpuwise.machine.bench.subjects import this_processor

        subject = this_processor()
        return Device("cpu", subject.name, accelerator=subject.id)
    return card_of(used)


def card_of(used: list[Mapping[str, Any]]) -> Device:
    """First card of the event ``devices``, and their number."""
    from gpuwise.machine.bench.subjects import accelerator_named

    first = used[0]
    capability: tuple[int, int] = (int(first["capability"][0]), int(first["capability"][1]))
    uuid = str(first.get("uuid") or "")
    unique = (uuid if uuid.startswith("GPU-") else f"GPU-{uuid}") if uuid else f"cuda:{first['index']}"
    accelerator = None if "MIG" in first["name"] else accelerator_named(first["name"], first["memory_bytes"], capability)
    return Device(
        "cuda",
        first["name"],
        unique,
        len(used),
        None if accelerator is None else accelerator.id,
        int(first["memory_bytes"]),
        capability,
    )


def peaks_of(device: Device) -> Peaks:
    """The peaks of a GPU from the catalogue, of a processor as ``gpuwise bench`` measured it."""
    if device.kind == "cpu":
        return _processor()
    from gpuwise.facts.hardware.accelerators import accelerators

    accelerator = None if device.accelerator is None else accelerators().get(device.accelerator)
    if accelerator is None:
        return Peaks(why=f"{device.name} is not in the catalogue")
    rates = {name: rate * device.count for name, rate in accelerator.peak_flop_per_s.items()}
    if accelerator.fp32_matrix_flop_per_s is not None:
        rates["fp32"] = accelerator.fp32_matrix_flop_per_s * device.count
    return Peaks(rates, "catalogue")


def _processor() -> Peaks:
    """The peak at which the share of it that every processor reaches gives the rates measured here. The catalogue's peaks are
    of whole sockets, and a virtual machine does not say what part of one it is."""
    from gpuwise.calibrate.machine.calibration import best_rates, fit_device, load, newest
    from gpuwise.calibrate.machine.devices import processor_from
    from gpuwise.machine.bench.subjects import machine_id, this_processor
    from gpuwise.records.store import Records

    subject = this_processor()
    try:
        device = next((d for d in load() if d.device == "cpu"), None)
        if device is None or "fp32" not in device.rates:
            with Records(create=False) as records:
                rows = newest(records.query(device="cpu", machine_id=machine_id()))
            if "fp32" not in best_rates(rows):
                return Peaks(why=NOT_MEASURED)
            device = fit_device(rows, None)
        measured = processor_from(device, subject.processor, subject.units)
    except GpuwiseError:
        return Peaks(why=NOT_MEASURED)
    return Peaks(dict(measured.peak_flop_per_s), "measured here")


def measure_processor() -> Peaks:
    """The processor's peak, from products and streams measured now, for some seconds. Empty where that does not work here."""
    import time

    from gpuwise.calibrate.machine.calibration import fit_device
    from gpuwise.calibrate.machine.devices import processor_from
    from gpuwise.machine.bench.cases import select_cases
    from gpuwise.machine.bench.run import Limits, new_run, run_cases
    from gpuwise.machine.bench.subjects import this_processor

    subject = this_processor()
    cases = select_cases(("matmul", "memory"), quick=True)
    # a peak shows in large products only; one of bf16 takes minutes where the processor has no instruction for it
    slow = () if processor_has_bf16() else ("bf16",)
    pairs = [(c, subject) for c in cases if "cpu" in c.on and c.parameters.get("m", LARGE) >= LARGE and c.dtype not in slow]
    limits = Limits(each_s=PEAK_EACH_S, end_s=time.monotonic() + PEAK_S)
    try:
        outcome = run_cases(pairs, new_run([subject], "gpuwise tune", time.time()), None, limits)
        fit = fit_device([record for _, _, record in outcome.records], None)
        measured = processor_from(fit, subject.processor, subject.units)
    except GpuwiseError as error:
        return Peaks(why=f"this processor's peak could not be measured: {error.message}")
    return Peaks(dict(measured.peak_flop_per_s), "measured here")


def processor_has_bf16() -> bool | None:
    """From the flags that Linux lists (``amx_bf16``, ``avx512_bf16``; ``bf16`` on Arm)."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - read once, as lines
            flags = next((line for line in file if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        return None
    return bool({"amx_bf16", "avx512_bf16", "bf16"} & set(flags.split()))


LARGE = 2048
PEAK_EACH_S, PEAK_S = 0.5, 15.0
"""Samples of one case, and of all of them."""
NOT_MEASURED = "this processor's peak was not measured: `gpuwise bench --quick --device cpu`"
