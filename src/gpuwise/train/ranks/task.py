# pyright: basic
"""What a person's file gives to ranks: a model, data, and what one step computes of a batch.

``make_step`` is named as for ``fit`` (``train.py:make_step``) and returns a mapping, or any object with these attributes::

    {"model": model, "data": dataset, "step": step}

``step(model, batch)`` returns the sum of the losses of a batch and their number (tokens, or samples); a mean alone counts for
the samples of the batch. ``optimizer(model)``, ``scheduler(optimizer)``, ``collate(samples)`` and ``clip`` (of the gradients'
norm) may be there too. A causal model of Transformers needs no ``step``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpuwise.errors import InputError
from gpuwise.train.ranks.hugging_face import PREFIX, make_task
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.samples import length_of
from gpuwise.workload.capture.target import attribute_of, find_target, keywords_for, load

LEARNING_RATE = 3e-4
"""Learning rate of a task without an optimizer, as in files of ``gpuwise export``."""
IGNORED = -100
FIELDS = ("model", "data", "step", "optimizer", "scheduler", "collate", "clip")
FORM = 'return {"model": model, "data": dataset, "step": step}: step(model, batch) gives the sum of the losses and their number'


@dataclass(frozen=True, slots=True)
class Task:
    """A training as the file gives it, before it is laid out over ranks."""

    name: str
    model: nn.Module
    data: Any
    n_samples: int
    step: Callable[[nn.Module, Any], Any] | None
    """None: a causal model of Transformers, whose logits are computed."""
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    clip: float | None = None


def load_task(text: str, settings: list[str], layout: Layout, device: str) -> Task:
    """Run the file and its function. Raises InputError where it gives something else than a task."""
    if text.startswith(PREFIX):
        return _task(text, make_task(text, settings), layout)
    target = find_target(text, settings)
    sys.path.insert(0, str(Path.cwd() if target.file is None else target.file.parent))
    function = attribute_of(load(target), target)
    if not callable(function) or isinstance(function, nn.Module):
        raise InputError(f"{target.name} is not a function", hint=FORM)
    return _task(target.name, function(**keywords_for(function, target, None, None, device)), layout)


def _task(name: str, result: Any, layout: Layout) -> Task:
    """Result of a function, as a task. Raises InputError if it is not one."""
    fields = _fields(result)
    if fields is None:
        what = "a step that holds its own batch" if callable(result) else f"a {type(result).__name__}"
        raise InputError(f"{name} returns {what}, which cannot be divided over ranks", hint=FORM)
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise InputError(f"{name} returns {unknown[0]!r}, which is not used", hint=f"there are {', '.join(FIELDS)}")
    model, step = fields.get("model"), fields.get("step")
    if not isinstance(model, nn.Module) or "data" not in fields:
        raise InputError(f"{name} gives no {'data' if isinstance(model, nn.Module) else 'model'}", hint=FORM)
    if step is None and not is_causal(model):
        raise InputError(f"{name} gives no step for its {type(model).__name__}", hint=FORM)
    return Task(
        name,
        model,
        fields["data"],
        length_of(fields["data"]),
        step,
        fields.get("optimizer") or _usual(layout.optimizer),
        fields.get("scheduler"),
        fields.get("collate") or (None if step is not None else _rows),
        fields.get("clip"),
    )


def _fields(result: Any) -> dict[str, Any] | None:
    if isinstance(result, Mapping):
        return dict(result)
    if hasattr(result, "model") and hasattr(result, "data"):
        return {name: getattr(result, name) for name in FIELDS if hasattr(result, name)}
    return None


def _usual(name: str) -> Callable[[nn.Module], torch.optim.Optimizer]:
    if name == "adamw":
        return lambda model: torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    return lambda model: torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9 if name == "momentum" else 0.0)


def loss_of(task: Task, model: nn.Module, batch: Any, n_samples: int) -> tuple[torch.Tensor, float]:
    """Sum and number of the losses of one micro-batch."""
    loss = causal_loss(model, batch) if task.step is None else task.step(model, batch)
    if isinstance(loss, tuple | list) and len(loss) == 2:
        return loss[0], float(loss[1])
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss.reshape(()) * n_samples, float(n_samples)
    raise InputError(f"the step of {task.name} returns a {type(loss).__name__}", hint=FORM)


# --- causal models of Transformers ---


def is_causal(model: nn.Module) -> bool:
    """Whether it is a language model of Transformers that gives logits for ``input_ids``."""
    config = getattr(model, "config", None)
    return hasattr(config, "vocab_size") and hasattr(model, "get_output_embeddings") and hasattr(model, "main_input_name")


def causal_loss(model: nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
    """Cross-entropy of every next token that is not padding, as a sum."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return next_token_loss(model(**inputs).logits, batch["labels"])


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Sum and number over all labels that are not ``IGNORED``."""
    return negative_log_likelihood(logits[:, :-1], labels[:, 1:])


def negative_log_likelihood(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Sum and number over all targets that are not ``IGNORED``, each of the logits at its own place."""
    targets, flat = targets.reshape(-1), logits.reshape(-1, logits.shape[-1]).float()
    return functional.cross_entropy(flat, targets, ignore_index=IGNORED, reduction="sum"), float((targets != IGNORED).sum())


def _rows(samples: list[Any]) -> dict[str, torch.Tensor]:
    """Rows of tokens of unequal length, padded on the right; labels of padding are ignored."""
    rows = [torch.as_tensor(s["input_ids"] if isinstance(s, Mapping) else s) for s in samples]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    return {"input_ids": ids, "labels": labels}
