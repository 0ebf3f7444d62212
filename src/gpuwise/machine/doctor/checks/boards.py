"""Checks of GPUs that are not NVIDIA's cards: the build for AMD, Intel and Jetson, their nodes, and what hides them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.driver import SEES_NONE
from gpuwise.machine.doctor.checks.torch import build_of
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import AMD, Card, Machine

JETSON_WHEELS = {
    35: (
        "JetPack 5, for Python 3.8",
        "https://developer.download.nvidia.com/compute/redist/jp/v512/pytorch/"
        "torch-2.1.0a0+41361538.nv23.06-cp38-cp38-linux_aarch64.whl",
    ),
    36: ("JetPack 6", "torch --index-url https://pypi.jetson-ai-lab.io/jp6/cu126"),
    38: ("JetPack 7", "torch --index-url https://pypi.jetson-ai-lab.io/sbsa/cu130"),
}
"""Release of NVIDIA's Linux for Jetson -> its JetPack, and what pip installs: NVIDIA's builds for it."""
JETSON_USUAL = 36
XPU_INDEX = f"{fixes.INDEX}/xpu"
_HIDING = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_STAND_INS = {"gfx103": "10.3.0", "gfx110": "11.0.0", "gfx90": "9.0.0"}
"""Family of AMD's chips -> version of the chip that the wheels are compiled for (HSA_OVERRIDE_GFX_VERSION)."""


def _amd(m: Machine) -> list[Card]:
    """AMD's GPUs that have memory of their own."""
    return [c for c in m.cards if c.identity.vendor == "amd" and c.has_own_memory]


def _hip_cards(m: Machine) -> list[Card]:
    """AMD's GPUs that programs are meant to use: graphics parts of processors count where there is no card."""
    return _amd(m) or [] if m.means_nvidia else _amd(m) or [c for c in m.cards if c.identity.vendor == "amd"]


def _uses_hip(m: Machine) -> bool:
    """Whether something here computes by ROCm: PyTorch built for it, or a program that is no framework of Python."""
    torch = m.framework("torch")
    if torch is not None:
        return bool(torch.answer.get("hip"))
    return bool(m.programs) and (not m.backends or "hip" in m.backends)


def visible_devices(m: Machine) -> Iterator[Finding]:
    """Variables that hide AMD's devices from HIP."""
    if not _amd(m) or m.nvidia_cards:
        return
    for name in _HIDING:
        value = m.environment.get(name)
        if value is None:
            continue
        if value.strip() and not value.strip().startswith("-"):
            first = value.split(",")[0].strip()
            # GPUs in processors are counted too
            count = sum(c.identity.vendor == "amd" for c in m.cards)
            if first.isdecimal() and int(first[:9]) >= count:
                yield _hidden(
                    m,
                    name,
                    "hip-visible-devices-invalid",
                    f"{name} names a GPU that is not here: {first}",
                    "answer the driver, counted from 0",
                    "HIP programs see only the devices it names, and none after the first that is not here.",
                )
                return
            continue
        yield _hidden(
            m,
            name,
            "hip-visible-devices-empty",
            f"{name} hides every GPU",
            "answer the driver",
            "HIP programs see only the devices it names; rocm-smi does not heed it.",
        )
        return


def _hidden(m: Machine, name: str, problem: str, title: str, answer: str, why: str) -> Finding:
    """The finding that the variable ``name`` keeps HIP programs from GPUs that ``answer``."""
    return Finding(
        problem,
        Severity.BLOCKER,
        title,
        (f"{name}={m.environment[name]!r}", f"{len(_amd(m))} GPUs {answer}"),
        why,
        (Fix("Take it away; look in ~/.bashrc and the job script for where it is set", (f"unset {name}",)),),
        fixes.check_torch(m),
        hides=(SEES_NONE,),
    )


def vulkan(m: Machine) -> Iterator[Finding]:
    """A llama.cpp that reaches GPUs by Vulkan alone, where no driver for Vulkan is installed."""
    if m.backends != ("vulkan",) or m.vulkan_drivers or m.system.platform != "linux":
        return
    family = fixes.os_family(m)
    install = family.install if family else "# install:"
    nvidia = bool(m.nvidia_cards)
    run = "docker run --rm --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics IMAGE"
    yield Finding(
        "vulkan-no-driver",
        Severity.BLOCKER,
        "llama.cpp is built for Vulkan, and no Vulkan driver is installed",
        (f"{m.programs[0]} with libggml-vulkan.so", "no driver in /usr/share/vulkan/icd.d and /etc/vulkan/icd.d"),
        "`ggml_vulkan: No devices found`: it then computes on the processor.",
        (
            Fix("Start the container with the graphics part of the driver", (run,), "host")
            if nvidia and m.system.container
            else Fix("Install the drivers and what they need", (f"{install} mesa-vulkan-drivers libglvnd0 libegl1",)),
        ),
        "vulkaninfo --summary",
        hides=("amd-no-kfd", "amd-no-dri", "intel-no-runtime"),
        sources=("vulkan-loader",),
    )


def amd_node(m: Machine) -> Iterator[Finding]:
    """AMD's compute device that is not there: a container without it, or a kernel without KFD."""
    torch = m.framework("torch")
    cards = (*(c.identity.name for c in _hip_cards(m)), *(c.name or c.address for c in m.pci_of(AMD) if c.kernel_driver is None))
    if not cards or not _uses_hip(m) or (torch is not None and torch.available):
        return
    if any(n.path == "/dev/kfd" for n in m.nodes):
        yield from _render_node(m, cards)
        return
    inside = m.system.container is not None
    run = "docker run --device=/dev/kfd --device=/dev/dri --group-add video --group-add render --ipc=host IMAGE"
    fix = (
        Fix("Start the container with both devices", (run,), "host")
        if inside
        else Fix(
            "Load the driver with its compute part; the log says why not", ("sudo modprobe amdgpu", "sudo dmesg | grep -i kfd")
        )
    )
    yield Finding(
        "amd-no-kfd",
        Severity.BLOCKER,
        "AMD's compute device /dev/kfd is not here",
        ("/dev/kfd: missing", *cards[:2]),
        "ROCm computes through it; the graphics device /dev/dri alone is not enough.",
        (fix,),
        "ls -l /dev/kfd; rocminfo | grep gfx",
        hides=(SEES_NONE, "card-without-driver"),
    )


def _render_node(m: Machine, cards: tuple[str, ...]) -> Iterator[Finding]:
    """The compute device without a graphics device, by which ROCm maps memory."""
    if any(n.path.startswith("/dev/dri/") for n in m.nodes):
        return
    inside = m.system.container is not None
    run = "docker run --device=/dev/kfd --device=/dev/dri --group-add video --group-add render --ipc=host IMAGE"
    yield Finding(
        "amd-no-dri",
        Severity.BLOCKER,
        "AMD's graphics device /dev/dri is not here",
        ("/dev/dri/renderD*: missing", *cards[:2]),
        "ROCm allocates memory through it; /dev/kfd alone is not enough.",
        (
            Fix("Start the container with both devices", (run,), "host")
            if inside
            else Fix(
                "Load the driver with its graphics part; the log says why not",
                ("sudo modprobe amdgpu", "sudo dmesg | grep -iE 'amdgpu|drm'"),
            ),
        ),
        "ls -l /dev/dri; rocminfo | grep gfx",
        hides=(SEES_NONE,),
    )


_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"


def override(m: Machine) -> Iterator[Finding]:
    """A stand-in for the chip's code that is no version, or of a chip that the wheel holds no code for."""
    value = m.environment.get(_OVERRIDE)
    if value is None or not _hip_cards(m):
        return
    torch = m.framework("torch")
    held = {a.partition(":")[0] for a in torch.architectures} if torch and torch.answer.get("hip") else set[str]()
    version = re.fullmatch(r"(\d{1,2})\.(\d{1,2})\.(\d{1,2})", value.strip())
    chip = "" if version is None else f"gfx{int(version[1])}{int(version[2]):x}{int(version[3]):x}"
    ran = torch is not None and any(r.get("ran") for r in torch.answer.get("ran") or ())
    if chip and (not held or chip in held or ran):
        return
    own = str(_hip_cards(m)[0].identity.architecture or "")
    stand_in = next((v for begin, v in _STAND_INS.items() if own.startswith(begin)), None)
    fix = (
        Fix("Name the chip whose code is there", (f"export {_OVERRIDE}={stand_in}",))
        if stand_in and not chip
        else fixes.rocm_fix(m)
    )
    yield Finding(
        "hsa-override-not-in-wheel" if chip else "hsa-override-invalid",
        Severity.BLOCKER,
        f"The installed PyTorch holds no code for {chip}, which {_OVERRIDE} names"
        if chip
        else f"{_OVERRIDE} is no version: {value}",
        (
            f"{_OVERRIDE}={value!r}",
            *((f"torch {torch.answer.get('version')}: {' '.join(sorted(held))}",) if torch and held else ()),
        ),
        "ROCm takes the code of the chip that it names, as three numbers (11.0.0 is gfx1100); the first kernel fails without it.",
        (fix,),
        fixes.check_torch(m),
        hides=(SEES_NONE, "torch-run-fails", "torch-crashes"),
    )


def amd_architecture(m: Machine) -> Iterator[Finding]:
    """AMD's cards that the wheel holds no code for."""
    torch = m.framework("torch")
    wheel_architectures = {a.partition(":")[0] for a in torch.architectures} if torch and torch.answer.get("hip") else set[str]()
    if torch is None or not wheel_architectures or _OVERRIDE in m.environment:
        return
    out = [
        c
        for c in _hip_cards(m)
        if (c.identity.architecture or "").startswith("gfx") and c.identity.architecture not in wheel_architectures
    ]
    ran = {r.get("index") for r in torch.answer.get("ran") or () if r.get("ran")}
    out = [c for c in out if c.identity.index not in ran]
    if not out:
        return
    names = ", ".join(dict.fromkeys(f"{c.identity.name} ({c.identity.architecture})" for c in out))
    chip = str(out[0].identity.architecture)
    stand_in = next((version for begin, version in _STAND_INS.items() if chip.startswith(begin)), None)
    fix = (
        Fix(f"Run the code of {stand_in}, which is nearly the same", (f"export {_OVERRIDE}={stand_in}",))
        if stand_in
        else fixes.rocm_fix(m)
    )
    yield Finding(
        "torch-lacks-card",
        Severity.BLOCKER,
        f"The installed PyTorch holds no code for {names}",
        (f"torch {torch.answer.get('version')}: {' '.join(sorted(wheel_architectures))}",),
        "The first kernel fails with `invalid device function`.",
        (fix,),
        fixes.check_torch(m),
        tuple(c.identity.index for c in out),
        hides=("torch-sees-no-gpu", "torch-run-fails", "torch-crashes"),
    )


_OF_OLLAMA = "gfx908 gfx90a gfx942 gfx950 gfx1010 gfx1012 gfx1030 gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1200 gfx1201"
"""AMD's chips that ollama's ROCm holds code for (docs.ollama.com/gpu, 30 November 2026)."""


def ollama_architecture(m: Machine) -> Iterator[Finding]:
    """AMD's cards that ollama's ROCm holds no code for."""
    cards = [c for c in _hip_cards(m) if (c.identity.architecture or "").startswith("gfx")]
    out = [c for c in cards if c.identity.architecture not in _OF_OLLAMA.split()]
    if "ollama" not in m.programs or not out or len(out) < len(cards) or _OVERRIDE in m.environment:
        return
    chip = str(out[0].identity.architecture)
    stand_in = next((version for begin, version in _STAND_INS.items() if chip.startswith(begin)), None)
    vulkan_fix = Fix("Have it use Vulkan: install its driver", ("sudo apt-get install -y mesa-vulkan-drivers",))
    fix = Fix(f"Have it run the code of {stand_in}, which is nearly the same", (f"export {_OVERRIDE}={stand_in}",))
    yield Finding(
        "ollama-lacks-card",
        Severity.NOTE if m.vulkan_drivers else Severity.LIMIT,
        f"ollama's ROCm holds no code for {out[0].identity.name} ({chip})",
        (f"for: {_OF_OLLAMA}",),
        "It goes on with Vulkan where a driver for that is installed, else with the processor, and reports no error.",
        (*((fix,) if stand_in else ()), vulkan_fix),
        "ollama ps  # PROCESSOR: GPU",
        sources=("ollama-gpus",),
    )


def intel(m: Machine) -> Iterator[Finding]:
    """A wheel that is not for Intel's cards, on one."""
    package, torch = m.torch_package, m.framework("torch")
    cards = [c for c in m.cards if c.identity.vendor == "intel" and c.has_own_memory]
    if package is None or not cards or m.means_nvidia or _amd(m) or build_of(torch, package) == "xpu":
        return
    remove = [n for n in ("torch", "torchvision", "torchaudio") if m.python and m.python.find(n)]
    install = fixes.pip_install(m, *remove, "--index-url", XPU_INDEX)
    yield Finding(
        "torch-no-xpu",
        Severity.BLOCKER,
        "The installed PyTorch is not built for Intel's GPUs",
        (f"torch {package.version}", *(f"{c.identity.name} answers the driver" for c in cards)),
        "Only the build for XPU uses them.",
        (Fix("Install PyTorch built for XPU", (fixes.pip_uninstall(m, *remove), install)),),
        'python -c "import torch; print(torch.xpu.is_available())"  # True',
        hides=("torch-sees-no-gpu",),
    )


def intel_runtime(m: Machine) -> Iterator[Finding]:
    """PyTorch built for Intel's GPUs that sees none, as the driver for Level Zero is not installed."""
    torch = m.framework("torch")
    cards = [c for c in m.cards if c.identity.vendor == "intel" and c.has_own_memory]
    meant = bool(m.programs) and not m.means_nvidia if torch is None else torch.answer.get("xpu") and torch.available is False
    if not cards or not meant or m.level_zero:
        return
    if m.system.platform != "linux" or m.system.wsl:
        return
    family = fixes.os_family(m)
    debian = family is not None and family.install.startswith("sudo apt-get")
    names = "libze1 libze-intel-gpu1 intel-opencl-icd" if debian else "intel-compute-runtime level-zero"
    install = family.install if family else "# install:"
    yield Finding(
        "intel-no-runtime",
        Severity.BLOCKER,
        "Intel's compute runtime is not installed",
        (*(f"{c.identity.name} answers the driver" for c in cards), "libze_intel_gpu.so.1 is in no folder of libraries"),
        "The kernel drives the card; programs reach it through the runtime for Level Zero, which the wheel does not bring.",
        (
            Fix(
                "Install it, and join the group that may open the card", (f"{install} {names}", 'sudo usermod -aG render "$USER"')
            ),
        ),
        'python -c "import torch; print(torch.xpu.is_available())"  # True',
        hides=(SEES_NONE,),
        sources=("pytorch-xpu",),
    )


def amd_of_wsl(m: Machine) -> Iterator[Finding]:
    """PyTorch built for ROCm in WSL, where AMD's GPUs are reached through a runtime of their own."""
    torch = m.framework("torch")
    if m.system.wsl != 2 or torch is None or not torch.answer.get("hip") or torch.available is not False:
        return
    folder = next((f"{p.place}/torch/lib" for p in (m.torch_package,) if p), "")
    yield Finding(
        "wsl-rocm-runtime",
        Severity.BLOCKER,
        "PyTorch for ROCm finds no GPU in WSL without AMD's runtime for WSL",
        (torch.error or "it gives no reason", f"torch {torch.answer.get('version')}", f"{folder}/libhsa-runtime64.so"),
        "WSL has no /dev/kfd: the runtime for WSL reaches the card through /dev/dxg, and the wheel's own runtime does not.",
        (
            Fix(
                "Install ROCm with that runtime, in the release of AMD's guide for this card, then take the wheel's own away",
                (f"rm {fixes.shell_quote(folder)}/libhsa-runtime64.so*",),
            ),
        ),
        "rocminfo | grep gfx; " + fixes.check_torch(m),
        hides=(SEES_NONE, "wsl-no-passthrough"),
        sources=("rocm-wsl",),
    )


def metal(m: Machine) -> Iterator[Finding]:
    """PyTorch built with Metal that cannot use it."""
    torch = m.framework("torch")
    if m.system.platform != "darwin" or torch is None or m.system.translated:
        return
    if not torch.answer.get("mps_built") or torch.answer.get("mps") is not False:
        return
    yield Finding(
        "torch-no-metal",
        Severity.LIMIT,
        "PyTorch is built with Metal and cannot use it",
        (f"macOS {m.system.version}", "torch.backends.mps.is_available() is False"),
        "This macOS is older than this PyTorch was built for, or it runs in a virtual machine that has no Metal device.",
        (Fix("Update macOS", ("softwareupdate --list", "sudo softwareupdate --install --all --restart"), reboot=True),),
        'python -c "import torch; print(torch.backends.mps.is_available())"  # True',
        sources=("pytorch-mps",),
    )


def jetson(m: Machine) -> Iterator[Finding]:
    """A wheel on a Jetson that is not NVIDIA's for it."""
    package, torch = m.torch_package, m.framework("torch")
    if not m.system.jetson or package is None or torch is None or torch.outcome != "ok" or torch.available is not False:
        return
    remove = [n for n in ("torch", "torchvision", "torchaudio") if m.python and m.python.find(n)]
    release = m.system.jetson_release
    jetpack, wheel = JETSON_WHEELS[release if release in JETSON_WHEELS else JETSON_USUAL]
    install = fixes.pip_install(m, *wheel.split(" ")) if "index-url" not in wheel else ""
    if not install:
        install = fixes.pip_install(m, *remove, *wheel.split(" ")[1:])
    yield Finding(
        "jetson-torch",
        Severity.BLOCKER,
        "The installed PyTorch is not built for this Jetson",
        (m.system.jetson, f"torch {package.version} sees no GPU", *((torch.error,) if torch.error else ())),
        "The wheels of PyPI for ARM are for servers, or have no CUDA; a Jetson's GPU needs those NVIDIA builds for JetPack.",
        (Fix(f"Install NVIDIA's build for {jetpack}", (fixes.pip_uninstall(m, *remove), install)),),
        fixes.check_torch(m),
        hides=("torch-sees-no-gpu", "torch-cpu-wheel", "torch-driver-too-old"),
    )
