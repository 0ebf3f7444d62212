"""Nothing wrong: gradients of four micro-batches added up."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
x, y = torch.randn(128, 512), torch.randn(128, 64)
for step in range(240):
    (nn.functional.mse_loss(model(x), y) / 4).backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
