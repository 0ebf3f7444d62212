"""One micro-batch of a transformer in eager PyTorch, as if captured: every kind of layer once between its neighbours.

Layers repeat, so a few represent all: the first kind, every kind in turn, and the last kind again. The counted instance of
each kind has a layer before and behind it, which matters if a compiler fuses across layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.kinds import layer_kinds
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.capture.captured import Capture, Settings
from gpuwise.workload.eager.tape import Tape
from gpuwise.workload.transformer.eager import Network

I64 = NDArray[np.int64]
EMBEDDING, HEAD, NEIGHBOUR = 0, 1, 2
"""Parts of the step; layers that count are :data:`FIRST_KIND` and up, in order of their kinds."""
FIRST_KIND = 3
TORCH = "2.13.0"
CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class EagerStep:
    """``part`` [N] of each operation; ``again`` [N] whether a checkpoint of its layer runs it a second time."""

    capture: Capture
    part: I64
    again: NDArray[np.bool_]
    counts: Mapping[str, int]
    """Layers of each kind, in the order of the parts."""
    weights: int
    """Parameter tensors of the whole model."""
    saved: Mapping[int, int]
    """Tensors saved for the backward, by part: a checkpoint hands each out again."""


@lru_cache(maxsize=256)
def eager_step(arch: Architecture, point: Point) -> EagerStep:
    """The forward and backward of one micro-batch of ``point``; the optimizer is not in it."""
    counts: dict[str, int] = {}
    for kind in layer_kinds(arch):
        counts[kind] = counts.get(kind, 0) + 1
    kinds = list(counts)
    tape = Tape()
    tape.part = EMBEDDING
    network = Network(tape, arch, point)
    table = None if arch.patches is not None else network.weight(arch.vocab, arch.hidden)
    with tape.inside("embedding"):
        network = network.masked()
        x, around = network.embedding(table)
    spans: list[tuple[int, int]] = []
    saved: dict[int, int] = {}
    for i, kind in enumerate([kinds[0], *kinds, kinds[-1]]):
        tape.part = FIRST_KIND + i - 1 if 0 < i <= len(kinds) else NEIGHBOUR
        first = len(tape)
        with tape.inside("layer", x):
            x = network.layer(x, kind, around)
        spans.append((first, tape.saved_until(first, len(tape))))
        saved[tape.part] = tape.saved_within(first, len(tape))
    tape.part = HEAD
    with tape.inside("head"):
        loss = network.head(x, table)
    tape.backward(loss)
    settings = Settings(
        point.stack.torch_of_norms or TORCH, CAPABILITY, matmul_tf32=point.precision == "tf32", compiled=point.stack.compiled
    )
    capture = tape.capture(arch.name, settings)
    part = np.array(tape.parts, np.int64)[capture.op_module]
    again = np.zeros(len(part), bool)
    for first, end in spans:
        again[first:end] = True
    layered = sum(n * tape.weights.get(FIRST_KIND + i, 0) for i, n in enumerate(counts.values()))
    weights = tape.weights.get(EMBEDDING, 0) + layered + tape.weights.get(HEAD, 0)
    return EagerStep(capture, part, again, counts, weights, saved)
