"""A script that divides its work itself, by its own process group."""

import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
sampler = DistributedSampler(data)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    for x, y in DataLoader(data, batch_size=4, sampler=sampler):
        loss = ((model(x) - y) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
print("rank", rank, "of", dist.get_world_size(), os.environ["LOCAL_RANK"])
dist.destroy_process_group()
