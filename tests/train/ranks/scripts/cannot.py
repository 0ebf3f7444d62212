"""What cannot be divided, by name."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

what = sys.argv[1]
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.randn(12, 4), torch.randn(12, 2))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(data)


if what == "no loader":
    model(torch.randn(3, 4)).sum().backward()
if what == "itself":
    torch.distributed.init_process_group("gloo")
if what == "stream":
    for inputs, _ in DataLoader(Stream(), batch_size=4):
        model(inputs).sum().backward()
if what == "statistics":
    total = sum(inputs.sum() for inputs, _ in DataLoader(data, batch_size=4))
if what == "sparse":
    table = nn.Embedding(9, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in DataLoader(data, batch_size=4):
        table(torch.tensor([1, 2])).sum().backward()
if what == "rates":
    optimizer.param_groups[0]["lr"] = 0.1 * (1 + torch.distributed.get_rank())
    for inputs, _ in DataLoader(data, batch_size=4):
        model(inputs).sum().backward()
if what == "error":
    for inputs, _ in DataLoader(data, batch_size=4):
        model(inputs).sum().backward()
        raise ValueError("of the script")
if what == "exit":
    sys.exit(3)
