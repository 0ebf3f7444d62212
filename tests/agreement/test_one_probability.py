"""One probability: ``plan``, ``fit`` and ``pick`` judge alike whether a training fits, and a plan keeps to the risk asked for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.jobs import training_job
from gpuwise.pick.training import TrainingChoice, train_on

Ask = Callable[..., Any]
CASES = [
    ("llama-3.1-8b", "8xH100-SXM", 4096),
    ("llama-3.1-8b", "8xA100-SXM-40GB", 8192),
    ("llama-3.1-70b", "16xH100-SXM", 4096),
    ("gpt2", "4090", 1024),
    ("mixtral-8x7b", "16xH100-SXM", 4096),
]
HELD = ("tp", "pp", "cp", "ep", "dp", "micro_batch", "accumulation", "sharding", "recompute")


def planned(ask: Ask, model: str, on: str, seq: int, *more: str) -> dict[str, Any]:
    """The best option of a plan."""
    return ask("plan", model, "--on", on, "--tokens", "1B", "--seq", str(seq), *more)["best"]


@pytest.mark.parametrize(("model", "on", "seq"), CASES)
def test_fit_says_the_probability_of_the_plan(model: str, on: str, seq: int, ask: Ask) -> None:
    best = planned(ask, model, on, seq)
    s = best["strategy"]
    words = [w for f in HELD for w in (f"--{f.replace('_', '-')}", str(s[f]))]
    if s["virtual_stages"] > 1:
        words += ["--virtual-stages", str(s["virtual_stages"]), "--schedule", s["schedule"]]
    if s["recompute"] == "full":
        words += ["--recompute-every", str(s["recompute_every"])]
    words += ["--offload-optimizer"] * s["offload_optimizer"] + ["--offload-activations"] * s["offload_activations"]
    words += ["--offload-parameters"] * s["offload_parameters"]
    words += ["--seq", str(seq), "--global-batch", str(s["global_batch"]), "--stack", s["stack"]]
    fitted = ask("fit", model, "--on", on, *words)
    for field in ("fits", "fit_probability", "memory_bytes", "needed_bytes", "headroom_bytes"):
        assert fitted[field] == best[field], field
    assert best["fits"] and best["fit_probability"] >= 0.9 and best["headroom_bytes"] > 0


@pytest.mark.parametrize(("model", "on", "seq"), CASES[:3])
def test_pick_says_the_probability_of_the_plan(model: str, on: str, seq: int, ask: Ask) -> None:
    job = training_job(find_model(model), tokens=1e9, seq_len=seq)
    picked = train_on(job, find_cluster(on))
    assert isinstance(picked, TrainingChoice)
    best = planned(ask, model, on, seq)
    assert picked.estimate.fit_probability == best["fit_probability"]
    assert picked.estimate.needed_bytes.expected == best["needed_bytes"]["expected"]


@pytest.mark.parametrize(("model", "on", "seq"), CASES[:3])
def test_less_risk_needs_less_and_is_no_faster(model: str, on: str, seq: int, ask: Ask) -> None:
    bold, usual, careful = (planned(ask, model, on, seq, "--risk", r) for r in ("0.4", "0.1", "0.001"))
    assert bold["fit_probability"] >= 0.6 and usual["fit_probability"] >= 0.9 and careful["fit_probability"] >= 0.999
    on_host = [b["strategy"]["offload_optimizer"] for b in (bold, usual, careful)]
    assert on_host == sorted(on_host)  # the host is asked for help only where nothing is sure enough without
    plans = [b for b in (bold, usual, careful) if not b["strategy"]["offload_optimizer"]]
    for a, b in pairwise(plans):
        # another stack is not taken for less than the error of both
        alike = a["strategy"]["stack"] == b["strategy"]["stack"]
        assert a["step_time_s"]["expected" if alike else "low"] <= 1.05 * b["step_time_s"]["expected"]
