# pyright: basic
"""A model laid out over ranks: DDP, FSDP2 (``fully_shard``), mixed precision, recomputed blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from gpuwise.errors import UnknownNameError
from gpuwise.train.levers.checkpointing import recomputed
from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.levers.modules import autocast
from gpuwise.train.ranks.compress import compression
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.meter import Meter
from gpuwise.workload.capture.repeats import repeated_blocks, unshared_blocks

_NAMES = ("forward_sync_buffers", "broadcast_buffers")
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes of DDP's first bucket and of the others (its defaults, PyTorch 2.7 to 2.13)."""
NO_BUFFERS: dict[str, Any] = {next(n for n in _NAMES if n in signature(DistributedDataParallel).parameters): False}
"""DDP does not exchange buffers before each forward pass: the name since PyTorch 2.13, and the older one."""


@dataclass(frozen=True, slots=True)
class ParallelModel:
    """A model on this rank. ``call`` is what a step is given; ``model`` has the names that the file gave its parameters."""

    call: nn.Module
    model: nn.Module
    mesh: DeviceMesh
    multiple: float = 1.0
    """Factor that turns reduced gradients into the sum over the ranks."""

    def local(self, last: bool) -> AbstractContextManager[Any]:
        """The context of a micro-batch: DDP exchanges gradients after the last one, FSDP2 after each."""
        if isinstance(self.call, DistributedDataParallel) and not last:
            return self.call.no_sync()
        return nullcontext()


def mesh_of(layout: Layout, device_type: str) -> DeviceMesh:
    """Pipeline stages outermost, tensor ranks innermost; data-parallel ranks between, in replicas where they are hybrid, and the
    ranks that share rows next to each other among them."""
    n_shard = layout.shard_group if layout.sharding == "hybrid" else layout.dp
    shape = (layout.pp, layout.dp // n_shard, n_shard * layout.cp, layout.tp)
    return init_device_mesh(device_type, shape, mesh_dim_names=("pp", "replicate", "shard", "tp"))


def device_of(mesh: DeviceMesh) -> torch.device:
    """Device of this rank's tensors."""
    return torch.device(mesh.device_type, torch.cuda.current_device()) if mesh.device_type == "cuda" else torch.device("cpu")


def wrap(
    model: nn.Module,
    layout: Layout,
    mesh: DeviceMesh,
    meter: Meter,
    blocks: list[nn.Module] | None = None,
    apart: Mapping[str, nn.Parameter] = MappingProxyType({}),
) -> ParallelModel:
    """The model over the data-parallel ranks of the mesh, its parameters on the mesh's device. ``blocks``: the repeated layers
    that this rank has, where others have the rest. ``apart``: parameters, by name, that are divided already."""
    device = device_of(mesh)
    torch.set_float32_matmul_precision("high" if layout.precision == "tf32" else "highest")
    blocks = repeated_blocks(model) if blocks is None else blocks
    if layout.recompute == "full":
        for block in blocks[:: layout.recompute_every]:
            replace_forward(block, recomputed)
    if layout.offload_activations:
        for block in blocks:
            replace_forward(block, kept_on_host)
    if layout.sharding == "none" or layout.n_replicas == 1:
        model.to(device)
        if layout.precision == "bf16":
            autocast(model, "bf16", lambda *_, **__: None)
        if layout.n_replicas == 1 or layout.pp > 1:
            return ParallelModel(model, model, mesh)
        group = mesh["shard"].get_group()
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, list(apart))
        # running statistics are synchronised by the loop, for any wrapper of the model
        ddp = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True, **NO_BUFFERS)
        ddp.register_comm_hook(*compression(layout, group, meter))
        return ParallelModel(ddp, model, mesh)
    return _shard(model, blocks, layout, mesh, device, {"ignored_params": set(apart.values())} if apart else {})


def _shard(
    model: nn.Module, blocks: list[nn.Module], layout: Layout, mesh: DeviceMesh, device: torch.device, more: dict[str, Any]
) -> ParallelModel:
    half = layout.precision == "bf16"
    host: OffloadPolicy = CPUOffloadPolicy(pin_memory=device.type == "cuda") if layout.offload_optimizer else OffloadPolicy()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    outermost = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32) if half else policy
    inner = mesh["replicate", "shard"] if layout.sharding == "hybrid" else mesh["shard"]
    keep = layout.sharding == "zero2"
    blocks = unshared_blocks(model, blocks)
    for block in blocks:
        fully_shard(block, mesh=inner, reshard_after_forward=not keep, mp_policy=policy, offload_policy=host, **more)
    fully_shard(model, mesh=inner, reshard_after_forward=False, mp_policy=outermost, offload_policy=host, **more)
    if layout.offload_optimizer:
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(device)
    else:
        model.to(device)
    sums = hasattr(model, "set_force_sum_reduction_for_comms")
    if sums:
        # gloo has no average, and another order of dividing is another result
        for module in (model, *blocks):
            module.set_gradient_divide_factor(1.0)  # type: ignore[operator]
            module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    return ParallelModel(model, model, mesh, 1.0 if sums else float(layout.n_replicas))


def kept_on_host(module: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
    """``inner``, with its saved tensors offloaded to host memory for the backward pass, pinned if there is a GPU."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
            return inner(*args, **kwargs)

    return run


def find_module(model: nn.Module, name: str) -> nn.Module:
    """Module by its path. Raises UnknownNameError with the nearest paths."""
    known = dict(model.named_modules())
    if name not in known or not name:
        raise UnknownNameError("module", name, [n for n in known if n])
    return known[name]


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gradients(model: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Parameters with the parts of their gradients on this rank."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            yield parameter, local_of(parameter.grad)


def make_whole(model: nn.Module) -> None:
    """Convert gradients to the layout of their parameters: gradients of per-head norms are parts on tensor ranks, which the
    global norm and the optimizer would take for whole ones."""
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def scale(model: nn.Module, factor: float) -> None:
    """Multiply all gradients."""
    torch._foreach_mul_([g for _, g in gradients(model)], factor)  # type: ignore[reportPrivateImportUsage]


def norm(model: nn.Module, layout: Layout, holders: Mapping[str, Sequence[int]] | None = None) -> float:
    """Euclidean norm of all gradients over all ranks, with each element counted once. ``holders``: pipeline stages of shared
    parameters."""
    total = torch.zeros((), dtype=torch.float64)
    several = {id(p): len((holders or {})[n]) for n, p in model.named_parameters() if n in (holders or {})}
    for parameter, gradient in gradients(model):
        parts = layout.pp / several.get(id(parameter), 1)
        if isinstance(parameter, DTensor):
            for at, placement in enumerate(parameter.placements):
                parts *= 1 if placement.is_replicate() else parameter.device_mesh.size(at)
        total += gradient.double().square().sum().cpu() * parts / layout.n_ranks
    if layout.n_ranks > 1:
        dist.all_reduce(total, group=control_group())
    return float(total.sqrt())


_CONTROL: list[Any] = []


def control_group() -> Any:
    """A group for numbers of the processes themselves, over gloo for any device."""
    if dist.get_backend() == "gloo":
        return dist.group.WORLD
    if not _CONTROL:
        _CONTROL.append(dist.new_group(backend="gloo"))
    return _CONTROL[0]


def equalise_statistics(model: nn.Module, group: Any, source: int, call: Callable[..., Any] = dist.broadcast) -> None:
    """Running statistics of the first data-parallel rank, for all (as DDP does before every forward pass)."""
    for buffer in running(model):
        call(buffer, source, group=group)


def running(model: nn.Module) -> list[torch.Tensor]:
    """Buffers that training moves: those of normalisation."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    return [b for m in norms for b in m.buffers(recurse=False)]


def bucket_assignment(parameters: Sequence[torch.Tensor]) -> list[list[int]]:
    """Numbers of the parameters, in the buckets in which DDP exchanges their gradients."""
    assign: Any = vars(dist)["_compute_bucket_assignment_by_size"]  # DDP's own
    return assign(parameters, [FIRST_BUCKET, BUCKET])[0]
