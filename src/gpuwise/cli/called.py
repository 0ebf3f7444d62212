"""The commands as Python functions: ``gpuwise.plan("llama-3.1-8b", "8xH100", tokens="15B")`` asks what
``gpuwise plan llama-3.1-8b --on 8xH100 --tokens 15B`` asks.

An option is a keyword: ``--seq 4096`` is ``seq=4096``, a switch is ``lora=True``, an option that is given several times is a
list. ``gpuwise COMMAND --help`` lists the options of a command.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.report.answers.answer import Answer

Word = str | int | float | bool | None
"""The value of an option; None leaves it out."""


@dataclass(frozen=True, slots=True, repr=False)
class Asked:
    """The answer of a command.

    ``document`` is what ``--json`` prints, and ``asked["key"]`` one part of it. ``code`` is the exit code: 0 yes, 1 no. Printed,
    it is the first screen of the command; a notebook shows the page. Commands that list things have a document alone.
    """

    words: tuple[str, ...]
    code: int
    document: dict[str, Any]
    _answer: Callable[[dict[str, Any]], Answer] | None

    @property
    def answer(self) -> Answer:
        """The verdict, the numbers and the parts. Raises InputError for a command that lists things."""
        if self._answer is None:
            raise InputError(f"gpuwise {self.words[0]} has a document alone", hint="read .document")
        return self._answer(self.document)

    def __repr__(self) -> str:
        from gpuwise.cli.answer import text
        from gpuwise.cli.asked import asking

        if self._answer is None:
            return f"gpuwise {shlex.join(self.words)}: a document with {', '.join(self.document)}"
        with asking(self.words):
            return text(self.answer)

    def _repr_html_(self) -> str | None:
        from gpuwise.report.answers.notebook import answer_markup

        return None if self._answer is None else answer_markup(self.answer)

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    def __bool__(self) -> bool:
        return self.code == 0


def ask(command: str, *values: object, **options: Word | list[Any] | tuple[Any, ...]) -> Asked:
    """The answer of ``gpuwise COMMAND VALUES --OPTIONS``; values after ``--`` are a script's own. Raises InputError for what the
    command refuses."""
    import_module("gpuwise.cli.app")  # it registers itself
    from gpuwise.cli.asked import answer_of

    given = [str(value) for value in values]
    end = given.index("--") if "--" in given else len(given)
    words = [*command.split(), *given[:end], *_options(options), *given[end:]]
    code, (document, answer) = answer_of(words)
    return Asked(tuple(words), code, json.loads(json.dumps(document, allow_nan=False)), answer)


def plan(model: str, on: str | None = None, **options: Any) -> Asked:
    """Which GPUs, which layout, how long, how much to train ``model``: ``tokens="15B"``, ``deadline="3d"``, ``budget=2000``."""
    return ask("plan", model, on=on, **options)


def fit(model: str, on: str | None = None, purpose: str | None = None, **options: Any) -> Asked:
    """What ``model`` does on a device (default: this machine). ``purpose`` is run, finetune or train; default: all three."""
    return ask("fit", model, on=on, **{"for": purpose}, **options)


def capacity(model: str, on: str | None = None, **options: Any) -> Asked:
    """Which GPUs and how many serve a load: ``users=200``, ``rate="5/s"``, ``slo="ttft_p95=1s"``."""
    return ask("capacity", model, on=on, **options)


def pick(purpose: str, model: str | None = None, **options: Any) -> Asked:
    """Which GPU to get to train, finetune, infer, serve or learn, within ``budget=2000``."""
    return ask("pick", **{"for": purpose}, model=model, **options)


def compare(*gpus: str, **options: Any) -> Asked:
    """Which of these GPUs is better at what, and by how much."""
    return ask("compare", *gpus, **options)


def cost(question: str, *values: object, **options: Any) -> Asked:
    """What a machine, a training run or a service costs: ``cost("own", on="8xH100-SXM")``, ``cost("run", "llama-3.1-8b", ...)``,
    ``cost("serve", "llama-3.1-8b", ...)``."""
    return ask(f"cost {question}", *values, **options)


def _options(options: dict[str, Any]) -> Iterator[str]:
    """``options`` as words of a command line."""
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        for one in cast("list[Word]", value) if isinstance(value, (list, tuple)) else (value,):
            if one is True:
                yield option
            elif one is False:
                yield f"--no-{option.removeprefix('--')}"
            elif one is not None:
                yield from (f"{option}={one}",) if str(one).startswith("-") else (option, str(one))
