"""What the watch does a step is a fixed, small number of calls, whatever the model: its cost cannot grow with it."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")


def _calls_of_ours(layers: int, steps: int) -> float:
    """Python calls into the hook a step, after the first steps in which modules are looked for."""
    from gpuwise.train.hook import watch

    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(4, 8)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        if event == "call" and frame.f_code.co_filename == watch.__file__:
            counted += 1

    with watch.Watch():
        for _ in range(4):
            step()
        sys.setprofile(count)
        try:
            for _ in range(steps):
                step()
        finally:
            sys.setprofile(None)
    return counted / steps


@pytest.mark.parametrize(("crowded", "most"), [(False, 40), (True, 60)], ids=["idle", "delays are read"])
def test_calls_a_step_do_not_grow_with_the_model(crowded: bool, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuwise.train.hook import watch

    monkeypatch.setattr(watch, "CROWDED", -1.0 if crowded else 2.0)
    small, large = _calls_of_ours(2, 10), _calls_of_ours(40, 10)
    assert small == large
    assert large <= most


@pytest.mark.parametrize("waits", [0.0, 0.5], ids=["alone", "another program had the processor"])
def test_a_noted_call_has_none_of_other_programs_time(waits: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads what is printed wakes at once and takes the processor."""
    from gpuwise.train.hook import syncs

    class Queue:
        reads = 0

        def waited_s(self) -> float:
            Queue.reads += 1
            return waits * (Queue.reads // 2 + 1)

        def close(self) -> None: ...

    monkeypatch.setattr(syncs, "RunQueue", Queue)
    clock = iter(range(100))
    monkeypatch.setattr(syncs.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(syncs, "script_line", lambda: "train.py:1")
    told: list[dict[str, object]] = []
    recorder = syncs.SyncRecorder(tell=lambda kind, **more: told.append(more))
    recorder.open()
    print("loss")
    recorder.close()
    (call,) = told[0]["calls"]
    assert call["what"] == "print" and call["seconds"] == pytest.approx(1.0 - waits)
