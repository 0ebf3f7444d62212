"""Stacks are read from their files, one at a time, strictly."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gpuwise.errors import DataError, InputError, UnknownNameError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.answer import Fit
from gpuwise.plan.api import make_fit
from gpuwise.plan.goal import Wishes
from gpuwise.predict.memory.device import stack_memory
from gpuwise.predict.stack_costs import find_stack_costs
from gpuwise.predict.step.training import TrainingEstimate, estimates
from gpuwise.workload.stacks import FOLDER
from gpuwise.workload.stacks import stack as stacks_module
from gpuwise.workload.stacks.stack import Stack, find_stack, in_year, releases, with_whole_logits
from gpuwise.workload.strategy import STACKS, Strategy


@pytest.mark.parametrize("name", STACKS)
def test_every_file_has_values_of_the_fields_types(name: str) -> None:
    msgspec.convert(find_stack(name), Stack, from_attributes=True, strict=True)
    facts = find_stack(name)
    assert facts.name == name
    named = [facts.like, *facts.instead.asked, facts.instead.before_fused, facts.instead.compiled, facts.instead.own_script]
    assert {n for n in named if n} <= set(STACKS)


def test_every_tool_named_is_one_of_export() -> None:
    from gpuwise.export.targets import TOOLS

    tools = {t for name in STACKS for t in (find_stack(name).export.tool, find_stack(name).export.tool_with_adapters) if t}
    assert tools <= set(TOOLS) and {t.stack for t in TOOLS.values()} <= set(STACKS)


def test_a_stack_takes_the_facts_of_the_one_it_is_like() -> None:
    script, deepspeed = find_stack("deepspeed-script"), find_stack("deepspeed")
    assert (script.like, script.fused_since, script.bucket_elements) == ("deepspeed", 2023, deepspeed.bucket_elements)
    assert script.memory.keeps_gathered and not deepspeed.memory.keeps_gathered
    assert script.memory.live_elements == deepspeed.memory.live_elements
    assert script.export.tool == ""  # sections are inherited by their own ``like`` only


def test_an_unknown_stack_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match="megatron-cor") as caught:
        find_stack("megatron-cor")
    assert "megatron-core" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fused_everything = true", "fused_everything"),
        ("[memory]\nlike = 'eager'\nholds = 1", r"\[memory\].*holds"),
        ("[memory]\nlike = 'eager'\ngradients = 'sometimes'", "gradients must be one of"),
    ],
)
def test_a_new_file_is_a_stack_and_a_malformed_one_is_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = "source = 'a test'\nlike = 'eager'\n"
    sections = "".join(f"[{section}]\nlike = 'eager'\n" for section in ("memory", "layout") if f"[{section}]" not in text)
    for name in STACKS:
        (tmp_path / f"{name}.toml").write_bytes((FOLDER / f"{name}.toml").read_bytes())
    (tmp_path / "good.toml").write_text(like + "[memory]\nlike = 'eager'\n[layout]\nlike = 'eager'\n")
    bad = like + (text + "\n" + sections if not text.startswith("[") else sections + text)
    tomllib.loads(bad)
    (tmp_path / "bad.toml").write_text(bad)
    monkeypatch.setattr(stacks_module, "STACK_FILES", {file.stem: file for file in tmp_path.glob("*.toml")})
    monkeypatch.setattr(stacks_module, "STACKS", (*STACKS, "bad", "good"))
    find_stack.cache_clear()
    try:
        assert find_stack("good").layout == find_stack("eager").layout
        with pytest.raises(DataError, match=message):
            find_stack("bad")
    finally:
        find_stack.cache_clear()


# --- releases

DATED = [name for name in STACKS if releases(name)]


@pytest.mark.parametrize("name", DATED)
def test_a_release_changed_something_and_says_what(name: str) -> None:
    found = releases(name)
    assert [r.date for r in found] == sorted((r.date for r in found), reverse=True)
    for i, release in enumerate(found):
        assert release.what and release.source and release.before
        then = find_stack(f"{name}@{release.version}")
        older = find_stack(f"{name}@{found[i + 1].version if i + 1 < len(found) else '0'}")
        sections = [(s.memory, s.layout, s.instead, s.export) for s in (then, older)]
        assert replace(then, name="") != replace(older, name="") or sections[0] != sections[1]
    assert replace(find_stack(f"{name}@9999"), name=name) == find_stack(name)


@pytest.mark.parametrize("name", STACKS)
def test_this_year_is_the_newest_release(name: str) -> None:
    assert in_year(name, None) == name and in_year(name, 2099) == name
    assert (in_year(name, 2022) == name) is (name not in DATED)


def test_a_version_has_the_facts_of_its_day() -> None:
    old, new = find_stack("torchtune@0.2.1"), find_stack("torchtune@0.3")
    assert (old.fused_loss, old.memory.loss_fp32) == (False, 3.0) and new.fused_loss and new.memory.loss_fp32 == 0.0
    assert old.layout == new.layout and old.memory.gradients == new.memory.gradients
    assert find_stack("torchtune@2023").memory == old.memory and find_stack("torchtune@2024").memory == new.memory
    assert not find_stack("unsloth@2024.5").without_logits and find_stack("unsloth@2024.12").without_logits
    for wrong in ("torchtune@", "torchtune@new", "torchtune@0.2@0.3", "torchtune@-1"):
        with pytest.raises(InputError, match="names no release"):
            find_stack(wrong)
    with pytest.raises(UnknownNameError):
        find_stack("torchtunes@0.2")


def test_a_loss_in_chunks_can_be_switched_off() -> None:
    """The last release whose loss held whole logits; a stack that has it so, or no such loss, stays."""
    names = ("trl", "unsloth", "torchtune", "trl@0.22", "trainer", "megatron-core")
    whole = ("trl@1.6", "unsloth@2024.11.5", "torchtune@0.2", "trl@0.22", "trainer", "megatron-core")
    assert tuple(map(with_whole_logits, names)) == whole
    for stack in names[:3]:
        asked = Wishes(stack=stack, seq_len=8192, lora_rank=16, fixed={"recompute": "full", "micro_batch": 1})
        chunks, logits = (make_fit("llama-3.1-8b", "H100-SXM", replace(asked, fused_loss=fused)) for fused in (None, False))
        assert logits.estimate.memory_bytes.expected > chunks.estimate.memory_bytes.expected + 2e9
        assert any("whole logits" in words for words in logits.goal.assumed)


def test_weights_on_the_host_were_not_pinned_before_deepspeed_0_19_4() -> None:
    """Falcon 7B on 8 A100, offload_param (DeepSpeed issue 3901): 6.05 s a step, 2.86 with the weights on the device."""
    cluster, arch = find_cluster("8xA100-40GB-SXM"), find_model("falcon-7b")
    layout = Strategy(micro_batch=2, dp=8, sharding="zero3", recompute="full", offload_parameters=True)
    then, now = (estimates(arch, cluster, [layout.with_(stack=f"deepspeed{v}")], 4096)[0] for v in ("@0.9.5", ""))
    assert then.step_time_s.expected > 1.15 * now.step_time_s.expected


def test_costs_of_a_release_are_those_of_its_stack() -> None:
    for name in STACKS:
        assert find_stack_costs(f"{name}@2024") == find_stack_costs(name) and stack_memory(f"{name}@2024") == stack_memory(name)


def test_a_year_takes_the_stack_of_that_year() -> None:
    def at_8k(wishes: Wishes) -> Fit[TrainingEstimate]:
        return make_fit("llama-3.1-8b", "4090", replace(wishes, seq_len=8192, lora_rank=16, fixed={"recompute": "full"}))

    by_year, by_version = at_8k(Wishes(stack="torchtune", year=2023)), at_8k(Wishes(stack="torchtune@0.2"))
    assert by_year.estimate.memory_parts == by_version.estimate.memory_parts
    # logits of 8,192 tokens and 128,256 words, three times in fp32 (pytorch/torchtune issues: 24 GB were not enough)
    now = at_8k(Wishes(stack="torchtune"))
    assert not by_year.estimate.fits and by_year.estimate.memory_bytes.expected - now.estimate.memory_bytes.expected > 8e9
    assert any("torchtune as it was in 2023" in note for note in by_year.goal.assumed)


def test_trl_recomputes_and_chunks_its_loss_since_the_releases_that_said_so() -> None:
    first, checkpointed, chunked = (find_stack(f"trl@{version}") for version in ("0.21", "0.22", "1.7"))
    assert [s.checkpoints for s in (first, checkpointed, chunked)] == [False, True, True]
    assert [s.without_logits for s in (first, checkpointed, chunked)] == [False, False, True]
    assert not find_stack("trl@0.17").layout.offload_activations and first.layout.offload_activations
    asked = Wishes(stack="trl", lora_rank=16)
    assert [make_fit("llama-3.2-1b", "4090", w).estimate.strategy.recompute for w in (asked, replace(asked, year=2024))] == [
        "full",
        "none",
    ]
