# pyright: basic
"""Changes to the model: autocast, checkpointing, adapters, formats of the weights, memory formats, fused attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from gpuwise.errors import InputError
from gpuwise.workload.adapters import ALL_LINEAR, ATTENTION, MLP, MODULE_NAMES, targets_text
from gpuwise.workload.capture import build
from gpuwise.workload.capture.changes.watch import Watch, patched
from gpuwise.workload.capture.packages import without_caches
from gpuwise.workload.capture.repeats import blocks_by_path
from gpuwise.workload.changes.strategy import rank_and_targets

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LARGEST_SCALE = 65536.0


@contextmanager
def _autocast(watch: Watch, form: str) -> Iterator[None]:
    """Autocast from the first call of a model to the backward pass, as if the forward and the loss stood under ``with
    torch.autocast``; fp16 gradients are scaled and unscaled as by a GradScaler. fp32 turns autocast off."""
    entered: list[torch.autocast] = []

    def begin(_: nn.Module) -> None:
        if not entered and torch.is_grad_enabled():
            watch.sites.touched += 1
            entered.append(torch.autocast("cuda", dtype=FORMATS[form]))
            entered[-1].__enter__()

    def end() -> None:
        while entered:
            entered.pop().__exit__(None, None, None)

    watch.on_call.append(begin)
    watch.on_backward.append(end)
    if form == "fp16":
        watch.on_optimizer.append(_unscale_first)
    try:
        yield
    finally:
        end()


def _unscale_first(optimizer: torch.optim.Optimizer) -> None:
    """Before each step, the pass over all gradients that ``GradScaler.unscale_`` makes."""

    def unscale(self: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if grads:
            infinities = torch.zeros((), device=grads[0].device)
            inverse = torch.full((), 1.0 / LARGEST_SCALE, device=grads[0].device)
            torch._amp_foreach_non_finite_check_and_unscale_(grads, infinities.reshape(1), inverse)  # type: ignore[attr-defined]

    optimizer.register_step_pre_hook(unscale)


@contextmanager
def _no_autocast(watch: Watch, _: Any) -> Iterator[None]:
    """Plain fp32: any autocast in the step is disabled."""

    def init(original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            watch.sites.touched += 1
            original(self, device_type, *args, **{**kwargs, "enabled": False})

        return __init__

    with patched(torch.autocast, "__init__", init):
        yield


def _precision(watch: Watch, form: str) -> Any:
    return _no_autocast(watch, form) if form == "fp32" else _autocast(watch, form)


@contextmanager
def _tf32(watch: Watch, allow: bool | None) -> Iterator[None]:
    """TensorFloat-32 in matrix products and convolutions allowed (or, with ``False``, forbidden)."""
    allow = allow is not False
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    watch.sites.touched += before != (allow, allow)

    def again(_: Any) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allow

    again(None)
    watch.on_model.append(again)  # the script may set it itself while it builds
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextmanager
def _cudnn_benchmark(watch: Watch, on: bool | None) -> Iterator[None]:
    """cuDNN's search for the fastest convolution on (or, with ``False``, off)."""
    before, enabled = torch.backends.cudnn.benchmark, on is not False

    def switch(_: nn.Module) -> None:
        watch.sites.touched += torch.backends.cudnn.benchmark != enabled
        torch.backends.cudnn.benchmark = enabled

    watch.on_call.append(switch)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _checkpoint(watch: Watch, which: Sequence[str] | int | str | None) -> None:
    """The named modules, one repeated block in ``which``, or every one (none, ``blocks``) under
    ``torch.utils.checkpoint``, without reentrant autograd."""
    from torch.utils.checkpoint import checkpoint

    if isinstance(which, str) and which != "blocks":
        raise InputError(f"a captured step has no checkpointing {which!r}", hint="module paths, 2 for every second block")
    names = which if isinstance(which, Sequence) and not isinstance(which, str) else None
    every = which if isinstance(which, int) else 1

    def wrap(root: nn.Module) -> None:
        blocks = dict(list(blocks_by_path(root).items())[::every])
        selection = blocks if names is None else {n: m for n, m in root.named_modules() if n in names}
        for module in selection.values():
            watch.sites.touched += 1
            module.forward = _recomputed(module, checkpoint)

    watch.on_model.append(wrap)


def _recomputed(module: nn.Module, checkpoint: Any) -> Callable[..., Any]:
    forward = module.forward

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        args, kwargs = without_caches(args, kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return wrapped


def _lora(watch: Watch, argument: int | tuple[int, tuple[str, ...]]) -> None:
    """Everything frozen; each linear layer named gets two trained factors beside it, and the optimizer those: what PEFT
    makes (``lora.Linear``, factors in fp32). ``argument``: the rank, and the names."""
    rank, targets = rank_and_targets(argument)

    def adapt(root: nn.Module, groups: list[dict[str, Any]]) -> None:
        adapter_parameters: list[nn.Parameter] = []
        frozen = {id(p) for p in root.parameters()}
        for p in root.parameters():
            p.requires_grad_(False)
        layers = adapted_layers(root, targets)
        for layer in layers:
            down, up = _factors(layer, rank)
            adapter_parameters += [down, up]
            layer.register_forward_hook(functools.partial(_add_adapter, down, up))
        watch.sites.touched += len(layers)
        first = True
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) not in frozen] + (adapter_parameters if first else [])
            first = False
        groups[:] = [g for g in groups if g["params"]] or groups[:1]
        if _may_checkpoint(root):
            # a reentrant checkpoint needs an input that requires a gradient (transformers enable_input_require_grads)
            for module in root.modules():
                if isinstance(module, nn.Embedding):
                    module.register_forward_hook(lambda m, a, out: out.requires_grad_(True) if out.is_leaf else out)

    watch.on_parameters.append(adapt)


def _may_checkpoint(root: nn.Module) -> bool:
    """Whether transformers' models support checkpointing; True for other models."""
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):  # the second is the name before transformers 5
        if hasattr(type(root), name):
            return bool(getattr(root, name))
    return True


HEADS = ("score", "classifier")
"""Classifiers over the classes, which are trained whole or not at all (PEFT ``SEQ_CLS_HEAD_NAMES``)."""


def adapted_layers(root: nn.Module, targets: Sequence[str]) -> list[nn.Module]:
    """The linear layers that ``targets`` name, as PEFT matches them: ``all-linear`` is every one but the output head; a name
    is the end of a path. ``attention`` and ``mlp`` are those of the same part of published models."""
    linear = {n: m for n, m in root.named_modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"}
    if targets == (ALL_LINEAR,):
        head = cast(Any, root).get_output_embeddings() if hasattr(root, "get_output_embeddings") else None
        return [m for n, m in linear.items() if m is not head and n.rpartition(".")[2] not in HEADS]
    layers = [m for n, m in linear.items() if any(_named(n, target) for target in targets)]
    if not layers:
        raise InputError(f"no linear layer is called {targets_text(targets)}", hint=f"there are {', '.join(_ends(linear))}")
    return layers


def _named(path: str, target: str) -> bool:
    if target in (ATTENTION, MLP):
        inside = "attn" in path or "attention" in path
        product = MODULE_NAMES.get(path.rpartition(".")[2], ())
        return bool(product) and inside == (target == ATTENTION)
    return target == ALL_LINEAR or path == target or path.endswith("." + target)


def _ends(linear: dict[str, nn.Module]) -> list[str]:
    return sorted({n.rpartition(".")[2] for n in linear})


def _factors(layer: nn.Module, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    n_out, n_in = weight.shape if isinstance(layer, nn.Linear) else reversed(weight.shape)
    form = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
    down = nn.Parameter(torch.full((rank, n_in), 1.0 / n_in, dtype=form, device=weight.device))
    up = nn.Parameter(torch.zeros(n_out, rank, dtype=form, device=weight.device))
    layer.register_parameter("adapter_down", down)
    layer.register_parameter("adapter_up", up)
    return down, up


def _add_adapter(down: nn.Parameter, up: nn.Parameter, layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    adapter_input = inputs[0].to(down.dtype)
    return (output + nn.functional.linear(nn.functional.linear(adapter_input, down), up) * 2.0).to(output.dtype)


@contextmanager
def _low_precision(watch: Watch, form: str) -> Iterator[None]:
    """The weights themselves in ``form``, converted before the optimizer takes them (a configuration's are built in it);
    float inputs follow, and no autocast is entered."""
    dtype = FORMATS[form]

    def convert(root: nn.Module, _: list[dict[str, Any]]) -> None:
        watch.sites.touched += 1
        root.to(dtype)
        for name, p in root.named_parameters():
            if name.rpartition(".")[2] in ("adapter_down", "adapter_up"):
                p.data = p.data.to(torch.float32)
        root.register_forward_pre_hook(_cast_inputs(dtype), with_kwargs=True)

    watch.on_parameters.append(convert)
    with _no_autocast(watch, None), patched(build, "weights_format", lambda _: lambda config: dtype):
        yield


def _cast_inputs(dtype: torch.dtype) -> Any:
    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(dtype)
        return value

    def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(cast(a) for a in args), {k: cast(v) for k, v in kwargs.items()}

    return hook


def _channels_last(watch: Watch, _: Any) -> None:
    """Convolution weights and the images they see in channels-last order."""

    def convert(root: nn.Module) -> None:
        if not any(isinstance(m, nn.Conv2d) for m in root.modules()):
            return
        watch.sites.touched += 1
        root.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        root.register_forward_pre_hook(_last)

    watch.on_model.append(convert)


def _last(module: nn.Module, args: Any) -> Any:
    return tuple(
        a.contiguous(memory_format=torch.channels_last) if isinstance(a, torch.Tensor) and a.dim() == 4 else a for a in args
    )


def _fused_attention(watch: Watch, _: Any) -> None:
    """Attention written out in full replaced by the fused one, where the model has a switch for it: transformers'
    ``attn_implementation``, timm's ``fused_attn``."""

    def switch(root: nn.Module) -> None:
        for module in root.modules():
            config = getattr(module, "config", None)
            if getattr(config, "_attn_implementation", None) == "eager":
                config._attn_implementation = "sdpa"  # type: ignore[union-attr]
                watch.sites.touched += 1
            if getattr(module, "fused_attn", None) is False:
                module.fused_attn = True  # type: ignore[assignment]
                watch.sites.touched += 1

    watch.on_model.append(switch)


def _free_outputs(watch: Watch, _: Any) -> None:
    """Free the outputs of the last step when the first model is called in the next, as if no variable or list referenced them."""
    from gpuwise.workload.capture.ops.nested import tensors_in

    outputs: list[torch.Tensor] = []
    first: list[nn.Module] = []
    updated = False

    def note(optimizer: torch.optim.Optimizer) -> None:
        def after(o: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            nonlocal updated
            updated = True

        optimizer.register_step_post_hook(after)

    def keep(_: nn.Module, output: Any) -> None:
        outputs.extend(t for t in tensors_in(output) if t.dim())

    def free(root: nn.Module) -> None:
        nonlocal updated
        if not first:
            first.append(root)
        if updated and root is first[0]:
            for tensor in outputs:
                watch.sites.touched += 1
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            outputs.clear()
            updated = False

    watch.on_optimizer.append(note)
    watch.on_output.append(keep)
    watch.on_call.append(free)


MODEL: dict[str, Callable[[Watch, Any], Any]] = {
    "autocast": _precision,
    "tf32": _tf32,
    "cudnn_benchmark": _cudnn_benchmark,
    "checkpointing": _checkpoint,
    "lora": _lora,
    "low_precision": _low_precision,
    "channels_last": _channels_last,
    "attention": _fused_attention,
    "free_outputs": _free_outputs,
}
