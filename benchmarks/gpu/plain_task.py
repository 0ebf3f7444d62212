"""The training of ``gpuwise run TARGET --ranks 1`` in a plain loop of PyTorch, without any of its wrapping: losses to OUT.

    python plain_task.py TARGET OUT STEPS GLOBAL_BATCH SEED [KEY=VALUE ...]

Only what the training is of comes from gpuwise: the model and the data, and the order of the samples.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import default_collate

from gpuwise.train.levers.items import seed as seed_generators
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.samples import Cursor, Items, Order, derived
from gpuwise.train.ranks.task import load_task, loss_of


def main(arguments: list[str]) -> None:
    target, out, steps, batch, seed, *settings = arguments
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seed_generators(int(seed))
    task = load_task(target, settings, Layout(), device)
    model = task.model.to(device)
    optimizer = task.optimizer(model)
    items, collate = Items(task.data, int(seed)), task.collate or default_collate
    losses: list[float] = []
    for at, (_, keys) in enumerate(islice(Order(task.n_samples, int(batch), int(seed)).steps(Cursor()), int(steps))):
        seed_generators(derived(int(seed), at, 0, 1))
        summed, number = loss_of(task, model, _moved(collate(items.__getitems__(keys)), device), len(keys))
        loss = summed / max(number, 1.0)
        loss.backward()
        if task.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    Path(out).write_text(json.dumps({"losses": losses}), "utf-8")


def _moved(batch: object, device: str) -> object:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: _moved(value, device) for name, value in batch.items()}
    return [_moved(value, device) for value in batch] if isinstance(batch, list | tuple) else batch


if __name__ == "__main__":
    main(sys.argv[1:])
