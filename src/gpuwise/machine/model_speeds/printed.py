"""What Ollama and MLX LM print for people: ``ollama run --verbose``, ``mlx_lm.generate``, ``mlx_lm.benchmark``."""

from __future__ import annotations

import re

from gpuwise.machine.model_speeds.fields import number, refuse
from gpuwise.serve.local_measured import MeasuredSpeed

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
OLLAMA = re.compile(r"^(prompt eval|eval) (count|rate): +(\S+) (?:token\(s\)|tokens/s)\s*$", re.MULTILINE)
"""ollama api/types.go ``Metrics.Summary``."""
MLX_GENERATE = re.compile(r"^(Prompt|Generation): (\S+) tokens, (\S+) tokens-per-sec\s*$", re.MULTILINE)
"""mlx-lm mlx_lm/generate.py ``generate``."""
MLX_TIMING = re.compile(r"Timing with prompt_tokens=(\d+), generation_tokens=(\d+), batch_size=(\d+)")
MLX_AVERAGES = re.compile(r"^Averages: *prompt_tps=(\S+?), generation_tps=(\S+?),", re.MULTILINE)
"""mlx-lm mlx_lm/benchmark.py."""
MLX_TRIAL = re.compile(r"^Trial \d+:", re.MULTILINE)


def from_ollama(text: str, name: str) -> list[MeasuredSpeed]:
    """Of one or several answers: a prompt's count is that of the whole conversation."""
    speeds: list[MeasuredSpeed] = []
    held: dict[str, float] = {}
    for i, (what, unit, value) in enumerate(OLLAMA.findall(text), 1):
        where = f"{name}: line {i} of the summary"
        if (key := f"{what} {unit}") in held and unit == "count":
            held = {}
        held[key] = number({key: value}, key, where)
        if unit == "rate":
            tokens, prompt = int(held.get(f"{what} count", 0)), int(held.get("prompt eval count", 0))
            if not tokens or held[key] <= 0:
                refuse(where, f"{what} rate without a count of tokens")
            kind, before = ("prompt", 0) if what == "prompt eval" else ("decode", prompt)
            speeds.append(MeasuredSpeed(kind, "ollama", "llama.cpp", held[key], tokens, before))
        if key == "eval rate":
            held = {}
    return speeds


def from_mlx_generate(text: str, name: str) -> list[MeasuredSpeed]:
    """A prompt and what was written after it."""
    speeds: list[MeasuredSpeed] = []
    prompt = 0
    for i, (what, tokens, rate) in enumerate(MLX_GENERATE.findall(text), 1):
        where = f"{name}: line {i} of the summary"
        n = int(number({"tokens": tokens}, "tokens", where))
        value = number({"tokens-per-sec": rate}, "tokens-per-sec", where)
        if not n or not value:
            continue
        kind, before = ("prompt", 0) if what == "Prompt" else ("decode", prompt)
        speeds.append(MeasuredSpeed(kind, "mlx_lm.generate", "mlx-lm", value, n, before))
        prompt = n if what == "Prompt" else 0
    return speeds


def from_mlx_benchmark(text: str, name: str) -> list[MeasuredSpeed]:
    """Averages over the trials; of a batch the rates are those of all its sequences."""
    timing, averages = MLX_TIMING.search(text), MLX_AVERAGES.search(text)
    if timing is None or averages is None:
        refuse(name, "mlx_lm.benchmark printed no averages")
    prompt, written, batch = (int(n) for n in timing.groups())
    trials = max(len(MLX_TRIAL.findall(text)), 1)
    read, wrote = (number({"tps": v}, "tps", f"{name}: averages") / max(batch, 1) for v in averages.groups())
    if not (prompt and written and batch and read and wrote):
        refuse(name, "a rate or a number of tokens is 0")
    program = "mlx_lm.benchmark"
    return [
        MeasuredSpeed("prompt", program, "mlx-lm", read, prompt, samples=trials, sequences=batch),
        MeasuredSpeed("decode", program, "mlx-lm", wrote, written, prompt, samples=trials, sequences=batch),
    ]
