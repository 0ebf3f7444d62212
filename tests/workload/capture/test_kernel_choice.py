"""Kernels are those a GPU would take, by dtype, sizes, mask and compute capability."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from gpuwise.workload.capture.accelerator import FakeAccelerator  # noqa: E402
from gpuwise.workload.capture.device.observer import NullObserver  # noqa: E402

HALF, BF16, FULL = torch.float16, torch.bfloat16, torch.float32


class Names(NullObserver):
    """Names and flags of the operations heard. It keeps no tensor: that would keep its memory."""

    def __init__(self):
        self.names, self.findings, self.flags = [], [], []

    def operation(self, func, args, kwargs, result, flags):
        self.names.append(func._schema.name.partition("::")[2])
        self.flags.append(flags)

    def finding(self, kind, message, hint):
        self.findings.append((kind, message))


def heard(capability, program):
    names = Names()
    with FakeAccelerator(capability=capability, observer=names):
        program()
    return names


ATTENTION = [  # capability, dtype, head size, masked, causal, dropout, kernel
    ((8, 0), BF16, 64, False, True, 0.0, "flash"),
    ((8, 0), HALF, 256, False, False, 0.1, "flash"),
    ((8, 0), BF16, 257, False, False, 0.0, "math"),
    ((8, 0), BF16, 264, False, False, 0.0, "efficient"),
    ((8, 0), BF16, 100, False, False, 0.0, "flash"),
    ((8, 0), BF16, 64, True, False, 0.0, "efficient"),
    ((8, 0), FULL, 64, False, True, 0.0, "efficient"),
    ((8, 0), FULL, 63, False, False, 0.0, "math"),
    ((7, 5), HALF, 64, False, True, 0.0, "efficient"),
    ((7, 5), BF16, 64, False, True, 0.0, "math"),
    ((7, 0), HALF, 60, False, False, 0.0, "math"),
    ((6, 1), FULL, 63, False, False, 0.0, "efficient"),
    ((8, 6), BF16, 224, False, False, 0.0, "efficient"),
    ((8, 6), BF16, 256, False, False, 0.0, "flash"),
    ((8, 9), BF16, 128, False, True, 0.0, "flash"),
    ((12, 0), BF16, 128, False, True, 0.0, "flash"),
]


def kernel_of(names):
    kinds = {"flash": "flash", "efficient": "efficient", "cudnn": "cudnn"}
    fused = [n for n in names.names if n.startswith("_scaled_dot_product") and "backward" not in n]
    return next((k for k in kinds if fused and k in fused[0]), "math")


@pytest.mark.parametrize(("capability", "dtype", "size", "masked", "causal", "dropout", "kernel"), ATTENTION)
def test_attention_kernel(capability, dtype, size, masked, causal, dropout, kernel):
    def program():
        q = torch.randn(2, 4, 16, size, device="cuda", dtype=dtype, requires_grad=True)
        mask = torch.ones(16, 16, device="cuda", dtype=torch.bool) if masked else None
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask, is_causal=causal, dropout_p=dropout)
        out.sum().backward()
        assert out.shape == q.shape and q.grad.stride() == q.stride()

    names = heard(capability, program)
    assert kernel_of(names) == kernel
    assert any(kind == "attention" for kind, _ in names.findings) == (kernel == "math")


def test_attention_prefers_cudnn_where_torch_does():
    from gpuwise.workload.capture.ops import attention

    def program():
        q = torch.randn(2, 4, 16, 128, device="cuda", dtype=BF16)
        F.scaled_dot_product_attention(q, q, q)

    newer = attention._VERSION >= attention._CUDNN_PREFERRED_SINCE
    assert kernel_of(heard((9, 0), program)) == ("cudnn" if newer else "flash")
    assert kernel_of(heard((8, 0), program)) == "flash"


def test_attention_by_cudnn_takes_what_its_release_does():
    """Torch 2.11 on an H100 gave cuDNN heads of 160 and a dropout of 0.1 (kernels_2026-11-26.csv.gz: unet, gpt2)."""
    from gpuwise.workload.capture.ops import attention

    def program(size, dropout):
        def run():
            q = torch.randn(2, 4, 16, size, device="cuda", dtype=BF16, requires_grad=True)
            F.scaled_dot_product_attention(q, q, q, dropout_p=dropout).sum().backward()

        return run

    older = attention._CUDNN_PREFERRED_SINCE <= attention._VERSION < attention._CUDNN_WIDE_HEADS_BEFORE
    for size, dropout in ((160, 0.0), (256, 0.0), (64, 0.1)):
        assert kernel_of(heard((9, 0), program(size, dropout))) == ("cudnn" if older else "flash")
        assert kernel_of(heard((8, 0), program(size, dropout))) == "flash"


def test_attention_obeys_the_program():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q_of = lambda: torch.randn(2, 4, 16, 64, device="cuda", dtype=BF16)  # noqa: E731

    def only(*backends):
        def program():
            with sdpa_kernel(list(backends)):
                F.scaled_dot_product_attention(q_of(), q_of(), q_of())

        return program

    assert kernel_of(heard((8, 0), only(SDPBackend.MATH))) == "math"
    assert kernel_of(heard((8, 0), only(SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH))) == "efficient"
    with pytest.raises(RuntimeError, match="No available kernel"):
        heard((7, 5), only(SDPBackend.FLASH_ATTENTION))


def test_math_attention_writes_its_scores_and_flash_does_not():
    def bytes_of(dtype, size):
        def program():
            q = torch.randn(1, 2, 512, size, device="cuda", dtype=dtype)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            F.scaled_dot_product_attention(q, q, q)
            peaks.append(torch.cuda.max_memory_allocated() - before)

        peaks = []
        heard((8, 0), program)
        return peaks[0]

    scores = 2 * 512 * 512 * 2
    assert bytes_of(BF16, 64) < scores <= bytes_of(BF16, 257)


@pytest.mark.parametrize(
    ("dtype", "weights", "training", "dims", "cudnn"),
    [
        (FULL, FULL, True, 4, True),
        (HALF, FULL, True, 4, True),
        (HALF, HALF, True, 4, False),
        (BF16, BF16, True, 4, False),
        (FULL, FULL, False, 4, True),
        (FULL, FULL, True, 2, False),
        (FULL, None, True, 4, False),
    ],
)
def test_batch_norm_kernel(dtype, weights, training, dims, cudnn):
    def program():
        x = torch.randn(4, 8, *[6] * (dims - 2), device="cuda", dtype=dtype, requires_grad=True)
        m = nn.BatchNorm2d(8, affine=weights is not None) if dims == 4 else nn.BatchNorm1d(8)
        m = m.cuda().train(training)
        if weights is not None:
            m = m.to(weights)
        m(x).sum().backward()
        assert x.grad.shape == x.shape

    names = heard((8, 0), program).names
    assert ("cudnn_batch_norm" in names) == cudnn
    assert ("cudnn_batch_norm_backward" in names) == (cudnn and training)


def test_layout_follows_cudnn():
    def program():
        for x_last in (False, True):
            for w_last in (False, True):
                m = nn.Conv2d(8, 16, 3).cuda()
                x = torch.randn(2, 8, 10, 10, device="cuda", requires_grad=True)
                x = x.to(memory_format=torch.channels_last) if x_last else x
                m = m.to(memory_format=torch.channels_last) if w_last else m
                y = m(x)
                assert y.is_contiguous(memory_format=torch.channels_last) == (x_last or w_last)
                y.sum().backward()

    heard((8, 0), program)


def test_fused_dropout_and_half_softmax():
    def program():
        x = torch.randn(8, 8, device="cuda", dtype=HALF, requires_grad=True)
        F.dropout(x, 0.1).sum().backward()
        x.softmax(-1, dtype=FULL).sum().backward()

    names = heard((8, 0), program).names
    assert "native_dropout" in names and "bernoulli_" not in names
    assert "_softmax" in names and "_to_copy" not in names[names.index("_softmax") - 1 : names.index("_softmax")]


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_one_kernel(cls):
    def program():
        m = cls(16, 32, 2).cuda()
        m(torch.randn(50, 3, 16, device="cuda"))[0].sum().backward()

    names = heard((8, 0), program).names
    assert names.count("_cudnn_rnn") == 1 and names.count("_cudnn_rnn_backward") == 1 and "addmm" not in names


def test_flattened_weights_are_one_storage():
    keys = set()

    def program():
        m = nn.LSTM(16, 32).cuda()
        keys.update(p.untyped_storage()._cdata for p in m.parameters())
        sizes = sum(p.numel() * 4 for p in m.parameters())
        assert torch.cuda.memory_allocated() == sizes
        another = nn.LSTM(16, 32).cuda()
        assert len({p.untyped_storage()._cdata for p in another.parameters()}) == 1

    heard((8, 0), program)
    assert len(keys) == 1


def test_optimizers_take_many_tensors_at_once():
    def program():
        m = nn.Linear(64, 64).cuda()
        o = torch.optim.AdamW(m.parameters())
        m(torch.randn(4, 64, device="cuda")).sum().backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step()

    names = heard((8, 0), program).names
    assert "_foreach_norm" in names and "_foreach_addcdiv_" in names


def test_compiled_regions_are_marked_and_their_backward_too():
    from gpuwise.workload.capture.captured import OpFlag

    def program():
        inner, outer = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
        x = torch.randn(4, 8, device="cuda")
        torch.compile(inner)(outer(x)).sum().backward()

    heard_names = heard((8, 0), program)
    marked = [n for n, f in zip(heard_names.names, heard_names.flags, strict=True) if f & OpFlag.COMPILED]
    plain = [n for n, f in zip(heard_names.names, heard_names.flags, strict=True) if not f & OpFlag.COMPILED]
    assert marked.count("addmm") == 1 and plain.count("addmm") == 1
    assert "mm" in marked and "mm" in plain


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_regions_are_marked(reentrant):
    from torch.utils.checkpoint import checkpoint

    from gpuwise.workload.capture.captured import OpFlag

    def program():
        m = nn.Sequential(nn.Linear(8, 8), nn.GELU()).cuda()
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        (checkpoint(m, x, use_reentrant=reentrant) * 2).sum().backward()

    names = heard((8, 0), program)
    marked = [n for n, f in zip(names.names, names.flags, strict=True) if f & OpFlag.CHECKPOINTED]
    assert marked.count("addmm") == 2, "forward and again"
    assert "mul" not in marked or marked.count("mul") < names.names.count("mul")


def test_syncs_and_guesses_are_found():
    def program():
        x = torch.randn(8, device="cuda")
        x.sum().item()
        x[x > 0]
        x.cpu()
        torch.cuda.synchronize()

    kinds = [kind for kind, _ in heard((8, 0), program).findings]
    assert kinds.count("sync") == 4 and "guess" in kinds and "data-dependent" in kinds and "host-copy" in kinds


def test_an_operator_without_a_rule_is_named():
    from gpuwise.errors import NoFakeRuleError

    with torch.library._scoped_library("gpuwise_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")

        def program():
            torch.ops.gpuwise_test.twice(torch.ones(3, device="cuda"))

        with pytest.raises(NoFakeRuleError, match="gpuwise_test::twice") as caught:
            heard((8, 0), program)
        assert caught.value.operator == "gpuwise_test::twice" and "register_fake" in caught.value.hint
        torch.library.register_fake("gpuwise_test::twice", torch.empty_like, lib=library)
        assert "twice" in heard((8, 0), program).names
