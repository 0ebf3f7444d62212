"""Traps of training on ranks, found in other tools, that the other files of this folder do not touch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.train.ranks.manifest import read, saves

torch = pytest.importorskip("torch")
psutil = pytest.importorskip("psutil")


def wait_for(found: Callable[[], Any], run: Any) -> Any:
    until = time.monotonic() + 600
    while not (there := found()) and any(p.is_alive() for p in run.processes) and time.monotonic() < until:
        time.sleep(0.005)
    return there


def weights(run: Any) -> dict[str, Any]:
    return torch.load(run.out / "written.pt")["weights"]


def loaders(run: Any) -> list[Any]:
    """Loaders' workers of all ranks."""
    return [child for p in run.processes for child in psutil.Process(p.pid).children(recursive=True)]


def asked(run: Any) -> int:
    """The step that all ranks saved when they were asked to end."""
    assert set(run.codes()) == {0}, run.output
    ends = [run.lines(r, "end")[0] for r in range(len(run.processes))]
    assert {e["reason"] for e in ends} == {"asked"} and len({e["step"] for e in ends}) == 1
    document, fault = read(saves(run.out / "checkpoints")[0])
    assert fault is None and document is not None and document["about"]["step"] == ends[0]["step"]
    return int(ends[0]["step"])


@pytest.mark.thorough
@pytest.mark.parametrize("layout", [{}, {"sharding": "zero3"}], ids=["DDP", "FSDP2"])
def test_numbers_drawn_after_a_kill_are_those_of_an_uninterrupted_run(layout: dict[str, Any], ranks: Callable[..., Any]) -> None:
    """Dropout differs from rank to rank; a state of the generators saved under one name would give all ranks the first one's."""
    more = {"layout": layout, "settings": ["dropout=0.3"], "epochs": 2, "save_every": 2}
    alone = ranks("dropping", 2, out="alone", **more)
    assert alone.codes() == [0, 0], alone.output
    drawn = [torch.load(alone.out / f"drawn-{r}.pt") for r in (0, 1)]
    assert len(drawn[0]) == len(drawn[1]) and not any(torch.equal(a, b) for a, b in zip(*drawn, strict=True))
    run = ranks("dropping", 2, out="killed", **more)
    wait_for(lambda: run.lines(0, "saved"), run)
    run.processes[1].kill()
    run.end()
    run = ranks("dropping", 2, out="killed", **more)
    assert run.codes() == [0, 0], run.output
    assert run.lines(0, "resumed")[-1]["step"] >= 2
    found, true = weights(run), weights(alone)
    assert all(torch.equal(found[k], true[k]) for k in true)
    still = ranks("dropping", 2, out="still", **{**more, "settings": []})
    assert still.codes() == [0, 0] and not all(torch.equal(weights(still)[k], true[k]) for k in true)


@pytest.mark.thorough
def test_a_signal_to_the_whole_group_ends_no_loader_before_the_save(ranks: Callable[..., Any]) -> None:
    """Schedulers send SIGTERM to every process of a job: a loader's worker that follows it takes its rank along, unsaved."""
    run = ranks("slow", 2, workers=2, steps=10_000)
    wait_for(lambda: len(run.lines(0)) > 1 and len(run.lines(1)) > 1, run)
    found = loaders(run)
    assert len(found) == 4
    for process in [*found, *(psutil.Process(p.pid) for p in run.processes)]:
        process.send_signal(signal.SIGTERM)
    assert asked(run) < 10_000


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["first step", "data", "save"])
def test_a_signal_is_followed_wherever_a_rank_is(where: str, ranks: Callable[..., Any]) -> None:
    """In a first step that compiles, waiting for a loader, behind a checkpoint that is being written."""
    run = ranks("resting", 2, workers=1 if where == "data" else 0, steps=10_000, save_every=1, settings=[f"where={where}"])
    marker = run.out / f"resting-{where}"
    assert wait_for(marker.exists, run)
    os.kill(run.lines(1, "begin")[0]["pid"], signal.SIGTERM)
    assert asked(run) in (1, 2, 3)


@pytest.mark.thorough
def test_a_loader_that_dies_is_no_fault_of_the_training(ranks: Callable[..., Any]) -> None:
    """The kernel takes a loader's worker for want of memory: the same training goes on, when it is begun again."""
    more = {"workers": 1, "steps": 12, "save_every": 2}
    run = ranks("slow", 2, **more)
    wait_for(lambda: run.lines(0, "saved"), run)
    loaders(run)[0].kill()
    assert set(run.codes()) == {1}, run.output
    assert not (run.out / "refused.json").exists() and "lost another rank" in run.output
    again = ranks("slow", 2, **more)
    assert again.codes() == [0, 0] and again.lines(0, "resumed")[-1]["step"] >= 2 and again.lines(0, "end")[-1]["step"] == 12


@pytest.mark.thorough
def test_a_kill_between_two_names_leaves_one_whole_checkpoint(ranks: Callable[..., Any], tmp_path: Path) -> None:
    """A damaged checkpoint of the same step is put aside before the new one takes its name."""
    from gpuwise.train.ranks import manifest

    root = tmp_path / "checkpoints"
    for step in (2, 4):
        partial = manifest.folder_of(root, step).with_name("new.partial")
        partial.mkdir(parents=True)
        (partial / "part").write_bytes(b"x" * 100)
        manifest.seal(partial, manifest.folder_of(root, step), {"part": manifest.entry(partial / "part")}, {"step": step})
    newest = manifest.folder_of(root, 4)
    (newest / "part").write_bytes(b"y" * 100)
    newest.rename(newest.with_name(f"{newest.name}.damaged"))  # here the kill comes
    whole = [folder for folder in saves(root) if not manifest.faults(folder, *_files(folder))]
    assert [f.name for f in whole] == ["step-000000002"]


def _files(folder: Path) -> tuple[dict[str, Any], list[str]]:
    document, fault = read(folder)
    assert fault is None and document is not None
    return document["files"], sorted(document["files"])
