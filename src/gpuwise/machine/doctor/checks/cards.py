"""Checks of the devices: lost, in need of a reset, memory errors, reduced clocks, narrow links, missing MIG instances."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.machine.devices.readings import EventReason, State
from gpuwise.machine.doctor.checks.driver import SEES_NONE
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import NVIDIA, Card, Machine
from gpuwise.machine.doctor.probes.kernel import same_bus

FALLEN_OFF = 79
"""The XID of a card that fell off the bus."""
_BELOW_DEFAULT = 0.99
"""Tolerance relative to the default power limit: NVML reports milliwatts, boards round to watts."""
_BUSY = 0.5
SMI = "nvidia-smi  # lists every card"


_LOG = "sudo dmesg | grep -iE 'nvrm|nvidia|amdgpu' | tail -20"


def silent_devices(m: Machine) -> Iterator[Finding]:
    """A vendor's library that is installed and fails for a reason that no other check names."""
    for refusal in m.refusals:
        if refusal.kind == "DriverMismatchError" or (m.system.wsl and not m.nodes):
            continue
        if refusal.kind == "DevicePermissionError":
            # the check of device nodes names it
            continue
        if refusal.vendor == "nvidia" and refusal.kind == "NoDriverError" and not m.pci_of(NVIDIA):
            # a library without a card: a CUDA image on a machine that has none
            continue
        blocked = m.system.wsl and "blocked by the operating system" in refusal.message.lower()
        fix = Fix("Read the log, then restart the machine", (_LOG, "sudo reboot"), reboot=True)
        if blocked:
            words = "In Windows: its newest driver of NVIDIA's and the newest WSL, then start WSL again"
            fix = Fix(words, ("wsl --update", "wsl --shutdown"), "host")
        yield Finding(
            "driver-unanswered",
            Severity.BLOCKER,
            f"The {refusal.vendor} driver's library does not answer",
            (refusal.message,),
            "Windows, which has the card, keeps it from this system."
            if blocked
            else "What it says is all there is to know; the kernel's log may say more.",
            (fix,),
            "nvidia-smi",
            hides=(SEES_NONE,),
        )


def lost_devices(m: Machine) -> Iterator[Finding]:
    """Devices that fell off the bus, by their state or by the kernel's log."""
    fallen = [x for x in m.xids if x.code == FALLEN_OFF]
    # newer drivers write it without the number
    said = tuple(line for line in m.kernel_log if "fallen off the bus" in line)
    unreachable = [
        c
        for c in m.nvidia_cards
        if (c.sample and c.sample.state is State.LOST) or any(same_bus(x.pci_bus_id, c.identity.pci_bus_id) for x in fallen)
    ]
    others = [c for c in m.cards if c not in unreachable]
    fewer = not m.nvidia_cards or len(m.nvidia_cards) < len(m.pci_of(NVIDIA))
    if not unreachable and not ((fallen or said) and fewer):
        return
    names = tuple(
        f"GPU {c.identity.index} {c.identity.name}: {(c.sample.error if c.sample else None) or 'lost'}" for c in unreachable
    )
    yield Finding(
        "gpu-lost",
        Severity.LIMIT if others else Severity.BLOCKER,
        "A GPU has fallen off the bus",
        (*names, *(_xid_lines(m, FALLEN_OFF) or said[-1:])),
        "The driver does not reach it any more: power, heat, the slot or the cable, or the card itself.",
        (
            Fix(
                "Switch the machine off and on: a restart alone may not bring it back",
                ("sudo poweroff",),
                "host" if m.system.container else "here",
                reboot=True,
            ),
            Fix(
                "If it comes again: seat the card and its power plugs anew, look at temperatures, try another slot",
                where="person",
            ),
        ),
        SMI,
        tuple(c.identity.index for c in unreachable),
        hides=(SEES_NONE, "gpus-missing", "gpu-not-in-driver", "gpu-recovery", "gpu-unreachable"),
    )


def unreachable_devices(m: Machine) -> Iterator[Finding]:
    """Devices whose driver does not answer."""
    for c in m.cards:
        if c.sample and c.sample.state is State.UNREACHABLE:
            yield Finding(
                "gpu-unreachable",
                Severity.LIMIT if len(m.cards) > 1 else Severity.BLOCKER,
                f"GPU {c.identity.index} does not answer",
                (c.sample.error or "no reason given",),
                "The driver has the card and gets no reading from it.",
                (
                    Fix(
                        "Reset it, or restart the machine",
                        (f"sudo nvidia-smi --gpu-reset -i {c.identity.index}", "sudo reboot"),
                        reboot=True,
                    ),
                ),
                SMI,
                (c.identity.index,),
                hides=(SEES_NONE,),
            )


def recovery(m: Machine) -> Iterator[Finding]:
    """The recovery action recommended by the driver."""
    for c in m.nvidia_cards:
        action = c.health.recovery_action if c.health else None
        if not action or action == "none":
            continue
        i = c.identity.index
        ways = {
            "reset": Fix("Reset it, with nothing running on it", (f"sudo nvidia-smi --gpu-reset -i {i}",)),
            "reboot": Fix("Restart the machine", ("sudo reboot",), reboot=True),
        }
        drain = Fix(
            "Let no new work onto it, wait for what runs, then reset it",
            (f"nvidia-smi -i {i}", f"sudo nvidia-smi --gpu-reset -i {i}"),
        )
        yield Finding(
            "gpu-recovery",
            Severity.LIMIT,
            f"The driver asks to {action} GPU {i}",
            (f"recovery action: {action}",),
            "An error left it in a state that only this fixes.",
            (ways.get(action, drain),),
            f"nvidia-smi -q -i {i} | grep -i 'recovery'",
            (i,),
        )


def memory(m: Machine) -> Iterator[Finding]:
    """Uncorrectable errors of the card's memory, and rows that wait for a spare or have none."""
    for c in m.nvidia_cards:
        h, i = c.health, c.identity.index
        if h is None:
            continue
        reset = Fix("Reset it, with nothing running on it", (f"sudo nvidia-smi --gpu-reset -i {i}",))
        replace = Fix("Have the card replaced; take it out of use until then", (f"nvidia-smi -q -i {i} -d ROW_REMAPPER,ECC",))
        check = f"nvidia-smi -q -i {i} -d ECC,ROW_REMAPPER"
        if h.remap_failed:
            yield Finding(
                "row-remap-failed",
                Severity.LIMIT,
                f"GPU {i} has no spare row left for a broken one",
                ("row remapping failed",),
                "Programs that touch it end with an error, and it will come again: NVIDIA takes such a card back.",
                (replace,),
                check,
                (i,),
                hides=("row-remap-pending",),
            )
        if h.remap_pending:
            yield Finding(
                "row-remap-pending",
                Severity.LIMIT,
                f"GPU {i} waits for a reset to replace a broken row",
                ("row remapping pending",),
                "Until then the broken row is in use.",
                (reset,),
                check,
                (i,),
            )
        if h.retired_pages_pending:
            yield Finding(
                "page-retirement-pending",
                Severity.LIMIT,
                f"GPU {i} waits for a restart to retire broken pages",
                ("page retirement pending",),
                "Until then the broken pages are in use.",
                (Fix("Restart the machine", ("sudo reboot",), reboot=True),),
                check,
                (i,),
            )
        if h.ecc_uncorrected:
            yield Finding(
                "ecc-uncorrected",
                Severity.LIMIT,
                f"GPU {i} had {h.ecc_uncorrected} memory errors that could not be corrected",
                (
                    f"uncorrected since the driver was loaded: {h.ecc_uncorrected}",
                    *((f"uncorrected ever: {h.ecc_uncorrected_ever}",) if h.ecc_uncorrected_ever is not None else ()),
                ),
                "The program that met one was ended; the count says whether it is getting worse.",
                (reset, replace),
                check,
                (i,),
            )


def clock_limits(m: Machine) -> Iterator[Finding]:
    """Clocks reduced now by heat or power supply, and a lowered power limit."""
    for c in m.cards:
        s, i = c.sample, c.identity.index
        if s is None:
            continue
        reasons = EventReason(s.event_reasons or 0)
        hot = reasons & (EventReason.SW_THERMAL | EventReason.HW_THERMAL)
        limit = c.identity.temperature_slowdown_c
        degrees = (
            "" if s.temperature_c is None else f"{s.temperature_c:.0f} °C" + (f", slows down at {limit:.0f} °C" if limit else "")
        )
        if hot:
            yield Finding(
                "gpu-hot",
                Severity.LIMIT,
                f"GPU {i} is slowed down by heat",
                tuple(filter(None, (hot.name or hex(hot), degrees, _clock(c)))),
                "It lowers its clocks until it is cool enough.",
                (
                    Fix(
                        "Clean the cooler, give it air, look at the fans; until then a lower power limit keeps it steady",
                        (f"nvidia-smi -q -i {i} -d TEMPERATURE,PERFORMANCE",),
                        "here",
                    ),
                ),
                f"nvidia-smi -q -i {i} -d PERFORMANCE  # thermal slowdown: Not Active",
                (i,),
                hides=("gpu-slowdown",),
            )
        if reasons & EventReason.HW_POWER_BRAKE:
            yield Finding(
                "gpu-power-brake",
                Severity.LIMIT,
                f"GPU {i} is braked by its power supply",
                ("HW_POWER_BRAKE", _clock(c)),
                "The supply or the server asks the card to draw less: a weak supply, a loose or missing power cable, a "
                "chassis power cap.",
                (
                    Fix(
                        "Look at the power cables and the supply's rating; in a server look at the BMC's power cap",
                        where="person",
                    ),
                ),
                f"nvidia-smi -q -i {i} -d PERFORMANCE",
                (i,),
                hides=("gpu-slowdown",),
            )
        elif reasons & EventReason.HW_SLOWDOWN and not hot:
            yield Finding(
                "gpu-slowdown",
                Severity.LIMIT,
                f"GPU {i} is slowed down by its own hardware",
                ("HW_SLOWDOWN", _clock(c)),
                "Heat or power: the card does not say which.",
                (Fix("See which", (f"nvidia-smi -q -i {i} -d TEMPERATURE,POWER,PERFORMANCE",)),),
                f"nvidia-smi -q -i {i} -d PERFORMANCE",
                (i,),
            )
        yield from _capped(c)


def _capped(c: Card) -> Iterator[Finding]:
    """A finding where the power limit in watts is well below its default."""
    default, i = c.identity.power_limit_default_w, c.identity.index
    now = c.sample.power_limit_w if c.sample else None
    if default and now and now < _BELOW_DEFAULT * default:
        yield Finding(
            "power-limit-low",
            Severity.LIMIT,
            f"GPU {i} is limited to {now:.0f} W; its default is {default:.0f} W",
            (f"enforced power limit {now:.0f} W, default {default:.0f} W",),
            "Under load it lowers its clocks to stay below. Somebody set this, or the server did.",
            (Fix("Set the default again, if it was not meant", (f"sudo nvidia-smi -i {i} -pl {default:.0f}",)),),
            f"nvidia-smi -i {i} --query-gpu=power.limit,power.default_limit --format=csv",
            (i,),
        )


def link(m: Machine) -> Iterator[Finding]:
    """Missing PCIe lanes; a low PCIe generation only on a busy device, since idle ones lower it."""
    for c in m.cards:
        s, best, i = c.sample, c.identity, c.identity.index
        if s is None:
            continue
        if s.pcie_width and best.pcie_width_max and s.pcie_width < best.pcie_width_max:
            yield Finding(
                "pcie-narrow",
                Severity.LIMIT,
                f"GPU {i} has {s.pcie_width} of {best.pcie_width_max} PCIe lanes",
                (f"link width x{s.pcie_width}, card and slot can x{best.pcie_width_max}",),
                f"Copies between host and GPU run at {100 * s.pcie_width / best.pcie_width_max:.0f} % of their rate. Width does "
                "not change with load.",
                (
                    Fix(
                        "Switch off, seat the card and its riser anew, look at the slot's lanes in the manual (an M.2 "
                        "disk may share them)",
                        where="person",
                    ),
                ),
                f"nvidia-smi -i {i} --query-gpu=pcie.link.width.current,pcie.link.width.max --format=csv",
                (i,),
            )
        busy = s.performance_state == 0 and (s.utilization or 0.0) > _BUSY
        if busy and s.pcie_generation and best.pcie_generation_max and s.pcie_generation < best.pcie_generation_max:
            yield Finding(
                "pcie-slow",
                Severity.LIMIT,
                f"GPU {i} runs PCIe generation {s.pcie_generation} of {best.pcie_generation_max} while it works",
                (f"performance state 0, utilization {100 * (s.utilization or 0):.0f} %",),
                "Each generation doubles the rate of copies.",
                (Fix("Set the slot's generation to Auto in the firmware; try without the riser", where="person"),),
                f"nvidia-smi -i {i} --query-gpu=pcie.link.gen.current,pcie.link.gen.max --format=csv",
                (i,),
            )


def instances(m: Machine) -> Iterator[Finding]:
    """MIG is on and there are no instances."""
    empty = [i for i, n in m.mig_instances.items() if n == 0]
    if not empty:
        return
    whole = [c for c in m.nvidia_cards if c.identity.index not in empty]
    i = empty[0]
    yield Finding(
        "mig-no-instances",
        Severity.LIMIT if whole else Severity.BLOCKER,
        f"MIG is on and no instance is made on GPU {', '.join(map(str, empty))}",
        tuple(f"GPU {n}: MIG on, 0 instances" for n in empty),
        "With MIG on, programs see instances only: a card without any is invisible to CUDA.",
        (
            Fix("Switch MIG off to use the whole card", (*(f"sudo nvidia-smi -i {n} -mig 0" for n in empty),)),
            Fix(
                "Or make instances of a listed profile (here 0: the whole card as one)",
                (
                    "sudo nvidia-smi mig -lgip",
                    f"sudo nvidia-smi mig -i {i} -cgi 0 -C",
                ),
            ),
        ),
        "nvidia-smi -L",
        tuple(empty),
        hides=(SEES_NONE,),
    )


def missing_devices(m: Machine) -> Iterator[Finding]:
    """Fewer GPUs than the user expects."""
    n = len([c for c in m.cards if not (c.sample and c.sample.state is State.LOST)])
    if m.wanted_gpus is None or n >= m.wanted_gpus:
        return
    on_bus = len(m.pci_of(NVIDIA))
    yield Finding(
        "gpus-missing",
        Severity.BLOCKER if n == 0 else Severity.LIMIT,
        f"{n} of {m.wanted_gpus} GPUs answer",
        (f"asked for: {m.wanted_gpus}", f"answering: {n}", f"NVIDIA cards on the PCI bus: {on_bus}"),
        "Jobs that count on all of them do not start.",
        (
            Fix(
                "Look for the missing ones on the bus and in the log",
                ("lspci -d 10de: ; sudo dmesg | grep -iE 'nvrm|pcie' | tail -20",),
            ),
        ),
        SMI,
    )


def _xid_lines(m: Machine, code: int) -> tuple[str, ...]:
    """The last two events of the kernel log with XID ``code``, each cut at 200 characters."""
    return tuple(f"XID {x.code} at {x.pci_bus_id}: {x.text}"[:200] for x in m.xids if x.code == code)[-2:]


def _clock(c: Card) -> str:
    """The SM clock and its maximum in MHz; empty where the clock is unknown."""
    s = c.sample
    if s is None or s.sm_clock_hz is None:
        return ""
    top = c.identity.sm_clock_max_hz
    return f"{s.sm_clock_hz / 1e6:.0f} MHz" + (f" of {top / 1e6:.0f}" if top else "")


def pcie_errors(m: Machine) -> Iterator[Finding]:
    """Errors of PCI Express on the way to a GPU, by the kernel's log."""
    for card in m.pci:
        places = (card.address, *card.bridges)
        lines = [line for line in m.kernel_log if "PCIe Bus Error" in line and any(p in line for p in places)]
        if not lines:
            continue
        fatal = any("Uncorrect" in line or "Fatal" in line for line in lines)
        yield Finding(
            "pcie-errors",
            Severity.LIMIT if fatal or len(lines) >= _MANY_ERRORS else Severity.NOTE,
            f"The PCI Express link of a GPU has errors: {len(lines)} in the kernel's log",
            (f"{card.address} {card.name or ''}".strip(), lines[-1]),
            "A riser, a cable, a dirty contact or a slot set faster than they can be: transfers are repeated, and the card "
            "may fall off the bus.",
            (
                Fix(
                    "Seat the card anew, without a riser; else set the slot to a lower generation in the firmware", where="person"
                ),
            ),
            "sudo dmesg | grep -c 'PCIe Bus Error'",
        )
        return


_MANY_ERRORS = 10
"""Rule: single corrected errors occur on links without a fault."""


def vgpu_license(m: Machine) -> Iterator[Finding]:
    """A virtual GPU without a licence, which the driver slows down after some minutes."""
    status = m.vgpu_license
    if status is None or not status.lower().startswith("unlicensed"):
        return
    yield Finding(
        "vgpu-unlicensed",
        Severity.LIMIT,
        "The virtual GPU has no licence",
        (f"License Status: {status}", *(c.identity.name or "" for c in m.nvidia_cards[:1])),
        "Without one the driver restricts it some minutes after the start: it becomes slow, and CUDA may refuse to run.",
        (
            Fix(
                "Put the token of your licence server in /etc/nvidia/ClientConfigToken, then start the service again",
                ("sudo systemctl restart nvidia-gridd", "nvidia-smi -q | grep -i license"),
            ),
        ),
        "nvidia-smi -q | grep 'License Status'  # Licensed",
        sources=("nvidia-vgpu-licensing",),
    )
