# pyright: basic
"""From what a person gives (a module, a factory, a step, a configuration) to a callable that runs one step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpuwise.errors import InputError
from gpuwise.workload.capture.packages import transformers
from gpuwise.workload.capture.step import inference_step, make_optimizer, training_step

DEVICE = "cuda"


@dataclass(slots=True)
class Program:
    """``step`` runs once; ``batch`` is the first dimension of the inputs if they have one."""

    step: Callable[[], Any]
    name: str
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """How a bare module is to be run."""

    inputs: Any = None
    optimizer: Any = "adamw"
    loss: Any = None
    train: bool = True
    device: str = DEVICE
    batch: int | None = None
    seq: int | None = None
    is_step: bool = False
    """The callable is the step itself, not a function that builds one."""
    is_loop: bool = False
    """The callable is a whole training loop, or the script that holds it."""


class ItIsAStepError(Exception):
    """A function taken for a factory has run operations on the device and returned nothing to run: it is the step."""


def build(
    subject: Any, request: ModuleOptions, keywords: Mapping[str, Any] | None = None, count: Callable[[], int] = int
) -> Program:
    """Build the step inside the fake accelerator; ``count`` returns how many operations have run on the device so far.

    Raises InputError when ``subject`` cannot be run.
    """
    if isinstance(subject, nn.Module):
        return _of_module(placed(subject, request.device), request, type(subject).__name__)
    if _is_configuration(subject):
        return _of_configuration(subject, request)
    if isinstance(subject, (tuple, list)):
        return _of_parts(subject, request)
    if not callable(subject):
        raise InputError(
            f"cannot capture a {type(subject).__name__}",
            hint="give an nn.Module, a function that builds one or that runs one step, or a transformers configuration",
        )
    return _of_callable(subject, request, keywords or {}, count)


def _of_callable(
    subject: Callable[..., Any], request: ModuleOptions, keywords: Mapping[str, Any], count: Callable[[], int]
) -> Program:
    name = getattr(subject, "__name__", type(subject).__name__)
    if isinstance(subject, type) and issubclass(subject, nn.Module):
        with on_device(request.device):
            return _of_module(subject(**keywords), request, name)
    if request.is_step or request.is_loop:
        step = subject.prepare() if hasattr(subject, "prepare") else subject
        return Program(lambda: step(**keywords), name, request.batch)
    before = count()
    with _models_noted() as model_names:
        result = subject(**keywords)
    if isinstance(result, nn.Module):
        return _of_module(placed(result, request.device), request, type(result).__name__)
    if (isinstance(result, (tuple, list)) and result and isinstance(result[0], nn.Module)) or _is_configuration(result):
        return build(result, request)
    if callable(result):
        batch = request.batch if request.batch is not None else getattr(subject, "own_batch", None)
        return Program(lambda: result(), name, batch)
    returned = "nothing" if result is None else f"{'an' if type(result).__name__[0] in 'aeiou' else 'a'} {type(result).__name__}"
    if model_names == {"built"}:
        raise InputError(
            f"{name} builds a model, but does not run it and returned {returned}",
            hint="return the step (a function), the module, (module, inputs) or (module, inputs, optimizer)",
        )
    if count() > before:
        raise ItIsAStepError
    raise InputError(
        f"{name} returned {returned} and ran nothing on {request.device}",
        hint="return the step (a function), the module, (module, inputs) or (module, inputs, optimizer); "
        "a step itself must work on tensors of the device",
    )


@contextmanager
def _models_noted() -> Iterator[set[str]]:
    """Set of what happened to modules in the meantime: ``built``, ``called``."""
    from torch.nn.modules import module as hooks

    model_names: set[str] = set()
    handles = [
        hooks.register_module_parameter_registration_hook(lambda *_: model_names.add("built")),
        hooks.register_module_forward_pre_hook(lambda *_: model_names.add("called")),
    ]
    try:
        yield model_names
    finally:
        for handle in handles:
            handle.remove()


def _of_parts(parts: Any, request: ModuleOptions) -> Program:
    """(module, inputs) or (module, inputs, optimizer) or (module, inputs, optimizer, loss)."""
    module = parts[0] if parts else None
    if not isinstance(module, nn.Module) or len(parts) > 4:
        raise InputError(
            f"a {type(parts).__name__} of {len(parts)} is not (module, inputs) or (module, inputs, optimizer)",
            hint="return the module first, then its inputs, then optionally the optimizer and the loss",
        )
    extra = dict(zip(("inputs", "optimizer", "loss"), parts[1:], strict=False))
    overrides = {k: v for k, v in extra.items() if v is not None}
    return _of_module(placed(module, request.device), _replaced(request, overrides), type(module).__name__)


def _replaced(request: ModuleOptions, overrides: Mapping[str, Any]) -> ModuleOptions:
    from dataclasses import replace

    return replace(request, **overrides)


def _of_module(module: nn.Module, request: ModuleOptions, name: str) -> Program:
    required = [
        n
        for n, p in declared(module.forward).items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if request.inputs is None and required:
        raise InputError(
            f"{name} takes {', '.join(required)}, and their shapes are unknown",
            hint="give it, like --input 32x3x224x224 (in Python: inputs=), or name a function that returns the step",
        )
    inputs = to_device(request.inputs, request.device)
    if request.train:
        trainable = [p for p in module.parameters() if p.requires_grad]
        optimizer = make_optimizer(request.optimizer, trainable) if request.optimizer is not None else None
        step = training_step(module, inputs, optimizer, request.loss)
    else:
        step = inference_step(module, inputs)
    return Program(step, name, request.batch if request.batch is not None else batch_of(inputs))


# --- transformers configurations ---


def _is_configuration(subject: Any) -> bool:
    return any(
        c.__name__ in ("PretrainedConfig", "PreTrainedConfig") and c.__module__.startswith("transformers")
        for c in type(subject).__mro__
    )


def _of_configuration(config: Any, request: ModuleOptions) -> Program:
    """The model that ``architectures`` names, or a causal language model; token inputs with labels by default."""
    class_name = (getattr(config, "architectures", None) or [""])[0]
    cls = getattr(transformers(), class_name, None)
    with on_device(request.device):
        dtype = weights_format(config)
        if isinstance(dtype, torch.dtype) and dtype != getattr(config, "dtype", None):
            config = copy.deepcopy(config)
            config.dtype = dtype
        model = cls._from_config(config) if cls is not None else _auto(config)
        if isinstance(dtype, torch.dtype) and next(model.parameters()).dtype != dtype:
            model = model.to(dtype)
        inputs = request.inputs if request.inputs is not None else default_tokens(config, request)
    return _of_module(model, _replaced(request, {"inputs": inputs}), type(model).__name__)


def weights_format(config: Any) -> Any:
    """The format a configuration's weights are built in, if specified."""
    return getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)


def _auto(config: Any) -> Any:
    library = transformers()
    for auto in (library.AutoModelForCausalLM, library.AutoModelForSeq2SeqLM, library.AutoModel):
        if type(config) in auto._model_mapping:
            return auto.from_config(config)
    raise InputError(f"transformers has no model for a {type(config).__name__}", hint="build the model yourself and give it")


def default_tokens(config: Any, request: ModuleOptions) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``labels`` of [batch, seq] on the device."""
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 1024
    batch, seq = request.batch or 1, request.seq or min(int(limit), 1024)
    ids = torch.randint(0, int(getattr(config, "vocab_size", 2) or 2), (batch, seq), device=request.device)
    return {"input_ids": ids, "labels": ids}


# --- tensors and modules from before the capture ---


@contextmanager
def on_device(device: str | None) -> Any:
    """Factories without a device make their tensors there."""
    if device is None:
        yield
        return
    with torch.device(device):
        yield


def stand_in(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """A tensor like ``tensor`` on ``device`` without its data."""
    empty = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=device)
    return empty.requires_grad_(tensor.requires_grad) if tensor.requires_grad else empty


def to_device(value: Any, device: str) -> Any:
    """Tensors (real or meta) and shapes in ``value`` as tensors on the device."""
    if isinstance(value, torch.Tensor):
        return value if value.device.type == device.partition(":")[0] else stand_in(value, device)
    if isinstance(value, Mapping):
        return {k: to_device(v, device) for k, v in value.items()}
    if _is_shape(value):
        return torch.randn(tuple(value), device=device)
    if isinstance(value, (tuple, list)):
        return type(value)(to_device(v, device) for v in value)
    return value


def _is_shape(value: Any) -> bool:
    """A tuple of positive whole numbers, as in ``inputs=(8, 3, 224, 224)``."""
    return isinstance(value, (tuple, list)) and len(value) > 0 and all(type(n) is int and n > 0 for n in value)


def batch_of(inputs: Any) -> int | None:
    """First dimension of the first input that has one."""
    from gpuwise.workload.capture.ops.nested import tensors_in

    return next((int(t.shape[0]) for t in tensors_in(inputs) if t.dim()), None)


def placed(module: nn.Module, device: str) -> nn.Module:
    """The module itself if it was built on the device; else a copy whose tensors are stand-ins there. The module
    given is not changed and no data is copied."""
    tensors = [*module.parameters(), *module.buffers()]
    kind = device.partition(":")[0]
    if not tensors or all(t.device.type == kind for t in tensors):
        return module
    memo: dict[int, Any] = {}
    for tensor in tensors:
        replica = stand_in(tensor.detach(), device)
        if isinstance(tensor, nn.Parameter):
            replica = nn.Parameter(replica, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = replica
    for child in module.modules():
        for name, value in vars(child).items():
            if isinstance(value, torch.Tensor) and id(value) not in memo and name not in ("_parameters", "_buffers"):
                memo[id(value)] = stand_in(value.detach(), value.device)
    return copy.deepcopy(module, memo)


def declared(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword parameters a function declares."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}
