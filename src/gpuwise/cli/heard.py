"""What a question in a sentence names: GPUs, a model, and the numbers beside them."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from gpuwise.errors import AmbiguousNameError, InputError

TEXT, IMAGE, VIDEO, SPEECH, EMBED, VISION = "text", "image", "video", "speech", "embed", "vision"
EXAMPLES = {
    TEXT: "llama-3.1-8b",
    IMAGE: "sdxl",
    VIDEO: "wan-2.1-14b",
    SPEECH: "whisper-large-v3",
    EMBED: "bge-m3",
    VISION: "resnet-50",
}
"""The model that stands for one that is not named, by what it does."""
BY_WORDS = (
    (VIDEO, r"\bvideos?\b"),
    (
        IMAGE,
        r"\bimages? generat|\bgenerat\w* (?:\w+ )?(?:images?|pictures?)|\bpictures?\b|stable.?diffusion|comfyui|\btext.to.image",
    ),
    (SPEECH, r"transcri|speech|subtitle|\baudio\b"),
    (EMBED, r"\bembedding|\brerank"),
)
"""What a model does that is not named."""
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
BY_MEMORY = (
    (8, "rtx-4060"),
    (12, "rtx-3060-12gb"),
    (16, "rtx-4060-ti-16gb"),
    (24, "rtx-3090"),
    (32, "rtx-5090"),
    (48, "rtx-6000-ada"),
    (80, "a100-80gb"),
    (96, "rtx-pro-6000"),
    (141, "h200"),
    (192, "mi300x"),
)
"""A GPU for a size of memory in GB: the first row with at least that much, the last for more."""
MACS = ((32, "m4"), (64, "m4 pro"), (128, "m4 max"), (float("inf"), "m3 ultra"))
"""The chip of a Mac with so many GB."""
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?b(?:illion)?", re.IGNORECASE)
DOLLARS = re.compile(r"[$€£]\s?(\d[\d,.]*)\s?(k?)|(\d[\d,.]*)\s?(k?)\s?(?:dollars|usd|bucks|euros)", re.IGNORECASE)
UP_TO = re.compile(
    r"(?:under|below|less than|at most|up to|for)\s(\d[\d,]*)(k?)"
    r"(?=$|\s(?!\w*\s?(?:tokens|users|people|watts?|w\b|gb|hours)))"
)
"""A budget without its currency."""
PEOPLE = re.compile(r"(\d[\d,]*)\s+(?:\w+\s)?(?:people|users|persons|customers|employees|students|clients)", re.IGNORECASE)
TOKENS = re.compile(r"(\d+(?:\.\d+)?\s?[kmbt])\s+tokens(?! of context| context)", re.IGNORECASE)
CONTEXT = re.compile(r"(\d+\s?k?)\s(?:tokens\s(?:of\s)?)?context\b|\bcontext\s(?:of\s|length\s)?(\d+\s?k?)\b", re.IGNORECASE)
GIGABYTES = re.compile(r"\b(\d+)\s?gb\b(?:\s(?:of\s)?v?ram\b)?", re.IGNORECASE)
QUANTITY = re.compile(
    r"\b\d[\d,.]*\s?[km]?\s(?:(?:thousand|million|billion)\s)?"
    r"(?:images?|pictures?|photos?|videos?|clips?|songs?|hours?|minutes?|days?|weeks?|months?|years?|documents?|passages?|pages?|"
    r"requests?|samples?|steps?|epochs?|watts?|percent|times)\b",
    re.IGNORECASE,
)
"""Numbers of things, which name nothing."""
PICTURES = re.compile(r"\b(\d[\d,.]*\s?(?:[km]|thousand|million)?)\s(?:images?|pictures?|photos?|samples?)\b", re.IGNORECASE)
IMAGENET_IMAGES, IMAGENET_EPOCHS = 1_281_167, 90
"""Training images of ILSVRC 2012, and the epochs of the usual recipe (torchvision references/classification)."""
EPOCHS = re.compile(r"\b(\d+)\sepochs?\b", re.IGNORECASE)
WITHIN = re.compile(r"\b(?:in|within|under|less than)\s(\d+(?:\.\d+)?)\s(hour|day|week|month)s?\b")
DAYS = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 365 / 12}
RAM = re.compile(r"(\d+)\s?gb\s(?:of\s)?(?:system\s)?(?:ram|memory)\b", re.IGNORECASE)
FORMAT = re.compile(r"\b((?:ud-)?i?q[1-8](?:_\w+)?|fp8|nvfp4|mxfp4|int[48]|awq|gptq|[2-8]-?\s?bits?)\b(?!-)", re.IGNORECASE)
COUNTS = (
    (re.compile(r"\b(?:a\s)?(?:single|one)\s(?=\S*\d)"), ""),
    (re.compile(r"\b(?:a\s)?(?:dual|pair of|couple of|two)\s(?=\S*\d)"), "2x "),
    (re.compile(r"\b(?:quad|four)\s(?=\S*\d)"), "4x "),
    (re.compile(r"\beight\s(?=\S*\d)"), "8x "),
)
OF_NO_NAME = re.compile(r"\b(?:used|new|refurbished|second.?hand|nvidia)\s(?=\S*\d)")
NOT_A_NAME = re.compile(r"(?:gpt|zero-?\d|cuda|python|torch|ios|windows|ubuntu|24/7|[bt]?fp?(?:8|16|32|64)\b|\d+.*)")
"""Words with digits that are no model."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a sentence names; ``model`` is None where it names neither a model nor a size."""

    text: str
    gpus: tuple[str, ...]
    model: str | None
    does: str
    """What the model does: ``text``, ``image``, ..."""
    budget_usd: float | None = None
    users: int | None = None
    tokens: str | None = None
    context: str | None = None
    weights: str | None = None
    ram: str | None = None
    deadline: str | None = None
    samples: str | None = None
    """Pictures to train on, all epochs together."""
    stands: str = ""
    """Which GPU stands for one that is not named, as a sentence."""

    @property
    def on(self) -> str:
        return self.gpus[0] if self.gpus else "this"

    @property
    def on_gpus(self) -> tuple[str, ...]:
        """``--on`` and the first GPU; nothing where none is named."""
        return ("--on", self.gpus[0]) if self.gpus else ()

    @property
    def model_or_example(self) -> str:
        return self.model or EXAMPLES[self.does]


def hear(sentence: str) -> Heard:
    """What ``sentence`` names."""
    text = " ".join(sentence.lower().split())
    for pattern, count in (*COUNTS, (OF_NO_NAME, "")):
        text = pattern.sub(count, text)
    budget = UP_TO.search(text)
    if budget is not None and budget[0].startswith("for") and not _is_money(budget[1]):
        budget = None  # "for 4090"
    money, people, tokens = DOLLARS.search(text) or budget, PEOPLE.search(text), TOKENS.search(text)
    within = WITHIN.search(text)
    context, ram, form = CONTEXT.search(text), RAM.search(text), FORMAT.search(text)
    rest = text
    for found in (money, people, tokens, context, ram):
        rest = rest.replace(found[0], " ; ") if found else rest
    gpus, model = _named(QUANTITY.sub(" ; ", rest))
    size = SIZE.search(rest)
    if model is None and size is not None:
        model = next(name for most, name in BY_SIZE if float(size[1]) <= most)
    usd = None
    if money is not None:
        number, thousands = next((money[i], money[i + 1]) for i in range(1, len(money.groups()), 2) if money[i])
        usd = float(number.strip(".,").replace(",", "")) * (1000 if thousands else 1)
    memory, stands = f"{ram[1]}GB" if ram else None, ""
    if memory and len(gpus) == 1 and not re.match(CPUS, gpus[0]) and (sized := _device(f"{gpus[0]} {memory}")) is not None:
        gpus, memory = (sized,), None  # the memory of a chip that is sold with several sizes
    if not gpus and (held := GIGABYTES.search(rest)) is not None:
        gpus = (_with_memory(float(held[1]), text),)
        stands = f"No GPU is named: {gpus[0]} stands for one with {held[1]} GB"
    return Heard(
        text,
        gpus,
        model,
        _does(model, text),
        usd,
        int(people[1].replace(",", "")) if people else None,
        tokens[1].replace(" ", "").upper() if tokens else None,
        (context[1] or context[2]).replace(" ", "") if context else None,
        re.sub(r"[\s-]*bits?", "", form[1]) if form else None,
        memory,
        f"{float(within[1]) * DAYS[within[2]]:g}d" if within else None,
        _samples(text),
        stands,
    )


def _samples(text: str) -> str | None:
    """Pictures to train on: those named, or ImageNet's, as often as there are epochs."""
    from gpuwise.units import parse_count

    epochs, pictures = EPOCHS.search(text), PICTURES.search(text)
    if pictures is not None:
        letters = pictures[1].replace("thousand", "k").replace("million", "m").replace(" ", "").replace(",", "").upper()
        return f"{parse_count(letters) * float(epochs[1] if epochs else 1):.0f}"
    if "imagenet" in text:
        return f"{IMAGENET_IMAGES * float(epochs[1] if epochs else IMAGENET_EPOCHS):.0f}"
    return None


def _is_money(number: str) -> bool:
    """Whether a bare number after "for" is a price: 500 and 1000 alone are rarely the laptop GPUs of these names."""
    value = int(number.replace(",", ""))
    return _device(number) is None or (value % 100 == 0 and value < 4000)


def _with_memory(gb: float, text: str) -> str:
    """A usual device with so much memory."""
    if re.search(r"\bmacs?\b|macbook|apple", text):
        chip = next(chip for most, chip in MACS if gb <= most)
        return _device(f"{chip} {gb:g}gb") or _device(chip) or chip
    return next((name for most, name in BY_MEMORY if gb <= most), BY_MEMORY[-1][1])


def _does(model: str | None, text: str) -> str:
    """What the model does, or the sentence asks for where none is named."""
    if model is None:
        return next((does for does, words in BY_WORDS if re.search(words, text)), TEXT)
    from gpuwise.facts.models.catalogue import find_model_to_run
    from gpuwise.facts.models.convnets import known_convnet
    from gpuwise.facts.models.denoisers import known_denoiser
    from gpuwise.facts.models.trained import known_trained

    if (denoiser := known_denoiser(model)) is not None:
        return VIDEO if denoiser.frames else IMAGE
    if known_convnet(model) is not None or known_trained(model) is not None:
        return VISION
    with suppress(InputError):
        arch = find_model_to_run(model)
        if arch.kind != "decoder":
            return SPEECH if arch.encoder is not None and arch.encoder.n_mels else VISION if arch.kind == "vision" else EMBED
    return TEXT


def _named(text: str) -> tuple[tuple[str, ...], str | None]:
    """The GPUs and the model in ``text``: the longest runs of words that are names. A word with digits that is neither is taken
    for a model, so that the command says what is wrong with it."""
    from gpuwise.facts.hardware.naming import BRANDS, NOISE

    words = re.findall(r"[\w.+/:-]*\w", text.replace(",", " , ").replace(";", " , "))
    words = [word for word in words if not FORMAT.fullmatch(word)]
    gpus: list[str] = []
    besides = NOISE - BRANDS  # words that may follow a name, but begin none
    model = unknown = None
    at = 0
    while at < len(words):
        for n in range(min(4, len(words) - at), 0, -1):
            run = words[at : at + n]
            if not JOINTS.isdisjoint(run):
                continue
            if (gpu := _device(" ".join(run))) is not None and run[0] not in besides and not _says_nothing(run, gpu):
                gpus.append(gpu)
                break
            if model is None and (model := _model(run)) is not None:
                break
        else:
            n, word = 1, words[at]
            if re.search(r"[a-z]", word) and re.search(r"\d", word) and not SIZE.fullmatch(word) and not NOT_A_NAME.match(word):
                unknown = unknown or word
        at += n
    return tuple(dict.fromkeys(gpus)), model or unknown


JOINTS = frozenset(
    re.findall(r"\S+", ", a an the my on for in with of to and or vs at by is can i it run fit train serve model models from")
)
"""Words that stand in no name."""


CPUS = r"(?:amd |intel )?(?:ryzen|threadripper|epyc|core|xeon|raspberry|i[3579]-\d)"
"""How the names of processors begin."""


def _says_nothing(run: list[str], gpu: str) -> bool:
    """Whether the last of the words is no part of the name: without it they name the same."""
    shorter = _device(" ".join(run[:-1])) if len(run) > 1 and not re.search(r"\d", run[-1]) else None
    return shorter is not None and _meant(shorter) == _meant(gpu)


def _meant(name: str) -> tuple[str, int]:
    from gpuwise.facts.hardware.naming import USUAL, find_cluster

    with suppress(InputError):
        cluster = find_cluster(name, prefer=USUAL)
        return cluster.accelerator.id, cluster.n_accelerators
    return name, 1  # a processor


def _device(name: str) -> str | None:
    """``name`` as ``--on`` takes it; None where it is no device. ``8 h100s`` are 8xh100."""
    from gpuwise.facts.hardware.cpus import find_cpu
    from gpuwise.facts.hardware.naming import USUAL, find_cluster, known_devices

    if (counted := re.fullmatch(r"(\d+)\s?x?\s(\D*\d.*)", name)) and (one := _device(counted[2])) is not None:
        return one if counted[1] == "1" or re.match(r"\d+x", one) else f"{counted[1]}x{one}"
    if name.endswith("s") and name not in known_devices() and (one := _device(name[:-1])) is not None:
        return one
    if re.match(CPUS, name):
        with suppress(InputError):
            try:
                return find_cpu(name).id
            except AmbiguousNameError as several:
                return several.candidates[-1]
    if SIZE.fullmatch(name) or not (re.search(r"\d", name) or name in known_devices()):
        return None
    try:
        find_cluster(name, prefer=USUAL)
        written = re.sub(r"^(\d+x) ", r"\1", name).replace(" ", "-")
        find_cluster(written, prefer=USUAL)
    except AmbiguousNameError as several:
        return several.candidates[0]
    except InputError:
        return None
    return written


def _model(words: list[str]) -> str | None:
    """The model that the words name; a word without a digit only in full, as people write it."""
    from gpuwise.facts.models.catalogue import known_names
    from gpuwise.facts.models.convnets import known_convnet
    from gpuwise.facts.models.denoisers import known_denoiser
    from gpuwise.facts.models.trained import known_trained

    name = "-".join(words)
    for spelling in dict.fromkeys((name, " ".join(words))):
        if (found := known_denoiser(spelling) or known_convnet(spelling)) is not None:
            return found.id
        if spelling in known_names():
            return _usual_of(spelling)
        if known_trained(spelling) is not None:
            return spelling
    names_gpu = len(words) > 1 and any(_device(word) is not None for word in words)
    if re.search(r"[a-z].*\d|\d.*[a-z]", name) and not SIZE.fullmatch(name) and not names_gpu:
        with suppress(InputError):
            return _usual_of(name)
    return None


def _usual_of(name: str) -> str:
    """The model that most people mean by ``name``. Raises UnknownNameError."""
    from gpuwise.facts.models.catalogue import find_model

    try:
        return find_model(name).id
    except AmbiguousNameError as several:
        if several.usual:
            return several.candidates[0]
        usual = {model for _, model in BY_SIZE}
        return next((one for one in several.candidates if one in usual), several.candidates[-1])
