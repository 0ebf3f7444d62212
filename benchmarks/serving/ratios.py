"""The end table of the benchmarks of this folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np


def print_errors(ratios: Mapping[str, Sequence[float]] | Mapping[tuple[str, str], Sequence[float]]) -> None:
    """Predicted over published by group: rows, median and mean error, and the median ratio."""
    named = {" | ".join(name) if isinstance(name, tuple) else name: found for name, found in sorted(ratios.items())}
    wide = max(map(len, [*named, "of"]))
    print(f"\n{'of':{wide}} {'rows':>4} {'median error':>12} {'mean error':>10} {'median ratio':>12}")
    for name, found in named.items():
        off, middle = np.abs(np.array(found) - 1.0), math.exp(np.median(np.log(found)))
        print(f"{name:{wide}} {len(found):4} {np.median(off):12.1%} {off.mean():10.1%} {middle:12.2f}")
