"""A whole training step of a transformer in eager PyTorch with its storages, from the dimensions alone.

Every operation of every layer is on a :class:`~gpuwise.workload.eager.tape.Tape`; a storage is born with the operation
that writes it first and dies after the last that reads it, as autograd holds it. The logits live as long as the model's
output: until the backward ends where the loop holds it, else until the forward does; parameters and optimizer states for ever.
There are two steps: the states appear in the first. A checkpointed layer keeps its input; before its backward its forward runs
again, up to the last tensor it saved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.kinds import layer_kinds
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.capture.captured import I64, Capture, Category, OpFlag, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.eager.tape import Mark, Shape, Tape, Value
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.transformer.eager import Network
from gpuwise.workload.transformer.repetition import Borders, Columns, columns_of, period_of, repeated, repeated_spans

N_STEPS = 2
"""Steps to write; the optimizer's states appear in the first."""
ON_HOST = "on the host"
"""The update runs there, with its states."""
STATES = {"sgd": 0, "momentum": 1, "adamw": 2, "adamw8bit": 2, ON_HOST: 0}
"""Optimizers written here: states of every parameter, of its size (8 bits: a byte a number, and scales)."""
BLOCK, SMALLEST_8BIT = 256, 4096
"""bitsandbytes: numbers that share a scale, and the parameter size below which states stay in fp32."""
TEMPORARIES = ("adamw",)
"""Those whose ``foreach`` update makes a list of the parameters' size (``_foreach_sqrt``)."""
OUTSIDE = -1
"""In place of a layer: the embedding and the head."""
NORMS = ("attention_norm", "post_attention_norm", "mlp_norm", "post_mlp_norm")
PRODUCTS = ("gate", "up", "down", "experts")
REGISTERED: dict[str, tuple[tuple[str, ...], ...]] = {
    "rms": (("q_norm", "k_norm"), PRODUCTS, ("router",), NORMS),
    "vision": (NORMS, PRODUCTS),
}
"""Modules of a layer that are registered behind the others (which are registered as they run), in this order: the optimizer
walks the parameters so, and its states fill the free blocks so. By norm or kind (transformers 5)."""
EXPERTS_FIRST = ("qwen-3-moe",)
"""Families whose experts are registered before their router."""
_UPDATE = ("zeros_like", "_foreach_sqrt", "_foreach_addcdiv_")
Bool = NDArray[np.bool_]


class _ParameterTape(Tape):
    """A tape that knows which leaves are parameters, and in which order the modules of the trained ones are registered."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.block = 0
        """Layer being written; 0 is the embedding."""
        behind = REGISTERED.get(arch.kind, REGISTERED.get(arch.norm, ()))
        self._rank = {name: i + 1 for i, names in enumerate(behind) for name in names}
        if arch.moe is not None and arch.family not in EXPERTS_FIRST:
            self._rank["router"] = self._rank.get("experts", 0)
        self.trained: list[tuple[int, int, int]] = []
        """Block, rank within it and storage of each."""
        self.frozen: list[int] = []

    def leaf(self, shape: Shape, dtype: str, *, trained: bool = False, frozen: bool = False) -> Value:
        result = super().leaf(shape, dtype, trained=trained, frozen=frozen)
        if trained:
            rank = self._rank.get(self.modules[self.module], 0)
            self.trained.append((self.block, rank, result.storage))
        elif frozen:
            self.frozen.append(result.storage)
        return result


@dataclass(frozen=True, slots=True)
class _Program:
    """Forward and backward of one micro-batch. Flat columns of reads and writes, with the operation of each."""

    signature: I64
    phase: I64
    flag: I64
    reads: I64
    read_op: I64
    writes: I64
    write_op: I64
    sizes: I64
    """[storages] bytes."""
    parameters: I64
    frozen: I64
    """Parameters without a gradient."""
    inputs: I64
    gradients: I64
    held: I64
    """Storages that live until the backward ends."""
    forward_held: I64
    """Those that live until the forward ends: weights in the products' format, which autocast's cache holds, and an output
    that the loop does not keep."""
    names: I64
    """Storages that variables hold, each until :attr:`name_op` has run."""
    name_op: I64
    name_again: I64
    """The same where the storage is of a forward that runs again."""


def whole_step(arch: Architecture, point: Point, *, recompute: str, optimizer: str, micro_batches: int = 1) -> Capture:
    """The steps (:func:`n_steps`) of ``arch`` at ``point``; ``recompute`` is ``none`` or ``full``, ``optimizer`` one of
    :data:`STATES`. Gradients are freed after the update; two represent any number of ``micro_batches``."""
    tape, kinds = _ParameterTape(arch), layer_kinds(arch)
    network = Network(tape, arch, point)
    layers = [OUTSIDE]
    table = None if arch.patches is not None else network.weight(arch.vocab, arch.hidden)
    network = network.masked()
    x, around = network.embedding(table)
    period, starts, inputs = period_of(kinds), dict[int, Mark](), dict[int, tuple[TensorSpec, bool]]()
    spans: dict[int, tuple[int, int]] = {}
    i = 0
    # a variable of BertModel.forward holds the embedding's output until the layers are through
    with tape.frame(*((x,) if arch.kind == "encoder" else ())):
        while i < len(kinds):
            starts[i], inputs[i] = tape.mark(), (x.spec, x.needs_grad)
            if period is not None and i == period.first + period.length:
                period = period if inputs[i] == inputs[period.first] else None
                i += period.length * period.times if period is not None else 0
            layers += [OUTSIDE] * (len(tape.modules) - len(layers))
            first, tape.block = len(tape), i + 1
            with tape.inside("layer", x):
                x = network.layer(x, kinds[i], around)
            layers += [i] * (len(tape.modules) - len(layers))
            spans[i] = first, tape.saved_until(first, len(tape))
            i += 1
    tape.block += 1
    behind = tape.mark()
    with tape.inside("head"):
        loss = network.head(x, table)
    layers += [OUTSIDE] * (len(tape.modules) - len(layers))
    if period is None:
        tape.backward(loss)
        columns = columns_of(tape, layers, tape.trained, tape.frozen)
    else:
        end = period.first + period.length
        last = end + period.length * period.times
        marks = [starts[period.first - 1], starts[period.first], starts[end]]
        borders = [starts.get(last + 1, behind).ops, starts[end].ops, starts[period.first].ops]
        at = Borders(*marks, *tape.backward(loss, borders))
        columns = repeated(columns_of(tape, layers, tape.trained, tape.frozen), period, at)
        spans = repeated_spans(spans, period, at)
    logits = int(point.tokens * arch.vocab * point.element_bytes) if arch.lm_head else -1
    program = _program(columns, tape.signatures, logits, keeps_output=point.stack.keeps_output)
    if recompute == "full":
        program = _checkpointed(program, [spans[i] for i in range(len(kinds))], columns.layer, columns.unpacking)
    item = 4 if point.autocast or point.lora_rank else int(point.element_bytes)
    lists = optimizer in TEMPORARIES and not point.stack.fused_optimizer
    capture = tape.capture(arch.name, Settings("2.13.0", (8, 0)))
    return _steps(capture, program, optimizer, min(micro_batches, 2), item, lists=lists)


def _program(c: Columns, signatures: Sequence[Signature], logits: int, *, keeps_output: bool) -> _Program:
    n = len(c.signature)
    sizes = np.zeros(c.n_storages, np.int64)
    for flat, op, side in ((c.reads, c.read_op, "inputs"), (c.writes, c.write_op, "outputs")):
        each = [[_bytes(t) for t in getattr(s, side)] for s in signatures]
        first = np.cumsum([0, *(len(e) for e in each)])[c.signature]
        within = np.arange(len(op)) - np.searchsorted(op, np.arange(n))[op]
        np.maximum.at(sizes, flat, np.array([b for e in each for b in e], np.int64)[first[op] + within])
    kernel = (c.flag & int(OpFlag.MICRO)) == 0
    is_written = np.zeros(len(sizes), bool)
    is_written[c.writes[kernel[c.write_op]]] = True
    outside = (c.layer == OUTSIDE) & (c.phase == int(Phase.FORWARD)) & kernel
    ends = _distinct(c.writes[outside[c.write_op]])
    # in the order in which the optimizer walks them
    trained = c.trained[np.lexsort(c.trained.T[::-1]), 2]
    parameters, frozen = trained[sizes[trained] > 0], c.frozen[sizes[c.frozen] > 0]
    copies = np.array([s.op.startswith("aten._to_copy") for s in signatures])[c.signature]
    is_trained = np.zeros(len(sizes), bool)
    is_trained[parameters] = True
    of_parameter = np.zeros(n, bool)
    of_parameter[c.read_op[is_trained[c.reads]]] = True
    casting = copies & of_parameter & (c.phase == int(Phase.FORWARD))
    intervals = c.held[np.argsort(c.held[:, 1], kind="stable")]
    output, casts = ends[sizes[ends] == logits], _distinct(c.writes[casting[c.write_op]])
    is_parameter = is_trained.copy()
    is_parameter[frozen] = True
    gradient = np.full(len(sizes), -1)
    gradient[c.gradients[:, 0]] = c.gradients[:, 1]
    gradients = gradient[parameters]
    gradients, first = np.unique(gradients[gradients >= 0], return_index=True)
    return _Program(
        c.signature,
        c.phase,
        c.flag,
        c.reads,
        c.read_op,
        c.writes,
        c.write_op,
        sizes,
        parameters,
        frozen,
        np.flatnonzero(~is_written & ~is_parameter & (sizes > 0)),
        gradients[np.argsort(first)],
        output if keeps_output else output[:0],
        casts if keeps_output else np.concatenate([casts, output]),
        *(intervals[:, k] for k in range(3)),
    )


def _distinct(storages: I64) -> I64:
    """Each once, in order: numbers this small are counted sooner than sorted."""
    return np.flatnonzero(np.bincount(storages))


def _bytes(spec: TensorSpec) -> int:
    """Bytes of the storage; 0 for an expanded tensor."""
    return 0 if 0 in spec.stride else math.prod(spec.shape) * TENSOR_BYTES[spec.dtype]


def _checkpointed(p: _Program, spans: list[tuple[int, int]], layer: I64, unpacking: I64) -> _Program:
    """Every layer's forward repeated before the first node of its backward that reads saved tensors, with separate storages."""
    n = len(p.signature)
    again = np.full(n, OUTSIDE)
    for i, (first, until) in enumerate(spans):
        again[first:until] = i
    # what a layer's repeated part makes has a copy, which its backward reads
    kernel = (p.flag & int(OpFlag.MICRO)) == 0
    fresh = kernel[p.write_op] & (again[p.write_op] >= 0)
    copied = _distinct(p.writes[fresh])
    owner, copy = np.full(len(p.sizes), OUTSIDE), np.full(len(p.sizes), -1)
    owner[p.writes[fresh]] = again[p.write_op[fresh]]
    copy[copied] = len(p.sizes) + np.arange(len(copied))
    backward = (p.phase == int(Phase.BACKWARD)) & (layer >= 0)
    nodes = {i: unpacking[layer[unpacking[:, 0]] == i] for i in range(len(spans))}
    begins = {i: int(each[0, 0]) for i, each in nodes.items() if len(each)}
    runs: list[I64] = []
    at = 0
    for i in sorted(begins, key=lambda k: begins[k]):
        runs += [np.arange(at, begins[i]), -1 - np.arange(*spans[i])]
        at = begins[i]
    index = np.concatenate([*runs, np.arange(at, n)])
    repeats = index < 0
    source = np.where(repeats, -1 - index, index)
    group = np.where(repeats, again[source], np.where(backward[source], layer[source], OUTSIDE))

    def flows(flat: I64, op: I64) -> tuple[I64, I64]:
        begin, end = np.searchsorted(op, source, side="left"), np.searchsorted(op, source, side="right")
        count = end - begin
        new_op = np.repeat(np.arange(len(source)), count)
        position = np.arange(len(new_op)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(begin, count)
        storage = flat[position]
        mine = (owner[storage] == group[new_op]) & (owner[storage] >= 0)
        return np.where(mine, copy[storage], storage), new_op

    reads, read_op = flows(p.reads, p.read_op)
    writes, write_op = flows(p.writes, p.write_op)
    # where the repetition stops short, the variables go with it
    stop = np.array([*(until - 1 for _, until in spans), n], np.int64)[owner[p.names]]
    late = (p.name_op > stop) & (p.phase[p.name_op] == int(Phase.FORWARD))
    # and what a checkpoint was called with stays until its layer's last saved tensor is taken
    inputs = [_distinct(p.reads[(again[p.read_op] == i) & (owner[p.reads] != i)]) for i in begins]
    taken = [np.full(len(each), nodes[i][-1, 1]) for i, each in zip(begins, inputs, strict=True)]
    saved = (owner[p.names] >= 0) & (p.phase[p.name_op] == int(Phase.BACKWARD))
    name_op = np.where(saved, p.name_again, p.name_op)
    intervals = np.concatenate([p.names, p.names[late], *inputs]), np.concatenate([name_op, stop[late], *taken])
    order = np.argsort(intervals[1], kind="stable")
    names, name_op = flows(intervals[0][order], intervals[1][order])
    return replace(
        p,
        signature=p.signature[source],
        phase=np.where(repeats, int(Phase.RECOMPUTE), p.phase[source]),
        flag=np.where(repeats, p.flag[source] | int(OpFlag.CHECKPOINTED), p.flag[source]),
        reads=reads,
        read_op=read_op,
        writes=writes,
        write_op=write_op,
        names=names,
        name_op=name_op,
        name_again=name_op,
        sizes=np.concatenate([p.sizes, p.sizes[copied]]),
    )


@dataclass(frozen=True, slots=True)
class _Lives:
    """Births and deaths within one pass: [events] storage, sign and operation; and the category of every storage."""

    storage: I64
    sign: I64
    op: I64
    category: I64


def _lives(p: _Program, *, adds: bool = False) -> _Lives:
    """``adds``: gradients are added to those of an earlier pass as they come (autograd runs what accumulates first): none
    lives beyond the last operation that writes or reads it."""
    n = len(p.signature)
    fixed = np.zeros(len(p.sizes), bool)
    fixed[p.parameters] = fixed[p.frozen] = fixed[p.inputs] = True
    birth, last = np.full(len(p.sizes), n), np.full(len(p.sizes), -1)
    np.minimum.at(birth, p.writes, p.write_op)
    np.maximum.at(last, p.reads, p.read_op)
    np.maximum.at(last, p.writes, p.write_op)
    np.maximum.at(last, p.names, p.name_op)
    forward_end = int(np.flatnonzero(p.phase == int(Phase.FORWARD))[-1])
    last[p.forward_held] = np.maximum(last[p.forward_held], forward_end)
    last[p.held] = n - 1
    comes = ~fixed & (birth < n) & (p.sizes > 0)
    lasting = np.zeros(len(p.sizes), bool)
    lasting[p.gradients] = not adds
    goes = comes & ~lasting
    saved = goes & (birth <= forward_end) & (last > forward_end)
    category = np.where(saved, int(Category.ACTIVATION), int(Category.TEMPORARY))
    kinds = ((p.gradients, Category.GRADIENT), (p.parameters, Category.PARAMETER), (p.frozen, Category.PARAMETER))
    for storages, kind in (*kinds, (p.inputs, Category.INPUT)):
        category[storages] = int(kind)
    storage = np.concatenate([np.flatnonzero(comes), np.flatnonzero(goes)])
    sign = np.repeat([1, -1], [int(comes.sum()), int(goes.sum())])
    op = np.where(sign > 0, birth[storage], last[storage])
    order = np.lexsort((storage, -sign, op))
    return _Lives(storage[order], sign[order], op[order], category)


def _states(optimizer: str, parameters: I64, item: int) -> I64:
    """Bytes of each storage that the optimizer keeps, parameter by parameter; ``item`` bytes a number of theirs."""
    if optimizer != "adamw8bit":
        return np.repeat(parameters, STATES[optimizer])
    sizes: list[int] = []
    for n in (parameters // item).tolist():
        sizes += [4 * n, 4 * n] if n < SMALLEST_8BIT else [n, 4 * -(-n // BLOCK)] * 2
    return np.array(sizes, np.int64)


def n_steps(micro_batches: int, *, adapters: bool) -> int:
    """Number of steps to write. With ``adapters`` and several micro-batches, one step that begins with its optimizer states:
    they are a thousandth of the memory, and the step before it, which allocates them, moves no peak by 1 %."""
    return 1 if adapters and micro_batches > 1 else N_STEPS


def _steps(c: Capture, p: _Program, optimizer: str, micro_batches: int, item: int, *, lists: bool) -> Capture:
    """The passes and updates of all steps, as a capture's columns; ``item`` bytes a number of the parameters; ``lists``: the
    update makes a list of their size."""
    steps = n_steps(micro_batches, adapters=len(p.frozen) > 0)
    lives, additions, n, width = _lives(p), _lives(p, adds=True), len(p.signature), len(p.sizes)
    update = [Signature(f"aten.{name}.default", Kind.OPTIMIZER, (), (), (), 0.0, 0.0, 0.0, 1) for name in _UPDATE]
    first_call = len(c.signatures)
    fixed = np.zeros(width, bool)
    fixed[p.parameters] = fixed[p.frozen] = fixed[p.inputs] = True
    start = np.concatenate([p.parameters, p.frozen, p.inputs])
    events: list[tuple[I64, I64, I64]] = [(start, np.ones(len(start), np.int64), np.full(len(start), -1))]
    sizes, category = [p.sizes], [lives.category]
    signature, phase, flag = list[I64](), list[I64](), list[I64]()
    reads, read_op, writes, write_op = list[I64](), list[I64](), list[I64](), list[I64]()
    spans: list[StepSpan] = []
    n_ops, n_events, n_storages = 0, len(start), width

    def happen(storage: I64, sign: int | I64, op: int | I64) -> None:
        nonlocal n_events
        same = np.zeros(storage.shape, np.int64)
        events.append((storage, sign + same, op + same))
        n_events += len(storage)

    def call(which: int) -> int:
        nonlocal n_ops
        signature.append(np.array([first_call + which]))
        phase.append(np.array([int(Phase.OPTIMIZER)]))
        flag.append(np.zeros(1, np.int64))
        n_ops += 1
        return n_ops - 1

    def new_storages(each: I64, what: Category) -> I64:
        nonlocal n_storages
        sizes.append(each)
        category.append(np.full(len(each), int(what)))
        n_storages += len(each)
        return np.arange(n_storages - len(each), n_storages)

    def new_states() -> I64:
        return new_storages(_states(optimizer, trained, item), Category.OPTIMIZER)

    trained = p.sizes[p.parameters]
    if steps == 1:
        happen(new_states(), 1, -1)
    for step in range(steps):
        first_op, first_event, live = n_ops, n_events, np.zeros(0, np.int64)
        for part in range(micro_batches):
            # storages of this pass: the program's own the first time, then new ones
            names = np.arange(width)
            if step or part:
                names = np.where(fixed, names, n_storages + np.arange(width))
                new_storages(np.where(fixed, 0, p.sizes), Category.TEMPORARY)
                category[-1] = lives.category
            signature.append(p.signature)
            phase.append(p.phase)
            flag.append(p.flag)
            reads.append(names[p.reads])
            read_op.append(p.read_op + n_ops)
            writes.append(names[p.writes])
            write_op.append(p.write_op + n_ops)
            here = additions if part else lives
            happen(names[here.storage], here.sign, here.op + n_ops)
            n_ops += n
            if not part:
                live = names[p.gradients]
        if step == 0 and steps > 1:
            happen(new_states(), 1, call(0))
        temporaries = np.zeros(0, np.int64)
        if lists:
            temporaries = new_storages(trained, Category.TEMPORARY)
            happen(temporaries, 1, call(1))
        happen(np.concatenate([temporaries[::-1], live]), -1, call(2))
        spans.append(StepSpan(first_op, n_ops, first_event, n_events))
    storage, sign, op = (np.concatenate([e[k] for e in events]).astype(np.int64) for k in range(3))
    every = np.arange(n_ops)
    born = np.full(n_storages, -1)
    born[storage[sign > 0]] = op[sign > 0]
    zero = np.zeros(n_ops, np.int64)
    return replace(
        c,
        signatures=(*c.signatures, *update),
        modules=("",),
        module_types=("",),
        op_signature=np.concatenate(signature),
        op_phase=np.concatenate(phase).astype(np.int64),
        op_module=zero,
        op_line=zero,
        op_stream=zero,
        op_flags=np.concatenate(flag).astype(np.int64),
        storage_bytes=np.concatenate(sizes).astype(np.int64),
        storage_category=np.concatenate(category).astype(np.int64),
        storage_op=born,
        storage_module=np.zeros(n_storages, np.int64),
        storage_dtype=("",) * n_storages,
        storage_stream=np.zeros(n_storages, np.int64),
        event_storage=storage,
        event_sign=sign.astype(np.int8),
        event_op=op,
        steps=tuple(spans),
        op_inputs=np.concatenate(reads),
        op_input_end=np.searchsorted(np.concatenate(read_op), every, side="right"),
        op_outputs=np.concatenate(writes),
        op_output_end=np.searchsorted(np.concatenate(write_op), every, side="right"),
    )
