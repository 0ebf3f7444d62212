"""Embedding, patches, last norm, head and loss."""

from __future__ import annotations

from gpuwise.workload.capture.captured import TensorSpec
from gpuwise.workload.eager.losses import chunked_cross_entropy, cross_entropy
from gpuwise.workload.eager.modules import Modules, averaged, first_token, flat_rows, looked_up
from gpuwise.workload.eager.tape import Tape, Value, add, cast, concatenated, each, scaled, spec, summed_to, unary

POSITION_KERNELS = 9
"""Small kernels that make positions and look for packed sequences (transformers ``masking_utils``)."""
UNDROPPED_EMBEDDINGS = ("opt",)
"""Families whose embedding has no dropout behind it, though their layers have (transformers ``modeling_opt``)."""


def embedding(m: Modules, table: Value | None) -> tuple[Value, tuple[Value, Value] | None]:
    """The first hidden states [B, S, H], and the cosines and sines of rotary positions."""
    a, t, p = m.arch, m.t, m.point
    if a.patches is not None:
        return _patches(m), None
    assert table is not None
    ids = t.leaf((p.micro_batch, p.seq_len), "i64")
    x = looked_up(t, table, ids)
    if a.norms_per_layer == 4:
        x = scaled(t, x)
    if a.n_token_types:
        x = add(t, x, looked_up(t, m.weight(a.n_token_types, a.hidden), ids))
    places = t.leaf((1, p.seq_len), "i64")
    for _ in range(POSITION_KERNELS if a.kind == "decoder" else 1):
        each(t, "add", [places], "i64")
    around = None
    if a.position == "learned":
        x = add(t, x, looked_up(t, m.weight(a.position_rows or a.max_seq_len, a.hidden), places))
    else:
        around = _rotary(m, x.dtype)
    x = m.norm("norm", x) if a.embedding_norm else x
    drops = a.position == "learned" and a.family not in UNDROPPED_EMBEDDINGS
    return (m.dropped(x) if drops else x), around


def _rotary(m: Modules, form: str) -> tuple[Value, Value]:
    t, wide = m.t, (1, m.point.seq_len, m.arch.head_dim)
    with t.frame():
        angles = t.bind(t.run("cat", [t.leaf(wide, "fp32")], [spec(wide, "fp32")], call={"tensors": ()})[0])
        cos, sin = (t.bind(scaled(t, each(t, name, [angles], overload="default"))) for name in ("cos", "sin"))
        return cast(t, cos, form), cast(t, sin, form)


def _patches(m: Modules) -> Value:
    a, t, p = m.arch, m.t, m.point
    patches = a.patches
    assert patches is not None
    b, side, h = p.micro_batch, patches.image_size // patches.patch_size, a.hidden
    image = cast(t, t.leaf((b, patches.channels, patches.image_size, patches.image_size), "fp32"), m.computes)
    w = cast(t, m.weight(h, patches.channels, patches.patch_size, patches.patch_size), m.computes)
    bias = cast(t, m.weight(h), m.computes)
    plane = spec((b, h, side, side), m.computes)
    output = convolved(t, image, w, bias, plane, patches.patch_size)
    tokens = t.transposed(t.view(output, (b, h, side * side)), 1, 2)
    if patches.class_token:
        first = m.weight(1, 1, h)
        spread = t.alias(first, (b, 1, h), "expand", (0, h, 1))
        t.note([first], [spread], lambda g: [g[0] and summed_to(t, g[0], first)])
        tokens = concatenated(t, [spread, tokens], (b, side * side + 1, h))
    return add(t, tokens, m.weight(1, tokens.shape[1], h))


def head(m: Modules, x: Value, table: Value | None) -> Value:
    """The loss: cross entropy over the vocabulary or the classes, or the mean of the pooled first token."""
    a, t = m.arch, m.t
    if a.final_norm:
        x = t.bind(m.norm("norm", x))
    if a.lm_head and m.point.fused_loss:
        table = table if table is not None and a.tied_embeddings else m.weight(a.vocab, a.hidden)
        with t.inside("head", x):
            x, weight = cast(t, x, m.computes), cast(t, table, m.computes)
            return chunked_cross_entropy(t, t.view(x, (flat_rows(x), a.hidden)), weight)
    if a.lm_head:
        logits = m.linear("head", x, a.vocab, weight=table if a.tied_embeddings else None, bias=a.head_bias)
        with t.frame():
            logits = t.bind(cast(t, logits, "fp32"))
            for _ in range(2):
                each(t, "clone", [t.leaf((m.point.micro_batch, m.point.seq_len), "i64")], "i64", "default")
            return cross_entropy(t, t.view(logits, (flat_rows(logits), a.vocab)))
    if not a.n_classes and not a.pooler:
        return averaged(t, x)
    first = first_token(t, x)
    if a.n_classes:
        return cross_entropy(t, m.linear("head", first, a.n_classes, bias=True))
    return averaged(t, unary(t, "tanh", m.linear("pooler", first, a.hidden, bias=True)))


def convolved(t: Tape, image: Value, w: Value, bias: Value, result: TensorSpec, stride: int) -> Value:
    """``image`` convolved with ``w`` at ``stride``, without padding."""
    attributes = (
        ("stride", (stride, stride)),
        ("padding", (0, 0)),
        ("dilation", (1, 1)),
        ("transposed", False),
        ("output_padding", (0, 0)),
        ("groups", 1),
    )
    call = {"input": image.spec, "weight": w.spec, "bias": bias.spec}
    output = t.run("convolution", [image, w, bias], [result], call=call, attributes=attributes)[0]

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None, None]
        mask = (False, True, True)
        more = {**call, "grad_output": g[0].spec, "output_mask": mask}
        backward_attributes = (*attributes, ("output_mask", mask))
        return list(
            t.run("convolution_backward", [g[0], image, w], [w.spec, bias.spec], call=more, attributes=backward_attributes)
        )

    t.note([w, bias], [output], gradients, "inputs")
    return output
