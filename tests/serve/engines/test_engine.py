"""What is known of engines, how they hold a model, and the key of their costs."""

from __future__ import annotations

import ast
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import gpuwise
from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.capacity.commands import start_commands
from gpuwise.serve.capacity.configurations import Requirements, layouts
from gpuwise.serve.engines import costs
from gpuwise.serve.engines.costs import engine_costs
from gpuwise.serve.engines.engine import (
    DEFAULT_ENGINE,
    ENGINES,
    LOCAL_ENGINE,
    Engine,
    EngineConfig,
    Start,
    engine_name,
    engine_of,
    engine_runs,
    tensor_parallel,
    version_number,
)
from gpuwise.serve.engines.releases import engine_rules
from gpuwise.serve.formats import FORMATS
from gpuwise.serve.iteration import one_iteration
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.workloads import find_workload
from gpuwise.serve.simulate.front import front_of
from gpuwise.serve.simulate.server import POLICIES
from gpuwise.serve.splits import check_split


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError):
        EngineConfig(engine="ollama")
    with pytest.raises(UnknownNameError):
        EngineConfig(weights="fp7")
    with pytest.raises(UnknownNameError):
        EngineConfig("sglang", "Q4_K_M")  # llama.cpp's


def test_experts_are_split_like_the_rest_unless_told_otherwise() -> None:
    dense, experts = (tensor_parallel(find_model(m), "bf16", 4) for m in ("llama-3.1-8b", "mixtral-8x7b"))
    assert (dense.tp, dense.moe_tp, dense.ranks) == (4, 1, 4)
    assert (experts.tp, experts.moe_tp, experts.moe_ep) == (4, 4, 1)
    check_split(find_model("mixtral-8x7b"), experts)
    with pytest.raises(InputError):
        check_split(find_model("mixtral-8x7b"), EngineConfig(moe_ep=3))


def test_versions() -> None:
    assert version_number("0.19.0") == (0, 19, 0)
    assert version_number("1.0.0rc3") == (1, 0, 0)
    assert version_number("0.5.6.post2") == (0, 5, 6)
    assert version_number("nightly") == ()
    assert version_number("0.9") < version_number("0.12.0")


@pytest.mark.parametrize("name", [e.name for e in ENGINES.values() if not e.whole_steps])  # its costs are of single streams
def test_every_engine_has_costs(name: str) -> None:
    costs = engine_costs(EngineConfig(name))
    assert costs.kernel_slowdown >= 1 and costs.log_sigma > 0
    assert engine_costs(EngineConfig(name, tuned=False)).log_sigma > 0


def test_the_version_chooses_among_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(versions: list[str], iteration_s: float, tuned: bool = True) -> dict[str, Any]:
        costs = {
            "kernel_slowdown": 1.0,
            "prefill_slowdown": 1.0,
            "communication_slowdown": 1.0,
            "iteration_s": iteration_s,
            "sequence_s": 0.0,
            "layer_s": 0.0,
        }
        return {"engine": "vllm", "tuned": tuned, "versions": versions, "costs": costs, "log_sigma": 0.1}

    document = {"engines": [entry(["0.6.0", "0.8.5"], 1.0), entry(["0.9.0", "0.19.0"], 2.0), entry([], 3.0, tuned=False)]}
    monkeypatch.setattr(costs, "load_json", lambda family: document)

    def chosen(version: str | None, tuned: bool = True) -> float:
        return engine_costs(EngineConfig(version=version, tuned=tuned)).iteration_s

    assert chosen(None) == chosen("0.19.1") == chosen("0.9.0") == chosen("0.10") == 2.0
    assert chosen("0.8.9") == chosen("0.6.0") == chosen("0.5.0") == 1.0
    assert chosen(None, tuned=False) == chosen("0.7", tuned=False) == 3.0


def test_where_vllm_runs() -> None:
    assert engine_runs(accelerators()["rtx-4090"]) and engine_runs(accelerators()["mi300x"])
    assert not engine_runs(accelerators()["k80"])


def test_the_exchange_of_groups_that_attend_apart_has_a_cost_of_its_own() -> None:
    together, apart = (engine_costs(EngineConfig("trtllm", tp=n, attention_dp=dp, moe_ep=4)) for n, dp in ((4, 1), (1, 4)))
    assert apart.communication_slowdown > together.communication_slowdown
    assert apart.iteration_s == together.iteration_s
    assert front_of(EngineConfig("trtllm", attention_dp=4, moe_ep=4, version="1.0")).costs.communication_slowdown == (
        apart.communication_slowdown
    )


@pytest.mark.parametrize("weights", ["fp8", "fp8_block", "nvfp4"])
def test_formats_that_no_kernel_widens(weights: str) -> None:
    """Marlin begins with Turing; 16 bits and GPTQ run before it."""
    volta, turing = (find_cluster(name).system for name in ("v100-sxm2-32gb", "t4"))
    arch = find_model("llama-3.1-8b")
    with pytest.raises(InputError, match=f"V100 SXM2 32GB has no kernel for {weights} weights") as refused:
        one_iteration(arch, volta, EngineConfig(weights=weights), 1, 1, 128)
    assert "--weights 16" in (refused.value.hint or "")
    for system, other in ((turing, weights), (volta, "bf16"), (volta, "int4_wo")):
        one_iteration(arch, system, EngineConfig(weights=other), 1, 1, 128)


PACKAGE = Path(gpuwise.__file__).parent
MAY_NAME = {
    "serve/engines/": "the engines' own files",
    "calibrate/": "columns of measured tables, and which fit is whose",
    "facts/models/stored.py": "what a config.json calls the quantization",
    "predict/comm/collectives.py": "libraries whose all-reduces were measured: keys of the coefficients",
    "machine/doctor/": "Python packages that a machine may have",
    "machine/model_speeds/": "programs whose output is read, and the engine that each of them runs",
    "cli/capacity/command.py": "the default of --engine, which help shows before the engines are loaded",
}


def test_only_the_engines_files_know_their_names() -> None:
    names = {n for e in ENGINES.values() for n in (e.name, e.title, *e.aliases)}
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if not any(name in text for name in names):
            continue
        used = {n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        if used & names:
            found[path.relative_to(PACKAGE).as_posix()] = used & names
    assert {p: n for p, n in found.items() if not p.startswith(tuple(MAY_NAME))} == {}
    assert all(any(p.startswith(allowed) for p in found) for allowed in MAY_NAME), "an exception that nothing needs"
    assert found["cli/capacity/command.py"] == {DEFAULT_ENGINE}


def test_help_names_every_engine() -> None:
    text = (PACKAGE / "cli/capacity/command.py").read_text()
    help_of_engine = text[text.index("engine: ") :].split('"""')[1]
    assert [name for name in ENGINES if name not in help_of_engine] == []


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_has_all_that_answers_ask_for(name: str) -> None:
    engine = ENGINES[name]
    assert engine.name == name and engine.title and set(engine.formats) <= set(FORMATS)
    assert engine_name(name) == name and all(engine_name(other) == name for other in engine.aliases)
    rules = engine_rules(EngineConfig(name, engine.formats[0]))
    assert rules.scheduler in POLICIES and rules.source
    assert all(engine.reads(form) for form in engine.quantization) and set(engine.unpacked) <= set(FORMATS)


class Local(Engine):
    """A made-up engine of one device: what CONTRIBUTING asks for."""

    name = title = "local"
    newest = "1"
    formats = ("bf16", "int8_wo", "int4_wo")
    by_bits = MappingProxyType({16: "bf16", 8: "int8_wo", 4: "int4_wo"})
    in_turn = 1
    streams = "single_stream"
    rules = ENGINES[LOCAL_ENGINE].rules

    def words(self, start: Start) -> list[str]:
        return ["local-server", "--model", start.model, "--max-tokens", str(start.context)]


def test_an_engine_is_added_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "local", Local())
    wanted = Requirements("local", bits=(4,), context=4096)
    (one, *_) = layouts(find_model("llama-3.1-8b"), find_cluster("m2-max").system, 1, wanted)
    requests = Load(find_workload("in=500,out=50"), 4096).at(0.01, 20)
    assert one.words == "one GPU, 4-bit weights (int4_wo), one slot" and one.server.run(requests).mean("e2e") > 0
    (command,) = start_commands(one)
    assert command.name == "local" and command.line.endswith("--max-tokens 4096")


def test_what_reads_a_format() -> None:
    assert engine_of("bf16").name == DEFAULT_ENGINE
    assert engine_of("Q4_K_M").name == LOCAL_ENGINE
