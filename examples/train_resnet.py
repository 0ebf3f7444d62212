"""A residual network on images: `gpuwise fit examples/train_resnet.py:make_step --batch auto --on "RTX 3060"`."""

import torch
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    def __init__(self, n_in, n_mid, stride):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(n_in, n_mid, 1, bias=False),
            nn.BatchNorm2d(n_mid),
            nn.ReLU(inplace=True),
            nn.Conv2d(n_mid, n_mid, 3, stride, 1, bias=False),
            nn.BatchNorm2d(n_mid),
            nn.ReLU(inplace=True),
            nn.Conv2d(n_mid, 4 * n_mid, 1, bias=False),
            nn.BatchNorm2d(4 * n_mid),
        )
        self.skip = nn.Identity()
        if stride != 1 or n_in != 4 * n_mid:
            self.skip = nn.Sequential(nn.Conv2d(n_in, 4 * n_mid, 1, stride, bias=False), nn.BatchNorm2d(4 * n_mid))

    def forward(self, x):
        return functional.relu(self.path(x) + self.skip(x))


def resnet50(n_classes=1000):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    n_in = 64
    for n_blocks, n_mid, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        blocks = []
        for i in range(n_blocks):
            blocks.append(Bottleneck(n_in, n_mid, stride if i == 0 else 1))
            n_in = 4 * n_mid
        layers.append(nn.Sequential(*blocks))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, n_classes))


def make_step(batch=64, size=224):
    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(batch, 3, size, size, device="cuda")
    labels = torch.randint(1000, (batch,), device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
