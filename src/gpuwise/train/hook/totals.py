"""The total number of steps that a trainer (transformers, Lightning) intends. A plain ``range(n)`` is not visible."""

from __future__ import annotations

from contextlib import suppress
from types import FrameType
from typing import Any

MOST_FRAMES = 200


def find_total(frame: FrameType | None) -> dict[str, Any] | None:
    """``steps`` (optimizer steps) and ``by`` of the nearest trainer that calls this frame; None where there is none.

    Transformers keeps them in ``Trainer.state.max_steps``; Lightning gives ``max_steps``, or epochs of so many batches.
    """
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        module = type(owner).__module__.partition(".")[0]
        if owner is not None and module in ("transformers", "lightning", "pytorch_lightning"):
            with suppress(Exception):
                found = _transformers(owner) if module == "transformers" else _lightning(owner)
                if found is not None and found > 0:
                    return {"steps": found, "by": module}
        frame = frame.f_back
    return None


def _transformers(owner: Any) -> int | None:
    state = getattr(owner, "state", None)
    steps = getattr(state, "max_steps", None)
    return steps if isinstance(steps, int) and hasattr(state, "global_step") else None


def _lightning(owner: Any) -> int | None:
    """Turns of a fit."""
    if type(owner).__name__ != "Trainer":
        return None
    if owner.max_steps and owner.max_steps > 0:
        return int(owner.max_steps)
    batches, epochs = owner.num_training_batches, owner.max_epochs
    if not epochs or epochs < 0 or batches == float("inf"):
        return None
    return -(-int(batches) // int(owner.accumulate_grad_batches or 1)) * int(epochs)
