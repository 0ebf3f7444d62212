"""Autograd beyond backward, and sizes and branches that depend on values. See ``probes``."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from capture_probes import batch, mlp, probe
from torch import nn
from torch.utils.checkpoint import checkpoint

# -- autograd ------------------------------------------------------------------------------------------------------------


@probe
def checkpoints():
    m = mlp()
    for reentrant in (True, False):
        x = batch()[0].requires_grad_()
        checkpoint(m, x, use_reentrant=reentrant).sum().backward()
        assert x.grad is not None
    from torch.utils.checkpoint import checkpoint_sequential

    checkpoint_sequential(m, 2, batch()[0].requires_grad_(), use_reentrant=False).sum().backward()


@probe
def selective_checkpoint():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    m = mlp()
    out = checkpoint(m, batch()[0], use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
    out.sum().backward()


@probe
def saved_tensor_hooks():
    m = mlp()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        out = m(torch.randn(512, 64, device="cuda"))
    out.sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to("cpu"), lambda t: t.to("cuda")):
        out = m(torch.randn(512, 64, device="cuda"))
    out.sum().backward()
    assert m[0].weight.grad.is_cuda


@probe
def autograd_function():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x = torch.randn(4, device="cuda", requires_grad=True)
    Square.apply(x).sum().backward()
    assert x.grad.is_cuda


@probe
def double_backward():
    m = mlp()
    x = batch()[0].requires_grad_()
    (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
    (g.norm(2, dim=1) - 1).pow(2).mean().backward()
    assert m[0].weight.grad is not None


@probe
def functional_transforms():
    m = mlp()
    p = dict(m.named_parameters())
    x = batch()[0]

    def loss(p, x):
        return torch.func.functional_call(m, p, (x[None],)).sum()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(p, x)
    assert grads["0.weight"].shape == (16, 128, 64)
    torch.func.jvp(lambda t: t.sin(), (x,), (x,))
    torch.func.vmap(lambda t: t * 2)(x)
    torch.func.jacrev(lambda t: t.sum(0))(x)


@probe
def hooks():
    m = mlp()
    seen = []
    m[0].register_forward_hook(lambda mod, i, o: seen.append(o.shape))
    m[0].register_full_backward_hook(lambda mod, gi, go: seen.append(go[0].shape))
    m[0].weight.register_hook(lambda g: g * 2)
    m[3].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.shape))
    m(batch()[0]).sum().backward()
    assert len(seen) == 3


@probe
def retain_and_grad_modes():
    m = mlp()
    x = batch()[0].requires_grad_()
    y = m(x)
    y.retain_grad()
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert y.grad is not None
    with torch.no_grad():
        m(x)
    with torch.inference_mode():
        m(x)
    with torch.autograd.set_detect_anomaly(False):
        m(x).sum().backward()


@probe
def anomaly_mode():
    with torch.autograd.detect_anomaly(check_nan=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlp()(batch()[0]).sum().backward()


# -- data-dependent ------------------------------------------------------------------------------------------------------


@probe
def data_dependent_sizes():
    x = torch.randn(8, 4, device="cuda", requires_grad=True)
    mask = x > 0
    assert x[mask].shape == (16,) and x[mask[:, 0]].shape == (4, 4)
    x[mask].sum().backward()
    assert torch.nonzero(mask).shape == (16, 2) and len(torch.where(mask)) == 2
    assert x.masked_select(mask).shape == (16,) and int(mask.sum()) == 16
    ids = torch.randint(0, 5, (20,), device="cuda")
    assert ids.unique().shape == (5,) and len(ids.unique(return_inverse=True, return_counts=True)) == 3
    assert torch.unique(ids.view(4, 5), dim=0).shape == (4, 5) and torch.unique_consecutive(ids).shape == (20,)
    assert torch.repeat_interleave(ids, torch.ones(20, dtype=torch.long, device="cuda"), output_size=20).shape == (20,)
    torch.repeat_interleave(ids, 3)
    torch.repeat_interleave(ids, torch.ones(20, dtype=torch.long, device="cuda"))
    torch.bincount(ids, minlength=5)
    y = x.detach().clone()
    y[mask] = 0.0
    y[mask] = torch.zeros(16, device="cuda")
    y.masked_fill_(mask, 1.0)
    y.masked_scatter_(mask, torch.zeros(32, device="cuda"))


@probe
def known_small_values():
    lengths = torch.tensor([3, 5, 2], device="cuda")
    assert lengths.tolist() == [3, 5, 2] and int(lengths.max()) >= 1
    mask = torch.tensor([True, False, True], device="cuda")
    assert torch.randn(3, 4, device="cuda")[mask].shape == (2, 4)


@probe
def control_flow_on_values():
    m = mlp()
    loss = F.cross_entropy(m(batch()[0]), batch()[1])
    if torch.isnan(loss) or not torch.isfinite(loss).all():
        raise ValueError("loss is nan")
    if torch.isnan(loss).any() or torch.isinf(loss).any():
        raise ValueError("loss is nan")
    assert torch.isfinite(loss)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=True)
    print(loss, norm, loss.item())


@probe
def expert_routing():
    """A mixture of experts as Mixtral's reference code routes it."""
    x, experts = (
        torch.randn(16, 32, device="cuda", requires_grad=True),
        nn.ModuleList([nn.Linear(32, 32) for _ in range(4)]).cuda(),
    )
    gate = nn.Linear(32, 4).cuda()
    weights, chosen = torch.topk(gate(x).softmax(-1), 2)
    one_hot = F.one_hot(chosen, 4).permute(2, 1, 0)
    out = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        idx, top = torch.where(one_hot[i])
        out.index_add_(0, top, expert(x[top]) * weights[top, idx, None])
    out.sum().backward()
