"""One frozen :class:`Machine` with everything the probes read; the checks read nothing else.

None and empty mean that a thing is not there or could not be asked; no field is guessed. Bytes, watts, seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuwise.facts.software.compatibility import CudaError, cuda_error_in
from gpuwise.machine.devices.readings import Driver, Health, Identity, Peer, Sample, Xid

NVIDIA, AMD, INTEL = "10de", "1002", "8086"
"""PCI vendor numbers."""
_DISCRETE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class System:
    """The operating system and its environment (WSL, container)."""

    platform: str
    """``linux``, ``darwin`` or ``win32``."""
    ids: tuple[str, ...] = ()
    """ID, then ID_LIKE of os-release."""
    version: str = ""
    name: str = ""
    kernel: str = ""
    machine: str = ""
    """``x86_64`` or ``aarch64``; ``AMD64`` and ``arm64`` elsewhere."""
    wsl: int | None = None
    """1 or 2; None outside Windows' subsystem for Linux."""
    container: str | None = None
    """``docker``, ``podman``, ``kubernetes``, ``lxc``, ``apptainer`` or ``container``."""
    root: bool = False
    secure_boot: bool | None = None
    jetson: str | None = None
    """The model of a Jetson board, whose GPU is on no bus."""
    jetson_release: int | None = None
    """Release of NVIDIA's Linux for it: 35 is JetPack 5, 36 JetPack 6, 38 JetPack 7."""
    translated: bool = False
    """An x86 Python on Apple silicon."""
    avx: bool | None = None
    """The processor has AVX; None: not an x86 processor, or not known."""


@dataclass(frozen=True, slots=True)
class PciCard:
    """A display or compute device on the PCI bus, as the kernel lists it without any driver."""

    address: str
    vendor: str
    device: str
    name: str | None = None
    """Name in pci.ids: ``AD102 [GeForce RTX 4090]``."""
    kernel_driver: str | None = None
    """``nvidia``, ``nouveau``, ``vfio-pci``, ``amdgpu``; None: no driver has it."""
    iommu: str | None = None
    """Type of its IOMMU group: ``DMA``, ``DMA-FQ`` (addresses translated) or ``identity``."""
    bridges: tuple[str, ...] = ()
    """Between the root and it, by their places; empty where the kernel shows no tree."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A PCI Express bridge on the way to a GPU."""

    address: str
    redirects: bool | None
    """Access control redirects copies between devices below it upwards; None: unknown."""
    problem: str | None = None
    """Reason why it is unknown."""


@dataclass(frozen=True, slots=True)
class Node:
    """A device node."""

    path: str
    problem: str | None
    """None when it opens; else ``permission``, ``refused``, ``missing`` or the system's word."""


@dataclass(frozen=True, slots=True)
class Modules:
    """NVIDIA's kernel modules and libraries."""

    loaded: tuple[str, ...] = ()
    """Loaded ones among nvidia, nvidia_uvm, nouveau, amdgpu, ..., from /proc/modules."""
    version: str | None = None
    """Version of the loaded module."""
    open: bool | None = None
    """The loaded module is of the open flavour."""
    built_for: tuple[str, ...] = ()
    """Kernels that have an NVIDIA module on disk."""
    libraries: tuple[str, ...] = ()
    """Versions of libcuda and libnvidia-ml on disk."""
    library_paths: tuple[str, ...] = ()
    listed: bool = True
    """The kernel lists its modules: one built without them has no /proc/modules."""
    nvml_library: str | None = None
    """Path of libnvidia-ml.so, in the driver's installation folders."""
    cuda_library: str | None = None
    """Path of libcuda.so."""
    cuda_folder_listed: bool = True
    """The loader looks in its folder: a usual one, one of its configuration or of LD_LIBRARY_PATH."""
    kept_out_by: tuple[tuple[str, str], ...] = ()
    """(file, line) of modprobe's configuration or of the kernel's command line that keeps NVIDIA's module from loading."""
    uvm_hmm_off: bool = False
    """nvidia_uvm was loaded with its use of the kernel's memory management (HMM) switched off."""
    imex_major: int | None = None
    """Device number of the channels between machines of one NVLink domain (IMEX); None where the driver has none."""
    imex_channels: int = 0
    """Nodes that were made for them."""
    node_group: str | None = None
    """Group that the driver gives its device nodes to, where only that may open them."""


@dataclass(frozen=True, slots=True)
class Card:
    """One device as its backend reports it. A failed reading is None."""

    identity: Identity
    sample: Sample | None = None
    health: Health | None = None
    problem: str | None = None
    """Why the health could not be read."""

    @property
    def has_own_memory(self) -> bool:
        """Whether it is a discrete card, not the graphics part of a processor, which shares its memory."""
        return self.identity.unified_memory is not True and (self.identity.memory_bytes or 0) >= _DISCRETE_BYTES


@dataclass(frozen=True, slots=True)
class Vendor:
    """The devices of one vendor that answered."""

    vendor: str
    driver: Driver | None
    cards: tuple[Card, ...]
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error of a vendor's library that is installed and does not work."""

    vendor: str
    kind: str
    """Name of the error: ``NoDriverError``, ``DriverMismatchError``, ``DevicePermissionError``, ``DeviceError``."""
    message: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """An installed Python distribution."""

    name: str
    version: str
    place: str
    """The site-packages folder, or ``conda``."""
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    """Exact version requirements: name -> version."""
    extension_tags: tuple[str, ...] = ()
    """Interpreters its compiled core was built for: ``cpython-310``; empty when not looked at or stable."""


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter whose packages are examined."""

    path: str
    version: tuple[int, ...] = ()
    tag: str = ""
    """``cpython-311``."""
    machine: str = ""
    packages: tuple[Package, ...] = ()
    has_pip: bool = True
    headers: bool | None = None
    """Its Python.h is there, which compiled extensions include; None: not known."""
    problem: str | None = None

    def find(self, *names: str) -> Package | None:
        """The first installed of ``names``."""
        return next((p for n in names for p in self.packages if p.name == n), None)


DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Framework:
    """The report of one framework, asked in its own process."""

    name: str
    """``torch``, ``tensorflow``, ``jax`` or ``cupy``; or ``driver``: CUDA's driver library itself, where none of them is
    installed and it starts no GPU."""
    outcome: str
    """``ok``, ``error`` (it raised), ``crash`` (a signal ended it), ``hang`` (the time limit did) or ``skipped``."""
    stage: str = ""
    """How far it came: ``start``, ``import``, ``build``, ``devices``, ``run``, ``done``."""
    detail: str = ""
    """The last words of what went wrong."""
    seconds: float = 0.0
    answer: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def cuda(self) -> str | None:
        """The CUDA version it was built with."""
        return self.answer.get("cuda")

    @property
    def architectures(self) -> tuple[str, ...]:
        """GPU architectures it was compiled for."""
        return tuple(self.answer.get("architectures") or ())

    @property
    def available(self) -> bool | None:
        """Whether it sees a GPU; None when it did not get so far."""
        return self.answer.get("available")

    @property
    def error(self) -> str:
        """Text that it printed or raised while it looked for GPUs."""
        return str(self.answer.get("error") or "") or self.detail

    @property
    def cuda_error(self) -> CudaError | None:
        """The CUDA error that :attr:`error` speaks of."""
        return cuda_error_in(self.error)

    def raised(self, code: int) -> bool:
        """Whether the CUDA error of this number stopped it."""
        return (error := self.cuda_error) is not None and error.code == code


@dataclass(frozen=True, slots=True)
class LibraryImport:
    """A library used in training, imported after torch in a separate process."""

    name: str
    """Name of the module: ``torchvision``."""
    error: str | None
    """The exception, or the signal that ended the process; None if it works."""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA toolkit on disk."""

    path: str
    version: tuple[int, ...]
    on_path: bool = False
    """Its nvcc is the one the shell finds, or CUDA_HOME names it."""


@dataclass(frozen=True, slots=True)
class Docker:
    """Docker and NVIDIA's container toolkit."""

    path: str | None = None
    runtimes: tuple[str, ...] = ()
    runtime_missing: bool = False
    """daemon.json names NVIDIA's runtime and its program is not here."""
    toolkit: str | None = None
    cdi: bool = False
    desktop: bool = False
    """Docker Desktop is in use, which runs containers in a virtual machine."""
    no_cgroups: bool = False
    """The toolkit leaves control groups alone, as engines without root need it."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of the host that jobs need."""

    cpus: int | None = None
    cpu_quota: float | None = None
    """CPUs a cgroup allows; None: all."""
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    disks: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """``home``, ``temp``, ``cache`` -> bytes free and in all."""
    nofile: int | None = None
    memlock: int | None = None
    address_space: int | None = None
    """Bytes that a process may reserve (``ulimit -v``); -1: no limit. Of this process, which starts the others."""
    infiniband: bool = False
    governor: str | None = None
    scaling_driver: str | None = None
    energy_preference: str | None = None
    huge_pages: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything the probes read."""

    system: System
    pci: tuple[PciCard, ...] = ()
    nodes: tuple[Node, ...] = ()
    modules: Modules = field(default_factory=Modules)
    vendors: tuple[Vendor, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    kernel_log: tuple[str, ...] = ()
    """Lines of the kernel's log that speak of GPUs, oldest first; empty when it may not be read."""
    kernel_log_read: bool = False
    kernel_words: tuple[str, ...] = ()
    """Words of the kernel's command line."""
    xids: tuple[Xid, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Only the variables that matter to GPUs."""
    python: Python | None = None
    frameworks: tuple[Framework, ...] = ()
    imports: tuple[LibraryImport, ...] = ()
    toolkits: tuple[Toolkit, ...] = ()
    docker: Docker = field(default_factory=Docker)
    resources: Resources = field(default_factory=Resources)
    shadowing: Mapping[str, str] = field(default_factory=dict[str, str])
    """A library a folder of LD_LIBRARY_PATH brings before the wheels' or the driver's own: file name -> folder."""
    foreign_libraries: Mapping[str, str] = field(default_factory=dict[str, str])
    """A library of the driver compiled for other processors than this machine's: path -> its kind."""
    uv: bool = False
    """The program uv is here."""
    compilers: tuple[str, ...] = ()
    """C compilers that the shell finds, or that ``CC`` names."""
    waiting_at_thunderbolt: tuple[str, ...] = ()
    """Devices at Thunderbolt or USB4 that are connected and not authorized."""
    without_execution: tuple[str, ...] = ()
    """Folders of temporary files and caches whose file system runs no programs (mounted noexec)."""
    vgpu_license: str | None = None
    """Status of the licence of a virtual GPU (``nvidia-smi -q``); None where there is no virtual GPU."""
    programs: tuple[str, ...] = ()
    """Programs here that compute on GPUs without a framework of Python: ``ollama``, ``llama-server``."""
    backends: tuple[str, ...] = ()
    """Libraries of llama.cpp beside them, each for one way to a GPU: ``cuda``, ``hip``, ``vulkan``; empty: not known."""
    vulkan_drivers: tuple[str, ...] = ()
    """Descriptions of Vulkan drivers in the folders where its loader looks."""
    level_zero: str | None = None
    """Path of Intel's driver for Level Zero (libze_intel_gpu), in the distributions' folders."""
    mig_instances: Mapping[int, int] = field(default_factory=dict[int, int])
    """Index of a card with MIG on -> GPU instances made on it."""
    bridges: tuple[Bridge, ...] = ()
    """On the way to GPUs, where there are two or more."""
    nvswitches: int = 0
    wsl_linux_driver: tuple[str, ...] = ()
    """Packages or files of a Linux driver inside WSL."""
    suspended: bool = False
    """The kernel's log shows a suspend since the start."""
    wanted_gpus: int | None = None
    """Number of GPUs that the user expects."""

    def vendor(self, name: str) -> Vendor | None:
        """The devices of a vendor; None without any."""
        return next((v for v in self.vendors if v.vendor == name), None)

    def refusal(self, name: str) -> Refusal | None:
        """The error of a vendor's library; None without one."""
        return next((r for r in self.refusals if r.vendor == name), None)

    @property
    def torch_package(self) -> Package | None:
        """The installed torch; None without one."""
        return self.python.find("torch") if self.python else None

    def framework(self, name: str) -> Framework | None:
        """The report of a framework; None where it is not installed."""
        return next((f for f in self.frameworks if f.name == name), None)

    def import_of(self, name: str) -> LibraryImport | None:
        """How a library's import went; None where it was not tried."""
        return next((i for i in self.imports if i.name == name), None)

    def pci_of(self, vendor: str) -> tuple[PciCard, ...]:
        """The PCI devices of a vendor."""
        return tuple(c for c in self.pci if c.vendor == vendor)

    @property
    def nvidia_cards(self) -> tuple[Card, ...]:
        """NVIDIA's devices that answered."""
        vendor = self.vendor("nvidia")
        return vendor.cards if vendor else ()

    @property
    def cards(self) -> tuple[Card, ...]:
        """Devices of every vendor."""
        return tuple(c for v in self.vendors for c in v.cards)

    @property
    def driver_version(self) -> str | None:
        """Version of NVIDIA's loaded driver, from the library or the kernel."""
        vendor = self.vendor("nvidia")
        return (vendor.driver.version if vendor and vendor.driver else None) or self.modules.version

    @property
    def means_nvidia(self) -> bool:
        """Whether an NVIDIA GPU is here, or should be."""
        return bool(self.nvidia_cards or self.pci_of(NVIDIA) or self.refusal("nvidia"))
