"""One small training with ways to get it silently wrong, by name: ``python traps.py adam``."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

trap = sys.argv[1] if len(sys.argv) > 1 else ""
torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
rows = [torch.randint(1, 20, (int(n),), generator=draw) for n in torch.randint(3, 33, (64,), generator=draw)]


def collate(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    ids, targets = torch.zeros(len(batch), 32, dtype=torch.long), torch.full((len(batch), 32), -100)
    for at, row in enumerate(batch):
        ids[at, : len(row) - 1], targets[at, : len(row) - 1] = row[:-1], row[1:]
    return ids, targets


def loss_of(ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(ids).flatten(0, 1)
    if trap == "padding counts":
        # a loss of its own, which no watch of torch's losses sees
        return -logits.log_softmax(-1).gather(1, targets.clamp(min=0).reshape(-1, 1)).mean()
    return F.cross_entropy(logits, targets.flatten(), ignore_index=-100)


loader = DataLoader(rows, batch_size=4, shuffle=True, collate_fn=collate)
pad = 0 if trap == "padding counts" else None
model = nn.Sequential(nn.Embedding(20, 16, padding_idx=pad), nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
if trap == "adam":
    # asks for the optimizer's state before its first step, which advances Adam's counter
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    get_optimizer_state_dict(model, optimizer)
for _ in range(4):
    for ids, targets in loader:
        optimizer.zero_grad()
        if trap in ("mean of means", "weighted"):
            total = (targets != -100).sum()
            for part_ids, part_targets in zip(ids.split(1), targets.split(1), strict=True):
                share = (part_targets != -100).sum() / total if trap == "weighted" else 1 / len(ids)
                (loss_of(part_ids, part_targets) * share).backward()
        else:
            loss_of(ids, targets).backward()
        if trap == "gradient":
            # the loss of this step is right
            model[1].weight.grad = model[1].weight.grad.flip(0)
        optimizer.step()
