"""Plan files: what ``gpuwise plan --json`` printed, read back as the job that it describes.

A plan file has much more than a job needs; what is read is :func:`plan_type`, and the rest may be anything. Catalogued models and
systems are named; those that are not (a model from a config.json, the GPUs of this machine as measured) are in the file in full.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from gpuwise.errors import DataError, FieldError, FileError, InputError
from gpuwise.export.job import Job
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.corrections import Correction
from gpuwise.facts.hardware.counts import MOST_ACCELERATORS
from gpuwise.facts.hardware.systems import Cluster, System, networks, system_named
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.models.checks import check_architecture
from gpuwise.files import convert, parse_json, read_stdin, read_text
from gpuwise.plan.cluster_document import PLAN_VERSION
from gpuwise.plan.space.conditions import Setting
from gpuwise.plan.space.rules import check_strategy
from gpuwise.units import LONGEST_S, LONGEST_SEQUENCE
from gpuwise.workload.strategy import CHOICES, DEGREES, Strategy
from gpuwise.workload.tasks import tasks

HINT = "give what `gpuwise plan MODEL --on GPUS --json` printed"
MOST_TOKENS = 1e18
_MOST_NUMBER, _MOST_WHOLE, _LONGEST_TEXT = 1e30, 2**53, 2000
_CHOICES: Mapping[str, tuple[str, ...]] = {
    **CHOICES,
    "topology": ("switch", "mesh", "torus", "pcie", "pcie-host", "single"),
}
_ABOVE_ZERO = {
    *("memory_bytes", "memory_bandwidth_bytes_per_s", "link_bytes_per_s", "network_bytes_per_s", "count", "domain_size"),
    *(name for name in DEGREES if name != "shard_group"),
    "etp",
}
_DEGREES = {*DEGREES, "etp", "lora_rank"}
_Prose = Annotated[str, msgspec.Meta(max_length=_LONGEST_TEXT)]
_Text = Annotated[str, msgspec.Meta(max_length=_LONGEST_TEXT, pattern=r'^[^\x00-\x1f\x7f"\\$`]*$')]
"""A name, which is written into scripts: one line, without what a shell or Python would run."""
_PROSE = {"notes", "what", "published_note", "source", "license"}
"""Fields of more than a name, which are not written anywhere."""
_Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=LONGEST_S)]


class _Goal(msgspec.Struct, frozen=True):
    seq_len: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_SEQUENCE)]
    tokens: Annotated[float, msgspec.Meta(gt=0.0, le=MOST_TOKENS)] | None = None
    task: Literal[tuple(tasks())] = "pretrain"  # type: ignore[valid-type]
    packed: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_SEQUENCE)] | None = None
    """Mean length of packed documents."""


class _Cluster(msgspec.Struct, frozen=True, kw_only=True):
    system: _Text
    accelerator: _Text
    accelerators: Annotated[int, msgspec.Meta(ge=1, le=MOST_ACCELERATORS)]
    accelerators_per_system: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    """None: as the system is sold."""


class _Time(msgspec.Struct, frozen=True):
    expected: _Seconds


class _Goodput(msgspec.Struct, frozen=True):
    checkpoint_interval_s: _Seconds | None = None


class _Layout(msgspec.Struct, frozen=True, kw_only=True):
    step_time_s: _Time
    goodput: _Goodput | None = None


def job_of_document(document: Mapping[str, Any], file: str = "the plan") -> Job:
    """The job of what ``gpuwise plan --json`` printed, from ``file``. Raises FieldError that names the field that is wrong, and
    what it should be; LayoutError for a layout that cannot run."""
    if "captures" in document:
        raise FieldError(
            "is a plan of your own code, which has no layout to export", file=file, hint="`gpuwise run train.py` runs the code"
        )
    plan: Any = convert(document, plan_type(), file, hint=HINT)
    if plan.best is None:
        raise InputError("the plan has no layout that fits", hint="`gpuwise fit` shows what would")
    arch, cluster = _model(plan.model, file), _cluster(plan.cluster, file)
    strategy = msgspec.convert(plan.best.strategy, Strategy, from_attributes=True)
    goal, goodput = plan.goal, plan.best.goodput
    every = None if goodput is None else goodput.checkpoint_interval_s
    step_s = plan.best.step_time_s.expected
    job = Job(arch, cluster, strategy, goal.seq_len, goal.tokens, every, step_s, tasks()[goal.task], packed=goal.packed)
    check_strategy(Setting.of(arch, cluster, strategy, goal.seq_len, strategy.global_batch), strategy)
    return job


def _model(part: Any, file: str) -> Architecture:
    if part.architecture is None:
        return find_model(part.id)
    return check_architecture(msgspec.convert(part.architecture, Architecture, from_attributes=True), file=file)


def _cluster(part: Any, file: str) -> Cluster:
    if part.hardware is not None:
        system = msgspec.convert(part.hardware, System, from_attributes=True)
        if system.network_id not in networks():
            raise FieldError(f"cluster.hardware.network_id: no network {system.network_id!r}", file=file, hint=HINT)
        return Cluster(system, part.accelerators)
    accelerator = accelerators().get(part.accelerator)
    if accelerator is None:
        raise FieldError(f"cluster.accelerator: no accelerator {part.accelerator!r}", file=file, hint="`gpuwise gpus` lists them")
    try:
        return Cluster(system_named(part.system, accelerator, part.accelerators_per_system), part.accelerators)
    except (InputError, DataError) as error:
        raise FieldError(f"cluster.system: {error.message}", file=file, hint=error.hint or HINT) from None


@cache
def plan_type() -> type[Any]:
    """The fields read from a plan file, as a msgspec type."""
    architecture, system, strategy = _read(Architecture), _read(System), _read(Strategy)
    model = msgspec.defstruct("PlannedModel", [("id", _Text), ("architecture", architecture | None, None)])
    cluster = msgspec.defstruct("PlannedCluster", [("hardware", system | None, None)], bases=(_Cluster,), kw_only=True)
    best: Any = msgspec.defstruct("PlannedLayout", [("strategy", strategy)], bases=(_Layout,), kw_only=True)
    version = Literal[PLAN_VERSION]  # type: ignore[valid-type]
    return msgspec.defstruct(
        "PlanFile",
        [("model", model), ("cluster", cluster), ("goal", _Goal), ("best", best | None), ("plan_version", version, PLAN_VERSION)],
    )


def plan_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what is read of a plan file."""
    schema = msgspec.json.schema(plan_type())
    for part in schema["$defs"].values():
        if "description" in part:  # msgspec 0.23 takes the indentation of a docstring away, earlier ones keep it
            part["description"] = inspect.cleandoc(part["description"])
    return schema


@cache
def _read(kind: type[Any]) -> type[Any]:
    """A msgspec type with the fields of a dataclass. Numbers must be finite and not negative, names must be known."""
    hints = get_type_hints(kind)
    specs: list[Any] = []
    for f in fields(kind):
        spec: Any = _checked(hints[f.name], f.name)
        if f.default is not MISSING:
            specs.append((f.name, spec, f.default))
        elif f.default_factory is not MISSING:
            specs.append((f.name, spec, msgspec.field(default_factory=f.default_factory)))
        else:
            specs.append((f.name, spec))
    return msgspec.defstruct(kind.__name__, specs, frozen=True, kw_only=True)


def _checked(hint: Any, name: str) -> Any:
    """``hint``, of a field called ``name``, with the limits of its values."""
    if hint is Correction:
        return hint  # its weights may be negative
    if hint is str:
        return Literal[_CHOICES[name]] if name in _CHOICES else _Prose if name in _PROSE else _Text  # type: ignore[valid-type]
    if hint is int:
        least = 1 if name in _ABOVE_ZERO else 0
        return Annotated[int, msgspec.Meta(ge=least, le=MOST_ACCELERATORS if name in _DEGREES else _MOST_WHOLE)]
    if hint is float:
        limits = msgspec.Meta(gt=0.0, le=_MOST_NUMBER) if name in _ABOVE_ZERO else msgspec.Meta(ge=0.0, le=_MOST_NUMBER)
        return Annotated[float, limits]
    if is_dataclass(hint):
        return _read(cast("type[Any]", hint))
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return Union[tuple(_checked(one, name) for one in inner)]  # noqa: UP007 - of a list
    if origin is tuple:
        return tuple[tuple(one if one is ... else _checked(one, name) for one in inner)]  # type: ignore[misc]
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, _checked(inner[1], name)]  # type: ignore[misc]
    return hint


def read_document(name: str) -> dict[str, Any]:
    """The document that `gpuwise plan --json` or `gpuwise capacity --json` printed, perhaps after other lines. Raises
    FileError."""
    text = read_stdin() if name == "-" else read_text(Path(name), hint=HINT)
    try:
        document = parse_json(text, name, hint=HINT)
    except FileError:
        lines = text.rstrip().splitlines()
        if len(lines) < 2:
            raise
        document = parse_json(lines[-1], name, line=len(lines), hint=HINT)
    if not isinstance(document, dict):
        raise FileError("is not a plan", file=name, hint=HINT)
    return cast("dict[str, Any]", document)


def read_job(name: str) -> Job:
    """The job of a plan in a file, ``-`` for what is piped in. Raises InputError."""
    return job_of_document(read_document(name), name)
