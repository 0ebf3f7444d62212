# pyright: basic
"""A model cut into pipeline stages: the parameters of each stage, from one forward pass of the whole model.

The layers are the model's repeated blocks. They must run once each, one after the other, and pass on one tensor. Operations
before the first and after the last come from autograd's graph: parameters that the first layer's input depends on belong to
the first stage, those that the loss depends on behind the last layer to the last stage, and those of both (tied embeddings) to
both, with summed gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from gpuwise.errors import InputError, LayoutError
from gpuwise.train.levers.checkpointing import statistics_kept
from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.levers.modules import each_tensor
from gpuwise.workload.capture.repeats import largest_kind, repeated_blocks

HINT = "leave --pp out: --sharding zero3 divides any model"


@dataclass(frozen=True, slots=True)
class Chain:
    """The layers of a model in the order in which they run."""

    blocks: list[nn.Module]
    outputs: int
    """Output of a layer: 0 a tensor, else a tuple of that length with the tensor first."""
    head: frozenset[str]
    """Names of the parameters that the first layer's input depends on: tensor ranks put others in their place."""
    tail: frozenset[str]
    """Parameters that the loss depends on other than through the last layer's output."""
    numel: int
    """Numbers in what a layer passes on, of the sample that was tried."""


class _ChainTrial:
    """Observations of each layer."""

    def __init__(self) -> None:
        self.order: list[nn.Module] = []
        self.outputs: set[int] = set()
        self.first: torch.Tensor | None = None
        self._last: torch.Tensor | None = None
        self.numel = 0

    def wrap(self, block: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            at, kind = len(self.order), type(block).__name__
            hidden, others = _first_tensor(args, kwargs)
            if hidden is None:
                raise InputError(f"pipeline parallel: {kind} {at} takes no tensor first", hint=HINT)
            if self._last is not None and hidden is not self._last:
                raise InputError(f"pipeline parallel: the model computes between {kind} {at - 1} and {at}", hint=HINT)
            each_tensor(others, lambda t: self._no_gradient(t, kind, at))
            self.first = hidden if self.first is None else self.first
            self.order.append(block)
            output = inner(*args, **kwargs)
            whole = isinstance(output, torch.Tensor)
            result = output if whole else output[0] if isinstance(output, (tuple, list)) and output else None
            if not isinstance(result, torch.Tensor) or result.shape != hidden.shape:
                raise InputError(f"pipeline parallel: {kind} {at} does not return the tensors that it takes", hint=HINT)
            self.outputs.add(0 if whole else len(output))
            self.numel = result.numel()
            self._last = result.detach().requires_grad_()
            return self._last if whole else (self._last, *output[1:])

        return run

    @staticmethod
    def _no_gradient(tensor: torch.Tensor, kind: str, at: int) -> torch.Tensor:
        if tensor.requires_grad:
            raise InputError(f"pipeline parallel: {kind} {at} takes another tensor with a gradient", hint=HINT)
        return tensor


def chain_of(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor], n_stages: int) -> Chain:
    """Run ``loss(model)`` once and look. Raises InputError for a model whose layers are no chain, LayoutError where it has fewer
    than stages."""
    blocks, tried = largest_kind(repeated_blocks(model)), _ChainTrial()
    if len(blocks) < n_stages:
        raise LayoutError("pipeline", f"{len(blocks)} repeated layers do not make {n_stages} stages", hint="take a smaller --pp")
    undo = [replace_forward(block, tried.wrap) for block in blocks]
    try:
        with statistics_kept(model), _all_in_graph(model):
            value = loss(model)
    finally:
        for back in undo:
            back()
    kind = type(blocks[0]).__name__
    if len(tried.order) != len(blocks) or {id(b) for b in tried.order} != {id(b) for b in blocks}:
        raise InputError(f"pipeline parallel: the {len(blocks)} {kind} run {len(tried.order)} times in a step", hint=HINT)
    if len(tried.outputs) != 1:
        raise InputError(f"pipeline parallel: {kind}s give different numbers of results", hint=HINT)
    assert tried.first is not None
    head, tail = (frozenset(_names(model, reachable(end))) for end in (tried.first, value))
    return Chain(tried.order, tried.outputs.pop(), head, tail, tried.numel)


@contextmanager
def _all_in_graph(model: nn.Module) -> Iterator[None]:
    """Frozen weights (those under adapters) are in the graph as others are."""
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_()
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = False


def _names(model: nn.Module, identities: set[int]) -> Iterator[str]:
    """All names of the parameters."""
    return (name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) in identities)


class _Seen(Exception):
    """Ends a step at the first layer."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """Arguments of the first layer that a step runs."""

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def numel(self) -> int:
        """Numbers in what is passed on to it; 0 where it takes no tensor first."""
        hidden = _first_tensor(self.args, self.kwargs)[0]
        return 0 if hidden is None else hidden.numel()


def first_call(model: nn.Module, step: Callable[[nn.Module], Any]) -> LayerCall | None:
    """Arguments of the first repeated layer in ``step(model)``, which ends there; None if no layer is run."""
    seen: list[LayerCall] = []

    def look(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(LayerCall(block, args, kwargs))
        raise _Seen

    handles = [b.register_forward_pre_hook(look, with_kwargs=True) for b in largest_kind(repeated_blocks(model))]
    try:
        with torch.no_grad(), statistics_kept(model), suppress(_Seen):
            step(model)
    finally:
        for handle in handles:
            handle.remove()
    return seen[0] if seen else None


def reachable(tensor: torch.Tensor) -> set[int]:
    """Identities of the leaves that a tensor's gradient goes to."""
    nodes: set[int] = set()
    seen: set[Any] = set()
    waiting = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            nodes.add(id(variable))
        waiting += [n for n, _ in node.next_functions]
    return nodes


def _first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor | None, list[Any]]:
    """The tensor that a layer is given first, by place or by name, and everything else."""
    values = [*args, *kwargs.values()]
    if values and isinstance(values[0], torch.Tensor):
        return values[0], values[1:]
    return None, values


def bounds(n_blocks: int, n_stages: int) -> list[tuple[int, int]]:
    """First layer and the one behind the last of each stage; the earlier stages have one more where they do not divide."""
    base, more = divmod(n_blocks, n_stages)
    edges = [0]
    for stage in range(n_stages):
        edges.append(edges[-1] + base + (stage < more))
    return list(pairwise(edges))


class StageEnd(Exception):
    """The hidden state with which the next stage continues."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Stage:
    """This rank's part of a model. The model keeps its form: the layers of other stages pass through what they are given, hold
    nothing, and what comes before the first layer computes with zeros that take no memory on later stages, for its shapes."""

    def __init__(self, model: nn.Module, chain: Chain, index: int, n_stages: int, device: torch.device) -> None:
        self.index, self.n_stages = index, n_stages
        edges = bounds(len(chain.blocks), n_stages)
        first, behind = edges[index]
        self.blocks = chain.blocks[first:behind]
        self.holders = _holders(model, chain, edges)
        """Stages of each trained parameter that more than one holds, by name."""
        self.received: torch.Tensor | None = None
        self.measuring = False
        self._outputs = chain.outputs
        self._strip(model, chain, edges, device)
        for at, block in enumerate(chain.blocks):
            if not first <= at < behind:
                for part in (block._modules, block._parameters, block._buffers):
                    part.clear()
                block.forward = self._end if at == behind else self._begin if at == first - 1 else self._pass
        inside = {id(m) for block in chain.blocks for m in block.modules()}
        self._outside = [
            (module, name, _zeros(parameter, device)) for _, module, name, parameter in _places(model) if id(module) not in inside
        ]

    @property
    def is_last(self) -> bool:
        """Whether the loss is computed here."""
        return self.index == self.n_stages - 1

    def wrapped(self) -> None:
        """The model is laid out over the data-parallel ranks: what is measured ends before their hooks on the first layer."""
        if self.index == 0:
            self.blocks[0].register_forward_pre_hook(self._measure, with_kwargs=True, prepend=True)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """A forward pass ends before the first layer, and computes with zeros up to there: for shapes alone. Other ranks need not
        measure at the same time, for nothing is gathered."""
        removed = [(module, name, module._parameters.pop(name)) for module, name, _ in self._outside]
        for module, name, zeros in self._outside:
            setattr(module, name, zeros)
        self.measuring = True
        try:
            yield
        finally:
            self.measuring = False
            for module, name, parameter in removed:
                delattr(module, name)
                module._parameters[name] = parameter

    def _strip(self, model: nn.Module, chain: Chain, edges: Sequence[tuple[int, int]], device: torch.device) -> None:
        needed = _needed(model, chain, edges)
        for _, module, name, parameter in list(_places(model)):
            if self.index not in needed[id(parameter)]:
                del module._parameters[name]
                setattr(module, name, _zeros(parameter, device))

    def _form(self, hidden: torch.Tensor) -> Any:
        return (hidden, *[None] * (self._outputs - 1)) if self._outputs else hidden

    def _pass(self, *args: Any, **kwargs: Any) -> Any:
        hidden = _hidden(args, kwargs)
        if self.measuring:
            raise StageEnd(hidden)
        return self._form(hidden)

    def _begin(self, *args: Any, **kwargs: Any) -> Any:
        hidden = _hidden(args, kwargs)
        if self.measuring:
            raise StageEnd(hidden)
        assert self.received is not None
        return self._form(self.received[: hidden.numel()].view(hidden.shape))

    def _end(self, *args: Any, **kwargs: Any) -> Any:
        raise StageEnd(_hidden(args, kwargs))

    def _measure(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        if self.measuring:
            raise StageEnd(_hidden(args, kwargs))


def _zeros(parameter: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Zeros of the parameter's shape, in the memory of one number."""
    return torch.zeros((), dtype=parameter.dtype, device=device).expand(parameter.shape)


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    hidden, _ = _first_tensor(args, kwargs)
    assert hidden is not None
    return hidden


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Every place of every parameter: tied ones have several."""
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield f"{path}.{name}" if path else name, module, name, parameter


def _needed(model: nn.Module, chain: Chain, edges: Sequence[tuple[int, int]]) -> dict[int, set[int]]:
    """Stages that need each parameter; those that nothing depends on are everybody's."""
    last, needs = len(edges) - 1, {id(p): set[int]() for p in model.parameters()}
    for stage, (first, behind) in enumerate(edges):
        for block in chain.blocks[first:behind]:
            for parameter in block.parameters():
                needs[id(parameter)].add(stage)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        needs[id(parameter)].update({0} if name in chain.head else (), {last} if name in chain.tail else ())
    for stages in needs.values():
        if not stages:
            stages.update(range(last + 1))
    return needs


def _holders(model: nn.Module, chain: Chain, edges: Sequence[tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    needed = _needed(model, chain, edges)
    return {n: tuple(sorted(needed[id(p)])) for n, p in model.named_parameters() if p.requires_grad and len(needed[id(p)]) > 1}
