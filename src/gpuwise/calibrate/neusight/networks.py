"""The networks of the NeuSight study, kernel by kernel as transformers runs them in eager PyTorch 2.1.

Shape legend: B batch, S sequence, H hidden, A heads, D head size, F feed-forward, V vocabulary, T = B S
tokens, P = B A S S score elements.
"""

from __future__ import annotations

from gpuwise.calibrate.neusight.graph import EagerModel, Graph

MODELS: dict[str, EagerModel] = {
    "bert_large": EagerModel("bert", 24, 1024, 16, 64, 4096, 30522),
    "gpt2_large": EagerModel("gpt2", 36, 1280, 20, 64, 5120, 50257),
    "gpt3_xl": EagerModel("gpt2", 24, 3072, 24, 128, 12288, 50257),
    "gpt3_27": EagerModel("gpt2", 32, 2560, 32, 80, 10240, 50257),
    "opt_13": EagerModel("opt", 24, 2048, 32, 64, 8192, 50272),
    "switchxl4": EagerModel("switch", 24, 1024, 32, 128, 16384, 32128),
}
SWITCH_CAPACITY = 64
"""Tokens of a sequence one expert takes; the study's all-ones input sends every token to the same expert, the
rest skip."""
SWITCH_EXPERTS = 4


def bert(g: Graph, m: EagerModel, b: float, s: float) -> None:
    t, h, p = b * s, m.hidden, b * m.heads * s * s
    g.embed(t, h, m.vocab)
    g.embed(t, h, 2)
    g.embed(s, h, 512)
    g.add(t * h)
    g.stream(t * h, 1, 1, "broadcast")
    g.norm(t, h)
    g.dropout(t * h)
    g.count = m.layers
    for _ in range(3):
        g.linear(t, h, h)
        g.copy(t * h)
        g.fan_in(t * h)
    g.scores(b * m.heads, s, s, m.head_dim)
    g.scale(p)
    g.stream(p, 1, 1, "broadcast")
    g.softmax(p / s, s)
    g.dropout(p)
    g.context(b * m.heads, s, s, m.head_dim)
    g.copy(t * h)
    g.linear(t, h, h)
    _residual_norm(g, t, h)
    g.linear(t, h, m.ffn)
    _activation(g, t * m.ffn)
    g.linear(t, m.ffn, h)
    _residual_norm(g, t, h)
    g.count = 1
    g.linear(b, h, h)
    if g.training:  # BertForPreTraining; inference has a two-way classifier only
        g.linear(t, h, h)
        _activation(g, t * h)
        g.norm(t, h)
        g.linear(t, h, m.vocab)
        g.loss_backward(t, m.vocab)


def _residual_norm(g: Graph, tokens: float, hidden: float) -> None:
    """Dropout, add to the residual, LayerNorm (after the add, as BERT)."""
    g.dropout(tokens * hidden)
    g.add(tokens * hidden)
    g.fan_in(tokens * hidden)
    g.norm(tokens, hidden)


def _activation(g: Graph, elements: float) -> None:
    """ReLU or exact GELU: one kernel."""
    g.stream(elements, 1, 1)
    g.stream(elements, 2, 1, backward=True)


def _gelu_new(g: Graph, n: float) -> None:
    """0.5 x (1 + tanh(c (x + 0.044715 x^3))) as eight kernels, and their gradients."""
    g.scale(n)  # 0.5 x
    g.stream(n, 1, 1)  # x^3
    g.scale(n)
    g.add(n)
    g.scale(n)
    g.stream(n, 1, 1)  # tanh
    g.stream(n, 1, 1)  # 1 +
    g.stream(n, 2, 1)  # product
    g.stream(n, 2, 1, backward=True)
    g.stream(n, 2, 1, backward=True)
    g.stream(n, 2, 1, backward=True)  # tanh
    g.stream(n, 1, 1, backward=True)  # x^3: x^2, times 3, times gradient
    g.stream(n, 1, 1, backward=True)
    g.stream(n, 2, 1, backward=True)
    g.fan_in(n)
    g.fan_in(n)


def gpt2(g: Graph, m: EagerModel, b: float, s: float) -> None:
    t, h, p = b * s, m.hidden, b * m.heads * s * s
    inner = m.heads * m.head_dim
    g.embed(t, h, m.vocab)
    g.embed(s, h, s)
    g.stream(t * h, 1, 1, "broadcast")
    g.dropout(t * h)
    g.count = m.layers
    g.norm(t, h)
    g.linear(t, h, 3 * inner, layout="nn")
    for _ in range(3):
        g.copy(t * inner)
    g.stream(3 * t * inner, 1, 1, backward=True)  # gradients of q, k, v concatenated
    g.scores(b * m.heads, s, s, m.head_dim)
    g.scale(p)
    g.scale(p, "broadcast")  # where(mask, scores, -inf)
    g.softmax(p / s, s)
    g.dropout(p)
    g.context(b * m.heads, s, s, m.head_dim)
    g.copy(t * inner)
    g.linear(t, inner, h, layout="nn")
    _residual(g, t, h)
    g.norm(t, h)
    g.linear(t, h, m.ffn, layout="nn")
    _gelu_new(g, t * m.ffn)
    g.linear(t, m.ffn, h, layout="nn")
    _residual(g, t, h)
    g.count = 1
    g.norm(t, h)
    g.linear(t, h, m.vocab, bias=False)
    g.loss_backward(t, m.vocab)


def _residual(g: Graph, tokens: float, hidden: float) -> None:
    g.dropout(tokens * hidden)
    g.add(tokens * hidden)
    g.fan_in(tokens * hidden)


def opt(g: Graph, m: EagerModel, b: float, s: float) -> None:
    t, h, p = b * s, m.hidden, b * m.heads * s * s
    g.embed(t, h, m.vocab)
    g.embed(t, h, s)
    for _ in range(5):  # causal and padding masks, combined
        g.stream(b * s * s, 1, 1)
    g.add(t * h)
    g.count = m.layers
    g.norm(t, h)
    for _ in range(3):
        g.linear(t, h, h)
        g.copy(t * h)
    g.fan_in(t * h)
    g.fan_in(t * h)
    g.scale(t * h)
    g.scores(b * m.heads, s, s, m.head_dim, layout="tn")
    g.stream(p, 1, 1, "broadcast")  # + mask
    g.stream(p, 1, 1)  # max(scores, lowest)
    for reads, writes in ((1, 1), (1.25, 0.25), (1.25, 1), (1.25, 0.25), (1.25, 1)):
        g.stream(p, reads, writes, backward=True)
    g.softmax(p / s, s)
    g.context(b * m.heads, s, s, m.head_dim)
    g.copy(t * h)
    g.linear(t, h, h)
    _residual(g, t, h)
    g.norm(t, h)
    g.linear(t, h, m.ffn)
    _activation(g, t * m.ffn)
    g.linear(t, m.ffn, h)
    _residual(g, t, h)
    g.count = 1
    g.norm(t, h)
    g.linear(t, h, m.vocab, bias=False)
    g.loss_backward(t, m.vocab)


def switch(g: Graph, m: EagerModel, b: float, s: float) -> None:
    """Encoder and decoder of equal depth; every second feed-forward is a layer of experts."""
    t, h = b * s, m.hidden
    g.embed(t, h, m.vocab)
    g.embed(t, h, m.vocab)
    g.count = m.layers
    for cross in (False, False, True):  # encoder self, decoder self, decoder cross
        _t5_attention(g, m, b, s, masked=not cross)
    g.count = 2 * m.layers / 2
    _rms_norm(g, t, h)
    g.linear(t, h, m.ffn, bias=False)
    _activation(g, t * m.ffn)
    g.dropout(t * m.ffn)
    g.linear(t, m.ffn, h, bias=False)
    _residual(g, t, h)
    _switch_experts(g, m, b, s)
    g.count = 1
    _rms_norm(g, t, h)
    _rms_norm(g, t, h)
    g.scale(t * h)
    g.linear(t, h, m.vocab, bias=False)
    g.loss_backward(t, m.vocab)


def _t5_attention(g: Graph, m: EagerModel, b: float, s: float, *, masked: bool) -> None:
    t, h, inner, p = b * s, m.hidden, m.heads * m.head_dim, b * m.heads * s * s
    _rms_norm(g, t, h)
    for _ in range(3):
        g.linear(t, h, inner, bias=False)
        g.copy(t * inner)
        g.fan_in(t * h)
    g.scores(b * m.heads, s, s, m.head_dim)
    g.stream(p, 2 if masked else 1, 1, "broadcast")  # + position bias, zeros in cross attention
    if masked:
        g.fan_in(p / b)
    g.softmax(p / s, s)
    g.dropout(p)
    g.context(b * m.heads, s, s, m.head_dim)
    g.copy(t * inner)
    g.linear(t, inner, h, bias=False)
    _residual(g, t, h)


def _rms_norm(g: Graph, tokens: float, hidden: float) -> None:
    """T5 layer norm as pow, mean, add, rsqrt, mul, mul."""
    n = tokens * hidden
    g.stream(n, 1, 1)
    g.stream(n, 1, 0, "reduction")
    g.stream(tokens, 1, 1)
    g.stream(tokens, 1, 1)
    g.stream(n, 1, 1, "broadcast")
    g.stream(n, 1, 1, "broadcast")
    for _ in range(6):
        g.stream(n, 2, 1, backward=True)
    g.stream(n, 2, 0, "reduction", backward=True)


def _switch_experts(g: Graph, m: EagerModel, b: float, s: float) -> None:
    """Router in fp32, then each expert on the tokens it got: one expert on ``SWITCH_CAPACITY`` of a sequence,
    the others on none (their kernels launch all the same)."""
    t, h, kept = b * s, m.hidden, b * min(s, SWITCH_CAPACITY)
    _rms_norm(g, t, h)
    g.linear(t, h, SWITCH_EXPERTS, bias=False)
    for _ in range(12):  # soft-max, arg-max, one-hot, cumulative sum, masks: all tiny
        g.stream(t * SWITCH_EXPERTS, 1, 1)
    g.stream(t * h, 1, 1)
    g.stream(kept * h, 1, 1, "gather")
    g.linear(kept, h, m.ffn, bias=False)
    _activation(g, kept * m.ffn)
    g.linear(kept, m.ffn, h, bias=False)
    g.stream(kept * h, 1, 1, "gather")
    for _ in range(7 * (SWITCH_EXPERTS - 1)):  # empty experts and their index kernels
        g.stream(1, 1, 1)
    g.stream(t * h, 1, 1, "broadcast")
    _residual(g, t, h)
