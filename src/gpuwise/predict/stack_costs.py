"""What a software stack costs beside its kernels: launches, gaps, framework work, what it hides and what it does not.

Fitted per stack from published training runs by ``studies.llm_training`` and stored in ``coefficients/stacks.json``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cache

from gpuwise.errors import DataError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.links import is_staged
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.workload.blocks.point import QUANTIZED
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import STACKS, Strategy


@dataclass(frozen=True, slots=True)
class StackCosts:
    """Slowdowns multiply kernel seconds (1.0: as measured alone); overlaps are the share of a transfer hidden when there
    is enough work to hide it behind; times are per event.

    ``log_sigma`` is the spread of log(measured / predicted) of a model that took no part in the fit, beyond what its kernels'
    spread explains (``studies.llm_training.widths``), ``log_sigma_many`` that of the runs on several systems.
    """

    launch_s: float
    """Host time to issue one kernel; a layer cannot be faster than its launches."""
    kernel_gap_s: float
    """Device idle between dependent kernels."""
    layer_overhead_s: float
    """Host time per layer and pass that is no launch (hooks, module dispatch, parameter un- and resharding)."""
    sync_s: float
    """Wait of a collective's ranks for one another, per doubling of the group."""
    micro_batch_overhead_s: float
    step_overhead_s: float
    """Host seconds per step (data, norms, logging), independent of the number of systems."""
    matmul_slowdown: float
    quantized_matmul_slowdown: float
    """Slowdown of 8- and 4-bit products relative to serving kernels that cast their input themselves."""
    row_scales_slowdown: float
    """Further factor on 8-bit products with a scale per row."""
    attention_slowdown: float
    memory_slowdown: float
    communication_slowdown: float
    """Slowdown of tensor, context and expert collectives."""
    network_slowdown: float
    """Slowdown of data-parallel and pipeline traffic."""
    tp_overlap: float
    cp_overlap: float
    ep_overlap: float
    pp_overlap: float
    dp_overlap: float
    contention: float
    """Share of the hidden communication time by which it slows the compute it hides behind (shared SMs and memory)."""
    straggler: float
    """Extra share of the step per doubling of the number of systems, while they are few (``times.stragglers``)."""
    gain_per_year: float
    """Share by which a later release shortens the passes, per year between ``first_release`` and ``last_release``, while
    the accelerator is new: kernels for it improve until ``MATURE_YEARS`` after its year."""
    first_release: float
    last_release: float
    graph_launches: float
    """Share of the launches, and of what the device idles between kernels, that a partial CUDA graph leaves."""
    log_sigma: float
    log_sigma_many: float
    stall_s: float = 0.0
    """Device idle time per layer and pass that no queued work covers: the host waits for the device, then issues again
    (counting tokens to remove padding, the limiter of FSDP's gathers, random states saved for recompute)."""
    sharded_update_s: float = 0.0
    """Host time a step for each layer of a rank whose states are sharded: norms, clipping and the update of tensors that are
    shards (DTensor), for which the device waits."""
    basis: Basis = "fitted"

    def _without_host(self) -> StackCosts:
        """These costs where the host issues nothing and waits for nothing."""
        return replace(
            self,
            launch_s=0.0,
            kernel_gap_s=0.0,
            layer_overhead_s=0.0,
            stall_s=0.0,
            sharded_update_s=0.0,
            micro_batch_overhead_s=0.0,
            step_overhead_s=0.0,
        )

    def as_timed(self) -> StackCosts:
        """These costs for kernels and a host that are timed operation by operation: only transfers keep their factors."""
        return replace(self._without_host(), matmul_slowdown=1.0, attention_slowdown=1.0, memory_slowdown=1.0)

    def of_one_program(self, slowdown: float, attention: float) -> StackCosts:
        """These costs for a step that is one compiled program: the host issues nothing, and no host is waited for. ``slowdown``
        is that of its kernels, ``attention`` a further one of attention's."""
        return replace(
            self._without_host(),
            straggler=0.0,
            matmul_slowdown=slowdown,
            attention_slowdown=attention * slowdown,
            memory_slowdown=slowdown,
        )

    def spread(self, n_systems: float) -> float:
        """Standard deviation of log(measured / predicted) of a run on this many systems."""
        return self.log_sigma_many if n_systems > 1 else self.log_sigma

    def on(self, system: System, strategy: Strategy, ranks: int) -> StackCosts:
        """:meth:`under` with what the links of ``ranks`` hide. Tensor-parallel transfers hide behind products where the GPUs are
        linked: Transformer Engine's userbuffers need NVLink between them. Those through the host's memory hide little."""
        costs = self.under(strategy, system.accelerator)
        staged = ranks > 1 and is_staged(system.topology, system.accelerator.name)
        return replace(
            costs,
            tp_overlap=costs.tp_overlap if system.linked else 0.0,
            contention=max(costs.contention, STAGED_CONTENTION) if staged else costs.contention,
        )

    def under(self, strategy: Strategy, accelerator: Accelerator) -> StackCosts:
        """These costs for the strategy's release and precision, with the overlaps it switches off."""
        release = self.last_release if strategy.release is None else strategy.release
        mature = accelerator.year + MATURE_YEARS
        years = min(self.last_release, mature) - min(max(release, self.first_release), mature)
        older = math.exp(self.gain_per_year * max(years, 0.0))
        matmul = self.quantized_matmul_slowdown if strategy.precision in QUANTIZED else self.matmul_slowdown
        matmul = matmul * self.row_scales_slowdown if strategy.row_scales else matmul
        matmul = matmul * _matmul_slowdowns().get(accelerator.id, 1.0)
        launches = {"none": 1.0, "partial": self.graph_launches, "full": 0.0}[strategy.cuda_graphs]
        host = 0.0 if strategy.cuda_graphs == "full" else 1.0  # one replay does what the host did in a step
        return replace(
            self,
            step_overhead_s=self.step_overhead_s * host,
            stall_s=self.stall_s * host,
            launch_s=self.launch_s * launches,
            kernel_gap_s=self.kernel_gap_s * launches,
            layer_overhead_s=self.layer_overhead_s * launches,
            ep_overlap=self.ep_overlap if strategy.overlap_ep else 0.0,
            tp_overlap=self.tp_overlap if strategy.overlap_tp else 0.0,
            dp_overlap=self.dp_overlap if strategy.overlap_dp else 0.0,
            matmul_slowdown=matmul * older,
            attention_slowdown=self.attention_slowdown * older,
            memory_slowdown=self.memory_slowdown * older,
            communication_slowdown=self.communication_slowdown * older,
        )


STAGED_CONTENTION = 0.69
"""``contention`` of transfers between GPUs that reach each other through the host's memory alone, the mean of two machines (LoRA
of Llama 2 7B, sequences of 2,048 tokens, AnswerDotAI/fsdp_qlora benchmarks_03_2024.md). Two RTX 3090: 0.78, from 6.04, 10.67 and
14.05 s a step with 1, 4 and 6 sequences under FSDP (4.75 s of gathers) and 1.72 s a sequence under DDP. Two RTX 4090: 0.59, from
5.64 s with 6 sequences and 9.41 s with 10 and the weights in host memory, and 0.853 s a sequence under DDP."""
MATURE_YEARS = 2.5
"""H100 (2022) rows of NeMo 24.11 to Megatron-Bridge 26.06 show no gain by release, GB200 and GB300 (2024, 2025) do."""


@cache
def _matmul_slowdowns() -> dict[str, float]:
    """Matmul time of training runs relative to the kernel model, by id, for accelerators without published kernels."""
    return load_json("stacks").get("matmul_slowdown_by_accelerator", {})


@cache
def kernel_share() -> float:
    """Share of its kernels' spread that a whole step shows on accelerators of a family whose kernels were measured."""
    return float(load_json("stacks").get("kernel_share", 1.0))


EXPERTS = "+experts"
"""Suffix of a stack's separate profile for models with routed experts (token dispatch, host synchronisation)."""


@cache
def find_stack_costs(stack: str, experts: bool = False) -> StackCosts:
    """Costs of ``stack`` (or of the one it is like), its own for models with experts where there are such runs to fit them on.

    Raises UnknownNameError for a stack without any, DataError when its fields are not these.
    """
    table, stack = load_json("stacks")["stacks"], stack.partition("@")[0]
    found = stack
    while found not in table and found in STACKS:
        found = find_stack(found).like
    found = found + EXPERTS if experts and found + EXPERTS in table else found
    if found not in table:
        raise UnknownNameError("stack", stack, table)
    try:
        costs = StackCosts(**table[found])
    except TypeError as error:
        names = ", ".join(f.name for f in fields(StackCosts))
        raise DataError(f"stacks.json: {found}: {error}", hint=f"fields are {names}") from None
    facts = find_stack(stack) if stack in STACKS else None
    return costs.of_one_program(facts.program_slowdown, facts.attention_slowdown) if facts and facts.one_program else costs
