"""Levers on memory at the parity gate: a small language model trains the same in parts and with blocks that recompute."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.train.hook.launch import Limits
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.tune.gate import Gate
from gpuwise.train.tune.trial import TrialJob

HERE = Path(__file__).parents[1]
LIMITS = Limits(wall_s=900)


@pytest.fixture(scope="module")
def gate(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(TrialJob(str(HERE / "tiny_text.py"), ("32",), limits=LIMITS), tmp_path_factory.mktemp("gate"), zygote, steps=3)


@pytest.mark.parametrize(
    "levers", [{"checkpointing": "blocks"}, {"micro_batches": 3}, {"micro_batches": 2, "length_groups": 4}], ids=str
)
def test_a_language_model_trains_the_same(gate: Gate, levers: dict[str, object]) -> None:
    verdict = gate.check(levers)
    assert verdict.passed, verdict.words
    assert verdict.changes == ("order" if "length_groups" in levers else "exact")  # groups change what dropout draws
    assert verdict.places > 20


@pytest.mark.parametrize("wrong", [False, True])
def test_trap_6_parts_that_count_the_same_are_refused(zygote: Zygote, tmp_path: Path, wrong: bool) -> None:
    job = TrialJob(str(HERE / "own_loss.py"), ("wrong",) if wrong else (), limits=LIMITS)
    verdict = Gate(job, tmp_path, zygote, steps=3).check({"micro_batches": 3})
    assert verdict.passed is not wrong, verdict.words
    assert not wrong or "beyond" in verdict.words


def test_a_comparison_on_smaller_batches(zygote: Zygote, tmp_path: Path) -> None:
    """As it is made where the script's own batch does not fit: both sides have the smaller one."""
    job = TrialJob(str(HERE / "own_loss.py"), limits=LIMITS)
    verdict = Gate(job, tmp_path, zygote, steps=3, base={"batch": 4}).check({"micro_batches": 2})
    assert verdict.passed, verdict.words
