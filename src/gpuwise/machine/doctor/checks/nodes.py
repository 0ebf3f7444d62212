"""Checks of device nodes, of the module for shared memory and of the NVSwitch fabric: the last steps to a card."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.facts.software.compatibility import cuda_error_in
from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.driver import SEES_NONE
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import Machine


def nodes(m: Machine) -> Iterator[Finding]:
    """Device nodes that this user may not open."""
    refusal = m.refusal("nvidia")
    refused = refusal is not None and refusal.kind == "DevicePermissionError"
    shut = [n.path for n in m.nodes if n.problem == "permission" and "nvidia" in n.path]
    refused_paths = [n.path for n in m.nodes if n.problem == "refused" and "nvidia" in n.path]
    if m.system.container:
        if refused and not m.nvidia_cards:
            yield _in_container(m, (*shut, *refused_paths))
        return
    if refused_paths and not m.nvidia_cards:
        yield _in_job(m, refused_paths)
    elif shut or refused:
        group = m.modules.node_group
        groups = group or "video,render"
        option = "options nvidia NVreg_DeviceFileUID=0 NVreg_DeviceFileGID=0 NVreg_DeviceFileMode=0666"
        yield Finding(
            "device-permission",
            Severity.BLOCKER,
            "This user may not open the GPU's device nodes",
            (
                *(tuple(f"{p}: permission denied" for p in shut) or (refusal.message if refusal else "",)),
                *((f"the driver gives them to the group {group}",) if group else ()),
            ),
            "A framework opens them as the user who runs it.",
            (
                Fix("Join the groups that may, then log in again", (f'sudo usermod -aG {groups} "$USER"',)),
                Fix(
                    "Or open them to everyone",
                    (
                        f"echo '{option}' | sudo tee /etc/modprobe.d/nvidia-permissions.conf",
                        "sudo chmod 0666 /dev/nvidia*",
                    ),
                ),
            ),
            "ls -l /dev/nvidia*; id -nG",
            hides=(SEES_NONE, "gpus-missing", "gpu-not-in-driver"),
        )
    kfd = next((n for n in m.nodes if n.path == "/dev/kfd" and n.problem == "permission"), None)
    if kfd:
        yield Finding(
            "amd-permission",
            Severity.BLOCKER,
            "This user may not open AMD's compute device",
            ("/dev/kfd: permission denied",),
            "ROCm opens it as the user who runs a program.",
            (Fix("Join the groups that may, then log in again", ('sudo usermod -aG render,video "$USER"',)),),
            "ls -l /dev/kfd; id -nG",
            hides=(SEES_NONE,),
        )


def _in_container(m: Machine, paths: tuple[str, ...]) -> Finding:
    refusal = m.refusal("nvidia")
    ways = {
        "lxc": Fix(
            "Allow the devices in the container's configuration, then start it again",
            (
                "echo 'lxc.cgroup2.devices.allow: c 195:* rwm' | sudo tee -a /etc/pve/lxc/ID.conf",
                "echo 'lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,create=file' | sudo tee -a /etc/pve/lxc/ID.conf",
            ),
            "host",
        ),
        "podman": Fix(
            "Start it with the devices by name, and without the label that keeps them",
            ("podman run --rm --device nvidia.com/gpu=all --security-opt=label=disable IMAGE nvidia-smi",),
            "host",
        ),
    }
    docker = Fix("Start it with the GPUs", ("docker run --rm --gpus all IMAGE nvidia-smi",), "host")
    return Finding(
        "container-device-permission",
        Severity.BLOCKER,
        "This container may not open the GPU's device nodes",
        tuple(f"{p}: not allowed" for p in paths[:4]) or (refusal.message if refusal else "",),
        "The devices have to be allowed for the container, and open to the user in it, when it is started.",
        (
            ways.get(m.system.container or "", docker),
            Fix(
                "Where it runs as another user: give that one the group of the nodes",
                ("docker run --gpus all --group-add video IMAGE",),
                "host",
            ),
        ),
        "nvidia-smi  # in the new container",
        hides=(SEES_NONE, "gpus-missing", "driver-unanswered"),
        sources=("nvidia-container-toolkit",),
    )


def _in_job(m: Machine, paths: list[str]) -> Finding:
    return Finding(
        "devices-kept-by-control-group",
        Severity.BLOCKER,
        "This job's control group keeps the GPUs from it",
        tuple(f"{p}: not allowed" for p in paths[:4]),
        "A batch system or a service manager allows a job only the devices it asked for.",
        (
            Fix("Ask for a GPU when the job is started", ("srun --gres=gpu:1 --pty bash",)),
            Fix("In a unit of systemd: DeviceAllow=char-nvidia* rw, or PrivateDevices=no", where="person"),
        ),
        "nvidia-smi  # in the new job",
        hides=(SEES_NONE, "gpus-missing", "driver-unanswered", "gpu-not-in-driver", "uvm-*"),
    )


def uvm(m: Machine) -> Iterator[Finding]:
    """The module for shared memory, which the first CUDA program loads: only a fault when one has failed."""
    failing = [f for f in m.frameworks if f.cuda and f.available is False]
    if not failing or not m.nvidia_cards or m.system.wsl or m.environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    if "nvidia" not in m.modules.loaded and not any(n.path.startswith("/dev/nvidia") for n in m.nodes):
        # nothing is known of the kernel's side
        return
    node = next((n for n in m.nodes if n.path == "/dev/nvidia-uvm"), None)
    loaded = "nvidia_uvm" in m.modules.loaded or not m.modules.listed
    unknown = any((e := cuda_error_in(f.error)) is not None and e.code == 999 for f in failing)
    where = "host" if m.system.container else "here"
    if node is None or (not loaded and not m.system.container):
        yield Finding(
            "uvm-missing",
            Severity.BLOCKER,
            "The module nvidia_uvm is not there",
            (f"/dev/nvidia-uvm: {'missing' if node is None else 'there'}", f"nvidia_uvm: {'loaded' if loaded else 'not loaded'}"),
            "CUDA shares memory between processor and GPU through it; nvidia-smi works without it.",
            (
                Fix("Load it and make its node", ("sudo modprobe nvidia_uvm", "sudo nvidia-modprobe -u -c=0"), where),
                *((Fix("Then start the container again", where="person"),) if where == "host" else ()),
            ),
            fixes.check_torch(m),
            hides=(SEES_NONE, "uvm-stale"),
        )
    elif unknown:
        slept = ("the machine slept since it was started",) if m.suspended else ()
        yield Finding(
            "uvm-stale",
            Severity.BLOCKER,
            "The module nvidia_uvm has to be loaded again" + (" after a suspend" if slept else ""),
            (*(f.error for f in failing[:1]), "NVML answers, nvidia_uvm is loaded", *slept),
            "After a suspend its state is not that of the GPU any more: NVML works and CUDA does not.",
            (
                Fix("Reload it, with no CUDA program running", ("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm"), where),
                Fix("Or restart the machine", ("sudo reboot",), where, reboot=True),
            ),
            fixes.check_torch(m),
            hides=(SEES_NONE,),
        )


def fabric(m: Machine) -> Iterator[Finding]:
    """Machines with NVSwitches need the fabric manager."""
    waiting = [f for f in m.frameworks if (e := cuda_error_in(f.error)) is not None and e.code == 802]
    if not waiting:
        return
    branch = (m.driver_version or "").split(".")[0] or str(fixes.branch_for(m))
    family = fixes.os_family(m)
    install = (
        f"{family.install} nvidia-fabricmanager-{branch}"
        if family and family.family in ("ubuntu", "debian")
        else (f"{family.install} nvidia-fabric-manager" if family else "install nvidia-fabricmanager of the driver's version")
    )
    yield Finding(
        "fabric-manager-down",
        Severity.BLOCKER,
        "The NVSwitch fabric is not up: the fabric manager does not run",
        (waiting[0].error, f"{m.nvswitches} NVSwitches on the bus"),
        "GPUs behind NVSwitches start only when the fabric manager, of the driver's exact version, has set up the fabric.",
        (
            Fix(
                "Install and start it",
                (install, "sudo systemctl enable --now nvidia-fabricmanager"),
                "host" if m.system.container else "here",
            ),
        ),
        "systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A2 Fabric  # State: Completed",
        hides=(SEES_NONE,),
        sources=("cuda-driver-errors",),
    )
