# pyright: basic
"""Tensor parallel layers of Transformers' models (``parallelize_module``): columns of the projections into heads and into the
inner width, rows of those back, so a layer communicates once after attention and once after the MLP in each direction.

One layer is run before and after splitting: a model whose layers have these names but compute something else is rejected.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from gpuwise.errors import InputError
from gpuwise.train.levers.items import random_numbers_kept
from gpuwise.train.levers.modules import each_tensor
from gpuwise.train.ranks.parallel.experts import is_experts
from gpuwise.train.ranks.parallel.halves import (
    ATTENTION,
    HINT,
    PARTS,
    Half,
    check_columns,
    halves_of,
    in_order,
    is_turned,
    order_of,
    part_sizes,
    unlike,
)
from gpuwise.train.ranks.parallel.stages import LayerCall
from gpuwise.workload.capture.packages import without_caches
from gpuwise.workload.capture.repeats import largest_kind, repeated_blocks

HIDDEN = "hidden_states"
"""Transformers' name for the input of a layer's halves."""
NORMS = tuple(f"self_attn.{n}" for n in ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm"))
"""Norms of queries and keys per head (Qwen3, Persimmon, Hunyuan): every rank has the weights, and gradients of a part of the
heads."""
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "num_key_value_heads", "num_kv_heads", "all_head_size", "split_size")
"""Numbers of heads, or of their columns, by which an attention cuts what its projections give."""
SLOPES = ("alibi", "position_bias")
"""Arguments of an attention that have a row for each head (BLOOM, Falcon, MPT)."""
NEAR = 1e-3
"""How far a divided layer may be from the whole one, of the largest number: sums are made in another order."""


@dataclass(frozen=True, slots=True)
class DividedLayers:
    """Layers as they were divided."""

    rows: dict[nn.Module, list[str]]
    """Names of the matrices whose results are sums over the ranks, by layer."""
    needed: frozenset[str]
    """Those of them, and of a layer's experts, whose results the backward pass of a recomputed layer makes again."""
    columns: dict[str, str]
    """A matrix that is divided by columns before each of them."""
    unmoved: frozenset[str] = frozenset()
    """Those of them before which nothing is trained in the first layer: what their columns take has no gradient."""


def parallelize(model: nn.Module, mesh: DeviceMesh, call: LayerCall, *, on_host: bool = False) -> DividedLayers:
    """Divide the layers of ``model`` over the ranks of ``mesh``, and compare one by ``call``, but not where it has to stay
    ``on_host``. Raises InputError for a model of another shape, LayoutError where heads or widths do not divide."""
    blocks = largest_kind(repeated_blocks(model))
    if not blocks:
        raise unlike(type(model).__name__, "repeated layers")
    halves = [(block, _checked(block, mesh.size())) for block in blocks]
    rows = {block: [half.row for half in of] for block, of in halves}
    inside = [name for name, module in call.block.named_modules() if is_experts(module)]
    needed = made_again(call, [*rows[call.block], *inside], None if on_host else torch.device(mesh.device_type))
    before = None if on_host else _outcome(call, mesh)
    for block, of in halves:
        for half in of:
            _divide(block, half, mesh)
        plan: dict[str, Any] = {}
        for name in NORMS:
            norm = dict(block.named_modules()).get(name)
            if norm is not None and next(norm.parameters(), None) is not None:
                plan[name] = SequenceParallel(sequence_dim=2, use_local_output=True)
        parallelize_module(block, mesh, plan)
    if before is not None:
        _compare(call, before, mesh)
    for name in head_names(model):
        parallelize_module(model, mesh, {name: ColwiseParallel(output_layouts=Replicate())})
    return DividedLayers(rows, needed, {half.row: half.columns[0] for _, of in halves for half in of})


def head_names(model: nn.Module) -> list[str]:
    """The matrix of logits, where no embedding has the same one."""
    tied = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    heads = [(n, getattr(model, n, None)) for n in ("lm_head", "embed_out")]
    return [n for n, m in heads if isinstance(m, nn.Linear) and id(m.weight) not in tied]


def has_experts(block: nn.Module) -> bool:
    """Whether a layer's second half are experts: they stay whole on tensor ranks, or are divided by themselves."""
    return any(is_experts(m) for m in block.modules())


def _checked(block: nn.Module, n: int) -> list[Half]:
    halves = halves_of(block, experts=has_experts(block))
    for half in halves:
        inside = f"{half.inside}." if half.inside else ""
        norms = NORMS if half in ATTENTION else ()
        for name, module in block.named_modules() if inside else ():
            parameters = list(module.parameters(recurse=False))
            if name.startswith(inside) and parameters and name not in (*half.names, *norms):
                raise unlike(type(block).__name__, name, has=True)
        check_columns(block, half, n)
    return halves


def _divide(block: nn.Module, half: Half, mesh: DeviceMesh) -> None:
    n = mesh.size()
    inside: Any = block.get_submodule(half.inside) if half.inside else block
    plan: dict[str, Any] = {}
    for name in half.columns:
        module = block.get_submodule(name)
        if half.fused == PARTS:
            _rearrange(module, order_of(part_sizes(block, half, name), n))
        plan[name] = _TurnedColumns() if is_turned(module) else ColwiseParallel()
    plan[half.row] = _TurnedRows() if is_turned(block.get_submodule(half.row)) else RowwiseParallel()
    parallelize_module(block, mesh, plan)
    if half.added_to:
        # a DTensor is a view, which autograd does not allow to change
        block.get_submodule(half.row).register_forward_hook(lambda _, __, output: output.clone())
    if len(half.columns) > 1:
        inside.register_forward_pre_hook(SharedInput(mesh), with_kwargs=True)
    if half not in ATTENTION:
        return
    for name in COUNTS:
        if isinstance(whole := getattr(inside, name, None), int) and whole >= n:
            setattr(inside, name, whole // n)
    if half.fused == PARTS and hasattr(inside, "config"):
        # Phi-3 splits by its configuration
        inside.config = config = copy.copy(inside.config)
        config.num_attention_heads = config.num_attention_heads // n
    if not set(SLOPES).isdisjoint(inspect.signature(type(inside).forward).parameters):
        inside.register_forward_pre_hook(_OwnSlopes(mesh), with_kwargs=True)


def _rearrange(module: nn.Module, order: tuple[tuple[int, int], ...]) -> None:
    """Every rank's columns together, whichever part they are of."""
    for parameter in module.parameters(recurse=False):
        parameter.data = in_order(parameter.data, 1 if is_turned(module) and parameter.dim() == 2 else 0, order)
    module.column_order = order  # type: ignore[assignment]


class _TurnedColumns(ParallelStyle):
    """ColwiseParallel of a matrix with its inputs as rows."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def put(_: str, owner: nn.Module, mesh: DeviceMesh) -> None:
            for name, parameter in list(owner.named_parameters(recurse=False)):
                distribute(owner, name, parameter, mesh, Shard(parameter.dim() - 1))

        return distribute_module(
            module,
            device_mesh,
            put,
            lambda _, inputs, mesh: (_distributed(inputs[0], mesh, Replicate()),),  # type: ignore[arg-type]
            lambda _, output, mesh: output.to_local(),  # type: ignore[arg-type]
        )


class _TurnedRows(ParallelStyle):
    """RowwiseParallel of a matrix with its inputs as rows."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def put(_: str, owner: nn.Module, mesh: DeviceMesh) -> None:
            for name, parameter in list(owner.named_parameters(recurse=False)):
                distribute(owner, name, parameter, mesh, Shard(0) if parameter.dim() == 2 else Replicate())

        return distribute_module(
            module,
            device_mesh,
            put,
            lambda _, inputs, mesh: (_distributed(inputs[0], mesh, Shard(-1)),),  # type: ignore[arg-type]
            lambda _, output, mesh: output.redistribute(placements=(Replicate(),)).to_local(),  # type: ignore[arg-type]
        )


def distribute(owner: nn.Module, name: str, parameter: nn.Parameter, mesh: DeviceMesh, placement: Any) -> None:
    """Replace a parameter of ``owner`` by one distributed over the ranks of ``mesh``."""
    divided = distribute_tensor(parameter.data, mesh, [placement])
    owner.register_parameter(name, nn.Parameter(divided, requires_grad=parameter.requires_grad))


def _distributed(tensor: torch.Tensor, mesh: DeviceMesh, placement: Any) -> DTensor:
    return tensor if isinstance(tensor, DTensor) else DTensor.from_local(tensor, mesh, (placement,), run_check=False)


class SharedInput:
    """Input of all column-parallel matrices of a half as one DTensor: its gradients are summed here before communication."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if args and isinstance(args[0], torch.Tensor):
            return (_distributed(args[0], self._mesh, Replicate()), *args[1:]), kwargs
        if not args and isinstance(kwargs.get(HIDDEN), torch.Tensor):
            return args, {**kwargs, HIDDEN: _distributed(kwargs[HIDDEN], self._mesh, Replicate())}
        return args, kwargs


class _OwnSlopes:
    """Per-head term of an attention, for this rank's heads."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._rank, self._n = mesh.get_local_rank(), mesh.size()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        names = tuple(inspect.signature(type(module).forward).parameters)[1:]
        arguments = dict(zip(names, args, strict=False)) | kwargs
        heads = next(h for name in ("num_heads", "n_heads") if isinstance(h := getattr(module, name, None), int))
        for name in SLOPES:
            if isinstance(whole := arguments.get(name), torch.Tensor):
                rows = whole.unflatten(0, (-1, heads * self._n)).narrow(1, self._rank * heads, heads).flatten(0, 1)
                if name in kwargs:
                    kwargs = {**kwargs, name: rows}
                else:
                    at = names.index(name)
                    args = (*args[:at], rows, *args[at + 1 :])
        return args, kwargs


# --- whether a divided layer is the whole one ---


def made_again(call: LayerCall, names: Collection[str], device: torch.device | None) -> frozenset[str]:
    """Modules of a layer, among ``names``, that end before it saves its last tensor for the backward pass: if the layer is
    recomputed they run again completely, while later operations do not (``early_stop`` of torch's checkpoint). ``device``:
    device of the run, None for the layer's own."""
    done: list[str] = []
    needed: list[str] = []
    block = call.block
    handles = [block.get_submodule(n).register_forward_hook(lambda *_, n=n: done.append(n)) for n in names]
    training = _training(block.modules())
    args, kwargs, _ = _inputs(call, device)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        needed[:] = done
        return tensor

    try:
        block.to(device).train()
        with random_numbers_kept(), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            block(*args, **kwargs)
    finally:
        _restore(training)
        for handle in handles:
            handle.remove()
    return frozenset(needed)


def _training(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, bool]]:
    return [(m, m.training) for m in modules]


def _restore(training: list[tuple[nn.Module, bool]]) -> None:
    for module, was in training:
        module.training = was


def given_to(call: LayerCall, device: torch.device | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs of the layer, without caches, on ``device`` (None: its own)."""
    args, kwargs = without_caches(call.args, call.kwargs)
    return each_tensor(args, lambda t: t.detach().to(device)), each_tensor(kwargs, lambda t: t.detach().to(device))


def _inputs(call: LayerCall, device: torch.device | None) -> tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]:
    """Inputs of the layer on the device, and the hidden state among them, which has a gradient."""
    args, kwargs = given_to(call, device)
    name = next(iter(kwargs), "")
    hidden = (args[0] if args else kwargs[name]).clone().requires_grad_()
    args, kwargs = ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, name: hidden})
    return args, kwargs, hidden


def _outcome(call: LayerCall, mesh: DeviceMesh) -> dict[str, torch.Tensor] | None:
    """Output of the layer, gradient of its input, and the norm of each parameter's gradient; None over ranks that do not
    exist."""
    if dist.get_backend() == "fake":
        return None
    block, device = call.block, torch.device(mesh.device_type)
    args, kwargs, hidden = _inputs(call, device)
    training = _training(block.modules())
    block.to(device).eval()
    try:
        with random_numbers_kept(), torch.enable_grad():
            output = block(*args, **kwargs)
            output = output if isinstance(output, torch.Tensor) else output[0]
            torch.manual_seed(0)
            output.backward(torch.randn(output.shape, dtype=output.dtype).to(device))
        assert hidden.grad is not None
        tensors = {"output": output.detach(), "gradient of its input": hidden.grad.detach()}
        for name, parameter in block.named_parameters():
            if parameter.grad is not None:
                whole = parameter.grad
                whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
                tensors[f"gradient of {name}"] = whole.float().norm()
        return tensors
    finally:
        _restore(training)
        for parameter in block.parameters():
            parameter.grad = None


def _compare(call: LayerCall, before: dict[str, torch.Tensor], mesh: DeviceMesh) -> None:
    kind = type(call.block).__name__
    try:
        after = _outcome(call, mesh)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
        message = next(iter(str(error).splitlines()), "")
        raise InputError(f"tensor parallel: a {kind} does not run divided: {message[:200]}", hint=HINT) from error
    assert after is not None
    # of a bias of keys it is nothing but rounding
    least = NEAR * max((float(v.abs().max()) for v in before.values() if not v.dim()), default=0.0)
    for name, value in before.items():
        largest = max(float(value.abs().max()), least if not value.dim() else 0.0)
        near = max(NEAR, 16 * torch.finfo(value.dtype).eps) * largest
        off = float((after[name].float() - value.float()).abs().max()) if after[name].shape == value.shape else float("inf")
        if not off <= near:
            raise InputError(f"tensor parallel: a {kind} that is divided computes something else: the {name} differs", hint=HINT)
