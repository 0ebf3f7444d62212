"""How often an accelerator is offered: what people rent and buy now stands before what was sold ten years ago."""

from __future__ import annotations

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.offers.offer import offers
from gpuwise.facts.offers.purchases import purchases_for


def sightings() -> dict[str, int]:
    """By accelerator: providers that rent it out, and observations of purchase prices."""
    providers: dict[str, set[str]] = {}
    for o in offers():
        providers.setdefault(o.accelerator_id, set()).add(o.provider)
    return {name: len(providers.get(name, ())) + len(purchases_for(name)) for name in accelerators()}
