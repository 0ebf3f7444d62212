"""The search for checkpoints against trying every selection."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.plan.checkpointing import solve as checkpoint_solve
from gpuwise.plan.checkpointing.solve import Choice, Position, feasible, needs, smallest_target, solve

_bytes = st.integers(0, 40)


def _tree(depth: int) -> st.SearchStrategy[tuple[Position | Choice, ...]]:
    position = st.builds(Position, _bytes)
    if depth == 0:
        return st.lists(position, min_size=1, max_size=2).map(tuple)
    choice = st.builds(Choice, st.just(""), _tree(depth - 1), _bytes, st.integers(-4, 20), st.integers(0, 9).map(float))
    return st.lists(position | choice, min_size=1, max_size=3).map(tuple)


def _named(items: tuple[Position | Choice, ...], prefix: str = "m") -> tuple[Position | Choice, ...]:
    return tuple(
        item
        if isinstance(item, Position)
        else Choice(f"{prefix}.{i}", _named(item.items, f"{prefix}.{i}"), item.need_bytes, item.saved_bytes, item.time_s)
        for i, item in enumerate(items)
    )


def _paths(items: tuple[Position | Choice, ...]) -> list[str]:
    return [p for i in items if isinstance(i, Choice) for p in (i.path, *_paths(i.items))]


def _every_selection(items: tuple[Position | Choice, ...]) -> list[tuple[str, ...]]:
    paths = _paths(items)
    found = []
    for n in range(len(paths) + 1):
        for chosen in combinations(paths, n):
            if not any(a.startswith(b + ".") for a in chosen for b in chosen):
                found.append(chosen)
    return found


@given(_tree(2).map(_named), st.integers(0, 60))
def test_the_search_finds_what_trying_everything_finds(items: tuple[Position | Choice, ...], target: int) -> None:
    ok = [needs(items, chosen)[1] for chosen in _every_selection(items) if needs(items, chosen)[0] <= target]
    found = solve(items, target)
    assert (found is None) == (not ok) == (not feasible(items, target))
    if found is not None:
        assert found.exact
        assert found.time_s == min(ok)
        assert needs(items, found.paths) == (needs(items, found.paths)[0], found.time_s)
        assert needs(items, found.paths)[0] <= target


@given(_tree(2).map(_named))
def test_the_smallest_target_is_the_least_of_all_selections(items: tuple[Position | Choice, ...]) -> None:
    assert smallest_target(items) == min(needs(items, chosen)[0] for chosen in _every_selection(items))


@given(_tree(2).map(_named), st.integers(0, 60), st.integers(0, 20))
def test_more_memory_never_costs_more_time(items: tuple[Position | Choice, ...], target: int, more: int) -> None:
    tight, loose = solve(items, target), solve(items, target + more)
    if tight is not None:
        assert loose is not None
        assert loose.time_s <= tight.time_s


def test_a_hundred_equal_blocks_keep_few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_solve, "LIMIT", 400)
    blocks = tuple(Choice(f"layers.{i}", (Position(10 * (i + 1)),), 10 * (i + 1), 9, 1.0) for i in range(100))
    found = solve(blocks, 300)
    assert found is not None
    assert found.exact
    assert len(found.paths) == 78


def test_a_thinned_search_says_so_and_still_keeps_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = tuple(Choice(f"layers.{i}", (Position(0),), 0, 3**i, float(2**i)) for i in range(9))
    items = (*blocks, Position(3**9))
    monkeypatch.setattr(checkpoint_solve, "LIMIT", 8)
    target = 3**9 - 5000
    found = solve(items, target)
    assert found is not None
    assert not found.exact
    assert needs(items, found.paths)[0] <= target
