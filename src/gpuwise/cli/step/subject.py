"""What makes the step that a question of ``fit`` or ``plan`` names: a network's table, or own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuwise.cli.options import LayoutOptions, Training
from gpuwise.cli.step.named import PictureOptions, named_step, refuse_pictures
from gpuwise.cli.step.options import OwnCode, batch_of, refuse_code, refuse_layout, subject_of


def step_asked(
    text: str,
    training: Training,
    fixed: LayoutOptions,
    code: OwnCode,
    arguments: Sequence[str],
    pictures: PictureOptions,
) -> tuple[Any, Mapping[str, Any], Any]:
    """What makes the step that ``text`` names (a network's table, or own code), the options that it is captured with, and the
    batch. Raises InputError for options that it does not take."""
    batch = batch_of(code.batch) or fixed.micro_batch
    named = named_step(text, training, fixed, pictures, batch)
    if named is None:
        refuse_pictures(pictures)
        refuse_layout(training, fixed)
        return *subject_of(text, code, arguments), batch
    refuse_code(code, arguments)
    return named, {}, batch or named.batch
