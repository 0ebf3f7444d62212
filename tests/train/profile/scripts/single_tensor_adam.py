"""Waste: some hundred small parameters, each updated by a dozen operations."""

import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(60)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
x = torch.randn(64, 64)
for _ in range(80):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
