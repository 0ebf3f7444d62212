"""Nothing asked for is dropped in silence: it is refused, or said to make no difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.errors import InputError, LayoutError
from gpuwise.export.job import Job
from gpuwise.export.targets import command
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.api import make_fit, make_plan
from gpuwise.plan.goal import Wishes, make_goal
from gpuwise.plan.space.conditions import Setting
from gpuwise.plan.space.rules import check_strategy
from gpuwise.predict.step.training import estimate
from gpuwise.workload.strategy import Strategy

EIGHT, NODE = find_model("llama-3.1-8b"), find_cluster("8xH100-SXM")
NODES = find_cluster("2x8xH100-SXM")


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (Wishes(fixed={"pp": 1, "schedule": "zero-bubble"}), "schedule without a pipeline"),
        (Wishes(fixed={"cp": 1}, context_parallel="ulysses"), "without context parallelism"),
        (Wishes(fixed={"tp": 1, "sequence_parallel": True}), "tensor ranks"),
        (Wishes(fixed={"sharding": "none", "shard_group": 4}), "without sharding"),
        (Wishes(fixed={"recompute": "none", "recompute_every": 2}), "one layer in 2"),
        (Wishes(precision=("fp32",), gradient_dtype="bf16"), "gradients with fp32"),
        (Wishes(precision=("bf16",), gradient_dtype="fp16"), "fp16 gradients"),
        (Wishes(precision=("fp32",), half_weights=True), "16-bit weights"),
        (Wishes(lora_rank=8, half_weights=True), "adapters"),
        (Wishes(risk=1.0), "risk"),
        (Wishes(step_in_backward=True, fixed={"accumulation": 4}), "accumulates nothing, not 4"),
    ],
)
def test_contradictions_are_refused(wishes: Wishes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_goal(EIGHT, NODE, wishes)


def test_what_makes_no_difference_is_said() -> None:
    asked = Wishes(
        seq_len=4096,
        cuda_graphs="none",
        expert_dispatch="all-to-all",
        context_parallel="ulysses",
        packed_document_len=5000,
    )
    said = " ".join(make_plan(EIGHT, NODE, asked).warnings)
    words = ("partial CUDA graphs make no", "the exchange all-to-all is not used", "ulysses exchange", "packing makes no")
    assert all(w in said for w in words)
    quiet = " ".join(make_plan(EIGHT, NODE, Wishes(seq_len=4096)).warnings)
    shards = Wishes(seq_len=4096, stack="deepspeed", fixed={"sharding": "zero3", "recompute": "none", "micro_batch": 1})
    assert any("deepspeed-script" in w for w in make_plan(EIGHT, NODE, shards).warnings)
    assert "no difference" not in quiet and "not used" not in quiet


def test_a_batch_that_few_ranks_divide_is_said_with_one_that_suits() -> None:
    said = " ".join(make_plan(EIGHT, NODE, Wishes(seq_len=4096, global_batch=7)).warnings)
    assert "a global batch of 7 divides over 1 data-parallel rank of 8 GPUs at most: --global-batch 8" in said
    with pytest.raises(LayoutError) as refused:
        make_fit(EIGHT, NODE, Wishes(seq_len=4096, global_batch=7))
    assert refused.value.hint == "--global-batch 8"
    with pytest.raises(LayoutError) as refused:
        make_fit(EIGHT, NODE, Wishes(seq_len=4096, global_batch=20))
    assert refused.value.hint == "--global-batch 16 or --global-batch 24"


def test_full_recompute_is_of_every_layer() -> None:
    best = make_plan(EIGHT, NODE, Wishes(seq_len=4096, fixed={"recompute": "full"})).best
    assert best is not None
    assert (best.estimate.strategy.recompute, best.estimate.strategy.recompute_every) == ("full", 1)


def test_faster_formats_are_said_and_searched() -> None:
    b200 = find_cluster("8xB200-SXM")
    plain, auto = (make_plan(EIGHT, b200, Wishes(seq_len=4096, precision=p)) for p in ((), ("auto",)))
    assert plain.best is not None and auto.best is not None
    (said,) = [r for r in plain.reasons if r.startswith("Fewer bits")]
    assert all(f"less in {form}" in said for form in ("fp8", "mxfp8", "nvfp4"))
    assert auto.best.time_s.expected < plain.best.time_s.expected and auto.best.estimate.strategy.precision != "bf16"
    old = make_plan(EIGHT, find_cluster("8xA100-SXM-80GB"), Wishes(seq_len=4096, precision=("auto",))).best
    assert old is not None and old.estimate.strategy.precision == "bf16"


def test_a_format_that_the_tool_cannot_say_is_not_offered() -> None:
    plan = make_plan(EIGHT, find_cluster("3x4090"), Wishes(tokens=2e7, lora_rank=16, stack="trainer"))
    assert plan.best is not None
    assert not [r for r in plan.reasons if r.startswith("Fewer bits")]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [(3e5, "less than one update of"), (2e7, "38 updates of 524K tokens: --global-batch 48 makes 102"), (1e9, "")],
)
def test_few_updates_are_warned_of(tokens: float, said: str) -> None:
    notes = [w for w in make_plan(EIGHT, NODE, Wishes(tokens=tokens)).warnings if " tokens are " in w]
    assert said in notes[0] if said else not notes


def test_documents_longer_than_the_sequence_are_as_long_as_it() -> None:
    whole, longer = (make_plan(EIGHT, NODE, Wishes(tokens=1e9, packed_document_len=n)).best for n in (8192, 99999))
    assert whole is not None and longer is not None
    assert longer.estimate.step_time_s == whole.estimate.step_time_s and longer.estimate.mfu == whole.estimate.mfu


def test_weights_without_copies_and_updates_in_the_backward_pass_take_less() -> None:
    card, wishes = find_cluster("H200-SXM"), Wishes(seq_len=1024, stack="compiled-fsdp", global_batch=1)
    seven = find_model("llama-2-7b")
    whole = make_fit(seven, card, wishes).estimate
    half = make_fit(seven, card, replace(wishes, half_weights=True)).estimate
    both = make_fit(seven, card, replace(wishes, half_weights=True, step_in_backward=True)).estimate
    n = 6.74e9
    saved = whole.needed_bytes.expected - half.needed_bytes.expected
    assert saved == pytest.approx(n * (4 + 4 + 8 - 2 - 2 - 4), rel=0.35)  # fp32 weights, gradients and moments against bf16
    # the gradients, but a layer's, and what the activations fill before there are any
    assert half.needed_bytes.expected - both.needed_bytes.expected > 1.2 * n
    assert both.memory_parts["gradients"] < 0.1 * n
    with pytest.raises(LayoutError, match="backward pass with accumulation 4"):
        make_fit(seven, card, replace(wishes, step_in_backward=True, global_batch=4))


def test_paged_states_move_to_the_host_where_memory_is_short() -> None:
    card, wishes = find_cluster("H100-SXM"), Wishes(seq_len=4096, half_weights=True, stack="compiled-fsdp")
    plain, paged = (make_fit(EIGHT, card, replace(wishes, optimizer=o)).estimate for o in ("adamw8bit", "paged-adamw8bit"))
    assert paged.memory_bytes == plain.memory_bytes
    states = plain.memory_parts["optimizer"]
    assert plain.needed_bytes.expected - paged.needed_bytes.expected == pytest.approx(states, rel=1e-6)


def test_states_sharded_over_a_chosen_group() -> None:
    layouts = [Strategy(tp=2, dp=8, accumulation=2, sharding="zero1", shard_group=g) for g in (2, 4, 8, 0)]
    done = [estimate(EIGHT, NODES, s, seq_len=4096) for s in layouts]
    states = [e.memory_parts["optimizer"] for e in done]
    assert states[0] == pytest.approx(2 * states[1]) and states[1] == pytest.approx(2 * states[2])
    assert done[2].memory_bytes == done[3].memory_bytes and done[2].step_time_s == done[3].step_time_s
    assert "--num-distributed-optimizer-instances 4" in command(Job(EIGHT, NODES, layouts[0], 4096))
    plan = make_plan(EIGHT, NODES, Wishes(seq_len=4096, fixed={"shard_group": 4}))
    assert plan.best is not None and plan.best.estimate.strategy.shard_group == 4
    assert all(o.estimate.strategy.sharding != "none" for o in plan.front)


def test_layers_that_do_not_divide_over_the_stages() -> None:
    """60 layers over 16 stages: four on each but the ends, which have two."""
    arch, s = replace(EIGHT, n_layers=60), Strategy(pp=16, accumulation=32)
    check_strategy(Setting.of(arch, NODES, s, 4096, 32), s)
    said = [f for f in command(Job(arch, NODES, s, 4096)) if "pipeline-num-layers" in f]
    assert said == ["--decoder-first-pipeline-num-layers 2", "--decoder-last-pipeline-num-layers 2"]
    fewer, even = (estimate(replace(EIGHT, n_layers=n), NODES, s, seq_len=4096) for n in (60, 64))
    assert fewer.memory_bytes.expected < even.memory_bytes.expected
    assert 0.7 < fewer.step_time_s.expected / even.step_time_s.expected <= 1
    with pytest.raises(LayoutError, match="do not spread"):
        legacy = s.with_(stack="megatron-legacy")
        check_strategy(Setting.of(replace(EIGHT, n_layers=49), NODES, legacy, 4096, 32), legacy)


def test_stages_that_differ_by_a_layer() -> None:
    """70 layers over 16 stages: six of five layers, ten of four (Megatron-Core --pipeline-model-parallel-layout)."""
    arch, s = replace(EIGHT, n_layers=70), Strategy(pp=16, accumulation=32)
    check_strategy(Setting.of(arch, NODES, s, 4096, 32), s)
    (said,) = (f for f in command(Job(arch, NODES, s, 4096)) if "pipeline-model-parallel-layout" in f)
    split = said.partition(" ")[2].strip("'\"").split("|")
    numbers = [int(part.strip("EL").removeprefix("t*")) for part in split]
    assert sum(numbers) == 70 and len(numbers) == 16 and set(numbers) == {4, 5} and numbers[0] == numbers[-1] == 4
    more, even = (estimate(replace(EIGHT, n_layers=n), NODES, s, seq_len=4096) for n in (70, 64))
    assert even.step_time_s.expected < more.step_time_s.expected < 1.3 * even.step_time_s.expected


@pytest.mark.parametrize(("layers", "pp", "virtual"), [(61, 4, 4), (61, 8, 4), (61, 4, 8)])
def test_virtual_stages_of_deepseek_v3_are_full_but_the_last_ones(layers: int, pp: int, virtual: int) -> None:
    """61 layers over 16 or 32 chunks, as the recipes of Megatron-Bridge lay DeepSeek-V3 out; no others."""
    arch, s = (
        replace(EIGHT, n_layers=layers),
        Strategy(pp=pp, dp=16 // pp, accumulation=2 * pp, virtual_stages=virtual, schedule="interleaved"),
    )
    setting = Setting.of(arch, NODES, s, 4096, s.global_batch)
    check_strategy(setting, s)
    said = command(Job(arch, NODES, s, 4096))
    assert not any("virtual" in part for part in said)
    (split,) = (f.partition(" ")[2].strip("'\"").split("|") for f in said if "pipeline-model-parallel-layout" in f)
    numbers = [int(part.strip("EL").removeprefix("t*") or 0) for part in split]
    fullest = -(-layers // (pp * virtual))
    assert len(numbers) == pp * virtual and sum(numbers) == layers
    assert all(n == fullest for i, n in enumerate(numbers) if i % pp < pp - 1) and max(numbers) == fullest
    full = estimate(replace(EIGHT, n_layers=pp * virtual * fullest), NODES, s, seq_len=4096)
    # the head, on the last rank, no longer stands behind as many layers as the others have
    assert 0.8 < estimate(arch, NODES, s, seq_len=4096).step_time_s.expected / full.step_time_s.expected <= 1
    with pytest.raises(LayoutError, match="do not spread"):
        fewer = replace(EIGHT, n_layers=pp * virtual + 1)
        check_strategy(replace(setting, arch=fewer), s)


@pytest.mark.thorough
def test_four_bit_weights_of_33_billion_are_tuned_on_24_gib_as_published() -> None:
    """arXiv 2305.14314: 33B on one 24 GB card, whose adapters' states are paged; at one's wish they stay where they are."""
    card, wishes = find_cluster("4090"), Wishes(seq_len=512, global_batch=16, quantized_base=True, lora_rank=64)
    plan = make_plan(find_model("llama-30b"), card, wishes)
    assert plan.best is not None and plan.best.estimate.fits
    best = plan.best.estimate
    assert best.strategy.optimizer == "paged-adamw" and not best.strategy.offload_activations
    assert best.allocated_bytes.expected < best.needed_bytes.expected < best.memory_bytes.expected
    named = make_plan(find_model("llama-30b"), card, replace(wishes, optimizer="adamw"))
    assert named.best is None or named.best.estimate.strategy.optimizer == "adamw"


def test_embedding_and_head_have_chunks_of_their_own_as_llama_3() -> None:
    """126 layers on 16 stages of 8 virtual ones: 7 on the ends, 8 between (arXiv 2407.21783, section 3.3.2)."""
    arch, s = replace(EIGHT, n_layers=126), Strategy(pp=16, virtual_stages=8, schedule="interleaved", accumulation=32)
    check_strategy(Setting.of(arch, NODES, s, 4096, 32), s)
    plain = estimate(arch, NODES, s.with_(virtual_stages=2), seq_len=4096)
    assert estimate(arch, NODES, s, seq_len=4096).breakdown_s["pipeline bubble"] < 0.3 * plain.breakdown_s["pipeline bubble"]
    one = s.with_(virtual_stages=1, schedule="1f1b")
    with pytest.raises(LayoutError, match="do not spread"):  # no stage without a layer
        check_strategy(Setting.of(replace(EIGHT, n_layers=14), NODES, one, 4096, 32), one)


def test_the_loader_of_a_model_of_sound_is_said_to_be_left_out() -> None:
    said = make_plan(find_model("whisper-tiny"), find_cluster("a100-80gb-sxm"), Wishes(tokens=1e8)).warnings
    assert any("spectrograms" in w for w in said)
