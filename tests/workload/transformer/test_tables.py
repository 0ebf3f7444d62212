from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.facts.models.architecture import Architecture, Moe
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.parameters import count_parameters
from gpuwise.workload.transformer.tables import model_flop_per_token, recomputed_share, saved_bytes, transformer_tables

LLAMA = Architecture(
    id="t",
    name="t",
    kind="decoder",
    n_layers=4,
    hidden=512,
    ffn=1536,
    heads=8,
    kv_heads=4,
    head_dim=64,
    vocab=1024,
    max_seq_len=4096,
)


def point(**changes: object) -> Point:
    base = Point(
        micro_batch=2,
        seq_len=256,
        tp=1,
        cp=1,
        ep=1,
        sequence_parallel=True,
        context_parallel="ring",
        precision="bf16",
        stack=find_stack("megatron-core"),
        fused_attention=True,
        fused_loss=False,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_model_flop_of_a_dense_decoder_are_six_per_matmul_parameter_and_the_visible_attention() -> None:
    seq = 1024
    count = count_parameters(LLAMA)
    norms = (2 * LLAMA.n_layers + 1) * LLAMA.hidden
    matmul = count.total - count.embedding - norms
    pairs = seq * (seq + 1) / 2
    attention = 3 * 2 * LLAMA.n_layers * LLAMA.heads * 2 * LLAMA.head_dim * pairs / seq
    assert model_flop_per_token(LLAMA, seq) == pytest.approx(6 * matmul + attention, rel=1e-9)


@given(tp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2]), micro_batch=st.integers(1, 4))
@settings(max_examples=settings().max_examples, deadline=None)
def test_ranks_of_a_layout_do_the_work_of_one(tp: int, cp: int, micro_batch: int) -> None:
    """FLOP are conserved: tp x cp ranks together do what one rank does for the same sequences."""
    whole = transformer_tables(LLAMA, point(micro_batch=micro_batch))
    part = transformer_tables(LLAMA, point(micro_batch=micro_batch, tp=tp, cp=cp))
    for mine, all_of_it in ((part.layers["dense"], whole.layers["dense"]), (part.head, whole.head)):
        assert mine.total_flop() * tp * cp == pytest.approx(all_of_it.total_flop(), rel=1e-9)


@pytest.mark.parametrize("stack", ["megatron-core", "eager", "compiled-fsdp"])
def test_backward_is_twice_forward_and_full_recompute_is_forward_again(stack: str) -> None:
    p = point(stack=find_stack(stack))
    table = transformer_tables(LLAMA, p).layers["dense"]
    forward, backward = table.total_flop(Phase.FORWARD), table.total_flop(Phase.BACKWARD)
    assert backward == pytest.approx(2 * forward)
    share = recomputed_share(table, p.stack.selective_recompute)
    assert np.all(share[table.phase == Phase.BACKWARD] == 0)
    selective = float((share * table.flop * table.count).sum())
    assert 0 <= selective < forward


def test_selective_recompute_by_operation_runs_every_second_product_again() -> None:
    """torchtitan's default for Llama 3 keeps the products of query, value, gate and down: key, output and up run again."""
    table = transformer_tables(LLAMA, point(stack=find_stack("compiled-fsdp"))).layers["dense"]
    share = dict(zip(table.name, recomputed_share(table, "per-op-compiled"), strict=True))
    hidden, ffn, key = 512, 1536, 256
    again = 2.0 * 512 * hidden * (key + hidden + ffn)  # 512 tokens
    products = (table.phase == Phase.FORWARD) & (table.kind == Kind.MATMUL)
    flop = sum(share[n] * f for n, f in zip(np.array(table.name)[products], table.flop[products], strict=True))
    assert flop == pytest.approx(again)
    assert share["mlp.activation"] == 1.0 and share["attention.core"] == 0.0


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-legacy", "eager", "compiled-fsdp", "nanotron"])
def test_recompute_keeps_fewer_bytes(stack: str) -> None:
    p = point(stack=find_stack(stack), fused_attention=stack != "megatron-legacy")
    table = transformer_tables(LLAMA, p).layers["dense"]
    layer_input = p.shard_tokens * LLAMA.hidden * 2.0
    kept = [saved_bytes(table, policy, p.stack.selective_recompute, layer_input) for policy in ("full", "selective", "none")]
    assert kept[0] < kept[1] <= kept[2]


def test_low_rank_adapters_drop_the_weight_gradients() -> None:
    full = transformer_tables(LLAMA, point()).layers["dense"]
    lora = transformer_tables(LLAMA, point(lora_rank=8)).layers["dense"]
    big = [n for n in lora.name if n.endswith(".wgrad") and "lora" not in n]
    assert not big
    assert lora.total_flop() < 0.75 * full.total_flop()


def test_expert_parallel_ranks_share_the_experts_and_exchange_tokens() -> None:
    moe = replace(LLAMA, moe=Moe(n_experts=8, n_active=2, expert_ffn=768))
    alone = transformer_tables(moe, point()).layers["moe"]
    spread = transformer_tables(moe, point(ep=4)).layers["moe"]
    assert alone.total_flop() == pytest.approx(spread.total_flop())
    grouped = spread.kind == Kind.GROUPED
    assert set(spread.shape[grouped, 0]) == {2}
    names = [n for n, k in zip(spread.name, spread.kind, strict=True) if k == Kind.COLLECTIVE]
    assert [n for n in names if n.startswith("ep.all_to_all")] and not [n for n in alone.name if n.startswith("ep.")]


def test_experts_divided_over_tensor_ranks_do_as_much_on_all_tokens_at_a_part_of_the_width() -> None:
    moe = replace(LLAMA, moe=Moe(n_experts=8, n_active=2, expert_ffn=768))
    whole, divided = (transformer_tables(moe, point(tp=2, sequence_parallel=True, etp=n)).layers["moe"] for n in (1, 2))
    assert whole.total_flop() == divided.total_flop()
    rows = dict(zip(divided.name, divided.shape.tolist(), strict=True))
    each = dict(zip(whole.name, whole.shape.tolist(), strict=True))
    experts, routed, width, hidden = each["moe.up"][:4]
    assert rows["moe.up"][:4] == [experts, 2 * routed, width // 2, hidden]
    moved = {n for n in divided.name if n.endswith(".experts")}
    assert moved == {"tp.all_gather.experts", "tp.reduce_scatter.experts"} and not moved & set(whole.name)


def test_sliding_windows_only_touch_the_local_layers() -> None:
    gemma = replace(LLAMA, window=64, global_every=2)
    tables = transformer_tables(gemma, point())
    assert dict(tables.layer_counts) == {"dense.local": 2, "dense": 2}
    assert tables.layers["dense.local"].total_flop() < tables.layers["dense"].total_flop()


def test_packing_keeps_attention_inside_documents() -> None:
    packed = transformer_tables(LLAMA, point(packed_document_len=64)).layers["dense"]
    whole = transformer_tables(LLAMA, point()).layers["dense"]
    attention = packed.kind == Kind.ATTENTION
    assert packed.flop[attention].sum() < 0.3 * whole.flop[attention].sum()
    assert np.allclose(packed.flop[~attention], whole.flop[~attention])
