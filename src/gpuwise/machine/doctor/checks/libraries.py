"""Checks of the driver's own libraries: missing, not found by the loader, of another processor, or hidden by others."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.driver import SEES_NONE, SMI
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import DRIVER, NVIDIA, Framework, Machine

_NVML = "libnvidia-ml.so"


def nvml(m: Machine) -> Iterator[Finding]:
    """NVML that cannot be loaded, or that is not the driver's."""
    if m.nvidia_cards or m.system.platform != "linux":
        return
    refusal = m.refusal("nvidia")
    hidden = [(name, folder) for name, folder in m.shadowing.items() if name.startswith(_NVML)]
    if hidden and _shadows(m, [folder for _, folder in hidden]):
        yield _hidden(m, [f"{folder}/{name}" for name, folder in hidden])
        return
    runs = bool(m.modules.version or "nvidia" in m.modules.loaded) or any(n.path.startswith("/dev/nvidia") for n in m.nodes)
    if refusal is not None or not runs or m.vendor("nvidia") is not None or m.system.wsl:
        return
    kind = m.foreign_libraries.get(m.modules.nvml_library or "")
    if m.modules.nvml_library and not kind:
        folder = m.modules.nvml_library.rpartition("/")[0]
        commands = (f"echo {fixes.shell_quote(folder)} | sudo tee /etc/ld.so.conf.d/nvidia.conf", "sudo ldconfig")
        yield Finding(
            "nvml-not-found-by-loader",
            _severity(m),
            "The driver runs, and programs do not find its library libnvidia-ml.so.1",
            (f"it is {m.modules.nvml_library}", _module(m)),
            "The loader looks in the folders of its list, and this one, or the link with the short name, is not in it.",
            (Fix("Have the loader list it", commands, "host" if m.system.container else "here"),),
            "ldconfig -p | grep libnvidia-ml",
            hides=("gpus-missing", "gpu-not-in-driver"),
        )
        return
    yield Finding(
        "nvml-missing",
        _severity(m),
        "The driver runs without its library libnvidia-ml.so.1",
        (_module(m), f"{m.modules.nvml_library} is for {kind}" if kind else "libnvidia-ml.so.1 is in no folder of libraries"),
        "nvidia-smi, PyTorch's device count, NCCL and every monitor ask the driver through it.",
        _install(m, "utility"),
        SMI,
        hides=("gpus-missing", "gpu-not-in-driver", "driver-*"),
        sources=("nvidia-driver-guide",),
    )


def _shadows(m: Machine, folders: list[str]) -> bool:
    """Whether a library in ``folders`` keeps the driver's own from being used, not a driver that is at fault itself."""
    if any(f.rstrip("/").endswith("/stubs") or path_is_foreign(m, f) for f in folders):
        return True
    refusal = m.refusal("nvidia")
    if refusal is None:
        # it was found first and could not be loaded
        return True
    is_driver_complete = bool(m.modules.version and m.modules.version in m.modules.libraries)
    return (
        is_driver_complete
        and refusal.kind in ("DriverMismatchError", "DeviceError", "NoDriverError")
        and "nvidia" in m.modules.loaded
    )


def path_is_foreign(m: Machine, folder: str) -> bool:
    """Whether a driver's library in this folder is for other processors."""
    return any(path.rpartition("/")[0] == folder for path in m.foreign_libraries)


def _hidden(m: Machine, paths: list[str]) -> Finding:
    """The finding that the libraries at ``paths`` come before the driver's libnvidia-ml."""
    refusal = m.refusal("nvidia")
    kinds = [f"{p} is for {k}, this machine is {m.system.machine}" for p, k in m.foreign_libraries.items() if p in paths]
    wrong = {p.rpartition("/")[0] for p in paths}
    command = fixes.without_library_folders(m, wrong.__contains__)
    return Finding(
        "nvml-shadowed",
        _severity(m),
        "A libnvidia-ml that is not the driver's is found before it",
        (*(f"LD_LIBRARY_PATH brings {p}" for p in paths[:2]), *kinds, *((refusal.message,) if refusal else ())),
        "A stub made for linking, a copy of another driver or of another processor answers no question about a GPU.",
        (Fix("Leave its folder out of the search path; look in ~/.bashrc and the job script for where it is set", (command,)),),
        "ldconfig -p | grep libnvidia-ml; nvidia-smi",
        hides=("driver-*", "gpus-missing", "gpu-not-in-driver", "libcuda-stub"),
    )


_NO_DRIVER = 35
"""Error of CUDA's runtime without libcuda (cudaErrorInsufficientDriver)."""


def _unlisted(m: Machine, library: str, failing: Framework) -> Finding:
    """The finding that libcuda is in a folder where the loader does not look."""
    folder = fixes.shell_quote(library.rpartition("/")[0])
    now = Fix(
        "Name its folder to the programs of this shell",
        (f"export LD_LIBRARY_PATH={folder}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}",),
    )
    lasting = Fix(
        "Or have the loader list it, for all programs",
        (f"echo {folder} | sudo tee /etc/ld.so.conf.d/nvidia.conf", "sudo ldconfig"),
    )
    return Finding(
        "libcuda-not-found-by-loader",
        Severity.BLOCKER,
        "The driver runs, and programs do not find its library libcuda.so.1",
        (f"it is {library}", failing.error),
        "The loader looks in the folders of its list and of LD_LIBRARY_PATH, and this one is in neither: every framework says "
        "that there is no driver.",
        (now, lasting),
        fixes.check_torch(m),
        hides=(SEES_NONE, "uvm-*", "torch-driver-too-old"),
    )


def cuda(m: Machine) -> Iterator[Finding]:
    """A driver without libcuda, or with one that the loader does not find: NVML works but no framework sees a GPU."""
    failing = [f for f in m.frameworks if (f.cuda or f.name == DRIVER) and f.available is False]
    hidden = any(name.startswith("libcuda.so") for name in m.shadowing)
    if not failing or not m.nvidia_cards or hidden or m.system.wsl or m.system.platform != "linux":
        return
    if m.modules.cuda_library:
        if not m.modules.cuda_folder_listed and all(f.cuda_error is None or f.raised(_NO_DRIVER) for f in failing):
            yield _unlisted(m, m.modules.cuda_library, failing[0])
        return
    if not m.modules.nvml_library and not m.modules.libraries:
        # the driver's folders are unknown here
        return
    yield Finding(
        "libcuda-missing",
        Severity.BLOCKER,
        "The driver is here without its library libcuda.so.1",
        ("libcuda.so.1 is in no folder of libraries", f"NVML answers from {m.modules.nvml_library}", failing[0].error),
        "nvidia-smi works with NVML alone; every framework starts with libcuda.",
        _install(m, "compute"),
        fixes.check_torch(m),
        hides=(SEES_NONE, "uvm-*", "torch-driver-too-old"),
        sources=("nvidia-driver-guide",),
    )


def _severity(m: Machine) -> Severity:
    """A blocker, unless a framework computes on a GPU all the same."""
    return Severity.LIMIT if any(f.available for f in m.frameworks) else Severity.BLOCKER


def _module(m: Machine) -> str:
    """The loaded kernel module and the number of NVIDIA GPUs on the bus, as evidence."""
    cards = len(m.pci_of(NVIDIA))
    return f"kernel module {m.modules.version or 'nvidia'}" + (f", {cards} NVIDIA cards on the bus" if cards else "")


def _install(m: Machine, capability: str) -> tuple[Fix, ...]:
    """The driver's libraries, of the loaded module's version."""
    if m.system.container:
        words = f"docker run --rm --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE  # brings {capability}"
        return (Fix("Start the container with NVIDIA's toolkit, which hands the libraries in", (words,), "host"),)
    branch = (m.driver_version or "").split(".")[0] or str(fixes.branch_for(m))
    family = fixes.os_family(m)
    if family and family.family == "ubuntu":
        names = f"libnvidia-compute-{branch} nvidia-utils-{branch}"
        return (Fix("Install the libraries of this driver", (f"{family.install} {names}", "sudo ldconfig")),)
    return fixes.install_driver(m, what="Install the driver with its libraries")
