"""Batched speech recognition: an encoder over each window of sound, then a decoder that attends to it at every token.

For B windows of S encoded tokens (1,500 for 30 s), n output tokens each, L_d decoder layers of hidden size H and A heads of size
D, with the costs of the engine (:class:`gpuwise.serve.engines.costs.EngineCosts`) once an iteration:

    t(B) = encoder(B x S) + L_d kv(B x S) + sum over the n steps of (decoder(B, keys so far) + L_d cross(B))
    kv     [B S, H] x [H, 2 A D]: what the decoder sees of the sound, computed once
    cross  [B, H] x [H, A D], attention of one query over S keys, [B, A D] x [A D, H]

A batch is answered together. Not included: the two convolutions of the stem (0.5 % of the encoder's FLOP) and the spectrogram,
which the host computes.

vLLM captures no graph of such a model before version 0.13 (vllm-project/vllm pull request 30072); there a step of the decoder
takes at least the host's launch time,

    step >= iteration + L_d eager

with ``eager`` the mean of three published pairs of runs with and without graphs (:data:`EAGER_LAYER_S`).

Checked under vLLM 0.10.1: Whisper large v3 on a T4, 30 windows in flight, generates 478 tokens a second (vllm-project/vllm
issue 25172), 498 here. One stream on an RTX A5000 (issue 24946) was logged at 60 to 70 tokens a second of large v3 and 135 of
turbo: 43 and 307 here, 175 and 807 by an engine with graphs. Audio processing on the host is not modelled.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from gpuwise.errors import InputError
from gpuwise.facts.hardware.systems import Cluster, System, with_count
from gpuwise.facts.models.architecture import Architecture, Encoder
from gpuwise.interval import Z80
from gpuwise.predict.estimate import Estimate, weakest
from gpuwise.predict.kernels.attention.fused import attention_decode_time
from gpuwise.predict.kernels.attention.implementations import serving_kernel
from gpuwise.predict.kernels.conditions import SERVING
from gpuwise.predict.kernels.single import matmul
from gpuwise.serve.engines.costs import engine_costs
from gpuwise.serve.engines.engine import EngineConfig, version_number
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.iteration import iteration_time
from gpuwise.serve.iteration_kernels import half_format
from gpuwise.serve.load.targets import Target
from gpuwise.serve.passes.batches import BatchTimes
from gpuwise.serve.passes.kind import Model, PassKind, batches_that_fit
from gpuwise.units import MILLI
from gpuwise.workload.transformer.parameters import count_parameters
from gpuwise.workload.transformer.tables import encoder_side

WINDOW_S = 30.0
"""Seconds of sound per Whisper window (Radford et al. 2022, arXiv 2212.04356, section 2.2); shorter ones are padded."""
TOKENS_PER_WINDOW = 100
"""English is spoken at about 150 words a minute (National Center for Voice and Speech, ncvs.org), and a word is 4/3 of a token
(OpenAI, What are tokens and how to count them)."""
EAGER_LAYER_S = 0.72 * MILLI
"""Host time of one layer of a decoder that vLLM launches kernel by kernel. Qwen2.5-Omni-7B on A800: 22 ms a token in 28 layers
and 19.5 ms in 24 (vllm-project/vllm-omni issue 7960), Voxtral-Mini-4B on H200: 16.5 ms in 26 (vllm-project/vllm pull request
51167), less the iteration's own time; between 0.61 and 0.79. The operations of such a layer alone cost a quarter of it
(``predict.step.host_time``): most is the engine's Python around them."""
PROMPT_TOKENS = 4
"""Start, language, task, no timestamps (arXiv 2212.04356, figure 1)."""


SPEECH_TARGET = Target("e2e", 95.0, 1.0)
"""Default target of a speech window: a second does not interrupt the flow of thought (Nielsen, Usability Engineering, 1993,
section 5.5)."""


class Speech(PassKind):
    """Windows of sound that are written down."""

    workloads = ("speech",)
    versioned = True

    def target(self, workload: str) -> Target:
        return SPEECH_TARGET

    def takes(self, model: Model, workload: str) -> bool:
        return isinstance(model, Architecture) and (workload in self.workloads or reads_sound(model))

    def shape(self, model: Model, workload: str, tokens: int | None) -> tuple[str, int]:
        assert isinstance(model, Architecture)
        if not reads_sound(model):
            raise InputError(f"{model.name} does not read audio", hint="for example whisper-large-v3")
        if workload not in self.workloads:
            raise InputError(f"{model.name} reads audio, not text or images", hint="--workload speech")
        return "windows", min(tokens or TOKENS_PER_WINDOW, model.max_seq_len - PROMPT_TOKENS)

    def times(self, model: Model, cluster: Cluster, tokens: int, version: str | None) -> BatchTimes:
        assert isinstance(model, Architecture)
        return BatchTimes.of_estimates(batches(model, with_count(cluster.system, 1), tokens, version))


@lru_cache(4096)
def batches(arch: Architecture, system: System, tokens: int, version: str | None = None) -> tuple[tuple[int, Estimate], ...]:
    """Sizes that fit with their keys and values, and their seconds. Raises InputError where none does, UnpredictableError without
    a rate."""
    sizes = batches_that_fit(arch.name, system.accelerator, weight_bytes(arch, "bf16"), window_bytes(arch))
    config = EngineConfig(version=version)
    return tuple((b, speech_time(arch, system, config, b, tokens)) for b in sizes)


def reads_sound(arch: Architecture) -> bool:
    """Whether its encoder takes a spectrogram."""
    return arch.encoder is not None and arch.encoder.n_mels > 0


@lru_cache(maxsize=512)
def speech_time(arch: Architecture, system: System, config: EngineConfig, batch: int, tokens: int) -> Estimate:
    """Seconds in which ``batch`` windows are written down with ``tokens`` tokens each. Raises InputError for a model that reads
    no sound, UnpredictableError without a rate."""
    encoder = _encoder(arch)
    heard, written = _halves(arch)
    first = iteration_time(heard, system, config, batch, encoder.seq_len, encoder.seq_len)
    half_way = PROMPT_TOKENS + max(tokens // 2, 1)
    step = iteration_time(written, system, config, batch, 1, half_way)  # linear in the keys, so that the middle is the mean
    device, half = system.accelerator, half_format(system.accelerator)
    width, slowdown = arch.heads * arch.head_dim, engine_costs(config).kernel_slowdown
    shown = matmul(device, half, batch * encoder.seq_len, 2 * width, encoder.hidden, conditions=SERVING)
    asked = matmul(device, half, batch, width, arch.hidden, conditions=SERVING)
    out = matmul(device, half, batch, arch.hidden, width, conditions=SERVING)
    seen = attention_decode_time(
        device,
        half,
        batch,
        encoder.seq_len,
        arch.heads,
        arch.heads,
        arch.head_dim,
        kernel=serving_kernel(device, config.engine, "decode"),
    )
    cross_s = slowdown * arch.n_layers * float((asked.time_s + out.time_s + seen.time_s)[0])
    each = step.expected + cross_s
    if config.version is not None and version_number(config.version) < version_number(config.program.encoder_graphs_since):
        each = max(each, engine_costs(config).iteration_s + EAGER_LAYER_S * arch.n_layers)
    seconds = first.expected + slowdown * arch.n_layers * float(shown.time_s[0]) + tokens * each
    sigma = max(float(np.log(e.high / e.expected)) for e in (first, step)) / Z80
    return Estimate.from_log_sigma(seconds, sigma, weakest(first.basis, step.basis, seen.basis))


def speech_flop(arch: Architecture, tokens: int) -> float:
    """FLOP of one window that is written down with ``tokens`` tokens: both halves' products, and what the decoder makes and reads
    of the sound. Raises InputError for a model that reads no sound."""
    encoder = _encoder(arch)
    heard, written = _halves(arch)
    width, seen = arch.heads * arch.head_dim, encoder.seq_len
    read = 2.0 * count_parameters(heard).layers * seen + 4.0 * encoder.n_layers * seen**2 * encoder.heads * encoder.head_dim
    wrote = 2.0 * count_parameters(written).layers * tokens
    cross = 4.0 * seen * encoder.hidden * width + tokens * (4.0 * arch.hidden * width + 4.0 * seen * width)
    return read + wrote + arch.n_layers * cross


def window_bytes(arch: Architecture) -> float:
    """Bytes of a window in 16 bits: keys and values of input and output, and the encoder's buffers."""
    encoder = _encoder(arch)
    keys = arch.n_layers * 2 * arch.heads * arch.head_dim * (encoder.seq_len + arch.max_seq_len)
    return 2.0 * (keys + encoder.seq_len * (4 * encoder.hidden + 2 * encoder.ffn))


def _encoder(arch: Architecture) -> Encoder:
    if arch.encoder is None or not arch.encoder.n_mels:
        raise InputError(f"{arch.name} does not read audio", hint="for example whisper-large-v3")
    return arch.encoder


def _halves(arch: Architecture) -> tuple[Architecture, Architecture]:
    """The encoder and the decoder as models of their own."""
    encoder = _encoder(arch)
    heard = replace(encoder_side(arch, encoder), max_seq_len=encoder.seq_len, lm_head=False)
    return heard, replace(arch, kind="decoder", encoder=None)
