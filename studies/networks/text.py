# pyright: basic
"""Translation, language and ranking networks of NVIDIA's DeepLearningExamples, from their published dimensions.

GNMT v2 (PyTorch/Translation/GNMT, README "Model architecture"): 1024 wide; encoder of one bidirectional and three
residual LSTM layers; decoder of four LSTM layers, the first with normalised Bahdanau attention whose context feeds
every layer; shared embedding of 32,320 pieces (32,317 padded to a multiple of eight); dropout 0.2; label smoothing.
Transformer-XL (arXiv 1901.02860; PyTorch/LanguageModeling/Transformer-XL, ``wt103_base.yaml`` and
``wt103_large.yaml``): relative positions, memory of the last segment, adaptive softmax over 267,735 words with cut-offs
at 19,997, 39,997 and 199,997, its weights those of the embedding. Without ``adaptive`` every word has a logit.
NeuMF (arXiv 1708.05031; PyTorch/Recommendation/NCF, README): factors of 64, layers 256-256-128-64, ML-20m's 138,493
users and 26,744 items.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.networks.support import DEVICE, Network


class _Bahdanau(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.attention = nn.Parameter(torch.empty(width))
        self.scale, self.bias = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(width))

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """[B, Q, H] from queries [B, Q, H] and keys [B, K, H]."""
        both = self.query(query).unsqueeze(2) + self.key(keys).unsqueeze(1) + self.bias
        direction = self.attention / self.attention.norm() * self.scale
        return torch.bmm(F.softmax(torch.tanh(both).matmul(direction), dim=-1), keys)


class GNMT(nn.Module):
    """GNMT: a recurrent translator with attention (MLPerf training)."""

    def __init__(self, vocabulary: int = 32320, width: int = 1024, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.first = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.second = nn.LSTM(2 * width, width, batch_first=True)
        self.encoder = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.decoder = nn.ModuleList(nn.LSTM(w, width, batch_first=True) for w in (width, 2 * width, 2 * width, 2 * width))
        self.attention = _Bahdanau(width)
        self.classifier = nn.Linear(width, vocabulary)
        self.dropout = dropout

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self._drop(self.embedding(source))
        x = self.first(x)[0]
        x = self.second(self._drop(x))[0]
        for layer in self.encoder:
            x = layer(self._drop(x))[0] + x
        y = self.decoder[0](self._drop(self.embedding(target)))[0]
        context = self.attention(y, x)
        for i, layer in enumerate(self.decoder[1:]):
            out = layer(torch.cat((self._drop(y), context), dim=2))[0]
            y = out + y if i else out
        return self.classifier(y)


def gnmt(length: int) -> Network:
    """Sentences of ``length`` pieces on both sides."""
    with torch.device(DEVICE):
        module = GNMT()

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return tuple(torch.randint(1, 32320, (batch, length), device=DEVICE) for _ in range(2))

    def loss(outputs: Any, batch: int) -> Tensor:
        target = torch.randint(1, 32320, (batch * length,), device=DEVICE)
        logp = F.log_softmax(outputs.reshape(-1, outputs.shape[-1]), dim=-1, dtype=torch.float32)
        exact = -logp.gather(dim=-1, index=target.unsqueeze(1)).squeeze(1)
        return (0.9 * exact - 0.1 * logp.mean(dim=-1)).sum() / batch

    return Network(module, inputs, loss)


class _RelativeLayer(nn.Module):
    def __init__(self, width: int, heads: int, head: int, inner: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.attention_dropout = attention_dropout
        self.qkv, self.positions = nn.Linear(width, 3 * heads * head, bias=False), nn.Linear(width, heads * head, bias=False)
        self.out, self.norm = nn.Linear(heads * head, width, bias=False), nn.LayerNorm(width)
        self.wide, self.narrow, self.norm2 = nn.Linear(width, inner), nn.Linear(inner, width), nn.LayerNorm(width)
        self.heads, self.head, self.dropout = heads, head, dropout

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x: Tensor, r: Tensor, u: Tensor, v: Tensor, mask: Tensor, memory: Tensor) -> Tensor:
        """[Q, B, H]; ``r`` [K, 1, H] position codes, ``memory`` [M, B, H] states of the segment before."""
        q, b, _ = x.shape
        query, key, value = self.qkv(torch.cat((memory, x), 0)).chunk(3, dim=-1)
        k = key.shape[0]
        query = query[-q:].view(q, b, self.heads, self.head)
        key, value = (t.view(k, b, self.heads, self.head) for t in (key, value))
        positions = self.positions(r).view(k, self.heads, self.head)
        content = torch.einsum("ibnd,jbnd->bnij", query + u, key)
        shifted = _shift(torch.einsum("ibnd,jnd->bnij", query + v, positions))
        score = (content + shifted).mul_(1 / math.sqrt(self.head)).masked_fill_(mask, float("-inf"))
        weights = F.dropout(F.softmax(score, dim=3), self.attention_dropout, self.training)
        context = torch.einsum("bnij,jbnd->ibnd", weights, value).reshape(q, b, -1)
        x = self.norm(x + self._drop(self.out(context)))
        return self.norm2(x + self._drop(self.narrow(self._drop(F.relu(self.wide(x))))))


def _shift(x: Tensor) -> Tensor:
    """Rows of [B, N, Q, K] moved so that column j holds the position j - i."""
    b, n, q, k = x.shape
    padded = torch.cat((x.new_zeros(b, n, q, 1), x), dim=3).view(b, n, k + 1, q)
    return padded.narrow(2, 1, k).view_as(x)


class _AdaptiveEmbedding(nn.Module):
    """Words of rare clusters have ``divide`` times narrower rows."""

    def __init__(self, words: int, width: int, cutoffs: tuple[int, ...], divide: int) -> None:
        super().__init__()
        edges = (0, *cutoffs, words)
        self.edges, self.width, self.divide = edges, width, divide
        if divide == 1:
            self.tables, self.projections = nn.ModuleList((nn.Embedding(words, width),)), nn.ModuleList()
        else:
            widths = [width // divide**i for i in range(len(edges) - 1)]
            sizes = [b - a for a, b in itertools.pairwise(edges)]
            self.tables = nn.ModuleList(nn.Embedding(n, w) for n, w in zip(sizes, widths, strict=True))
            self.projections = nn.ModuleList(nn.Linear(w, width, bias=False) for w in widths)

    def forward(self, words: Tensor) -> Tensor:
        if self.divide == 1:
            return self.tables[0](words) * math.sqrt(self.width)
        flat = words.reshape(-1)
        out = self.projections[0](self.tables[0](flat.clamp(max=self.edges[1] - 1)))
        return (out * math.sqrt(self.width)).view(*words.shape, self.width)


class _Loss(nn.Module):
    """Softmax over all words with the weights of the embedding, which has one table."""

    weight: nn.Parameter

    def __init__(self, embedding: _AdaptiveEmbedding) -> None:
        super().__init__()
        self.weight = embedding.tables[0].weight  # type: ignore[assignment]
        self.bias = nn.Parameter(torch.empty(embedding.edges[-1]))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        logp = F.log_softmax(F.linear(x, self.weight, self.bias), dim=-1)
        return -logp.gather(1, target.unsqueeze(1)).squeeze(1).float().mean()


class _AdaptiveLoss(nn.Module):
    """Adaptive softmax (arXiv 1609.04309) with the weights of the embedding: rare clusters only for the tokens that lie in them.

    How many those are depends on data; here Zipf's law says it, sum of 1 / rank over the cluster.
    """

    def __init__(self, embedding: _AdaptiveEmbedding) -> None:
        super().__init__()
        clusters = list(itertools.pairwise(embedding.edges))
        self.clusters, self.divide = clusters, embedding.divide
        self.weights = nn.ParameterList(t.weight for t in embedding.tables)
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(high - low)) for low, high in clusters)
        self.choice = nn.Linear(embedding.width, len(clusters) - 1)
        first = nn.Parameter(torch.empty(embedding.width, embedding.width))
        self.projections = nn.ParameterList([first, *(p.weight for p in embedding.projections[1:])] if self.divide > 1 else [])
        words = embedding.edges[-1]
        self.shares = [math.log(high / low) / (math.log(words) + 0.5772) for low, high in clusters[1:]]

    def _weight(self, i: int) -> Tensor:
        low, high = self.clusters[i]
        return self.weights[i] if self.divide > 1 else self.weights[0][low:high]

    def _logp(self, i: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        narrow = F.linear(x, self.projections[i].t()) if self.divide > 1 else x
        return F.log_softmax(F.linear(narrow, weight, bias), dim=1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        weight = torch.cat((self._weight(0), self.choice.weight))
        first = self._logp(0, x, weight, torch.cat((self.biases[0], self.choice.bias)))
        total = -first.gather(1, target.clamp(max=first.shape[1] - 1).unsqueeze(1)).sum()
        for i, share in enumerate(self.shares, 1):
            here = torch.arange(max(int(share * x.shape[0]), 1), device=x.device)
            logp = self._logp(i, x.index_select(0, here), self._weight(i), self.biases[i])
            inside = target.index_select(0, here).clamp(max=logp.shape[1] - 1).unsqueeze(1)
            total = total - logp.gather(1, inside).sum()
        return total / x.shape[0]


class TransformerXL(nn.Module):
    """Transformer-XL: attention over a memory of the segments before."""

    def __init__(
        self,
        words: int,
        width: int,
        layer: tuple[int, int, int],
        layers: int,
        length: int,
        dropout: tuple[float, float],
        divide: int,
        adaptive: bool,
    ) -> None:
        super().__init__()
        cutoffs = (19997, 39997, 199997)
        heads, head, inner = layer
        self.embedding = _AdaptiveEmbedding(words, width, cutoffs, divide)
        self.layers = nn.ModuleList(_RelativeLayer(width, heads, head, inner, *dropout) for _ in range(layers))
        self.u, self.v = nn.Parameter(torch.empty(heads, head)), nn.Parameter(torch.empty(heads, head))
        self.head = (_AdaptiveLoss if adaptive else _Loss)(self.embedding)
        self.width, self.length, self.dropout = width, length, dropout[0]
        self.memory: list[Tensor] | None = None

    def forward(self, words: Tensor, target: Tensor) -> Tensor:
        length, batch = words.shape
        x = F.dropout(self.embedding(words), self.dropout, self.training)
        memory = self.memory or [x.new_zeros(self.length, batch, self.width) for _ in range(len(self.layers) + 1)]
        positions = torch.arange(length + self.length - 1, -1, -1.0, device=x.device)
        codes = torch.outer(positions, torch.pow(10000.0, -torch.arange(0.0, self.width, 2.0, device=x.device) / self.width))
        both = torch.cat((codes.sin(), codes.cos()), dim=-1).unsqueeze(1).to(x.dtype)
        r = F.dropout(both, self.dropout, self.training)
        ones = torch.ones(length, length + self.length, dtype=torch.bool, device=x.device)
        mask = torch.triu(ones, diagonal=1 + self.length)[None, None]
        states = [x]
        for i, layer in enumerate(self.layers):
            x = layer(x, r, self.u, self.v, mask, memory[i].to(x.dtype))
            states.append(x)
        self.memory = [torch.cat((m.to(s.dtype), s))[-self.length :].detach() for m, s in zip(memory, states, strict=True)]
        x = F.dropout(x, self.dropout, self.training)
        return self.head(x.reshape(-1, self.width), target.reshape(-1))


def transformer_xl(
    width: int,
    layer: tuple[int, int, int],
    layers: int,
    length: int,
    dropout: tuple[float, float],
    divide: int,
    adaptive: bool = True,
    words: int = 267735,
) -> Network:
    """Language modelling of segments of ``length`` words with as long a memory. ``layer``: heads, width of a head, inner width;
    ``dropout``: of states, of attention's weights; ``divide``: how much narrower each rarer cluster of words is."""
    with torch.device(DEVICE):
        module = TransformerXL(words, width, layer, layers, length, dropout, divide, adaptive)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return tuple(torch.randint(0, words, (length, batch), device=DEVICE) for _ in range(2))

    return Network(module, inputs, lambda outputs, batch: outputs)


class NeuMF(nn.Module):
    """Neural collaborative filtering: factors of users and items beside a perceptron."""

    def __init__(self, users: int, items: int, factors: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.user_factors, self.item_factors = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_vectors, self.item_vectors = nn.Embedding(users, widths[0] // 2), nn.Embedding(items, widths[0] // 2)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.final = nn.Linear(widths[-1] + factors, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = self.user_factors(user) * self.item_factors(item)
        x = torch.cat((self.user_vectors(user), self.item_vectors(item)), dim=1)
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), 0.5, self.training)
        return self.final(torch.cat((product, x), dim=1))


def ncf(users: int, items: int, factors: int, widths: tuple[int, ...]) -> Network:
    """Neural collaborative filtering over ``users`` and ``items``, its inputs and its loss."""
    with torch.device(DEVICE):
        module = NeuMF(users, items, factors, widths)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randint(0, users, (batch,), device=DEVICE), torch.randint(0, items, (batch,), device=DEVICE)

    def loss(outputs: Any, batch: int) -> Tensor:
        target = torch.randint(0, 2, (batch,), device=DEVICE).float()
        return F.binary_cross_entropy_with_logits(outputs.float().squeeze(1), target)

    return Network(module, inputs, loss)
