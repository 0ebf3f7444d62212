"""Trains, evaluates and saves as scripts do, and knows of no ranks. ``OUT [WORKERS [RESUME]]``"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

out, workers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
torch.manual_seed(3)
x, y = torch.randn(53, 8), torch.randint(0, 3, (53,))
y[::7] = -100
data = TensorDataset(x, y)
training = DataLoader(data, batch_size=8, shuffle=True, num_workers=workers)
held_out = DataLoader(data, batch_size=16)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.inner(x).tanh()


model = nn.Sequential(nn.Sequential(Block(), Block()), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
if len(sys.argv) > 3:
    state = torch.load(sys.argv[3])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
loss_of = nn.CrossEntropyLoss()
log = open(f"{out}.log", "w")  # noqa: PTH123, SIM115 - as scripts do
for _ in range(2):
    model.train()
    for inputs, targets in training:
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(loss.item(), file=log)
    model.eval()
    with torch.no_grad():
        total = sum(loss_of(model(inputs), targets).item() for inputs, targets in held_out)
    scheduler.step(total)
    print(f"{total:.4f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{out}.pt")
log.close()
