# pyright: basic
"""Training and inference loops as measurement scripts write them: what they keep alive decides peaks.

A loop's ``step`` is called again and again; what it stores on itself lives into the next call, as a script's variables
live until they are bound anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from studies.networks import support as zoo_support
from studies.networks.support import AUTOCAST, CAST, DEVICE, OPTIMIZERS, Network


def perceptron(inputs: int, layers: tuple[tuple[str, int], ...]) -> Network:
    """Layers by kind and width: linear, batch_normalization, dropout, activations by their torch name, softmax."""
    modules: list[nn.Module] = []
    width = inputs
    with torch.device(DEVICE):
        for kind, out in layers:
            if kind == "linear":
                modules.append(nn.Linear(width, out))
                width = out
            elif kind == "batch_normalization":
                modules.append(nn.BatchNorm1d(width))
            elif kind == "dropout":
                modules.append(nn.Dropout(0.2))
            elif kind == "softmax":
                modules.append(nn.Softmax(dim=1))
            else:
                modules.append(_activation(kind))
        module = nn.Sequential(*modules)

    def loss(outputs: Any, batch: int) -> torch.Tensor:
        return F.cross_entropy(outputs, torch.randint(0, outputs.shape[-1], (batch,), device=DEVICE))

    return Network(module, lambda batch: (torch.randn(batch, inputs, device=DEVICE),), loss)


def _activation(kind: str) -> nn.Module:
    named = {"identity": nn.Identity} | {name.lower(): getattr(nn, name) for name in nn.modules.activation.__all__}
    return named[kind]()


@contextmanager
def attention_before_torch_2(enabled: bool = True) -> Iterator[None]:
    """While open, and ``enabled``, timm's attention layers do without torch's fused attention, as before torch 2.0."""
    if not enabled:
        yield
        return
    switch = zoo_support.timm().layers.set_fused_attn
    switch(False)
    try:
        yield
    finally:
        switch(True)


@contextmanager
def attention_in_half(enabled: bool = True) -> Iterator[None]:
    """While open, and ``enabled``, attention that has no fused kernel stays in its 16 bits, as before torch 2.5 (since then it
    is computed in fp32 unless this is allowed)."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(enabled or before)
    try:
        yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


@contextmanager
def fast_norms() -> Iterator[None]:
    """While open, timm's norms run in the format of autocast (``benchmark.py --fast-norm``)."""
    layers = zoo_support.timm().layers
    before = layers.is_fast_norm()
    layers.set_fast_norm(True)
    try:
        yield
    finally:
        layers.set_fast_norm(before)


def loop(
    network: Network,
    batch: int,
    *,
    train: bool,
    precision: str,
    channels_last: bool,
    optimizer: str,
    keeps: bool,
    set_to_none: bool,
    foreach: bool,
) -> Callable[[], Any]:
    """One step. ``keeps``: inputs, outputs and loss live until the next step binds its own; else inputs are made once
    and outputs die with the step (timm's benchmark.py)."""
    module: Any = network.module.train(train)
    if precision in CAST:
        module = module.to(CAST[precision])
    if channels_last:
        module = module.to(memory_format=torch.channels_last)

    def fresh() -> Any:
        inputs = network.inputs(batch)
        if precision in CAST:
            inputs = zoo_support._mapped(inputs, lambda t: t.to(CAST[precision]) if t.is_floating_point() else t)
        if channels_last:
            inputs = zoo_support._mapped(inputs, lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t)
        return inputs

    learned = [p for p in module.parameters() if p.requires_grad]
    options = {} if foreach else {"foreach": False}
    update = OPTIMIZERS[optimizer](learned, **options) if train and optimizer != "none" else None
    state: dict[str, Any] = {"inputs": fresh()}

    def forward() -> Any:
        if precision in AUTOCAST:
            with torch.autocast(DEVICE, dtype=AUTOCAST[precision]):
                return zoo_support.call(module, state["inputs"])
        return zoo_support.call(module, state["inputs"])

    def training() -> Any:
        if keeps:
            state["inputs"] = fresh()
        if update is not None:
            update.zero_grad(set_to_none=set_to_none)
        outputs = forward()
        if precision in AUTOCAST:
            with torch.autocast(DEVICE, dtype=AUTOCAST[precision]):
                loss = network.loss(outputs, batch)
        else:
            loss = network.loss(outputs, batch)
        if keeps:
            state["outputs"], state["loss"] = outputs, loss
        loss.backward()
        if update is not None:
            update.step()

    def inference() -> Any:
        with torch.no_grad():
            outputs = forward()
            if keeps:
                state["outputs"] = outputs

    return training if train else inference
