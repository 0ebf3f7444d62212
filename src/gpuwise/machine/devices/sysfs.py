"""Graphics devices under ``/sys/class/drm`` of Linux, and their small files."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from gpuwise.machine.devices.readings import Health, Identity, Sample

_Told = TypeVar("_Told", Identity, Sample, Health)
_CARD = re.compile(r"card\d+", re.ASCII)
_SLOT = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_PCI_NAMES = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids")
_GENERATION_BY_SPEED = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s of a lane -> PCI Express generation (PCI Express Base 1.0 to 6.0)."""


@dataclass(frozen=True, slots=True)
class DrmCard:
    """A card and its files."""

    device: Path
    """``/sys/class/drm/card0/device``."""
    card: Path
    driver: str
    """``amdgpu``, ``xe``, ``i915``."""
    bus_id: str | None
    device_id: int | None

    @property
    def hwmon(self) -> Path | None:
        """Its sensors."""
        try:
            return next(iter(sorted((self.device / "hwmon").iterdir())), None)
        except OSError:
            return None


def drm_cards(root: Path, vendor_id: int, drivers: Sequence[str]) -> list[DrmCard]:
    """The cards of a vendor that one of ``drivers`` runs, by their place on the bus."""
    cards: list[DrmCard] = []
    try:
        entries = sorted((root / "sys/class/drm").iterdir())
    except OSError:
        return []
    for card in entries:
        device = card / "device"
        if not _CARD.fullmatch(card.name) or Files(device).number("vendor") != vendor_id:
            continue
        driver = _driver(device)
        if driver in drivers:
            cards.append(DrmCard(device, card, driver, _bus_id(device), Files(device).number("device")))
    return sorted(cards, key=lambda c: (c.bus_id or "", c.card.name))


def _driver(device: Path) -> str:
    driver = Files(device).lines("uevent").get("DRIVER")
    if driver:
        return driver
    try:
        return (device / "driver").resolve().name
    except OSError:
        return ""


def _bus_id(device: Path) -> str | None:
    try:
        slot = Files(device).lines("uevent").get("PCI_SLOT_NAME") or device.resolve().name
    except OSError:
        return None
    return bus_id_of(slot)


def bus_id_of(slot: str) -> str | None:
    """``0000:C1:00.0`` -> ``00000000:c1:00.0``; None for text that is no place on the bus."""
    match = _SLOT.fullmatch(slot)
    return None if match is None else f"{int(match[1], 16):08x}:{match[2].lower()}:{match[3].lower()}.{match[4]}"


def pci_name(root: Path, vendor_id: int, device_id: int | None) -> str | None:
    """Name of a device in this system's list of PCI devices; None if not listed."""
    if device_id is None:
        return None
    vendor, device = f"{vendor_id:04x}  ", f"\t{device_id:04x}  "
    for name in _PCI_NAMES:
        try:
            with (root / name).open(encoding="utf-8", errors="replace") as lines:
                inside = False
                for line in lines:
                    if line[:1] not in "#\t\n":
                        if inside:
                            return None
                        inside = line.startswith(vendor)
                    elif inside and line.startswith(device):
                        return line[len(device) :].strip()
        except OSError:
            continue
    return None


def pcie_generation(speed: str | None) -> int | None:
    """Generation from ``16.0 GT/s PCIe``; None for other text."""
    try:
        return _GENERATION_BY_SPEED.get(float((speed or "").split()[0]))
    except (IndexError, ValueError):
        return None


def with_reasons(reading: _Told, reasons: Mapping[str, str], not_asked: Sequence[str] = ()) -> _Told:
    """Adds a reason for every reading that is None; the stored reason of its file if any."""
    empty = {f.name for f in fields(reading) if getattr(reading, f.name) is None} - {"error", *not_asked}
    return replace(reading, unknown={name: reasons.get(name, "not supported") for name in sorted(empty)})


class Files:
    """Small files of a folder; reasons for missing readings are stored."""

    __slots__ = ("_folder", "reasons")

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.reasons: dict[str, str] = {}

    def text(self, name: str, reading: str | None = None) -> str | None:
        """Stripped; bytes that are not UTF-8 are replaced."""
        raw = self.raw(name, reading)
        return None if raw is None else raw.decode("utf-8", "replace").strip()

    def raw(self, name: str, reading: str | None = None) -> bytes | None:
        if self._folder is None:
            self._why(reading, "not supported")
            return None
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            self._why(reading, _reason(error))
            return None

    def number(self, name: str, reading: str | None = None) -> int | None:
        """A whole number, decimal or ``0x``."""
        text = self.text(name, reading)
        if text is None:
            return None
        try:
            return int(text, 0) if text[:2].lower() == "0x" else int(text)
        except ValueError:
            self._why(reading, "the driver tells no number")
            return None

    def lines(self, name: str) -> dict[str, str]:
        """``NAME=value`` lines."""
        text = self.text(name) or ""
        return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}

    def missing(self, reading: str, reason: str = "not supported") -> None:
        self.reasons[reading] = reason

    def _why(self, reading: str | None, reason: str) -> None:
        if reading is not None:
            self.reasons[reading] = reason


def _reason(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no permission"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL):
        return "not supported"
    if error.errno in (errno.EBUSY, errno.EAGAIN):
        return "in use by another"
    return (error.strerror or "cannot be read").lower()
