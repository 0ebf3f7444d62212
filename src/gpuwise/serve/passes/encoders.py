"""Encoders, embedding decoders, and vision transformers: a batch is one iteration.

An engine runs them like prompts, including embedding decoders (Qwen3 Embedding). PyTorch without a compiler launches each kernel
of the forward pass by itself, with attention unfused:

    t = max(s sum(kernels), l launches)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, default_system, with_count
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.software.encoder_programs import find_encoder_program
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, EngineConfig
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.iteration import iteration_time
from gpuwise.serve.passes.batches import BatchTimes
from gpuwise.serve.passes.host import host_pace
from gpuwise.serve.passes.kind import AS_USUAL, How, Model, PassKind, Way, batches_that_fit
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.tables import transformer_tables

EAGER_SLOWDOWN = 1.68
"""How much longer PyTorch takes than its kernels: bge-large in 16 bits, 449 tokens, on an L4 under sentence-transformers (43.5
passages a second) and on an MI210 under Infinity without FlashAttention or a compiler (192; both michaelfeil/infinity,
docs/docs/benchmarking.md), BERT base in 32 bits, 512 tokens, on an RTX 2080 Ti (70; sentence-transformers issue 609). Geometric
mean of 2.00, 1.78 and 1.35: each is 9 to 39 % off by the mean of the others."""
EAGER_LOG_SIGMA = 0.25
"""Spread of it, the sample standard deviation of the three (0.20) and their number."""
LAUNCH_YEAR = 2023
"""Year of the hosts whose launches were fitted (diffusers' pipelines, ``coefficients/serving/diffusion.json``)."""
TEXT_TOKENS = 512
"""Tokens of a passage, or of a query with its passage: the limit of encoders."""


class Encoders(PassKind):
    """Passages that are embedded, pairs that are ranked, images that a vision transformer reads."""

    workloads = ("embed", "rerank", "vision")

    def check(self, how: How, workload: str) -> None:
        find_encoder_program(how.program)
        super().check(replace(how, program=DEFAULT_ENGINE), workload)

    def takes(self, model: Model, workload: str) -> bool:
        return isinstance(model, Architecture)

    def shape(self, model: Model, workload: str, tokens: int | None) -> tuple[str, int]:
        assert isinstance(model, Architecture)
        if workload == "vision":
            if model.patches is None:
                raise InputError(f"{model.name} is not a vision transformer", hint="for example vit-b-16, vit-l-16 or resnet-50")
            return "images", model.patches.n_tokens
        if model.kind == "vision":
            raise InputError(f"{model.name} reads images, not text", hint="--workload vision")
        return ("pairs" if workload == "rerank" else "passages"), min(tokens or TEXT_TOKENS, model.max_seq_len)

    def ways(self, model: Model, accelerator: Accelerator, tokens: int) -> Iterator[Way]:
        assert isinstance(model, Architecture)
        yield Way("", AS_USUAL, weight_bytes(model, "bf16") + passage_bytes(model, tokens))

    def times(self, model: Model, cluster: Cluster, tokens: int, how: How = AS_USUAL) -> BatchTimes:
        assert isinstance(model, Architecture)
        program, accelerator = find_encoder_program(how.program), cluster.accelerator
        precision = default_precision(accelerator)[0]
        half = precision if precision in ("bf16", "fp16") else "bf16"
        if program.eager:
            made = eager_batches(model, accelerator, tokens, "fp32" if program.full_precision else half)
        else:
            made = batches(model, accelerator, tokens, half)
        return BatchTimes.of_estimates([(b, time) for b, time in made if not program.most or b <= program.most])


@lru_cache(4096)
def batches(arch: Architecture, accelerator: Accelerator, tokens: int, weights: str = "bf16") -> tuple[tuple[int, Estimate], ...]:
    """Sizes that fit and their seconds. Raises InputError where none does, UnpredictableError without a rate."""
    sizes = batches_that_fit(arch.name, accelerator, weight_bytes(arch, "bf16"), passage_bytes(arch, tokens))
    system, config = with_count(default_system(accelerator), 1), EngineConfig(weights=weights)
    return tuple((b, iteration_time(arch, system, config, b, tokens, tokens)) for b in sizes)


@lru_cache(1024)
def eager_batches(arch: Architecture, accelerator: Accelerator, tokens: int, precision: str) -> tuple[tuple[int, Estimate], ...]:
    """:func:`batches` of PyTorch without a compiler. Raises as it does."""
    scale = TENSOR_BYTES[precision] / TENSOR_BYTES["bf16"]
    scores = 3.0 * arch.heads * tokens**2 * TENSOR_BYTES[precision]
    item = passage_bytes(arch, tokens) * scale + scores
    sizes = batches_that_fit(arch.name, accelerator, weight_bytes(arch, "bf16") * scale, item)
    launch_s = float(load_json("diffusion")["costs"]["launch_s"]) * host_pace(accelerator.year, LAUNCH_YEAR)
    result: list[tuple[int, Estimate]] = []
    for size in sizes:
        point = Point(
            micro_batch=size,
            seq_len=tokens,
            precision=precision,
            stack=find_stack("eager"),
            fused_attention=False,
            fused_loss=True,
        )
        whole = transformer_tables(arch, point)
        kernels = launches = spread = 0.0
        bases: list[Basis] = []
        for table, count in [*((t, whole.layer_counts[kind]) for kind, t in whole.layers.items()), (whole.embedding, 1)]:
            rows = table.select(table.phase == Phase.FORWARD)
            times = kernel_times(rows, accelerator)
            seconds = count * times.time_s * rows.count
            kernels += float(seconds.sum())
            spread += float((seconds * times.log_sigma).sum())
            launches += count * float((rows.n_kernels * rows.count).sum())
            bases.append(times.basis)
        sigma = math.hypot(EAGER_LOG_SIGMA, spread / kernels)
        total = max(kernels * EAGER_SLOWDOWN, launches * launch_s)
        result.append((size, Estimate.from_log_sigma(total, sigma, weakest(*bases, "fitted"))))
    return tuple(result)


def passage_bytes(arch: Architecture, tokens: int) -> float:
    """Activations of a sequence that an encoder works on."""
    return tokens * 2.0 * (4 * arch.hidden + 2 * arch.ffn)
