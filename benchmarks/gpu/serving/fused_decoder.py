"""A decoder as a serving engine runs it: one product for queries, keys and values, one for gate and up, norms with their
residuals, rotation and activation each one kernel, a cache of its own size. Random weights, bf16 or 8-bit products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, gelu, linear, rms_norm, scaled_dot_product_attention, silu

EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """What of an architecture the program depends on; ``window`` of every layer but each ``global_every``-th."""

    hidden: int
    ffn: int
    n_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qk_norm: bool = False
    norms: int = 2
    gelu: bool = False
    window: int | None = None
    global_every: int | None = None
    n_experts: int = 0
    n_active: int = 0

    @classmethod
    def of(cls, arch: Any) -> Shape:
        """That of an architecture of the catalogue."""
        moe = arch.moe
        return cls(
            arch.hidden,
            arch.ffn if moe is None else moe.expert_ffn,
            arch.n_layers,
            arch.heads,
            arch.kv_heads,
            arch.head_dim,
            arch.vocab,
            arch.tied_embeddings,
            arch.qk_norm,
            arch.norms_per_layer,
            arch.activation.startswith("gelu"),
            arch.window,
            arch.global_every,
            0 if moe is None else moe.n_experts,
            0 if moe is None else moe.n_active,
        )

    def window_of(self, layer: int) -> int | None:
        """Tokens that a layer sees; None for all."""
        if self.window is None or (self.global_every and (layer + 1) % self.global_every == 0):
            return None
        return self.window


class Layer(NamedTuple):
    read: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    norms: Tensor
    gains: tuple[Tensor, Tensor] | None
    router: Tensor | None


class Plain:
    """The small kernels in torch, where there is no Triton: a rehearsal."""

    @staticmethod
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, (x.shape[-1],), weight, EPSILON)

    @classmethod
    def add_norm(cls, residual: Tensor, update: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        residual += update
        return residual, cls.norm(residual, weight)

    @staticmethod
    def activate(gate_up: Tensor, gelu_: bool) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return (gelu(gate, approximate="tanh") if gelu_ else silu(gate)) * up

    @classmethod
    def rotate_and_keep(
        cls, qkv: Tensor, cos: Tensor, sin: Tensor, gains: Any, cache: tuple[Tensor, Tensor], first: int, heads: int
    ) -> Tensor:
        keys, values = cache
        kv_heads, width, q_len = keys.shape[1], keys.shape[3], qkv.shape[1]
        q, k, v = qkv.view(qkv.shape[0], q_len, -1, width).transpose(1, 2).split((heads, kv_heads, kv_heads), 1)
        if gains is not None:
            q, k = cls.norm(q, gains[0]), cls.norm(k, gains[1])

        def turned(part: Tensor) -> Tensor:
            low, high = part.chunk(2, -1)
            return part * cos.repeat(1, 2) + torch.cat((-high, low), -1) * sin.repeat(1, 2)

        keys[:, :, first : first + q_len] = turned(k)
        values[:, :, first : first + q_len] = v
        return turned(q)


class FusedDecoder:
    """Layers of ``shape`` on ``device``; products in ``weights``: bf16, or fp8 with one scale a tensor."""

    def __init__(self, shape: Shape, device: str, weights: str = "bf16") -> None:
        self.shape, self.device, self.narrow = shape, device, weights == "fp8"
        s = shape
        self.kernels: Any = Plain
        if device == "cuda":
            import fused_kernels

            self.kernels = fused_kernels
        self.one = torch.ones((), device=device)

        def weight(*size: int) -> Tensor:
            made = torch.empty(size, device=device, dtype=torch.bfloat16).normal_(0.0, 0.02)
            return made.to(torch.float8_e4m3fn) if self.narrow else made

        def layer() -> Layer:
            experts = (s.n_experts,) if s.n_experts else ()
            gains = torch.ones(2, s.head_dim, device=device, dtype=torch.bfloat16)
            return Layer(
                weight((s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden),
                weight(s.hidden, s.heads * s.head_dim),
                weight(*experts, 2 * s.ffn, s.hidden),
                weight(*experts, s.hidden, s.ffn),
                torch.ones(s.norms, s.hidden, device=device, dtype=torch.bfloat16),
                (gains[0], gains[1]) if s.qk_norm else None,
                weight(s.n_experts, s.hidden) if s.n_experts else None,
            )

        self.layers = [layer() for _ in range(s.n_layers)]
        self.embedding = torch.empty(s.vocab, s.hidden, device=device, dtype=torch.bfloat16).normal_(0.0, 0.02)
        self.head = self.embedding if s.tied else self.embedding.clone()
        self.norm = torch.ones(s.hidden, device=device, dtype=torch.bfloat16)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """[..., K] by [N, K], in the format of the weights."""
        if not self.narrow:
            return linear(x, weight)
        flat = x.reshape(-1, x.shape[-1]).to(torch.float8_e4m3fn)
        made = torch._scaled_mm(flat, weight.t(), self.one, self.one, out_dtype=torch.bfloat16, use_fast_accum=True)
        return made.view(*x.shape[:-1], -1)

    def step(self, batch: int, q_len: int, kv_len: int) -> Callable[[], Tensor]:
        """A forward pass of the last ``q_len`` of ``kv_len`` tokens of each of ``batch`` sequences, and their next tokens."""
        s, device = self.shape, self.device
        ids = torch.randint(3, s.vocab, (batch, q_len), device=device)
        at = torch.arange(kv_len - q_len, kv_len, device=device)
        rates = 500000.0 ** (-torch.arange(0, s.head_dim, 2, device=device) / s.head_dim)
        angles = torch.outer(at.float(), rates)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        first = kv_len - q_len
        cache: list[tuple[Tensor, Tensor]] = []
        for _ in range(s.n_layers):
            both = torch.empty((2, batch, s.kv_heads, kv_len, s.head_dim), device=device, dtype=torch.bfloat16).normal_()
            cache.append((both[0], both[1]))
        mlp = self.experts(batch * q_len) if s.n_experts else self.dense
        k = self.kernels

        def run() -> Tensor:
            with torch.no_grad():
                residual = embedding(ids, self.embedding)
                x = k.norm(residual, self.layers[0].norms[0])
                for i, layer in enumerate(self.layers):
                    following = self.layers[i + 1].norms[0] if i + 1 < s.n_layers else self.norm
                    q = k.rotate_and_keep(self.product(x, layer.read), cos, sin, layer.gains, cache[i], first, s.heads)
                    keys, values = cache[i]
                    window = s.window_of(i)
                    if window is not None and window < kv_len and q_len == 1:
                        keys, values = keys[:, :, -window:], values[:, :, -window:]
                    seen = scaled_dot_product_attention(q, keys, values, is_causal=q_len > 1, enable_gqa=s.heads != s.kv_heads)
                    attended = self.product(seen.transpose(1, 2).reshape(batch, q_len, s.heads * s.head_dim), layer.out)
                    if s.norms == 4:
                        attended = k.norm(attended, layer.norms[1])
                    residual, x = k.add_norm(residual, attended, layer.norms[s.norms // 2])
                    made = mlp(layer, x)
                    if s.norms == 4:
                        made = k.norm(made, layer.norms[3])
                    residual, x = k.add_norm(residual, made, following)
                return linear(x[:, -1], self.head).argmax(-1)

        return run

    def dense(self, layer: Layer, x: Tensor) -> Tensor:
        return self.product(self.kernels.activate(self.product(x, layer.gate_up), self.shape.gelu), layer.down)

    def experts(self, tokens: int) -> Callable[[Layer, Tensor], Tensor]:
        """A layer of experts over ``tokens``, routed evenly: the router's product, two grouped products and the sum; what sorts
        the tokens is left out, for they are the same in every run."""
        if self.kernels is Plain:
            return self.plain_experts
        from fused_kernels import Routing, grouped

        s = self.shape
        routing = Routing(tokens, s.n_experts, s.n_active, self.device)

        def run(layer: Layer, x: Tensor) -> Tensor:
            assert layer.router is not None
            flat = x.reshape(tokens, s.hidden)
            linear(flat, layer.router)
            made = self.kernels.activate(grouped(flat, layer.gate_up, routing, second=False), s.gelu)
            back = grouped(made, layer.down, routing, second=True)
            return back.view(tokens, s.n_active, s.hidden).sum(1).view(x.shape)

        return run

    def plain_experts(self, layer: Layer, x: Tensor) -> Tensor:
        return linear(self.kernels.activate(linear(x, layer.gate_up[0]), self.shape.gelu), layer.down[0])
