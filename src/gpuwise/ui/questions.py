"""Questions of a page: commands and their options as one table, and a query as the equivalent command line.

An option outside the table is rejected, so no query writes a file, reads one or reaches another machine; a model is a name or
dimensions, never a path.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.files import read_text
from gpuwise.lab.exercises import exercises
from gpuwise.workload.strategy import NEUTRAL, OPTIONS
from gpuwise.workload.tasks import tasks

LONGEST = 200
"""Characters of one value."""
FILES = (".json", ".py", ".toml", ".yaml", ".csv")
"""Ends of names that are files'."""


@dataclass(frozen=True, slots=True)
class Field:
    """One input field. ``name`` is that of the option with underscores; ``kind`` text, model, gpus, flag, choice, folder (one
    of the listed ones) or words (several, separated by commas or lines, without an option)."""

    name: str
    label: str
    kind: str = "text"
    choices: tuple[str, ...] = ()
    example: str = ""
    empty: str = ""
    """What leaving it empty means."""
    more: bool = False
    """Behind the button for more."""
    bare: bool = False
    """Given without its option's name."""
    leads: tuple[str, ...] = ()
    """Fields that belong to this one's choice: another choice empties them."""


@dataclass(frozen=True, slots=True)
class Question:
    """A command as a page asks it."""

    command: str
    title: str
    fields: tuple[Field, ...]
    always: tuple[str, ...] = ()
    """Words it is always given."""
    needs: tuple[str, ...] = ()
    """Required fields."""
    opens: bool = False
    """Asked as soon as it is looked at, with nothing filled in: the answer is what there is to ask."""
    quick: tuple[str, str] | None = None
    """A field and the value with which it is answered first, while the whole answer takes its time."""
    wait: str = ""
    """Message while the answer is computed."""


def _choice(name: str, label: str, choices: str, *, more: bool = True) -> Field:
    return Field(name, label, "choice", tuple(choices.split()), more=more)


MODEL = Field("model", "Model", "model", example="llama-3.1-8b")
SUBJECT = replace(MODEL, bare=True)
GPUS = Field("on", "GPUs", "gpus", example="8xH100-SXM")


def _strategy() -> tuple[Field, ...]:
    """The options of the table that pages ask for, in its order."""
    made: list[Field] = []
    for field, o in OPTIONS.items():
        if o.label:
            flag = isinstance(getattr(NEUTRAL, field), bool)
            choices = (*o.choices, "auto") if field == "precision" else o.choices
            kind = "flag" if flag else "choice" if choices else "text"
            made.append(Field(o.name or field, o.label, kind, choices, more=True))
    return tuple(made)


TRAINING = (
    Field("seq", "Sequence length", example="8192", more=True),
    Field("global_batch", "Sequences a step", example="512", more=True),
    Field("lora", "LoRA", "flag", more=True),
    Field("half_weights", "Weights in 16 bits", "flag", more=True),
    Field("host_memory", "RAM of a host", example="64GB", more=True),
    Field("link", "Links between GPUs", example="nvlink", more=True),
    *_strategy(),
)
MONEY = (Field("price", "Dollars a GPU-hour", example="2.5", more=True), Field("provider", "Provider", more=True))
QUESTIONS: Mapping[str, Question] = {
    "plan": Question(
        "plan",
        "A plan",
        (
            SUBJECT,
            GPUS,
            Field("tokens", "Tokens to train on", example="15B"),
            replace(_choice("for", "Task", "pretrain continue full lora qlora finetune"), empty="by the tokens"),
            Field("deadline", "Deadline", example="3d", more=True),
            Field("budget", "Budget, dollars", example="2000", more=True),
            *TRAINING,
            *MONEY,
        ),
        needs=("model",),
    ),
    "phases": Question(
        "plan",
        "RL, distillation, embeddings",
        (
            SUBJECT,
            GPUS,
            _choice("for", "Task", " ".join(t.name for t in tasks().values() if t.prompts), more=False),
            Field("teacher", "Teacher, of distillation", example="llama-3.1-70b"),
            Field("prompts", "Prompts a step", example="128", more=True),
            Field("group", "Responses to a prompt", example="8", more=True),
            Field("prompt", "Longest prompt", example="1024", more=True),
            Field("response", "Longest response", example="8192", more=True),
            Field("mean_response", "Mean response", example="4096", more=True),
            Field("updates", "Updates a step", example="2", more=True),
            Field("steps", "Steps", example="500", more=True),
            Field("engine_gpus", "GPUs to generate", example="4", more=True),
            Field("engine_ranks", "Ranks of an engine", example="2", more=True),
            Field("seq", "Length of a text", example="512", more=True),
            Field("global_batch", "Texts or queries a step", example="2048", more=True),
            Field("lora", "LoRA", "flag", more=True),
            Field("reference", "Reference model", "flag", more=True),
            *(f for f in _strategy() if f.name in ("stack", "tp", "pp", "micro_batch", "recompute", "qlora")),
            *MONEY,
        ),
        needs=("model", "on", "for"),
    ),
    "fit": Question(
        "fit",
        "A fit",
        (
            SUBJECT,
            GPUS,
            replace(_choice("for", "For", "run finetune train", more=False), empty="all three"),
            Field("context", "Tokens of context, to run it", example="32k", more=True),
            Field("weights", "Format of the weights, to run it", example="Q4_K_M", more=True),
            Field("ram", "RAM, to run it", example="64GB ddr5-5600x2", more=True),
            *TRAINING,
        ),
        needs=("model", "on"),
    ),
    "pick": Question(
        "pick",
        "Pick one",
        (
            _choice("for", "For", "infer train finetune embed rerank vision speech image video learn mixed", more=False),
            MODEL,
            Field("tokens", "Tokens", example="10M"),
            Field("users", "Users at once", example="10"),
            Field("budget", "Budget, dollars", example="2000"),
            Field("deadline", "Deadline", example="3d", more=True),
            Field("rent", "Rented only", "flag", more=True),
            Field("own", "Bought only", "flag", more=True),
            Field("vendor", "Vendors", example="nvidia,amd", more=True),
            Field("count", "GPUs at most", more=True),
            Field("country", "Country", example="DE", more=True),
            _choice("by", "First comes", "cost time balance value energy"),
        ),
        needs=("for",),
    ),
    "compare": Question(
        "compare",
        "Compare",
        (
            Field("names", "GPUs, apart by commas", "words", example="H100-SXM, L40S, 4090"),
            MODEL,
            _choice("for", "For", "train finetune infer", more=False),
            Field("tokens", "Tokens", example="15B", more=True),
            Field("seq", "Sequence length", more=True),
        ),
        needs=("names",),
    ),
    "cost": Question(
        "cost",
        "Rent or own",
        (
            GPUS,
            Field("hours", "GPU-hours a month", example="5000 or 60k/year"),
            Field("years", "Years", empty="3"),
            Field("country", "Country", example="DE", more=True),
            _choice("shape", "Shape", "steady bursts"),
            Field("growth", "Growth a year", example="50%", more=True),
            Field("buy_price", "Dollars to buy one", more=True),
            Field("rent_price", "Dollars a GPU-hour", more=True),
            Field("used", "Buy second-hand", "flag", more=True),
            Field("spot", "Can be stopped (spot)", "flag", more=True),
        ),
        needs=("on", "hours"),
        always=("own",),
    ),
    "capacity": Question(
        "capacity",
        "Capacity",
        (
            SUBJECT,
            replace(GPUS, empty="any that is rented out"),
            Field("users", "Users", example="200"),
            Field("rate", "or requests", example="20/s"),
            replace(
                _choice(
                    "workload",
                    "Workload",
                    "chat code rag agent summarise reasoning embed rerank vision speech image video",
                    more=False,
                ),
                empty="usual for the model",
            ),
            Field("slo", "Targets", example="ttft_p95=1s,itl_p99=50ms", more=True),
            Field("think", "Between two requests", example="45s", more=True),
            Field("concurrency", "or requests in flight", example="64", more=True),
            _choice("engine", "Engine", "vllm sglang trtllm llama.cpp"),
            Field("weights", "Bits of a weight", example="16,8", more=True),
            _choice("kv_cache", "Key-value cache", "bf16 fp8"),
            Field("tp", "Tensor parallel", more=True),
            Field("pp", "Pipeline stages", more=True),
            Field("ep", "Expert parallel", more=True),
            Field("disaggregate", "Prefill to decode replicas", example="auto", more=True),
            Field("lora", "Adapters", example="50:32:8", more=True),
            Field("draft", "Speculative tokens", example="3:2.4", more=True),
            Field("enforce_eager", "No CUDA graphs", "flag", more=True),
            Field("context", "Longest request", more=True),
            Field("budget", "Budget, dollars an hour", more=True),
            *MONEY,
            Field("quick", "Leave single changes out", "flag", more=True),
        ),
        needs=("model",),
    ),
    "occupancy": Question(
        "lab",
        "Occupancy",
        (
            Field("on", "GPU", "gpus", example="V100"),
            Field("regs", "Registers a thread", example="37"),
            Field("block", "Threads of a block", example="320"),
            Field("smem", "Static shared memory", example="12KiB", more=True),
            Field("dynamic_smem", "Dynamic shared memory", example="48KiB", more=True),
            Field("carveout", "Carve-out, percent", more=True),
            Field("barriers", "Barriers of a block", more=True),
            Field("optin", "More than 48 KiB was asked for", "flag", more=True),
        ),
        ("occupancy", "--chart"),
        needs=("on", "regs", "block"),
    ),
    "simulate": Question(
        "lab",
        "CPU beside GPU",
        (
            replace(
                _choice(
                    "task",
                    "Task",
                    "vector-add matmul-tiled matmul-naive chain divergence reduction transpose transpose-padded gather softmax "
                    "attention-scores attention-fused convolution",
                    more=False,
                ),
                bare=True,
                leads=("size",),
            ),
            Field("size", "Size", example="usual"),
            Field("against", "CPU", example="EPYC 9654"),
            Field("on", "GPU", "gpus", example="A100-80GB"),
            Field("crossover", "From which size on the GPU is faster", "flag", more=True),
        ),
        ("simulate", "--timeline"),
        opens=True,
    ),
    "exercise": Question(
        "lab",
        "Exercise",
        (
            replace(
                _choice("number", "Exercise", " ".join(str(e.number) for e in exercises()), more=False),
                bare=True,
                leads=("answer", "hint", "solution"),
            ),
            Field("answer", "Your answer", example="25", bare=True),
            _choice("hint", "Hints", "1 2 3", more=False),
            Field("solution", "Show the solution", "flag"),
        ),
        ("exercise",),
        opens=True,
    ),
    "runs": Question("validate", "Predicted and measured", (), ("--runs",)),
    "ranks": Question("validate", "Ranks", (Field("ranks", "Run in this folder", "folder"),), needs=("ranks",)),
    "doctor": Question(
        "doctor",
        "Doctor",
        (Field("frameworks", "Ask PyTorch and its like what they see", "flag", more=True),),
        opens=True,
        quick=("frameworks", "no"),
        wait="The machine is looked through. PyTorch and its like are being asked what they see: a minute where a disk is slow",
    ),
    "history": Question("bench", "Records", (), ("--history",)),
}
"""Questions by page name; each is a command with options that neither write nor read files."""


def words_of(
    name: str, query: Mapping[str, str], folders: Mapping[str, str] | None = None, faults: list[InputError] | None = None
) -> list[str]:
    """The command line of a query, without ``--json``; ``folders`` are those a query may name, with their paths. What is wrong
    with values goes to ``faults`` where that is given. Raises InputError otherwise, and for what the page does not ask."""
    question = QUESTIONS.get(name)
    if question is None:
        raise UnknownNameError("question", name, QUESTIONS)
    by_name = {field.name: field for field in question.fields}
    for key in query:
        if key not in by_name:
            raise UnknownNameError("field", key, by_name, otherwise="this page has " + ", ".join(by_name))
    given = {key: value.strip() for key, value in query.items() if value.strip()}
    needed = _needed(question, given)
    words = [question.command, *question.always]
    for field in question.fields:
        value = given.get(field.name, "")
        try:
            if not value and field.name in needed:
                example = f"for example {field.example}" if field.example else "pick one of the list"
                raise InputError(f"{field.label}: nothing is given", hint=example)
            if value and field.kind == "folder":
                words += ["--" + field.name, _folder(field, value, folders or {})]
            elif value:
                words += _words(field, checked(field, value))
        except InputError as error:
            if faults is None:
                raise
            faults.append(error)
    return words


def _needed(question: Question, given: Mapping[str, str]) -> set[str]:
    """Required fields, with the one before a field without option."""
    bare = [f.name for f in question.fields if f.bare]
    return {*question.needs, *(bare[:1] if question.opens and given else ())}


def _folder(field: Field, value: str, folders: Mapping[str, str]) -> str:
    if value not in folders:
        raise InputError(f"{field.label}: {value[:LONGEST]!r} is not one of those listed", hint="pick one of the list")
    return folders[value]


def with_json(words: Sequence[str]) -> list[str]:
    """The same command line with ``--json``, in front of a script's own arguments."""
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], "--json", *words[at:]]


def address_of(words: Sequence[str]) -> str | None:
    """Where a page asks a command line: path and query; None where no page does."""
    for page in PAGES:
        for name in page.asks:
            question = QUESTIONS[name]
            start = (question.command, *question.always)
            if page.name != "home" and tuple(words[: len(start)]) == start:
                fields = _fields(question, words[len(start) :])
                if fields is not None:
                    query = urlencode({**({} if name == page.asks[0] else {"ask": name}), **fields})
                    return f"/{page.name}?{query}".rstrip("?")
    return None


def _fields(question: Question, words: Sequence[str]) -> dict[str, str] | None:
    """The query of :func:`words_of` for the words behind the command; None for what the page does not ask."""
    by_option = {"--" + f.name.replace("_", "-"): f for f in question.fields if not f.bare and f.kind not in ("words", "folder")}
    bare = [f.name for f in question.fields if f.bare]
    several = next((f.name for f in question.fields if f.kind == "words"), None)
    fields: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            field = by_option.get(word)
            if field is None or (field.kind != "flag" and not rest):
                return None
            value = "yes" if field.kind == "flag" else rest.pop(0)
            if field.kind == "choice" and value not in field.choices:
                return None
            fields[field.name] = value
        elif bare:
            fields[bare.pop(0)] = word
        elif several is not None:
            fields[several] = ", ".join(filter(None, (fields.get(several), word)))
        else:
            return None
    return fields


def line_of(words: Sequence[str]) -> str:
    """The command line as one types it."""
    return shlex.join(["gpuwise", *words])


def checked(field: Field, value: str) -> str:
    """``value`` where a query may hold it. Raises InputError."""
    if len(value) > LONGEST:
        raise InputError(f"{field.label}: {len(value):,} characters", hint=f"at most {LONGEST}")
    if not value.isprintable():
        raise InputError(f"{field.label}: {value!r} has control characters", hint="type it anew")
    if field.kind == "flag" and value not in ("yes", "no"):
        raise InputError(f"{field.label}: {value!r} is neither yes nor no", hint="tick the box, or leave it out")
    if field.kind == "choice" and any(v not in field.choices for v in value.split(",")):
        raise InputError(f"{field.label}: {value!r} is not one of {', '.join(field.choices)}", hint="pick one of them")
    if field.kind in ("model", "words") and (
        value.startswith(("/", "~", ".", "-"))
        or "\\" in value
        or ".." in value
        or (":" in value and not _is_tagged(value))
        or value.endswith(FILES)
    ):
        raise InputError(
            f"{field.label}: {value!r} is not a name",
            hint="a file is never read because of an address: choose your own code on the page Fit, or use the command line",
        )
    if field.bare and value.startswith("-"):
        raise InputError(f"{field.label}: {value!r} is an option", hint="give the value alone")
    return value


def _is_tagged(value: str) -> bool:
    from gpuwise.facts.models.names import is_tagged

    return is_tagged(value)


def _words(field: Field, value: str) -> list[str]:
    option = "--" + field.name.replace("_", "-")
    if field.kind == "flag":
        return [option if value == "yes" else f"--no-{option[2:]}"]
    if field.kind == "words":
        return [v.strip() for v in value.replace("\n", ",").split(",") if v.strip()]
    if field.bare:
        return [value]
    return [f"{option}={value}"] if value.startswith("-") else [option, value]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the application: its address, title, first line and the questions it asks."""

    name: str
    title: str
    lead: str
    asks: tuple[str, ...]
    own: bool = False
    """Whether own code is supported here too."""
    lessons: bool = False
    """Whether it opens with the lessons."""
    start: tuple[tuple[str, str], ...] = ()
    """Fields that are filled in, and answered, where nothing was asked before."""
    examples: tuple[tuple[str, str], ...] = ()
    """Questions in words, each with the address that answers it."""


PAGES = (
    Page(
        "home",
        "Home",
        "What can I do with this model on this device?",
        ("fit",),
        start=(("model", "llama-3.1-8b"), ("on", "rtx-3060-12gb")),
        examples=(
            ("Which GPU for $1,000 to run Qwen3 30B-A3B?", "/choose?for=infer&model=qwen3-30b-a3b&budget=1000"),
            ("How long does it take to train Llama 3.1 8B on 8 H100?", "/plan?model=llama-3.1-8b&on=8xH100-SXM&tokens=15B"),
            ("What do 200 people who chat with it need?", "/serve?model=llama-3.1-8b&users=200"),
            ("Is my machine ready, and why is it slow?", "/machine"),
        ),
    ),
    Page("plan", "Plan", "Which layout, how long, how much, to train this?", ("plan", "phases")),
    Page("fit", "Fit", "Can I run it, adapt it, train it on this device, and what makes it fit?", ("fit",), own=True),
    Page(
        "choose",
        "Choose",
        "Which GPU should I get, which is better at what, and should it be rented?",
        ("pick", "compare", "cost"),
    ),
    Page("serve", "Serve", "Which GPUs, how many, at what latency and price, to serve this load?", ("capacity",)),
    Page(
        "machine",
        "Machine",
        "Is this machine ready, what do its GPUs do, and what has been measured here?",
        ("doctor", "history"),
    ),
    Page(
        "lab",
        "Lab",
        "The same task on a CPU and on a GPU: which is first, when, and why?",
        ("simulate", "occupancy"),
        start=(("task", "matmul-tiled"), ("size", "1024"), ("against", "i5-12400"), ("on", "rtx-4090")),
        examples=(
            ("A matrix product", "/lab?task=matmul-tiled&size=1024&against=i5-12400&on=rtx-4090"),
            ("A small one", "/lab?task=matmul-tiled&size=32&against=i5-12400&on=rtx-4090"),
            ("Two arrays added: the copies take longest", "/lab?task=vector-add&against=i5-12400&on=rtx-4090"),
            ("One long chain, where each step waits for the one before", "/lab?task=chain&against=i5-12400&on=rtx-4090"),
        ),
    ),
    Page(
        "learn",
        "Learn",
        "Short lessons, each with a picture and an exercise to try.",
        ("exercise",),
        lessons=True,
    ),
    Page(
        "runs",
        "Runs",
        "What was predicted of the trainings here, beside what came of it; and which rank the others wait for.",
        ("runs", "ranks"),
    ),
)
"""The first is the one the application opens with."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson of ``docs/learn``; the asset ``name`` with ``.html`` is its text (``tools.docs.lessons``)."""

    name: str
    title: str


@cache
def lessons() -> tuple[Lesson, ...]:
    """All lessons in their order."""
    made: list[Lesson] = []
    folder = Path(str(files("gpuwise.ui") / "assets" / "lessons"))
    for file in sorted(folder.iterdir()):
        name, _, kind = file.name.partition(".")
        if kind == "html":
            title = read_text(file).partition("<h2>")[2].partition("</h2>")[0]
            made.append(Lesson(name, unescape(title)))
    return tuple(made)


def site(folders: Sequence[str]) -> dict[str, Any]:
    """All pages and questions; ``folders`` are those that can be chosen."""
    return {
        "pages": [asdict(p) for p in PAGES],
        "questions": [{"name": n, "moment": n == "plan", **asdict(_with(q, folders))} for n, q in QUESTIONS.items()],
        "lessons": [asdict(lesson) for lesson in lessons()],
    }


def _with(question: Question, folders: Sequence[str]) -> Question:
    fields = (replace(f, choices=tuple(folders)) if f.kind == "folder" else f for f in question.fields)
    return replace(question, fields=tuple(fields))
