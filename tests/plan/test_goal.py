from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import GpuwiseError, InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.defaults import (
    BATCH_TOKENS,
    LARGEST_BATCH_RATIO,
    batch_for_devices,
    default_global_batch,
    default_seq_len,
    default_stack,
    round_log2,
)
from gpuwise.plan.goal import Wishes, check_wishes, make_goal
from gpuwise.plan.space.search import find_strategies
from gpuwise.workload.strategy import CHOICES
from gpuwise.workload.tasks import tasks

ARCH, NODE = find_model("llama-3.1-8b"), find_cluster("8xH100-SXM")


def test_gaps_are_filled_and_said() -> None:
    goal = make_goal(ARCH, NODE, Wishes())
    assert goal.seq_len == 8192
    assert goal.global_batch == 512
    assert len(goal.assumed) == 3
    assert goal.bases[0].stack == "megatron-core"


def test_what_is_given_is_kept() -> None:
    goal = make_goal(ARCH, NODE, Wishes(seq_len=4096, global_batch=96, stack="nanotron", precision=("bf16", "fp8")))
    assert (goal.seq_len, goal.global_batch) == (4096, 96)
    assert [b.precision for b in goal.bases] == ["bf16", "fp8"]
    assert goal.assumed == ()


def test_adapters_change_the_habits() -> None:
    goal = make_goal(ARCH, find_cluster("4090"), Wishes(quantized_base=True))
    assert goal.bases[0].lora_rank == 16
    assert (goal.seq_len, goal.global_batch) == (4096, 16)
    assert goal.bases[0].stack == "trainer" and any("TRL" in line for line in goal.assumed)


@pytest.mark.parametrize("field", ["tokens", "deadline_s", "budget_usd"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_amounts_must_be_positive_and_finite(field: str, value: float) -> None:
    with pytest.raises(InputError) as caught:
        check_wishes(Wishes(**{field: value}))
    assert caught.value.hint


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_unknown_choices_suggest_the_nearest(name: str) -> None:
    known = CHOICES[name][0]
    slip = known + "x"
    wishes = {
        "precision": Wishes(precision=(slip,)),
        "optimizer": Wishes(optimizer=slip),
        "stack": Wishes(stack=slip),
        "context_parallel": Wishes(context_parallel=slip),
        "gradient_dtype": Wishes(gradient_dtype=slip),
    }.get(name, Wishes(fixed={name: slip}))
    with pytest.raises(UnknownNameError) as caught:
        check_wishes(wishes)
    assert caught.value.hint and known in caught.value.hint


def test_a_format_the_accelerator_lacks_is_refused() -> None:
    with pytest.raises(UnpredictableError, match="fp8"):
        make_goal(ARCH, find_cluster("8xA100-SXM-80GB"), Wishes(precision=("fp8",)))


@pytest.mark.parametrize(("on", "precision"), [("v100-sxm-32gb", "fp16"), ("8xT4", "fp16"), ("gtx-1080-ti", "fp32")])
def test_older_accelerators_train_in_what_they_have(on: str, precision: str) -> None:
    goal = make_goal(ARCH, find_cluster(on), Wishes())
    assert goal.bases[0].precision == precision
    assert any("precision" in a for a in goal.assumed)


def test_learned_positions_are_a_limit() -> None:
    with pytest.raises(InputError, match="learned positions"):
        make_goal(find_model("gpt2"), NODE, Wishes(seq_len=4096))


def test_default_batches_follow_published_runs() -> None:
    for name, tokens in (
        ("gpt2", 0.5e6),
        ("llama-3.2-1b", 1e6),
        ("llama-2-7b", 4e6),
        ("llama-3.1-405b", 16e6),
    ):
        arch = find_model(name)
        seq_len, _ = default_seq_len(arch, tasks()["pretrain"])
        batch, why = default_global_batch(arch, seq_len, tasks()["pretrain"])
        assert 0.6 < batch * seq_len / tokens < 1.6
        assert "arXiv" in why
    assert [limit for limit, _, _ in BATCH_TOKENS] == sorted(limit for limit, _, _ in BATCH_TOKENS)


@pytest.mark.parametrize(
    ("name", "tokens", "a_step"),
    [("tinyllama-1.1b", 3e12, 2e6), ("smollm3-3b", 11.2e12, 4e6), ("gpt2", 10e9, 0.5e6), ("llama-2-7b", 2e12, 4e6)],
)
def test_small_models_that_read_trillions_take_larger_batches(name: str, tokens: float, a_step: float) -> None:
    arch = find_model(name)
    seq_len, _ = default_seq_len(arch, tasks()["pretrain"])
    batch, _ = default_global_batch(arch, seq_len, tasks()["pretrain"], tokens=tokens)
    assert 0.7 < batch * seq_len / a_step < 1.5
    assert make_goal(arch, find_cluster("16x8xA100-80GB-SXM"), Wishes(tokens=tokens)).global_batch == batch


@pytest.mark.parametrize(
    ("name", "cluster", "stack"),
    [
        ("gpt2-xl", "8xA100-80GB-SXM", "compiled-fsdp"),
        ("gpt2-xl", "2x8xA100-80GB-SXM", "megatron-core"),
        ("llama-3.1-8b", "8xA100-80GB-SXM", "megatron-core"),
    ],
)
def test_a_model_that_every_gpu_of_a_host_holds_needs_no_megatron(name: str, cluster: str, stack: str) -> None:
    assert default_stack(find_model(name), find_cluster(cluster), fine_tuning=False)[0] == stack


@pytest.mark.parametrize(
    ("cluster", "stack", "fused"), [("8xV100", None, False), ("8xV100", "compiled-fsdp", True), ("8xA100", None, True)]
)
def test_megatron_has_no_fused_attention_before_ampere(cluster: str, stack: str | None, fused: bool) -> None:
    name = {"8xV100": "8xV100-32GB-SXM", "8xA100": "8xA100-80GB-SXM"}[cluster]
    goal = make_goal(ARCH, find_cluster(name), Wishes(stack=stack))
    assert all(base.fused_attention is fused for base in goal.bases)
    assert any("without a fused kernel" in said for said in goal.assumed) is not fused


@pytest.mark.parametrize(
    ("stack", "fused"), [("megatron-deepspeed", False), ("megatron-legacy", False), ("vtrain", False), ("megatron-core", True)]
)
def test_stacks_that_write_attention_out_do_so_on_any_gpu(stack: str, fused: bool) -> None:
    goal = make_goal(ARCH, find_cluster("8xA100-80GB-SXM"), Wishes(stack=stack))
    assert all(base.fused_attention is fused for base in goal.bases)


@pytest.mark.parametrize(
    ("on", "year", "stack", "fused"),
    [
        ("48x8xA100-80GB-SXM", None, "megatron-core", True),
        ("48x8xA100-80GB-SXM", 2023, "megatron-core", True),
        ("48x8xA100-80GB-SXM", 2022, "megatron-deepspeed", False),
        ("A100-80GB-SXM", 2022, "eager-fsdp", False),
        ("64xTPU-v3", 2022, "maxtext", False),
    ],
)
def test_a_year_runs_the_software_of_its_time(on: str, year: int | None, stack: str, fused: bool) -> None:
    (base,) = make_goal(ARCH, find_cluster(on), Wishes(year=year, seq_len=2048)).bases
    assert (base.stack, base.fused_attention) == (stack, fused)


@pytest.mark.parametrize(
    ("stack", "fused"), [("trainer", False), ("hf-fsdp", False), ("deepspeed-script", True), ("torchtune", True)]
)
def test_transformers_fused_attention_a_year_after_torch(stack: str, fused: bool) -> None:
    wishes = Wishes(stack=stack, year=2023, seq_len=2048)
    (base,) = make_goal(ARCH, NODE, wishes).bases
    assert base.fused_attention is fused
    assert all(b.fused_attention for b in make_goal(ARCH, NODE, replace(wishes, year=2024)).bases)


@pytest.mark.parametrize("stack", [None, "megatron-core"])
def test_experts_of_2024_exchange_unhidden(stack: str | None) -> None:
    """Phi-3.5-MoE on its 512 H100 has the software of 2024, also where the stack that it would take is named."""
    exchange, cluster = ("expert_dispatch", "overlap_ep", "cuda_graphs"), find_cluster("64x8xH100-SXM")
    wishes = Wishes(seq_len=4096, stack=stack)
    found = [
        tuple(getattr(make_goal(find_model(name), cluster, w).bases[0], field) for field in exchange)
        for name, w in (
            ("phi-3.5-moe", wishes),
            ("phi-3.5-moe", replace(wishes, year=2025)),
            ("phi-3.5-moe", replace(wishes, expert_dispatch="deepep")),
            ("mixtral-8x7b", wishes),
            ("mixtral-8x7b", replace(wishes, year=2024)),
            ("mixtral-8x7b", replace(wishes, year=2024, stack="hai-llm")),
            ("llama-3-8b", replace(wishes, year=2024)),
        )
    ]
    old, new = ("all-to-all", False, "none"), ("deepep", True, "partial")
    assert found == [old, new, ("deepep", False, "none"), new, old, new, new]


def test_bloom_with_the_software_of_its_year_recomputes_every_layer() -> None:
    """As it did (arXiv 2211.05100 section 3.4, bigscience tr11): without fused attention its activations do not fit."""
    cluster = find_cluster("48x8xA100-80GB-SXM")
    wishes = Wishes(seq_len=2048, global_batch=2048, tokens=366e9)
    today, then = (find_strategies(make_goal(find_model("bloom-176b"), cluster, replace(wishes, year=y))) for y in (2023, 2022))
    old, new = then.ranked[0], today.ranked[0]
    assert (old.strategy.recompute, old.strategy.sequence_parallel) == ("full", False)
    assert new.strategy.recompute == "none"
    assert 1.25 < old.step_time_s.expected / new.step_time_s.expected < 1.6


@pytest.mark.parametrize(
    ("model", "on", "wishes", "stack"),
    [
        ("bloom-176b", "48x8xA100-80GB-SXM", Wishes(seq_len=2048), "megatron-deepspeed"),
        ("opt-175b", "124x8xA100-80GB-SXM", Wishes(seq_len=2048), "megatron-deepspeed"),
        ("gpt3-175b", "128x8xA100-80GB-SXM", Wishes(seq_len=2048), "megatron-core"),
        ("bloom-176b", "48x8xH100-SXM", Wishes(seq_len=2048), "megatron-core"),
        ("bloom-176b", "512x8xA100-80GB-SXM", Wishes(seq_len=2048), "megatron-core"),
        ("bloom-176b", "48x8xA100-80GB-SXM", Wishes(seq_len=2048, year=2023), "megatron-core"),
        ("bloom-176b", "48x8xA100-80GB-SXM", Wishes(seq_len=2048, fixed={"cp": 2}), "megatron-core"),
        ("bloom-176b", "48x8xA100-80GB-SXM", Wishes(seq_len=2048, lora_rank=16), "hf-fsdp"),
    ],
)
def test_a_published_run_is_planned_with_the_software_that_it_had(model: str, on: str, wishes: Wishes, stack: str) -> None:
    """The same model on as many GPUs of that family; GPT-3's run was on V100. Not where that software lacks what is asked."""
    goal = make_goal(find_model(model), find_cluster(on), wishes)
    assert goal.bases[0].stack == stack
    assumed = any("software of 2022" in said for said in goal.assumed)
    assert assumed == (goal.year is not None and wishes.year is None) == (stack == "megatron-deepspeed")


def test_no_software_is_older_than_mixed_precision() -> None:
    with pytest.raises(InputError, match="2016") as caught:
        make_goal(ARCH, NODE, Wishes(year=2016))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("stack", "precision", "form"), [("megatron-deepspeed", "fp16", "fp16"), ("megatron-deepspeed", "bf16", "fp32")]
)
def test_deepspeed_accumulates_fp16_gradients_in_fp16(stack: str, precision: str, form: str) -> None:
    wishes = Wishes(stack=stack, precision=(precision,))
    assert make_goal(ARCH, find_cluster("8xA100-80GB-SXM"), wishes).bases[0].gradient_dtype == form
    asked = make_goal(ARCH, find_cluster("8xA100-80GB-SXM"), replace(wishes, gradient_dtype="fp32"))
    assert asked.bases[0].gradient_dtype == "fp32"


def test_odd_clusters_get_a_batch_they_divide() -> None:
    goal = make_goal(ARCH, find_cluster("3xH100-PCIe"), Wishes())
    assert goal.global_batch % 3 == 0


def test_one_device_trains_without_megatron() -> None:
    assert default_stack(find_model("gpt2"), find_cluster("4090"), fine_tuning=False)[0] == "compiled-fsdp"
    assert default_stack(find_model("llama-3.1-8b"), find_cluster("4090"), fine_tuning=False)[0] == "deepspeed"


@given(st.floats(1, 1e9))
def test_round_log2_is_the_nearest_power(x: float) -> None:
    assert 0.6 < 2 ** round_log2(x) / x < 1.51


@given(
    tokens=st.none() | st.floats(),
    deadline_s=st.none() | st.floats(),
    seq_len=st.none() | st.integers(-5, 10**7),
    global_batch=st.none() | st.integers(-5, 10**7),
    optimizer=st.text(max_size=8) | st.just("adamw"),
    precision=st.tuples(st.text(max_size=5)) | st.just(("bf16",)),
    lora_rank=st.integers(-3, 64),
    fixed=st.dictionaries(
        st.sampled_from(["tp", "sharding", "micro_batch", "recompute"]), st.integers(-2, 9) | st.text(max_size=6)
    ),
)
def test_any_wishes_are_answered_or_refused_in_words(**fields: object) -> None:
    try:
        make_goal(ARCH, NODE, Wishes(**fields))  # type: ignore[arg-type]
    except GpuwiseError as error:
        assert error.message


@given(st.integers(0, 13), st.integers(1, 20_000))
def test_the_default_batch_suits_the_devices(exponent: int, n: int) -> None:
    usual = 1 << exponent
    batch = batch_for_devices(usual, n)
    odd = n // (n & -n)
    assert batch >= 1 and batch % odd == 0
    if odd <= usual:
        assert 1 / LARGEST_BATCH_RATIO <= batch / usual <= LARGEST_BATCH_RATIO
        assert batch % n == 0 or n % batch == 0 or n > usual
    if odd == 1:
        assert batch == usual


@pytest.mark.parametrize(
    ("model", "on", "seq", "batch", "published"),
    [
        ("bloom-176b", "48x8xA100-80GB-SXM", 2048, 2304, 2048),
        ("falcon-40b", "48xp4d", 2048, 2304, 1152),
        ("phi-4", "240x8xH100-SXM", 4096, 1920, 5760),
        ("dbrx", "384x8xH100-SXM", 4096, 1536, None),
        ("phi-2", "12x8xA100-80GB-SXM", 2048, 576, None),
    ],
)
def test_clusters_of_published_runs_get_a_batch_they_divide(
    model: str, on: str, seq: int, batch: int, published: int | None
) -> None:
    """Batches as published: arXiv 2211.05100 section 3.2.4, Falcon-40B's model card, arXiv 2412.08905 section 3."""
    cluster = find_cluster(on)
    goal = make_goal(find_model(model), cluster, Wishes(seq_len=seq))
    assert goal.global_batch == batch
    if published is not None:
        assert 1 / 3 <= batch / published <= 3
    assert find_strategies(goal).n_strategies


@pytest.mark.parametrize(
    ("asked", "stack"),
    [
        ({}, "megatron-core"),
        ({"schedule": "interleaved", "pp": 2}, "megatron-core"),
        ({"schedule": "zero-bubble", "pp": 2}, "compiled-fsdp"),
        ({"schedule": "zero-bubble", "pp": 2, "sharding": "zero1"}, "hai-llm"),
        ({"schedule": "dualpipe", "pp": 2, "tp": 2}, "megatron-core"),
    ],
)
def test_a_stack_that_has_what_was_asked_for(asked: dict[str, int | str | bool], stack: str) -> None:
    """The last one is in none: the usual stack stays, and its refusal says why."""
    found, why = default_stack(ARCH, find_cluster("8xH100-SXM"), fine_tuning=False, options=asked)
    assert found == stack
    assert ("requested" in why) == (stack != "megatron-core")


@pytest.mark.parametrize(
    ("name", "cluster", "wishes", "stack"),
    [
        ("llama-3.1-70b", "8xA100-80GB-SXM", Wishes(quantized_base=True), "trainer"),
        ("llama-3.1-70b", "8xA100-80GB-SXM", Wishes(lora_rank=16), "hf-fsdp"),
        ("llama-3.1-8b", "8xA100-80GB-SXM", Wishes(lora_rank=16), "trainer"),
        ("llama-3.1-8b", "4090", Wishes(lora_rank=16, fused_loss=True), "trainer"),
        ("llama-3.1-70b", "8xA100-80GB-SXM", Wishes(lora_rank=16, fused_loss=True), "hf-fsdp"),
        ("llama-3.1-8b", "4xTPU-v5e", Wishes(lora_rank=16), "maxtext"),
        ("llama-3.1-8b", "4090", Wishes(), "deepspeed"),
    ],
)
def test_adapters_are_trained_by_the_trainer(name: str, cluster: str, wishes: Wishes, stack: str) -> None:
    """Replicas where the frozen weights leave room, FSDP where they do not; chunks of the loss are an option of both."""
    assert make_goal(find_model(name), find_cluster(cluster), wishes).bases[0].stack == stack


@pytest.mark.parametrize(
    ("name", "cluster", "fixed", "stack"),
    [
        ("llama-3.1-8b", "8xA100-80GB-SXM", {}, "deepspeed"),
        ("llama-3.1-8b", "A100-80GB-SXM", {}, "deepspeed"),
        ("llama-3.2-3b", "H100-SXM", {}, "trainer"),
        ("llama-3.1-8b", "B200", {}, "trainer"),
        ("llama-3.2-3b", "H100-SXM", {"offload_optimizer": True}, "deepspeed"),
        ("llama-3.2-1b", "8xA100-80GB-SXM", {}, "trainer"),
        ("llama-3.1-8b", "8xA100-80GB-SXM", {"tp": 2}, "compiled-fsdp"),
        ("llama-3.1-8b", "4xTPU-v5e", {}, "maxtext"),
    ],
)
def test_all_weights_are_fine_tuned_by_the_trainer(
    name: str, cluster: str, fixed: dict[str, int | str | bool], stack: str
) -> None:
    """Under DeepSpeed where a replica leaves no room for activations; pre-training takes it on one GPU that states fill."""
    wishes = Wishes(fixed=fixed)
    assert make_goal(find_model(name), find_cluster(cluster), replace(wishes, task="full")).bases[0].stack == stack
    others = ("megatron-core", "compiled-fsdp", "deepspeed", "maxtext")
    assert make_goal(find_model(name), find_cluster(cluster), wishes).bases[0].stack in others


@pytest.mark.parametrize(
    ("wishes", "stack"),
    [
        (Wishes(), "deepspeed"),
        (Wishes(half_weights=True), "trainer"),
        (Wishes(optimizer="adamw8bit"), "deepspeed"),
        (Wishes(optimizer="adamw8bit", half_weights=True), "trainer"),
    ],
)
def test_one_gpu_takes_the_trainer_where_the_states_asked_for_fit(wishes: Wishes, stack: str) -> None:
    """8B on 80 GB: 145 GB of AdamW's states, 64 of weights in 16 bits, 97 of 8-bit states."""
    goal = make_goal(find_model("llama-3.1-8b"), find_cluster("H100-SXM"), replace(wishes, task="full"))
    assert goal.bases[0].stack == stack


def test_a_loss_in_chunks_is_taken_where_whole_logits_do_not_fit() -> None:
    """8B under LoRA at 4,096 tokens on 24 GB: fp32 logits of 128,256 words are 2 GiB each, and there are three."""
    wishes = Wishes(lora_rank=16, tokens=1e7)
    found = find_strategies(make_goal(ARCH, find_cluster("4090"), wishes))
    assert found.ranked[0].fits and found.ranked[0].strategy.fused_loss and "use_liger_kernel" in found.notes[-1]
    small = find_strategies(make_goal(ARCH, find_cluster("4090"), replace(wishes, seq_len=512)))
    assert small.ranked[0].fits and not small.ranked[0].strategy.fused_loss


def test_adapters_with_sharded_optimizer_states_run_in_deepspeed() -> None:
    assert default_stack(ARCH, find_cluster("8xH100-SXM"), fine_tuning=True, options={"sharding": "zero1"})[0] == "deepspeed"


def test_the_option_for_a_loss_in_chunks_fuses_norms_and_activations() -> None:
    """Liger's kernels come together (transformers ``use_liger_kernel``): a step with them is not slower, and smaller."""
    wishes = Wishes(lora_rank=16, seq_len=2048, global_batch=16, tokens=1e7, fixed={"micro_batch": 2, "recompute": "full"})
    whole, chunks = (
        find_strategies(
            make_goal(find_model("llama-3.1-70b"), find_cluster("8xA100-80GB-SXM"), replace(wishes, fused_loss=fused))
        )
        for fused in (False, True)
    )
    before, after = whole.ranked[0], chunks.ranked[0]
    assert (before.strategy.stack, after.strategy.stack) == ("hf-fsdp", "hf-fsdp")
    assert after.step_time_s.expected < before.step_time_s.expected
    assert after.needed_bytes.expected < before.needed_bytes.expected


def test_torchtunes_recipes_hold_all_states_in_16_bits() -> None:
    arch, node = find_model("llama-3.1-70b"), find_cluster("8xA100-80GB-SXM")
    full = make_goal(arch, node, Wishes(stack="torchtune")).bases[0]
    adapters = make_goal(arch, node, Wishes(stack="torchtune", lora_rank=16)).bases[0]
    assert not full.master_weights and full.gradient_dtype == "bf16"
    assert make_goal(arch, node, Wishes(stack="compiled-fsdp")).bases[0].master_weights
    assert adapters == make_goal(arch, node, Wishes(stack="torchtune", lora_rank=16, half_weights=False)).bases[0]
    assert make_goal(arch, node, Wishes(stack="torchtune", precision=("fp32",))).bases[0].master_weights


def test_a_field_without_a_wish_of_its_own_reaches_the_strategy() -> None:
    asked = Wishes(fixed={"row_scales": True, "overlap_dp": False, "tp": 2})
    (base,) = make_goal(find_model("llama-3.1-8b"), find_cluster("8xH100-SXM"), asked).bases
    assert base.row_scales and not base.overlap_dp and base.tp == 1, "what is searched is not the base's"


@pytest.mark.parametrize(
    ("fixed", "batch"),
    [
        ({"micro_batch": 12, "accumulation": 5, "dp": 8}, 480),
        ({"micro_batch": 7, "accumulation": 3}, 168),
        ({"micro_batch": 12}, 480),
        ({"micro_batch": 16, "tp": 2}, 512),
    ],
)
def test_an_assumed_batch_follows_the_given_parts(fixed: dict[str, int], batch: int) -> None:
    goal = make_goal(find_model("gpt2"), find_cluster("8xA100-40GB-SXM"), Wishes(tokens=1e10, fixed=fixed))
    assert goal.global_batch == batch
