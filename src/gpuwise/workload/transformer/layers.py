"""Whole layers from blocks: attention (GQA, MLA, cross), MLP, experts, and the embedding, head and loss around them.

Collectives are written where they happen, named ``group.operation.where``; their payload is the full gathered buffer
(all_gather, reduce_scatter), the buffer of each rank (all_reduce) or what a rank holds (all_to_all, send_recv).
"""

from __future__ import annotations

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.models.architecture import Architecture, Mla, Moe, Patches
from gpuwise.workload.step import BIAS_GRADIENT, FILTER_GRADIENT, Kind
from gpuwise.workload.transformer.blocks import BWD, FWD, Rows
from gpuwise.workload.transformer.point import QUANTIZED, SCALE_BYTES_PER_ELEMENT, Point


def tensor_parallel_enter(rows: Rows, where: str, width: int) -> None:
    """Into a column-parallel linear: gather the sequence shards (forward), and again for the weight gradient."""
    p = rows.point
    if p.tp == 1:
        return
    payload = p.tokens * width * p.element_bytes
    if p.sequence_parallel:
        # the head is no 8- or 4-bit product
        gathered = p.tokens * width * (p.element_bytes if where == "head" else p.gathered_bytes())
        rows.collective(f"tp.all_gather.{where}", gathered, FWD)
        rows.collective(f"tp.all_gather.{where}.wgrad", gathered, BWD)
        rows.collective(f"tp.reduce_scatter.{where}.dgrad", payload, BWD)
    else:
        rows.collective(f"tp.all_reduce.{where}.dgrad", payload, BWD)


def tensor_parallel_leave(rows: Rows, where: str, width: int) -> None:
    """Out of a row-parallel linear: reduce partial sums (and scatter the sequence); the backward gathers."""
    p = rows.point
    if p.tp == 1:
        return
    payload = p.tokens * width * p.element_bytes
    if p.sequence_parallel:
        rows.collective(f"tp.reduce_scatter.{where}", payload, FWD)
        rows.collective(f"tp.all_gather.{where}.dgrad", p.tokens * width * p.gathered_bytes(gradient=True), BWD)
    else:
        rows.collective(f"tp.all_reduce.{where}", payload, FWD)


def _context_exchange(rows: Rows, where: str, heads: int, kv_heads: int, head_dim: int, v_head_dim: int) -> None:
    """Ring attention passes K and V round the group (arXiv 2310.01889); Ulysses swaps sequence for heads (2309.14509)."""
    p = rows.point
    if p.cp == 1:
        return
    e = p.element_bytes
    if p.context_parallel == "ulysses":
        payload = p.tokens * (heads * (head_dim + v_head_dim) + kv_heads * (head_dim + v_head_dim)) * e
        rows.collective(f"cp.all_to_all.{where}", payload, FWD)
        rows.collective(f"cp.all_to_all.{where}.backward", payload, BWD)
        return
    payload = p.tokens * p.cp * kv_heads * (head_dim + v_head_dim) * e
    rows.collective(f"cp.all_gather.{where}", payload, FWD)
    rows.collective(f"cp.all_gather.{where}.backward", payload, BWD)
    rows.collective(f"cp.reduce_scatter.{where}.backward", payload, BWD)


def attention(rows: Rows, arch: Architecture, window: int) -> None:
    """Self-attention with projections, position, core and output, on this rank's heads."""
    p = rows.point
    causal = arch.kind in ("decoder", "encoder-decoder")
    tensor_parallel_enter(rows, "attention", arch.hidden)
    if arch.mla is not None:
        heads, head_dim, v_dim = _mla_projections(rows, arch, arch.mla)
        kv_heads = heads
    else:
        heads, kv_heads = max(1, arch.heads // p.tp), max(1, arch.kv_heads // p.tp)
        head_dim = v_dim = arch.head_dim
        rows.linear(
            "attention.qkv",
            p.tokens,
            arch.hidden,
            (heads + 2 * kv_heads) * head_dim,
            bias=arch.qkv_bias,
            saved_tokens=_column_saved(p),
            parts=_qkv_parts(arch, heads, kv_heads),
        )
        if arch.qk_norm:
            rows.norm("attention.qk_norm", p.tokens * (heads + kv_heads), head_dim, kind=arch.norm, fp32=arch.norm_in_fp32)
        if arch.position == "rope":
            _rope(rows, (heads + kv_heads) * head_dim)
    _context_exchange(rows, "attention", heads, kv_heads, head_dim, v_dim)
    rows.attention_core("attention.core", heads, kv_heads, head_dim, v_dim, causal=causal, window=window)
    rows.linear(
        "attention.out", p.tokens, heads * v_dim, arch.hidden, saves_input=not p.fused_attention, bias=arch.attention_out_bias
    )
    tensor_parallel_leave(rows, "attention", arch.hidden)


def _qkv_parts(arch: Architecture, heads: int, kv_heads: int) -> tuple[tuple[str, int], ...]:
    q, kv = heads * arch.head_dim, kv_heads * arch.head_dim
    return (("qkv", q + 2 * kv),) if arch.fused_projections else (("q", q), ("k", kv), ("v", kv))


def _rope(rows: Rows, width: int) -> None:
    from gpuwise.workload.transformer.blocks import EAGER_ROPE_KERNELS

    elements = float(rows.point.tokens * width)
    if rows.point.stack.fused_rope:
        rows.memory("attention.rope", elements, elements, backward_read=elements, backward_written=elements)
    else:
        rows.memory(
            "attention.rope",
            elements,
            elements,
            n_kernels=EAGER_ROPE_KERNELS,
            passes=3.0,
            backward_read=elements,
            backward_written=elements,
        )


def _mla_projections(rows: Rows, arch: Architecture, mla: Mla) -> tuple[int, int, int]:
    """Down- and up-projections of latent attention; returns this rank's heads, qk head dim, v head dim."""
    p = rows.point
    heads, qk_dim = arch.heads // p.tp, mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if mla.q_lora_rank:
        rows.linear("attention.q_down", p.shard_tokens, arch.hidden, mla.q_lora_rank)
        rows.norm("attention.q_norm", p.shard_tokens, mla.q_lora_rank, kind=arch.norm, fp32=arch.norm_in_fp32)
        rows.linear("attention.q_up", p.tokens, mla.q_lora_rank, heads * qk_dim, saved_tokens=p.shard_tokens)
    else:
        rows.linear("attention.q", p.tokens, arch.hidden, heads * qk_dim)
    rows.linear("attention.kv_down", p.shard_tokens, arch.hidden, mla.kv_lora_rank + mla.qk_rope_head_dim, saves_input=False)
    rows.norm("attention.kv_norm", p.shard_tokens, mla.kv_lora_rank, kind=arch.norm, fp32=arch.norm_in_fp32)
    rows.linear(
        "attention.kv_up",
        p.tokens,
        mla.kv_lora_rank,
        heads * (mla.qk_nope_head_dim + mla.v_head_dim),
        saved_tokens=p.shard_tokens,
    )
    _rope(rows, heads * 2 * mla.qk_rope_head_dim)
    elements = float(p.tokens * heads * qk_dim)
    rows.memory("attention.concat", elements, elements, backward_read=elements, backward_written=elements)
    return heads, qk_dim, mla.v_head_dim


def cross_attention(rows: Rows, arch: Architecture) -> None:
    """Decoder queries over the encoder's output; keys and values are projected from the encoder's tokens."""
    p, enc = rows.point, arch.encoder
    assert enc is not None
    heads = max(1, arch.heads // p.tp)
    rows.norm("cross.norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    tensor_parallel_enter(rows, "cross", arch.hidden)
    rows.linear("cross.q", p.tokens, arch.hidden, heads * arch.head_dim, bias=arch.qkv_bias)
    width = heads * arch.head_dim
    parts = (("k", width), ("v", width))
    rows.linear("cross.kv", p.micro_batch * enc.seq_len // p.cp, enc.hidden, 2 * width, bias=arch.qkv_bias, parts=parts)
    rows.attention_core("cross.core", heads, heads, arch.head_dim, arch.head_dim, causal=False, window=0, kv_len=enc.seq_len)
    rows.linear("cross.out", p.tokens, heads * arch.head_dim, arch.hidden, saves_input=not p.fused_attention)
    tensor_parallel_leave(rows, "cross", arch.hidden)
    rows.residual("cross.residual", p.shard_tokens, arch.hidden)


def _column_saved(p: Point) -> int:
    """Rows of a column-parallel linear's input that are kept: the sequence shard where the stack gathers it again."""
    return p.shard_tokens if p.stack.regathers_input else p.tokens


def mlp(
    rows: Rows, arch: Architecture, ffn: int, *, where: str = "mlp", collectives: bool = True, saves_input: bool = True
) -> None:
    """Two or three matrices with the activation between; F is divided by the tensor-parallel degree.

    ``saves_input`` False: another row keeps the input already (a shared expert reads what the router keeps)."""
    p = rows.point
    f = max(1, ffn // p.tp)
    if collectives:
        tensor_parallel_enter(rows, where, arch.hidden)
    rows.linear(
        f"{where}.up",
        p.tokens,
        arch.hidden,
        f * (2 if arch.gated_mlp else 1),
        bias=arch.mlp_bias,
        saves_input=saves_input,
        saved_tokens=_column_saved(p),
        parts=(("gate", f), ("up", f)) if arch.gated_mlp and not arch.fused_projections else (),
    )
    _activation(rows, arch, where, float(p.tokens * f))
    rows.linear(f"{where}.down", p.tokens, f, arch.hidden, bias=arch.mlp_bias)
    if collectives:
        tensor_parallel_leave(rows, where, arch.hidden)


def _activation(rows: Rows, arch: Architecture, where: str, elements: float) -> None:
    fused = rows.point.stack.fused_activation
    inputs = 2.0 if arch.gated_mlp else 1.0
    if arch.activation == "gelu_new" and not fused and not arch.gated_mlp:
        # x/2, x, tanh and 1 + tanh, each kept; the power is taken in fp32 under autocast, and what follows it
        p = rows.point
        saved_width = 4.0 if not p.autocast else 1.0 + 3 * 4.0 / p.element_bytes
        rows.memory(
            f"{where}.activation",
            elements,
            elements,
            saved=saved_width * elements,
            backward_read=2 * elements,
            backward_written=elements,
        )
    elif fused or not arch.gated_mlp:
        rows.memory(
            f"{where}.activation",
            inputs * elements,
            elements,
            saved=inputs * elements,
            backward_read=(inputs + 1) * elements,
            backward_written=inputs * elements,
        )
    else:  # silu, then multiply: the activated gate is written, read again and kept
        rows.memory(
            f"{where}.activation",
            3 * elements,
            2 * elements,
            saved=3 * elements,
            n_kernels=2.0,
            backward_read=5 * elements,
            backward_written=3 * elements,
        )


def experts(rows: Rows, arch: Architecture, moe: Moe) -> None:
    """Router, dispatch, routed experts as one grouped product, combine, and the shared expert.

    Tokens are taken as balanced over experts (what training with an auxiliary loss or forced balance gives);
    each rank of the expert-parallel group receives ``tokens * n_active`` rows, those of all tensor ranks where experts are
    divided over them.
    """
    p = rows.point
    h, e = arch.hidden, p.element_bytes
    local = max(1, moe.n_experts // p.ep)
    tokens = p.shard_tokens
    routed = tokens * moe.n_active
    placed = routed * (p.etp if p.ep == 1 else 1)
    width = moe.latent or h
    # routing is computed in fp32 (Megatron-Core moe_router_dtype, DeepSeek-V3 section 2.1.2)
    rows.to.add(
        "moe.router",
        Kind.MATMUL,
        FWD,
        "tf32" if p.precision != "fp32" else "fp32",
        (1, tokens, moe.n_experts, h),
        flop=2.0 * tokens * h * moe.n_experts,
        read_bytes=tokens * h * 4.0,
        written_bytes=tokens * moe.n_experts * 4.0,
        saved=0.0 if p.lora_rank else tokens * h * e,
    )
    rows.memory(
        "moe.top_k", 2.0 * tokens * moe.n_experts, tokens * moe.n_experts, saved=2.0 * tokens * moe.n_experts, n_kernels=6.0
    )
    if moe.latent:
        rows.linear("moe.latent_in", tokens, h, width, saves_input=False)
    rows.memory(
        "moe.permute",
        float(placed * width),
        float(placed * width),
        n_kernels=2.0,
        backward_read=float(placed * width),
        backward_written=float(tokens * width),
    )
    _expert_exchange(rows, moe, routed * width)
    if p.etp > 1:  # Megatron-Core token_dispatcher.py: tokens are gathered whole, or their copies after an exchange
        gathered = p.etp * (tokens if p.ep == 1 else routed) * width * e
        for phase in (FWD, BWD):
            rows.collective("tp.all_gather.experts", gathered, phase)
            rows.collective("tp.reduce_scatter.experts", gathered, phase)
    _grouped_mlp(rows, arch, moe, local, routed)
    rows.memory(
        "moe.unpermute",
        float(placed * width),
        float(tokens * width),
        saved=float(placed) + (float(placed * width) if p.stack.keeps_expert_outputs else 0.0),
        n_kernels=2.0,
        backward_read=float(tokens * width),
        backward_written=float(placed * width),
    )
    if moe.latent:
        rows.linear("moe.latent_out", tokens, width, h)
    if moe.n_shared:
        mlp(rows, arch, moe.shared_ffn, where="moe.shared", saves_input=p.lora_rank > 0)


FP8_DISPATCH_BYTES = 1.0 + 4.0 / 128
"""An 8-bit element and its share of an fp32 scale per 128 (DeepSeek-V3, arXiv 2412.19437, section 3.3.3)."""


def _expert_exchange(rows: Rows, moe: Moe, elements: int) -> None:
    """``elements`` of tokens out to the experts' ranks and their results back, in both passes. In the backward pass
    gradients go the same ways; those that enter the experts may travel in 8 bits as the tokens do."""
    p = rows.point
    if p.ep == 1:
        return
    once = p.expert_dispatch != "all-to-all"
    copies, reachable = (moe.n_active, moe.top_groups / moe.groups) if once else (0, 1.0)
    into = FP8_DISPATCH_BYTES if p.expert_dispatch == "deepep-fp8" else p.element_bytes
    ways = (
        ("dispatch", FWD, into),
        ("combine", FWD, p.element_bytes),
        ("combine.backward", BWD, into),
        ("dispatch.backward", BWD, p.element_bytes),
    )
    for where, phase, size in ways:
        rows.collective(f"ep.all_to_all.{where}", elements * size, phase, copies=copies, reachable=reachable)


def _grouped_mlp(rows: Rows, arch: Architecture, moe: Moe, local: int, routed: int) -> None:
    ffn, routed = moe.expert_ffn // rows.point.etp, routed * rows.point.etp
    up = ffn * (2 if arch.gated_mlp else 1)
    width = moe.latent or arch.hidden
    _grouped(rows, "moe.up", local, routed, width, up)
    _expert_bias(rows, arch, "moe.up", local, float(routed * up))
    _activation(rows, arch, "moe", float(routed * ffn))
    _grouped(rows, "moe.down", local, routed, ffn, width)
    _expert_bias(rows, arch, "moe.down", local, float(routed * width))


def _expert_bias(rows: Rows, arch: Architecture, name: str, local: int, elements: float) -> None:
    """Where each expert has its own launch, its bias is added expert by expert and the parts joined again (Megatron-Core
    transformer/moe/experts.py ``_apply_bias``): a sum and a copy, and in the backward pass a reduction for each."""
    if not (arch.mlp_bias and rows.point.stack.expert_streams):
        return
    rows.memory(
        f"{name}.bias",
        2 * elements,
        2 * elements,
        n_kernels=local + 1.0,
        backward_read=3 * elements,
        backward_written=2 * elements,
    )


def _grouped(rows: Rows, name: str, local: int, routed: int, k: int, n: int) -> None:
    """One of the experts' linears with its two backward products; inputs are cast and kept as a linear's are."""
    p = rows.point
    e = p.element_bytes
    flop, weights = 2.0 * routed * k * n, float(local * k * n)
    frozen = p.lora_rank > 0
    n_kernels, kernel = (float(local), "streams") if p.stack.expert_streams else (1.0, "")
    saved_width = FORMAT_BYTES[p.precision] + SCALE_BYTES_PER_ELEMENT.get(p.precision, 0.0) if p.precision in QUANTIZED else e
    rows.quantize(name, FWD, routed, k, n, frozen)
    rows.to.add(
        name,
        Kind.GROUPED,
        FWD,
        p.precision,
        (local, routed, n, k),
        flop=flop,
        read_bytes=(routed * k + weights) * e,
        written_bytes=routed * n * e,
        saved=0.0 if frozen else routed * k * saved_width,
        n_kernels=n_kernels,
        kernel=kernel,
    )
    rows.quantize(name, BWD, routed, k, n, frozen)
    rows.to.add(
        f"{name}.dgrad",
        Kind.GROUPED,
        BWD,
        p.precision,
        (local, routed, k, n),
        flop=flop,
        read_bytes=(routed * n + weights) * e,
        written_bytes=routed * k * e,
        n_kernels=n_kernels,
        kernel=kernel,
    )
    if not frozen:
        rows.to.add(
            f"{name}.wgrad",
            Kind.GROUPED,
            BWD,
            p.precision,
            (local, routed, n, k),
            flop=flop,
            read_bytes=routed * (k + n) * e,
            written_bytes=weights * (8.0 if p.stack.fused_wgrad else e),
            n_kernels=n_kernels,
            kernel=kernel,
        )


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
    """Each square of the image projected to ``hidden`` by a convolution whose stride is its width, as PyTorch runs it (images
    that lie channels first, a bias), positions added. Images need no gradient."""
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
            _half_precision(rows).linear("head.classes", p.micro_batch, arch.hidden, arch.n_classes, bias=True)
            _loss(rows, float(p.micro_batch * arch.n_classes))
        return
    tensor_parallel_enter(rows, "head", arch.hidden)
    vocab = -(-arch.vocab // p.tp)
    trainable = p.lora_rank == 0
    inner = _half_precision(rows)
    inner.linear(
        "head.logits", p.tokens, arch.hidden, vocab, trainable=trainable, bias=arch.head_bias, saved_tokens=_column_saved(p)
    )
    _loss(rows, float(p.tokens * vocab))
    for _ in range(arch.prediction_layers if p.stack.trains_prediction else 0):
        _prediction(rows, arch, vocab)


def _prediction(rows: Rows, arch: Architecture, vocab: int) -> None:
    """A multi-token-prediction block: the hidden state and the next token's embedding normed, joined and projected, one
    layer, and logits and loss again (arXiv 2412.19437, section 2.2)."""
    p = rows.point
    for which in ("hidden", "embedding"):
        rows.norm(f"prediction.{which}_norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    tensor_parallel_enter(rows, "prediction", 2 * arch.hidden)
    rows.linear("prediction.join", p.tokens, 2 * arch.hidden, max(1, arch.hidden // p.tp), saved_tokens=_column_saved(p))
    layer(rows, arch, "dense" if arch.moe is None else "moe")
    rows.norm("prediction.norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    tensor_parallel_enter(rows, "head", arch.hidden)
    _half_precision(rows).linear("prediction.logits", p.tokens, arch.hidden, vocab, saved_tokens=_column_saved(p))
    _loss(rows, float(p.tokens * vocab))


def _half_precision(rows: Rows) -> Rows:
    """The head stays in bf16 under 8- and 4-bit recipes, and carries no adapter."""
    from dataclasses import replace

    p = rows.point
    return Rows(rows.to, replace(p, precision=p.dtype if p.precision != "tf32" else "tf32", lora_rank=0, quantized_base=False))


def _loss(rows: Rows, logits: float) -> None:
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


def layer(rows: Rows, arch: Architecture, kind: str) -> None:
    """One layer of ``kind``: ``dense``, ``moe``, with suffix ``.local`` for windowed attention, or ``encoder``."""
    p: Point = rows.point
    base, _, local = kind.partition(".")
    window = (arch.window or 0) if local == "local" else 0
    rows.norm("attention.norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    attention(rows, arch, window)
    if arch.norms_per_layer == 4:
        rows.norm("attention.post_norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    if not arch.parallel_block:
        rows.residual("attention.residual", p.shard_tokens, arch.hidden)
    if arch.encoder is not None and base == "dense":
        cross_attention(rows, arch)
    if not arch.parallel_block or arch.norms_per_layer >= 2:
        rows.norm("mlp.norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    if base == "moe" and arch.moe is not None:
        experts(rows, arch, arch.moe)
    else:
        mlp(rows, arch, arch.ffn)
    if arch.norms_per_layer == 4:
        rows.norm("mlp.post_norm", p.shard_tokens, arch.hidden, kind=arch.norm, fp32=arch.norm_in_fp32)
    rows.residual("mlp.residual", p.shard_tokens, arch.hidden)
