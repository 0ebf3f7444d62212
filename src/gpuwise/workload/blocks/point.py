"""One rank's share of a layer: the sizes every block of the op table is written from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.workload.adapters import DEFAULT_TARGETS

if TYPE_CHECKING:
    from gpuwise.workload.stacks.stack import Stack

SCALE_BYTES_PER_ELEMENT = {"mxfp8": 1.0 / 32, "nvfp4": 1.0 / 16}
"""Block scales: one E8M0 per 32 (OCP MX v1.0), one E4M3 per 16 (NVFP4)."""
QUANTIZED = ("fp8", "mxfp8", "nvfp4")
NF4_BYTES_PER_PARAMETER = 0.5 + 1 / 64 + 4 / (64 * 256)
"""4-bit weight, an 8-bit scale per 64, an fp32 scale per 256 scales (QLoRA, arXiv 2305.14314, section 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """``tokens`` T = micro_batch * seq_len / cp are the tokens of one micro-batch on this rank's context shard.

    ``precision`` is the matmul format; ``dtype`` what activations travel in (bf16 under fp8; fp32 under tf32).
    """

    micro_batch: int
    seq_len: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    context_parallel: str = "ring"
    precision: str
    stack: Stack
    fused_attention: bool = True
    fused_loss: bool = False
    expert_dispatch: str = "deepep"
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = DEFAULT_TARGETS
    quantized_base: bool = False
    packed_document_len: int | None = None
    """Sequence packing: mean document length; attention then does not cross documents."""
    row_scales: bool = False
    """8-bit products with a scale per row."""
    autocast: bool = False
    """Weights in fp32 are cast in every forward: the residual stream stays in fp32, and the cast copies are saved."""

    @property
    def tokens(self) -> int:
        """T: tokens of one micro-batch on this rank's context shard."""
        return self.micro_batch * self.seq_len // self.cp

    @property
    def dtype(self) -> str:
        """Format of the activations: bf16 under 8- and 4-bit products, fp32 under TF32."""
        if self.precision in QUANTIZED:
            return "bf16"
        return "fp32" if self.precision == "tf32" else self.precision

    @property
    def element_bytes(self) -> float:
        """Bytes of an activation element."""
        return FORMAT_BYTES[self.dtype]

    def gathered_bytes(self, gradient: bool = False) -> float:
        """Bytes of an element of a tensor-parallel gather of inputs (or of gradients of outputs)."""
        which = self.stack.gathers_quantized
        if self.precision not in QUANTIZED or self.row_scales or not which or (gradient and which != "all"):
            return self.element_bytes
        return FORMAT_BYTES[self.precision] + SCALE_BYTES_PER_ELEMENT.get(self.precision, 0.0)

    @property
    def stream_bytes(self) -> float:
        """Bytes of an element of the residual stream."""
        return 4.0 if self.autocast or self.fp32_norms else self.element_bytes

    @property
    def fp32_norms(self) -> bool:
        """Whether norms beside 4-bit weights stay in fp32, and with them the residual stream."""
        return self.quantized_base and self.stack.quantized_fp32_norms

    @property
    def shard_tokens(self) -> int:
        """Tokens of the norm and residual regions: sequence parallelism splits them over the tensor group."""
        return self.tokens // self.tp if self.sequence_parallel and self.tp > 1 else self.tokens

    @property
    def column_tokens(self) -> int:
        """Saved rows of a column-parallel linear's input: the sequence shard if the stack gathers it again."""
        return self.shard_tokens if self.stack.regathers_input else self.tokens
