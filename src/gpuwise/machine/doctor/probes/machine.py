"""Look at a machine: everything the checks need, gathered once. Nothing is changed and no check is made here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gpuwise.errors import DeviceError
from gpuwise.machine.devices.backend import Devices
from gpuwise.machine.devices.find import DeviceSearch, find_devices
from gpuwise.machine.devices.readings import State
from gpuwise.machine.doctor.host import Host, LocalHost
from gpuwise.machine.doctor.observation import (
    DRIVER,
    NVIDIA,
    Card,
    Framework,
    LibraryImport,
    Machine,
    Python,
    Refusal,
    System,
    Vendor,
)
from gpuwise.machine.doctor.probes import kernel as probe_kernel
from gpuwise.machine.doctor.probes import system as probe_system
from gpuwise.machine.doctor.probes.frameworks import LIMIT_S, ask_frameworks
from gpuwise.machine.doctor.probes.libraries import try_imports
from gpuwise.machine.doctor.probes.paths import read_bridges
from gpuwise.machine.doctor.probes.python import choose_python, installed_frameworks, installed_libraries, read_python

_VARIABLE = re.compile(
    r"CUDA_.*|NVIDIA_.*|HIP_.*|ROCR_.*|HSA_.*|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK|ONEAPI_DEVICE_SELECTOR|NCCL_.*|PYTORCH_.*|"
    r"TORCH_CUDA_ARCH_LIST|XLA_.*|JAX_PLATFORMS?|JAX_PLATFORM_NAME|TF_(FORCE|GPU|CUDNN|CPP|XLA|ENABLE).*|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|CONDA_PREFIX|VIRTUAL_ENV|"
    r"OMP_NUM_THREADS|DOCKER_HOST|TRITON_PTXAS_PATH"
)
_BUNDLED = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn|nccl|nvJitLink|cusparse|cusolver|cufft|nvrtc)\.so\.\d[\d.]*|libcuda\.so.*|libnvidia-ml\.so.*"
)
PROGRAMS = ("ollama", "llama-server", "llama-cli", "llama-bench", "koboldcpp", "lms")
"""Names of programs that compute on GPUs without a framework of Python."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL", re.IGNORECASE)
_SUSPENDED = re.compile(r"PM: suspend (entry|exit)")


def probe(
    host: Host | None = None,
    *,
    devices: Callable[[], DeviceSearch] = find_devices,
    python: str | None = None,
    frameworks: bool = True,
    limit_s: float = LIMIT_S,
    wanted_gpus: int | None = None,
) -> Machine:
    """Complete observation of a machine. A failed source is omitted or noted in the observation; never raises.

    ``frameworks`` False skips them. ``limit_s`` is for each framework.
    """
    host = host or LocalHost()
    system = probe_system.read_system(host)
    with ThreadPoolExecutor(max_workers=2) as pool:
        python_side = pool.submit(_python_side, host, python, frameworks, limit_s)
        logged = pool.submit(probe_kernel.read_kernel_log, host) if system.platform == "linux" else None
        vendors, refusals = _device_side(devices)
        interpreter, answers, imports = python_side.result()
        lines, read = logged.result() if logged else ((), False)
    machine = Machine(
        system=system,
        vendors=vendors,
        refusals=refusals,
        kernel_log=lines,
        kernel_log_read=read,
        xids=probe_kernel.xids_in(lines),
        environment={k: v for k, v in host.environment.items() if _VARIABLE.fullmatch(k) and not _SECRET.search(k)},
        python=interpreter,
        frameworks=tuple(f for f in answers if f.name != DRIVER or (f.available is False and _has_nvidia(vendors))),
        imports=imports,
        uv=host.which("uv") is not None,
        programs=tuple(name for name in PROGRAMS if host.which(name)),
        resources=probe_system.read_resources(host),
        suspended=any(_SUSPENDED.search(line) for line in lines),
        wanted_gpus=wanted_gpus,
    )
    return _linux_side(host, machine) if system.platform == "linux" else machine


def _has_nvidia(vendors: Sequence[Vendor]) -> bool:
    return any(v.vendor == "nvidia" and v.cards for v in vendors)


def _python_side(
    host: Host, python_path: str | None, ask: bool, limit_s: float
) -> tuple[Python, tuple[Framework, ...], tuple[LibraryImport, ...]]:
    """The interpreter, and unless ``ask`` is False the answers of its frameworks and imports of its libraries."""
    python = read_python(host, choose_python(host, python_path))
    if not ask:
        return python, (), ()
    libraries = installed_libraries(python)
    with ThreadPoolExecutor(max_workers=1) as pool:
        resources = probe_system.read_resources(host)
        # two processors and two GiB for each process
        room = min(resources.memory_bytes or math.inf, resources.memory_limit_bytes or math.inf) / 2**30
        cpus = int(min(resources.cpus or 1, resources.cpu_quota or math.inf, room))
        imported = pool.submit(try_imports, host, python.path, libraries, limit_s, cpus=cpus)
        answers = ask_frameworks(host, python.path, installed_frameworks(python) or (DRIVER,), limit_s)
        return python, answers, imported.result()


def _device_side(devices: Callable[[], DeviceSearch]) -> tuple[tuple[Vendor, ...], tuple[Refusal, ...]]:
    """The vendors that answer, and the errors of the others."""
    search = devices()
    vendors: list[Vendor] = []
    refusals = [_refusal(name, error) for name, error in search.failed.items()]
    for backend in search.backends:
        try:
            vendors.append(_vendor(backend))
        except DeviceError as error:
            refusals.append(_refusal(backend.vendor, error))
        finally:
            backend.close()
    return tuple(vendors), tuple(refusals)


def _refusal(vendor: str, error: DeviceError) -> Refusal:
    """The observation of a device error."""
    return Refusal(vendor, type(error).__name__, error.message, error.code)


def _vendor(backend: Devices) -> Vendor:
    """The driver, GPUs and links that a backend reads."""
    cards: list[Card] = []
    for identity in backend.identities():
        sample = backend.sample(identity.index, processes=False)
        health, problem = None, sample.error
        if sample.state is State.OK:
            try:
                health = backend.health(identity.index)
            except DeviceError as error:
                problem = error.message
        cards.append(Card(identity, sample, health, problem))
    try:
        driver = backend.driver()
    except DeviceError:
        driver = None
    try:
        peers = backend.peers() if len(cards) > 1 else ()
    except DeviceError:
        peers = ()
    vendor_name = cards[0].identity.vendor if cards else backend.vendor
    return Vendor(vendor_name if vendor_name != "null" else backend.vendor, driver, tuple(cards), peers)


def _linux_side(host: Host, machine: Machine) -> Machine:
    """Readings that only Linux provides."""
    system = machine.system
    pci = probe_kernel.read_pci(host)
    if sum(c.vendor == NVIDIA for c in pci) > len(machine.nvidia_cards):
        pci = probe_kernel.name_cards(host, pci)
    instances = {
        card.identity.index: len(card.identity.mig_uuids) or probe_kernel.count_mig_instances(host, card.identity.pci_bus_id) or 0
        for card in machine.nvidia_cards
        if card.identity.mig and "mig_uuids" not in card.identity.unknown
    }
    modules = probe_kernel.read_modules(host, kernels=system.container is None and system.wsl is None)
    shadowing = _shadowing(host)
    of_driver = [f"{folder}/{name}" for name, folder in shadowing.items() if name.startswith(("libcuda", "libnvidia-ml"))]
    return replace(
        machine,
        pci=pci,
        bridges=read_bridges(host, pci) if len(machine.cards) > 1 else (),
        nodes=probe_kernel.read_nodes(host),
        modules=modules,
        toolkits=probe_system.read_toolkits(host, ask_nvcc=bool(machine.nvidia_cards)),
        docker=probe_system.read_docker(host),
        shadowing=shadowing,
        foreign_libraries=probe_kernel.foreign_libraries(
            host, filter(None, (*of_driver, modules.nvml_library, modules.cuda_library)), system.machine
        ),
        mig_instances=instances,
        backends=probe_system.backends(host, machine.programs),
        vulkan_drivers=probe_system.vulkan_drivers(host),
        kernel_words=tuple((host.read("/proc/cmdline") or "").split()),
        compilers=probe_system.compilers(host),
        without_execution=probe_system.without_execution(host),
        waiting_at_thunderbolt=probe_kernel.waiting_at_thunderbolt(host),
        vgpu_license=probe_kernel.read_vgpu_license(host, (c.identity.name or "" for c in machine.nvidia_cards)),
        nvswitches=probe_kernel.count_nvswitches(host),
        level_zero=probe_kernel.find_level_zero(host) if any(c.identity.vendor == "intel" for c in machine.cards) else None,
        wsl_linux_driver=_wsl_linux_driver(host, system),
    )


def _shadowing(host: Host) -> Mapping[str, str]:
    """CUDA libraries in the folders of LD_LIBRARY_PATH, the first of each name."""
    folder_of: dict[str, str] = {}
    for folder in filter(None, host.environment.get("LD_LIBRARY_PATH", "").split(":")):
        for name in host.names(folder):
            if _BUNDLED.fullmatch(name):
                folder_of.setdefault(name, folder)
    return folder_of


def _wsl_linux_driver(host: Host, system: System) -> tuple[str, ...]:
    """Packages of a Linux driver inside WSL, else libraries of one beside WSL's own."""
    if not system.wsl:
        return ()
    begin = ("libnvidia-compute-", "nvidia-driver-", "nvidia-dkms-", "nvidia-utils-", "cuda-drivers")
    packages = (n.removesuffix(".list").partition(":")[0] for n in host.names("/var/lib/dpkg/info") if n.endswith(".list"))
    driver_packages = tuple(dict.fromkeys(p for p in packages if p.startswith(begin)))
    return driver_packages or probe_kernel.read_modules(host, kernels=False).library_paths
