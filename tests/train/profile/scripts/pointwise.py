"""Waste: an activation written as a chain of elementwise operations on large tensors."""

import math

import torch
from torch import nn


def activation(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner)) * torch.sigmoid(x * 1.702) + 0.1 * torch.exp(-x * x)


first, last = nn.Linear(32, 2048), nn.Linear(2048, 4)
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], 0.1)
x = torch.randn(256, 32)
for _ in range(80):
    last(activation(first(x))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
