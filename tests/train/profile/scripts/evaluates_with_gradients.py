"""Waste: the whole validation set goes through the model after every step, and its graph is built and thrown away."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(128, 256), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.dropout(F.relu(self.first(x)), 0.5, self.training))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
inputs, labels = torch.randn(512, 128), torch.randint(0, 10, (512,))
held_out, truth = torch.randn(3000, 128), torch.randint(0, 10, (3000,))
for _ in range(80):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    model.eval()
    validation = F.cross_entropy(model(held_out), truth)
