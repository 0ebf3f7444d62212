"""The whole pick: nothing is lost, every refusal has a reason, more money is never worse, winners are sane."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from tests.pick.scenarios import chat_70b, finetune_8b, picked

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.boards import board_of
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.api import Pick
from gpuwise.pick.candidates import CODES
from gpuwise.pick.document import pick_document
from gpuwise.pick.jobs import training_job
from gpuwise.pick.limits import Limits, parse_have
from gpuwise.pick.ranking import alike, key_of
from gpuwise.pick.training import TrainingChoice, train_on
from gpuwise.plan.api import make_plan
from gpuwise.plan.goal import Wishes
from gpuwise.plan.whole_run import whole_time

OWN_2000 = Limits(budget_usd=2000, ways=("buy",))


def large() -> Pick:
    return picked(training_job(find_model("llama-3.1-405b"), tokens=1e12), Limits(deadline_s=90 * 86400))


PICKS: dict[str, Callable[[], Pick]] = {
    "fine-tune": lambda: picked(finetune_8b(), Limits()),
    "fine-tune, own": lambda: picked(finetune_8b(), OWN_2000),
    "chat, own": lambda: picked(chat_70b(bits=(4,)), Limits(ways=("buy",), by="cost")),
    "train": large,
}


@pytest.fixture(params=[n if n == "chat, own" else pytest.param(n, marks=pytest.mark.thorough) for n in PICKS])
def p(request: pytest.FixtureRequest) -> Pick:
    return PICKS[request.param]()


def test_ranked_and_left_out_are_all_that_was_considered(p: Pick) -> None:
    ranked, left = [o.way.key for o in p.ranked], [out.way.key for out in p.ranking.left_out]
    assert len(ranked) + len(left) == p.ranking.considered == len({*ranked, *left})
    assert {k[0] for k in (*ranked, *left)} == set(accelerators())
    grouped = sum(g.count for g in p.left_out)
    assert grouped + len({k[0] for k in ranked}) == len(accelerators())


def test_every_one_left_out_has_a_reason(p: Pick) -> None:
    assert all(out.code in CODES and len(out.why) > 3 for out in p.ranking.left_out)
    for g in p.left_out:
        assert 0 < len(g.named) <= g.count


def test_the_order_is_that_of_the_objective(p: Pick) -> None:
    keys = [key_of(o, p.limits) for o in p.ranked]
    assert keys == sorted(keys)


def test_what_is_ranked_keeps_the_limits(p: Pick) -> None:
    for o in p.ranked:
        assert p.limits.budget_usd is None or o.bill.outlay_usd <= p.limits.budget_usd
        assert p.job.serving or o.time_s.expected <= (p.limits.deadline_s or 30 * 86400)
        assert o.way.how in p.limits.ways
        assert 0 < o.time_s.low <= o.time_s.expected <= o.time_s.high < math.inf
        assert o.cost_usd.low <= o.cost_usd.expected <= o.cost_usd.high < math.inf
        assert o.usd_per_pflop >= 0 and o.usd_per_gb >= 0 and o.tokens_per_s.expected > 0


def test_no_exact_prediction_beats_its_bound(p: Pick) -> None:
    if p.job.serving:
        return
    for o in p.ranked:
        accelerator = o.cluster.accelerator
        peak = max(accelerator.peak_flop_per_s.get(d, 0) for d in ("bf16", "fp16", "fp32", "tf32"))
        assert p.job.tokens / o.tokens_per_s.expected >= p.job.flop / (0.75 * peak * o.n) * 0.999


@pytest.mark.thorough
@pytest.mark.parametrize("objective", ["time", "value"])
def test_more_money_is_never_worse(objective: str) -> None:
    best = math.inf, math.inf
    for budget in (150.0, 400.0, 900.0, 2000.0, 9000.0):
        p = picked(finetune_8b(), Limits(budget_usd=budget, ways=("buy",), by=objective))
        if p.best is not None:
            key = float(p.best.level), p.best.at_worst(objective)
            assert key <= (best[0], best[1] * 1.000001)
            best = key
    assert best[1] < math.inf


@pytest.mark.parametrize(
    ("small", "large"), [("rtx-3090", "rtx-3090-ti"), ("rtx-4090-d", "rtx-4090"), ("rtx-4080", "rtx-4080-super")]
)
def test_a_larger_card_of_a_family_is_not_slower(small: str, large: str) -> None:
    got = [train_on(finetune_8b(), find_cluster(name)) for name in (small, large)]
    seconds = [g.estimate.step_time_s.expected for g in got if isinstance(g, TrainingChoice) and g.fallback.tier == 0]
    assert len(seconds) in (0, 2)
    if seconds:
        assert seconds[1] <= seconds[0] * 1.02


def test_two_thousand_dollars_buy_a_consumer_card_with_room_for_an_8b() -> None:
    p = picked(finetune_8b(), OWN_2000)
    assert p.best is not None and p.best.tier == 0
    board = board_of(p.best.way.accelerator.id)
    assert board is not None and board.category == "card"
    assert p.best.n * p.best.way.accelerator.memory_bytes >= 24e9
    assert p.best.bill.outlay_usd <= 2000
    assert any(o.way.accelerator.id in ("rtx-3090", "rtx-4090", "rx-7900-xtx", "rtx-3090-ti") for o in p.ranked)


def test_a_70b_takes_much_memory_and_a_mac_is_among_those_that_chat() -> None:
    p = picked(chat_70b(bits=(4,)), Limits(ways=("buy",), by="cost"), 20)
    assert all(o.n * o.way.accelerator.memory_bytes > 40e9 for o in p.ranked)
    macs = picked(chat_70b(bits=(4,)), Limits(ways=("buy",), vendors=("Apple",))).ranked
    assert macs and all(o.tokens_per_s.expected >= 5.3 for o in macs)
    assert any("GB" in o.way.accelerator.name for o in macs), "the configuration that is sold is named"


def test_16_bit_weights_of_a_70b_need_several_large_ones() -> None:
    p = picked(chat_70b(bits=(16,)), Limits(ways=("rent",)))
    assert p.best is not None and all(o.n * o.way.accelerator.memory_bytes > 141e9 for o in p.ranked)


@pytest.mark.thorough
def test_a_405b_is_trained_on_a_cluster_of_the_largest() -> None:
    p = large()
    assert p.best is not None and p.best.n >= 128 and p.best.way.accelerator.form in ("SXM", "OAM", "Superchip")
    assert any(out.code == "memory" for out in p.ranking.left_out)
    assert {o.way.accelerator.family for o in p.ranked} & {"Hopper", "Blackwell"}


def test_vendors_watts_and_second_hand_are_excluded_by_name() -> None:
    p = picked(finetune_8b(), Limits(vendors=("AMD",), ways=("buy",), max_watts=300, used=False))
    assert p.ranked and {o.way.accelerator.vendor for o in p.ranked} == {"AMD"}
    assert all((o.board_w or 0) <= 300 and o.way.condition != "used" for o in p.ranked)
    codes = {out.way.accelerator.vendor: out.code for out in p.ranking.left_out}
    assert codes["NVIDIA"] == "vendor"
    assert {"watts", "second-hand"} & {out.code for out in p.ranking.left_out}


def test_the_machine_one_has_rules_out_by_how_much() -> None:
    have = parse_have("PSU 650W, 2 slots, 300mm")
    p = picked(finetune_8b(), Limits(have=have, ways=("buy",)))
    for o in p.ranked:
        board = board_of(o.way.accelerator.id)
        assert board is None or not board.installable or have.refuses(o.way.accelerator, board, o.n) is None
    machine = [out.why for out in p.ranking.left_out if out.code == "machine"]
    assert any("W more" in why for why in machine) and any("airflow" in why for why in machine)


def test_ways_that_cannot_be_told_apart_overlap_both_ways() -> None:
    p = picked(finetune_8b(), OWN_2000)
    a, b = p.ranked[0], p.ranked[1]
    assert alike(a, a, "time") and alike(a, b, "time") == alike(b, a, "time")


def test_an_impossible_budget_says_what_is_nearest() -> None:
    p = picked(training_job(find_model("llama-3.1-405b"), tokens=1e12), Limits(budget_usd=10))
    assert p.best is None and "nearest" in p.verdict[0]


def test_the_document_is_plain_json_and_complete(p: Pick) -> None:
    document = json.loads(json.dumps(pick_document(p), allow_nan=False))
    assert document["considered"] == len(document["ranked"]) + len(document["left_out"])
    assert document["verdict"] and document["order"]


def test_a_notebook_without_published_hours_is_good_for_one_session() -> None:
    """Colab Pro does not say how many hours on an H100 its units buy: it cannot be had for 17 days at ten dollars."""
    p = picked(training_job(find_model("llama-3.1-8b"), tokens=15e9), Limits(ways=("notebook",)))
    assert all(o.way.notebook is not None and o.way.notebook.hours_per_month is not None for o in p.ranked)
    whys = [out.why for out in p.ranking.left_out if out.way.notebook is not None and out.way.notebook.provider == "colab"]
    assert any("does not publish" in why for why in whys)
    assert all(out.why for out in p.ranking.left_out)


@pytest.mark.parametrize(
    ("model", "hardware", "tokens"),
    [
        ("gpt2", "8xA100-SXM-80GB", 10e9),
        ("gpt2", "1x4090", 1e9),
        ("llama-3.1-8b", "8xH100-SXM", 1e9),
        ("bert-base", "2xA100-40GB", 1e9),
    ],
)
def test_pick_and_plan_say_the_same_hours(model: str, hardware: str, tokens: float) -> None:
    plan = make_plan(model, hardware, Wishes(tokens=tokens))
    got = train_on(training_job(find_model(model), tokens=tokens), find_cluster(hardware))
    assert plan.best is not None and isinstance(got, TrainingChoice)
    assert got.estimate.strategy == plan.best.estimate.strategy
    assert got.estimate == plan.best.estimate
    assert whole_time(plan.goal.arch, plan.cluster, got.estimate, tokens) == plan.best.time_s
