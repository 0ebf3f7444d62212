"""Diffusion transformers and image decoders as PyTorch runs them without a compiler: products, attention, and the chains of
elementwise kernels between them.

The dimensions are those of each model's ``transformer/config.json`` on Hugging Face. The chains are counted, not fitted: the
blocks of diffusers 0.42.1 were captured (``gpuwise.capture``) at their published sizes in bf16, and their memory-bound kernels
summed by family and pattern (:class:`Chain`). The networks launch very different chains, 75 to 310 bytes for each token and
channel of a layer, and they are 30 to 65 % of a step, so one factor does not fit all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.step import OpTable, OpTableBuilder


class Chain(NamedTuple):
    """Memory-bound kernels of one family and pattern: launches per layer, and for each of its tokens and channels (of a
    decoder: for each pixel) the bytes read, the bytes written and the elements visited; of norms the bytes of a row."""

    family: str
    kernel: str
    launches: float
    read: float
    written: float
    visited: float
    row_bytes: float = 0.0


class Filters(NamedTuple):
    """``times`` square convolutions on images whose sides are those of the picture (of a transformer: of its latents) over
    ``divisor``."""

    divisor: int
    c_in: int
    c_out: int
    kernel: int
    times: float = 1.0
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Decoder:
    """From latents to pixels: its convolutions, its chains, and the attention of one head over the latents (0: none)."""

    filters: tuple[Filters, ...]
    chains: tuple[Chain, ...]
    attention_width: int = 0


@dataclass(frozen=True, slots=True)
class Diffuser:
    """Dimensions of a diffusion transformer. ``width`` of the MLP, plus the hidden size if each layer also attends to the prompt
    (its query and output projections); ``text`` tokens beside the latents; ``cross`` tokens of the prompt in a separate cross
    attention; ``shrink`` pixels in a token's side; ``frames`` of video in a latent frame; ``passes`` 2 with classifier-free
    guidance; ``kernels`` launched for a layer.

    ``linear``: size of the heads of an attention that is linear in the tokens (0: softmax), computed in fp32; ``filters`` of
    an MLP that convolves. The attention over ``cross`` tokens then has separate ``heads``.
    """

    layers: int
    hidden: int
    width: int
    heads: int
    kernels: float
    chains: tuple[Chain, ...]
    text: int = 0
    cross: int = 0
    shrink: int = 16
    frames: int = 4
    passes: int = 2
    linear: int = 0
    filters: tuple[Filters, ...] = ()
    decoder: Decoder | None = None
    """None: a video's, whose cost is fitted."""
    decoded: int = 1
    """Side in pixels of the places that a video's decoder ends with (``patch_size`` of diffusers' autoencoders)."""

    def architecture(self) -> Architecture:
        """Its products and its softmax attention as an encoder's."""
        return Architecture(
            id="diffuser",
            name="diffusion transformer",
            kind="encoder",
            n_layers=self.layers,
            hidden=self.hidden,
            ffn=self.width,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.hidden // self.heads,
            vocab=64,
            max_seq_len=1,
            gated_mlp=False,
            activation="gelu",
            norm="layer",
            position="none",
        )

    def latents(self, height: float, width: float, n_frames: float) -> int:
        """Latent tokens of one picture or film."""
        frames = 1 if not n_frames > 0 else 1 + (int(n_frames) - 1) // self.frames
        return int(height // self.shrink) * int(width // self.shrink) * frames


def step_table(model: Diffuser, batch: int, tokens: int) -> OpTable:
    """Operations of one pass beside the rows of :meth:`Diffuser.architecture`: ``batch`` sequences (guidance counted) of
    ``tokens`` tokens on this device."""
    to = OpTableBuilder()
    add_chains(to, model.chains, float(model.layers), float(batch) * tokens * model.hidden)
    if model.linear:
        size, heads = model.linear, batch * (model.hidden // model.linear)
        for n, k in ((size, tokens), (tokens, size)):  # keys with values (and their sum), then queries with the result
            flop = 2.0 * heads * (size + 1) * n * k
            moved = 4.0 * heads * ((size + 1) * k + k * n), 4.0 * heads * (size + 1) * n
            to.add(
                "linear_attention",
                Kind.MATMUL,
                Phase.FORWARD,
                "fp32",
                (heads, size + 1, n, k),
                count=model.layers,
                flop=flop,
                read_bytes=moved[0],
                written_bytes=moved[1],
            )
    side = max(1, round(tokens**0.5))
    for one in model.filters:
        add_filters(to, one, batch, side, float(model.layers))
    return to.build()


def spread_table(model: Diffuser, batch: int, tokens: int, ulysses: int, ring: int) -> OpTable:
    """Copies and sums around the attention of one pass whose ``tokens`` a device are spread: heads swapped for tokens and back
    (DeepSpeed-Ulysses, arXiv 2309.14509: queries, keys, values and the result, laid out before and after each exchange), and the
    results of a ring joined by their log-sums in fp32, a device's keys at a time (ring-flash-attention,
    update_out_and_lse; Liu et al., arXiv 2310.01889)."""
    to, elements = OpTableBuilder(), float(batch) * tokens * model.hidden
    layers = float(model.layers)

    def add(family: str, kernel: str, count: float, read: float, written: float) -> None:
        to.add(
            f"spread {family}",
            Kind.MEMORY,
            Phase.FORWARD,
            "bf16",
            count=count * layers,
            family=family,
            kernel=kernel,
            read_bytes=read * elements,
            written_bytes=written * elements,
            detail=(1.0, elements, 0.0),
        )

    if ulysses > 1:
        add("copy", "transpose", 8, 2, 2)
    if ring > 1:
        add("elementwise", "", ring, 2, 4)
        add("elementwise", "", 2.0 * (ring - 1), 8, 4)
        add("elementwise", "broadcast", ring - 1, 4, 4)
        add("elementwise", "", 1, 4, 2)
    return to.build()


def decoder_table(decoder: Decoder, images: int, height: int, width: int, shrink: int = 8, dtype: str = "bf16") -> OpTable:
    """The decoding of ``images`` latents to pixels; a width other than the height counts by its area."""
    to = OpTableBuilder()
    side = round((height * width) ** 0.5)
    for one in decoder.filters:
        add_filters(to, one, images, side, 1.0, dtype)
    add_chains(to, decoder.chains, 1.0, float(images) * height * width, dtype)
    if decoder.attention_width:
        n, d = (side // shrink) ** 2, decoder.attention_width
        to.add(
            "attention",
            Kind.ATTENTION,
            Phase.FORWARD,
            dtype,
            (images, n, n, 1, 1, d, d),
            flop=4.0 * images * n * n * d,
            read_bytes=6.0 * images * n * d,
            written_bytes=2.0 * images * n * d,
            kernel="efficient",
            flag=2,
        )
    return to.build()


def add_chains(to: OpTableBuilder, chains: tuple[Chain, ...], layers: float, elements: float, dtype: str = "bf16") -> None:
    """The memory-bound kernels of ``layers`` layers of ``elements`` elements each."""
    for c in chains:
        each = elements / c.launches
        to.add(
            f"{c.family} {c.kernel}".strip(),
            Kind.MEMORY,
            Phase.FORWARD,
            dtype,
            count=c.launches * layers,
            read_bytes=c.read * each,
            written_bytes=c.written * each,
            family=c.family,
            kernel=c.kernel,
            detail=(1.0, c.visited * each, c.row_bytes),
        )


def add_filters(to: OpTableBuilder, f: Filters, images: int, side: int, layers: float, dtype: str = "bf16") -> None:
    """A convolution of each of ``layers`` layers over ``images`` pictures of a ``side``."""
    side //= f.divisor
    places, parameters = images * side**2, f.c_in // f.groups * f.c_out * f.kernel**2
    to.add(
        "convolution",
        Kind.CONVOLUTION,
        Phase.FORWARD,
        dtype,
        (images, f.c_in, f.c_out, side, side, f.kernel**2, f.groups),
        count=f.times * layers,
        flop=2.0 * places * parameters,
        read_bytes=2.0 * (places * f.c_in + parameters),
        written_bytes=2.0 * places * f.c_out,
        detail=(side, side, 1.0),
    )


KL_DECODER = Decoder(
    filters=(
        Filters(8, 16, 512, 3),
        Filters(8, 512, 512, 3, 10),
        Filters(4, 512, 512, 3, 7),
        Filters(2, 512, 512, 3),
        Filters(2, 512, 256, 3),
        Filters(2, 512, 256, 1),
        Filters(2, 256, 256, 3, 5),
        Filters(1, 256, 256, 3),
        Filters(1, 256, 128, 3),
        Filters(1, 256, 128, 1),
        Filters(1, 128, 128, 3, 5),
        Filters(1, 128, 3, 3),
    ),
    chains=(
        Chain("norm", "", 30, 5256, 5256, 1752, 7763707),
        Chain("elementwise", "", 45, 4960, 4944, 2472),
        Chain("elementwise", "broadcast", 3, 48, 48, 24),
        Chain("elementwise", "transpose", 14, 2848, 1424, 712),
        Chain("copy", "transpose", 14, 2048, 2048, 1024),
        Chain("resampling", "", 3, 208, 832, 416),
    ),
    attention_width=512,
)
"""diffusers' AutoencoderKL with the widths of Stable Diffusion's, SDXL's and FLUX's (128, 256, 512, 512), two blocks a level and
one more."""
_DC = Decoder(
    filters=(
        Filters(32, 32, 1024, 3),
        Filters(32, 1024, 8192, 1, 3),
        Filters(32, 8192, 8192, 3, 3, 8192),
        Filters(32, 4096, 1024, 1, 3),
        Filters(32, 3072, 3072, 5, 3, 3072),
        Filters(16, 1024, 1024, 3),
        Filters(16, 1024, 8192, 1, 3),
        Filters(16, 8192, 8192, 3, 3, 8192),
        Filters(16, 4096, 1024, 1, 3),
        Filters(16, 3072, 3072, 5, 3, 3072),
        Filters(8, 1024, 512, 3),
        Filters(8, 512, 4096, 1, 3),
        Filters(8, 4096, 4096, 3, 3, 4096),
        Filters(8, 2048, 512, 1, 3),
        Filters(8, 1536, 1536, 5, 3, 1536),
        Filters(4, 512, 512, 3, 7),
        Filters(2, 512, 256, 3),
        Filters(2, 256, 256, 3, 6),
        Filters(1, 256, 128, 3),
        Filters(1, 128, 128, 3, 6),
        Filters(1, 128, 3, 3),
    ),
    chains=(
        Chain("elementwise", "", 130, 8776, 7276, 2750),
        Chain("elementwise", "broadcast", 138, 7180, 8594, 3182),
        Chain("elementwise", "transpose", 6, 948, 474, 237),
        Chain("copy", "", 97, 7222, 7534, 2655),
        Chain("copy", "broadcast", 15, 530.1, 795.8, 317.4),
        Chain("reduction", "", 28, 3512, 20.24, 5.061),
        Chain("resampling", "", 5, 218, 872, 436),
    ),
)
"""diffusers' AutoencoderDC f32c32 (arXiv 2410.10733), without the products of its linear attention (5 % of its time)."""
_WAN = (
    Chain("norm", "", 7.0, 18.16, 18.19, 6.05, 5124),
    Chain("elementwise", "broadcast", 17.2, 30.6, 32.27, 10.07),
    Chain("copy", "", 14.3, 32.2, 34.21, 11.07),
    Chain("copy", "broadcast", 4, 4, 4, 2),
)
MODELS: dict[str, Diffuser] = {
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": Diffuser(
        28,
        1152,
        4608 + 1152,
        16,
        31.1,
        (
            Chain("norm", "", 2, 4.071, 4.086, 2.036, 2304),
            Chain("elementwise", "", 6.4, 23.86, 17.93, 8.967),
            Chain("elementwise", "broadcast", 9.2, 12.26, 12.22, 6.109),
        ),
        cross=300,
        decoder=KL_DECODER,
    ),
    "Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers": Diffuser(
        40,
        1408,
        6144 + 1408 + 704,
        16,
        72.6,
        (
            Chain("norm", "", 3.5, 15.85, 15.87, 3.975, 6973),
            Chain("norm", "", 4, 6.163, 6.443, 3.081, 176),
            Chain("elementwise", "", 8.7, 42.46, 27.61, 10.8),
            Chain("elementwise", "broadcast", 10.2, 29.86, 29.11, 8.554),
            Chain("elementwise", "transpose", 1.6, 6.3, 3.15, 1.575),
            Chain("copy", "", 28.8, 55.67, 61.67, 20.87),
            Chain("copy", "transpose", 2, 4, 4, 2),
        ),
        cross=333,
        decoder=KL_DECODER,
    ),
    "black-forest-labs/FLUX.1-dev": Diffuser(
        57,
        3072,
        12288,
        24,
        48.4,
        (
            Chain("norm", "", 2, 2.698, 2.701, 1.349, 6144),
            Chain("norm", "", 2.7, 4, 4.062, 2, 256),
            Chain("elementwise", "", 9.5, 29.34, 18.67, 7.335),
            Chain("elementwise", "broadcast", 12.1, 26.73, 26.07, 9.032),
            Chain("copy", "", 10.7, 30.02, 34.01, 13),
        ),
        text=512,
        passes=1,
        decoder=KL_DECODER,
    ),
    "stabilityai/stable-diffusion-3.5-large": Diffuser(
        38,
        2432,
        9728,
        38,
        83.5,
        (
            Chain("norm", "", 4, 4.045, 4.051, 2.022, 4864),
            Chain("elementwise", "", 20.2, 24.22, 20.23, 8.051),
            Chain("elementwise", "broadcast", 26, 22.28, 26.13, 11.06),
            Chain("copy", "", 11.1, 18, 18, 7),
            Chain("copy", "broadcast", 2, 2.02, 2.02, 1.01),
            Chain("copy", "transpose", 1.1, 2.05, 2.05, 1.025),
            Chain("reduction", "", 4, 8, 0.125, 0.03125),
        ),
        text=333,
        decoder=KL_DECODER,
    ),
    "stabilityai/stable-diffusion-3.5-medium": Diffuser(
        24,
        1536,
        6144,
        24,
        97.9,
        (
            Chain("norm", "", 4, 4.071, 4.081, 2.035, 3072),
            Chain("elementwise", "", 24.1, 30.34, 25.35, 9.578),
            Chain("elementwise", "broadcast", 30.3, 29.45, 35.22, 14.61),
            Chain("copy", "", 13.3, 24.01, 24.01, 9.004),
            Chain("copy", "broadcast", 2, 2.032, 2.032, 1.016),
            Chain("copy", "transpose", 1.1, 2.08, 2.08, 1.04),
            Chain("reduction", "", 5.1, 12.01, 0.1876, 0.0469),
        ),
        text=333,
        decoder=KL_DECODER,
    ),
    "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers": Diffuser(
        20,
        2240,
        2240,
        20,
        82.0,
        (
            Chain("norm", "", 2, 4.1, 4.107, 2.05, 4480),
            Chain("elementwise", "", 19.6, 40.87, 35.07, 14.23),
            Chain("elementwise", "broadcast", 22.4, 46.83, 48.29, 19.8),
            Chain("copy", "", 12.3, 29.85, 33.85, 10.62),
            Chain("copy", "broadcast", 2, 4, 4.13, 1.034),
            Chain("copy", "transpose", 3, 10.1, 10.1, 3.05),
            Chain("reduction", "", 4, 13.23, 0.0059, 0.0015),
        ),
        cross=300,
        shrink=32,
        linear=32,
        filters=(Filters(1, 2240, 11200, 1), Filters(1, 11200, 11200, 3, 1, 11200), Filters(1, 5600, 2240, 1)),
        decoder=_DC,
    ),
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": Diffuser(
        30, 1536, 8960 + 1536, 12, 63.1, (*_WAN, Chain("elementwise", "", 8.3, 39.67, 25.67, 10.83)), cross=512
    ),
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": Diffuser(
        40, 5120, 13824 + 5120, 40, 62.9, (*_WAN, Chain("elementwise", "", 8.2, 33.4, 19.4, 7.7)), cross=512
    ),
    "tencent/HunyuanVideo": Diffuser(
        60,
        3072,
        12288,
        24,
        73.9,
        (
            Chain("norm", "", 2.1, 2.7, 2.704, 1.35, 6144),
            Chain("elementwise", "", 20.4, 34.77, 25.45, 8.697),
            Chain("elementwise", "broadcast", 17.5, 34.76, 38.03, 13.02),
            Chain("elementwise", "transpose", 0.7, 2.661, 1.33, 0.6652),
            Chain("copy", "", 18.6, 47.3, 51.29, 19.65),
            Chain("reduction", "", 2.7, 8, 0.0625, 0.01563),
        ),
        text=256,
        passes=1,
    ),
}
"""FLUX and HunyuanVideo are distilled to one pass. SANA's attention over its tokens is linear, its MLP convolves."""
MODELS["Wan-AI/Wan2.2-TI2V-5B-Diffusers"] = replace(
    MODELS["Wan-AI/Wan2.1-T2V-14B-Diffusers"], layers=30, hidden=3072, width=14336 + 3072, heads=24, shrink=32
)
"""Blocks of the 14B network at the dimensions of its ``transformer/config.json``."""
MODELS["black-forest-labs/FLUX.1-schnell"] = replace(MODELS["black-forest-labs/FLUX.1-dev"], text=256)

_FLUX = MODELS["black-forest-labs/FLUX.1-dev"]
MODELS.update(
    {
        "black-forest-labs/FLUX.1-Kontext-dev": replace(_FLUX, text=512 + 4096),
        "black-forest-labs/FLUX.2-dev": replace(_FLUX, layers=8 + 48, hidden=6144, width=27648, heads=48),
        "black-forest-labs/FLUX.2-klein-9B": replace(_FLUX, layers=8 + 24, hidden=4096, width=18432, heads=32),
        "black-forest-labs/FLUX.2-klein-4B": replace(_FLUX, layers=5 + 20, hidden=3072, width=13824, heads=24),
        "Qwen/Qwen-Image": replace(_FLUX, layers=60, text=128, passes=2, decoder=None),
        "Qwen/Qwen-Image-Edit": replace(_FLUX, layers=60, text=128 + 4096, passes=2, decoder=None),
        "Tongyi-MAI/Z-Image-Turbo": replace(_FLUX, layers=30 + 2, hidden=3840, width=15360, heads=30, text=128),
        "Tongyi-MAI/Z-Image": replace(_FLUX, layers=30 + 2, hidden=3840, width=15360, heads=30, text=128, passes=2),
    }
)
"""Blocks of FLUX.1's kind at the dimensions of diffusers' transformers (``transformer_flux2.py``, ``transformer_qwenimage.py``,
``transformer_z_image.py``). A gated MLP counts as a plain one of half as much again. An image that is edited lies beside the
latents, scaled to a megapixel; a prompt without a fixed length is assumed to have 128 tokens."""
_WAN_14B = MODELS["Wan-AI/Wan2.1-T2V-14B-Diffusers"]
MODELS.update(
    {
        "Lightricks/LTX-Video": replace(
            _WAN_14B, layers=28, hidden=2048, width=8192 + 2048, heads=32, cross=128, shrink=32, frames=8, decoded=4
        ),
        "Lightricks/LTX-Video-0.9.7-dev": replace(
            _WAN_14B, layers=48, hidden=4096, width=16384 + 4096, heads=32, cross=128, shrink=32, frames=8, decoded=4
        ),
    }
)
"""Blocks of Wan's kind at the dimensions of their ``transformer/config.json``; a token is 32 x 32 pixels of eight frames
(arXiv 2501.00103)."""
MODELS["Lightricks/LTX-Video-0.9.7-distilled"] = replace(MODELS["Lightricks/LTX-Video-0.9.7-dev"], passes=1)
