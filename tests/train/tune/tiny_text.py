"""A small language model on rows of very unequal length, padded; its loss leaves padding out."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

LENGTH, WIDTH, VOCABULARY = int(sys.argv[1]) if len(sys.argv) > 1 else 64, 32, 50


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (h[:, None] for h in self.qkv(self.norm(x)).chunk(3, dim=2))
        x = x + self.drop(self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def rows(n: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    lengths = (LENGTH * torch.rand(n, generator=draw) ** 3).long().clamp(min=3)
    return [torch.randint(1, VOCABULARY, (int(k) + 1,), generator=draw) for k in lengths]


def collate(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    ids, targets = torch.zeros(len(batch), LENGTH, dtype=torch.long), torch.full((len(batch), LENGTH), -100)
    for at, row in enumerate(batch):
        ids[at, : len(row) - 1], targets[at, : len(row) - 1] = row[:-1], row[1:]
    return ids, targets


torch.manual_seed(0)
loader = DataLoader(rows(512), batch_size=8, shuffle=True, collate_fn=collate)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(40):
    for ids, targets in loader:
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
