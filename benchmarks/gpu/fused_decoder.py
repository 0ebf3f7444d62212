"""A decoder as a serving engine runs it: one product for queries, keys and values, one for gate and up, norms with their
residuals, rotation and activation each one kernel, a cache of its own size. Random weights, bf16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

EPSILON = 1e-5


def add_norm(residual: Tensor, update: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, and its norm."""
    total = residual + update
    return total, rms_norm(total, (total.shape[-1],), weight, EPSILON)


def activate(gate_up: Tensor) -> Tensor:
    """[..., 2 F] -> [..., F]"""
    gate, up = gate_up.chunk(2, -1)
    return silu(gate) * up


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[B, A, T, D], cos and sin [T, D]"""
    low, high = heads.chunk(2, -1)
    return heads * cos + torch.cat((-high, low), -1) * sin


class FusedDecoder:
    """Layers of ``size`` (hidden, ffn, n_layers, heads, kv_heads, head_dim, vocab) on ``device``; the embedding is the head too
    where ``tied``."""

    def __init__(self, size: dict[str, int], tied: bool, device: str) -> None:
        self.size, self.device = size, device
        hidden, ffn, width = size["hidden"], size["ffn"], size["head_dim"]
        read = (size["heads"] + 2 * size["kv_heads"]) * width

        def weight(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(0.0, 0.02)

        self.layers = [
            (
                weight(read, hidden),
                weight(hidden, size["heads"] * width),
                weight(2 * ffn, hidden),
                weight(hidden, ffn),
                torch.ones(2, hidden, device=device, dtype=torch.bfloat16),
            )
            for _ in range(size["n_layers"])
        ]
        self.embedding = weight(size["vocab"], hidden)
        self.head = self.embedding if tied else weight(size["vocab"], hidden)
        self.norm = torch.ones(hidden, device=device, dtype=torch.bfloat16)
        fuse: Callable[[Any], Any] = (lambda f: torch.compile(f, dynamic=True)) if device == "cuda" else (lambda f: f)
        self.add_norm, self.activate, self.rotate = fuse(add_norm), fuse(activate), fuse(rotate)

    def step(self, batch: int, q_len: int, kv_len: int) -> Callable[[], Tensor]:
        """A forward pass of the last ``q_len`` of ``kv_len`` tokens of each of ``batch`` sequences, and their next tokens."""
        size, device = self.size, self.device
        heads, kv_heads, width = size["heads"], size["kv_heads"], size["head_dim"]
        ids = torch.randint(3, size["vocab"], (batch, q_len), device=device)
        at = torch.arange(kv_len - q_len, kv_len, device=device)
        rates = 500000.0 ** (-torch.arange(0, width, 2, device=device) / width)
        angles = torch.outer(at.float(), rates).repeat(1, 2)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        shape = (size["n_layers"], 2, batch, kv_heads, kv_len, width)
        cache = torch.empty(shape, device=device, dtype=torch.bfloat16).normal_()

        def run() -> Tensor:
            with torch.no_grad():
                residual = embedding(ids, self.embedding)
                x = rms_norm(residual, (size["hidden"],), self.layers[0][4][0], EPSILON)
                for i, (read, out, gate_up, down, norms) in enumerate(self.layers):
                    q, k, v = linear(x, read).view(batch, q_len, -1, width).transpose(1, 2).split((heads, kv_heads, kv_heads), 1)
                    keys, values = cache[i]
                    keys.index_copy_(2, at, self.rotate(k, cos, sin))
                    values.index_copy_(2, at, v)
                    seen = scaled_dot_product_attention(
                        self.rotate(q, cos, sin), keys, values, is_causal=q_len > 1, enable_gqa=heads != kv_heads
                    )
                    attended = linear(seen.transpose(1, 2).reshape(batch, q_len, heads * width), out)
                    residual, x = self.add_norm(residual, attended, norms[1])
                    following = self.layers[i + 1][4][0] if i + 1 < len(self.layers) else self.norm
                    residual, x = self.add_norm(residual, linear(self.activate(linear(x, gate_up)), down), following)
                return linear(x[:, -1], self.head).argmax(-1)

        return run
