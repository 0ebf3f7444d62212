"""Checks of containers and environment variables, between a working driver and a program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.driver import SEES_NONE
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import NVIDIA, Machine

DOCKER_SHM_BYTES = 64 << 20
"""Shared memory of a container without --shm-size (Docker's reference of ``docker run``)."""
_KEPT_OUT = ("none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES that exclude a container from the GPUs (user guide of the container toolkit)."""
_NONE = ("", "-1", "none", "void", "NoDevFiles")


def no_gpu(m: Machine) -> Iterator[Finding]:
    """A container that was started without a GPU."""
    kind, gpu = m.system.container, "/dev/dxg" if m.system.wsl else "/dev/nvidia"
    if not kind or m.nvidia_cards or any(n.path.startswith(gpu) for n in m.nodes):
        return
    visible = m.environment.get("NVIDIA_VISIBLE_DEVICES")
    holds_cuda = "CUDA_VERSION" in m.environment or any(f.cuda for f in m.frameworks)
    needs_gpu = visible not in (None, *_NONE) or holds_cuda or m.wanted_gpus or m.programs
    # WSL shows a container no bus, so that a build for CUDA is all that speaks of a GPU
    kept_out = holds_cuda and (visible in _KEPT_OUT or bool(m.system.wsl))
    if not m.pci_of(NVIDIA) and visible in (None, *_NONE) and not kept_out:
        return
    evidence = [f"{kind} container" + (" in WSL" if m.system.wsl else ""), f"no {gpu}{'' if m.system.wsl else '*'} in it"]
    evidence += [f"the machine has {c.address} {c.name or 'of NVIDIA'}" for c in m.pci_of(NVIDIA)[:4]]
    if visible is not None:
        evidence.append(f"NVIDIA_VISIBLE_DEVICES={visible}")
    yield Finding(
        "container-no-gpu",
        Severity.BLOCKER if needs_gpu else Severity.NOTE,
        "This container was given no GPU" + ("" if needs_gpu else "; the machine it runs on has one"),
        tuple(evidence),
        "A container sees a GPU only when it is started with one and NVIDIA's container toolkit is on the machine.",
        _start_with_gpu(m, kind),
        "nvidia-smi  # in the new container",
        hides=(SEES_NONE, "gpus-missing", "container-shm-small"),
        sources=("nvidia-container-toolkit",),
    )


def _start_with_gpu(m: Machine, kind: str) -> tuple[Fix, ...]:
    """The fixes that give a container of ``kind`` its GPU."""
    family = fixes.os_family(m)
    toolkit = family.toolkit if family else ("# install nvidia-container-toolkit from your distribution",)
    configure = ("sudo nvidia-ctk runtime configure --runtime=docker", "sudo systemctl restart docker")
    install = Fix("Once, on the machine, where `nvidia-ctk --version` is not found", (*toolkit, *configure), "host")
    if kind == "kubernetes":
        return (
            Fix(
                "Ask for one in the pod's resources: limits: {nvidia.com/gpu: 1}, with NVIDIA's device plugin in the cluster",
                where="person",
            ),
        )
    if kind == "podman":
        cdi = ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "podman run --rm --device nvidia.com/gpu=all IMAGE")
        return (Fix("Describe the GPUs once, then start it with them", cdi, "host"), install)
    if kind == "apptainer":
        return (Fix("Start it with --nv", ("apptainer exec --nv IMAGE.sif nvidia-smi",), "host"),)
    return (Fix("Start it with the GPUs", ("docker run --rm --gpus all --shm-size=8g IMAGE nvidia-smi",), "host"), install)


def in_a_virtual_machine(m: Machine) -> Iterator[Finding]:
    """A container of Docker Desktop on macOS or Linux, whose virtual machine has no GPU."""
    if not m.system.container or "linuxkit" not in m.system.kernel or m.cards:
        return
    needs_gpu = bool(m.programs or m.wanted_gpus or any(f.cuda for f in m.frameworks))
    mac = m.system.machine in ("aarch64", "arm64")
    ways = (
        (Fix("Run the program on macOS itself, where it uses Metal", where="person"),)
        if mac
        else (Fix("Run it with Docker Engine, without Docker Desktop", ("docker context use default",), "host"),)
    )
    yield Finding(
        "container-in-virtual-machine",
        Severity.BLOCKER if needs_gpu else Severity.NOTE,
        "This container runs in Docker Desktop's virtual machine, which has no GPU",
        (f"kernel {m.system.kernel}",),
        "Docker Desktop hands GPUs to containers in Windows (WSL 2) only.",
        ways,
        "uname -r",
        hides=(SEES_NONE, "gpus-missing", "container-no-gpu"),
        sources=("docker-desktop-gpu",),
    )


def toolkit_of_wsl(m: Machine) -> Iterator[Finding]:
    """A container in WSL whose toolkit is older than the driver of Windows."""
    found = [f for f in m.frameworks if f.raised(500)]
    if not found or m.system.wsl != 2 or not m.system.container:
        return
    yield Finding(
        "container-toolkit-outdated",
        Severity.BLOCKER,
        "The container toolkit is too old for the driver of Windows",
        (found[0].error, f"driver {m.driver_version or 'not known'}, in a container in WSL"),
        "Since branch 555 the driver has a library (libnvdxgdmal) that toolkits before 1.14.4 do not hand to a container.",
        (
            Fix("Update Docker Desktop to 4.31 or newer, in Windows", ("winget upgrade Docker.DockerDesktop",), "windows"),
            Fix(
                "Where Docker runs in WSL itself: update the toolkit there",
                ("sudo apt-get install -y --only-upgrade nvidia-container-toolkit", "sudo systemctl restart docker"),
                "host",
            ),
        ),
        fixes.check_torch(m),
        hides=(SEES_NONE, "uvm-*"),
        sources=("nvidia-container-toolkit-520",),
    )


def lost_gpu(m: Machine) -> Iterator[Finding]:
    """A running container that lost access to its GPU."""
    if not m.system.container or m.nvidia_cards:
        return
    shut = [n for n in m.nodes if n.path.startswith("/dev/nvidia") and n.problem not in (None, "missing", "permission")]
    refusal = m.refusal("nvidia")
    unknown = refusal is not None and (refusal.code == 999 or "unknown error" in refusal.message.lower())
    present = any(n.path.startswith("/dev/nvidia") for n in m.nodes)
    if not (present and (shut or unknown)):
        return
    yield Finding(
        "container-lost-gpu",
        Severity.BLOCKER,
        "This running container has lost its GPU",
        (*(f"{n.path}: {n.problem}" for n in shut[:3]), *((refusal.message,) if refusal else ())),
        "`systemctl daemon-reload` on the machine takes devices from containers that systemd's cgroups manage, when "
        "the nodes were "
        "handed in by a hook instead of named to the container engine.",
        (
            Fix("Start the container again", ('docker restart "$CONTAINER"',), "host"),
            Fix(
                "For good: hand the devices in by name (CDI)",
                (
                    "sudo nvidia-ctk runtime configure --runtime=docker --cdi.enabled",
                    "sudo systemctl restart docker",
                    "docker run --rm --device nvidia.com/gpu=all IMAGE nvidia-smi",
                ),
                "host",
            ),
            Fix(
                'Or have Docker manage cgroups itself: "exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json',
                where="person",
            ),
        ),
        "nvidia-smi  # in the container, after `sudo systemctl daemon-reload` on the machine",
        hides=(SEES_NONE, "device-permission", "gpus-missing", "driver-unanswered"),
        sources=("nvidia-container-toolkit",),
    )


def capabilities(m: Machine) -> Iterator[Finding]:
    """A container whose image requests the driver without its compute part."""
    capability_list = m.environment.get("NVIDIA_DRIVER_CAPABILITIES")
    if not m.system.container or not capability_list or not {"compute", "all"}.isdisjoint(re.split(r"[,\s]+", capability_list)):
        return
    if not any(n.path.startswith("/dev/nvidia") for n in m.nodes):
        return
    yield Finding(
        "container-capabilities",
        Severity.BLOCKER,
        "The container was started without the compute part of the driver",
        (f"NVIDIA_DRIVER_CAPABILITIES={capability_list}",),
        "libcuda is handed in only with the capability `compute`.",
        (Fix("Ask for it", ("docker run --rm --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE",), "host"),),
        fixes.check_torch(m),
        hides=(SEES_NONE,),
        sources=("nvidia-container-toolkit",),
    )


def shared_memory(m: Machine) -> Iterator[Finding]:
    """The shared memory a container gets by default, too small for data loaders."""
    size = m.resources.shm_bytes
    if not m.system.container or size is None or size > DOCKER_SHM_BYTES:
        return
    how = {
        "kubernetes": Fix(
            "Mount memory there: volumes: [{name: shm, emptyDir: {medium: Memory}}], mountPath: /dev/shm", where="person"
        ),
        "podman": Fix("Start it with more", ("podman run --shm-size=8g IMAGE",), "host"),
    }
    docker = Fix("Start it with more (compose: shm_size: 8gb)", ("docker run --rm --gpus all --shm-size=8g IMAGE",), "host")
    yield Finding(
        "container-shm-small",
        Severity.LIMIT,
        "/dev/shm is as small as a container gets by default",
        (f"/dev/shm holds {size >> 20} MiB",),
        "Data loaders with workers hand batches over in shared memory, and NCCL keeps its buffers there: both end with "
        "a bus error "
        "or `No space left on device`.",
        (how.get(m.system.container, docker),),
        "df -h /dev/shm",
    )


def docker(m: Machine) -> Iterator[Finding]:
    """Docker on a machine with a working GPU."""
    if m.system.container or not m.docker.path or not m.nvidia_cards:
        return
    family = fixes.os_family(m)
    toolkit = family.toolkit if family else ("# install nvidia-container-toolkit from your distribution",)
    install = (*toolkit, "sudo nvidia-ctk runtime configure --runtime=docker", "sudo systemctl restart docker")
    check = "docker run --rm --gpus all ubuntu nvidia-smi"
    if m.docker.runtime_missing:
        yield Finding(
            "docker-runtime-missing",
            Severity.LIMIT,
            "Docker's configuration names NVIDIA's runtime, which is not installed",
            ("/etc/docker/daemon.json names the runtime nvidia", "its program is not here"),
            "No container with a GPU starts.",
            (Fix("Install NVIDIA's container toolkit", install),),
            check,
            sources=("nvidia-container-toolkit",),
        )
    elif m.docker.desktop and not m.system.wsl:
        yield Finding(
            "docker-desktop-no-gpu",
            Severity.LIMIT,
            "Docker Desktop on Linux gives containers no GPU",
            ("~/.docker/config.json: currentContext desktop-linux",),
            "It runs them in a virtual machine, and hands GPUs to containers in Windows (WSL 2) only.",
            (Fix("Use Docker Engine, which may be installed beside it", ("docker context use default",)),),
            check,
            sources=("docker-desktop-gpu",),
        )
    elif m.docker.no_cgroups and "/run/user/" not in m.environment.get("DOCKER_HOST", ""):
        yield Finding(
            "toolkit-no-cgroups",
            Severity.LIMIT,
            "NVIDIA's container toolkit is set for engines without root, and Docker runs as root",
            ("/etc/nvidia-container-runtime/config.toml: no-cgroups = true",),
            "Docker's control groups then refuse the GPU: `Failed to initialize NVML: Unknown Error` in every container.",
            (
                Fix(
                    "Switch it off",
                    (
                        "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place",
                        "sudo systemctl restart docker",
                    ),
                ),
            ),
            check,
            sources=("nvidia-container-toolkit",),
        )
    elif not m.docker.toolkit and not m.docker.cdi:
        yield Finding(
            "docker-without-toolkit",
            Severity.NOTE,
            "Docker is here without NVIDIA's container toolkit",
            (m.docker.path,),
            "Containers cannot be given a GPU until it is installed.",
            (Fix("Install it, if you want that", install),),
            check,
            sources=("nvidia-container-toolkit",),
        )


def visible_devices(m: Machine) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES that hides everything or names a card that is not here."""
    value = m.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or not m.nvidia_cards:
        return
    device_names = [t.strip() for t in value.split(",")]
    check = fixes.check_torch(m)
    if device_names[0] in _NONE or device_names[0].startswith("-"):
        yield Finding(
            "cuda-visible-devices-empty",
            Severity.BLOCKER,
            "CUDA_VISIBLE_DEVICES hides every GPU",
            (f"CUDA_VISIBLE_DEVICES={value!r}", f"{len(m.nvidia_cards)} GPUs answer the driver"),
            "CUDA programs see only the devices it names; nvidia-smi does not heed it.",
            (
                # what Slurm sets in a job that was given none
                Fix("Ask for a GPU when the job is started", ("srun --gres=gpu:1 --pty bash",))
                if device_names[0] == "NoDevFiles"
                else Fix(
                    "Take it away; look in ~/.bashrc, the job script and the notebook's kernel for where it is set",
                    ("unset CUDA_VISIBLE_DEVICES",),
                ),
            ),
            check,
            hides=(SEES_NONE, "uvm-*"),
        )
        return
    wrong = _first_wrong(m, device_names)
    if wrong is None:
        return
    # CUDA treats a list with a repeated name as empty, as PyTorch's own parser does
    twice = device_names[wrong] in device_names[:wrong]
    # of a card that is cut up CUDA takes one instance, and by its name
    names = ", ".join((c.identity.mig_uuids or (str(c.identity.index),))[0] for c in m.nvidia_cards)
    yield Finding(
        "cuda-visible-devices-invalid",
        Severity.BLOCKER if wrong == 0 or twice else Severity.LIMIT,
        f"CUDA_VISIBLE_DEVICES names a GPU {'twice' if twice else 'that is not here'}: {device_names[wrong]}",
        (f"CUDA_VISIBLE_DEVICES={value!r}", f"devices here: {names}"),
        "CUDA then hides every one."
        if twice
        else "CUDA stops reading at the first name it does not know: that one and all after it are hidden.",
        (Fix("Name devices that are here", (f"export CUDA_VISIBLE_DEVICES={names.replace(' ', '')}",)),),
        check,
        hides=(SEES_NONE, "uvm-*"),
    )


def _first_wrong(m: Machine, device_names: list[str]) -> int | None:
    """Position of the first name that is not a device here, or is repeated."""
    uuids = [c.identity.uuid or "" for c in m.nvidia_cards]
    instances = [u for c in m.nvidia_cards for u in c.identity.mig_uuids]
    for at, name in enumerate(device_names):
        if name.startswith("MIG-"):
            # drivers before branch 470 name them MIG-GPU-UUID/instance/instance, which NVML does not list
            if not instances or name.startswith("MIG-GPU-"):
                continue
            is_device = any(u.startswith(name) for u in instances)
        elif name.isdecimal():
            is_device = len(name) < 10 and int(name) < len(m.nvidia_cards)
        else:
            is_device = name.startswith("GPU-") and any(u.startswith(name) for u in uuids)
        if not is_device or name in device_names[:at]:
            return at
    return None


def left_over_settings(m: Machine) -> Iterator[Finding]:
    """Debugging variables that slow everything down."""
    env = m.environment
    slow = (
        (
            "CUDA_LAUNCH_BLOCKING",
            "1",
            "cuda-launch-blocking",
            "Every kernel is waited for: CUDA_LAUNCH_BLOCKING is set",
            "The processor cannot run ahead of the GPU, so every launch costs its whole latency.",
        ),
        (
            "NVIDIA_TF32_OVERRIDE",
            "0",
            "tf32-switched-off",
            "TF32 is switched off for every library",
            "Products in fp32 do not run on the tensor cores, whatever the program asks for.",
        ),
    )
    for name, value, key, what, why in slow:
        if env.get(name) == value and m.nvidia_cards:
            yield Finding(
                key,
                Severity.LIMIT,
                what,
                (f"{name}={value}",),
                why,
                (Fix("Take it away", (f"unset {name}",)),),
                f"echo ${name}  # empty",
            )
    if env.get("NCCL_P2P_DISABLE") == "1" and len(m.nvidia_cards) > 1 and any(p.can_read for v in m.vendors for p in v.peers):
        yield Finding(
            "nccl-p2p-disabled",
            Severity.LIMIT,
            "NCCL may not copy from GPU to GPU",
            ("NCCL_P2P_DISABLE=1", "the driver offers peer access"),
            "Every exchange goes through host memory.",
            (Fix("Take it away", ("unset NCCL_P2P_DISABLE",)),),
            "NCCL_DEBUG=INFO python train.py  # channels say via P2P",
        )
    platforms = env.get("JAX_PLATFORMS") or env.get("JAX_PLATFORM_NAME")
    if platforms == "cpu" and m.nvidia_cards and m.framework("jax"):
        yield Finding(
            "jax-told-cpu",
            Severity.LIMIT,
            "JAX is set to use the CPU",
            (f"JAX_PLATFORMS={platforms}",),
            "It does not look for a GPU.",
            (Fix("Take it away", ("unset JAX_PLATFORMS JAX_PLATFORM_NAME",)),),
            'python -c "import jax; print(jax.devices())"',
            hides=("jax-*",),
        )


def wrong_libcuda(m: Machine) -> Iterator[Finding]:
    """A libcuda that is not the driver's: a stub to link with, or forward compatibility on a card that has none."""
    errors = [(f, e) for f in m.frameworks if (e := f.cuda_error) is not None]
    folders = {folder for name, folder in m.shadowing.items() if name.startswith("libcuda.so")}
    if any(e.code == 34 for _, e in errors) or any(f.endswith("/stubs") for f in folders):
        yield Finding(
            "libcuda-stub",
            Severity.BLOCKER,
            "A libcuda made for linking is found before the driver's",
            tuple(f"LD_LIBRARY_PATH brings {f}/libcuda.so" for f in sorted(folders)) or (errors[0][0].error,),
            "The stub has the names of the functions and does nothing.",
            (Fix("Leave the stubs out of the search path", (_without(m, "stubs"),)),),
            fixes.check_torch(m),
            hides=(SEES_NONE,),
            sources=("cuda-driver-errors",),
        )
    if any(e.code == 804 for _, e in errors):
        text = next(f.error for f, e in errors if e.code == 804)
        inside = m.system.container is not None
        remove = (
            "sudo rm -rf /usr/local/cuda/compat && sudo ldconfig" if not inside else "rm -rf /usr/local/cuda/compat && ldconfig"
        )
        wheel = fixes.best_wheel(m, fixes.capabilities_here(m))
        yield Finding(
            "forward-compat-unsupported",
            Severity.BLOCKER,
            "CUDA's forward compatibility is tried on a card that has none",
            (text, f"driver {m.driver_version}", *(f"libcuda from {f}" for f in sorted(folders))),
            "The package cuda-compat brings a newer libcuda than the driver's; it works on data-centre cards only.",
            (
                Fix("Remove it: the driver's own libcuda is then found", (remove, _without(m, "compat"))),
                *(
                    (
                        Fix(
                            f"And install a PyTorch this driver runs: {wheel.release} {wheel.build}",
                            fixes.install_torch(m, wheel),
                        ),
                    )
                    if wheel
                    else ()
                ),
                *fixes.install_driver(m, what="Or install a newer driver"),
            ),
            fixes.check_torch(m),
            hides=(SEES_NONE, "torch-driver-too-old", "uvm-*"),
            sources=("cuda-minor-compatibility", "cuda-driver-errors"),
        )


def _without(m: Machine, word: str) -> str:
    """The shell command that takes the folders ending in ``word`` out of LD_LIBRARY_PATH."""
    return fixes.without_library_folders(m, lambda folder: folder.rstrip("/").endswith(f"/{word}"))
