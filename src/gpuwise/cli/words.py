"""Words that several commands share."""

from __future__ import annotations

METERS = {
    "energy counter": "the GPU's own counter",
    "integrated power": "the driver's power over time",
    "RAPL": "the processor's own counters (RAPL)",
}
"""How the energy of a run was measured, in words."""
