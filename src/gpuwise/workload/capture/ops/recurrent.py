# pyright: basic
"""LSTM, GRU and plain RNNs as a GPU runs them: cuDNN for whole layers, fused kernels for single cells.

``ATen/native/RNN.cpp`` and ``ATen/native/cudnn/RNN.cpp``: cuDNN takes every floating dtype but float8 when it is
enabled; a cell is two matrix products and one fused kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import DispatchKey

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

aten = torch.ops.aten
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_CUDNN_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _original(op: Any, *args: Any) -> Any:
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args)


def _acceptable(acc: DeviceState, x: Tensor) -> bool:
    return torch.backends.cudnn.enabled and x.dtype in _CUDNN_DTYPES and acc.is_device(x) and x.numel() > 0


def _layers(acc: DeviceState, op: Any) -> Any:
    mode = _MODES[op._schema.name.partition("::")[2]]

    def padded(
        input: Tensor,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if not _acceptable(acc, input):
            return _original(op, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
        return _cudnn(mode, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, [])

    def packed(
        data: Tensor,
        batch_sizes: Tensor,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        if not _acceptable(acc, data):
            return _original(op, data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional)
        sizes = batch_sizes.tolist()
        return _cudnn(mode, data, hx, params, has_biases, num_layers, dropout, train, bidirectional, False, sizes)

    return packed if op._schema.overload_name == "data" else padded


def _cudnn(
    mode: int,
    x: Tensor,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    batch_sizes: list[int],
) -> Any:
    h, c = (hx[0], hx[1]) if mode == 2 else (hx, None)
    hidden = c.shape[2] if c is not None else h.shape[2]
    projection = h.shape[2] if c is not None and h.shape[2] != hidden else 0
    per_layer = (4 if has_biases else 2) + (1 if projection else 0)
    state = (
        aten._cudnn_init_dropout_state.default(
            dropout, train, 0, dtype=torch.uint8, layout=torch.strided, device=torch.device("cuda", 0), pin_memory=False
        )
        if dropout and train
        else None
    )
    output, hy, cy, _, _ = aten._cudnn_rnn.default(
        x,
        params,
        per_layer,
        _flat(params),
        h,
        c,
        mode,
        hidden,
        projection,
        num_layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        batch_sizes,
        state,
    )
    return (output, hy, cy) if c is not None else (output, hy)


def _flat(params: Any) -> Tensor | None:
    """The buffer all weights are views of, if ``flatten_parameters`` made one."""
    keys = {p.untyped_storage()._cdata for p in params}
    total = sum(p.numel() for p in params)
    first = params[0]
    if len(keys) > 1 or first.untyped_storage().nbytes() < total * first.element_size():
        return None
    with torch.no_grad():
        return torch.as_strided(first.detach(), (total,), (1,), 0)


def _lstm_cell(acc: DeviceState, op: Any) -> Any:
    def lstm_cell(input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:
        if not acc.is_device(input):
            return _original(op, input, hx, w_ih, w_hh, b_ih, b_hh)
        gates, more = torch.matmul(input, w_ih.t()), torch.matmul(hx[0], w_hh.t())
        hy, cy, _ = aten._thnn_fused_lstm_cell.default(gates, more, hx[1], b_ih, b_hh)
        return hy, cy

    return lstm_cell


def _gru_cell(acc: DeviceState, op: Any) -> Any:
    def gru_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:
        if not acc.is_device(input):
            return _original(op, input, hx, w_ih, w_hh, b_ih, b_hh)
        gates, more = torch.matmul(input, w_ih.t()), torch.matmul(hx, w_hh.t())
        return aten._thnn_fused_gru_cell.default(gates, more, hx, b_ih, b_hh)[0]

    return gru_cell


RECURRENT: dict[str, Any] = {
    **{f"{name}.{kind}": _layers for name in _MODES for kind in ("input", "data")},
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
}
