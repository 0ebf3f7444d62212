# pyright: basic
"""Padding columns of a batch, identified by an attention mask, labels that the loss ignores, or the model's pad id.

B rows, T columns. A run of one number at the end of a row is padding only if one of these confirms it; otherwise nothing is
cut. The ignored label is read from the loss's own calls (``ignore_index`` of ``cross_entropy`` and ``nll_loss``), and so is
whether it counts a label in a column to be cut: the first batch stays whole for that.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.levers.padding import ends, is_ids
from gpuwise.workload.capture.device.patching import Patches

IGNORED = -100
"""Label that torch's and transformers' losses ignore by default."""
LOOKS = 4
"""Losses whose labels are checked against the cut columns: each check waits for the device."""
BATCHES_AHEAD = 16
"""Batches of loaders that are remembered: Accelerate and transformers fetch one ahead, others more."""
NO_WORD = "the ends of rows are not known to be padding: no mask, no ignored labels, no pad id of the model"
COUNTED = "the loss counts labels in columns that would be cut"
LABELS, MASKS, PLACES = ("label", "target"), ("mask",), ("type", "position", "segment")
"""Parts of names of a call's arguments and of a batch's fields."""
Named = tuple[str, torch.Tensor]


def named_rows(value: Any, name: str = "") -> Iterator[Named]:
    """Tensors [B, T] of whole numbers, however nested, with the name of the nearest field or argument."""
    if isinstance(value, torch.Tensor):
        if is_ids(value):
            yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from named_rows(each, str(key))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key, each in value._asdict().items():  # pyright: ignore[reportAttributeAccessIssue]
            yield from named_rows(each, key)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from named_rows(each, name)
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        for key in value.__dataclass_fields__:
            yield from named_rows(getattr(value, key), key)


def last_of(flags: torch.Tensor) -> torch.Tensor:
    """[B] columns up to the last that is true, at least 1."""
    columns = torch.arange(1, flags.shape[1] + 1, device=flags.device)
    return (flags * columns).amax(dim=1).clamp_(min=1)


class RealColumns:
    """Information about padding in one script."""

    def __init__(self, patches: Patches) -> None:
        self._ignored: int | None = None
        self._pads: set[int] = set()
        self._ahead: deque[list[Named]] = deque(maxlen=BATCHES_AHEAD)
        self._to_cut: tuple[int, int, torch.Tensor] | None = None
        self._counts: list[torch.Tensor] | None = None
        self._looks = LOOKS
        self.is_tried = False
        """Whether a batch has passed whole, so that the loss could be observed."""
        self.counts_cut = False
        """Whether the loss counted a label in a column that would be cut."""
        functional = nn.functional
        for name in ("cross_entropy", "nll_loss"):
            patches.set(functional, name, self._watched(getattr(functional, name)))

    def learn(self, module: nn.Module) -> Callable[[], None]:
        """The model's pad id."""
        config = getattr(module, "config", None)
        pads = [getattr(config, "pad_token_id", None)]
        pads += [m.padding_idx for m in module.modules() if isinstance(m, nn.Embedding)]
        self._pads |= {p for p in pads if isinstance(p, int)}
        return lambda: None

    @property
    def ignored(self) -> int:
        """The label that the loss leaves out."""
        return IGNORED if self._ignored is None else self._ignored

    def see(self, batch: Any) -> Any:
        """A batch on its way to the loop."""
        self._ahead.append(list(named_rows(batch)))
        return batch

    def expect(self, lengths: torch.Tensor | None, n_columns: int = 0) -> None:
        """Columns cut, or to be cut, in the next call: the loss's labels are checked against them. None: no columns."""
        self._to_cut = None if lengths is None else (len(lengths), n_columns, lengths)

    def try_whole(self, module: nn.Module) -> Callable[[], None]:
        """The first training call of a model, whole: shows which labels its loss counts."""
        self.learn(module)

        def wrap(_: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                if not self.is_tried and module.training and torch.is_grad_enabled():
                    ids = self.ids_of(args, kwargs)
                    if ids is not None:
                        self.expect(self.of_call(args, kwargs, ids), ids.shape[1])
                        self.is_tried = True
                return inner(*args, **kwargs)

            return run

        return replace_forward(module, wrap)

    # -- lengths

    def of_call(self, args: Any, kwargs: Mapping[str, Any], ids: torch.Tensor) -> torch.Tensor | None:
        """[B] number of real columns of each row, on the host; None if unknown. Other fields of the loader's batch that the
        ids came in (its labels) are used like the call's own arguments."""
        tensors = [(n, t) for n, t in named_rows((args, dict(kwargs))) if t.shape == ids.shape]
        host = ids.cpu()
        for batch in self._ahead:
            if any(t.shape == host.shape and t.dtype == host.dtype and torch.equal(t.cpu(), host) for _, t in batch):
                tensors += [(n, t.to(ids.device)) for n, t in batch if t.shape == ids.shape]
        return self.of_rows(tensors, ids)

    @staticmethod
    def ids_of(args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        """The first rows of ids among a call's arguments."""
        tensors = list(named_rows((args, dict(kwargs))))
        named = (t for n, t in tensors if not _has(n, LABELS + MASKS + PLACES))
        return next(named, tensors[0][1] if tensors else None)

    def of_batch(self, batch: Any) -> torch.Tensor | None:
        """The same of a loader's batch."""
        tensors = list(named_rows(batch))
        if not tensors:
            return None
        ids = next((t for n, t in tensors if not _has(n, LABELS + MASKS + PLACES)), tensors[0][1])
        return self.of_rows([(n, t) for n, t in tensors if t.shape == ids.shape], ids)

    def of_rows(self, tensors: list[Named], ids: torch.Tensor) -> torch.Tensor | None:
        """From the mask if there is one, else from the end of the ids' own run; never shorter than the labels that count."""
        masks, labels, others = [], [], []
        for name, tensor in tensors:
            kind = self._kind(name, tensor, ids)
            {"mask": masks, "labels": labels, "other": others, "places": []}[kind].append(tensor)
        label_ends = [last_of(t != self.ignored) for t in labels]
        if masks:
            mask_ends = [last_of(t != 0) for t in masks]
        else:
            mask_ends = [ends(t.cpu()) for t in others]
            padding = ids[:, -1].cpu().mode().values.item()
            if not labels and not (self._pads and padding in self._pads):
                return None
            if labels and not any(bool((t[:, -1] == self.ignored).any()) for t in labels):
                # every last label counts
                return torch.full((len(ids),), ids.shape[1])
        return functools.reduce(torch.maximum, [t.cpu() for t in (*mask_ends, *label_ends)])

    def _kind(self, name: str, tensor: torch.Tensor, ids: torch.Tensor) -> str:
        if _has(name, LABELS):
            return "labels"
        if _has(name, MASKS):
            return "mask" if bool(((tensor == 0) | (tensor == 1)).all()) else "other"
        if _has(name, PLACES):
            return "places"
        if tensor.dtype is torch.bool:
            return "mask"
        if tensor is not ids and bool((tensor == self.ignored).any()) and bool((ids != self.ignored).all()):
            return "labels"
        same = len(tensor) > 1 and bool((tensor == tensor[:1]).all()) and not bool((tensor == tensor[:1, -1:]).all())
        return "places" if same else "other"

    # -- the loss

    def counting(self) -> list[torch.Tensor]:
        """Record the numbers of labels of the means that losses take, until :meth:`counted` is called."""
        self._counts = []
        return self._counts

    def counted(self) -> torch.Tensor | None:
        """The divisor of the one mean since :meth:`counting`; None where there was none, or more than one."""
        counts, self._counts = self._counts, None
        return counts[0] if counts is not None and len(counts) == 1 else None

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def loss(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs).arguments
            self._look(arguments)
            counts, self._counts = self._counts, None
            try:
                return original(*args, **kwargs)
            finally:
                # nll_loss inside cross_entropy is not another
                self._counts = counts

        return loss

    def _look(self, arguments: Mapping[str, Any]) -> None:
        target, ignored = arguments["target"], int(arguments.get("ignore_index", IGNORED))
        if not isinstance(target, torch.Tensor) or target.is_floating_point():
            return
        if self._counts is not None and arguments.get("reduction", "mean") == "mean" and not arguments.get("reduce", False):
            weight, is_real = arguments.get("weight"), target != ignored
            count = is_real.sum() if weight is None else weight[target.clamp(min=0)].mul(is_real).sum()
            self._counts.append(count)
        if self._to_cut is None or not self._looks:
            return
        n_rows, n_columns, lengths = self._to_cut
        if target.numel() not in (n_rows * n_columns, n_rows * (n_columns - 1)) or target.numel() == n_rows:
            return
        self._looks -= 1
        self._ignored = ignored
        rows = target.reshape(n_rows, -1)
        cut = torch.arange(rows.shape[1], device=rows.device)[None, :] >= lengths.to(rows.device)[:, None]
        if bool((cut & (rows != ignored)).any()):
            self.counts_cut = True


def _has(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name.lower() for part in parts)
