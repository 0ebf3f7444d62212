"""Shared by the backends that read the kernel's files: list of devices, lost devices, readings that need root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gpuwise.errors import DeviceLostError, InputError, ReadingError
from gpuwise.machine.devices.readings import Identity, Xid
from gpuwise.machine.devices.sysfs import DrmCard

GONE = "the device is gone from the bus"


class DrmDevices:
    """Cards of one vendor under ``/sys/class/drm``; a backend adds what its driver's files say."""

    vendor: ClassVar[str]
    maker: ClassVar[str]
    """Vendor's display name: ``AMD``."""

    def __init__(self, cards: Sequence[DrmCard]) -> None:
        self._cards = tuple(cards)
        self._identities: dict[int, Identity] = {}
        """Identities of every card read so far; a lost one keeps its name."""

    def identities(self) -> tuple[Identity, ...]:
        return tuple(self._lost(i) or self._identity(i) for i in range(len(self._cards)))

    def wait_for_xid(self, timeout_s: float) -> Xid | None:
        raise ReadingError("XIDs", "only NVIDIA's driver has them", vendor=self.vendor)

    def close(self) -> None:
        """Does nothing: no handle is open."""

    def _card(self, index: int) -> DrmCard:
        if not 0 <= index < len(self._cards):
            raise InputError(f"no {self.maker} device {index}", hint=f"there are {len(self._cards)}, counted from 0")
        return self._cards[index]

    def _card_here(self, index: int) -> DrmCard:
        """Same as :meth:`_card`. Raises DeviceLostError for a missing one."""
        card = self._card(index)
        if not card.device.exists():
            message = f"{self.maker} GPU {index}: {GONE}"
            raise DeviceLostError(index, message, vendor=self.vendor, hint="look at dmesg, then reboot")
        return card

    def _lost(self, index: int) -> Identity | None:
        """Position and former name of a lost card; None for one that is here."""
        card, identity = self._cards[index], self._identities.get(index)
        if card.device.exists():
            return None
        name = identity.name if identity else "lost"
        return Identity(self.vendor, index, name, pci_bus_id=card.bus_id, unknown={"device": GONE})

    def _identity(self, index: int) -> Identity:
        raise NotImplementedError
