"""One question by several commands through ``--json``: the same memory, speed, hours and dollars to the last digit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Ask = Callable[..., Any]
TOKENS = "1B"
PAIRS = [
    ("gpt2", "4090"),
    ("llama-3.2-1b", "8xh100-sxm"),
    ("llama-3.1-8b", "h200"),
    ("mixtral-8x7b", "8xh200"),
    ("bert-base", "t4"),
    ("vit-b-16", "l40s"),
    ("mamba-130m", "4090"),
    ("t5-base", "a100-sxm-80gb"),
]
DEGREES = ("tp", "pp", "cp", "ep", "dp")
SAME = ("step_time_s", "tokens_per_s", "mfu", "memory_bytes", "fit_probability")


def layout_options(plan: Any) -> list[str]:
    """The options of ``fit`` that ask for what a plan chose."""
    s, goal = plan["best"]["strategy"], plan["goal"]
    words = ["--seq", goal["seq_len"], "--global-batch", goal["global_batch"], "--micro-batch", s["micro_batch"]]
    words += ["--recompute", s["recompute"], "--sharding", s["sharding"], "--stack", s["stack"], "--precision", s["precision"]]
    words += ["--for", goal["task"]]
    words += [w for d in DEGREES if s[d] > 1 for w in (f"--{d}", s[d])]
    words += ["--virtual-stages", s["virtual_stages"]] if s["virtual_stages"] > 1 else []
    words += ["--offload-optimizer"] if s["offload_optimizer"] else []
    words += ["--offload-parameters"] if s["offload_parameters"] else []
    return [str(w) for w in words]


@pytest.mark.parametrize(("model", "on"), PAIRS)
def test_training_by_plan_fit_cost_compare_and_op(ask: Ask, model: str, on: str) -> None:
    plan = ask("plan", model, "--on", on, "--tokens", TOKENS)
    best = plan["best"]
    fit = ask("fit", model, "--on", on, *layout_options(plan))
    assert {k: fit[k] for k in SAME} == {k: best[k] for k in SAME}
    cost = ask("cost", "--on", on, "--model", model, "--tokens", TOKENS)
    assert (cost["total_usd"], cost["wall_s"]) == (best["cost_usd"], best["time_s"])
    if plan["cluster"]["accelerators"] == 1:
        speed = best["tokens_per_s"]["expected"]
        rows = {
            r["key"]: r["cells"][0]["value"]
            for r in ask("compare", on, "b200", "--model", model, "--for", "train", "--tokens", TOKENS)["rows"]
        }
        assert rows["train_full"] == pytest.approx(speed, rel=1e-9)
        op = ask("op", "train", model, TOKENS, "--on", on, "--seq", str(plan["goal"]["seq_len"]))
        assert op["rows"][0]["tokens_per_s"]["expected"] == pytest.approx(speed, rel=1e-9)


@pytest.mark.parametrize(("model", "tokens"), [("gpt2", "1B"), ("llama-3.1-8b", "1B")])
def test_what_pick_rents_is_what_plan_pays(ask: Ask, model: str, tokens: str) -> None:
    ranked = ask("pick", "--for", "train", "--model", model, "--tokens", tokens, "--rent")["ranked"]
    rented = [r for r in ranked if r["way"] == "rent" and not r["changes"]][:3]
    assert rented
    for row in rented:
        best = ask("plan", model, "--on", f"{row['count']}x{row['accelerator']}", "--tokens", tokens)["best"]
        for key in ("time_s", "cost_usd", "tokens_per_s"):
            picked, planned = (d[key]["expected"] if isinstance(d[key], dict) else d[key] for d in (row, best))
            assert picked == pytest.approx(planned, rel=1e-9), (row["accelerator"], key)
        held = row["device_bytes"] - best["headroom_bytes"]  # without the allocator's reserve where it fits only so
        assert row["memory_bytes"] == pytest.approx(held, rel=1e-9), row["accelerator"]
