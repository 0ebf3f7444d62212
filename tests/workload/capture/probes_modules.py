"""Modules: moved, copied, saved, swapped and tied. See ``probes``."""

from __future__ import annotations

import copy

import torch
from capture_probes import batch, mlp, probe, step
from torch import nn


@probe
def module_moves_keep_parameters():
    m = nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100))
    parameters = list(m.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    m.to("cuda")
    assert all(a is b for a, b in zip(m.parameters(), parameters, strict=True)) and all(p.is_cuda for p in parameters)
    m(torch.randn(4, 100, device="cuda")).sum().backward()
    optimizer.step()
    assert all(p.grad.is_cuda for p in parameters)
    m.half()
    assert m[0].weight.dtype is torch.float16 and m[0].weight.is_cuda
    m.to(torch.bfloat16).cpu()
    assert m[0].weight.device.type == "cpu" and m[1].weight.device.type == "cpu"
    m.cuda().float()
    assert m[1].weight.is_cuda


@probe
def channels_last():
    m = nn.Conv2d(3, 8, 3).to("cuda", memory_format=torch.channels_last)
    x = torch.randn(2, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last)
    y = m(x)
    assert y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()
    y.sum().backward()
    assert m.weight.grad.shape == m.weight.shape


@probe
def state_dicts():
    m, other = mlp(), mlp()
    other.load_state_dict(m.state_dict())
    other.load_state_dict(mlp(device="cpu").state_dict())
    o = torch.optim.AdamW(m.parameters())
    step(m, *batch(), o)
    state = copy.deepcopy(o.state_dict())
    o.load_state_dict(state)
    step(m, *batch(), o)
    assert all(s["exp_avg"].is_cuda for s in o.state.values())


@probe
def save_and_load():
    import io

    m = mlp(device="cpu")
    f = io.BytesIO()
    torch.save({"a": torch.arange(5)}, f)
    f.seek(0)
    assert torch.load(f)["a"].tolist() == [0, 1, 2, 3, 4]
    del m


@probe
def deepcopy_and_average():
    m = mlp()
    e = copy.deepcopy(m).requires_grad_(False)
    assert all(p.is_cuda for p in e.parameters())
    with torch.no_grad():
        for a, b in zip(e.parameters(), m.parameters(), strict=True):
            a.lerp_(b, 0.01)
    s = torch.optim.swa_utils.AveragedModel(m)
    s.update_parameters(m)


@probe
def parameter_swaps():
    m = mlp()
    m[0].weight = nn.Parameter(torch.zeros_like(m[0].weight))
    m[0].weight.data = torch.ones(128, 64, device="cuda")
    m[3].weight.data.normal_()
    m[3].bias.data = torch.zeros(10)  # a host tensor in its place
    assert m[3].bias.device.type == "cpu"


@probe
def functional_call():
    m = mlp()
    p = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}
    torch.func.functional_call(m, p, (batch()[0],)).sum().backward()
    assert all(v.grad is not None for v in p.values())


@probe
def parametrizations():
    for wrap in (
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
    ):
        m = wrap(nn.Linear(16, 16)).cuda()
        m(torch.randn(4, 16, device="cuda")).sum().backward()
        assert all(p.grad is not None for p in m.parameters())


@probe
def tied_weights():
    e, h = nn.Embedding(100, 32), nn.Linear(32, 100, bias=False)
    h.weight = e.weight
    m = nn.Sequential(e, h).cuda()
    assert m[0].weight is m[1].weight
    m(torch.randint(0, 100, (4, 8), device="cuda")).sum().backward()
