"""Builds a case's model, inputs and training step in torch: the same code for the real device and for the capture."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuwise.errors import DataError, MissingExtraError
from gpuwise.machine.bench.local.cases import TOKENS

if TYPE_CHECKING:
    import torch

    from gpuwise.machine.bench.local.cases import LocalCase


def make_step(case: LocalCase, device: str = "cuda") -> Callable[[], Any]:
    """The step of ``case`` with its model and optimizer built on ``device``. Raises MissingExtraError, DataError."""
    import torch

    with torch.device(device):
        model: Any = build_model(case)
        inputs = make_inputs(case)
    if case.precision == "bf16-pure":
        model = model.to(torch.bfloat16)
        inputs = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in inputs.items()}
    if "channels_last" in case.extras:
        model = model.to(memory_format=torch.channels_last)
        inputs = {k: v.to(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in inputs.items()}
    if "checkpoint" in case.extras:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    run = torch.compile(model) if "compile" in case.extras else model
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = case.precision != "fp32"
    if "infer" in case.extras:
        return _inference(case, model.eval(), run, inputs, device)
    return _training(case, model.train(), run, inputs, device)


def _autocast(case: LocalCase, device: str) -> torch.autocast:
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.precision)
    return torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def _inference(
    case: LocalCase, model: torch.nn.Module, run: Callable[..., Any], inputs: dict[str, Any], device: str
) -> Callable[[], Any]:
    import torch

    def step() -> None:
        with torch.no_grad(), _autocast(case, device):
            _output(case, run, inputs)

    return step


def _training(
    case: LocalCase, model: torch.nn.Module, run: Callable[..., Any], inputs: dict[str, Any], device: str
) -> Callable[[], Any]:
    import torch

    if "sgd" in case.extras:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    else:
        kind: dict[str, Any] = (
            {"fused": True} if "fused" in case.extras else {"foreach": False} if "foreach_off" in case.extras else {}
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **kind)
    scaler = torch.amp.GradScaler(device, enabled=case.precision == "fp16" and device == "cuda")

    def step() -> None:
        with _autocast(case, device):
            loss = _loss(_output(case, run, inputs), inputs)
        scaler.scale(loss).backward()
        if "clip" in case.extras:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def _output(case: LocalCase, run: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    if case.builder.startswith("transformers:"):
        return run(**inputs)
    return run(inputs["x"])


def _loss(output: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The model's own loss, cross-entropy against class labels, or the mean square."""
    import torch.nn.functional as F

    if getattr(output, "loss", None) is not None:
        return output.loss
    if isinstance(output, dict):  # segmentation heads
        output = output["out"]
    if hasattr(output, "logits"):  # inception in training: main and auxiliary heads
        output = output.logits
    if isinstance(output, tuple):
        output = output[0]
    if "y" in inputs and output.dim() == 2:
        return F.cross_entropy(output, inputs["y"])
    if "y" in inputs:  # a sequence of logits
        return F.cross_entropy(output.flatten(0, 1), inputs["y"].flatten())
    return output.float().square().mean()


def make_inputs(case: LocalCase) -> dict[str, torch.Tensor]:
    """Random images or tokens of the case's shape on the default device."""
    import torch

    if not case.tokens:
        x = torch.randn((case.batch, *case.input))
        if case.builder in ("torch:unet", "torchvision:segmentation.deeplabv3_resnet50"):
            return {"x": x}
        return {"x": x, "y": torch.randint(0, 10, (case.batch,))}
    shape = (case.batch, *case.input)
    if case.builder.startswith("torch:"):
        return {"x": torch.randint(0, TOKENS, shape), "y": torch.randint(0, TOKENS, shape)}
    ids = torch.randint(0, 1000, shape)
    inputs = {"input_ids": ids}
    if "infer" not in case.extras:
        inputs["labels"] = ids.clone()
    elif case.builder == "transformers:t5":
        inputs["decoder_input_ids"] = ids.clone()
    return inputs


def build_model(case: LocalCase) -> torch.nn.Module:
    """The network of ``case.builder`` with random weights. Raises MissingExtraError when its package is not installed."""
    package, _, name = case.builder.partition(":")
    try:
        return _BUILDERS[package](name, dict(case.dimensions))
    except ModuleNotFoundError as missing:
        raise MissingExtraError(
            f"{case.model} needs {missing.name}", hint=f"pip install {missing.name}, or choose other cases with --only"
        ) from None


def _torchvision(name: str, _: dict[str, int]) -> torch.nn.Module:
    from gpuwise.workload.capture.packages import torchvision

    home = torchvision().models

    *inner, constructor = name.split(".")
    for part in inner:
        home = getattr(home, part)
    extra = {"weights_backbone": None} if inner else {}
    if constructor == "inception_v3":
        extra = {"init_weights": False}
    return getattr(home, constructor)(weights=None, **extra)


def _timm(name: str, _: dict[str, int]) -> torch.nn.Module:
    from gpuwise.workload.capture.packages import timm

    return timm().create_model(name, pretrained=False)


def _transformers(kind: str, dimensions: dict[str, int]) -> torch.nn.Module:
    from gpuwise.workload.capture.packages import transformers

    library = transformers()
    config = library.AutoConfig.for_model(kind, **dimensions)
    config.use_cache = False
    family = {"bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM"}.get(kind, "AutoModelForCausalLM")
    return getattr(library, family).from_config(config)


def _builtin(name: str, _: dict[str, int]) -> torch.nn.Module:
    from gpuwise.machine.bench.local import networks as local_networks

    try:
        return getattr(local_networks, name)()
    except AttributeError:
        raise DataError(f"cases.toml: no network torch:{name}") from None


_BUILDERS: dict[str, Callable[[str, dict[str, int]], Any]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
    "torch": _builtin,
}
