"""Waste: every step waits until its log line is on the disk."""

import os
import tempfile

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with tempfile.NamedTemporaryFile("w") as log:
    for step in range(80):
        x = torch.randn(32, 64)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for name, p in model.named_parameters():
            for value in p.detach().flatten()[:300].tolist():
                print(step, name, value, file=log)
            log.flush()
            os.fsync(log.fileno())
