"""Waste: a score worked out by Python in every step."""

import torch
from torch import nn


def confusion(predicted, wanted):
    table = [[0] * 10 for _ in range(10)]
    for _ in range(500):
        for p, w in zip(predicted, wanted, strict=True):
            table[p][w] += 1
    return table


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(80):
    x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))
    logits = model(x)
    nn.functional.cross_entropy(logits, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    confusion(logits.argmax(1).tolist(), y.tolist())
