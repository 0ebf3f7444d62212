"""For any AI workload and any accelerator: does it fit, how fast is it, what does it cost, and what should change.

>>> import gpuwise
>>> plan = gpuwise.make_plan("llama-3.1-8b", "8xH100-SXM", gpuwise.Wishes(tokens=15e9))
>>> best = plan.best
>>> best.estimate.fits
True
>>> f"{best.time_s.low:.0f} to {best.time_s.high:.0f} s, ${best.cost_usd.expected:,.0f}"  # doctest: +ELLIPSIS
'... to ... s, $2,...'

Names are imported on first use, so that ``import gpuwise`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from gpuwise.facts.hardware.scheduled import read_with
from gpuwise.facts.hardware.this import find_with
from gpuwise.packages import call_with
from gpuwise.shown import draw_with
from gpuwise.version import VERSION

if TYPE_CHECKING:
    from gpuwise.calibrate.validation import validate
    from gpuwise.cli.called import Asked, ask, capacity, compare, cost, fit, pick, plan
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.facts.hardware.cpus import Cpu
    from gpuwise.facts.hardware.naming import find_accelerator, find_cluster
    from gpuwise.facts.hardware.systems import Cluster
    from gpuwise.facts.models.architecture import Architecture
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.plan.answer import Fit, Plan, StepFit, StepPlan
    from gpuwise.plan.api import make_fit, make_plan
    from gpuwise.plan.goal import Wishes
    from gpuwise.plan.own.fit import fit_step
    from gpuwise.plan.own.plan import plan_step
    from gpuwise.predict.estimate import Estimate
    from gpuwise.predict.step.training import TrainingEstimate, estimate
    from gpuwise.serve.capacity.api import make_capacity
    from gpuwise.train.api import profile, watch
    from gpuwise.workload.capture.api import capture
    from gpuwise.workload.strategy import Strategy

__version__ = VERSION
__all__ = [
    "Accelerator",
    "Architecture",
    "Asked",
    "Cluster",
    "Estimate",
    "Fit",
    "Plan",
    "StepFit",
    "StepPlan",
    "Strategy",
    "TrainingEstimate",
    "Wishes",
    "__version__",
    "ask",
    "capacity",
    "capture",
    "compare",
    "cost",
    "estimate",
    "find_accelerator",
    "find_cluster",
    "find_model",
    "fit",
    "fit_step",
    "make_capacity",
    "make_fit",
    "make_plan",
    "pick",
    "plan",
    "plan_step",
    "profile",
    "validate",
    "watch",
]

_HOME = {
    "Accelerator": "gpuwise.facts.hardware.accelerators",
    "Architecture": "gpuwise.facts.models.architecture",
    "Asked": "gpuwise.cli.called",
    "Cluster": "gpuwise.facts.hardware.systems",
    "Estimate": "gpuwise.predict.estimate",
    "Fit": "gpuwise.plan.answer",
    "Plan": "gpuwise.plan.answer",
    "StepFit": "gpuwise.plan.answer",
    "StepPlan": "gpuwise.plan.answer",
    "Strategy": "gpuwise.workload.strategy",
    "TrainingEstimate": "gpuwise.predict.step.training",
    "Wishes": "gpuwise.plan.goal",
    "ask": "gpuwise.cli.called",
    "capacity": "gpuwise.cli.called",
    "capture": "gpuwise.workload.capture.api",
    "compare": "gpuwise.cli.called",
    "cost": "gpuwise.cli.called",
    "estimate": "gpuwise.predict.step.training",
    "find_accelerator": "gpuwise.facts.hardware.naming",
    "find_cluster": "gpuwise.facts.hardware.naming",
    "find_model": "gpuwise.facts.models.catalogue",
    "fit": "gpuwise.cli.called",
    "fit_step": "gpuwise.plan.own.fit",
    "make_capacity": "gpuwise.serve.capacity.api",
    "make_fit": "gpuwise.plan.api",
    "make_plan": "gpuwise.plan.api",
    "plan_step": "gpuwise.plan.own.plan",
    "profile": "gpuwise.train.api",
    "validate": "gpuwise.calibrate.validation",
    "watch": "gpuwise.train.api",
}
"""Module of each public name."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in ("lab", "pick", "plan"):
        return import_module(f"gpuwise.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gpuwise' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    if callable(value) and not isinstance(value, type):
        from gpuwise.arguments import checked

        value = checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _markup(answer: object) -> str:
    from gpuwise.report.answers.notebook import Shown, markup

    return markup(cast("Shown", answer))


def _gpus_here(count: int | None, index: int | None) -> Cluster:
    from gpuwise.machine.this import gpus_here

    return gpus_here(count, index)


def _processor_here() -> Cpu:
    from gpuwise.machine.this import processor_measured

    return processor_measured()


def _scheduled(text: str) -> Cluster:
    from gpuwise.machine.schedulers import scheduled_cluster

    return scheduled_cluster(text)


def _words(answer: object) -> str:
    from gpuwise.cli.answer import text
    from gpuwise.report.answers.notebook import Answered, answer_of

    return text(answer_of(cast("Answered", answer)))


def _called(command: str, *values: Any, **options: Any) -> Asked:
    from gpuwise.cli import called

    return getattr(called, command)(*values, **options)


call_with(_called)
draw_with(_markup, _words)
find_with(_gpus_here, _processor_here)
read_with(_scheduled)
