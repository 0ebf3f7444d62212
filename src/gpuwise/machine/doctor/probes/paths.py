"""The bridges between a GPU and the processor, and whether they send copies between GPUs up instead of across (PCI Express
Access Control Services).

The kernel shows every process the first 64 bytes of a device's configuration space and root all 4096; the capability is among
the latter. Without root the answer is unknown, not no.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator

from gpuwise.machine.doctor.host import Host
from gpuwise.machine.doctor.observation import Bridge, PciCard

_PCI = "/sys/bus/pci/devices"
_PLACE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
# linux/pci_regs.h: PCI_CFG_SPACE_SIZE, PCI_EXT_CAP_ID_ACS, PCI_ACS_CTRL, PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_EC
_EXTENDED_FROM, _ACS, _CONTROL_AT = 0x100, 0x000D, 6
REDIRECTS = 0x04 | 0x08 | 0x20
"""Requests and completions between devices below are redirected upwards, or blocked by a list; removed by the kernel's
``pci=disable_acs_redir``."""
_SPACE = 4096


def path_of(host: Host, address: str) -> tuple[str, ...]:
    """The bridges from the root down to a device, by their places on the bus."""
    parts = (host.link(f"{_PCI}/{address}") or "").split("/")
    places = [part.lower() for part in parts if _PLACE.fullmatch(part)]
    return tuple(places[:-1]) if places and places[-1] == address.lower() else ()


def read_bridges(host: Host, cards: Iterable[PciCard]) -> tuple[Bridge, ...]:
    """Every bridge on the way to ``cards``."""
    addresses = dict.fromkeys(place for card in cards for place in card.bridges)
    return tuple(_bridge(host, place) for place in addresses)


def _bridge(host: Host, place: str) -> Bridge:
    """A bridge and whether it redirects peer traffic; None with the reason where the space cannot be read."""
    space = host.read_bytes(f"{_PCI}/{place}/config")
    if space is None or len(space) <= _EXTENDED_FROM:
        return Bridge(place, None, "the extended configuration space is shown to root only")
    control = acs_control(space)
    return Bridge(place, control is not None and bool(control & REDIRECTS))


def acs_control(space: bytes) -> int | None:
    """The control register of Access Control Services; None where the device has none."""
    for number, at in extended_capabilities(space):
        if number == _ACS and at + _CONTROL_AT + 2 <= len(space):
            return struct.unpack_from("<H", space, at + _CONTROL_AT)[0]
    return None


def extended_capabilities(space: bytes) -> Iterator[tuple[int, int]]:
    """(id, offset) of each, in the order of their list; a list that runs in a circle or out of the space ends there."""
    at, offsets = _EXTENDED_FROM, set[int]()
    while _EXTENDED_FROM <= at <= min(len(space), _SPACE) - 4 and at not in offsets:
        offsets.add(at)
        (header,) = struct.unpack_from("<I", space, at)
        if header in (0, 0xFFFFFFFF):
            # an empty list, or a device that does not answer
            return
        yield header & 0xFFFF, at
        at = header >> 20 & 0xFFC
