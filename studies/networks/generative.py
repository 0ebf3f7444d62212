# pyright: basic
"""Small generative networks of the kinds people write themselves: autoencoder, adversarial pair, flow, diffusion, field.

Sizes are free; the forms are those of the papers named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.networks.support import DEVICE, Conditions, Network


def _images(channels: int, side: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda batch: (torch.randn(batch, channels, side, side, device=DEVICE),)


class VariationalAutoencoder(nn.Module):
    """Convolutional, with the reparametrised latent of arXiv 1312.6114."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.ReLU(),
            nn.Flatten(1),
            nn.Linear(2 * width * 64, 2 * latent),
        )
        self.widen = nn.Linear(latent, 2 * width * 64)
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (2 * width, 8, 8)),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, logvar = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
        return self.decoder(self.widen(z)), x, mean, logvar


def vae(width: int = 32, latent: int = 64) -> Network:
    """A variational autoencoder, its images and its loss."""
    with torch.device(DEVICE):
        module = VariationalAutoencoder(width, latent)

    def loss(out: Any, batch: int) -> Tensor:
        reconstruction, x, mean, logvar = out
        divergence = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(dim=1).mean()
        return F.mse_loss(reconstruction, x, reduction="sum") / batch + divergence

    return Network(module, _images(3, 32), loss)


class _Adversaries(nn.Module):
    """Generator and discriminator of DCGAN (arXiv 1511.06434) at 32 x 32."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        w = width
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(latent, 4 * w, 4, bias=False),
            nn.BatchNorm2d(4 * w),
            nn.ReLU(True),
            nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * w),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * w, w, 4, 2, 1, bias=False),
            nn.BatchNorm2d(w),
            nn.ReLU(True),
            nn.ConvTranspose2d(w, 3, 4, 2, 1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, w, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(w, 2 * w, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * w),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(2 * w, 4 * w, 4, 2, 1, bias=False),
            nn.BatchNorm2d(4 * w),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(4 * w, 1, 4),
            nn.Flatten(0),
        )
        self.latent = latent


def gan(width: int = 32, latent: int = 64) -> Network:
    """Two optimizers in one step: the discriminator on real and made images, then the generator."""
    with torch.device(DEVICE):
        module = _Adversaries(width, latent)

    def step_of(batch: int, how: Conditions) -> Callable[[], Any]:
        real = torch.randn(batch, 3, 32, 32, device=DEVICE)
        first = torch.optim.Adam(module.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        second = torch.optim.Adam(module.generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        judged = F.binary_cross_entropy_with_logits

        def step() -> Any:
            images = module.generator(torch.randn(batch, module.latent, 1, 1, device=DEVICE))
            first.zero_grad()
            on_real, on_images = module.discriminator(real), module.discriminator(images.detach())
            (judged(on_real, torch.ones_like(on_real)) + judged(on_images, torch.zeros_like(on_images))).backward()
            first.step()
            second.zero_grad()
            answer = module.discriminator(images)
            loss = judged(answer, torch.ones_like(answer))
            loss.backward()
            second.step()
            return loss

        return step

    return Network(module, _images(3, 32), lambda out, batch: out.mean(), step_of)


class RealNVP(nn.Module):
    """Affine couplings with alternating halves (arXiv 1605.08803)."""

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        half = width // 2
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(half, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2 * half))
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.chunk(2, dim=1)
        volume = x.new_zeros(x.shape[0])
        for layer in self.layers:
            shift, scale = layer(first).chunk(2, dim=1)
            scale = torch.tanh(scale)
            first, second = second * torch.exp(scale) + shift, first
            volume = volume + scale.sum(dim=1)
        return torch.cat((first, second), dim=1), volume


def flow(width: int = 64, hidden: int = 256, layers: int = 8) -> Network:
    """A normalising flow (RealNVP), its samples and its loss."""
    with torch.device(DEVICE):
        module = RealNVP(width, hidden, layers)

    def loss(out: Any, batch: int) -> Tensor:
        z, volume = out
        return (0.5 * (z * z).sum(dim=1) - volume).mean()

    return Network(module, lambda batch: (torch.randn(batch, width, device=DEVICE),), loss)


class _Residual(nn.Module):
    def __init__(self, a: int, b: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(8, a), nn.GroupNorm(8, b)
        self.time, self.skip = nn.Linear(time, b), nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.first(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.second(F.silu(self.norm2(h))) + self.skip(x)


class _SpatialAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(8, width), nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = (t.reshape(b, 4, c // 4, h * w).transpose(2, 3) for t in self.qkv(self.norm(x)).chunk(3, dim=1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w))


class DiffusionUNet(nn.Module):
    """Noise predictor of denoising diffusion (arXiv 2006.11239): three levels, attention at the lowest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        time = 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        widths = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList(_Residual(a, b, time) for a, b in zip((width, *widths), widths, strict=False))
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths[:-1])
        self.middle, self.attention = _Residual(widths[-1], widths[-1], time), _SpatialAttention(widths[-1])
        up = tuple(reversed(widths))
        self.up = nn.ModuleList(_Residual(a + b, b, time) for a, b in zip((up[0], *up), up, strict=False))
        self.leave = nn.Conv2d(width, 3, 3, padding=1)
        self.width = width

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(-9.21 * torch.arange(self.width // 2, device=x.device) / (self.width // 2))
        angles = t[:, None].float() * rates[None]
        t = self.time(torch.cat((angles.sin(), angles.cos()), dim=1))
        x = self.enter(x)
        skips = []
        for i, block in enumerate(self.down):
            x = block(x, t)
            skips.append(x)
            if i < len(self.shrink):
                x = self.shrink[i](x)
        x = self.attention(self.middle(x, t))
        for i, block in enumerate(self.up):
            if i:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat((x, skips.pop()), dim=1), t)
        return self.leave(F.silu(x))


def diffusion(width: int = 32, side: int = 32) -> Network:
    """A diffusion U-Net on square images of ``side`` pixels, its noised images and its loss."""
    with torch.device(DEVICE):
        module = DiffusionUNet(width)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 3, side, side, device=DEVICE), torch.randint(0, 1000, (batch,), device=DEVICE)

    return Network(module, inputs, lambda out, batch: F.mse_loss(out, torch.randn_like(out)))


class RadianceField(nn.Module):
    """Eight layers of 256 on encoded positions, volume rendering along rays (arXiv 2003.08934)."""

    def __init__(self, width: int, octaves: int) -> None:
        super().__init__()
        self.octaves, entry = octaves, 3 + 6 * octaves
        widths = [entry, *[width] * 8]
        self.layers = nn.ModuleList(
            nn.Linear(a + (entry if i == 4 else 0), b) for i, (a, b) in enumerate(itertools.pairwise(widths))
        )
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, positions: Tensor, distances: Tensor) -> Tensor:
        scaled = [positions * 2.0**i for i in range(self.octaves)]
        entry = torch.cat([positions, *[f(s) for s in scaled for f in (torch.sin, torch.cos)]], dim=-1)
        x = entry
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat((x, entry), -1) if i == 4 else x))
        alpha = 1.0 - torch.exp(-F.relu(self.density(x).squeeze(-1)) * distances)
        passed = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10), 1), 1)[:, :-1]
        return ((alpha * passed).unsqueeze(-1) * torch.sigmoid(self.colour(x))).sum(dim=1)


def nerf(width: int = 256, octaves: int = 10, samples: int = 64) -> Network:
    """A radiance field with ``samples`` points a ray, its rays and its loss."""
    with torch.device(DEVICE):
        module = RadianceField(width, octaves)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, samples, 3, device=DEVICE), torch.rand(batch, samples, device=DEVICE)

    return Network(module, inputs, lambda out, batch: F.mse_loss(out, torch.rand_like(out)))
