"""A small language model that returns its own loss, a mean over labels; rows have very unequal numbers of them.

``python own_loss.py wrong`` has parts of a batch count the same, whatever their labels: the mean of means.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

if "wrong" in sys.argv:
    from gpuwise.train.levers import groups

    groups.shares_of = lambda weights, kwargs: [torch.tensor(1 / len(weights)) for _ in weights]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 20))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(ids).flatten(0, 1), labels.flatten(), ignore_index=-100)


torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
lengths = torch.randint(1, 33, (64,), generator=draw) ** 2 // 32 + 1
ids = torch.randint(1, 20, (64, 32), generator=draw)
labels = torch.where(torch.arange(32) < lengths[:, None], torch.randint(1, 20, (64, 32), generator=draw), -100)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(4):
    for rows, targets in DataLoader(list(zip(ids, labels, strict=True)), batch_size=6, shuffle=True):
        optimizer.zero_grad()
        model(rows, labels=targets).backward()
        optimizer.step()
