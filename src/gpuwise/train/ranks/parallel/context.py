"""Context parallel: ranks that share rows of tokens, each with a part of every row.

For causal models of Transformers whose attention is PyTorch's own (``sdpa``). Keys and values of all parts are gathered in every
layer (one exchange forward, one back), and a rank's queries see those before them. Torch's own ring (``context_parallel``) has no
kernels on the processor: its ``scaled_dot_product_attention`` is refused there (PyTorch 2.13).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from gpuwise.errors import InputError
from gpuwise.train.ranks.task import IGNORED, Task, is_causal, negative_log_likelihood
from gpuwise.workload.capture.device.patching import Patches

HINT = "leave --cp out, or give a causal model of Transformers with attn_implementation='sdpa' and no step of your own"


class _Gather(torch.autograd.Function):
    """Keys or values of all parts, one behind the other; the gradient of each goes back to the rank that has it, as a sum."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = own.new_empty(group.size(), *own.shape)
        # gloo sends memory in storage order and ignores strides (pytorch#24836)
        dist.all_gather_into_tensor(parts.flatten(0, 1), own.contiguous(), group=group)  # pyright: ignore[reportDeprecated]
        return torch.cat(list(parts), dim=-2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = torch.stack(gradients[0].chunk(ctx.group.size(), dim=-2))
        own = torch.empty_like(parts[0])
        dist.reduce_scatter_tensor(own, parts.flatten(0, 1), group=ctx.group)  # pyright: ignore[reportDeprecated]
        return own, None


class Context:
    """This rank's part of every row. ``group``: the ranks that have the other parts, in their order."""

    def __init__(self, group: Any, task: Task) -> None:
        if task.step is not None or not is_causal(task.model):
            raise InputError(f"context parallel: {task.name} computes its loss from whole rows in its own step", hint=HINT)
        config: Any = task.model.config
        if getattr(config, "_attn_implementation", "sdpa") != "sdpa" or getattr(config, "sliding_window", None):
            raise InputError(
                f"context parallel: the attention of {type(task.model).__name__} is not PyTorch's over whole rows", hint=HINT
            )
        self._group, self._rank, self._n = group, group.rank(), group.size()
        self._attention = functional.scaled_dot_product_attention
        self._patches = Patches()
        # also where a forward pass is made again in the backward pass
        self._patches.set(functional, "scaled_dot_product_attention", self.attend)
        self.calls = 0

    def close(self) -> None:
        """Attention is torch's again."""
        self._patches.undo()

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
        """Sum and number of the losses of this rank's part of the rows."""
        ids, labels = batch["input_ids"], batch["labels"]
        # a token's loss is of the next one, which may be another rank's
        targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        more = -ids.shape[1] % self._n
        ids, targets = functional.pad(ids, (0, more)), functional.pad(targets, (0, more), value=IGNORED)
        width = ids.shape[1] // self._n
        own = slice(self._rank * width, (self._rank + 1) * width)
        places = torch.arange(ids.shape[1], device=ids.device)[None, own].expand(ids.shape[0], -1)
        before = self.calls
        logits = model(input_ids=ids[:, own], position_ids=places, use_cache=False).logits
        if self.calls == before:
            raise InputError("context parallel: the model does not attend by scaled_dot_product_attention", hint=HINT)
        return negative_log_likelihood(logits, targets[:, own])

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> torch.Tensor:
        """Attention of this rank's queries to all keys up to them."""
        if attn_mask is not None or not (is_causal or query.shape[-2] == 1):
            raise InputError("context parallel: the model uses its own attention mask", hint=HINT)
        self.calls += 1
        width, end = query.shape[-2], (self._rank + 1) * query.shape[-2]
        both = _Gather.apply(torch.stack((key, value)), self._group)
        keys, values = both[..., :end, :].unbind(0)  # type: ignore[index]
        rows = torch.arange(end - width, end, device=query.device)
        mask = torch.arange(end, device=query.device)[None, :] <= rows[:, None]
        return self._attention(query, keys, values, mask, dropout_p, **more)
