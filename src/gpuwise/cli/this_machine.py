"""``--on this``: the GPUs of this machine, or its processor, as they were measured here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwise.errors import DeviceError, InputError

if TYPE_CHECKING:
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.facts.hardware.cpus import Cpu
    from gpuwise.facts.hardware.ram import Ram
    from gpuwise.facts.hardware.systems import Cluster
    from gpuwise.machine.devices.backend import Devices
    from gpuwise.machine.devices.readings import Identity

NO_GPU = "there is no GPU on this machine"
_THIS = re.compile(r"\s*(?:(\d{1,3})\s*[x×]\s*)?this(?::(\d{1,3}))?\s*", re.IGNORECASE)


def is_this(text: str | None) -> bool:
    """``this``, ``2xthis``, ``this:0``."""
    return text is not None and _THIS.fullmatch(text) is not None


def cluster_or_text(text: str) -> str | Cluster:
    """``text``, or the cluster it means where that is this machine. Raises InputError without a GPU, DataError."""
    return this_cluster(text) if is_this(text) else text


def this_cluster(text: str) -> Cluster:
    """The GPUs of this machine that ``text`` means: all equal ones, so many of them, or the one with an index.

    Raises InputError where there is no GPU, fewer, or different ones and no word which.
    """
    match = _THIS.fullmatch(text)
    assert match is not None
    backends = _open()
    try:
        cards = [(backend, identity) for backend in backends for identity in backend.identities()]
        if not cards:
            hint = "name one with --on, like --on 4090; `gpuwise op` takes this machine's processor"
            raise InputError(NO_GPU + _why_none(), hint=hint)
        if match[2] is not None:
            if int(match[2]) >= len(cards):
                raise InputError(f"there is no GPU {match[2]} here", hint=f"there are {len(cards)}, counted from 0")
            cards = [cards[int(match[2])]]
        names = list(dict.fromkeys(identity.name for _, identity in cards))
        if len(names) > 1:
            device_list = ", ".join(f"this:{i} is {identity.name}" for i, (_, identity) in enumerate(cards))
            raise InputError("the GPUs of this machine differ", hint=device_list)
        count = len(cards) if match[1] is None else int(match[1])
        if not 1 <= count <= len(cards):
            raise InputError(f"{text!r}: there are {len(cards)} GPUs here", hint=f"write --on {len(cards)}xthis, or --on this")
        return cluster_of(accelerator_of(cards[0][1], cards[0][0].driver().vendor), count)
    except DeviceError as error:
        raise InputError(
            f"the GPU does not answer: {error.message}", hint=error.hint or "run `gpuwise doctor` for details"
        ) from None
    finally:
        for backend in backends:
            backend.close()


def accelerator_of(identity: Identity, vendor: str) -> Accelerator:
    """The catalogue's entry with this card's corrections, or one made from the driver and what was measured."""
    from gpuwise.calibrate.machine.calibration import corrected_accelerator, load
    from gpuwise.machine.bench.subjects import accelerator_named

    by_device = {d.device: d for d in load()}
    coefficients = by_device.get(identity.uuid or "") or next((d for d in by_device.values() if d.name == identity.name), None)
    catalogued = accelerator_named(identity.name, identity.memory_bytes, identity.compute_capability)
    if catalogued is not None:
        return catalogued if coefficients is None else corrected_accelerator(catalogued, coefficients)
    from gpuwise.calibrate.machine.devices import accelerator_from

    pcie = None
    if identity.pcie_generation_max and identity.pcie_width_max:
        pcie = (identity.pcie_generation_max, identity.pcie_width_max)
    described = accelerator_from(
        coefficients,
        name=identity.name,
        vendor=vendor.upper(),
        memory_bytes=identity.memory_bytes,
        capability=identity.compute_capability,
        units=None,
        clock_hz=identity.sm_clock_max_hz,
        power_w=identity.power_limit_default_w,
        l2_bytes=None,
        unified_memory=identity.unified_memory,
        pcie=pcie,
    )
    return described if coefficients is None else corrected_accelerator(described, coefficients)


def cluster_of(accelerator: Accelerator, count: int) -> Cluster:
    """``count`` of them in the system such cards are usually in."""
    from dataclasses import replace

    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.hardware.systems import Cluster, box, with_count

    if accelerator.id in accelerators():
        usual = find_cluster(f"{count}x{accelerator.id}")
        return Cluster(replace(usual.system, accelerator=accelerator), count)
    alone = accelerator.pcie_bytes_per_s is None or accelerator.unified_memory
    return Cluster(with_count(box("single-device" if alone else "pcie-server", accelerator), count), count)


def this_target(text: str) -> Cluster | Cpu:
    """For one operation: the GPU, or the processor where there is none."""
    try:
        return this_cluster(text)
    except InputError as error:
        if not error.message.startswith(NO_GPU):
            raise
    return this_processor_measured()


def processor_of(text: str, ram: Ram | None = None) -> Cpu:
    """A processor by name, or with ``this`` the one of this machine as it was measured. Raises UnknownNameError, InputError."""
    from gpuwise.plan.one_op import find_processor

    return this_processor_measured() if text.strip().lower() == "this" else find_processor(text, ram)


def this_processor_measured() -> Cpu:
    """Raises DataError where it was not measured."""
    from gpuwise.calibrate.machine.calibration import best_rates, fit_device, load, newest
    from gpuwise.calibrate.machine.devices import processor_from
    from gpuwise.errors import DataError
    from gpuwise.machine.bench.subjects import machine_id, this_processor
    from gpuwise.records.store import Records

    subject = this_processor()
    coefficients = next((d for d in load() if d.device == "cpu"), None)
    if coefficients is None or "fp32" not in coefficients.rates:
        try:
            with Records(create=False) as records:
                rows = newest(records.query(device="cpu", machine_id=machine_id()))
        except DataError as error:
            raise InputError("this machine was not measured", hint="run `gpuwise bench --quick` first") from error
        if "fp32" not in best_rates(rows):
            raise InputError("this processor was not measured", hint="run `gpuwise bench --quick --device cpu` first")
        coefficients = fit_device(rows, None)
    return processor_from(coefficients, subject.processor, subject.units)


def _open() -> tuple[Devices, ...]:
    from gpuwise.machine.devices.find import find_devices

    try:
        return find_devices().backends
    except ImportError:
        return ()


def _why_none() -> str:
    """The driver's own word where one is installed and does not answer."""
    from gpuwise.machine.devices.find import find_devices

    try:
        failures = find_devices().failed
    except ImportError:
        return ""
    return "".join(f" ({vendor}: {error.message})" for vendor, error in failures.items())
