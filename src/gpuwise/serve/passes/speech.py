"""Batched speech recognition: an encoder over each window of sound, then a decoder that attends to it at every token, and the
host's part of the program that runs them.

For B windows of S encoded tokens (1,500 for 30 s), n output tokens each, k hypotheses a window, L decoder layers of hidden size H
and A heads of size D:

    t(B) = window B + search sound + s first + m (max(s step, eager step + eager layer L) + iteration + gap L + sequence B k)
    first = encoder(B x S) + L kv(B x S)           step = decoder(B k, keys so far) + L cross(B)
    kv     [B S, H] x [H, 2 A D]: what the decoder sees of the sound, computed once
    cross  [B k, H] x [H, A D], attention of one query over S keys, [B k, A D] x [A D, H]

``window`` is what the host does for each window: reading the sound, its spectrogram, the text of its tokens. ``search`` is what
looking for speech takes, for each second of sound. A decoder that is launched kernel by kernel takes at least the host's
``eager`` times; one in graphs adds its gaps. Where a batch ends with its longest transcript, ``m`` is the expected longest of B:

    m = n (1 + w z),  z the quantile 1 - 1 / (2 B) of a normal distribution

Serving engines have the costs of :class:`gpuwise.serve.engines.costs.EngineCosts`; the others, every ``window``, ``search`` and
``w`` are fitted on published transcriptions (``coefficients/serving/speech.json``, :mod:`studies.serving.speech_fit`), the host's
as of :data:`HOST_YEAR`. Hosts differ more than kernels do, so the interval widens with the host's share of the time. Not
included: the two convolutions of the stem (0.5 % of the encoder's FLOP), start-up, and windows that are written again at a higher
temperature.

vLLM captures no graph of such a model before version 0.13 (vllm-project/vllm pull request 30072); there a step of the decoder
takes at least the host's launch time, :data:`EAGER_LAYER_S` a layer, the mean of three published pairs of runs with and without
graphs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, System, with_count
from gpuwise.facts.models.architecture import Architecture, Encoder
from gpuwise.facts.software.speech_programs import SpeechProgram, find_speech_program, speech_programs
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.predict.kernels.attention.fused import attention_decode_time
from gpuwise.predict.kernels.attention.implementations import serving_kernel
from gpuwise.predict.kernels.conditions import SERVING
from gpuwise.predict.kernels.single import matmul
from gpuwise.serve.engines.costs import engine_costs
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, ENGINES, EngineConfig, version_number
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.iteration import one_iteration
from gpuwise.serve.iteration_kernels import half_format
from gpuwise.serve.load.targets import Target
from gpuwise.serve.passes.batches import BatchTimes
from gpuwise.serve.passes.host import host_pace
from gpuwise.serve.passes.kind import AS_USUAL, How, Model, PassKind, Way, batches_that_fit
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
HOST_YEAR = 2020
"""Year of the machines that the host's costs are for: that of the A100 (:func:`gpuwise.serve.passes.host.host_pace`)."""
PROMPT_TOKENS = 4
"""Start, language, task, no timestamps (arXiv 2212.04356, figure 1)."""


SPEECH_TARGET = Target("e2e", 95.0, 3.3)
"""Default target of a speech window: the mean delay of live subtitles by Whisper-Streaming (arXiv 2307.14743)."""


class Speech(PassKind):
    """Windows of sound that are written down."""

    workloads = ("speech",)

    def check(self, how: How, workload: str) -> None:
        if how.draws:
            super().check(replace(how, program=DEFAULT_ENGINE, version=None), workload)
        if find_speech_program(how.program).runtime not in ENGINES and how.version:
            raise InputError(f"--engine {how.program}@{how.version}: a version has no effect here", hint="leave it out")

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

    def ways(self, model: Model, accelerator: Accelerator, tokens: int) -> Iterator[Way]:
        assert isinstance(model, Architecture)
        needed = weight_bytes(model, "bf16") + window_bytes(model)
        for program in sorted(speech_programs().values(), key=lambda p: p.runtime in ENGINES):
            if program.runs_on(accelerator.vendor):
                yield Way(program.name, How(program.id), needed)

    def times(self, model: Model, cluster: Cluster, tokens: int, how: How = AS_USUAL) -> BatchTimes:
        assert isinstance(model, Architecture)
        program, accelerator = find_speech_program(how.program), cluster.accelerator
        if not program.runs_on(accelerator.vendor):
            raise InputError(
                f"{program.name} does not run on {accelerator.name}",
                hint=f"it runs on {' and '.join(program.vendors)}; --engine whisper.cpp or transformers",
            )
        return BatchTimes.of_estimates(batches(model, with_count(cluster.system, 1), tokens, how.program, how.version))


@lru_cache(4096)
def batches(
    arch: Architecture, system: System, tokens: int, program: str = DEFAULT_ENGINE, version: str | None = None
) -> tuple[tuple[int, Estimate], ...]:
    """Sizes that fit with their keys and values, and their seconds under ``program``. Raises InputError where none does,
    UnpredictableError without a rate, UnknownNameError for an unknown program."""
    sizes = batches_that_fit(arch.name, system.accelerator, weight_bytes(arch, "bf16"), window_bytes(arch))
    runs = find_speech_program(program)
    most = [b for b in sizes if not runs.most or b <= runs.most]
    return tuple((b, speech_time(arch, system, runs, b, tokens, version=version)) for b in most)


def reads_sound(arch: Architecture) -> bool:
    """Whether its encoder takes a spectrogram."""
    return arch.encoder is not None and arch.encoder.n_mels > 0


@dataclass(frozen=True, slots=True)
class SpeechCosts:
    """What a program adds to the kernels of a batch."""

    kernel_slowdown: float
    window_s: float
    """Host, each window."""
    search_s: float = 0.0
    """Host, each second of sound in which speech is looked for."""
    eager_step_s: float = 0.0
    eager_layer_s: float = 0.0
    """Host, each step and each of its layers: hidden where the kernels take longer."""
    iteration_s: float = 0.0
    layer_s: float = 0.0
    sequence_s: float = 0.0
    """Beside the kernels of each step: as :class:`gpuwise.serve.engines.costs.EngineCosts`."""
    longest_spread: float = 0.0
    """Standard deviation of the tokens of the windows of a batch that waits for its longest, over their mean."""

    def on_host(self, pace: float) -> SpeechCosts:
        """On a host that takes ``pace`` times as long."""
        host = {name: pace * getattr(self, name) for name in ("window_s", "search_s", "eager_step_s", "eager_layer_s")}
        return replace(self, **host)


@dataclass(frozen=True, slots=True)
class SpeechWork:
    """Seconds of the kernels of a batch, and what the host counts."""

    first_s: float
    """Encoder, and the keys and values that the decoder sees of it."""
    step_s: float
    tokens: float
    windows: int
    beams: int
    layers: int
    sound_s: float
    log_sigma: float
    basis: Basis

    def seconds(self, costs: SpeechCosts) -> tuple[float, float]:
        """Seconds of the batch, and those of them that are the host's."""
        spread = costs.longest_spread * NormalDist().inv_cdf(1.0 - 0.5 / self.windows) if self.windows > 1 else 0.0
        steps = self.tokens * (1.0 + spread)
        kernels = costs.kernel_slowdown * self.step_s
        eager = costs.eager_step_s + costs.eager_layer_s * self.layers
        gaps = costs.iteration_s + costs.layer_s * self.layers + costs.sequence_s * self.windows * self.beams
        waits = eager > kernels
        host = costs.window_s * self.windows + costs.search_s * self.sound_s + steps * (gaps + (eager if waits else 0.0))
        return host + costs.kernel_slowdown * self.first_s + (0.0 if waits else steps * kernels), host


@lru_cache(maxsize=4096)
def speech_work(
    arch: Architecture, system: System, program: SpeechProgram, batch: int, tokens: int, sound_s: float, beams: int
) -> SpeechWork:
    """The kernels of ``batch`` windows that are written down with ``tokens`` tokens each, ``sound_s`` seconds of sound together.
    Raises InputError for a model that reads no sound, UnpredictableError without a rate."""
    encoder = _encoder(arch)
    heard, written = _halves(arch)
    config = EngineConfig(program.runtime) if program.runtime in ENGINES else EngineConfig()
    first = one_iteration(heard, system, config, batch, encoder.seq_len, encoder.seq_len)
    half_way = PROMPT_TOKENS + max(tokens // 2, 1)
    rows = batch * beams
    step = one_iteration(written, system, config, rows, 1, half_way)  # linear in the keys, so that the middle is the mean
    device, half, width = system.accelerator, half_format(system.accelerator), arch.heads * arch.head_dim
    shown = matmul(device, half, batch * encoder.seq_len, 2 * width, encoder.hidden, conditions=SERVING)
    asked = matmul(device, half, rows, width, arch.hidden, conditions=SERVING)
    out = matmul(device, half, rows, arch.hidden, width, conditions=SERVING)
    seen = attention_decode_time(
        device,
        half,
        batch,
        encoder.seq_len,
        arch.heads,
        arch.heads,
        arch.head_dim,
        kernel=serving_kernel(device, config.measured_as, "decode"),
    )
    return SpeechWork(
        first_s=float(first.kernels_s[0] + arch.n_layers * shown.time_s[0]),
        step_s=float(step.kernels_s[0] + arch.n_layers * (asked.time_s + out.time_s + seen.time_s)[0]),
        tokens=tokens,
        windows=batch,
        beams=beams,
        layers=arch.n_layers,
        sound_s=sound_s,
        log_sigma=float(max(first.log_sigma[0], step.log_sigma[0])),
        basis=weakest(first.basis, step.basis, seen.basis),
    )


def speech_costs(program: SpeechProgram, year: int, batch: int, version: str | None = None) -> SpeechCosts:
    """The fitted costs of ``program`` for batches of ``batch`` windows on a machine of ``year``; of a serving engine those of its
    ``version`` (None: the newest)."""
    document = load_json("speech")
    costs = SpeechCosts(**document["costs"][program.runtime])
    costs = replace(costs, longest_spread=document["longest_spread"] if program.waits else 0.0)
    costs = replace(costs, search_s=costs.search_s if program.searches and batch > 1 else 0.0)
    costs = costs.on_host(host_pace(year, HOST_YEAR))
    if program.runtime not in ENGINES:
        return costs
    engine = ENGINES[program.runtime]
    of = engine_costs(EngineConfig(engine.name, version=version))
    old = version is not None and version_number(version) < version_number(engine.encoder_graphs_since)
    return replace(
        costs,
        kernel_slowdown=of.kernel_slowdown,
        iteration_s=of.iteration_s,
        layer_s=of.layer_s,
        sequence_s=of.sequence_s,
        eager_layer_s=EAGER_LAYER_S if old else 0.0,
    )


def speech_time(
    arch: Architecture,
    system: System,
    program: SpeechProgram,
    batch: int,
    tokens: int,
    *,
    version: str | None = None,
    beams: int | None = None,
    sound_s: float | None = None,
) -> Estimate:
    """Seconds in which ``batch`` windows are written down with ``tokens`` tokens each, ``sound_s`` seconds of sound in all (None:
    of a long recording). Raises as :func:`speech_work`."""
    sound = batch * program.advance_s if sound_s is None else sound_s
    work = speech_work(arch, system, program, batch, tokens, sound, beams or program.beams)
    seconds, host = work.seconds(speech_costs(program, system.accelerator.year, batch, version))
    sigmas = load_json("speech")["log_sigma"]
    share = host / seconds
    sigma = math.hypot((1.0 - share) * max(sigmas["kernels"], work.log_sigma), share * sigmas["host"])
    return Estimate.from_log_sigma(seconds, sigma, weakest(work.basis, "fitted"))


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
