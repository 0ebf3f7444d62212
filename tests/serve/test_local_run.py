"""A model on one's own device: the format that fits, the memory, the longest context, a part in RAM."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.local_changes import changes
from gpuwise.serve.local_commands import commands
from gpuwise.serve.local_document import run_document
from gpuwise.serve.local_machine import machine_of
from gpuwise.serve.local_run import AT_ONCE, CONTEXT, NEAR, TRIED, LocalRun, parts, run_locally
from gpuwise.serve.streams import token_time

MODELS = ("llama-3.1-8b", "qwen3.6-35b-a3b", "gemma-4-12b", "lfm2-8b-a1b", "mistral-small-3.2-24b")
CARDS = ("RTX 3060 12GB", "RTX 3090", "RTX 4090", "2xRTX 3090", "RX 7900 XTX", "M3 Max 64GB")


def run(model: str, on: str, **more: object) -> LocalRun:
    return run_locally(find_model(model), machine_of(find_cluster(on)), **more)  # pyright: ignore[reportArgumentType]


@settings(deadline=None, max_examples=30)
@given(model=st.sampled_from(MODELS), on=st.sampled_from(CARDS))
def test_the_chosen_format_is_the_closest_that_fits_and_its_parts_are_its_memory(model: str, on: str) -> None:
    found = run(model, on)
    assert [f.weights for f in found.formats] == list(TRIED)
    fitting = [f for f in found.formats if f.memory.fits]
    assert found.chosen is (fitting[0] if fitting else None)
    if found.chosen is None:
        assert found.offload is not None and not found.speeds
        return
    assert sum(n for _, n in parts(found)) == pytest.approx(found.chosen.memory.total)
    longest = found.chosen.longest_context
    assert found.context <= longest <= found.arch.max_seq_len
    assert found.users >= 1 and found.longest_with_q8_cache >= longest
    rates = [s.tokens_per_s.expected for s in found.speeds]
    assert rates == sorted(rates, reverse=True), "a longer context is never faster"
    narrower = [f.tokens_per_s.expected for f in fitting if f.tokens_per_s is not None]
    assert narrower == sorted(narrower), "fewer bits are never slower"


def test_the_speed_is_that_of_the_context_asked() -> None:
    rates = {c: run("llama-3.1-8b", "RTX 4090", context=c) for c in (4096, 16384, 32768)}
    at = {c: next(s.tokens_per_s.expected for s in one.speeds if s.context == c) for c, one in rates.items()}
    assert at[4096] > at[16384] > at[32768]


def test_one_more_step_of_context_does_not_fit() -> None:
    found = run("llama-3.1-8b", "RTX 3060 12GB")
    assert found.chosen is not None and found.context == CONTEXT
    longest = found.chosen.longest_context
    assert run("llama-3.1-8b", "RTX 3060 12GB", context=longest, weights="Q8_0").chosen is not None
    assert run("llama-3.1-8b", "RTX 3060 12GB", context=longest + NEAR, weights="Q8_0").chosen is None


def test_speed_is_the_one_that_decode_has() -> None:
    found = run("qwen3-8b", "RTX 4090", weights="Q4_K_M")
    alone = token_time(find_model("qwen3-8b"), find_cluster("RTX 4090").accelerator, "Q4_K_M", context=1024)
    assert found.speeds[0].tokens_per_s.expected == pytest.approx(1 / alone.expected)


def test_more_memory_and_a_second_card_fit_no_less() -> None:
    def longest(on: str) -> list[int]:
        return [f.longest_context for f in run("llama-3.3-70b", on).formats]

    for small, large in (("RTX 3090", "2xRTX 3090"), ("2xRTX 3090", "4xRTX 3090"), ("M3 Max 64GB", "M3 Max 128GB")):
        assert all(a <= b for a, b in zip(longest(small), longest(large), strict=True))


def test_experts_go_to_ram_before_layers_and_what_is_left_fits() -> None:
    found = run("qwen3-30b-a3b", "RTX 3060 12GB")
    o = found.offload
    assert found.chosen is None and o is not None
    assert (o.weights, o.device_layers) == ("Q4_K_M", 48) and 0 < o.host_expert_layers < 48
    memory = next(f.memory for f in found.formats if f.weights == o.weights)
    assert (
        memory.total - o.host_bytes
        <= memory.most
        < memory.total - o.host_bytes * (o.host_expert_layers - 1) / o.host_expert_layers
    )
    dense = run("llama-3.3-70b", "RTX 4090").offload
    assert dense is not None and dense.host_expert_layers == 0 and 0 < dense.device_layers < 80
    # a layer less on the device is slower: the processor is the slower of the two
    assert dense.tokens_per_s.expected < 10 < o.tokens_per_s.expected


def test_what_the_file_or_the_publisher_says_is_the_format() -> None:
    assert [f.weights for f in run("gpt-oss-20b", "RTX 4090").formats] == ["MXFP4"]
    stored = replace(find_model("llama-3.1-8b"), stored_format="Q6_K")
    assert [f.weights for f in run_locally(stored, machine_of(find_cluster("RTX 4090"))).formats] == ["Q6_K"]


@pytest.mark.parametrize(
    ("model", "on", "more", "message"),
    [
        ("bert-base", "RTX 4090", {}, "does not write text"),
        ("llama-3.1-8b", "16xH100-SXM", {}, "up to 8 devices"),
        ("llama-2-7b", "RTX 4090", {"context": 5000}, "up to 4,096 tokens"),
    ],
)
def test_what_cannot_be_asked_is_refused(model: str, on: str, more: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        run(model, on, **more)
    assert caught.value.hint
    with pytest.raises(UnknownNameError):
        run("llama-3.1-8b", "RTX 4090", weights="Q9_K")


def test_the_document_is_json() -> None:
    for model, on in (("llama-3.1-8b", "RTX 3060 12GB"), ("llama-3.3-70b", "RTX 4090"), ("gemma-4-e2b", "M3 Max 64GB")):
        found = run(model, on)
        document = json.loads(json.dumps(run_document(found, changes(found), commands(found)), allow_nan=False))
        assert document["fits"] is (document["weights"] is not None)
        assert document["commands"][0]["words"][0] == "llama-server"


@pytest.mark.parametrize(("model", "on"), [("llama-3.1-8b", "RTX 4090"), ("gemma-4-12b", "RTX 3090")])
def test_as_many_conversations_as_their_caches_leave_room_for(model: str, on: str) -> None:
    found = run(model, on)
    assert found.chosen is not None and found.users > 1
    one = found.chosen.memory
    beside = one.weights + one.workspace
    assert beside + found.users * one.cache <= one.most < beside + (found.users + 1) * one.cache
    assert found.at_once is not None and found.at_once[0] == min(found.users, AT_ONCE)
    assert found.at_once[1].expected < found.speeds[0].tokens_per_s.expected


def test_a_published_narrow_format_loses_nothing_and_others_have_their_loss() -> None:
    losses = {f.weights: f.loss for f in (*run("gpt-oss-20b", "RTX 4090").formats, *run("llama-3.1-8b", "RTX 4090").formats)}
    assert losses["MXFP4"] == "as published" and "as published" not in {v for k, v in losses.items() if k != "MXFP4"}
