"""Activation bytes of a layer, against counts by hand."""

from dataclasses import replace

import pytest

from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.memory.saved import saved_of_points
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.stacks.stack import find_stack

H, F, A, K, D, V = 1024, 4096, 16, 4, 64, 32000
ARCH = Architecture(
    id="small",
    name="small",
    kind="decoder",
    n_layers=12,
    hidden=H,
    ffn=F,
    heads=A,
    kv_heads=K,
    head_dim=D,
    vocab=V,
    max_seq_len=4096,
)
T = 2 * 2048


def point(stack: str, **changes: object) -> Point:
    base = Point(
        micro_batch=2,
        seq_len=2048,
        tp=1,
        cp=1,
        ep=1,
        sequence_parallel=True,
        context_parallel="ring",
        precision="bf16",
        stack=find_stack(stack),
        fused_attention=True,
        fused_loss=False,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def kept(stack: str, policy: str = "none", **changes: object) -> float:
    return float(saved_of_points(ARCH, [point(stack, **changes)]).layer[policy][0])


def test_megatron_core_layer() -> None:
    """Two norms' inputs, statistics and outputs, q k v and the attention's output with its row statistics,
    gate and up, their product."""
    per_token = 2 * (4 * H + H + 2 * K * D + H + 3 * F) + 2 * 4 + 4 * A
    assert kept("megatron-core") == pytest.approx(T * per_token)


def test_tensor_parallel_layer_keeps_shards() -> None:
    """Sequence parallelism divides everything a layer keeps (arXiv 2205.05198, equation 4)."""
    assert kept("megatron-core", tp=4) == pytest.approx(kept("megatron-core") / 4, rel=1e-3)
    without = kept("megatron-core", tp=4, sequence_parallel=False)
    assert without == pytest.approx(kept("megatron-core", tp=4) + T * (4 * 2 * H + 2 * 4) * 3 / 4, rel=1e-3)


def test_korthikanti_layer() -> None:
    """s b h (34 + 5 a s / h) with unfused attention and dropout, less what 2022's Megatron did not keep."""
    arch = replace(
        ARCH,
        gated_mlp=False,
        norm="layer",
        kv_heads=A,
        activation="gelu",
        position="learned",
        qkv_bias=True,
    )
    saved = saved_of_points(arch, [point("megatron-legacy", fused_attention=False, sequence_parallel=False)])
    paper = T * H * (34 + 5 * A * 2048 / H)
    assert float(saved.layer["none"][0]) == pytest.approx(paper, rel=0.02)
    assert float(saved.layer["selective"][0]) == pytest.approx(34 * T * H, rel=0.02)
    assert float(saved.layer["full"][0]) == pytest.approx(2 * T * H)


def test_per_op_recomputation_keeps_every_second_product() -> None:
    """torchtitan: the layer's input, q, v, gate and down, and the attention's output."""
    per_token = 2 * (H + H + K * D + F + H + H) + 4 * A
    assert kept("eager-fsdp", "selective") == pytest.approx(T * per_token)
    # a compiler drops the last product, which nothing reads again
    assert kept("compiled-fsdp", "selective") == pytest.approx(T * (per_token - 2 * H))


def test_a_compiler_keeps_what_fused_kernels_do_and_eager_keeps_more() -> None:
    assert kept("nanogpt") == pytest.approx(kept("megatron-core"), rel=0.01)
    assert kept("nanogpt") < kept("compiled-fsdp") < kept("eager-fsdp")  # torchtitan repeats keys and values first


def test_ulysses_keeps_the_output_twice() -> None:
    ring, swapped = (kept("megatron-core", cp=2, context_parallel=c) for c in ("ring", "ulysses"))
    assert swapped - ring == pytest.approx(T / 2 * H * 2)


def test_loss_and_head() -> None:
    points = [point("megatron-core"), point("eager"), point("megatron-core", fused_loss=True)]
    # torchtune's: of all 8 chunks for the backward, and one's gradient
    assert float(saved_of_points(ARCH, [point("torchtune", fused_loss=True)]).loss[0]) == pytest.approx(T * V * 2.0 * 9 / 8)
    core = saved_of_points(ARCH, points)
    # in place; half-precision logits, log-softmax and two gradients of its size; never made
    assert list(core.loss) == [T * V * 2.0, T * V * (2.0 + 3 * 4.0), 0.0]
    # the final norm's input, statistics and output
    assert float(core.head[0]) == pytest.approx(T * (4 * H + 4))


def test_dummy_weight_gradients_of_transformer_engine() -> None:
    shapes = [(H + 2 * K * D, H), (H, H), (2 * F, H), (H, F)]
    saved = saved_of_points(ARCH, [point("megatron-core")])
    assert float(saved.weight_cache[0]) == 2 * sum(a * b for a, b in shapes)
    assert float(saved_of_points(ARCH, [point("nanotron")]).weight_cache[0]) == 0


def test_the_working_layer_needs_its_gradients() -> None:
    """At the MLP's activation: gradients of gate, up and their product, the residual's, less the freed
    product."""
    saved = saved_of_points(ARCH, [point("megatron-core")])
    assert float(saved.excess["none"][0]) == pytest.approx(T * 2 * (2 * F + F - F + H), rel=0.1)
    recomputed = float(saved.layer["none"][0] - saved.layer["full"][0])
    assert float(saved.excess["full"][0] - saved.excess["none"][0]) == pytest.approx(recomputed)


@pytest.mark.parametrize(("stack", "kv_heads"), [("torchtune", A), ("nanogpt", K)])
def test_a_compiler_keeps_the_inputs_of_products(stack: str, kv_heads: int) -> None:
    """torch._functorch partitioners.py (``is_materialized_backwards``): what a product of the backward reads is kept and not
    computed again: norms' outputs and the activation's product. Counted on such a block with torch's partitioner; torchtune's
    Llama 3.2 3B keeps 15 times the hidden size so (its README, optimization flags), with keys and values expanded."""
    per_token = 2 * (2 * H + H + 2 * kv_heads * D + H + 2 * H + 3 * F)
    assert kept(stack) == pytest.approx(T * per_token, rel=0.05)
