# pyright: basic
"""FLOP, bytes and kernels of one aten call, from shapes alone: the one counter of captured operations.

FLOP are 2 per multiply-add and belong to products only (matmul, convolution, attention, recurrent layers, Fourier
transforms); norms, activations, reductions and copies count bytes. A causal attention counts its visible half, and its
backward twice its forward, as :mod:`gpuwise.workload.transformer.blocks` does: what a kernel computes again is no model FLOP.

``call`` maps the schema's argument names to what was passed, tensors as :class:`TensorSpec`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuwise.workload.attention_flop import attention_pairs
from gpuwise.workload.capture.captured import TensorSpec

Call = Mapping[str, Any]
FlopRule = Callable[[Call, Sequence[TensorSpec]], float]


def flop_of(name: str, call: Call, outputs: Sequence[TensorSpec]) -> float:
    """FLOP of the operation ``name`` (``mm``, without namespace and overload); 0 if it is no product."""
    rule = RULES.get(name)
    return float(rule(call, outputs)) if rule is not None else 0.0


def _matmul(call: Call, out: Sequence[TensorSpec]) -> float:
    """[.., M, K] x [.., K, N]: 2 K for each element of the output."""
    first = next(call[name] for name in ("mat1", "batch1", "self", "input", "a") if call.get(name))
    return 2.0 * math.prod(out[0].shape) * first.shape[-1]


def _sum_of_products(call: Call, out: Sequence[TensorSpec]) -> float:
    """addbmm: the batch is summed as well."""
    return 2.0 * math.prod(out[0].shape) * call["batch1"].shape[-1] * call["batch1"].shape[0]


def _dot(call: Call, out: Sequence[TensorSpec]) -> float:
    return 2.0 * math.prod(call["self"].shape)


def _matrix_vector(call: Call, out: Sequence[TensorSpec]) -> float:
    return 2.0 * math.prod((call.get("mat") or call["self"]).shape)


def _grouped(call: Call, out: Sequence[TensorSpec]) -> float:
    """Ragged groups: [T, K] x [E, K, N] gives [T, N]; [M, T] x [T, N] gives [E, M, N] with T shared out over E."""
    a, b = call["self"].shape, call["mat2"].shape
    if len(a) == 2 and len(b) == 2:
        return 2.0 * a[0] * a[1] * b[1]
    return 2.0 * math.prod(out[0].shape) * a[-1]


def _outer_product(call: Call, out: Sequence[TensorSpec]) -> float:
    return 2.0 * math.prod(out[0].shape)


def _convolution(call: Call, out: Sequence[TensorSpec]) -> float:
    """2 x batch x places x weight elements; the places are those of the output, or of the input if transposed."""
    image, weight = call.get("input") or call["self"], call["weight"]
    places = image.shape[2:] if call.get("transposed") else out[0].shape[2:]
    return 2.0 * image.shape[0] * math.prod(places) * math.prod(weight.shape)


def _convolution_backward(call: Call, out: Sequence[TensorSpec]) -> float:
    """Input and weight gradient are products as large as the forward's, if requested."""
    image, weight = call.get("input") or call["self"], call["weight"]
    grad = call["grad_output"]
    places = image.shape[2:] if call.get("transposed") else grad.shape[2:]
    mask = call.get("output_mask") or (True, True, False)
    return (int(mask[0]) + int(mask[1])) * 2.0 * image.shape[0] * math.prod(places) * math.prod(weight.shape)


def pairs_seen(q_len: int, kv_len: int, causal: bool) -> float:
    """(query, key) pairs; torch's ``is_causal`` lines the mask up at the first query and the first key."""
    if not causal:
        return float(q_len) * kv_len
    square = min(q_len, kv_len)
    return float(attention_pairs(square, square, causal=True)) + max(0, q_len - kv_len) * float(kv_len)


def _attention(call: Call, out: Sequence[TensorSpec]) -> float:
    """Heads first: [B, A, S, D]. 2 pairs (D + Dv) a head."""
    q, k, v = call["query"].shape, call["key"].shape, call["value"].shape
    pairs = pairs_seen(q[-2], k[-2], bool(call.get("is_causal")))
    return 2.0 * math.prod(q[:-2]) * pairs * (q[-1] + v[-1])


def _attention_backward(call: Call, out: Sequence[TensorSpec]) -> float:
    return 2.0 * _attention(call, out)


def _attention_packed(call: Call, out: Sequence[TensorSpec]) -> float:
    """Tokens before heads: [B, S, A, D], or [T, A, D] with ragged lengths, counted as one sequence of the longest
    length repeated."""
    q, k, v = call["query"].shape, call["key"].shape, call["value"].shape
    causal = bool(call.get("is_causal") or call.get("causal") or call.get("custom_mask_type"))
    longest_q = call.get("max_q") or call.get("max_seqlen_q")
    longest_k = call.get("max_k") or call.get("max_seqlen_k")
    ragged = call.get("cum_seq_q") is not None or call.get("cu_seqlens_q") is not None
    if ragged and isinstance(longest_q, int) and isinstance(longest_k, int) and longest_q > 0 and longest_k > 0:
        tokens = math.prod(q[:-2])
        pairs = pairs_seen(longest_q, longest_k, causal) * tokens / longest_q
        return 2.0 * q[-2] * pairs * (q[-1] + v[-1])
    return 2.0 * math.prod(q[:-3]) * q[-2] * pairs_seen(q[-3], k[-3], causal) * (q[-1] + v[-1])


def _attention_packed_backward(call: Call, out: Sequence[TensorSpec]) -> float:
    return 2.0 * _attention_packed(call, out)


def _recurrent(call: Call, out: Sequence[TensorSpec]) -> float:
    """Every weight matrix is applied once to each token of each sequence."""
    weights = call.get("weight") or call.get("params") or ()
    steps = math.prod(call["input"].shape[:-1])
    return 2.0 * steps * sum(math.prod(w.shape) for w in weights if len(w.shape) == 2)


def _recurrent_backward(call: Call, out: Sequence[TensorSpec]) -> float:
    return 2.0 * _recurrent(call, out)


def _fourier(call: Call, out: Sequence[TensorSpec]) -> float:
    """5 N log2 N for a complex transform of N points, half of it if one side is real (Cooley and Tukey, as cuFFT and
    FFTW count)."""
    whole = max((call["self"], out[0]), key=lambda s: math.prod(s.shape))
    points = math.prod(whole.shape[d] for d in call["dim"])
    real = not (call["self"].dtype.startswith("c") and out[0].dtype.startswith("c"))
    return (2.5 if real else 5.0) * math.prod(whole.shape) * math.log2(max(points, 2))


def _bilinear(call: Call, out: Sequence[TensorSpec]) -> float:
    sizes: dict[int, int] = {}
    width = len(out[0].shape) + len(call.get("sumdim") or ())
    for name, expanded in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        places = [d for d in range(width) if d not in call[expanded]]
        for place, size in zip(places, call[name].shape, strict=False):
            sizes[place] = max(size, sizes.get(place, 1))
    return 4.0 * math.prod(sizes.values())


RULES: dict[str, FlopRule] = {
    "mm": _matmul,
    "addmm": _matmul,
    "bmm": _matmul,
    "baddbmm": _matmul,
    "_int_mm": _matmul,
    "_scaled_mm": _matmul,
    "matmul": _matmul,
    "linear": _matmul,
    "_addmm_activation": _matmul,
    "sspaddmm": _matmul,
    "addmm_": _matmul,
    "baddbmm_": _matmul,
    "_weight_int8pack_mm": _matmul,
    "_weight_int4pack_mm": _matmul,
    "addbmm": _sum_of_products,
    "addbmm_": _sum_of_products,
    "dot": _dot,
    "vdot": _dot,
    "mv": _matrix_vector,
    "addmv": _matrix_vector,
    "addmv_": _matrix_vector,
    "addr": _outer_product,
    "addr_": _outer_product,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "convolution": _convolution,
    "_convolution": _convolution,
    "cudnn_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "cudnn_convolution_relu": _convolution,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "mkldnn_convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_flash_attention_forward": _attention_packed,
    "_flash_attention_backward": _attention_packed_backward,
    "_efficient_attention_forward": _attention_packed,
    "_efficient_attention_backward": _attention_packed_backward,
    "_cudnn_attention_forward": _attention,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
    "miopen_rnn": _recurrent,
    "lstm": _recurrent,
    "gru": _recurrent,
    "rnn_tanh": _recurrent,
    "rnn_relu": _recurrent,
    "mkldnn_rnn_layer": _recurrent,
    "_fft_r2c": _fourier,
    "_fft_c2c": _fourier,
    "_fft_c2r": _fourier,
    "_trilinear": _bilinear,
}
"""Operations that are products, by schema name."""
