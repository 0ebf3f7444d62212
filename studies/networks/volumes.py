"""Networks on volumes, from their published dimensions.

MLPerf's U-Net of KiTS19 (mlcommons/training, ``image_segmentation/pytorch``, ``model/unet3d.py``): patches of 128 a side, 32 to
320 channels over five halvings, two convolutions of 3 a level with instance norm and ReLU, transposed convolutions of 2 up, three
classes; Dice and cross-entropy.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.networks.support import DEVICE, Network

CLASSES = 3
WIDTHS = (32, 64, 128, 256, 320, 320)


def _pair(inward: int, outward: int, stride: int = 1) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, step in ((inward, stride), (outward, 1)):
        parts += [nn.Conv3d(a, outward, 3, stride=step, padding=1, bias=False), nn.InstanceNorm3d(outward, affine=True)]
        parts.append(nn.ReLU(inplace=True))
    return nn.Sequential(*parts)


class UNet3d(nn.Module):
    """U-Net over volumes (MLPerf training's segmentation of kidneys)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _pair(1, WIDTHS[0])
        self.down = nn.ModuleList(_pair(a, b, 2) for a, b in itertools.pairwise(WIDTHS))
        upward = list(itertools.pairwise(WIDTHS[::-1]))
        self.rise = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, stride=2) for a, b in upward)
        self.join = nn.ModuleList(_pair(2 * b, b) for _, b in upward)
        self.last = nn.Conv3d(WIDTHS[0], CLASSES, 1)

    def forward(self, volumes: Tensor) -> Tensor:
        levels = [self.first(volumes)]
        for block in self.down:
            levels.append(block(levels[-1]))
        x = levels.pop()
        for rise, join in zip(self.rise, self.join, strict=True):
            x = join(torch.cat((rise(x), levels.pop()), dim=1))
        return self.last(x)


def unet3d(side: int = 128) -> Network:
    """Patches of ``side`` voxels a side, one channel."""
    with torch.device(DEVICE):
        module = UNet3d()

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, 1, side, side, side, device=DEVICE),)

    def loss(outputs: Any, batch: int) -> Tensor:
        target = torch.randint(0, CLASSES, (batch, side, side, side), device=DEVICE)
        entropy = F.cross_entropy(outputs, target)
        chance = F.softmax(outputs, dim=1).flatten(2)
        truth = F.one_hot(target, CLASSES).movedim(-1, 1).flatten(2).to(chance.dtype)
        dice = (2.0 * (chance * truth).sum(2) + 1e-6) / (chance.sum(2) + truth.sum(2) + 1e-6)
        return 0.5 * (entropy + 1.0 - dice.mean())

    return Network(module, inputs, loss)
