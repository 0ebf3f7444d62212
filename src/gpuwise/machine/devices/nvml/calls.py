"""NVML's functions called through nvidia-ml-py's library, without what is slow or fragile in its wrappers: lists are read in one
call instead of two, texts need not be UTF-8, and a refusal is a code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import (
    CDLL,
    Structure,
    Union,
    byref,
    c_char,
    c_double,
    c_int,
    c_longlong,
    c_uint,
    c_ulonglong,
    c_void_p,
    create_string_buffer,
    sizeof,
)
from typing import Any

from gpuwise.machine.devices.nvml.errors import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    LIBRARY_NOT_FOUND,
    NOT_FOUND,
    NOT_SUPPORTED,
    NvmlError,
)
from gpuwise.text import single_line

Handle = c_void_p
NOT_AVAILABLE = 2**64 - 1
"""nvml.h, NVML_VALUE_NOT_AVAILABLE: memory of a process that the driver does not report."""
ALL_LINKS = 2**32 - 1
"""Scope of a field value over every NVLink."""
TEXT_BYTES = 96
ATTEMPTS = 4
"""At a list that grows while it is read."""
MOST_PROCESSES = 65536
"""A longer list is not believed."""
ELSEWHERE = (
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
)
"""Location of the library on WSL, on NixOS and where the driver is mounted as a folder (Kubernetes nodes, virtual machines),
which the loader does not always search."""


class Utilization(Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class Memory(Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class MemoryV1(Structure):
    """nvmlMemory_t: what the driver reserves is in ``used``."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class ProcessInfo(Structure):
    """nvmlProcessInfo_t, versions 2 and 3."""

    _fields_ = (("pid", c_uint), ("memory", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class ProcessUse(Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = (
        ("pid", c_uint),
        ("at_us", c_ulonglong),
        ("sm", c_uint),
        ("memory", c_uint),
        ("encoder", c_uint),
        ("decoder", c_uint),
    )


class _Value(Union):
    _fields_ = (("d", c_double), ("u", c_uint), ("ull", c_ulonglong), ("sll", c_longlong), ("i", c_int))


class FieldValue(Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("id", c_uint),
        ("scope", c_uint),
        ("at_us", c_longlong),
        ("latency_us", c_longlong),
        ("type", c_uint),
        ("code", c_uint),
        ("value", _Value),
    )


class PciInfo(Structure):
    """nvmlPciInfo_t, version 3."""

    _fields_ = (
        ("legacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("device_id", c_uint),
        ("subsystem_id", c_uint),
        ("bus_id", c_char * 32),
    )


class Margin(Structure):
    """nvmlMarginTemperature_t."""

    _fields_ = (("version", c_uint), ("value", c_int))


class EventData(Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", c_void_p),
        ("type", c_ulonglong),
        ("data", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


class Library:
    """The started library. Every method gives a plain value or raises :class:`NvmlError`."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., int]] = {}
        self._started = False

    def start(self) -> None:
        """Load and start it. Raises NvmlError."""
        self._functions.clear()
        if not self._started:
            _load()
        self._call("nvmlInitWithFlags", c_uint(0))
        self._started = True

    def stop(self) -> None:
        """Shut it down; its return code is ignored."""
        if self._started:
            self._started = False
            try:
                self._call("nvmlShutdown")
            except NvmlError:
                return

    def unsigned(self, name: str, *arguments: Any) -> int:
        """The result of a function whose last argument is ``unsigned int *``."""
        out = c_uint()
        self._call(name, *arguments, byref(out))
        return out.value

    def long(self, name: str, *arguments: Any) -> int:
        """The result of a function whose last argument is ``unsigned long long *``."""
        out = c_ulonglong()
        self._call(name, *arguments, byref(out))
        return out.value

    def signed(self, name: str, *arguments: Any) -> int:
        """The result of a function whose last argument is ``int *``."""
        out = c_int()
        self._call(name, *arguments, byref(out))
        return out.value

    def pair(self, name: str, *arguments: Any) -> tuple[int, int]:
        """The answers of a function with two ``unsigned int *`` at its end."""
        first, second = c_uint(), c_uint()
        self._call(name, *arguments, byref(first), byref(second))
        return first.value, second.value

    def four(self, name: str, *arguments: Any) -> tuple[int, int, int, int]:
        """The results of a function with four ``unsigned int *`` at its end."""
        a, b, c, d = c_uint(), c_uint(), c_uint(), c_uint()
        self._call(name, *arguments, byref(a), byref(b), byref(c), byref(d))
        return a.value, b.value, c.value, d.value

    def text(self, name: str, *arguments: Any) -> str:
        """A text in one line; bytes that are not UTF-8 become the replacement character, control characters blanks: a name goes
        to terminals, files and scripts."""
        out = create_string_buffer(TEXT_BYTES)
        self._call(name, *arguments, out, c_uint(TEXT_BYTES))
        return single_line(out.value.decode("utf-8", "replace"))

    def handle(self, name: str, *arguments: Any) -> Handle:
        """The result of a function whose last argument is a pointer to a handle."""
        out = c_void_p()
        self._call(name, *arguments, byref(out))
        return out

    def utilization(self, device: Handle) -> tuple[int, int]:
        """Percent of kernels, of memory."""
        out = Utilization()
        self._call("nvmlDeviceGetUtilizationRates", device, byref(out))
        return out.gpu, out.memory

    def memory(self, device: Handle) -> tuple[int, int, int]:
        """Total, used without what is reserved, reserved."""
        out = Memory(version=sizeof(Memory) | 2 << 24)
        self._call("nvmlDeviceGetMemoryInfo_v2", device, byref(out))
        return out.total, out.used, out.reserved

    def memory_v1(self, device: Handle) -> tuple[int, int]:
        """Total, and used including reserved memory: all that drivers before 510 report."""
        out = MemoryV1()
        self._call("nvmlDeviceGetMemoryInfo", device, byref(out))
        return out.total, out.used

    def pci_bus_id(self, device: Handle) -> str:
        """The bus id of a device."""
        out = PciInfo()
        self._call("nvmlDeviceGetPciInfo_v3", device, byref(out))
        return f"{out.domain:08x}:{out.bus:02x}:{out.device:02x}.0"

    def remote_bus_id(self, device: Handle, link: int) -> str:
        """Bus position of the other end of an NVLink."""
        out = PciInfo()
        self._call("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, c_uint(link), byref(out))
        return f"{out.domain:08x}:{out.bus:02x}:{out.device:02x}.0"

    def margin(self, device: Handle) -> int:
        """Degrees until the card slows down for heat."""
        out = Margin(version=sizeof(Margin) | 1 << 24)
        self._call("nvmlDeviceGetMarginTemperature", device, byref(out))
        return out.value

    def processes(self, name: str, device: Handle, room: int) -> list[ProcessInfo]:
        """The processes of a list (compute, graphics), in one call where ``room`` suffices."""
        for _ in range(ATTEMPTS):
            out, count = (ProcessInfo * room)(), c_uint(room)
            try:
                self._call(name, device, byref(count), out)
            except NvmlError as refused:
                if refused.code != INSUFFICIENT_SIZE or not room < count.value <= MOST_PROCESSES:
                    raise
                # the list may grow while it is read
                room = count.value + 8
                continue
            return list(out[: min(count.value, room)])
        raise NvmlError(INSUFFICIENT_SIZE)

    def process_use(self, device: Handle, since_us: int, room: int) -> list[ProcessUse]:
        """Use by processes since a moment of the driver's clock; may be empty."""
        for _ in range(ATTEMPTS):
            out, count = (ProcessUse * room)(), c_uint(room)
            try:
                self._call("nvmlDeviceGetProcessUtilization", device, out, byref(count), c_ulonglong(since_us))
            except NvmlError as refused:
                if refused.code == NOT_FOUND:
                    return []
                if refused.code != INSUFFICIENT_SIZE or not room < count.value <= MOST_PROCESSES:
                    raise
                room = count.value + 8
                continue
            return list(out[: min(count.value, room)])
        raise NvmlError(INSUFFICIENT_SIZE)

    def fields(self, device: Handle, questions: Sequence[tuple[int, int]]) -> list[int | float | NvmlError]:
        """Several field values in one call, by id and scope; each may fail separately."""
        out = (FieldValue * len(questions))()
        for i, (number, scope) in enumerate(questions):
            out[i].id, out[i].scope = number, scope
        self._call("nvmlDeviceGetFieldValues", device, c_int(len(questions)), out)
        return [_value_of(field) for field in out]

    def wait_for_event(self, events: Handle, timeout_s: float) -> EventData:
        """Raises NvmlError with TIMEOUT when nothing came."""
        out = EventData()
        self._call("nvmlEventSetWait_v2", events, byref(out), c_uint(max(1, round(1000 * timeout_s))))
        return out

    def do(self, name: str, *arguments: Any) -> None:
        """Call a function without a result."""
        self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> None:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = _find(name)
        code = function(*arguments)
        if code:
            raise NvmlError(code)


def _pynvml() -> Any:
    """The module of nvidia-ml-py, which has no types."""
    import pynvml  # pyright: ignore[reportMissingTypeStubs]

    return pynvml


def _load() -> None:
    """Let nvidia-ml-py load the library, or load it from where the loader does not look."""
    nvml = _pynvml()
    if nvml.nvmlLib is not None:
        return
    try:
        nvml._LoadNvmlLibrary()
        return
    except nvml.NVMLError:
        pass
    for path in ELSEWHERE:
        try:
            nvml.nvmlLib = CDLL(path)
            return
        except OSError:
            continue
    raise NvmlError(LIBRARY_NOT_FOUND)


def _find(name: str) -> Callable[..., int]:
    """A function of the loaded library; a missing one fails on every call."""
    nvml = _pynvml()
    try:
        return nvml._nvmlGetFunctionPointer(name)
    except nvml.NVMLError:

        def refuse(*_: object) -> int:
            return FUNCTION_NOT_FOUND

        return refuse


def _value_of(field: FieldValue) -> int | float | NvmlError:
    if field.code:
        return NvmlError(field.code)
    value = field.value
    name = _VALUE_OF_TYPE.get(field.type)
    if name is None:
        return NvmlError(NOT_SUPPORTED)
    return value.u & 0xFFFF if field.type == _SHORT else getattr(value, name)


# nvml.h, nvmlValueType_t
_VALUE_OF_TYPE = {0: "d", 1: "u", 2: "ull", 3: "ull", 4: "sll", 5: "i", 6: "u"}
_SHORT = 6
