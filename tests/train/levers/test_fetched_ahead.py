"""Libraries that fetch batches ahead of the step: rows are grouped by their own lengths, and training is the plain script's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from gpuwise.train.hook.launch import Outcome

SCRIPT = Path(__file__).parent / "fetched_ahead.py"


@pytest.fixture(scope="module", autouse=True)
def bert() -> None:
    """Seconds to import: not before a test runs."""
    pytest.importorskip("transformers.models.bert.modeling_bert")


@pytest.mark.parametrize("by", ["accelerate", "trainer"])
@pytest.mark.parametrize("lever", ["length_groups", "trim_padding"])
def test_losses_are_those_of_the_plain_script(run: Callable[..., Outcome], tmp_path: Path, by: str, lever: str) -> None:
    words = (by, "32", "96", "128", str(tmp_path / "out"))
    plain = run(SCRIPT, *words, losses=True, seed=1)
    changed = run(SCRIPT, *words, losses=True, seed=1, levers={lever: 4 if lever == "length_groups" else True})
    assert plain.ok and changed.ok, (plain.error, changed.error)
    expected, losses = plain.journal.losses, changed.journal.losses
    assert len(expected) == 8 and losses == pytest.approx(expected, rel=2e-4)
    if lever == "length_groups":
        assert [e["applied"] for e in changed.journal.of("lever")] == [True]
