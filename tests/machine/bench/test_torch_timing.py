"""Timing on a GPU that is played: a clock that only launches move, events and graphs that read it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from doubles import card

from gpuwise.machine.bench import torch_timing
from gpuwise.machine.bench.torch_timing import MOST_COPIES, copies_needed, sampler

torch = pytest.importorskip("torch")


class Played:
    """Seconds go by only when something runs on the device, or by a nanosecond when the host looks at the clock."""

    def __init__(self, refuse: Exception | None = None) -> None:
        self.now, self.refuse = 0.0, refuse
        self.capturing: list[Callable[[], None]] | None = None
        self.captured_on = ""
        self.launched: list[int] = []
        self.replays = 0

    def host_clock(self) -> float:
        self.now += 1e-9
        return self.now

    def kernel(self, seconds: float, on: str = "cuda:0") -> Callable[[int], None]:
        """A launch on device ``on``: kept by a graph when a stream of that device is captured, else run at once."""

        def launch(i: int) -> None:
            def work() -> None:
                self.now += seconds
                self.launched.append(i)

            if self.capturing is None or self.captured_on != str(torch.device(on)):
                work()
            else:
                self.capturing.append(work)

        return launch


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    def install(refuse: Exception | None = None) -> Played:
        device = Played(refuse)

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: object = None) -> None:
                self.at = device.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Any) -> float:
                return 1e3 * (end.at - self.at)

        class Stream:
            def __init__(self, device: object = "cuda:0") -> None:
                self.device = str(torch.device(device))

            def wait_stream(self, other: object) -> None:
                pass

        class Graph:
            works: list[Callable[[], None]]

            def replay(self) -> None:
                device.replays += 1
                for work in self.works:
                    work()

        @contextlib.contextmanager
        def capture(graph: Graph, stream: Stream | None = None, capture_error_mode: str = "global") -> Iterator[None]:
            if device.refuse is not None:
                raise device.refuse
            assert capture_error_mode == "thread_local", "another thread's allocation would end the capture"
            device.capturing = graph.works = []
            # PyTorch's own stream is made once, on the device that was captured on first
            device.captured_on = "cuda:0" if stream is None else stream.device
            yield
            device.capturing = None

        for name, fake in {
            "Event": Event,
            "Stream": Stream,
            "CUDAGraph": Graph,
            "graph": capture,
            "synchronize": lambda *_: None,
            "set_device": lambda *_: None,
            "current_stream": Stream,
            "stream": lambda s: contextlib.nullcontext(),
        }.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch_timing.time, "perf_counter", device.host_clock)
        monkeypatch.setattr(torch_timing, "_BUSY_UNTIL", {})
        return device

    return install


@pytest.mark.parametrize("seconds", [3e-6, 1e-4, 2e-2])
def test_a_sample_is_the_seconds_of_one_launch(played: Any, seconds: float) -> None:
    device = played()
    sample, how = sampler(card(), device.kernel(seconds), 3)
    assert sample() == pytest.approx(seconds)
    assert how["timed by"] == "CUDA graph"
    assert device.replays > 0


def test_a_graph_of_the_second_device_holds_its_launches(played: Any) -> None:
    device = played()
    for index in (0, 1):
        sample, how = sampler(card(index), device.kernel(1e-4, f"cuda:{index}"))
        assert sample() == pytest.approx(1e-4)
        assert how["timed by"] == "CUDA graph"


def test_operands_go_round(played: Any) -> None:
    device = played()
    sample, how = sampler(card(), device.kernel(1e-4), 5)
    device.launched.clear()
    sample()
    assert how["operand sets"] == 5
    assert set(device.launched) == set(range(5))
    assert all(a != b for a, b in zip(device.launched, device.launched[1:], strict=False))


def test_what_cannot_be_captured_is_launched_back_to_back_and_says_so(played: Any) -> None:
    device = played(RuntimeError("operation not permitted when stream is capturing"))
    sample, how = sampler(card(), device.kernel(1e-4))
    assert sample() == pytest.approx(1e-4)
    assert how["timed by"] == "launches back to back"
    assert device.replays == 0


def test_running_out_of_memory_is_not_taken_for_a_refusal(played: Any) -> None:
    device = played(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        sampler(card(), device.kernel(1e-4))


def test_a_device_that_is_still_warm_is_not_warmed_again(played: Any) -> None:
    device = played()
    launch = device.kernel(1e-4)
    first, _ = sampler(card(), launch)
    cold = len(device.launched)
    first()
    device.launched.clear()
    sampler(card(), launch)
    assert len(device.launched) < cold / 3
    device.now += 10.0
    device.launched.clear()
    sampler(card(), launch)
    assert len(device.launched) > cold / 2


def test_operands_outgrow_the_cache_and_no_more() -> None:
    subject = card(l2_bytes=50 * 2**20)
    assert copies_needed(subject, 1e9) == 1
    assert copies_needed(subject, 25 * 2**20) == 6
    assert copies_needed(subject, 1000.0) == MOST_COPIES
