"""The collector during a capture: old objects are left out, garbage of before is gone, and it all goes back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpuwise.workload.capture import heap
from gpuwise.workload.capture.heap import frozen_heap


@pytest.fixture(autouse=True)
def _thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tests' own process has frozen its imports."""
    monkeypatch.setattr(heap, "frozen_by_program", None)
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if frozen:
        gc.freeze()


class Ring:
    def __init__(self) -> None:
        self.own = self


def test_garbage_of_before_is_gone_and_the_rest_is_given_back() -> None:
    before = weakref.ref(Ring())
    with frozen_heap():
        assert before() is None
        outer = gc.get_freeze_count()
        assert outer > 0
        with frozen_heap():
            assert gc.get_freeze_count() > outer // 2
        # not all of them: what another thread lets go of meanwhile leaves the frozen too
        assert gc.get_freeze_count() > outer // 2, "the inner one gives nothing back"
        inside = weakref.ref(Ring())
        gc.collect()
        assert inside() is None, "what is made inside is still collected"
    assert gc.get_freeze_count() == 0


def test_what_the_program_froze_stays_frozen() -> None:
    gc.freeze()
    with frozen_heap():
        pass
    assert gc.get_freeze_count() > 0
