"""What an operation takes beside its kernel on the machine of a GPU, as the study's own tables show it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from studies.neusight.tables import OpRows

F64 = NDArray[np.float64]
SHORTEST_SHARE, FEWEST_ROWS = 0.02, 20
PARTS, SHORT_SHARE = 12, 0.2
"""Stretches of a run, and the share of each one's rows, the shortest, that say what launching took there."""


def host_floor_s(rows: OpRows, device_s: F64) -> float:
    """What an operation takes at least on the machine of a GPU: the median of its rows with the least work, of the half that
    fits. They are the host's where the device is done sooner; 0 where no row is short enough to say."""
    fits = np.flatnonzero(rows.site == 0)
    if not len(fits):
        return 0.0
    shortest = fits[np.argsort(device_s[fits], kind="stable")[: max(FEWEST_ROWS, int(SHORTEST_SHARE * len(fits)))]]
    measured = float(np.median(rows.measured_s[shortest]))
    return measured if measured > 2.0 * float(np.median(device_s[shortest])) else 0.0


def launch_growth_s(rows: OpRows, device_s: F64) -> F64:
    """[R] what launching each convolution of one GPU took, in the table's order; it adds to ``device_s``.

    Every convolution of the study has a shape of its own, and the longer its process runs the longer the library takes to
    launch one: from 50 to 80 us at the first to 300 (V100) or 780 (P100, P4) at the last, though shapes come in random order.
    Found in each stretch of the run as the median of measured less predicted over the shortest rows of the half that fits.
    """
    place = np.arange(len(rows), dtype=np.float64)
    fits = np.flatnonzero(rows.site == 0)
    at, launch_s = list[float](), list[float]()
    for part in np.array_split(fits, max(1, min(PARTS, len(fits) // FEWEST_ROWS))):
        short = part[np.argsort(device_s[part], kind="stable")[: max(FEWEST_ROWS, int(SHORT_SHARE * len(part)))]]
        if short.size:
            at.append(float(place[short].mean()))
            launch_s.append(max(float(np.median(rows.measured_s[short] - device_s[short])), 0.0))
    return np.interp(place, at, launch_s) if at else np.zeros(len(rows))
