"""What the help shows first: the questions that most people have, and three examples of each command."""

from __future__ import annotations

from collections.abc import Mapping

QUESTIONS: tuple[tuple[str, str], ...] = (
    ("Can I fine-tune an 8B on my 4090?", "fit llama-3.1-8b --on 4090"),
    ("Which GPU under $1,000?", "pick llama-3.1-8b --for infer --budget 1000"),
    ("What to serve 200 people?", "capacity llama-3.1-8b --users 200"),
    ("Why is my training slow?", "profile train.py"),
    ("Is my machine ready?", "doctor"),
)
"""In words, with the command that answers each."""
EXAMPLES: Mapping[str, tuple[str, str, str]] = {
    "pick": (
        "pick llama-3.1-8b --for infer --budget 1000",
        "pick llama-3.1-8b --for finetune --own --budget 2000",
        "pick gpt2 --for train --tokens 10B --deadline 7d",
    ),
    "plan": (
        "plan llama-3.1-8b --on 8xH100-SXM --tokens 15B",
        "plan llama-3.1-8b --on 4090 --qlora --tokens 10M",
        "plan examples/train_resnet.py --on T4",
    ),
    "fit": (
        "fit llama-3.1-8b --on 4090",
        "fit llama-3.1-8b --on 4090 --for lora",
        "fit qwen3-30b-a3b --on 3090 --for run",
    ),
    "capacity": (
        "capacity llama-3.1-8b --users 200",
        "capacity llama-3.1-8b --on H100-SXM --rate 5/s",
        "capacity llama-3.1-8b --on 4090 --weights 4 --max",
    ),
    "compare": (
        "compare 4090 3090",
        "compare 4090 L40S --model llama-3.1-8b --for infer",
        "compare H100-SXM MI300X --sources",
    ),
    "cost": ("cost 8xH100-SXM", "cost llama-3.1-8b --on 8xH100-SXM --tokens 15B", "cost llama-3.1-8b --on L40S --users 50"),
    "cost own": (
        "cost own --on 4090 --hours 3600",
        "cost own --on 8xH100-SXM --hours 10000/month --country DE",
        "cost own --on H100-SXM --hours 500/month --rent-price 2 --all",
    ),
    "cost run": (
        "cost run llama-3.1-8b --on 8xH100-SXM --tokens 15B",
        "cost run llama-3.1-8b --on 4090 --tokens 10M --qlora",
        "cost run gpt2 --on 4090 --tokens 1B --country US",
    ),
    "cost serve": (
        "cost serve llama-3.1-8b --on L40S --users 50",
        "cost serve llama-3.1-8b --on H100-SXM --rate 5/s",
        "cost serve llama-3.1-8b --on 4090 --users 5 --years 2",
    ),
    "prices": ("prices h100", "prices 4090 --spot", "prices 4090 --buy"),
    "op": (
        "op matmul 4096 4096 4096 --on 4090",
        "op decode llama-3.1-8b --on 4090 --on 3090",
        "op allreduce 1GB --on 8xH100-SXM",
    ),
    "doctor": ("doctor", "doctor --gpus 8", "doctor --fix-plan fix.sh"),
    "bench": ("bench --quick", "bench --only matmul", "bench --list"),
    "top": ("top", "top --once", "top --demo --once"),
    "profile": ("profile train.py", "profile train.py -- --batch 32", "profile --trace trace.json"),
    "memory": ("memory snapshot.pickle", "memory snapshot.pickle --capacity 24GB", "memory snapshot.pickle --all"),
    "tune": ("tune train.py", "tune train.py --minutes 30 -- --batch 32", "tune train.py --find-batch"),
    "run": ("run train.py", "run train.py --epochs 3 -- --batch 32", "run train.py --ranks 2"),
    "export": (
        "export llama-3.1-8b --on 8xH100-SXM --tokens 1B --files",
        "export llama-3.1-8b --on 8xH100-SXM --tokens 1B --to slurm:torchtitan",
        "export llama-3.1-8b --on 2x4090 --tokens 10M --qlora --to axolotl",
    ),
    "gpus": ("gpus", "gpus 4090", "gpus amd 192"),
    "cpus": ("cpus EPYC 9654", "cpus zen 4 laptop", "cpus --families"),
    "models": ("models qwen", "models llama-3.1-8b", "models --on 4090"),
    "explain": ("explain MFU", "explain zero3", "explain Q4_K_M"),
    "lab": ("lab exercise 1", "lab simulate vector-add", "lab occupancy --on H100-SXM --regs 64 --block 256"),
    "lab occupancy": (
        "lab occupancy --on H100-SXM --regs 64 --block 256",
        "lab occupancy --on 4090 --regs 32 --block 128 --smem 12KiB",
        "lab occupancy --on V100 --regs 37 --block 320 --chart",
    ),
    "lab simulate": (
        "lab simulate vector-add",
        "lab simulate transpose --size 64 --on V100 --timeline",
        "lab simulate reduction --on 4090 --crossover",
    ),
    "lab cpu-vs-gpu": ("lab cpu-vs-gpu", "lab cpu-vs-gpu 512 --on 4090", "lab cpu-vs-gpu 256 --against 'EPYC 9654'"),
    "lab exercise": ("lab exercise", "lab exercise 1 --hint 1", "lab exercise 1 70"),
    "share": (
        "share llama-bench.json",
        "share nccl.txt --on 8xH100-SXM --out h100.gpuwise.json",
        "share bench.json --model llama-3.1-8b --on L40S",
    ),
    "check": ("check", "check gpuwise.checks.toml --junit checks.xml", "check --template"),
    "mcp": ("mcp", "mcp --folder . --allow-code", "mcp --http --port 0"),
    "ui": ("ui", "ui --port 8765", "ui --no-browser"),
    "validate": ("validate", "validate --gpus", "validate --runs"),
}
"""By command, the plainest first."""


def examples_text(name: str) -> str:
    """The examples of a command as its help shows them."""
    return "\n  ".join(["Examples", *(f"gpuwise {line}" for line in EXAMPLES[name])])


def first_text(about: str) -> str:
    """What the help begins with: ``about``, and the questions that most people have."""
    lines = [f"{words}\n    gpuwise {line}" for words, line in QUESTIONS]
    return "\n  ".join([f"{about}\n\nBegin with a question:", *lines, 'or in your words: gpuwise "which GPU for llama-3.1-8b?"'])
