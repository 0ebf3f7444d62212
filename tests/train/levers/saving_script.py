"""Trains a little and saves in every way there is, into the folder of its argument."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import torch
from saving_nets import Net
from torch.nn import functional as F
from torch.utils.data import DataLoader

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
rows = []
for k in range(24):
    ids = torch.zeros(128, dtype=torch.long)
    n = 4 + 17 * (k % 8)
    ids[:n] = torch.randint(1, 32, (n,))
    rows.append((ids, torch.randn(3, 6, 6)))
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
loader = DataLoader(rows, batch_size=8)
for ids, image in loader:
    loss = F.cross_entropy(model(ids, image).flatten(0, 1), ids.flatten(), ignore_index=0)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    schedule.step()

torch.save(model, folder / "model.pt")
torch.save(model.state_dict(), folder / "state.pt")
torch.save(
    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, folder / "all.pt"
)
torch.save(optimizer, folder / "optimizer.pt")
torch.save(copy.deepcopy(model), folder / "copy.pt")
torch.save(copy.copy(model), folder / "shallow.pt")
torch.save(torch.optim.swa_utils.AveragedModel(model), folder / "average.pt")
(folder / "model.pkl").write_bytes(pickle.dumps(model))
(folder / "loader.pkl").write_bytes(pickle.dumps(loader))
example = (rows[0][0][None], rows[0][1][None])
torch.jit.save(torch.jit.script(model), folder / "script.pt")
torch.jit.save(torch.jit.trace(model, example), folder / "trace.pt")
(folder / "export.txt").write_text(str(torch.export.export(model, example).graph))
(folder / "fx.txt").write_text(torch.fx.symbolic_trace(model).code)
# it goes on with what it loads
optimizer.load_state_dict(torch.load(folder / "all.pt")["optimizer"])
F.cross_entropy(model(*example).flatten(0, 1), example[0].flatten(), ignore_index=0).backward()
optimizer.step()
torch.save(optimizer.state_dict(), folder / "resumed.pt")
