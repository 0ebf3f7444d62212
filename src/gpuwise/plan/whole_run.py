"""The whole run of a plan: with its stops, checkpoints, evaluation and idle hours (:mod:`gpuwise.money.run.goodput`).

``plan``, ``cost``, ``pick`` and ``compare`` take their hours from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.offers.storage import storage_price
from gpuwise.facts.operations import site_of_provider
from gpuwise.money.cost import Price
from gpuwise.money.run.checkpointing import checkpoint_bytes
from gpuwise.money.run.goodput import Run, operate
from gpuwise.plan.answer import Option
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.workload.transformer.parameters import adapter_parameters, count_parameters

if TYPE_CHECKING:
    from gpuwise.plan.step.estimates import StepEstimate
    from gpuwise.workload.capture.captured import Capture

SMALL_VOCABULARY = 2**16
"""Token numbers up to this are stored in two bytes, larger ones in four."""


def run_of(
    arch: Architecture,
    cluster: Cluster,
    estimate: TrainingEstimate,
    tokens: float,
    price: Price | None = None,
    provider: str | None = None,
) -> Run:
    """The run of ``tokens`` with its checkpoints and data, at usual prices of storage. Adapters are saved alone."""
    s = estimate.strategy
    n = float(adapter_parameters(arch, s.lora_targets, s.lora_rank) if s.lora_rank else count_parameters(arch).total)
    return Run(
        time_s=estimate.seconds_for(tokens),
        cluster=cluster,
        price=price,
        state_bytes=checkpoint_bytes(n, n, s),
        weight_bytes=2.0 * n,
        data_bytes=tokens * (2.0 if arch.vocab <= SMALL_VOCABULARY else 4.0),
        storage=storage_price(provider),
        site=None if provider is None else site_of_provider(provider),
    )


def run_of_step(capture: Capture, option: Option[StepEstimate]) -> Run:
    """The run of the user's own code: its weights and two states per trained weight are saved in 4 bytes; reading data is
    unknown and not counted."""
    return Run(
        time_s=option.time_s,
        cluster=option.cluster,
        price=option.price,
        state_bytes=4.0 * capture.parameter_count + 8.0 * capture.trainable_count,
        weight_bytes=4.0 * capture.parameter_count,
        data_bytes=0.0,
        storage=storage_price(None),
    )


def whole_time(arch: Architecture, cluster: Cluster, estimate: TrainingEstimate, tokens: float) -> Estimate:
    """Seconds to train on ``tokens``, with what is lost on the way; without it where the run would not end."""
    try:
        return operate(run_of(arch, cluster, estimate, tokens)).wall_s
    except UnpredictableError:
        return estimate.seconds_for(tokens)
