"""Small training and inference steps, one for each feature a real program uses. No test here: ``test_probes`` runs
them. They are in ``probes_*.py``; here is what they share.

Each probe runs under an active accelerator and returns nothing; it asserts what a program on a GPU could rely on.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PROBES = {}


def probe(function):
    PROBES[function.__name__] = function
    return function


def mlp(*, n=64, out=10, device="cuda"):
    return nn.Sequential(nn.Linear(n, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, out)).to(device)


def step(model, x, y, optimizer, scaler=None, clip=None):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss


def batch(n=16, f=64, classes=10):
    return torch.randn(n, f, device="cuda"), torch.randint(0, classes, (n,), device="cuda")
