"""Optimizers, schedulers, accumulation and mixed precision. See ``probes``."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from capture_probes import PROBES, batch, mlp, probe, step
from torch import nn
from torch.utils.checkpoint import checkpoint


def _optimizer(make):
    m = mlp()
    o = make(m.parameters())
    for _ in range(3):
        step(m, *batch(), o, clip=1.0)


for _name, _make in {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_momentum_fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adamw_single": lambda p: torch.optim.AdamW(p, foreach=False),
    "adamw_capturable": lambda p: torch.optim.AdamW(p, capturable=True),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p),
    "asgd": lambda p: torch.optim.ASGD(p),
}.items():
    PROBES[f"optimizer_{_name}"] = lambda make=_make: _optimizer(make)


@probe
def optimizer_lbfgs():
    m = mlp()
    o = torch.optim.LBFGS(m.parameters(), max_iter=2)
    x, y = batch()

    def closure():
        o.zero_grad()
        loss = F.cross_entropy(m(x), y)
        loss.backward()
        return loss

    o.step(closure)


@probe
def scheduler_and_accumulation():
    m = mlp()
    o = torch.optim.AdamW(m.parameters())
    s = torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)
    for i in range(4):
        F.cross_entropy(m(batch()[0]), batch()[1]).backward()
        if i % 2:
            o.step()
            o.zero_grad(set_to_none=False)
            s.step()


@probe
def amp_fp16_scaler():
    m = mlp()
    o = torch.optim.AdamW(m.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        o.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = m(batch()[0])
            assert out.dtype is torch.float16
            loss = F.cross_entropy(out, batch()[1])
            assert loss.dtype is torch.float32
        scaler.scale(loss).backward()
        scaler.unscale_(o)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        scaler.step(o)
        scaler.update()
    assert m[0].weight.grad.dtype is torch.float32 and scaler.state_dict()["scale"] > 0
    assert all(len(s) for s in o.state.values())


@probe
def old_amp():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = torch.cuda.amp.GradScaler()
        m = mlp()
        o = torch.optim.SGD(m.parameters(), lr=0.1)
        with torch.cuda.amp.autocast():
            loss = F.cross_entropy(m(batch()[0]), batch()[1])
        scaler.scale(loss).backward()
        scaler.step(o)
        scaler.update()


@probe
def autocast_lists():
    x, w = torch.randn(8, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    half = x.half()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ w).dtype is torch.bfloat16 and torch.einsum("ij,jk->ik", x, w).dtype is torch.bfloat16
        assert F.linear(x, w).dtype is torch.bfloat16 and torch.exp(half).dtype is torch.float32
        assert half.sum().dtype is torch.float32 and half.softmax(-1).dtype is torch.float32
        assert half.sum(dtype=torch.float16).dtype is torch.float16
        assert F.layer_norm(half, (8,)).dtype is torch.float32 and F.mse_loss(half, half).dtype is torch.float32
        assert torch.addcmul(x, half, half).dtype is torch.float32 and half.norm().dtype is torch.float32
        assert (x.double() @ w.double()).dtype is torch.float64
        assert F.interpolate(half[None, None], scale_factor=2).dtype is torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (x @ w).dtype is torch.float32
        assert (torch.ones(3, 3) @ torch.ones(3, 3)).dtype is torch.float32
        try:
            F.binary_cross_entropy(x.sigmoid(), w.sigmoid())
        except RuntimeError as error:
            assert "unsafe to autocast" in str(error)
        else:
            raise AssertionError("binary_cross_entropy is banned")
        F.binary_cross_entropy_with_logits(x, w)
    assert (x @ w).dtype is torch.float32


@probe
def autocast_custom_function():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("cuda") and x.dtype is torch.float32
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, g):
            return g * 2

    x = torch.randn(4, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        Double.apply(x).sum().backward()


@probe
def autocast_weight_cache():
    m = nn.Linear(256, 256, bias=False).cuda()
    x = torch.randn(1, 256, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        m(x)
        live = torch.cuda.memory_allocated()
        m(x)
        assert torch.cuda.memory_allocated() == live
        assert live >= 256 * 256 * 6
    assert torch.cuda.memory_allocated() < 256 * 256 * 6


@probe
def autocast_checkpoint():
    m = mlp()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = checkpoint(m, batch()[0], use_reentrant=False)
    out.float().sum().backward()
