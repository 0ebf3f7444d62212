"""A lever that acts from the second epoch on is proved there: batches and random numbers of three epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.train.hook.launch import Limits
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.tune.gate import Gate
from gpuwise.train.tune.trial import TrialJob

pytestmark = pytest.mark.thorough
SCRIPT = """
import random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0), random.seed(0), np.random.seed(0)
WAY, WORKERS = sys.argv[1], int(sys.argv[2])
images = torch.rand(16, 1, 6, 6)

class Data(Dataset):
    epoch = 0
    def __len__(self):
        return 16
    def __getitem__(self, index):
        image = images[index]
        if WAY == "flip" and torch.rand(1) < 0.5:
            image = image.flip(-1)
        if WAY == "grayscale" and random.random() < 0.5:
            image = image.mean(0, keepdim=True)[:, :, :1].expand(1, 6, 6)
        if WAY == "blur" and np.random.rand() < 0.5:
            image = nn.functional.avg_pool2d(image, 3, 1, 1)
        if WAY == "erasing":
            at = random.randrange(5)
            image = image.clone()
            image[:, at : at + 2] = 0
        if WAY == "negatives":
            image = image - images[np.random.default_rng().integers(16)]
        if WAY == "epoch":
            image = image + self.epoch
        return image, index

data = Data()
loader = DataLoader(data, 4, shuffle=True, num_workers=WORKERS)
model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(5):
    data.epoch = epoch
    for image, index in loader:
        optimizer.zero_grad()
        model(image).square().mean().backward()
        optimizer.step()
"""
WAYS = ("flip", "grayscale", "blur", "erasing", "negatives", "epoch")


def checked(zygote: Zygote, folder: Path, way: str, workers: int, script: str = SCRIPT) -> tuple[bool, str]:
    """The gate's verdict on kept items."""
    (folder / "train.py").write_text(script)
    job = TrialJob(str(folder / "train.py"), (way, str(workers)), limits=Limits(wall_s=600))
    verdict = Gate(job, folder / "gate", zygote, epoch_steps=4).check({"cache_items": True})
    return verdict.passed, verdict.words


@pytest.mark.parametrize("workers", [0, 2])
def test_kept_items_that_are_computed_train_the_same(workers: int, zygote: Zygote, tmp_path: Path) -> None:
    assert checked(zygote, tmp_path, "plain", workers) == (True, "the batches are the same to the last bit")


@pytest.mark.parametrize("way", WAYS)
def test_a_cache_that_froze_them_would_be_refused(way: str, zygote: Zygote, tmp_path: Path) -> None:
    """The proof can fail: what the lever did before is planted, items that are made once whatever they draw."""
    frozen = SCRIPT.replace("def __getitem__(self, index):", "def made(self, index):", 1).replace(
        "data = Data()",
        "import gc\n"
        "from gpuwise.train.levers.apply import ActiveLevers\n"
        "on = any('cache_items' in o._levers for o in gc.get_objects() if isinstance(o, ActiveLevers))\n"
        "kept = {}\n"
        "def get(self, k):\n"
        "    return self.made(k) if not on else kept[k] if k in kept else kept.setdefault(k, self.made(k))\n"
        "Data.__getitem__ = get\n"
        "data = Data()",
        1,
    )
    passed, words = checked(zygote, tmp_path, way, 0, frozen)
    assert not passed and ("epoch" in words or "holds other values" in words), words


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["flip", "erasing", "epoch"])
def test_the_lever_leaves_them_as_they_are(way: str, workers: int, zygote: Zygote, tmp_path: Path) -> None:
    """Nothing is kept of them: the training is the script's own, or it is refused (workers that stay draw on)."""
    passed, words = checked(zygote, tmp_path, way, workers)
    assert passed or (workers and way != "epoch" and "of epoch 2" in words), words
