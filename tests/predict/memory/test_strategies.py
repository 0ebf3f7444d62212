"""Device memory: published peaks, and the laws that hold whatever the constants are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture, Mla, Moe
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.device import METRICS
from gpuwise.predict.memory.saved import saved_of_points
from gpuwise.predict.memory.strategies import PARTS, STAGES, MemoryColumns, memory_columns
from gpuwise.predict.step.evaluate import points_of
from gpuwise.units import GIB, GIGA
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import STACKS, Strategy
from gpuwise.workload.transformer.parameters import count_parameters

LLAMA_70B_L12 = Architecture(
    id="llama-70b-l12",
    name="Llama 3 70B, 12 layers",
    kind="decoder",
    n_layers=12,
    hidden=8192,
    ffn=28672,
    heads=64,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    max_seq_len=131072,
)
DEEPSEEK_V3_L4 = Architecture(
    id="deepseek-v3-l4",
    name="DeepSeek-V3, 4 layers",
    kind="decoder",
    n_layers=4,
    hidden=7168,
    ffn=18432,
    heads=128,
    kv_heads=128,
    head_dim=128,
    vocab=129280,
    max_seq_len=4096,
    mla=Mla(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    moe=Moe(n_experts=256, n_active=8, expert_ffn=2048, n_shared=1, shared_ffn=2048, first_dense=1),
)
BLOOM_72 = Architecture(
    id="bloom-72",
    name="GPT 181B",
    kind="decoder",
    n_layers=72,
    hidden=14336,
    ffn=57344,
    heads=64,
    kv_heads=64,
    head_dim=224,
    vocab=250880,
    max_seq_len=2048,
    gated_mlp=False,
    activation="gelu",
    norm="layer",
    position="learned",
    qkv_bias=True,
    attention_out_bias=True,
    mlp_bias=True,
    tied_embeddings=True,
)
SMALL = Architecture(
    id="small",
    name="small",
    kind="decoder",
    n_layers=12,
    hidden=1024,
    ffn=4096,
    heads=16,
    kv_heads=4,
    head_dim=64,
    vocab=32000,
    max_seq_len=4096,
)
SMALL_MOE = replace(SMALL, id="small-moe", moe=Moe(n_experts=16, n_active=2, expert_ffn=2048, first_dense=1))


def system(name: str) -> System:
    return find_cluster(name).system


def memory(arch: Architecture, where: System, seq_len: int, *strategies: Strategy) -> MemoryColumns:
    columns = Columns.from_strategies(strategies)
    points, index = points_of(columns, seq_len)
    return memory_columns(arch, where, saved_of_points(arch, points), columns, index)


MEGATRON = Strategy(sharding="zero1", stack="megatron-core", accumulation=4)


@pytest.mark.parametrize(
    ("changes", "seq_len", "allocated_gib"),
    [
        # MooreThreads SimuMax v1.2, docs/b200: max_allocated over the ranks of 8 B200, Megatron-LM 23e00ed
        ({"tp": 1, "pp": 2, "dp": 4}, 4096, 66.55),
        ({"tp": 2, "dp": 4}, 4096, 60.68),
        ({"tp": 4, "dp": 2}, 4096, 39.07),
        ({"tp": 8}, 4096, 28.29),
        ({"tp": 2, "cp": 4, "context_parallel": "ulysses"}, 32768, 68.43),
        ({"tp": 1, "cp": 8, "context_parallel": "ulysses"}, 131072, 147.99),
    ],
)
def test_megatron_core_peaks(changes: dict[str, object], seq_len: int, allocated_gib: float) -> None:
    one = memory(LLAMA_70B_L12, system("8xB200-SXM"), seq_len, MEGATRON.with_(**changes))
    assert float(one.allocated.flat[0]) / GIB == pytest.approx(allocated_gib, rel=0.005)


@pytest.mark.parametrize(("changes", "allocated_gib"), [({"dp": 8, "ep": 8}, 104.30), ({"dp": 4, "pp": 2, "ep": 4}, 114.00)])
def test_experts_with_latent_attention(changes: dict[str, object], allocated_gib: float) -> None:
    one = memory(DEEPSEEK_V3_L4, system("8xB200-SXM"), 4096, MEGATRON.with_(**changes))
    assert float(one.allocated.flat[0]) / GIB == pytest.approx(allocated_gib, rel=0.015)


BLOOM = Strategy(
    precision="fp16",
    tp=8,
    pp=12,
    dp=4,
    accumulation=64,
    sharding="zero1",
    recompute="full",
    gradient_dtype="fp16",
    sequence_parallel=False,
    fused_attention=False,
    stack="megatron-deepspeed",
)


@pytest.mark.parametrize(("micro_batch", "nvidia_smi_gb"), [(1, 29), (2, 37), (4, 49), (8, 69)])
def test_deepspeed_pipeline_as_nvidia_smi_shows_it(micro_batch: int, nvidia_smi_gb: float) -> None:
    """bigscience tr11-176B-ml chronicles-prequel, 48-node contenders, 384 A100 80 GB."""
    one = memory(BLOOM_72, system("384xA100-SXM4-80GB"), 2048, BLOOM.with_(micro_batch=micro_batch))
    assert float(one.device_total.flat[0]) / GIGA == pytest.approx(nvidia_smi_gb, rel=0.08)


@pytest.mark.parametrize(
    ("changes", "ran"),
    [
        # the same page: "OOM" in the table of variations, or a measured step
        ({"tp": 8, "pp": 1, "dp": 48}, False),
        ({"tp": 2, "pp": 6, "dp": 32, "micro_batch": 2}, False),
        ({"tp": 2, "pp": 6, "dp": 32, "micro_batch": 1}, False),
        ({"tp": 8, "pp": 2, "dp": 24, "micro_batch": 2}, True),
        ({"tp": 4, "pp": 6, "dp": 16, "micro_batch": 4}, True),
    ],
)
def test_published_verdicts(changes: dict[str, object], ran: bool) -> None:
    where = system("384xA100-SXM4-80GB")
    assert bool(memory(BLOOM_72, where, 2048, BLOOM.with_(**changes)).fits().flat[0]) is ran


def test_parts_sum_to_the_device_total_and_the_worst_stage_is_named() -> None:
    strategies = [
        MEGATRON.with_(tp=2, pp=4, dp=2, recompute=r, micro_batch=m) for r in ("none", "selective", "full") for m in (1, 8)
    ]
    found = memory(SMALL, system("16xH100-SXM"), 2048, *strategies)
    total = sum(np.broadcast_to(getattr(found, p), found.device_total.shape) for p in PARTS)
    assert total == pytest.approx(found.device_total)
    assert (found.allocated <= found.reserved).all() and (found.reserved <= found.device_total).all()
    assert {STAGES[i] for i in found.worst_stage} <= set(STAGES)
    # without recomputation the first stage holds the most micro-batches
    assert STAGES[found.worst_stage[1]] == "first"


def test_a_product_of_columns_is_the_list_of_strategies() -> None:
    strategies = [
        MEGATRON.with_(tp=tp, dp=8 // tp, sharding=s, recompute=r)
        for tp in (1, 2)
        for s in ("none", "zero1", "zero3")
        for r in ("none", "full")
    ]
    where = system("8xH100-SXM")
    listed = memory(SMALL, where, 2048, *strategies).device_total
    flat = Columns.from_strategies(strategies)
    rows = flat.take(np.array([0, 6]))

    def shaped(values: np.ndarray, axis: int) -> np.ndarray:
        shape = [1, 1, 1]
        shape[axis] = len(values)
        return values.reshape(shape)

    product = replace(
        rows,
        **{f: shaped(getattr(rows, f), 0) for f in ("micro_batch", "accumulation", "dp", "tp", "pp")},
        **{f: shaped(getattr(rows, f), 0) for f in ("cp", "ep", "virtual_stages", "schedule")},
        sequence_parallel=shaped(rows.sequence_parallel, 0),
        sharding=shaped(flat.sharding[[0, 2, 4]], 1),
        shard_group=np.zeros((1, 1, 1), np.int64),
        recompute=shaped(flat.recompute[[0, 1]], 2),
        recompute_every=np.ones((1, 1, 1), np.int64),
        offload_optimizer=np.zeros((1, 1, 1), np.int64),
        offload_activations=np.zeros((1, 1, 1), np.int64),
    )
    points, index = points_of(product, 2048)
    found = memory_columns(SMALL, where, saved_of_points(SMALL, points), product, index)
    assert found.device_total.shape == (2, 3, 2)
    assert found.device_total.ravel() == pytest.approx(listed)
    assert found.weights.shape == (2, 3, 2)


def test_the_loss_spike_of_a_small_card() -> None:
    """fp32 copies of the logits of 8,192 tokens; a chunked loss never makes them."""
    lora = Strategy(lora_rank=16, quantized_base=True, recompute="full", stack="eager", accumulation=8)
    wide = replace(LLAMA_70B_L12, n_layers=4)
    plain, chunked = (memory(wide, system("1xRTX 4090"), 8192, lora.with_(fused_loss=f)) for f in (False, True))
    assert float(plain.logits.flat[0]) == pytest.approx(8192 * 128256 * (2 + 3 * 4))
    assert float(chunked.logits.flat[0]) == 0.0
    assert float(chunked.device_total.flat[0]) < float(plain.device_total.flat[0]) - 9 * GIGA


def test_adapters_need_less_than_training_everything() -> None:
    where = system("1xH100-SXM")
    full, lora, qlora = (
        float(memory(SMALL, where, 2048, s).device_total.flat[0])
        for s in (
            Strategy(stack="eager", accumulation=2),
            Strategy(stack="eager", accumulation=2, lora_rank=8),
            Strategy(stack="eager-fsdp", accumulation=2, lora_rank=8, quantized_base=True),
        )
    )
    assert qlora < lora < full


def test_the_allocator_gives_its_slack_back_before_memory_is_out() -> None:
    """As the device fills up, what is shown approaches what is allocated and is never more than there is; what is needed and
    what the usual slack would take are not cut off there."""
    where = system("8xH100-SXM")
    batches = (8, 16, 24, 32, 40, 48, 64, 80, 96)
    sizes = [memory(SMALL, where, 2048, MEGATRON.with_(dp=8, micro_batch=m)) for m in batches]
    fits = [bool(s.fits().flat[0]) for s in sizes]
    assert fits == sorted(fits, reverse=True) and True in fits and False in fits
    slack = [float((s.shown - s.context - s.allocated).flat[0] / s.activations.flat[0]) for s in sizes]
    assert slack[-1] < slack[0]
    for s, fitting in zip(sizes, fits, strict=True):
        total, needed, shown = (float(x.flat[0]) for x in (s.device_total, s.needed, s.shown))
        assert needed < total and (shown <= s.usable) is fitting and needed <= shown <= total
    assert float(sizes[-1].device_total.flat[0]) > sizes[-1].usable


def test_the_probability_of_fitting_is_the_tail_of_the_spread() -> None:
    where = system("8xH100-SXM")
    sizes = [memory(SMALL, where, 2048, MEGATRON.with_(dp=8, micro_batch=m)) for m in range(8, 97, 4)]
    p = [s.fit_probability(0) for s in sizes]
    assert p == sorted(p, reverse=True) and p[0] > 0.99 and p[-1] < 0.01
    for s, one in zip(sizes, p, strict=True):
        assert bool(s.fits().flat[0]) is (one >= 0.5) and bool(s.fits(0.1).flat[0]) is (one >= 0.9)
        assert (s.estimate(0, "needed").high <= s.usable) is (one >= 0.9)


def test_one_strategy_as_estimates() -> None:
    columns = memory(SMALL, system("8xH100-SXM"), 2048, MEGATRON.with_(dp=8))
    assert set(columns.parts(0)) == set(PARTS)
    found = columns.parts(0) | {m: columns.estimate(0, m) for m in METRICS}
    assert all(e.low <= e.expected <= e.high for e in found.values())
    assert sum(found[p].expected for p in PARTS) == pytest.approx(found["device"].expected)
    assert found["allocated"].expected < found["reserved"].expected < found["device"].expected


# --- laws ---------------------------------------------------------------------------------------------------

archs = st.sampled_from([SMALL, SMALL_MOE])
stacks = st.sampled_from(STACKS)
shardings = st.sampled_from(["none", "zero1", "zero2", "zero3", "hybrid"])


@st.composite
def strategies_of(draw: st.DrawFn) -> Strategy:
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3, 4]))
    virtual = draw(st.sampled_from([1, 2])) if pp > 1 and 12 % (2 * pp) == 0 else 1
    return Strategy(
        micro_batch=draw(st.integers(1, 4)),
        accumulation=4 * draw(st.integers(1, 4)),
        tp=tp,
        pp=pp,
        dp=draw(st.sampled_from([2, 4, 8])),
        virtual_stages=virtual,
        sharding=draw(shardings),
        schedule="interleaved" if virtual > 1 else draw(st.sampled_from(["1f1b", "gpipe", "zero-bubble"])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        stack=draw(stacks),
        sequence_parallel=draw(st.booleans()),
        fused_attention=draw(st.booleans()),
    )


def device_bytes(arch: Architecture, s: Strategy, seq_len: int = 1024) -> float:
    # a device that nothing fills, so that the slack is never cut
    where = system("8xH100-SXM")
    vast = replace(where, accelerator=replace(where.accelerator, memory_bytes=1e15))
    return float(memory(arch, vast, seq_len, s).device_total.flat[0])


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(archs, strategies_of())
def test_recomputing_more_never_needs_more(arch: Architecture, s: Strategy) -> None:
    none, selective, full = (device_bytes(arch, s.with_(recompute=r)) for r in ("none", "selective", "full"))
    every_second = device_bytes(arch, s.with_(recompute="full", recompute_every=2))
    # of attention that is not fused the backward holds one layer's scores anew, in 16 and 32 bits: a short stage saves less
    anew = 0.0 if s.fused_attention else 6.0 * arch.heads * s.micro_batch * 1024**2
    assert full <= selective * (1 + 1e-9) and selective <= none * (1 + 1e-9) + anew
    assert full <= every_second * (1 + 1e-9)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(archs, strategies_of())
def test_memory_grows_with_the_micro_batch_and_the_sequence(arch: Architecture, s: Strategy) -> None:
    base = device_bytes(arch, s)
    assert device_bytes(arch, s.with_(micro_batch=2 * s.micro_batch)) >= base
    assert device_bytes(arch, s, 2048) >= base


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(archs, strategies_of())
def test_accumulating_longer_changes_nothing_in_a_full_pipeline(arch: Architecture, s: Strategy) -> None:
    s = s.with_(schedule="interleaved" if s.virtual_stages > 1 else "1f1b", accumulation=16)
    assert device_bytes(arch, s.with_(accumulation=64)) == pytest.approx(device_bytes(arch, s))


def test_gradients_kept_between_micro_batches() -> None:
    """Eager gradients appear during the backward: the only micro-batch of a step peaks without them, the
    second of two with them."""
    eager = Strategy(stack="eager", micro_batch=16)
    assert device_bytes(SMALL, eager.with_(accumulation=2)) > device_bytes(SMALL, eager)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(archs, strategies_of())
def test_gpipe_keeps_every_micro_batch(arch: Architecture, s: Strategy) -> None:
    s = s.with_(virtual_stages=1)
    assert device_bytes(arch, s.with_(schedule="gpipe")) >= device_bytes(arch, s.with_(schedule="1f1b"))


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(archs, strategies_of())
def test_offloading_never_needs_more(arch: Architecture, s: Strategy) -> None:
    base = device_bytes(arch, s)
    assert device_bytes(arch, s.with_(offload_optimizer=True)) <= base
    assert device_bytes(arch, s.with_(offload_activations=True)) <= base


def test_every_stack_has_rules() -> None:
    for stack in STACKS:
        assert find_stack(stack).memory.source


@pytest.mark.parametrize(("seq_len", "reserved_gib"), [(8192, 16.3), (65536, 37.5), (131072, 66.5), (262144, 124.5)])
def test_deepspeed_zero3_with_the_update_on_the_host(seq_len: int, reserved_gib: float) -> None:
    """stas00/ml-engineering insights/when-to-upgrade-gpus: Llama 3.1 8B on 8 x H200, the largest max_memory_reserved. At 8,192
    tokens it is that of the whole model, moved to the device before it is sharded."""
    strategy = Strategy(
        dp=8,
        sharding="zero3",
        recompute="full",
        offload_optimizer=True,
        gradient_dtype="bf16",
        fused_loss=True,
        stack="deepspeed",
    )
    found = memory(find_model("llama-3.1-8b"), find_cluster("8xH200-SXM").system, seq_len, strategy)
    assert found.estimate(0, "reserved").expected / GIB == pytest.approx(reserved_gib, rel=0.06)


def test_moments_in_bf16() -> None:
    """Megatron-Bridge's Moonlight 16B on 8 H100 (recipes/moonlight: gradients and both moments in bf16), whose skill for
    recomputation has 36.618 GB allocated without any."""
    layout = Strategy(tp=2, ep=8, dp=4, sharding="zero1", gradient_dtype="bf16", expert_dispatch="all-to-all")
    arch, node = find_model("moonlight-16b-a3b"), find_cluster("8xH100-SXM").system
    wide, half = (memory(arch, node, 4096, layout.with_(optimizer=o)) for o in ("adamw", "adamw-bf16"))
    assert half.allocated.item() == pytest.approx(36.618e9, rel=0.06)
    assert half.optimizer.item() == pytest.approx(wide.optimizer.item() * 8 / 12, rel=1e-9)


@pytest.mark.parametrize(("micro_batch", "seq_len", "shown_gib"), [(1, 4096, 57), (3, 2048, 70)])
def test_torchs_linear_keeps_what_zero3_gathered(micro_batch: int, seq_len: int, shown_gib: float) -> None:
    """FlagPerf training/nvidia/llama2_7b-deepspeed (mem_efficient_linear=False): nvidia-smi on 8 x A800, of 80 GB."""
    arch, node = find_model("llama-2-7b"), find_cluster("8xA800-80GB-SXM").system
    script = Strategy(dp=8, micro_batch=micro_batch, sharding="zero3", gradient_dtype="bf16", stack="deepspeed-script")
    found, made = (memory(arch, node, seq_len, s) for s in (script, script.with_(stack="deepspeed")))
    assert found.estimate(0).expected / GIB == pytest.approx(shown_gib, rel=0.06)
    weights = 2.0 * count_parameters(arch).total
    assert found.allocated.item() - made.allocated.item() == pytest.approx(weights, rel=0.01)
    recomputed = [
        memory(arch, node, seq_len, script.with_(stack=stack, recompute="full")).estimate(0, "allocated").expected
        for stack in ("deepspeed", "deepspeed-script")
    ]
    assert recomputed[0] == recomputed[1]


def test_deepspeed_on_one_gpu_holds_its_buckets_and_no_gradients_with_the_update_on_the_host() -> None:
    """runtime/zero/stage_1_and_2.py: two reduce buckets of 5e8 elements where the reduction overlaps, a gradient of the largest
    parameter, no other; gradients that are wider than their weights need stage 1, whose buckets are there too."""
    arch = find_model("llama-3.1-8b")
    one = Strategy(stack="deepspeed", recompute="full")
    host, wide, half, trainer = (
        memory(arch, system("H200-SXM"), 4096, s)
        for s in (one.with_(offload_optimizer=True), one, one.with_(gradient_dtype="bf16"), one.with_(stack="trainer"))
    )
    largest = arch.vocab * arch.hidden * 2
    assert host.communication.item() == pytest.approx(2 * 5e8 * 2 + largest, rel=0.01)
    assert host.gradients.item() == host.optimizer.item() == 0
    assert wide.communication.item() == pytest.approx(2 * 5e8 * 2, rel=0.01)
    assert half.communication.item() == trainer.communication.item() == 0
    once = memory(arch, system("H200-SXM"), 4096, one.with_(overlap_dp=False))
    assert once.communication.item() == pytest.approx(5e8 * 2, rel=0.01)


def test_a_model_larger_than_the_device_is_sharded_as_it_is_made() -> None:
    arch, strategy = find_model("llama-3-70b"), Strategy(dp=8, sharding="zero3", recompute="full", stack="deepspeed")
    found = memory(arch, find_cluster("8xH200-SXM").system, 4096, strategy)
    assert found.estimate(0, "reserved").expected < 2.0 * 70e9 * (1 + 1 / 8) + 60 * GIB
    assert found.parts(0)["reserve"].expected < 0.2 * found.estimate(0, "allocated").expected
