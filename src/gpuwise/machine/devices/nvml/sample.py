"""The quick readings of one NVML device: about fourteen calls, none of which makes the driver measure."""

from __future__ import annotations

import time

from gpuwise.machine.devices.memory import read_memory
from gpuwise.machine.devices.nvml.calls import NOT_AVAILABLE, ProcessInfo
from gpuwise.machine.devices.nvml.card import NvmlCard, Reader
from gpuwise.machine.devices.nvml.errors import (
    FUNCTION_NOT_FOUND,
    LASTING_CODES,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN,
    NvmlError,
    reason_of,
)
from gpuwise.machine.devices.readings import GpuProcess, Sample
from gpuwise.units import MEGA

# nvml.h: NVML_FI_DEV_MEMORY_TEMP, _TOTAL_ENERGY_CONSUMPTION, _POWER_AVERAGE, _POWER_CURRENT_LIMIT
MEMORY_TEMPERATURE, ENERGY, POWER_AVERAGE, POWER_LIMIT = 82, 83, 185, 190
SENSOR_GPU, CLOCK_SM, CLOCK_MEMORY = 0, 1, 2
DIVIDED = "not reported while the GPU is divided (MIG)"
NO_STATE = 32
"""nvml.h, NVML_PSTATE_UNKNOWN."""
PERCENT, MILLI = 100, 1000
_FIELDS = (
    ("memory_temperature_c", MEMORY_TEMPERATURE, 1),
    ("energy_j", ENERGY, MILLI),
    ("power_w", POWER_AVERAGE, MILLI),
    ("power_limit_w", POWER_LIMIT, MILLI),
)
_ALONE = {
    "energy_j": "nvmlDeviceGetTotalEnergyConsumption",
    "power_w": "nvmlDeviceGetPowerUsage",
    "power_limit_w": "nvmlDeviceGetEnforcedPowerLimit",
}
"""Separate query of a reading whose field value is unsupported: by older drivers, and average power by some cards."""


def take_sample(read: Reader, card: NvmlCard, *, processes: bool) -> Sample:
    """A sample of a device that answers. Raises NvmlError when it or the driver is away."""
    library, device = read.library, read.handle
    # the reading that every card has is queried first: a missing device is detected with one call
    temperature_c = read("temperature_c", library.unsigned, "nvmlDeviceGetTemperature", device, SENSOR_GPU)
    utilization = read("utilization", library.utilization, device)
    if utilization is None and not read.known_missing("memory_utilization"):
        _why_no_utilization(read)
    total, used_bytes, reserved = _memory(read, card)
    readings = _field_readings(read)
    fan = read("fan", library.unsigned, "nvmlDeviceGetFanSpeed", device)
    sm_clock = read("sm_clock_hz", library.unsigned, "nvmlDeviceGetClockInfo", device, CLOCK_SM)
    memory_clock = read("memory_clock_hz", library.unsigned, "nvmlDeviceGetClockInfo", device, CLOCK_MEMORY)
    state = read("performance_state", library.unsigned, "nvmlDeviceGetPerformanceState", device)
    if state == NO_STATE:
        state = None
        read.unknown("performance_state", "the driver does not know it")
    encoder = read("encoder_utilization", library.pair, "nvmlDeviceGetEncoderUtilization", device)
    decoder = read("decoder_utilization", library.pair, "nvmlDeviceGetDecoderUtilization", device)
    sample = Sample(
        card.index,
        time.monotonic(),
        utilization=None if utilization is None else utilization[0] / PERCENT,
        memory_utilization=None if utilization is None else utilization[1] / PERCENT,
        memory_used_bytes=used_bytes,
        memory_reserved_bytes=reserved,
        memory_total_bytes=total,
        power_w=readings.get("power_w"),
        power_limit_w=readings.get("power_limit_w"),
        energy_j=readings.get("energy_j"),
        temperature_c=None if temperature_c is None else float(temperature_c),
        memory_temperature_c=readings.get("memory_temperature_c"),
        fan=None if fan is None else fan / PERCENT,
        sm_clock_hz=None if sm_clock is None else sm_clock * MEGA,
        memory_clock_hz=None if memory_clock is None else memory_clock * MEGA,
        performance_state=state,
        event_reasons=_event_reasons(read),
        pcie_generation=read("pcie_generation", library.unsigned, "nvmlDeviceGetCurrPcieLinkGeneration", device),
        pcie_width=read("pcie_width", library.unsigned, "nvmlDeviceGetCurrPcieLinkWidth", device),
        encoder_utilization=None if encoder is None else encoder[0] / PERCENT,
        decoder_utilization=None if decoder is None else decoder[0] / PERCENT,
        processes=_processes(read, card) if processes else None,
        unknown=read.reasons,
    )
    if not read.n_read:
        # no reading at all: the driver does not answer
        raise NvmlError(read.last_code)
    return sample


def _why_no_utilization(read: Reader) -> None:
    """Reason for missing utilisation: a divided card reports it for its parts only."""
    try:
        divided = read.library.pair("nvmlDeviceGetMigMode", read.handle)[0] == 1
    except NvmlError as refused:
        read.refused(code=refused.code)
        divided = False
    if divided and read.known_missing("utilization"):
        read.unknown("utilization", DIVIDED, lasting=True)
    read.same("utilization", "memory_utilization")


def _event_reasons(read: Reader) -> int | None:
    """Event reasons by the name of drivers since 535, else by the older one."""
    try:
        bits = read.library.long("nvmlDeviceGetCurrentClocksEventReasons", read.handle)
    except NvmlError as refused:
        if refused.code != FUNCTION_NOT_FOUND:
            read.refused("event_reasons", code=refused.code)
            return None
        return read("event_reasons", read.library.long, "nvmlDeviceGetCurrentClocksThrottleReasons", read.handle)
    read.n_read += 1
    return bits


def _memory(read: Reader, card: NvmlCard) -> tuple[int | None, int | None, int | None]:
    """Total, used, reserved."""
    if card.unified:
        return _shared_memory(read)
    if not read.known_missing("memory_reserved_bytes"):
        try:
            answer = read.library.memory(read.handle)
        except NvmlError as refused:
            if _is_unified(card, refused.code):
                return _shared_memory(read)
            read.refused("memory_reserved_bytes", code=refused.code)
        else:
            read.n_read += 1
            return answer
    v1 = read("memory_total_bytes", read.library.memory_v1, read.handle)
    if v1 is None:
        if not read.known_missing("memory_used_bytes"):
            read.same("memory_total_bytes", "memory_used_bytes")
        return None, None, None
    return v1[0], v1[1], None


def _is_unified(card: NvmlCard, code: int) -> bool:
    """Whether NVML reports no memory because it is the processor's; checked once."""
    if card.unified is None and code == NOT_SUPPORTED:
        card.unified = shares_memory(card.name)
    return bool(card.unified)


def shares_memory(name: str | None) -> bool:
    """Whether the catalogue knows a card of this name that has one memory with the processor."""
    from gpuwise.errors import GpuwiseError
    from gpuwise.facts.hardware.naming import find_accelerator

    try:
        return name is not None and find_accelerator(name).unified_memory
    except GpuwiseError:
        return False


def _shared_memory(read: Reader) -> tuple[int | None, int | None, int | None]:
    """The processor's memory: what is not available is used."""
    memory = read_memory()
    read.unknown("memory_reserved_bytes", "memory is the processor's", lasting=True)
    if memory.total_bytes is None or memory.available_bytes is None:
        read.unknown("memory_total_bytes", "the operating system does not tell")
        read.unknown("memory_used_bytes", "the operating system does not tell")
        return None, None, None
    read.n_read += 1
    return memory.total_bytes, memory.total_bytes - memory.available_bytes, None


def _field_readings(read: Reader) -> dict[str, float]:
    """Readings that one call gives."""
    readings: dict[str, float] = {}
    rows = [row for row in _FIELDS if not read.is_skipped(f"field {row[1]}")]
    if rows:
        try:
            answers = read.library.fields(read.handle, [(number, 0) for _, number, _ in rows])
        except NvmlError as refused:
            answers = [refused] * len(rows)
        for (reading, number, scale), answer in zip(rows, answers, strict=True):
            if not isinstance(answer, NvmlError):
                readings[reading] = answer / scale
                read.n_read += 1
            elif reading not in _ALONE:
                read.refused(reading, code=answer.code)
                if read.known_missing(reading):
                    read.skip_field(number)
            else:
                # the single query shows whether the card is missing, and whether it supports the reading at all
                if answer.code != UNKNOWN:
                    read.skip_field(number)
    for reading, function in _ALONE.items():
        if reading in readings:
            continue
        ask = read.library.long if reading == "energy_j" else read.library.unsigned
        milli = read(reading, ask, function, read.handle)
        if milli is not None:
            readings[reading] = milli / MILLI
    return readings


def _processes(read: Reader, card: NvmlCard) -> tuple[GpuProcess, ...] | None:
    """Compute and graphics processes with their use, by number; None if neither list is available."""
    lists: list[tuple[str, list[ProcessInfo]]] = []
    for kind, name in (
        ("compute", "nvmlDeviceGetComputeRunningProcesses"),
        ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ):
        got = _process_list(read, card, name)
        if got is not None:
            lists.append((kind, got))
            card.room = max(card.room, len(got) + 8)
    if not lists:
        read.unknown("processes", reason_of(read.last_code))
        return None
    kind_and_bytes: dict[int, tuple[str, int | None]] = {}
    for kind, processes in lists:
        for process in processes:
            memory_bytes = None if process.memory == NOT_AVAILABLE else int(process.memory)
            before = kind_and_bytes.get(process.pid)
            if before is None:
                kind_and_bytes[process.pid] = (kind, memory_bytes)
            elif before[0] == kind:
                # a process in several instances of a divided card
                kind_and_bytes[process.pid] = (
                    kind,
                    None if memory_bytes is None or before[1] is None else before[1] + memory_bytes,
                )
            else:
                kind_and_bytes[process.pid] = ("both", before[1] if memory_bytes is None else max(memory_bytes, before[1] or 0))
    uses = _uses(read, card) if kind_and_bytes else {}
    return tuple(
        GpuProcess(pid, kind, memory_bytes, *(uses.get(pid) or (None, None, None, None)))
        for pid, (kind, memory_bytes) in sorted(kind_and_bytes.items())
    )


def _process_list(read: Reader, card: NvmlCard, name: str) -> list[ProcessInfo] | None:
    """The list from the newest query that the driver supports; None if it fails."""
    for version in ("_v3", "_v2"):
        if read.is_skipped(name + version):
            continue
        try:
            processes = read.library.processes(name + version, read.handle, card.room)
        except NvmlError as refused:
            read.refused(code=refused.code)
            if refused.code in LASTING_CODES:
                read.skip(name + version)
                continue
            return None
        read.n_read += 1
        return processes
    return None


def _uses(read: Reader, card: NvmlCard) -> dict[int, tuple[float, float, float, float]]:
    """Process -> share of SMs, memory, encoder, decoder since the last sample; idle processes are absent."""
    if read.known_missing("sm_utilization"):
        return {}
    try:
        samples = read.library.process_use(read.handle, card.since_us, max(card.room, 32))
    except NvmlError as refused:
        if refused.code != NOT_FOUND:
            read.refused("sm_utilization", code=refused.code)
        return {}
    newest: dict[int, tuple[int, tuple[float, float, float, float]]] = {}
    for s in samples:
        if s.pid not in newest or s.at_us >= newest[s.pid][0]:
            # the driver gives numbers over 100 for processes that ended in its window
            shares = tuple(min(1.0, part / PERCENT) for part in (s.sm, s.memory, s.encoder, s.decoder))
            newest[s.pid] = (s.at_us, (shares[0], shares[1], shares[2], shares[3]))
        card.since_us = max(card.since_us, s.at_us)
    return {pid: shares for pid, (_, shares) in newest.items()}
