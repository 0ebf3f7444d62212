"""Serving engines: properties (:class:`Engine`, one file each), and how an engine stores and splits a model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.stored import check_agrees
from gpuwise.facts.software.support import support_of
from gpuwise.predict.memory.kv_cache import PAGED, CacheLayout
from gpuwise.serve.engines.settings import DRAFTERS, EngineRules, Settings
from gpuwise.serve.formats import ENGINE_FORMATS, FORMAT_OF_BITS, FORMATS, asked_weights, gguf_format, width_of

DEFAULT_ENGINE = "vllm"
LOCAL_ENGINE = "llama.cpp"
"""Engine for one sequence where the default engine does not run, or does not read the weights."""
HEAD = "HEAD"
"""In place of the address of the first of several hosts."""
PORT = 8000
"""Default port of the server."""
DRAFT = "DRAFT-OF-THE-MODEL"
"""In place of the checkpoint of a draft, which is the model's own."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A format that an engine reads ``since`` a version, from ``plugin_since`` on with a package of its own."""

    since: str
    plugin_since: str
    plugin: str


class Engine:
    """Properties that differ between engines. A subclass in a separate file sets the values."""

    name: str
    title: str
    """Name as its developers write it."""
    aliases: tuple[str, ...] = ()
    newest: str
    """The release whose files were read last."""
    rules: EngineRules | None = None
    """Rules of every release; None: per release in the TOML file beside the engine's."""
    like: str = ""
    """Engine whose releases and fitted costs stand for its own; empty: it has its own."""
    formats: tuple[str, ...] = ENGINE_FORMATS
    """Weight formats that it multiplies by as they are stored."""
    unpacked: Mapping[str, Unpacked] = {}
    """Weight formats of other programs that it reads in kernels of their own."""
    by_bits: Mapping[int, str] = FORMAT_OF_BITS
    """Format for a given width of the weights."""
    quantization: Mapping[str, str] = {}
    """Weight formats that it makes itself while loading, by the value of ``--quantization``; others come as a checkpoint."""
    checkpoint: str = ""
    """Input the user must provide in every format, with ``{model}`` and ``{weights}``; empty: a checkpoint, if the published
    one has another format."""
    cache: CacheLayout = PAGED
    within_cache: bool = False
    """It starts with no longer a context than its cache holds."""

    served_as: str = ""
    """Model name in requests; empty: the checkpoint's."""
    stages: bool = False
    """Its pipeline stages are simulated."""
    in_turn: int = 0
    """Maximum number of devices over which layers are split in sequence (no tensor parallelism): ``pp`` is their number, and
    each sequence has a separate context. 0: an engine with tensor parallelism."""
    place: str = "slot"
    """Its term for a concurrent sequence with a separate context."""
    spread_words: tuple[str, ...] = ()
    """Flags of experts on several hosts: all-to-all kernels, experts placed by load, two batches in turn."""
    streams: str = ""
    """Coefficients of whole batches (:mod:`gpuwise.serve.streams`); empty: kernels and the engine's costs beside them."""
    prompt_batch: int = 512
    """Tokens of a prompt that are computed at once, where ``streams`` are."""
    buffer_bytes: float = 4.0
    """Bytes per number in the buffers of such a batch."""
    listed_only: bool = False
    """It runs on no other accelerators than its support tables list."""
    vocabulary_step: int = 0
    """Rows of the embedding are padded to a multiple of it and have to divide by the ranks; 0: padded as needed."""
    refused_in_fp16: tuple[str, ...] = ()
    """Families of models that it does not run in fp16, where they overflow."""
    fp8_cache_since: tuple[int, int] = (0, 0)
    """Compute capability of NVIDIA's GPUs from which it writes the cache in fp8."""
    encoder_graphs_since: str = ""
    """Version from which decoders that read an encoder run in graphs; empty: always."""

    expert_kernels: Mapping[str, tuple[str, ...]] = {}
    """Expert kernels by format, in order of preference: the first that was measured on the device's family counts, or the
    family's default kernel."""
    flashinfer_experts: Mapping[str, str] = {}
    """By format, the version since which it uses FlashInfer's experts by default; before, Triton's."""
    padded_experts: Mapping[str, tuple[str, str]] = {}
    """By format, the versions from and before which experts run in DeepGEMM, which pads the rows of each expert."""
    fp8_experts_in_blocks: tuple[str, ...] = ()
    """Families on which 8-bit experts run in the kernels of block scales."""
    mxfp8_experts: tuple[str, ...] | None = None
    """Families on which MXFP4 experts are multiplied in 8 bits; None: all that have the rate."""
    marlin_experts: bool = False
    """MXFP4 experts run in Marlin on NVIDIA's devices where its own kernel was not measured."""
    sorts_expert_rows: bool = False
    """A rank multiplies its own rows of experts alone."""

    @property
    def whole_steps(self) -> bool:
        """Whether seconds of whole batches are predicted."""
        return bool(self.streams)

    script: str = ""
    """Name of the start script of ``gpuwise export``; empty: not supported."""

    def places(self, n: int) -> str:
        """``one slot``, ``4 slots``."""
        return f"one {self.place}" if n == 1 else f"{n} {self.place}s"

    def reads(self, form: str) -> bool:
        """Whether it reads weights in ``form``."""
        return form in self.formats or form in self.unpacked

    def static_share(self, accelerator: Accelerator, tokens: int, graph_most: int, tp: int) -> float:
        """Share of the device for weights and cache, of an engine that works it out; ``graph_most`` is the largest batch with a
        graph. Raises InputError."""
        raise InputError(f"{self.name} has no share of memory", hint="say memory_share")

    def words(self, start: Start) -> list[str]:
        """The command that starts one replica on one host."""
        raise NotImplementedError

    def file(self, start: Start) -> tuple[str, str] | None:
        """Name and text of a configuration that the command reads."""
        return None

    def on_hosts(self, start: Start, hosts: int, note: str) -> tuple[Command, ...]:
        """The commands of one replica over several hosts, one on each."""
        where = f"{HEAD} is the address of the first host" + (f"; {note}" if note else "")
        spread = self.spread_words if start.config.attention_dp > 1 and start.config.moe_ep > 1 else ()
        words = [*self.words(start), *spread, "--nnodes", str(hosts), "--node-rank"]
        return tuple(
            Command(
                f"{self.name}, host {i + 1} of {hosts}",
                shlex.join([*words, str(i), *self.host_words(i)]),
                "" if i else where,
            )
            for i in range(hosts)
        )

    def host_words(self, host: int) -> list[str]:
        """Additional words of the command on each of several hosts."""
        return []

    def part(self, start: Start, role: str, number: int, port: int, host: str) -> tuple[str, list[str]]:
        """Variables and command of the ``number``-th replica that only reads prompts (``prefill``) or only writes answers
        (``decode``); ``host`` is empty on one host."""
        raise NotImplementedError

    def router(self, parts: Mapping[str, Sequence[tuple[str, int]]]) -> Command:
        """The router in front of such replicas; hosts and ports by role."""
        raise NotImplementedError


ENGINES: dict[str, Engine] = {}
"""Engines by name; filled by :mod:`gpuwise.serve.engines`."""


def engine_name(text: str) -> str:
    """The name of the engine that is also called ``text``; other names are returned as they are."""
    return next((e.name for e in ENGINES.values() if text in e.aliases), text)


def engine_of(weights: str) -> Engine:
    """Engine for weights of a format: the default engine if it reads them, else the first that does."""
    default = ENGINES[DEFAULT_ENGINE]
    return (
        default
        if default.reads(weights) and not FORMATS[weights].local
        else next(e for e in ENGINES.values() if weights in e.formats)
    )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine holds and splits a model.

    Dense weights are split over ``tp``; ``attention_dp`` groups of ``tp`` ranks each hold all of the
    attention and serve their share of the sequences. Experts are split ``moe_tp`` ways inside and ``moe_ep``
    ways among ranks; ``moe_tp * moe_ep`` is ``tp * attention_dp``.
    """

    engine: str = DEFAULT_ENGINE
    weights: str = "bf16"
    expert_weights: str | None = None
    """None: as ``weights``."""
    kv_dtype: str = "bf16"
    tp: int = 1
    pp: int = 1
    """Pipeline stages that hold layers in turn: under llama.cpp its devices."""
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    tuned: bool = True
    """Started with the flags of a performance recipe (kernel choice, graphs, scheduling); False: as
    installed."""
    attention: str | None = None
    """Kernel of the prompt's attention (``fa2``, ``fa3``, ``cudnn``); None: the one the engine picks."""
    experts: str | None = None
    """Kernels of experts: ``triton``, or ``flashinfer`` where it was asked for before it was the default; None: those that the
    engine picks at its version."""
    version: str | None = None
    """Version of the engine (``0.19.0``); None: the newest with known costs."""

    def __post_init__(self) -> None:
        program = self.program
        for name in (self.weights, self.expert_weights or self.weights):
            if not program.reads(name):
                formats = ", ".join(program.formats)
                raise UnknownNameError("weight format", name, program.formats, hint=f"it is one of {formats}")
            unpacked = program.unpacked.get(name)
            if unpacked is not None and version_number(self.version or program.newest) < version_number(unpacked.since):
                raise InputError(
                    f"{program.title} {self.version} reads no {name} weights: it begins with {unpacked.since}",
                    hint=f"take {self.engine}@{unpacked.since} or newer",
                )
        if self.pp > 1 and not program.in_turn and (not program.stages or self.attention_dp > 1):
            raise InputError(
                f"pipeline stages of {self.engine} are not simulated" + (" in groups" if program.stages else ""),
                hint=f"split with tp, or take {DEFAULT_ENGINE}",
            )
        if program.in_turn and self.tp * self.attention_dp > 1:
            raise InputError(f"{self.engine}'s layers are on its devices in turn", hint="pp is the number of devices")
        if program.in_turn and self.pp > program.in_turn:
            most = "one device" if program.in_turn == 1 else f"{program.in_turn} devices"
            raise InputError(f"{self.engine} runs on {most} at most", hint="pp is the number of devices")

    @property
    def program(self) -> Engine:
        """The engine's facts and rules."""
        engine = ENGINES.get(self.engine)
        if engine is None:
            raise UnknownNameError("serving engine", self.engine, ENGINES)
        return engine

    @property
    def measured_as(self) -> str:
        """The engine whose measurements stand for it."""
        return self.program.like or self.engine

    @property
    def ranks(self) -> int:
        """Accelerators of one replica."""
        return self.tp * self.pp * self.attention_dp


@dataclass(frozen=True, slots=True)
class Start:
    """Arguments of a start command: ``model`` is its name at the Hugging Face hub, if any; ``half`` requests fp16 instead of
    bf16."""

    model: str
    arch: Architecture
    config: EngineConfig
    options: Settings
    context: int
    """Longest request in tokens."""
    half: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command line with what one has to know of it; ``file`` is a configuration it reads, as (name, text)."""

    name: str
    line: str
    note: str = ""
    file: tuple[str, str] | None = None


def drafter_path(drafter: str) -> str:
    """The model that an engine loads as ``drafter``: a placeholder for the user's own head, or a model by name."""
    from gpuwise.facts.models.catalogue import find_model

    return DRAFT if drafter in DRAFTERS else model_name(find_model(drafter))


def model_name(arch: Architecture) -> str:
    """The repository of the checkpoint, the id if unknown."""
    return next((name for name in arch.aliases if "/" in name), arch.id)


def tensor_parallel(arch: Architecture, weights: str, ranks: int, engine: str = DEFAULT_ENGINE) -> EngineConfig:
    """``arch`` split over ``ranks`` accelerators as the engine does by default, with tensor-parallel experts; in a format that
    its checkpoint has of experts alone, the rest as published. Raises UnknownNameError."""
    form = (arch.published_weights or "bf16", weights) if weights == arch.published_experts else (weights, None)
    return EngineConfig(engine, *form, tp=ranks, moe_tp=ranks if arch.moe is not None else 1)


MARLIN_SINCE = (7, 5)
"""Compute capability from which Marlin has kernels (vllm pull requests 5975, 29901)."""


def check_formats(accelerator: Accelerator, config: EngineConfig) -> None:
    """Raises InputError for 8-bit or 4-bit floating weights on an NVIDIA GPU before Turing: engines widen them in Marlin, which
    has no kernel there (vllm pull requests 5975, 29901)."""
    named = next((w for w in (config.weights, config.expert_weights or "") if w.startswith(("fp8", "nvfp4", "mxfp4"))), None)
    old = accelerator.vendor == "NVIDIA" and version_number(accelerator.compute_capability or "99") < MARLIN_SINCE
    if named is not None and old:
        raise InputError(
            f"{accelerator.name} has no kernel for {named} weights: Marlin, which widens them, begins at compute capability 7.5",
            hint="take 16-bit weights (--weights 16), int4_wo (GPTQ), or --engine llama.cpp",
        )


def check_runs(accelerator: Accelerator, engine: Engine) -> None:
    """Raises InputError where ``engine`` runs on listed accelerators alone, and this is another."""
    if engine.listed_only and not engine_runs(accelerator, engine.name):
        raise InputError(f"{engine.title} does not run on {accelerator.name}", hint=f"take {DEFAULT_ENGINE} or {LOCAL_ENGINE}")


@cache
def engine_runs(accelerator: Accelerator, engine: str = DEFAULT_ENGINE) -> bool:
    """Whether the engine's own tables of support list the accelerator, in full or in part."""
    return support_of(accelerator).of("framework", engine).level in ("full", "partial")


def version_number(text: str) -> tuple[int, ...]:
    """``"0.19.0rc1"`` as ``(0, 19, 0)``: the leading whole numbers of its parts."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def bits_as_stored(arch: Architecture, asked: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Widths to serve ``arch`` in: that of the format in its name or config, else the requested ``asked``. Raises InputError
    where both are given and differ, or where no width stands for that format."""
    form = arch.stored_format
    if form is None:
        return asked
    widths = {name: width for engine in ENGINES.values() for width, name in engine.by_bits.items()} | {"fp8_block": 8, "MXFP4": 4}
    if form not in widths:
        raise _not_simulated(arch, form)
    if asked is not None and asked != (widths[form],):
        check_agrees(arch, ",".join(map(str, asked)), ())
    return (widths[form],)


def _not_simulated(arch: object, form: str) -> InputError:
    name = arch.id if isinstance(arch, Architecture) else "its own name"
    hint = f"name the model without its format ({name}) and the nearest with --weights 8 or 4"
    return InputError(f"a load on {form} weights is not simulated: {', '.join(FORMAT_OF_BITS.values())} are", hint=hint)


def stored_as(model: str, arch: object, engine: str | None, weights: str | None) -> tuple[str | None, str | None]:
    """``engine`` and ``weights`` (bits, ``16,8``, or a format; None: open) after applying the weight format in the model's name
    or config: a local program's format selects that program, unless another engine that reads it is requested.

    Raises InputError if the request differs, or for a format that is not simulated.
    """
    bits, asked = asked_weights(weights)
    form = gguf_format(model)
    if form is None and isinstance(arch, Architecture):
        form = arch.stored_format
    if form is None and asked is None:
        return engine, weights
    if form is not None and form not in FORMATS:
        raise _not_simulated(arch, form)
    if form is not None and weights is not None and asked != form and bits != (width_of(form),):
        raise InputError(
            f"{form} in the model's name or config contradicts --weights {weights}",
            hint="leave --weights out, or name the model without its format",
        )
    form = form or asked
    assert form is not None
    reads = engine_of(form)
    if engine is None:
        return (None if reads.name == DEFAULT_ENGINE else reads.name), form
    program = ENGINES.get(engine_name(engine.partition("@")[0]))
    if program is not None and not program.reads(form):
        able = " or ".join(e.name for e in ENGINES.values() if e.reads(form))
        raise InputError(f"{program.title} reads no {form} weights", hint=f"take --engine {able}, or other weights")
    return engine, form
