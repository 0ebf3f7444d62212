"""Waste: every sample is fetched from far away, by the training process itself."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Far(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randn(32), i % 4


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(Far(), 16):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
