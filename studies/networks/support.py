# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""The torch side of the zoo: one step of a network as benchmarks run it.

``zoo`` names networks and where their dimensions were published; here they become modules, inputs, losses
and steps on the device ``cuda`` (real, or pretended while a capture is active).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.errors import UnknownNameError
from gpuwise.workload.capture.packages import timm, torchvision, transformers

DEVICE = "cuda"
CLASSES = 1000
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True)
class Network:
    """A module with inputs for a batch and the loss of its outputs."""

    module: nn.Module
    inputs: Callable[[int], tuple[Any, ...] | dict[str, Any]]
    loss: Callable[[Any, int], Tensor]
    step_of: Callable[[int, Conditions], Callable[[], Any]] | None = None
    """Makes the training step where one loss and one optimizer do not describe it."""


def timm_name(name: str) -> str:
    """``name`` as the installed timm knows it: old names go through timm's own table, and tags are dropped where
    the installed version lists other ones. Raises UnknownNameError."""
    package = timm()
    stem = name.split(".")[0]
    renamed = package.models.get_deprecated_models()
    stem = (renamed.get(stem) or stem).split(".")[0]
    if not package.models.is_model(stem):
        raise UnknownNameError("timm network", name, package.list_models())
    return stem


def image_network(name: str, image_size: int | None) -> Network:
    """A timm classifier, built on the device with its default head and, unless said, its default image size."""
    package = timm()
    stem = timm_name(name)
    default = package.get_pretrained_cfg(stem)
    native = int(default.input_size[-1]) if default else 224
    channels = int(default.input_size[0]) if default else 3
    extra: dict[str, Any] = {}
    if image_size is not None and image_size != native and default and default.fixed_input_size:
        extra["img_size"] = image_size
    with torch.device(DEVICE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = package.create_model(stem, **extra)
    return classifier(module, image_size or native, channels)


def torchvision_network(name: str, image_size: int | None) -> Network:
    """A torchvision classifier with its default head."""
    package = torchvision()
    names = package.models.list_models(module=package.models)
    if name not in names:
        raise UnknownNameError("torchvision classifier", name, names)
    with torch.device(DEVICE):
        module = package.models.get_model(name)
    return classifier(module, image_size or (299 if name == "inception_v3" else 224), 3)


def classifier(module: nn.Module, image_size: int, channels: int = 3) -> Network:
    """Cross entropy of images against random labels; auxiliary heads are left out of the loss."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, channels, image_size, image_size, device=DEVICE),)

    def loss(outputs: Any, batch: int) -> Tensor:
        logits: Any = outputs
        while not isinstance(logits, Tensor):
            logits = getattr(logits, "logits", None) if hasattr(logits, "logits") else logits[0]
        return F.cross_entropy(logits, torch.randint(0, logits.shape[-1], logits.shape[:1], device=DEVICE))

    return Network(module, inputs, loss)


def text_network(
    head: str,
    config: str,
    dimensions: dict[str, Any],
    seq_len: int,
    *,
    attention: str = "sdpa",
    labels: str = "labels",
    mask: bool = False,
    one_expert: int = 0,
) -> Network:
    """A transformers model ``head`` of ``config(**dimensions)``, fed with token ids; nothing is downloaded.

    ``mask``: the scores get a mask added, as models whose batches are padded have it. ``one_expert``: in layers of switched
    experts the first one takes so many tokens of a sequence, the others none (what inputs that are all alike come to).

    ``labels`` says which loss the batch asks for: ``labels`` (token by token), ``span`` (start and end position),
    ``class`` (one label), ``pretraining`` (token by token and sentence order), ``none``.
    """
    package = transformers()
    options = getattr(package, config)(**dimensions)
    fused = getattr(getattr(package, head), "_supports_sdpa", True)
    options._attn_implementation = attention if fused else "eager"
    with torch.device(DEVICE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = getattr(package, head)(options)
    for layer in module.modules() if one_expert else ():
        if getattr(layer, "is_sparse", False) and hasattr(getattr(layer, "mlp", None), "experts"):
            layer.mlp = _OneExpert(layer.mlp, one_expert)
    vocab = int(options.vocab_size)

    def tokens(batch: int) -> Tensor:
        return torch.randint(0, vocab, (batch, seq_len), device=DEVICE)

    def inputs(batch: int) -> dict[str, Any]:
        out: dict[str, Any] = {"input_ids": tokens(batch)}
        if mask:
            out["attention_mask"] = torch.zeros(batch, 1, 1, seq_len, device=DEVICE)
        if getattr(options, "is_encoder_decoder", False):
            out["decoder_input_ids"] = tokens(batch)
        if labels == "labels":
            out["labels"] = tokens(batch)
        elif labels == "pretraining":
            out |= {"labels": tokens(batch), "next_sentence_label": _ids(batch, 2)}
        elif labels == "span":
            out |= {"start_positions": _ids(batch, seq_len), "end_positions": _ids(batch, seq_len)}
        elif labels == "class":
            out["labels"] = _ids(batch, 2)
        return out

    def loss(outputs: Any, batch: int) -> Tensor:
        if getattr(outputs, "loss", None) is not None:
            return outputs.loss
        first = outputs[0]
        return first.float().mean()

    return Network(module, inputs, loss)


class _OneExpert(nn.Module):
    """Switched experts of transformers when the router sends every token to the first: its capacity is served, the rest pass."""

    def __init__(self, layer: Any, capacity: int) -> None:
        super().__init__()
        self.router, self.experts, self.capacity = layer.router, layer.experts, capacity

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, S, H]."""
        chosen, weight, _ = self.router(hidden)
        served = hidden.clone()
        for i, expert in enumerate(self.experts.children()):
            chosen[..., i].bool()
            if i == 0:
                served[:, : self.capacity] = expert(hidden[:, : self.capacity])
        return weight * served


def _ids(batch: int, most: int) -> Tensor:
    return torch.randint(0, most, (batch,), device=DEVICE)


def call(module: nn.Module, inputs: Any) -> Any:
    """``module`` on positional or named inputs."""
    return module(**inputs) if isinstance(inputs, dict) else module(*inputs)


class BertAdam(torch.optim.Optimizer):
    """The fp32 optimizer of NVIDIA's BERT (DeepLearningExamples PyTorch/LanguageModeling/BERT, optimization.py): the host waits
    for the norm of all gradients, then updates one parameter after another."""

    def __init__(self, learned: Any) -> None:
        super().__init__(learned, {"lr": LEARNING_RATE})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        learned = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(learned)).norm().item()
        for p in learned:
            state, gradient = self.state[p], p.grad
            if not state:
                state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
            mean, square = state["m"], state["v"]
            shrunk = p * 1.0 / norm  # as the source has it: what is updated is the copy
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            update = mean / (square.sqrt() + 1e-6)
            update += WEIGHT_DECAY * p
            shrunk.add_(-(LEARNING_RATE * update))


class Lamb(torch.optim.Optimizer):
    """The optimizer of NVIDIA's Transformer-XL (DeepLearningExamples PyTorch/LanguageModeling/Transformer-XL, lamb.py;
    arXiv 1904.00962): one parameter after another, each scaled by its norm over that of its update."""

    def __init__(self, learned: Any) -> None:
        super().__init__(learned, {"lr": LEARNING_RATE})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state, gradient = self.state[p], p.grad
            if not state:
                state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
            mean, square = state["m"], state["v"]
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            update = mean / square.sqrt().add_(1e-6)
            ratio = p.norm().clamp(0, 10) / (update.norm() + 1e-6)
            p.sub_(update.mul_(ratio * LEARNING_RATE))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True, **k),
    "sgd-plain": lambda p, **k: torch.optim.SGD(p, lr=LEARNING_RATE, **k),
    "adam": lambda p, **k: torch.optim.Adam(p, lr=LEARNING_RATE, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=LEARNING_RATE, **k),
    "adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=LEARNING_RATE, **k),
    "bert-adam": lambda p, **k: BertAdam(p),
    "lamb": lambda p, **k: Lamb(p),
    "rmsprop": lambda p, **k: torch.optim.RMSprop(p, lr=LEARNING_RATE, **k),
}
AUTOCAST = {"amp": torch.float16, "amp_bf16": torch.bfloat16}
CAST = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp16_master": torch.float16}


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a step is run; ``precision`` is fp32, amp (fp16 autocast), amp_bf16, fp16 or bf16 (weights cast), or fp16_master:
    weights cast but for batch norms, the optimizer on fp32 copies of them (level O2 of NVIDIA's Apex)."""

    training: bool
    precision: str = "fp32"
    channels_last: bool = False
    optimizer: str = "sgd"
    """One of ``OPTIMIZERS``, or ``none`` (forward and backward only)."""
    scaler: bool = False
    set_to_none: bool = True
    fused: bool | None = None
    foreach: bool | None = None


def step_of(network: Network, batch: int, how: Conditions) -> Callable[[], Any]:
    """One step without arguments: forward, and for training loss, backward and optimizer, as benchmark scripts do.

    Raises UnknownNameError for an optimizer or a precision it does not know.
    """
    if how.precision not in ("fp32", *AUTOCAST, *CAST):
        raise UnknownNameError("precision", how.precision, ("fp32", *AUTOCAST, *CAST))
    module: Any = network.module.train(how.training)
    if network.step_of is not None and how.training:
        return network.step_of(batch, how)
    inputs = network.inputs(batch)
    if how.precision in CAST:
        module = _cast(module, how.precision)
        inputs = _mapped(inputs, lambda t: t.to(CAST[how.precision]) if t.is_floating_point() else t)
    if how.channels_last:
        volumes = any(t.dim() == 5 for t in (inputs.values() if isinstance(inputs, dict) else inputs) if isinstance(t, Tensor))
        layout = torch.channels_last_3d if volumes else torch.channels_last
        module = module.to(memory_format=layout)
        inputs = _mapped(inputs, lambda t: t.contiguous(memory_format=layout) if t.dim() == 4 + volumes else t)
    context = (lambda: torch.autocast(DEVICE, dtype=AUTOCAST[how.precision])) if how.precision in AUTOCAST else torch.enable_grad
    return _training(network, module, inputs, batch, how, context) if how.training else _inference(module, inputs, how, context)


def _cast(module: nn.Module, precision: str) -> nn.Module:
    module = module.to(CAST[precision])
    for part in module.modules() if precision == "fp16_master" else ():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.float()
    return module


def _inference(module: nn.Module, inputs: Any, how: Conditions, context: Callable[[], Any]) -> Callable[[], Any]:
    def step() -> Any:
        if how.precision in AUTOCAST:
            with torch.no_grad(), context():
                return call(module, inputs)
        with torch.no_grad():
            return call(module, inputs)

    return step


def _training(
    network: Network, module: nn.Module, inputs: Any, batch: int, how: Conditions, context: Callable[[], Any]
) -> Callable[[], Any]:
    if how.optimizer != "none" and how.optimizer not in OPTIMIZERS:
        raise UnknownNameError("optimizer", how.optimizer, OPTIMIZERS)
    learned: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
    masters = [p.detach().float() for p in learned] if how.precision == "fp16_master" else []
    options = {k: v for k, v in (("fused", how.fused), ("foreach", how.foreach)) if v is not None}
    optimizer = None if how.optimizer == "none" else OPTIMIZERS[how.optimizer](masters or learned, **options)
    scaler = torch.amp.GradScaler(DEVICE) if how.scaler else None

    def step() -> Any:
        module.zero_grad(set_to_none=how.set_to_none)
        with context():
            loss = network.loss(call(module, inputs), batch)
        if scaler is not None and optimizer is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss
        loss.backward()
        if masters and optimizer is not None:
            _step_of_masters(optimizer, masters, learned)
        elif optimizer is not None:
            optimizer.step()
        return loss

    return step


def _step_of_masters(optimizer: torch.optim.Optimizer, masters: list[Tensor], learned: list[Tensor]) -> None:
    """The optimizer on fp32 copies: gradients come in as fp32, new weights go back as they are computed with."""
    used = [(m, p) for m, p in zip(masters, learned, strict=True) if p.grad is not None]
    for master, _ in used:
        master.grad = torch.empty_like(master)
    gradients: Any = [m.grad for m, _ in used], [p.grad for _, p in used]
    torch._foreach_copy_(*gradients)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_copy_([p for _, p in used], [m for m, _ in used])


def _mapped(inputs: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(inputs, dict):
        return {k: function(v) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    return tuple(function(v) if isinstance(v, Tensor) else v for v in inputs)
