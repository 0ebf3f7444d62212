"""Waste: numpy's 64 bits, and a model that was made to match them."""

import numpy as np
import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 16)).double()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.from_numpy(np.random.default_rng(0).normal(size=(256, 512)))
for _ in range(80):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
