"""Cards at fault, or held back; what feeds them; and healthy ones that look odd."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.devices.readings import EventReason, Peer, State
from gpuwise.machine.doctor.host import CommandResult
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import ScriptedMachine, scripted_machine

from .asserting import assert_cause, assert_healthy

BUS = "/sys/bus/pci/devices/"
CPU0 = "/sys/devices/system/cpu/cpu0/cpufreq/"
MIG = NullCard("A100 SXM4 80GB", identity={"mig": True})
GPUS = "/proc/driver/nvidia/gpus/0000:01:00.0/information"
OVER_PCIE = [Peer(0, 1, "pcie host bridge", None, True)]


def card(
    name: str = "RTX 4090", *, identity: dict | None = None, health: dict | None = None, **sample: object
) -> ScriptedMachine:
    return scripted_machine(cards=(NullCard(name, sample=sample, identity=identity or {}, health=health or {}),))


def logged(*lines: str, cards: tuple = ("H100 SXM",)) -> ScriptedMachine:
    return scripted_machine(cards=cards).but(commands={"dmesg": CommandResult(0, "\n".join(["[ 0.0] Linux", *lines]))})


def translated(kind: str, peers: list[Peer]) -> ScriptedMachine:
    return scripted_machine(cards=("RTX A6000",) * 2, peers=peers).but(
        files={f"{BUS}0000:0{i}:00.0/iommu_group/type": f"{kind}\n" for i in (1, 2)}
    )


def below_a_switch(
    control: int | None, *, peers: list[Peer] | None = None, one_switch: bool = True, cards: int = 2
) -> ScriptedMachine:
    """Cards below ports of a switch (or of the processor) whose access control is ``control``; None: not shown."""
    machine = scripted_machine(cards=("RTX A6000",) * cards, peers=peers if peers is not None else OVER_PCIE)
    above = "0000:00:01.0/0000:40:00.0/" if one_switch else ""
    ports = {f"0000:0{i}:00.0": f"0000:41:0{i}.0" for i in range(1, cards + 1)}
    links = {f"{BUS}{slot}": f"../../../devices/pci0000:00/{above}{port}/{slot}" for slot, port in ports.items()}
    spaces = {f"{BUS}{port}/config": _config(control) for port in (*ports.values(), "0000:00:01.0", "0000:40:00.0")}
    return machine.but(links=links, files=spaces)


def _config(control: int | None) -> str:
    if control is None:
        return "\0" * 64
    head = bytes(0x100) + struct.pack("<IIIHH", 0x0001 | 0x108 << 20, 0, 0x000D, 0x5F, control)
    return (head + bytes(4096 - len(head))).decode("latin-1")


FAULTY: dict[str, tuple[Callable[[], ScriptedMachine], str, tuple[str, ...]]] = {
    "lost": (lambda: card("H100 SXM", state=State.LOST, error="GPU is lost"), "gpu-lost", ("sudo poweroff",)),
    "XID 79": (
        lambda: logged("[ 88.1] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', GPU has fallen off the bus."),
        "gpu-lost",
        ("sudo poweroff",),
    ),
    "XID 119": (
        lambda: logged(
            "[ 88.1] NVRM: Xid (PCI:0000:01:00): 119, pid=77, Timeout after 6s of waiting for RPC response from GPU0 GSP!"
        ),
        "xid-119",
        ("nvidia-smi --gpu-reset -i 0",),
    ),
    "XID 48": (
        lambda: logged("[ 9.1] NVRM: Xid (PCI:0000:01:00): 48, pid=9, DBE (double bit error)"),
        "xid-48",
        ("--gpu-reset -i 0",),
    ),
    "XID 74": (
        lambda: logged("[ 9.1] NVRM: Xid (PCI:0000:01:00): 74, pid=9, NVLink: fatal error"),
        "xid-74",
        ("nvidia-smi nvlink -e -i 0",),
    ),
    "does not answer": (
        lambda: card(state=State.UNREACHABLE, error="timeout"),
        "gpu-unreachable",
        ("nvidia-smi --gpu-reset -i 0",),
    ),
    "the driver asks for a reset": (
        lambda: card("H100 SXM", health={"recovery_action": "reset"}),
        "gpu-recovery",
        ("nvidia-smi --gpu-reset -i 0",),
    ),
    "the driver asks for a reboot": (
        lambda: card("H100 SXM", health={"recovery_action": "reboot"}),
        "gpu-recovery",
        ("sudo reboot",),
    ),
    "memory errors": (
        lambda: card("H100 SXM", health={"ecc_uncorrected": 12, "ecc_uncorrected_ever": 40}),
        "ecc-uncorrected",
        ("--gpu-reset -i 0",),
    ),
    "a row waits for its spare": (
        lambda: card("H100 SXM", health={"remap_pending": True}),
        "row-remap-pending",
        ("--gpu-reset -i 0",),
    ),
    "no spare row left": (
        lambda: card("H100 SXM", health={"remap_failed": True, "remap_pending": True}),
        "row-remap-failed",
        ("-d ROW_REMAPPER,ECC",),
    ),
    "pages wait for a restart": (
        lambda: card("V100 SXM2 32GB", health={"retired_pages_pending": True}),
        "page-retirement-pending",
        ("sudo reboot",),
    ),
    "heat": (
        lambda: card(event_reasons=int(EventReason.HW_THERMAL | EventReason.HW_SLOWDOWN), temperature_c=95.0, sm_clock_hz=2.1e8),
        "gpu-hot",
        ("-d TEMPERATURE,PERFORMANCE",),
    ),
    "software's heat limit": (
        lambda: card(event_reasons=int(EventReason.SW_THERMAL)),
        "gpu-hot",
        ("-d TEMPERATURE,PERFORMANCE",),
    ),
    "the power supply brakes": (
        lambda: card(event_reasons=int(EventReason.HW_POWER_BRAKE | EventReason.HW_SLOWDOWN)),
        "gpu-power-brake",
        (),
    ),
    "slowed down for no said reason": (
        lambda: card(event_reasons=int(EventReason.HW_SLOWDOWN)),
        "gpu-slowdown",
        ("-d TEMPERATURE,POWER,PERFORMANCE",),
    ),
    "power limit lowered": (lambda: card(power_limit_w=300.0), "power-limit-low", ("sudo nvidia-smi -i 0 -pl 450",)),
    "x4 of x16": (lambda: card(pcie_width=4), "pcie-narrow", ()),
    "generation 1 of 4 at work": (
        lambda: card(pcie_generation=1, performance_state=0, utilization=0.98),
        "pcie-slow",
        (),
    ),
    "MIG without instances": (
        lambda: scripted_machine(cards=(MIG,)).but(files={GPUS: "Model: A100\nDevice Minor: \t 0\n"}),
        "mig-no-instances",
        ("sudo nvidia-smi -i 0 -mig 0", "nvidia-smi mig -i 0 -cgi 0 -C"),
    ),
    "a switch that sends copies up": (
        lambda: below_a_switch(0x1D),
        "acs-redirects-peer-copies",
        ("setpci -s 0000:41:01.0 ECAP_ACS+0x6.w=0000", "disable_acs_redir=0000:41:01.0;0000:41:02.0"),
    ),
    "the IOMMU between two cards": (lambda: translated("DMA-FQ", OVER_PCIE), "iommu-peer-copies", ("iommu=pt",)),
    "the processor kept slow": (
        lambda: card().but(files={CPU0 + "scaling_driver": "acpi-cpufreq\n"}),
        "cpu-powersave",
        ("cpupower frequency-set -g performance",),
    ),
    "the processor told to spare energy": (
        lambda: card().but(files={CPU0 + "energy_performance_preference": "power\n"}),
        "cpu-powersave",
        ("balance_performance",),
    ),
    "a full disk": (
        lambda: card().but(space={"/home/ada": (2 << 30, 500 << 30)}),
        "disk-nearly-full",
        ("cache purge", "du -xh"),
    ),
    "few open files": (lambda: card().but(limits={"nofile": 256}), "few-open-files", ("nofile 65535",)),
    "locked memory with InfiniBand": (
        lambda: card("H100 SXM").but(files={"/sys/class/infiniband/mlx5_0/fw_ver": "1"}, limits={"memlock": 65536}),
        "memlock-low",
        ("memlock unlimited",),
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_is_named_first_with_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {
    "eight H100": lambda: scripted_machine(
        cards=["H100 SXM"] * 8, peers=[Peer(a, b, "nvlink", 18, True) for a in range(8) for b in range(a + 1, 8)]
    ).but(files={f"{BUS}0000:{i:02x}:00.0/iommu_group/type": "DMA-FQ\n" for i in range(1, 9)}),
    "idle on PCIe generation 1": lambda: card(pcie_generation=1, performance_state=8, utilization=0.0),
    "generation 1, busy, but not in the fastest state": lambda: card(pcie_generation=1, performance_state=5, utilization=0.9),
    "power-capped by its own limit": lambda: card(event_reasons=int(EventReason.SW_POWER_CAP)),
    "idle clocks": lambda: card(event_reasons=int(EventReason.IDLE), sm_clock_hz=2.1e8),
    "a reason nobody knows yet": lambda: card(event_reasons=0x8000),
    "half a watt below its default": lambda: card(power_limit_w=449.8),
    "readings that are not there": lambda: card(power_limit_w=None, pcie_width=None, event_reasons=None, temperature_c=None),
    "corrected errors only": lambda: card(
        "H100 SXM", health={"ecc_corrected": 300, "ecc_uncorrected": 0, "recovery_action": "none"}
    ),
    "an application's own XID": lambda: logged("[ 9.1] NVRM: Xid (PCI:0000:01:00): 31, pid=9, MMU Fault"),
    "MIG with instances": lambda: scripted_machine(cards=(MIG,)).but(
        files={GPUS: "Device Minor: 0\n", "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access": ""}
    ),
    "MIG, the instances may not be listed": lambda: scripted_machine(
        cards=(NullCard("A100 SXM4 80GB", identity={"mig": True, "unknown": {"mig_uuids": "no permission"}}),)
    ),
    "the IOMMU passes through": lambda: translated("identity", OVER_PCIE),
    "the IOMMU, cards that never copy to each other": lambda: translated("DMA", [Peer(0, 1, "system", None, False)]),
    "access control without redirection": lambda: below_a_switch(0x11),
    "access control that root only may see": lambda: below_a_switch(None),
    "redirection of cards that use NVLink": lambda: below_a_switch(0x1D, peers=[Peer(0, 1, "nvlink", 4, True)]),
    "redirection of cards that may not copy": lambda: below_a_switch(0x1D, peers=[Peer(0, 1, "system", None, False)]),
    "redirection at ports of the processor": lambda: below_a_switch(0x1D, one_switch=False),
    "redirection above one card": lambda: below_a_switch(0x1D, cards=1, peers=[]),
    "powersave of intel_pstate": lambda: card(),
    "limited locked memory without InfiniBand": lambda: card().but(limits={"memlock": 65536}),
    "no limits": lambda: card().but(limits={"nofile": -1, "memlock": -1}),
    "a spare old card beside the fast one": lambda: scripted_machine(cards=("RTX 5090", "RTX 2080 Ti")),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_is_not_flagged(name: str) -> None:
    assert_healthy(HEALTHY[name])


def test_one_lost_card_of_eight_is_a_limit_and_is_numbered() -> None:
    cards = [NullCard("H100 SXM", sample={"state": State.LOST, "error": "GPU is lost"} if i == 5 else {}) for i in range(8)]
    found = diagnose(scripted_machine(cards=cards).look(wanted_gpus=8))
    assert [(f.id, f.cards, f.severity.value) for f in found.faults] == [("gpu-lost", (5,), "limit")]


def test_all_that_is_wrong_with_one_card_is_named() -> None:
    """The card on which three monitors showed nothing."""
    found = diagnose(
        card(
            "H100 SXM",
            temperature_c=95.0,
            event_reasons=int(EventReason.HW_THERMAL),
            pcie_width=4,
            sm_clock_hz=2.1e8,
            health={"ecc_uncorrected": 12, "remap_failed": True},
        ).look()
    )
    assert {f.id for f in found.faults} == {"row-remap-failed", "ecc-uncorrected", "gpu-hot", "pcie-narrow"}
    assert found.exit_code == 1


def test_codes_that_speak_of_an_application_are_notes_and_unknown_ones_are_numbers() -> None:
    found = diagnose(logged("[ 1.0] NVRM: Xid (PCI:0000:01:00): 31, x", "[ 2.0] NVRM: Xid (PCI:0000:01:00): 9998, y").look())
    assert {"xid-31", "xid-9998"} <= {f.id for f in found.notes}


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("00000000:65:00.0", "0000:65:00", True),
        ("0000:65:00.0", "65:00.0", True),
        ("65:00", "0000:65:00.0", True),
        ("00000000:65:00.0", "0000:66:00.0", False),
        (None, "0000:65:00.0", False),
        ("x", "y:z", False),
    ],
)
def test_addresses_are_compared_whatever_their_spelling(a: str | None, b: str, same: bool) -> None:
    from gpuwise.machine.doctor.probes.kernel import same_bus

    assert same_bus(a, b) is same


@pytest.mark.parametrize(("control", "notes"), [(None, ["acs-unknown"]), (0x11, [])])
def test_access_control_that_is_not_shown_is_a_note(control: int | None, notes: list[str]) -> None:
    found = diagnose(below_a_switch(control).look())
    assert [f.id for f in found.notes if f.id.startswith("acs")] == notes


def test_settings_that_cost_little_are_notes() -> None:
    never = {"/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}
    machine = card("H100 SXM", identity={"persistence": False}).but(files=never)
    found = diagnose(machine.look())
    assert found.exit_code == 0
    assert {"persistence-off", "huge-pages-never"} <= {f.id for f in found.notes}
    assert "persistence-off" not in {f.id for f in diagnose(machine.but(files={"/.dockerenv": ""}).look()).notes}
    kept = diagnose(card("H100 SXM", identity={"persistence": True}).look()).notes
    assert {"persistence-off", "huge-pages-never"}.isdisjoint(f.id for f in kept)
