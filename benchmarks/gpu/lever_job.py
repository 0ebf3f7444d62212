"""A small training that levers are put on: it warms up, waits for its turn on the card, and times its steps.

    python lever_job.py KIND READY GO OUT [--steps 30] [--tiny]

``KIND`` is ``conv`` (a residual network on images), ``gpt`` (blocks of attention) or ``loader`` (a small network on images that
the loop's own process makes). After the warm-up the file READY is written, and steps go on when GO is there. OUT gets the median
seconds a step and the losses; beside it with the suffix ``.pt`` are weights and optimizer, as scripts save them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARM_UP = 8
SETTLE = {"loader": 20}
"""Steps after the turn that are not timed: workers have made batches while they waited for it."""
PATIENCE_S = 200.0


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
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, max(width // 64, 1)) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Unit(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.path(x))


def network(width: int, units: int) -> nn.Module:
    head = [nn.Conv2d(3, width, 7, 4, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*head, *(Unit(width) for _ in range(units)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Noise(Dataset[tuple[torch.Tensor, int]]):
    """Images that are made one by one, always the same."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size = n, size

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, self.size // 8, self.size // 8, generator=generator)
        return F.interpolate(image[None], size=self.size, mode="bicubic")[0] - 0.5, index % 10


def parts(kind: str, tiny: bool) -> tuple[nn.Module, DataLoader]:
    """The model, and batches of one shape."""
    torch.manual_seed(7)
    # batches that are on the device already: the step is the model's
    if kind == "gpt":
        words, width, layers, batch, length = (512, 64, 2, 2, 32) if tiny else (8192, 768, 6, 8, 512)
        ids = [torch.randint(words, (batch, length + 1)).to(DEVICE) for _ in range(8)]
        return GPT(words, width, layers), DataLoader(ids, batch_size=None)
    if kind == "conv":
        width, units, batch, size = (16, 1, 4, 32) if tiny else (192, 6, 32, 224)
        images = [torch.randn(batch, 3, size, size).to(DEVICE) for _ in range(4)]
        labels = (torch.arange(batch) % 10).to(DEVICE)
        return network(width, units), DataLoader([(x, labels) for x in images], batch_size=None)
    n, size, batch = (256, 64, 8) if tiny else (20_000, 224, 32)
    return network(32, 1), DataLoader(Noise(n, size), batch_size=batch)


def loss_of(kind: str, model: nn.Module, batch: object) -> torch.Tensor:
    if kind == "gpt":
        ids = batch.to(DEVICE)  # type: ignore[attr-defined]
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    images, labels = batch  # type: ignore[misc]
    images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
    return F.cross_entropy(model(images), labels)


def make_step(kind: str = "gpt", levers: str = "") -> Callable[[], object]:
    """A step on a GPU with the levers as a person writes them, for ``gpuwise plan lever_job.py:make_step --set levers=tf32``."""
    global DEVICE
    DEVICE = "cuda"
    names = levers.split()
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, "tf32" in names
    model, loader = parts(kind, tiny=False)
    model, batch = model.to(DEVICE), next(iter(loader))
    if "channels_last" in names:
        model = model.to(memory_format=torch.channels_last)
    call = torch.compile(model) if "compile" in names else model
    fused = "fused_optimizer" in names
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=None if fused else False, fused=fused)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16, enabled="autocast" in names):
            loss = loss_of(kind, call, batch)
        optimizer.zero_grad(set_to_none="set_to_none" in names)
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("conv", "gpt", "loader"))
    parser.add_argument("ready", type=Path)
    parser.add_argument("go", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    model, loader = parts(options.kind, options.tiny)
    model = model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    losses: list[torch.Tensor] = []
    seconds: list[float] = []
    began = 0.0
    before = WARM_UP + SETTLE.get(options.kind, 0)
    while len(losses) < before + options.steps:
        for batch in loader:
            loss = loss_of(options.kind, model, batch)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            now = time.perf_counter()
            if len(losses) > before:
                seconds.append(now - began)
            if len(losses) == WARM_UP:
                options.ready.touch()
                until = time.monotonic() + PATIENCE_S
                while not options.go.exists() and time.monotonic() < until:
                    time.sleep(0.005)
                now = time.perf_counter()
            began = now
            if len(losses) >= before + options.steps:
                break
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, options.out.with_suffix(".pt"))
    peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
    told = {"step_s": statistics.median(seconds), "mean_s": statistics.mean(seconds), "peak_bytes": peak}
    partial = options.out.with_suffix(".partial")
    partial.write_text(json.dumps({**told, "losses": [float(x) for x in losses]}), "utf-8")
    partial.rename(options.out)


if __name__ == "__main__":
    main()
