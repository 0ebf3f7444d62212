"""Training of a network by name (images, video, sound, detection): its step on each accelerator, as ``plan`` has it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.money.energy import Energy, energy
from gpuwise.plan.own.fit import is_known
from gpuwise.plan.own.named import ENOUGH, NamedStep, OnCards
from gpuwise.plan.own.plan import REFERENCE_CARD
from gpuwise.plan.step.estimates import StepEstimate
from gpuwise.plan.step.scaling import scaled
from gpuwise.predict.estimate import Estimate


@lru_cache(16)
def _cards(step: NamedStep) -> OnCards:
    return OnCards(step)


def at_bits(step: NamedStep, bits: int) -> NamedStep:
    """The step with its frozen weights as they are (16 bits) or in 4."""
    return replace(step, quantized=True) if bits == 4 else step


@lru_cache(64)
def sample_flop(step: NamedStep) -> float:
    """FLOP of one sample, forward and backward, nothing computed twice where the table has it so."""
    plain = replace(step, recompute=False)
    plain = plain if plain.variant in step.variants else replace(step, recompute=True)
    return plain.captured(find_accelerator(REFERENCE_CARD), step.batch)[0].flop() / step.batch


@lru_cache(64)
def least_bytes(step: NamedStep) -> float:
    """Bytes of the tensors alone at the peak of the step, recomputed where it may be: no accelerator holds it in less."""
    light = replace(step, recompute=True)
    light = light if step.recompute is not False and light.variant in step.variants else replace(step, recompute=False)
    return float(light.captured(find_accelerator(REFERENCE_CARD), step.batch)[0].peak_bytes())


@lru_cache(4096)
def step_on(step: NamedStep, accelerator: Accelerator) -> StepEstimate:
    """The step on one accelerator, with recomputation where it needs it. Raises UnpredictableError for what captures do not
    know."""
    if not is_known(accelerator):
        raise UnpredictableError(f"steps of networks by name are known on NVIDIA's GPUs, not on {accelerator.name}")
    cards = _cards(step)
    return cards.measured(cards.settled(accelerator), accelerator)


def is_held(estimate: StepEstimate) -> bool:
    """Whether the step fits with the probability from which on no more memory is saved."""
    return estimate.fits and estimate.fit_probability >= ENOUGH


def step_time_s(step: NamedStep, cluster: Cluster) -> Estimate:
    """Seconds of a step in which each accelerator of ``cluster`` has its own batch. Raises UnpredictableError."""
    estimate = step_on(step, cluster.accelerator)
    one = estimate.step_time_s
    if one is None:
        raise UnpredictableError(estimate.no_time)
    return scaled(cluster, estimate.memory.capture, estimate, one, step.batch, cluster.n_accelerators).step_time_s


def energy_on(step: NamedStep, cluster: Cluster, time_s: Estimate) -> Energy | None:
    """Energy of ``time_s`` of steps, at the power of the step's own kernels."""
    time = step_on(step, cluster.accelerator).time
    return energy(time_s, cluster, accelerator_w=None if time is None else time.power_w)
