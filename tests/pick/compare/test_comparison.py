from __future__ import annotations

import datetime
import json
import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import AmbiguousNameError, InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.offers.purchases import typical_purchase_usd
from gpuwise.facts.sources import sources
from gpuwise.pick.compare.comparison import Comparison, compare_accelerators
from gpuwise.pick.compare.document import comparison_document
from gpuwise.pick.compare.rows import TIE, Cell, FigureRow, find_row, say, say_span
from gpuwise.pick.compare.serving import serve_alike
from gpuwise.pick.compare.words import than
from gpuwise.plan.api import make_plan
from gpuwise.plan.goal import Wishes
from gpuwise.predict.memory.kv_cache import PAGED, kv_cache_bytes

TODAY = datetime.date(2026, 11, 21)
CARDS = ("RTX 4090", "L40S", "A100 80GB")
VALUES = st.lists(st.one_of(st.none(), st.floats(1e-6, 1e18)), min_size=2, max_size=8)


@cache
def plain(*names: str) -> Comparison:
    return compare_accelerators(names or CARDS, today=TODAY)


@cache
def with_model(*names: str, purpose: str | None = None) -> Comparison:
    return compare_accelerators(names or CARDS, today=TODAY, model="llama-3.1-8b", purpose=purpose, tokens=1e9)


def _row(values: list[float | None], better: str) -> FigureRow:
    return FigureRow("r", "r", "s", "FLOP/s", better, tuple(Cell(v) for v in values))  # type: ignore[arg-type]


# --- laws of a row ---


@given(VALUES, st.sampled_from(["higher", "lower"]))
def test_the_marked_ones_are_the_best_and_nothing_else_is(values: list[float | None], better: str) -> None:
    row = _row(values, better)
    known = [v for v in values if v is not None]
    if not row.best:
        assert len(known) < 2 or max(known) - min(known) <= TIE * max(known) * 1.01
        return
    top = max(known) if better == "higher" else min(known)
    for i, v in enumerate(values):
        assert (i in row.best) == (v is not None and abs(v - top) <= TIE * top)
    assert len(row.best) < len(known)


@given(VALUES)
def test_ratios_are_to_the_first_column(values: list[float | None]) -> None:
    row = _row(values, "higher")
    for v, ratio in zip(values, row.ratios, strict=True):
        expected = None if v is None or values[0] is None else v / values[0]
        assert ratio == expected


@given(st.floats(1e-6, 1e15), st.floats(1e-6, 1e15), st.sampled_from(["higher", "lower"]))
def test_being_ahead_has_an_inverse(a: float, b: float, better: str) -> None:
    row = _row([a, b], better)
    there, back = row.ahead(0, 1), row.ahead(1, 0)
    assert there is not None and back is not None and there * back == pytest.approx(1.0)
    assert (there > 1) == ((a > b) if better == "higher" else (a < b)) or a == pytest.approx(b)


def test_a_row_without_a_better_end_marks_nothing() -> None:
    assert _row([1.0, 2.0], "").best == () and _row([1.0, 2.0], "").ratios == (None, None)


# --- what is compared ---


def test_a_thing_is_as_good_as_itself() -> None:
    c = with_model("L40S", "l40s")
    for row in c.rows:
        assert row.best == (), row.key
        assert all(r in (None, 1.0) for r in row.ratios), row.key
    assert any("alike" in s for s in c.verdict)


def test_figures_are_those_of_the_catalogue() -> None:
    c = plain()
    a100 = find_cluster("A100 80GB").accelerator
    assert [s.accelerator.id for s in c.subjects][2] == a100.id
    assert c.row("peak_bf16").cells[2].value == a100.peak("bf16")
    assert c.row("bandwidth").cells[2].value == a100.memory_bandwidth_bytes_per_s
    assert c.row("tdp").cells[2].value == a100.tdp_w
    assert c.row("peak_fp8").cells[2] == Cell()  # unknown is unknown, not zero


def test_a_cluster_counts_all_its_accelerators_but_not_its_caches() -> None:
    c = plain("h100-sxm", "8xh100-sxm")
    for key in ("memory", "bandwidth", "peak_bf16", "reached_bf16", "tdp", "rent"):
        one, eight = (cell.value for cell in c.row(key).cells)
        assert one is not None and eight == pytest.approx(8 * one), key
    for key in ("l2", "link", "host_link", "usd_per_pflop_hour", "ridge", "work_per_watt"):
        one, eight = (cell.value for cell in c.row(key).cells)
        assert eight == pytest.approx(one), key
    assert any("all accelerators" in n for n in c.notes)


def test_what_is_reached_lies_between_nothing_and_the_peak() -> None:
    names = ["rtx-4090", "h100-sxm", "mi300x", "b200-sxm", "t4", "l4"]
    c = plain(*names)
    for rate in ("fp32", "fp16", "bf16", "fp8", "int8"):
        got, peak = c.row(f"reached_{rate}").cells, c.row(f"peak_{rate}").cells
        for g, p in zip(got, peak, strict=True):
            assert (g.value is None) or (p.value is not None and 0 < g.value <= p.value * (1 + 1e-9))
            if g.value is not None:
                assert g.low is not None and g.high is not None and g.low <= g.value <= g.high


def test_every_figure_says_what_it_stands_on() -> None:
    known = sources()
    for row in with_model().rows:
        for cell in row.cells:
            if cell.value is None:
                continue
            assert cell.kind, f"{row.key} has no kind"
            assert cell.source, f"{row.key} has no source"
            if cell.source in known:
                assert cell.kind == known[cell.source].kind


def test_weak_figures_are_those_the_catalogue_calls_weak() -> None:
    weak = next(a for a in accelerators().values() if "tdp_w" in a.weak and a.tdp_w and "bf16" in a.peak_flop_per_s)
    c = plain(weak.id, "h100-sxm")
    assert c.row("tdp").cells[0].weak and not c.row("tdp").cells[1].weak
    # a ratio is as weak as its weaker part
    assert c.row("work_per_watt").cells[0].weak


def test_prices_carry_their_age_and_old_ones_are_weak() -> None:
    fresh, old = (
        compare_accelerators(["h100-sxm", "l40s"], today=day, model=None).row("rent").cells[0]
        for day in (TODAY, TODAY + datetime.timedelta(days=400))
    )
    assert fresh.words.endswith("days old") and old.weak
    assert int(old.words.split()[0]) == int(fresh.words.split()[0]) + 400


def test_a_price_seen_says_how_many_sellers_asked_it() -> None:
    seen = typical_purchase_usd("rtx-4090", "used")
    assert seen.as_of is not None
    cell = plain("rtx-4090", "h100-sxm").row("buy_used").cells[0]
    assert cell.source == f"purchases: {seen.observations} seen"


def test_work_per_dollar_is_rent_over_rate() -> None:
    c = plain()
    for i in range(3):
        rent, peak, each = (c.row(k).cells[i].value for k in ("rent", "peak_bf16", "usd_per_pflop_hour"))
        assert rent and peak and each == pytest.approx(rent / (peak / 1e15))


# --- predicted work ---


def test_training_is_what_plan_says() -> None:
    c = with_model()
    plan = make_plan("llama-3.1-8b", "a100-sxm-80gb", Wishes(tokens=1e9), today=TODAY)
    assert plan.best is not None
    cell = c.row("train_full").cells[2]
    assert cell.value == pytest.approx(plan.best.estimate.tokens_per_s.expected, rel=1e-6)
    assert (cell.low, cell.high) == (plan.best.estimate.tokens_per_s.low, plan.best.estimate.tokens_per_s.high)


def test_what_does_not_fit_says_by_how_much_and_lighter_ways_follow() -> None:
    c = with_model()
    full = c.row("train_full").cells
    assert full[0].value is None and "takes" in full[0].words and "GiB" in full[0].words
    fits = [x.words for x in c.row("train_fits").cells]
    assert fits[2] == "with the optimizer in host memory" and "LoRA" in fits[0]
    assert all(x.value for x in c.row("train_lora").cells)


def test_a_card_that_holds_it_all_needs_no_lighter_way() -> None:
    c = with_model("h100-sxm", "a100-sxm-80gb", purpose="train")
    assert [r.key for r in c.rows if r.key.startswith("train_l")] == []


def test_fine_tuning_means_adapters_and_serving_alone_leaves_training_out() -> None:
    assert [r.key for r in with_model("l40s", "h100-sxm", purpose="finetune").rows if r.key in ("train_full", "train_lora")] == [
        "train_lora"
    ]
    served = with_model("l40s", "h100-sxm", purpose="infer")
    assert not any(r.key.startswith("train") for r in served.rows)
    assert served.row("decode_one").best == (1,)


def test_money_for_tokens_is_time_at_the_rent() -> None:
    c = with_model()
    for i in range(3):
        rate, rent, usd = (c.row(k).cells[i].value for k in ("decode_batch", "rent", "serve_usd"))
        assert rate and rent and usd == pytest.approx(1e9 / rate / 3600 * rent)


def test_a_bigger_memory_serves_more_at_once() -> None:
    c = with_model("a100-sxm-40gb", "a100-sxm-80gb", purpose="infer")
    small, large = (x.value for x in c.row("serve_room").cells)
    assert small and large and large > 2 * small  # the weights are held once in either
    assert c.work is not None
    more = (large - small) * float(kv_cache_bytes(c.work.arch, c.work.context, PAGED.unpadded)) / c.work.context
    assert more == pytest.approx(0.92 * 40 * 2**30, rel=0.03)  # vLLM's gpu_memory_utilization


def test_weights_get_narrower_only_where_they_must() -> None:
    from gpuwise.facts.models.catalogue import find_model

    arch = find_model("llama-3.1-70b")
    assert serve_alike(arch, [find_cluster("8xh100-sxm")], 4096, None)[0].weights == "bf16"
    assert serve_alike(arch, [find_cluster("h100-sxm")], 4096, None)[0].weights == "fp8"
    assert serve_alike(arch, [find_cluster("l40s")], 4096, None)[0].weights == "int4_wo"
    none = serve_alike(arch, [find_cluster("rtx-4090")], 4096, None)[0]
    assert none.weights is None and none.why_not.startswith("needs")


def test_a_wider_format_is_not_served_where_it_does_not_fit() -> None:
    from gpuwise.facts.models.catalogue import find_model

    assert serve_alike(find_model("llama-3.1-70b"), [find_cluster("h100-sxm")], 4096, "bf16")[0].weights is None


def test_experts_are_split_with_the_rest() -> None:
    from gpuwise.facts.models.catalogue import find_model

    one, two = (serve_alike(find_model("mixtral-8x7b"), [find_cluster(n)], 2048, None)[0] for n in ("2xh100-sxm", "8xh100-sxm"))
    assert one.single is not None and two.single is not None and two.single.expected > one.single.expected
    assert one.batched is not None and two.batched is not None and two.batched.expected > 2 * one.batched.expected


def test_where_no_engine_runs_one_sequence_is_still_predicted() -> None:
    from gpuwise.facts.models.catalogue import find_model

    done = serve_alike(find_model("llama-3.1-8b"), [find_cluster("m4-max")], 2048, None)[0]
    assert done.weights and "llama.cpp" in done.words and done.batched is None
    assert done.single is not None and 5 < done.single.expected < 200


# --- words ---


def test_the_verdict_is_made_from_the_figures() -> None:
    c = plain()
    assert 3 <= len(c.verdict) <= 6
    text = " ".join(c.verdict)
    best = c.row("reached_bf16").best
    assert len(best) == 1 and c.subjects[best[0]].name in c.verdict[0]
    cell = c.row("reached_bf16").cells[best[0]]
    assert cell.value is not None and say("FLOP/s", cell.value) in text


def test_the_verdict_says_what_a_card_cannot_train() -> None:
    names = ("rtx-4090-24gb", "l40s")
    text = " ".join(compare_accelerators(names, today=TODAY, model="llama-3.1-8b", tokens=15e9).verdict)
    assert "RTX 4090 (takes 33.4 GiB of 23.5 GiB) cannot train all of Llama 3.1 8B." in text


def test_the_order_of_the_columns_changes_no_judgement() -> None:
    one, other = plain("l40s", "a100-sxm-80gb"), plain("a100-sxm-80gb", "l40s")
    assert one.verdict == other.verdict
    for row in one.rows:
        assert {1 - i for i in row.best} == set(other.row(row.key).best), row.key


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.12, "12 % faster than B"),
        (1.8, "1.8 times as fast as B"),
        (23.4, "23 times as fast as B"),
        (9.97, "10 times as fast as B"),
    ],
)
def test_how_much_better_in_words(ratio: float, words: str) -> None:
    assert than(ratio, "B", "fast", "faster") == words


def test_intervals_say_their_unit_once() -> None:
    assert say_span("tokens/s", 436, 512) == "436 to 512 tokens/s"
    assert say_span("FLOP/s", 9.5e11, 1.2e12) == "950 GFLOP/s to 1.2 TFLOP/s"
    assert say_span("$", 1.5, 2.5) == "$1.50 to $2.50"


# --- the document ---


def test_the_document_is_json_and_complete() -> None:
    document = json.loads(json.dumps(comparison_document(with_model()), allow_nan=False))
    assert [s["asked"] for s in document["subjects"]] == list(CARDS)
    row = next(r for r in document["rows"] if r["key"] == "decode_one")
    assert row["cells"][0]["ratio_to_first"] == 1.0 and row["cells"][0]["interval"]["low"] > 0
    used = {c["source"] for r in document["rows"] for c in r["cells"] if c["source"] in sources()}
    assert set(document["sources"]) == used and document["work"]["model"]["id"] == "llama-3.1-8b"


# --- refusals ---


@pytest.mark.parametrize("names", [[], ["l40s"], ["l40s"] * 9])
def test_two_to_eight(names: list[str]) -> None:
    with pytest.raises(InputError, match="it takes 2 to 8"):
        compare_accelerators(names, today=TODAY)


def test_names_are_refused_as_everywhere() -> None:
    with pytest.raises(AmbiguousNameError):
        compare_accelerators(["rtx 6000", "l40s"], today=TODAY)
    assert compare_accelerators(["h100", "l40s"], today=TODAY).subjects[0].cluster.accelerator.id == "h100-sxm-80gb"
    with pytest.raises(UnknownNameError):
        compare_accelerators(["l40s", "rtx 9999"], today=TODAY)


@pytest.mark.parametrize(
    "options",
    [
        {"tokens": 1e9},
        {"purpose": "train"},
        {"seq_len": 4096},
        {"precision": "bf16"},
        {"model": "llama-3.1-8b", "purpose": "cook"},
        {"model": "llama-3.1-8b", "tokens": math.nan},
        {"model": "llama-3.1-8b", "tokens": 0.0},
        {"model": "llama-3.1-8b", "tokens": math.inf},
        {"model": "llama-3.1-8b", "seq_len": 0},
        {"model": "llama-3.1-8b", "precision": "fp3"},
        {"model": "llama-3.1-8b", "purpose": "infer", "precision": "tf32"},
        {"model": "bert-large", "purpose": "infer"},
        {"model": "gpt2", "purpose": "infer", "seq_len": 10**9},
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(options: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        compare_accelerators(["l40s", "a100-sxm-80gb"], today=TODAY, **options)  # type: ignore[arg-type]
    assert caught.value.hint


def test_serving_is_compared_in_one_format_and_at_one_batch():
    """A 14B model fits an H100 in bf16 and a 4090 only in 8 bits: both are compared in 8 bits."""
    answer = compare_accelerators(("rtx-4090", "h100-sxm"), today=TODAY, model="qwen2.5-14b", purpose="infer")
    rows = {row.key: row for row in answer.rows}
    assert len({cell.words for cell in rows["serve_weights"].cells}) == 1
    small, large = (cell.value for cell in rows["decode_same_batch"].cells)
    full_small, full_large = (cell.value for cell in rows["decode_batch"].cells)
    one = [cell.value or 0.0 for cell in rows["decode_one"].cells]
    assert small and large and full_large and small == full_small and small < large < full_large
    assert large / small < 1.5 * one[1] / one[0]
    assert "sequences at once" in " ".join(answer.verdict)


def test_one_accelerator_without_bf16_is_compared_in_fp16():
    answer = compare_accelerators(("v100-sxm-32gb", "h100-sxm"), today=TODAY)
    rows = {row.key: row for row in answer.rows}
    for key in ("usd_per_pflop_hour", "ridge", "work_per_watt"):
        assert "fp16" in rows[key].title
        assert all(cell.value is not None for cell in rows[key].cells)
    both = {row.key: row for row in compare_accelerators(("a100-80gb", "h100-sxm"), today=TODAY).rows}
    assert "bf16" in both["ridge"].title


def test_cards_are_compared_under_one_program_where_there_is_one() -> None:
    """bf16 weights of 70B fill an H200, on which llama.cpp alone still starts; fp8 is served by vLLM on both."""
    from gpuwise.facts.models.catalogue import find_model

    found = serve_alike(find_model("llama-3.1-70b"), [find_cluster("mi300x"), find_cluster("h200-sxm")], 4096, None)
    assert {(d.weights, d.program) for d in found} == {("fp8", "vLLM")}


def test_training_with_the_weights_in_host_memory_is_not_what_a_card_is_compared_by() -> None:
    """``fit`` says of either that it adapts it with 4-bit weights and does not train it."""
    made = compare_accelerators(["mi300x", "h200-sxm"], today=TODAY, model="llama-3.1-70b")
    assert find_row(made.rows, "train_full") is None
    assert "writes one sequence" in made.verdict[0]
    asked = compare_accelerators(["mi300x", "h200-sxm"], today=TODAY, model="llama-3.1-70b", purpose="train")
    row = find_row(asked.rows, "train_fits")
    assert row is not None
    assert "in host memory" in row.cells[1].words
