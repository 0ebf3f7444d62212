"""Checks of peer copies over PCI Express: the IOMMU and access control of bridges."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import AMD, NVIDIA, Machine, PciCard
from gpuwise.machine.doctor.probes.kernel import same_bus

_OTHER_WAYS = ("nvlink", "xgmi", "same board")
"""Links that copies take instead of PCI Express."""


def iommu(m: Machine) -> Iterator[Finding]:
    """Peer copies that the IOMMU routes through the processor."""
    over_pcie = [p for v in m.vendors for p in v.peers if p.can_read and p.link not in (*_OTHER_WAYS, "unknown")]
    vendor = NVIDIA if m.pci_of(NVIDIA) else AMD
    translated = [c for c in m.pci_of(vendor) if (c.iommu or "").startswith("DMA")]
    if m.system.container or m.system.wsl or not over_pcie or len(translated) < 2:
        return
    yield Finding(
        "iommu-peer-copies",
        Severity.LIMIT,
        "The IOMMU stands between GPUs that copy to each other",
        (f"{len(translated)} cards in IOMMU groups of type {translated[0].iommu}", f"{len(over_pcie)} pairs copy over PCIe"),
        "With addresses translated, copies between GPUs go through the processor or hang; NVIDIA and AMD support them on bare "
        "metal with the IOMMU off or passing through.",
        (
            Fix(
                "Let it pass through: add iommu=pt to the kernel's command line, then restart",
                (
                    "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub",
                    "sudo update-grub || sudo grub2-mkconfig -o /boot/grub2/grub.cfg",
                    "sudo reboot",
                ),
                reboot=True,
            ),
        ),
        "cat /sys/bus/pci/devices/" + translated[0].address + "/iommu_group/type  # identity",
        sources=("nccl-troubleshooting",),
    )


def acs(m: Machine) -> Iterator[Finding]:
    """PCIe switches whose access control sends peer copies up to the processor."""
    if m.system.wsl:
        return
    pairs = _pairs(m)
    ports = {place for _, _, places in pairs for place in places}
    sends_up = {b.address for b in m.bridges if b.redirects and b.address in ports}
    unread = [b for b in m.bridges if b.redirects is None and b.address in ports]
    if sends_up:
        concerned = [(a, b) for a, b, places in pairs if sends_up & set(places)]
        where = "host" if m.system.container else "here"
        listed = sorted(sends_up)
        yield Finding(
            "acs-redirects-peer-copies",
            Severity.LIMIT,
            "PCIe switches send copies between GPUs by way of the processor",
            (
                f"access control redirects at {', '.join(listed)}",
                f"{len(concerned)} pairs of GPUs below one switch, like {concerned[0][0]} and {concerned[0][1]}",
            ),
            "The switch could pass them on directly: copies are slower and share the processor's link, or hang. (Where cards "
            "are handed to virtual machines this is meant: leave it.)",
            (
                Fix(
                    "Switch the redirection off until the next restart",
                    tuple(f"sudo setpci -s {place} ECAP_ACS+0x6.w=0000" for place in listed),
                    where,
                ),
                Fix(
                    "Or for good: on the kernel's command line, then restart",
                    (
                        f"sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&pci=disable_acs_redir={';'.join(listed)} /' /etc/default/grub",
                        "sudo update-grub || sudo grub2-mkconfig -o /boot/grub2/grub.cfg",
                        "sudo reboot",
                    ),
                    where,
                    reboot=True,
                ),
            ),
            f"sudo lspci -s {listed[0]} -vvv | grep ACSCtl  # ReqRedir- CmpltRedir-",
            sources=("nccl-troubleshooting", "linux-acs-redirect"),
        )
    elif unread:
        yield Finding(
            "acs-unknown",
            Severity.NOTE,
            "Whether PCIe switches send copies between GPUs by way of the processor is not known",
            (f"{unread[0].address} and {len(unread) - 1} more: {unread[0].problem}",),
            "Access control that redirects makes copies between GPUs below one switch slow.",
            (Fix("Look again with root's rights", ('sudo "$(command -v gpuwise)" doctor',)),),
            f"sudo lspci -s {unread[0].address} -vvv | grep ACSCtl",
            sources=("nccl-troubleshooting",),
        )


def _pairs(m: Machine) -> list[tuple[str, str, tuple[str, ...]]]:
    """Pairs of cards that may copy to each other over PCIe below one switch: their places, and the switch's ports between.

    Below different ports of the processor copies go up in any case, so that redirection there changes nothing.
    """
    pairs: list[tuple[str, str, tuple[str, ...]]] = []
    for vendor in m.vendors:
        slots = {card.identity.index: _slot(m, card.identity.pci_bus_id) for card in vendor.cards}
        for peer in vendor.peers:
            a, b = slots.get(peer.a), slots.get(peer.b)
            if a is None or b is None or peer.can_read is False or peer.link in _OTHER_WAYS:
                continue
            shared = sum(1 for x, y in zip(a.bridges, b.bridges, strict=False) if x == y)
            if shared and a.bridges[:shared] == b.bridges[:shared]:
                pairs.append((a.address, b.address, (*a.bridges[shared:], *b.bridges[shared:])))
    return pairs


def _slot(m: Machine, bus_id: str | None) -> PciCard | None:
    """The device on the bus at ``bus_id``; None without one."""
    return next((c for c in m.pci if same_bus(c.address, bus_id)), None)
