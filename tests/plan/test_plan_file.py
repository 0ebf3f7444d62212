"""A plan is read back from its own file: the same model, GPUs and layout, whatever the system and the options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.cli.app import run
from gpuwise.errors import FieldError, InputError, LayoutError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.corrections import Correction
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster, systems_of, with_count
from gpuwise.facts.models.catalogue import find_model, models
from gpuwise.plan.answer import Plan
from gpuwise.plan.api import make_plan
from gpuwise.plan.cluster_document import PLAN_VERSION, cluster_document, own_hardware
from gpuwise.plan.document import answer_document
from gpuwise.plan.goal import Wishes
from gpuwise.plan.job import is_catalogues, job_of
from gpuwise.plan.plan_file import job_of_document, plan_schema
from gpuwise.predict.estimate import to_document
from gpuwise.workload.strategy import CHOICES, DEGREES, Strategy

DEVICES = tuple(accelerators().values())
REFUSED = (
    *("rtx-4090", "t4", "l4", "a10", "a100-pcie-80gb", "jetson-agx-orin-64gb", "m3-ultra", "h100-sxm-80gb", "mi300x", "tpu-v5e"),
    *("rtx-5090", "l40s"),
)
"""Of each kind of box, most of which could not be read back."""
QUICK = Wishes(fixed={"micro_batch": 1, "recompute": "full"}, tokens=1e8)


def clusters_of(accelerator: Accelerator) -> Iterator[Cluster]:
    """Of every system that it is sold in, of part and several of them; and as a person counts them."""
    for system in systems_of(accelerator):
        for count in {system.count, 1, 2, 3, 5}:
            yield from (Cluster(with_count(system, count), count * n) for n in (1, 3))
    for count in (1, 2, 4, 6, 8, 12, 64, "2x4", "2x6"):
        try:
            yield find_cluster(f"{count}x{accelerator.id}")
        except InputError:
            continue


def read_back(document: dict[str, Any]) -> Any:
    return job_of_document(json.loads(json.dumps(to_document(document), allow_nan=False)), "plan.json")


def plan_document(cluster: Cluster, strategy: Strategy | None = None, model: str = "gpt2") -> dict[str, Any]:
    """What is read of a plan file."""
    arch = find_model(model)
    return {
        "plan_version": PLAN_VERSION,
        "model": {"id": arch.id, **({} if is_catalogues(arch) else {"architecture": arch})},
        "cluster": {**cluster_document(cluster), **own_hardware(cluster)},
        "goal": {"seq_len": 512, "tokens": 1e9},
        "best": {
            "strategy": strategy or Strategy(dp=cluster.n_accelerators, sequence_parallel=False, stack="eager"),
            "step_time_s": {"expected": 0.1},
            "goodput": {"checkpoint_interval_s": 600.0},
        },
    }


@pytest.mark.parametrize("accelerator", DEVICES, ids=lambda a: a.id)
def test_every_system_is_read_back(accelerator: Accelerator) -> None:
    for cluster in clusters_of(accelerator):
        document = plan_document(cluster)
        assert "hardware" not in document["cluster"]
        assert read_back(document).cluster == cluster


def assert_read_back(plan: Plan[Any]) -> None:
    assert plan.best is not None
    assert read_back(answer_document(plan)) == job_of(plan)


@pytest.mark.parametrize("device", REFUSED)
def test_a_plan_of_each_kind_of_box_is_read_back(device: str) -> None:
    assert_read_back(make_plan("gpt2", device, QUICK))


@pytest.mark.thorough
@pytest.mark.parametrize("accelerator", DEVICES, ids=lambda a: a.id)
def test_a_plan_of_every_device_is_read_back(accelerator: Accelerator) -> None:
    for cluster in (f"1x{accelerator.id}", f"4x{accelerator.id}"):
        try:
            plan = make_plan("gpt2", cluster, Wishes(tokens=1e8))
        except InputError:
            continue  # nothing of it trains
        if plan.best is not None:
            assert_read_back(plan)


@pytest.mark.parametrize(
    "wishes",
    [
        Wishes(),
        Wishes(tokens=1e9, seq_len=512, fixed={"tp": 2, "recompute": "full", "micro_batch": 1}),
        Wishes(lora_rank=8, fixed={"micro_batch": 1}),
        Wishes(precision=("fp16",), fixed={"micro_batch": 2, "sharding": "zero3"}),
        Wishes(stack="megatron-core", optimizer="muon", fixed={"pp": 2, "micro_batch": 1}),
    ],
    ids=["usual", "tensor", "lora", "fp16", "pipeline"],
)
def test_options_are_read_back(wishes: Wishes) -> None:
    assert_read_back(make_plan("gpt2", "4xa100-pcie-80gb", wishes))


@given(model=st.sampled_from(sorted(models())))
def test_every_model_is_read_back_by_name_and_in_full(model: str) -> None:
    arch = find_model(model)
    document = plan_document(find_cluster("1x4090"), model=model)
    assert read_back(document).arch == arch
    own = replace(arch, id="own")
    document["model"] = {"id": "own", "architecture": own}
    assert read_back(document).arch == own


@given(data=st.data())
def test_every_field_of_a_layout_is_read_back(data: st.DataObject) -> None:
    """Choices and numbers that no rule forbids on one GPU."""
    hints = get_type_hints(Strategy)
    fixed = {"stack": "eager", "sharding": "none", "schedule": "1f1b", "context_parallel": "ring", "recompute_every": 1}
    values: dict[str, Any] = dict(fixed)
    for f in fields(Strategy):
        if f.name in (*fixed, *DEGREES, "etp", "step_in_backward") or "offload" in f.name:
            continue
        if f.name in CHOICES:
            values[f.name] = data.draw(st.sampled_from(CHOICES[f.name]))
        elif hints[f.name] is bool:
            values[f.name] = data.draw(st.booleans())
        elif hints[f.name] is int:
            values[f.name] = data.draw(st.integers(1, 1000))
    strategy = Strategy(**values, release=data.draw(st.none() | st.floats(2015, 2030)), lora_targets=("attention", "mlp"))
    try:
        job = read_back(plan_document(find_cluster("1x4090"), strategy))
    except LayoutError:
        return
    assert job.strategy == strategy


def test_hardware_that_is_in_no_catalogue_is_in_the_file() -> None:
    """As ``--on this`` measures it, or with another network."""
    usual = find_cluster("2x4090")
    correction = Correction(((1.0, 2.0, 3.0),), (-0.5,), 0.1, 0.2, 1.5, 0.01)
    measured = replace(usual.system.accelerator, corrections={"matmul/bf16": correction}, boost_hz=None)
    for system in (
        replace(usual.system, accelerator=measured),
        replace(usual.system, accelerator=replace(measured, id="of-this-machine", name="A card")),
        replace(usual.system, network_bytes_per_s=5e9, id="at-home"),
        replace(usual.system, host_memory_bytes=1e12),
    ):
        cluster = replace(usual, system=system)
        document = plan_document(cluster)
        assert "hardware" in document["cluster"]
        job = read_back(document)
        assert job.cluster == cluster and job.cluster.accelerator.corrections == cluster.accelerator.corrections


def test_a_plan_of_a_model_from_a_file_is_read_back(tmp_path: Path) -> None:
    own = replace(find_model("gpt2"), id="own", name="Own", n_layers=3)
    plan = make_plan(own, "4090", QUICK)
    assert_read_back(plan)


@pytest.mark.parametrize("device", ["4090", "2xt4", "l4"])
def test_the_file_is_exported_and_printed_lines_before_it_do_no_harm(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    assert run(["plan", "gpt2", "--on", device, "--micro-batch", "1", "--json"]) == 0
    printed = capsys.readouterr().out
    for text in (printed, "a line before\n" + printed, "\ufeff" + printed, json.dumps(json.loads(printed), indent=2)):
        file.write_text(text)
        assert run(["export", str(file)]) == 0, capsys.readouterr().err
        assert "GPT-2" in capsys.readouterr().out


GOOD = to_document(plan_document(find_cluster("2x4090")))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("best.strategy.dp", "2", "best.strategy.dp: expected int, got str"),
        ("best.strategy.dp", 0, "best.strategy.dp: expected int >= 1"),
        ("best.strategy.precision", "fp7", "best.strategy.precision: invalid enum value 'fp7'"),
        ("best.strategy.tp", True, "best.strategy.tp: expected int, got bool"),
        ("best.step_time_s.expected", 0, "best.step_time_s.expected: expected float > 0.0"),
        ("best.step_time_s", [], "best.step_time_s: expected object, got array"),
        ("goal.seq_len", -1, "goal.seq_len: expected int >= 1"),
        ("goal", None, "goal: expected object, got null"),
        ("goal.tokens", 1e40, "goal.tokens: expected float <= 1e+18"),
        ("cluster.accelerators", 10**12, "cluster.accelerators: expected int <= "),
        ("cluster.accelerators", 3, "the plan's degrees make 2 GPUs"),
        ("cluster.system", "nowhere", "cluster.system: unknown system 'nowhere'"),
        ("cluster.system", "dgx-h100", "cluster.system: DGX H100"),
        ("cluster.accelerator", "toaster", "cluster.accelerator: no accelerator 'toaster'"),
        ("model.id", 3, "model.id: expected str, got int"),
        ("model.id", "gpt9", "unknown model 'gpt9'"),
        ("plan_version", 2, "plan_version: invalid enum value 2"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_expected(path: str, value: object, said: str) -> None:
    document = json.loads(json.dumps(GOOD))
    *parents, last = path.split(".")
    inner = document
    for name in parents:
        inner = inner[name]
    inner[last] = value
    with pytest.raises(InputError) as caught:
        job_of_document(document, "plan.json")
    assert said in caught.value.message and caught.value.hint
    if ":" in said:
        assert isinstance(caught.value, FieldError) and caught.value.message.startswith("plan.json: ")


@pytest.mark.parametrize("name", ["x\ntouch y", 'x"""', "$(touch y)", "`touch y`", "x\\"])
@pytest.mark.parametrize("field", ["name", "id"])
def test_a_name_that_a_script_would_run_is_refused(field: str, name: str) -> None:
    """Files of others are exported too; names stand in comments, in quotes and in Python's."""
    document = json.loads(json.dumps(to_document(plan_document(find_cluster("1x4090")))))
    document["model"]["architecture"] = json.loads(json.dumps(to_document(replace(find_model("gpt2"), **{field: name}))))
    with pytest.raises(FieldError, match=f"model.architecture.{field}: has a character that is not allowed there"):
        job_of_document(document, "plan.json")


def test_a_missing_field_is_named() -> None:
    document = json.loads(json.dumps(GOOD))
    del document["best"]["strategy"]
    with pytest.raises(FieldError, match="best: object missing required field strategy"):
        job_of_document(document, "plan.json")


def test_the_schema_holds_for_what_is_written() -> None:
    """JSON Schema: every field that a plan must have, in the form that is checked."""
    schema = plan_schema()
    assert set(schema["$defs"]["PlanFile"]["required"]) == {"model", "cluster", "goal", "best"}
    assert schema["$defs"]["Strategy"]["properties"]["dp"] == {"type": "integer", "minimum": 1, "maximum": 10**6, "default": 1}
    assert msgspec.json.encode(schema)
