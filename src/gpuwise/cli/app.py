"""The table of commands, and how errors reach a person: ``error:`` and ``hint:`` on stderr, with ``--json`` a document of
both on stdout too. :data:`EXIT_CODES` has the exit codes.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import shlex
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cyclopts import App, CycloptsError, Group, Parameter

from gpuwise import __version__
from gpuwise.cli.asked import answer_with, asking
from gpuwise.cli.examples import examples_text, first_text
from gpuwise.cli.needs import EXPERTS
from gpuwise.cli.streams import discard_output, prepare_streams, trimmed
from gpuwise.errors import AmbiguousNameError, GpuwiseError, InputError, SeveralFaultsError, UnknownNameError, nearest_names
from gpuwise.processes import limit_own_products

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from cyclopts.help.formatters import DefaultFormatter
    from rich.console import Console, ConsoleOptions

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("top", "gpuwise.cli.top.command:top", "What are the GPUs doing now, who uses them, and why are they slow?"),
    ("doctor", "gpuwise.cli.doctor.command:doctor", "Check this machine's GPU setup and print the commands that fix it."),
    ("plan", "gpuwise.cli.plan.command:plan", "Which GPUs, which layout, how long, how much, to train this?"),
    (
        "export",
        "gpuwise.cli.export.command:export",
        "Write the files that run this plan in Megatron, torchtitan, Accelerate, DeepSpeed.",
    ),
    (
        "fit",
        "gpuwise.cli.fit.command:fit",
        "What can I do with this model on this device: run it, adapt it, train it?",
    ),
    (
        "memory",
        "gpuwise.cli.memory.command:memory",
        "What filled the GPU's memory, and what would another allocator setting change?",
    ),
    (
        "capacity",
        "gpuwise.cli.capacity.command:capacity",
        "Which GPUs, how many, at what latency and price, to serve this load?",
    ),
    ("op", "gpuwise.cli.op.command:op", "How long does one operation take on this GPU, and on a CPU?"),
    ("compare", "gpuwise.cli.compare.command:compare", "Which GPU is better at what, and by how much?"),
    ("pick", "gpuwise.cli.pick.command:pick", "Which GPU should I get for this, within this budget?"),
    ("cost", "gpuwise.cli.cost.command:cost", "Rent or own: what does a year cost, in money, power and carbon?"),
    ("models", "gpuwise.cli.models:models", "The catalogue of models; with --on: which ones run on a device."),
    ("prices", "gpuwise.cli.prices.command:prices", "What does an accelerator cost per hour, where, and how old is that price?"),
    ("check", "gpuwise.cli.check.command:check", "Does each question of a file still have an answer within its limits?"),
    ("gpus", "gpuwise.cli.gpus:gpus", "The catalogue of accelerators, with the source of every figure."),
    ("cpus", "gpuwise.cli.cpus:cpus", "The catalogue of processors (CPUs), with their memory."),
    (
        "profile",
        "gpuwise.cli.profile.command:profile",
        "Where does my step's time go, and why is the GPU idle?",
    ),
    (
        "bench",
        "gpuwise.cli.bench.command:bench",
        "How fast is this machine in practice, and is that normal?",
    ),
    ("tune", "gpuwise.cli.tune.command:tune", "What makes this training script faster, and does it still train the same?"),
    ("run", "gpuwise.cli.run.command:run", "Run a training script with its tuned settings, without editing it."),
    ("explain", "gpuwise.cli.explain:explain", "What does this word mean: MFU, zero3, KV cache, Q4_K_M?"),
    ("lab", "gpuwise.cli.lab.command:lab", "Simulate a kernel warp by warp, compute occupancy, and do the exercises."),
    ("ui", "gpuwise.ui.command:ui", "The same questions in the browser, on this machine only."),
    ("mcp", "gpuwise.ui.mcp.command:mcp", "The same questions as tools of an agent or an editor."),
    ("share", "gpuwise.cli.share.command:share", "How far is a prediction from what I measured, as a file for others?"),
    (
        "validate",
        "gpuwise.cli.validate.command:validate",
        "How far are predictions from measurements, by family, source and GPU?",
    ),
)
"""Name, where it lives, what it answers; a command's module is imported only when it runs."""
EXIT_CODES: tuple[tuple[str, str], ...] = (
    ("0", "an answer; where the question is whether: yes"),
    (
        "1",
        "no answer, or no: it does not fit, nothing keeps the targets, a check is over its limit, nothing supports an answer",
    ),
    ("2", "bad input; of `doctor`: the machine is not ready (1: ready with limits)"),
    ("3", "`top --fail-on-fault` saw a fault"),
    ("130", "interrupted"),
    ("another", "of `run`, `tune` and `profile`: the script's own"),
)
"""Exit codes and what they mean; a release does not change them."""
GROUPS: dict[str, tuple[str, ...]] = {
    "Before you rent or buy": ("pick", "plan", "fit", "capacity", "compare", "cost", "prices"),
    "On the machine": ("doctor", "top", "profile", "tune", "run", "export", "check", "ui", "mcp"),
    "Look up": ("gpus", "models", "cpus", "explain", "op"),
    "Laboratory and maintenance": ("lab", "bench", "memory", "share", "validate"),
}
"""The commands as the help shows them, in the order of the work."""


APPS = ("cost", "lab")
"""Commands with commands of their own, which have their examples themselves."""
HELP_ALL = "--help-all"
COMPLETION = "--completion"
SHELLS = ("bash", "zsh", "fish", "powershell")


def build(*, help_all: bool = False) -> App:
    """The application; with ``help_all`` its help has the options for experts too."""
    app = App(
        name="gpuwise",
        help=first_text("Does it fit, how fast is it, what does it cost, what should change: any AI model on any accelerator."),
        version=__version__,
        help_format="plaintext",
        help_formatter=_Help(help_all),
        result_action="return_value",
        default_parameter=Parameter(show_default=_default, negative_iterable=()),
    )
    targets = {name: (target, question) for name, target, question in COMMANDS}
    flags = Group("Options", sort_key=len(GROUPS))
    for flag in ("--help", "--version"):
        app[flag].group = (flags,)
    for i, (title, names) in enumerate(GROUPS.items()):
        group = Group(title, sort_key=i)
        for j, name in enumerate(names):
            target, question = targets[name]
            more = {} if name in APPS else {"help_epilogue": examples_text(name)}
            app.command(target, name=name, help=question, group=group, sort_key=j, **more)
    return app


def completion(shell: str) -> str:
    """The script that completes commands, options and choices in ``shell``. Raises InputError for a shell without one."""
    if shell not in SHELLS:
        raise InputError(f"no completion for {shell!r}", hint=f"write gpuwise {COMPLETION} and one of {', '.join(SHELLS)}")
    return build().generate_completion(prog_name="gpuwise", shell=shell)


def _complete(words: Sequence[str]) -> int:
    sys.stdout.write(completion(" ".join(words)))
    return 0


def _default(value: Any) -> str | None:
    """What the help says of a default; nothing of a flag that is off and of what is left open."""
    if value is None or value is False or value == ():
        return None
    return "yes" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


class _Help:
    """cyclopts' own help page, each text a paragraph: line ends of a docstring are not breaks on the page. Options for experts
    stand there where ``all_of_it`` is asked for."""

    def __init__(self, all_of_it: bool) -> None:
        self._all = all_of_it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain_format(), name)

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        from rich.text import Text

        if panel.title == EXPERTS.name and not self._all:
            console.print(f"{len(panel.entries)} options for experts: --help-all", style="dim")
            return
        for entry in panel.entries:
            text = getattr(entry.description, "primary_renderable", None)
            if isinstance(text, Text):
                text.plain = "\n\n".join(" ".join(part.split()) for part in text.plain.split("\n\n"))
        self._plain_format()(console, options, panel)

    @staticmethod
    def _plain_format() -> DefaultFormatter:
        from cyclopts.help.formatters import DefaultFormatter  # with rich, for a help page only

        return DefaultFormatter()


def every_command(app: App) -> Iterator[tuple[str, App]]:
    """Each command and command of a command with its words: ``plan``, ``lab``, ``lab occupancy``."""
    for name, *_ in COMMANDS:
        command = app[name]
        yield name, command
        yield from ((f"{name} {inner}", command[inner]) for inner in command if not inner.startswith("-"))


def answered(words: Sequence[str]) -> int:
    """The exit code of a command line; a caller in Python takes the answer (:func:`gpuwise.cli.asked.taking`). Raises
    GpuwiseError; InputError where the words are not a command."""
    empty = _empty_option(words)
    if empty is not None:
        raise InputError(f"{empty} is empty", hint="give it a value, or remove it")
    commands = [name for name, *_ in COMMANDS]
    if words and words[0] not in commands:
        from gpuwise.cli import sentence

        if sentence.is_sentence(words, commands):
            return sentence.answer(words, answered)
    end = words.index("--") if "--" in words else len(words)
    help_all = HELP_ALL in words[:end]
    try:
        asked = ["--help" if i < end and word == HELP_ALL else word for i, word in enumerate(words)]
        result = build(help_all=help_all)(asked, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        message, hint = _parsing(error, words)
        first = InputError(message, hint=hint)
        first.__cause__ = error
        raise _with_others(first, words) from error
    except InputError as error:
        raise _with_others(error, words) from error.__cause__
    return result if isinstance(result, int) else 0


def _with_others(first: InputError, words: Sequence[str]) -> InputError:
    """``first`` together with what else is wrong with the words, where it is about a single value itself."""
    others = faults_of(words)
    alone = not isinstance(first.__cause__, CycloptsError) and first.message not in {f.message for f in others}
    every = {f.message: f for f in (first, *others)}
    return first if alone or len(every) == 1 else SeveralFaultsError([*every.values()])


STANDS_IN = {"--model": "llama-3.1-8b", "--on": "8xH100-SXM", "--for": "infer"}
"""What is put in place of a required value that is missing, to read the others."""


def faults_of(words: Sequence[str]) -> list[InputError]:
    """What is wrong with a command line, as far as it is seen without an answer: values of options, then the names of the model
    and the GPUs."""
    from gpuwise.cli.options import collecting

    given: Mapping[str, Any] = {}
    rest, app = list(words), build()
    with collecting() as faults:
        for _ in words:
            faults.clear()
            try:
                given = app.parse_args(rest, exit_on_error=False, print_error=False)[1].arguments
                break
            except CycloptsError as error:
                names = getattr(getattr(error, "argument", None), "names", ())
                at = next((i for i, word in enumerate(rest) if word.partition("=")[0] in names), None)
                missing = next((f"{name}={STANDS_IN[name]}" for name in names if name in STANDS_IN), "")
                if at is not None:
                    del rest[at : at + 1 + ("=" not in rest[at])]
                elif missing not in ("", *rest):
                    rest.append(missing)
                else:
                    break
    return [*faults, *_unknown_names(given)]


def _unknown_names(given: Mapping[str, Any]) -> Iterator[InputError]:
    """Errors of a model and GPUs whose names are in no catalogue."""
    from gpuwise.cli.local import named_target
    from gpuwise.cli.step.options import is_own_code
    from gpuwise.facts.hardware.this import is_this
    from gpuwise.facts.models.catalogue import find_model_to_run

    found: Mapping[str, Callable[[str], object]] = {
        "model": find_model_to_run,
        "on": lambda on: is_this(on) or named_target(on, None),
    }
    for name, find in found.items():
        value = given.get(name)
        if isinstance(value, str) and not is_own_code(value):
            try:
                find(value)
            except (UnknownNameError, AmbiguousNameError) as error:
                yield error
            except GpuwiseError:
                continue  # the command has its own words for it


answer_with(answered, faults_of, build)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    # one process, two threads of our own: BLAS threads would only cost start-up time
    limit_own_products()
    words = list(sys.argv[1:] if arguments is None else arguments)
    prepare_streams()
    try:
        try:
            with _trimmed_help(words), asking(words):
                result = _complete(words[1:]) if words[:1] == [COMPLETION] else answered(words)
        except GpuwiseError as error:
            code = getattr(error, "exit_code", 2 if isinstance(error, InputError) else 1)  # of a script: its own
            result = _refuse(words, error, code)
        except SystemExit as stop:  # rich's answer to a closed pipe, in the help of the parser
            if isinstance(stop.__context__, BrokenPipeError):
                raise stop.__context__ from None
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader left (a pager, head): nothing more to say, and nothing to flush at exit
        discard_output()
        return 0
    except OSError as error:
        discard_output()
        return _refuse_plainly(*_broken(error), 1)
    except KeyboardInterrupt:
        return 130
    return result


@contextlib.contextmanager
def _trimmed_help(words: Sequence[str]) -> Generator[None]:
    """A help page without blanks at line ends, where it is not shown on a terminal."""
    own = words[: words.index("--")] if "--" in words else words
    if not words or {"--help", "-h", HELP_ALL} & set(own):
        with contextlib.redirect_stdout(trimmed(sys.stdout)):
            yield
    else:
        yield


SCRIPTED = ("run", "tune")
"""Commands that give a script the words after it, with ``--`` or without."""


def _empty_option(words: Sequence[str]) -> str | None:
    """What a value without a letter was given to: what nothing is asked of is not what is usual. None without one, and in a
    script's own words."""
    before = ""
    for word in words:
        if word == "--" or (words[0] in SCRIPTED and not word.startswith("-") and "." in word):
            return None
        name, equals, value = word.partition("=")
        if equals and name.startswith("--") and not value.strip():
            return name
        if not word.strip():
            return before if before.startswith("--") else f"{word!r}"
        before = word
    return None


def _broken(error: OSError) -> tuple[str, str]:
    """A fault of the machine that no command expected, in our words: what, where and what to do."""
    reason = error.strerror or type(error).__name__
    if error.filename is not None:
        return f"{error.filename}: {reason}", "check that path, its permissions and the space on its disk"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG):
        return f"cannot write the output: {reason}", "free space, or send the output elsewhere"
    return reason, "`gpuwise doctor` checks this machine"


def usual_hint(error: GpuwiseError) -> str:
    """Where to look when an error brings no advice of its own."""
    lists = {"accelerator": "gpus", "system": "gpus", "processor": "cpus", "model": "models"}
    command = lists.get(getattr(error, "kind", ""))
    return "see `gpuwise --help`" if command is None else f"`gpuwise {command}` lists the known names"


WORD_MODEL = {"op": "op decode llama-3.1-8b --on 4090"}
"""Commands whose model has no option, with an example."""


def _parsing(error: CycloptsError, words: Sequence[str]) -> tuple[str, str]:
    """A parser error in our words: first line lower case, and where to look."""
    from gpuwise.units import is_negative

    text = " ".join(str(error).split()).partition(" Available commands:")[0] or type(error).__name__
    chain = [name for name in getattr(error, "command_chain", None) or () if name]
    hint = f"see `gpuwise {' '.join([*chain, '--help'])}`"
    option = getattr(error, "keyword", None)
    unused: list[str] | None = getattr(error, "unused_tokens", None)
    guess = re.search(r"option: --([\w-]+).* (Did you mean --(\S+)\?)$", text)
    if guess and not nearest_names(guess[1], [guess[3]], cutoff=0.6):  # the dashes alone made them alike
        text = text.removesuffix(f" {guess[2]}")
    if unused and text.startswith("Unused"):
        text = "unused argument: " + " ".join(map(repr, unused))
    missing = re.fullmatch(r'Command "(.+)" parameter (--\S+) requires an argument\.?', text)
    if missing and missing[2] not in words:
        text = f"gpuwise {missing[1]} needs {missing[2]}"
        hint = f"gpuwise {missing[1]} --for infer (or train, finetune, learn)" if missing[2] == "--for" else hint
    if missing and missing[2] == "--model":  # its place is the first word
        text, hint = (
            f"gpuwise {missing[1]} needs a model",
            f"for example gpuwise {' '.join([*chain, 'llama-3.1-8b', *words[len(chain) :]])}",
        )
    if missing and missing[2] == "--on":
        named = _cluster_in(words)
        typed = shlex.join(word for word in words if word != named)
        hint = f"give the GPUs with --on: gpuwise {typed} --on {named or '8xH100-SXM'}"
    if "option: --model." in text and chain and chain[0] in WORD_MODEL:
        hint = f"give the model without an option: gpuwise {WORD_MODEL[chain[0]]}"
    for name, value in itertools.pairwise(words):
        if name == option and is_negative(value):  # read as an option of its own: -5B
            hint = f"{value!r} is negative; remove the minus: {name} {value.lstrip('-')}"
    for word in words:
        if is_negative(word) and f"option: {word}." in text:  # a size: op stream -1GB
            hint = f"{word!r} is negative; remove the minus: {word.lstrip('-')}"
    return text[:1].lower() + text[1:].rstrip("."), hint


def _cluster_in(words: Sequence[str]) -> str | None:
    """The first word outside an option that names GPUs."""
    from gpuwise.facts.hardware.naming import USUAL, find_cluster

    for before, word in itertools.pairwise(words):
        if not word.startswith("-") and not before.startswith("-"):
            with contextlib.suppress(InputError):
                find_cluster(word, prefer=USUAL)
                return word
    return None


def _refuse(words: Sequence[str], error: GpuwiseError, code: int) -> int:
    """Print what is wrong on stderr, and with ``--json`` as a document on stdout too."""
    faults = error.faults if isinstance(error, SeveralFaultsError) else (error,)
    documents = [{"error": f.message, "hint": f.hint or usual_hint(f)} for f in faults]
    if _wants_json(words):
        from gpuwise.cli.out import print_json
        from gpuwise.text import brief, printable

        plain = [{key: printable(brief(text)) for key, text in d.items()} for d in documents]
        print_json(plain[0] | ({"faults": plain} if len(plain) > 1 else {}))
        sys.stdout.flush()
    for d in documents:
        _refuse_plainly(d["error"], d["hint"], code)
    return code


def _refuse_plainly(message: str, hint: str, code: int) -> int:
    from gpuwise.text import brief, printable

    with contextlib.suppress(OSError):  # without a reader
        sys.stderr.write(printable(f"error: {brief(message)}\nhint: {brief(hint)}") + "\n")
        sys.stderr.flush()
    return code


def _wants_json(words: Sequence[str]) -> bool:
    """Whether a document was asked for; words after ``--`` are a script's own."""
    options = list(words)[: list(words).index("--")] if "--" in words else words
    return any(word == "--json" or word.lower() in ("--json=true", "--json=yes", "--json=1") for word in options)
