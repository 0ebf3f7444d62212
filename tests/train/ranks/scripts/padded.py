"""Trains on rows of unequal length, padded all to the longest, with a mask that says so. ``OUT``"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(3)
rows = [torch.randint(1, 20, (2 + 5 * (i % 4),)) for i in range(53)]
ids = nn.utils.rnn.pad_sequence([*rows, torch.ones(30, dtype=torch.long)], batch_first=True)[:-1]
items = [{"input_ids": i, "attention_mask": (i != 0).long(), "kind": int(i.sum()) % 3} for i in ids]
training = DataLoader(items, batch_size=16, shuffle=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        real = attention_mask[..., None].float()
        return self.head((self.words(input_ids).tanh() * real).sum(1) / real.sum(1))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(2):
    for batch in training:
        optimizer.zero_grad()
        made = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        nn.functional.cross_entropy(made, batch["kind"]).backward()
        optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{sys.argv[1]}.pt")
