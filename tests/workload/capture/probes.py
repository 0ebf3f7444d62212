"""Small training and inference steps, one for each feature a real program uses. No test here: ``test_probes`` runs them.

Each probe runs under an active accelerator and returns nothing; it asserts what a program on a GPU could rely on.
"""

from __future__ import annotations

import copy
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

PROBES = {}


def probe(function):
    PROBES[function.__name__] = function
    return function


def mlp(*, n=64, out=10, device="cuda"):
    return nn.Sequential(nn.Linear(n, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, out)).to(device)


def step(model, x, y, optimizer, scaler=None, clip=None):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss


def batch(n=16, f=64, classes=10):
    return torch.randn(n, f, device="cuda"), torch.randint(0, classes, (n,), device="cuda")


# -- devices and moves ---------------------------------------------------------------------------------------------------


@probe
def device_names():
    for device in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0), 0):
        t = torch.zeros(3, device=device)
        assert t.device == torch.device("cuda", 0) and t.is_cuda and not t.is_cpu and t.get_device() == 0
        assert torch.ones(5).to(device).is_cuda
    assert torch.zeros(3).cuda().is_cuda and torch.zeros(3).cuda(0, non_blocking=True).is_cuda
    assert torch.tensor([1, 2, 3], device="cuda").is_cuda
    assert torch.as_tensor([1.0], device="cuda").is_cuda


@probe
def wrong_ordinal():
    try:
        torch.zeros(3).to("cuda:7")
    except RuntimeError as error:
        assert "invalid device ordinal" in str(error)
    else:
        raise AssertionError("cuda:7 does not exist")


@probe
def to_same_device_is_identity():
    t = torch.zeros(3, device="cuda")
    assert t.to("cuda") is t and t.cuda() is t and t.to(torch.float32) is t and t.to("cuda", torch.float32) is t
    assert t.to("cuda", torch.float16).dtype is torch.float16
    assert t.to(dtype=torch.bfloat16, device="cuda", non_blocking=True).dtype is torch.bfloat16
    assert t.to("cuda", copy=True) is not t
    assert t.to(torch.zeros(1, dtype=torch.float64, device="cuda")).dtype is torch.float64


@probe
def device_context():
    with torch.device("cuda"):
        t = torch.zeros(3)
        m = nn.Linear(4, 4)
    assert t.is_cuda and m.weight.is_cuda and torch.zeros(3).device.type == "cpu"


@probe
def default_device():
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(3).is_cuda and nn.Linear(3, 3).weight.is_cuda
    finally:
        torch.set_default_device(None)
    assert torch.zeros(3).device.type == "cpu"


@probe
def small_host_tensors_are_real():
    t = torch.arange(10)
    assert t.sum().item() == 45 and t.numpy().tolist() == list(range(10))


@probe
def large_host_tensors():
    t = torch.randn(5000, 5000, 50)
    assert t.device.type == "cpu" and (t + 1).device.type == "cpu" and t[0].device.type == "cpu"
    d = t.to("cuda")
    assert d.is_cuda and d.to("cpu").device.type == "cpu"
    assert t.numpy().shape == (5000, 5000, 50)


@probe
def mixed_devices_raise():
    for other in (torch.ones(3), torch.ones(100, 100)):
        mine = torch.ones(other.shape, device="cuda")
        try:
            mine + other
        except RuntimeError as error:
            assert "Expected all tensors to be on the same device" in str(error)
        else:
            raise AssertionError("mixing devices must raise")
    assert (torch.ones(3, device="cuda") * torch.tensor(2.0)).is_cuda
    assert torch.ones(4, 3, device="cuda")[torch.tensor([0, 1])].shape == (2, 3)


@probe
def numpy_of_a_device_tensor():
    try:
        torch.ones(3, device="cuda").numpy()
    except TypeError as error:
        assert "can't convert cuda:0 device type tensor to numpy" in str(error)
    else:
        raise AssertionError("numpy() of a device tensor must raise")
    assert torch.ones(3, device="cuda").cpu().numpy().shape == (3,)
    assert torch.ones(100, 100, device="cuda").cpu().numpy().shape == (100, 100)


@probe
def values_read_back():
    t = torch.ones(3, device="cuda")
    assert isinstance(t.sum().item(), float) and isinstance(float(t.sum()), float)
    assert isinstance(t.argmax().item(), int) and isinstance(bool((t > 0).any()), bool)
    assert len(t.tolist()) == 3 and "cuda:0" in repr(t) and f"{t.sum():.3f}"
    assert torch.equal(t, t.clone()) and torch.allclose(t, t)
    assert int(torch.tensor(7, device="cuda")) == 7


@probe
def pinned_copies():
    t = torch.randn(8, 8).pin_memory()
    assert t.to("cuda", non_blocking=True).is_cuda


@probe
def properties_and_memory():
    p = torch.cuda.get_device_properties(0)
    assert p.major == 9 and p.total_memory == 80 << 30 and p.multi_processor_count and torch.cuda.get_device_name()
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() == (9, 0)
    before = torch.cuda.memory_allocated()
    t = torch.empty(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4 << 20
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_allocated()
    del t
    assert torch.cuda.memory_allocated() == before and torch.cuda.max_memory_allocated() >= before + (4 << 20)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    torch.cuda.memory_summary()


@probe
def streams_and_events():
    s = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        t = torch.ones(3, device="cuda")
        t.record_stream(s)
        assert torch.cuda.current_stream() == s
    torch.cuda.current_stream().wait_stream(s)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0 and torch.cuda.current_stream() == torch.cuda.default_stream()


@probe
def accelerator_module():
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "cuda"
    assert torch.accelerator.device_count() == 1 and torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()


@probe
def generators_and_seeds():
    g = torch.Generator(device="cuda")
    g.manual_seed(3)
    assert torch.randn(3, generator=g, device="cuda").is_cuda and g.device.type == "cuda"
    assert torch.randperm(10, generator=torch.Generator().manual_seed(1)).shape == (10,)
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    torch.bernoulli(torch.full((4,), 0.5, device="cuda"), generator=g)


@probe
def user_meta_device():
    with torch.device("meta"):
        m = nn.Linear(1000, 1000)
    assert m.weight.device.type == "meta" and torch.cuda.memory_allocated() == 0
    m.to_empty(device="cuda")
    assert m.weight.is_cuda and torch.cuda.memory_allocated() == 4 * (1000 * 1000 + 1000)
    assert torch.empty(5, device="meta").device.type == "meta"


# -- modules -------------------------------------------------------------------------------------------------------------


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
    for wrap in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm,
                 nn.utils.parametrizations.orthogonal):  # fmt: skip
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


# -- optimizers and loops ------------------------------------------------------------------------------------------------


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


# -- layers --------------------------------------------------------------------------------------------------------------


@probe
def cnn():
    m = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(16, 16,
            3, groups=16),
        nn.GroupNorm(4, 16), nn.SiLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 10),
    ).cuda()  # fmt: skip
    o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        step(m, torch.randn(4, 3, 32, 32, device="cuda"), batch(4)[1], o)
    m.eval()
    with torch.inference_mode():
        m(torch.randn(4, 3, 32, 32, device="cuda"))


@probe
def convolutions():
    for conv, n in ((nn.Conv1d, 1), (nn.Conv2d, 2), (nn.Conv3d, 3), (nn.ConvTranspose1d, 1), (nn.ConvTranspose2d, 2),
                    (nn.ConvTranspose3d, 3)):  # fmt: skip
        conv(4, 8, 3, stride=2).cuda()(torch.randn(2, 4, *[9] * n, device="cuda", requires_grad=True)).sum().backward()


@probe
def norms():
    x = torch.randn(2, 8, 6, 6, device="cuda", requires_grad=True)
    for layer in (nn.BatchNorm2d(8), nn.InstanceNorm2d(8, affine=True), nn.GroupNorm(2, 8), nn.LayerNorm(6), nn.RMSNorm(6),
                  nn.LocalResponseNorm(2), nn.SyncBatchNorm(8).eval()):  # fmt: skip
        layer.cuda()(x).sum().backward()


@probe
def pooling_and_resampling():
    x = torch.randn(2, 4, 16, 16, device="cuda", requires_grad=True)
    layers = [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveMaxPool2d(3), nn.AdaptiveAvgPool2d(3), nn.LPPool2d(2, 2),
              nn.PixelShuffle(2), nn.Unfold(3), nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.ZeroPad2d(1),
              nn.FractionalMaxPool2d(2, output_size=8), nn.CircularPad2d(1)]  # fmt: skip
    for layer in layers:
        layer(x).sum().backward()
    for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
        F.interpolate(x, scale_factor=2, mode=mode).sum().backward()
    F.interpolate(x, size=(8, 8), mode="bilinear", antialias=True).sum().backward()
    pooled, where = F.max_pool2d(x, 2, return_indices=True)
    F.max_unpool2d(pooled, where, 2).sum().backward()


@probe
def grid_sample():
    x, theta = torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True), torch.randn(2, 2, 3, device="cuda")
    for align in (True, False):
        F.grid_sample(x, F.affine_grid(theta, (2, 3, 8, 8), align), align_corners=align).sum().backward()


@probe
def activations():
    x = torch.randn(8, 8, device="cuda", requires_grad=True)
    for layer in (nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(), nn.PReLU(), nn.RReLU(), nn.ELU(), nn.SELU(), nn.CELU(), nn.GELU(),
                  nn.SiLU(), nn.Mish(), nn.Softplus(), nn.Softsign(), nn.Tanh(), nn.Sigmoid(), nn.Hardtanh(), nn.Hardswish(),
                  nn.LogSigmoid(), nn.Softmax(-1), nn.LogSoftmax(-1), nn.GLU(), nn.Threshold(0.1, 0.0)):  # fmt: skip
        layer.cuda()(x).sum().backward()


@probe
def losses():
    a, b = torch.randn(8, 8, device="cuda", requires_grad=True), torch.rand(8, 8, device="cuda")
    for loss in (nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.BCEWithLogitsLoss(),
        nn.KLDivLoss(reduction="batchmean"),
                 nn.PoissonNLLLoss(), nn.SoftMarginLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)):  # fmt: skip
        loss(a, b).backward()
    target = torch.randint(0, 8, (8,), device="cuda")
    for loss in (nn.CrossEntropyLoss(), nn.NLLLoss(), nn.MultiMarginLoss()):
        loss(a, target).backward()
    nn.CrossEntropyLoss(weight=torch.ones(8, device="cuda"), ignore_index=0)(a, target).backward()
    nn.TripletMarginLoss()(a, b, b.flip(0)).backward()
    nn.CosineEmbeddingLoss()(a, b, torch.ones(8, device="cuda")).backward()
    nn.BCELoss()(a.sigmoid(), b).backward()
    nn.GaussianNLLLoss()(a, b, torch.ones(8, 8, device="cuda")).backward()


@probe
def ctc_loss():
    x = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
    targets = torch.randint(1, 20, (4, 10), device="cuda")
    for lengths in (torch.full((4,), 50), torch.full((4,), 50, device="cuda")):
        F.ctc_loss(x.log_softmax(-1), targets, lengths, torch.full((4,), 10, device=lengths.device)).backward()


@probe
def recurrent_layers():
    for cls in (nn.LSTM, nn.GRU, nn.RNN):
        for options in ({}, {"bidirectional": True, "dropout": 0.2, "num_layers": 2, "batch_first": True}, {"bias": False}):
            m = cls(16, 32, **options).cuda()
            m.flatten_parameters()
            out, _ = m(torch.randn(5, 3, 16, device="cuda", requires_grad=True))
            assert out.shape[-1] == 32 * (2 if m.bidirectional else 1)
            out.sum().backward()
            assert all(p.grad is not None and p.grad.shape == p.shape for p in m.parameters())
    m = nn.LSTM(16, 32, proj_size=8).cuda()
    m(torch.randn(5, 3, 16, device="cuda"))[0].sum().backward()


@probe
def recurrent_amp():
    m = nn.LSTM(16, 32, 2).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        out, _ = m(torch.randn(5, 3, 16, device="cuda"))
        assert out.dtype is torch.float16
    out.float().sum().backward()


@probe
def recurrent_cells():
    x, h = torch.randn(3, 16, device="cuda"), torch.randn(3, 32, device="cuda", requires_grad=True)
    nn.GRUCell(16, 32).cuda()(x, h).sum().backward()
    nn.RNNCell(16, 32).cuda()(x, h).sum().backward()
    hy, cy = nn.LSTMCell(16, 32).cuda()(x, (h, h))
    (hy.sum() + cy.sum()).backward()


@probe
def packed_sequences():
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    m = nn.GRU(16, 32, batch_first=True).cuda()
    x = torch.randn(3, 6, 16, device="cuda")
    packed = pack_padded_sequence(x, torch.tensor([6, 4, 2]), batch_first=True)
    out, _ = m(packed)
    padded, lengths = pad_packed_sequence(out, batch_first=True)
    assert padded.shape == (3, 6, 32) and lengths.tolist() == [6, 4, 2]
    padded.sum().backward()


@probe
def embeddings():
    e = nn.Embedding(1000, 32, padding_idx=0).cuda()
    e(torch.randint(0, 1000, (4, 8), device="cuda")).sum().backward()
    for mode in ("sum", "mean", "max"):
        b = nn.EmbeddingBag(1000, 32, mode=mode).cuda()
        b(torch.randint(0, 1000, (20,), device="cuda"), torch.tensor([0, 5, 10], device="cuda")).sum().backward()


@probe
def transformer_layers():
    for layer in (nn.TransformerEncoderLayer(32, 4, batch_first=True), nn.TransformerEncoderLayer(32, 4, norm_first=True)):
        m = layer.cuda()
        m(torch.randn(2, 6, 32, device="cuda")).sum().backward()
        m.eval()
        with torch.no_grad():
            m(torch.randn(2, 6, 32, device="cuda"))
    t = nn.Transformer(32, 4, 1, 1, 64, batch_first=True).cuda()
    mask = t.generate_square_subsequent_mask(6, device="cuda")
    t(
        torch.randn(2, 6, 32, device="cuda"), torch.randn(2, 6, 32, device="cuda"), tgt_mask=mask, tgt_is_causal=True
    ).sum().backward()
    a = nn.MultiheadAttention(32, 4, batch_first=True).cuda()
    x = torch.randn(2, 6, 32, device="cuda")
    a(x, x, x, key_padding_mask=torch.zeros(2, 6, dtype=torch.bool, device="cuda"))[0].sum().backward()
    e = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, batch_first=True), 2).cuda().eval()
    with torch.no_grad():
        e(x, src_key_padding_mask=torch.zeros(2, 6, dtype=torch.bool, device="cuda"))


# -- attention -----------------------------------------------------------------------------------------------------------


@probe
def attention_shapes():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for d in (32, 64, 80, 100, 256):
            q = torch.randn(2, 4, 16, d, device="cuda", dtype=dtype, requires_grad=True)
            k = torch.randn(2, 4, 24, d, device="cuda", dtype=dtype, requires_grad=True)
            out = F.scaled_dot_product_attention(q, k, k, dropout_p=0.1)
            assert out.shape == (2, 4, 16, d) and out.dtype is dtype
            out.sum().backward()
            assert q.grad.shape == q.shape and k.grad.shape == k.shape
            mask = torch.ones(16, 24, dtype=torch.bool, device="cuda")
            F.scaled_dot_product_attention(q, k, k, attn_mask=mask).sum().backward()
            F.scaled_dot_product_attention(q[0], k[0], k[0]).sum().backward()


@probe
def attention_grouped():
    q = torch.randn(2, 8, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(2, 2, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).sum().backward()
    assert k.grad.shape == k.shape
    F.scaled_dot_product_attention(q.float(), k.float(), k.float(), is_causal=True, enable_gqa=True).sum().backward()


@probe
def attention_backends():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(2, 8, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, q, q).sum().backward()


@probe
def flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    q = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cuda")
    out = torch.compile(flex)(q, q, q, block_mask=mask, score_mod=lambda s, b, h, i, j: s + (i - j))
    assert out.shape == q.shape
    out.sum().backward()
    assert q.grad.shape == q.shape


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
    assert x[mask].shape == (32,) and x[mask[:, 0]].shape == (8, 4)
    x[mask].sum().backward()
    assert torch.nonzero(mask).shape == (32, 2) and len(torch.where(mask)) == 2
    assert x.masked_select(mask).shape == (32,)
    ids = torch.randint(0, 5, (20,), device="cuda")
    assert ids.unique().shape == (20,) and len(ids.unique(return_inverse=True, return_counts=True)) == 3
    assert torch.unique(ids.view(4, 5), dim=0).shape == (4, 5) and torch.unique_consecutive(ids).shape == (20,)
    assert torch.repeat_interleave(ids, torch.ones(20, dtype=torch.long, device="cuda"), output_size=20).shape == (20,)
    torch.repeat_interleave(ids, 3)
    torch.repeat_interleave(ids, torch.ones(20, dtype=torch.long, device="cuda"))
    torch.bincount(ids, minlength=5)
    y = x.detach().clone()
    y[mask] = 0.0
    y[mask] = torch.zeros(32, device="cuda")
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
    for y in (x[idx], x.gather(0, idx[:, None].expand(5, 16)), x.index_select(0, idx), x.sort(-1)[0], x.topk(3)[0], x.cumsum(0),
              x.flip(0), x.roll(1), x.tril(), x.cummax(0)[0], x.median(0)[0], x.kthvalue(2)[0], x.unfold(0, 3, 1),
                  x.diff()):  # fmt: skip
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
