"""Options of ``fit`` and ``plan`` for own code; light, as it is read for ``--help``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.arguments import keyed
from gpuwise.cli.needs import OWN_CODE
from gpuwise.cli.options import LEFT_OPEN, NOTHING_FIXED, LayoutOptions, Training, given, option_name, whole_number
from gpuwise.errors import InputError
from gpuwise.workload.strategy import OPTIONS

if TYPE_CHECKING:
    from gpuwise.workload.changes.change import Change

HUGGING_FACE = "hf:"


@Parameter(name="*", group=OWN_CODE)
@dataclass(frozen=True, slots=True)
class OwnCode:
    """For your own code (train.py:make_step)."""

    batch: Annotated[str | None, Parameter(metavar="SAMPLES")] = None
    """Samples per step on each GPU, or auto for the largest batch that fits (fit) or the fastest (plan)."""
    set: Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE", negative="")] = ()
    """An argument of the function, as key=value; may be given several times."""
    input: Annotated[tuple[str, ...], Parameter(metavar="SHAPE", negative="")] = ()
    """Shape of a module's input, 32x3x224x224 or 8x1024:int64; once for each input."""
    guess: Annotated[tuple[str, ...], Parameter(metavar="NAME=SHARE", negative="")] = ()
    """Output size of operations whose result depends on the data, as a share: nonzero=0.125 (also unique, nms), or
    bound for the largest."""
    conf: Annotated[str | None, Parameter(metavar="SETTINGS")] = None
    """PYTORCH_CUDA_ALLOC_CONF, such as expandable_segments:True."""
    compile: Annotated[bool, Parameter(negative="")] = False
    """Time it as if torch.compile were used."""
    change: Annotated[tuple[str, ...], Parameter(metavar="CHANGE", negative="")] = ()
    """With fit: apply a change first, with the names of the remedies in --json: checkpointing, chunked_loss=8, lora=16,
    optimizer=adamw8bit; may be given several times."""
    remedies: bool | None = None
    """Also try changes that save memory when it fits (fit) or time (plan). --no-remedies tries none."""
    timeline: Path | None = None
    """Write the memory over the step as a picture (.svg or .html)."""
    snapshot: Path | None = None
    """Write PyTorch's memory snapshot (.pickle) for pytorch.org/memory_viz."""
    trace: Path | None = None
    """Write the table of operations (.csv or .json)."""


NO_CODE = OwnCode()


def is_own_code(text: str) -> bool:
    """Whether ``text`` names code, a Hugging Face configuration to build, a residual network, which is built as code, or a
    network with a shipped table of operations, rather than a model of the catalogue."""
    from gpuwise.cli.step.named import is_named

    return text.startswith(HUGGING_FACE) or is_target(text) or _convnet(text) is not None or is_named(text)


def _convnet(text: str) -> Any:
    """The residual network that ``text`` names, or None."""
    from gpuwise.facts.models.convnets import known_convnet

    return known_convnet(text)


def is_target(text: str) -> bool:
    """Whether a word on the command line names code rather than a model of the catalogue."""
    if ":" not in text:
        return text.endswith(".py")
    from gpuwise.facts.models.names import is_tagged

    place = text.rpartition(":")[0]
    if (place or text).endswith(".py"):
        return True
    if is_tagged(text):
        return False  # org/name:Q4_K_M is a repository's file of that format, user/model:8b a model of Ollama's
    if os.sep in place:
        return place.startswith((".", "~", os.sep)) or Path(place).exists() or Path(place + ".py").exists()
    return all(part.isidentifier() for part in text.replace(":", ".").split("."))


def refuse_own(code: OwnCode) -> None:
    """Raises InputError when an option for own code is given with a catalogue model."""
    for name in given(code, NO_CODE):
        other = {"batch": "--micro-batch or --global-batch"}.get(name)
        raise InputError(
            f"--{name} is for your own code, like train.py:make_step",
            hint=f"with a model by name take {other}" if other else f"leave --{name} out, or name your code",
        )


def refuse_arguments(arguments: Sequence[str]) -> None:
    """Raises InputError for words after the name of what is no script."""
    if not arguments:
        return
    hint = "only a whole script has its own arguments: gpuwise fit train.py -- --lr 0.1"
    with suppress(InputError):
        from gpuwise.facts.hardware.naming import USUAL, find_cluster

        find_cluster(arguments[0], prefer=USUAL)
        hint = f"name the GPUs with --on {arguments[0]}"
    raise InputError(f"unexpected: {' '.join(arguments)}", hint=hint)


def refuse_code(code: OwnCode, arguments: Sequence[str]) -> None:
    """Raises InputError for options of code where a network is trained by name."""
    refuse_arguments(arguments)
    taken = ("batch", "change", "remedies", "conf", "timeline", "snapshot", "trace")
    for name in given(code, NO_CODE):
        if name not in taken:
            raise InputError(f"--{name} is for your own code, like train.py:make_step", hint=f"leave --{name} out")


def refuse_layout(training: Training, fixed: LayoutOptions) -> None:
    """Raises InputError when an option for catalogue models is given with own code."""
    taken = {"seq", *(o.name or field for field, o in OPTIONS.items() if o.own_code)}
    names = [f for f in {**given(training, LEFT_OPEN), **given(fixed, NOTHING_FIXED)} if f not in taken]
    if names:
        option = option_name(names[0])
        raise InputError(
            f"{option} is for models of the catalogue, and this is your own code",
            hint="--batch sets the samples a step" if "batch" in option else "write it into the code; fit prints the lines",
        )


def batch_of(text: str | None) -> Any:
    """``--batch``: a whole number, ``auto`` or None. Raises InputError."""
    if text is None or text.strip().lower() == "auto":
        return None if text is None else "auto"
    return whole_number(text, "--batch")


def subject_of(text: str, code: OwnCode, arguments: Sequence[str] = ()) -> tuple[Any, Mapping[str, Any]]:
    """What a person named, with a script's ``arguments``, and the options of its capture. Raises InputError and its kinds,
    MissingExtraError."""
    from gpuwise.workload.capture.errors import require_torch
    from gpuwise.workload.capture.target import find_target

    options: dict[str, Any] = {}
    if code.input:
        options["inputs"] = tuple(_shape(t) for t in code.input)
    if code.guess:
        options["guess"] = _guess(code.guess)
    if text.startswith(HUGGING_FACE):
        if code.set:
            raise InputError("--set is for functions", hint="change the configuration file itself")
        refuse_arguments(arguments)
        require_torch()
        from gpuwise.workload.capture.hugging_face import read_configuration

        return read_configuration(Path(text.removeprefix(HUGGING_FACE))), {**options, "name": text}
    net = _convnet(text)
    if net is not None:
        if code.set:
            raise InputError("--set is for functions", hint="leave it out")
        refuse_arguments(arguments)
        require_torch()
        made = find_target("gpuwise.workload.capture.convnet:make_step", (f"net={net.id}",))
        return replace(made, text=net.name), options
    target = find_target(text, code.set, arguments=arguments, whole=True)
    require_torch()
    return target, options


WITH_NUMBER = ("batch", "chunked_loss", "lora", "micro_batches", "qlora")
WITH_WORD: Mapping[str, tuple[str, ...]] = {
    "allocator": (),
    "autocast": ("bf16", "fp16"),
    "low_precision": ("bf16", "fp16"),
    "optimizer": (),
}
"""Changes that take a word, and those it can be where the change itself does not say."""


def changes_of(texts: Sequence[str]) -> tuple[Change, ...]:
    """``--change``: a change by name, with its argument after ``=``. Raises InputError and its kinds."""
    from gpuwise.workload.changes.change import Change
    from gpuwise.workload.changes.registry import kind_of

    made: list[Change] = []
    for text in (word for words in texts for word in words.split()):
        name, _, argument = text.partition("=")
        name = kind_of(name.strip().replace("-", "_")).name
        made.append(Change(name, _argument(name, argument.strip())))
    return tuple(made)


def _argument(name: str, text: str) -> object:
    """What a change takes: a whole number, a word, the paths of modules, true or false, or nothing."""
    if name in WITH_NUMBER:
        if not text.isdecimal() or int(text) < 1:
            raise InputError(f"--change {name}: {text!r} is not a whole number of at least 1", hint=f"write --change {name}=8")
        return int(text)
    if name in WITH_WORD:
        words = WITH_WORD[name]
        if not text or (words and text not in words):
            example = words[0] if words else "adamw8bit" if name == "optimizer" else "expandable_segments:True"
            raise InputError(f"--change {name}: {text!r} is not a valid value", hint=f"write it like --change {name}={example}")
        return text
    if name == "offload_optimizer" and text:
        raise InputError(
            f"--change {name}={text}: in your own code only the optimizer can be moved", hint=f"write --change {name}"
        )
    if name == "checkpointing" and text:
        return tuple(text.split(","))
    switch: Mapping[str, object] = {"": None, "true": True, "false": False}
    return switch.get(text.lower(), text)


def _guess(texts: Sequence[str]) -> Mapping[str, float] | str:
    """Shares by kind, or ``bound``. Raises InputError."""
    if "bound" in texts:
        if len(texts) > 1:
            raise InputError("--guess bound cannot be combined with others", hint="it sets every size to its maximum")
        return "bound"
    from gpuwise.workload.capture.api import check_guess

    return check_guess(keyed(map(_share, texts), "--guess"))


def _share(text: str) -> tuple[str, float]:
    kind, _, share = text.partition("=")
    try:
        return kind.strip(), float(share)
    except ValueError:
        raise InputError(f"--guess: {text!r} is not a share", hint="write it like --guess nonzero=0.125, or bound") from None


FORMATS = ("fp32", "fp16", "bf16", "int64", "int32", "bool")


def _shape(text: str) -> tuple[tuple[int, ...], str]:
    """Dimensions and format of ``8x1024:int64``. Raises InputError."""
    dimensions, _, form = text.partition(":")
    parts = dimensions.lower().replace("×", "x").split("x")
    hint = "write it like --input 32x3x224x224, or 8x1024:int64 for whole numbers"
    if not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        raise InputError(f"--input: {text!r} is not a shape", hint=hint)
    if form and form not in FORMATS:
        raise InputError(f"--input: {form!r} is not one of {', '.join(FORMATS)}", hint=hint)
    return tuple(int(p) for p in parts), form or "fp32"
