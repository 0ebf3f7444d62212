# pyright: basic
"""Speech synthesis networks of NVIDIA's DeepLearningExamples, from their published dimensions.

Tacotron 2 (arXiv 1712.05884; DeepLearningExamples PyTorch/SpeechSynthesis/Tacotron2, ``tacotron2/arg_parser.py``):
148 symbols of 512, three convolutions of width 5 and a bidirectional LSTM of 2 x 256, location-sensitive attention of
128 over 32 filters of 31, two LSTM cells of 1024, a post-net of five convolutions of 512, 80 mel channels.
WaveGlow (arXiv 1811.00002; ``waveglow/arg_parser.py``): 12 flows over groups of 8 samples, two channels put out early
every four flows, eight dilated layers of 512 channels, width 3; a mel column is 256 samples, its window 1024.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.networks.support import DEVICE, Network

MEL = 80
HOP = 256


class _Encoder(nn.Module):
    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.convolutions = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width)) for _ in range(3)
        )
        self.lstm = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text).transpose(1, 2)
        for convolution in self.convolutions:
            x = F.dropout(F.relu(convolution(x)), 0.5, self.training)
        return self.lstm(x.transpose(1, 2))[0]


class _LocationAttention(nn.Module):
    def __init__(self, query: int, memory: int, width: int = 128, filters: int = 32, kernel: int = 31) -> None:
        super().__init__()
        self.query, self.memory = nn.Linear(query, width, bias=False), nn.Linear(memory, width, bias=False)
        self.location = nn.Conv1d(2, filters, kernel, padding=kernel // 2, bias=False)
        self.location_dense, self.score = nn.Linear(filters, width, bias=False), nn.Linear(width, 1, bias=False)

    def forward(self, query: Tensor, memory: Tensor, processed: Tensor, weights: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        location = self.location_dense(self.location(weights).transpose(1, 2))
        energies = self.score(torch.tanh(self.query(query.unsqueeze(1)) + processed + location)).squeeze(2)
        attention = F.softmax(energies.masked_fill(mask, -1e4), dim=1)
        return torch.bmm(attention.unsqueeze(1), memory).squeeze(1), attention


class Tacotron2(nn.Module):
    """Teacher-forced: one pass of the decoder's cells for every mel column."""

    def __init__(self, symbols: int = 148, memory: int = 512, cell: int = 1024, prenet: int = 256) -> None:
        super().__init__()
        self.encoder = _Encoder(symbols, memory)
        self.prenet = nn.ModuleList((nn.Linear(MEL, prenet, bias=False), nn.Linear(prenet, prenet, bias=False)))
        self.attention_cell, self.decoder_cell = nn.LSTMCell(prenet + memory, cell), nn.LSTMCell(cell + memory, cell)
        self.attention = _LocationAttention(cell, memory)
        self.projection, self.gate = nn.Linear(cell + memory, MEL), nn.Linear(cell + memory, 1)
        widths = (MEL, memory, memory, memory, memory, MEL)
        self.postnet = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 5, padding=2), nn.BatchNorm1d(b)) for a, b in itertools.pairwise(widths)
        )
        self.cell = cell

    def forward(self, text: Tensor, mask: Tensor, mel: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory = self.encoder(text)
        processed = self.attention.memory(memory)
        frames = torch.cat((mel.new_zeros(mel.shape[0], 1, MEL), mel.transpose(1, 2)[:, :-1]), dim=1).transpose(0, 1)
        for layer in self.prenet:
            frames = F.dropout(F.relu(layer(frames)), 0.5, True)
        columns, gates = self._decode(frames, memory, processed, mask)
        x = columns
        for i, layer in enumerate(self.postnet):
            x = layer(x)
            x = F.dropout(torch.tanh(x) if i < len(self.postnet) - 1 else x, 0.5, self.training)
        return columns, columns + x, gates

    def _decode(self, frames: Tensor, memory: Tensor, processed: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, width = memory.shape
        h1, c1, h2, c2 = (memory.new_zeros(batch, self.cell) for _ in range(4))
        attention, total = memory.new_zeros(batch, length), memory.new_zeros(batch, length)
        context = memory.new_zeros(batch, width)
        mels, gates = [], []
        for frame in frames.unbind(0):
            h1, c1 = self.attention_cell(torch.cat((frame, context), -1), (h1, c1))
            h1 = F.dropout(h1, 0.1, self.training)
            weights = torch.cat((attention.unsqueeze(1), total.unsqueeze(1)), dim=1)
            context, attention = self.attention(h1, memory, processed, weights, mask)
            total = total + attention
            h2, c2 = self.decoder_cell(torch.cat((h1, context), -1), (h2, c2))
            h2 = F.dropout(h2, 0.1, self.training)
            both = torch.cat((h2, context), dim=1)
            mels.append(self.projection(both))
            gates.append(self.gate(both))
        return torch.stack(mels, dim=2), torch.cat(gates, dim=1)


def tacotron2(frames: int, characters: int) -> Network:
    """Teacher-forced training on ``frames`` mel columns of ``characters`` of text."""
    with torch.device(DEVICE):
        module = Tacotron2()

    def inputs(batch: int) -> tuple[Tensor, ...]:
        text = torch.randint(0, 148, (batch, characters), device=DEVICE)
        mask = torch.zeros(batch, characters, dtype=torch.bool, device=DEVICE)
        return text, mask, torch.randn(batch, MEL, frames, device=DEVICE)

    def loss(outputs: Any, batch: int) -> Tensor:
        before, after, gates = outputs
        target, gate = torch.zeros_like(before), torch.zeros_like(gates)
        return F.mse_loss(before, target) + F.mse_loss(after, target) + F.binary_cross_entropy_with_logits(gates, gate)

    return Network(module, inputs, loss)


class _DilatedLayers(nn.Module):
    """WaveNet-like layers of one coupling: dilated convolution gated by the condition."""

    def __init__(self, half: int, condition: int, layers: int, width: int) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.start, self.end = norm(nn.Conv1d(half, width, 1)), nn.Conv1d(width, 2 * half, 1)
        self.dilated = nn.ModuleList(norm(nn.Conv1d(width, 2 * width, 3, dilation=2**i, padding=2**i)) for i in range(layers))
        self.condition = nn.ModuleList(norm(nn.Conv1d(condition, 2 * width, 1)) for _ in range(layers))
        self.out = nn.ModuleList(norm(nn.Conv1d(width, 2 * width if i < layers - 1 else width, 1)) for i in range(layers))
        self.width = width

    def forward(self, audio: Tensor, mel: Tensor) -> Tensor:
        x = self.start(audio)
        total = torch.zeros_like(x)
        for i, (dilated, condition, out) in enumerate(zip(self.dilated, self.condition, self.out, strict=True)):
            both = dilated(x) + condition(mel)
            y = out(torch.tanh(both[:, : self.width]) * torch.sigmoid(both[:, self.width :]))
            if i < len(self.dilated) - 1:
                x, total = x + y[:, : self.width], total + y[:, self.width :]
            else:
                total = total + y
        return self.end(total)


class WaveGlow(nn.Module):
    """WaveGlow: audio from mel spectrograms by ``flows`` steps of flow."""

    def __init__(self, flows: int = 12, group: int = 8, early_every: int = 4, early: int = 2, layers: int = 8, width: int = 512):
        super().__init__()
        self.upsample = nn.ConvTranspose1d(MEL, MEL, 4 * HOP, stride=HOP)
        self.mixing, self.coupling = nn.ModuleList(), nn.ModuleList()
        channels = group
        self.group, self.early_every, self.early = group, early_every, early
        for flow in range(flows):
            if flow % early_every == 0 and flow > 0:
                channels -= early
            self.mixing.append(nn.Conv1d(channels, channels, 1, bias=False))
            self.coupling.append(_DilatedLayers(channels // 2, MEL * group, layers, width))

    def forward(self, mel: Tensor, audio: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        condition = self.upsample(mel)[:, :, : audio.shape[1]]
        condition = condition.unfold(2, self.group, self.group).permute(0, 2, 1, 3)
        condition = condition.contiguous().view(condition.shape[0], condition.shape[1], -1).permute(0, 2, 1)
        x = audio.unfold(1, self.group, self.group).permute(0, 2, 1)
        out, scales, volumes = [], [], []
        for flow, (mixing, coupling) in enumerate(zip(self.mixing, self.coupling, strict=True)):
            if flow % self.early_every == 0 and flow > 0:
                out.append(x[:, : self.early])
                x = x[:, self.early :]
            x = mixing(x)
            weight: Any = mixing.weight
            volumes.append(torch.logdet(weight.squeeze(-1).float()))
            half = x.shape[1] // 2
            first, second = x[:, :half], x[:, half:]
            both = coupling(first, condition)
            shift, scale = both[:, :half], both[:, half:]
            x = torch.cat((first, torch.exp(scale) * second + shift), dim=1)
            scales.append(scale)
        return torch.cat((*out, x), dim=1), scales, volumes


def waveglow(samples: int) -> Network:
    """Likelihood of ``samples`` of audio given their mel columns."""
    with torch.device(DEVICE):
        module = WaveGlow()

    def inputs(batch: int) -> tuple[Tensor, ...]:
        columns = -(-samples // HOP)
        return torch.randn(batch, MEL, columns, device=DEVICE), torch.randn(batch, samples, device=DEVICE)

    def loss(outputs: Any, batch: int) -> Tensor:
        z, scales, volumes = outputs
        likelihood = (z * z).sum() / 2.0
        for scale in scales:
            likelihood = likelihood - scale.sum()
        for volume in volumes:
            likelihood = likelihood - volume * float(batch * z.shape[2])
        return likelihood / float(z.numel())

    return Network(module, inputs, loss)
