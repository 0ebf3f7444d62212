"""A question in a sentence: ``gpuwise "can I fine-tune an 8B on my 4090"`` is answered by the command for it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuwise.cli.asked import asking
from gpuwise.errors import AmbiguousNameError, InputError, nearest_names
from gpuwise.files import read_text

RUNS = ("profile", "tune", "memory")
"""Commands that run a script or read a recording."""
BY_SIZE = (
    (2, "llama-3.2-1b"),
    (5, "llama-3.2-3b"),
    (10, "llama-3.1-8b"),
    (20, "qwen2.5-14b"),
    (50, "qwen2.5-32b"),
    (100, "llama-3.1-70b"),
    (float("inf"), "llama-3.1-405b"),
)
"""A model for a size in billions of parameters: the first row with at least that many."""
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?b(?:illion)?", re.IGNORECASE)
DOLLARS = re.compile(r"[$€£]\s?(\d[\d,.]*)\s?(k?)|(\d[\d,.]*)\s?(k?)\s?(?:dollars|usd|bucks|euros)", re.IGNORECASE)
UP_TO = re.compile(
    r"(?:under|below|less than|at most|up to|for)\s(\d[\d,]*)(k?)"
    r"(?=$|\s(?!\w*\s?(?:tokens|users|people|watts?|w\b|gb|hours)))"
)
"""A budget without its currency."""
PEOPLE = re.compile(r"(\d[\d,]*)\s+(?:\w+\s)?(?:people|users|persons|customers|employees|students|clients)", re.IGNORECASE)
TOKENS = re.compile(r"(\d+(?:\.\d+)?\s?[kmbt])\s+tokens", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a sentence names; ``model`` is None where it names neither a model nor a size."""

    text: str
    gpus: tuple[str, ...]
    model: str | None
    budget_usd: float | None
    users: int | None
    tokens: str | None

    @property
    def on(self) -> str:
        return self.gpus[0] if self.gpus else "this"

    @property
    def model_or_example(self) -> str:
        return self.model or "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class Offer:
    """A command, and the question that it answers."""

    question: str
    words: tuple[str, ...]

    @property
    def line(self) -> str:
        return "gpuwise " + shlex.join(self.words)

    @property
    def answers(self) -> bool:
        """Whether it answers at once: it runs no script and measures nothing."""
        return self.words[0] not in RUNS


def is_sentence(words: Sequence[str], commands: Sequence[str]) -> bool:
    """Whether words that begin with no command are a question: several, without options, and not a mistyped command."""
    if any(word.startswith("-") for word in words) or len(" ".join(words).split()) < 3:
        return False
    return not nearest_names(words[0], commands, cutoff=0.7)


def answer(words: Sequence[str], ask: Callable[[Sequence[str]], int]) -> int:
    """Answer a sentence by the likeliest command, which ``ask`` answers, and print the commands for it; its exit code. A command
    that runs a script is printed alone. Raises InputError where no command is known."""
    sentence = " ".join(words)
    found = offers(sentence)
    if not found:
        raise InputError(
            f"no command for {sentence!r}",
            hint="name what you want: run, fine-tune, train, serve, buy or rent; or see gpuwise --help",
        )
    first = found[0]
    if not first.answers:
        _print(found)
        return 0
    with asking(first.words):
        code = ask(first.words)
    sys.stdout.write(f"\nAsked:  {first.line}\n")
    _print(found[1:])
    return code


def _print(found: Sequence[Offer]) -> None:
    for offer in found:
        sys.stdout.write(f"{offer.question}\n  {offer.line}\n")


def offers(sentence: str) -> list[Offer]:
    """The commands that answer a sentence, at most three, the likeliest first."""
    heard = hear(sentence)
    found: list[Offer] = []
    for pattern, make in RULES:
        if re.search(pattern, heard.text) and not (found and make is _plan):
            found += [offer for offer in make(heard) if offer not in found]
    return found[:3]


def hear(sentence: str) -> Heard:
    """What ``sentence`` names: GPUs, a model, a budget, users, tokens."""
    text = " ".join(sentence.lower().split())
    gpus, model = _named(text)
    money, people, tokens = DOLLARS.search(text) or UP_TO.search(text), PEOPLE.search(text), TOKENS.search(text)
    size = SIZE.search(text[: tokens.start()] + text[tokens.end() :] if tokens else text)
    if model is None and size is not None:
        model = next(name for most, name in BY_SIZE if float(size[1]) <= most)
    budget = None
    if money is not None:
        number, thousands = next((money[i], money[i + 1]) for i in range(1, len(money.groups()), 2) if money[i])
        budget = float(number.strip(".,").replace(",", "")) * (1000 if thousands else 1)
    return Heard(
        text,
        gpus,
        model,
        budget,
        int(people[1].replace(",", "")) if people else None,
        tokens[1].replace(" ", "").upper() if tokens else None,
    )


def _named(text: str) -> tuple[tuple[str, ...], str | None]:
    """The GPUs and the model in ``text``: the longest runs of words that are names."""
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.facts.models.catalogue import find_model

    words = re.findall(r"[\w.+-]*\w", UP_TO.sub(" ; ", DOLLARS.sub(" ; ", text)).replace(",", " , "))
    gpus: list[str] = []
    model: str | None = None
    at = 0
    while at < len(words):
        for n in range(min(4, len(words) - at), 0, -1):
            name = " ".join(words[at : at + n])
            if not re.search(r"\d", name) or SIZE.fullmatch(name):
                continue
            try:
                find_cluster(name, prefer=USUAL)
            except AmbiguousNameError as several:
                gpus.append(several.candidates[0])
                break
            except InputError:
                pass
            else:
                gpus.append(name.replace(" ", "-"))
                break
            if model is None:
                with suppress(InputError):
                    model = find_model(name.replace(" ", "-")).id
                    break
        else:
            n = 1
        at += n
    return tuple(dict.fromkeys(gpus)), model


def _fit(purpose: str, question: str) -> Callable[[Heard], Iterator[Offer]]:
    def make(h: Heard) -> Iterator[Offer]:
        if h.gpus or h.budget_usd is None:
            on = ("--on", h.on) if h.gpus else ()
            yield Offer(question, ("fit", h.model_or_example, *on, "--for", purpose))

    return make


def _pick(h: Heard) -> Iterator[Offer]:
    budget = () if h.budget_usd is None else ("--budget", f"{h.budget_usd:g}")
    purposes = {
        "finetune": r"fine.?tun|lora|adapt",
        "train": r"\btrain|pre.?train",
        "infer": r"\brun\b|infer|chat|serve|ollama|local|llm",
        "learn": r"learn|course|student|class",
    }
    purpose = next((name for name, words in purposes.items() if re.search(words, h.text)), "infer")
    model = () if purpose == "learn" else ("--model", h.model_or_example)
    tokens = ("--tokens", h.tokens or "1B") if purpose == "train" else ()
    how = (
        ("--rent",)
        if re.search(r"\brent|cloud", h.text)
        else ("--own",)
        if re.search(r"\bbuy|\bown|card", h.text) or budget
        else ()
    )
    yield Offer(f"Which GPU should I get to {purpose}?", ("pick", "--for", purpose, *model, *tokens, *budget, *how))


def _serve(h: Heard) -> Iterator[Offer]:
    on = ("--on", h.on) if h.gpus else ()
    users = ("--users", str(h.users or 100))
    if re.search(r"cost|price|much|\$", h.text):
        card = on or ("--on", "H100-SXM")
        yield Offer("What does it cost to serve them?", ("cost", "serve", h.model_or_example, *card, *users))
    yield Offer("Which GPUs and how many serve them?", ("capacity", h.model_or_example, *on, *users))


def _plan(h: Heard) -> Iterator[Offer]:
    on = ("--on", h.on) if h.gpus else ()
    tokens = ("--tokens", h.tokens) if h.tokens else ("--tokens", "1B") if h.gpus else ()
    yield Offer("How long and how much does it take to train?", ("plan", h.model_or_example, *on, *tokens))


def _compare(h: Heard) -> Iterator[Offer]:
    if len(h.gpus) > 1:
        yield Offer("Which GPU is better at what?", ("compare", *h.gpus))


def _prices(h: Heard) -> Iterator[Offer]:
    if h.gpus and h.model is None:
        yield Offer("What does it cost an hour?", ("prices", h.gpus[0]))
        yield Offer("Rent or own?", ("cost", "own", "--on", h.gpus[0]))


def _explain(h: Heard) -> Iterator[Offer]:
    from gpuwise.facts.words import find_term

    for name in re.findall(r"(?:what(?:'s| is| are| does)|explain|meaning of)\s+(?:an?\s|the\s)?(.+?)(?:\s+mean)?\??$", h.text):
        with suppress(InputError):
            yield Offer("What does the word mean?", ("explain", find_term(name).names[0]))


def _script(question: str, command: str) -> Callable[[Heard], Iterator[Offer]]:
    """A command for the training script of this folder; for ``train.py`` if there is no script."""

    def make(_: Heard) -> Iterator[Offer]:
        yield Offer(question, (command, next(_scripts(), "train.py")))

    return make


def _scripts() -> Iterator[str]:
    """Python files of this folder that train: they call ``backward`` or make a Trainer."""
    for file in sorted(Path().glob("*.py")):
        with suppress(InputError):
            if re.search(r"\.backward\(|\bTrainer\(", read_text(file)):
                yield file.name


def _command(question: str, *words: str) -> Callable[[Heard], Iterator[Offer]]:
    return lambda h: iter([Offer(question, words)])


RULES: tuple[tuple[str, Callable[[Heard], Iterator[Offer]]], ...] = (
    (r"what|explain|meaning", _explain),
    (r"(?:what|which) (?:\w+ )?models?", lambda h: iter([Offer("Which models run on it?", ("models", "--on", h.on))])),
    (r"\bout of memory|\boom\b", _command("What filled the GPU's memory?", "memory", "--help")),
    (r"slow|bottleneck|\bidle|utili[sz]ation|speed up", _script("Where does my step's time go?", "profile")),
    (r"slow|faster|speed up", _script("What makes my script faster?", "tune")),
    (r"slow|bottleneck|\bidle|utili[sz]ation", _command("What are the GPUs doing now?", "top")),
    (
        r"ready|set.?up|install|driver|cuda (?:error|not|is)|not (?:found|detected|recogni)|no gpu",
        _command("Is this machine ready?", "doctor"),
    ),
    (r"fine.?tun|\blora|qlora|adapt", _fit("finetune", "Can I fine-tune it there?")),
    (r"(?:which|what|best|cheapest) (?:\w+ )?(?:gpu|card|graphics)|\bbuy\b|under [$€£]|budget|should i get", _pick),
    (r"\bserv|\d (?:\w+ )?(?:people|users)|requests|deploy|production", _serve),
    (r"compare|\bvs\b|versus|better|\bor\b", _compare),
    (r"\btrain|pre.?train", _plan),
    (
        r"\brun\b|infer|chat|fit\b|\bfits\b|load|ollama|llama\.cpp|local|tokens (?:per|a) second|how fast",
        _fit("run", "Does it run there?"),
    ),
    (r"rent|own|cost|price|much", _prices),
)
"""What a sentence asks for, by its words; several can match."""
