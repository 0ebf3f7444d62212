import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.predict.parallel.pipeline import copies, hiding_passes, in_flight, pipeline_time
from gpuwise.workload.strategy import SCHEDULES

GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, DUALPIPE, DUALPIPE_V = (np.array([SCHEDULES.index(s)]) for s in SCHEDULES)


def total(schedule: np.ndarray, m: int, p: int, v: int = 1, stage: float = 3.0) -> float:
    a = lambda x: np.array([x])  # noqa: E731
    return pipeline_time(a(stage), a((p - 1) * stage), a(2.0 * stage / 3), a(1.0), a(m), a(p), a(v), schedule)[0].item()


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
    assert total(DUALPIPE, m, 2 * p) <= total(ONE_F_ONE_B, m, 2 * p)
    assert total(DUALPIPE_V, m, p) <= base
    assert base >= m * 3.0


@given(m=st.integers(1, 64), p=st.integers(1, 16))
def test_1f1b_holds_at_most_p_and_gpipe_all(m: int, p: int) -> None:
    a = lambda x: np.array([x])  # noqa: E731
    first = in_flight(a(0), a(m), a(p), a(1), ONE_F_ONE_B).item()
    last = in_flight(a(p - 1), a(m), a(p), a(1), ONE_F_ONE_B).item()
    assert first == min(p, m) and last == 1
    assert in_flight(a(0), a(m), a(p), a(1), GPIPE).item() == m
    assert in_flight(a(0), a(m), a(p), a(2), INTERLEAVED).item() >= first or m < p


def test_dualpipe_is_the_papers_table() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, table 2) with F = 1, B = 2, W = 1: 1F1B (p - 1)(F + B), ZB1P (p - 1)(F + B - 2W), DualPipe
    (p/2 - 1)(F&B + B - 3W); activations p, p and p + 1, parameters once, once and twice."""
    p, m = 16, 120
    bubbles = {i: total(s, m, p) - m * 3.0 for i, s in enumerate((ONE_F_ONE_B, ZERO_BUBBLE, DUALPIPE))}
    assert bubbles == {0: 45.0, 1: 15.0, 2: 14.0}
    a = lambda x: np.array([x])  # noqa: E731
    held = [in_flight(a(0), a(m), a(p), a(1), s).item() for s in (ONE_F_ONE_B, ZERO_BUBBLE, DUALPIPE)]
    assert held == [16, 16, 17]
    assert [copies(s, a(p)).item() for s in (ONE_F_ONE_B, ZERO_BUBBLE, DUALPIPE, DUALPIPE_V)] == [1, 1, 2, 1]
    # folded over half the ranks it is the same schedule without the copy: p ranks of 2p half stages
    half = pipeline_time(a(6.0), a(15 * 6.0), a(4.0), a(2.0), a(m), a(p // 2), a(1), DUALPIPE_V)[1].item()
    assert half == 14.0


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 8))
def test_more_chunks_hide_more_of_the_reduction_and_one_chunk_a_micro_batch(m: int, p: int, v: int) -> None:
    """Behind all but the first of ``v`` reductions stand the micro-batches of the chunks that are left."""

    def a(x: int) -> np.ndarray:
        return np.array([x])

    interleaved = hiding_passes(a(m), a(p), a(v), INTERLEAVED).item()
    assert 1.0 <= interleaved <= hiding_passes(a(m), a(p), a(v + 1), INTERLEAVED).item() <= 1.0 + min(m, p)
    assert v > 1 or interleaved == 1.0
    assert hiding_passes(a(m), a(p), a(v), ONE_F_ONE_B).item() == 1.0


def test_bubbles_by_hand() -> None:
    """Four stages of 3 s (a forward of 1, a backward of 2 with 1 of weight gradients): (p - 1)(F + B), over v chunks where they
    are interleaved (arXiv 2104.04473, section 2.2), less 2 (p - 1) W (ZB-H1, arXiv 2401.10241)."""

    def bubble(schedule: str, virtual: int = 1) -> float:
        codes = [np.array([x]) for x in (8, 4, virtual, SCHEDULES.index(schedule))]
        total, found = pipeline_time(*(np.array([x]) for x in (3.0, 9.0, 2.0, 1.0)), *codes)
        assert total[0] == pytest.approx(8 * 3.0 + found[0])
        return float(found[0])

    assert bubble("1f1b") == bubble("gpipe") == bubble("1f1b", 2) == 9.0
    assert bubble("interleaved") == 9.0 and bubble("interleaved", 2) == 4.5 and bubble("interleaved", 3) == 3.0
    assert bubble("zero-bubble") == 3.0
