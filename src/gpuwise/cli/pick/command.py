"""``gpuwise pick``: which GPU should I get for this, within this budget?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.options import Count, Duration, Length, Money, Whole, bits_of, given, refuse
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError, UnknownNameError, nearest_names

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
else:
    Shown = options_shown("pick")

PURPOSES = ("train", "finetune", "infer", "embed", "rerank", "vision", "speech", "image", "video", "learn", "mixed")
ALSO = {
    **dict.fromkeys(("run", "serve", "serving", "inference", "chat"), "infer"),
    **dict.fromkeys(("fine-tune", "fine-tuning", "finetuning"), "finetune"),
    "training": "train",
    **dict.fromkeys(("embedding", "embeddings"), "embed"),
    **dict.fromkeys(("reranking",), "rerank"),
    **dict.fromkeys(("images", "image-generation", "diffusion"), "image"),
    **dict.fromkeys(("videos", "video-generation"), "video"),
    **dict.fromkeys(("transcribe", "transcription", "asr", "speech-to-text"), "speech"),
    **dict.fromkeys(("learning",), "learn"),
}
"""Other words for a purpose."""
EXAMPLE = "llama-3.1-8b"
EXAMPLES = {
    "embed": "bert-base",
    "rerank": "xlm-roberta-large",
    "vision": "vit-b-16",
    "speech": "whisper-large-v3",
    "image": "sdxl",
    "video": "wan-2.2-5b",
}
"""A model of each purpose; :data:`EXAMPLE` where there is none."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class PickWork:
    """Options that say which work is to be done."""

    tokens: Annotated[Count | None, Parameter(show_default="10M for fine-tuning")] = None
    """Tokens to train on: 15B, 300M. Embedding: tokens to embed once."""
    images: Annotated[Count | None, Parameter(show_default="1,000 to generate")] = None
    """Vision: images to train on, over all epochs; a network by name: its samples. Image: images to generate once."""
    images_per_day: Count | None = None
    """Image: images per day, 200k."""
    videos: Annotated[Count | None, Parameter(show_default="10")] = None
    """Video: videos to generate once."""
    videos_per_day: Count | None = None
    """Video: videos per day, 500."""
    hours_of_sound: Annotated[Count | None, Parameter(show_default="100")] = None
    """Speech: hours of audio to transcribe once."""
    hours_of_sound_per_day: Count | None = None
    """Speech: hours of audio per day, 2k."""
    pairs: Count | None = None
    """Reranking: pairs of query and passage to score once."""
    pairs_per_day: Count | None = None
    """Reranking: pairs per day, 2M."""
    seq: Length | None = None
    """Sequence length in training. Embedding and reranking: length of a passage or pair, 512."""
    method: Annotated[str | None, Parameter(show_default="LoRA; QLoRA if nothing else fits", metavar="full|lora|qlora")] = None
    """Fine-tuning: full, lora or qlora."""
    teacher: Annotated[str | None, Parameter(metavar="MODEL")] = None
    """Distillation: the model that is learnt from, or stored: its logits were computed before."""
    lora_targets: Annotated[str | None, Parameter(show_default="all-linear", metavar="LAYERS")] = None
    """Linear layers with adapters: all-linear, attention, mlp, or module names with commas (q_proj,v_proj)."""
    users: Whole | None = None
    """Serving: users at once."""
    requests_per_day: Count | None = None
    """Serving: requests per day, 1M."""
    tokens_per_day: Count | None = None
    """Serving: tokens generated per day. Embedding: tokens embedded per day."""
    context: Length | None = None
    """Serving: tokens of context for each user."""
    weights: Annotated[str | None, Parameter(show_default="4 for one user, 8 (else 4) for several", metavar="BITS")] = None
    """Serving: bits per weight allowed, 16, 8 or 4; several with commas."""
    hours_per_day: Count | None = None
    """Serving: hours of use per day. Without it: 8 for users, 24 for a load."""
    least_speed: Count | None = None
    """Serving: tokens per second for each user. Without it: reading speed, 5.3."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Within:
    """What the answer must stay within."""

    budget: Money | None = None
    """Most US dollars for the job: rent, or the purchase (electricity is shown, not counted)."""
    deadline: Annotated[Duration | None, Parameter(show_default="30 days")] = None
    """Longest time: 12h, 3d."""
    rent: Annotated[bool, Parameter(negative="")] = False
    """Rented hardware only; hosted notebooks are listed after it."""
    own: Annotated[bool, Parameter(negative="")] = False
    """Bought hardware only."""
    vendor: Annotated[str | None, Parameter(metavar="VENDORS")] = None
    """Only these vendors: nvidia,amd."""
    max_watts: Whole | None = None
    """Most watts of all bought cards together (design power)."""
    have: Annotated[str | None, Parameter(metavar="MACHINE")] = None
    """The machine for the new card: "PSU 850W, 2 slots, 330mm, 64GB RAM, PCIe 4.0 x16, 1x 16-pin"."""
    used: bool = True
    """Consider second-hand cards; --no-used: new ones only."""
    box: Annotated[bool, Parameter(negative="")] = False
    """Add the price of the PC for a bought card."""
    country: Annotated[str | None, Parameter(show_default="US", metavar="COUNTRY")] = None
    """Country or state of the electricity price: DE, France, US-CA."""
    years: Count | None = None
    """Years until a bought card is sold; its resale value is subtracted. Serving: also the period paid for, 1."""
    count: Whole | None = None
    """Most accelerators."""
    form: Annotated[str | None, Parameter(metavar="FORM")] = None
    """Form of the hardware: card, laptop, mini (a machine with shared memory), edge (Jetson), server or phone."""


TRAININGS = ("train", "finetune", "vision")
"""Purposes in which a network of images, video or sound is trained by name."""
TOP = 10
ANYTHING, NO_LIMITS = PickWork(), Within()
OF_RENT = ("budget", "deadline", "rent", "own", "vendor", "count", "form")
"""Limits that mean something for what is rented."""
PERIODS = ("requests_per_day", "tokens_per_day", "pairs_per_day", "images_per_day", "videos_per_day", "hours_of_sound_per_day")


def pick(
    model: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    *,
    purpose: Annotated[
        str | None,
        Parameter(name="--for", show_default="what the model does; train with --tokens; learn without model", metavar="PURPOSE"),
    ] = None,
    work: PickWork = ANYTHING,
    within: Within = NO_LIMITS,
    by: Annotated[str | None, Parameter(show_default="balance with a budget, else cost", metavar="ORDER")] = None,
    top: Whole = TOP,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Which GPU should I get for this, within this budget?

    Considers every accelerator of the catalogue: rented, bought, or in a hosted notebook. Ranks the best candidates by
    prediction and gives the reason why each other one is out.

    Parameters
    ----------
    model
        A model by name (llama-3.1-8b), a Hugging Face config.json, or dimensions (layers=32,hidden=4096,...); image models like
        sdxl, flux-dev, flux-2, qwen-image or z-image-turbo; video models like wan-2.2-14b, ltx-video or hunyuan-video.
    purpose
        train, finetune, infer (chat, serve), embed, rerank, vision (train on images), speech (transcribe), image (generate
        images), video (generate videos), learn, or mixed (one GPU each to train, serve and develop); or a task of plan: pretrain,
        continue, full, lora, qlora, dpo, grpo, rloo, ppo, distill, opd, contrastive (training of embeddings).
    by
        Ranking: cost, time, balance (time and cost), value (dollars per work at full load) or energy.
    top
        Rows shown for each way to get hardware.
    json
        One JSON document on the last line of stdout.
    """
    import datetime

    from gpuwise.pick.api import pick as answer

    guess = ""
    if purpose is None:
        purpose = "train" if work.tokens is not None else _used_for(model) if model is not None else "learn"
        guess = f"to {purpose} (--for: train, finetune, infer, learn ...)"
    limits, terms = limits_of(within, by, purpose), terms_of(within)
    today = datetime.date.today()
    if not 1 <= top <= 100:
        raise InputError(f"--top {top} is not between 1 and 100", hint="for example --top 10")
    purpose, work = purpose_of(purpose, work)
    if within.rent:
        lasts = purpose == "infer" or any(getattr(work, name) is not None for name in PERIODS)
        taken = (*OF_RENT, "years") if lasts else OF_RENT
        refuse(given(within, NO_LIMITS), "applies to bought hardware, and --rent excludes it", "leave one of them out", taken)
    if purpose == "mixed":
        _only(work, ("tokens", "seq", "users"), purpose)
        others = given(within, NO_LIMITS) | ({"by": by} if by else {}) | ({"top": top} if top != TOP else {})
        refuse(others, "means nothing for --for mixed", allowed={*others} - {"deadline", "by", "top"})
        return _mixed(model, work, limits, terms, today, shown, json=json)
    if purpose == "learn" and model is None:
        _only(work, (), purpose)
        refuse(("deadline",) if within.deadline else (), "means nothing for --for learn without a model")
        return _learn(limits, terms, today, top, guess, shown, json=json)
    from gpuwise.cli.progress import progress

    with progress("ranking the GPUs"):
        ranking = answer(job_of(purpose, model, work, within), limits, today=today, terms=terms, top=top)
    from gpuwise.pick.document import pick_document

    _show(pick_document(ranking), guess, shown, json=json)
    return 0 if ranking.best is not None else 1


def _used_for(model: str) -> str:
    """What a model is run for: ``infer`` where it writes text. Raises UnknownNameError."""
    from gpuwise.facts.models.served import served_model
    from gpuwise.serve.passes.capacity import usual_workload

    return usual_workload(served_model(model)) or "infer"


def job_of(purpose: str, model: str | None, work: PickWork, within: Within) -> Any:
    """The options as a :class:`gpuwise.pick.jobs.ModelJob`. Raises InputError and UnknownNameError."""
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.facts.models.convnets import known_convnet
    from gpuwise.facts.models.trained import known_trained
    from gpuwise.pick.jobs import phased_job, serving_job, training_job, vision_job
    from gpuwise.pick.passes import pass_job
    from gpuwise.serve.engines.engine import bits_as_stored
    from gpuwise.workload.adapters import DEFAULT_TARGETS, split_targets
    from gpuwise.workload.tasks import tasks

    purpose, work = purpose_of(purpose, work)
    task = next((t for t in tasks().values() if purpose in (t.name, *t.also) and purpose not in PURPOSES), None)
    if purpose not in PURPOSES and task is None:
        known = "it is one of " + ", ".join((*PURPOSES, *(name for name in tasks() if name not in PURPOSES)))
        words = [*PURPOSES, *ALSO, *tasks()]
        near = [name for word in (*purpose.split(), purpose) for name in nearest_names(word, words, 1)]
        hint = f"did you mean {near[0]!r}? {known}" if near else known
        raise UnknownNameError("purpose", purpose, PURPOSES, hint=hint)
    if model is None:
        example = EXAMPLES.get(purpose, EXAMPLE)
        raise InputError(f"--for {purpose} needs a model", hint=f"for example gpuwise pick {example} --for {purpose}")
    if purpose in ("image", "video"):
        return _pass_job(purpose, model, work, within)
    if purpose in TRAININGS and known_trained(model) is not None:
        return _network_job(purpose, model, work)
    net = known_convnet(model)
    if purpose == "vision" and net is not None:
        return pass_job(purpose, net, items=_training_images(work))
    arch = find_model(model)
    if purpose in ITEMS:
        return _pass_job(purpose, arch, work, within)
    if purpose == "vision":
        return vision_job(arch, images=_training_images(work))
    if task is not None and task.prompts:
        _only(work, ("teacher", *(("tokens", "seq") if task.of_texts else ())), purpose)
        return phased_job(arch, task=task.name, tokens=work.tokens, seq_len=work.seq, teacher=work.teacher)
    if task is not None:
        _only(work, ("tokens", "seq"), purpose)
        return training_job(arch, tokens=work.tokens, seq_len=work.seq, task=task.name)
    if purpose != "infer":
        _only(work, ("tokens", "seq", "method", "lora_targets"), purpose)
        targets = DEFAULT_TARGETS if work.lora_targets is None else split_targets(work.lora_targets)
        return training_job(arch, purpose=purpose, tokens=work.tokens, seq_len=work.seq, method=work.method, lora_targets=targets)
    _only(work, ("users", "requests_per_day", "tokens_per_day", "context", "weights", "hours_per_day", "least_speed"), purpose)
    return serving_job(
        arch,
        users=work.users,
        requests_per_day=work.requests_per_day,
        tokens_per_day=work.tokens_per_day,
        context=work.context,
        bits=bits_as_stored(arch, bits_of(work.weights) or None) or (),
        years=within.years or 1.0,
        hours_per_day=work.hours_per_day,
        least_tokens_per_s=work.least_speed,
    )


def purpose_of(text: str, work: PickWork) -> tuple[str, PickWork]:
    """A purpose by any of its words, or a word for a task of ``plan``; ``full``, ``lora`` and ``qlora`` are ``finetune`` by that
    method. Raises InputError where another method was given."""
    from gpuwise.pick.jobs import METHODS
    from gpuwise.workload.tasks import find_task

    word = ALSO.get(text.strip().lower(), text.strip().lower())
    if word in PURPOSES:
        return word, work
    try:
        task = find_task(word)
    except UnknownNameError:
        return word, work
    if task.name not in METHODS:
        return word, work
    if word in task.also and task.name == "lora":
        return "finetune", work
    if work.method not in (None, task.name):
        raise InputError(f"--for {word} with --method {work.method}", hint="write --for finetune, and the method you mean")
    return "finetune", replace(work, method=task.name)


def _network_job(purpose: str, model: str, work: PickWork) -> Any:
    """A network that is trained by name: by the method that is usual for it, or the one that is named."""
    from gpuwise.cli.options import NOTHING_FIXED, Training
    from gpuwise.cli.step.named import NO_PICTURES, named_step
    from gpuwise.pick.passes import network_job

    _only(work, ("images", "method"), purpose)
    method = work.method or ("full" if purpose == "train" else None)
    step = named_step(model, Training(purpose=method), NOTHING_FIXED, NO_PICTURES, None)
    assert step is not None  # its caller looked
    return network_job(step, "train" if step.method == "full" else "finetune", samples=work.images, lighter=method is None)


def _training_images(work: PickWork) -> float:
    _only(work, ("images",), "vision")
    if work.images is None:
        raise InputError("--for vision needs --images", hint="all epochs together, for example --images 3M")
    return work.images


ITEMS = {"embed": "tokens", "rerank": "pairs", "speech": "hours_of_sound", "image": "images", "video": "videos"}
"""The option that says how many items a purpose of passes has; with ``_per_day`` those of a load."""


def _pass_job(purpose: str, model: Any, work: PickWork, within: Within) -> Any:
    from gpuwise.facts.models.denoisers import find_denoiser
    from gpuwise.pick.passes import pass_job
    from gpuwise.units import HOUR_S

    names = (ITEMS[purpose], f"{ITEMS[purpose]}_per_day")
    _only(work, (*names, "seq") if purpose in ("embed", "rerank") else names, purpose)
    model = find_denoiser(model, f"{purpose}s") if isinstance(model, str) else model
    each = HOUR_S if purpose == "speech" else 1.0
    once, per_day = (None if n is None else n * each for n in (getattr(work, name) for name in names))
    return pass_job(purpose, model, items=once, items_per_day=per_day, seq_len=work.seq, years=within.years or 1.0)


def limits_of(within: Within, by: str | None, purpose: str = "") -> Any:
    """The options as :class:`gpuwise.pick.limits.Limits`. Raises InputError and UnknownNameError."""
    from gpuwise.facts.grid import find_grid
    from gpuwise.pick.limits import WAYS, Limits, check_limits, known_vendors, parse_have

    if within.rent and within.own:
        raise InputError("--rent and --own rule each other out", hint="leave both out to see both")
    hows = ("rent", "notebook") if within.rent else ("buy",) if within.own else WAYS
    names = [v for v in (within.vendor or "").split(",") if v.strip()]
    if within.vendor is not None and not names:
        raise InputError("--vendor has no names", hint="for example --vendor nvidia,amd")
    if within.country is not None:
        find_grid(within.country)
    limits = Limits(
        budget_usd=within.budget,
        deadline_s=within.deadline,
        ways=hows,
        vendors=known_vendors(tuple(names)),
        max_watts=within.max_watts,
        have=None if within.have is None else parse_have(within.have),
        used=within.used,
        country=within.country,
        count=within.count,
        form=within.form,
        by=by,
        hourly_first=within.rent and purpose != "learn",
    )
    check_limits(limits)
    return limits


def terms_of(within: Within) -> Any:
    """How money is counted. Raises InputError."""
    from gpuwise.pick.owning import Terms

    if within.years is not None and not 0 < within.years <= 20:
        raise InputError(f"--years {within.years:g} is not between 0 and 20", hint="for example --years 3")
    return Terms(within.years, within.box, within.country or "US", within.have is not None)


def _only(work: PickWork, names: tuple[str, ...], purpose: str) -> None:
    """Refuse options that mean nothing for the purpose."""
    refuse(given(work, ANYTHING), f"means nothing for --for {purpose}", "leave it out, or choose another purpose", names)


def _show(document: dict[str, Any], guess: str, shown: Shown | None, *, json: bool) -> None:
    from gpuwise.cli.reports import report
    from gpuwise.report.answers.choosing import pick_answer

    if guess:
        document = {**document, "assumed": [guess, *document.get("assumed", ())]}
    report(document, pick_answer, shown, json=json)


def _learn(limits: Any, terms: Any, today: Any, top: int, guess: str, shown: Shown | None, *, json: bool) -> int:
    from gpuwise.cli.progress import progress
    from gpuwise.pick.learning import learn, learning_document

    with progress("ranking the GPUs"):
        learning = learn(limits, today=today, terms=terms, top=top)
    _show(learning_document(learning), guess, shown, json=json)
    return 0 if learning.ranked else 1


def _mixed(model: str | None, work: PickWork, limits: Any, terms: Any, today: Any, shown: Shown | None, *, json: bool) -> int:
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.pick.fleet import fleet, fleet_document

    if model is None:
        raise InputError("--for mixed needs a model", hint=f"for example gpuwise pick {EXAMPLE} --for mixed --budget 5000")
    if limits.budget_usd is None:
        raise InputError("--for mixed needs --budget", hint="the money to be split, for example --budget 5000")
    split = fleet(
        find_model(model),
        limits,
        today=today,
        terms=terms,
        tokens=work.tokens,
        seq_len=work.seq,
        users=work.users,
    )
    _show(fleet_document(split), "", shown, json=json)
    return 0 if split.best is not None else 1
