"""Purpose of the accelerator: a job with its gaps filled by stated defaults.

``train``, ``finetune`` and ``learn`` end (the work is a number of tokens); ``infer`` continues (the work is a load, the money
is for a period). ``assumed`` lists every default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.plan.defaults import default_seq_len
from gpuwise.plan.goal import Wishes, as_trained, task_of
from gpuwise.plan.rl.answer import RlWishes, recipe_of, steps_of
from gpuwise.serve.formats import served_bits
from gpuwise.units import DAY_S, HOUR_S, format_count
from gpuwise.workload.adapters import DEFAULT_TARGETS
from gpuwise.workload.tasks import find_task, task_for
from gpuwise.workload.transformer.tables import model_flop_per_token

PURPOSES = ("train", "finetune", "infer", "embed", "rerank", "vision", "speech", "image", "video", "learn", "mixed")
METHODS = ("full", "lora", "qlora")
BITS = (16, 8, 4)
"""Bits of a weight an answer may be served in, widest first."""
HOME_BITS, SERVER_BITS = (4,), (8, 4)
"""Default weight bits, the same on all hardware: 4 bits for one user, as in files of llama.cpp and Ollama; 8 bits for several
users, and 4 if that does not fit. Wider weights count as headroom, never as a different job."""
PROMPT_TOKENS, OUTPUT_TOKENS = 1020, 129
"""Medians of a conversation service (Azure LLM inference trace 2023, conversation; github.com/Azure/AzurePublicDataset)."""
CONTEXT_TOKENS = 4096
"""Default context of an Ollama conversation (docs.ollama.com/faq, context window)."""
PEAK_OVER_MEAN = 1.54
"""Busiest minute over the mean of the same trace: a service is sized for it."""
USER_HOURS_PER_DAY = 8.0
"""A user's working day; a load in requests or tokens runs around the clock."""
LEAST_TOKENS_PER_S = round(238 / 60 / 0.75, 1)
"""Silent reading, 238 words a minute (Brysbaert 2019, doi 10.1016/j.jml.2019.104047), at three quarters of a word to a
token: an answer that comes slower is waited for."""
MOST_USERS = 100_000_000
"""Users at once of a service, at most."""
_MOST = 1e15


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a server. ``users`` talk at once, or ``requests_per_s`` arrive on average (then ``users`` is 0)."""

    users: int = 1
    requests_per_s: float | None = None
    prompt_tokens: int = PROMPT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    context: int = CONTEXT_TOKENS
    """Tokens of cache per user."""
    least_tokens_per_s: float = LEAST_TOKENS_PER_S
    """Each user must get."""


@dataclass(frozen=True, slots=True)
class ModelJob:
    """One thing to do with one model. ``name`` is how it is called in answers."""

    purpose: str
    arch: Architecture
    name: str
    tokens: float = 0.0
    seq_len: int = 0
    method: str = "full"
    """``full``, ``lora`` (16-bit weights under adapters) or ``qlora`` (4-bit weights under adapters)."""
    lora_targets: tuple[str, ...] = DEFAULT_TARGETS
    method_fixed: bool = False
    """The user fixed the method: no other is tried."""
    task: str | None = None
    """Task of the training, where it was named; None: judged as ``plan`` does."""
    phased: RlWishes | None = None
    """What is asked of a training whose step has phases."""
    bits: tuple[int, ...] = BITS
    load: Load = field(default_factory=Load)
    hours: float = 0.0
    """Hours of use an answer about serving pays for."""
    years: float = 1.0
    """Over how long."""
    assumed: tuple[str, ...] = ()

    @property
    def serving(self) -> bool:
        return self.purpose == "infer"

    @property
    def model_id(self) -> str:
        return self.arch.id

    @property
    def rate_title(self) -> str:
        """Head of the column of speeds."""
        return "tok/s"

    @property
    def flop(self) -> float:
        """Useful FLOP of the whole job: forward and backward of every token trained on; of a load, the forward pass of
        its tokens (a third of what training one takes)."""
        if not self.serving:
            rank = 0 if self.method == "full" else 16
            return self.tokens * _flop_per_token(self.arch, self.seq_len, rank, self.lora_targets)
        return self.served_tokens * self.flop_per_served_token

    @property
    def flop_per_served_token(self) -> float:
        """FLOP of the forward pass of one token at the request's full length: a third of what training it takes."""
        length = min(self.load.prompt_tokens + self.load.output_tokens, self.arch.max_seq_len)
        return _flop_per_token(self.arch, length, 0, DEFAULT_TARGETS) / 3.0

    @property
    def served_tokens(self) -> float:
        """Tokens read and generated in the whole period, if the load specifies a rate."""
        rate = self.load.requests_per_s
        per_request = self.load.prompt_tokens + self.load.output_tokens
        return 0.0 if rate is None else rate * per_request * self.hours * HOUR_S


@lru_cache(4096)
def _flop_per_token(arch: Architecture, seq_len: int, lora_rank: int, lora_targets: tuple[str, ...]) -> float:
    return model_flop_per_token(arch, seq_len, lora_rank=lora_rank, lora_targets=lora_targets)


def training_job(
    arch: Architecture,
    *,
    purpose: str = "train",
    tokens: float | None = None,
    seq_len: int | None = None,
    method: str | None = None,
    lora_targets: tuple[str, ...] = DEFAULT_TARGETS,
    task: str | None = None,
) -> ModelJob:
    """Training or fine-tuning of ``arch``, as ``task`` where that is given. Raises InputError and UnknownNameError."""
    tuning = purpose != "train"
    assumed: list[str] = []
    if method is not None and method not in METHODS:
        raise UnknownNameError("method", method, METHODS, hint="it is one of " + ", ".join(METHODS))
    if tokens is None:
        if not tuning:
            raise InputError("training needs --tokens", hint="give the number of tokens, for example --tokens 15B")
        tokens = task_for(method or "finetune", arch.kind).tokens or 0.0
        assumed.append(f"{format_count(tokens)} tokens to fine-tune on")
    _positive("tokens", tokens)
    kind, guess = (task_for(method or "finetune", arch.kind), "") if tuning else task_of(arch, Wishes(tokens=tokens, task=task))
    if guess:
        assumed.append(guess.split(", --for")[0])
    arch = as_trained(arch, kind)
    if seq_len is None:
        seq_len, why = default_seq_len(arch, kind)
        assumed.append(f"sequences of {seq_len:,} tokens ({why})")
    if seq_len < 1 or (seq_len > arch.max_seq_len and arch.position == "learned"):
        raise InputError(
            f"sequence length {seq_len} is not between 1 and the {arch.max_seq_len} of {arch.name}",
            hint=f"for example --seq {min(4096, arch.max_seq_len)}",
        )
    if method is None:
        chosen = kind.method if tuning else "full"
        if chosen == "lora":
            assumed.append("LoRA adapters of rank 16 (--method full trains every weight)")
    else:
        chosen = method
    if chosen == "full" and lora_targets != DEFAULT_TARGETS:
        raise InputError("--lora-targets without adapters", hint="for fine-tuning with --method lora or qlora")
    verb = {"full": "train" if not tuning else "fine-tune all of", "lora": "fine-tune", "qlora": "fine-tune"}[chosen]
    name = f"{verb} {arch.name} on {format_count(tokens)} tokens"
    fixed = method is not None
    return ModelJob(purpose, arch, name, tokens, seq_len, chosen, lora_targets, fixed, task, assumed=tuple(assumed))


def phased_job(
    arch: Architecture, *, task: str, tokens: float | None = None, seq_len: int | None = None, teacher: str | None = None
) -> ModelJob:
    """A training whose step has phases: GRPO, distillation, embeddings. Raises InputError and UnknownNameError."""
    found = find_task(task)
    texts = found.of_texts
    asked = RlWishes(found.name, response_tokens=seq_len, teacher=teacher, tokens=tokens)
    recipe, assumed = recipe_of(arch, find_cluster("H100-SXM"), asked, Wishes())
    steps = steps_of(asked, recipe, assumed)
    r = recipe.rollouts
    name = f"{found.title} of {arch.name}, {steps:,} steps"
    assumed = [a.replace("--mean-response", "plan --mean-response") for a in assumed if texts or "rewards" not in a]
    return ModelJob(
        "train",
        arch,
        name,
        r.tokens * steps,
        r.mean_length,
        task=found.name,
        phased=replace(asked, steps=steps, tokens=None),
        assumed=tuple(assumed),
    )


def vision_job(arch: Architecture, *, images: float) -> ModelJob:
    """Training a vision transformer on ``images`` (all epochs together), every weight. Raises InputError."""
    if arch.patches is None:
        raise InputError(
            f"{arch.name} is not an image model of the catalogue: other image models are read from PyTorch",
            hint="take vit-b-16, vit-l-16 or resnet-50, or `gpuwise fit` on your own code",
        )
    _positive("images", images)
    job = training_job(arch, tokens=images * arch.patches.n_tokens)
    return replace(job, purpose="vision", name=f"train {arch.name} on {format_count(images)} images")


def serving_job(
    arch: Architecture,
    *,
    users: int | None = None,
    requests_per_day: float | None = None,
    tokens_per_day: float | None = None,
    context: int | None = None,
    bits: tuple[int, ...] = (),
    years: float = 1.0,
    hours_per_day: float | None = None,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    least_tokens_per_s: float | None = None,
) -> ModelJob:
    """A job to serve ``arch`` to that many users at once, or to a load. Raises InputError."""
    assumed: list[str] = []
    options = [
        n
        for n, v in (("--users", users), ("--requests-per-day", requests_per_day), ("--tokens-per-day", tokens_per_day))
        if v is not None
    ]
    if len(options) > 1:
        raise InputError(" and ".join(options) + " both set the load", hint="give one of them")
    if arch.kind != "decoder":
        raise InputError(
            f"{arch.name} is not a decoder: serving is predicted for models that generate text",
            hint="choose a model such as llama-3.1-8b",
        )
    for name, value in (
        ("years", years),
        ("hours per day", hours_per_day),
        ("requests per day", requests_per_day),
        ("tokens per day", tokens_per_day),
        ("users", users),
        ("context", context),
        ("prompt tokens", prompt_tokens),
        ("output tokens", output_tokens),
        ("tokens per second", least_tokens_per_s),
    ):
        if value is not None:
            _positive(name, value)
    if users is not None and users > MOST_USERS:
        raise InputError(
            f"{users:,} users at once are more than {MOST_USERS:,}, which no service has", hint="for example --users 50"
        )
    if hours_per_day is not None and hours_per_day > 24:
        raise InputError(f"a day has no {hours_per_day:g} hours", hint="give at most 24")
    prompt, output = prompt_tokens or PROMPT_TOKENS, output_tokens or OUTPUT_TOKENS
    rate = None
    if tokens_per_day is not None:
        rate = tokens_per_day / output / DAY_S
    elif requests_per_day is not None:
        rate = requests_per_day / DAY_S
    if prompt_tokens is None and output_tokens is None and rate is not None:
        assumed.append(f"requests of {prompt:,} tokens in and {output} out (medians of a conversation service)")
    if rate is not None:
        assumed.append(f"sized for {PEAK_OVER_MEAN} times the mean load, the busiest minute of such a service")
    length = context
    if length is None:
        length = min(max(CONTEXT_TOKENS, prompt + output), arch.max_seq_len)
        assumed.append(f"a context of {length:,} tokens")
    if length > arch.max_seq_len:
        raise InputError(
            f"{arch.name} has a context of {arch.max_seq_len:,} tokens, not {length:,}",
            hint=f"use --context {arch.max_seq_len} or less",
        )
    if hours_per_day is None:
        hours_per_day = 24.0 if rate is not None else USER_HOURS_PER_DAY
        assumed.append(f"{hours_per_day:g} hours of use a day")
    if users is None and rate is None:
        assumed.append("one user at a time")
    if least_tokens_per_s is None:
        assumed.append(f"at least {LEAST_TOKENS_PER_S:g} tokens a second to each user (as fast as one reads)")
    least = least_tokens_per_s or LEAST_TOKENS_PER_S
    if not bits:
        bits = served_bits(arch, HOME_BITS if users in (None, 1) and rate is None else SERVER_BITS)
        assumed.append(f"weights of {bits[0]} bits" + "".join(f", of {b} where {bits[0]} do not fit" for b in bits[1:]))
    load = Load(0 if rate is not None else (users or 1), rate, prompt, output, length, least)
    what = f"{users or 1:,} user{'s' if (users or 1) > 1 else ''}" if rate is None else f"{rate * DAY_S:,.0f} requests a day"
    return ModelJob(
        "infer",
        arch,
        f"serve {arch.name} to {what}",
        bits=tuple(sorted(bits, reverse=True)),
        load=load,
        hours=hours_per_day * 365.25 * years,
        years=years,
        assumed=tuple(assumed),
    )


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and 0 < value <= _MOST):
        raise InputError(f"{name} must be a positive number, not {value}", hint="for example 15B, 4096 or 8")
