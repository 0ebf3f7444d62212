# The libraries that build the networks are not installed, and leave their modules untyped.
# pyright: basic
# pyright: reportMissingImports=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportReturnType=false
"""One step of a network as ``write.py`` captures it: full or with adapters, with or without recomputation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpuwise.workload.capture.api import capture
from gpuwise.workload.capture.captured import Capture
from studies.training_tables.networks import FROZEN, NETWORKS

BATCH, RANK = 13, 17
"""Primes that no dimension of the networks has: what they divide grows with the batch, or with the rank."""
IN_BLOCKS = ("blocks", "layers", "layer", "block", "attentions", "h")


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter in fp32 beside it, as kohya's networks/lora.py and peft add it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x)) * 1.0


def adapt(net: nn.Module) -> None:
    """Freeze ``net`` and put adapters into the linear layers of its blocks of attention."""
    net.requires_grad_(False)
    for path, module in list(net.named_modules()):
        parts = path.split(".")
        if "tower" in parts or not any(p.endswith(IN_BLOCKS) for p in parts):
            continue
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and "norm" not in path and "time" not in path:
                setattr(module, name, Adapted(child))


def _run(make: Callable[[], Any]) -> None:
    made = make()
    del made


def step_of(name: str, method: str, recompute: bool, half: bool, size: int, batch: int, frames: int) -> Callable[[], Any]:
    """A function that builds the step; ``half``: weights in bf16 (of an adapter's frozen ones always)."""
    builder, _, _ = {**NETWORKS, **FROZEN}[name]

    def make() -> Callable[[], None]:
        net, loss = builder(batch, size, frames)
        if name in FROZEN:
            net = net.to("cuda", torch.bfloat16).eval().requires_grad_(False)
            return torch.no_grad()(lambda: _run(loss))
        net.train()
        if method == "lora":
            net = net.to("cuda", torch.bfloat16)
            adapt(net)
            for module in net.modules():
                if isinstance(module, Adapted):
                    module.down.to("cuda", torch.float32)
                    module.up.to("cuda", torch.float32)
        else:
            net = net.to("cuda", torch.bfloat16) if half else net.to("cuda")
        if recompute:
            enable = getattr(net, "enable_gradient_checkpointing", None) or net.gradient_checkpointing_enable
            enable()
            if method == "lora" and hasattr(net, "language"):
                net.language.enable_input_require_grads()
        trained = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=1e-3, fused=True)

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                value = loss()
            value.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


def captured(name: str, method: str, *, recompute: bool, half: bool, size: int, batch: int = BATCH, frames: int = 0) -> Capture:
    """The step of the network ``name`` captured twice, the second one steady."""
    frames = frames or {**NETWORKS, **FROZEN}[name][2]
    return capture(step_of(name, method, recompute, half, size, batch, frames), n_steps=1, name=name)
