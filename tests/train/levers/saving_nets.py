"""A small network with what levers act on: rows of ids, images, repeated blocks."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 16, words: int = 32) -> None:
        super().__init__()
        self.table, self.picture = nn.Embedding(words, width), nn.Conv2d(3, width, 3)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) + self.picture(image).mean((2, 3)).unsqueeze(1)
        return self.head(self.blocks(x))
