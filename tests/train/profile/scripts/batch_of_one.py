"""Waste: one sample a step, so that every call costs more than what is in it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(400, 32), torch.randint(0, 4, (400,)))
layers = [layer for _ in range(24) for layer in (nn.Linear(32, 32), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
for x, y in DataLoader(data, 1):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
