# pyright: basic
"""Length grouping: rows of similar length run through the model together, each group cut to its longest; the loop and its batch
are unchanged.

The model's output is reassembled in the batch's order, with zeros after the end of a row. So the loop's own loss sees the
whole batch and has its gradient (if the loss ignores padding; otherwise the training differs and the parity check reports it).
A loss returned by the model is a mean over the group's labels: the groups' losses are weighted by their numbers of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.levers.padding import cut, rounded
from gpuwise.train.levers.real_columns import COUNTED, IGNORED, NO_WORD, RealColumns, named_rows

Tell = Callable[..., None]
LEAST_SAVED = 0.05
"""Minimum share of the columns saved; less is not worth a second call of the model. Rule of this project."""
GROUP_COLUMNS = 64
"""Assumed cost of one more call of the model, in columns: splits that save less are not made. Rule of this project."""
COUPLED = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
"""Modules whose result for a row depends on the other rows."""


def split_rows(lengths: np.ndarray, most_groups: int, most_columns: int) -> list[np.ndarray]:
    """Rows by index in up to ``most_groups`` groups of like length that hold the fewest columns together, padding with them."""
    order = np.argsort(lengths, kind="stable")
    n = len(order)
    tops = np.array([rounded(int(v), most_columns) for v in lengths[order]])
    # cost[i, j]: rows i..j in one group, as long as its last
    cost = (np.arange(n)[None, :] - np.arange(n)[:, None] + 1) * tops[None, :] + GROUP_COLUMNS
    cost = np.where(np.tri(n, k=-1, dtype=bool), np.inf, cost.astype(float))
    best, cuts = cost[0], [np.zeros(n, dtype=int)]
    totals = [best[-1]]
    for _ in range(1, min(most_groups, n)):
        through = np.vstack([np.full(n, np.inf), best[:-1, None] + cost[1:]])
        cuts.append(through.argmin(axis=0))
        best = through.min(axis=0)
        totals.append(best[-1])
    n_groups, end = int(np.argmin(totals)) + 1, n
    groups: list[np.ndarray] = []
    for k in range(n_groups - 1, -1, -1):
        begin = int(cuts[k][end - 1]) if k else 0
        groups.append(order[begin:end])
        end = begin
    return groups[::-1]


class LengthGroups:
    """Splits the model's calls by the lengths of their rows, which ``known`` reads from each call. The first call is not
    split, to observe which labels the loss counts; a call without information about padding is not split."""

    def __init__(self, most_groups: int, known: RealColumns, tell: Tell) -> None:
        self._most, self._known, self._tell = most_groups, known, tell
        self._said: set[str] = set()

    def __call__(self, module: nn.Module) -> Callable[[], None]:
        coupled = why_coupled(module)
        if coupled is not None:
            self._say(False, coupled)
            return lambda: None
        self._known.learn(module)
        return replace_forward(module, self._wrap)

    def _wrap(self, module: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            ids = self._known.ids_of(args, kwargs)
            if not module.training or not torch.is_grad_enabled() or ids is None or len(ids) < 2:
                return inner(*args, **kwargs)
            lengths = self._lengths(args, kwargs, ids)
            self._known.expect(lengths, ids.shape[1])
            if lengths is None:
                return inner(*args, **kwargs)
            groups = self._groups(lengths, ids)
            if not self._known.is_tried or groups is None:
                self._known.is_tried = True
                return inner(*args, **kwargs)
            self._known.expect(None)
            result = self._split(module, inner, args, kwargs, groups, (int(ids.shape[0]), int(ids.shape[1])))
            self._known.expect(lengths, ids.shape[1])
            return result

        return run

    def _lengths(self, args: Any, kwargs: Mapping[str, Any], ids: torch.Tensor) -> torch.Tensor | None:
        if self._known.counts_cut:
            self._say(False, COUNTED)
            return None
        lengths = self._known.of_call(args, kwargs, ids)
        if lengths is None:
            self._say(False, NO_WORD)
        return lengths

    def _groups(self, lengths: torch.Tensor, ids: torch.Tensor) -> list[tuple[torch.Tensor, int]] | None:
        """Rows and length of each group; None where one call is as good."""
        n_rows, n_columns = ids.shape
        longest = lengths.numpy()
        parts = split_rows(longest, self._most, n_columns)
        sized = [(torch.from_numpy(rows).to(ids.device), rounded(int(longest[rows].max()), n_columns)) for rows in parts]
        n_tokens = sum(len(rows) * length for rows, length in sized)
        if n_tokens > (1.0 - LEAST_SAVED) * n_rows * n_columns:
            return None
        if self._known.is_tried:
            self._say(True, None)
        return sized

    def _split(
        self,
        module: nn.Module,
        inner: Callable[..., Any],
        args: Any,
        kwargs: Any,
        groups: list[tuple[torch.Tensor, int]],
        shape: tuple[int, int],
    ) -> Any:
        outputs, weights = [], []
        for rows, length in groups:
            given, named = (part_of(v, rows, shape, length) for v in (args, kwargs))
            output, weight = weighted(self._known, module, inner, given, named)
            outputs.append(output)
            weights.append(weight)
        inverse = torch.argsort(torch.cat([rows for rows, _ in groups]))
        sizes = [(len(rows), length) for rows, length in groups]
        return joined(outputs, sizes, shares_of(weights, kwargs), inverse, shape[1])

    def _say(self, applied: bool, why: str | None) -> None:
        if str(why) not in self._said:
            self._said.add(str(why))
            self._tell("lever", name="length_groups", applied=applied, why=why)


def weighted(
    known: RealColumns, module: nn.Module, inner: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> tuple[Any, torch.Tensor | None]:
    """A part's output, and over how many labels the loss in it is a mean: as the loss itself counted, else as given."""
    known.counting()
    output = inner(*args, **kwargs)
    real_tokens = known.counted()
    if real_tokens is None and kwargs.get("num_items_in_batch") is None:
        real_tokens = n_labels(module, args, kwargs, known.ignored)
    return output, real_tokens


def why_coupled(module: nn.Module) -> str | None:
    """Why the rows of a batch cannot go through the model apart; None where they can."""
    coupled = next((type(m).__name__ for m in module.modules() if isinstance(m, COUPLED)), None)
    return None if coupled is None else f"{coupled} makes a row's result depend on the other rows of the batch"


def part_of(value: Any, rows: torch.Tensor, shape: tuple[int, int], length: int) -> Any:
    """Arguments of a call for these rows, cut to this length."""
    if isinstance(value, torch.Tensor):
        if value.dim() >= 1 and value.shape[0] == shape[0]:
            return cut(value, *shape, length).index_select(0, rows.to(value.device))
        if value.dim() == 2 and tuple(value.shape) in ((1, shape[1]), (shape[1], shape[1])):
            return value[:length, :length] if value.shape[0] == shape[1] else value[:, :length]
        return value
    if isinstance(value, Mapping):
        return {k: part_of(v, rows, shape, length) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(part_of(v, rows, shape, length) for v in value)
    return value


def n_labels(module: nn.Module, args: Any, kwargs: Mapping[str, Any], ignored: int = IGNORED) -> torch.Tensor | None:
    """Number of labels that the loss of such a call is a mean over; None without labels.

    transformers' causal language models ignore the first label of a row: they shift labels by one.
    """
    labels = kwargs.get("labels", kwargs.get("targets"))
    if labels is None:
        tensors = [t for _, t in named_rows((args, dict(kwargs)))]
        labels = tensors[1] if len(tensors) > 1 else None
    if not isinstance(labels, torch.Tensor):
        return None
    name = type(module).__name__
    if "labels" in kwargs and name.endswith(("ForCausalLM", "LMHeadModel")):
        labels = labels[:, 1:]
    return (labels != ignored).sum()


def shares_of(weights: list[torch.Tensor | None], kwargs: Mapping[str, Any]) -> list[torch.Tensor] | None:
    """Weight of each part's loss in the whole, by its labels; None without labels.

    A loss that receives the label count of the whole batch (transformers' ``num_items_in_batch``) and is not a mean is already
    a sum; some transformers models receive it and use a mean anyway.
    """
    if any(w is None for w in weights):
        return None if kwargs.get("num_items_in_batch") is None else [torch.ones(()) for _ in weights]
    counts = torch.stack([w for w in weights if w is not None]).to(torch.float32)
    return list((counts / counts.sum()).unbind())


def total_of(losses: list[torch.Tensor], shares: list[torch.Tensor] | None) -> torch.Tensor:
    """The loss of the whole batch. Raises ValueError if the parts' weights are unknown."""
    if shares is None:
        raise ValueError("the model returns a single number, and there are no labels to weight its parts by")
    weights = torch.stack(shares).to(losses[0].device, losses[0].dtype)
    return (torch.stack(losses) * weights).sum()


def joined(
    outputs: list[Any],
    sizes: list[tuple[int, int]],
    shares: list[torch.Tensor] | None,
    inverse: torch.Tensor,
    n_columns: int,
) -> Any:
    """The groups' outputs as one, in the batch's order. Raises ValueError where a loss cannot be put together."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        if first.dim() == 0:
            return total_of(outputs, shares)
        padded = [
            nn.functional.pad(o, [0, 0] * (o.dim() - 2) + [0, n_columns - length])
            if o.dim() >= 2 and o.shape[:2] == (n_rows, length)
            else o
            for o, (n_rows, length) in zip(outputs, sizes, strict=True)
        ]
        return torch.cat(padded).index_select(0, inverse.to(first.device))
    if isinstance(first, Mapping):
        parts = {k: joined([o[k] for o in outputs], sizes, shares, inverse, n_columns) for k in first}
        return type(first)(**parts) if hasattr(first, "__dataclass_fields__") else parts
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(joined(list(o), sizes, shares, inverse, n_columns) for o in zip(*outputs, strict=True)))
    if isinstance(first, (tuple, list)):
        return type(first)(joined(list(o), sizes, shares, inverse, n_columns) for o in zip(*outputs, strict=True))
    # caches of keys and values, which training does not read
    return None
