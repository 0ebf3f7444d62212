"""What a Hugging Face model runs in eager fp32: the kernels of one forward (and backward) pass, as rows.

The rows follow what PyTorch 2.1 executes for the models of the NeuSight study (transformers, ``attn_implementation``
"eager"): attention as two batched products with the scores written to memory, GELU as a chain of elementwise kernels, one
kernel per add, dropout in training, gradients accumulated into existing ``.grad`` (the study never zeroes them), the loss
outside the forward time but its backward inside. Model dimensions: the study's own configuration files
(github.com/sitar-lab/NeuSight, scripts/asplos/data/DLmodel_configs, MIT).

Shape legend: B batch, S sequence, H hidden, A heads, D head size, F feed-forward, V vocabulary, T = B S tokens,
P = B A S S score elements. Element counts times 4 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpuwise.errors import UnpredictableError

FP32 = 4.0


@dataclass(frozen=True, slots=True)
class EagerModel:
    """Dimensions of one model of the study."""

    kind: str
    """``bert``, ``gpt2``, ``opt`` or ``switch``."""
    layers: int
    hidden: int
    heads: int
    head_dim: int
    ffn: int
    vocab: int


MODELS: dict[str, EagerModel] = {
    "bert_large": EagerModel("bert", 24, 1024, 16, 64, 4096, 30522),
    "gpt2_large": EagerModel("gpt2", 36, 1280, 20, 64, 5120, 50257),
    "gpt3_xl": EagerModel("gpt2", 24, 3072, 24, 128, 12288, 50257),
    "gpt3_27": EagerModel("gpt2", 32, 2560, 32, 80, 10240, 50257),
    "opt_13": EagerModel("opt", 24, 2048, 32, 64, 8192, 50272),
    "switchxl4": EagerModel("switch", 24, 1024, 32, 128, 16384, 32128),
}
SWITCH_CAPACITY = 64
"""Tokens of a sequence one expert takes; the study's all-ones input sends every token to the same expert, the rest skip."""
SWITCH_EXPERTS = 4


@dataclass(frozen=True, slots=True)
class EagerOp:
    """One kernel, ``count`` times. ``kind``: ``product`` (shape B, M, N, K; ``layout`` as PyTorch calls it) or ``stream``
    (``elements`` visited, bytes, pattern, row length)."""

    kind: str
    backward: bool
    count: float
    shape: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    layout: str = "tn"
    batched: bool = False
    elements: float = 0.0
    read: float = 0.0
    written: float = 0.0
    pattern: str = "elementwise"
    row: float = 0.0


@dataclass(slots=True)
class _Graph:
    """Collects the kernels of a pass; ``training`` adds dropout and the backward of each operation beside its forward."""

    training: bool
    count: float = 1.0
    ops: list[EagerOp] = field(default_factory=list[EagerOp])

    def stream(
        self, elements: float, reads: float, writes: float, pattern: str = "elementwise", *, backward: bool = False,
        row: float = 0.0,
    ) -> None:  # fmt: skip
        """``reads`` and ``writes`` are passes over ``elements`` fp32 values."""
        if backward and not self.training:
            return
        size = FP32 * elements
        self.ops.append(
            EagerOp("stream", backward, self.count, elements=elements, read=reads * size, written=writes * size,
                    pattern=pattern, row=row)
        )  # fmt: skip

    def product(
        self, b: float, m: float, n: float, k: float, layout: str, *, batched: bool = False, backward: bool = False
    ) -> None:
        if backward and not self.training:
            return
        self.ops.append(EagerOp("product", backward, self.count, (b, m, n, k), layout, batched))

    def linear(self, tokens: float, n_in: float, n_out: float, *, bias: bool = True, layout: str = "tn") -> None:
        """x W^T + b; backward: dX, dW, the bias gradient and their accumulation into ``.grad``."""
        self.product(1, tokens, n_out, n_in, layout)
        self.product(1, tokens, n_in, n_out, "nn", backward=True)
        self.product(1, n_out, n_in, tokens, "nt", backward=True)
        self.accumulate(n_in * n_out)
        if bias:
            self.stream(tokens * n_out, 1, 0, "reduction", backward=True)
            self.accumulate(n_out)

    def accumulate(self, parameters: float) -> None:
        """``param.grad += new``."""
        self.stream(parameters, 2, 1, backward=True)

    def fan_in(self, elements: float) -> None:
        """Autograd adds the gradients of a tensor used twice."""
        self.stream(elements, 2, 1, backward=True)

    def scale(self, elements: float, pattern: str = "elementwise") -> None:
        """Times or divided by a constant; the same backward."""
        self.stream(elements, 1, 1, pattern)
        self.stream(elements, 1, 1, pattern, backward=True)

    def copy(self, elements: float, *, pattern: str = "transpose") -> None:
        """``contiguous``; the gradient comes back through one more copy when the next product wants it contiguous."""
        self.stream(elements, 1, 1, pattern)
        self.stream(elements, 1, 1, pattern, backward=True)

    def add(self, elements: float) -> None:
        self.stream(elements, 2, 1)

    def dropout(self, elements: float) -> None:
        """Values and a byte mask; absent in inference."""
        if self.training:
            self.stream(elements, 1, 1.25, "dropout")
            self.stream(elements, 1.25, 1, backward=True)

    def norm(self, tokens: float, hidden: float) -> None:
        """LayerNorm; backward reads gradient and input in a pass for dX (twice) and one for the weights."""
        self.stream(tokens * hidden, 1, 1, "norm", row=hidden)
        self.stream(tokens * hidden, 4, 1, backward=True)
        self.stream(tokens * hidden, 2, 0, "reduction", backward=True)
        self.accumulate(2 * hidden)

    def softmax(self, rows: float, length: float) -> None:
        self.stream(rows * length, 1, 1, "softmax", row=length)
        self.stream(rows * length, 2, 1, "softmax", backward=True, row=length)

    def embed(self, tokens: float, hidden: float, vocab: float) -> None:
        """Row gather; backward: a zeroed table, a scatter, its accumulation."""
        self.stream(tokens * hidden, 1, 1, "gather")
        self.stream(vocab * hidden, 0, 1, backward=True)
        self.stream(tokens * hidden, 2, 1, "gather", backward=True)
        self.accumulate(vocab * hidden)

    def scores(self, groups: float, q: float, kv: float, d: float, *, layout: str = "nn") -> None:
        """Q K^T (``layout`` says whether K arrives transposed as a view) with its two gradient products."""
        self.product(groups, q, kv, d, layout, batched=True)
        self.product(groups, q, d, kv, "nn", batched=True, backward=True)
        self.product(groups, d, kv, q, "nn", batched=True, backward=True)

    def context(self, groups: float, q: float, kv: float, d: float) -> None:
        """Probabilities times V with its two gradient products."""
        self.product(groups, q, d, kv, "nn", batched=True)
        self.product(groups, q, kv, d, "nn", batched=True, backward=True)
        self.product(groups, kv, d, q, "nn", batched=True, backward=True)

    def loss_backward(self, tokens: float, vocab: float) -> None:
        """Cross entropy: the zeroed gradient of the log-probabilities and the log-softmax backward."""
        self.stream(tokens * vocab, 0, 1, backward=True)
        self.stream(tokens * vocab, 2, 1, "softmax", backward=True, row=vocab)


def eager_ops(model: str, batch: int, seq: int, training: bool, *, shards: int = 1) -> list[EagerOp]:
    """The kernels of one pass of ``model``; ``shards`` > 1 gives one rank's part under tensor parallelism (heads,
    feed-forward and vocabulary divided).

    Raises UnpredictableError for a model outside the study, or one whose sharding it does not have.
    """
    dims = MODELS.get(model)
    if dims is None:
        raise UnpredictableError("unknown model of the study", f"no dimensions for {model!r}")
    if shards > 1:
        if dims.kind != "gpt2" or dims.heads % shards:
            raise UnpredictableError("tensor parallelism only of the study's GPT models")
        dims = replace(dims, heads=dims.heads // shards, ffn=dims.ffn // shards, vocab=-(-dims.vocab // shards))
    graph = _Graph(training)
    build = {"bert": _bert, "gpt2": _gpt2, "opt": _opt, "switch": _switch}[dims.kind]
    build(graph, dims, float(batch), float(seq))
    return graph.ops


def fused(ops: list[EagerOp]) -> list[EagerOp]:
    """What a compiler that fuses pointwise and row kernels leaves of a forward pass: consecutive streams over the same
    elements become one that reads the first one's input (and the others' second operands) and writes the last result."""
    out: list[EagerOp] = []
    for op in ops:
        last = out[-1] if out else None
        same = (
            last is not None and last.kind == op.kind == "stream" and last.elements == op.elements
            and last.count == op.count and op.pattern != "gather" and last.pattern != "gather"
        )  # fmt: skip
        if last is None or not same:
            out.append(op)
            continue
        second_operands = max(op.read - FP32 * op.elements, 0.0)
        pattern = op.pattern if op.pattern in ("softmax", "norm") else last.pattern
        pattern = "elementwise" if pattern in ("broadcast", "transpose") else pattern
        out[-1] = replace(
            last, read=last.read + second_operands, written=op.written, pattern=pattern, row=max(last.row, op.row)
        )
    return out


def parameters(model: str) -> float:
    """Parameters of ``model``, biases and norms left out."""
    m = MODELS[model]
    inner = m.heads * m.head_dim
    layer = 4 * m.hidden * inner + 2 * m.hidden * m.ffn
    if m.kind == "switch":  # encoder, decoder with cross attention; experts in every second layer
        layer = 12 * m.hidden * inner + 2 * m.hidden * m.ffn * (1 + SWITCH_EXPERTS)
    return m.layers * layer + m.vocab * m.hidden * (2 if m.kind == "bert" else 1)


def _bert(g: _Graph, m: EagerModel, b: float, s: float) -> None:
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


def _residual_norm(g: _Graph, tokens: float, hidden: float) -> None:
    """Dropout, add to the residual, LayerNorm (after the add, as BERT)."""
    g.dropout(tokens * hidden)
    g.add(tokens * hidden)
    g.fan_in(tokens * hidden)
    g.norm(tokens, hidden)


def _activation(g: _Graph, elements: float) -> None:
    """ReLU or exact GELU: one kernel."""
    g.stream(elements, 1, 1)
    g.stream(elements, 2, 1, backward=True)


def _gelu_new(g: _Graph, n: float) -> None:
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


def _gpt2(g: _Graph, m: EagerModel, b: float, s: float) -> None:
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


def _residual(g: _Graph, tokens: float, hidden: float) -> None:
    g.dropout(tokens * hidden)
    g.add(tokens * hidden)
    g.fan_in(tokens * hidden)


def _opt(g: _Graph, m: EagerModel, b: float, s: float) -> None:
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


def _switch(g: _Graph, m: EagerModel, b: float, s: float) -> None:
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


def _t5_attention(g: _Graph, m: EagerModel, b: float, s: float, *, masked: bool) -> None:
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


def _rms_norm(g: _Graph, tokens: float, hidden: float) -> None:
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


def _switch_experts(g: _Graph, m: EagerModel, b: float, s: float) -> None:
    """Router in fp32, then each expert on the tokens it got: one expert on ``SWITCH_CAPACITY`` of a sequence, the others
    on none (their kernels launch all the same)."""
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
