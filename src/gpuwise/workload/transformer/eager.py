"""A transformer's training step as Hugging Face's modules run it in eager PyTorch, operation by operation.

Written on a :class:`~gpuwise.workload.transformer.tape.Tape` from the dimensions alone; what is written is what a capture
of the same configuration records (transformers 5, ``modeling_llama``, ``modeling_gpt2``, ``modeling_gemma3``,
``modeling_bert``, ``modeling_vit``, ``integrations.moe``). Shapes: B sequences, S tokens, H hidden, A heads, K kv heads,
D head dim, T = B S, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.facts.models.architecture import Architecture, Moe
from gpuwise.workload.adapters import carries
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.capture.record.capture import TensorSpec
from gpuwise.workload.transformer.losses import chunked_cross_entropy, cross_entropy
from gpuwise.workload.transformer.tape import (
    Tape,
    Value,
    add,
    cast,
    concatenated,
    each,
    laid,
    mul,
    negated,
    part,
    power,
    row_mean,
    rsqrt,
    scaled,
    shifted,
    spec,
    split,
    summed_to,
    unary,
)

TURNED = ("gpt-2",)
"""Families whose weights are held the other way round (transformers ``Conv1D``)."""
SHARES_AS_THEY_ARE = ("qwen-moe",)
"""Families that do not scale the shares of the chosen experts to sum to 1 (``norm_topk_prob`` False)."""
UNQUANTIZED = ("head", "router")
"""Products that stay in 16 bits where the others are held in 4 (transformers leaves the output head out)."""
SCALED_TOGETHER, SCALES_TOGETHER = 64, 256
"""4-bit weights that share an 8-bit scale, and scales that share an fp32 one (arXiv 2305.14314, section 3)."""
POSITION_KERNELS = 9
"""Small kernels that make positions and look for packed sequences (transformers ``masking_utils``)."""

DROPOUT = 0.1
"""Of a stack that always has it on (BERT's ``hidden_dropout_prob``)."""
UNDROPPED_EMBEDDINGS = ("opt",)
"""Families whose embedding has no dropout behind it, though their layers have (transformers ``modeling_opt``)."""


def describes(arch: Architecture, point: Point) -> bool:
    """Whether the modules of ``arch`` are among those written here, for one whole rank and plain precision."""
    described = arch.kind in ("decoder", "encoder", "vision") and arch.encoder is None and arch.mla is None
    described &= arch.position in ("rope", "learned") and not arch.parallel_block and arch.norm in ("rms", "layer")
    described &= arch.moe is None or not arch.moe.n_shared or arch.moe.shared_gate
    whole = point.tp == point.cp == point.ep == 1 and point.packed_document_len is None
    plain = point.precision in ("bf16", "fp16", "fp32", "tf32")
    if point.quantized_base:  # experts held as one tensor are no linear layers that bitsandbytes converts
        described &= arch.moe is None and point.lora_rank > 0 and point.precision in ("bf16", "fp16")
    described &= not arch.pattern
    return described and whole and plain


@dataclass(frozen=True, slots=True)
class Network:
    """Writes the modules of ``arch`` at ``point``: weights in ``held``, products in ``computes``."""

    t: Tape
    arch: Architecture
    point: Point
    mask: Value | None = None
    """What is added to attention scores that are written out: [B, 1, S, S] of a decoder, [B, 1, 1, S] of padded tokens."""

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
        """Format in which the weights are held: fp32 under autocast, which casts them in each forward."""
        return "fp32" if self.point.autocast else self.computes

    @property
    def autocast(self) -> bool:
        """Adapters are held in fp32 (PEFT ``autocast_adapter_dtype``), so that half-precision ones run under autocast."""
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

    # --- products ---

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
        flat = t.view(x, (_rows(x), k)) if len(x.shape) > 2 else x
        output = product(t, flat, turned, b)
        return t.view(output, (*x.shape[:-1], n), "_unsafe_view") if len(x.shape) > 2 else output

    def _four_bit_product(self, x: Value, n: int, bias: Value | None) -> Value:
        """bitsandbytes' ``Linear4bit``: the weights written out for the product, and once more for the gradient of the
        input; no copy of either is kept."""
        t, form, k = self.t, x.dtype, x.shape[-1]
        packed = t.leaf((n * k // 2,), "u8", frozen=True)
        scales = t.leaf((n * k // SCALED_TOGETHER,), "u8", frozen=True)
        outer = t.leaf((max(n * k // SCALED_TOGETHER // SCALES_TOGETHER, 1),), "fp32", frozen=True)
        x = cast(t, x, self.computes)

        def written_out() -> Value:
            wide = t.run("dequantize_blockwise", [scales, outer], [spec(scales.shape, "fp32")])[0]
            wide = each(t, "add_", [wide])
            return t.run("dequantize_4bit", [packed, wide], [spec((n, k), self.computes)])[0]

        flat = t.view(x, (_rows(x), k)) if len(x.shape) > 2 else x
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
            flat = t.view(x, (_rows(x), k))
            b = cast(t, self.weight(n), self.computes)
            flat = cast(t, flat, self.computes)
            w = cast(t, self.weight(k, n), self.computes)
            return self._adapted(name, x, t.view(product(t, flat, w, b), (*x.shape[:-1], n)))

    # --- norms ---

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

    # --- attention ---

    def attention(self, x: Value, window: int, around: tuple[Value, Value] | None) -> Value:
        """``around``: cosines and sines [1, S, D] of the positions."""
        with self.t.frame(x):
            return self._projected(self._attended(x, window, around))

    def _projected(self, attended: Value) -> Value:
        a = self.arch
        if a.family in TURNED:
            return self.turned_linear("out", attended, a.hidden)
        return self.linear("out", attended, a.hidden, bias=a.attention_out_bias)

    def _attended(self, x: Value, window: int, around: tuple[Value, Value] | None) -> Value:
        """[B, S, A D] before the output's product."""
        a, t = self.arch, self.t
        b, s = x.shape[0], x.shape[1]
        bias, width = a.qkv_bias, a.head_dim
        if a.fused_projections and a.heads == a.kv_heads:
            wide = 3 * a.heads * width
            qkv = self.turned_linear("qkv", x, wide) if a.family in TURNED else self.linear("qkv", x, wide, bias=bias)
            q, k, v = (self._by_head(one, a.heads) for one in split(t, qkv, 3, a.heads * width))
        else:
            q = self._head_norm("q_norm", self.linear("q", x, a.heads * width, bias=bias), a.heads)
            k = self._head_norm("k_norm", self.linear("k", x, a.kv_heads * width, bias=bias and a.key_bias), a.kv_heads)
            v = self._by_head(self.linear("v", x, a.kv_heads * width, bias=bias), a.kv_heads)
        if around is not None:
            with t.frame(q, k):
                cos, sin = (t.view(one, (1, *one.shape), "unsqueeze") for one in around)
                q, k = self._turned(q, cos, sin), self._turned(k, cos, sin)
        for one in (q, k, v):
            t.bind(one)
        if not self.point.fused_attention:
            return self._written_out(q, k, v)
        masked = 0 < window < s
        if masked and a.heads != a.kv_heads:
            k, v = self._repeated(k), self._repeated(v)
        q, k, v = (cast(t, one, self.computes) for one in (q, k, v))
        output = scores(t, q, k, v, causal=a.kind == "decoder", masked=masked, dropout_p=self.attention_dropout)
        return t.view(t.transposed(output, 1, 2), (b, s, a.heads * width))

    def masked(self) -> Network:
        """The network with the mask that attention without a fused kernel adds to its scores."""
        t, b, s = self.t, self.point.micro_batch, self.point.seq_len
        if self.point.fused_attention or not (self.arch.kind == "decoder" or self.point.stack.masks_padding):
            return self
        if self.arch.kind != "decoder":
            return replace(self, mask=each(t, "mul", [t.leaf((b, 1, 1, s), self.weight_dtype)]))
        column, row = t.leaf((1, 1, 1, s), "i64"), t.leaf((1, 1, s, 1), "i64")
        mask = t.alias(each(t, "le", [column, row], "bool"), (b, 1, s, s), "expand", (0, s * s, s, 1))
        low = t.leaf((), self.weight_dtype)
        return replace(self, mask=t.run("where", [mask, low, low], [spec((b, 1, s, s), self.weight_dtype)], overload="self")[0])

    def _written_out(self, q: Value, k: Value, v: Value) -> Value:
        """Attention without a fused kernel (``eager_attention_forward``): the scores of every pair of tokens, scaled and
        masked, their softmax in fp32 but where 16-bit weights are all there is (BERT), dropout, and the sum of the values."""
        a, t = self.arch, self.t
        b, s = q.shape[0], q.shape[2]
        with t.frame(q, k, v):
            if a.heads != a.kv_heads:
                k, v = t.bind(self._repeated(k)), t.bind(self._repeated(v))
            turned = cast(t, t.transposed(k, 2, 3), self.computes)
            logits = scaled(t, batched(t, cast(t, q, self.computes), turned))
            if self.mask is not None:
                logits = add(t, logits, self.mask)
            wide = self.autocast or a.kind != "encoder"
            chances = softmax(t, logits, "fp32" if wide else logits.dtype)
            if not self.autocast or a.family in TURNED:
                chances = cast(t, chances, self.computes)
            if self.attention_dropout:
                chances = dropout(t, chances)
            chances = t.bind(cast(t, chances, self.computes))
            output = batched(t, chances, cast(t, v, self.computes))
            return t.view(t.transposed(output, 1, 2), (b, s, a.heads * a.head_dim))

    def dropped(self, x: Value) -> Value:
        """``x`` behind its dropout, where that is on."""
        return dropout(self.t, x) if self.hidden_dropout else x

    def _by_head(self, x: Value, heads: int) -> Value:
        b, s, wide = x.shape
        return self.t.transposed(self.t.view(x, (b, s, heads, wide // heads)), 1, 2)

    def _head_norm(self, name: str, x: Value, heads: int) -> Value:
        if not self.arch.qk_norm:
            return self._by_head(x, heads)
        if self.arch.norms_per_layer == 4:
            return self.norm(name, self._by_head(x, heads))
        b, s, wide = x.shape
        return self.t.transposed(self.norm(name, self.t.view(x, (b, s, heads, wide // heads))), 1, 2)

    def _turned(self, x: Value, cos: Value, sin: Value) -> Value:
        """Rotary positions: x cos + rotated(x) sin."""
        t, half = self.t, (*x.shape[:-1], x.shape[-1] // 2)
        plain = mul(t, x, cos)
        with t.frame():
            first, second = part(t, x, half), part(t, x, half)
            turned = concatenated(t, [negated(t, second), first], x.shape)
        return add(t, plain, mul(t, turned, sin))

    def _repeated(self, x: Value) -> Value:
        """[B, K, S, D] to every query head: a copy unless there is one kv head."""
        t, n = self.t, self.arch.heads // self.arch.kv_heads
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

    # --- feed-forward ---

    def mlp(self, x: Value) -> Value:
        """The feed-forward block of a dense layer on ``x``."""
        a, t = self.arch, self.t
        with t.inside("mlp", x):
            if a.family in TURNED:
                return self.dropped(self.turned_linear("down", self._activated(self.turned_linear("up", x, a.ffn)), a.hidden))
            if a.gated_mlp:
                return self._gated(x, a.ffn)
            inner = self._activated(self.linear("up", x, a.ffn, bias=a.mlp_bias))
            return self.dropped(self.linear("down", inner, a.hidden, bias=a.mlp_bias))

    def _activated(self, x: Value) -> Value:
        """GPT-2's gelu is written out (``NewGELUActivation``); the others are one kernel."""
        t = self.t
        with t.inside("activation", x):
            if self.arch.activation != "gelu_new":
                return unary(t, {"silu": "silu", "relu": "relu"}.get(self.arch.activation, "gelu"), x)
            half = scaled(t, x)
            cubed = power(t, cast(t, x, "fp32") if self.autocast else x)
            inner = scaled(t, add(t, x, scaled(t, cubed)))
            return mul(t, half, shifted(t, unary(t, "tanh", inner)))

    def experts(self, x: Value, moe: Moe) -> Value:
        """Tokens sorted by expert, two grouped products, weighted and added up (``grouped_mm_experts_forward``)."""
        t, h, n = self.t, self.arch.hidden, moe.n_active
        with t.inside("mlp", x):
            flat = t.view(x, (_rows(x), h))
            tokens, routed = flat.shape[0], flat.shape[0] * n
            shared = t.bind(self._gated(flat, moe.shared_ffn)) if moe.shared_gate else None
            shares, expert_index = self._routed(flat, moe)
            with t.inside("experts"):
                sorted_experts, order = self._sorted(t.view(t.bind(expert_index), (routed,)))
                routed_rows = t.bind(gathered(t, flat, each(t, "floor_divide", [order], "i64"), (routed, h)))
                share = t.bind(gathered(t, t.view(t.bind(shares), (routed,)), order, (routed,)))
                ends = self._ends(sorted_experts, moe.n_experts)
                up = self._grouped(routed_rows, ends, 2 * moe.expert_ffn)
                with t.frame(up):
                    gate, value = split(t, up, 2, moe.expert_ffn)
                    inner = mul(t, unary(t, "silu", gate), value)
                out = t.bind(self._grouped(inner, ends, h))
                weighed = mul(t, out, t.view(share, (routed, 1), "unsqueeze"))
                inverse = t.bind(each(t, "floor_divide", [order], "i64"))
                each(t, "floor_divide", [order], "i64")
                with t.frame(weighed):
                    back = t.bind(gathered(t, weighed, inverse, (routed, h), unsorted=True))
                parts = t.view(back, (tokens, n, h))
                total = t.run(
                    "sum", [parts], [spec((tokens, h), parts.dtype)], overload="dim_IntList", attributes=(("dim", (1,)),)
                )[0]
                t.note([parts], [total], lambda g: [g[0] and _spread(t, g[0], parts.shape)])
                total = cast(t, total, self.computes)
            if shared is not None:
                share = unary(t, "sigmoid", self.linear("shared_gate", flat, 1))
                total = add(t, t.bind(total), t.bind(mul(t, share, shared)))
            return t.view(total, x.shape)

    def _gated(self, x: Value, ffn: int) -> Value:
        """The MLP of gate, up and down; a shared expert."""
        gate = self._activated(self.linear("gate", x, ffn, bias=self.arch.mlp_bias))
        inner = mul(self.t, gate, self.linear("up", x, ffn, bias=self.arch.mlp_bias))
        return self.linear("down", inner, self.arch.hidden, bias=self.arch.mlp_bias)

    def _routed(self, flat: Value, moe: Moe) -> tuple[Value, Value]:
        """Shares [T, n] of the chosen experts, and which they are [T, n]. The caller's variable holds the router's logits."""
        t, tokens = self.t, flat.shape[0]
        logits = t.bind(self.linear("router", flat, moe.n_experts))
        with t.inside("gate"):
            wide = spec((tokens, moe.n_experts), "fp32")
            shares = t.bind(t.run("_softmax", [logits], [wide], attributes=(("dim", -1),))[0])
            t.note(
                [logits],
                [shares],
                lambda g: [g[0] and t.run("_softmax_backward_data", [g[0], shares], [logits.spec], attributes=(("dim", -1),))[0]],
                "outputs",
            )
            few = spec((tokens, moe.n_active), "fp32")
            top = t.run("topk", [shares], [few, spec(few.shape, "i64")])
            t.note([shares], [top[0]], lambda g: [g[0] and _scattered(t, g[0], top[1], shares)], "outputs")
            if self.arch.family in SHARES_AS_THEY_ARE:
                return cast(t, top[0], self.computes), top[1]
            whole = t.run("sum", [top[0]], [spec((tokens, 1), "fp32")], overload="dim_IntList", attributes=(("dim", (-1,)),))[0]
            output = each(t, "div", [t.run("clone", [top[0]], [few])[0], whole])

            def gradients(g: list[Value | None]) -> list[Value | None]:
                if g[0] is None:
                    return [None]
                again = each(t, "div", [each(t, "div", [top[0], whole]), whole])
                rest = each(t, "mul", [each(t, "neg", [g[0]], overload="default"), again])
                one = each(t, "div", [g[0], whole])
                summed_to(t, rest, whole)
                return [each(t, "add", [one, one])]

            t.note([top[0]], [output], gradients, "inputs")
            return (cast(t, output, self.computes) if self.arch.qk_norm else output), top[1]

    def _sorted(self, expert_index: Value) -> tuple[Value, Value]:
        """The chosen experts in order, and the order of the tokens by expert."""
        t = self.t
        sorted_experts, order = t.run("sort", [expert_index], [expert_index.spec, expert_index.spec])
        return t.bind(sorted_experts), t.bind(order)

    def _ends(self, sorted_experts: Value, n: int) -> Value:
        """[n] where the rows of each of the sorted experts end."""
        t = self.t
        small = t.bind(
            t.run("_to_copy", [sorted_experts], [spec(sorted_experts.shape, "i32")], attributes=(("dtype", "i32"),))[0]
        )
        counts = t.bind(t.run("histc", [small], [spec((n,), "i32")])[0])
        return t.bind(t.run("cumsum", [counts], [counts.spec])[0])

    def _grouped(self, x: Value, ends: Value, n: int) -> Value:
        """[routed, K] with each expert's [K, N]; its rows end at ``ends``."""
        t, k = self.t, x.shape[-1]
        experts = ends.shape[0]
        weight = self.weight(experts, n, k)
        turned = t.transposed(weight, 1, 2)
        routed = x.shape[0]
        output = t.run("_grouped_mm", [x, turned, ends], [spec((routed, n), x.dtype)], call={"mat2": turned.spec})[0]

        def gradients(g: list[Value | None]) -> list[Value | None]:
            if g[0] is None:
                return [None, None]
            call = {"mat2": x.spec}
            of_weight = None
            if weight.needs_grad:
                flipped = t.transposed(g[0], 0, 1)
                output = t.run("_grouped_mm", [flipped, x, ends], [spec((experts, n, k), x.dtype)], call=call)[0]
                of_weight = t.alias(output, turned.shape, "transpose")
            of_input = t.run("_grouped_mm", [g[0], weight, ends], [x.spec], call={"mat2": weight.spec})[0]
            return [of_input, of_weight]

        t.note([x, turned], [output], gradients, "inputs")
        return output

    # --- layers and ends ---

    def layer(self, x: Value, kind: str, around: tuple[Value, Value] | None) -> Value:
        """One layer of ``kind``: ``dense`` or ``moe``, ``.local`` where its attention is windowed."""
        a, t = self.arch, self.t
        base, _, local = kind.partition(".")
        window = (a.window or 0) if local else 0
        if a.kind == "encoder" and not a.final_norm:  # BERT: norms behind the residuals
            with t.frame(x):
                attended = self._attended(x, window, around)
            with t.frame(attended, x):
                x = self.norm("norm", add(t, t.bind(self.dropped(self._projected(attended))), x))
            with t.frame(x):
                inner = t.bind(self._activated(self.linear("up", x, a.ffn, bias=a.mlp_bias)))
                inner = self.linear("down", inner, a.hidden, bias=a.mlp_bias)
                return self.norm("norm", add(t, t.bind(self.dropped(inner)), x))
        first = a.norm == "layer"
        normed = self.norm("attention_norm", x)
        inner = self.attention(normed, window, around)
        if a.norms_per_layer == 4:
            inner = self.norm("post_attention_norm", inner)
        inner = self.dropped(inner)
        if a.family in TURNED:
            inner = t.bind(inner)
        with t.frame(*((normed,) if a.family in TURNED else ())):
            x = add(t, inner, x) if first else add(t, x, inner)
        inner = self.norm("mlp_norm", t.bind(x))
        inner = self.experts(inner, a.moe) if base == "moe" and a.moe is not None else self.mlp(inner)
        if a.norms_per_layer == 4:
            inner = self.norm("post_mlp_norm", inner)
        return add(t, inner, x) if a.kind == "vision" else add(t, x, inner)

    def embedding(self, table: Value | None) -> tuple[Value, tuple[Value, Value] | None]:
        """The first hidden states [B, S, H], and the cosines and sines of rotary positions."""
        a, t, p = self.arch, self.t, self.point
        if a.patches is not None:
            return self._patches(), None
        assert table is not None
        ids = t.leaf((p.micro_batch, p.seq_len), "i64")
        x = looked_up(t, table, ids)
        if a.norms_per_layer == 4:
            x = scaled(t, x)
        if a.n_token_types:
            x = add(t, x, looked_up(t, self.weight(a.n_token_types, a.hidden), ids))
        places = t.leaf((1, p.seq_len), "i64")
        for _ in range(POSITION_KERNELS if a.kind == "decoder" else 1):
            each(t, "add", [places], "i64")
        around = None
        if a.position == "learned":
            x = add(t, x, looked_up(t, self.weight(a.position_rows or a.max_seq_len, a.hidden), places))
        else:
            around = self._rotary(x.dtype)
        x = self.norm("norm", x) if a.embedding_norm else x
        drops = a.position == "learned" and a.family not in UNDROPPED_EMBEDDINGS
        return (self.dropped(x) if drops else x), around

    def _rotary(self, form: str) -> tuple[Value, Value]:
        t, wide = self.t, (1, self.point.seq_len, self.arch.head_dim)
        with t.frame():
            angles = t.bind(t.run("cat", [t.leaf(wide, "fp32")], [spec(wide, "fp32")], call={"tensors": ()})[0])
            cos, sin = (t.bind(scaled(t, each(t, name, [angles], overload="default"))) for name in ("cos", "sin"))
            return cast(t, cos, form), cast(t, sin, form)

    def _patches(self) -> Value:
        a, t, p = self.arch, self.t, self.point
        patches = a.patches
        assert patches is not None
        b, side, h = p.micro_batch, patches.image_size // patches.patch_size, a.hidden
        image = cast(t, t.leaf((b, patches.channels, patches.image_size, patches.image_size), "fp32"), self.computes)
        w = cast(t, self.weight(h, patches.channels, patches.patch_size, patches.patch_size), self.computes)
        bias = cast(t, self.weight(h), self.computes)
        plane = spec((b, h, side, side), self.computes)
        output = convolved(t, image, w, bias, plane, patches.patch_size)
        tokens = t.transposed(t.view(output, (b, h, side * side)), 1, 2)
        if patches.class_token:
            first = self.weight(1, 1, h)
            spread = t.alias(first, (b, 1, h), "expand", (0, h, 1))
            t.note([first], [spread], lambda g: [g[0] and summed_to(t, g[0], first)])
            tokens = concatenated(t, [spread, tokens], (b, side * side + 1, h))
        return add(t, tokens, self.weight(1, tokens.shape[1], h))

    def head(self, x: Value, table: Value | None) -> Value:
        """The loss: cross entropy over the vocabulary or the classes, or the mean of the pooled first token."""
        a, t = self.arch, self.t
        if a.final_norm:
            x = t.bind(self.norm("norm", x))
        if a.lm_head and self.point.fused_loss:
            table = table if table is not None and a.tied_embeddings else self.weight(a.vocab, a.hidden)
            with t.inside("head", x):
                x, weight = cast(t, x, self.computes), cast(t, table, self.computes)
                return chunked_cross_entropy(t, t.view(x, (_rows(x), a.hidden)), weight)
        if a.lm_head:
            logits = self.linear("head", x, a.vocab, weight=table if a.tied_embeddings else None, bias=a.head_bias)
            with t.frame():
                logits = t.bind(cast(t, logits, "fp32"))
                for _ in range(2):
                    each(t, "clone", [t.leaf((self.point.micro_batch, self.point.seq_len), "i64")], "i64", "default")
                return cross_entropy(t, t.view(logits, (_rows(logits), a.vocab)))
        if not a.n_classes and not a.pooler:
            return averaged(t, x)
        first = first_token(t, x)
        if a.n_classes:
            return cross_entropy(t, self.linear("head", first, a.n_classes, bias=True))
        return averaged(t, unary(t, "tanh", self.linear("pooler", first, a.hidden, bias=True)))


def _rows(x: Value) -> int:
    rows = 1
    for n in x.shape[:-1]:
        rows *= n
    return rows


# --- operations of these modules alone ---


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
                if w.spec.stride[0] == 1:  # the transposed product, so that the gradient lies as the weight does
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


def _spread(t: Tape, g: Value, shape: tuple[int, ...]) -> Value:
    tokens, _, h = shape
    wide = t.alias(t.alias(g, (tokens, 1, h), "unsqueeze"), shape, "expand", (h, 0, 1))
    return t.run("clone", [wide], [spec(shape, g.dtype)])[0]


def _scattered(t: Tape, g: Value, index: Value, like: Value) -> Value:
    zeros = t.run("new_zeros", [g], [like.spec])[0]
    call = {"self": zeros.spec, "index": index.spec, "src": g.spec}
    return t.run("scatter", [zeros, index, g], [like.spec], overload="src", call=call)[0]


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
