# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Distributed steps in one process: a fake process group of any size, its collectives recorded, nothing sent.

One rank of ``world_size`` runs; the others are not needed, since what a rank allocates and sends does not depend on what
the others compute. ``torchrun`` scripts find their environment variables and their ``init_process_group`` answered; DDP,
FSDP, DTensor and pipelines' sends call the same c10d operations as on real hardware, which end here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gpuwise.errors import InputError
from gpuwise.workload.capture.device.ledger import META, inside
from gpuwise.workload.capture.device.patching import Patches

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

_WORK_ONLY = frozenset(
    {
        "alltoall_base_",
        "barrier",
        "allreduce_coalesced_",
        "allgather_into_tensor_coalesced_",
        "allgather_coalesced_",
        "reduce_scatter_tensor_coalesced_",
        "send",
        "recv_",
        "recv_any_source_",
        "reduce_",
        "gather_",
    }
)
"""c10d operations that return only their work; the others return their first argument with it."""
PAYLOADS: dict[str, tuple[str, int]] = {
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "send": ("send_recv", 0),
    "recv_": ("send_recv", 0),
    "recv_any_source_": ("send_recv", 0),
    "reduce_": ("reduce_scatter", 0),
    "gather_": ("all_gather", 0),
    "scatter_": ("broadcast", 1),
    "barrier": ("all_reduce", -1),
    "monitored_barrier_": ("all_reduce", -1),
    "all_gather_into_tensor": ("all_gather", -2),
    "all_gather_into_tensor_out": ("all_gather", -2),
    "all_gather_into_tensor_coalesced": ("all_gather", -2),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
    "reduce_scatter_tensor_out": ("reduce_scatter", 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
    "all_reduce": ("all_reduce", 0),
    "all_reduce_": ("all_reduce", 0),
    "all_reduce_coalesced": ("all_reduce", 0),
    "all_reduce_coalesced_": ("all_reduce", 0),
    "broadcast": ("broadcast", 0),
    "all_to_all_single": ("all_to_all", 0),
    "shard_dim_alltoall": ("all_to_all", 0),
}
"""Collective as :mod:`gpuwise.predict.comm.collectives` names it, and which argument is its payload (-2: the result;
-1: none)."""
_ENVIRONMENT = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)


def payload_bytes(tensors: Any) -> int:
    """Bytes of the tensors in nested lists."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(payload_bytes(t) for t in tensors) if isinstance(tensors, (list, tuple)) else 0


class _WithGroup:
    """An observer that receives collectives with their group."""

    def __init__(self, observer: Any, name: str, group: Any) -> None:
        self._observer, self._name, self._group = observer, name, group

    def operation(self, func: Any, args: Any, kwargs: Any, result: Any, flags: int) -> None:
        described = _described(self._name, args, result, self._group)
        self._observer.operation(func, args, {**kwargs, **described}, result, flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._observer, name)


def _described(name: str, args: Any, result: Any, group: Any) -> dict[str, Any]:
    """Description of a collective for its signature: kind, payload and group."""
    import torch.distributed as dist

    kind, at = PAYLOADS.get(name, ("all_reduce", 0))
    tensors = () if at == -1 else result if at == -2 else args[at]
    ranks = tuple(dist.get_process_group_ranks(group))
    return {"collective": kind, "payload_bytes": payload_bytes(tensors), "group_size": len(ranks), "group_ranks": ranks}


def _c10d(mode: Any, info: Any, args: Any, kwargs: Any) -> Any:
    """A c10d operation: nothing is sent, the tensors given are the result, the work is done at once."""
    from torch._C._distributed_c10d import ProcessGroup

    name = info.func._schema.name.partition("::")[2]
    position = next(i for i, a in enumerate(info.func._schema.arguments) if a.name == "process_group")
    group = ProcessGroup.unbox(args[position])
    described = _described(name, args, args[0], group)
    plain = tuple(None if i == position or type(a).__name__ == "ScriptObject" else a for i, a in enumerate(args))
    acc = mode.acc
    if described["payload_bytes"] or name != "barrier":
        if _on_device(acc, args):
            acc.observer.operation(info.func, plain, {**_plain(kwargs), **described}, args[0], acc.region_flags())
    else:
        acc.sync("the ranks wait for each other (barrier)")
    work = _done(args[0])
    return work if name in _WORK_ONLY else None if name == "monitored_barrier_" else (args[0], work)


def _done(result: Any) -> Any:
    """A finished work whose future holds ``result``, as DDP's reducer and its hooks read it."""
    from torch._C._distributed_c10d import _create_work_from_future

    future: Any = torch.futures.Future()
    tensors = result if isinstance(result, (list, tuple)) else [result]
    future.set_result(list(tensors))
    return _create_work_from_future(future).boxed()


def _plain(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if type(v).__name__ != "ScriptObject"}


def _on_device(acc: DeviceState, value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_meta and acc.ledger.label(value).type == "cuda"
    return isinstance(value, (list, tuple)) and any(_on_device(acc, v) for v in value)


def _functional(mode: Any, info: Any, args: Any, kwargs: Any) -> Any:
    """A functional collective (DTensor's): its own meta kernel; the group is passed to the observer."""
    from torch.distributed.distributed_c10d import _resolve_process_group

    schema = info.func._schema
    name = schema.name.partition("::")[2]
    position = next((i for i, a in enumerate(schema.arguments) if a.name in ("group_name", "tag")), None)
    if position is None or position >= len(args):
        return mode.run(info, args, kwargs)
    group = _resolve_process_group(args[position])
    acc = mode.acc
    observer = acc.observer
    acc.observer = _WithGroup(observer, name, group)
    try:
        return mode.run(info, args, kwargs)
    finally:
        acc.observer = observer


def _handlers() -> dict[Any, Callable[..., Any]]:
    handlers: dict[Any, Callable[..., Any]] = {}
    for library, handler in ((torch.ops.c10d, _c10d), (torch.ops._c10d_functional, _functional)):
        for name in PAYLOADS:
            packet = getattr(library, name, None)
            if packet is not None:
                handlers.update({getattr(packet, o): handler for o in packet.overloads()})
    return handlers


def load_distributed() -> None:
    """Import what distributed programs import, before torch pretends to have a device."""
    for name in ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.nn.parallel.distributed"):
        importlib.import_module(name)


@contextmanager
def process_group(acc: DeviceState, world_size: int, rank: int = 0, ranks_per_node: int = 8) -> Iterator[None]:
    """Inside the context this process is rank ``rank`` of ``world_size`` simulated ones.

    Raises InputError if a real process group exists already, or if the rank is not in the group.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise InputError(f"rank {rank} of a world of {world_size}", hint="ranks go from 0 to one less than the world's size")
    import torch.distributed as dist

    if not dist.is_available():
        raise InputError("this build of torch has no torch.distributed", hint="install a build with it")
    if dist.is_initialized():
        raise InputError("a process group is initialised already", hint="capture before init_process_group, or destroy it first")
    patches = Patches()
    local = min(ranks_per_node, world_size)
    with ExitStack() as stack:
        stack.enter_context(_environment(world_size, rank, local))
        stack.callback(patches.undo)
        acc.handlers.update(_handlers())
        _install(acc, patches, world_size, rank)
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@contextmanager
def _environment(world_size: int, rank: int, local: int) -> Iterator[None]:
    environment = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank % local),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(rank // local),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "capture",
        }
    )
    try:
        yield
    finally:
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _install(acc: DeviceState, patches: Patches, world_size: int, rank: int) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original = distributed_c10d.init_process_group

    def init_process_group(*_: Any, **kwargs: Any) -> None:
        """For any requested backend, the fake one of the captured world."""
        if not dist.is_initialized():
            original("fake", rank=rank, world_size=world_size, store=FakeStore())

    patches.set(distributed_c10d, "init_process_group", init_process_group)
    patches.set(dist, "init_process_group", init_process_group)
    patches.set(dist, "is_torchelastic_launched", lambda: True)
    if hasattr(torch._C, "_get_accelerator"):
        patches.set(torch._C, "_get_accelerator", lambda check=None: torch.device("cuda"))
    patches.set(dist, "_verify_params_across_processes", lambda *_: None)
    _install_wrappers(patches)
    _install_sharding(acc, patches)
    _install_fsdp1(patches)


def _install_wrappers(patches: Patches) -> None:
    """Wrapper tensors (DTensor, AsyncCollectiveTensor) are created on the device that C++ sees for their parts: meta."""
    make = torch.Tensor._make_wrapper_subclass

    def make_wrapper(cls: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = META
        return make(cls, size, *args, **kwargs)

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make_wrapper))
    from torch.distributed.tensor import DTensor

    truth = torch._C.TensorBase.device.__get__

    def device(self: Any) -> torch.device:
        """A DTensor is where its local part is."""
        return truth(self) if inside[0] else self._local_tensor.device

    patches.set(DTensor, "device", property(device))
    patches.set(DTensor, "is_cuda", property(lambda self: device(self).type == "cuda"))
    patches.set(DTensor, "is_cpu", property(lambda self: device(self).type == "cpu"))


def _install_sharding(acc: DeviceState, patches: Patches) -> None:
    """DTensor computes shapes with its own fake tensors: there it sees the unmodified torch."""
    from torch.distributed.tensor import _sharding_prop

    cls = _sharding_prop.ShardingPropagator
    name = "_propagate_tensor_meta_non_cached"
    plain = getattr(cls, name)

    def propagate(self: Any, op_schema: Any) -> Any:
        from torch.utils._python_dispatch import _disable_current_modes

        before = inside[0]
        with acc._patches.suspended(), patches.suspended(), _disable_current_modes():
            inside[0] = 0
            try:
                return plain(self, op_schema)
            finally:
                inside[0] = before

    patches.set(cls, name, propagate)


def _install_fsdp1(patches: Patches) -> None:
    """FSDP1 queries the device of an index in C++; the answer is replaced here."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    plain = FullyShardedDataParallel.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(kwargs.get("device_id"), int):
            kwargs["device_id"] = torch.device("cuda", kwargs["device_id"])
        plain(self, *args, **kwargs)

    patches.set(FullyShardedDataParallel, "__init__", init)
