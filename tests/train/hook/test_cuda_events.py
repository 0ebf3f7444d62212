"""A measured loop goes at the pace of its GPU; one that the GPU waits for goes on as it is."""

from __future__ import annotations

import itertools
import statistics
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuwise.train.hook.cuda_events import TURNS_AHEAD, DevicePace  # noqa: E402
from gpuwise.train.hook.journal import Writer, read_journal  # noqa: E402
from gpuwise.train.hook.script_run import ScriptRun, write_beginning  # noqa: E402
from gpuwise.train.hook.settings import Settings, Stop  # noqa: E402
from gpuwise.train.ticks import Tick  # noqa: E402


class Clock:
    """A host and a device with a queue; events of the device as torch has them."""

    def __init__(self) -> None:
        self.host_s = self.device_s = 0.0
        self.waits = 0

    def turn(self, host_s: float, device_s: float) -> None:
        self.host_s += host_s
        self.device_s = max(self.device_s, self.host_s) + device_s

    def event(self) -> Any:
        clock = self

        class Event:
            at_s = 0.0

            def record(self) -> None:
                self.at_s = clock.device_s

            def synchronize(self) -> None:
                clock.waits += clock.host_s < self.at_s
                clock.host_s = max(clock.host_s, self.at_s)

        return Event()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    return made


def _steps(clock: Clock, n: int, host_s: float, device_s: float, optimizers: int = 1) -> list[float]:
    """Host seconds of each turn."""
    pace, at_s = DevicePace(), [0.0]
    for _ in range(n):
        for optimizer in range(optimizers):
            clock.turn(host_s / optimizers, device_s / optimizers)
            pace.on_tick(Tick(at_s=clock.host_s, optimizer=optimizer))
        at_s.append(clock.host_s)
    return [b - a for a, b in itertools.pairwise(at_s)]


def test_a_host_that_runs_ahead_is_held_to_the_device(clock: Clock) -> None:
    steps = _steps(clock, 12, host_s=1e-3, device_s=10e-3)
    assert statistics.median(steps) == pytest.approx(10e-3)
    assert steps[TURNS_AHEAD + 1 :] == pytest.approx([10e-3] * (11 - TURNS_AHEAD))
    assert clock.device_s - clock.host_s <= TURNS_AHEAD * 10e-3 + 1e-9


def test_two_optimizers_make_one_turn(clock: Clock) -> None:
    steps = _steps(clock, 12, host_s=1e-3, device_s=10e-3, optimizers=2)
    assert statistics.median(steps) == pytest.approx(10e-3)
    assert clock.device_s - clock.host_s > 10e-3  # the device has a whole turn to do


def test_a_loop_that_its_device_waits_for_does_not_wait(clock: Clock) -> None:
    assert _steps(clock, 12, host_s=10e-3, device_s=1e-3) == pytest.approx([10e-3] * 12)
    assert clock.waits == 0


def test_nothing_is_marked_while_a_graph_is_captured(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    _steps(clock, 6, host_s=1e-3, device_s=10e-3)
    assert clock.waits == 0


@pytest.mark.parametrize(("stop", "held"), [(Stop(steps=4), True), (Stop(most_steps=4), True), (Stop(), False)])
def test_only_a_run_that_is_timed_is_held(clock: Clock, tmp_path: Path, stop: Stop, held: bool) -> None:
    settings = Settings("train.py", [], str(tmp_path / "journal.jsonl"), stop=stop, losses=False)
    run = ScriptRun(settings, Writer(tmp_path / "journal.jsonl"))
    run.prepare()
    try:
        for n in range(TURNS_AHEAD + 1):
            clock.turn(1e-3, 10e-3)
            # the second is described by asking the device
            run._n_ticks = 10 + n
            run._on_tick(Tick(at_s=clock.host_s, optimizer=0))
    finally:
        run.close()
    assert clock.waits == held


def test_the_driver_is_not_started_before_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A script that writes CUDA_VISIBLE_DEVICES in its first lines, or forks, does so before the driver starts."""

    def starts() -> int:
        raise AssertionError("cudaGetDeviceCount starts the driver")

    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", starts, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", lambda conf: None)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", lambda conf: None, raising=False)
    journal = Writer(tmp_path / "journal.jsonl")
    levers: dict[str, object] = {"allocator": "expandable_segments:True", "autocast": "bf16", "fused_optimizer": True}
    settings = Settings(
        "train.py", [], str(tmp_path / "journal.jsonl"), stop=Stop(steps=4), levers=levers, device_memory_bytes=40 << 30
    )
    later: list[Any] = []
    limits: dict[int, float] = {}
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call, **_: later.append(call))
    write_beginning(journal, settings)
    run = ScriptRun(settings, journal)
    run.prepare()
    run.close()
    journal.close()
    assert read_journal(tmp_path / "journal.jsonl").begin["cuda"] is True
    # what torch calls when the script starts the driver
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(total_memory=80 << 30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, index: limits.update({index: share}))
    for call in later:
        call()
    assert limits == {0: 0.5, 1: 0.5}
