"""Encoders, embedding decoders, and vision transformers: a batch is one iteration.

An engine runs them like prompts, including embedding decoders (Qwen3 Embedding).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, default_system, with_count
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.iteration import iteration_time
from gpuwise.serve.passes.batches import BatchTimes
from gpuwise.serve.passes.kind import AS_USUAL, How, Model, PassKind, Way, batches_that_fit

TEXT_TOKENS = 512
"""Tokens of a passage, or of a query with its passage: the limit of encoders."""


class Encoders(PassKind):
    """Passages that are embedded, pairs that are ranked, images that a vision transformer reads."""

    workloads = ("embed", "rerank", "vision")

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
        precision = default_precision(cluster.accelerator)[0]
        weights = precision if precision in ("bf16", "fp16") else "bf16"
        return BatchTimes.of_estimates(batches(model, cluster.accelerator, tokens, weights))


@lru_cache(4096)
def batches(arch: Architecture, accelerator: Accelerator, tokens: int, weights: str = "bf16") -> tuple[tuple[int, Estimate], ...]:
    """Sizes that fit and their seconds. Raises InputError where none does, UnpredictableError without a rate."""
    sizes = batches_that_fit(arch.name, accelerator, weight_bytes(arch, "bf16"), passage_bytes(arch, tokens))
    system, config = with_count(default_system(accelerator), 1), EngineConfig(weights=weights)
    return tuple((b, iteration_time(arch, system, config, b, tokens, tokens)) for b in sizes)


def passage_bytes(arch: Architecture, tokens: int) -> float:
    """Activations of a sequence that an encoder works on."""
    return tokens * 2.0 * (4 * arch.hidden + 2 * arch.ffn)
