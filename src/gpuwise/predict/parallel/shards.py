"""How many layers and parameters each pipeline stage and rank holds, for columns of strategies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.parallel.pipeline import copies, folded
from gpuwise.workload.blocks.kinds import leading_layers
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.parameters import ParameterCount, count_parameters

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MeanLayer:
    """Parameters of a layer: ``split`` is divided by tp, ``whole`` is on every tensor rank, ``expert`` is divided by ep."""

    split: float
    whole: float
    expert: float

    @classmethod
    def of(cls, count: ParameterCount, n_lead: int = 0) -> MeanLayer:
        """The mean over all layers but ``n_lead`` leading dense ones."""
        parts = [
            (count.layer, count.n_layers - n_lead),
            (count.moe_layer, count.n_moe_layers),
            (count.encoder_layer, count.n_encoder_layers),
            *count.hybrid_layers,
        ]
        present = [(layer, k) for layer, k in parts if layer is not None and k > 0]
        n = sum(k for _, k in present)
        split = sum((p.attention + p.cross_attention + p.mlp + p.shared_experts + p.mixer + p.latent) * k for p, k in present)
        whole = sum((p.norm + p.router) * k for p, k in present)
        expert = sum(p.experts * k for p, k in present)
        return cls(split / n, whole / n, expert / n)


@dataclass(frozen=True, slots=True)
class Stages:
    """Arrays in the shape that pp, tp, ep and virtual stages broadcast to: layers of the first, a middle and the last
    pipeline stage (equal when pp is 1), and the dense and expert parameters one rank of each holds. Index 0 first,
    1 middle, 2 last. ``embedding`` are those of the first stage before its layers."""

    layers: tuple[F64, F64, F64]
    dense: tuple[F64, F64, F64]
    expert: tuple[F64, F64, F64]
    embedding: F64


def stages(arch: Architecture, c: Columns, n_layers: float) -> Stages:
    """Spread the layers; under DualPipe a rank holds the parameters of two stages, the ends' those of both.

    Where they do not divide, the ends take fewer when the embedding and the head count as a layer each (Megatron's
    account_for_embedding_in_pipeline_split), otherwise the last stage takes what the others leave, or both ends what the
    middle ones leave (its decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers). Where that leaves nothing for
    them, stages differ by one (its pipeline_model_parallel_layout), the ends have the fewer: some of the middle ones, which all
    count as the fullest, have too.

    Leading dense layers of an expert model are on the first stage, so that a later stage has more experts."""
    count = count_parameters(arch)
    n_lead = leading_layers(arch)
    mean, lead = MeanLayer.of(count, n_lead), count.layer if n_lead else None
    stack = find_stack(c.base.stack)
    predicting = arch.prediction_layers if stack.trains_prediction else 0
    prediction = predicting * ((mean.split + 2 * arch.hidden**2) / c.tp + mean.whole)
    first, middle, last = _balanced(count, c, n_layers) if stack.layout.balances_stages else _even(c, n_layers)
    one = c.pp == 1
    layers = tuple(np.where(one, n_layers, x) for x in (first, middle, last))
    dense: list[F64] = []
    expert: list[F64] = []
    for i, n in enumerate(layers):
        ends: F64 | float = 0.0
        if i in (0, 2):
            embedding = (count.embedding + count.stem) / c.tp
            output = (count.head or count.tied_head) / c.tp + count.final_norm + count.extra + prediction
            both = embedding + count.head / c.tp + count.final_norm + count.extra + prediction
            ends = np.where(one, both, embedding if i == 0 else output)
        first_ones: F64 | float = 0.0
        if lead is not None:
            first_ones = np.minimum(n_lead, n) if i == 0 else np.where(one, float(n_lead), 0.0)
            ends = ends + first_ones * (lead.total - lead.norm) / c.tp + first_ones * lead.norm
        dense.append((n - first_ones) * (mean.split / c.tp + mean.whole) + ends)
        behind = np.where(one, predicting, 0) if i == 0 else (predicting if i == 2 else 0)
        expert.append((n - first_ones + behind) * mean.expert / c.expert_ranks)
    embedding = (count.embedding + count.stem) / c.tp
    dense, expert = ([*_per_rank(parts, c)] for parts in (dense, expert))
    return Stages((layers[0], layers[1], layers[2]), (dense[0], dense[1], dense[2]), (expert[0], expert[1], expert[2]), embedding)


def _per_rank(parts: list[F64], c: Columns) -> tuple[F64, F64, F64]:
    """``parts`` of the first, a middle and the last stage per rank: both of a folded pair, or half of each with both ends."""
    pairs, twice = folded(c.schedule, c.pp), copies(c.schedule, c.pp)
    both = parts[0] + parts[2] - np.where(twice > 1, 0.0, parts[1])
    first, last = (np.where(pairs, both, part) for part in (parts[0], parts[2]))
    return first, parts[1] * twice, last


def _even(c: Columns, n_layers: float) -> tuple[F64, F64, F64]:
    """Layers of the first, a middle and the last stage, as Megatron spreads them."""
    chunks = c.pp * c.virtual_stages
    per = n_layers / chunks
    even = per == np.floor(per)
    ends_count = (n_layers + 2) / chunks
    ends_even = ~even & (ends_count == np.floor(ends_count))
    middle = np.where(even, per, np.where(ends_even, ends_count, np.ceil(per))) * c.virtual_stages.astype(np.float64)
    first = np.where(ends_even, middle - 1, middle)
    rest = n_layers - middle * (c.pp - 1)
    both = ~even & ~ends_even & (rest < 1) & (c.pp > 2)
    ends = n_layers - middle * (c.pp - 2)
    first = np.where(both, np.maximum(np.ceil(ends / 2), 1), first)
    last = np.where(even, middle, np.where(ends_even, middle - 1, np.maximum(np.where(both, np.floor(ends / 2), rest), 1)))
    by_one = both & (ends < 2)
    fewer = np.maximum(np.floor(per), 1.0)
    return np.where(by_one, fewer, first), middle, np.where(by_one, fewer, last)


def _balanced(count: ParameterCount, c: Columns, n_layers: float) -> tuple[F64, F64, F64]:
    """Layers by compute cost, the output projection counted too and a stage closed by the layer that passes its share
    (huggingface/nanotron models/base.py build_model): the first stages have more layers, the last has few."""
    head = (count.head or count.tied_head) / (count.layers / n_layers)
    share = (n_layers + head) / c.pp
    first = np.minimum(np.floor(share) + 1, n_layers)
    last = np.maximum(n_layers - np.minimum(np.floor(share * (c.pp - 1)) + 1, n_layers), 0.0)
    return first, np.ceil(share), last
