"""Residual networks of convolutions as an op table, from their dimensions (He et al. 2016, arXiv 1512.03385, table 1).

Shape legend: B images of ``pixels`` squared, C channels, P places of an output. A stem (7 x 7, stride 2, 64 channels; pooling of
3 x 3, stride 2), four stages of blocks whose first one halves the image (but for the first stage), the mean over all places, and
a product with the classes. Blocks, of width w in stage s (64, 128, 256, 512):

    basic        3 x 3 to w, 3 x 3 to w
    bottleneck   1 x 1 to g, 3 x 3 (in groups; with the stride, as in v1.5) to g, 1 x 1 to 4 w;  g = w / 64 x groups x group width

As a compiler for inference leaves it: batch norm is folded into the filters, and bias, activation and the sum with the shortcut
are written with the convolution that comes before them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.workload.step import CHANNELS_LAST, Kind, OpTable, OpTableBuilder, Phase

STEM_CHANNELS, IMAGE_CHANNELS = 64, 3
EXPANSION = {"basic": 1, "bottleneck": 4}
"""Channels out of a block over its width."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """``side`` is that of the square output."""

    name: str
    c_in: int
    c_out: int
    kernel: int
    stride: int
    groups: int
    side: int
    adds_shortcut: bool = False

    @property
    def parameters(self) -> int:
        """Of the filters, without the batch norm's two a channel."""
        return self.c_in // self.groups * self.c_out * self.kernel**2


def convolutions(net: ConvNet, pixels: int) -> list[Convolution]:
    """Every convolution in order; those of the shortcuts that change the shape with them."""
    side = -(-pixels // 2)
    out = [Convolution("stem", IMAGE_CHANNELS, STEM_CHANNELS, 7, 2, 1, side)]
    side, channels = -(-side // 2), STEM_CHANNELS
    for stage, depth in enumerate(net.depths):
        width = STEM_CHANNELS * 2**stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            into, side = side, -(-side // stride)
            wide = width * EXPANSION[net.block]
            name = f"stage{stage + 1}.{block + 1}"
            if net.block == "basic":
                out.append(Convolution(f"{name}.a", channels, width, 3, stride, 1, side))
                out.append(Convolution(f"{name}.b", width, wide, 3, 1, 1, side, True))
            else:
                inner = width * net.group_width * net.groups // STEM_CHANNELS
                out.append(Convolution(f"{name}.a", channels, inner, 1, 1, 1, into))
                out.append(Convolution(f"{name}.b", inner, inner, 3, stride, net.groups, side))
                out.append(Convolution(f"{name}.c", inner, wide, 1, 1, 1, side, True))
            if stride != 1 or channels != wide:
                out.append(Convolution(f"{name}.shortcut", channels, wide, 1, stride, 1, side))
            channels = wide
    return out


def parameter_count(net: ConvNet) -> int:
    """Weights with the batch norm's scale and shift and the classes' bias."""
    every = convolutions(net, net.pixels)
    return sum(c.parameters + 2 * c.c_out for c in every) + (last_channels(net) + 1) * net.n_classes


def last_channels(net: ConvNet) -> int:
    """Channels that the classes are read from."""
    return STEM_CHANNELS * 2 ** (len(net.depths) - 1) * EXPANSION[net.block]


def forward_table(net: ConvNet, batch: int, dtype: str, pixels: int | None = None) -> OpTable:
    """Rows of the forward pass of ``batch`` images in ``dtype``."""
    pixels = pixels or net.pixels
    to, element = OpTableBuilder(), FORMAT_BYTES[dtype]
    side = pixels
    for c in convolutions(net, pixels):
        into = c.side * c.stride
        image, result = batch * c.c_in * into**2, batch * c.c_out * c.side**2
        to.add(
            c.name,
            Kind.CONVOLUTION,
            Phase.FORWARD,
            dtype,
            (batch, c.c_in, c.c_out, c.side, c.side, c.kernel**2, c.groups),
            flop=2.0 * batch * c.side**2 * c.parameters,
            read_bytes=element * (image + c.parameters + (result if c.adds_shortcut else 0)),
            written_bytes=element * result,
            flag=CHANNELS_LAST,
            detail=(into, into, c.stride),
        )
        if c.name == "stem":
            pooled = -(-c.side // 2)
            to.add(
                "pool", Kind.MEMORY, Phase.FORWARD, dtype,
                read_bytes=element * result, written_bytes=element * batch * c.c_out * pooled**2, family="pooling",
            )  # fmt: skip
        side = c.side
    channels = last_channels(net)
    features = batch * channels
    to.add(
        "mean", Kind.MEMORY, Phase.FORWARD, dtype,
        read_bytes=element * features * side**2, written_bytes=element * features, family="reduction",
    )  # fmt: skip
    to.add(
        "classes",
        Kind.MATMUL,
        Phase.FORWARD,
        dtype,
        (1, batch, net.n_classes, channels),
        flop=2.0 * features * net.n_classes,
        read_bytes=element * (features + channels * net.n_classes),
        written_bytes=element * batch * net.n_classes,
    )
    return to.build()
