"""Layers of every kind, and attention. See ``probes``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from capture_probes import batch, probe, step
from torch import nn

# -- layers --------------------------------------------------------------------------------------------------------------


@probe
def cnn():
    m = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, groups=16),
        nn.GroupNorm(4, 16),
        nn.SiLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(16, 10),
    ).cuda()
    o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        step(m, torch.randn(4, 3, 32, 32, device="cuda"), batch(4)[1], o)
    m.eval()
    with torch.inference_mode():
        m(torch.randn(4, 3, 32, 32, device="cuda"))


@probe
def convolutions():
    for conv, n in (
        (nn.Conv1d, 1),
        (nn.Conv2d, 2),
        (nn.Conv3d, 3),
        (nn.ConvTranspose1d, 1),
        (nn.ConvTranspose2d, 2),
        (nn.ConvTranspose3d, 3),
    ):
        conv(4, 8, 3, stride=2).cuda()(torch.randn(2, 4, *[9] * n, device="cuda", requires_grad=True)).sum().backward()


@probe
def norms():
    x = torch.randn(2, 8, 6, 6, device="cuda", requires_grad=True)
    for layer in (
        nn.BatchNorm2d(8),
        nn.InstanceNorm2d(8, affine=True),
        nn.GroupNorm(2, 8),
        nn.LayerNorm(6),
        nn.RMSNorm(6),
        nn.LocalResponseNorm(2),
        nn.SyncBatchNorm(8).eval(),
    ):
        layer.cuda()(x).sum().backward()


@probe
def pooling_and_resampling():
    x = torch.randn(2, 4, 16, 16, device="cuda", requires_grad=True)
    layers = [
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.AdaptiveMaxPool2d(3),
        nn.AdaptiveAvgPool2d(3),
        nn.LPPool2d(2, 2),
        nn.PixelShuffle(2),
        nn.Unfold(3),
        nn.ReflectionPad2d(1),
        nn.ReplicationPad2d(1),
        nn.ZeroPad2d(1),
        nn.FractionalMaxPool2d(2, output_size=8),
        nn.CircularPad2d(1),
    ]
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
    for layer in (
        nn.ReLU(),
        nn.ReLU6(),
        nn.LeakyReLU(),
        nn.PReLU(),
        nn.RReLU(),
        nn.ELU(),
        nn.SELU(),
        nn.CELU(),
        nn.GELU(),
        nn.SiLU(),
        nn.Mish(),
        nn.Softplus(),
        nn.Softsign(),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.Hardtanh(),
        nn.Hardswish(),
        nn.LogSigmoid(),
        nn.Softmax(-1),
        nn.LogSoftmax(-1),
        nn.GLU(),
        nn.Threshold(0.1, 0.0),
    ):
        layer.cuda()(x).sum().backward()


@probe
def losses():
    a, b = torch.randn(8, 8, device="cuda", requires_grad=True), torch.rand(8, 8, device="cuda")
    for loss in (
        nn.MSELoss(),
        nn.L1Loss(),
        nn.SmoothL1Loss(),
        nn.HuberLoss(),
        nn.BCEWithLogitsLoss(),
        nn.KLDivLoss(reduction="batchmean"),
        nn.PoissonNLLLoss(),
        nn.SoftMarginLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
    ):
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
