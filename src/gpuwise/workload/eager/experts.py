"""Routed experts (``integrations.moe``)."""

from __future__ import annotations

from gpuwise.facts.models.architecture import Moe
from gpuwise.workload.eager.mlp import gated
from gpuwise.workload.eager.modules import Modules, flat_rows, gathered
from gpuwise.workload.eager.tape import Tape, Value, add, cast, each, mul, spec, split, summed_to, unary

SHARES_AS_THEY_ARE = ("qwen-moe",)
"""Families that do not scale the shares of the chosen experts to sum to 1 (``norm_topk_prob`` False)."""


def experts(m: Modules, x: Value, moe: Moe) -> Value:
    """Tokens sorted by expert, two grouped products, weighted and added up (``grouped_mm_experts_forward``)."""
    t, h, n = m.t, m.arch.hidden, moe.n_active
    with t.inside("mlp", x):
        flat = t.view(x, (flat_rows(x), h))
        tokens, routed = flat.shape[0], flat.shape[0] * n
        shared = t.bind(gated(m, flat, moe.shared_ffn)) if moe.shared_gate else None
        shares, expert_index = _routed(m, flat, moe)
        with t.inside("experts"):
            sorted_experts, order = _sorted(m, t.view(t.bind(expert_index), (routed,)))
            routed_rows = t.bind(gathered(t, flat, each(t, "floor_divide", [order], "i64"), (routed, h)))
            share = t.bind(gathered(t, t.view(t.bind(shares), (routed,)), order, (routed,)))
            ends = _ends(m, sorted_experts, moe.n_experts)
            up = _grouped(m, routed_rows, ends, 2 * moe.expert_ffn)
            with t.frame(up):
                gate, value = split(t, up, 2, moe.expert_ffn)
                inner = mul(t, unary(t, "silu", gate), value)
            out = t.bind(_grouped(m, inner, ends, h))
            weighed = mul(t, out, t.view(share, (routed, 1), "unsqueeze"))
            inverse = t.bind(each(t, "floor_divide", [order], "i64"))
            each(t, "floor_divide", [order], "i64")
            with t.frame(weighed):
                back = t.bind(gathered(t, weighed, inverse, (routed, h), unsorted=True))
            parts = t.view(back, (tokens, n, h))
            total = t.run("sum", [parts], [spec((tokens, h), parts.dtype)], overload="dim_IntList", attributes=(("dim", (1,)),))[
                0
            ]
            t.note([parts], [total], lambda g: [g[0] and _spread(t, g[0], parts.shape)])
            total = cast(t, total, m.computes)
        if shared is not None:
            share = unary(t, "sigmoid", m.linear("shared_gate", flat, 1))
            total = add(t, t.bind(total), t.bind(mul(t, share, shared)))
        return t.view(total, x.shape)


def _routed(m: Modules, flat: Value, moe: Moe) -> tuple[Value, Value]:
    """Shares [T, n] of the chosen experts, and which they are [T, n]. The caller's variable holds the router's logits."""
    t, tokens = m.t, flat.shape[0]
    logits = t.bind(m.linear("router", flat, moe.n_experts))
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
        if m.arch.family in SHARES_AS_THEY_ARE:
            return cast(t, top[0], m.computes), top[1]
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
        return (cast(t, output, m.computes) if m.arch.qk_norm else output), top[1]


def _sorted(m: Modules, expert_index: Value) -> tuple[Value, Value]:
    """The chosen experts in order, and the order of the tokens by expert."""
    t = m.t
    sorted_experts, order = t.run("sort", [expert_index], [expert_index.spec, expert_index.spec])
    return t.bind(sorted_experts), t.bind(order)


def _ends(m: Modules, sorted_experts: Value, n: int) -> Value:
    """[n] where the rows of each of the sorted experts end."""
    t = m.t
    small = t.bind(t.run("_to_copy", [sorted_experts], [spec(sorted_experts.shape, "i32")], attributes=(("dtype", "i32"),))[0])
    counts = t.bind(t.run("histc", [small], [spec((n,), "i32")])[0])
    return t.bind(t.run("cumsum", [counts], [counts.spec])[0])


def _grouped(m: Modules, x: Value, ends: Value, n: int) -> Value:
    """[routed, K] with each expert's [K, N]; its rows end at ``ends``."""
    t, k = m.t, x.shape[-1]
    experts = ends.shape[0]
    weight = m.weight(experts, n, k)
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


def _spread(t: Tape, g: Value, shape: tuple[int, ...]) -> Value:
    tokens, _, h = shape
    wide = t.alias(t.alias(g, (tokens, 1, h), "unsqueeze"), shape, "expand", (h, 0, 1))
    return t.run("clone", [wide], [spec(shape, g.dtype)])[0]


def _scattered(t: Tape, g: Value, index: Value, like: Value) -> Value:
    zeros = t.run("new_zeros", [g], [like.spec])[0]
    call = {"self": zeros.spec, "index": index.spec, "src": g.spec}
    return t.run("scatter", [zeros, index, g], [like.spec], overload="src", call=call)[0]
