"""Captures made by hand from the sizes of layers: what the planner's tests ask for, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuwise.workload.capture.captured import Capture, Category, Parameter, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.row_codes import Kind, Phase


@dataclass(frozen=True)
class Layer:
    """``saved`` bytes inside it for the backward, ``out`` bytes of its output, which the next layer saves; ``temporary``
    bytes alive at once inside its forward and again in its backward; ``weights`` [parameters] shapes in fp32."""

    path: str
    saved: int
    out: int
    temporary: int = 0
    weights: tuple[tuple[int, ...], ...] = ()
    seconds: float = 1.0


@dataclass
class _Recorder:
    ops: list[tuple[int, int, int]] = field(default_factory=list)
    storages: list[tuple[int, Category, int, int]] = field(default_factory=list)
    events: list[tuple[int, int, int]] = field(default_factory=list)

    def op(self, signature: int, phase: Phase, module: int) -> None:
        self.ops.append((signature, int(phase), module))

    def born(self, n: int, category: Category, module: int = 0) -> int:
        self.storages.append((n, category, len(self.ops) - 1, module))
        self.events.append((len(self.storages) - 1, 1, len(self.ops) - 1))
        return len(self.storages) - 1

    def free(self, storage: int) -> None:
        self.events.append((storage, -1, len(self.ops) - 1))


def _signature(layer: Layer, phase: str) -> Signature:
    spec = TensorSpec((max(layer.out // 4, 1),), (1,), "fp32")
    return Signature(f"test.{phase}", Kind.MEMORY, (spec,), (spec,), (("layer", layer.path),), layer.seconds * 1e12, 0, 0, 1)


def _column(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int64)


def layer_capture(layers: Sequence[Layer], n_passes: int = 1, n_steps: int = 2, states: int = 2) -> Capture:
    """A network of ``layers`` run ``n_passes`` times a step, with Adam-like ``states`` per parameter.

    Forward: temporary, saved, output. Backward: temporary, gradients, then what the layer saved goes, and its input.
    """
    r = _Recorder()
    paths = [layer.path for layer in layers]
    # a layer of several is a block with a module of its own, as in a network
    inner = [f"{p}.inner" for p in paths if p.rpartition(".")[2].isdigit()]
    modules = ("", *paths, *inner)
    signatures = [s for layer in layers for s in (_signature(layer, "forward"), _signature(layer, "backward"))]
    signatures.append(Signature("test.update", Kind.OPTIMIZER, (), (), (), 0.0, 0.0, 0.0, 1))
    weights = [
        [
            (f"{layer.path}.w{k}", shape, r.born(4 * int(np.prod(shape)), Category.PARAMETER, m))
            for k, shape in enumerate(layer.weights)
        ]
        for m, layer in enumerate(layers, 1)
    ]
    flat = [w for one in weights for w in one]
    spans, held = [], []
    for step in range(n_steps):
        first = (len(r.ops), len(r.events))
        gradients: dict[str, int] = {}
        for _ in range(n_passes):
            _one_pass(r, layers, weights, gradients)
        r.op(len(signatures) - 1, Phase.OPTIMIZER, 0)
        if step == 0:
            held = [r.born(r.storages[s][0], Category.OPTIMIZER) for _, _, s in flat for _ in range(states)]
        assert len(held) == states * len(flat)
        for g in gradients.values():
            r.free(g)
        spans.append(StepSpan(first[0], len(r.ops), first[1], len(r.events)))
    parameters = tuple(Parameter(n, s, shape, "fp32", True) for n, shape, s in flat)
    n = len(r.ops)
    return Capture(
        signatures=tuple(signatures),
        modules=modules,
        module_types=("", *("Block" for _ in paths), *("Linear" for _ in inner)),
        lines=("",),
        op_signature=_column([o[0] for o in r.ops]),
        op_phase=_column([o[1] for o in r.ops]),
        op_module=_column([o[2] for o in r.ops]),
        op_line=np.zeros(n, np.int64),
        op_stream=np.zeros(n, np.int64),
        op_flags=np.zeros(n, np.int64),
        storage_bytes=_column([s[0] for s in r.storages]),
        storage_category=_column([int(s[1]) for s in r.storages]),
        storage_op=_column([s[2] for s in r.storages]),
        storage_module=_column([s[3] for s in r.storages]),
        storage_dtype=("fp32",) * len(r.storages),
        storage_stream=np.zeros(len(r.storages), np.int64),
        event_storage=_column([e[0] for e in r.events]),
        event_sign=np.array([e[1] for e in r.events], np.int8),
        event_op=_column([e[2] for e in r.events]),
        steps=tuple(spans),
        settings=Settings("2.13.0", (9, 0), optimizers=("AdamW/foreach",)),
        parameter_count=sum(int(np.prod(p.shape)) for p in parameters),
        parameters=parameters,
        name="by hand",
    )


def _one_pass(r: _Recorder, layers: Sequence[Layer], weights: list, gradients: dict[str, int]) -> None:
    kept: list[tuple[int, int]] = []
    for m, layer in enumerate(layers, 1):
        r.op(2 * m - 2, Phase.FORWARD, m)
        temporary = r.born(layer.temporary, Category.TEMPORARY, m)
        r.op(2 * m - 2, Phase.FORWARD, m)
        saved = r.born(layer.saved, Category.ACTIVATION, m)
        r.free(temporary)
        r.op(2 * m - 2, Phase.FORWARD, m)
        kept.append((saved, r.born(layer.out, Category.ACTIVATION, m)))
    r.op(2 * len(layers), Phase.BACKWARD, 0)
    incoming = r.born(layers[-1].out, Category.TEMPORARY)
    for m, layer in reversed(list(enumerate(layers, 1))):
        saved, out = kept[m - 1]
        r.op(2 * m - 1, Phase.BACKWARD, m)
        r.free(out)
        temporary = r.born(layer.temporary, Category.TEMPORARY, m)
        r.op(2 * m - 1, Phase.BACKWARD, m)
        for name, _, s in weights[m - 1]:
            if name not in gradients:
                gradients[name] = r.born(r.storages[s][0], Category.GRADIENT, m)
        outgoing = r.born(layers[m - 2].out if m > 1 else 0, Category.TEMPORARY, m)
        r.free(incoming)
        r.free(temporary)
        r.free(saved)
        incoming = outgoing
    r.free(incoming)


def seconds_of(capture: Capture) -> np.ndarray:
    """[ops] a third of a layer's seconds for each of its forward operations, its seconds for each backward one."""
    each = np.array([s.flop / 1e12 for s in capture.signatures])
    is_forward = np.array([s.op == "test.forward" for s in capture.signatures])
    return np.where(is_forward, each / 3, each)[capture.op_signature]
