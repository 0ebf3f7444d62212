"""Items that wait 6 ms each for something slow and come out the same every time; a model that waits for each of its columns.

Waiting stands for work, so that what a lever gives does not depend on how busy the machine is.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

ITEM_S, COLUMN_S, LENGTH = float(sys.argv[1]), float(sys.argv[2]), 256


class Items(Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(ITEM_S)
        draw = torch.Generator().manual_seed(index)
        n = LENGTH if index % 8 == 0 else 12 + index % 5
        ids, targets = torch.zeros(LENGTH, dtype=torch.long), torch.full((LENGTH,), -100)
        ids[:n], targets[:n] = torch.randint(1, 9, (n,), generator=draw), torch.randint(1, 9, (n,), generator=draw)
        return ids, targets


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        time.sleep(ids.numel() * COLUMN_S)
        return self.head(self.embedding(ids))


torch.manual_seed(0)
loader = DataLoader(Items(), batch_size=8, shuffle=True)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(100):
    for ids, targets in loader:
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
