"""Waste: the model is written in every step."""

import tempfile

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with tempfile.TemporaryDirectory() as folder:
    for _ in range(80):
        x = torch.randn(32, 256)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for copy in range(4):
            torch.save(model.state_dict(), f"{folder}/last{copy}.pt")
