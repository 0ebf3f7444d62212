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
