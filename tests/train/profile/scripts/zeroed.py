"""Waste: the gradient of a large table is filled with zeros and added to, step by step."""

import torch
from torch import nn

table, head = nn.Embedding(60_000, 64), nn.Linear(64, 4)
optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], 0.01, fused=True)
for _ in range(80):
    loss = head(table(torch.randint(0, 60_000, (256,)))).square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
