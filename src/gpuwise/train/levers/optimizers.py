# pyright: basic
"""Levers on the optimizer: one kernel for all parameters, gradients dropped, and the scaling that fp16 needs."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gpuwise.workload.capture.device.patching import Patches

Tell = Callable[..., None]
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Optimizers of torch that have a fused form."""


FIRST_SCALE = 2.0**12
"""Below torch's own 2^16, which overflows on gradients near 1 and costs the first steps; 2^12 still keeps gradients of 1.5e-11
above fp16's smallest number, 2^-24."""


class FusedOptimizers:
    """Turns ``fused`` on before an optimizer's first step, where torch allows it. Its ``state_dict`` and pickle are those of the
    script's own optimizer: its options, and the number of steps on the host, as a plain optimizer keeps it."""

    def __init__(self, patches: Patches, tell: Tell) -> None:
        self._tell = tell
        self._seen: set[int] = set()
        self._own: WeakKeyDictionary[Any, list[dict[str, Any]]] = WeakKeyDictionary()
        """Options of each optimizer's groups before, then its defaults, by optimizer."""
        optimizer = torch.optim.Optimizer
        saved, pickled, loaded = optimizer.state_dict, optimizer.__getstate__, optimizer.load_state_dict

        @functools.wraps(saved)
        def state_dict(owner: Any) -> dict[str, Any]:
            return self._plain(owner, saved(owner))

        def getstate(owner: Any) -> dict[str, Any]:
            return self._plain(owner, pickled(owner))

        @functools.wraps(loaded)
        def load_state_dict(owner: Any, state: Any) -> None:
            loaded(owner, state)
            if owner in self._own:
                _turn_on(owner)

        patches.set(optimizer, "state_dict", state_dict)
        patches.set(optimizer, "__getstate__", getstate)
        patches.set(optimizer, "load_state_dict", load_state_dict)

    def _plain(self, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        own_groups = self._own.get(optimizer)
        if own_groups is None:
            return state
        *options, defaults = own_groups
        plain = dict(state)
        if "defaults" in plain:
            plain["defaults"] = {**plain["defaults"], **defaults}
        # groups added later take the last one's options
        groups = zip(plain["param_groups"], [*options, *[options[-1]] * len(plain["param_groups"])], strict=False)
        plain["param_groups"] = [{**group, **option} for group, option in groups]
        states = plain["state"]
        plain["state"] = copy.copy(states)
        for key, values in states.items():
            if isinstance(values.get("step"), torch.Tensor):
                plain["state"][key] = {**values, "step": values["step"].to("cpu", torch.get_default_dtype())}
        return plain

    def before_optimizer(self, optimizer: Any) -> None:
        """Fuse ``optimizer`` before its first step, or say why it cannot be."""
        if id(optimizer) in self._seen:
            return
        self._seen.add(id(optimizer))
        why = why_not_fused(optimizer)
        if why is None:
            places = [*optimizer.param_groups, optimizer.defaults]
            self._own[optimizer] = [{k: place[k] for k in ("fused", "foreach")} for place in places]
            _turn_on(optimizer)
            optimizer.defaults["fused"], optimizer.defaults["foreach"] = True, False
            optimizer._step_supports_amp_scaling = True
            # torch checks devices and types once more where this is set, as its own constructor does
            optimizer._need_device_dtype_check_for_fused = True
        self._tell("lever", name="fused_optimizer", applied=why is None, why=why, optimizer=type(optimizer).__name__)


def _turn_on(optimizer: Any) -> None:
    """``fused`` in its groups; states that are loaded come with their number of steps on the host."""
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(parameter.device, torch.float32)


def why_not_fused(optimizer: Any) -> str | None:
    """The reason for which torch refuses, or the optimizer has it already; None where it can be."""
    name = type(optimizer).__name__
    if type(optimizer) not in FUSED:
        return f"{name} has no fused form"
    if any(group.get("fused") for group in optimizer.param_groups):
        return f"{name} is fused already"
    if optimizer.state:
        return f"{name} has stepped, or has loaded its state, before"
    for group in optimizer.param_groups:
        for option in ("differentiable", "capturable"):
            if group.get(option):
                return f"{name} with {option}=True"
        if isinstance(group.get("lr"), torch.Tensor) and group["lr"].device.type == "cpu" and name == "Adagrad":
            return "Adagrad with a tensor as its learning rate"
        for parameter in group["params"]:
            if not parameter.is_floating_point():
                return f"{name} with parameters that are not real floating-point numbers"
            if parameter.device.type not in ("cuda", "cpu", "mps", "xpu"):
                return f"{name} on {parameter.device.type}"
            if parameter.grad is not None and parameter.grad.is_sparse:
                return f"{name} with sparse gradients"
    return None


def drop_gradients(patches: Patches, tell: Tell) -> None:
    """``zero_grad(set_to_none=False)`` drops gradients as the default does."""
    told: list[bool] = []

    def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(owner: Any, set_to_none: bool = True) -> Any:
            if not set_to_none and not told:
                told.append(True)
                tell("lever", name="set_to_none", applied=True)
            return original(owner, set_to_none=True)

        return zero_grad

    patches.set(torch.optim.Optimizer, "zero_grad", replaced(torch.optim.Optimizer.zero_grad))
    patches.set(nn.Module, "zero_grad", replaced(nn.Module.zero_grad))


class Scaling:
    """A ``GradScaler`` added to a loop without one: losses are scaled before their backward pass, gradients unscaled before
    they are clipped or used, and a step with infinite gradients is skipped."""

    def __init__(self, patches: Patches, device: str, tell: Tell) -> None:
        self.scaler = torch.amp.GradScaler(device, init_scale=FIRST_SCALE)
        self._tell = tell
        self._optimizers: list[Any] = []
        self._unscaled: set[int] = set()
        self._stepped = False
        self._inside = False
        backward, made = torch.autograd.backward, torch.optim.Optimizer.__init__

        def scaled(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._begin()
            if isinstance(tensors, torch.Tensor):
                return backward(self.scaler.scale(tensors), *args, **kwargs)
            return backward([self.scaler.scale(t) for t in tensors], *args, **kwargs)

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            # a plain function: schedulers bind it again
            return self._stepping(optimizer, *args, **kwargs)

        def initialised(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self._optimizers.append(optimizer)
            optimizer.step = types.MethodType(step, optimizer)

        patches.set(torch.autograd, "backward", scaled)
        patches.set(torch.optim.Optimizer, "__init__", initialised)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            clip = getattr(nn.utils, name)
            replaced = self._clipping(clip)
            patches.set(nn.utils, name, replaced)
            patches.set(nn.utils.clip_grad, name, replaced)

    def _begin(self) -> None:
        """The first backward pass after a step: the scale may change now, and gradients are scaled again."""
        if self._stepped:
            self._stepped = False
            self._unscaled.clear()
            self.scaler.update()

    def _unscale(self, optimizer: Any) -> None:
        if id(optimizer) not in self._unscaled and any(p.grad is not None for g in optimizer.param_groups for p in g["params"]):
            self._unscaled.add(id(optimizer))
            self.scaler.unscale_(optimizer)

    def _clipping(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            parameter_ids = {id(p) for p in parameters}
            for optimizer in self._optimizers:
                if any(id(p) in parameter_ids for g in optimizer.param_groups for p in g["params"]):
                    self._unscale(optimizer)
            return clip(parameters, *args, **kwargs)

        return clipped

    def _stepping(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        step = type(optimizer).step
        if self._inside or args or kwargs.get("closure") is not None:
            # a closure's backward passes are its own affair: torch's scaler refuses them too
            return step(optimizer, *args, **kwargs)
        self._unscale(optimizer)
        if id(optimizer) not in self._unscaled:
            return step(optimizer)
        self._inside, self._stepped = True, True
        try:
            return self.scaler.step(optimizer)
        finally:
            self._inside = False
