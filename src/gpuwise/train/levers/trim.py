"""Columns cut off that are padding in every row of a batch, as loaders give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuwise.train.levers.padding import tensors_of_ids, trimmed
from gpuwise.train.levers.real_columns import COUNTED, NO_WORD, RealColumns

Tell = Callable[..., None]


class Trim:
    """Cuts batches once the first has passed whole through model and loss. ``known`` has the real columns."""

    def __init__(self, known: RealColumns, tell: Tell) -> None:
        self._known, self._tell = known, tell
        self._said: set[str | None] = set()

    def __call__(self, batch: Any) -> Any:
        if not self._known.is_tried:
            return batch
        if self._known.counts_cut:
            self._say(False, COUNTED)
            return batch
        if not tensors_of_ids(batch):
            self._say(False, "batches hold no rows of ids")
            return batch
        lengths = self._known.of_batch(batch)
        if lengths is None:
            self._say(False, NO_WORD)
            return batch
        cut = trimmed(batch, lengths)
        if cut is not batch:
            self._say(True, None)
        return cut

    def _say(self, applied: bool, why: str | None) -> None:
        if why not in self._said:
            self._said.add(why)
            self._tell("lever", name="trim_padding", applied=applied, why=why)
