"""What a row of the step table may be: its kind, its phase, its flags."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """Kind of an operation in the step table."""

    MATMUL = 0
    GROUPED = 1
    ATTENTION = 2
    CONVOLUTION = 3
    MEMORY = 4
    EMBEDDING = 5
    COLLECTIVE = 6
    COPY = 7
    OPTIMIZER = 8
    HOST = 9


class Phase(IntEnum):
    """The pass of a step an operation belongs to."""

    FORWARD = 0
    RECOMPUTE = 1
    BACKWARD = 2
    OPTIMIZER = 3


for _enum in (Kind, Phase):
    for _name, _member in _enum.__members__.items():
        type.__setattr__(_enum, _name, _member)  # as Python 3.12 does; 3.11 looks members up in a function, ten times as slowly


CAUSAL = 1
"""``flag`` bit of a causal attention."""
FUSED_ATTENTION = 2
"""``flag`` bit of an attention that runs as one kernel (flash); without it, scores are written to memory."""
FUSED_SOFTMAX = 4
"""``flag`` bit of an unfused attention whose scale, mask and softmax are one kernel."""
DROPOUT = 8
"""``flag`` bit of an unfused attention with dropout on its probabilities."""
CHANNELS_LAST = 16
"""``flag`` bit of a convolution with channels-last images."""
TRANSPOSED = 32
"""``flag`` bit of a transposed convolution (sizes are those of the mirrored one)."""
IMAGE_GRADIENT = 64
FILTER_GRADIENT = 128
BIAS_GRADIENT = 256
"""``flag`` bits of a convolution's backward: the gradients it computes; none of them is the forward."""
TO_HOST = 512
"""``flag`` bit of a transfer from the device to the host."""

FWD, BWD = Phase.FORWARD, Phase.BACKWARD
