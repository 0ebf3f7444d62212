"""Waste: rows of a few dozen ids, padded to 256."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, i):
        ids = torch.zeros(256, dtype=torch.int64)
        ids[: 20 + i % 40] = torch.randint(1, 500, (20 + i % 40,))
        return ids


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, 96)
        self.layers = nn.Sequential(nn.Linear(96, 384), nn.ReLU(), nn.Linear(384, 96), nn.Linear(96, 500))

    def forward(self, ids):
        return self.layers(self.embedding(ids))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for ids in DataLoader(Texts(), 8):
    logits = model(ids)
    nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0).backward()
    optimizer.step()
    optimizer.zero_grad()
