"""Properties of an NVML device that do not change."""

from __future__ import annotations

from pathlib import Path

from gpuwise.machine.devices.memory import read_memory
from gpuwise.machine.devices.nvml.card import NvmlCard, Reader
from gpuwise.machine.devices.nvml.errors import NOT_FOUND, NOT_SUPPORTED, VENDOR, NvmlError, reason_of
from gpuwise.machine.devices.nvml.sample import CLOCK_MEMORY, CLOCK_SM, MILLI, SENSOR_GPU, shares_memory
from gpuwise.machine.devices.readings import Identity
from gpuwise.units import MEGA

SHUTDOWN, SLOWDOWN, MEMORY_MAX = 0, 1, 2
"""nvml.h, nvmlTemperatureThresholds_t."""
SHUTDOWN_MARGIN, SLOWDOWN_MARGIN = 193, 194
"""NVML_FI_DEV_TEMPERATURE_*_TLIMIT: degrees from where the card slows down for heat, below zero beyond it."""
LINK_COUNT = 91
MAX_LINKS = 18
"""NVML_NVLINK_MAX_LINKS."""
_NO_SERIAL = ("", "0")
_ENABLED = 1


def read_identity(read: Reader, card: NvmlCard, root: Path) -> Identity:
    """The identity of one device. Raises NvmlError when the device or the driver is away."""
    library, device = read.library, read.handle
    name = read("name", library.text, "nvmlDeviceGetName", device)
    if name is not None:
        card.name = name
    capability = read("compute_capability", library.pair, "nvmlDeviceGetCudaComputeCapability", device)
    limits = read("power_limit_max_w", library.pair, "nvmlDeviceGetPowerManagementLimitConstraints", device)
    if limits is None:
        read.same("power_limit_max_w", "power_limit_min_w")
    default = read("power_limit_default_w", library.unsigned, "nvmlDeviceGetPowerManagementDefaultLimit", device)
    sm_max = read("sm_clock_max_hz", library.unsigned, "nvmlDeviceGetMaxClockInfo", device, CLOCK_SM)
    memory_max = read("memory_clock_max_hz", library.unsigned, "nvmlDeviceGetMaxClockInfo", device, CLOCK_MEMORY)
    slowdown, shutdown = _thresholds(read)
    hottest = read("memory_temperature_max_c", library.unsigned, "nvmlDeviceGetTemperatureThreshold", device, MEMORY_MAX)
    serial = read("serial", library.text, "nvmlDeviceGetSerial", device)
    mig = read("mig", library.pair, "nvmlDeviceGetMigMode", device)
    ecc = read("ecc", library.pair, "nvmlDeviceGetEccMode", device)
    persistence = read("persistence", library.unsigned, "nvmlDeviceGetPersistenceMode", device)
    memory, unified = _memory(read, name)
    return Identity(
        VENDOR,
        card.index,
        name or card.name or "unknown",
        uuid=read("uuid", library.text, "nvmlDeviceGetUUID", device),
        pci_bus_id=_bus_id(read, card),
        serial=None if serial in _NO_SERIAL else serial,
        compute_capability=capability,
        architecture=None if capability is None else f"sm_{capability[0]}{capability[1]}",
        memory_bytes=memory,
        unified_memory=unified,
        n_cores=read("n_cores", library.unsigned, "nvmlDeviceGetNumGpuCores", device),
        power_limit_default_w=None if default is None else default / MILLI,
        power_limit_min_w=None if limits is None else limits[0] / MILLI,
        power_limit_max_w=None if limits is None else limits[1] / MILLI,
        sm_clock_max_hz=None if sm_max is None else sm_max * MEGA,
        memory_clock_max_hz=None if memory_max is None else memory_max * MEGA,
        temperature_slowdown_c=slowdown,
        temperature_shutdown_c=shutdown,
        memory_temperature_max_c=None if hottest is None else float(hottest),
        pcie_generation_max=read("pcie_generation_max", library.unsigned, "nvmlDeviceGetMaxPcieLinkGeneration", device),
        pcie_width_max=read("pcie_width_max", library.unsigned, "nvmlDeviceGetMaxPcieLinkWidth", device),
        n_nvlinks=_links(read),
        mig=None if mig is None else mig[0] == _ENABLED,
        persistence=None if persistence is None else persistence == _ENABLED,
        ecc=None if ecc is None else ecc[0] == _ENABLED,
        numa_node=_numa_node(read, card, root),
        vbios=read("vbios", library.text, "nvmlDeviceGetVbiosVersion", device),
        mig_uuids=_mig_uuids(read) if mig is not None and mig[0] == _ENABLED else (),
        unknown=read.reasons,
    )


def _bus_id(read: Reader, card: NvmlCard) -> str | None:
    bus_id = read("pci_bus_id", read.library.pci_bus_id, read.handle)
    card.bus_id = bus_id or card.bus_id
    return bus_id


def _memory(read: Reader, name: str | None) -> tuple[int | None, bool | None]:
    """Bytes in all, and whether they are the processor's."""
    total = None
    try:
        total = read.library.memory(read.handle)[0]
    except NvmlError as refused:
        if refused.code == NOT_SUPPORTED and shares_memory(name):
            return read_memory().total_bytes, True
        v1 = read("memory_bytes", read.library.memory_v1, read.handle)
        total = None if v1 is None else v1[0]
    if total is None:
        read.unknown("unified_memory", "the memory is not reported")
        return None, None
    return total, False


def _thresholds(read: Reader) -> tuple[float | None, float | None]:
    """Slowdown and shutdown temperatures in degrees; computed from distances if the card reports only those."""
    library, device = read.library, read.handle
    slowdown = read("temperature_slowdown_c", library.unsigned, "nvmlDeviceGetTemperatureThreshold", device, SLOWDOWN)
    shutdown = read("temperature_shutdown_c", library.unsigned, "nvmlDeviceGetTemperatureThreshold", device, SHUTDOWN)
    if slowdown is not None and shutdown is not None:
        return float(slowdown), float(shutdown)
    try:
        far = library.fields(device, [(SLOWDOWN_MARGIN, 0), (SHUTDOWN_MARGIN, 0)])
        hottest = library.unsigned("nvmlDeviceGetTemperature", device, SENSOR_GPU) + library.margin(device)
    except NvmlError:
        return (None if slowdown is None else float(slowdown)), (None if shutdown is None else float(shutdown))
    # margin is the distance to slowdown by software, the fields the distance from there to each threshold
    beyond = [None if isinstance(f, NvmlError) else float(hottest - f) for f in far]
    return (beyond[0] if slowdown is None else float(slowdown)), (beyond[1] if shutdown is None else float(shutdown))


def _links(read: Reader) -> int | None:
    """NVLinks the device has; 0 where it has none."""
    try:
        (count,) = read.library.fields(read.handle, [(LINK_COUNT, 0)])
    except NvmlError as refused:
        count = refused
    if not isinstance(count, NvmlError):
        return int(count)
    if read("n_nvlinks", read.library.unsigned, "nvmlDeviceGetNvLinkState", read.handle, 0) is None:
        return None
    n = 1
    while n < MAX_LINKS:
        try:
            read.library.unsigned("nvmlDeviceGetNvLinkState", read.handle, n)
        except NvmlError:
            break
        n += 1
    return n


def _numa_node(read: Reader, card: NvmlCard, root: Path) -> int | None:
    """NUMA node of the slot, from Linux; NVML's own is that of memory a Grace processor can reach."""
    if card.bus_id is not None:
        domain, _, rest = card.bus_id.partition(":")
        path = root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node"
        try:
            node = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            node = None
        if node is not None and node >= 0:
            return node
        if node is not None:
            read.unknown("numa_node", "the machine has one node")
            return None
    return read("numa_node", read.library.unsigned, "nvmlDeviceGetNumaNodeId", read.handle)


def _mig_uuids(read: Reader) -> tuple[str, ...]:
    """Accessible parts of a divided card, in their order."""
    library, device = read.library, read.handle
    uuids: list[str] = []
    try:
        for i in range(library.unsigned("nvmlDeviceGetMaxMigDeviceCount", device)):
            try:
                part = library.handle("nvmlDeviceGetMigDeviceHandleByIndex", device, i)
            except NvmlError as refused:
                if refused.code == NOT_FOUND:
                    continue
                raise
            uuids.append(library.text("nvmlDeviceGetUUID", part))
    except NvmlError as refused:
        read.unknown("mig_uuids", reason_of(refused.code))
        return tuple(uuids)
    return tuple(uuids)
