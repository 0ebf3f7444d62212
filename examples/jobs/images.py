"""A small convolutional network on images that are decoded and augmented one by one, as they come from files.

The images are real: Debian's ``dataset-fashion-mnist`` (``apt install dataset-fashion-mnist``) or scikit-learn's digits
(``--source digits``), written once as PNG files larger than the network takes them, as photographs are. Or ``--data FOLDER``
with one folder of images for each class. Written as such scripts are written, with nothing tuned:

    python examples/jobs/images.py --epochs 3
    gpuwise tune examples/jobs/images.py

``make_step`` gives the same training to ranks:

    gpuwise run examples/jobs/images.py:make_step --ranks 2 --global-batch 32
"""

from __future__ import annotations

import argparse
import gzip
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

FASHION = Path("/usr/share/datasets/fashion-mnist")
STORED, TAKEN = 224, 32


def fashion(n: int) -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(FASHION / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(16 + n * 784), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(FASHION / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(8 + n), np.uint8, offset=8)
    return images, labels


def digits(n: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.images[:n] * 15.9375).astype(np.uint8), data.target[:n]


def write(source: str, n: int, folder: Path) -> None:
    images, labels = (fashion if source == "fashion" else digits)(n)
    for at, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / str(int(label))
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((STORED, STORED), Image.Resampling.BICUBIC).save(place / f"{at:05d}.png")
    (folder / "complete").touch()


class Images(Dataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*/*.png"))
        self.classes = sorted({p.parent.name for p in self.paths})

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        image = Image.open(path).convert("L").resize((TAKEN, TAKEN), Image.Resampling.BILINEAR)
        image = image.rotate(random.uniform(-10, 10), translate=(random.randint(-2, 2), random.randint(-2, 2)))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255.0 - 0.5)
        return pixels[None], self.classes.index(path.parent.name)


def network(n_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (TAKEN // 4) ** 2, n_classes),
    )


def folder_of(source: str, n: int) -> Path:
    """The images as files, written once."""
    folder = Path(tempfile.gettempdir()) / f"gpuwise-{source}-{n}"
    if not (folder / "complete").exists():
        write(source, n, folder)
    return folder


def make_step(source: str = "fashion" if FASHION.exists() else "digits", images: int = 1000):
    data = Images(folder_of(source, images))

    def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, int]:
        pixels, labels = batch
        return F.cross_entropy(model(pixels), labels, reduction="sum"), len(labels)

    return {
        "model": network(len(data.classes)),
        "data": data,
        "step": step,
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=("fashion", "digits"), default="fashion" if FASHION.exists() else "digits")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    folder = options.data or folder_of(options.source, options.images)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    random.seed(0)
    images = Images(folder)
    loader = DataLoader(images, batch_size=options.batch, shuffle=True, drop_last=True)
    model = network(len(images.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(options.epochs):
        began, right, seen = time.time(), 0, 0
        for pixels, labels in loader:
            pixels, labels = pixels.to(device), labels.to(device)
            logits = model(pixels)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (logits.argmax(1) == labels).sum().item()
            seen += len(labels)
        print(f"epoch {epoch}: {right / seen:.3f} right, {seen / (time.time() - began):.0f} images/s")  # noqa: T201


if __name__ == "__main__":
    main()
