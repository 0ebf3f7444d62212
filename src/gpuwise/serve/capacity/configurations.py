"""Ways to run one replica of a model on a system: split, formats and an engine's own options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from gpuwise.errors import InputError, NoRoomError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster, System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.disaggregated import Disaggregation
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, ENGINES, Engine, EngineConfig, check_runs, tensor_parallel
from gpuwise.serve.engines.settings import FILTERED, Adapters, Drafts, Settings
from gpuwise.serve.formats import FORMAT_OF_BITS, FORMATS, width_of
from gpuwise.serve.load.load import Load
from gpuwise.serve.replica import most_ranks
from gpuwise.serve.simulate import Server
from gpuwise.serve.splits import check_device, check_split, in_tensor_group, tensor_degrees, why_refused
from gpuwise.serve.steady import largest, prompt_time
from gpuwise.workload.blocks.kinds import attention_of

SPLITS = (1, 2, 4, 8, 16)
"""Accelerators of one replica."""
STEP_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a step worth trying: fewer shorten the gaps that a long prompt makes, more read prompts faster."""
SEQUENCES = (16, 32, 64, 128, 256)
"""Sequences at once worth trying beside the engine's own limit: fewer answer each faster."""
MOST_STAGED = 3
"""Stages of tensor groups that are compared where nothing simpler has room: those on the fewest accelerators."""
SLOTS = (1, 2, 4, 8, 16, 32)
"""Numbers of llama.cpp slots to try."""
SLOW_LINKS = ("pcie", "single")
"""Topologies of hosts whose all-reduces are slow."""
AUTO = "auto"
"""In place of how many replicas read and how many write."""
MOST_APART = 8
"""Replicas of which some read and some write."""
USUAL_BITS = (16, 8)
"""8-bit weights answer like 16-bit ones (Kurtic et al., arXiv 2411.02355); narrower ones are a change of the model."""

WEIGHT_ONLY = re.compile(r"int(\d)_wo$")
"""Formats of weights alone: the products are of 16 bits."""


@dataclass(frozen=True)
class Configuration:
    """One replica: ``config`` splits and holds the model, ``settings`` are the engine's options where they are not its
    defaults."""

    arch: Architecture
    system: System
    config: EngineConfig
    settings: Settings
    slowdown: float = 1.0
    """Factor on all predicted times, learnt from measured loads."""
    apart: tuple[int, int] | None = None
    """Replicas that read prompts and replicas that write answers; None: each does both."""

    @property
    def ranks(self) -> int:
        """Accelerators of a replica; of all replicas that belong together where prompts are read apart."""
        return self.config.ranks * (1 if self.apart is None else sum(self.apart))

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight of the format of most weights."""
        return FORMATS[self.config.expert_weights or self.config.weights].bytes_per_weight

    @cached_property
    def served(self) -> Server | Disaggregation:
        """The server for a load."""
        return self.server if self.apart is None else Disaggregation(self.server, self.server, *self.apart)

    @cached_property
    def server(self) -> Server:
        """The simulated engine of this configuration."""
        return _server(self.arch, self.system, self.config, self.settings)

    @property
    def key(self) -> str:
        """The same for the same configuration: what answers are compared by."""
        return f"{self.system.id} {self.config} {self.settings} {self.apart or ''}".rstrip()

    @property
    def split(self) -> str:
        """``TP 4, 2 pipeline stages``: how a replica's accelerators share the model."""
        c = self.config
        parts = [f"TP {c.tp}" if c.tp > 1 else "one GPU" if c.ranks == 1 else ""]
        parts = [f"layers on {c.pp} in turn"] if c.pp > 1 and c.program.in_turn else [p for p in parts if p]
        if c.pp > 1 and not c.program.in_turn:
            parts.append(f"{c.pp} pipeline stages")
        if c.attention_dp > 1:
            parts.append(f"data-parallel attention {c.attention_dp}")
        if c.moe_ep > 1:
            parts.append(f"expert parallel {c.moe_ep}")
        return ", ".join(parts)

    @property
    def words(self) -> str:
        """``TP 4, fp8 weights, 2,048 tokens a step``: description of the settings that differ from the engine's defaults."""
        c, s = self.config, self.settings
        parts = [self.split] if self.split else []
        width = WEIGHT_ONLY.match(c.weights)
        weights = f"{width[1]}-bit weights ({c.weights})" if width else f"{c.weights} weights"
        parts.append(weights if c.expert_weights is None else f"{c.expert_weights} experts")
        if c.kv_dtype != "bf16":
            parts.append(f"{c.kv_dtype} cache")
        if s.max_num_batched_tokens is not None:
            parts.append(f"{s.max_num_batched_tokens:,} tokens a step")
        if s.max_num_seqs is not None:
            parts.append(c.program.places(s.max_num_seqs) if c.program.in_turn else f"{s.max_num_seqs:,} sequences at once")
        if s.chunked_prefill is False:
            parts.append("whole prompts")
        if s.prefix_caching is False:
            parts.append("no prefix cache")
        if s.drafts is not None:
            by = f" by {s.drafts.drafter}" if s.drafts.drafter else ""
            parts.append(f"speculative decoding of {s.drafts.tokens} tokens{by}")
        if s.eager:
            parts.append("no CUDA graphs")
        if s.adapters is not None:
            parts.append(f"{s.adapters.at_once} of {s.adapters.count:,} adapters at once")
        if self.apart is not None:
            parts.append(f"disaggregated, {self.apart[0]} prefill to {self.apart[1]} decode")
        return ", ".join(parts)

    def document(self) -> dict[str, object]:
        """JSON values: every option with its value."""
        o, c = self.server.options, self.config
        return {
            "engine": c.engine,
            "version": c.version,
            "system": self.system.id,
            "accelerators": self.ranks,
            "tensor_parallel": c.tp,
            "pipeline_parallel": c.pp,
            "attention_data_parallel": c.attention_dp,
            "expert_parallel": c.moe_ep,
            "weights": c.weights,
            "expert_weights": c.expert_weights or c.weights,
            "kv_dtype": c.kv_dtype,
            "max_num_batched_tokens": o.max_num_batched_tokens,
            "max_num_seqs": o.max_num_seqs,
            "memory_share": o.memory_share,
            "max_model_len": o.max_model_len,
            "chunked_prefill": o.chunked_prefill,
            "prefix_caching": o.prefix_caching,
            "eager": o.eager,
            "drafter": None if o.drafts is None else o.drafts.drafter_of(self.arch),
            "guessed_tokens": None if o.drafts is None else o.drafts.tokens,
            "kept_tokens": None if o.drafts is None else o.drafts.kept,
            "adapters": None if o.adapters is None else o.adapters.count,
            "adapters_at_once": None if o.adapters is None else o.adapters.at_once,
            "adapter_rank": None if o.adapters is None else o.adapters.rank,
        }


@lru_cache(maxsize=1024)
def _server(arch: Architecture, system: System, config: EngineConfig, settings: Settings) -> Server:
    """One server for equal configurations: its memory and step times are worked out once."""
    return Server(arch, system, config, settings)


@dataclass(frozen=True, slots=True)
class Requirements:
    """Options fixed by the user; None or empty leaves the choice to the search."""

    engine: str = DEFAULT_ENGINE
    version: str | None = None
    bits: tuple[int, ...] = USUAL_BITS
    tp: int | None = None
    kv_dtype: str = "bf16"
    context: int | None = None
    """Longest request in tokens (``max_model_len``)."""
    drafts: Drafts | None = None
    adapters: Adapters | None = None
    slowdown: float = 1.0
    """Measured over predicted times, learnt from measured loads."""
    pp: int | None = None
    """Pipeline stages; None: those that are worth trying."""
    ep: int | None = None
    """Ranks that share the experts, each with a copy of attention and its own sequences; None: those of a host."""
    eager: bool = False
    """Started without CUDA graphs."""
    apart: tuple[int, int] | str | None = None
    """Prefill replicas and decode replicas; :data:`AUTO`: balanced numbers."""
    form: str | None = None
    """Format of the weights, as wide as ``bits``; None: the engine's or the published one."""
    sampling: str = FILTERED
    """How a token is chosen, from :data:`~gpuwise.serve.engines.settings.SAMPLING`."""

    def __post_init__(self) -> None:
        from gpuwise.errors import UnknownNameError

        if not self.bits or not set(self.bits) <= set(FORMAT_OF_BITS):
            widths = ", ".join(str(b) for b in sorted(FORMAT_OF_BITS))
            raise InputError(f"no weights have {', '.join(map(str, self.bits)) or 'no'} bits", hint=f"known are {widths}")
        if self.engine not in ENGINES:
            raise UnknownNameError("serving engine", self.engine, ENGINES, hint="simulated are " + ", ".join(ENGINES))

    @property
    def program(self) -> Engine:
        """Facts and rules of the engine."""
        return ENGINES[self.engine]


@lru_cache(maxsize=256)
def layouts(arch: Architecture, system: System, most: int, wanted: Requirements) -> tuple[Configuration, ...]:
    """Every split over at most ``most`` accelerators in every allowed format that the engine supports, with its options as
    installed. Wider weights come first. Pipeline stages are those of a host; if no other split fits, every number of stages with
    every tensor group. Raises InputError if the engine supports the requested split in no format."""
    if wanted.ep is not None:
        return tuple(_expert_parallel(arch, system, most, wanted, wanted.ep))
    if wanted.program.in_turn:
        return tuple(_in_turn(arch, system, min(most, system.count), wanted))
    _check_stages(wanted)
    forms = tuple(_forms(arch, wanted))
    if wanted.tp is not None or wanted.pp is not None:
        splits = [replace(in_tensor_group(arch, form, wanted.tp or 1), pp=wanted.pp or 1) for form in forms]
        if all(why_refused(arch, split) for split in splits):
            check_split(arch, splits[-1], min(most, most_ranks(system)))
    found = [c for form in forms for c in splits_of(arch, system, most, wanted, form)]
    if not any(holds(c) for c in found):
        held = [c for form in forms for c in _stages_and_groups(arch, system, most, wanted, form) if holds(c)]
        found += sorted(held, key=lambda c: (_taken(c), -c.config.tp))[:MOST_STAGED]
    return tuple(found)


def _expert_parallel(arch: Architecture, system: System, most: int, wanted: Requirements, ranks: int) -> Iterator[Configuration]:
    """Experts over ``ranks``, of several hosts if need be, and attention apart on each."""
    if arch.moe is None or wanted.program.in_turn:
        what = arch.name if arch.moe is None else wanted.program.title
        raise InputError(f"{what} has no experts to share among {ranks} ranks", hint="leave --ep out")
    if wanted.tp not in (None, 1) or wanted.pp not in (None, 1):
        raise InputError("--ep and --tp or --pp are two splits", hint="leave one of them out")
    if ranks > most:
        raise NoRoomError(
            f"{ranks} ranks that share the experts, and {most} accelerators", hint="more accelerators, or a smaller --ep"
        )
    if ranks > system.count and ranks % system.count:
        raise InputError(f"{ranks} ranks do not fill hosts of {system.count}", hint=f"give a multiple of {system.count}")
    if arch.moe.n_experts % ranks:
        raise InputError(f"{arch.moe.n_experts} experts do not divide over {ranks} ranks", hint="choose a divisor of the experts")
    for form in _forms(arch, wanted):
        split = replace(form, tp=1, attention_dp=ranks, moe_tp=1, moe_ep=ranks)
        yield from _made(arch, system, wanted, split)


def device_refusal(arch: Architecture, system: System, wanted: Requirements) -> InputError | None:
    """Why the accelerator runs the model in none of the allowed formats; None where it does in one."""
    why: InputError | None = None
    for form in () if wanted.program.in_turn else _forms(arch, wanted):
        try:
            check_device(arch, system.accelerator, form)
            return None
        except InputError as error:
            why = error
    return why


def _taken(configuration: Configuration) -> int:
    """Accelerators that a replica takes: of whole hosts where it is spread over several."""
    ranks, count = configuration.ranks, configuration.system.count
    return ranks if ranks <= count else -(-ranks // count) * count


def _check_stages(wanted: Requirements) -> None:
    """Raises InputError for pipeline stages that are not simulated."""
    if wanted.pp in (None, 1):
        return
    if not wanted.program.stages:
        able = ", ".join(e.name for e in ENGINES.values() if e.stages)
        raise InputError(f"pipeline stages are simulated under {able}", hint=f"take --engine {DEFAULT_ENGINE}")
    if wanted.drafts is not None or wanted.adapters is not None:
        raise InputError("speculative decoding and adapters are not simulated over pipeline stages", hint="leave --pp out")


def _forms(arch: Architecture, wanted: Requirements) -> Iterator[EngineConfig]:
    """Every format allowed, on one accelerator."""
    for bits in sorted(wanted.bits, reverse=True):
        for weights, expert_weights in _formats(arch, bits, wanted):
            form = replace(tensor_parallel(arch, weights, 1, wanted.engine), expert_weights=expert_weights)
            yield replace(form, version=wanted.version, kv_dtype=wanted.kv_dtype)


def _made(arch: Architecture, system: System, wanted: Requirements, config: EngineConfig) -> Iterator[Configuration]:
    """``config`` with the engine's options as installed; nothing where the engine does not start with it."""
    if not why_refused(arch, config):
        settings = Settings(
            max_model_len=wanted.context,
            drafts=wanted.drafts,
            adapters=wanted.adapters,
            eager=wanted.eager,
            sampling=wanted.sampling,
        )
        yield Configuration(arch, system, config, settings, wanted.slowdown)


def splits_of(arch: Architecture, system: System, most: int, wanted: Requirements, form: EngineConfig) -> Iterator[Configuration]:
    """The splits of one format that are tried first: tensor groups over powers of two, and stages of them."""
    splits = [n for n in (SPLITS if wanted.tp is None else (wanted.tp,)) if n <= min(most, most_ranks(system))]
    for n, pp in _usual_stages(system, most, wanted, splits):
        yield from _made(arch, system, wanted, replace(in_tensor_group(arch, form, n), pp=pp))
    for n in splits if wanted.pp in (None, 1) else ():
        plain = in_tensor_group(arch, form, n)
        yield from _made(arch, system, wanted, plain)
        if arch.moe is not None and n > 1:
            experts = replace(plain, moe_tp=1, moe_ep=n)
            yield from _made(arch, system, wanted, experts)
            if not attention_of(arch).shared_heads(
                arch
            ):  # every rank of a tensor group would hold the whole of its one latent head's cache
                yield from _made(arch, system, wanted, replace(experts, tp=1, attention_dp=n))


def _usual_stages(system: System, most: int, wanted: Requirements, splits: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Tensor groups and how many of them in turn."""
    if wanted.pp not in (None, 1):
        yield from ((n, wanted.pp) for n in splits if n * wanted.pp <= most)
    elif wanted.pp is None and _may_stage(wanted):
        yield from ((n, pp) for n in splits for pp in stage_counts(min(most, system.count) // n))


def stage_counts(groups: int) -> tuple[int, ...]:
    """Numbers of pipeline stages that share ``groups`` tensor groups out among replicas, with no room for one more stage each."""
    return tuple(sorted({groups // copies for copies in range(1, groups // 2 + 1)}))


def _may_stage(wanted: Requirements) -> bool:
    """Whether pipeline stages can be simulated with the requested options."""
    return wanted.program.stages and wanted.drafts is None and wanted.adapters is None


def _stages_and_groups(
    arch: Architecture, system: System, most: int, wanted: Requirements, form: EngineConfig
) -> Iterator[Configuration]:
    """Every tensor group with every number of stages, each group within a host."""
    degrees = tensor_degrees(arch, form, min(most, most_ranks(system)))
    for n in degrees if wanted.tp is None else (wanted.tp,):
        for pp in (range(1, most // n + 1) if _may_stage(wanted) else (1,)) if wanted.pp is None else (wanted.pp,):
            inside = n * pp <= system.count or system.count % n == 0 or pp == 1
            if n * pp <= most and inside:
                yield from _made(arch, system, wanted, replace(in_tensor_group(arch, form, n), pp=pp))


def holds(configuration: Configuration) -> bool:
    """Whether a replica's weights are of a format that its accelerators run, and leave room for a cache."""
    try:
        check_device(configuration.arch, configuration.system.accelerator, configuration.config)
        return configuration.server.memory.tokens > 0
    except InputError:
        return False


def _in_turn(arch: Architecture, system: System, most: int, wanted: Requirements) -> Iterator[Configuration]:
    """Layers in turn on as few devices as hold them, in every number of slots worth trying."""
    engine = wanted.engine
    check_runs(system.accelerator, wanted.program)
    most = min(most, wanted.program.in_turn)
    if wanted.drafts is not None or wanted.adapters is not None:
        raise InputError(
            f"speculative decoding and adapters are not simulated under {engine}", hint=f"take --engine {DEFAULT_ENGINE}"
        )
    if wanted.eager:
        raise InputError(f"--enforce-eager is not an option of {engine}", hint="leave it out, or take vllm, sglang or trtllm")
    if wanted.sampling != FILTERED:
        raise InputError(f"--sampling is not simulated under {engine}", hint=f"leave it out, or take --engine {DEFAULT_ENGINE}")
    if wanted.kv_dtype != "bf16":
        raise InputError(f"{engine}'s cache is simulated in 16 bits", hint="leave --kv-cache out")
    if wanted.tp not in (None, 1):
        raise InputError(f"{engine} splits layers, not tensors", hint="leave --tp out")
    if wanted.pp not in (None, 1):
        raise InputError(f"{engine}'s layers are spread over as few devices as hold them", hint="leave --pp out")
    narrow = next((f for f in wanted.program.formats if f.lower() == arch.published_experts), None)  # no other files of it
    for bits in sorted(wanted.bits, reverse=True) if narrow is None else (min(wanted.bits),):
        usual = wanted.program.by_bits[bits] if narrow is None or (bits >= 8 and wanted.bits != USUAL_BITS) else narrow
        weights = wanted.form or usual
        for n in (n for n in SPLITS if n <= most):
            config = EngineConfig(engine, weights, kv_dtype=wanted.kv_dtype, pp=n, version=wanted.version)
            plain = Configuration(arch, system, config, Settings(max_model_len=wanted.context, max_num_seqs=1), wanted.slowdown)
            try:
                _ = plain.server.memory
            except InputError:
                if n < most:
                    continue
                yield plain  # reports by how much it does not fit
                break
            for slots in SLOTS:
                yield replace(plain, settings=replace(plain.settings, max_num_seqs=slots))
            break


def published_format(arch: Architecture) -> tuple[str, str | None] | None:
    """Formats of matrices and of routed experts in the published checkpoint; None: 16 bits."""
    if arch.published_weights is None and arch.published_experts is None:
        return None
    return arch.published_weights or "bf16", arch.published_experts


def _formats(arch: Architecture, bits: int, wanted: Requirements) -> Sequence[tuple[str, str | None]]:
    """Formats of the given width, of matrices and of routed experts (None: the same). A model published in narrow weights is
    served in them only, unless other widths were requested; 8-bit weights of other models with many experts are published in
    blocks too."""
    if wanted.form is not None:
        return [(wanted.form, None)]
    allowed, published = wanted.bits, published_format(arch)
    if published is not None and (allowed == USUAL_BITS or bits == width_of(published[1] or published[0])):
        return (published,) if allowed != USUAL_BITS or bits == min(allowed) else ()
    plain: list[tuple[str, str | None]] = [(wanted.program.by_bits[bits], None)]
    return [*plain, ("fp8_block", None)] if bits == 8 and arch.moe is not None else plain


def refined(configuration: Configuration) -> Iterator[Configuration]:
    """``configuration`` with one option of the engine changed."""
    options, settings = configuration.server.options, configuration.settings
    if configuration.config.program.in_turn:  # its slots were tried with the layouts
        return
    for tokens in STEP_TOKENS:
        if tokens != options.max_num_batched_tokens:
            sequences = min(options.max_num_seqs or tokens, tokens)
            changed = replace(settings, max_num_batched_tokens=tokens, max_num_seqs=settings.max_num_seqs and sequences)
            yield replace(configuration, settings=changed)
    for sequences in SEQUENCES:
        if sequences < (options.max_num_seqs or 0):
            yield replace(configuration, settings=replace(settings, max_num_seqs=sequences))


def other_steps(configuration: Configuration) -> Iterator[Configuration]:
    """``configuration`` with an eighth to twice the tokens of its step: shorter ones keep more pipeline stages busy and answer
    sooner, longer ones read prompts faster."""
    tokens = configuration.server.options.max_num_batched_tokens or 0
    for changed in refined(configuration):
        if tokens / 8 <= (changed.settings.max_num_batched_tokens or 0) <= 2 * tokens:
            yield changed


def copies_apart(configuration: Configuration, load: Load, most: int) -> tuple[int, int] | None:
    """Split of ``most`` replicas into prefill and decode replicas so that neither waits for the other by their closed forms;
    None for fewer than two replicas, or if disaggregation is not simulated for the engine."""
    server = configuration.server
    c, s = configuration.config, configuration.settings
    if most < 2 or not server.reads_apart:
        return None
    if s.adapters is not None or c.pp > 1:
        return None
    requests = load.at(1.0, 600)
    prompt, output = (max(round(float(x.mean())), 1) for x in (requests.prompt_tokens, requests.output_tokens))
    try:
        reads = 1.0 / prompt_time(server, prompt).expected
        writes = largest(server, 1, output).requests_per_s
    except (InputError, UnpredictableError):
        return None
    ratios = [(p, d) for p in range(1, most) for d in range(1, most - p + 1)]
    return max(ratios, key=lambda r: min(r[0] * reads, r[1] * writes) / sum(r))


def read_apart(
    every: Iterable[Configuration], load: Load, cluster: Cluster, apart: tuple[int, int] | str
) -> Iterator[Configuration]:
    """Each of ``every`` with the given numbers of prefill and decode replicas, as far as they fit in the cluster. Raises
    NoRoomError if none fits."""
    count = 0
    for configuration in every:
        most = cluster.n_accelerators // configuration.ranks
        ratio = copies_apart(configuration, load, min(most, MOST_APART)) if isinstance(apart, str) else apart
        if ratio is None or sum(ratio) > most:
            continue
        count += 1
        yield replace(configuration, apart=ratio)
    if not count:
        raise NoRoomError(
            f"no separate prefill and decode replicas fit {cluster.label}",
            hint="more GPUs, and vllm or sglang without adapters or pipeline stages",
        )
