"""Self-attention (``modeling_llama``, ``modeling_gpt2``, ``modeling_gemma3``, ``modeling_bert``)."""

from __future__ import annotations

from gpuwise.workload.eager.modules import TURNED, Modules, batched, dropout, softmax
from gpuwise.workload.eager.tape import Tape, Value, add, cast, concatenated, laid, mul, negated, part, scaled, spec, split


def attention(m: Modules, x: Value, window: int, around: tuple[Value, Value] | None) -> Value:
    """``around``: cosines and sines [1, S, D] of the positions."""
    with m.t.frame(x):
        return projected(m, attended(m, x, window, around))


def attended(m: Modules, x: Value, window: int, around: tuple[Value, Value] | None) -> Value:
    """[B, S, A D] before the output's product."""
    a, t = m.arch, m.t
    b, s = x.shape[0], x.shape[1]
    bias, width = a.qkv_bias, a.head_dim
    if a.fused_projections and a.heads == a.kv_heads:
        wide = 3 * a.heads * width
        qkv = m.turned_linear("qkv", x, wide) if a.family in TURNED else m.linear("qkv", x, wide, bias=bias)
        q, k, v = (_by_head(m, one, a.heads) for one in split(t, qkv, 3, a.heads * width))
    else:
        q = _head_norm(m, "q_norm", m.linear("q", x, a.heads * width, bias=bias), a.heads)
        k = _head_norm(m, "k_norm", m.linear("k", x, a.kv_heads * width, bias=bias and a.key_bias), a.kv_heads)
        v = _by_head(m, m.linear("v", x, a.kv_heads * width, bias=bias), a.kv_heads)
    if around is not None:
        with t.frame(q, k):
            cos, sin = (t.view(one, (1, *one.shape), "unsqueeze") for one in around)
            q, k = _turned(m, q, cos, sin), _turned(m, k, cos, sin)
    for one in (q, k, v):
        t.bind(one)
    if not m.point.fused_attention:
        return _written_out(m, q, k, v)
    masked = 0 < window < s
    if masked and a.heads != a.kv_heads:
        k, v = _repeated(m, k), _repeated(m, v)
    q, k, v = (cast(t, one, m.computes) for one in (q, k, v))
    output = scores(t, q, k, v, causal=a.kind == "decoder", masked=masked, dropout_p=m.attention_dropout)
    return t.view(t.transposed(output, 1, 2), (b, s, a.heads * width))


def projected(m: Modules, attended: Value) -> Value:
    a = m.arch
    if a.family in TURNED:
        return m.turned_linear("out", attended, a.hidden)
    return m.linear("out", attended, a.hidden, bias=a.attention_out_bias)


def _written_out(m: Modules, q: Value, k: Value, v: Value) -> Value:
    """Attention without a fused kernel (``eager_attention_forward``): the scores of every pair of tokens, scaled and
    masked, their softmax in fp32 but where 16-bit weights are all there is (BERT), dropout, and the sum of the values."""
    a, t = m.arch, m.t
    b, s = q.shape[0], q.shape[2]
    with t.frame(q, k, v):
        if a.heads != a.kv_heads:
            k, v = t.bind(_repeated(m, k)), t.bind(_repeated(m, v))
        turned = cast(t, t.transposed(k, 2, 3), m.computes)
        logits = scaled(t, batched(t, cast(t, q, m.computes), turned))
        if m.mask is not None:
            logits = add(t, logits, m.mask)
        wide = m.autocast or a.kind != "encoder"
        chances = softmax(t, logits, "fp32" if wide else logits.dtype)
        if not m.autocast or a.family in TURNED:
            chances = cast(t, chances, m.computes)
        if m.attention_dropout:
            chances = dropout(t, chances)
        chances = t.bind(cast(t, chances, m.computes))
        output = batched(t, chances, cast(t, v, m.computes))
        return t.view(t.transposed(output, 1, 2), (b, s, a.heads * a.head_dim))


def _by_head(m: Modules, x: Value, heads: int) -> Value:
    b, s, wide = x.shape
    return m.t.transposed(m.t.view(x, (b, s, heads, wide // heads)), 1, 2)


def _head_norm(m: Modules, name: str, x: Value, heads: int) -> Value:
    if not m.arch.qk_norm:
        return _by_head(m, x, heads)
    if m.arch.norms_per_layer == 4:
        return m.norm(name, _by_head(m, x, heads))
    b, s, wide = x.shape
    return m.t.transposed(m.norm(name, m.t.view(x, (b, s, heads, wide // heads))), 1, 2)


def _turned(m: Modules, x: Value, cos: Value, sin: Value) -> Value:
    """Rotary positions: x cos + rotated(x) sin."""
    t, half = m.t, (*x.shape[:-1], x.shape[-1] // 2)
    plain = mul(t, x, cos)
    with t.frame():
        first, second = part(t, x, half), part(t, x, half)
        turned = concatenated(t, [negated(t, second), first], x.shape)
    return add(t, plain, mul(t, turned, sin))


def _repeated(m: Modules, x: Value) -> Value:
    """[B, K, S, D] to every query head: a copy unless there is one kv head."""
    t, n = m.t, m.arch.heads // m.arch.kv_heads
    b, kv, s, d = x.shape
    wide = (b, kv, n, s, d)
    spread = t.alias(t.alias(x, (b, kv, 1, s, d), "unsqueeze"), wide, "expand", (kv * s * d, s * d, 0, d, 1))
    shape = (b, kv * n, s, d)
    if kv == 1:
        output = Value(laid(shape, (s * d, 0, d, 1), x.dtype), x.storage)
    else:
        output = t.run("clone", [spread], [spec(shape, x.dtype)])[0]
    t.note(
        [x],
        [output],
        lambda g: [g[0] and t.run("sum", [g[0]], [x.spec], overload="dim_IntList", attributes=(("dim", (2,)),))[0]],
    )
    return output


def scores(t: Tape, q: Value, k: Value, v: Value, *, causal: bool, masked: bool, dropout_p: float = 0.0) -> Value:
    """softmax(q k') v on [B, A, S, D]: the flash kernel, or the memory-efficient one where a mask is given."""
    b, heads, s, d = q.shape
    out = laid(q.shape, (s * heads * d, d, heads * d, 1), q.dtype)
    sums = spec((b, heads, s), "fp32")
    call = {"query": q.spec, "key": k.spec, "value": v.spec, "is_causal": causal and not masked}
    attributes = (("dropout_p", dropout_p), ("is_causal", causal and not masked))
    name, more = "_scaled_dot_product_flash_attention", []
    if masked:
        name = "_scaled_dot_product_efficient_attention"
        visible = t.alias(t.leaf((1, 1, s, s), "bool"), (b, 1, s, s), "expand", (0, 0, s, 1))
        bias = t.run("where", [visible], [spec((b, 1, s, s), q.dtype)], overload="self")[0]
        more = [t.alias(bias, (b, heads, s, s), "expand", (s * s, 0, s, 1))]
    seeds = [spec((), "i64")] * 2 if masked else [spec((2,), "u64"), spec((), "u64")]
    output, lse, *state = t.run(name, [q, k, v, *more], [out, sums, *seeds], call=call, attributes=attributes)
    t.alias(output, output.shape, "detach", output.spec.stride)

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None, None, None]
        t.alias(g[0], g[0].shape, "detach", g[0].spec.stride)
        operands = [g[0], q, k, v, *more, output, lse, *state]
        return list(t.run(f"{name}_backward", operands, [q.spec, k.spec, v.spec], call=call, attributes=attributes))

    t.note([q, k, v], [output], gradients, "outputs")
    return output
