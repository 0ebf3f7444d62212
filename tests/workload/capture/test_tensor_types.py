# pyright: reportAttributeAccessIssue=false
"""``torch.cuda.FloatTensor`` and its kind, as scripts from before ``device=`` use them; a softmax that converts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from gpuwise.workload.capture.accelerator import FakeAccelerator


def test_types_name_a_format_and_a_device() -> None:
    before = torch.FloatTensor, torch.cuda.FloatTensor, torch.Tensor.type
    with FakeAccelerator():
        made = torch.cuda.FloatTensor(np.ones((8, 64)))
        assert made.is_cuda and made.dtype is torch.float32 and made.shape == (8, 64)
        assert made.type() == "torch.cuda.FloatTensor" and torch.ones(2).type() == "torch.FloatTensor"
        assert torch.cuda.FloatTensor(8, 1).fill_(1.0).shape == (8, 1) == torch.cuda.FloatTensor(made[:, :1].size()).shape
        assert torch.cuda.LongTensor([1, 2, 3]).shape == (3,) and torch.cuda.FloatTensor().numel() == 0
        assert isinstance(made, torch.cuda.FloatTensor) and not isinstance(made, (torch.FloatTensor, torch.cuda.LongTensor))
        assert torch.FloatTensor([1.0, 2.0]).tolist() == [1.0, 2.0]
        # torchvision's ToTensor asks this of a picture that was transposed
        assert isinstance(torch.zeros(64, 64, 3, dtype=torch.uint8).permute(2, 0, 1).contiguous(), torch.ByteTensor)
        there = torch.randn(4).type(torch.cuda.HalfTensor)
        assert there.is_cuda and there.dtype is torch.float16 and there.type(torch.float64).is_cuda
        assert torch.randn(4).type("torch.cuda.IntTensor").dtype is torch.int32
        layer: Any = torch.nn.Linear(4, 4).type(torch.cuda.DoubleTensor)
        assert layer.weight.is_cuda and layer.weight.dtype is torch.float64
    assert before == (torch.FloatTensor, torch.cuda.FloatTensor, torch.Tensor.type)


@pytest.mark.parametrize("form", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_softmax_under_autocast_converts(form: Any, name: str) -> None:
    with FakeAccelerator():
        x = torch.randn(8, 64, device="cuda", dtype=form, requires_grad=True)
        with torch.autocast("cuda", form):
            y = getattr(torch.nn.functional, name)(x, dim=-1)
        assert y.dtype is torch.float32
        y.sum().backward()
        assert x.grad is not None and x.grad.dtype is form
