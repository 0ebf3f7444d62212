"""Waste: left on from a hunt for a NaN."""

import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)
layers = [layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.Tanh())]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
x = torch.randn(64, 128)
for _ in range(80):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
