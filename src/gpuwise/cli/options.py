"""Options shared by commands: numbers as people write them, refused with a hint when they cannot be meant."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter

from gpuwise.cli.needs import EXPERTS, SOMETIMES
from gpuwise.errors import InputError
from gpuwise.units import (
    LARGEST_COUNT,
    LARGEST_USD,
    LONGEST_S,
    LONGEST_SEQUENCE,
    hint_for,
    parse_bytes,
    parse_count,
    parse_duration,
)
from gpuwise.workload.fields import Often, Option
from gpuwise.workload.strategy import NEUTRAL, OPTIONS

LARGEST_WHOLE = 10**12
"""No degree or batch is larger; bigger numbers are slips of the keyboard."""
SMALLEST = 1e-6
"""No count, time or sum of dollars is smaller."""
_NO_TIME = re.compile(r"0+(?:\.0*)?\s*(?:ms|s|sec|min|h|d)?")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")


def whole_number(text: str, name: str) -> int:
    """A whole number of at least 1: ``8``, ``8192``, ``8k``. Raises InputError."""
    cleaned = text.strip().replace("_", "")
    if _THOUSANDS.fullmatch(cleaned):
        cleaned = cleaned.replace(",", "")
    factor = 1
    if cleaned[-1:].lower() == "k":
        cleaned, factor = cleaned[:-1], 1024
    if not cleaned.isascii() or not cleaned.isdigit() or not 1 <= int(cleaned[:40]) * factor <= LARGEST_WHOLE:
        example = "8" if name == "value" else f"{name} 8"
        raise InputError(f"{name}: {text!r} is not a whole number of at least 1", hint=hint_for(text, example))
    return int(cleaned) * factor


def positive_count(text: str, name: str) -> float:
    """A count above zero: ``15B``, ``300M``, ``2e9``. Raises InputError."""
    try:
        value = parse_count(text)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=error.hint) from None
    return _within(value, LARGEST_COUNT, "1,000 trillion, which no run comes near", text, name, "15B")


def sequence_length(text: str, name: str) -> int:
    """Tokens of a sequence, of at most :data:`LONGEST_SEQUENCE`: ``8192``, ``8k``. Raises InputError."""
    value = whole_number(text, name)
    if value > LONGEST_SEQUENCE:
        raise InputError(
            f"{name}: {text!r} is longer than {LONGEST_SEQUENCE:,} tokens, ten times the longest context of a published model",
            hint=f"write it like {name} 8192",
        )
    return value


def _within(value: float, most: float, most_text: str, text: str, name: str, example: str) -> float:
    """``value`` where it is above zero and at most ``most``. Raises InputError that says which it is not."""
    hint = f"write it like {name} {example}"
    if not value > 0:
        raise InputError(f"{name}: {text!r} is not above zero", hint=hint)
    if value < SMALLEST:
        raise InputError(f"{name}: {text!r} is too close to zero", hint=hint)
    if value > most:
        raise InputError(f"{name}: {text!r} is more than {most_text}", hint=hint)
    return value


def positive_duration(text: str, name: str) -> float:
    """Seconds above zero: ``12h``, ``3d``. Raises InputError."""
    try:
        value = parse_duration(text)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=error.hint) from None
    return _within(value, LONGEST_S, "a hundred years", text, name, "3d")


def pause(text: str, name: str) -> float:
    """Seconds from zero on: ``0``, ``30s``. Raises InputError."""
    return 0.0 if _NO_TIME.fullmatch(text.strip()) else positive_duration(text, name)


def money(text: str, name: str) -> float:
    """US dollars above zero: ``2000``, ``$2,000``, ``2.5k``. Raises InputError."""
    try:
        value = parse_count(text.strip().removeprefix("$"))
    except InputError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: {text!r} is not an amount of US dollars", hint=hint_for(text, f"{name} 2000"))
    return _within(value, LARGEST_USD, "a trillion US dollars", text, name, "2000")


def size(text: str, name: str) -> float:
    """Bytes above zero: ``40GB``, ``24GiB``. Raises InputError."""
    try:
        value = parse_bytes(text)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=hint_for(text, f"{name} 40GB")) from None
    if not value > 0:
        raise InputError(f"{name}: {text!r} is not above zero", hint=f"write it like {name} 40GB")
    return value


def option_name(field: str) -> str:
    """``--max-watts`` of ``max_watts``."""
    return "--" + field.strip("_").replace("_", "-")


def given(options: Any, usual: Any) -> dict[str, object]:
    """Options of a group that are not as ``usual``, by field."""
    return {f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) != getattr(usual, f.name)}


def refuse(names: Collection[str], why: str, hint: str = "leave it out", allowed: Collection[str] = ()) -> None:
    """Raises InputError, ``--option why``, for the first of ``names`` that is not ``allowed``: what changes nothing in an answer
    is not taken silently."""
    for name in names:
        if name not in allowed:
            raise InputError(f"{option_name(name)} {why}", hint=hint)


@dataclass(frozen=True, slots=True)
class Converter:
    """What cyclopts calls for an option: ``parse`` of its text and its name."""

    parse: Callable[[str, str], Any]

    def __call__(self, hint: Any, tokens: Sequence[Any]) -> Any:
        token = tokens[0]
        try:
            return self.parse(token.value, token.keyword or "value")
        except InputError as error:
            if (faults := _faults.get()) is None:
                raise
            faults.append(error)
            return _of_type(hint)


def _of_type(hint: Any) -> Any:
    """Any value of a type, in place of one that is wrong: cyclopts asks pydantic for the type where something has imported it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _of_type(parts[0])
    return tuple(map(_of_type, parts)) if origin is tuple else hint()


_faults: ContextVar[list[InputError] | None] = ContextVar("faults", default=None)


@contextmanager
def collecting() -> Generator[list[InputError]]:
    """While what is wrong with values of options is collected: all of them are read, and none is refused alone."""
    faults: list[InputError] = []
    token = _faults.set(faults)
    try:
        yield faults
    finally:
        _faults.reset(token)


def readers(group: type[Any]) -> dict[str, Callable[[str, str], Any]]:
    """How the options of ``group`` are read from their text and name, by field, where they are no words or flags."""
    found: dict[str, Callable[[str, str], Any]] = {}
    for name, hint in get_type_hints(group, include_extras=True).items():
        for part in (hint, *get_args(hint), *(inner for arg in get_args(hint) for inner in get_args(arg))):
            for about in getattr(part, "__metadata__", ()):
                if isinstance(how := getattr(about, "converter", None), Converter):
                    found[name] = how.parse
    return found


def share(text: str, name: str) -> float:
    """A share between 0 and 1: ``0.1``, ``10%``. Raises InputError."""
    cleaned = text.strip()
    try:
        value = float(cleaned.rstrip(" %")) / (100.0 if cleaned.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1.0:
        raise InputError(f"{name}: {text!r} does not lie between 0 and 1", hint=hint_for(text, f"{name} 0.1"))
    return value


def task(text: str, _: str) -> str:
    """A task of a training, or ``run``. Raises UnknownNameError."""
    from gpuwise.workload.tasks import find_task

    if text != "run":
        find_task(text)
    return text


def new_file(text: str, name: str) -> str:
    """The name of a file to write, or ``-`` for stdout. Raises InputError for what reads as an option or a number."""
    try:
        float(text)
    except ValueError:
        if text == "-" or not text.startswith("-"):
            return text
    raise InputError(
        f"{name}: {text!r} is not the name of a file", hint=f"name one, {name} ./{text.lstrip('-')}, or - to print it"
    )


def _seconds(value: float | None) -> str | None:
    """A default time as the help shows it."""
    return None if value is None else f"{value:g}s"


Whole = Annotated[int, Parameter(converter=Converter(whole_number), metavar="N")]
Length = Annotated[int, Parameter(converter=Converter(sequence_length), metavar="TOKENS")]
Count = Annotated[float, Parameter(converter=Converter(positive_count), metavar="COUNT")]
Pause = Annotated[float, Parameter(converter=Converter(pause), metavar="TIME", show_default=_seconds)]
Duration = Annotated[float, Parameter(converter=Converter(positive_duration), metavar="TIME", show_default=_seconds)]
Money = Annotated[float, Parameter(converter=Converter(money), metavar="USD")]
Bytes = Annotated[float, Parameter(converter=Converter(size), metavar="SIZE")]
Share = Annotated[float, Parameter(converter=Converter(share), metavar="SHARE")]
NewFile = Annotated[str, Parameter(allow_leading_hyphen=True, converter=Converter(new_file), metavar="FILE")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Training:
    """How to train. Whatever is left out is chosen."""

    purpose: Annotated[
        str | None,
        Parameter(name="--for", converter=Converter(task), show_default="judged by adapters and tokens", metavar="TASK"),
    ] = None
    """Task: pretrain, continue, full (fine-tune every weight), lora (adapters), qlora (on 4-bit weights), finetune (lora; full
    for encoders); plan and fit: also dpo, grpo, rloo, ppo, distill, opd (on-policy distillation), embed; fit: also run. It sets
    batch, sequence length, learning rate and software as such runs have."""
    seq: Length | None = None
    """Sequence length in tokens."""
    global_batch: Whole | None = None
    """Sequences a step, over all accelerators."""
    half_weights: Annotated[bool, Parameter(negative="", group=SOMETIMES)] = False
    """Weights and gradients in 16 bits, without fp32 copies."""
    year: Annotated[
        Whole | None,
        Parameter(show_default="the current year, or that of the published run", metavar="YEAR", group=SOMETIMES),
    ] = None
    """Assume the software of this year. Before 2023: no FlashAttention or sequence parallelism. Before 2025: no overlap of expert
    all-to-all. Of --stack: its release at the end of the year."""
    lora: Annotated[bool, Parameter(negative="")] = False
    """Train low-rank adapters (rank 16) on frozen weights."""
    packed: Annotated[Length | None, Parameter(group=SOMETIMES)] = None
    """Mean document length when sequences are packed and attention stays inside documents."""
    risk: Annotated[Share | None, Parameter(show_default="0.1", group=SOMETIMES)] = None
    """Accept plans whose probability of running out of memory is at most this."""
    host_memory: Annotated[Bytes | None, Parameter(show_default="the system's", group=SOMETIMES)] = None
    """RAM of each host, for what is offloaded: 64GB."""
    link: Annotated[str | None, Parameter(show_default="the system's", metavar="LINK", group=SOMETIMES)] = None
    """Links between the GPUs of a host: pcie3x8 (also 4x16 ...), nvlink (a bridge), no-p2p, or a file that nvidia-smi topo -m was
    printed to."""


WIDEST = 24
"""Characters of choices that stand beside an option; more are in its text."""


GROUPS: Mapping[Often, Group] = {"common": Group.create_default_parameters(), "sometimes": SOMETIMES, "expert": EXPERTS}
"""Of the help, by how often an option is needed."""


def options_of(table: Mapping[str, Option], name: str, doc: str) -> type[Any]:
    """A dataclass of the options of ``table`` (:mod:`gpuwise.workload.fields`), each None where it is not given."""
    types: Mapping[type, Any] = {bool: bool, int: Whole, str: str, tuple: str}
    made: list[tuple[str, Any, None]] = []
    for field, o in table.items():
        beside = "|".join(o.choices)
        more = "" if o.unit or len(beside) <= WIDEST else f" One of {', '.join(o.choices)}."
        kind = Parameter(
            help=o.help + more,
            metavar=o.unit or (beside if not more else "NAME"),
            show_default=o.usual or False,
            negative=None if o.negative else "",
            group=GROUPS[o.often],
        )
        made.append((o.name or field, Annotated[types[type(getattr(NEUTRAL, field))] | None, kind], None))
    namespace = {"__module__": __name__, "__doc__": doc}
    return Parameter(name="*")(make_dataclass(name, made, namespace=namespace, frozen=True, slots=True))


if TYPE_CHECKING:

    @dataclass(frozen=True, init=False)
    class LayoutOptions:
        """Options of the table as they were given."""

        def __init__(self, **given: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
else:
    _ASKED = {field: o for field, o in OPTIONS.items() if o.help}
    LayoutOptions = options_of(_ASKED, "LayoutOptions", "Parts of the strategy to hold fast.")


LEFT_OPEN, NOTHING_FIXED = Training(), LayoutOptions()


def wishes_of(training: Training, fixed: LayoutOptions, **more: Any) -> Any:
    """The two groups of options as :class:`gpuwise.plan.goal.Wishes`. Raises InputError on contradictions."""
    from gpuwise.plan.goal import LORA_RANK, RISK, WISHED, Wishes
    from gpuwise.workload.adapters import split_targets
    from gpuwise.workload.tasks import find_task, leaves_method_open

    task = None if training.purpose is None else find_task(training.purpose)
    if task is not None and task.method == "lora" and training.purpose != task.name and fixed.qlora:
        task = find_task("qlora")  # "finetune" leaves open which adapters
    of_model = task is not None and leaves_method_open(training.purpose or "") and not (training.lora or fixed.qlora)
    of_model = of_model and fixed.lora_rank is None and fixed.lora_targets is None
    method = None if task is None or of_model else task.method
    lora, qlora = training.lora or method == "lora", fixed.qlora or method == "qlora"
    adapters = lora or qlora
    if training.lora and fixed.qlora:
        raise InputError("--lora and --qlora are two ways", hint="--qlora for 4-bit frozen weights, --lora for 16-bit ones")
    if (lora and qlora) or (method == "full" and not (task and task.prompts) and (training.lora or fixed.qlora)):
        other = "--lora" if training.lora else "--qlora"
        raise InputError(f"--for {training.purpose} with {other}", hint=f"leave one out: {other} alone is --for {other[2:]}")
    if adapters and (training.half_weights or fixed.step_in_backward):
        option = "--half-weights" if training.half_weights else "--step-in-backward"
        raise InputError(f"{option} with adapters", hint="the frozen weights have no fp32 copies and no gradients: leave it out")
    if fixed.lora_rank is not None and not adapters:
        raise InputError("--lora-rank without adapters", hint="add --lora or --qlora")
    if fixed.lora_targets is not None and not adapters:
        raise InputError("--lora-targets without adapters", hint="add --lora or --qlora")
    asked: dict[str, Any] = {name: getattr(fixed, o.name or name) for name, o in OPTIONS.items() if o.help}
    asked = {name: value for name, value in asked.items() if value is not None}
    if "precision" in asked:
        asked["precision"] = tuple(p.strip().lower() for p in asked["precision"].split(",") if p.strip())
        if not asked["precision"]:
            raise InputError("--precision names no format", hint="for example --precision bf16")
    if "lora_targets" in asked:
        asked["lora_targets"] = split_targets(asked["lora_targets"])
    if adapters:
        asked.setdefault("lora_rank", LORA_RANK)
    if qlora:
        asked["quantized_base"] = True
    return Wishes(
        task=training.purpose if of_model or task is None else task.name,
        seq_len=training.seq,
        global_batch=training.global_batch,
        half_weights=training.half_weights,
        year=training.year,
        packed_document_len=training.packed,
        risk=RISK if training.risk is None else training.risk,
        host_memory_bytes=training.host_memory,
        link=training.link,
        fixed={name: asked.pop(name) for name in OPTIONS if name in asked and name not in (*WISHED, "precision")},
        **asked,
        **more,
    )


def check_script(script: str, *, module: bool) -> None:
    """Raises InputError where a training script is not there or is not Python, GpuwiseError where the system cannot watch one; a
    module is looked for when it is run."""
    from gpuwise.errors import require_posix
    from gpuwise.train.hook.script import file_code

    require_posix("a watched run of a script")
    if not script.isprintable():
        raise InputError(f"{script!r} is not the name of a file or module", hint="name a script: train.py")
    if not module:
        file_code(script)


def bits_of(text: str | None) -> tuple[int, ...]:
    """``"8,4"`` as bits of a weight; empty when nothing was said. Raises InputError."""
    if text is None:
        return ()
    bits: list[int] = []
    for part in text.replace("-bit", "").replace("int", "").replace("bf", "").replace("fp", "").split(","):
        if part.strip() not in ("16", "8", "4"):
            raise InputError(f"--weights {text!r} is not of 16, 8 and 4 bits", hint="for example --weights 16,8")
        bits.append(int(part))
    return tuple(dict.fromkeys(bits))


_RATE = re.compile(r"(.*?)\s*(?:/\s*|\s+per\s+)(s|sec|second|min|minute|h|hour|d|day)", re.IGNORECASE)
_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def rate_per_s(text: str, name: str) -> float:
    """Requests a second of ``20/s``, ``1M/day`` or ``20``. Raises InputError."""
    matched = _RATE.fullmatch(text.strip())
    try:
        count = positive_count(matched[1] if matched else text, name)
    except InputError as error:
        raise InputError(error.message, hint=f"write it like {name} 20/s or {name} 1M/day") from None
    return count / (_PERIODS[matched[2][0].lower()] if matched else 1.0)


Rate = Annotated[float, Parameter(converter=Converter(rate_per_s), metavar="RATE")]
