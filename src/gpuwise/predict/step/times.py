"""Seconds of one training step, for columns of strategies at once.

    step = pipeline(F + R + B of each stage, m micro-batches) + exposed data-parallel traffic + optimizer + framework

F, R, B come from :mod:`passes` (kernels and collectives of one micro-batch as the software stack runs them).
The same code serves one strategy and millions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.hardware.accelerators import PCIE_BYTES_PER_S
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.comm.groups import pipeline_neighbours_local
from gpuwise.predict.kernels.memory_bound import memory_time
from gpuwise.predict.kernels.transfer import transfer_time
from gpuwise.predict.memory.host import trained_share
from gpuwise.predict.parallel.data_parallel import (
    ZERO2,
    ZERO3,
    LayerTraffic,
    StepTraffic,
    expert_shard_group,
    layer_traffic,
    shard_group,
    step_traffic,
)
from gpuwise.predict.parallel.overlap import beside, gathered_passes
from gpuwise.predict.parallel.pipeline import copies, folded, hiding_passes, pipeline_time
from gpuwise.predict.parallel.shards import Stages, stages
from gpuwise.predict.stack_costs import StackCosts, find_stack_costs
from gpuwise.predict.step.costs import PointCosts
from gpuwise.predict.step.passes import Passes, passes
from gpuwise.units import GIB
from gpuwise.workload.optimizer import frozen_bytes, parameter_bytes, update_traffic_bytes
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import RECOMPUTES

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Arrays in the shape of the strategies, in seconds; ``step_s`` is the sum of what follows it.

    ``compute_s`` kernels without recompute; ``recompute_s`` what is run again; ``communication_s`` exposed tensor,
    context, expert, pipeline and fully-sharded transfers; ``launch_s`` device idle because the host is late;
    ``bubble_s`` pipeline idle; ``data_parallel_s`` exposed once-a-step gradient and parameter traffic;
    ``optimizer_s``; ``offload_s``; ``framework_s`` the stack's own work and stragglers.
    """

    step_s: F64
    compute_s: F64
    recompute_s: F64
    communication_s: F64
    launch_s: F64
    bubble_s: F64
    data_parallel_s: F64
    optimizer_s: F64
    offload_s: F64
    framework_s: F64


@dataclass(frozen=True, slots=True)
class _LayerSeconds:
    """One layer and micro-batch; ``total_s`` contains the rest."""

    total_s: F64
    forward_s: F64
    backward_s: F64
    recompute_s: F64
    communication_s: F64
    launch_s: F64
    offload_s: F64


@dataclass(frozen=True, slots=True)
class ParameterCopies:
    """Seconds a micro-batch of parameters and gradients that are on the host or summed there: of a layer behind its forward and
    its backward, and of what nothing hides, the first layer's and the ends'."""

    forward_s: F64
    backward_s: F64
    ends_s: F64


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Inputs of a step's time before a stack's costs apply; arrays broadcast to the strategies' shape.

    ``hop_s`` is the transfer time of a micro-batch over all stage borders of a rank; ``waits`` the number of stragglers
    (:func:`stragglers`); ``recomputed`` the share of the layers that full recompute repeats; ``sharded_layers`` those of a
    rank with sharded states.
    """

    costs: PointCosts
    c: Columns
    at: I64
    layers: tuple[F64, F64, F64]
    layer_traffic: LayerTraffic
    step_traffic: StepTraffic
    copies: tuple[F64, F64] | None
    parameters: ParameterCopies | None
    recomputed: F64
    hop_s: F64
    update_s: F64
    waits_for_device: bool
    offload_s: F64
    waits: F64
    sharded_layers: F64


def step_inputs(arch: Architecture, system: System, costs: PointCosts, c: Columns, point_index: I64) -> StepInputs:
    """Layers, traffic and updates of every strategy in ``c`` on ``system``."""
    shape = stages(arch, c, costs.n_layers)
    doublings = np.log2(np.maximum(c.dp * c.tp * c.pp * c.cp / system.count, 1.0))
    return StepInputs(
        costs,
        c,
        point_index,
        shape.layers,
        layer_traffic(system, c, shape),
        step_traffic(system, c, shape),
        _activation_copies(system, costs, c, point_index),
        _parameter_copies(arch, system, c, shape),
        _recomputed_share(costs, c),
        _hop(system, c, costs.saved.boundary[point_index]),
        _update(arch, system, c, shape, costs.own_host),
        arch.kind == "decoder",
        _offload(arch, system, c, shape),
        stragglers(doublings, system.network_bytes_per_s),
        np.where((c.sharding > 0) & (c.dp * c.cp > 1), shape.layers[1], 0.0),
    )


def step_times(
    arch: Architecture,
    system: System,
    costs: PointCosts,
    c: Columns,
    point_index: I64,
    stack_costs: StackCosts | None = None,
) -> StepTimes:
    """Time of every strategy in ``c`` on ``system``; ``point_index`` is each strategy's point in ``costs``."""
    costs_of_stack = stack_costs or find_stack_costs(c.base.stack, arch.moe is not None)
    sc = costs_of_stack.on(system, c.base, int((c.dp * c.tp * c.pp * c.cp).max()))
    sc = sc.as_timed() if costs.own_host else sc
    inputs = step_inputs(arch, system, costs, c, point_index)
    parts = composed(inputs, passes(costs, sc), sc)
    shape = c.shape
    return StepTimes(*(np.broadcast_to(getattr(parts, f.name), shape) for f in fields(parts)))


def composed(inputs: StepInputs, per_point: Passes, sc: StackCosts) -> StepTimes:
    """The step of ``inputs`` under a stack's costs; ``per_point`` are its passes under the same."""
    c, at, layers = inputs.c, inputs.at, inputs.layers
    traffic = inputs.layer_traffic
    layer = _layer_seconds(per_point, traffic, inputs, sc)
    hop_s = inputs.hop_s * sc.network_slowdown * (1 - sc.pp_overlap)
    front_s = per_point.embedding_s[at] + per_point.lead_extra_s[at]
    slowest, ramp = _stages_seconds(layers, c, layer, front_s, per_point.head_s[at], hop_s)
    wgrad = layers[1] * per_point.wgrad_s[at]
    pipe_s, bubble_s = pipeline_time(
        slowest + sc.micro_batch_overhead_s,
        ramp,
        layers[1] * layer.backward_s,
        wgrad,
        c.accumulation,
        c.pp,
        c.virtual_stages,
        c.schedule,
    )
    worst = np.maximum(layers[0], layers[1])
    behind = worst * hiding_passes(c.accumulation, c.pp, c.virtual_stages, c.schedule)
    gradient_s = inputs.step_traffic.exposed_s(behind * layer.forward_s, behind * layer.backward_s, sc)
    ends_s = (traffic.ends_s + sc.contention * traffic.head_s) * sc.network_slowdown
    gradient_s = gradient_s + c.accumulation * ends_s
    starved = c.accumulation * (layers[1] * layer.launch_s + per_point.ends_starved_s[at])
    update_s = _behind_the_host(inputs, starved)
    offload_s = inputs.offload_s
    if inputs.parameters is not None:
        offload_s = offload_s + c.accumulation * inputs.parameters.ends_s
    fixed_s = sc.step_overhead_s + inputs.sharded_layers * sc.sharded_update_s
    raw = pipe_s + gradient_s + update_s + offload_s + fixed_s
    step_s = raw * (1 + sc.straggler * inputs.waits)
    m = c.accumulation * layers[1]
    launch, again = m * layer.launch_s, m * layer.recompute_s
    comm = m * layer.communication_s + c.accumulation * hop_s
    swapped = m * layer.offload_s
    overhead = c.accumulation * sc.micro_batch_overhead_s
    return StepTimes(
        step_s=step_s,
        compute_s=pipe_s - bubble_s - overhead - launch - comm - again - swapped,
        recompute_s=again,
        communication_s=comm,
        launch_s=launch,
        bubble_s=bubble_s,
        data_parallel_s=gradient_s,
        optimizer_s=update_s,
        offload_s=offload_s + swapped,
        framework_s=step_s - raw + fixed_s + overhead,
    )


REFERENCE_NETWORK_BYTES_PER_S = 50e9
"""400 Gb/s an accelerator: the network the stragglers' share is stated for."""
SLOWEST_NETWORK = 8.0
"""Reference network relative to the slowest network of published runs (50 Gb/s per accelerator). Hosts of a TPU pod have less,
and synchronise over the links between the chips."""
SATURATION_DOUBLINGS = 8.0
"""Doublings of systems at which waiting has grown to half its limit: the slowest of many is bounded."""


def stragglers(doublings: F64, network_bytes_per_s: float) -> F64:
    """How much waiting for the slowest system costs, in units of the stack's ``straggler``.

    ``d / (1 + d / 8)`` for ``d`` doublings of systems, times what the reference network moves for each byte of this one:
    published runs lose 3 to 5 % from 16 to 256 systems of eight (Nemotron-4 340B, NVIDIA/dgxc-benchmarking v24.11.1)."""
    grown = doublings / (1.0 + doublings / SATURATION_DOUBLINGS)
    return grown * min(REFERENCE_NETWORK_BYTES_PER_S / network_bytes_per_s, SLOWEST_NETWORK)


def _layer_seconds(per_point: Passes, traffic: LayerTraffic, inputs: StepInputs, sc: StackCosts) -> _LayerSeconds:
    """The mean layer with its recompute, and with fully sharded parameters and offloaded activations moving behind it."""
    c, at = inputs.c, inputs.at
    forward, backward = per_point.forward, per_point.backward
    f, b = forward.time_s[at], backward.time_s[at]
    again = np.where(c.recompute == RECOMPUTES.index("full"), backward.after_s(per_point.full, at, inputs.recomputed), 0.0)
    again = np.where(c.recompute == RECOMPUTES.index("selective"), backward.after_s(per_point.selective, at), again)
    gathers = traffic.gather_s, traffic.gather_s + traffic.scatter_s
    f_total, b_total = gathered_passes(f, b + again, *gathers, sc)
    comm = forward.communication_s[at] + backward.communication_s[at] + f_total + b_total - f - b - again
    exposed: F64 = np.zeros(1)
    if inputs.parameters is not None:
        moved = inputs.parameters
        with_copies = gathered_passes(f, b + again, *gathers, sc, (moved.forward_s, moved.backward_s))
        exposed = with_copies[0] - f_total + with_copies[1] - b_total
        if find_stack(c.base.stack).blocks_on_copies:
            exposed = moved.forward_s + moved.backward_s
    if inputs.copies is not None:
        down, up = inputs.copies
        exposed = exposed + beside(f_total, down, sc) - f_total + beside(b_total, up, sc) - b_total
    return _LayerSeconds(
        f_total + b_total + exposed,
        f_total,
        b_total,
        again,
        comm,
        forward.starved_s[at] + backward.starved_s[at],
        exposed,
    )


def _recomputed_share(costs: PointCosts, c: Columns) -> F64:
    """Share of the layers that full recompute repeats."""
    return np.ceil(costs.n_layers / np.maximum(c.recompute_every, 1)) / costs.n_layers


def _activation_copies(system: System, costs: PointCosts, c: Columns, at: I64) -> tuple[F64, F64] | None:
    """Seconds to copy a layer's saved activations to the host behind its forward, and back behind its backward."""
    if not (c.offload_activations > 0).any():
        return None
    none, selective, full = (costs.saved.layer[policy][at] for policy in RECOMPUTES)
    share = _recomputed_share(costs, c)
    saved_bytes = np.where(c.recompute == RECOMPUTES.index("full"), share * full + (1 - share) * none, none)
    saved_bytes = np.where(c.recompute == RECOMPUTES.index("selective"), selective, saved_bytes)
    saved_bytes = np.where(c.offload_activations > 0, saved_bytes, 0.0)
    down, up = (
        transfer_time(
            system.accelerator, saved_bytes, direction, at_once=system.count, host_bytes_per_s=host_bytes_per_s(system)
        ).time_s
        for direction in ("d2h", "h2d")
    )
    return down, up


def _parameter_copies(arch: Architecture, system: System, c: Columns, shape: Stages) -> ParameterCopies | None:
    """Seconds of parameter offload. A rank's shard of a layer is copied to the device for the forward in its stored format
    (FSDP: master; ZeRO-3: compute), and again for the backward if it was freed. Gradients of trained parameters are copied to
    the host. If they are accumulated there, the sum is copied both ways behind every backward but the last."""
    on_host, offloaded = c.offloads_parameters, c.offload_optimizer > 0
    summed = np.where(offloaded & find_stack(c.base.stack).accumulates_on_host, 1.0 - 1.0 / c.accumulation, 0.0)
    if not (on_host.any() or summed.any()):
        return None
    b, layers = parameter_bytes(c.base), np.maximum(shape.layers[1], 1.0)
    form = b.weight if c.base.offload_parameters else b.master or b.weight
    ends = (shape.embedding + np.maximum(shape.dense[0] - shape.dense[1] - shape.embedding, 0.0)) * form
    trained = trained_share(arch, c.base)
    kept = frozen_bytes(c.base) if c.base.lora_rank else form
    (ranks, _), (expert_ranks, _) = shard_group(system, c), expert_shard_group(system, c)
    layer = (shape.dense[1] / ranks.size + shape.expert[1] / expert_ranks.size) / layers

    pinned = not find_stack(c.base.stack).blocks_on_copies

    def seconds(moved: F64, direction: str) -> F64:
        host = host_bytes_per_s(system)
        return transfer_time(system.accelerator, moved, direction, pinned, at_once=system.count, host_bytes_per_s=host).time_s

    up, down = (
        seconds(np.where(on_host, layer * kept, 0.0), "h2d"),
        seconds(np.where(on_host & offloaded, layer * trained * form, 0.0), "d2h"),
    )
    end = seconds(np.where(on_host, ends / ranks.size, 0.0), "h2d")
    again = np.where(c.sharding == ZERO2, 0.0, up)
    # ZeRO-3 sums in the format of accumulation, ZeRO-1 and 2 in the parameters'
    sums = summed * layer * trained * np.where(c.sharding == ZERO3, b.gradient, b.weight)
    return ParameterCopies(up, again + down + seconds(sums, "h2d") + seconds(sums, "d2h"), up + down + end)


def _stages_seconds(
    layers: tuple[F64, F64, F64], c: Columns, layer: _LayerSeconds, front_s: F64, head_s: F64, hop_s: F64
) -> tuple[F64, F64]:
    """F + R + B of the slowest stage, and the sum over the other stages, for one micro-batch."""
    one = c.pp == 1
    first, middle, last = (n * layer.total_s for n in layers)
    first = first + front_s + np.where(one, head_s, 0.0)
    last = np.where(one, 0.0, last + head_s)
    n_middle = np.maximum(c.pp - 2, 0)
    middle = np.where(n_middle > 0, middle, 0.0)
    ends = np.where(folded(c.schedule, c.pp), (first + last) / 2, np.maximum(first, last))
    slowest = np.maximum(ends, middle) + hop_s
    total = first + last + n_middle * middle + np.maximum(c.pp - 1, 0) * hop_s
    return slowest, np.maximum(total - slowest, 0.0)


def _hop(system: System, c: Columns, boundary_bytes: F64) -> F64:
    """Seconds a micro-batch of activations forward and gradients back between stages."""
    out = np.zeros(1)
    local = pipeline_neighbours_local(system, c.tp, c.cp, c.dp)
    for inside in (True, False):
        rows = (c.pp > 1) & (local == inside)
        if rows.any():
            hop = curve(system, "send_recv", 2, 2 if inside else 1)
            out = np.where(rows, 2 * hop.time_s(boundary_bytes) * np.maximum(c.virtual_stages, 1), out)
    return out


def _updated_parameters(c: Columns, shape: Stages) -> F64:
    """Parameters one rank of the worst stage updates, after state sharding."""
    dense = np.maximum(np.maximum(shape.dense[0], shape.dense[1]), shape.dense[2])
    expert = np.maximum(np.maximum(shape.expert[0], shape.expert[1]), shape.expert[2])
    ranks = np.where(c.sharding == 0, 1, c.dp * c.cp * copies(c.schedule, c.pp))
    replicas = np.where(c.sharding == 0, 1, np.maximum(c.dp * c.cp * c.tp * copies(c.schedule, c.pp) // c.expert_ranks, 1))
    return dense / ranks + expert / replicas


def _trained_parameters(arch: Architecture, c: Columns, shape: Stages) -> F64:
    """Those of :func:`_updated_parameters` that are trained: the adapters beside frozen ones."""
    return trained_share(arch, c.base) * _updated_parameters(c, shape)


def _update(arch: Architecture, system: System, c: Columns, shape: Stages, per_op: bool) -> F64:
    """The optimizer on the device (none when it is offloaded), streaming its state once; in plain PyTorch also the sums of
    the micro-batches' gradients."""
    stack, n = find_stack(c.base.stack), _trained_parameters(arch, c, shape)
    if per_op:
        from gpuwise.predict.step.per_op import accumulation_seconds, update_seconds  # as in costs

        adds = (c.accumulation - 1) * accumulation_seconds(system.accelerator, c.base)
        return n * (np.where(c.offload_optimizer > 0, 0.0, update_seconds(system.accelerator, c.base)) + adds)
    per_parameter = update_traffic_bytes(c.base, stack.fused_optimizer)
    traffic = n * per_parameter
    seconds = memory_time(system.accelerator, traffic * 0.6, traffic * 0.4).time_s
    return np.where(c.offload_optimizer > 0, 0.0, seconds)


def _behind_the_host(inputs: StepInputs, starved_s: F64) -> F64:
    """Exposed optimizer time: a host that is behind and never waits issues the next step meanwhile.

    Decoders of transformers wait for the device once a step (they check for packed sequences). A Python loop over the
    parameters begins with the norm of all gradients, for which the host waits: none of its launches is overlapped.
    """
    update_s, host_s = inputs.update_s, inputs.costs.update_host_s
    if host_s is not None and find_stack(inputs.c.base.stack).loops(inputs.c.base.precision):
        return np.maximum(update_s, host_s[inputs.at])
    if host_s is None or inputs.waits_for_device:
        return update_s
    return update_s - np.minimum(starved_s, np.maximum(update_s - host_s[inputs.at], 0.0))


def _offload(arch: Architecture, system: System, c: Columns, shape: Stages) -> F64:
    """Optimizer state in host memory: gradients go down, weights come back, the host updates between (ZeRO-Offload); parameters
    on the host travel with each layer (:func:`_parameter_copies`), and go down once where the device updates them."""
    if not (c.offload_optimizer > 0).any() and not c.base.offload_parameters:
        return np.zeros(1)
    b = parameter_bytes(c.base)
    n = _trained_parameters(arch, c, shape)
    gradient, weight, moved = b.gradient, b.weight, update_traffic_bytes(c.base, fused=True)
    if find_stack(c.base.stack).per_op:
        # plain PyTorch: parameters in one format, no norm of the gradients
        gradient = weight = b.master or b.weight
        moved = 3 * weight + 2 * b.state
    down = transfer_time(system.accelerator, n * gradient, "d2h").time_s
    up = transfer_time(system.accelerator, n * weight, "h2d").time_s
    by_deepspeed = find_stack(c.base.stack).accumulates_on_host
    host = n * moved / host_update_bytes_per_s(system, c.dp * c.cp * c.tp * c.pp, by_deepspeed=by_deepspeed)
    updated = transfer_time(system.accelerator, n * weight, "d2h").time_s * c.base.offload_parameters
    return np.where(c.offload_optimizer > 0, np.where(c.offloads_parameters, 0.0, down + up) + host, updated)


SERVER_BYTES_PER_S = {5: 2 * 8 * 4800e6 * 8 * 0.8, 4: 2 * 8 * 3200e6 * 8 * 0.8, 3: 2 * 6 * 2666e6 * 8 * 0.8}
"""Two sockets at 80 %, shared by the system's accelerators, by the generation of their PCI Express: eight channels of
DDR5-4800 (JEDEC JESD79-5), eight of DDR4-3200 (Xeon 8300, EPYC 7003), six of DDR4-2666 (Xeon 8100)."""
DESKTOP_BYTES_PER_S = 2 * 5600e6 * 8 * 0.8
"""Two DDR5-5600 channels at 80 %: what desktop processors have."""
DESKTOP_MEMORY_BYTES = 256 * GIB
"""The most memory two channels hold (four 64 GiB modules); a host with more is a server."""


def host_bytes_per_s(system: System) -> float:
    """Memory bandwidth of the host, for copies and for updates of offloaded states."""
    return DESKTOP_BYTES_PER_S if _is_desktop(system) else SERVER_BYTES_PER_S[_server_generation(system)]


def _is_desktop(system: System) -> bool:
    return system.host_memory_bytes <= DESKTOP_MEMORY_BYTES


def _server_generation(system: System) -> int:
    """Generation of PCI Express of a server with these accelerators."""
    lane_rates = {3: PCIE_BYTES_PER_S["3.0 x16"], 4: PCIE_BYTES_PER_S["4.0 x16"]}
    link = system.accelerator.pcie_bytes_per_s or PCIE_BYTES_PER_S["5.0 x16"]
    return next((generation for generation, rate in lane_rates.items() if link <= rate), 5)


SHARED_UPDATE_SHARE = 0.37
"""Share of its part of the host's memory bandwidth that a rank reaches while all ranks update: 8.8e9 parameters a rank in bf16
in a step of 20.9 s (PyTorch's fused AdamW, 8 x A100: the README of torchtune)."""
DEEPSPEED_UPDATE_SHARE, DEEPSPEED_UPDATE_SHARE_DDR4 = 0.3, 0.125
"""The same of DeepSpeed's CPU Adam. DDR5: 1.0e9 parameters a rank in 2 s beside a step of 8,192 tokens (8 x H200:
ml-engineering). DDR4, the geometric mean of two hosts with A100: 6.7e9 parameters of a host in 6.5 s (Llama 2 7B on 4, a step
of 0.5 s without and over 7 s with it: the post on DeepSpeed ZenFlow), 18e9 in 10 s (Qwen 72B on 4 x 8: DeepSpeed issue 6834)."""
PROCESS_UPDATE_BYTES_PER_S = 28e9
"""Rate of one process on any host: AdamW's 28 bytes of 4.02e9 parameters in 4.1 s (5.6 to 5.8 s a step, of which 1.6 to 1.7
forward and backward: PyTorch's fused CPU AdamW beside an RTX PRO 6000, PrimeIntellect-ai/prime-rl pull 3210)."""


def host_update_bytes_per_s(system: System, ranks: ArrayLike, *, by_deepspeed: bool = False) -> F64:
    """Host memory bandwidth available to the optimizer of each of ``ranks``."""
    here = np.minimum(system.count, np.asarray(ranks, np.float64))
    newer = _is_desktop(system) or _server_generation(system) == 5
    by_deepspeed_share = DEEPSPEED_UPDATE_SHARE if newer else DEEPSPEED_UPDATE_SHARE_DDR4
    share = np.where(here > 1, by_deepspeed_share if by_deepspeed else SHARED_UPDATE_SHARE, 1.0)
    return np.minimum(PROCESS_UPDATE_BYTES_PER_S, share * host_bytes_per_s(system) / here)
