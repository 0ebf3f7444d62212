"""What a plan promises: the level that a team can expect.

Strategies are searched and ranked by their tuned times; what is reported of them is the level of published runs
(:mod:`gpuwise.predict.practice`). What a whole run takes is in :mod:`gpuwise.plan.whole_run`.
"""

from __future__ import annotations

from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.plan.answer import Option
from gpuwise.predict.practice import RULE_MFU, practice_of
from gpuwise.predict.step.training import TrainingEstimate


def promised(arch: Architecture, cluster: Cluster, tuned: TrainingEstimate) -> TrainingEstimate:
    """``tuned`` at the level that a team can expect."""
    return practice_of(arch, tuned.strategy, cluster).of(tuned)


def rule_s(option: Option[TrainingEstimate]) -> float:
    """Seconds of the training at 40 % model FLOP utilisation, the rule of thumb; nothing lost on the way."""
    e, run = option.estimate, option.run
    assert run is not None
    return run.time_s.expected * e.mfu.expected / RULE_MFU
