"""Kernel factors of cards without kernel measurements, from whole networks.

GeForce cards clock above their published boost and sum 16-bit products at half rate; the kernel tables contain none of them.
``coefficients/card_factors.json`` has one factor on the time of each family (and implementation) for every GeForce
architecture, and for measured cards that are not GeForce, fitted on whole networks (``studies.capture_time.fit``). A GeForce
of another architecture takes the mean. The factor belongs to the card and applies to every use of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuwise.facts.hardware.accelerators import Accelerator, architecture_key
from gpuwise.predict.coefficients import load_json

_GEFORCE = re.compile(r"RTX [2345]0[5-9]0\b")
"""``RTX 2060`` to ``RTX 5090``; ``RTX 5000`` is a board for workstations."""
GEFORCE = "geforce"
"""Key of the mean of GeForce's measured architectures."""
UNMEASURED = ("collective", "transfer", "recurrent", "sort", "scan", "fourier", "grouped", "convolution", "host")
"""Families without a factor: no measured network has them, or their form was fitted on whole networks itself."""


def factor_key(accelerator: Accelerator, model: Mapping[str, Any] | None = None) -> str | None:
    """Key of the card's factors: its own; for a GeForce its architecture's or else the mean of GeForce cards; None without a
    measured network.

    Boards for workstations and servers of the same architecture do not clock above their published boost.
    """
    factors = (load_json("card_factors") if model is None else model)["factor"]
    if accelerator.id in factors:
        return accelerator.id
    key = architecture_key(accelerator.compute_capability, accelerator.family)
    if not _GEFORCE.search(accelerator.name):
        return None
    return key if key in factors else GEFORCE if GEFORCE in factors else None


def family_factor(accelerator: Accelerator, name: str) -> float:
    """Factor on the time of the kernels of ``name`` (a family, or ``fused`` by a compiler); 1 if no network was measured for
    the card."""
    key = factor_key(accelerator)
    if key is None or name in UNMEASURED:
        return 1.0
    return float(load_json("card_factors")["factor"][key].get(name, 1.0))


def step_log_sigma(accelerator: Accelerator, *, compiled: bool = False) -> float | None:
    """Spread of log(measured / predicted) of whole steps on ``accelerator``; None if no network was measured for it."""
    model = load_json("card_factors")
    if factor_key(accelerator) is None:
        return None
    stack = "compiled" if compiled else "eager"
    return float(model["log_sigma"][stack if accelerator.id in model["measured"] else "other_device"])
