"""Networks that need torch alone: a language model of LSTMs, a perceptron, a U-Net, ``torch.nn``'s own transformer."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from gpuwise.machine.bench.local.cases import TOKENS


class _LstmLanguageModel(nn.Module):
    """Embedding 512, two LSTM layers of 1,024, tied to nothing, logits over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 512)
        self.lstm = nn.LSTM(512, 1024, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(1024, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(x))[0])


class _TransformerLanguageModel(nn.Module):
    """Six encoder layers of ``nn.TransformerEncoderLayer`` with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(512, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.layers(self.embed(x), mask=mask, is_causal=True))


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(8, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GroupNorm(8, outputs),
        nn.SiLU(),
    )


class _UNet(nn.Module):
    """Four levels from 64 channels, group norm and SiLU, transposed convolutions on the way up."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.down = nn.ModuleList(_double(a, b) for a, b in zip((3, *widths[:-1]), widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
        self.join = nn.ModuleList(_double(2 * a, a) for a in widths[:-1])
        self.out = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for i, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for i in reversed(range(len(self.up))):
            x = self.join[i](torch.cat([self.up[i](x), skips[i]], 1))
        return self.out(x)


def lstm() -> nn.Module:
    """A language model of LSTM layers."""
    return _LstmLanguageModel()


def transformer() -> nn.Module:
    """A language model of ``torch.nn.TransformerEncoder``."""
    return _TransformerLanguageModel()


def unet() -> nn.Module:
    """A U-Net."""
    return _UNet()


def mlp() -> nn.Module:
    """1,024 to 4,096 four times to 10 classes, ReLU and batch norm between."""
    widths = (1024, 4096, 4096, 4096)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))
