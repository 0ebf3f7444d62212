"""Waits for errors (XIDs) that the driver reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from ctypes import c_ulonglong

from gpuwise.errors import ReadingError
from gpuwise.machine.devices.nvml.calls import Handle, Library
from gpuwise.machine.devices.nvml.errors import TIMEOUT, VENDOR, NvmlError, reason_of
from gpuwise.machine.devices.readings import Xid

XID_EVENT = 0x8
"""nvml.h, nvmlEventTypeXidCriticalError."""


class XidWatch:
    """One set of events over all devices. It waits without the lock of the readings, in slices, so that the library can be
    started again in between."""

    SLICE_S = 0.25

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._events: Handle | None = None
        self._watched: dict[int, str | None] = {}
        """Handle -> bus id."""

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Context in which nothing waits, for stopping the library; the event set is made again afterwards."""
        with self._lock:
            self._free()
            yield

    def wait(self, devices: list[tuple[Handle, str | None]], timeout_s: float) -> Xid | None:
        """The next one, or None after ``timeout_s``. Raises ReadingError where no device can be asked."""
        with self._lock:
            self._register(devices)
            if self._events is None or not self._watched:
                time.sleep(timeout_s)
                return None
            try:
                event = self._library.wait_for_event(self._events, timeout_s)
            except NvmlError as refused:
                if refused.code != TIMEOUT:
                    # lost cards and unloaded drivers show in the samples; here there is only no event to wait for
                    self._free()
                    time.sleep(timeout_s)
                return None
        if not event.type & XID_EVENT:
            return None
        from gpuwise.facts.hardware.xids import xid

        code = int(event.data)
        fact = xid(code)
        return Xid(code, time.time(), self._watched.get(event.device or 0), fact.meaning if fact else "")

    def _free(self) -> None:
        if self._events is not None:
            with suppress(NvmlError):
                self._library.do("nvmlEventSetFree", self._events)
        self._events, self._watched = None, {}

    def _register(self, devices: list[tuple[Handle, str | None]]) -> None:
        refusals: list[int] = []
        try:
            if self._events is None:
                self._watched = {}
                self._events = self._library.handle("nvmlEventSetCreate")
        except NvmlError as refused:
            raise ReadingError("XIDs", reason_of(refused.code), vendor=VENDOR, code=refused.code) from None
        for device, bus_id in devices:
            if (device.value or 0) in self._watched:
                continue
            try:
                self._library.do("nvmlDeviceRegisterEvents", device, c_ulonglong(XID_EVENT), self._events)
                self._watched[device.value or 0] = bus_id
            except NvmlError as refused:
                refusals.append(refused.code)
        if refusals and not self._watched:
            raise ReadingError(
                "XIDs",
                reason_of(refusals[0]),
                vendor=VENDOR,
                code=refusals[0],
                hint="read them from the kernel's log: dmesg | grep Xid",
            )
