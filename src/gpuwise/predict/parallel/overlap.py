"""What hides behind what: one composition of work and transfers for strategies of the catalogue and for captured steps.

A stack hides transfers behind work and pays for it: seconds of a transfer that runs beside work slow that work by the stack's
``contention``, and its networks are slower than a collective alone by its ``network_slowdown``
(:class:`~gpuwise.predict.stack_costs.StackCosts`). Everything takes arrays or numbers alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.stack_costs import StackCosts

F64 = NDArray[np.float64]


def beside(work_s: F64, transfer_s: F64, sc: StackCosts) -> F64:
    """Seconds of work with a transfer prefetched behind it: the longer of the two, and what they take from each other."""
    return np.maximum(work_s, transfer_s) + sc.contention * np.minimum(work_s, transfer_s)


def gathered_passes(
    forward_s: F64, backward_s: F64, in_forward_s: F64, in_backward_s: F64, sc: StackCosts, copied_s: tuple[Any, Any] = (0.0, 0.0)
) -> tuple[F64, F64]:
    """Forward and backward of a layer (or module) whose parameters are fully sharded: gathers move behind the forward pass
    (``in_forward_s``), gathers and the reduction of the gradients behind the backward pass with its recompute
    (``in_backward_s``); ``copied_s`` the copies between host and device that each pass has before and after them."""
    slow = sc.network_slowdown
    forward_s = beside(forward_s, in_forward_s * slow + copied_s[0], sc)
    return forward_s, beside(backward_s, in_backward_s * slow + copied_s[1], sc)


def exposed_after(transfer_s: F64, work_s: F64, sc: StackCosts, overlap: F64 | None = None) -> F64:
    """Transfer time not overlapped with ``work_s``, plus the slowdown that it causes there; ``overlap``: the share that can
    overlap, if it differs from the stack's."""
    seconds = transfer_s * sc.network_slowdown
    hidden = np.minimum(seconds * (sc.dp_overlap if overlap is None else overlap), work_s)
    return seconds - hidden * (1 - sc.contention)


def exposed_once(
    reduce_s: F64, gather_s: F64, forward_s: F64, backward_s: F64, sc: StackCosts, reductions: Any = 1, overlap: F64 | None = None
) -> F64:
    """Exposed seconds of the traffic of one step: gradients reduced behind the last backward pass (``reductions`` times),
    parameters gathered behind the first forward pass."""
    return reductions * exposed_after(reduce_s, backward_s, sc, overlap) + exposed_after(gather_s, forward_s, sc, overlap)
