"""What the store holds, for the tests of the store and of the feeds."""

from __future__ import annotations

from gpuwise.facts.offers.store import current_files, offers_in
from gpuwise.facts.offers.table import Offer


def stored_offers(accelerator_id: str | None = None) -> tuple[Offer, ...]:
    """The offers of the files that count today, of one accelerator or of all."""
    return tuple(o for file in current_files() for o in offers_in(file, accelerator_id))
