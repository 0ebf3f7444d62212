"""Small trainings with one waste each, and their twins without it, mended by hand: ``python twins.py workers wasteful|mended``.

Where work only has to take time, it waits instead, so that what its mend gives does not hang on who else uses the machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WASTE, MENDED = sys.argv[1], sys.argv[2] == "mended"
BATCH, LENGTH = 8, 256


class Fetched(Dataset):
    """Rows from far away, the same every time."""

    def __init__(self, n: int = 96, wait_s: float = 0.01) -> None:
        self._n, self._wait_s = n, wait_s
        self._kept = [self._row(k) for k in range(n)] if WASTE == "cache_items" and MENDED else None

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._row(index) if self._kept is None else self._kept[index]

    def _row(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self._wait_s)
        return torch.randn(16, generator=torch.Generator().manual_seed(index)), index % 4


class Pictures(Dataset):
    """Images of one folder, decoded at every turn or once."""

    def __init__(self, folder: Path, n: int = 48, side: int = 384) -> None:
        self._paths = [folder / f"{k}.png" for k in range(n)]
        for k, path in enumerate(self._paths):
            Image.fromarray(np.random.default_rng(k).integers(0, 255, (side, side, 3), dtype=np.uint8)).save(path)
        self._kept = [Image.open(p).convert("L") for p in self._paths] if MENDED else None

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = Image.open(self._paths[index]).convert("L") if self._kept is None else self._kept[index]
        return torch.from_numpy(np.asarray(picture)[:4, :4].astype(np.float32)).flatten() / 255, index % 4


class Texts(Dataset):
    """Rows of very unequal length."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(index)
        return torch.randint(1, 9, (12 + 5 * (index % 8),), generator=draw)


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    long = max(map(len, rows)) - 1 if MENDED else LENGTH
    ids, targets = torch.zeros(len(rows), long, dtype=torch.long), torch.full((len(rows), long), -100)
    for at, row in enumerate(rows):
        ids[at, : len(row) - 1], targets[at, : len(row) - 1] = row[:-1], row[1:]
    return ids, targets


class Waits(nn.Module):
    """A layer that takes its time."""

    def __init__(self, inner: nn.Module, wait_s: float, by_column: bool = False) -> None:
        super().__init__()
        self.inner, self._wait_s, self._by_column = inner, wait_s, by_column

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self._wait_s * (x.shape[0] * x.shape[1] if self._by_column else 1))
        return self.inner(x)


class Pieces(nn.Module):
    """One layer whose weight is kept as 400 small parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(torch.randn(8) / 4 for _ in range(400))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ torch.cat(list(self.pieces)).view(16, 200))


class Recomputes(nn.Module):
    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Waits(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), 0.02) for _ in range(blocks))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if MENDED else checkpoint(block, x, use_reentrant=False)
        return self.head(x)


torch.manual_seed(0)
folder = tempfile.TemporaryDirectory()
model: nn.Module = Waits(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), 0.02)
data: Dataset = Fetched(wait_s=0.01 if WASTE in ("workers", "cache_items") else 0.0)
arguments: dict[str, object] = {"batch_size": BATCH, "shuffle": True}
fused = None
if WASTE == "workers" and MENDED:
    arguments |= {"num_workers": 4, "persistent_workers": True}
elif WASTE == "cache_decode":
    data = Pictures(Path(folder.name))
elif WASTE == "padding":
    data, arguments["collate_fn"] = Texts(), padded
    model = nn.Sequential(Waits(nn.Embedding(9, 4), 6e-5, by_column=True), nn.Linear(4, 9))
elif WASTE == "fused_optimizer":
    model = nn.Sequential(Pieces(), nn.Linear(200, 4))
    fused = True if MENDED else None
elif WASTE == "checkpointing":
    model = Recomputes()
loader = DataLoader(data, **arguments)  # type: ignore[arg-type]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
for _ in range(200):
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
