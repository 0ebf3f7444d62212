"""One voice about serving: ``op decode``, ``compare``, ``pick`` and ``cost`` say what ``capacity`` simulates."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.cli.app import run
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.compare.serving import serve_alike
from gpuwise.pick.jobs import serving_job
from gpuwise.pick.passes import PassRate, pass_job, passes_on
from gpuwise.pick.serving import Service, serve_on
from gpuwise.plan.one_model import decode
from gpuwise.serve.capacity.configurations import Configuration
from gpuwise.serve.capacity.rate import largest_rate, operate
from gpuwise.serve.engines.engine import tensor_parallel
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.formats import FORMAT_OF_BITS
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import Target
from gpuwise.serve.load.workloads import find_workload
from gpuwise.serve.passes.encoders import TEXT_TOKENS, Encoders
from gpuwise.serve.passes.speech import TOKENS_PER_WINDOW, WINDOW_S, Speech

Ask = Callable[..., Any]
PROMPT, ANSWER = 1024, 129
CASES = [
    ("llama-3.1-8b", "h100-sxm", 16, 1),
    ("llama-3.1-8b", "rtx-4090", 8, 1),
    ("llama-3.3-70b", "4xh100-sxm", 8, 4),
    ("qwen3-30b-a3b", "2xl40s", 8, 2),
    ("gemma-3-27b", "h200", 8, 1),
    ("llama-3.1-8b", "a100-sxm-80gb", 16, 1),
]
PRECISION = {16: "bf16", 8: "fp8"}


def configuration(model: str, on: str, bits: int, ranks: int) -> Configuration:
    arch = find_model(model)
    return Configuration(arch, find_cluster(on).system, tensor_parallel(arch, FORMAT_OF_BITS[bits], ranks), Settings())


def load(model: str, prompt: int = PROMPT, answer: int = ANSWER) -> Load:
    return Load(find_workload(f"in={prompt},out={answer}"), find_model(model).max_seq_len)


@pytest.mark.parametrize(("model", "on", "bits", "ranks"), CASES)
def test_a_request_alone_is_the_same_in_capacity_op_and_compare(model: str, on: str, bits: int, ranks: int) -> None:
    """Time between tokens at the mean length of the answer, and time to the first token, at a rate near zero."""
    c, arch, cluster = configuration(model, on, bits, ranks), find_model(model), find_cluster(on)
    alone = operate(c, load(model), 1e-3, (), 50)
    token, first = alone.latency("tpot", 50.0), alone.latency("ttft", 50.0)
    halfway = PROMPT + ANSWER // 2
    asked = decode(arch, FORMAT_OF_BITS[bits], [cluster], context=halfway).rows[0]
    assert asked.time_s is not None and asked.time_s.expected == pytest.approx(token, rel=1e-3)
    prompt = decode(arch, FORMAT_OF_BITS[bits], [cluster], context=PROMPT).rows[0].first_token_s
    assert prompt is not None and prompt.expected == pytest.approx(first, rel=1e-3)
    cell = serve_alike(arch, [cluster], halfway, PRECISION[bits])[0]
    if ranks == 1 or cell.single_words == f"tensor parallel {ranks}":
        assert cell.single == asked.tokens_per_s and cell.first_token == asked.first_token_s


SHAPES = [(1020, 129), (4000, 300), (2000, 100)]


@pytest.mark.parametrize(
    ("model", "on", "bits", "ranks", "prompt", "answer"), [(*case, *SHAPES[i % len(SHAPES)]) for i, case in enumerate(CASES)]
)
def test_pick_carries_what_capacity_simulates(model: str, on: str, bits: int, ranks: int, prompt: int, answer: int) -> None:
    """The closed form of ``pick --requests-per-day`` is within 9 % of the largest simulated rate at reading speed."""
    job = serving_job(
        find_model(model), requests_per_day=1e6, bits=(bits,), prompt_tokens=prompt, output_tokens=answer, least_tokens_per_s=5.3
    )
    service = serve_on(job, find_cluster(on), ranks)
    assert isinstance(service, Service)
    picked = service.capacity_tokens_per_s / service.replicas / (prompt + answer)
    target = Target("tpot", None, 1 / 5.3)
    simulated = largest_rate(configuration(model, on, bits, ranks), load(model, prompt, answer), [target], n=800)
    assert picked == pytest.approx(simulated.rate_per_s, rel=0.09)


@pytest.mark.thorough
def test_cost_pays_for_the_fleet_of_capacity(ask: Ask) -> None:
    words = ("llama-3.2-1b", "--on", "l40s", "--rate", "100/s", "--slo", "ttft_p95=1s", "--workload", "in=500,out=60,peak=2")
    served = ask("cost", *words, "--scenarios", "1000")["served"]
    fleet = ask("capacity", *words, "--quick")["served"]["fleet"]
    assert served["fleet"] == fleet and fleet["accelerators_peak"] > fleet["mean_accelerators"] > 1


@pytest.mark.thorough
def test_a_day_of_requests_takes_as_many_copies_in_pick_as_in_capacity() -> None:
    """Where both have the same settings, the targets of ``pick`` and its load."""
    from gpuwise.serve.capacity.answer import Question, capacity_on
    from gpuwise.serve.capacity.fleet import Demand

    job = serving_job(find_model("llama-3.1-8b"), requests_per_day=4e6, bits=(8,), prompt_tokens=1020, output_tokens=129)
    service = serve_on(job, find_cluster("l40s"), 1)
    asked = Question(
        find_model("llama-3.1-8b"),
        find_cluster("l40s"),
        load("llama-3.1-8b", 1020, 129),
        (Target("tpot", None, 1 / job.load.least_tokens_per_s),),
        Demand(4e6 / 86400, peak_over_mean=1.54),
        datetime.date(2026, 11, 23),
    )
    answer = capacity_on(asked, explain=False)
    assert isinstance(service, Service) and answer.served is not None
    assert abs(service.replicas - answer.served.fleet.copies_peak) <= 1


@pytest.mark.thorough
def test_the_table_and_the_document_say_the_same_tokens_of_a_rate(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("capacity", "llama-3.1-8b", "--on", "2xl40s", "--workload", "in=400,out=60", "--quick", "--tp", "2")
    curve = ask(*question)["served"]["curve"]
    run((*question, "--rates"))
    table = capsys.readouterr().out.split("tokens/s a GPU")[1]
    printed = [float(n.replace(",", "")) for n in re.findall(r"([\d,.]+) +[\d.]+ %$", table, re.MULTILINE)]
    assert printed == pytest.approx([p["output_tokens_per_s_per_accelerator"] for p in curve], rel=0.005)
    rates = [p["output_tokens_per_s_per_accelerator"] for p in curve if p["saturated"]]
    assert rates and max(rates) < 1.2 * min(rates)


@pytest.mark.parametrize("on", ["l4", "rtx-4090", "h100-sxm-80gb"])
def test_passages_and_speech_take_the_same_in_pick_and_capacity(on: str) -> None:
    """The best batch of what can wait is the full rate of what is asked for one by one."""
    cluster, encoder, whisper = find_cluster(on), find_model("bert-large"), find_model("whisper-large-v3")
    embedding, speech = (passes_on(job, cluster) for job in (pass_job("embed", encoder), pass_job("speech", whisper)))
    assert isinstance(embedding, PassRate) and isinstance(speech, PassRate)
    full = Encoders().times(encoder, cluster, TEXT_TOKENS).full_per_s * TEXT_TOKENS
    assert embedding.items_per_s.expected == pytest.approx(full, rel=1e-9)
    windows = Speech().times(whisper, cluster, TOKENS_PER_WINDOW).full_per_s
    assert speech.items_per_s.expected == pytest.approx(windows * WINDOW_S, rel=1e-9)
