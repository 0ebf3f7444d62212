# pyright: basic
"""Expert parallel: each rank of a group holds some experts of every layer, and tokens go to those that they were routed to.

For models of Transformers whose experts are one tensor a layer (``gate_up_proj`` and the like, an expert a row), called with the
tokens, their experts and the weights of these. The rows of tokens are sorted by expert, exchanged (``all_to_all_single``), go
through the model's own experts, and come back. Everything else is data-parallel. The tensors are DTensors, which the norm,
checkpoints and other layouts know as those of FSDP2.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from gpuwise.errors import InputError, LayoutError
from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.meter import Meter
from gpuwise.train.ranks.wrap import local_of

FORWARDS = (("hidden_states", "top_k_index", "top_k_weights"), ("hidden_states", "router_indices", "routing_weights"))
"""Call arguments of experts (Transformers from 5.0 on; GPT-OSS has different names)."""
CALLED = "tokens, their experts and the weights of these"
HINT = "--sharding zero3 divides any model, experts too"


def expert_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The experts of each layer, by path: an expert is a row of every one of their parameters."""
    return {name: m for name, m in model.named_modules() if is_experts(m)}


def check_experts(model: nn.Module, layout: Layout) -> None:
    """Raises InputError where the whole model has no experts that ranks can divide."""
    if layout.ep > 1 and not expert_layers(model):
        raise InputError(
            f"expert parallel: no layer of {type(model).__name__} holds experts as rows of one tensor, called with {CALLED}",
            hint=HINT,
        )


def is_experts(module: nn.Module) -> bool:
    """Whether all parameters of ``module`` are its own, one row an expert, and its forward takes one of :data:`FORWARDS`."""
    n, parameters = getattr(module, "num_experts", None), list(module.parameters(recurse=False))
    if (
        not parameters
        or any(p.dim() < 2 or p.shape[0] != n for p in parameters)
        or len(parameters) != len(list(module.parameters()))
    ):
        return False
    return tuple(inspect.signature(type(module).forward).parameters)[1:] in FORWARDS


class _Exchange(torch.autograd.Function):
    """Rows to the ranks that need them, and their gradients back. ``owned``: whether the rows that go are this rank's own tokens,
    rather than those that come; their bytes are counted, for they do not depend on the routing."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: list[int], got: list[int], owned: bool, group: Any, meter: Meter
    ) -> torch.Tensor:
        ctx.given = sent, got, owned, group, meter
        return _exchanged(rows, sent, got, owned, group, meter)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        sent, got, owned, group, meter = ctx.given
        return _exchanged(gradients[0], got, sent, not owned, group, meter), None, None, None, None, None


def _exchanged(rows: torch.Tensor, sent: list[int], got: list[int], owned: bool, group: Any, meter: Meter) -> torch.Tensor:
    arrived = rows.new_empty(sum(got), *rows.shape[1:])
    # gloo sends memory in storage order and ignores strides (pytorch#24836)
    meter.all_to_all(arrived, rows.contiguous(), got, sent, group, rows if owned else arrived)
    return arrived


class _Share(torch.autograd.Function):
    """This rank's share of rows that all ranks of the group have; the gradients of all shares."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.given = len(rows), group
        return rows[share(len(rows), group)]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gathered(gradients[0], *ctx.given), None


class _Whole(torch.autograd.Function):
    """The rows of all ranks of the group, which all go on with them; the gradient of this rank's."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, n: int, group: Any) -> torch.Tensor:
        ctx.own = share(n, group)
        return gathered(rows, n, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0][ctx.own], None, None


def share(n: int, group: Any) -> slice:
    """This rank's slice of ``n`` rows: equal on every rank, with fewer or none on the last ones."""
    width = -(-n // group.size())
    return slice(min(group.rank() * width, n), min((group.rank() + 1) * width, n))


def gathered(rows: torch.Tensor, n: int, group: Any) -> torch.Tensor:
    """All ``n`` rows, of which each rank gives its share."""
    width = -(-n // group.size())
    made = rows.new_empty(width * group.size(), *rows.shape[1:])
    padded = nn.functional.pad(rows.reshape(len(rows), -1), (0, 0, 0, width - len(rows))).view(width, *rows.shape[1:])
    dist.all_gather_into_tensor(made, padded.contiguous(), group=group)
    return made[:n]


class Experts:
    """The experts of a model over groups of ``layout.ep`` neighbours among the ranks of a stage, and copies of them over the
    groups. ``tensor``: the group of tensor ranks, if any."""

    def __init__(self, model: nn.Module, layout: Layout, device_type: str, meter: Meter, tensor: Any = None) -> None:
        self._meter, self._tensor = meter, tensor
        layers = expert_layers(model)
        shape = (layout.pp, layout.dp * layout.cp * layout.tp // layout.ep, layout.ep)
        mesh = init_device_mesh(device_type, shape, mesh_dim_names=("stage", "copy", "expert"))
        self.mesh = mesh["copy", "expert"]
        self.group, self._copies = self.mesh["expert"].get_group(), self.mesh["copy"].get_group()
        self.parameters: dict[str, nn.Parameter] = {}
        """Parameters of the experts, by name."""
        for path, module in layers.items():
            n_experts: Any = module.num_experts
            n = int(n_experts)
            if n % layout.ep:
                raise LayoutError(
                    "experts", f"{n} experts do not divide over {layout.ep} ranks", hint="take an --ep that divides them"
                )
            for name, parameter in list(module.named_parameters(recurse=False)):
                parts = distribute_tensor(parameter.detach(), self.mesh, (Replicate(), Shard(0)), src_data_rank=None)
                module._parameters[name] = nn.Parameter(parts, requires_grad=parameter.requires_grad)
                self.parameters[f"{path}.{name}"] = module._parameters[name]  # type: ignore[assignment]
            module.num_experts = n // layout.ep  # type: ignore[assignment]
            replace_forward(module, self._divided)

    def add_copies(self) -> None:
        """Gradients of experts as sums over the ranks that hold the same ones. An expert that no token came to has a gradient of
        zeros, as it has where all experts are in one tensor."""
        for parameter in self.parameters.values():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self._copies.size() > 1:
                dist.all_reduce(local_of(parameter.grad), group=self._copies)

    def _divided(self, module: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
            tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
            n_each = top_k_index.shape[-1]
            if self._tensor is None:
                return exchanged(tokens, top_k_index, top_k_weights).view_as(hidden_states)
            n, chosen = len(tokens), top_k_index.reshape(-1, n_each)
            ours = _Share.apply(tokens, self._tensor)
            weights = _Share.apply(top_k_weights.reshape(-1, n_each), self._tensor)
            output = exchanged(ours, chosen[share(n, self._tensor)], weights)
            return _Whole.apply(output, n, self._tensor).view_as(hidden_states)  # type: ignore[union-attr]

        def exchanged(tokens: Any, top_k_index: torch.Tensor, top_k_weights: Any) -> torch.Tensor:
            n_local, n_each = int(module.num_experts), top_k_index.shape[-1]  # type: ignore[arg-type]
            chosen = top_k_index.reshape(-1)
            order = chosen.argsort(stable=True)
            here = torch.bincount(chosen, minlength=n_local * self.group.size())
            coming = torch.zeros_like(here)
            self._meter.all_to_all(coming, here, None, None, self.group, here)
            sent, got = (n.view(-1, n_local).sum(1).tolist() for n in (here, coming))
            rows = _Exchange.apply(tokens[order // n_each], sent, got, True, self.group, self._meter)
            experts = torch.arange(n_local, device=coming.device).repeat(self.group.size()).repeat_interleave(coming)
            output = self._computed(module, inner, rows, experts)
            back = _Exchange.apply(output, got, sent, False, self.group, self._meter)
            weighted = back * top_k_weights.reshape(-1)[order, None]
            return torch.zeros_like(tokens).index_add(0, order // n_each, weighted.to(tokens.dtype))

        return run

    def _computed(self, module: nn.Module, inner: Callable[..., Any], rows: Any, experts: torch.Tensor) -> torch.Tensor:
        """The model's own experts on the rows that came, with this rank's part of their tensors."""
        if not len(rows):
            # the others wait for this rank's part in the backward pass too, even if only their experts are trained
            return rows * 1.0 + sum(local_of(p).flatten()[0] * 0.0 for p in module._parameters.values() if p is not None)
        parameters = dict(module._parameters)
        module._parameters.clear()
        for name, parameter in parameters.items():
            # not by setattr: a part of a parameter identifies itself
            vars(module)[name] = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        try:
            return inner(rows, experts[:, None], torch.ones_like(rows[:, :1]))
        finally:
            for name in parameters:
                del vars(module)[name]
            module._parameters.update(parameters)
