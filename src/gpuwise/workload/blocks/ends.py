"""The ends of a model: embedding or patches, last norm, output projection and loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture, Patches
from gpuwise.workload.row_codes import BIAS_GRADIENT, BWD, FILTER_GRADIENT, FWD, Kind

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows


def embedding(rows: Rows, arch: Architecture) -> None:
    """Token (and position) rows gathered; the backward scatters. Vocabulary-parallel over the tensor group."""
    p = rows.point
    width = arch.hidden
    e = p.element_bytes
    if arch.patches is not None:
        _patch_embedding(rows, arch, arch.patches)
        return
    for phase, name in ((FWD, "embedding"), (BWD, "embedding.backward")):
        rows.to.add(
            name,
            Kind.EMBEDDING,
            phase,
            p.dtype,
            (p.tokens, width, arch.vocab),
            read_bytes=p.tokens * width * e,
            written_bytes=p.tokens * width * e,
            n_kernels=2.0,
        )
    if arch.position in ("learned", "sinusoidal"):
        rows.memory("embedding.position", 2.0 * p.tokens * width, float(p.tokens * width))
    if p.tp > 1:
        op = "reduce_scatter" if p.sequence_parallel else "all_reduce"
        rows.collective(f"tp.{op}.embedding", p.tokens * width * e, FWD)
        if p.sequence_parallel:
            rows.collective("tp.all_gather.embedding.dgrad", p.tokens * width * e, BWD)


def _patch_embedding(rows: Rows, arch: Architecture, patches: Patches) -> None:
    """Each square of the image projected to ``hidden`` by a convolution whose stride is its width, as PyTorch runs it
    (channels-first images, a bias), plus positions. Images need no gradient."""
    p = rows.point
    area, e, side = patches.channels * patches.patch_size**2, p.element_bytes, patches.image_size // patches.patch_size
    tokens, images = p.tokens, p.micro_batch
    shape = (images, patches.channels, arch.hidden, side, side, patches.patch_size**2, 1)
    detail = (patches.image_size, patches.image_size, patches.patch_size)
    flop = 2.0 * tokens * area * arch.hidden
    rows.to.add(
        "embedding.patches",
        Kind.CONVOLUTION,
        FWD,
        p.dtype,
        shape,
        flop=flop,
        read_bytes=(tokens + arch.hidden) * area * e,
        written_bytes=tokens * arch.hidden * e,
        # autocast casts the images, which stay as they came
        saved=tokens * area * (e + 4.0 if p.autocast else e),
        n_kernels=2 if patches.bias else 1,
        detail=detail,
    )
    rows.to.add(
        "embedding.patches.wgrad",
        Kind.CONVOLUTION,
        BWD,
        p.dtype,
        shape,
        flop=flop,
        read_bytes=tokens * (arch.hidden + area) * e,
        written_bytes=arch.hidden * area * e,
        flag=FILTER_GRADIENT | (BIAS_GRADIENT if patches.bias else 0),
        detail=detail,
    )
    elements = float(tokens * arch.hidden)
    rows.memory("embedding.position", 2 * elements, elements)


def head(rows: Rows, arch: Architecture) -> None:
    """Final norm, projection to the vocabulary and cross-entropy; logits [T, V/t]. A vision model classifies its class
    token instead: one row an image."""
    p = rows.point
    if arch.final_norm:
        rows.norm("head.norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    if arch.patches is not None:
        if arch.n_classes:
            rows.in_half_precision().linear("head.classes", p.micro_batch, arch.hidden, arch.n_classes, bias=True)
            loss(rows, float(p.micro_batch * arch.n_classes))
        return
    if arch.pooled:
        return
    rows.enter("head", arch.hidden)
    vocab = -(-arch.vocab // p.tp)
    trainable = p.lora_rank == 0
    inner = rows.in_half_precision()
    inner.linear(
        "head.logits", p.tokens, arch.hidden, vocab, trainable=trainable, bias=arch.head_bias, saved_tokens=p.column_tokens
    )
    loss(rows, float(p.tokens * vocab))


def loss(rows: Rows, logits: float) -> None:
    """Cross-entropy over ``logits`` elements. Unfused: cast to fp32, log-softmax, nll; each pass at 4 bytes."""
    p = rows.point
    e = p.element_bytes
    if p.stack.fused_loss or p.fused_loss:
        rows.to.add(
            "head.loss",
            Kind.MEMORY,
            FWD,
            p.dtype,
            read_bytes=2 * logits * e,
            written_bytes=logits * e,
            saved=0.0 if p.fused_loss else logits * e,
            n_kernels=3.0,
        )
        rows.to.add(
            "head.loss.backward", Kind.MEMORY, BWD, p.dtype, read_bytes=logits * e, written_bytes=logits * e, n_kernels=2.0
        )
        return
    rows.to.add(
        "head.loss",
        Kind.MEMORY,
        FWD,
        p.dtype,
        read_bytes=logits * (e + 4 + 4),
        written_bytes=logits * (4 + 4),
        saved=logits * 4.0,
        n_kernels=6.0,
    )
    rows.to.add(
        "head.loss.backward",
        Kind.MEMORY,
        BWD,
        p.dtype,
        read_bytes=logits * (4 + 4 + 4),
        written_bytes=logits * (4 + e),
        n_kernels=4.0,
    )


def norm_weights(arch: Architecture, width: int) -> int:
    """Weights of one norm over ``width`` channels."""
    return width * {"rms": 1, "layer": 2, "layer-no-bias": 1, "none": 0}[arch.norm]


def embedding_weights(arch: Architecture) -> tuple[int, int]:
    """(all input tables with their norm and projection, the part that is only looked up)."""
    width = arch.embedding_dim or arch.hidden
    tables = arch.vocab * width + arch.n_token_types * width
    if arch.position == "learned":
        tables += (arch.position_rows or arch.max_seq_len) * arch.hidden
    if arch.encoder is not None:
        tables += arch.encoder.position_rows * arch.encoder.hidden
    tables += arch.vocab * arch.n_layers * arch.per_layer_embedding
    total = tables + norm_weights(arch, arch.per_layer_embedding)
    if arch.embedding_norm:
        total += norm_weights(arch, width) * (1 if arch.encoder is None else 2)
    if width != arch.hidden:
        # one projection in, and one out before the tied head
        total += width * arch.hidden * (2 if arch.lm_head else 1)
    return total, tables


def stem_weights(arch: Architecture) -> int:
    """Patch embedding with its class token (ViT), or the two audio convolutions (Whisper)."""
    total = 0
    if arch.patches is not None:
        p = arch.patches
        total += p.channels * p.patch_size**2 * arch.hidden
        total += arch.hidden * (int(p.bias) + int(p.class_token))
    if arch.encoder is not None and arch.encoder.n_mels:
        h = arch.encoder.hidden
        total += 3 * arch.encoder.n_mels * h + h + 3 * h * h + h
    return total
