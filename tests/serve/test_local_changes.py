"""What would change how a model runs on a person's own device: each change, made, brings what it states."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.offers.purchases import typical_purchase_usd
from gpuwise.serve.local_changes import Change, changes
from gpuwise.serve.local_machine import machine_of
from gpuwise.serve.local_run import LocalRun, run_locally
from gpuwise.serve.memory import most_bytes


def run(model: str, on: str, **more: object) -> LocalRun:
    return run_locally(find_model(model), machine_of(find_cluster(on)), **more)  # pyright: ignore[reportArgumentType]


def those_of(found: LocalRun, option: str) -> list[Change]:
    return [c for c in changes(found) if option in dict(c.sets)]


@pytest.mark.parametrize(("model", "on"), [("llama-3.1-8b", "RTX 3060 12GB"), ("mistral-small-3.2-24b", "RTX 3090")])
def test_of_a_run_that_fits_a_cache_reaches_further_and_a_format_is_narrower(model: str, on: str) -> None:
    found = run(model, on)
    chosen = found.chosen
    assert chosen is not None and chosen.longest_context < found.arch.max_seq_len
    assert [c.name for c in those_of(found, "cache_type")] == ["q8_0 cache", "q4_0 cache"]
    assert all(c.longest_context > chosen.longest_context for c in those_of(found, "cache_type"))
    (narrower,) = those_of(found, "weights")
    bits = {f.weights: f.bits for f in found.formats}
    assert bits[narrower.weights] < bits[chosen.weights] and run(model, on, weights=narrower.weights).chosen is not None


def test_a_cache_that_can_reach_no_further_is_no_change() -> None:
    found = run("llama-3.2-1b", "RTX 4090")
    assert found.chosen is not None and found.chosen.longest_context == found.arch.max_seq_len
    assert those_of(found, "cache_type") == []


def test_of_a_run_that_does_not_fit_each_change_makes_it_fit() -> None:
    found = run("mistral-small-3.2-24b", "RTX 4060")
    assert found.chosen is None
    made = list(changes(found))
    assert made
    for change in made:
        sets = dict(change.sets)
        if "cache_type" in sets:
            assert change.longest_context >= found.context
        else:
            length = int(sets.get("context", found.context))
            assert run("mistral-small-3.2-24b", sets.get("on", "RTX 4060"), context=length, weights=change.weights).chosen


def test_more_of_the_same_card_are_the_fewest_that_fit_and_are_paid_one_by_one() -> None:
    found = run("llama-3.3-70b", "RTX 3090")
    (more, other) = those_of(found, "on")
    assert more.name == "2x RTX 3090" and run("llama-3.3-70b", "2xRTX 3090", weights=more.weights).chosen is not None
    price = min(typical_purchase_usd("rtx-3090", c).median for c in ("new", "used"))
    assert more.usd == price
    three = run("llama-3.1-405b", "3xrtx-pro-6000-blackwell-workstation")
    (six, *_) = those_of(three, "on")
    price = typical_purchase_usd("rtx-pro-6000-blackwell-workstation", "new").median
    assert six.name.startswith("6x ") and six.usd == pytest.approx(3 * price)
    # another card has more memory, or it would not hold what this one does not
    own = find_cluster("RTX 3090").accelerator
    assert most_bytes(find_cluster(dict(other.sets)["on"]).accelerator) > most_bytes(own)


def test_nobody_buys_a_card_for_a_format_of_large_loss() -> None:
    """Q2_K of it would fit a smaller card than the one that is proposed."""
    found = run("mistral-small-3.2-24b", "RTX 4060")
    losses = {f.weights: f.loss for f in found.formats}
    (*_, other) = those_of(found, "on")
    assert other.usd is not None and losses[other.weights] != "large"


def test_a_chip_with_memory_of_its_own_is_not_bought_twice() -> None:
    names = [c.name for c in those_of(run("llama-3.3-70b", "M3 Max 36GB"), "on")]
    assert not any("x " in name for name in names)
