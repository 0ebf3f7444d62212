"""AMD's own library, if its Python package ``amdsmi`` is installed: readings missing in the driver's files.

Written against the package of ROCm 6.3 and 7.0 (amdsmi_interface.py, amdsmi.h) and tested on a stand-in with the documented
forms of answers, not on a real AMD card. Everything is optional: a package that does not load, a library that does not start,
a call that is refused or answers in another form leaves a reading unknown with the reason, never an error.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, cast

from gpuwise.errors import DeviceError
from gpuwise.machine.devices.amd.smi_answers import (
    HEALTH,
    IDENTITY,
    NOT_FOUND,
    REASONS,
    SAMPLE,
    VENDOR,
    Question,
    amd_smi_error,
    text,
    whole,
)
from gpuwise.machine.devices.readings import EventReason
from gpuwise.machine.devices.sysfs import bus_id_of

NOT_INSTALLED = "amdsmi is not installed"
FROM_THE_SECOND = "known from the second reading on"
OTHER_FORM = "amdsmi answers in a form that is not read"

_HELD = {
    "ppt_residency_acc": EventReason.SW_POWER_CAP,
    "socket_thm_residency_acc": EventReason.SW_THERMAL,
    "vr_thm_residency_acc": EventReason.SW_THERMAL,
    "hbm_thm_residency_acc": EventReason.SW_THERMAL,
    "prochot_residency_acc": EventReason.HW_THERMAL,
}
"""Counters of amdsmi_gpu_metrics_t (MI300 and later) -> in NVML's words: package power tracking; heat of socket, voltage
regulators and memory; the signal from outside that the processor is hot."""
_COUNTER = "accumulation_counter"
"""Denominator of those shares: AMD's own tool divides their growth by its growth."""
_METRICS = "amdsmi_get_gpu_metrics_info"


@dataclass(slots=True)
class SmiReadings:
    """Readings, and the reasons for missing ones."""

    values: dict[str, Any] = field(default_factory=dict[str, Any])
    reasons: dict[str, str] = field(default_factory=dict[str, str])


class SmiError(Exception):
    """A call gave no answer that can be read."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.code = reason, code


class AmdSmi:
    """The library, started. Devices are named by their place on the bus (``00000000:c1:00.0``)."""

    def __init__(self, module: ModuleType, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises DeviceError where the library does not start."""
        self._smi, self._clock = module, clock
        self._handles: dict[str, Any] = {}
        self._counters: dict[tuple[str, str], tuple[float, dict[str, int]]] = {}
        """(who asks, device) -> moment and counters of the last look."""
        self._held_s: dict[str, dict[str, float]] = {}
        self._start()

    def _start(self) -> None:
        try:
            self._call("amdsmi_init")
            handles = cast("Iterable[Any]", self._call("amdsmi_get_processor_handles"))
            for handle in handles:
                bus_id = bus_id_of(str(self._call("amdsmi_get_gpu_device_bdf", handle)))
                if bus_id is not None:
                    self._handles[bus_id] = handle
        except SmiError as refused:
            if refused.code is None:
                raise DeviceError(f"amdsmi does not start: {refused.reason}", vendor=VENDOR) from None
            raise amd_smi_error(refused.code, None, "starting") from None

    def restart(self) -> None:
        """List the devices again, after one was lost or came back; empty if the library does not restart."""
        self.close()
        with contextlib.suppress(DeviceError):
            self._start()

    def close(self) -> None:
        """Close the library."""
        self._handles.clear()
        with contextlib.suppress(SmiError):
            self._call("amdsmi_shut_down")

    def versions(self) -> tuple[str | None, str | None]:
        """Version of the driver (if it is one of AMD's own packages) and of the library."""
        driver = library = None
        with contextlib.suppress(SmiError, KeyError, TypeError):
            answer = self._call("amdsmi_get_lib_version")
            library = ".".join(str(answer[part]) for part in ("major", "minor", "release"))
        for handle in list(self._handles.values())[:1]:
            with contextlib.suppress(SmiError, KeyError, TypeError):
                driver = text(self._call("amdsmi_get_gpu_driver_info", handle)["driver_version"])
        return driver, library

    # --- readings: only the requested ones are queried ---

    def identity(self, bus_id: str, readings: Iterable[str]) -> SmiReadings:
        """Readings of :class:`Identity`."""
        return self._ask_all(IDENTITY, bus_id, frozenset(readings))

    def sample(self, bus_id: str, readings: Iterable[str]) -> SmiReadings:
        """Readings of :class:`Sample`; the list of processes may take the library longer than the rest."""
        names = frozenset(readings)
        answer = self._ask_all(SAMPLE, bus_id, names)
        if "event_reasons" in names:
            self._ask(answer, bus_id, Question(_METRICS, ("event_reasons",), lambda m: self._reasons_now(bus_id, m)))
        return answer

    def health(self, bus_id: str, readings: Iterable[str]) -> SmiReadings:
        """Readings of :class:`Health`; the reasons for reduced clocks are counted from the first call."""
        names = frozenset(readings)
        answer = self._ask_all(HEALTH, bus_id, names)
        if "held_back_s" in names:
            self._ask(answer, bus_id, Question(_METRICS, ("held_back_s",), lambda m: self._held_back(bus_id, m)))
        return answer

    def link(self, a: str, b: str) -> tuple[str | None, bool | None]:
        """Link from device ``a`` to ``b`` (``xgmi`` or ``pcie host bridge``), and peer access; None: not reported."""
        first, second = self._handles.get(a), self._handles.get(b)
        if first is None or second is None:
            return None, None
        kind = can_read = None
        with contextlib.suppress(SmiError, KeyError, TypeError):
            kind = self._kinds().get(self._call("amdsmi_topo_get_link_type", first, second)["type"])
        with contextlib.suppress(SmiError):
            answer = self._call("amdsmi_is_P2P_accessible", first, second)
            can_read = answer if isinstance(answer, bool) else None
        return kind, can_read

    def _kinds(self) -> dict[int, str]:
        """Numbers of link kinds: two lists were in use, with XGMI and PCIe the other way round."""
        old = getattr(self._smi, "AmdSmiIoLinkType", None)
        if old is not None:
            words = {getattr(old, "PCIEXPRESS", None): "pcie host bridge", getattr(old, "XGMI", None): "xgmi"}
        else:
            new = getattr(self._smi, "AmdSmiLinkType", None)
            words = {
                getattr(new, "AMDSMI_LINK_TYPE_PCIE", None): "pcie host bridge",
                getattr(new, "AMDSMI_LINK_TYPE_XGMI", None): "xgmi",
            }
        return {int(number): word for number, word in words.items() if number is not None}

    # --- counters of what holds the clocks ---

    def _growth(self, who: str, bus_id: str, metrics: Mapping[str, Any]) -> tuple[float, dict[str, int]]:
        """Seconds since ``who`` last looked, and what every counter grew by. Raises SmiError at the first look."""
        now = {name: count for name in (_COUNTER, *_HELD) if (count := whole(metrics.get(name))) is not None}
        if len(now) < 2 or _COUNTER not in now:
            raise SmiError("not supported")
        now_s = self._clock()
        before = self._counters.get((who, bus_id))
        self._counters[who, bus_id] = now_s, now
        if before is None or any(count < before[1].get(name, 0) for name, count in now.items()):
            raise SmiError(FROM_THE_SECOND)
        return now_s - before[0], {name: count - before[1].get(name, count) for name, count in now.items()}

    def _reasons_now(self, bus_id: str, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those whose counters have grown since the last sample."""
        _, grown = self._growth("sample", bus_id, metrics)
        return {"event_reasons": int(sum({reason for name, reason in _HELD.items() if grown.get(name, 0) > 0}))}

    def _held_back(self, bus_id: str, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Seconds by reason since the first look: the share of the counter that each took, of the time that passed."""
        seconds = self._held_s.setdefault(bus_id, {reason.name or "": 0.0 for reason in _HELD.values()})
        span_s, grown = self._growth("health", bus_id, metrics)
        of = grown[_COUNTER]
        for reason in set(_HELD.values()):
            # one after the other or at once: the longest of one reason's counters is sure
            longest = max(grown.get(name, 0) for name, r in _HELD.items() if r is reason)
            if of > 0:
                seconds[reason.name or ""] += span_s * min(1.0, longest / of)
        return {"held_back_s": dict(seconds)}

    # --- asking ---

    def _ask_all(self, questions: Iterable[Question], bus_id: str, readings: frozenset[str]) -> SmiReadings:
        answer = SmiReadings()
        for question in questions:
            if not readings.isdisjoint(set(question.readings) - answer.values.keys()):
                self._ask(answer, bus_id, question)
        return SmiReadings({k: v for k, v in answer.values.items() if k in readings}, answer.reasons)

    def _ask(self, readings: SmiReadings, bus_id: str, question: Question) -> None:
        """Store the answer to one query; a failure or unreadable answer becomes the reason."""
        reason = "not supported"
        try:
            handle = self._handles.get(bus_id)
            if handle is None:
                raise SmiError(REASONS[NOT_FOUND])
            block = () if question.block is None else (getattr(self._smi.AmdSmiGpuBlock, question.block),)
            answer = question.read(self._call(question.function, handle, *block))
            readings.values |= {k: v for k in question.readings if k not in readings.values and (v := answer.get(k)) is not None}
        except SmiError as refused:
            reason = refused.reason
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            reason = OTHER_FORM
        readings.reasons |= {name: reason for name in question.readings if name not in readings.values}

    def _call(self, function: str, *args: Any) -> Any:
        call = getattr(self._smi, function, None)
        if call is None:
            raise SmiError(REASONS[5])
        try:
            return call(*args)
        except Exception as error:  # noqa: BLE001 - besides its own errors the package raises what ctypes and parsing raise
            code = getattr(error, "err_code", None)
            if isinstance(code, int):
                raise SmiError(REASONS.get(code, f"error {code}"), code) from None
            raise SmiError(OTHER_FORM) from None


def open_amd_smi() -> tuple[AmdSmi | None, str]:
    """The library, or None and why not. Nothing is imported where it is not installed."""
    from importlib import import_module
    from importlib.util import find_spec

    try:
        if find_spec("amdsmi") is None:
            return None, NOT_INSTALLED
        # the package prints where it looked for its library
        with contextlib.redirect_stdout(io.StringIO()):
            module = import_module("amdsmi")
    except Exception as error:  # noqa: BLE001 - without its library the package fails in any way at all
        return None, f"amdsmi does not load: {type(error).__name__}"
    try:
        return AmdSmi(module), ""
    except DeviceError as error:
        return None, error.message
