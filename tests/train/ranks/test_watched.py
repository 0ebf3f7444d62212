"""What ranks say of themselves: collectives as predicted, stragglers with their cause, and who is silent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuwise.machine.devices.readings import EventReason  # noqa: E402
from gpuwise.train.ranks.beat import Place, places, silent  # noqa: E402
from gpuwise.train.ranks.launch import HangWatch, RankJournal, RanksResult  # noqa: E402
from gpuwise.train.ranks.straggler import CAUSES, Straggler, straggler  # noqa: E402


def result(run: Any) -> RanksResult:
    assert set(run.codes()) == {0}, run.output
    journals = tuple(RankJournal(Path(run.out) / f"rank-{r}.jsonl") for r in range(len(run.processes)))
    for journal in journals:
        journal.read()
    return RanksResult("done", 0, journals, 1.0)


@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 2},
        {"dp": 2, "sharding": "zero3", "micro_batch": 2},
        {"dp": 2, "sharding": "zero3", "precision": "bf16", "recompute": "full"},
        {"dp": 4, "sharding": "zero2", "micro_batch": 1},
        {"dp": 4, "sharding": "hybrid", "shard_group": 2},
    ],
    ids=lambda layout: " ".join(map(str, layout.values())),
)
def test_collectives_are_predicted_exactly(layout: dict[str, Any], ranks: Callable[..., Any]) -> None:
    """1.4 MiB of weights, so that DDP has two buckets; 130 columns, of which four ranks take unequal parts."""
    counted = result(ranks("tokens", layout["dp"], layout=layout, steps=2, settings=["clip=1.0", "width=130"])).collectives
    assert counted and all(c["predicted"] == c["measured"] for c in counted.values()), counted


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 1, "pp": 2, "micro_batch": 2},
        {"dp": 2, "pp": 2, "micro_batch": 1},
        {"dp": 2, "pp": 2, "micro_batch": 1, "sharding": "zero3"},
    ],
    ids=lambda layout: " ".join(map(str, layout.values())),
)
def test_what_stages_exchange_is_predicted_exactly(layout: dict[str, Any], ranks: Callable[..., Any]) -> None:
    """On every rank: the first stage sends forward only, the last one back only."""
    settings = ["clip=1.0", "layers=3", "length=9", "n=24"]
    found = result(ranks("tokens", layout["dp"] * layout["pp"], layout=layout, steps=3, settings=settings))
    for rank in range(len(found.journals)):
        counted = replace(found, journals=found.journals[rank:] + found.journals[:rank]).collectives
        assert "send" in counted and all(c["predicted"] == c["measured"] for c in counted.values()), (rank, counted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"sharding": "zero3", "dp": 2, "micro_batch": 2, "recompute": "full"}, {"dp": 1}], ids=["FSDP2", "DDP"]
)
def test_what_shared_rows_exchange_is_predicted_exactly(more: dict[str, Any], ranks: Callable[..., Any]) -> None:
    """Nine tokens on two ranks: one is padding."""
    found = result(ranks("llama", 2 * more["dp"], layout={"cp": 2, **more}, steps=3, settings=["length=9"]))
    assert all(c["predicted"] == c["measured"] for c in found.collectives.values()), found.collectives


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"sharding": "zero3", "micro_batch": 2, "recompute": "full"}, {}], ids=["FSDP2", "DDP"])
def test_what_divided_experts_exchange_is_predicted_exactly(more: dict[str, Any], ranks: Callable[..., Any]) -> None:
    """The tokens that go and come back do not depend on where they are sent."""
    layout = {"ep": 2, "dp": 4, **more}
    found = result(ranks("qwen3_moe", 4, layout=layout, steps=3, settings=["length=9"]))
    counted = found.collectives
    assert "all-to-all" in counted and all(c["predicted"] == c["measured"] for c in counted.values()), counted


@pytest.mark.parametrize(
    ("task", "cause"), [("late_data", "data_s"), pytest.param("late_step", "rest_s", marks=pytest.mark.slow)]
)
def test_a_planted_straggler_is_found(task: str, cause: str, ranks: Callable[..., Any]) -> None:
    found = result(ranks(task, 2, steps=6)).straggler
    assert found is not None and found.rank == 1 and found.cause == CAUSES[cause]


def test_ranks_that_wait_alike_have_no_straggler() -> None:
    step = {"step_s": 1.0, "data_s": 0.1, "wait_s": 0.2, "queue_s": 0.0}
    alike = [[{**step, "step": n} for n in range(6)] for _ in range(3)]
    assert straggler(alike) is None and straggler(alike[:1]) is None and straggler([a[:3] for a in alike]) is None
    on_gpus = [[{**s, "wait_s": None} for s in steps] for steps in alike]
    assert straggler(on_gpus) is None


def test_a_straggler_among_gpus_is_found_by_what_its_process_and_driver_see() -> None:
    step = {"step_s": 1.0, "data_s": 0.1, "wait_s": None, "queue_s": 0.0, "sm_clock_hz": 1.7e9, "held_by": 0}

    def of(**slow: Any) -> Straggler | None:
        return straggler([[{**step, **(slow if r == 2 else {}), "step": n} for n in range(6)] for r in range(4)])

    assert of() is None and of(sm_clock_hz=1.65e9) is None
    late = of(data_s=0.3)
    assert late is not None and (late.rank, late.cause) == (2, CAUSES["data_s"]) and late.lost_s == pytest.approx(0.2)
    hot = of(sm_clock_hz=1.36e9, held_by=int(EventReason.SW_THERMAL | EventReason.SW_POWER_CAP))
    assert hot is not None and hot.rank == 2 and hot.share == pytest.approx(0.2)
    assert hot.cause == "its GPU runs at 1,360 MHz, the others' at 1,700 (too hot)"
    older = of(sm_clock_hz=1.36e9)
    assert older is not None and older.cause.endswith("at 1,700")
    assert of(sm_clock_hz=None) is None


def test_a_rank_tells_what_its_gpu_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the name that PyTorch has for it too; nothing is asked twice in a moment."""
    from gpuwise.machine.devices.null import NullCard, NullDevices
    from gpuwise.machine.telemetry import monitor
    from gpuwise.train.ranks import exchange

    cards = [NullCard("h100-sxm", script=lambda t: {"sm_clock_hz": 1.2e9, "event_reasons": 0x20, "energy_j": 100.0 * t})] * 2
    devices = NullDevices(cards)
    uuid = devices.identities()[1].uuid
    monkeypatch.setattr(monitor, "find_all", lambda: ([devices], {}))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=uuid))
    monkeypatch.setattr(exchange, "EVERY_S", 0.05)
    own = exchange.RankDevice(torch.device("cuda"))
    assert own.take() == {"energy_j": None, "sm_clock_hz": None, "held_by": None}
    time.sleep(0.1)
    told = own.take()
    assert told["sm_clock_hz"] == 1.2e9 and told["held_by"] == 0x20 and told["energy_j"] > 0


def test_who_is_silent() -> None:
    def place(rank: int, step: int, phase: str, at_s: float = 0.0) -> Place:
        return Place(rank, step, 0, phase, at_s)

    both = [place(0, 5, "backward"), place(1, 5, "data")]
    assert silent(both, 2, 10.0, 9.0) is None and silent(both[:1], 2, 10.0, 99.0) is None
    assert [p.rank for p in silent(both, 2, 10.0, 99.0) or ()] == [1]
    assert silent([place(0, 5, "exchange"), place(1, 5, "exchange")], 2, 10.0, 99.0) == []
    assert silent([place(0, 5, "backward", 95.0), place(1, 5, "data")], 2, 10.0, 99.0) is None


def test_a_hung_rank_is_named_with_its_line_and_ended(ranks: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    began = time.time()
    run = ranks("hung", 2)
    until = time.monotonic() + 600
    while time.monotonic() < until:
        at = {p.rank: (p.step, p.phase) for p in places(run.out, 2) if p.at_s >= began}
        if at.get(1) == (2, "forward") and at.get(0, (0, ""))[0] == 2 and at[0][1] in ("backward", "exchange"):
            break
        time.sleep(0.05)
    journals = tuple(RankJournal(Path(run.out) / f"rank-{r}.jsonl") for r in (0, 1))
    watch = HangWatch(run.out, 2, 0.5)
    watch._began_s = began
    while watch.hung is None and time.monotonic() < until:
        for journal in journals:
            journal.read()
        watch.look(journals)
        time.sleep(0.1)
    assert run.codes() == [-9, -9]
    assert watch.hung is not None and "rank 1 is silent in forward of step 2" in watch.hung and "tasks.py" in watch.hung
    assert watch.hung in capsys.readouterr().err


@pytest.mark.thorough
def test_a_stopped_rank_is_named_wherever_it_stands(ranks: Callable[..., Any]) -> None:
    """Within an exchange all ranks stand at the same point: it was said that the exchange itself stands."""
    began, until = time.time(), time.monotonic() + 300
    run = ranks("slow", 2, epochs=1000)
    while time.monotonic() < until and len([p for p in places(run.out, 2) if p.at_s >= began and p.step > 1]) < 2:
        time.sleep(0.05)
    journals = tuple(RankJournal(Path(run.out) / f"rank-{r}.jsonl") for r in (0, 1))
    for journal in journals:
        journal.read()
    watch = HangWatch(run.out, 2, 0.5)
    watch._began_s = began
    assert journals[1].pid is not None
    os.kill(journals[1].pid, signal.SIGSTOP)
    while watch.hung is None and time.monotonic() < until:
        watch.look(journals)
        time.sleep(0.1)
    assert run.codes() == [-9, -9]
    assert watch.hung is not None and "rank 1 was stopped by a signal" in watch.hung and "rank 0" not in watch.hung
