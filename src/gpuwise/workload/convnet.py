"""Residual CNNs as an op table, from their dimensions (He et al. 2016, arXiv 1512.03385, table 1).

Shape legend: B images of ``pixels`` squared, C channels, P places of an output. A stem (7 x 7, stride 2, 64 channels; pooling of
3 x 3, stride 2), four stages of blocks whose first one halves the image (but for the first stage), the mean over all places, and
a product with the classes. Blocks, of width w in stage s (64, 128, 256, 512):

    basic        3 x 3 to w, 3 x 3 to w
    bottleneck   1 x 1 to g, 3 x 3 (in groups; with the stride, as in v1.5) to g, 1 x 1 to 4 w;  g = w / 64 x groups x group width

Trained, each convolution is followed by a batch norm and, but for a shortcut's, an activation, in 16 bits under autocast with
images that lie channels last; weights and SGD with momentum in 32 bits. As a compiler for inference leaves it: batch norm is
folded into the filters, and bias, activation and the sum with the shortcut are written with the convolution before them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.workload.row_codes import CHANNELS_LAST, FILTER_GRADIENT, IMAGE_GRADIENT, Kind, Phase
from gpuwise.workload.step import OpTable, OpTableBuilder

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
        """Parameters of the filters, without the batch norm's two per channel."""
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
                "pool",
                Kind.MEMORY,
                Phase.FORWARD,
                dtype,
                read_bytes=element * result,
                written_bytes=element * batch * c.c_out * pooled**2,
                family="pooling",
            )
        side = c.side
    channels = last_channels(net)
    features = batch * channels
    to.add(
        "mean",
        Kind.MEMORY,
        Phase.FORWARD,
        dtype,
        read_bytes=element * features * side**2,
        written_bytes=element * features,
        family="reduction",
    )
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


def training_table(net: ConvNet, batch: int, dtype: str) -> OpTable:
    """Rows of one step on ``batch`` images in ``dtype``, one of the 16-bit formats."""
    to, element, weights = OpTableBuilder(), FORMAT_BYTES[dtype], parameter_count(net)
    for c in convolutions(net, net.pixels):
        into = c.side * c.stride
        image, result = element * batch * c.c_in * into**2, element * batch * c.c_out * c.side**2
        shape, detail = (batch, c.c_in, c.c_out, c.side, c.side, c.kernel**2, c.groups), (into, into, c.stride)
        flop, filters = 2.0 * batch * c.side**2 * c.parameters, element * c.parameters
        to.add(
            c.name,
            Kind.CONVOLUTION,
            Phase.FORWARD,
            dtype,
            shape,
            flop=flop,
            read_bytes=image + filters,
            written_bytes=result,
            flag=CHANNELS_LAST,
            detail=detail,
        )
        gradients = FILTER_GRADIENT + (IMAGE_GRADIENT if c.name != "stem" else 0)
        twice = 2.0 if c.name != "stem" else 1.0
        to.add(
            c.name,
            Kind.CONVOLUTION,
            Phase.BACKWARD,
            dtype,
            shape,
            flop=twice * flop,
            read_bytes=result + image + filters,
            written_bytes=(twice - 1) * image + filters,
            flag=CHANNELS_LAST | gradients,
            detail=detail,
        )
        _normalised(to, c, batch, dtype, result)
        to.add(
            c.name,
            Kind.COPY,
            Phase.FORWARD,
            dtype,
            read_bytes=4.0 * c.parameters,
            written_bytes=filters,
            family="elementwise",
            kernel="cast",
        )
        to.add(
            c.name,
            Kind.COPY,
            Phase.BACKWARD,
            dtype,
            read_bytes=filters,
            written_bytes=4.0 * c.parameters,
            family="elementwise",
            kernel="cast",
        )
        if c.name == "stem":
            pooled = element * batch * c.c_out * (-(-c.side // 2)) ** 2
            for phase, read, written in ((Phase.FORWARD, result, pooled), (Phase.BACKWARD, pooled, result)):
                to.add("pool", Kind.MEMORY, phase, dtype, read_bytes=read, written_bytes=written, family="pooling")
    to.add(
        "sgd", Kind.OPTIMIZER, Phase.OPTIMIZER, "fp32", read_bytes=12.0 * weights, written_bytes=8.0 * weights, family="optimizer"
    )
    return to.build()


def _normalised(to: OpTableBuilder, c: Convolution, batch: int, dtype: str, result: float) -> None:
    """Operations after a convolution: moments and norm over its images, shortcut sum, activation; and their backward."""
    kernel = "own_batch_norm" if dtype == "bf16" else "batch_norm"  # ATen _select_batch_norm_backend: cuDNN's takes no bf16
    shape = (batch, c.c_out, c.side**2, int(FORMAT_BYTES[dtype]))
    forward, backward = (3, 2) if dtype == "bf16" else (1, 1)
    for phase, read, launches in ((Phase.FORWARD, result, forward), (Phase.BACKWARD, 2 * result, backward)):
        to.add(
            f"{c.name}.norm",
            Kind.MEMORY,
            phase,
            dtype,
            shape,
            read_bytes=read,
            written_bytes=result,
            family="norm",
            kernel=kernel,
            n_kernels=launches,
            detail=(1.5 if phase == Phase.FORWARD else 5.0 / 3.0,),
            flag=CHANNELS_LAST,
        )
    if c.adds_shortcut:
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            to.add(f"{c.name}.sum", Kind.MEMORY, phase, dtype, read_bytes=2 * result, written_bytes=result)
    if not c.name.endswith("shortcut"):
        to.add(f"{c.name}.relu", Kind.MEMORY, Phase.FORWARD, dtype, read_bytes=result, written_bytes=result)
        to.add(f"{c.name}.relu", Kind.MEMORY, Phase.BACKWARD, dtype, read_bytes=2 * result, written_bytes=result)


def trained_bytes(net: ConvNet, batch: int, dtype: str) -> float:
    """Bytes for training on ``batch`` images: weights, gradients and momentum in 32 bits, and for every convolution the
    tensors its backward reads (input and result)."""
    element = FORMAT_BYTES[dtype]
    kept = sum(c.c_out * c.side**2 * (1 if c.name.endswith("shortcut") else 2) for c in convolutions(net, net.pixels))
    return 12.0 * parameter_count(net) + element * batch * kept
