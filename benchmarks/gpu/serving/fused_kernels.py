"""The small kernels of a decoder as a serving engine has them, each in Triton, with what it does in torch beside it; and the
grouped products of experts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

EPSILON = 1e-5


@triton.jit
def _norm_kernel(x, residual, weight, out, n, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < n
    value = tl.load(x + row * n + at, mask=keep, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * n + at, mask=keep, other=0.0).to(tl.float32)
        tl.store(residual + row * n + at, value.to(residual.dtype.element_ty), mask=keep)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / n + 1e-5)
    gain = tl.load(weight + at, mask=keep, other=0.0).to(tl.float32)
    tl.store(out + row * n + at, (value * scale * gain).to(out.dtype.element_ty), mask=keep)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """[..., H] -> [..., H]: the root mean square of each row is one."""
    out = torch.empty_like(x)
    n = x.shape[-1]
    _norm_kernel[(x.numel() // n,)](x, x, weight, out, n, False, triton.next_power_of_2(n), num_warps=8)
    return out


def add_norm(residual: Tensor, update: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, in the place of ``residual``, and its norm."""
    out = torch.empty_like(update)
    n = update.shape[-1]
    _norm_kernel[(update.numel() // n,)](update, residual, weight, out, n, True, triton.next_power_of_2(n), num_warps=8)
    return residual, out


@triton.jit
def _activate_kernel(x, out, n, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    gate = tl.load(x + row * 2 * n + at, mask=keep, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * n + n + at, mask=keep, other=0.0).to(tl.float32)
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    value = gate * tl.sigmoid(inner) * up
    tl.store(out + row * n + at, value.to(out.dtype.element_ty), mask=keep)


def activate(gate_up: Tensor, gelu: bool) -> Tensor:
    """[..., 2 F] -> [..., F]: the activation of the first half times the second."""
    n = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], n), device=gate_up.device, dtype=gate_up.dtype)
    _activate_kernel[(out.numel() // n, triton.cdiv(n, 1024))](gate_up, out, n, gelu, 1024)
    return out


@triton.jit
def _rotate_kernel(
    qkv, cos, sin, q_gain, k_gain, q_out, keys, values, q_len, first, kv_len,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    b, t = token // q_len, token % q_len
    half: tl.constexpr = D // 2
    at = tl.arange(0, half)
    base = qkv + token.to(tl.int64) * (HEADS + 2 * KV) * D + head * D
    low, high = tl.load(base + at).to(tl.float32), tl.load(base + half + at).to(tl.float32)
    if head >= HEADS + KV:
        out = values + ((b * KV + head - HEADS - KV).to(tl.int64) * kv_len + first + t) * D
        tl.store(out + at, low.to(values.dtype.element_ty))
        tl.store(out + half + at, high.to(values.dtype.element_ty))
    else:
        if NORMED:
            scale = 1.0 / tl.sqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / D + 1e-5)
            gain = q_gain if head < HEADS else k_gain
            low = low * scale * tl.load(gain + at).to(tl.float32)
            high = high * scale * tl.load(gain + half + at).to(tl.float32)
        c, s = tl.load(cos + t * half + at).to(tl.float32), tl.load(sin + t * half + at).to(tl.float32)
        one, two = low * c - high * s, high * c + low * s
        if head < HEADS:
            place = q_out + ((b * HEADS + head).to(tl.int64) * q_len + t) * D
        else:
            place = keys + ((b * KV + head - HEADS).to(tl.int64) * kv_len + first + t) * D
        tl.store(place + at, one.to(keys.dtype.element_ty))
        tl.store(place + half + at, two.to(keys.dtype.element_ty))


def rotate_and_keep(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    gains: tuple[Tensor, Tensor] | None,
    cache: tuple[Tensor, Tensor],
    first: int,
    heads: int,
) -> Tensor:
    """Queries [B, A, T, D] of ``qkv`` [B, T, (A + 2 K) D] rotated; keys, rotated, and values go into the cache [B, K, S, D] from
    ``first`` on. ``gains`` [D] of the norms of queries and keys, where the model has them."""
    keys, values = cache
    batch, kv_heads, kv_len, width = keys.shape
    q_len = qkv.shape[1]
    out = torch.empty((batch, heads, q_len, width), device=qkv.device, dtype=qkv.dtype)
    q_gain, k_gain = gains or (qkv, qkv)
    _rotate_kernel[(batch * q_len, heads + 2 * kv_heads)](
        qkv, cos, sin, q_gain, k_gain, out, keys, values, q_len, first, kv_len, heads, kv_heads, width,
        gains is not None, num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _grouped_kernel(
    x, w, out, row_of, expert_of, weight_of, rows, divide,
    n: tl.constexpr, k: tl.constexpr, WEIGHTED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    block_m, block_n = tl.program_id(1), tl.program_id(0)
    expert = tl.load(expert_of + block_m).to(tl.int64)
    slot = tl.load(row_of + block_m * M + tl.arange(0, M))
    keep = slot < rows
    at_n, at_k = block_n * N + tl.arange(0, N), tl.arange(0, K)
    left = x + (slot // divide).to(tl.int64)[:, None] * k + at_k[None, :]
    right = w + expert * n * k + at_n[None, :].to(tl.int64) * k + at_k[:, None]
    total = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, k, K):
        a = tl.load(left, mask=keep[:, None], other=0.0)
        b = tl.load(right, mask=at_n[None, :] < n, other=0.0)
        total = tl.dot(a, b, total)
        left += K
        right += K
    if WEIGHTED:
        total = total * tl.load(weight_of + slot, mask=keep, other=0.0)[:, None]
    place = out + slot.to(tl.int64)[:, None] * n + at_n[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=keep[:, None] & (at_n[None, :] < n))


class Routing:
    """Which tokens go to which experts: ``n_active`` of ``n_experts`` each, chosen evenly and once."""

    def __init__(self, tokens: int, n_experts: int, n_active: int, device: str) -> None:
        mean = tokens * n_active / n_experts
        self.block = 16 if mean <= 12 else 64 if mean <= 96 else 128
        self.n_active, self.rows = n_active, tokens * n_active
        generator = torch.Generator().manual_seed(0)
        chosen = torch.rand(tokens, n_experts, generator=generator).topk(n_active).indices.flatten()
        rows: list[Tensor] = []
        experts: list[int] = []
        for expert in range(n_experts):
            mine = (chosen == expert).nonzero().flatten()
            blocks = -(-len(mine) // self.block)
            padded = torch.full((blocks * self.block,), self.rows, dtype=torch.int64)
            padded[: len(mine)] = mine
            rows.append(padded)
            experts += [expert] * blocks
        self.row_of = torch.cat(rows).to(device, torch.int32)
        self.expert_of = torch.tensor(experts, device=device, dtype=torch.int32)
        self.weight_of = torch.rand(self.rows, generator=generator).to(device)
        self.chosen_experts = len(set(experts))


def grouped(x: Tensor, w: Tensor, routing: Routing, *, second: bool) -> Tensor:
    """[tokens x n_active, N] of rows [tokens, K] (of the second product: [tokens x n_active, K], by the routing's weights) by
    the experts' [E, N, K]."""
    n, k = w.shape[1], w.shape[2]
    out = torch.empty((routing.rows, n), device=x.device, dtype=x.dtype)
    m = routing.block
    wide, deep = (128, 64) if m > 16 else (64, 128)
    deep = min(deep, k)
    grid = (triton.cdiv(n, wide), len(routing.expert_of))
    divide = 1 if second else routing.n_active
    _grouped_kernel[grid](
        x, w, out, routing.row_of, routing.expert_of, routing.weight_of, routing.rows, divide, n, k, second, m, wide, deep,
        num_warps=8 if m == 128 else 4, num_stages=4 if m < 128 else 3,
    )  # fmt: skip
    return out


def differences(device: str) -> dict[str, float]:
    """Largest difference of each kernel from torch's arithmetic in fp32, on small random inputs."""
    from torch.nn.functional import gelu, rms_norm, silu

    torch.manual_seed(0)
    x, residual = (torch.randn(3, 96, device=device, dtype=torch.bfloat16) for _ in range(2))
    gain = torch.randn(96, device=device, dtype=torch.bfloat16)
    total = (x.float() + residual.float()).bfloat16().float()
    found = {"norm": _far(norm(x, gain), rms_norm(x.float(), (96,), gain.float(), EPSILON))}
    kept, out = add_norm(residual.clone(), x, gain)
    found["add_norm"] = max(_far(kept, total), _far(out, rms_norm(total, (96,), gain.float(), EPSILON)))
    gate, up = x.float().chunk(2, -1)
    found["silu"] = _far(activate(x, False), silu(gate) * up)
    found["gelu"] = _far(activate(x, True), gelu(gate, approximate="tanh") * up)
    batch, q_len, heads, kv_heads, width, kv_len = 2, 3, 4, 2, 16, 8
    qkv = torch.randn(batch, q_len, (heads + 2 * kv_heads) * width, device=device, dtype=torch.bfloat16)
    angle = torch.rand(q_len, width // 2, device=device)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    keys, values = (torch.zeros(batch, kv_heads, kv_len, width, device=device, dtype=torch.bfloat16) for _ in range(2))
    first = kv_len - q_len
    queries = rotate_and_keep(qkv, cos, sin, (gain[:width], gain[width : 2 * width]), (keys, values), first, heads)
    q, k, v = qkv.view(batch, q_len, -1, width).transpose(1, 2).split((heads, kv_heads, kv_heads), 1)
    twice_cos, twice_sin = cos.repeat(1, 2).float(), sin.repeat(1, 2).float()

    def turned(part: Tensor, weight: Tensor) -> Tensor:
        part = rms_norm(part.float(), (width,), weight.float(), EPSILON)
        low, high = part.chunk(2, -1)
        return part * twice_cos + torch.cat((-high, low), -1) * twice_sin

    found["queries"] = _far(queries, turned(q, gain[:width]))
    found["keys"] = _far(keys[:, :, first:], turned(k, gain[width : 2 * width]))
    found["values"] = _far(values[:, :, first:], v.float())
    tokens, n_experts, n_active, hidden, ffn = 5, 8, 2, 64, 128
    rows = torch.randn(tokens, hidden, device=device, dtype=torch.float16)  # Triton's interpreter multiplies no bf16
    weights = torch.randn(n_experts, ffn, hidden, device=device, dtype=torch.float16) / 8.0
    routing = Routing(tokens, n_experts, n_active, device)
    made = grouped(rows, weights, routing, second=False)
    expert_of = torch.zeros(tokens * n_active, dtype=torch.int64)
    for block, expert in enumerate(routing.expert_of.tolist()):
        mine = routing.row_of[block * routing.block : (block + 1) * routing.block].long().cpu()
        expert_of[mine[mine < routing.rows]] = expert
    wanted = torch.stack([rows[i // n_active].float() @ weights[int(e)].float().T for i, e in enumerate(expert_of)])
    found["grouped"] = _far(made, wanted)
    return found


def _far(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).abs().max())
