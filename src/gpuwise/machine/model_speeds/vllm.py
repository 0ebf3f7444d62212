"""JSON that ``vllm bench serve``, ``throughput`` and ``latency`` write (vllm/benchmarks/serve.py, throughput.py, latency.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwise.machine.model_speeds.fields import count, number, refuse
from gpuwise.serve.local_measured import MeasuredSpeed

ENGINE = "vllm"


def is_vllm(document: Mapping[str, Any]) -> bool:
    """Whether the document is one of theirs."""
    serve = {"request_throughput", "total_output_tokens"} <= document.keys()
    return serve or "avg_latency" in document or {"elapsed_time", "tokens_per_second"} <= document.keys()


def from_document(document: Mapping[str, Any], name: str) -> list[MeasuredSpeed]:
    """Of ``serve``: the rate of one sequence (1 / time per output token), of its prompt (tokens / time to first token), with as
    many at once as Little's law gives; of ``throughput`` the tokens of all requests together. Raises FileError for ``latency``,
    whose file has neither lengths nor a batch."""
    if "avg_latency" in document:
        refuse(name, "vllm bench latency writes neither the batch nor the lengths: import what `vllm bench serve` writes")
    if "elapsed_time" in document:
        requests, rate = count(document, "num_requests", name), number(document, "tokens_per_second", name)
        each = count(document, "total_num_tokens", name) // max(requests, 1)
        if not (each and rate):
            refuse(name, "no request or no token was counted")
        return [MeasuredSpeed("total", "vllm bench throughput", ENGINE, rate, each, sequences=requests)]
    completed = count(document, "completed", name)
    if not completed:
        refuse(name, "completed is 0: no request was answered")
    prompt, written = (count(document, f"total_{what}_tokens", name) // completed for what in ("input", "output"))
    token_s, first_s = (number(document, f"mean_{what}_ms", name) / 1000 for what in ("tpot", "ttft"))
    if not (prompt and written and token_s and first_s):
        refuse(name, "a number of tokens or a time is 0")
    limit = count(document, "max_concurrency", name)
    at_once = max(round(number(document, "request_throughput", name) * (first_s + token_s * (written - 1))), 1)
    sequences = min(at_once, limit) if limit else at_once
    model = str(document.get("model_id", ""))

    def speed(kind: str, rate: float, tokens: int, before: int) -> MeasuredSpeed:
        return MeasuredSpeed(
            kind, "vllm bench serve", ENGINE, rate, tokens, before, samples=completed, sequences=sequences, model=model
        )

    return [speed("prompt", prompt / first_s, prompt, 0), speed("decode", 1 / token_s, written, prompt)]
