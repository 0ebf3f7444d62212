import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.predict.parallel.pipeline import in_flight, pipeline_time
from gpuwise.workload.strategy import SCHEDULES

GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = (np.array([SCHEDULES.index(s)]) for s in SCHEDULES)


def total(schedule: np.ndarray, m: int, p: int, v: int = 1, stage: float = 3.0) -> float:
    a = lambda x: np.array([x])  # noqa: E731
    return pipeline_time(a(stage), a((p - 1) * stage), a(1.0), a(m), a(p), a(v), schedule)[0].item()


def simulate_1f1b(m: int, p: int, forward: float = 1.0, backward: float = 2.0) -> float:
    """Event by event: each stage runs its own 1F1B order, a pass waits for its neighbour's."""
    order = []
    for stage in range(p):
        warm = min(p - stage - 1, m)
        seq = [("f", i) for i in range(warm)]
        for i in range(m - warm):
            seq += [("f", warm + i), ("b", i)]
        order.append(seq + [("b", i) for i in range(m - warm, m)])
    done: dict[tuple[str, int, int], float] = {}
    clock, at = [0.0] * p, [0] * p
    while any(at[s] < len(order[s]) for s in range(p)):
        for s in range(p):
            if at[s] == len(order[s]):
                continue
            kind, i = order[s][at[s]]
            needs = ("f", i, s - 1) if kind == "f" else ("b", i, s + 1)
            at_the_end = 0.0 if kind == "f" else done.get(("f", i, s), -1.0)
            ready = done.get(needs, -1.0) if 0 <= needs[2] < p else at_the_end
            if ready < 0:
                continue
            clock[s] = max(clock[s], ready) + (forward if kind == "f" else backward)
            done[kind, i, s] = clock[s]
            at[s] += 1
    return max(clock)


@given(m=st.integers(1, 12), p=st.integers(1, 6))
def test_1f1b_equals_an_event_simulation(m: int, p: int) -> None:
    assert total(ONE_F_ONE_B, m, p) == simulate_1f1b(m, p)


@given(m=st.integers(1, 64), p=st.integers(1, 16), v=st.integers(2, 6))
def test_better_schedules_are_never_slower(m: int, p: int, v: int) -> None:
    base = total(ONE_F_ONE_B, m, p)
    assert total(INTERLEAVED, m, p, v) <= base
    assert total(ZERO_BUBBLE, m, p) <= base
    assert total(GPIPE, m, p) == base
    assert base >= m * 3.0


@given(m=st.integers(1, 64), p=st.integers(1, 16))
def test_1f1b_holds_at_most_p_and_gpipe_all(m: int, p: int) -> None:
    a = lambda x: np.array([x])  # noqa: E731
    first = in_flight(a(0), a(m), a(p), a(1), ONE_F_ONE_B).item()
    last = in_flight(a(p - 1), a(m), a(p), a(1), ONE_F_ONE_B).item()
    assert first == min(p, m) and last == 1
    assert in_flight(a(0), a(m), a(p), a(1), GPIPE).item() == m
    assert in_flight(a(0), a(m), a(p), a(2), INTERLEAVED).item() >= first or m < p
