"""A model whose activations are some MiB a sample, so that the memory of a process is a line in its batch.

``python big_rows.py BATCH ROWS ACCUMULATION KIND``: plain, own (recomputes), norm (batch normalisation), fixed (one batch).
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

BATCH, ROWS, ACCUMULATION, KIND = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
WIDTH, INNER = 256, 320_000


class Block(nn.Module):
    """Keeps ``INNER`` numbers a sample more than once, and does little work on them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((INNER // WIDTH, 1), 0.1))
        self.norm = nn.BatchNorm1d(WIDTH) if KIND == "norm" else nn.LayerNorm(WIDTH)
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.act(self.norm(x)[:, None] * self.scale)).mean(1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if KIND == "own" else block(x)
        return self.head(x.view(BATCH, WIDTH) if KIND == "fixed" else x)


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(ROWS, WIDTH)), batch_size=BATCH, shuffle=True, drop_last=KIND == "fixed")
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(1000):
    for k, (x,) in enumerate(loader):
        loss = model(x).square().mean() / ACCUMULATION
        loss.backward()
        if (k + 1) % ACCUMULATION == 0:
            optimizer.step()
            optimizer.zero_grad()
