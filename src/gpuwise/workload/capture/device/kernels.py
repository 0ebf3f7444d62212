# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Outputs of CUDA-only kernels that have no meta kernel in torch: shapes and dtypes only.

Registered for meta tensors while a capture is active. If a kernel also allocates memory inside cuDNN, the size is an estimate
from the needs of the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._meta_registrations
from torch import Tensor
from torch._prims_common import suggest_memory_format

_convolution_shape = torch._meta_registrations.meta_conv
_empty = torch._C._VariableFunctions.empty
_RNN_RESERVE = {0: 2, 1: 2, 2: 6, 3: 6}
"""Values per hidden unit and time step that training keeps, by cuDNN mode (relu, tanh, LSTM, GRU); an estimate.

A plain RNN keeps its activation and the layer's output; an LSTM its four gates, the cell state and the output; a GRU
three gates, the linear part of the candidate, its hidden product and the output.
"""


def _like(tensor: Tensor, shape: Any = None, dtype: torch.dtype | None = None) -> Tensor:
    return _empty(tuple(tensor.shape if shape is None else shape), dtype=dtype or tensor.dtype, device=tensor.device)


def cudnn_rnn(
    input: Tensor,
    weight: Any,
    weight_stride0: int,
    weight_buf: Any,
    hx: Tensor,
    cx: Any,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Any,
    dropout_state: Any,
) -> Any:
    """Output, final states, the reserve saved for the backward pass, and the flat weight buffer."""
    directions = 2 if bidirectional else 1
    out = proj_size or hidden_size
    if batch_sizes:
        steps = input.shape[0]
        batch = int(batch_sizes[0])
        output = _like(input, (steps, out * directions))
    else:
        a, b = input.shape[:2]
        steps, batch = a * b, a if batch_first else b
        output = _like(input, (a, b, out * directions))
    hy = _like(hx, (num_layers * directions, batch, out))
    cy = _like(hx, (0,)) if cx is None else _like(cx, (num_layers * directions, batch, hidden_size))
    reserve_bytes = 0
    if train:
        reserve_bytes = _RNN_RESERVE[mode] * hidden_size * steps * directions * num_layers * input.element_size()
        if dropout:
            reserve_bytes += steps * out * directions * (num_layers - 1)
    reserve = _like(input, (reserve_bytes,), torch.uint8)
    if weight_buf is None:
        weight_buf = _like(input, (sum(w.numel() for w in weight),))
    return output, hy, cy, reserve, weight_buf


def cudnn_rnn_backward(
    input: Tensor,
    weight: Any,
    weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Any,
    output: Tensor,
    grad_output: Any,
    grad_hy: Any,
    grad_cy: Any,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Any,
    dropout_state: Any,
    reserve: Tensor,
    output_mask: Any,
) -> Any:
    """Gradients; those of the weights are views of one flat buffer as cuDNN writes them."""
    grads: list[Tensor] = []
    if output_mask[3]:
        flat = _like(weight_buf)
        offset = 0
        for w in weight:
            grads.append(flat[offset : offset + w.numel()].view(w.shape))
            offset += w.numel()
    nothing = _like(input, (0,))
    return _like(input), _like(hx), _like(cx) if cx is not None else nothing, grads


def cudnn_rnn_flatten_weight(
    weight_arr: Any,
    weight_stride0: int,
    input_size: int,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    bidirectional: bool,
) -> Tensor:
    """One buffer that holds all weights; the weights become views of it."""
    flat = _like(weight_arr[0], (sum(w.numel() for w in weight_arr),))
    offset = 0
    for w in weight_arr:
        w.set_(flat.untyped_storage(), offset, w.shape, w.stride())
        offset += w.numel()
    return flat


def cudnn_init_dropout_state(
    dropout: float,
    train: bool,
    dropout_seed: int,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    """Random state of cuDNN's dropout: ``cudnnDropoutGetStatesSize``, a few MB that depend on the device; an estimate."""
    return _empty((_DROPOUT_STATE_BYTES if dropout and train else 0,), dtype=torch.uint8, device="meta")


_DROPOUT_STATE_BYTES = 2 << 20


def thnn_fused_gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Any = None, hidden_bias: Any = None
) -> Any:
    """New state and a workspace of five values per hidden unit: ATen/native/cuda/RNN.cu."""
    return _like(hx), _like(hx, (hx.shape[0], hx.shape[1] * 5))


def thnn_fused_gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> Any:
    """Gradients of a fused GRU cell: gates, state and biases."""
    batch, hidden = workspace.shape[0], workspace.shape[1] // 5
    gates, more = (_like(workspace, (batch, 3 * hidden)) for _ in range(2))
    bias = (_like(workspace, (3 * hidden,)), _like(workspace, (3 * hidden,))) if has_bias else (None, None)
    return gates, more, _like(grad_hy), *bias


def cudnn_grid_sampler(self: Tensor, grid: Tensor) -> Tensor:
    """cuDNN's grid sampling: the grid's height and width."""
    return _like(self, (self.shape[0], self.shape[1], grid.shape[1], grid.shape[2]))


def cudnn_grid_sampler_backward(self: Tensor, grid: Tensor, grad_output: Tensor) -> Any:
    """Gradients of input and grid."""
    return _like(self), _like(grid)


def fused_rms_norm(input: Tensor, normalized_shape: Any, weight: Any, eps: Any) -> Any:
    """Normalised input and the reciprocal root mean square of each row, in the accumulation dtype."""
    rows = (*input.shape[: input.dim() - len(normalized_shape)], *(1 for _ in normalized_shape))
    wide = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
    return _like(input), _like(input, rows, wide)


def use_cudnn_ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int) -> bool:
    """cuDNN's loss needs its targets on the host as int32: the device's targets never qualify."""
    return False


def sample_dirichlet(self: Tensor, generator: Any = None) -> Tensor:
    """Samples of the shape of the concentrations."""
    return _like(self)


def binomial(count: Tensor, prob: Tensor, generator: Any = None) -> Tensor:
    """Samples of the broadcast shape of counts and probabilities."""
    return _like(count, torch.broadcast_shapes(count.shape, prob.shape))


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    """Result of a convolution in the layout cuDNN writes: channels last if input or weight is.

    ``cudnn_conv_suggest_memory_format`` of ATen/native/ConvUtils.h.
    """
    out = _convolution_shape(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    layout = torch.contiguous_format
    if torch.float64 not in (input.dtype, weight.dtype) and weight.dim() in (4, 5) and input.dim() == weight.dim():
        last = torch.channels_last if weight.dim() == 4 else torch.channels_last_3d
        if last in (suggest_memory_format(input), suggest_memory_format(weight)):
            layout = last
    return _empty(out.shape, dtype=out.dtype, device=out.device, memory_format=layout)


def like(index: int) -> Any:
    """A kernel whose result has the shape, dtype and layout of its argument ``index``."""

    def kernel(*args: Any, **kwargs: Any) -> Tensor:
        source = args[index]
        return torch._C._VariableFunctions.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=source.device)

    return kernel


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, zero_infinity: bool = False
) -> Any:
    """Loss per sequence and the forward variables [N, T, 2 L + 1]: ATen/native/cuda/LossCTC.cu.

    log_probs [T, N, C]; the longest target comes from padded targets [N, L]; otherwise it is the length of all targets
    together.
    """
    steps, batch = log_probs.shape[:2]
    longest = targets.shape[1] if targets.dim() == 2 else targets.shape[0]
    if not isinstance(target_lengths, Tensor) and target_lengths:
        longest = max(target_lengths)
    return _like(log_probs, (batch,)), _like(log_probs, (batch, steps, 2 * longest + 1))


def weight_norm_interface_backward(grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int) -> Any:
    """Gradients of direction and magnitude."""
    return _like(saved_v), _like(saved_g)


def softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """A softmax or its logarithm, in fp32 where it converts (torch's own rule takes fp16 alone; the kernel bf16 too)."""
    return _like(self, dtype=torch.float32 if half_to_float else None)


def masked_softmax(self: Tensor, mask: Tensor, dim: Any = None, mask_type: Any = None) -> Tensor:
    """A softmax of the input's shape."""
    return _like(self)


def grouped_mm(self: Tensor, mat2: Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Tensor:
    """Groups of a product, in any floating format: bf16 in one kernel, others group by group.

    [T, K] x [E, K, N] gives [T, N]; [M, T] x [T, N] gives [E, M, N] and [E, M, K] x [K, T] gives [M, T], with T shared out over
    E; rows are padded to 16 bytes (``create_grouped_gemm_output_tensor`` of ATen/native/GroupedMMUtils.h).
    """
    if self.dtype != mat2.dtype or not self.is_floating_point():
        raise RuntimeError(f"Expected mat_a and mat_b to have the same floating dtype, got {self.dtype} and {mat2.dtype}")
    if self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError(f"contraction dimension of mat_a and mat_b must match, got {self.shape} and {mat2.shape}")
    if self.dim() == 2:
        size = (len(offs), self.shape[0], mat2.shape[1]) if mat2.dim() == 2 else (self.shape[0], mat2.shape[-1])
    else:
        size = (self.shape[1], mat2.shape[1]) if mat2.dim() == 2 else (self.shape[0], self.shape[1], mat2.shape[-1])
    dtype = out_dtype or self.dtype
    row = -(-size[-1] // (16 // dtype.itemsize)) * (16 // dtype.itemsize)
    stride = (row, 1) if len(size) == 2 else (size[1] * row, row, 1)
    return torch._C._VariableFunctions.empty_strided(size, stride, dtype=dtype, device=self.device)


KERNELS: dict[str, Any] = {
    "_grouped_mm": grouped_mm,
    "_cudnn_rnn": cudnn_rnn,
    "_cudnn_rnn_backward": cudnn_rnn_backward,
    "_cudnn_rnn_flatten_weight": cudnn_rnn_flatten_weight,
    "_cudnn_init_dropout_state": cudnn_init_dropout_state,
    "_thnn_fused_gru_cell": thnn_fused_gru_cell,
    "_thnn_fused_gru_cell_backward": thnn_fused_gru_cell_backward,
    "cudnn_grid_sampler": cudnn_grid_sampler,
    "cudnn_grid_sampler_backward": cudnn_grid_sampler_backward,
    "_fused_rms_norm": fused_rms_norm,
    "_use_cudnn_ctc_loss": use_cudnn_ctc_loss,
    "_use_cudnn_ctc_loss.Tensor": use_cudnn_ctc_loss,
    "_sample_dirichlet": sample_dirichlet,
    "binomial": binomial,
    "_standard_gamma": sample_dirichlet,
    "_standard_gamma_grad": like(0),
    "_dirichlet_grad": like(0),
    "multi_margin_loss_backward": like(1),
    "multilabel_margin_loss_backward": like(1),
    "fractional_max_pool3d_backward": like(1),
    "_ctc_loss": ctc_loss,
    "_ctc_loss.Tensor": ctc_loss,
    "_ctc_loss_backward": like(1),
    "_ctc_loss_backward.Tensor": like(1),
    "_weight_norm_interface_backward": weight_norm_interface_backward,
    "_softmax": softmax,
    "_log_softmax": softmax,
    "_masked_softmax": masked_softmax,
    "_masked_softmax_backward": like(0),
    "convolution": convolution,
}
