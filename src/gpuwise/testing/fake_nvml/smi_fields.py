"""The fields of ``nvidia-smi --query-gpu`` that are played, and how each is read and written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Field:
    """One field."""

    unit: str
    """Unit of its column; may be empty."""
    read: Callable[[Any, Any], str]
    """Read the field from the bindings and a card. Raises what the bindings raise."""


def _text(function: str) -> Field:
    return Field("", lambda nvml, card: str(getattr(nvml, function)(card)))


def _system(function: str) -> Field:
    return Field("", lambda nvml, card: str(getattr(nvml, function)()))


def _mib(read: Callable[[Any, Any], int]) -> Field:
    return Field("MiB", lambda nvml, card: f"{read(nvml, card) // _MIB} MiB")


def _watts(function: str) -> Field:
    return Field("W", lambda nvml, card: f"{getattr(nvml, function)(card) / 1e3:.2f} W")


def _clock(which: int, *, most: bool = False) -> Field:
    name = "nvmlDeviceGetMaxClockInfo" if most else "nvmlDeviceGetClockInfo"
    return Field("MHz", lambda nvml, card: f"{getattr(nvml, name)(card, which)} MHz")


def _percent(read: Callable[[Any, Any], int]) -> Field:
    return Field("%", lambda nvml, card: f"{read(nvml, card)} %")


def _switch(read: Callable[[Any, Any], int]) -> Field:
    return Field("", lambda nvml, card: "Enabled" if read(nvml, card) else "Disabled")


def _memory(nvml: Any, card: Any) -> Any:
    return nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2)


def _field_value(nvml: Any, card: Any, number: int) -> int:
    """A reading that has a number instead of a function. Raises NVMLError."""
    value = nvml.nvmlDeviceGetFieldValues(card, [number])[0]
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _reason(bit: int) -> Field:
    return Field("", lambda nvml, card: "Active" if nvml.nvmlDeviceGetCurrentClocksEventReasons(card) & bit else "Not Active")


_COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}

FIELDS: Mapping[str, Field] = {
    "timestamp": Field("", lambda nvml, card: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "driver_version": _system("nvmlSystemGetDriverVersion"),
    "count": _system("nvmlDeviceGetCount"),
    "index": _text("nvmlDeviceGetIndex"),
    "name": _text("nvmlDeviceGetName"),
    "gpu_name": _text("nvmlDeviceGetName"),
    "uuid": _text("nvmlDeviceGetUUID"),
    "gpu_uuid": _text("nvmlDeviceGetUUID"),
    "serial": _text("nvmlDeviceGetSerial"),
    "gpu_serial": _text("nvmlDeviceGetSerial"),
    "vbios_version": _text("nvmlDeviceGetVbiosVersion"),
    "pci.bus_id": Field("", lambda nvml, card: str(nvml.nvmlDeviceGetPciInfo(card).busId)),
    "gpu_bus_id": Field("", lambda nvml, card: str(nvml.nvmlDeviceGetPciInfo(card).busId)),
    "pcie.link.gen.current": _text("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie.link.gen.gpucurrent": _text("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie.link.gen.max": _text("nvmlDeviceGetMaxPcieLinkGeneration"),
    "pcie.link.width.current": _text("nvmlDeviceGetCurrPcieLinkWidth"),
    "pcie.link.width.max": _text("nvmlDeviceGetMaxPcieLinkWidth"),
    "display_mode": _switch(lambda nvml, card: nvml.nvmlDeviceGetDisplayMode(card)),
    "display_active": _switch(lambda nvml, card: nvml.nvmlDeviceGetDisplayActive(card)),
    "persistence_mode": _switch(lambda nvml, card: nvml.nvmlDeviceGetPersistenceMode(card)),
    "accounting.mode": _switch(lambda nvml, card: nvml.nvmlDeviceGetAccountingMode(card)),
    "mig.mode.current": _switch(lambda nvml, card: nvml.nvmlDeviceGetMigMode(card)[0]),
    "mig.mode.pending": _switch(lambda nvml, card: nvml.nvmlDeviceGetMigMode(card)[1]),
    "ecc.mode.current": _switch(lambda nvml, card: nvml.nvmlDeviceGetEccMode(card)[0]),
    "ecc.errors.corrected.volatile.total": Field("", lambda nvml, card: str(nvml.nvmlDeviceGetTotalEccErrors(card, 0, 0))),
    "ecc.errors.uncorrected.volatile.total": Field("", lambda nvml, card: str(nvml.nvmlDeviceGetTotalEccErrors(card, 1, 0))),
    "ecc.errors.uncorrected.aggregate.total": Field("", lambda nvml, card: str(nvml.nvmlDeviceGetTotalEccErrors(card, 1, 1))),
    "compute_mode": Field("", lambda nvml, card: _COMPUTE_MODES[int(nvml.nvmlDeviceGetComputeMode(card))]),
    "compute_cap": Field("", lambda nvml, card: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(card)))),
    "pstate": Field("", lambda nvml, card: f"P{nvml.nvmlDeviceGetPerformanceState(card)}"),
    "fan.speed": _percent(lambda nvml, card: nvml.nvmlDeviceGetFanSpeed(card)),
    "memory.total": _mib(lambda nvml, card: _memory(nvml, card).total),
    "memory.reserved": _mib(lambda nvml, card: _memory(nvml, card).reserved),
    "memory.used": _mib(lambda nvml, card: _memory(nvml, card).used),
    "memory.free": _mib(lambda nvml, card: _memory(nvml, card).free),
    "bar1.total": _mib(lambda nvml, card: nvml.nvmlDeviceGetBAR1MemoryInfo(card).bar1Total),
    "bar1.used": _mib(lambda nvml, card: nvml.nvmlDeviceGetBAR1MemoryInfo(card).bar1Used),
    "utilization.gpu": _percent(lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).gpu),
    "utilization.memory": _percent(lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).memory),
    "utilization.encoder": _percent(lambda nvml, card: nvml.nvmlDeviceGetEncoderUtilization(card)[0]),
    "utilization.decoder": _percent(lambda nvml, card: nvml.nvmlDeviceGetDecoderUtilization(card)[0]),
    "encoder.stats.sessionCount": Field("", lambda nvml, card: str(nvml.nvmlDeviceGetEncoderStats(card)[0])),
    "temperature.gpu": Field("", lambda nvml, card: str(nvml.nvmlDeviceGetTemperature(card, 0))),
    "temperature.memory": Field("", lambda nvml, card: str(_field_value(nvml, card, 82))),
    "power.management": _switch(lambda nvml, card: nvml.nvmlDeviceGetPowerManagementMode(card)),
    "power.draw": _watts("nvmlDeviceGetPowerUsage"),
    "power.draw.average": _watts("nvmlDeviceGetPowerUsage"),
    "power.draw.instant": _watts("nvmlDeviceGetPowerUsage"),
    "power.limit": _watts("nvmlDeviceGetPowerManagementLimit"),
    "enforced.power.limit": _watts("nvmlDeviceGetEnforcedPowerLimit"),
    "power.default_limit": _watts("nvmlDeviceGetPowerManagementDefaultLimit"),
    "power.min_limit": Field("W", lambda nvml, card: f"{nvml.nvmlDeviceGetPowerManagementLimitConstraints(card)[0] / 1e3:.2f} W"),
    "power.max_limit": Field("W", lambda nvml, card: f"{nvml.nvmlDeviceGetPowerManagementLimitConstraints(card)[1] / 1e3:.2f} W"),
    **{f"clocks.{name}": _clock(n) for name, n in (("gr", 0), ("sm", 1), ("mem", 2), ("video", 3))},
    **{f"clocks.current.{name}": _clock(n) for name, n in (("graphics", 0), ("sm", 1), ("memory", 2), ("video", 3))},
    **{
        f"clocks.max.{name}": _clock(n, most=True)
        for name, n in (("gr", 0), ("graphics", 0), ("sm", 1), ("mem", 2), ("memory", 2))
    },
    **{f"clocks_{word}_reasons.{name}": _reason(bit) for word in ("event", "throttle") for name, bit in _REASONS.items()},
    **{
        f"clocks_{word}_reasons.active": Field(
            "", lambda nvml, card: f"{nvml.nvmlDeviceGetCurrentClocksEventReasons(card):#018x}"
        )
        for word in ("event", "throttle")
    },
}
"""Name -> field, of driver 580 (``nvidia-smi --help-query-gpu``)."""
