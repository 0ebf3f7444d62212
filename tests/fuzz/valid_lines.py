"""Command lines that are valid by the parser: a command with pairs and triples of its own options, read from the parser.

No list of options stands here: a new option is drawn as soon as the parser has it. Its value comes from the choices of its
placeholder, or from what people write for that placeholder (:data:`VALUES`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from gpuwise.cli.app import build

MODELS = ("gpt2", "llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-4b", "layers=4,hidden=256,heads=4,vocab=1000")
GPUS = ("4090", "8xH100-SXM", "2x3090", "h100-sxm", "4xL40S", "mi300x", "16xA100-80GB", "rtx-3060-12gb", "tpu-v5e", "8xMI300X")
BASES: Mapping[str, Sequence[Sequence[str]]] = {
    "plan": [("MODEL", "--on", "GPUS"), ("MODEL", "--on", "GPUS", "--tokens", "1B")],
    "fit": [("MODEL", "--on", "GPUS"), ("MODEL", "--on", "GPUS", "--for", "run")],
    "pick": [("--for", "infer", "--model", "MODEL"), ("--for", "train", "--model", "gpt2", "--tokens", "1B"), ("--for", "learn")],
    "capacity": [
        ("MODEL", "--on", "GPUS", "--rate", "1/s", "--quick"),
        ("MODEL", "--on", "GPUS", "--concurrency", "4", "--quick"),
    ],
    "compare": [("4090", "3090"), ("8xH100-SXM", "8xA100-80GB", "--model", "MODEL", "--for", "train", "--tokens", "1B")],
    "cost own": [("--on", "4090", "--hours", "100/month", "--scenarios", "200")],
    "cost run": [("MODEL", "--on", "GPUS", "--tokens", "1B")],
    "cost serve": [("MODEL", "--on", "4090", "--rate", "1/s", "--scenarios", "200")],
    "prices": [(), ("h100",), ("4090",)],
    "op": [
        ("matmul", "4096", "4096", "4096", "--on", "GPUS"),
        ("attention", "8", "32", "2048", "128", "--on", "GPUS"),
        ("stream", "1GB", "--on", "GPUS"),
        ("decode", "MODEL", "--on", "GPUS"),
        ("train", "MODEL", "1M", "--on", "GPUS"),
    ],
    "export": [("MODEL", "--on", "GPUS")],
    "models": [(), ("MODEL",), ("qwen",)],
    "gpus": [(), ("hopper",), ("4090",)],
    "cpus": [(), ("zen", "4")],
    "explain": [("mfu",)],
    "lab occupancy": [("--on", "V100", "--regs", "37", "--block", "256")],
    "lab cpu-vs-gpu": [("64", "--on", "4090")],
}
"""Words with which a command answers."""
LEFT_OUT = frozenset(
    (
        *(
            "--help",
            "--json",
            "--html",
            "--svg",
            "--out",
            "--timeline",
            "--snapshot",
            "--trace",
            "--otlp",
            "--template",
            "--data",
        ),
        *("--cubin", "--ptxas-log", "--triton", "--measure", "--calibrated", "--refresh", "--import", "--remove", "--exhaustive"),
        *("--set", "--input", "--guess", "--change", "--compile", "--conf"),
    )
)
"""Options that write, read or reach something outside the answer, and those of a person's own code."""
MEASURING = "Measuring a running server"
VALUES: Mapping[str, Sequence[str]] = {
    "COUNT": ("1", "1000", "1M", "2B"),
    "TIME": ("10s", "3d", "500ms"),
    "USD": ("0.5", "20", "5000"),
    "N": ("1", "2", "8", "64"),
    "TOKENS": ("128", "2048", "8192"),
    "RANKS": ("1", "2", "4", "8"),
    "STAGES": ("1", "2", "4"),
    "LAYERS": ("1", "2", "attention", "all"),
    "SEQUENCES": ("1", "4"),
    "SAMPLES": ("1", "16", "auto"),
    "SHARE": ("0.05", "0.3", "0.8"),
    "RATIO": ("1", "1.3", "2"),
    "RANGE": ("0.7-1.3", "1"),
    "SIZE": ("16GB", "512GiB", "1KiB"),
    "MEMORY": ("32", "DDR5-6000", "64GB"),
    "PIXELS": ("512", "1024"),
    "FRAMES": ("16",),
    "SECONDS": ("5",),
    "YEAR": ("2021", "2024"),
    "YEARS": ("1", "3"),
    "HOURS": ("100", "2000"),
    "RANK": ("8", "64"),
    "VERSION": ("0.8", "1.0", "580"),
    "LINK": ("PCIe 4.0 x4", "NVLink 4", "PCIe 3.0 x8"),
    "FORMAT": ("int4", "fp8", "bf16", "q4_k_m", "int8"),
    "BITS": ("4", "8", "16"),
    "BITS|FORMAT": ("4", "fp8", "16"),
    "MODEL": MODELS,
    "GPUS": GPUS,
    "DEVICE": GPUS,
    "CPU": ("EPYC 9654", "i9-13900K"),
    "COUNTRY": ("DE", "US-VA", "FR"),
    "WORKLOAD": ("chat", "code", "in=400,out=60", "rag"),
    "TARGETS": ("ttft_p95=1s", "tpot_p50=50ms", "ttft_p95=2s,tpot_p95=80ms"),
    "RATE": ("1/s", "100/min", "50000/day"),
    "PROCESS": ("poisson", "bursty"),
    "ENGINE": ("vllm", "sglang", "trtllm", "llama.cpp"),
    "KIND:N": ("static:8", "dynamic:16"),
    "READ:WRITE": ("1:1", "2:1"),
    "DRAFTER:TOKENS:KEPT": ("ngram:3", "eagle:3", "3:2.4"),
    "ADAPTERS": ("4", "4:16"),
    "FORM": ("pcie", "sxm", "desktop"),
    "PURPOSE": ("infer", "finetune", "train", "learn", "mixed", "embed"),
    "VENDORS": ("nvidia", "amd", "nvidia,amd"),
    "MACHINE": ("PSU 850W, 2 slots, 330mm", "650W"),
    "ORDER": ("cost", "time", "energy", "speed"),
    "TERMS": ("1y", "3y", "both"),
    "WEIGHTS": ("0.5,1,0.5",),
    "CODE": ("EUR", "GBP"),
    "GB": ("100",),
    "TOOL": ("slurm", "torchtitan", "k8s", "deepspeed"),
    "THREADS": ("128", "320"),
    "PERCENT": ("50", "100"),
    "KEY": ("price", "age", "per-gb", "per-pflop"),
    "SETTINGS": ("expandable_segments:True",),
    "WIDTHxHEIGHT": ("512x512",),
    "SHAPE": ("4x4",),
    "DATA": ("c4",),
    "--for": ("pretrain", "finetune", "lora", "qlora", "dpo", "grpo", "distill", "embed", "run", "train"),
    "--stack": ("megatron-core", "torchtitan", "hf-trainer", "torchtune", "deepspeed", "unsloth"),
    "--precision": ("bf16", "fp8", "fp32", "fp16"),
    "--optimizer": ("adamw", "adafactor", "muon", "sgd", "adamw8bit"),
    "--sharding": ("none", "zero1", "zero2", "zero3", "hybrid"),
    "--schedule": ("1f1b", "gpipe", "interleaved", "zero-bubble"),
    "--provider": ("runpod", "lambda", "aws"),
    "--region": ("us", "eu"),
    "--expert-dispatch": ("alltoall", "allgather", "deepep"),
    "--kernel": ("main",),
    "--served-model": ("m",),
}
"""Words by placeholder, or by option where the placeholder says nothing."""


@cache
def options_of(command: str) -> tuple[tuple[str, Sequence[str]], ...]:
    """Options of a command with the values to draw; none for a flag."""
    app: Any = build()
    default = app.default_parameter
    for word in command.split():
        app = app[word]
    found: list[tuple[str, Sequence[str]]] = []
    for a in app.assemble_argument_collection(default_parameter=default, parse_docstring=True):
        groups = {getattr(g, "name", g) for g in a.parameter.group or ()}
        if not a.show or a.index is not None or not a.name.startswith("--") or a.name in LEFT_OUT or MEASURING in groups:
            continue
        place = str(a.parameter.metavar or "")
        if "bool" in str(a.hint):
            found.append((a.name, ()))
        elif a.name in VALUES or place in VALUES:
            found.append((a.name, VALUES.get(a.name) or VALUES[place]))
        elif "|" in place and place == place.lower():
            found.append((a.name, place.split("|")))
        elif "int" in str(a.hint) or "float" in str(a.hint):
            found.append((a.name, VALUES["N"]))
        else:
            raise AssertionError(f"{command} {a.name} {place}: what do people write there? Name it in VALUES")
    return tuple(found)


def line(seed: int, commands: Sequence[str] = tuple(BASES)) -> list[str]:
    """A command line with two or three options, by its number."""
    draw = random.Random(seed)
    command = commands[seed % len(commands)]
    base = draw.choice(BASES[command])
    options = [o for o in options_of(command) if o[0] not in base]
    words = [draw.choice(MODELS) if w == "MODEL" else draw.choice(GPUS) if w == "GPUS" else w for w in base]
    for name, values in draw.sample(options, min(draw.choice((2, 3)), len(options))):
        words += [name, draw.choice(values)] if values else [name]
    return [*command.split(), *words]
