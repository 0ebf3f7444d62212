"""The blocks of a captured network: its module tree, the passes of a step, and the segments a pass runs through.

A *pass* is one forward with its backward (a step with gradient accumulation has several). A *segment* is one unbroken run of
forward operations of one module; blocks are the result of :func:`repeated_paths` (``layers.0``, ``down.3``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.workload.capture.captured import Capture, Category, ModuleCall, StepSpan
from gpuwise.workload.capture.record.edit import lifetimes, op_of_event
from gpuwise.workload.row_codes import Phase

STATES = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER, Category.BUFFER, Category.INPUT)
"""Categories that no segment creates for its own backward."""
LISTS = ("ModuleList", "Sequential")
"""Container classes whose children run one after another as a network's layers."""
CONTAINERS = (*LISTS, "ModuleDict")
"""Classes that hold modules and do nothing of their own: none of them is a block."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and its backward: operations ``first_op`` to ``backward_op`` and from there to ``end_op``."""

    first_op: int
    backward_op: int
    end_op: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of forward operations of one module in one pass."""

    path: str
    """'' for operations between modules."""
    first_op: int
    end_op: int


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """Paths with their children in order of first appearance; containers without operations of their own are there too."""

    children: dict[str, tuple[str, ...]]
    order: tuple[str, ...]

    @classmethod
    def of(cls, capture: Capture) -> ModuleTree:
        children: dict[str, list[str]] = {"": []}
        for path in capture.modules:
            while path and path not in children:
                children[path] = []
                path = path.rpartition(".")[0]
        for path in list(children):
            if path:
                children[path.rpartition(".")[0]].append(path)
        return cls({p: tuple(c) for p, c in children.items()}, tuple(children))

    def under(self, path: str) -> tuple[str, ...]:
        """``path`` and everything below it."""
        if path not in self.children:
            raise InputError(f"no module {path!r} in the capture", hint="a path such as layers.3.mlp")
        paths, stack = list[str](), [path]
        while stack:
            top = stack.pop()
            paths.append(top)
            stack.extend(reversed(self.children[top]))
        return tuple(paths)

    def numbered(self, path: str) -> tuple[str, ...]:
        """Children of ``path`` whose names are numbers."""
        return tuple(c for c in self.children[path] if c.rpartition(".")[2].isdigit())


def module_mask(capture: Capture, tree: ModuleTree, path: str) -> NDArray[np.bool_]:
    """[modules] which of the capture's modules are ``path`` or below it."""
    below = set(tree.under(path))
    return np.array([m in below for m in capture.modules], bool)


def repeated_paths(
    children: Mapping[str, Sequence[str]],
    kinds: Mapping[str, Hashable],
    lists: Collection[str],
    is_apart: Callable[[str], bool] = lambda _: True,
) -> tuple[str, ...]:
    """The repeated blocks of a network, by path: the outermost modules with two or more of one class in a list, and all other
    modules of these classes. Without such lists, the children of any module count. Modules that share a parameter with the
    outside are blocks only if there are no others: an encoder and a decoder with one embedding are not.

    ``children``: paths below each path, '' the network. ``kinds``: the class of each module that can be a block: it has
    modules and parameters, and is more than a container. ``lists``: paths of lists and sequences. ``is_apart``: whether a
    module shares no parameter with the outside.
    """

    def outermost(parents: Collection[str], apart: bool) -> list[str]:
        paths, stack = list[str](), [""]
        while stack:
            path = stack.pop()
            same = Counter(kinds[c] for c in children[path] if c in kinds) if path in parents else Counter[Hashable]()
            repeated = {kind for kind, n in same.items() if n > 1}
            if apart:
                repeated -= {kinds[c] for c in children[path] if c in kinds and kinds[c] in repeated and not is_apart(c)}
            inside = [c for c in children[path] if kinds.get(c) in repeated]
            paths += inside
            stack += reversed([c for c in children[path] if c not in inside])
        return paths

    choices = ((lists, True), (children, True), (lists, False), (children, False))
    found = next(filter(None, (outermost(*choice) for choice in choices)), list[str]())
    classes = {kinds[p] for p in found}
    paths, stack = list[str](), [""]
    while stack:
        path = stack.pop()
        if path and kinds.get(path) in classes:
            paths.append(path)
        else:
            stack += reversed(children[path])
    return tuple(paths)


def blocks(capture: Capture, tree: ModuleTree | None = None) -> tuple[str, ...]:
    """The network's repeated blocks by :func:`repeated_paths`. Which parameters are shared a capture does not say."""
    tree = tree or ModuleTree.of(capture)
    types = dict(zip(capture.modules, capture.module_types, strict=True))
    lists = {p for p in tree.children if types.get(p) in LISTS or (not types.get(p) and len(tree.numbered(p)) > 1)}
    with_parameters = {a for p in capture.parameters for a in _ancestors(p.name)}
    kinds = {
        p: types[p]
        for p, below in tree.children.items()
        if below and types.get(p) and types[p] not in CONTAINERS and (p in with_parameters or not with_parameters)
    }
    return repeated_paths(tree.children, kinds, lists)


def _parts(capture: Capture, tree: ModuleTree) -> tuple[str, ...]:
    """The blocks; of a network without any, the outermost numbered children of containers that have at least two of them."""
    if repeated := blocks(capture, tree):
        return repeated
    paths, stack = list[str](), [""]
    while stack:
        path = stack.pop()
        numbered = tree.numbered(path)
        if len(numbered) > 1:
            paths.extend(numbered)
            stack.extend(reversed([c for c in tree.children[path] if c not in numbered]))
        else:
            stack.extend(reversed(tree.children[path]))
    module_ids: list[int] = np.unique(capture.op_module).tolist()
    module_paths = {capture.modules[m] for m in module_ids}
    return tuple(b for b in paths if any(p in module_paths for p in tree.under(b)))


def units(capture: Capture, tree: ModuleTree | None = None) -> tuple[str, ...]:
    """Modules that together cover the network: its blocks, and beside them the largest modules that hold no block; of a network
    without blocks, the outermost layers of its lists are in their place."""
    tree = tree or ModuleTree.of(capture)
    inner = set(_parts(capture, tree))
    above = {a for b in inner for a in _ancestors(b)}
    paths, stack = list[str](), [""]
    while stack:
        path = stack.pop()
        if path and (path in inner or path not in above):
            paths.append(path)
        else:
            stack.extend(reversed(tree.children[path]))
    return tuple(paths)


def _ancestors(path: str) -> Iterable[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def passes(capture: Capture, span: StepSpan | None = None) -> tuple[Pass, ...]:
    """The passes of a step, in order: a forward operation after a backward one begins the next."""
    span = span or capture.steady
    phase = capture.op_phase[span.first_op : span.end_op]
    segments, start, backward = list[Pass](), None, None
    for i, p in enumerate(phase.tolist(), span.first_op):
        if p == Phase.FORWARD:
            if backward is not None and start is not None:
                segments.append(Pass(start, backward, i))
                start, backward = i, None
            start = i if start is None else start
        elif p == Phase.OPTIMIZER:
            if start is not None and backward is not None:
                segments.append(Pass(start, backward, i))
            if backward is not None or start is None:
                start, backward = None, None
        elif backward is None and start is not None:
            backward = i
    if start is not None and backward is not None:
        segments.append(Pass(start, backward, span.end_op))
    return tuple(segments)


def segments(capture: Capture, tree: ModuleTree, one: Pass, paths: Sequence[str]) -> tuple[Segment, ...]:
    """The forward of a pass as runs of the modules ``paths`` (none inside another) and the operations between them."""
    return runs(capture, tree, one.first_op, one.backward_op, paths)


def runs(capture: Capture, tree: ModuleTree, first: int, end: int, paths: Sequence[str]) -> tuple[Segment, ...]:
    """Operations ``first`` to ``end`` as runs of ``paths``; a module that is called again begins another run."""
    owner = np.full(len(capture.modules), -1, np.int64)
    index = {m: i for i, m in enumerate(capture.modules)}
    for i, path in enumerate(paths):
        for below in tree.under(path):
            if below in index:
                owner[index[below]] = i
    if end <= first:
        return ()
    unit = owner[capture.op_module[first:end]]
    change = np.flatnonzero(np.diff(unit)) + 1
    again = [c.first_op - first for c in capture.calls if first < c.first_op < end and capture.modules[c.module] in set(paths)]
    starts = np.unique(np.concatenate([np.zeros(1, np.int64), change, np.array(again, np.int64)]))
    ends = np.append(starts[1:], end - first)
    return tuple(
        Segment(paths[int(unit[a])] if unit[a] >= 0 else "", first + int(a), first + int(b))
        for a, b in zip(starts, ends, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Backward:
    """Position of a module run's backward: operations ``first_op`` to ``end_op``; others may be between them."""

    first_op: int
    end_op: int


def backward_of(capture: Capture, one: Pass, mask: NDArray[np.bool_]) -> Backward | None:
    """The backward operations of the modules in ``mask`` [modules]; None if the pass has none."""
    inside = mask[capture.op_module[one.backward_op : one.end_op]]
    inside &= capture.op_phase[one.backward_op : one.end_op] != Phase.FORWARD
    at = np.flatnonzero(inside)
    return Backward(one.backward_op + int(at[0]), one.backward_op + int(at[-1]) + 1) if len(at) else None


@dataclass(frozen=True, slots=True)
class SegmentStorages:
    """Storages around a segment: ``saved`` inside it for its backward, its ``inputs`` and its ``outputs``."""

    saved: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Lives:
    """Births and deaths of a capture's storages, by event and by operation (made once, asked often)."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.birth, self.death = lifetimes(capture)
        self.birth_op = np.where(self.birth < 0, -1, op_of_event(capture, np.maximum(self.birth, 0)))
        self.death_op = op_of_event(capture, self.death)
        self.is_state = np.isin(capture.storage_category, [int(c) for c in STATES])
        self._calls = {(capture.modules[c.module], c.first_op): c for c in capture.calls}

    def call(self, path: str, first_op: int) -> ModuleCall | None:
        """The recorded call of ``path`` that began with operation ``first_op``."""
        return self._calls.get((path, first_op))

    def event_at(self, op: int) -> int:
        """First event of operation ``op`` or later."""
        return int(np.searchsorted(self.capture.event_op, op, side="left"))

    def storages_of(self, one: Pass, segment: Segment) -> SegmentStorages:
        """Storages that ``segment`` saves. If the recorder did not note a module's arguments, its input is the last storage
        allocated before it and live at its start, its output the last one allocated inside it and live afterwards."""
        born = (self.birth_op >= segment.first_op) & (self.birth_op < segment.end_op) & (self.birth >= 0) & ~self.is_state
        call = self.call(segment.path, segment.first_op)
        if call is not None:
            inputs = [s for s in call.inputs if not self.is_state[s]]
            outputs = list(call.outputs)
        else:
            inputs, outputs = self._last_alive(segment.first_op, one.first_op), self._last_alive(segment.end_op, segment.first_op)
        inside = np.flatnonzero(born & (self.death_op >= one.backward_op))
        saved = tuple(int(s) for s in inside if int(s) not in outputs)
        return SegmentStorages(saved, tuple(inputs), tuple(outputs))

    def _last_alive(self, op: int, since: int) -> list[int]:
        alive = (self.birth_op < op) & (self.birth_op >= since) & (self.death_op >= op) & ~self.is_state & (self.birth >= 0)
        at = np.flatnonzero(alive)
        return [int(at[np.argmax(self.birth[at])])] if len(at) else []
