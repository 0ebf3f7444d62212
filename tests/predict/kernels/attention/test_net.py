"""The evaluator: rising in every feature, trees as written, loading within its budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.predict import coefficients
from gpuwise.predict.kernels.attention import implementations as kernels
from gpuwise.predict.kernels.attention.features import FREE_FEATURES, AttentionWork
from gpuwise.predict.kernels.attention.fused import attention_decode_time, attention_forward_time
from gpuwise.predict.kernels.attention.implementations import serving_kernel
from gpuwise.predict.kernels.attention.net import (
    DEPTH,
    Trees,
    activation,
    bins,
    layout,
    network_seconds,
    trees_log,
    unpack,
)

FORWARD, DECODE = "Hopper|vllm|vllm_flash_attn_fa3|bf16|bf16", "Blackwell|sglang|trtllm_mha|bf16|fp8"


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=50))
def test_both_halves_of_the_activation_rise(values: list[float]) -> None:
    u = np.sort(np.array(values))[:, None].repeat(2, axis=1)
    assert (np.diff(activation(u), axis=0) >= -1e-9).all()


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(st.sampled_from((("forward", FORWARD), ("decode", DECODE))), st.integers(0, 2**31))
def test_the_network_rises_with_every_feature_and_with_memory_time(which: tuple[str, str], seed: int) -> None:
    parameters, _ = kernels.network(*which)
    n = kernels.coefficients()["features"][which[0]]
    rng = np.random.default_rng(seed)
    x, z = rng.uniform(-3, 12, (1, n)), rng.uniform(0, 3, (1, len(FREE_FEATURES)))
    more = x + rng.uniform(0, 2, (1, n))
    memory, none = np.array([1e-5]), np.zeros(1)
    base = network_seconds(parameters, AttentionWork(x, memory, none), z)[0]
    assert network_seconds(parameters, AttentionWork(more, memory, none), z)[0] >= base * (1 - 1e-5)
    assert network_seconds(parameters, AttentionWork(x, memory * 2, none), z)[0] >= base * (1 - 1e-5)


def test_weights_of_rising_features_are_never_negative() -> None:
    document, arrays = kernels.coefficients(), coefficients.load_arrays("attention")
    for phase, known in document["kernels"].items():
        for entry in known.values():
            parameters = unpack(arrays[f"{phase}_networks"][entry["row"]], document["features"][phase])
            assert all((parameters[k] >= 0).all() for k in ("W1", "W2", "w3", "w4", "scale"))


def test_layout_covers_a_row_without_gaps() -> None:
    where = layout(8)
    ends = [part.stop for part, _ in where.fields.values()]
    assert [part.start for part, _ in where.fields.values()] == [0, *ends[:-1]] and ends[-1] == where.size


def test_trees_answer_their_questions_bit_by_bit() -> None:
    rng = np.random.default_rng(3)
    feature = rng.integers(0, 3, (5, DEPTH)).astype(np.uint8)
    cut = rng.integers(0, 9, (5, DEPTH)).astype(np.uint8)
    leaf = rng.integers(-127, 128, (5, 2**DEPTH)).astype(np.int8)
    codes = rng.integers(0, 10, (3000, 3)).astype(np.uint8)
    fast = trees_log(Trees(feature, cut, leaf, 0.01), codes)
    for row in (0, 1, 2999):
        slow = 0
        for t in range(5):
            index = 0
            for level in range(DEPTH):
                index = index * 2 + int(codes[row, feature[t, level]] > cut[t, level])
            slow += int(leaf[t, index])
        assert fast[row] == pytest.approx(slow * 0.01)


def test_bins_count_the_edges_below() -> None:
    edges = [np.array([0.5, 1.5, 2.5]), np.array([10.0])]
    assert bins(np.array([[0.0, 10.0], [2.0, 11.0], [9.0, 9.0]]), edges).tolist() == [[0, 0], [2, 1], [3, 0]]


def test_every_kernel_of_the_document_has_its_arrays() -> None:
    document = kernels.coefficients()
    for phase, known in document["kernels"].items():
        for name in known:
            assert len(kernels.trees(phase, name).feature) > 0
        assert len(kernels.edges(phase)) == 11
    for family in document["families"].values():
        for source in [
            *family["usual"].values(),
            *(s for e in family["engines"].values() for s in e.values()),
        ]:
            assert any(source.replace(":", "|") in k for p in document["kernels"].values() for k in p)


def test_coefficients_are_small() -> None:
    assert sum(len(coefficients.read_verified(f"attention.{kind}")) for kind in ("json", "npz")) < 1.5e6


@pytest.mark.parametrize("gpu", ["RTX 4090", "H100-SXM", "MI300X"])
def test_a_call_takes_the_same_time_alone_and_among_others(gpu: str) -> None:
    """To the last digit: one row of a serving step, of ``op`` and of a fit are the same row."""
    a = find_cluster(gpu).accelerator
    decode, forward = (serving_kernel(a, "vllm", phase) for phase in ("decode", "forward"))
    batch, keys = np.arange(1, 258, 4), np.arange(16, 16 + 500 * 65, 500)
    together = attention_decode_time(a, "bf16", batch, keys, 32, 8, 128, kernel=decode).time_s
    prompts = attention_forward_time(a, "bf16", 1, keys, keys, 32, 8, 128, kernel=forward).time_s
    for i in (0, 1, 31, 64):
        assert attention_decode_time(a, "bf16", batch[i], keys[i], 32, 8, 128, kernel=decode).time_s[0] == together[i]
        assert attention_forward_time(a, "bf16", 1, keys[i], keys[i], 32, 8, 128, kernel=forward).time_s[0] == prompts[i]
