"""Classify circles and squares in ten seconds, a whole script: `gpuwise profile examples/train_shapes.py`.

Its pictures are drawn one by one in Python while the network waits, as many loaders do: `gpuwise tune` finds what helps.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    """Pictures of 32 x 32 pixels, each drawn when it is asked for."""

    def __init__(self, n, size=32):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        x, y, radius = (torch.rand(3, generator=draw) * torch.tensor([8, 8, 6]) + torch.tensor([12, 12, 5])).tolist()
        is_square = i % 2
        picture = torch.randn(1, self.size, self.size, generator=draw) * 0.3
        for row in range(int(y - radius), int(y + radius) + 1):
            half = radius if is_square else max(radius**2 - (row - y) ** 2, 0) ** 0.5
            for column in range(int(x - half), int(x + half) + 1):
                picture[0, row, column] += 1
        return picture, is_square


def network():
    layers, channels = [], 1
    for wide in (8, 16, 32):
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]
        channels = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=640)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(Shapes(given.pictures), batch_size=given.batch, shuffle=True)
    for epoch in range(given.epochs):
        correct = torch.zeros((), device=device)
        for pictures, is_square in loader:
            pictures, is_square = pictures.to(device), is_square.to(device)
            guesses = model(pictures)
            loss = nn.functional.cross_entropy(guesses, is_square)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (guesses.argmax(1) == is_square).sum()
        print(f"epoch {epoch + 1}: {correct.item() / given.pictures:.0%} right")  # noqa: T201


if __name__ == "__main__":
    main()
