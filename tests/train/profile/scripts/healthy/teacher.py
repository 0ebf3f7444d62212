"""Nothing to mend: another network answers without gradients, and the one that learns follows its answers."""

import torch
from torch import nn
from torch.nn import functional as F


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))


teacher, student = network(1024), network(512)
optimizer = torch.optim.AdamW(student.parameters(), 1e-3, fused=True)
inputs = torch.randn(256, 256)
for _ in range(60):
    with torch.no_grad():
        wanted = teacher(inputs).softmax(-1)
    loss = F.kl_div(student(inputs).log_softmax(-1), wanted, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
