"""GPUs as the kernel has them: the PCI bus, device nodes, modules on disk and in memory, its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gpuwise.machine.devices.readings import Xid
from gpuwise.machine.doctor.host import Host
from gpuwise.machine.doctor.observation import AMD, INTEL, NVIDIA, Modules, Node, PciCard
from gpuwise.machine.doctor.probes.paths import path_of

_PCI = "/sys/bus/pci/devices"
_PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
_USUAL_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu", "/usr/lib")
"""The loader searches these by default."""
LIBRARY_FOLDERS = (*_USUAL_FOLDERS, "/usr/local/nvidia/lib64")
_OTHER_FOLDERS = (
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/nvidia",
    "/usr/local/nvidia/lib",
    "/opt/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
)
_MODULE_FOLDERS = ("updates/dkms", "updates", "extra", "extra/nvidia", "kernel/drivers/video", "extramodules", "misc")
_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3,4}\.\d+(?:\.\d+)?)")
_LOG_WORDS = re.compile(
    r"NVRM|nvidia|nouveau|amdgpu|kfd|PM: suspend|Key was rejected|module verification failed|Required key|is rejected|"
    r"can't assign; no space|failed to assign|fallen off the bus|PCIe Bus Error|Out of memory: Killed process",
    re.IGNORECASE,
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d{1,6}),?\s*(.*)")
_KEPT_OUT = re.compile(r"^\s*(?:blacklist\s+nvidia|alias\s+nvidia\s+off|install\s+nvidia\s+\S*/(?:false|true))\s*$", re.MULTILINE)
_CONFIGURATION = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nouveau", "amdgpu", "i915", "xe", "vfio_pci")
_BUS_ID = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?")
_COMMAND_S = 3.0


def read_pci(host: Host) -> tuple[PciCard, ...]:
    """Display and compute devices of GPU makers; their names only where pci.ids is installed."""
    devices: list[PciCard] = []
    for address in host.names(_PCI):
        place = f"{_PCI}/{address}"
        kind = (host.read(f"{place}/class") or "").strip().removeprefix("0x")
        if kind[:2] not in ("03", "12"):
            continue
        vendor = (host.read(f"{place}/vendor") or "").strip().removeprefix("0x")
        if vendor not in (NVIDIA, AMD, INTEL):
            continue
        driver = host.link(f"{place}/driver")
        iommu = host.read(f"{place}/iommu_group/type")
        devices.append(
            PciCard(
                address=address,
                vendor=vendor,
                device=(host.read(f"{place}/device") or "").strip().removeprefix("0x"),
                kernel_driver=driver.rpartition("/")[2] if driver else None,
                iommu=iommu.strip() if iommu else None,
                bridges=path_of(host, address),
            )
        )
    return tuple(devices)


def name_cards(host: Host, cards: Sequence[PciCard]) -> tuple[PciCard, ...]:
    """The same cards with their names from pci.ids, which is large: only used if no driver names them."""
    from dataclasses import replace

    text = next((t for p in _PCI_IDS if (t := host.read(p))), "")
    with_names: list[PciCard] = []
    for card in cards:
        block = re.search(rf"^{card.vendor}\s.*\n((?:[\t#].*\n)*)", text, re.MULTILINE)
        line = re.search(rf"^\t{card.device}\s+(.+)$", block[1], re.MULTILINE) if block and card.device else None
        with_names.append(replace(card, name=line[1].strip()) if line else card)
    return tuple(with_names)


def count_nvswitches(host: Host) -> int:
    """NVSwitches on the bus: bridges of NVIDIA's."""
    n = 0
    for address in host.names(_PCI):
        place = f"{_PCI}/{address}"
        if (host.read(f"{place}/class") or "").startswith("0x0680") and (host.read(f"{place}/vendor") or "").strip() == "0x10de":
            n += 1
    return n


def read_nodes(host: Host) -> tuple[Node, ...]:
    """Device nodes of GPUs, and whether this user can open them."""
    names = [n for n in host.names("/dev") if re.fullmatch(r"nvidia\d+|nvidiactl|nvidia-uvm|kfd|dxg", n)]
    render = [f"dri/{n}" for n in host.names("/dev/dri") if n.startswith("renderD")]
    accelerators = [f"accel/{n}" for n in host.names("/dev/accel") if re.fullmatch(r"accel\d+", n)]
    return tuple(Node(f"/dev/{n}", host.usable(f"/dev/{n}")) for n in (*names, *render, *accelerators))


def read_modules(host: Host, kernels: bool) -> Modules:
    """NVIDIA's modules and libraries; ``kernels``: also for which kernels modules are on disk."""
    text = host.read("/proc/modules")
    listed = {line.split(" ", 1)[0] for line in (text or "").splitlines()}
    if text is None:
        # a kernel without loadable modules: what is built in shows its parameters all the same
        listed = {name for name in _MODULES if host.exists(f"/sys/module/{name}")}
    version = (host.read("/sys/module/nvidia/version") or "").strip() or None
    version_text = host.read("/proc/driver/nvidia/version") or ""
    if version is None and (match := re.search(r"Kernel Module.*?\s(\d{3,4}\.\d+(?:\.\d+)?)\s", version_text)):
        version = match[1]
    libraries: dict[str, str] = {}
    for folder in LIBRARY_FOLDERS:
        for name in host.names(folder):
            if match := _LIBRARY.fullmatch(name):
                libraries.setdefault(match[1], f"{folder}/{name}")
    cuda_library = _library(host, "libcuda.so")
    return Modules(
        loaded=tuple(m for m in _MODULES if m in listed),
        version=version,
        open="Open Kernel Module" in version_text if version_text else None,
        built_for=tuple(k for k in host.names("/lib/modules") if _has_module(host, f"/lib/modules/{k}")) if kernels else (),
        libraries=tuple(libraries),
        library_paths=tuple(libraries.values()),
        listed=text is not None,
        nvml_library=_library(host, "libnvidia-ml.so"),
        cuda_library=cuda_library,
        cuda_folder_listed=cuda_library is None or _is_listed(host, cuda_library.rpartition("/")[0]),
        kept_out_by=_kept_out_by(host) if kernels else (),
        uvm_hmm_off=(host.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm") or "").strip() in ("Y", "1"),
        imex_major=_imex_major(host),
        imex_channels=len(host.names("/dev/nvidia-caps-imex-channels")),
        node_group=_node_group(host),
    )


def waiting_at_thunderbolt(host: Host) -> tuple[str, ...]:
    """Names of the devices at Thunderbolt or USB4 that are not authorized (Linux' thunderbolt guide: ``authorized``)."""
    place = "/sys/bus/thunderbolt/devices"
    waiting = [n for n in host.names(place) if (host.read(f"{place}/{n}/authorized") or "").strip() == "0"]
    return tuple((host.read(f"{place}/{n}/device_name") or n).strip() for n in waiting)


_VIRTUAL = re.compile(r"GRID|vGPU|-\d+[QCBA]$")
"""Names of virtual GPUs: ``NVIDIA A40-48Q``."""


def read_vgpu_license(host: Host, names: Iterable[str]) -> str | None:
    """Status of the licence of a virtual GPU, by nvidia-smi; None where no GPU is virtual, or it is not known."""
    if not any(_VIRTUAL.search(name) for name in names):
        return None
    ran = host.run(("nvidia-smi", "-q"), limit_s=_COMMAND_S)
    status = re.search(r"License Status\s*:\s*(.+)", ran.out)
    return status[1].strip() if status else None


def _kept_out_by(host: Host) -> tuple[tuple[str, str], ...]:
    """Lines of modprobe's configuration, and words of the kernel's command line, that keep the module nvidia out."""
    found = [
        (f"{folder}/{name}", match[0].strip())
        for folder in _CONFIGURATION
        for name in host.names(folder)
        if name.endswith(".conf")
        for match in _KEPT_OUT.finditer(host.read(f"{folder}/{name}") or "")
    ]
    words = (host.read("/proc/cmdline") or "").split()
    lists = [w for w in words if w.startswith(("modprobe.blacklist=", "module_blacklist=", "rd.driver.blacklist="))]
    found += [("/proc/cmdline", w) for w in lists if "nvidia" in w.partition("=")[2].split(",")]
    return tuple(found)


def _imex_major(host: Host) -> int | None:
    match = re.search(r"^\s*(\d{1,6}) nvidia-caps-imex-channels$", host.read("/proc/devices") or "", re.MULTILINE)
    return int(match[1]) if match else None


def _library(host: Host, begin: str) -> str | None:
    """The first library of the driver with that prefix, without stubs."""
    for folder in (*LIBRARY_FOLDERS, *_OTHER_FOLDERS):
        for name in host.names(folder):
            if name.startswith(f"{begin}."):
                return f"{folder}/{name}"
    return None


def find_level_zero(host: Host) -> str | None:
    """Path of Intel's driver for Level Zero: a library of its compute runtime, including older libze_intel_gpu.so.1."""
    return _library(host, "libze_intel_gpu.so") or _library(host, "libze_intel_gpu_legacy1.so")


def _is_listed(host: Host, folder: str) -> bool:
    """Whether the loader looks in this folder: ld.so's usual ones, its configuration, LD_LIBRARY_PATH."""
    if folder in _USUAL_FOLDERS:
        return True
    configured = ["/etc/ld.so.conf", *(f"/etc/ld.so.conf.d/{n}" for n in host.names("/etc/ld.so.conf.d") if n.endswith(".conf"))]
    lines = [line.split("#")[0].strip() for file in configured for line in (host.read(file) or "").splitlines()]
    searched = [*host.environment.get("LD_LIBRARY_PATH", "").split(":"), *lines]
    return folder in {f.rstrip("/") for f in searched if f}


def _node_group(host: Host) -> str | None:
    """The group of /dev/nvidia* by the driver's parameters, where not everybody may open them."""
    parameters = dict(re.findall(r"^(DeviceFile\w+): (\d{1,10})$", host.read("/proc/driver/nvidia/params") or "", re.MULTILINE))
    mode, group = int(parameters.get("DeviceFileMode", 0o666)), parameters.get("DeviceFileGID", "0")
    if mode & 0o006 == 0o006 or group == "0":
        return None
    group_entry = re.search(rf"^([^:\n]+):[^:\n]*:{group}:", host.read("/etc/group") or "", re.MULTILINE)
    return group_entry[1] if group_entry else group


_ELF_KINDS = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 21: "ppc64le", 243: "riscv64"}
"""Values of the header's e_machine (elf.h)."""


def foreign_libraries(host: Host, paths: Iterable[str], machine: str) -> Mapping[str, str]:
    """Libraries compiled for other processors than ``machine``: path -> kind."""
    architecture = {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    foreign: dict[str, str] = {}
    for path in paths:
        head = host.read_bytes(path) or b""
        if head[:4] != b"\x7fELF" or len(head) < 20 or architecture not in _ELF_KINDS.values():
            continue
        kind = _ELF_KINDS.get(int.from_bytes(head[18:20], "little"), "another kind")
        if kind != architecture:
            foreign[path] = kind
    return foreign


def _has_module(host: Host, place: str) -> bool:
    """Whether a folder of kernel modules holds NVIDIA's."""
    folders = [f"{place}/{f}" for f in _MODULE_FOLDERS]
    folders += [f"{place}/kernel/{n}" for n in host.names(f"{place}/kernel") if n.startswith("nvidia-")]
    return any(n.startswith("nvidia.ko") for f in folders for n in host.names(f))


def read_kernel_log(host: Host) -> tuple[tuple[str, ...], bool]:
    """The lines of the kernel's log that speak of GPUs, and whether it could be read at all."""
    for command in (("dmesg",), ("journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic")):
        if host.which(command[0]) is None:
            continue
        ran = host.run(command, limit_s=_COMMAND_S)
        if ran.status == 0 and ran.out.strip():
            return tuple(line for line in ran.out.splitlines() if _LOG_WORDS.search(line)), True
    return (), False


def xids_in(lines: Sequence[str]) -> tuple[Xid, ...]:
    """The driver's errors in lines of the kernel's log."""
    xids: list[Xid] = []
    for line in lines:
        if match := _XID.search(line):
            xids.append(Xid(int(match[2]), None, match[1], match[3].strip()))
    return tuple(xids)


def count_mig_instances(host: Host, bus_id: str | None) -> int | None:
    """GPU instances made on the card at ``bus_id``; None when the driver does not list them."""
    for address in host.names("/proc/driver/nvidia/gpus"):
        if not same_bus(bus_id, address):
            continue
        minor = re.search(r"Device Minor:\s+(\d+)", host.read(f"/proc/driver/nvidia/gpus/{address}/information") or "")
        if minor is None:
            return None
        instances = host.names(f"/proc/driver/nvidia/capabilities/gpu{minor[1]}/mig")
        return sum(1 for name in instances if re.fullmatch(r"gi\d+", name))
    return None


def same_bus(a: str | None, b: str | None) -> bool:
    """Whether two ways of writing a PCI address mean one device: NVML writes eight digits of domain, the kernel four, a log
    leaves out the function."""
    one = _address(a or "")
    return one is not None and one == _address(b or "")


def _address(text: str) -> tuple[int, ...] | None:
    """(domain, bus, device); None for text that is no address."""
    match = _BUS_ID.fullmatch(text.strip())
    return tuple(int(part or "0", 16) for part in match.groups()) if match else None
