"""Defaults for unspecified inputs: sequence length, batch, stack, no offload.

Every default is returned with its reason, so that a plan can list its assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.known_runs import KnownRun, known_runs
from gpuwise.units import format_count
from gpuwise.workload.stacks.stack import FUSED_SINCE, HIDDEN_EXPERTS_SINCE, find_stack
from gpuwise.workload.strategy import STACKS
from gpuwise.workload.tasks import Task
from gpuwise.workload.transformer.parameters import count_parameters

PRETRAINING_SEQ_LEN = 8192
"""Llama 3 405B trained on sequences of 8,192 tokens before the long-context stage (arXiv 2407.21783,
section 3.4.1)."""

BATCH_TOKENS: tuple[tuple[float, float, str], ...] = (
    (1.0e9, 0.5e6, "GPT-3 Small to Large, arXiv 2005.14165 table 2.1"),
    (4.0e9, 1.0e6, "GPT-3 XL and 2.7B, arXiv 2005.14165 table 2.1"),
    (300e9, 4.0e6, "Llama 1 and 2, arXiv 2302.13971 table 2, 2307.09288 section 2.2; GPT-3 175B 3.2M"),
    (float("inf"), 16.0e6, "Llama 3.1 405B from 2.87T tokens on, arXiv 2407.21783 section 3.4.1"),
)
"""(parameters up to, tokens a step, source), by published pre-training runs."""
MANY_TOKENS = 1.0e12
"""Number of training tokens above which small models take :data:`LONG_RUN_BATCH_TOKENS`; GPT-3's sizes were trained on 0.3e12."""
LONG_RUN_BATCH_TOKENS: tuple[tuple[float, float, str], ...] = (
    (2.0e9, 2.0e6, "TinyLlama, arXiv 2401.02385 section 2.3; Pythia, arXiv 2304.01373"),
    (4.0e9, 4.0e6, "StableLM-3B-4E1T, github.com/Stability-AI/StableLM; OLMo 1B, arXiv 2402.00838 table 5"),
)
"""Like :data:`BATCH_TOKENS`, for models trained on a trillion tokens or more."""
REPLICA_BYTES = 18.0
"""Bytes a parameter of a replica trained in 16 bits: weights 2, gradients 4, fp32 copy and Adam's moments 12."""
REPLICA_SHARE = 0.5
"""A model whose states take at most this share of one GPU's memory is replicated on one host: the rest is activations."""
ONE_GPU_SHARE = 0.8
"""The same of a GPU alone, which has nothing to shard: with activations computed again, the Trainer fits up to here (18 bytes
over the memory: 3B on 80 GB 0.68, 8B on 192 GB 0.76 fit; 1B on 24 GB 0.88, 8B on 141 GB 0.96 do not). States of other sizes
(weights in 16 bits, an 8-bit optimizer) are measured by the same share."""

FROZEN_SHARE = 0.75
"""A base model under adapters that takes at most this share of one GPU's memory is replicated: samples are short, and their
activations are computed again."""
FROZEN_BYTES = 2.0
"""Bytes of a frozen 16-bit parameter."""
TRAINER_WHY = "Hugging Face's Trainer and PEFT, which TRL, LLaMA-Factory and Axolotl run for adapters"
"""Their READMEs: github.com/huggingface/trl, hiyouga/LLaMA-Factory, axolotl-ai-cloud/axolotl."""
FULL_WHY = "Hugging Face's Trainer, which TRL, LLaMA-Factory and Axolotl run to fine-tune every weight"
"""Under DeepSpeed: alignment-handbook scripts/README.md (full fine-tuning of 7B on 8 A100 with ZeRO-3), LLaMA-Factory
examples/train_full/*.yaml (ds_z3_config.json), TRL examples/accelerate_configs/deepspeed_zero3.yaml; on one GPU its optimizer
can be in host memory. torchtune has not been developed since July 2025 (github.com/meta-pytorch/torchtune/issues/2883)."""


def default_seq_len(arch: Architecture, task: Task) -> tuple[int, str]:
    """Sequence length and why."""
    if arch.patches is not None:
        return arch.patches.n_tokens, f"the {arch.patches.n_tokens} patches of an image"
    usual = task.seq_len or PRETRAINING_SEQ_LEN
    if arch.max_seq_len <= usual:
        return arch.max_seq_len, "the model's maximum"
    return usual, f"usual for {task.title}"


def default_global_batch(arch: Architecture, seq_len: int, task: Task, *, tokens: float | None = None) -> tuple[int, str]:
    """Sequences a step and why: those of ``task``, else a power of two near the tokens that published runs of that size and of
    ``tokens`` took."""
    if task.batch is not None:
        return task.batch, f"usual for {task.title}: {task.source}"
    if arch.patches is not None:
        return 4096, "ViT pre-training, arXiv 2010.11929 table 3"
    if task.batch_tokens is not None:
        return 1 << max(0, round_log2(task.batch_tokens / seq_len)), f"usual for {task.title}: {task.source}"
    parameters = count_parameters(arch).total
    table = (*LONG_RUN_BATCH_TOKENS, *BATCH_TOKENS) if tokens is not None and tokens >= MANY_TOKENS else BATCH_TOKENS
    a_step, source = next((t, s) for limit, t, s in table if parameters < limit)
    exponent = max(0, round_log2(a_step / seq_len))
    return 1 << exponent, f"about {format_count(a_step)} tokens a step, as {source}"


BATCH_TOLERANCE = 1.125
"""Largest factor by which a default batch is moved to one that more data-parallel degrees and micro-batches divide. The batch
grew 4x from Llama 2 to Llama 3 and 6x between sizes of GPT-3 (sources of ``BATCH_TOKENS``), so an eighth does not change the
recipe."""
LARGEST_BATCH_RATIO = 2.0
"""The batch grows to the number of devices up to this ratio: beyond, model parallelism takes the rest of the devices."""


def batch_for_devices(usual: int, n_devices: int) -> int:
    """The batch near ``usual`` (sequences) that ``n_devices`` divide.

    A multiple of the most data-parallel ranks that the batch can feed, ``n_devices`` or ``n_devices`` over a power of two (the
    degrees of model parallelism); within an eighth of ``usual`` the one with the most factors of two, else the nearest in ratio.
    Raises ValueError when either is less than one.
    """
    if usual < 1 or n_devices < 1:
        raise ValueError(f"a batch of {usual} on {n_devices} devices")
    ranks = n_devices
    while ranks > usual and ranks % 2 == 0 and usual % ranks:
        ranks //= 2
    if usual % ranks == 0:
        return usual
    ranks = n_devices
    while ranks > LARGEST_BATCH_RATIO * usual and ranks % 2 == 0:
        ranks //= 2
    low = max(math.ceil(usual / BATCH_TOLERANCE / ranks), 1)
    near = range(low, math.floor(usual * BATCH_TOLERANCE / ranks) + 1)
    if not near:
        below = max(usual // ranks, 1)
        near = range(below, below + 2)
        return ranks * min(near, key=lambda m: abs(math.log(m * ranks / usual)))
    return ranks * max(near, key=lambda m: (m & -m, -abs(math.log(m * ranks / usual))))


def round_log2(x: float) -> int:
    """The exponent of the power of two nearest to ``x`` in ratio."""
    exponent = 0
    while x > 1.5 * (1 << exponent):
        exponent += 1
    return exponent


FIRST_YEAR = 2017
"""Mixed precision (arXiv 1710.03740): no stack here trains as it was done before."""
SAME_RUN_RATIO = 2.0
"""A cluster counts as that of a published run if its number of accelerators is within this factor."""


def published_run(
    arch: Architecture,
    cluster: Cluster,
    options: Mapping[str, int | str | bool] = MappingProxyType({}),
    named: str | None = None,
) -> KnownRun | None:
    """The published run with older software that matches pre-training ``arch`` on ``cluster``: same model, about as many
    accelerators of the same family. None if there is no such run, if it used today's software, or if its software lacks the
    requested ``options`` or is not the ``named`` stack."""
    n, family = cluster.n_accelerators, cluster.accelerator.family
    for run in known_runs().get(arch.id, ()):
        alike = run.gpus is not None and 1 / SAME_RUN_RATIO <= n / run.gpus <= SAME_RUN_RATIO
        if run.year is None or not alike or accelerators()[run.accelerator_id].family != family:
            continue
        stack, _ = default_stack(arch, cluster, fine_tuning=False, year=run.year)
        return run if _has(stack, options, adapters=False, alone=False) and named in (None, stack) else None
    return None


def todays_year(arch: Architecture) -> int:
    """First year whose software ``arch`` is trained with today."""
    return FUSED_SINCE if arch.moe is None else HIDDEN_EXPERTS_SINCE


def unfused_attention(stack: str, accelerator: Accelerator, year: int | None = None) -> str:
    """Why ``stack`` has no fused attention kernel on ``accelerator`` in ``year`` (today's where none is given); empty where it
    has one, as on devices whose capability is unknown."""
    capability = accelerator.compute_capability
    facts = find_stack(stack)
    if not facts.fuses_attention:
        return f"{stack} has none"
    if year is not None and year < facts.fused_since:
        return f"of {facts.fused_since} and later"
    if capability is not None and float(capability) < facts.attention_capability:
        return f"those of {stack} need compute capability {facts.attention_capability}"
    return ""


def default_stack(
    arch: Architecture,
    cluster: Cluster,
    *,
    fine_tuning: bool,
    full: bool = False,
    frozen_bytes: float = FROZEN_BYTES,
    replica_bytes: float = REPLICA_BYTES,
    options: Mapping[str, int | str | bool] = MappingProxyType({}),
    updates_on_host: bool = True,
    year: int | None = None,
) -> tuple[str, str]:
    """Software stack and the reason: the default stack of ``year`` (None: today), or another one if that lacks the requested
    ``options`` (strategy fields by name).

    ``fine_tuning``: with adapters, whose frozen weights take ``frozen_bytes`` each. ``full``: every weight of a checkpoint is
    fine-tuned. ``replica_bytes``: bytes of a trained parameter with its gradient and states. ``updates_on_host``: the
    optimizer can run there."""
    offloads = bool(options.get("offload_optimizer", False))
    parameters = count_parameters(arch).total
    sizes = (frozen_bytes * parameters, replica_bytes * parameters)
    stack, why = _usual_stack(
        cluster, *sizes, fine_tuning=fine_tuning, full=full, offloads=offloads, updates_on_host=updates_on_host
    )
    # XLA compiled for TPUs before PyTorch did for GPUs
    if year is not None and year < FUSED_SINCE and cluster.accelerator.vendor.lower() in ("nvidia", "amd"):
        instead = find_stack(stack).instead
        return instead.before_fused, instead.before_fused_why
    alone = cluster.n_accelerators == 1

    def has(name: str) -> bool:
        return find_stack(name).layout.trains(arch.kind) and _has(name, options, adapters=fine_tuning, alone=alone)

    if has(stack):
        return stack, why
    others = find_stack(stack).instead.asked
    other = next((name for name in others if has(name)), None)
    if other is None:
        return stack, why
    return other, f"{stack}, the default, does not support the requested options"


def _has(stack: str, options: Mapping[str, int | str | bool], *, adapters: bool, alone: bool) -> bool:
    """Whether ``stack`` lays out ``options``, and its loss can be without whole logits where ``fused_loss`` is among them; FSDP
    wraps, and so offloads, nothing of a GPU ``alone``, and offloads parameters with the optimizer."""
    fused, by_fsdp = find_stack(stack).chunks_loss or not options.get("fused_loss", False), find_stack(stack).offloads_parameters
    offloads = not (alone and options.get("offload_optimizer", False) and by_fsdp)
    with_it = by_fsdp and options.get("offload_optimizer", False)
    own = {name: value for name, value in options.items() if not (with_it and name == "offload_parameters")}
    return fused and offloads and find_stack(stack).layout.under(adapters=adapters).has(own)


def _usual_stack(
    cluster: Cluster, frozen: float, replica: float, *, fine_tuning: bool, full: bool, offloads: bool, updates_on_host: bool
) -> tuple[str, str]:
    """Like :func:`default_stack`; ``frozen`` and ``replica`` are the bytes of a base model's weights and of a model in
    training."""
    vendor = cluster.accelerator.vendor.lower()
    if vendor not in ("nvidia", "amd"):
        own = next((stack for stack in STACKS if vendor in find_stack(stack).default_on), None)
        why = f"what {cluster.accelerator.vendor}'s devices are trained with: one compiled program"
        return (own, why) if own else ("compiled-fsdp", "PyTorch with a compiler is what runs on this vendor's devices")
    if fine_tuning:
        if cluster.n_accelerators == 1:
            return "trainer", TRAINER_WHY
        if frozen <= FROZEN_SHARE * cluster.accelerator.memory_bytes:
            return "trainer", f"{TRAINER_WHY}; every GPU holds the whole model: DDP"
        return "hf-fsdp", f"{TRAINER_WHY}; the model fills a GPU: FSDP"
    replicated = replica <= REPLICA_SHARE * cluster.accelerator.memory_bytes
    alone = cluster.n_accelerators == 1 and replica <= ONE_GPU_SHARE * cluster.accelerator.memory_bytes
    if full and (replicated or alone) and not offloads:
        return "trainer", FULL_WHY
    if full:
        return "deepspeed", f"{FULL_WHY}, under DeepSpeed ZeRO where states fill a GPU"
    fills = replica > ONE_GPU_SHARE * cluster.accelerator.memory_bytes
    if cluster.n_accelerators == 1 and (offloads or (fills and updates_on_host)):
        return "deepspeed", "states fill the one device: DeepSpeed keeps the optimizer's in host memory"
    if cluster.n_accelerators == 1:
        return "compiled-fsdp", "one device needs no model parallelism: plain PyTorch with torch.compile"
    if cluster.n_systems == 1 and replicated:
        return "compiled-fsdp", "every GPU of one host holds the whole model: plain PyTorch with torch.compile and DDP"
    return (
        "megatron-core",
        "the stack with tensor, pipeline, context and expert parallelism and fused kernels",
    )
