"""One serving answer: ``op decode``, ``compare`` and ``pick --for infer`` give the same figures for the same question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.compare.serving import SubjectServing, serve_alike
from gpuwise.pick.jobs import serving_job
from gpuwise.pick.serving import Service, serve_on
from gpuwise.plan.one_model import ModelRow, decode
from gpuwise.serve.formats import FORMAT_OF_BITS
from gpuwise.serve.local_machine import machine_of
from gpuwise.serve.local_run import run_locally

Ask = Callable[..., Any]
GPUS = ("rtx-4090", "rtx-3060-12gb", "l40s", "h100-sxm", "mi300x", "apple-m2-ultra", "t4", "p40")
MODELS = ("llama-3.1-8b", "gemma-3-27b", "qwen3-30b-a3b", "deepseek-v2-lite")
PRECISION_OF_BITS = {16: "bf16", 8: "fp8", 4: "int4"}
CONTEXT = 4096


def asked(model: str, on: str, weights: str, *, batch: int = 1) -> ModelRow:
    return decode(find_model(model), weights, [find_cluster(on)], context=CONTEXT, batch=batch).rows[0]


def compared(model: str, on: str, bits: int) -> SubjectServing:
    return serve_alike(find_model(model), [find_cluster(on)], CONTEXT, PRECISION_OF_BITS[bits])[0]


def picked(model: str, on: str, bits: int, *, users: int = 1, ranks: int = 1) -> object:
    job = serving_job(find_model(model), users=users, context=CONTEXT, bits=(bits,), least_tokens_per_s=1e-6)
    return serve_on(job, find_cluster(on), ranks)


@pytest.mark.parametrize("bits", PRECISION_OF_BITS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", GPUS)
def test_one_user(gpu: str, model: str, bits: int) -> None:
    """The same program, weights, tokens a second with their interval, and memory, or none of the commands serves it."""
    row, cell, service = asked(model, gpu, FORMAT_OF_BITS[bits]), compared(model, gpu, bits), picked(model, gpu, bits)
    if row.tokens_per_s is None:
        assert row.bound == "does not fit" and cell.weights is None and not isinstance(service, Service)
        return
    assert isinstance(service, Service)
    assert row.tokens_per_s == cell.single == service.tokens_per_s
    assert cell.words == f"{service.replica.weights} ({service.replica.program})"
    assert (row.needs_bytes, row.has_bytes) == (service.memory.total, service.memory.most)


@pytest.mark.parametrize("on", ["strix-halo", "dgx-spark", "apple-m4-max-40c", "rtx-5090"])
def test_a_model_published_in_narrow_weights_is_served_as_published(on: str) -> None:
    """gpt-oss has experts in MXFP4 and no other files: no command offers it in another format, nor at another speed."""
    arch, cluster = find_model("gpt-oss-20b"), find_cluster(on)
    cell = serve_alike(arch, [cluster], CONTEXT, None)[0]
    service = serve_on(serving_job(arch, users=1, context=CONTEXT, least_tokens_per_s=1e-6), cluster, 1)
    run = run_locally(arch, machine_of(cluster), context=CONTEXT)
    assert isinstance(service, Service) and cell.weights is not None
    assert cell.weights.lower() == service.replica.weights.lower() == "mxfp4" and cell.single == service.tokens_per_s
    local = next(s for s in run.speeds if s.context == CONTEXT).tokens_per_s
    assert (
        run.chosen is not None and run.chosen.weights == "MXFP4" and service.tokens_per_s.expected >= local.expected * (1 - 1e-9)
    )
    if service.replica.program == "llama.cpp":
        assert service.tokens_per_s == local


@pytest.mark.parametrize("gpu", ["rtx-4090", "h100-sxm", "mi300x"])
def test_many_users(gpu: str) -> None:
    """The full batch of ``compare`` is the batch of ``op`` and as many users of ``pick``."""
    cell = compared("llama-3.1-8b", gpu, 16)
    n = int(cell.batch_words.split()[0])
    service = picked("llama-3.1-8b", gpu, 16, users=n)
    assert n > 1 and isinstance(service, Service) and cell.batched is not None
    row = asked("llama-3.1-8b", gpu, "bf16", batch=n)
    assert row.tokens_per_s == cell.batched
    assert row.time_s is not None and service.tokens_per_s == row.time_s.inverse()
    assert row.needs_bytes == service.memory.total


@pytest.mark.parametrize(("on", "ranks"), [("2xh100-sxm", 2), ("8xh100-sxm", 8), ("4xa100-sxm-80gb", 4)])
def test_several_gpus(on: str, ranks: int) -> None:
    """Split over all of them; ``compare`` takes a smaller split only where that is faster."""
    row, service = asked("mixtral-8x7b", on, "bf16"), picked("mixtral-8x7b", on, 16, ranks=ranks)
    assert isinstance(service, Service) and service.tokens_per_s == row.tokens_per_s
    cell = compared("mixtral-8x7b", on, 16)
    assert cell.single is not None and row.tokens_per_s is not None
    assert cell.single.expected >= row.tokens_per_s.expected
    if cell.single_words == f"tensor parallel {ranks}":
        assert cell.single == row.tokens_per_s


def test_the_commands_print_it(ask: Ask) -> None:
    """Gemma 3 27B in 4 bits at 32k tokens on an RTX 4090 did not fit in one command and wrote 37.9 tokens/s in another."""
    row = ask("op", "decode", "gemma-3-27b", "--on", "RTX 4090", "--weights", "int4_wo", "--context", "32768")["rows"][0]
    words = ("--model", "gemma-3-27b", "--for", "infer", "--precision", "int4", "--seq", "32768")
    cells = {r["key"]: r["cells"][0] for r in ask("compare", "RTX 4090", "L40S", *words)["rows"]}
    assert row["fits"] and row["tokens_per_s"]["expected"] == cells["decode_one"]["value"]
    assert row["tokens_per_s"]["low"] == cells["decode_one"]["interval"]["low"]
