"""Convolutional diffusion networks (U-Nets) as PyTorch runs them without a compiler.

Every operation of diffusers 0.42.1's ``UNet2DConditionModel`` at its published size was counted on PyTorch's meta device, the
products, the convolutions, the attention and the memory-bound kernels between them: for each, its size over that of the picture,
so that another resolution is another count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuwise.serve.passes.diffusion.networks import KL_DECODER, Chain, Decoder, Filters, add_chains, add_filters
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.step import OpTable, OpTableBuilder


class Product(NamedTuple):
    """``times`` products of rows and ``k`` x ``n`` parameters: a row for each place of a picture whose sides are divided by
    ``divisor``, or ``rows`` of them."""

    divisor: int
    rows: int
    n: int
    k: int
    times: int

    def rows_of(self, height: int, width: int) -> int:
        """Rows of one picture."""
        return (height // self.divisor) * (width // self.divisor) if self.divisor else self.rows


class Looks(NamedTuple):
    """``times`` attentions of places over places (``keys`` 0) or over the ``keys`` tokens of the prompt."""

    divisor: int
    keys: int
    heads: int
    size: int
    times: int


@dataclass(frozen=True, slots=True)
class UNet:
    """One network: what an evaluation for one picture computes."""

    filters: tuple[Filters, ...]
    products: tuple[Product, ...]
    looks: tuple[Looks, ...]
    chains: tuple[Chain, ...]
    kernels: int
    """Launched by an evaluation of any batch."""
    decoder: Decoder
    passes: int = 2
    """2 with classifier-free guidance."""

    def table(self, dtype: str, batch: int, height: int, width: int) -> OpTable:
        """Operations of an evaluation of ``batch`` pictures (guidance counted), but for its attention."""
        to = OpTableBuilder()
        side = round((height * width) ** 0.5)
        for one in self.filters:
            add_filters(to, one, batch, side, 1.0, dtype)
        for p in self.products:
            m = batch * p.rows_of(height, width)
            to.add(
                "product",
                Kind.MATMUL,
                Phase.FORWARD,
                dtype,
                (1, m, p.n, p.k),
                count=p.times,
                flop=2.0 * m * p.n * p.k,
                read_bytes=2.0 * (m * p.k + p.n * p.k),
                written_bytes=2.0 * m * p.n,
            )
        add_chains(to, self.chains, 1.0, float(batch) * height * width, dtype)
        return to.build()


SD_1_5 = UNet(
    filters=(
        Filters(8, 4, 320, 3, 1),
        Filters(8, 320, 4, 3, 1),
        Filters(8, 320, 320, 1, 10),
        Filters(8, 320, 320, 3, 7),
        Filters(8, 640, 320, 1, 2),
        Filters(8, 640, 320, 3, 2),
        Filters(8, 640, 640, 3, 1),
        Filters(8, 960, 320, 1, 1),
        Filters(8, 960, 320, 3, 1),
        Filters(16, 320, 320, 3, 1),
        Filters(16, 320, 640, 1, 1),
        Filters(16, 320, 640, 3, 1),
        Filters(16, 640, 640, 1, 10),
        Filters(16, 640, 640, 3, 6),
        Filters(16, 960, 640, 1, 1),
        Filters(16, 960, 640, 3, 1),
        Filters(16, 1280, 640, 1, 1),
        Filters(16, 1280, 640, 3, 1),
        Filters(16, 1280, 1280, 3, 1),
        Filters(16, 1920, 640, 1, 1),
        Filters(16, 1920, 640, 3, 1),
        Filters(32, 640, 640, 3, 1),
        Filters(32, 640, 1280, 1, 1),
        Filters(32, 640, 1280, 3, 1),
        Filters(32, 1280, 1280, 1, 10),
        Filters(32, 1280, 1280, 3, 7),
        Filters(32, 1920, 1280, 1, 1),
        Filters(32, 1920, 1280, 3, 1),
        Filters(32, 2560, 1280, 1, 2),
        Filters(32, 2560, 1280, 3, 2),
        Filters(64, 1280, 1280, 1, 2),
        Filters(64, 1280, 1280, 3, 12),
        Filters(64, 2560, 1280, 1, 3),
        Filters(64, 2560, 1280, 3, 3),
    ),
    products=(
        Product(8, 0, 2560, 320, 5),
        Product(8, 0, 320, 1280, 5),
        Product(8, 0, 320, 320, 30),
        Product(16, 0, 5120, 640, 5),
        Product(16, 0, 640, 2560, 5),
        Product(16, 0, 640, 640, 30),
        Product(32, 0, 10240, 1280, 5),
        Product(32, 0, 1280, 5120, 5),
        Product(32, 0, 1280, 1280, 30),
        Product(0, 77, 1280, 768, 12),
        Product(0, 77, 640, 768, 10),
        Product(0, 77, 320, 768, 10),
        Product(0, 64, 10240, 1280, 1),
        Product(0, 64, 1280, 5120, 1),
        Product(0, 64, 1280, 1280, 6),
        Product(0, 1, 1280, 1280, 13),
        Product(0, 1, 1280, 320, 1),
        Product(0, 1, 640, 1280, 5),
        Product(0, 1, 320, 1280, 5),
    ),
    looks=(
        Looks(8, 0, 8, 40, 5),
        Looks(8, 77, 8, 40, 5),
        Looks(16, 0, 8, 80, 5),
        Looks(16, 77, 8, 80, 5),
        Looks(32, 0, 8, 160, 5),
        Looks(32, 77, 8, 160, 5),
        Looks(64, 0, 8, 160, 1),
        Looks(64, 77, 8, 160, 1),
    ),
    chains=(
        Chain("elementwise", "", 247, 2470, 1673, 836.7),
        Chain("copy", "transpose", 18, 88.13, 88.13, 44.06),
        Chain("elementwise", "broadcast", 121, 560.9, 560.8, 280.4),
        Chain("copy", "", 14, 120, 120, 60),
        Chain("norm", "", 109, 608.1, 608.1, 304.1, 51755),
        Chain("resampling", "", 3, 8.125, 32.5, 16.25),
    ),
    kernels=826,
    decoder=KL_DECODER,
)
SDXL = UNet(
    filters=(
        Filters(8, 4, 320, 3, 1),
        Filters(8, 320, 4, 3, 1),
        Filters(8, 320, 320, 3, 7),
        Filters(8, 640, 320, 1, 2),
        Filters(8, 640, 320, 3, 2),
        Filters(8, 640, 640, 3, 1),
        Filters(8, 960, 320, 1, 1),
        Filters(8, 960, 320, 3, 1),
        Filters(16, 320, 320, 3, 1),
        Filters(16, 320, 640, 1, 1),
        Filters(16, 320, 640, 3, 1),
        Filters(16, 640, 640, 3, 6),
        Filters(16, 960, 640, 1, 1),
        Filters(16, 960, 640, 3, 1),
        Filters(16, 1280, 640, 1, 1),
        Filters(16, 1280, 640, 3, 1),
        Filters(16, 1280, 1280, 3, 1),
        Filters(16, 1920, 640, 1, 1),
        Filters(16, 1920, 640, 3, 1),
        Filters(32, 640, 640, 3, 1),
        Filters(32, 640, 1280, 1, 1),
        Filters(32, 640, 1280, 3, 1),
        Filters(32, 1280, 1280, 3, 10),
        Filters(32, 1920, 1280, 1, 1),
        Filters(32, 1920, 1280, 3, 1),
        Filters(32, 2560, 1280, 1, 2),
        Filters(32, 2560, 1280, 3, 2),
    ),
    products=(
        Product(16, 0, 5120, 640, 10),
        Product(16, 0, 640, 2560, 10),
        Product(16, 0, 640, 640, 70),
        Product(32, 0, 10240, 1280, 60),
        Product(32, 0, 1280, 5120, 60),
        Product(32, 0, 1280, 1280, 372),
        Product(0, 77, 1280, 2048, 120),
        Product(0, 77, 640, 2048, 20),
        Product(0, 1, 1280, 2816, 1),
        Product(0, 1, 1280, 1280, 9),
        Product(0, 1, 1280, 320, 1),
        Product(0, 1, 640, 1280, 5),
        Product(0, 1, 320, 1280, 5),
    ),
    looks=(
        Looks(16, 0, 10, 64, 10),
        Looks(16, 77, 10, 64, 10),
        Looks(32, 0, 20, 64, 60),
        Looks(32, 77, 20, 64, 60),
    ),
    chains=(
        Chain("elementwise", "", 603, 4613, 3080, 1540),
        Chain("copy", "transpose", 26, 80.01, 80.01, 40),
        Chain("elementwise", "broadcast", 81, 421.4, 421.4, 210.7),
        Chain("copy", "", 14, 116.3, 116.3, 58.13),
        Chain("norm", "", 256, 895, 895, 447.5, 123352),
        Chain("resampling", "", 2, 7.5, 30, 15),
    ),
    kernels=1916,
    decoder=KL_DECODER,
)
UNETS: dict[str, UNet] = {
    "stable-diffusion-v1-5/stable-diffusion-v1-5": SD_1_5,
    "stabilityai/stable-diffusion-xl-base-1.0": SDXL,
    "stabilityai/sdxl-turbo": replace(SDXL, passes=1),
}
