"""Checks below any framework: WSL, the kernel's driver, its modules and device nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwise.facts.software.compatibility import Generation, at_least, generation_of, generation_of_chip
from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import AMD, INTEL, NVIDIA, Machine, PciCard
from gpuwise.machine.doctor.probes.kernel import same_bus

SEES_NONE = "*-sees-no-gpu"
"""Message of every framework while the driver does not work."""
SMI = "nvidia-smi  # lists the GPU and the driver's version"


def wsl(m: Machine) -> Iterator[Finding]:
    """Windows Subsystem for Linux: its version, GPU access, and an interfering Linux driver."""
    if m.system.wsl == 1:
        yield Finding(
            "wsl1",
            Severity.BLOCKER,
            "This is WSL 1, which has no GPU",
            (f"kernel {m.system.kernel}",),
            "Only WSL 2 hands the GPU of Windows to Linux.",
            (
                Fix(
                    "In PowerShell, with the name `wsl -l` shows",
                    ("wsl --set-version Ubuntu 2", "wsl --set-default-version 2"),
                    "windows",
                ),
            ),
            "wsl -l -v  # in PowerShell: VERSION 2",
            hides=(SEES_NONE, "container-*"),
            sources=("nvidia-wsl-guide",),
        )
    if m.system.wsl != 2:
        return
    if m.wsl_linux_driver:
        names = [n for n in m.wsl_linux_driver if not n.startswith("/")]
        remove = (
            ("sudo apt-get purge -y " + " ".join(map(fixes.shell_quote, names)), "sudo apt-get autoremove -y")
            if names
            else ("sudo rm " + " ".join(map(fixes.shell_quote, m.wsl_linux_driver)),)
        )
        yield Finding(
            "wsl-linux-driver",
            Severity.BLOCKER,
            "A Linux driver is installed inside WSL",
            tuple(m.wsl_linux_driver[:4]),
            "Its libcuda is found before the one Windows provides in /usr/lib/wsl/lib, and does not fit.",
            (
                Fix("Remove it: WSL needs none", (*remove, "sudo ldconfig"), "here"),
                Fix("Then, in PowerShell", ("wsl --shutdown",), "windows"),
            ),
            "ldconfig -p | grep libcuda  # only /usr/lib/wsl/lib",
            hides=(SEES_NONE, "driver-*", "wsl-no-passthrough"),
            sources=("nvidia-wsl-guide",),
        )
    if not any(n.path == "/dev/dxg" for n in m.nodes) and not m.nvidia_cards and not m.system.container:
        yield Finding(
            "wsl-no-passthrough",
            Severity.BLOCKER,
            "WSL does not pass the GPU through",
            ("/dev/dxg is missing",),
            "Linux reaches the GPU of Windows through /dev/dxg; it is there when Windows and its driver are new enough.",
            (fixes.windows_driver(fixes.branch_for(m)),),
            "ls /dev/dxg && /usr/lib/wsl/lib/nvidia-smi",
            hides=(SEES_NONE, "container-*", "gpus-missing"),
            sources=("nvidia-wsl-guide",),
        )


def mismatch(m: Machine) -> Iterator[Finding]:
    """A driver updated under a running kernel, or two of them mixed."""
    refusal = m.refusal("nvidia")
    refused = refusal is not None and refusal.kind == "DriverMismatchError"
    apart = bool(
        m.modules.version and m.modules.libraries and m.modules.version not in m.modules.libraries and not m.nvidia_cards
    )
    raised = any(f.raised(803) for f in m.frameworks)
    logged = [line for line in m.kernel_log if "API mismatch" in line][-1:]
    if not (refused or (apart and not m.system.container) or raised):
        return
    evidence = [f"loaded kernel module: {m.modules.version or 'version not known'}"]
    if m.modules.libraries:
        evidence.append("libraries on disk: " + ", ".join(m.modules.libraries))
    if refusal is not None:
        evidence.append(refusal.message)
    here = m.system.container is None
    if m.system.container == "lxc" and m.modules.version:
        # its image has its own libraries, and the host's module runs
        yield Finding(
            "driver-library-mismatch",
            Severity.BLOCKER,
            "This container's driver libraries are of another version than its host's module",
            (*evidence, *logged),
            "A container runs on the module of its host, and its own libraries have to be of that very version.",
            (_libraries_of(m.modules.version),),
            SMI,
            hides=(SEES_NONE, "driver-*", "container-*", "torch-driver-too-old", "uvm-*"),
            sources=("nvidia-driver-readme",),
        )
        return
    reload = (
        "sudo systemctl stop display-manager 2>/dev/null || true",
        "sudo systemctl stop nvidia-persistenced 2>/dev/null || true",
        "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia",
        "sudo modprobe nvidia_uvm",
    )
    ways = (
        Fix("Restart the machine: the new module is loaded with it", ("sudo reboot",), "here" if here else "host", reboot=True),
        Fix("Or reload the module, with nothing using a GPU", reload, "here" if here else "host"),
    )
    yield Finding(
        "driver-library-mismatch",
        Severity.BLOCKER,
        "The driver's module and its libraries are of different versions",
        (*evidence, *logged),
        "An update replaced the libraries while the old module stayed in the kernel. Nothing has to be installed again.",
        ways,
        SMI,
        hides=(SEES_NONE, "driver-*", "container-*", "torch-driver-too-old", "uvm-*"),
    )


def _libraries_of(version: str) -> Fix:
    """Install the libraries of this driver version without a kernel module."""
    name = f"NVIDIA-Linux-x86_64-{version}.run"
    return Fix(
        f"Install the libraries of {version} in the container, without a module",
        (
            "sudo apt-get purge -y 'libnvidia-*' 'nvidia-*' || true",
            f"wget https://us.download.nvidia.com/XFree86/Linux-x86_64/{version}/{name}",
            f"sudo sh {name} --no-kernel-module --silent",
        ),
    )


def not_loaded(m: Machine) -> Iterator[Finding]:
    """An NVIDIA GPU on the bus and no NVIDIA module in the kernel, with the reason."""
    cards = [c for c in m.pci_of(NVIDIA) if c.kernel_driver != "vfio-pci"]
    if not cards or m.system.container or m.system.wsl or m.nvidia_cards or "nvidia" in m.modules.loaded or m.modules.version:
        return
    installed = bool(m.modules.libraries or m.modules.built_for)
    hides = (SEES_NONE, "driver-*", "gpus-missing")
    bus_names = tuple(_card_name(c) for c in cards)
    holder = next((c.kernel_driver for c in cards if c.kernel_driver in _OPEN_DRIVERS), None)
    if holder is not None:
        yield _held_by_open_driver(m, holder, bus_names, installed)
    elif not installed:
        yield Finding(
            "driver-not-installed",
            Severity.BLOCKER,
            "An NVIDIA GPU is here, and no driver for it",
            (*bus_names, "no NVIDIA module and no libcuda on disk"),
            "Without the driver no framework can use the GPU.",
            fixes.install_driver(m),
            SMI,
            hides=hides,
            sources=("nvidia-driver-guide",),
        )
    elif m.system.kernel and m.modules.libraries and (m.system.kernel not in m.modules.built_for or _built_for_another(m)):
        yield _not_built(m, bus_names, hides)
    elif rejected := _secure_boot_evidence(m):
        yield _secure_boot(m, rejected, hides)
    elif m.modules.kept_out_by:
        yield _kept_out(m, bus_names, hides)
    else:
        yield Finding(
            "driver-not-loaded",
            Severity.BLOCKER,
            "NVIDIA's driver is installed and not loaded",
            (*bus_names, *m.kernel_log[-3:]),
            "The kernel has no module for the card, so no framework can use it.",
            (
                Fix(
                    "Load it; the log says why if it refuses",
                    ("sudo modprobe nvidia", "sudo dmesg | grep -iE 'nvrm|nvidia' | tail"),
                ),
            ),
            SMI,
            hides=hides,
        )


_OPEN_DRIVERS = {
    "nouveau": ("nouveau", "blacklist nouveau\\noptions nouveau modeset=0\\n"),
    **dict.fromkeys(("NovaCore", "nova_core", "nova"), ("nova", "blacklist nova\\nblacklist nova_core\\nblacklist nova_drm\\n")),
}
"""The kernel's own drivers of NVIDIA's cards: name at the card -> how it is called, and what keeps it away. Nova claims cards of
Turing to Ada and newer since Linux 6.15 and computes nothing yet (beclab/Olares, pull request 3963)."""


def _held_by_open_driver(m: Machine, driver: str, bus_names: tuple[str, ...], installed: bool) -> Finding:
    """The finding that ``driver``, of the kernel's own, holds the GPUs; ``installed``: NVIDIA's driver is on disk."""
    name, lines = _OPEN_DRIVERS[driver]
    block = f"printf '{lines}' | sudo tee /etc/modprobe.d/blacklist-{name}.conf"
    family = fixes.os_family(m)
    again = family.initramfs if family else ("sudo update-initramfs -u || sudo dracut --force",)
    commands: tuple[str, ...] = (block, *again, "sudo reboot")
    what = f"Keep {name} away and restart"
    if not installed:
        install = fixes.install_driver(m)[0]
        commands = (*(c for c in install.commands if c != "sudo reboot"), *commands)
        what = f"{install.what}, keep {name} away and restart"
    return Finding(
        f"{name}-loaded",
        Severity.BLOCKER,
        f"The open {name} driver holds the GPU, which cannot run CUDA",
        (*bus_names, f"bound to {driver}" + ("" if installed else ", NVIDIA's driver is not installed")),
        "Only one driver can have the card, and CUDA needs NVIDIA's.",
        (Fix(what, commands, reboot=True),),
        "lspci -k -d 10de:  # Kernel driver in use: nvidia",
        hides=(SEES_NONE, "driver-*", "gpus-missing"),
        sources=("nvidia-driver-guide",),
    )


def _built_for_another(m: Machine) -> bool:
    """Whether the kernel rejected a module in its folder because it was built for another kernel."""
    words = ("version magic", "disagrees about version of symbol", "Unknown symbol")
    return any("nvidia" in line and any(w in line for w in words) for line in m.kernel_log)


def _kept_out(m: Machine, bus_names: tuple[str, ...], hides: tuple[str, ...]) -> Finding:
    """The finding that a configuration keeps NVIDIA's module from loading."""
    files = dict.fromkeys(file for file, _ in m.modules.kept_out_by if file != "/proc/cmdline")
    family = fixes.os_family(m)
    again = family.initramfs if family else ("sudo update-initramfs -u || sudo dracut --force",)
    commands = [f"sudo sed -i -E 's/^ *(blacklist|alias|install) +nvidia/# &/' {fixes.shell_quote(file)}" for file in files]
    if len(files) < len(m.modules.kept_out_by):
        commands += [
            "sudo sed -i -E 's/(modprobe\\.|module_|rd\\.driver\\.)blacklist=[^ \"]*nvidia[^ \"]*//' /etc/default/grub",
            "sudo update-grub || sudo grub2-mkconfig -o /boot/grub2/grub.cfg",
        ]
    return Finding(
        "driver-kept-out",
        Severity.BLOCKER,
        "A configuration keeps NVIDIA's module from loading",
        (*bus_names, *(f"{file}: {line}" for file, line in m.modules.kept_out_by[:3])),
        "`prime-select intel`, Bumblebee and guides for virtual machines write such lines and leave them behind.",
        (
            Fix("Take the lines away and restart", (*commands, *again, "sudo reboot"), reboot=True),
            Fix("Or, on a laptop set to its other GPU", ("sudo prime-select nvidia", "sudo reboot"), reboot=True),
        ),
        SMI,
        hides=hides,
    )


def _not_built(m: Machine, bus_names: tuple[str, ...], hides: tuple[str, ...]) -> Finding:
    """The finding that no NVIDIA module is built for the running kernel."""
    family = fixes.os_family(m)
    rebuild = family.rebuild if family else ("sudo dkms autoinstall",)
    have = ", ".join(m.modules.built_for) or "no kernel"
    return Finding(
        "module-missing-for-kernel",
        Severity.BLOCKER,
        "NVIDIA's module was not built for the running kernel",
        (
            *bus_names,
            f"running kernel {m.system.kernel}; modules on disk for {have}",
            *(line for line in m.kernel_log[-2:] if _built_for_another(m) and "nvidia" in line),
        ),
        "A kernel update came without its headers, so the module was not rebuilt, or one of another kernel was copied here.",
        (Fix("Build it for this kernel and load it", (*rebuild, "sudo modprobe nvidia")),),
        SMI,
        hides=hides,
        sources=(family.source_key,) if family else (),
    )


def _secure_boot_evidence(m: Machine) -> tuple[str, ...]:
    """Evidence that secure boot keeps the module out."""
    if not m.system.secure_boot:
        return ()
    words = ("Key was rejected", "Required key not available", "is rejected")
    lines = tuple(line for line in m.kernel_log if any(w in line for w in words))[-2:]
    if lines or not m.kernel_log_read:
        return ("Secure Boot is on", "the module for this kernel is on disk and not loaded", *lines)
    return ()


def _secure_boot(m: Machine, evidence: tuple[str, ...], hides: tuple[str, ...]) -> Finding:
    """The finding that Secure Boot refuses the unsigned module."""
    family = fixes.os_family(m)
    key = family.key if family else "/var/lib/dkms/mok.pub"
    enrol = (f"sudo mokutil --import {key}", "sudo reboot")
    return Finding(
        "secure-boot-unsigned-module",
        Severity.BLOCKER,
        "Secure Boot keeps NVIDIA's module out of the kernel",
        evidence,
        "Its signature is by a key that this machine's firmware does not know.",
        (
            Fix("Enrol the key: choose a password, and at the blue screen of the restart choose Enroll MOK", enrol, reboot=True),
            Fix("Or switch Secure Boot off in the firmware", where="person", reboot=True),
        ),
        "mokutil --sb-state; nvidia-smi",
        hides=hides,
    )


def no_card(m: Machine) -> Iterator[Finding]:
    """A driver that is installed on a machine without a card of NVIDIA's on its bus."""
    refusal, vendor = m.refusal("nvidia"), m.vendor("nvidia")
    unloaded = refusal is not None and refusal.kind == "NoDriverError"
    empty = vendor is not None and not vendor.cards and "nvidia" in m.modules.loaded
    if not (unloaded or empty) or m.pci_of(NVIDIA) or m.system.wsl or m.system.jetson:
        return
    if refusal is not None and "nvidia" in m.modules.loaded:
        return
    state = "loaded" if empty else "installed and not loaded"
    where = "host" if m.system.container else "here"
    look = ("lspci -d 10de:", "echo 1 | sudo tee /sys/bus/pci/rescan", "sudo modprobe nvidia")
    yield Finding(
        "driver-without-card",
        Severity.NOTE if m.cards else Severity.BLOCKER,
        f"NVIDIA's driver is {state}, and no NVIDIA GPU is on the bus",
        (*((refusal.message,) if refusal else ()), "no device of NVIDIA's (10de) on the PCI bus", *m.kernel_log[-2:]),
        "The card is switched off or not seated, hidden by the firmware, not handed to this virtual machine, or not there.",
        (
            Fix("Look for the card again and load its driver", look, where),
            Fix(
                "On a laptop whose GPU was switched off: switch it on",
                ("sudo prime-select nvidia", "sudo reboot"),
                where,
                reboot=True,
            ),
            Fix(
                "Else seat the card and its power plugs anew, look at the slot in the firmware, or attach it to the VM",
                where="person",
            ),
        ),
        SMI,
        hides=(SEES_NONE, "driver-unanswered", "gpus-missing"),
    )


def outdated(m: Machine) -> Iterator[Finding]:
    """A driver that lists a card of a generation it is too old for."""
    driver = fixes.driver_number(m)
    if driver is None or any(f.available and f.outcome == "ok" for f in m.frameworks):
        return
    old = [
        (c, why)
        for c in m.nvidia_cards
        if c.identity.compute_capability
        and (generation := generation_of(c.identity.compute_capability))
        and generation.first_driver
        and (why := _outside(generation, driver))
    ]
    if not old:
        return
    yield Finding(
        "driver-lacks-card",
        Severity.BLOCKER if len(old) == len(m.nvidia_cards) else Severity.LIMIT,
        f"The driver is too old for this card: {old[0][1]}",
        (*(f"GPU {c.identity.index} {c.identity.name}" for c, _ in old), f"driver {m.driver_version}"),
        "A driver serves the generations of its time; no PyTorch makes up for that.",
        fixes.install_driver(m, what="Install a newer driver"),
        SMI,
        tuple(c.identity.index for c, _ in old),
        hides=(SEES_NONE, "torch-driver-too-old", "torch-lacks-card", "uvm-*"),
    )


def card_not_served(m: Machine) -> Iterator[Finding]:
    """The module is loaded and does not serve a GPU: too old for the driver, too new, the wrong kind of module, or at fault."""
    runs = "nvidia" in m.modules.loaded or bool(m.modules.version) or bool(m.nvidia_cards)
    if m.system.container or m.system.wsl or not runs or (m.refusal("nvidia") and not m.pci_of(NVIDIA)):
        return
    served_bus_ids = [c.identity.pci_bus_id for c in m.nvidia_cards]
    cards = [
        c for c in m.pci_of(NVIDIA) if c.kernel_driver != "vfio-pci" and not any(same_bus(c.address, k) for k in served_bus_ids)
    ]
    if not cards or len(m.pci_of(NVIDIA)) <= len(m.nvidia_cards) or _kept_from_this_user(m):
        return
    if m.refusal("nvidia") and m.refusal("nvidia").kind != "NoDriverError":  # type: ignore[union-attr]
        return
    severity = Severity.LIMIT if m.nvidia_cards else Severity.BLOCKER
    driver = fixes.driver_number(m)
    unnamed: list[PciCard] = []
    for card in cards:
        generation = generation_of_chip(card.name) if card.name else None
        logged = [line for line in m.kernel_log if ("NVRM" in line and "upport" in line) or "open kernel module" in line][-2:]
        wants_open = any("requires use of the NVIDIA open kernel modules" in line for line in logged)
        if wants_open or (generation and generation.kernel_modules == "open" and m.modules.open is False):
            yield _flavour(m, card, logged, severity, "open")
        elif fixes.refused_by_open_modules(m) or (generation and generation.kernel_modules == "proprietary" and m.modules.open):
            yield _flavour(m, card, logged, severity, "closed")
        elif why := _ignored(m, generation, driver):
            yield Finding(
                "driver-lacks-card",
                severity,
                f"The driver does not know this card: {why}",
                (_card_name(card), f"driver {m.driver_version}", *logged),
                "A driver serves the generations of its time.",
                fixes.install_driver(m),
                SMI,
                hides=(SEES_NONE, "gpus-missing", "driver-unanswered"),
                sources=(generation.source_key,) if generation else ("nvidia-driver-readme",),
            )
        else:
            unnamed.append(card)
    if unnamed:
        yield _not_listed(m, unnamed, severity)


def _kept_from_this_user(m: Machine) -> bool:
    """Whether nodes of cards may not be opened: a job that was given some of them, which is no fault of the driver."""
    return any(n.problem in ("refused", "permission") and n.path.startswith("/dev/nvidia") for n in m.nodes)


_LOGGED: tuple[tuple[str, str, str, Fix], ...] = (
    (
        "necessary power cables",
        "gpu-power-cable",
        "A GPU is without its power cable",
        Fix("Switch off and plug the power cables of the card in, each to a plug of its own of the supply", where="person"),
    ),
    (
        r"BAR\d? is 0M|PCI I/O region assigned to your NVIDIA device is invalid|"
        r"(BAR \d|bridge window).*(can't assign|failed to assign|no space)",
        "gpu-no-address-space",
        "The firmware gave a GPU no addresses",
        Fix(
            "Switch Above 4G Decoding on in the firmware; else have the kernel assign them anew, then restart",
            (
                "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&pci=realloc /' /etc/default/grub",
                "sudo update-grub || sudo grub2-mkconfig -o /boot/grub2/grub.cfg",
                "sudo reboot",
            ),
            reboot=True,
        ),
    ),
    (
        "from D3cold to D0|device inaccessible",
        "gpu-does-not-wake",
        "A GPU was switched off to spare energy and does not come back",
        Fix(
            "Keep the driver from switching it off, then restart",
            (
                "echo 'options nvidia NVreg_DynamicPowerManagement=0x00' | sudo tee /etc/modprobe.d/nvidia-power.conf",
                "sudo update-initramfs -u || sudo dracut --force",
                "sudo reboot",
            ),
            reboot=True,
        ),
    ),
    (
        r"firmware load for nvidia/.*gsp\w*\.bin failed|loading .*/nvidia/.*gsp\w*\.bin failed",
        "gsp-firmware-missing",
        "The firmware that the driver loads into a GPU is not on disk, or of another version",
        Fix(
            "Install the driver's firmware again, of the module's own version; it has to be in the initial ramdisk too",
            (
                "ls /lib/firmware/nvidia/",
                "sudo apt-get install -y --reinstall 'nvidia-firmware-*' || sudo dnf reinstall -y 'nvidia*firmware*'",
                "sudo update-initramfs -u || sudo dracut --force",
                "sudo reboot",
            ),
            reboot=True,
        ),
    ),
    (
        "RmInitAdapter failed",
        "gpu-init-failed",
        "The driver could not start a GPU",
        Fix(
            "Switch the machine off and on; if it comes again, switch Above 4G Decoding and Resizable BAR on in the firmware, "
            "try the card in another slot, then another driver branch",
            ("sudo dmesg | grep -iE 'nvrm|nvidia' | tail -20", "sudo poweroff"),
            reboot=True,
        ),
    ),
)
"""Message of the driver's log about a card that it does not list -> finding and fix."""


def _not_listed(m: Machine, cards: list[PciCard], severity: Severity) -> Finding:
    """Cards that the driver has but does not list, by its log."""
    names = tuple(_card_name(c) for c in cards)
    evidence = (*names[:4], *((f"and {len(names) - 4} more",) if len(names) > 4 else ()))
    hides = (SEES_NONE, "gpus-missing", "driver-unanswered")
    for pattern, key, what, fix in _LOGGED:
        logged = [line for line in m.kernel_log if re.search(pattern, line)]
        if logged:
            why = "The card is on the bus and the driver gives it up: no program can use it."
            return Finding(key, severity, what, (*evidence, *logged[-2:]), why, (fix,), SMI, hides=hides)
    listed = len(m.nvidia_cards)
    what = (
        f"The driver lists {listed} of the {listed + len(cards)} NVIDIA GPUs on the bus"
        if listed
        else "The driver is loaded and does not list this card"
    )
    unbound = [c for c in cards if c.kernel_driver is None]
    look = Fix("Read what the driver says of it", ("sudo dmesg | grep -iE 'nvrm|nvidia' | tail -20",))
    bind = Fix(
        "Give it to the driver; its log says why it refuses",
        (
            *(f"echo {c.address} | sudo tee /sys/bus/pci/drivers/nvidia/bind" for c in unbound[:8]),
            "sudo dmesg | grep -iE 'nvrm|nvidia' | tail -20",
        ),
    )
    restart = Fix("Or switch the machine off and on: a card that hung stays away over a restart", ("sudo poweroff",), reboot=True)
    return Finding(
        "gpu-not-in-driver",
        severity,
        what,
        (*evidence, f"driver {m.driver_version}", *m.kernel_log[-2:]),
        "The kernel's log says why." if m.kernel_log_read else "The kernel's log, which root may read, says why.",
        (bind if unbound and listed else look, *((restart,) if listed else ())),
        SMI,
        hides=hides,
    )


def _ignored(m: Machine, generation: Generation | None, driver: tuple[int, ...] | None) -> str | None:
    """Reason why the loaded driver ignores a card, from its generation or the kernel's log; None if unknown."""
    if generation and driver and (why := _outside(generation, driver)):
        return why
    legacy = fixes.legacy_branch(m)
    return None if legacy is None else f"its last branch is {legacy}"


def _outside(generation: Generation, driver: tuple[int, ...]) -> str | None:
    """Why ``driver`` does not serve ``generation``; None where it does."""
    if generation.first_driver and not at_least(driver, (generation.first_driver,)):
        return f"{generation.name} needs branch {generation.first_driver} or newer"
    if generation.last_driver and driver[0] > generation.last_driver:
        return f"{generation.last_driver} was the last branch for {generation.name}"
    return None


def _flavour(m: Machine, card: PciCard, logged: list[str], severity: Severity, module_kind: str) -> Finding:
    """The finding that a GPU needs the other kernel modules; ``module_kind`` is ``open`` or ``closed``."""
    words = {
        "open": ("open-modules-needed", "This card needs the open kernel modules", "Blackwell runs with no others."),
        "closed": ("closed-modules-needed", "This card needs NVIDIA's own kernel modules", "The open ones begin with Turing."),
    }
    key, what, why = words[module_kind]
    return Finding(
        key,
        severity,
        what,
        (_card_name(card), f"loaded: {'open' if m.modules.open else 'NVIDIA' + chr(39) + 's own'} modules", *logged),
        why,
        fixes.install_driver(m, what="Install the other flavour"),
        SMI,
        hides=(SEES_NONE, "gpus-missing", "driver-unanswered"),
        sources=("nvidia-kernel-modules",),
    )


def without_driver(m: Machine) -> Iterator[Finding]:
    """A GPU or NPU of AMD's or Intel's that the kernel has no driver for."""
    alone = [c for c in m.pci if c.vendor in (AMD, INTEL) and c.kernel_driver is None]
    if not alone or m.system.container or m.system.wsl or m.vendor("nvidia"):
        return
    words = [w for w in m.kernel_words if w == "nomodeset" or w.endswith((".modeset=0", "blacklist=amdgpu", "blacklist=xe"))]
    ways = (
        Fix(
            "Take the words away from the kernel's command line and restart",
            (
                *(f"sudo sed -i 's/{w}//' /etc/default/grub" for w in words),
                "sudo update-grub || sudo grub2-mkconfig -o /boot/grub2/grub.cfg",
                "sudo reboot",
            ),
            reboot=True,
        )
        if words
        else Fix(
            "Load the driver; where it does not know the card, install a newer kernel with its firmware and restart",
            (
                f"sudo modprobe {'amdgpu' if alone[0].vendor == AMD else 'xe'}",
                "sudo dmesg | grep -iE 'amdgpu|i915|xe ' | tail -20",
            ),
        ),
    )
    yield Finding(
        "card-without-driver",
        Severity.NOTE if m.cards else Severity.BLOCKER,
        f"The kernel has no driver for {alone[0].name or 'a GPU of ' + ('AMD' if alone[0].vendor == AMD else 'Intel')}",
        (*(f"{c.address} {c.name or c.device}: no driver" for c in alone[:3]), f"kernel {m.system.kernel}", *words),
        "A card is served by the kernel's own driver, which is older than the card, not loaded or switched off.",
        ways,
        f"lspci -k -s {alone[0].address}  # Kernel driver in use",
        hides=(SEES_NONE,),
    )


def at_thunderbolt(m: Machine) -> Iterator[Finding]:
    """A device at Thunderbolt that is not authorized: the GPU behind it is on no bus."""
    if not m.waiting_at_thunderbolt:
        return
    yield Finding(
        "thunderbolt-not-authorized",
        Severity.NOTE if m.cards else Severity.BLOCKER,
        "A device at Thunderbolt is connected and not authorized",
        m.waiting_at_thunderbolt,
        "The GPU of an enclosure is on the bus only when its device has been allowed.",
        (Fix("Allow it, now and from now on", ("boltctl list", "sudo boltctl enroll DEVICE")),),
        "boltctl list; lspci -d 10de:",
        hides=(SEES_NONE, "driver-without-card", "gpus-missing"),
        sources=("linux-thunderbolt",),
    )


def reserved_cards(m: Machine) -> Iterator[Finding]:
    """GPUs bound to the driver for virtual machines."""
    vfio_devices = [c for c in m.pci_of(NVIDIA) if c.kernel_driver == "vfio-pci"]
    if vfio_devices and not m.nvidia_cards and len(vfio_devices) == len(m.pci_of(NVIDIA)) and not m.system.container:
        yield Finding(
            "card-reserved-for-vms",
            Severity.BLOCKER,
            "The GPU is set aside for virtual machines",
            tuple(f"{_card_name(c)} bound to vfio-pci" for c in vfio_devices),
            "vfio-pci holds it, so this system cannot use it.",
            (
                Fix(
                    "Give it back to the NVIDIA driver",
                    tuple(
                        f"echo {c.address} | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind && sudo modprobe nvidia && "
                        f"echo {c.address} | sudo tee /sys/bus/pci/drivers/nvidia/bind"
                        for c in vfio_devices
                    ),
                ),
            ),
            "lspci -k -d 10de:  # Kernel driver in use: nvidia",
            hides=(SEES_NONE, "gpus-missing", "driver-unanswered"),
        )


def _card_name(card: PciCard) -> str:
    """The bus address and the name of a GPU, its device number where it has no name."""
    return f"{card.address} {card.name or 'NVIDIA ' + card.device}"
