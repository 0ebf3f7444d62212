"""Checks of GPUs that are not NVIDIA's cards: the build for AMD, Intel and Jetson, their nodes, and what hides them."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.driver import SEES_NONE
from gpuwise.machine.doctor.checks.torch import build_of
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import Card, Machine

JETSON_INDEX = "https://pypi.jetson-ai-lab.io/jp6/cu126"
"""NVIDIA's wheels for JetPack 6."""
XPU_INDEX = f"{fixes.INDEX}/xpu"
_HIDING = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_STAND_INS = {"gfx103": "10.3.0", "gfx110": "11.0.0", "gfx90": "9.0.0"}
"""Family of AMD's chips -> the version of the one that the wheels are compiled for (HSA_OVERRIDE_GFX_VERSION)."""
_DISCRETE_BYTES = 4 << 30


def _own_memory(card: Card) -> bool:
    """A card of its own, not the graphics part of a processor."""
    return card.identity.unified_memory is not True and (card.identity.memory_bytes or 0) >= _DISCRETE_BYTES


def _amd(m: Machine) -> list[Card]:
    """AMD's GPUs that have memory of their own."""
    return [c for c in m.cards if c.identity.vendor == "amd" and _own_memory(c)]


def visible_devices(m: Machine) -> Iterator[Finding]:
    """Variables that hide AMD's devices from HIP."""
    if not _amd(m) or m.nvidia_cards:
        return
    for name in _HIDING:
        value = m.environment.get(name)
        if value is None or (value.strip() and not value.strip().startswith("-")):
            continue
        yield Finding(
            "hip-visible-devices-empty",
            Severity.BLOCKER,
            f"{name} hides every GPU",
            (f"{name}={value!r}", f"{len(_amd(m))} GPUs answer the driver"),
            "HIP programs see only the devices it names; rocm-smi does not heed it.",
            (Fix("Take it away; look in ~/.bashrc and the job script for where it is set", (f"unset {name}",)),),
            fixes.check_torch(m),
            hides=(SEES_NONE,),
        )
        return


def amd_node(m: Machine) -> Iterator[Finding]:
    """AMD's compute device that is not there: a container without it, or a kernel without KFD."""
    torch = m.framework("torch")
    if not _amd(m) or torch is None or not torch.answer.get("hip") or torch.available:
        return
    if any(n.path == "/dev/kfd" for n in m.nodes):
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
        ("/dev/kfd: missing", *(c.identity.name for c in _amd(m)[:2])),
        "ROCm computes through it; the graphics device /dev/dri alone is not enough.",
        (fix,),
        "ls -l /dev/kfd; rocminfo | grep gfx",
        hides=(SEES_NONE,),
    )


def amd_architecture(m: Machine) -> Iterator[Finding]:
    """AMD's cards that the wheel holds no code for."""
    torch = m.framework("torch")
    wheel_architectures = {a.partition(":")[0] for a in torch.architectures} if torch and torch.answer.get("hip") else set[str]()
    if torch is None or not wheel_architectures or "HSA_OVERRIDE_GFX_VERSION" in m.environment:
        return
    out = [
        c
        for c in _amd(m)
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
        Fix(f"Run the code of {stand_in}, which is nearly the same", (f"export HSA_OVERRIDE_GFX_VERSION={stand_in}",))
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


def intel(m: Machine) -> Iterator[Finding]:
    """A wheel that is not for Intel's cards, on one."""
    package, torch = m.torch_package, m.framework("torch")
    cards = [c for c in m.cards if c.identity.vendor == "intel" and _own_memory(c)]
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


def jetson(m: Machine) -> Iterator[Finding]:
    """A wheel on a Jetson that is not NVIDIA's for it."""
    package, torch = m.torch_package, m.framework("torch")
    if not m.system.jetson or package is None or torch is None or torch.outcome != "ok" or torch.available is not False:
        return
    remove = [n for n in ("torch", "torchvision", "torchaudio") if m.python and m.python.find(n)]
    install = fixes.pip_install(m, *remove, "--index-url", JETSON_INDEX)
    yield Finding(
        "jetson-torch",
        Severity.BLOCKER,
        "The installed PyTorch is not built for this Jetson",
        (m.system.jetson, f"torch {package.version} sees no GPU", *((torch.error,) if torch.error else ())),
        "The wheels of PyPI for ARM are for servers, or have no CUDA; a Jetson's GPU needs those NVIDIA builds for JetPack.",
        (Fix("Install NVIDIA's build for JetPack 6", (fixes.pip_uninstall(m, *remove), install)),),
        fixes.check_torch(m),
        hides=("torch-sees-no-gpu", "torch-cpu-wheel", "torch-driver-too-old"),
    )
