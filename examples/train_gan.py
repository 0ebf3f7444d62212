"""Two networks and two optimizers in one step: `gpuwise plan examples/train_gan.py:make_step --on T4 --samples 1M`."""

import torch
from torch import nn
from torch.nn import functional


def generator(n_noise=128, width=64):
    return nn.Sequential(
        nn.ConvTranspose2d(n_noise, 8 * width, 4),
        nn.BatchNorm2d(8 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(8 * width, 4 * width, 4, 2, 1),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    )


def critic(width=64):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
        nn.BatchNorm2d(4 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4 * width, 8 * width, 4, 2, 1),
        nn.BatchNorm2d(8 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8 * width, 1, 4),
        nn.Flatten(),
    )


def make_step(batch=256, n_noise=128):
    painter, judge = generator(n_noise).cuda(), critic().cuda()
    painting = torch.optim.Adam(painter.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judging = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    real = torch.randn(batch, 3, 64, 64, device="cuda")
    yes, no = torch.ones(batch, 1, device="cuda"), torch.zeros(batch, 1, device="cuda")
    loss_of = functional.binary_cross_entropy_with_logits

    def step():
        fake = painter(torch.randn(batch, n_noise, 1, 1, device="cuda"))
        judging.zero_grad()
        (loss_of(judge(real), yes) + loss_of(judge(fake.detach()), no)).backward()
        judging.step()
        painting.zero_grad()
        loss_of(judge(fake), yes).backward()
        painting.step()

    return step
