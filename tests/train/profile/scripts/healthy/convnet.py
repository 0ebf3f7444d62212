"""Nothing wrong: convolutions on images that are there."""

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, 2, 1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, 2, 1),
    nn.ReLU(),
    nn.Conv2d(64, 64, 3, 2, 1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64 * 16, 10),
)
optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=True)
x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
for step in range(80):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(step, loss.item())
