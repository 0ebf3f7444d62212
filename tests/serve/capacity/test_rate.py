"""The largest rate within the targets: what it must keep, and how it moves with the question."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.capacity.answer import Question, capacity_on, usual_targets
from gpuwise.serve.capacity.changes import changes
from gpuwise.serve.capacity.commands import load_tests, start_commands
from gpuwise.serve.capacity.configurations import Configuration, Requirements, layouts, refined
from gpuwise.serve.capacity.document import capacity_document, timeline
from gpuwise.serve.capacity.fleet import Demand, accelerators_of, copies_on, fleet_for
from gpuwise.serve.capacity.rate import alone, curve, full_rate, knee_rate, largest_rate, operate, operate_within, rate_estimate
from gpuwise.serve.capacity.saturation import WORDS, kv_fill, saturation_of, why_missed
from gpuwise.serve.capacity.search import BETTER, frontier, matters, search, throughput
from gpuwise.serve.engines.engine import tensor_parallel
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.requests import Requests
from gpuwise.serve.load.targets import parse_targets
from gpuwise.serve.load.workloads import find_workload

ARCH = find_model("llama-3.2-1b")
CLUSTER = find_cluster("2xl40s")
SHORT = Load(find_workload("in=400,out=60,in_cv=0.5,out_cv=0.5"), 8192)
TODAY = datetime.date(2026, 11, 23)
N = 300


def configuration(weights: str = "bf16", tp: int = 1, tokens: int | None = None, sequences: int | None = None) -> Configuration:
    settings = Settings(max_model_len=8192, max_num_batched_tokens=tokens, max_num_seqs=sequences)
    return Configuration(ARCH, CLUSTER.system, tensor_parallel(ARCH, weights, tp), settings)


def test_the_largest_rate_keeps_the_targets_and_one_above_it_does_not() -> None:
    targets = parse_targets("ttft_p95=300ms,tpot_p95=30ms")
    limit = largest_rate(configuration(), SHORT, targets, n=N)
    assert limit.best is not None
    assert limit.missed is not None
    assert limit.best.met
    assert not limit.missed.met
    assert limit.best.rate_per_s < limit.missed.rate_per_s < 1.04 * limit.best.rate_per_s
    assert limit.best.run.percentile("ttft", 95) <= 0.3


@pytest.mark.parametrize("share", [0.3, 0.97, 1.0, 1.03, 3.0])
def test_a_guess_changes_nothing_but_the_work(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = parse_targets("ttft_p95=300ms,tpot_p95=30ms")
    simulated: list[float] = []

    def counted(simulate: Callable[..., object]) -> Callable[..., object]:
        def of(*args: object, **options: object) -> object:
            simulated.append(args[2])  # type: ignore[arg-type]
            return simulate(*args, **options)

        return of

    for simulate in (operate, operate_within):
        monkeypatch.setattr(f"gpuwise.serve.capacity.rate.{simulate.__name__}", counted(simulate))
    plain = largest_rate(configuration(), SHORT, targets, n=N)
    without = len(simulated)
    guessed = largest_rate(configuration(), SHORT, targets, n=N, guess_per_s=share * plain.rate_per_s)
    assert guessed.rate_per_s == plain.rate_per_s
    assert guessed.missed is not None
    assert plain.missed is not None
    assert guessed.missed.rate_per_s == plain.missed.rate_per_s
    assert len(simulated) - without <= (4 if share == 1.0 else without + 6)


def test_a_stricter_target_never_carries_more() -> None:
    rates = [largest_rate(configuration(), SHORT, parse_targets(f"tpot_p95={ms}ms"), n=N).rate_per_s for ms in (1000, 20, 12, 8)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]


def test_no_rate_keeps_what_a_request_alone_misses_and_it_says_why() -> None:
    targets = parse_targets("ttft_p95=1ms")
    limit = largest_rate(configuration(), SHORT, targets, n=N)
    assert limit.best is None
    assert limit.rate_per_s == 0
    assert "more replicas do not change that" in why_missed(limit.alone)
    assert "1 ms is allowed (ttft_p95)" in why_missed(limit.alone)


def test_queues_grow_beyond_the_knee_and_no_latency_is_given_there() -> None:
    knee = knee_rate(configuration(), SHORT, N).rate_per_s
    beyond = operate(configuration(), SHORT, 3 * knee, parse_targets("ttft_p95=1h"), 1200)
    assert beyond.saturated
    assert not beyond.met
    assert beyond.latency("ttft", 50) is None
    assert operate(configuration(), SHORT, 0.3 * knee, (), N).latency("ttft", 50) is not None


def test_the_knee_is_the_same_from_a_point_that_keeps_it() -> None:
    plain = knee_rate(configuration(), SHORT, N)
    full = full_rate(configuration(), SHORT, N)
    kept = operate(configuration(), SHORT, 0.4 * full, (), N)
    nobody = alone(configuration(), SHORT, (), N, full)
    assert knee_rate(configuration(), SHORT, N, kept=kept, unloaded=nobody).rate_per_s == plain.rate_per_s


def test_an_option_that_no_step_reaches_is_not_searched() -> None:
    """A maximum of sequences above all that were there at once captures fewer graphs and gains nothing."""
    targets = parse_targets("ttft_p95=300ms,tpot_p95=30ms")
    limit = largest_rate(configuration(), SHORT, targets, n=N)
    assert limit.best is not None
    there = int((limit.best.run.stretches.running + limit.best.run.stretches.waiting).max())
    above, below = configuration(sequences=there + 1), configuration(sequences=there // 4)
    assert not matters(above, limit) and matters(below, limit) and matters(configuration(tokens=256), limit)
    assert largest_rate(above, SHORT, targets, n=N).rate_per_s < BETTER * limit.rate_per_s


def test_the_interval_holds_the_rate_and_narrows_with_surer_steps() -> None:
    targets = parse_targets("ttft_p95=1s")
    limit = largest_rate(configuration(), SHORT, targets, n=N)
    points = curve(configuration(), SHORT, targets, knee_rate(configuration(), SHORT, N).rate_per_s, N)
    found = rate_estimate(limit, points, SHORT, targets, N)
    assert found.low < found.expected == limit.rate_per_s < found.high


def test_layouts_split_what_divides_and_offer_wider_weights_first() -> None:
    found = list(layouts(ARCH, CLUSTER.system, 2, Requirements(pp=1)))
    assert [(c.config.tp, c.config.weights) for c in found] == [(1, "bf16"), (2, "bf16"), (1, "fp8"), (2, "fp8")]
    experts = list(layouts(find_model("mixtral-8x7b"), find_cluster("8xh100-sxm").system, 8, Requirements(bits=(8,))))
    assert {c.config.weights for c in experts} == {"fp8", "fp8_block"}
    assert any(c.config.moe_ep == 8 for c in experts)
    assert all(c.config.tp == 4 for c in layouts(ARCH, find_cluster("8xh100-sxm").system, 8, Requirements(tp=4)))


def test_stages_of_a_host_are_tried_and_over_hosts_where_none_holds_the_model() -> None:
    def splits(arch: str, on: str, wanted: Requirements) -> set[tuple[int, int]]:
        cluster = find_cluster(on)
        found = layouts(find_model(arch), cluster.system, cluster.n_accelerators, wanted)
        return {(c.config.tp, c.config.pp) for c in found}

    sixteen = Requirements(bits=(16,))
    assert (2, 2) in splits("llama-3.2-1b", "4x4090", sixteen)
    stages = {(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)}
    assert splits("llama-3.2-1b", "8xh100-sxm", sixteen) == stages
    assert {pp for tp, pp in splits("llama-3.2-1b", "7xl4", sixteen) if tp == 1} == {1, 2, 3, 7}
    assert (8, 2) in splits("llama-3.1-405b", "16xh100-sxm", sixteen)
    assert all(tp * pp <= 8 for tp, pp in splits("llama-3.1-405b", "16xh100-sxm", Requirements(bits=(4,))))
    assert splits("llama-3.1-8b", "8xh100-sxm", Requirements(bits=(16,), pp=4)) == {(1, 4), (2, 4)}


def test_prompts_read_apart_can_be_asked_for() -> None:
    cluster = find_cluster("4xh100-sxm")
    for apart, expected in (((2, 1), {(2, 1)}), ("auto", None)):
        wanted = Requirements(bits=(16,), tp=1, apart=apart)
        found = search(find_model("llama-3.1-8b"), cluster, SHORT, parse_targets("ttft_p95=1s"), wanted, n=200, refine=False)
        ratios = {c.configuration.apart for c in found.considered}
        assert None not in ratios
        assert expected is None or ratios == expected
        assert found.best is not None
        assert found.best.configuration.ranks == sum(found.best.configuration.apart or ())


def test_options_differ_by_one_and_stay_what_an_engine_takes() -> None:
    for other in refined(configuration()):
        options = other.server.options
        assert (options.max_num_seqs or 0) <= (options.max_num_batched_tokens or 0)
        assert other.config == configuration().config


def test_copies_do_not_reach_over_two_systems() -> None:
    cluster = find_cluster("16xh100-sxm")
    assert [copies_on(cluster, n) for n in (1, 2, 8)] == [16, 8, 2]
    assert copies_on(find_cluster("2xl40s"), 2) == 1
    six = find_cluster("12xl40s").system  # two hosts of six: four of each hold a replica of four
    assert [accelerators_of(six, 4, n) for n in (1, 2, 4)] == [4, 12, 24]
    assert [accelerators_of(six, 2, 4), accelerators_of(cluster.system, 2, 5)] == [8, 10]


def test_the_search_takes_the_best_of_what_it_looked_at() -> None:
    targets = parse_targets("ttft_p95=200ms,itl_p99=20ms")
    found = search(ARCH, CLUSTER, SHORT, targets, Requirements(), n=N)
    assert found.best is not None
    most = max(x.rate_per_s * copies_on(CLUSTER, x.configuration.ranks) for x in found.limits)
    assert found.best.rate_per_s * found.copies >= most / 1.02
    pareto = frontier(found.limits, [])
    users = [p.tokens_per_s_of_user for _, p in pareto]
    gpus = [throughput(c, p) for c, p in pareto]
    assert users == sorted(users, reverse=True)
    assert gpus == sorted(gpus)


def test_what_gives_out_is_named_and_its_shares_are_whole() -> None:
    limit = largest_rate(configuration(sequences=4), SHORT, parse_targets("ttft_p95=200ms"), n=N)
    found = saturation_of(limit)
    assert found.first == "sequences"
    assert found.first in WORDS
    assert sum(found.busy.values()) == pytest.approx(1.0)
    assert limit.best is not None
    assert 0 < kv_fill(limit.best) <= 1


def test_prompts_that_grow_with_a_session_are_no_queue() -> None:
    """Calls of a session read more and more: their first tokens come later and later, though nobody waits."""
    server = configuration().server
    prompt, output = np.linspace(200, 3000, 60).astype(np.int64), np.full(60, 20, np.int64)
    apart, together = (server.run(Requests(np.arange(60.0) * gap, prompt, output)) for gap in (10.0, 1e-3))
    assert apart.ttft_s[-1] > 3 * apart.ttft_s[0]
    assert not apart.saturated
    assert together.saturated


def test_a_model_is_served_in_the_weights_it_is_published_in() -> None:
    one = find_cluster("1xh100-sxm").system
    forms = {
        name: {(c.config.weights, c.config.expert_weights) for c in layouts(find_model(name), one, 1, Requirements())}
        for name in ("gpt-oss-120b", "deepseek-v3", "qwen3-30b-a3b")
    }
    assert forms == {
        "gpt-oss-120b": {("bf16", "mxfp4")},
        "deepseek-v3": {("fp8_block", None)},
        "qwen3-30b-a3b": {("bf16", None), ("fp8", None), ("fp8_block", None)},
    }
    asked = {
        (c.config.weights, c.config.expert_weights)
        for c in layouts(find_model("gpt-oss-120b"), one, 1, Requirements(bits=(16, 4)))
    }
    assert asked == {("bf16", None), ("bf16", "mxfp4")}


def test_a_fleet_has_the_copies_its_peak_needs_and_a_price_by_hand() -> None:
    targets = parse_targets("ttft_p95=300ms")
    limit = largest_rate(configuration(), SHORT, targets, n=N)
    each = rate_estimate(limit, curve(configuration(), SHORT, targets, 2 * limit.rate_per_s, N), SHORT, targets, N)
    demand = Demand(rate_per_s=3.5 * each.expected, peak_over_mean=2.0)
    fleet = fleet_for(limit, each, CLUSTER, demand, today=TODAY, usd_per_hour=2.0)
    assert (fleet.copies_now, fleet.copies_peak, fleet.cluster.n_accelerators) == (4, 7, 7)
    assert fleet.usd_per_hour == pytest.approx(14.0)
    assert limit.best is not None
    written = float(limit.best.run.output_tokens.mean())
    by_hand = 14.0 / (3.5 * each.expected * written * 3600) * 1e6
    assert fleet.usd_per_million is not None
    assert fleet.usd_per_million.expected == pytest.approx(by_hand)
    assert fleet.usd_per_million.low < by_hand < fleet.usd_per_million.high
    assert fleet.usd_per_million_following is not None
    assert fleet.usd_per_million_following < by_hand
    assert fleet.power_w is not None
    assert fleet.wh_per_million == pytest.approx(fleet.power_w / (3.5 * each.expected * written * 3600) * 1e6)


def test_users_ask_as_often_as_they_think_and_read() -> None:
    assert Demand(users=100, think_s=40.0).rate_for(10.0) == pytest.approx(2.0)
    assert Demand(rate_per_s=3.0).rate_for(10.0) == 3.0
    assert Demand().rate_for(10.0) is None


def test_commands_say_what_was_chosen() -> None:
    one = configuration("fp8", 2, 1024, 64)
    line = start_commands(one)[0].line
    assert "vllm serve meta-llama/Llama-3.2-1B" in line
    for words in ("--tensor-parallel-size 2", "--quantization fp8", "--max-num-batched-tokens 1024", "--max-num-seqs 64"):
        assert words in line
    assert "--no-enable-prefix-caching" not in line
    tests = {c.name: c for c in load_tests(one, SHORT, parse_targets("ttft_p95=1s,itl_p99=50ms"), 5.0)}
    assert "--request-rate 5 --num-prompts 900" in tests["vllm bench"].line
    assert "--goodput ttft:1000" in tests["vllm bench"].line
    assert "--rate 5/s --tp 2 --measure" in tests["gpuwise"].line
    file = tests["inference-perf"].file
    assert file is not None
    assert "- rate: 5\n    duration: 180" in file[1]


def test_the_whole_answer_and_its_document() -> None:
    targets = parse_targets("ttft_p95=300ms,tpot_p95=50ms")
    answer = capacity_on(Question(ARCH, CLUSTER, SHORT, targets, Demand(users=200, think_s=5.0), TODAY, n=N), explain=False)
    assert answer.served is not None
    document = capacity_document(answer)
    served = document["served"]
    assert isinstance(served, dict)
    assert served["fleet"]["copies_peak"] >= 1  # type: ignore[index]
    assert document["nearest_miss"] is None
    moments = timeline(answer.served.point)
    assert 0 < len(moments) <= 120
    assert all(0 <= m["kv_fill"] <= 1 for m in moments)


@pytest.mark.thorough
def test_changes_stand_beside_what_the_replica_is_said_to_carry() -> None:
    """Not beside the rate of the search's shorter simulation."""
    answer = capacity_on(Question(ARCH, CLUSTER, SHORT, parse_targets("ttft_p95=300ms,tpot_p95=50ms"), Demand(), TODAY, n=N))
    assert answer.served is not None
    able = [c for c in answer.changes if c.gain is not None]
    assert len(able) > 2
    for change in able:
        assert change.rate_per_s == pytest.approx(answer.served.each.expected * (1.0 + (change.gain or 0.0)))


@pytest.mark.thorough
def test_another_accelerator_is_split_as_it_needs() -> None:
    """Not as the one asked about: 70 billion weights of 8 bits in TP 8 on L40S, on one B200."""
    arch, system = find_model("llama-3.1-70b"), find_cluster("8xl40s").system
    one = Configuration(arch, system, tensor_parallel(arch, "fp8", 8), Settings(max_model_len=8192, max_num_batched_tokens=512))
    found = {c.name: c for c in changes(one, SHORT, parse_targets("ttft_p95=2s"), 1.0)}
    assert (found["B200 SXM, one GPU each"].rate_per_s or 0.0) > (found["H100 SXM5 80GB, TP 2 each"].rate_per_s or 0.0) > 0.0
    assert not any("does not fit" in c.why for c in found.values())
    assert (found["B200 SXM, one GPU each"].gain or 0.0) > 0.1


def test_a_target_nobody_meets_gives_the_nearest_miss() -> None:
    answer = capacity_on(Question(ARCH, CLUSTER, SHORT, parse_targets("ttft_p95=1ms"), Demand(), TODAY, n=N), explain=False)
    assert answer.served is None
    assert answer.miss is not None
    ratios = [c.limit.alone.worst.ratio or 0 for c in answer.considered if c.limit and c.limit.alone.worst]
    assert answer.miss.limit.alone.worst is not None
    assert answer.miss.limit.alone.worst.ratio == min(ratios)
    assert capacity_document(answer)["served"] is None


def test_a_model_too_large_and_one_that_writes_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="does not fit"):
        capacity_on(Question(find_model("llama-3.1-405b"), CLUSTER, SHORT, usual_targets(SHORT), Demand(), TODAY))
    with pytest.raises(InputError, match="not a decoder"):
        capacity_on(Question(find_model("bert-base"), CLUSTER, SHORT, usual_targets(SHORT), Demand(), TODAY))


@pytest.mark.thorough
def test_users_are_served_at_the_rate_they_come_to() -> None:
    """A user asks anew so long after an answer: the rate follows from both, and latencies are given."""
    for users in (8, 200):
        asked = Question(
            find_model("llama-3.1-8b"),
            find_cluster("l40s"),
            Load(find_workload("chat"), 8192),
            parse_targets("ttft_p95=1s"),
            Demand(None, users, 45.0),
            datetime.date(2026, 11, 23),
            n=N,
        )
        answer = capacity_on(asked, explain=False)
        assert answer.served is not None
        point, copies = answer.served.point, answer.served.fleet.copies_peak
        e2e = point.latency("e2e", None)
        assert e2e is not None and point.met and not point.saturated
        assert point.rate_per_s == pytest.approx(users / copies / (45.0 + e2e), rel=0.03)
        assert answer.served.fleet.rate_per_s == pytest.approx(users / (45.0 + e2e), rel=0.03)
        assert answer.label == f"{answer.served.fleet.cluster.n_accelerators}x L40S"


@pytest.mark.thorough
def test_the_users_of_an_answer_without_a_load_are_served_by_the_same_gpus() -> None:
    asked = Question(
        find_model("llama-3.1-8b"),
        find_cluster("l40s"),
        Load(find_workload("chat"), 8192),
        parse_targets("ttft_p95=1s"),
        Demand(peak_over_mean=1.5),
        datetime.date(2026, 11, 23),
        n=N,
    )
    most = capacity_on(asked, explain=False)
    users = None if most.served is None else most.served.fleet.users
    assert users is not None
    for n, copies in ((users, 1), (math.ceil(1.5 * users), 2)):
        served = capacity_on(replace(asked, demand=Demand(None, n, peak_over_mean=1.5)), explain=False).served
        assert served is not None and served.fleet.copies_peak == copies and served.fleet.users is None


def test_tokens_a_second_are_what_is_asked_and_past_saturation_what_gets_done() -> None:
    one = configuration()
    easy, flooded = (operate(one, SHORT, rate, (), N) for rate in (1.0, 1000.0))
    assert not easy.saturated and flooded.saturated
    assert easy.output_tokens_per_s == pytest.approx(easy.run.output_tokens.mean())
    assert flooded.output_tokens_per_s == flooded.run.output_tokens_per_s < 1000.0 * flooded.run.output_tokens.mean()
    assert throughput(one, flooded) == flooded.output_tokens_per_s


@pytest.mark.parametrize(
    "text", ["ttft_p95=300ms", "e2e_p90=500ms", "tpot_p50=6ms", "ttft_mean=80ms,e2e_mean=1s", "itl_p99=60ms"]
)
def test_a_run_that_stops_early_had_missed(text: str) -> None:
    """What was served to the end is the same, and what was not misses its targets when it is."""
    targets = parse_targets(text)
    stopped = 0
    full = largest_rate(configuration(), SHORT, (), n=N).rate_per_s
    for share in (0.3, 0.7, 0.95, 1.3, 2.5):
        whole = operate(configuration(), SHORT, share * full, targets, N)
        found = operate_within(configuration(), SHORT, share * full, targets, N)
        stopped += found is None
        assert not whole.met if found is None else found.attained == whole.attained
    assert stopped >= (text != "itl_p99=60ms")
