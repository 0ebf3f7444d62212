# pyright: basic
"""The optimizers of a script, seen as they are made: whose parameters they have, and those parameters laid out over the ranks."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from gpuwise.errors import InputError
from gpuwise.train.levers.checkpointing import recomputed
from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.levers.modules import autocast
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.meter import Meter
from gpuwise.train.ranks.predicted import collectives
from gpuwise.train.ranks.script.adapters import adapt
from gpuwise.train.ranks.script.reducer import Reducer
from gpuwise.train.ranks.wrap import wrap
from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.repeats import repeated_blocks

LOSS_BYTES = 2 * 8
"""Bytes communicated for a loss: its weight, and the product."""


class Optimizers:
    """Lays models out as their optimizers are made. ``first`` is called before ranks exchange anything, ``predicted`` takes
    the collectives of a step before it."""

    def __init__(
        self,
        patches: Patches,
        layout: Layout,
        mesh: DeviceMesh,
        meter: Meter,
        *,
        first: Callable[[], None],
        predicted: Callable[[dict[str, list[int]]], None],
    ) -> None:
        self._layout, self._mesh, self._meter = layout, mesh, meter
        self._first, self._predicted = first, predicted
        self._is_sharded = layout.sharding != "none" and layout.dp > 1
        self.reducer = None if self._is_sharded else Reducer()
        self.multiple = 1.0 if self._is_sharded else float(layout.dp)
        self._models: list[ref[nn.Module]] = []
        self.instances: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._laid_out: WeakSet[nn.Module] = WeakSet()
        optimizer = torch.optim.Optimizer
        init, add = optimizer.__init__, optimizer.add_param_group

        @functools.wraps(init)
        def lay_out(owner: Any, params: Any, *args: Any, **kwargs: Any) -> None:
            if owner not in self.instances:
                params = self._lay_out(params)
                self.instances.add(owner)
            init(owner, params, *args, **kwargs)

        @functools.wraps(add)
        def added(owner: Any, group: Any) -> None:
            add(owner, group)
            if self.reducer is not None:
                self.reducer.add(owner.param_groups[-1]["params"])

        patches.set(optimizer, "__init__", lay_out)
        patches.set(optimizer, "add_param_group", added)
        if self._is_sharded:
            whole_states(patches)

    @property
    def is_training(self) -> bool:
        """Whether a loop that begins now trains: gradients are on, and no model is in evaluation."""
        return bool(self.instances) and torch.is_grad_enabled() and all(m.training for m in self.models)

    @property
    def models(self) -> list[nn.Module]:
        """Those whose parameters the optimizers have, in the order of these: the same on every rank."""
        return [m for of in self._models if (m := of()) is not None]

    @property
    def rates(self) -> list[float]:
        """Learning rates of all groups, by size."""
        return sorted(float(group.get("lr", 0.0)) for o in self.instances for group in o.param_groups)

    def _lay_out(self, params: Any) -> Any:
        """The parameters as the optimizer is to have them. Raises InputError where the layout needs more than a script shows."""
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        tensors = list(_tensors(params))
        model = owner_of(tensors)
        if model is None:
            self._models += map(ref, owners_of(tensors))
            changed = self._layout.precision == "bf16" or self._layout.recompute == "full" or self._layout.lora_rank
            if self._is_sharded or changed:
                raise InputError(
                    "the script's optimizer has parameters that do not belong to one model",
                    hint="only DDP in fp32 goes without: leave --sharding, --precision, --recompute and --lora out",
                )
            return params
        self._models.append(ref(model))
        layout = self._layout
        if model in self._laid_out:
            if layout.lora_rank:
                raise InputError(
                    "two optimizers of the script share one model, and adapters need one optimizer",
                    hint="leave --lora and --qlora out",
                )
            return params
        self._laid_out.add(model)
        if layout.lora_rank:
            params = adapt(model, params, layout, self._first)
        if not self._is_sharded:
            self._change(model)
            self._predicted(collectives(model, layout, clips=False, totals_bytes=LOSS_BYTES))
            return params
        self._first()
        if any(isinstance(p, DTensor) for p in model.parameters()):
            raise InputError(f"the script has divided its {type(model).__name__} itself", hint="start it by torchrun")
        self._predicted(collectives(model, layout, clips=False, totals_bytes=LOSS_BYTES))
        before = dict(model.named_parameters(remove_duplicate=False))
        wrapped = wrap(model, layout, self._mesh, self._meter)
        self.multiple = wrapped.multiple
        after = dict(model.named_parameters(remove_duplicate=False))
        sharded = {id(p): after[name] for name, p in before.items()}
        show_whole(model)
        return _replaced(params, sharded)

    def _change(self, model: nn.Module) -> None:
        layout = self._layout
        torch.set_float32_matmul_precision("high" if layout.precision == "tf32" else "highest")
        if layout.recompute == "full":
            blocks = repeated_blocks(model)
            if not blocks:
                raise InputError(f"{type(model).__name__} has no repeated blocks to compute again", hint="leave --recompute out")
            for block in blocks[:: layout.recompute_every]:
                replace_forward(block, recomputed)
        if layout.precision == "bf16":
            autocast(model, "bf16", lambda *_, **__: None)


def _tensors(params: Any) -> Iterator[Any]:
    for each in params:
        if isinstance(each, Mapping):
            value = each["params"]
            yield from _tensors([value] if isinstance(value, torch.Tensor) else value)
        else:
            yield each[1] if isinstance(each, tuple) else each


def _replaced(params: list[Any], sharded: Mapping[int, Any]) -> list[Any]:
    """The same groups, with these parameters in place of the old ones."""

    def one(each: Any) -> Any:
        if isinstance(each, Mapping):
            value = each["params"]
            return {**each, "params": [one(p) for p in ([value] if isinstance(value, torch.Tensor) else value)]}
        if isinstance(each, tuple):
            return each[0], sharded.get(id(each[1]), each[1])
        return sharded.get(id(each), each)

    return [one(each) for each in params]


def owner_of(parameters: list[Any]) -> nn.Module | None:
    """The innermost module that has all of these."""
    wanted = {id(p) for p in parameters}
    owner: tuple[int, nn.Module] | None = None
    for module in _modules():
        ids = {id(p) for p in module.parameters()}
        size = sum(1 for _ in module.modules())
        if wanted <= ids and (owner is None or size < owner[0]):
            owner = (size, module)
    return None if owner is None or not wanted else owner[1]


def owners_of(parameters: list[Any]) -> list[nn.Module]:
    """Modules that hold some of these as their own, in the order of these."""
    order = {id(p): n for n, p in reversed(list(enumerate(parameters)))}
    owners = [
        (min((order.get(id(p), len(order)) for p in m.parameters(recurse=False)), default=len(order)), m) for m in _modules()
    ]
    return [m for n, m in sorted(owners, key=lambda f: f[0]) if n < len(order)]


def _modules() -> list[nn.Module]:
    return [o for o in gc.get_objects() if issubclass(type(o), nn.Module) and "_parameters" in o.__dict__]


# --- FSDP2: what a script saves and loads is whole ---


def whole(value: Any) -> Any:
    """A sharded tensor as one process has it: an exchange of all ranks."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def show_whole(model: nn.Module) -> None:
    """``state_dict`` of the model, or of what holds it, gives whole tensors, and loading takes them."""

    def shown(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> dict[str, Any]:
        for name in [n for n in state if n.startswith(prefix)]:
            state[name] = whole(state[name])
        return state

    def load_hook(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        parameters = dict(module.named_parameters())
        for name in [n for n in state if n.startswith(prefix)]:
            parameter = parameters.get(name[len(prefix) :])
            if isinstance(parameter, DTensor) and not isinstance(state[name], DTensor):
                state[name] = _like(state[name], parameter)

    model._register_state_dict_hook(shown)
    model.register_load_state_dict_pre_hook(load_hook)


def _like(value: torch.Tensor, parameter: DTensor) -> DTensor:
    on = value.to(parameter.device)
    return distribute_tensor(on, parameter.device_mesh, parameter.placements, src_data_rank=None)


def whole_states(patches: Patches) -> None:
    """The same for optimizers."""
    optimizer = torch.optim.Optimizer
    save, load = optimizer.state_dict, optimizer.load_state_dict

    @functools.wraps(save)
    def state_dict(owner: Any) -> dict[str, Any]:
        state = save(owner)
        states = {key: {k: whole(v) for k, v in values.items()} for key, values in state["state"].items()}
        return {**state, "state": states}

    @functools.wraps(load)
    def load_state_dict(owner: Any, state: Any) -> None:
        parameters = [p for group in owner.param_groups for p in group["params"]]
        numbers = [n for group in state["param_groups"] for n in group["params"]]
        of = dict(zip(numbers, parameters, strict=True))
        states = {
            key: {k: _like(v, of[key]) if _is_like(v, of.get(key)) else v for k, v in values.items()}
            for key, values in state["state"].items()
        }
        load(owner, {**state, "state": states})

    patches.set(optimizer, "state_dict", state_dict)
    patches.set(optimizer, "load_state_dict", load_state_dict)


def _is_like(value: Any, parameter: Any) -> bool:
    return (
        isinstance(parameter, DTensor)
        and isinstance(value, torch.Tensor)
        and not isinstance(value, DTensor)
        and value.shape == parameter.shape
    )
