"""Two models in turn, one of them called twice for one loss; and a loop that adds sums of losses over two batches. ``OUT``"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
rows, wanted = torch.randn(40, 6), torch.randn(40, 2)
maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
judge = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
of_maker = torch.optim.Adam(maker.parameters(), 1e-3)
of_judge = torch.optim.Adam(judge.parameters(), 1e-3)
loss_of = nn.BCEWithLogitsLoss()
losses = []
for real, _ in DataLoader(TensorDataset(rows, wanted), batch_size=10):
    judge.zero_grad()
    on_real = loss_of(judge(real), torch.ones(len(real), 1))
    on_real.backward()
    made = maker((3 * real[:, :4]).sin())
    on_made = loss_of(judge(made.detach()), torch.zeros(len(real), 1))
    on_made.backward()
    of_judge.step()
    maker.zero_grad()
    fooled = loss_of(judge(made) + judge(2 * made), torch.ones(len(real), 1))
    fooled.backward()
    of_maker.step()
    losses += [on_real.item(), on_made.item(), fooled.item()]

net = nn.Linear(6, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
for n, (inputs, targets) in enumerate(DataLoader(TensorDataset(rows, wanted), batch_size=13)):
    loss = nn.functional.mse_loss(net(inputs), targets, reduction="sum")
    (loss / 26).backward()
    losses.append(loss.item())
    if n % 2:
        optimizer.step()
        optimizer.zero_grad()
torch.save({"losses": losses, "maker": maker.state_dict(), "judge": judge.state_dict(), "net": net.state_dict()}, sys.argv[1])
torch.save(maker, f"{sys.argv[1]}.whole")
