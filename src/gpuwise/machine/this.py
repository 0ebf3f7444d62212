"""This machine as a device that questions are about (``--on this``): its GPUs, or its processor, as they were measured here.

:mod:`gpuwise.facts.hardware.this` is where the name is read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.errors import DeviceError, GpuwiseError, InputError
from gpuwise.facts.hardware.cpus import find_cpu, with_cores
from gpuwise.facts.hardware.ram import Ram
from gpuwise.facts.hardware.this import NoGpuHereError
from gpuwise.machine.bench.subjects import processor_name, this_processor
from gpuwise.machine.devices.cpu import physical_cores
from gpuwise.machine.devices.find import kernel_root
from gpuwise.machine.devices.memory import read_memory, read_modules, total_bytes
from gpuwise.serve.local_machine import LocalMachine

if TYPE_CHECKING:
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.facts.hardware.cpus import Cpu
    from gpuwise.facts.hardware.systems import Cluster
    from gpuwise.machine.devices.backend import Devices
    from gpuwise.machine.devices.readings import Identity, Sample

NO_GPU = "there is no GPU on this machine"


def gpus_here(count: int | None, index: int | None) -> Cluster:
    """The GPUs of this machine: all (which must be equal), ``count`` of them, or the one with an index.

    Raises NoGpuHereError without a GPU, InputError if there are fewer or they differ, DataError for one that is neither in the
    catalogue nor measured.
    """
    return _found(count, index)[0]


def machine_here(count: int | None = None, index: int | None = None) -> LocalMachine:
    """This machine as it is now: its GPUs with the memory that is free, its processor and RAM. Raises what :func:`gpus_here`
    raises, but where there is no GPU; InputError where the processor is unknown too."""
    root = kernel_root()
    ram = read_memory(root)
    ram_bytes = float(ram.available_bytes or total_bytes(root) or 0)
    try:
        cluster, free = _found(count, index)
    except NoGpuHereError:
        if count is not None or index is not None:
            raise
        cluster, free = None, None
    processor = _processor_or_none(root)
    if cluster is None and processor is None:
        raise NoGpuHereError(
            f"{NO_GPU}, and its processor {processor_name()} is not in the catalogue",
            hint="measure it with `gpuwise bench --quick --device cpu`, or name a device: --on 4090",
        )
    assumed = (processor.assumption,) if cluster is None and processor is not None and processor.assumption else ()
    return LocalMachine(cluster, processor, ram_bytes, free, here=True, assumed=assumed)


def _found(count: int | None, index: int | None) -> tuple[Cluster, float | None]:
    """The GPUs, and the bytes that are free now on the fullest of them; None where the driver does not report that."""
    backends = _open()
    try:
        cards = [(backend, identity) for backend in backends for identity in backend.identities()]
        if not cards:
            hint = "name one with --on, like --on 4090; `gpuwise op` and `gpuwise fit --for run` take this machine's processor"
            raise NoGpuHereError(NO_GPU + _why_none(), hint=hint)
        if index is not None:
            if index >= len(cards):
                raise InputError(f"there is no GPU {index} here", hint=f"there are {len(cards)}, counted from 0")
            cards = [cards[index]]
        names = list(dict.fromkeys(identity.name for _, identity in cards))
        if len(names) > 1:
            device_list = ", ".join(f"this:{i} is {identity.name}" for i, (_, identity) in enumerate(cards))
            raise InputError("the GPUs of this machine differ", hint=device_list)
        n = len(cards) if count is None else count
        if not 1 <= n <= len(cards):
            raise InputError(f"there are {len(cards)} GPUs here, not {n}", hint=f"write --on {len(cards)}xthis, or --on this")
        free = [_free_bytes(backend.sample(identity.index, processes=False)) for backend, identity in cards]
        most = sorted((bytes_ for bytes_ in free if bytes_ is not None), reverse=True)[:n]
        cluster = cluster_of(accelerator_of(cards[0][1], cards[0][0].driver().vendor), n)
        return cluster, most[-1] if len(most) == n else None
    except DeviceError as error:
        raise InputError(
            f"the GPU does not answer: {error.message}", hint=error.hint or "run `gpuwise doctor` for details"
        ) from None
    finally:
        for backend in backends:
            backend.close()


def gpu_cards() -> list[Identity]:
    """Every GPU of this machine as its driver describes it."""
    backends = _open()
    try:
        return [identity for backend in backends for identity in backend.identities()]
    finally:
        for backend in backends:
            backend.close()


def _free_bytes(sample: Sample) -> float | None:
    if sample.memory_total_bytes is None or sample.memory_used_bytes is None:
        return None
    return float(sample.memory_total_bytes - sample.memory_used_bytes - (sample.memory_reserved_bytes or 0))


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
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.hardware.systems import Cluster, box, with_count

    if accelerator.id in accelerators():
        usual = find_cluster(f"{count}x{accelerator.id}")
        return Cluster(replace(usual.system, accelerator=accelerator), count)
    alone = accelerator.pcie_bytes_per_s is None or accelerator.unified_memory
    return Cluster(with_count(box("single-device" if alone else "pcie-server", accelerator), count), count)


def _processor_or_none(root: Path) -> Cpu | None:
    """:func:`_described` with what was learned from models that ran on it."""
    from gpuwise.calibrate.machine.calibration import corrections_of, load

    found = _described(root)
    learned = next((d for d in load() if d.device == "cpu"), None)
    return found if found is None or learned is None else replace(found, corrections=corrections_of(learned))


def _described(root: Path) -> Cpu | None:
    """The processor as measured, else the catalogue's with the cores and the memory modules that the machine reports; None where
    both are unknown."""
    with suppress(GpuwiseError):
        return processor_measured()
    found = this_processor().processor
    return None if found is None else with_cores(_with_modules(found, root), physical_cores(root))


def _with_modules(processor: Cpu, root: Path) -> Cpu:
    """``processor`` with the memory modules that the machine reports; virtual machines report none, and have the fastest."""
    modules = read_modules(root)
    type_, rate, channels = processor.memory_type, None, None
    if modules and modules[0].mt_s:
        type_, rate = modules[0].type or type_, float(modules[0].mt_s)
        channels = min(float(len(modules) // processor.sockets or 1), processor.memory_channels)
    if type_.startswith("LP"):
        return processor
    with suppress(GpuwiseError):  # modules that the catalogue excludes
        found = find_cpu(processor.id, Ram(type_, rate, channels))
        assumption = found.assumption if processor.name == found.name else processor.assumption
        return replace(found, name=processor.name, assumption=assumption)
    return processor


def processor_measured() -> Cpu:
    """This machine's processor as it was measured. Raises DataError where it was not measured."""
    from gpuwise.calibrate.machine.calibration import best_rates, fit_device, load, newest
    from gpuwise.calibrate.machine.devices import processor_from
    from gpuwise.errors import DataError
    from gpuwise.machine.bench.subjects import machine_id
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
