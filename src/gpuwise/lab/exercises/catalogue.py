"""Exercises, one for each lesson of ``docs/learn``: the answer is computed on request, by the models of all other
commands.

>>> from gpuwise.lab.exercises import exercises
>>> memory = exercises()[3]
>>> memory.judge(135.0).right
True
"""

from __future__ import annotations

import datetime
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from gpuwise.errors import InputError
from gpuwise.lab.exercises.answers import DRIVER, RATIOS, read_answer, slip
from gpuwise.units import format_rate

if TYPE_CHECKING:
    from gpuwise.predict.step.training import TrainingEstimate

GIB = 2.0**30
SESSION_H = 12.0
WEEK_H = 168.0
USERS, CONTEXT = 32, 8192
LONG_TALK = 32768
ROOM_GIB = 3.0
KWH_USD = 0.15
DECODES_PER_S = 120.0
"""Images that one worker of the exercise decodes in a second: given to the reader."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The true value of an exercise in its unit, its derivation, and the command that prints it."""

    value: float
    steps: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Assessment of an answer: whether it is within the tolerance, and its ratio to the true value."""

    right: bool
    ratio: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Exercise:
    """A question whose answer is one number. ``tolerance`` is the largest ratio of answer and truth, either way, that counts as
    right: an estimate by hand leaves out what the models know."""

    number: int
    lesson: str
    title: str
    question: str
    unit: str
    tolerance: float
    hints: tuple[str, ...]
    solve: Callable[[], Solution]
    slips: tuple[tuple[float, str], ...] = ()
    """Ratios of answer and true value that result from a known mistake, with an explanation."""

    def read(self, text: str) -> float:
        """An answer as one types it, in the exercise's unit: another unit of the same kind is converted. Raises InputError."""
        return read_answer(text, self.unit)

    def judge(self, answer: float) -> Judgement:
        """Compare an answer in the exercise's unit with the truth. Raises InputError for what no answer can be."""
        if not math.isfinite(answer) or answer <= 0:
            raise InputError(f"the answer is a positive number of {self.unit}, not {answer:g}", hint="try --hint 1")
        truth = self.solve().value
        ratio = answer / truth
        right = max(ratio, 1 / ratio) <= self.tolerance
        if right:
            return Judgement(True, ratio, f"right: {number_text(truth)} {self.unit}")
        side = "high" if ratio > 1 else "low"
        factor = max(ratio, 1 / ratio)
        by = f", by a factor of {number_text(factor) if factor < 99.5 else f'{factor:,.0f}'}" if factor >= 1.05 else ", by little"
        if self.unit == DRIVER and factor >= 1.05:
            by = ""
        turned = self.unit in RATIOS and max(answer * truth, 1 / (answer * truth)) <= self.tolerance
        why = "turn the fraction over" if turned else slip(ratio, self.unit, self.slips)
        return Judgement(False, ratio, f"too {side}{by}" + (f": {why}" if why else ""))

    def to_document(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "lesson": self.lesson,
            "title": self.title,
            "question": self.question,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "hints": list(self.hints),
            "hint_count": len(self.hints),
        }


def find_exercise(number: int) -> Exercise:
    """The exercise of that number. Raises InputError for an unknown one."""
    for exercise in exercises():
        if exercise.number == number:
            return exercise
    raise InputError(f"there is no exercise {number}", hint=f"1 to {len(exercises())}; gpuwise lab exercise lists them")


def number_text(value: float) -> str:
    """A number as it is shown."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


# --- the truths ---


def _planned(model: str, on: str) -> TrainingEstimate:
    """The best plan's step."""
    from gpuwise.plan.api import make_plan
    from gpuwise.plan.goal import Wishes

    best = make_plan(model, on, Wishes(tokens=1e9)).best
    assert best is not None
    return best.estimate


def _why() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.hardware.targets import find_processor
    from gpuwise.plan.one_op import matmul

    n = 4096
    answer = matmul(n, n, n, "bf16", [find_cluster("h100-sxm")], find_processor("EPYC 9654"))
    gpu, cpu = answer.rows[0], answer.against
    assert cpu is not None
    return Solution(
        cpu.time_s.expected / gpu.time_s.expected,
        (
            f"the work is 2 x {n:,}^3 = {format_rate(answer.work.flop, 'FLOP')} on both",
            f"the H100 reaches {gpu.share_of_peak:.0%} of its {gpu.peak / 1e12:,.0f} TFLOP/s: {1e6 * gpu.time_s.expected:.0f} us",
            f"the EPYC reaches {cpu.share_of_peak:.0%} of its {cpu.peak / 1e12:.1f} TFLOP/s: {1e3 * cpu.time_s.expected:.1f} ms",
        ),
        "gpuwise op matmul 4096 4096 4096 --on h100-sxm --against 'EPYC 9654'",
    )


def _setup() -> Solution:
    from gpuwise.facts.software.compatibility import family_driver

    driver = family_driver((13, 0))
    assert driver is not None
    return Solution(
        float(driver[0]),
        (
            "a wheel runs on every driver of its CUDA family (12.x, 13.x) or a newer one: minor versions are compatible",
            f"CUDA 13 begins with driver {driver[0]}; a wheel for CUDA 12.8 runs from 525 on",
        ),
        "gpuwise doctor",
    )


def _first() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.workload.transformer.tables import model_flop_per_token

    estimate = _planned("gpt2", "t4")
    per_token = model_flop_per_token(find_model("gpt2"), 1024)
    peak = find_cluster("t4").accelerator.peak("fp16")
    speed = estimate.tokens_per_s.expected
    return Solution(
        speed * SESSION_H * 3600 / 1e6,
        (
            f"training GPT-2 takes {per_token / 1e9:.2f} GFLOP a token (6 for each parameter, and attention)",
            f"the T4 does {peak / 1e12:.0f} TFLOP/s in fp16 by its data sheet, and {estimate.mfu.expected:.0%} of it here: "
            f"{speed:,.0f} tokens/s",
            f"{SESSION_H:.0f} hours of {speed:,.0f} tokens/s",
        ),
        "gpuwise plan gpt2 --on t4 --tokens 500M",
    )


def _memory() -> Solution:
    from gpuwise.plan.api import make_fit

    estimate = make_fit("llama-3.1-8b", "h100-sxm").estimate
    assert estimate is not None
    parts = {name: estimate.memory_parts[name] for name in ("weights", "gradients", "optimizer")}
    parameters = estimate.memory_parts["weights"] / 2
    return Solution(
        sum(parts.values()) / GIB,
        tuple(f"{name}: {size / parameters:.0f} bytes a parameter, {size / GIB:.1f} GiB" for name, size in parts.items()),
        "gpuwise fit llama-3.1-8b --on h100-sxm",
    )


def _precision() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.plan.one_op import matmul

    n, card = 8192, find_cluster("a100-sxm-80gb")
    wide, narrow = (matmul(n, n, n, dtype, [card]).rows[0] for dtype in ("fp32", "bf16"))
    return Solution(
        wide.time_s.expected / narrow.time_s.expected,
        (
            f"fp32 without TF32 runs on the CUDA cores: {wide.peak / 1e12:.1f} TFLOP/s, {1e3 * wide.time_s.expected:.1f} ms",
            f"bf16 runs on the tensor cores: {narrow.peak / 1e12:.0f} TFLOP/s, {1e3 * narrow.time_s.expected:.2f} ms",
        ),
        "gpuwise op matmul 8192 8192 8192 --on a100-sxm-80gb --dtype fp32",
    )


def _loader() -> Solution:
    estimate = _planned("vit-b-16", "4090")
    images = estimate.tokens_per_s.expected / estimate.seq_len
    return Solution(
        float(math.ceil(images / DECODES_PER_S)),
        (
            f"the RTX 4090 trains on {estimate.tokens_per_s.expected:,.0f} tokens/s, {estimate.seq_len} of them an image: "
            f"{images:.0f} images/s",
            f"{images:.0f} / {DECODES_PER_S:.0f} images/s of a worker, rounded up",
        ),
        "gpuwise plan vit-b-16 --on 4090 --tokens 1B",
    )


def _profiling() -> Solution:
    from gpuwise.facts.hardware.naming import find_accelerator
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.workload.transformer.tables import model_flop_per_token

    per_token = model_flop_per_token(find_model("llama-3.2-1b"), 4096)
    peak = find_accelerator("h100-sxm").peak("bf16")
    return Solution(
        100 * 40_000 * per_token / peak,
        (
            f"Llama 3.2 1B takes {per_token / 1e9:.2f} GFLOP a token at 4,096 tokens a sequence, forward and backward",
            f"40,000 tokens/s are {40_000 * per_token / 1e12:.0f} TFLOP/s of the H100's {peak / 1e12:.0f} in bf16 (the dense "
            "figure, not the sparse one)",
        ),
        "gpuwise plan llama-3.2-1b --on h100-sxm --seq 4096 --tokens 1B",
    )


def _several() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.plan.one_op import allreduce

    size = 16.06e9
    row = allreduce(size, [find_cluster("8xh100-sxm")]).rows[0]
    assert row.bytes_per_s is not None
    return Solution(
        1e3 * row.time_s.expected,
        (
            f"the gradients are 2 bytes for each of 8.03e9 parameters: {size / 1e9:.2f} GB",
            "in a ring each GPU sends and receives 2 (n - 1) / n of them: 1.75 times",
            f"that is as if NVLink moved {row.bytes_per_s / 1e9:.0f} GB/s one way; its data sheet says 450: the switches of such "
            "a box add up themselves (NVLS), which saves part of a ring's way",
        ),
        "gpuwise op allreduce 16.06GB --on 8xh100",
    )


def _choosing() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.plan.one_model import decode

    cluster = find_cluster("4090")
    answer = decode(find_model("llama-3.1-8b"), "Q4_K_M", [cluster])
    bandwidth = cluster.accelerator.memory_bandwidth_bytes_per_s
    read = answer.weight_bytes + (answer.cache_bytes or 0.0)
    expected = answer.rows[0].time_s
    assert expected is not None
    return Solution(
        bandwidth / read,
        (
            f"each token reads all the weights once: {answer.weight_bytes / 1e9:.2f} GB, and the cache",
            f"the RTX 4090 reads {bandwidth / 1e9:,.0f} GB/s by its data sheet",
            f"that is a bound; expected are {1 / expected.expected:.0f} tokens/s",
        ),
        "gpuwise op decode llama-3.1-8b --on 4090",
    )


def _owning() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.offers.purchases import typical_purchase_usd
    from gpuwise.money.cost import typical_price
    from gpuwise.money.power import cluster_power

    cluster = find_cluster("4090")
    rent = typical_price(cluster, datetime.datetime.now(datetime.UTC).date()).expected
    price = typical_purchase_usd(cluster.accelerator.id, "used").median
    budget = cluster_power(cluster)
    assert budget is not None
    kw = budget.total_w.expected / 1000
    return Solution(
        price / (rent - kw * KWH_USD),
        (
            f"a second-hand card costs ${price:,.0f}, an hour of one by rent ${rent:.2f}",
            f"at work it and its share of the PC draw {kw:.2f} kW at the wall: ${kw * KWH_USD:.2f} an hour",
            f"each hour saves ${rent - kw * KWH_USD:.2f}; without repairs, resale and idle hours",
        ),
        "gpuwise cost own --on 4090 --hours 500/month",
    )


def _serving() -> Solution:
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.predict.memory.kv_cache import kv_cache_bytes

    arch = find_model("llama-3.1-8b")
    one_user = float(kv_cache_bytes(arch, CONTEXT))
    return Solution(
        USERS * one_user / GIB,
        (
            f"a token keeps a key and a value for each of the key-value heads of every layer, 2 bytes a number: "
            f"{one_user / CONTEXT:,.0f} bytes",
            f"{USERS} users x {CONTEXT:,} tokens x {one_user / CONTEXT:,.0f} bytes",
        ),
        f"gpuwise op decode llama-3.1-8b --on h100-sxm --weights bf16 --context {CONTEXT} --batch {USERS}",
    )


def _power() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.money.power import cluster_power

    budget = cluster_power(find_cluster("8xh100-sxm"))
    assert budget is not None
    items = [f"{name} {watts.expected / 1000:.1f} kW" for name, watts in budget.items().items() if watts.expected]
    kw = budget.total_w.expected / 1000
    return Solution(
        kw * WEEK_H,
        (
            f"while training: {', '.join(items)}",
            f"the cards are {budget.design_w / 1000:.1f} kW by design and seldom draw it; hosts and cooling come on top",
            f"{kw:.1f} kW at the meter for {WEEK_H:.0f} hours",
        ),
        "gpuwise cost run llama-3.1-8b --on 8xh100 --tokens 15B",
    )


def _own_machine() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.serve.local_machine import machine_of
    from gpuwise.serve.local_run import format_fit

    memory = format_fit(find_model("llama-3.1-8b"), machine_of(find_cluster("3060")), "Q4_K_M", LONG_TALK).memory
    return Solution(
        memory.total / GIB,
        (
            f"weights: {memory.weights / GIB:.2f} GiB, some tensors in more bits than others",
            f"cache: {LONG_TALK:,} tokens x 128 KiB = {memory.cache / GIB:.2f} GiB",
            f"buffers of a batch of the prompt: {memory.workspace / GIB:.2f} GiB",
        ),
        f"gpuwise fit llama-3.1-8b --on 3060 --for run --context {LONG_TALK} --weights Q4_K_M --memory",
    )


def _other_chips() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.plan.one_model import decode

    phone = find_cluster("adreno-830")
    weights = decode(find_model("llama-3.2-3b"), "Q4_K_M", [phone]).weight_bytes
    bandwidth = phone.accelerator.memory_bandwidth_bytes_per_s
    return Solution(
        bandwidth / weights,
        (f"weights: {weights / 1e9:.2f} GB, read once for each token", f"the phone's memory reads {bandwidth / 1e9:.1f} GB/s"),
        "gpuwise op decode llama-3.2-3b --on adreno-830",
    )


def _smaller_models() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.plan.one_model import decode

    arch, card = find_model("llama-3.1-8b"), find_cluster("4090")
    wide, narrow = (decode(arch, weights, [card]).weight_bytes for weights in ("bf16", "Q4_K_M"))
    return Solution(
        wide / narrow,
        (f"bf16: 16 bits a weight, {wide / 1e9:.1f} GB", f"Q4_K_M: 4.85 bits a weight with its scales, {narrow / 1e9:.2f} GB"),
        "gpuwise op decode llama-3.1-8b --on 4090 --weights Q4_K_M",
    )


def _which_model() -> Solution:
    from gpuwise.facts.hardware.naming import find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.plan.one_model import decode
    from gpuwise.serve.local_machine import machine_of
    from gpuwise.workload.transformer.parameters import count_parameters

    arch, card = find_model("llama-3.1-8b"), find_cluster("4090")
    each = decode(arch, "Q4_K_M", [card]).weight_bytes / count_parameters(arch).total
    room = machine_of(card).most_bytes - ROOM_GIB * GIB
    return Solution(
        room / each / 1e9,
        (f"room for weights: {room / GIB:.1f} GiB", f"a weight takes {8 * each:.2f} bits, {each:.3f} bytes"),
        "gpuwise models --on 4090 --whole",
    )


_SOLVED: dict[str, Callable[[], Solution]] = {
    "why-gpus": _why,
    "set-up": _setup,
    "first-model": _first,
    "memory": _memory,
    "mixed-precision": _precision,
    "batch-and-loader": _loader,
    "profiling": _profiling,
    "several-gpus": _several,
    "choosing": _choosing,
    "renting-or-owning": _owning,
    "serving": _serving,
    "power-and-cooling": _power,
    "your-own-machine": _own_machine,
    "other-chips": _other_chips,
    "smaller-models": _smaller_models,
    "which-model": _which_model,
}


@cache
def exercises() -> tuple[Exercise, ...]:
    """All of them, in the order of the lessons."""
    text = (files("gpuwise.lab.exercises") / "exercises.toml").read_text(encoding="utf-8")
    return tuple(
        Exercise(
            n,
            e["lesson"],
            e["title"],
            e["question"],
            e["unit"],
            e["tolerance"],
            tuple(e["hints"]),
            cache(_SOLVED[e["lesson"]]),
            tuple((float(ratio), words) for ratio, words in e["slips"]),
        )
        for n, e in enumerate(tomllib.loads(text)["exercise"], start=1)
    )
