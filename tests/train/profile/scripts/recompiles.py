"""Waste: every batch has another length, and is compiled for."""

import torch
import torch._dynamo
from torch import nn

torch._dynamo.config.cache_size_limit = 200
torch._dynamo.config.recompile_limit = 200
torch._dynamo.config.automatic_dynamic_shapes = False
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(6)), nn.Linear(32, 4))
compiled = torch.compile(model, backend="eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(80):
    x = torch.randn(16 + (step if step % 4 == 0 else 0), 32)
    compiled(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
