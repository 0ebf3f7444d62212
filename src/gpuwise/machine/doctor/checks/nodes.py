"""Checks of device nodes, of the module for shared memory and of the NVSwitch fabric: the last steps to a card."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.driver import SEES_NONE
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import INTEL, Machine


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


def amd_nodes(m: Machine) -> Iterator[Finding]:
    """AMD's compute device or all render nodes, which this user may not open: ROCm opens both."""
    denied = [n.path for n in m.nodes if n.problem == "permission"]
    render = [n.path for n in m.nodes if n.path.startswith("/dev/dri/renderD")]
    closed = ["/dev/kfd"] if "/dev/kfd" in denied else render if m.vendor("amd") and set(render) <= set(denied) else []
    if not closed:
        return
    join = Fix("Join the groups that may, then log in again", ('sudo usermod -aG render,video "$USER"',))
    run = f"docker run --device=/dev/kfd --device=/dev/dri --group-add $(stat -c %g {closed[0]}) --group-add video IMAGE"
    hand_in = Fix("Start the container with the group that owns the device on the machine", (run,), "host")
    yield Finding(
        "amd-permission",
        Severity.BLOCKER,
        "This user may not open AMD's compute device" if closed == ["/dev/kfd"] else "This user may not open the render nodes",
        tuple(f"{path}: permission denied" for path in closed),
        "ROCm opens it as the user who runs a program.",
        (hand_in if m.system.container else join,),
        f"ls -l {closed[0]}; id -nG",
        hides=(SEES_NONE, "amd-no-dri"),
    )


def other_nodes(m: Machine) -> Iterator[Finding]:
    """Render nodes of Intel's GPUs, and nodes of NPUs, that this user may not open."""
    denied = [n.path for n in m.nodes if n.problem == "permission"]
    render = [n.path for n in m.nodes if n.path.startswith("/dev/dri/renderD")]
    accelerators = [p for p in denied if p.startswith("/dev/accel/")]
    intel = any(c.vendor == INTEL and c.kernel_driver in ("i915", "xe") for c in m.pci) or m.vendor("intel") is not None
    meant = bool(m.programs) or any(f.answer.get("xpu") for f in m.frameworks)
    found: list[tuple[str, str, list[str]]] = []
    if intel and meant and render and set(render) <= set(denied) and not m.nvidia_cards and not m.vendor("amd"):
        found.append(("intel-permission", "This user may not open Intel's render nodes", render))
    if accelerators:
        found.append(("npu-permission", "This user may not open the NPU", accelerators))
    for key, what, paths in found:
        join = Fix("Join the group that may, then log in again", ('sudo usermod -aG render "$USER"',))
        run = f"docker run --device={paths[0]} --group-add $(stat -c %g {paths[0]}) IMAGE"
        hand_in = Fix("Start the container with the group that owns the device on the machine", (run,), "host")
        yield Finding(
            key,
            Severity.BLOCKER if key == "intel-permission" else Severity.LIMIT,
            what,
            tuple(f"{path}: permission denied" for path in paths),
            "Programs open it as the user who runs them.",
            (hand_in if m.system.container else join,),
            f"ls -l {paths[0]}; id -nG",
            hides=(SEES_NONE, "intel-no-runtime"),
            sources=("pytorch-xpu",),
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
        # the kernel's side is unknown
        return
    node = next((n for n in m.nodes if n.path == "/dev/nvidia-uvm"), None)
    loaded = "nvidia_uvm" in m.modules.loaded or not m.modules.listed
    unknown = any(f.raised(999) for f in failing)
    where = "host" if m.system.container else "here"
    uninitialized = any(f.raised(3) for f in failing)
    if node is None and m.system.container and "nvidia_uvm" in m.modules.loaded:
        yield _uvm_not_handed_in(m)
    elif node is None or (not loaded and not m.system.container):
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
    elif uninitialized and m.modules.open and not m.modules.uvm_hmm_off and not m.system.container:
        yield _hmm(m, next(f.error for f in failing if f.error))
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


def _uvm_not_handed_in(m: Machine) -> Finding:
    """The finding that a container has the nodes of the cards and not that of nvidia_uvm."""
    return Finding(
        "container-no-uvm",
        Severity.BLOCKER,
        "This container was given the GPU without /dev/nvidia-uvm",
        ("/dev/nvidia-uvm: missing", "nvidia_uvm: loaded on the machine"),
        "CUDA shares memory between processor and GPU through it; nvidia-smi works without it.",
        (
            Fix("Start it with all that belongs to a GPU", ("docker run --rm --gpus all IMAGE nvidia-smi",), "host"),
            Fix(
                "Or name the node beside the others",
                ("docker run --device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm IMAGE",),
                "host",
            ),
        ),
        fixes.check_torch(m),
        hides=(SEES_NONE, "uvm-*"),
        sources=("nvidia-container-toolkit",),
    )


def _hmm(m: Machine, failing: str) -> Finding:
    """The finding that nvidia_uvm cannot use the kernel's memory management."""
    keep = "echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm.conf"
    return Finding(
        "uvm-hmm",
        Severity.BLOCKER,
        "CUDA does not start although the driver works: the module nvidia_uvm fails with this kernel",
        (failing, "NVML answers, nvidia_uvm is loaded, its use of HMM is on"),
        "With some kernels the open modules cannot register memory with the kernel's heterogeneous memory management (HMM), and "
        "cuInit gives error 3.",
        (
            Fix(
                "Switch that use off and load the module again, with no CUDA program running",
                (keep, "sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm"),
            ),
        ),
        fixes.check_torch(m),
        hides=(SEES_NONE, "uvm-stale"),
        sources=("nvidia-open-modules-901",),
    )


def imex(m: Machine) -> Iterator[Finding]:
    """Boards of a rack that is one NVLink domain want a channel node for memory that machines share."""
    racks = [c for c in m.nvidia_cards if c.identity.name and any(n in c.identity.name for n in ("GB200", "GB300"))]
    major = m.modules.imex_major
    if not racks or major is None or m.modules.imex_channels or m.environment.get("NCCL_MNNVL_ENABLE") == "0":
        return
    folder = "/dev/nvidia-caps-imex-channels"
    make = (f"sudo mkdir -p {folder}", f"sudo mknod -m 666 {folder}/channel0 c {major} 0")
    give = Fix("Start the container with it", (f"docker run --gpus all --device {folder}/channel0 IMAGE",), "host")
    yield Finding(
        "imex-channel-missing",
        Severity.LIMIT,
        "The GPUs of this rack cannot share memory with other machines: there is no IMEX channel",
        (f"{racks[0].identity.name}", f"/proc/devices: {major} nvidia-caps-imex-channels", f"{folder}: empty"),
        "Without a channel's node CUDA refuses memory that machines share (error 800, not permitted), and NCCL has no NVLink "
        "between them. Nodes are gone after a restart.",
        (
            Fix(
                "Make the node and start the service",
                (*make, "sudo systemctl enable --now nvidia-imex"),
                "host" if m.system.container else "here",
            ),
            *((give,) if m.system.container else ()),
        ),
        f"ls -l {folder}; nvidia-imex-ctl -N  # every node READY",
        sources=("nvidia-imex-guide",),
    )


def fabric(m: Machine) -> Iterator[Finding]:
    """Machines with NVSwitches need the fabric manager, confidential GPUs to be declared ready."""
    waiting = [f for f in m.frameworks if f.raised(802)]
    if not waiting:
        return
    names = [c.identity.name or "" for c in m.nvidia_cards]
    if not m.nvswitches and len(names) == 1 and ("PCIe" in names[0] or "NVL" in names[0]):
        yield Finding(
            "confidential-gpu-not-ready",
            Severity.BLOCKER,
            "The GPU waits to be declared ready, as it does in confidential mode",
            (waiting[0].error, f"{names[0]}, without NVSwitches"),
            "In a confidential virtual machine a GPU takes no work until somebody has checked it and says so.",
            (
                Fix(
                    "Look, check it, and declare it ready",
                    ("nvidia-smi conf-compute -grs", "sudo nvidia-smi conf-compute -srs 1"),
                ),
                Fix("Where the mode is not meant: switch it off on the host, and restart", where="person"),
            ),
            "nvidia-smi conf-compute -grs  # ready",
            hides=(SEES_NONE,),
            sources=("nvtrust-56",),
        )
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
