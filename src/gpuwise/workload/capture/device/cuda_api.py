# pyright: basic
"""Stand-ins for ``torch.cuda.*`` and ``torch.accelerator.*`` that answer for the pretended device."""

from __future__ import annotations

import contextlib
import importlib
import types
from typing import TYPE_CHECKING, Any

import torch

from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.device.streams import make_streams

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

_RNN_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
"""``cudnnRNNMode_t``."""


def install(acc: DeviceState, patches: Patches) -> None:
    """Replace the functions of ``torch.cuda`` and ``torch.accelerator``."""
    cuda = torch.cuda
    parts = {**_identity(acc), **_memory(acc), **_random(acc), **make_streams(acc)}
    for name, value in parts.items():
        if hasattr(cuda, name):
            patches.set(cuda, name, value)
    for name, value in _memory(acc).items():
        if hasattr(cuda.memory, name):
            patches.set(cuda.memory, name, value)
    for name, value in _random(acc).items():
        if hasattr(cuda.random, name):
            patches.set(cuda.random, name, value)
    streams = getattr(cuda, "streams", None)
    for name in ("Stream", "Event", "ExternalStream"):
        if streams is not None and hasattr(streams, name):
            patches.set(streams, name, parts[name])
    patches.set(torch, "Stream", parts["Stream"])
    patches.set(torch, "Event", parts["Event"])
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        if hasattr(cuda.nvtx, name):
            patches.set(cuda.nvtx, name, lambda *a, **k: 0)
    _install_accelerator(acc, patches, parts)
    _install_internals(acc, patches)


def _identity(acc: DeviceState) -> dict[str, Any]:
    properties = types.SimpleNamespace(
        name=acc.name,
        major=acc.capability[0],
        minor=acc.capability[1],
        total_memory=acc.total_memory_bytes,
        multi_processor_count=acc.multi_processor_count,
        is_integrated=0,
        is_multi_gpu_board=0,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        L2_cache_size=50 << 20,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        max_threads_per_block=1024,
        clock_rate=1_980_000,
        memory_clock_rate=2_619_000,
        memory_bus_width=5120,
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
        gcnArchName=acc.name,
        uuid="0",
    )

    def set_device(device: Any) -> None:
        index = _index(acc, device)
        if index >= 0:
            acc.device_of(index)
            acc.current_device = index

    def exchange(device: int) -> int:
        before = acc.current_device
        if device >= 0:
            set_device(device)
        return before

    major, minor = acc.capability
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: acc.device_count,
        "current_device": lambda: acc.current_device,
        "set_device": set_device,
        "get_device_name": lambda device=None: acc.name,
        "get_device_capability": lambda device=None: acc.capability,
        "get_device_properties": lambda device=None: properties,
        "synchronize": lambda device=None: acc.sync("torch.cuda.synchronize()"),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or major >= 8,
        "is_tf32_supported": lambda: major >= 8,
        "can_device_access_peer": lambda a, b: True,
        "ipc_collect": lambda: None,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "get_gencode_flags": lambda: "",
        "utilization": lambda device=None: 0,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "_sleep": lambda cycles: None,
        "is_current_stream_capturing": lambda: False,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: None,
        "_lazy_call": lambda call, **kwargs: None,
        "current_blas_handle": lambda: 0,
        "temperature": lambda device=None: 0,
        "power_draw": lambda device=None: 0,
        "clock_rate": lambda device=None: 0,
    }


def _index(acc: DeviceState, device: Any) -> int:
    if device is None:
        return acc.current_device
    if isinstance(device, int):
        return device
    device = torch.device(device)
    return acc.current_device if device.index is None else device.index


class MemPool:
    """A private pool, treated as part of the default one."""

    id = (0, 0)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def use_count(self) -> int:
        return 1

    def snapshot(self) -> list[Any]:
        return []


def _memory(acc: DeviceState) -> dict[str, Any]:
    ledger = acc.ledger

    def stats(device: Any = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": ledger.live_bytes,
            "allocated_bytes.all.peak": ledger.peak_bytes,
            "reserved_bytes.all.current": ledger.live_bytes,
            "reserved_bytes.all.peak": ledger.peak_bytes,
            "active_bytes.all.current": ledger.live_bytes,
            "active_bytes.all.peak": ledger.peak_bytes,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def reset(device: Any = None) -> None:
        ledger.peak_bytes = ledger.live_bytes

    def now(device: Any = None) -> int:
        return ledger.live_bytes

    def peak(device: Any = None) -> int:
        return ledger.peak_bytes

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    return {
        "memory_allocated": now,
        "memory_reserved": now,
        "memory_cached": now,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "max_memory_cached": peak,
        "memory_stats": stats,
        "memory_stats_as_nested_dict": lambda device=None: {},
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": nothing,
        "empty_cache": nothing,
        "memory_summary": lambda *a, **k: "",
        "memory_snapshot": lambda *a, **k: [],
        "mem_get_info": lambda device=None: (max(0, acc.total_memory_bytes - ledger.live_bytes), acc.total_memory_bytes),
        "set_per_process_memory_fraction": nothing,
        "get_per_process_memory_fraction": lambda device=None: 1.0,
        "_record_memory_history": nothing,
        "_dump_snapshot": nothing,
        "_snapshot": lambda *a, **k: {},
        "_set_allocator_settings": nothing,
        "memory_usage": lambda device=None: 0,
        "device_memory_used": now,
        "MemPool": MemPool,
        "use_mem_pool": contextlib.nullcontext,
        "list_gpu_processes": lambda device=None: "",
        "host_memory_stats": dict,
        "reset_peak_host_memory_stats": nothing,
    }


def _random(acc: DeviceState) -> dict[str, Any]:
    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def state(device: Any = "cuda") -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    return {
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": lambda: 0,
        "get_rng_state": state,
        "get_rng_state_all": lambda: [state() for _ in range(acc.device_count)],
        "set_rng_state": nothing,
        "set_rng_state_all": nothing,
    }


def _install_accelerator(acc: DeviceState, patches: Patches, parts: dict[str, Any]) -> None:
    module = getattr(torch, "accelerator", None)
    if module is None:
        return
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: acc.device_count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": parts["current_device"],
        "current_device_idx": parts["current_device"],
        "set_device_index": parts["set_device"],
        "set_device_idx": parts["set_device"],
        "current_stream": parts["current_stream"],
        "set_stream": parts["set_stream"],
        "synchronize": lambda device=None: acc.sync("torch.accelerator.synchronize()"),
        "memory_allocated": parts["memory_allocated"],
        "max_memory_allocated": parts["max_memory_allocated"],
        "memory_reserved": parts["memory_reserved"],
        "max_memory_reserved": parts["max_memory_reserved"],
        "empty_cache": parts["empty_cache"],
        "memory_stats": parts["memory_stats"],
        "reset_peak_memory_stats": parts["reset_peak_memory_stats"],
        "get_memory_info": parts["mem_get_info"],
        "get_device_capability": lambda device=None: {},
        "manual_seed": parts["manual_seed"],
    }
    for name, value in answers.items():
        if hasattr(module, name):
            patches.set(module, name, value)


def _install_internals(acc: DeviceState, patches: Patches) -> None:
    """Private entry points that torch's own Python code calls."""
    group = torch._C._group_tensors_by_device_and_dtype
    ledger = acc.ledger

    def grouped(tensorlistlist: Any, with_indices: bool = False) -> Any:
        out: dict[Any, Any] = {}
        for (device, dtype), value in group(tensorlistlist, with_indices).items():
            if device is not None and device.type == "meta":
                first = next((t for t in value[0][0] if t is not None), None)
                device = ledger.label(first) if first is not None else acc.device_of("cuda")
            out[(device, dtype)] = value
        return out

    patches.set(torch._C, "_group_tensors_by_device_and_dtype", grouped)
    exchange = _identity(acc)["_exchange_device"]
    answers = {
        "_cuda_getDevice": lambda: acc.current_device,
        "_cuda_setDevice": lambda d: None,
        "_accelerator_exchangeDevice": exchange,
        "_accelerator_maybeExchangeDevice": exchange,
    }
    for name, answer in answers.items():
        if hasattr(torch._C, name) or name.startswith("_cuda"):
            patches.set(torch._C, name, answer)
    _install_backends(acc, patches)
    _install_parallel(patches)
    base: Any = torch.Generator

    class Generator(base):
        """A random generator that may say it belongs to the device; its numbers are never used there."""

        def __new__(cls, device: Any = "cpu") -> Any:
            generator = super().__new__(cls, "cpu")
            return generator

        def __init__(self, device: Any = "cpu") -> None:
            self._where = acc.device_of(device)

        @property
        def device(self) -> torch.device:
            return self._where

    patches.set(torch, "Generator", Generator)


def _install_backends(acc: DeviceState, patches: Patches) -> None:
    """Report cuDNN as available; replace the fused inference paths of ``torch.nn`` transformers by the equivalent operations."""
    from torch.backends import cudnn, mha

    def is_acceptable(tensor: torch.Tensor) -> bool:
        return bool(torch._C._get_cudnn_enabled()) and tensor.device.type == "cuda" and tensor.dtype.is_floating_point

    patches.set(cudnn, "is_acceptable", is_acceptable)
    patches.set(importlib.import_module("torch.backends.cudnn.rnn"), "get_cudnn_mode", _RNN_MODES.__getitem__)
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    if hasattr(mha, "get_fastpath_enabled"):
        patches.set(mha, "get_fastpath_enabled", lambda: False)


def _install_parallel(patches: Patches) -> None:
    """``nn.DataParallel`` on the one device: what it scatters and gathers stays where it is."""

    def scatter(tensor: torch.Tensor, devices: Any, chunk_sizes: Any = None, dim: int = 0, streams: Any = None) -> Any:
        return (tensor,) if len(devices) == 1 else tuple(tensor.chunk(len(devices), dim))

    def gather(tensors: Any, dim: int = 0, destination: Any = None) -> Any:
        return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)

    def broadcast(tensor: torch.Tensor, devices: Any) -> Any:
        return [tensor for _ in devices]

    def broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> Any:
        return [list(tensors) for _ in devices]

    patches.set(torch._C, "_scatter", scatter)
    patches.set(torch._C, "_gather", gather)
    patches.set(torch._C, "_broadcast", broadcast)
    patches.set(torch._C, "_broadcast_coalesced", broadcast_coalesced)
