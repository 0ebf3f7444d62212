"""Nodes of Slurm and Kubernetes as clusters, from recorded output: that of a Slurm 22.05 of ten nodes (``scontrol``), and of the
other tools in their formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import FileError, InputError, UnknownNameError
from gpuwise.facts.hardware.naming import find_accelerator, find_cluster, is_counted, named_with_count
from gpuwise.facts.hardware.scheduled import is_scheduled, names_nodes_file
from gpuwise.machine import schedulers
from gpuwise.machine.schedulers import read_nodes
from gpuwise.units import GIB

RECORDED = Path(__file__).with_name("schedulers")


def _named(text: str) -> str:
    before, _, file = text.partition("@")
    return f"{before}@{RECORDED / file}"


@pytest.mark.parametrize(
    ("text", "accelerator", "systems", "gpus"),
    [
        ("slurm:h100@scontrol.txt", "h100-sxm-80gb", 3, 24),  # a fourth is drained
        ("slurm:gpu:h100@scontrol.txt", "h100-sxm-80gb", 3, 24),
        ("slurm:gpu:A100@scontrol.json", "a100-sxm-80gb", 2, 8),
        ("slurm:old@scontrol.txt", "v100-sxm-32gb", 1, 4),  # no type: its feature v100
        ("slurm::h100@scontrol.json", "h100-sxm-80gb", 3, 24),
        ("slurm@sinfo.json", "h100-sxm-80gb", 3, 24),  # three nodes in two partitions
        ("8xslurm:h100@scontrol.txt", "h100-sxm-80gb", 1, 8),
        ("k8s:pool=train@kubectl.json", "h100-sxm-80gb", 2, 16),  # one is not ready, one cordoned
        ("k8s:h100@kubectl.json", "h100-sxm-80gb", 2, 16),
        ("k8s:pool=serve@kubectl.json", "l4", 1, 2),  # each shared by four
        ("k8s:pool=amd@kubectl.json", "mi300x", 1, 8),
        ("k8s:pool=gke@kubectl.json", "t4", 1, 2),
        ("k8s:pool=eks@kubectl.json", "a100-sxm-40gb", 1, 8),  # by its instance type
        ("Kubernetes:pool=train@kubectl.json", "h100-sxm-80gb", 2, 16),
    ],
)
def test_nodes_are_a_cluster(text: str, accelerator: str, systems: int, gpus: int) -> None:
    name = _named(text)
    found = find_cluster(name)
    assert (found.accelerator.id, found.n_systems, found.n_accelerators) == (accelerator, systems, gpus)
    assert is_scheduled(name) and names_nodes_file(name) and is_counted(name)
    assert find_accelerator(name).id == accelerator and named_with_count(name) == (accelerator,)


def test_the_nodes_memory_and_what_is_left_out_are_stated() -> None:
    found = find_cluster(_named("slurm:h100@scontrol.txt"))
    assert found.system.stated_host_memory_bytes == 2_063_000 * 2**20
    assert "partition h100 has 3 nodes of 8 h100, and not counted 1 node where no job starts" in found.assumption
    memory = find_cluster(_named("k8s:pool=train@kubectl.json")).system.stated_host_memory_bytes
    assert memory is not None and 2015 * GIB < memory < 2016 * GIB


def test_text_and_json_of_a_slurm_are_the_same_nodes() -> None:
    by_text, by_json = (
        {n.name: n for n in read_nodes("slurm", (RECORDED / name).read_text())} for name in ("scontrol.txt", "scontrol.json")
    )
    assert len(by_text) == 10 and by_text == by_json
    blocks = (
        (RECORDED / "scontrol.txt").read_text().replace(" ActiveFeatures", "\n   ActiveFeatures").replace(" Gres", "\n   Gres")
    )
    assert {n.name: n for n in read_nodes("slurm", blocks)} == by_text


@pytest.mark.parametrize(
    ("text", "error", "message", "hint"),
    [
        ("slurm:gpu@scontrol.txt", InputError, "unlike GPUs: 8x a100, 24x h100, 4x v100", "--on slurm:gpu:a100"),
        (
            "slurm:cpu@scontrol.txt",
            InputError,
            "the nodes of partition cpu have no GPUs",
            "partitions with GPUs: a100, gpu, h100, old",
        ),
        ("slurm:mig@scontrol.txt", InputError, "only slices of GPUs", "partitions with GPUs"),
        ("slurm:h1@scontrol.txt", UnknownNameError, "unknown partition 'h1'", "partitions with GPUs: a100, gpu, h100, old"),
        ("slurm:h100:b200@scontrol.txt", UnknownNameError, "unknown type of GPU 'b200'", "partition h100 has h100"),
        ("12xslurm:h100@scontrol.txt", InputError, "12 GPUs do not fill nodes of 8", "multiple of 8"),
        ("99xslurm:h100@scontrol.txt", InputError, "has 24 GPUs of h100", "up to 24"),
        ("slurm:a:b:c@scontrol.txt", InputError, "has 3 parts", "slurm:PARTITION"),
        ("k8s@kubectl.json", InputError, "Kubernetes has unlike GPUs", "--on k8s:NVIDIA-H100-80GB-HBM3"),
        ("k8s:pool=none@kubectl.json", UnknownNameError, "unknown label 'pool=none'", "--show-labels"),
        ("k8s:pool=mig@kubectl.json", InputError, "only slices of GPUs", "name the GPUs"),
        ("k8s@scontrol.txt", FileError, "is not JSON", "check the path"),
        ("slurm@kubectl.json", FileError, "does not list nodes", "scontrol --oneliner show nodes"),
        ("slurm@absent.txt", FileError, "cannot be read", "check the path"),
    ],
)
def test_errors_say_what_and_a_next_step(text: str, error: type[InputError], message: str, hint: str) -> None:
    with pytest.raises(error) as raised:
        find_cluster(_named(text))
    assert message in raised.value.message and hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("gres", "state", "features", "message"),
    [
        ("gpu:gaudi9:8", "IDLE", "", "unknown accelerator 'gaudi9'"),
        ("gpu:rtx6000:4", "IDLE", "", "called 'rtx6000', which may be"),
        ("gpu:8", "IDLE", "ib", "whose type it does not state"),
        ("gpu:h100:8", "DOWN*", "", "no job starts on its nodes with GPUs (down)"),
    ],
)
def test_gpus_that_cannot_be_planned_for(
    gres: str, state: str, features: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"NodeName=n1 ActiveFeatures={features} Gres={gres} RealMemory=1 State={state} Partitions=p\n"
    monkeypatch.setattr(schedulers, "nodes_of", lambda _: line)
    with pytest.raises(InputError) as raised:
        find_cluster("slurm:p")
    assert message in raised.value.message and raised.value.hint


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'NodeName=n1 Gres=gpu:l4:2 State=IDLE Partitions=p'", None),
        ("echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1", "failed: slurm_load_node error"),
        ("sleep 5", "gave no answer in 1 s"),
        (None, "scontrol is not on this machine"),
    ],
)
def test_the_scheduler_is_asked(script: str | None, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "_answers", dict[str, Any]())
    monkeypatch.setattr(schedulers, "PATIENCE_S", 1.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    if script:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "scontrol").chmod(0o755)
    if message is None:
        assert find_cluster("slurm:p").n_accelerators == 2
        (tmp_path / "scontrol").unlink()
        assert find_cluster("slurm").n_accelerators == 2, "asked once for a question"
        return
    with pytest.raises(InputError) as raised:
        find_cluster("slurm:p")
    assert message in raised.value.message and raised.value.hint
