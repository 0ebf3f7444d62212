"""A residual network of the catalogue as PyTorch trains it, built from the convolutions of its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuwise.facts.models.convnets import ConvNet, convnets
from gpuwise.workload.convnet import IMAGE_CHANNELS, convolutions, last_channels


def make_step(batch: int = 64, net: str = "resnet-50") -> Callable[[], None]:
    """The step of the network with id ``net``: mixed precision (fp16 and a scaled loss where the GPU lacks bf16), channels-last
    images, SGD with momentum, as ``training_table`` has it."""
    import torch
    from torch.nn import functional

    of = convnets()[net]
    model = _residual(of).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch, IMAGE_CHANNELS, of.pixels, of.pixels, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(of.n_classes, (batch,), device="cuda")
    half = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    scaler = torch.amp.GradScaler("cuda", enabled=half == torch.float16)

    def step() -> None:
        with torch.autocast("cuda", dtype=half):
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()  # pyright: ignore[reportUnknownMemberType]
        scaler.step(optimizer)  # pyright: ignore[reportUnknownMemberType]
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def _residual(net: ConvNet) -> Any:
    from torch import nn
    from torch.nn import functional

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names = [c.name.replace(".", "_") for c in convolutions(net, net.pixels)]
            for name, c in zip(self.names, convolutions(net, net.pixels), strict=True):
                inner = nn.Conv2d(c.c_in, c.c_out, c.kernel, c.stride, c.kernel // 2, groups=c.groups, bias=False)
                self.add_module(name, nn.Sequential(inner, nn.BatchNorm2d(c.c_out)))
            self.classes = nn.Linear(last_channels(net), net.n_classes)

        def forward(self, images: Any) -> Any:
            into = functional.max_pool2d(functional.relu(getattr(self, self.names[0])(images), True), 3, 2, 1)
            for block in dict.fromkeys(n.rpartition("_")[0] for n in self.names[1:]):
                parts = [n for n in self.names if n.rpartition("_")[0] == block]
                x = into
                shortcut = getattr(self, parts.pop())(into) if parts[-1].endswith("shortcut") else into
                for name in parts[:-1]:
                    x = functional.relu(getattr(self, name)(x), True)
                into = functional.relu(getattr(self, parts[-1])(x) + shortcut, True)
            return self.classes(into.mean((2, 3)))

    return Residual()
