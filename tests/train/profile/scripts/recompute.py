"""Waste: activations are computed again although there is room for them."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4))
optimizer = torch.optim.SGD(blocks.parameters(), 0.01)
x = torch.randn(256, 512)
for _ in range(80):
    hidden = x
    for block in blocks:
        hidden = checkpoint(block, hidden, use_reentrant=False)
    hidden.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
