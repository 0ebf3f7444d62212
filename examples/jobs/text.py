"""A byte-level GPT on the functions of Python's own standard library, one function a row, padded to one length.

Real text on every machine, with real and very unequal lengths: most of each batch is padding. Written as such scripts are
written, with nothing tuned:

    python examples/jobs/text.py --steps 50
    gpuwise tune examples/jobs/text.py

``make_step`` gives the same training to ranks:

    gpuwise run examples/jobs/text.py:make_step --ranks 2 --global-batch 8
"""

from __future__ import annotations

import argparse
import ast
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 257  # bytes, and 256 for padding
PADDING, IGNORED = 256, -100


class Functions(Dataset):
    """Every function's source as bytes, cut to ``length + 1``."""

    def __init__(self, length: int, most_files: int) -> None:
        self.rows: list[torch.Tensor] = []
        root = Path(sysconfig.get_path("stdlib"))
        for file in sorted(root.glob("*.py"))[:most_files]:
            source = file.read_text("utf-8", errors="replace")
            lines = source.splitlines(keepends=True)
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = "".join(lines[node.lineno - 1 : node.end_lineno]).encode()
                    self.rows.append(torch.tensor(list(text[: length + 1])))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def collate(length: int):
    def pad(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.full((len(rows), length), PADDING)
        targets = torch.full((len(rows), length), IGNORED)
        for at, row in enumerate(rows):
            ids[at, : len(row) - 1] = row[:-1]
            targets[at, : len(row) - 1] = row[1:]
        return ids, targets

    return pad


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (h.view(b, t, self.heads, -1).transpose(1, 2) for h in self.qkv(self.norm1(x)).split(d, dim=2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_step(length: int = 1024, width: int = 64, layers: int = 2, files: int = 40):
    def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, int]:
        ids, targets = batch
        logits = model(ids).view(-1, VOCABULARY)
        loss = F.cross_entropy(logits, targets.view(-1), ignore_index=IGNORED, reduction="sum")
        return loss, int((targets != IGNORED).sum())

    return {
        "model": GPT(length, width, layers, heads=2),
        "data": Functions(length, files),
        "collate": collate(length),
        "step": step,
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--files", type=int, default=40)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    rows = Functions(options.length, options.files)
    loader = DataLoader(rows, batch_size=options.batch, shuffle=True, drop_last=True, collate_fn=collate(options.length))
    model = GPT(options.length, options.width, options.layers, heads=2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, began = 0, time.time()
    while step < options.steps:
        for ids, targets in loader:
            ids, targets = ids.to(device), targets.to(device)
            logits = model(ids)
            loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                rate = step * options.batch / (time.time() - began)
                print(f"step {step}: {loss.item():.3f} nats a byte, {rate:.1f} rows/s")  # noqa: T201
            if step >= options.steps:
                break


if __name__ == "__main__":
    main()
