"""No tool drops an option in silence: each field of the table changes the files, or is refused, or is named in a note."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwise.export.job import Job
from gpuwise.export.targets import ENGINES, TOOLS, gaps_of, write
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.strategy import NEUTRAL, OPTIONS, Strategy

WHERE: dict[str, tuple[dict[str, Any], ...]] = {
    "schedule": ({"pp": 2},),
    "virtual_stages": ({"pp": 2, "schedule": "interleaved"},),
    "context_parallel": ({"cp": 2},),
    "sequence_parallel": ({"tp": 2},),
    "shard_group": ({"sharding": "hybrid"},),
    "recompute_every": ({"recompute": "full"},),
    "etp": ({"tp": 2, "ep": 2},),
    "expert_dispatch": ({"ep": 2},),
    "overlap_ep": ({"ep": 2},),
    "cuda_graphs": ({"ep": 2},),
    "offload_parameters": (
        {"sharding": "zero3", "offload_optimizer": True, "stack": "deepspeed"},
        {"sharding": "zero3", "stack": "megatron-core", "offload_optimizer": True},
    ),
    "offload_optimizer": ({"sharding": "zero3", "stack": "deepspeed"}, {"sharding": "zero3", "stack": "hf-fsdp"}),
    "lora_targets": ({"lora_rank": 16},),
    "quantized_base": ({"lora_rank": 16},),
}
"""What else has to be in a layout for a field to mean anything."""
SAME = {("offload_parameters", tool) for tool in ("torchtitan", "torchrun", "torchtune", "nemo")}
"""They keep the weights in host memory wherever the optimizer is: FSDP2 offloads both."""
HUGGING_FACE = {"eager", "compiled", "eager-fsdp", "hf-fsdp", "trainer", "unsloth", "nanogpt", "deepspeed"}
OF_THE_SAME_STEP = {
    "megatron": {"megatron-core", "megatron-legacy"},
    "megatron-bridge": {"megatron-core", "megatron-legacy"},
    "torchtitan": {"compiled-fsdp", "torchtitan-eager"},
    "torchrun": {"eager-fsdp"},
    "torchtune": {"torchtune"},
    "maxtext": {"maxtext"},
    "unsloth": {"unsloth"},
}
"""Stacks whose times are those of what a tool runs: they need no word."""
NAMED = {"expert_dispatch": {"torchrun", "torchtitan", "maxtext"}}
"""Tools that do what an option asks for in their own way, with a note that says so, by field."""
EXPERTS = {"ep", "etp", "expert_dispatch", "overlap_ep", "cuda_graphs"}


def _job(fields: dict[str, Any], *, experts: bool = False, on: str = "8xH100-SXM", **more: Any) -> Job:
    strategy = Strategy(**fields)
    arch = find_model("qwen3-30b-a3b" if experts else "llama-3.1-8b")
    strategy = strategy.with_(dp=8 // (strategy.tp * strategy.pp * strategy.cp))
    return Job(arch, find_cluster(on), strategy, 4096, 1e9, **more)


def _values(field: str) -> tuple[Any, ...]:
    neutral: Any = getattr(NEUTRAL, field)
    if OPTIONS[field].choices:
        return tuple(value for value in OPTIONS[field].choices if value != neutral)
    return (not neutral,) if isinstance(neutral, bool) else (2,) if isinstance(neutral, int) else (("attention",),)


@pytest.mark.parametrize("field", [field for field, o in OPTIONS.items() if o.help and field != "dp"])
@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_an_option_is_written_or_refused_or_named(tool: Any, field: str) -> None:
    option = "--" + (OPTIONS[field].name or field).replace("_", "-")
    on = "8xTPU-v5p" if "google" in tool.vendors else "8xH100-SXM"
    for where in WHERE.get(field, ({},)):
        plain = _job(where, experts=field in EXPERTS, on=on)
        if gaps_of(plain, tool):
            continue  # what the field is a part of is refused
        before = write(plain, tool)
        for value in _values(field):
            job = _job({**where, field: value}, experts=field in EXPERTS, on=on)
            if gaps_of(job, tool) or tool.always.get(field) == value or (field, tool.name) in SAME:
                continue
            if field == "stack" and value in OF_THE_SAME_STEP.get(tool.name, HUGGING_FACE):
                continue
            made = write(job, tool)
            if tool.name in NAMED.get(field, ()):
                assert any(note.startswith(option) for note in made.notes)
            elif (field, value) != ("cuda_graphs", "none") or tool.name.startswith("megatron"):
                same = (made.files, made.command, made.environment) == (before.files, before.command, before.environment)
                assert not same or field == "stack", f"{tool.name} does not write {option} {value}"


LIKELY: tuple[dict[str, Any], ...] = (
    {"stack": "trainer"},
    {"stack": "deepspeed", "sharding": "zero1"},
    {"stack": "torchtune", "sharding": "zero3", "lora_rank": 16},
)


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_packing_and_driver_are_written_or_named(tool: Any) -> None:
    on = "8xTPU-v5p" if "google" in tool.vendors else "8xH100-SXM"
    jobs = (_job(fields, packed=512, driver="570.86", on=on) for fields in LIKELY)
    job = next(job for job in jobs if not gaps_of(job, tool))
    notes = " ".join(write(job, tool).notes)
    assert "--driver 570.86" in notes
    assert ("--packed 512" in notes) != tool.packs(job)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_driver_chooses_an_image_or_is_named(engine: Any) -> None:
    tool = TOOLS["megatron"]
    before, made = (write(_job({}, driver=driver), tool, engine) for driver in (None, "535.54"))
    assert made.files != before.files or any("--driver 535.54" in note for note in made.notes)
