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
from gpuwise.cli.heard import EMBED, IMAGE, TEXT, VIDEO, Heard, hear
from gpuwise.errors import GpuwiseError, InputError, nearest_names
from gpuwise.files import read_text

USUAL_GPU = "4090"
"""Stands for a GPU that is not named."""
RUNS = ("profile", "tune", "memory")
"""Commands that run a script or read a recording."""


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
    """Whether words that begin with no command are a question: several, or the name of a model or a GPU, without options, and not
    a mistyped command."""
    if any(word.startswith("-") for word in words) or nearest_names(words[0], commands, cutoff=0.7):
        return False
    if len(" ".join(words).split()) < 3:
        heard = hear(" ".join(words))
        return heard.model is not None or bool(heard.gpus)
    return True


def answer(words: Sequence[str], ask: Callable[[Sequence[str]], int]) -> int:
    """Answer a sentence by the likeliest command, which ``ask`` answers, and print the commands for it; its exit code. A command
    that runs a script is printed alone. Raises InputError where no command is known, and what the command raises."""
    sentence = " ".join(words)
    heard = hear(sentence)
    found = _offers(sentence, heard)
    first = found[0]
    if not first.answers:
        _print(found)
        return 0
    with asking(first.words):
        code = ask(first.words)
    sys.stdout.write(f"\nAsked:  {first.line}\n")
    if heard.model is None and heard.model_or_example in first.words:
        sys.stdout.write(f"No model is named: {heard.model_or_example} stands for it\n")
    if heard.stands and heard.on in first.words:
        sys.stdout.write(f"{heard.stands}\n")
    elif not heard.gpus and USUAL_GPU in first.words:
        sys.stdout.write(f"No GPU is named: {USUAL_GPU} stands for it\n")
    _print(found[1:])
    return code


def _print(found: Sequence[Offer]) -> None:
    for offer in found:
        sys.stdout.write(f"{offer.question}\n  {offer.line}\n")


def offers(sentence: str) -> list[Offer]:
    """The commands that answer a sentence, at most three, the likeliest first. Raises InputError where none is known."""
    return _offers(sentence, hear(sentence))


def _offers(sentence: str, heard: Heard) -> list[Offer]:
    found: list[Offer] = []
    for pattern, make in RULES:
        if re.search(pattern, heard.text) and not (found and make is _plan):
            found += [offer for offer in make(heard) if offer.words not in {one.words for one in found}]
    found = found or list(_of_names(heard))
    if not found:
        raise InputError(
            f"no command for {sentence!r}",
            hint="name what you want: run, fine-tune, train, serve, buy or rent; or see gpuwise --help",
        )
    return found[:3]


def _of_names(h: Heard) -> Iterator[Offer]:
    """For names without a question."""
    if h.gpus and h.ram:
        yield from _run(h)
    elif h.gpus and (h.model is not None or h.does != TEXT):
        yield Offer("What can I do with it there?", ("fit", h.model_or_example, *h.on_gpus))
    elif h.model is not None and h.ram:
        yield from _memory(h)
    elif h.model is not None:
        yield from _pick(h)
        yield Offer("Does it run on this machine?", ("fit", h.model))
    elif len(h.gpus) > 1:
        yield from _compare(h)
    elif h.gpus:
        yield Offer("Which models run on it?", ("models", *h.on_gpus))
        yield from _prices(h)


def _run(h: Heard) -> Iterator[Offer]:
    batch = re.search(r"batch (?:size )?(?:of )?([2-9]|[1-9]\d+)\b", h.text)
    if batch is not None and h.does == TEXT and h.gpus:
        weights = ("--weights", h.weights) if h.weights and re.match("fp8|int4|nvfp4|mxfp4", h.weights) else ()
        words = ("op", "decode", h.model_or_example, *h.on_gpus, "--batch", batch[1], *weights)
        yield Offer("How fast do so many at once write?", words)
    if h.gpus or h.budget_usd is None:
        options = (("--weights", h.weights), ("--context", h.context), ("--ram", h.ram if h.gpus else None))
        given = [word for option, value in options if value for word in (option, value)]
        yield Offer("Does it run there?", ("fit", h.model_or_example, *h.on_gpus, *given, "--for", "run"))


CHOOSES = (
    r"(?:which|what|best|cheapest) (?:\w+ )?(?:gpus?|cards?|graphics|hardware|way)\b|\bbuy\b|under [$€£]|budget|"
    r"should i get|cheaply"
)
"""Asks which GPU."""


OWN_DATA = r"train.* (?:on|with) (?:my|our) (?:own )?(?:data|dataset|documents|texts|notes|images|pictures|photos|code)\b"
"""What people call fine-tuning."""


def _finetune(h: Heard) -> Iterator[Offer]:
    if re.search(r"\b(?:grpo|rloo|ppo|dpo)\b", h.text):
        return
    whole = re.search(r"full(?:y)? (?:parameter |weight )?(?:fine.?tun)|all (?:the )?weights|every weight", h.text)
    quantized = ("--qlora",) if "qlora" in h.text else ()
    if (h.tokens or h.gpus) and h.does in (TEXT, EMBED) and re.search(r"how long|hours|days|cost|time", h.text):
        way = ("--for", "full") if whole else quantized or ("--for", "finetune")
        tokens = ("--tokens", h.tokens) if h.tokens else ()
        yield Offer("How long does it take?", ("plan", h.model_or_example, *h.on_gpus, *tokens, *way))
    if h.does in (IMAGE, VIDEO) and not h.gpus and h.budget_usd is None:
        yield Offer("How much memory does it take?", ("fit", h.model_or_example, "--on", USUAL_GPU, "--for", "finetune"))
    elif not h.gpus and not re.search(CHOOSES, h.text) and not _has_gpu():
        yield from _pick(h)
    elif h.gpus or (h.budget_usd is None and not re.search(CHOOSES, h.text)):
        both = whole and re.search(r"\blora", h.text)
        purpose = () if both else ("--for", "train" if whole else "finetune")
        yield Offer("Can I fine-tune it there?", ("fit", h.model_or_example, *h.on_gpus, *purpose, *quantized))


def _has_gpu() -> bool:
    """Whether this machine has a GPU."""
    from gpuwise.facts.hardware.this import this_cluster

    with suppress(GpuwiseError):
        return bool(this_cluster("this"))
    return False


def _learn_from_answers(h: Heard) -> Iterator[Offer]:
    """Preference tuning and reinforcement learning."""
    for purpose in re.findall(r"\b(grpo|rloo|ppo|dpo)\b", h.text)[:1]:
        yield Offer("How long does an update take?", ("plan", h.model_or_example, *h.on_gpus, "--for", purpose))


PURPOSES = (
    ("finetune", r"fine.?tun|lora|adapt"),
    ("train", r"\btrain|pre.?train"),
    ("infer", r"\brun\b|infer|chat|serve|ollama|local|llm"),
    ("learn", r"learn|course|student|class"),
)
"""What a GPU is for, by the words for it; other models than those of text have a purpose of their own."""
TRAINS = r"\btrain|fine.?tun|lora"


def _pick(h: Heard) -> Iterator[Offer]:
    if h.users and h.budget_usd is None:
        return  # capacity looks for the GPUs
    budget = () if h.budget_usd is None else ("--budget", f"{h.budget_usd:g}")
    purpose = next((name for name, words in PURPOSES if re.search(words, h.text)), "infer") if h.does == TEXT else h.does
    model = () if purpose == "learn" else (h.model_or_example,)
    tokens = ("--tokens", h.tokens or "1B") if purpose == "train" else ()
    how = (
        ("--rent",)
        if re.search(r"\brent|cloud", h.text)
        else ("--own",)
        if re.search(r"\bbuy|\bto own|card", h.text) or budget
        else ()
    )
    yield Offer(f"Which GPU should I get to {purpose}?", ("pick", *model, "--for", purpose, *tokens, *budget, *how))


def _serve(h: Heard) -> Iterator[Offer]:
    if h.does != TEXT:
        yield Offer("How many does it carry?", ("capacity", h.model_or_example, *h.on_gpus, "--workload", h.does))
        return
    if len(h.gpus) > 1:
        yield from _compare(h)
        return
    asks = re.search(r"how many (?:\w+ )?(?:users|people|requests)", h.text)
    users = () if asks and h.gpus else ("--users", str(h.users or 100))
    if users and (h.gpus or h.model is None) and re.search(r"cost|price|much|\$", h.text):
        card = h.on_gpus or ("--on", "H100-SXM")
        yield Offer("What does it cost to serve them?", ("cost", "serve", h.model_or_example, *card, *users))
    yield Offer("Which GPUs and how many serve them?", ("capacity", h.model_or_example, *h.on_gpus, *users))


def _per_token(h: Heard) -> Iterator[Offer]:
    """What tokens cost where a model that is named writes them."""
    if h.model is not None and not re.search(TRAINS, h.text):
        users = ("--users", str(h.users or 100))
        yield Offer("What does a million tokens cost?", ("capacity", h.model, *h.on_gpus, *users))


def _how_many(h: Heard) -> Iterator[Offer]:
    """GPUs, of a model that is not trained."""
    users = ("--users", str(h.users)) if h.users else ()
    if h.model is not None and not re.search(TRAINS, h.text):
        yield Offer("How many GPUs does it need?", ("capacity", h.model, *h.on_gpus, *users))


def _memory(h: Heard) -> Iterator[Offer]:
    if h.model is not None and not h.gpus and not re.search(TRAINS, h.text):
        context = ("--context", h.context) if h.context and h.does == TEXT else ()
        yield Offer("How much memory does it need?", ("models", h.model, *context))


def _plan(h: Heard) -> Iterator[Offer]:
    if h.does != TEXT:
        lora = ("--for", "lora") if "lora" in h.text else ()
        samples = ("--samples", h.samples) if h.samples else ()
        yield Offer("How long does it take to train?", ("plan", h.model_or_example, *h.on_gpus, *lora, *samples))
        return
    tokens = ("--tokens", h.tokens) if h.tokens else ("--tokens", "1B") if h.gpus else ()
    within = ("--deadline", h.deadline) if h.deadline else ()
    yield Offer("How long and how much does it take to train?", ("plan", h.model_or_example, *h.on_gpus, *tokens, *within))


def _own(h: Heard) -> Iterator[Offer]:
    yield Offer("Rent or own?", ("cost", "own", "--on", h.on if h.gpus else "H100-SXM"))


def _energy(h: Heard) -> Iterator[Offer]:
    if h.gpus and h.model is None:
        yield Offer("How much power and energy do they take?", ("cost", "own", *h.on_gpus, "--energy"))


def _compare(h: Heard) -> Iterator[Offer]:
    if len(h.gpus) > 1 and h.does in (IMAGE, VIDEO):
        for gpu in h.gpus:
            yield Offer(f"How fast is it on {gpu}?", ("fit", h.model_or_example, "--on", gpu))
    elif len(h.gpus) > 1:
        purpose = next((name for name, words in PURPOSES[:3] if re.search(words, h.text)), None)
        text = (h.model is not None or purpose is not None) and h.does == TEXT
        model = ("--model", h.model_or_example, "--for", purpose or "infer") if text else ()
        yield Offer("Which GPU is better at what?", ("compare", *h.gpus, *model))


def _prices(h: Heard) -> Iterator[Offer]:
    if h.gpus and h.model is None:
        yield Offer("What does it cost an hour?", ("prices", h.gpus[0]))
        yield from _own(h)


def _explain(h: Heard) -> Iterator[Offer]:
    from gpuwise.facts.words import find_term

    for name in re.findall(r"(?:what(?:'s| is| are| does)|explain|meaning of)\s+(?:an?\s|the\s)?(.+?)(?:\s+mean)?\??$", h.text):
        with suppress(InputError):
            yield Offer("What does the word mean?", ("explain", find_term(name).names[0]))


SERVERS = r"ollama|llama\.?cpp|lm.?studio|koboldcpp|vllm|sglang"
"""Programs that run a model: no script of training is slow then."""


def _program(h: Heard) -> Iterator[Offer]:
    """A program that runs a model, and is slow."""
    if re.search(SERVERS, h.text) and len(h.gpus) < 2:
        yield Offer("Is this machine ready?", ("doctor",))
        yield Offer("How fast should it be there?", ("fit", h.model_or_example, *h.on_gpus, "--for", "run"))


def _script(question: str, command: str) -> Callable[[Heard], Iterator[Offer]]:
    """A command for the training script of this folder; for ``train.py`` if there is no script."""

    def make(h: Heard) -> Iterator[Offer]:
        if len(h.gpus) < 2 and not re.search(SERVERS, h.text):  # else "is a 5090 faster than a 4090" is meant
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
    (
        r"(?:what|which|best) (?:\w+ )?(?:models?|llms?)|what can (?:i|my|it|an?) (?:\S+ )?run|what runs",
        lambda h: iter([Offer("Which models run on it?", ("models", "--on", h.on))] if h.model is None else ()),
    ),
    (r"\bout of memory|\boom\b", _command("What filled the GPU's memory?", "memory", "--help")),
    (r"slow", _program),
    (r"slow|bottleneck|\bidle|utili[sz]ation|speed up", _script("Where does my step's time go?", "profile")),
    (r"slow|faster|speed up", _script("What makes my script faster?", "tune")),
    (r"slow|bottleneck|\bidle|utili[sz]ation", _command("What are the GPUs doing now?", "top")),
    (
        r"ready|set.?up|install|driver|cuda (?:error|not|is)|not (?:found|detected|recogni)|no gpu|"
        r"(?:gpu|card) (?:\w+ )?(?:working|broken|healthy|ok)",
        _command("Is this machine ready?", "doctor"),
    ),
    (r"(?:cost|price|much|\$).*(?:1m|a million|per million|million) (?:\w+ )?tokens|tokens? (?:cost|price)", _per_token),
    (r"\bpower\b|\bwatts?\b|electricity|\benergy", _energy),
    (r"\brent\b.*\bor\b.*\b(?:buy|own)\b|\b(?:buy|own)\b.*\bor\b.*\brent\b", _own),
    (r"(?:how much|what) (?:\w+ )?(?:v?ram|memory)\b|\bkv.?cache|\bv?ram (?:requirement|need|usage)", _memory),
    (r"\b(?:grpo|rloo|ppo|dpo)\b", _learn_from_answers),
    (rf"fine.?tun|\blora|qlora|adapt|{OWN_DATA}", _finetune),
    (CHOOSES, _pick),
    (
        r"\bserv(?:e|es|ing)\b|\d (?:\w+ )?(?:people|users)|how many (?:\w+ )?(?:people|users|requests)|requests|deploy|"
        r"production|throughput",
        _serve,
    ),
    (r"how many (?!(?:\w+ )?(?:tokens|users|people|requests))", _how_many),
    (r"compare|\bvs\b|versus|better|faster|slower|difference|\bor\b|worth|over|instead|upgrade", _compare),
    (r"\btrain|pre.?train", _plan),
    (
        r"\brun\b|infer|chat|\bfits?\b|load|ollama|llama\.cpp|local|tokens (?:per|a) second|tok/s|how fast|\bspeed|"
        r"transcrib|generat|enough|vllm|sglang|quantiz",
        _run,
    ),
    (r"rent|own|cost|price|much", _prices),
)
"""What a sentence asks for, by its words; several can match."""
