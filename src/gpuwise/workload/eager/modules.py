"""Modules of the eager blocks, operation by operation, as Hugging Face models run in eager PyTorch.

Written on a :class:`~gpuwise.workload.eager.tape.Tape` from the dimensions alone; the result equals a capture of the same
configuration (transformers 5, ``modeling_llama``, ``modeling_gpt2``, ``modeling_gemma3``, ``modeling_bert``, ``modeling_vit``,
``integrations.moe``). Shapes: B sequences, S tokens, H hidden, A heads, K kv heads, D head dim, T = B S, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.adapters import carries
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.eager.tape import (
    Tape,
    Value,
    add,
    cast,
    each,
    laid,
    mul,
    power,
    row_mean,
    rsqrt,
    scaled,
    shifted,
    spec,
    summed_to,
)

TURNED = ("gpt-2",)
"""Families whose weights are stored transposed (transformers ``Conv1D``)."""
UNQUANTIZED = ("head", "router")
"""Products that stay in 16 bits where the others are stored in 4 (transformers excludes the output head)."""
SCALED_TOGETHER, SCALES_TOGETHER = 64, 256
"""4-bit weights that share an 8-bit scale, and scales that share an fp32 one (arXiv 2305.14314, section 3)."""
DROPOUT = 0.1
"""Dropout of a stack that always enables it (BERT's ``hidden_dropout_prob``)."""


@dataclass(frozen=True, slots=True)
class Modules:
    """Writes modules of ``arch`` at ``point``: weights stored in ``held``, products in ``computes``."""

    t: Tape
    arch: Architecture
    point: Point
    mask: Value | None = None
    """Mask added to written attention scores: [B, 1, S, S] of a decoder, [B, 1, 1, S] of padded tokens."""

    @property
    def hidden_dropout(self) -> float:
        """Share of the hidden states that is dropped: the model's own under the stacks that train it so."""
        stack = self.point.stack
        return DROPOUT if stack.dropout else self.arch.dropout * stack.dropout_of_model

    @property
    def attention_dropout(self) -> float:
        """The same of attention's probabilities."""
        stack = self.point.stack
        return DROPOUT if stack.dropout else self.arch.attention_dropout * stack.dropout_of_model

    @property
    def computes(self) -> str:
        """Format of the products and of what travels between them."""
        return self.point.dtype

    @property
    def weight_dtype(self) -> str:
        """Format of the stored weights: fp32 under autocast, which casts them in each forward."""
        return "fp32" if self.point.autocast else self.computes

    @property
    def autocast(self) -> bool:
        """Whether autocast is on; adapters are stored in fp32 (PEFT ``autocast_adapter_dtype``), so half-precision ones run
        under autocast."""
        return self.point.autocast or (self.point.lora_rank > 0 and self.computes in ("bf16", "fp16"))

    def weight(self, *shape: int) -> Value:
        """A weight of ``shape``, frozen where adapters are trained in its place."""
        frozen = self.point.lora_rank > 0
        return self.t.leaf(shape, self.weight_dtype, trained=not frozen, frozen=frozen)

    def norm_weight(self, width: int) -> Value:
        """The weight of a norm of ``width``, in fp32 beside 4-bit weights where the stack leaves it so."""
        if not self.point.fp32_norms:
            return self.weight(width)
        return self.t.leaf((width,), "fp32", frozen=True)

    def linear(self, name: str, x: Value, n: int, *, bias: bool = False, weight: Value | None = None) -> Value:
        """[.., K] x [N, K]': the input and the weights cast to the product's format, the result [.., N]."""
        with self.t.inside(name, x):
            if self.point.quantized_base and name not in UNQUANTIZED:
                return self._adapted(name, x, self._four_bit_product(x, n, self.weight(n) if bias else None))
            w = weight if weight is not None else self.weight(n, x.shape[-1])
            return self._adapted(name, x, self._product(x, w, self.weight(n) if bias else None))

    def _product(self, x: Value, weight: Value, bias: Value | None = None) -> Value:
        """``torch.nn.functional.linear``, under autocast where that is on."""
        t, (n, k) = self.t, weight.shape
        x, w = cast(t, x, self.computes), cast(t, weight, self.computes)
        b = cast(t, bias, self.computes) if bias is not None else None
        turned = t.transposed(w, 0, 1, "t")
        flat = t.view(x, (flat_rows(x), k)) if len(x.shape) > 2 else x
        output = product(t, flat, turned, b)
        return t.view(output, (*x.shape[:-1], n), "_unsafe_view") if len(x.shape) > 2 else output

    def _four_bit_product(self, x: Value, n: int, bias: Value | None) -> Value:
        """bitsandbytes' ``Linear4bit``: the weights dequantised for the product, and again for the input gradient; no copy is
        saved."""
        t, form, k = self.t, x.dtype, x.shape[-1]
        packed = t.leaf((n * k // 2,), "u8", frozen=True)
        scales = t.leaf((n * k // SCALED_TOGETHER,), "u8", frozen=True)
        outer = t.leaf((max(n * k // SCALED_TOGETHER // SCALES_TOGETHER, 1),), "fp32", frozen=True)
        x = cast(t, x, self.computes)

        def written_out() -> Value:
            wide = t.run("dequantize_blockwise", [scales, outer], [spec(scales.shape, "fp32")])[0]
            wide = each(t, "add_", [wide])
            return t.run("dequantize_4bit", [packed, wide], [spec((n, k), self.computes)])[0]

        flat = t.view(x, (flat_rows(x), k)) if len(x.shape) > 2 else x
        turned = t.flipped(written_out(), 0, 1, "t")
        result = spec((flat.shape[0], n), self.computes)
        name, operands = ("mm", [flat, turned]) if bias is None else ("addmm", [bias, flat, turned])
        output = t.run(name, operands, [result], call={"mat1": flat.spec} if bias is not None else None)[0]
        t.note([flat], [output], lambda g: [g[0] and t.run("mm", [g[0], written_out()], [flat.spec])[0]])
        output = t.view(output, (*x.shape[:-1], n), "_unsafe_view") if len(x.shape) > 2 else output
        return cast(t, output, form)

    def _adapted(self, name: str, x: Value, output: Value) -> Value:
        """The product and what its adapter adds, as PEFT's ``lora.Linear`` runs it: the input in the format of the two
        factors, their products, the scale, the sum (which has no kernel in the backward). On 4-bit weights the product is
        cloned first, and autocast casts the input (``lora.Linear4bit``)."""
        rank, t = self.point.lora_rank, self.t
        if not rank or not carries(self.point.lora_targets, name):
            return output
        with t.frame(x, output):
            factor_dtype = "fp32" if self.autocast else self.weight_dtype
            down, up = (t.leaf(s, factor_dtype, trained=True) for s in ((rank, x.shape[-1]), (output.shape[-1], rank)))
            if self.point.quantized_base:
                output = copied(t, output)
            else:
                x = cast(t, x, factor_dtype)
            inner = self._product(self._product(x, down), up)
            return add(t, output, scaled(t, inner))

    def turned_linear(self, name: str, x: Value, n: int) -> Value:
        """``Conv1D``: the weight is [K, N] and there is a bias."""
        with self.t.inside(name, x):
            if self.point.quantized_base:
                return self._adapted(name, x, self._four_bit_product(x, n, self.weight(n)))
            t, k = self.t, x.shape[-1]
            flat = t.view(x, (flat_rows(x), k))
            b = cast(t, self.weight(n), self.computes)
            flat = cast(t, flat, self.computes)
            w = cast(t, self.weight(k, n), self.computes)
            return self._adapted(name, x, t.view(product(t, flat, w, b), (*x.shape[:-1], n)))

    def norm(self, name: str, x: Value) -> Value:
        """The architecture's normalisation of ``x``, as the module ``name``."""
        with self.t.inside(name, x):
            return self._layer_norm(x) if self.arch.norm == "layer" else self._rms_norm(x)

    def _layer_norm(self, x: Value) -> Value:
        t = self.t
        w, b = self.weight(x.shape[-1]), self.weight(x.shape[-1])
        if self.autocast:
            x, w, b = (cast(t, one, "fp32") for one in (x, w, b))
        statistics = spec((*x.shape[:-1], 1), "fp32")
        attributes = (("normalized_shape", (x.shape[-1],)),)
        output, mean, rstd = t.run("native_layer_norm", [x, w, b], [x.spec, statistics, statistics], attributes=attributes)

        def gradients(g: list[Value | None]) -> list[Value | None]:
            if g[0] is None:
                return [None, None, None]
            operands = [g[0], x, mean, rstd, w, b]
            differentiated = [one for one in (x, w, b) if one.needs_grad]
            back = iter(
                t.run("native_layer_norm_backward", operands, [one.spec for one in differentiated], attributes=attributes)
            )
            return [next(back) if one.needs_grad else None for one in (x, w, b)]

        t.note([x, w, b], [output], gradients, "outputs")
        return output

    def _rms_norm(self, x: Value) -> Value:
        t, form = self.t, x.dtype
        x = cast(t, x, "fp32")
        variance = t.bind(row_mean(t, power(t, x)))
        output = t.bind(mul(t, x, rsqrt(t, shifted(t, variance))))
        w = self.norm_weight(x.shape[-1])
        if self.arch.norm_in_fp32:  # Gemma: 1 + w
            return cast(t, mul(t, output, shifted(t, cast(t, w, "fp32"))), form)
        return mul(t, w, cast(t, output, form))

    def dropped(self, x: Value) -> Value:
        """``x`` behind its dropout, where that is on."""
        return dropout(self.t, x) if self.hidden_dropout else x


def flat_rows(x: Value) -> int:
    """Rows of ``x`` with all but the last dimension flattened."""
    rows = 1
    for n in x.shape[:-1]:
        rows *= n
    return rows


def product(t: Tape, x: Value, w: Value, bias: Value | None = None) -> Value:
    """[T, K] x [K, N], with a bias in the epilogue."""
    result = spec((x.shape[0], w.shape[1]), x.dtype)
    name, operands = ("mm", [x, w]) if bias is None else ("addmm", [bias, x, w])
    output = t.run(name, operands, [result], call={"mat1": x.spec} if bias is not None else None)[0]

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None] * (2 + (bias is not None))
        back: list[Value | None] = [None, None]
        order = (0, 1) if bias is not None else (1, 0)
        for which in order:
            if which and w.needs_grad:
                if w.spec.stride[0] == 1:  # the transposed product, so that the gradient has the weight's layout
                    turned = t.flipped(g[0], 0, 1, "t")
                    output = t.run("mm", [turned, x], [spec((w.shape[1], w.shape[0]), x.dtype)])[0]
                    back[1] = t.flipped(output, 0, 1, "t")
                else:
                    back[1] = t.run("mm", [t.flipped(x, 0, 1, "t"), g[0]], [spec(w.shape, x.dtype)])[0]
            elif not which and x.needs_grad:
                back[0] = t.run("mm", [g[0], t.flipped(w, 0, 1, "t")], [x.spec])[0]
        return back if bias is None else [*back, summed_to(t, g[0], bias) if bias.needs_grad else None]

    t.note([x, w] if bias is None else [x, w, bias], [output], gradients, "inputs")
    return output


def copied(t: Tape, x: Value) -> Value:
    """``clone``; the backward hands the gradient on."""
    output = t.run("clone", [x], [x.spec])[0]
    t.note([x], [output], lambda g: [g[0]])
    return output


def batched(t: Tape, x: Value, y: Value) -> Value:
    """[.., S, K] x [.., K, N] for every head of every sequence (``matmul``): both are laid out densely first."""
    many = x.shape[0] * x.shape[1]
    one, two = (t.view(v, (many, *v.shape[2:])) for v in (x, y))
    output = t.run("bmm", [one, two], [spec((many, x.shape[2], y.shape[3]), x.dtype)], call={"mat2": two.spec})[0]

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None, None]
        back: list[Value | None] = [None, None]
        if two.needs_grad:
            turned = t.flipped(one, 1, 2, "transpose")
            back[1] = t.run("bmm", [turned, g[0]], [spec(two.shape, x.dtype)], call={"self": turned.spec, "mat2": g[0].spec})[0]
        if one.needs_grad:
            turned = t.flipped(two, 1, 2, "transpose")
            back[0] = t.run("bmm", [g[0], turned], [spec(one.shape, x.dtype)], call={"self": g[0].spec, "mat2": turned.spec})[0]
        return back

    t.note([one, two], [output], gradients, "inputs")
    return t.view(output, (*x.shape[:2], *output.shape[1:]), "_unsafe_view")


def softmax(t: Tape, x: Value, dtype: str) -> Value:
    """Over the last dimension, the result in ``dtype``: one kernel forward, one backward."""
    output = t.run("_softmax", [x], [spec(x.shape, dtype)], attributes=(("dim", -1),))[0]
    t.alias(output, output.shape, "detach", output.spec.stride)
    back = (("dim", -1), ("input_dtype", x.dtype))
    t.note(
        [x],
        [output],
        lambda g: [g[0] and t.run("_softmax_backward_data", [g[0], output], [spec(x.shape, x.dtype)], attributes=back)[0]],
        "outputs",
    )
    return output


def dropout(t: Tape, x: Value) -> Value:
    """``native_dropout``: the backward multiplies by the mask, a byte for each element."""
    attributes = (("p", DROPOUT), ("train", True))
    output, mask = t.run("native_dropout", [x], [x.spec, laid(x.shape, x.spec.stride, "bool")], attributes=attributes)
    t.note([x], [output], lambda g: [g[0] and t.run("native_dropout_backward", [g[0], mask], [x.spec])[0]], "outputs")
    return output


def looked_up(t: Tape, table: Value, ids: Value) -> Value:
    """Rows of ``table`` by ``ids``, as ``nn.Embedding``."""
    result = spec((*ids.shape, table.shape[1]), table.dtype)
    output = t.run("embedding", [table, ids], [result], call={"indices": ids.spec})[0]
    call = {"indices": ids.spec}
    t.note(
        [table],
        [output],
        lambda g: [
            g[0] and t.run("embedding_dense_backward", [g[0], ids], [table.spec], call={**call, "grad_output": g[0].spec})[0]
        ],
        "inputs",
    )
    return output


def gathered(t: Tape, x: Value, order: Value, shape: tuple[int, ...], *, unsorted: bool = False) -> Value:
    """Rows of ``x`` in another order; the backward adds them back where they came from."""
    output = t.run("index", [x, order], [spec(shape, x.dtype)])[0]

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None]
        zeros = t.run("new_zeros", [g[0]], [x.spec])[0]
        call = {"indices": (order.spec,), "values": g[0].spec, "accumulate": True}
        return [t.run("index_put", [zeros, order, g[0]], [x.spec], call={"self": x.spec, **call})[0]]

    t.note([x], [output], gradients, "inputs")
    return output


def first_token(t: Tape, x: Value) -> Value:
    """The first token of ``x`` [B, S, H], as a view [B, H]."""
    b, s, h = x.shape
    output = t.alias(x, (b, h), "select", (s * h, 1))
    t.note([x], [output], lambda g: [g[0] and t.run("select_backward", [g[0]], [x.spec])[0]])
    return output


def averaged(t: Tape, x: Value) -> Value:
    """The mean of all elements of ``x``."""
    output = t.run("mean", [x], [spec((), x.dtype)])[0]

    def gradients(g: list[Value | None]) -> list[Value | None]:
        if g[0] is None:
            return [None]
        spread = t.alias(g[0], x.shape, "expand", (0,) * len(x.shape))
        return [t.run("div", [spread], [spec(x.shape, x.dtype)], overload="Scalar")[0]]

    t.note([x], [output], gradients)
    return output
