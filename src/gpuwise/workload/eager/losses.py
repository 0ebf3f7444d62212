"""The loss over a vocabulary as eager PyTorch and Liger's kernels run it, written on a
:class:`~gpuwise.workload.eager.tape.Tape`. Shapes: T tokens, H hidden, V vocabulary."""

from __future__ import annotations

from gpuwise.workload.eager.tape import Tape, Value, cast, each, spec


def chunked_cross_entropy(t: Tape, x: Value, w: Value) -> Value:
    """Loss of [T, H] x [V, H]' in chunks whose logits are about as large as x, and in the same pass both gradients, which the
    backward scales (Liger-Kernel ``fused_linear_cross_entropy.py``)."""
    (rows, hidden), vocab = x.shape, w.shape[0]
    chunk = 1 << (-(-rows // -(-vocab // hidden)) - 1).bit_length()
    turned = t.flipped(w, 0, 1, "t")
    x_gradient = t.run("zeros_like", [x], [x.spec])[0]
    w_gradient = t.run("zeros_like", [w], [w.spec])[0] if w.needs_grad else None
    losses = t.run("zeros_like", [t.leaf((rows,), "fp32")], [spec((rows,), "fp32")])[0]
    for start in range(0, rows, chunk):
        piece = t.alias(x, (min(chunk, rows - start), hidden), "slice", (hidden, 1))
        logits = t.run("mm", [piece, turned], [spec((piece.shape[0], vocab), x.dtype)])[0]
        slopes = t.run("_log_softmax", [logits], [logits.spec], attributes=(("dim", 1),))[0]
        t.run("copy_", [x_gradient, t.run("mm", [slopes, w], [piece.spec])[0]], [piece.spec])
        if w_gradient is not None:
            each(t, "add_", [w_gradient, t.run("mm", [t.flipped(slopes, 0, 1, "t"), piece], [w.spec])[0]])
    loss = t.run("sum", [losses], [spec((), "fp32")])[0]

    def gradients(g: list[Value | None]) -> list[Value | None]:
        by = g[0]
        made = (x_gradient, w_gradient)
        return [by and one and t.run("mul", [one, by], [one.spec], overload="Tensor")[0] for one in made]

    t.note([x, w], [loss], gradients, "outputs")
    return loss


def cross_entropy(t: Tape, logits: Value) -> Value:
    """Over [T, V]: log-softmax and the negative log-likelihood, the latter in fp32."""
    rows = logits.shape[0]
    target = t.leaf((rows,), "i64")
    chances = t.run("_log_softmax", [logits], [logits.spec], attributes=(("dim", 1),))[0]
    t.note(
        [logits],
        [chances],
        lambda g: [g[0] and t.run("_log_softmax_backward_data", [g[0], chances], [logits.spec], attributes=(("dim", 1),))[0]],
        "outputs",
    )
    wide = cast(t, chances, "fp32")
    loss, weight = t.run("nll_loss_forward", [wide, target], [spec((), "fp32")] * 2, call={"target": target.spec})

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None]
        return list(t.run("nll_loss_backward", [g[0], wide, target, weight], [wide.spec], call={"self": wide.spec}))

    t.note([wide], [loss], gradients, "inputs")
    return loss
