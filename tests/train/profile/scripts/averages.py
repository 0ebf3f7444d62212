"""Waste: running averages of the weights by four operations on each, in a loop in Python."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)], nn.Linear(512, 10))
averages = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
inputs, labels = torch.randn(32, 512), torch.randint(0, 10, (32,))


def follow() -> None:
    for average, weight in zip(averages.parameters(), model.parameters(), strict=True):
        average.data.copy_(average.data.mul(0.99).add(weight.data.mul(0.01)))


for _ in range(80):
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    follow()
