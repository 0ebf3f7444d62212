"""NVIDIA devices through NVML (nvidia-ml-py): the driver may go and come back, devices may be lost and come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpuwise.errors import InputError, ReadingError
from gpuwise.machine.devices.nvml.calls import Handle, Library
from gpuwise.machine.devices.nvml.card import NvmlCard, Reader
from gpuwise.machine.devices.nvml.errors import (
    GONE_CODES,
    LOST_CODES,
    UNKNOWN,
    VENDOR,
    NvmlError,
    device_error,
    opening_error,
    reason_of,
)
from gpuwise.machine.devices.nvml.events import XidWatch
from gpuwise.machine.devices.nvml.health import read_health, read_peers
from gpuwise.machine.devices.nvml.identity import read_identity
from gpuwise.machine.devices.nvml.sample import take_sample
from gpuwise.machine.devices.readings import Driver, Health, Identity, Peer, Sample, State, Xid

RESTART_AFTER_S = 1.0
"""A driver that went away is looked for again no more often: a start that fails can take the driver long."""
_RESTART_CODES = GONE_CODES | {UNKNOWN}
"""Error codes of a library whose driver was unloaded and loaded again."""
T = TypeVar("T")


def open_nvml(*, root: Path = Path("/")) -> NvmlDevices:
    """The NVIDIA devices of this machine; ``root`` is where ``/sys`` is looked for.

    Raises NoDriverError, DriverMismatchError, DevicePermissionError, DeviceError.
    """
    return NvmlDevices(root=root)


class NvmlDevices:
    """See :class:`gpuwise.machine.devices.backend.Devices`. Safe to use from several threads."""

    vendor = VENDOR

    def __init__(self, *, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._library = Library()
        self._lock = threading.RLock()
        self._cards: list[NvmlCard] = []
        self._away_code: int | None = None
        """Why the library has to be started again."""
        self._tried_s = clock()
        self._xids = XidWatch(self._library)
        try:
            self._library.start()
            self._find_cards()
        except NvmlError as refused:
            self._library.stop()
            raise opening_error(refused.code) from None

    def driver(self) -> Driver:
        with self._lock:
            unknown: dict[str, str] = {}

            def value(reading: str, ask: Callable[..., T], *arguments: object) -> T | None:
                try:
                    return ask(*arguments)
                except NvmlError as refused:
                    unknown[reading] = reason_of(refused.code)
                    return None

            version = value("version", self._library.text, "nvmlSystemGetDriverVersion")
            library = value("library_version", self._library.text, "nvmlSystemGetNVMLVersion")
            cuda = value("cuda_version", self._library.signed, "nvmlSystemGetCudaDriverVersion_v2")
            # 13000 is CUDA 13.0
            numbers = None if not cuda else (cuda // 1000, cuda % 1000 // 10)
            return Driver(self.vendor, version, library, numbers, unknown)

    def identities(self) -> tuple[Identity, ...]:
        with self._lock:
            self._return()
            if self._away_code is None:
                self._look_for_more()
            return tuple(self._identity(card) for card in self._cards)

    def sample(self, index: int, *, processes: bool = True) -> Sample:
        with self._lock:
            card = self._card(index)
            self._return()
            if self._away_code is not None:
                return self._away(card, State.UNREACHABLE, self._away_code)
            try:
                handle = self._handle(card)
                return take_sample(Reader(self._library, card, handle, "sample"), card, processes=processes)
            except NvmlError as refused:
                return self._refused(card, refused.code)

    def health(self, index: int) -> Health:
        with self._lock:
            card = self._card(index)
            self._return()
            if self._away_code is not None:
                raise device_error(self._away_code, index, "health")
            try:
                handle = self._handle(card)
                return read_health(Reader(self._library, card, handle, "health"), card)
            except NvmlError as refused:
                self._refused(card, refused.code)
                raise device_error(refused.code, index, "health") from None

    def peers(self) -> tuple[Peer, ...]:
        with self._lock:
            for card in self._cards:
                try:
                    self._handle(card)
                except NvmlError as refused:
                    self._refused(card, refused.code)
            return read_peers(self._library, self._cards)

    def wait_for_xid(self, timeout_s: float) -> Xid | None:
        if timeout_s < 0:
            raise InputError(f"a time limit of {timeout_s} s", hint="give one from 0 on")
        end_s = self._clock() + timeout_s
        while True:
            with self._lock:
                self._return()
                away_code = self._away_code
                cards = [] if away_code is not None else [(c.handle, c.bus_id) for c in self._cards if c.handle is not None]
            if away_code is not None:
                raise ReadingError("XIDs", reason_of(away_code), vendor=self.vendor, code=away_code)
            event = self._xids.wait(cards, min(XidWatch.SLICE_S, max(0.0, end_s - self._clock())))
            if event is not None or self._clock() >= end_s:
                return event

    def close(self) -> None:
        with self._lock, self._xids.paused():
            self._library.stop()
            for card in self._cards:
                card.forget()
            self._away_code = self._away_code or 1

    # --- cards ---

    def _card(self, index: int) -> NvmlCard:
        if not 0 <= index < len(self._cards):
            raise InputError(f"no NVIDIA device {index}", hint=f"there are {len(self._cards)}, counted from 0")
        return self._cards[index]

    def _find_cards(self) -> None:
        for index in range(self._library.unsigned("nvmlDeviceGetCount_v2")):
            card = NvmlCard(index)
            self._cards.append(card)
            try:
                self._handle(card)
                card.name = self._library.text("nvmlDeviceGetName", card.handle)
            except NvmlError:
                card.forget()

    def _look_for_more(self) -> None:
        """Append cards that were added (or found by a driver that came back) behind the known ones."""
        try:
            count = self._library.unsigned("nvmlDeviceGetCount_v2")
        except NvmlError as refused:
            if refused.code in _RESTART_CODES:
                self._away_code = refused.code
            return
        for index in range(len(self._cards), count):
            self._cards.append(NvmlCard(index))

    def _handle(self, card: NvmlCard) -> Handle:
        """Its handle, by its bus position once known: indices change when a card disappears. Raises NvmlError."""
        if card.handle is None:
            if card.bus_id is None:
                handle = self._library.handle("nvmlDeviceGetHandleByIndex_v2", card.index)
            else:
                handle = self._library.handle("nvmlDeviceGetHandleByPciBusId_v2", card.bus_id.encode())
            if card.bus_id is None:
                card.bus_id = self._library.pci_bus_id(handle)
            card.handle = handle
        return card.handle

    def _identity(self, card: NvmlCard) -> Identity:
        code = self._away_code
        if code is None:
            try:
                card.lasting.pop("identity", None)
                return read_identity(Reader(self._library, card, self._handle(card), "identity"), card, self._root)
            except NvmlError as refused:
                self._refused(card, refused.code)
                code = refused.code
        return Identity(
            self.vendor,
            card.index,
            card.name or ("lost" if code in LOST_CODES else "unreachable"),
            pci_bus_id=card.bus_id,
            unknown={"device": reason_of(code)},
        )

    # --- what goes away and comes back ---

    def _refused(self, card: NvmlCard, code: int) -> Sample:
        """The device did not answer as a whole."""
        card.forget()
        if code in _RESTART_CODES and self._away_code is None:
            self._away_code = code
            # when the driver is already there again, the next sample has it
            self._tried_s = self._clock() - RESTART_AFTER_S
        return self._away(card, State.LOST if code in LOST_CODES else State.UNREACHABLE, code)

    def _away(self, card: NvmlCard, state: State, code: int) -> Sample:
        return Sample(card.index, time.monotonic(), state=state, error=reason_of(code))

    def _return(self) -> None:
        """Start the library again if the driver went away, now and then."""
        if self._away_code is None or self._clock() - self._tried_s < RESTART_AFTER_S:
            return
        self._tried_s = self._clock()
        with self._xids.paused():
            for card in self._cards:
                card.forget()
            self._library.stop()
            try:
                self._library.start()
                self._away_code = None
            except NvmlError as refused:
                self._away_code = refused.code
