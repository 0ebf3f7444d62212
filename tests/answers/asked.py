"""The questions of the table of answers, and how an answer is written down.

``questions.txt`` has command lines; :data:`CALLS` has calls of the Python API. An answer is an exit code and a document, of which
each part has a digest of every digit. Another processor, C library or NumPy may round the last digits otherwise, and so
change a draw or a choice; :func:`arithmetic` names those that an answer was made with.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import platform
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath as umath

HERE = Path(__file__).parent
QUESTIONS = [line for line in (HERE / "questions.txt").read_text().splitlines() if line and not line.startswith("#")]
KEPT = HERE / "kept.json"
DAY = "2026-11-28 12:00:00+00:00"
"""When all questions are asked: ages of prices depend on it."""


def _calls() -> dict[str, Callable[[], Any]]:
    import gpuwise
    from gpuwise import Strategy, Wishes
    from gpuwise.plan.document import answer_document, estimate_document
    from gpuwise.serve.capacity.document import capacity_document

    def plan(model: str, on: str | None, **wishes: Any) -> Any:
        return answer_document(gpuwise.make_plan(model, on, Wishes(**wishes)))

    def fit(model: str, on: str, **wishes: Any) -> Any:
        return answer_document(gpuwise.make_fit(model, on, Wishes(**wishes)))

    def estimate(model: str, on: str, seq_len: int, **fields: Any) -> Any:
        return estimate_document(gpuwise.estimate(model, on, Strategy(**fields), seq_len=seq_len))

    def capacity(model: str, on: str, **more: Any) -> Any:
        return capacity_document(gpuwise.make_capacity(model, on, **more))

    eager: dict[str, Any] = {"stack": "eager-fsdp", "sharding": "zero3"}
    return {
        "make_plan, tokens": lambda: plan("llama-3.1-8b", "8xH100-SXM", tokens=15e9),
        "make_plan, fixed": lambda: plan("qwen2.5-7b", "4xA100-80GB", tokens=1e9, fixed={"tp": 2, "sharding": "zero1"}),
        "make_plan, fp8": lambda: plan("llama-3.1-8b", "8xB200", tokens=1e9, precision=("auto",)),
        "make_plan, adapters": lambda: plan("mistral-7b", "2x4090", tokens=1e7, lora_rank=16, quantized_base=True),
        "make_plan, deadline": lambda: plan("gpt3-1.3b", "8xA100-40GB", tokens=3e10, deadline_s=5 * 86400.0),
        "fit, adapters": lambda: fit("llama-3.1-8b", "4090", seq_len=2048, lora_rank=16, quantized_base=True),
        "fit, does not": lambda: fit("llama-2-70b", "8xA100-40GB", seq_len=4096),
        "fit, experts": lambda: fit("olmoe-1b-7b", "4xA100-80GB", fixed={"ep": 4}),
        "estimate, eager": lambda: estimate("llama-3.1-8b", "8xA100-80GB", 8192, dp=8, recompute="full", **eager),
        "estimate, zero2": lambda: estimate(
            "gpt2-xl", "4xV100-32GB", 1024, dp=4, sharding="zero2", stack="deepspeed", precision="fp16"
        ),
        "estimate, pipeline": lambda: estimate(
            "llama-2-70b",
            "8x8xH100-SXM",
            4096,
            dp=2,
            tp=8,
            pp=4,
            accumulation=32,
            virtual_stages=2,
            schedule="interleaved",
            sharding="zero1",
        ),
        "estimate, experts": lambda: estimate(
            "mixtral-8x7b", "8x8xH100-SXM", 4096, dp=32, tp=2, ep=8, accumulation=8, sharding="zero1"
        ),
        "estimate, context": lambda: estimate(
            "llama-3.1-8b", "2x8xH100-SXM", 131072, dp=2, tp=2, cp=4, recompute="full", sharding="zero1"
        ),
        "estimate, state space": lambda: estimate("mamba2-2.7b", "8xH100-SXM", 2048, dp=8, micro_batch=4, sharding="zero1"),
        "estimate, latent": lambda: estimate("deepseek-v2-lite", "8xH100-SXM", 4096, dp=8, ep=8, sharding="zero1"),
        "estimate, encoder": lambda: estimate("bert-large", "8xA100-40GB", 512, dp=8, micro_batch=16, stack="compiled"),
        "estimate, both": lambda: estimate("t5-large", "4090", 512, micro_batch=4, stack="eager", precision="bf16"),
        "estimate, unsloth": lambda: estimate("llama-3.1-8b", "4090", 2048, lora_rank=16, quantized_base=True, stack="unsloth"),
        "estimate, host": lambda: estimate(
            "llama-3.1-8b",
            "2x4090",
            2048,
            dp=2,
            offload_optimizer=True,
            offload_activations=True,
            stack="deepspeed",
            sharding="zero3",
        ),
        "capacity, rate": lambda: capacity("llama-3.1-8b", "L40S", requests_per_s=2.0),
        "capacity, users": lambda: capacity("qwen3-30b-a3b", "H100-SXM", users=40),
        "capacity, sglang": lambda: capacity("llama-3.1-70b", "8xH100-SXM", workload="code", requests_per_s=2.0, engine="sglang"),
    }


CALLS = _calls()


def ask(question: str, folder: Path) -> tuple[int | str, Any]:
    """The exit code and the document of a question; ``{here}`` in it is the folder of this module, ``{tmp}`` is ``folder``."""
    if question in CALLS:
        return 0, json.loads(json.dumps(CALLS[question](), default=str))
    from gpuwise.cli.app import run

    arguments = [a.replace("{tmp}", str(folder)).replace("{here}", str(HERE)) for a in shlex.split(question)]
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = run([*arguments, "--json"])
    document = json.loads(_named(out.getvalue(), folder).splitlines()[-1])
    written = {p.relative_to(folder): p for p in sorted(folder.rglob("*")) if p.is_file()}
    if written:
        document["files"] = {str(name): _named(p.read_text(), folder) for name, p in written.items()}
    return code, document


def _named(text: str, folder: Path) -> str:
    """``text`` without the paths of this machine."""
    return text.replace(str(folder), "{tmp}").replace(str(HERE), "{here}").replace(str(Path.cwd()), "{cwd}")


def digests(code: int | str, document: Any) -> dict[str, Any]:
    """The exit code, and of each part of the document its digest."""
    parts = _untimed(document) if isinstance(document, dict) else {"all": document}
    return {"code": code, "parts": {k: _digest(v) for k, v in parts.items()}}


def arithmetic() -> str:
    """What rounds: NumPy, its instruction sets here, the C library, Python. AVX512_SPR is left out: its loops are those of 16-bit
    numbers, which no answer is made with."""
    features = " ".join(name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name] and name != "AVX512_SPR")
    return f"numpy {np.__version__} with {features}, {' '.join(platform.libc_ver())}, python {platform.python_version()}"


def _untimed(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` without the seconds that a plan's search took."""
    if "search" in document:
        return {**document, "search": {k: v for k, v in document["search"].items() if k != "seconds"}}
    return document


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
