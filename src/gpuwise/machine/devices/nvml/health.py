"""The slow readings of one NVML device, and the links between devices."""

from __future__ import annotations

import time

from gpuwise.machine.devices.nvml.calls import ALL_LINKS, Handle, Library
from gpuwise.machine.devices.nvml.card import NvmlCard, Reader
from gpuwise.machine.devices.nvml.errors import NvmlError
from gpuwise.machine.devices.nvml.identity import MAX_LINKS
from gpuwise.machine.devices.readings import Health, Peer
from gpuwise.units import GIGA, KIB, KILO

HELD_BACK = {"SW_POWER_CAP": 74, "SYNC_BOOST": 76, "SW_THERMAL": 269, "HW_THERMAL": 270, "HW_POWER_BRAKE": 271}
"""Name of an event reason -> field id of its counter in nanoseconds (nvml.h, NVML_FI_DEV_CLOCKS_EVENT_REASON_*)."""
RECOVERY_ACTION = 230
RECOVERY = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain",
    4: "drain and reset",
    5: "recover the IMEX domain",
    6: "bus reset",
    7: "reboot",
}
"""nvml.h, nvmlDeviceGpuRecoveryAction_t."""
SENT_DATA, RECEIVED_DATA = 138, 139
"""Payload over NVLink in KiB."""
LINK_ERRORS = (38, 45, 52, 59)
"""Totals of flow control CRC, data CRC, replays and recoveries."""
LINK_COUNTERS = (0, 1, 2, 3)
"""The same of one link (nvmlNvLinkErrorCounter_t)."""
CORRECTED, UNCORRECTED, VOLATILE, EVER = 0, 1, 0, 1
ECC_COUNTERS = (
    ("ecc_corrected", CORRECTED, VOLATILE),
    ("ecc_uncorrected", UNCORRECTED, VOLATILE),
    ("ecc_uncorrected_ever", UNCORRECTED, EVER),
)
SENT, RECEIVED = 0, 1

LINKS = {0: "same board", 10: "pcie switch", 20: "pcie switch", 30: "pcie host bridge", 40: "numa node", 50: "system"}
"""nvml.h, nvmlGpuTopologyLevel_t."""
P2P_READ, P2P_NVLINK, P2P_OK = 0, 2, 0
SWITCH = 2
"""nvmlIntNvLinkDeviceType_t."""


def read_health(read: Reader, card: NvmlCard) -> Health:
    """The slow readings of one device, about 50 ms. Raises NvmlError when the device or the driver is away."""
    library, device = read.library, read.handle
    held_back_s, recovery = _fields(read)
    ecc = {
        name: read(name, library.long, "nvmlDeviceGetTotalEccErrors", device, kind, since) for name, kind, since in ECC_COUNTERS
    }
    rows = read("remapped_rows_corrected", library.four, "nvmlDeviceGetRemappedRows", device)
    if rows is None:
        read.same("remapped_rows_corrected", "remapped_rows_uncorrected", "remap_pending", "remap_failed")
    retired = read("retired_pages_pending", library.unsigned, "nvmlDeviceGetRetiredPagesPendingStatus", device)
    active, sent_bytes, received, errors = _links(read)
    pcie_sent = read("pcie_sent_bytes_per_s", library.unsigned, "nvmlDeviceGetPcieThroughput", device, SENT)
    pcie_received = read("pcie_received_bytes_per_s", library.unsigned, "nvmlDeviceGetPcieThroughput", device, RECEIVED)
    return Health(
        card.index,
        time.monotonic(),
        held_back_s=held_back_s,
        **ecc,
        remapped_rows_corrected=None if rows is None else rows[0],
        remapped_rows_uncorrected=None if rows is None else rows[1],
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        retired_pages_pending=None if retired is None else bool(retired),
        recovery_action=recovery,
        pcie_replays=read("pcie_replays", library.unsigned, "nvmlDeviceGetPcieReplayCounter", device),
        pcie_sent_bytes_per_s=None if pcie_sent is None else pcie_sent * KILO,
        pcie_received_bytes_per_s=None if pcie_received is None else pcie_received * KILO,
        nvlinks_active=active,
        nvlink_sent_bytes=sent_bytes,
        nvlink_received_bytes=received,
        nvlink_errors=errors,
        unknown=read.reasons,
    )


def _fields(read: Reader) -> tuple[dict[str, float], str | None]:
    """Seconds of reduced clocks by reason, and the driver's recovery action."""
    try:
        answers = read.library.fields(read.handle, [(number, 0) for number in (*HELD_BACK.values(), RECOVERY_ACTION)])
    except NvmlError as refused:
        read.refused("held_back_s", "recovery_action", code=refused.code)
        return {}, None
    *counters, action = answers
    seconds: dict[str, float] = {}
    for name, answer in zip(HELD_BACK, counters, strict=True):
        if isinstance(answer, NvmlError):
            read.refused(f"held_back_s.{name}", code=answer.code)
        else:
            seconds[name] = answer / GIGA
            read.n_read += 1
    if isinstance(action, NvmlError):
        read.refused("recovery_action", code=action.code)
        return seconds, None
    return seconds, RECOVERY.get(int(action), f"action {int(action)}")


def _links(read: Reader) -> tuple[int | None, int | None, int | None, int | None]:
    """Active links, bytes sent and received, errors."""
    active = active_links(read.library, read.handle)
    if active is None:
        for reading in ("nvlinks_active", "nvlink_sent_bytes", "nvlink_received_bytes", "nvlink_errors"):
            read.unknown(reading, "not supported", lasting=True)
        return None, None, None, None
    questions = [(SENT_DATA, ALL_LINKS), (RECEIVED_DATA, ALL_LINKS), *((number, 0) for number in LINK_ERRORS)]
    try:
        sent_kib, received, *errors = read.library.fields(read.handle, questions)
    except NvmlError as refused:
        read.refused("nvlink_sent_bytes", "nvlink_received_bytes", "nvlink_errors", code=refused.code)
        return len(active), None, None, None
    amounts: list[int | None] = []
    for reading, answer in (("nvlink_sent_bytes", sent_kib), ("nvlink_received_bytes", received)):
        if isinstance(answer, NvmlError):
            read.refused(reading, code=answer.code)
            amounts.append(None)
        else:
            amounts.append(int(answer * KIB))
    error_counts = [int(e) for e in errors if not isinstance(e, NvmlError)]
    return len(active), amounts[0], amounts[1], sum(error_counts) if error_counts else _link_errors(read, active)


def _link_errors(read: Reader, active: list[int]) -> int | None:
    """One link and counter at a time, if no totals are reported."""
    total, any_answer = 0, False
    for link in active:
        for counter in LINK_COUNTERS:
            try:
                total += read.library.long("nvmlDeviceGetNvLinkErrorCounter", read.handle, link, counter)
                any_answer = True
            except NvmlError as refused:
                read.refused(code=refused.code)
    if not any_answer and active:
        read.unknown("nvlink_errors", "not supported")
    return total if any_answer or not active else None


def active_links(library: Library, device: Handle) -> list[int] | None:
    """Numbers of the links that are up; None where the device has none."""
    up: list[int] = []
    for link in range(MAX_LINKS):
        try:
            if library.unsigned("nvmlDeviceGetNvLinkState", device, link):
                up.append(link)
        except NvmlError:
            return up if link else None
    return up


def read_peers(library: Library, cards: list[NvmlCard]) -> tuple[Peer, ...]:
    """Every pair, ``a < b``; one with a device that is away is ``unknown``."""
    ends = {card.index: _link_ends(library, card) for card in cards}
    peers: list[Peer] = []
    for i, a in enumerate(cards):
        for b in cards[i + 1 :]:
            peers.append(_peer(library, a, b, ends))
    return tuple(peers)


def _peer(library: Library, a: NvmlCard, b: NvmlCard, ends: dict[int, tuple[int, list[str]]]) -> Peer:
    if a.handle is None or b.handle is None:
        return Peer(a.index, b.index, "unknown")
    level = _or_none(library, "nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle)
    can_read = _or_none(library, "nvmlDeviceGetP2PStatus", a.handle, b.handle, P2P_READ)
    by_nvlink = _or_none(library, "nvmlDeviceGetP2PStatus", a.handle, b.handle, P2P_NVLINK)
    link, n_links = LINKS.get(-1 if level is None else level, "unknown"), None
    if by_nvlink == P2P_OK:
        to_switch, direct = ends[a.index]
        n = direct.count(b.bus_id or "") or min(to_switch, ends[b.index][0])
        link, n_links = "nvlink", n or None
    return Peer(a.index, b.index, link, n_links, None if can_read is None else can_read == P2P_OK)


def _or_none(library: Library, name: str, *arguments: object) -> int | None:
    try:
        return library.signed(name, *arguments)
    except NvmlError:
        return None


def _link_ends(library: Library, card: NvmlCard) -> tuple[int, list[str]]:
    """How many links go to a switch, and where the others end."""
    to_switch, direct = 0, list[str]()
    if card.handle is None:
        return to_switch, direct
    for link in active_links(library, card.handle) or []:
        if _or_none(library, "nvmlDeviceGetNvLinkRemoteDeviceType", card.handle, link) == SWITCH:
            to_switch += 1
            continue
        try:
            direct.append(library.remote_bus_id(card.handle, link))
        except NvmlError:
            # drivers before 460 do not report the kind of the other end, nor that of a switch
            to_switch += 1
    return to_switch, direct
