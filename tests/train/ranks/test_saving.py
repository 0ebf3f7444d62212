"""Nothing is lost: what is saved is whole, what is loaded is verified, and a training that dies goes on to the same weights."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuwise.train.ranks import manifest  # noqa: E402
from gpuwise.train.ranks.manifest import MANIFEST, read, saves  # noqa: E402

KILLS = 13
SURVIVES_S = 30.0
"""Of each layout and number of loaders' workers: 104 in all."""
EACH = {"save_every": 2, "keep": 8}
LAYOUTS = {"DDP": {}, "FSDP2": {"sharding": "zero3"}, "PP 2": {"dp": 1, "pp": 2, "micro_batch": 2}, "TP 2": {"dp": 1, "tp": 2}}


def weights(run: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(run.out.glob("written*.pt")):
        found |= torch.load(path)["weights"]
    return found


def checkpoints(run: Any) -> list[Path]:
    return saves(run.out / "checkpoints")


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def asked(run: Any) -> int:
    """The step that all ranks saved when they were asked to end."""
    assert set(run.codes()) == {0}, run.output
    ends = [run.lines(r, "end")[0] for r in range(len(run.processes))]
    assert {e["reason"] for e in ends} == {"asked"} and len({e["step"] for e in ends}) == 1
    document, fault = read(checkpoints(run)[0])
    assert fault is None and document is not None and document["about"]["step"] == ends[0]["step"]
    return int(ends[0]["step"])


def wait_for(found: Callable[[], Any], run: Any) -> None:
    until = time.monotonic() + 600
    while not found() and any(p.is_alive() for p in run.processes) and time.monotonic() < until:
        time.sleep(0.005)


def until_done(start: Callable[[], Any], kill: Callable[[Any], None], most: int) -> int:
    """Start again after every kill. Returns how many runs were killed before their end."""
    for n in range(most):
        run = start()
        kill(run)
        codes = run.codes()
        if set(codes) == {0}:
            return n
    run = start()
    assert set(run.codes()) == {0}, run.output
    return most


def task_of(name: str) -> str:
    return "llama_like" if name == "TP 2" else "tokens"


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param("DDP", 2, marks=pytest.mark.slow),
        ("FSDP2", 0),
        pytest.param("PP 2", 2, marks=pytest.mark.slow),
        pytest.param("TP 2", 0, marks=pytest.mark.slow),
    ],
)
def test_killed_ranks_go_on_to_the_same_weights(name: str, workers: int, ranks: Callable[..., Any]) -> None:
    """One rank is killed in the middle, once its journal says that it is there."""
    more = {"layout": LAYOUTS[name], "epochs": 2, "workers": workers, **EACH}
    task = task_of(name)
    alone = ranks(task, 2, out="alone", **more)
    assert alone.codes() == [0, 0], alone.output
    at = iter((3,))

    def kill(run: Any) -> None:
        step = next(at)
        wait_for(lambda: any(e["step"] >= step for e in run.lines(1)), run)
        run.processes[step % 2].kill()

    until_done(lambda: ranks(task, 2, out="killed", **more), kill, 1)
    run = ranks(task, 2, out="killed", **more)
    assert run.codes() == [0, 0]  # there was nothing left to do
    assert not list((run.out / "checkpoints").glob("*.damaged"))
    assert same(weights(alone), weights(run))


@pytest.mark.thorough
def test_every_sample_is_taken_once_at_any_number_of_ranks(ranks: Callable[..., Any]) -> None:
    """``counted`` moves weight i by one each time that sample i is used: 1 after an epoch, whoever used it."""
    more = {"epochs": 2, "layout": {"global_batch": 5, "micro_batch": 2}}
    first = ranks("counted", 2, steps=3, **{**more, "layout": {**more["layout"], "dp": 2}})
    assert first.codes() == [0, 0], first.output
    second = ranks("counted", 4, steps=6, workers=2, **{**more, "layout": {**more["layout"], "dp": 4, "sharding": "zero3"}})
    assert second.codes() == [0] * 4, second.output
    assert second.lines(0, "resumed")[-1]["changed"] == {"dp": [2, 4], "sharding": ["none", "zero3"]}
    third = ranks("counted", 1, **{**more, "layout": {**more["layout"], "dp": 1, "global_batch": 7}})
    assert third.codes() == [0], third.output
    assert weights(third)["count"].flatten().tolist() == [2.0] * 23


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_stages_are_saved_and_loaded_at_any_layout(optimizer: str, ranks: Callable[..., Any]) -> None:
    """Two stages, then four ranks of FSDP2, then four stages, then one process: as one process from the beginning."""
    more = {"epochs": 2, "settings": ["layers=4", "clip=0.5", f"optimizer={optimizer}"]}
    alone = ranks("tokens", 1, out="alone", **more)
    assert alone.codes() == [0], alone.output
    layouts = ({"dp": 1, "pp": 2, "micro_batch": 4}, {"dp": 4, "sharding": "zero3"}, {"dp": 1, "pp": 4, "micro_batch": 2})
    for step, layout in enumerate(layouts, start=1):
        run = ranks("tokens", layout["dp"] * layout.get("pp", 1), layout=layout, steps=step, **more)
        assert set(run.codes()) == {0}, run.output
    last = ranks("tokens", 1, **more)
    assert last.codes() == [0], last.output
    assert [e["step"] for e in last.lines(0, "resumed")] == [1, 2, 3]
    found, true = torch.load(last.out / "written.pt")["weights"], weights(alone)
    for name, value in true.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-4, msg=name)


@pytest.mark.thorough
def test_flipped_bytes_are_refused_and_the_one_before_is_taken(ranks: Callable[..., Any]) -> None:
    run = ranks("tokens", 2, steps=4, layout=LAYOUTS["FSDP2"], **EACH)
    assert run.codes() == [0, 0], run.output
    newest, before = checkpoints(run)
    victim = next(newest.glob("__1_*"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    again = ranks("tokens", 2, steps=6, layout=LAYOUTS["FSDP2"], **EACH)
    assert again.codes() == [0, 0], again.output
    assert f"{newest.name}/{victim.name} has other bytes" in again.lines(1, "damaged")[0]["why"][0]
    assert again.lines(0, "resumed")[-1]["folder"] == before.name
    assert (newest.parent / f"{newest.name}.damaged" / victim.name).read_bytes() == bytes(data)
    for folder in checkpoints(again):
        written = folder / MANIFEST
        written.write_text(written.read_text().replace('"epoch": ', '"epoch": 1'))
    before_files = {p: p.read_bytes() for p in again.out.rglob("*") if p.is_file() and "checkpoints" in p.parts}
    refused = ranks("tokens", 2, steps=8, layout=LAYOUTS["FSDP2"], **EACH)
    assert refused.codes() == [2, 2]
    told = json.loads((again.out / "refused.json").read_text())
    assert "is whole: step-000000006/manifest.json was changed" in told["error"] and "nothing was changed" in told["hint"]
    assert {p: p.read_bytes() for p in again.out.rglob("*") if p.is_file() and "checkpoints" in p.parts} == before_files


@pytest.mark.thorough
def test_checkpoints_of_another_training_are_left_alone(ranks: Callable[..., Any]) -> None:
    assert ranks("tokens", 1, steps=1).codes() == [0]
    assert ranks("tokens", 1, steps=2, seed=3).codes() == [2]
    other = ranks("tokens", 1, steps=2, settings=["n=9"])
    assert other.codes() == [2]
    assert "are of other" in (other.out / "refused.json").read_text()


def test_a_signal_to_one_rank_saves_on_all(ranks: Callable[..., Any]) -> None:
    run = ranks("slow", 2, workers=2, steps=10_000)
    wait_for(lambda: run.lines(0), run)
    os.kill(run.lines(1, "begin")[0]["pid"], signal.SIGUSR1)
    wait_for(lambda: run.lines(0, "saved"), run)
    os.kill(run.lines(1, "begin")[0]["pid"], signal.SIGTERM)
    assert asked(run) < 10_000


@pytest.mark.thorough
def test_a_full_disk_loses_nothing(ranks: Callable[..., Any]) -> None:
    """No file may grow beyond 30 kB in the second run: the training goes on, and says so at the end."""
    run = ranks("plain", 2, steps=2)
    assert run.codes() == [0, 0], run.output
    whole = checkpoints(run)
    full = ranks("plain", 2, steps=5, environment={"LARGEST_FILE": "30000"}, save_every=2)
    assert full.codes() == [2, 2], full.output
    told = json.loads((full.out / "refused.json").read_text())
    assert "could not be written" in told["error"] and "free space" in told["hint"]
    assert [e["step"] for e in full.lines(0, "not saved")] == [4, 5]
    assert checkpoints(full) == whole and not list((full.out / "checkpoints").glob("*.partial"))
    again = ranks("plain", 2, steps=5)
    assert again.codes() == [0, 0] and again.lines(0, "resumed")[-1]["step"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_hundred_kills(name: str, workers: int, ranks: Callable[..., Any]) -> None:
    """13 for each of eight: at moments drawn over the whole of a training (loading, steps, saves), of one rank or both."""
    more = {"layout": LAYOUTS[name], "epochs": 6, "workers": workers, "save_every": 3, "keep": 2}
    task = task_of(name)
    alone = ranks(task, 2, out="alone", **more)
    wait_for(lambda: alone.lines(0, "begin"), alone)
    began = time.monotonic()
    assert alone.codes() == [0, 0], alone.output
    span_s = time.monotonic() - began
    draw, n = random.Random(f"{name} {workers}"), 0
    while n < KILLS:
        run = ranks(task, 2, out=f"killed-{n}", **more)
        while n < KILLS and set(codes(run, draw, span_s)) != {0}:
            n += 1
            run = ranks(task, 2, out=run.out.name, **more)
        assert set(run.codes()) == {0}, run.output
        assert same(weights(alone), weights(run)), f"after {n} kills"


def codes(run: Any, draw: random.Random, span_s: float) -> list[int | None]:
    """A tenth of the kills come while processes start. A survivor that waits for the other rank ends as torchrun's agent would
    end it."""
    before = len(run.lines(0, "begin"))
    if draw.random() < 0.9:
        wait_for(lambda: len(run.lines(0, "begin")) > before, run)
    time.sleep(draw.uniform(0.0, span_s))
    killed = [process for process in draw.sample(run.processes, draw.choice((1, 2))) if process.is_alive()]
    for process in killed:
        process.kill()
    end = time.monotonic() + SURVIVES_S
    while killed and any(process.is_alive() for process in run.processes):
        if time.monotonic() > end:
            run.end()
        time.sleep(0.05)
    return run.codes()


# --- traps found in other tools ---


def loaders(run: Any) -> list[Any]:
    """Loaders' workers of all ranks."""
    psutil = pytest.importorskip("psutil")
    return [child for p in run.processes for child in psutil.Process(p.pid).children(recursive=True)]


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
    assert same(weights(alone), weights(run))
    still = ranks("dropping", 2, out="still", **{**more, "settings": []})
    assert still.codes() == [0, 0] and not same(weights(alone), weights(still))


@pytest.mark.thorough
def test_a_signal_to_the_whole_group_ends_no_loader_before_the_save(ranks: Callable[..., Any]) -> None:
    """Schedulers send SIGTERM to every process of a job: a loader's worker that follows it takes its rank along, unsaved."""
    run = ranks("slow", 2, workers=2, steps=10_000)
    wait_for(lambda: len(run.lines(0)) > 1 and len(run.lines(1)) > 1, run)
    found = loaders(run)
    assert len(found) == 4
    for process in [*found, *(pytest.importorskip("psutil").Process(p.pid) for p in run.processes)]:
        process.send_signal(signal.SIGTERM)
    assert asked(run) < 10_000


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["first step", "data", "save"])
def test_a_signal_is_followed_wherever_a_rank_is(where: str, ranks: Callable[..., Any]) -> None:
    """In a first step that compiles, waiting for a loader, behind a checkpoint that is being written."""
    run = ranks("resting", 2, workers=1 if where == "data" else 0, steps=10_000, save_every=1, settings=[f"where={where}"])
    marker = run.out / f"resting-{where}"
    wait_for(marker.exists, run)
    assert marker.exists()
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
