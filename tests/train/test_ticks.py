"""Steps made of ticks: any loop, one optimizer or several."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.train.ticks import Step, Tick, boundary, steady, steps_of, warm_up


def loop(pattern: list[int], turns: int, seconds: float = 1.0) -> list[Tick]:
    """Ticks of a loop that steps the optimizers of ``pattern`` in every turn."""
    times = itertools.count(1)
    return [Tick(at_s=next(times) * seconds, optimizer=o, data_s=n * 0.1, n_batches=n) for n in range(turns) for o in pattern]


def test_one_optimizer():
    steps = steps_of(loop([0], 5))
    assert [s.wall_s for s in steps] == pytest.approx([1.0] * 4)
    assert all(s.n_batches == 1 for s in steps)


def test_discriminator_and_generator_close_one_turn():
    ticks = loop([0, 1], 4)
    assert boundary(ticks) == 1
    assert [s.wall_s for s in steps_of(ticks)] == pytest.approx([2.0] * 3)


def test_the_optimizer_that_steps_least_often_closes_the_turn():
    ticks = loop([0, 0, 0, 0, 0, 1], 4)
    assert boundary(ticks) == 1
    assert [s.wall_s for s in steps_of(ticks)] == pytest.approx([6.0] * 3)


def test_nothing_before_an_optimizer_has_stepped_twice():
    assert boundary([]) is None
    assert steps_of(loop([0, 1, 2], 1)) == []


def test_an_optimizer_that_steps_once_does_not_close_turns():
    ticks = [Tick(at_s=0.5, optimizer=7), *loop([0], 6)]
    assert boundary(ticks) == 0
    assert len(steps_of(ticks)) == 5


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(2, 9))
def test_steps_add_up_to_the_time_between_their_ends(pattern, turns):
    ticks = loop(pattern, turns)
    closing = boundary(ticks)
    ends = [t.at_s for t in ticks if t.optimizer == closing]
    assert sum(s.wall_s for s in steps_of(ticks)) == pytest.approx(ends[-1] - ends[0])


def test_warm_up_ends_where_steps_become_like_the_later_ones():
    assert warm_up([9.0, 4.0, 1.0, 1.1, 1.0, 0.9, 1.0, 1.0]) == 2
    assert warm_up([1.0] * 10) == 0
    assert warm_up([5.0, 1.0]) == 0


def test_one_slow_step_later_is_no_warm_up():
    assert warm_up([1.0, 1.0, 1.0, 1.0, 1.0, 8.0, 1.0, 1.0]) == 0


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=60))
def test_at_least_half_the_steps_are_kept(walls):
    times = list(itertools.accumulate(walls, initial=1.0))
    steps = steps_of([Tick(at_s=t, optimizer=0) for t in times])
    assert len(steady(steps)) >= len(steps) / 2


def test_a_step_alone_has_its_phases_without_their_delays() -> None:
    step = Step(0.2, 0.0, 0.5, 0.2, 0.05, 0.0, 1, 1, 1, 1, 8, 0, 0.6, 0.04, 0.1, 0.4, 0.06, wall_s=1.0)
    alone = step.alone
    assert (alone.wall_s, alone.queue_s) == (pytest.approx(0.4), 0.0)
    assert [alone.data_s, alone.forward_s, alone.backward_s, alone.optimizer_s] == pytest.approx([0.1, 0.1, 0.14, 0.05])
    # what is known of the whole only is taken from all phases alike
    whole = replace(step, bare_queue_s=0.0, data_queue_s=0.0, forward_queue_s=0.0, backward_queue_s=0.0).alone
    assert [whole.data_s, whole.forward_s, whole.backward_s] == pytest.approx([0.08, 0.2, 0.08])
