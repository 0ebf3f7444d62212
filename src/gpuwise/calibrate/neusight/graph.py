"""Kernels of an eager pass as rows, and the building blocks models are written with.

Shape legend: B batch, M, N, K of a product, element counts times 4 bytes (fp32).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpuwise.predict.kernels.gemm.fp32 import Layout
from gpuwise.predict.kernels.memory_bound import Pattern

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


@dataclass(frozen=True, slots=True)
class EagerOp:
    """One kernel, ``count`` times. ``kind``: ``product`` (shape B, M, N, K; ``layout`` as PyTorch calls it)
    or ``stream`` (``elements`` visited, bytes, pattern, row length)."""

    kind: str
    backward: bool
    count: float
    shape: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    layout: Layout = "tn"
    batched: bool = False
    elements: float = 0.0
    read: float = 0.0
    written: float = 0.0
    pattern: Pattern = "elementwise"
    row: float = 0.0


@dataclass(slots=True)
class Graph:
    """Collects the kernels of a pass; ``training`` adds dropout and the backward of each operation beside its
    forward."""

    training: bool
    count: float = 1.0
    ops: list[EagerOp] = field(default_factory=list[EagerOp])

    def stream(
        self,
        elements: float,
        reads: float,
        writes: float,
        pattern: Pattern = "elementwise",
        *,
        backward: bool = False,
        row: float = 0.0,
    ) -> None:
        """``reads`` and ``writes`` are passes over ``elements`` fp32 values."""
        if backward and not self.training:
            return
        size = FP32 * elements
        op = EagerOp("stream", backward, self.count, elements=elements, pattern=pattern, row=row)
        self.ops.append(replace(op, read=reads * size, written=writes * size))

    def product(
        self,
        b: float,
        m: float,
        n: float,
        k: float,
        layout: Layout,
        *,
        batched: bool = False,
        backward: bool = False,
    ) -> None:
        if backward and not self.training:
            return
        self.ops.append(EagerOp("product", backward, self.count, (b, m, n, k), layout, batched))

    def linear(self, tokens: float, n_in: float, n_out: float, *, bias: bool = True, layout: Layout = "tn") -> None:
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

    def scale(self, elements: float, pattern: Pattern = "elementwise") -> None:
        """Times or divided by a constant; the same backward."""
        self.stream(elements, 1, 1, pattern)
        self.stream(elements, 1, 1, pattern, backward=True)

    def copy(self, elements: float, *, pattern: Pattern = "transpose") -> None:
        """``contiguous``; the gradient comes back through one more copy when the next product wants it
        contiguous."""
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

    def scores(self, groups: float, q: float, kv: float, d: float, *, layout: Layout = "nn") -> None:
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
