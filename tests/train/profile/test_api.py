"""Profiling from inside a program: steps found, data timed, PyTorch left as it was."""

from __future__ import annotations

import time

import pytest

import gpuwise
from gpuwise.errors import GpuwiseError

torch = pytest.importorskip("torch")


LOADING_S = 0.05
"""Of each batch, at least."""


def _batches(n: int):
    """Batches that take four times as long as the step before them, however loaded the machine is."""
    step_s = 0.0
    for _ in range(n):
        time.sleep(max(LOADING_S, 4 * step_s))
        x = torch.randn(16, 32)
        start = time.perf_counter()
        yield x
        step_s = time.perf_counter() - start


def _train(batches):
    model = torch.nn.Linear(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = 0
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += 1
    return seen


def test_a_loop_with_its_own_loader() -> None:
    before = (torch.autograd.backward, torch.nn.Module.__call__, torch.save)
    with gpuwise.profile(steps=6) as p:
        assert _train(gpuwise.watch(_batches(12))) == 12
    assert (torch.autograd.backward, torch.nn.Module.__call__, torch.save) == before
    found = p.found
    assert found.verdict.kind == "data wait"
    assert found.split.parts["data wait"] > 0.9 * LOADING_S
    assert sum(found.split.parts.values()) == pytest.approx(found.split.wall_s)
    assert found.samples_per_s == pytest.approx(16 / found.split.wall_s)
    assert found.data.trace is not None


def test_too_few_steps_are_no_profile() -> None:
    with gpuwise.profile() as p:
        _train(_batches(1))
    with pytest.raises(GpuwiseError, match="fewer than two steps") as caught:
        _ = p.found
    assert caught.value.hint


def test_what_the_block_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), gpuwise.profile():
        _ = 1 / 0


def test_outside_of_a_profile_batches_pass_through() -> None:
    assert list(gpuwise.watch([1, 2, 3])) == [1, 2, 3]
    given = iter([4, 5])
    assert list(gpuwise.watch(given)) == [4, 5]


def test_a_loop_on_the_processor_of_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too short for a trace, which would tell: its tensors are on no GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with gpuwise.profile() as p:
        _train(_batches(4))
    assert p.found.split.device == "cpu" and p.found.device == "processor"
