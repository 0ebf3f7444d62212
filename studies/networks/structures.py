"""Small networks over sequences, graphs, points, tables and pairs: what people write beside images and transformers."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.networks.support import DEVICE, Network


def _ids(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, device=DEVICE)


def _entropy(classes: int) -> Any:
    def loss(out: Tensor, batch: int) -> Tensor:
        flat = out.reshape(-1, classes)
        return F.cross_entropy(flat, _ids(classes, flat.shape[0]))

    return loss


class Tagger(nn.Module):
    """Embedding, bidirectional recurrent layers, a label for every token. ``cell`` is LSTM, GRU or RNN."""

    def __init__(self, cell: str, words: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.recurrent = getattr(nn, cell)(width, width, layers, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(tokens))[0])


def tagger(cell: str = "LSTM", words: int = 5000, width: int = 128, layers: int = 2, length: int = 64) -> Network:
    """A recurrent tagger of ``length`` words with 20 labels, its inputs and its loss."""
    with torch.device(DEVICE):
        module = Tagger(cell, words, width, layers, 20)
    return Network(module, lambda batch: (_ids(words, batch, length),), _entropy(20))


class MessagePassing(nn.Module):
    """Edge messages summed at their targets, as in arXiv 1704.01212; ``attention`` weighs them (arXiv 1710.10903)."""

    def __init__(self, width: int, layers: int, attention: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, width), nn.Linear(width, 8)
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.update = nn.ModuleList(nn.GRUCell(width, width) for _ in range(layers))
        self.score = nn.ModuleList(nn.Linear(2 * width, 1) for _ in range(layers)) if attention else None

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        x = self.enter(nodes)
        for i, (message, update) in enumerate(zip(self.message, self.update, strict=True)):
            both = torch.cat((x[source], x[target]), dim=1)
            sent = F.relu(message(both))
            if self.score is not None:
                weight = torch.exp(F.leaky_relu(self.score[i](both), 0.2).clamp(max=10.0))
                total = torch.zeros(x.shape[0], 1, device=x.device, dtype=weight.dtype).index_add_(0, target, weight)
                sent = sent * weight / total[target]
            x = update(torch.zeros_like(x).index_add_(0, target, sent.to(x.dtype)), x)
        return self.leave(x)


def graph(width: int = 64, layers: int = 3, nodes: int = 32, edges: int = 128, attention: bool = False) -> Network:
    """``batch`` graphs as one of many parts."""
    with torch.device(DEVICE):
        module = MessagePassing(width, layers, attention)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        n, e = nodes * batch, edges * batch
        return torch.randn(n, 16, device=DEVICE), _ids(n, e), _ids(n, e)

    return Network(module, inputs, _entropy(8))


class PointNet(nn.Module):
    """Shared layers on every point, the maximum over points (arXiv 1612.00593)."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        parts = [nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU(True)) for a, b in itertools.pairwise((3, *widths))]
        self.layers = nn.Sequential(*parts)
        self.head = nn.Sequential(nn.Linear(widths[-1], 256), nn.ReLU(True), nn.Dropout(0.3), nn.Linear(256, 40))

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.layers(points).amax(dim=2))


def points(widths: tuple[int, ...] = (64, 128, 512), count: int = 512) -> Network:
    """A PointNet over ``count`` points, its inputs and its loss of 40 classes."""
    with torch.device(DEVICE):
        module = PointNet(widths)
    return Network(module, lambda batch: (torch.randn(batch, 3, count, device=DEVICE),), _entropy(40))


class Recommender(nn.Module):
    """Embedding bags, pairwise products, perceptron (DLRM, arXiv 1906.00091)."""

    def __init__(self, rows: int, tables: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.stack((x, *[t(i) for t, i in zip(self.tables, sparse.unbind(1), strict=True)]), dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        row, column = torch.triu_indices(vectors.shape[1], vectors.shape[1], 1, device=x.device).unbind(0)
        return self.top(torch.cat((x, products[:, row, column]), dim=1)).squeeze(1)


def recommender(rows: int = 2000, tables: int = 6, width: int = 32, bag: int = 4) -> Network:
    """A recommender with ``tables`` embedding bags, its inputs and its loss."""
    with torch.device(DEVICE):
        module = Recommender(rows, tables, width)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 13, device=DEVICE), _ids(rows, batch, tables, bag)

    def loss(out: Tensor, batch: int) -> Tensor:
        return F.binary_cross_entropy_with_logits(out, torch.rand_like(out))

    return Network(module, inputs, loss)


class Experts(nn.Module):
    """A transformer block whose feed-forward is a choice of two experts a token, run by index (arXiv 2401.04088)."""

    def __init__(self, width: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = (
            nn.MultiheadAttention(width, 4, batch_first=True),
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
        self.router, self.chosen = nn.Linear(width, experts, bias=False), chosen
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        flat = self.norm2(x).reshape(-1, x.shape[-1])
        weights, picked = torch.topk(F.softmax(self.router(flat), dim=-1), self.chosen, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(picked == i)
            out.index_add_(0, token, (expert(flat[token]) * weights[token, slot, None]).to(out.dtype))
        return x + out.view_as(x)


class ExpertLanguageModel(nn.Module):
    """A language model whose layers are experts of which each token takes two."""

    def __init__(self, words: int, width: int, layers: int, experts: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList(Experts(width, 2 * width, experts, 2) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def experts(words: int = 1000, width: int = 64, layers: int = 2, count: int = 4, length: int = 32) -> Network:
    """A language model of ``count`` experts a layer, its tokens and its loss."""
    with torch.device(DEVICE):
        module = ExpertLanguageModel(words, width, layers, count)
    return Network(module, lambda batch: (_ids(words, batch, length),), _entropy(words))


class LowRank(nn.Module):
    """A frozen linear layer with a trained product of two thin matrices beside it (arXiv 2106.09685)."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * self.scale


def adapted(words: int = 1000, width: int = 64, layers: int = 2, rank: int = 8, length: int = 32) -> Network:
    """A frozen transformer encoder with low-rank adapters on its feed-forward layers."""
    with torch.device(DEVICE):
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        module = nn.Sequential(nn.Embedding(words, width), body, nn.Linear(width, words)).requires_grad_(False)
        layers_of: Any = body.layers
        for block in layers_of:
            block.linear1, block.linear2 = LowRank(block.linear1, rank, 16.0), LowRank(block.linear2, rank, 16.0)
    return Network(module, lambda batch: (_ids(words, batch, length),), _entropy(words))


class Transducer(nn.Module):
    """Speech encoder, label predictor and joiner of all pairs (arXiv 1211.3711); the loss of the best-aligned path."""

    def __init__(self, features: int, width: int, labels: int) -> None:
        super().__init__()
        self.encoder, self.predictor = nn.LSTM(features, width, 2, batch_first=True), nn.LSTM(width, width, batch_first=True)
        self.embedding = nn.Embedding(labels, width)
        self.first, self.second, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, labels)

    def forward(self, frames: Tensor, labels: Tensor) -> Tensor:
        f, g = self.first(self.encoder(frames)[0]), self.second(self.predictor(self.embedding(labels))[0])
        return F.log_softmax(self.out(torch.tanh(f.unsqueeze(2) + g.unsqueeze(1))), dim=-1)


def transducer(features: int = 80, width: int = 128, labels: int = 64, frames: int = 48, length: int = 12) -> Network:
    """A recurrent transducer over ``frames`` of audio, its inputs and its loss."""
    with torch.device(DEVICE):
        module = Transducer(features, width, labels)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, frames, features, device=DEVICE), _ids(labels, batch, length)

    def loss(out: Tensor, batch: int) -> Tensor:
        blank = out[..., 0].cumsum(dim=1)
        emitted = out.gather(3, _ids(labels, batch, 1, length, 1).expand(-1, out.shape[1], -1, -1)).squeeze(3)
        return -torch.logsumexp(blank + emitted.cumsum(dim=2), dim=(1, 2)).mean()

    return Network(module, inputs, loss)


def speech_ctc(features: int = 80, width: int = 128, labels: int = 32, frames: int = 64, length: int = 10) -> Network:
    """Recurrent acoustic model with connectionist temporal classification."""
    with torch.device(DEVICE):
        module = nn.ModuleDict({"rnn": nn.GRU(features, width, 2, batch_first=True), "head": nn.Linear(width, labels)})

    class Acoustic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = module

        def forward(self, x: Tensor) -> Tensor:
            return F.log_softmax(self.parts["head"](self.parts["rnn"](x)[0]), dim=-1).transpose(0, 1)

    def loss(out: Tensor, batch: int) -> Tensor:
        lengths = torch.full((batch,), frames, dtype=torch.long, device=DEVICE)
        return F.ctc_loss(out.float(), _ids(labels - 1, batch, length) + 1, lengths, torch.full_like(lengths, length))

    return Network(Acoustic(), lambda batch: (torch.randn(batch, frames, features, device=DEVICE),), loss)


class Pair(nn.Module):
    """An image and a text tower, scored against each other over the batch (arXiv 2103.00020)."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.GELU(), nn.Conv2d(32, width, 3, 2, 1), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.text = nn.EmbeddingBag(words, width)
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        a, b = F.normalize(self.image(images), dim=-1), F.normalize(self.text(tokens), dim=-1)
        return self.scale.exp() * a @ b.t()


def contrastive(words: int = 1000, width: int = 64, length: int = 16) -> Network:
    """A pair of encoders for images and text, its inputs and its contrastive loss."""
    with torch.device(DEVICE):
        module = Pair(words, width)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 3, 32, 32, device=DEVICE), _ids(words, batch, length)

    def loss(out: Tensor, batch: int) -> Tensor:
        labels = torch.arange(batch, device=out.device)
        return (F.cross_entropy(out, labels) + F.cross_entropy(out.t(), labels)) / 2

    return Network(module, inputs, loss)


class TemporalConvolutions(nn.Module):
    """Dilated causal residual convolutions (arXiv 1803.01271)."""

    def __init__(self, channels: int, width: int, levels: int) -> None:
        super().__init__()
        widths = (channels, *[width] * levels)
        self.layers = nn.ModuleList(nn.Conv1d(a, b, 3, dilation=2**i) for i, (a, b) in enumerate(itertools.pairwise(widths)))
        self.skip = nn.ModuleList(nn.Conv1d(a, b, 1) if a != b else nn.Identity() for a, b in itertools.pairwise(widths))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for i, (layer, skip) in enumerate(zip(self.layers, self.skip, strict=True)):
            x = F.relu(layer(F.pad(x, (2 ** (i + 1), 0))) + skip(x))
        return self.head(x[:, :, -1])


def temporal(channels: int = 8, width: int = 64, levels: int = 5, length: int = 128) -> Network:
    """Dilated convolutions over ``length`` steps, its inputs and its loss of 10 classes."""
    with torch.device(DEVICE):
        module = TemporalConvolutions(channels, width, levels)
    return Network(module, lambda batch: (torch.randn(batch, channels, length, device=DEVICE),), _entropy(10))


def sequence_to_sequence(words: int = 1000, width: int = 64, layers: int = 2, length: int = 24) -> Network:
    """torch's own encoder-decoder transformer with a causal target mask."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words)
            self.body = nn.Transformer(width, 4, layers, layers, 4 * width, batch_first=True)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
            return self.head(self.body(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True))

    with torch.device(DEVICE):
        module = Translator()
    return Network(module, lambda batch: (_ids(words, batch, length), _ids(words, batch, length)), _entropy(words))


class Segmenter(nn.Module):
    """U-Net (arXiv 1505.04597), ``dimensions`` 2 or 3."""

    def __init__(self, width: int, levels: int, dimensions: int) -> None:
        super().__init__()
        convolution, norm = (nn.Conv2d, nn.BatchNorm2d) if dimensions == 2 else (nn.Conv3d, nn.InstanceNorm3d)
        transposed = nn.ConvTranspose2d if dimensions == 2 else nn.ConvTranspose3d
        self.pool = nn.MaxPool2d(2) if dimensions == 2 else nn.MaxPool3d(2)

        def twice(a: int, b: int) -> nn.Sequential:
            first = (convolution(a, b, 3, padding=1), norm(b), nn.ReLU(inplace=True))
            return nn.Sequential(*first, convolution(b, b, 3, padding=1), norm(b), nn.ReLU(inplace=True))

        widths = [width * 2**i for i in range(levels)]
        self.down = nn.ModuleList(twice(a, b) for a, b in itertools.pairwise((3 if dimensions == 2 else 1, *widths)))
        self.widen = nn.ModuleList(transposed(b, a, 2, stride=2) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(twice(2 * a, a) for a in widths[:-1])
        self.head = convolution(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(self.pool(x) if i else x)
            skips.append(x)
        skips.pop()
        for widen, block in zip(reversed(self.widen), reversed(self.up), strict=True):
            x = block(torch.cat((widen(x), skips.pop()), dim=1))
        return self.head(x)


def segmentation(width: int = 16, levels: int = 4, dimensions: int = 2, side: int = 64) -> Network:
    """A U-Net of two or three ``dimensions``, its inputs and its loss by pixel."""
    with torch.device(DEVICE):
        module = Segmenter(width, levels, dimensions)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, 3 if dimensions == 2 else 1, *[side] * dimensions, device=DEVICE),)

    def loss(out: Tensor, batch: int) -> Tensor:
        return F.cross_entropy(out, _ids(3, batch, *out.shape[2:]))

    return Network(module, inputs, loss)


def perceptron(widths: tuple[int, ...] = (64, 256, 256, 10)) -> Network:
    """Linear layers of ``widths`` with tanh, its inputs and its loss."""
    with torch.device(DEVICE):
        layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in itertools.pairwise(widths)]
        module = nn.Sequential(*layers)
    return Network(module, lambda batch: (torch.randn(batch, widths[0], device=DEVICE),), _entropy(widths[-1]))


def metric_learning(width: int = 64) -> Network:
    """Three images through one tower, a margin between the near and the far pair."""

    class Triplet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = nn.Sequential(
                nn.Conv2d(3, 32, 3, 2, 1),
                nn.BatchNorm2d(32),
                nn.ReLU(),
                nn.Conv2d(32, width, 3, 2, 1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(64 * width, width),
            )

        def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.tower(i) for i in images)

    with torch.device(DEVICE):
        module = Triplet()
    return Network(
        module,
        lambda batch: tuple(torch.randn(batch, 3, 32, 32, device=DEVICE) for _ in range(3)),
        lambda out, batch: F.triplet_margin_loss(*out),
    )
