"""Words for captured steps."""

from __future__ import annotations

from gpuwise.predict.memory.capture import LiveStorage, Place
from gpuwise.predict.memory.timeline import CATEGORY_WORDS
from gpuwise.workload.capture.captured import Capture, Category


def category_words(category: Category) -> str:
    """``"optimizer states"``."""
    return CATEGORY_WORDS[category]


def short_op(name: str) -> str:
    """``"mm"`` of ``aten.mm.default``."""
    parts = name.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else name.removesuffix(".default")


def place_words(place: Place, *, short: bool = False) -> str:
    """``"mm of the backward in blocks.3.mlp, train.py:41 in step"``; ``short`` without the phase."""
    if place.op < 0 and not place.name:
        return "set-up"
    words = short_op(place.name)
    if not short:
        words += {"set-up": " while building"}.get(place.phase, f" in the {place.phase}")
    if place.module:
        words += f" of {place.module}"
    return words + (f", {place.line}" if place.line else "")


def maker_words(storage: LiveStorage) -> str:
    """``"mm of head, train.py:36 in GPT.forward"``; states are the optimizer's, whatever of torch's fills them."""
    place = storage.made_by
    if storage.category is Category.OPTIMIZER and place.line:
        return f"the optimizer, {place.line}"
    return place_words(place, short=True)


def head_words(capture: Capture, batch: int | None, seq: int | None, precision: str) -> str:
    """What was captured, in a line: batch, formats, optimizers, torch."""
    s = capture.settings
    words = [f"batch {batch:,}"] if batch is not None else []
    words += [f"sequence {seq:,}"] if seq is not None else []
    if s.autocast_dtypes:
        words.append("autocast " + " ".join(dict.fromkeys(s.autocast_dtypes)))
    elif precision != "as-is":
        words.append(precision)
    words += [o.replace("/", " ") for o in dict.fromkeys(s.optimizers)]
    if s.compiled:
        words.append("torch.compile")
    steady = capture.steady
    words.append(f"{steady.end_op - steady.first_op:,} operations a step")
    return ", ".join([*words, f"torch {s.torch_version.partition('+')[0]}"])
