"""Other operations, compiling, CUDA graphs, data loading. See ``probes``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from capture_probes import batch, mlp, probe
from torch import nn

# -- other operations ----------------------------------------------------------------------------------------------------


@probe
def fourier_and_complex():
    x = torch.randn(4, 64, device="cuda", requires_grad=True)
    y = torch.fft.rfft(x) * torch.randn(33, dtype=torch.complex64, device="cuda")
    torch.fft.irfft(y, n=64).sum().backward()
    torch.stft(x.detach(), 16, return_complex=True, window=torch.hann_window(16, device="cuda")).abs()
    torch.view_as_real(y.detach())
    torch.polar(torch.ones(3, device="cuda"), torch.ones(3, device="cuda"))
    y.conj().imag.sum()


@probe
def linear_algebra():
    a = torch.randn(4, 4, device="cuda", requires_grad=True)
    for f in (torch.linalg.svdvals, torch.linalg.inv, torch.linalg.det, torch.linalg.norm, torch.linalg.pinv):
        f(a).sum().backward()
    torch.linalg.qr(a)
    torch.linalg.eigh(a @ a.T)
    torch.linalg.cholesky(a @ a.T)
    torch.linalg.solve(a, a)


@probe
def indexing_and_sorting():
    x = torch.randn(8, 16, device="cuda", requires_grad=True)
    idx = torch.randint(0, 8, (5,), device="cuda")
    for y in (
        x[idx],
        x.gather(0, idx[:, None].expand(5, 16)),
        x.index_select(0, idx),
        x.sort(-1)[0],
        x.topk(3)[0],
        x.cumsum(0),
        x.flip(0),
        x.roll(1),
        x.tril(),
        x.cummax(0)[0],
        x.median(0)[0],
        x.kthvalue(2)[0],
        x.unfold(0, 3, 1),
        x.diff(),
    ):
        y.sum().backward()
    z = torch.zeros(8, 16, device="cuda")
    z.scatter_add_(0, idx[:, None].expand(5, 16), torch.ones(5, 16, device="cuda"))
    z.scatter_reduce_(0, idx[:, None].expand(5, 16), torch.ones(5, 16, device="cuda"), "mean")
    z.index_add_(0, idx, torch.ones(5, 16, device="cuda"))
    z[idx] = 1.0
    z[2:4, ::2] += 1
    torch.searchsorted(torch.arange(10.0, device="cuda"), x.detach())
    torch.multinomial(x.detach().softmax(-1), 3)
    torch.quantile(x.detach(), 0.5)
    torch.histc(x.detach())


@probe
def shapes_and_joins():
    x = torch.randn(4, 6, device="cuda", requires_grad=True)
    torch.cat([x, x]).chunk(2)[0].sum().backward()
    torch.stack([x, x]).split(1)[0].sum().backward()
    x.repeat(2, 2).unflatten(0, (2, 4)).permute(1, 0, 2).contiguous().view(-1).sum().backward()
    torch.einsum("ij,kj->ik", x, x).sum().backward()
    torch.where(x > 0, x, 0.0).sum().backward()
    torch.meshgrid(torch.arange(3, device="cuda"), torch.arange(4, device="cuda"), indexing="ij")
    torch.block_diag(x, x)
    torch.cdist(x, x).sum().backward()
    F.one_hot(torch.randint(0, 5, (4,), device="cuda"), 5)
    F.one_hot(torch.randint(0, 5, (4,), device="cuda"))
    torch.linspace(0, 1, 5, device="cuda")
    torch.full((2, 2), 3.0, device="cuda").new_zeros(5)
    torch.add(x.detach(), x.detach(), out=torch.empty(0, device="cuda"))


@probe
def random_and_distributions():
    torch.rand(3, device="cuda").uniform_().exponential_().log_normal_().geometric_(0.5).cauchy_().random_()
    torch.randperm(10, device="cuda")
    torch.normal(torch.zeros(3, device="cuda"), torch.ones(3, device="cuda"))
    d = torch.distributions.Normal(torch.zeros(3, device="cuda"), torch.ones(3, device="cuda"))
    d.log_prob(d.rsample()).sum()
    torch.distributions.Categorical(logits=torch.randn(4, 5, device="cuda")).sample()
    torch.distributions.Gamma(torch.ones(3, device="cuda"), torch.ones(3, device="cuda")).rsample()
    torch.distributions.Dirichlet(torch.ones(3, device="cuda")).sample()
    F.gumbel_softmax(torch.randn(4, 5, device="cuda"), hard=True)
    nn.init.trunc_normal_(torch.empty(8, 8, device="cuda"))
    nn.init.orthogonal_(torch.empty(8, 8, device="cuda"))


@probe
def half_softmax():
    x = torch.randn(4, 8, device="cuda", dtype=torch.float16)
    assert x.softmax(-1, dtype=torch.float32).dtype is torch.float32


@probe
def low_precision():
    x = torch.randn(32, 64, device="cuda").to(torch.float8_e4m3fn)
    w = torch.randn(48, 64, device="cuda").to(torch.float8_e4m3fn)
    one = torch.tensor(1.0, device="cuda")
    out = torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    assert out.shape == (32, 48) and out.dtype is torch.bfloat16


# -- compile, graphs, data -----------------------------------------------------------------------------------------------


@probe
def compiled_forms():
    m = mlp()
    c = torch.compile(m, mode="max-autotune", fullgraph=True)
    c(batch()[0]).sum().backward()
    assert c._orig_mod is m and len(list(c.parameters())) == len(list(m.parameters()))
    assert next(iter(c.state_dict())).startswith("_orig_mod.")
    m.compile()
    m(batch()[0]).sum().backward()

    @torch.compile
    def f(x):
        return x.sin() + 1

    @torch.compile(dynamic=True)
    def g(x):
        return x.cos()

    assert f(batch()[0]).is_cuda and g(batch()[0]).is_cuda

    @torch.compiler.disable
    def h(x):
        return x + 1

    h(batch()[0])
    c.train().eval()
    c.load_state_dict(c.state_dict())


@probe
def cuda_graphs():
    g = torch.cuda.CUDAGraph()
    x = torch.zeros(3, device="cuda")
    with torch.cuda.graph(g):
        x + 1
    g.replay()


@probe
def data_loader():
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    for pin in (False, True):
        for x, y in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, pin_memory=pin):
            assert x.to("cuda", non_blocking=True).shape == (16, 8) and y.cuda().is_cuda


@probe
def gans():
    g, d = mlp(out=64), mlp(out=1)
    og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    real = batch()[0]
    fake = g(torch.randn(16, 64, device="cuda"))
    loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
    od.zero_grad()
    loss.backward()
    od.step()
    og.zero_grad()
    F.softplus(-d(fake)).mean().backward()
    og.step()


@probe
def data_parallel():
    m = nn.DataParallel(mlp())
    m(batch()[0]).sum().backward()


@probe
def nvtx_and_profiler_marks():
    torch.cuda.nvtx.range_push("a")
    torch.cuda.nvtx.range_pop()
    with torch.profiler.record_function("forward"):
        mlp()(batch()[0])


@probe
def backend_flags():
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    mlp()(batch()[0])
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


@probe
def out_of_scope_is_named():
    from gpuwise.errors import NoFakeRuleError

    x = torch.eye(4, device="cuda")
    try:
        torch.sparse.mm(x.to_sparse(), x)
    except NoFakeRuleError as error:
        assert error.operator and error.hint


@probe
def inverse_short_time_fourier_transform():
    window = torch.hann_window(400, device="cuda")
    x = torch.randn(2, 16000, device="cuda", requires_grad=True)
    spectrum = torch.stft(x, 400, 100, window=window, return_complex=True)
    back = torch.istft(spectrum * 0.5, 400, 100, window=window, length=16000)
    assert back.shape == x.shape
    back.sum().backward()


@probe
def grouped_products_in_any_format():
    offsets = torch.tensor([16, 40, 64], dtype=torch.int32, device="cuda")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(64, 32, device="cuda", dtype=dtype, requires_grad=True)
        w = torch.randn(3, 32, 24, device="cuda", dtype=dtype, requires_grad=True)
        out = torch._grouped_mm(x, w, offs=offsets)
        assert out.shape == (64, 24) and out.dtype is dtype
        out.float().sum().backward()
        assert x.grad.shape == x.shape and w.grad.shape == w.shape
