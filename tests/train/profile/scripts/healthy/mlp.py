"""Nothing wrong: large products, cheap data."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(8, 512, 512), torch.randn(8, 512, 64))
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=True)
for _ in range(12):
    for x, y in DataLoader(data, None):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
