"""Known offers of several accelerators in one machine."""

from __future__ import annotations

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import default_system
from gpuwise.facts.offers.offer import offers_for

WHOLE_SYSTEMS = ("SXM", "OAM", "Superchip", "Cloud", "APU")
"""Forms that come in whole systems, and systems in clusters."""


def rented_together(accelerator: Accelerator, n: int) -> bool:
    """Whether ``n`` of it, in one machine or in a cluster of whole systems, were seen for rent. Of cards a provider that rents
    one may not have a machine with several, and of single superchips not a cluster."""
    if n == 1:
        return True
    most, whole = max((o.count for o in offers_for(accelerator.id)), default=1), default_system(accelerator).count
    return n <= most or (accelerator.form in WHOLE_SYSTEMS and 1 < whole <= most)
