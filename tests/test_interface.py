"""What programs that call gpuwise rely on stays: public names, flags, fields of ``--json``, exit codes and refusals.

``interface.json`` holds them as they were before the rooms were moved (22 November 2026). A name or field that is
missing fails. One that is new fails too, until ``python tests/test_interface.py`` has added it to the file; that
command never takes anything out: what is dropped on purpose is edited out by hand, where a reviewer sees it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import gpuwise
from gpuwise.cli.app import build, every_command, run

ROOT = Path(__file__).parent.parent
COMMAND_NAMES = [name for name, _ in every_command(build())]
KEPT = Path(__file__).with_name("interface.json")
ADD = "`python tests/test_interface.py` adds what is new; what is gone on purpose is edited out of tests/interface.json by hand"
GPT = "{root}/examples/train_gpt.py:make_step"
SMALL = ("--batch", "2", "--set", "n_layers=2", "--set", "width=128", "--set", "n_heads=4", "--set", "seq=256")
ENVIRONMENT = {"COLUMNS": "80", "NO_COLOR": "1"}

TRACE = [
    {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": 3000.0 * n + at, "dur": long, "args": args}
    for n in range(4)
    for name, cat, at, long, args in (
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 0, 2000, {}),
        ("aten::mm", "cpu_op", 2000, 600, {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}),
        ("Optimizer.step#SGD.step", "user_annotation", 2800, 190, {}),
    )
]
SCRIPT = """
import torch
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4096
    def __getitem__(self, i): return torch.full((16,), float(i % 7)), i % 4
def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for x, y in torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
if __name__ == "__main__":
    main()
"""

CALLS: dict[str, list[tuple[str, ...]]] = {
    "plan": [
        ("plan", "gpt2", "--on", "4xA100-80GB", "--tokens", "1B"),
        ("plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tokens", "15B", "--budget", "2000", "--deadline", "3d"),
        ("plan", "mixtral-8x7b", "--on", "16xH100-SXM", "--tokens", "1B"),
        ("plan", "gpt2", "--tokens", "1B"),
        ("plan", "llama-3.1-405b", "--on", "4090", "--tokens", "1B"),
    ],
    "fit": [
        ("fit", "gpt2", "--on", "4090", "--for", "train"),
        ("fit", "llama-3.1-8b", "--on", "4090", "--for", "train"),
        ("fit", "llama-3.1-8b", "--on", "4090", "--qlora"),
        ("fit", "mixtral-8x7b", "--on", "8xH100-SXM", "--for", "train"),
        ("fit", "gpt2", "--on", "4090"),
        ("fit", "llama-3.1-8b", "--on", "4090"),
        ("fit", "mixtral-8x7b", "--on", "8xH100-SXM"),
        ("fit", "llama-3.1-8b", "--on", "3060", "--for", "run"),
    ],
    "fit own code": [
        ("fit", GPT, "--on", "4090", *SMALL),
        ("fit", GPT, "--on", "4060", "--batch", "64", "--set", "n_layers=2"),
        ("fit", GPT, "--on", "4060", "--batch", "auto", "--set", "n_layers=1"),
    ],
    "plan own code": [
        ("plan", GPT, "--on", "2x4090", "--samples", "1M", *SMALL),
        ("plan", GPT, "--on", "4090", "--compile", *SMALL),
        ("plan", GPT, "--on", "4060", "--batch", "64", "--set", "n_layers=2"),
    ],
    "capacity": [
        ("capacity", "llama-3.2-1b", "--on", "l40s", "--workload", "in=400,out=60", "--rate", "20/s", "--slo", "ttft_p95=1s"),
        ("capacity", "llama-3.2-1b", "--on", "l40s", "--workload", "in=400,out=60", "--slo", "ttft_p95=1ms", "--quick"),
    ],
    "memory": [
        ("fit", GPT, "--on", "4090", *SMALL, "--snapshot", "{tmp}/run.pickle"),
        ("memory", "{tmp}/run.pickle"),
        ("memory", "{tmp}/run.pickle", "--conf", "expandable_segments:True", "--capacity", "64MiB"),
    ],
    "pick": [
        ("pick", "--for", "infer", "--model", "llama-3.2-1b", "--users", "4", "--budget", "3000"),
        ("pick", "--for", "infer", "--model", "llama-3.2-1b", "--requests-per-day", "1M"),
        ("pick", "--for", "train", "--model", "gpt2", "--tokens", "1B", "--budget", "500"),
        ("pick", "--for", "finetune", "--model", "gpt2", "--have", "PSU 850W, 2 slots, 330mm", "--own"),
        ("pick", "--for", "learn", "--budget", "1000", "--vendor", "apple"),
        ("pick", "--for", "mixed", "--model", "gpt2", "--budget", "2000", "--vendor", "amd"),
    ],
    "compare": [
        ("compare", "4090", "l40s"),
        ("compare", "4090", "l40s", "a100-80gb", "--model", "llama-3.1-8b", "--sources"),
        ("compare", "8xH100-SXM", "8xA100-80GB", "--model", "llama-3.1-8b", "--for", "train", "--tokens", "1B"),
        ("compare", "4090", "3090", "--model", "llama-3.1-8b", "--for", "infer"),
    ],
    "cost": [
        ("cost", "--on", "8xH100-SXM", "--hours", "10000/month", "--scenarios", "1k", "--country", "DE", "--spot"),
        ("cost", "--on", "4090", "--hours", "200/month", "--scenarios", "1k", "--steps"),
        ("cost", "--on", "4090", "--hours", "200/month", "--simple"),
        ("cost", "--on", "h100-sxm,a100-80gb", "--rules"),
        ("cost", "gpt2", "--on", "8xA100-80GB", "--tokens", "1B", "--country", "DE"),
    ],
    "prices": [
        ("prices", "h100"),
        ("prices", "h100", "--all", "--kind", "reserved"),
        ("prices", "4090", "--buy"),
        ("prices", "h100", "--history"),
        ("prices", "--stored"),
    ],
    "op": [
        ("op", "matmul", "4096", "4096", "4096", "--on", "4090", "--against", "EPYC 9654"),
        ("op", "attention", "8", "32", "2048", "128", "--on", "h100-sxm"),
        ("op", "stream", "1GB", "--on", "4090", "--on", "3090"),
        ("op", "copy", "1GB", "--on", "4090"),
        ("op", "allreduce", "1GB", "--on", "8xH100-SXM"),
        ("op", "decode", "llama-3.1-8b", "--on", "4090"),
        ("op", "train", "gpt2", "1M", "--on", "4090"),
    ],
    "models": [("models",), ("models", "deepseek-v3"), ("models", "gemma-3-27b"), ("models", "qwen", "moe")],
    "gpus": [("gpus",), ("gpus", "h100-sxm"), ("gpus", "hopper")],
    "cpus": [("cpus",), ("cpus", "EPYC 9654")],
    "export": [("export", "gpt2", "--on", "8xH100-SXM", "--to", "torchtitan")],
    "explain": [("explain", "mfu"), ("explain",)],
    "doctor": [("doctor", "--no-frameworks", "--gpus", "99", "--notes")],
    "top": [("top", "--once", "--demo", "8", "--price", "0.30/kWh", "--co2", "400")],
    "profile": [("profile", "--trace", "{tmp}/trace.json")],
    "bench": [("bench", "--list")],
    "validate": [("validate",)],
    "share": [("share", "{root}/tests/answers/data/llama-bench.json")],
    "check": [("check", "{root}/tests/answers/data/gpuwise.checks.toml")],
    "lab": [
        ("lab",),
        ("lab", "occupancy", "--on", "V100", "--regs", "37", "--block", "320", "--chart"),
        ("lab", "simulate"),
        ("lab", "simulate", "reduction", "--size", "4096", "--crossover"),
        ("lab", "cpu-vs-gpu", "64", "--on", "4090"),
        ("lab", "exercise"),
        ("lab", "exercise", "11", "32", "--hint", "1", "--solution"),
    ],
}
"""By group: calls that answer without a GPU, each with ``--json`` added. A field counts once, whichever call shows it."""

SLOW: dict[str, list[tuple[str, ...]]] = {
    "profile a script": [("profile", "{tmp}/train.py", "--steps", "5")],
    "tune and run": [
        ("tune", "{tmp}/train.py", "--steps", "5", "--minutes", "0.6"),
        ("run", "{tmp}/train.py", "--config", "{tmp}/levers.toml"),
        ("validate", "--runs"),
    ],
    "bench the processor": [("bench", "--device", "cpu", "--only", "matmul-fp32", "--each", "1s", "--no-save")],
}
"""The same for calls that run a training or measure this machine."""

OF_THIS_MACHINE = ("doctor",)
"""Commands whose document says what this machine has: only the two outer levels of fields are the same everywhere, and a list
may be empty."""

REFUSED: list[tuple[str, ...]] = [
    ("plann",),
    ("plan",),
    ("plan", "gpt-2000", "--on", "8xH100-SXM"),
    ("plan", "gpt2", "--on", "8xH1000"),
    ("plan", "gpt2", "--on", "0xH100-SXM"),
    ("plan", "gpt2", "--on", ""),
    ("plan", "gpt2", "--on", "4090", "--tokens", "-1"),
    ("plan", "gpt2", "--on", "4090", "--tokens", "nan"),
    ("plan", "gpt2", "--on", "4090", "--tokens", "many"),
    ("plan", "gpt2", "--on", "4090", "--deadline", "soon"),
    ("plan", "gpt2", "--on", "4090", "--budget", "0"),
    ("plan", "gpt2", "--on", "4090", "--seq", "0"),
    ("plan", "gpt2", "--on", "4090", "--precision", "bf17"),
    ("plan", "gpt2", "--on", "4090", "--optimizer", "adamx"),
    ("plan", "gpt2", "--on", "4090", "--stack", "megatron"),
    ("plan", "gpt2", "--on", "4090", "--tp", "-2"),
    ("plan", "gpt2", "--on", "4090", "--tp", "3"),
    ("plan", "gpt2", "--on", "4090", "--lora-rank", "0"),
    ("plan", "gpt2", "--on", "4090", "--provider", "nobody"),
    ("plan", "gpt2", "--on", "4090", "--samples", "1M"),
    ("plan", "gpt2", "--no-such-flag"),
    ("plan", "layers=2,hidden=-4,heads=2,vocab=10", "--on", "4090"),
    ("plan", "{tmp}/config.json", "--on", "4090"),
    ("plan", "{tmp}/broken.json", "--on", "4090"),
    ("fit", "gpt2", "--on", "4090", "--sharding", "zero9"),
    ("fit", "gpt2", "--on", "4090", "--schedule", "zigzag"),
    ("fit", "gpt2", "--on", "4090", "--recompute", "some"),
    ("fit", "gpt2", "--on", "4090", "--micro-batch", "0"),
    ("fit", "gpt2", "--on", "4090", "--batch", "8"),
    ("fit", "{tmp}/no.py:make_step", "--on", "4090"),
    ("fit", GPT, "--on", "4090", "--batch", "0"),
    ("fit", GPT, "--on", "4090", "--tp", "2"),
    ("fit", GPT, "--on", "4090", "--timeline", "{tmp}/a.png"),
    ("fit", GPT, "--on", "4090", "--set", "width"),
    ("fit", GPT, "--on", "4090", "--input", "3xx4"),
    ("fit", "hf:{tmp}/no/config.json", "--on", "4090"),
    ("plan", GPT, "--on", "4090", "--tokens", "1B"),
    ("op", "matmull", "8", "8", "8", "--on", "4090"),
    ("op", "matmul", "8", "8", "--on", "4090"),
    ("op", "matmul", "8", "-8", "8", "--on", "4090"),
    ("op", "matmul", "8", "8", "8"),
    ("op", "matmul", "8", "8", "8", "--on", "4090", "--dtype", "bf17"),
    ("op", "decode", "llama-3.1-8b", "--on", "4090", "--weights", "Q9"),
    ("op", "stream", "0", "--on", "4090"),
    ("compare", "4090"),
    ("compare", "4090", "nothing-like-it"),
    ("compare", "4090", "3090", "--for", "dance"),
    ("compare", "4090", "3090", "--html", "{tmp}/a.txt"),
    ("pick", "--for", "dance"),
    ("pick", "--for", "infer", "--model", "llama-3.1-8b", "--users", "0"),
    ("pick", "--for", "train", "--model", "gpt2"),
    ("pick", "--for", "learn", "--rent", "--own"),
    ("pick", "--for", "learn", "--vendor", "acme"),
    ("pick", "--for", "learn", "--country", "Atlantis"),
    ("capacity",),
    ("capacity", "llama-3.2-1b", "--measure", "http://127.0.0.1:9"),
    ("capacity", "llama-3.2-1b", "--price", "2"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--seconds", "5s"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--measure", "ftp://x"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--workload", "dance"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--workload", "in=400"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--workload", "vision"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--slo", "ttft_p95=soon"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--slo", "speed=1s"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--rate", "-1/s"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--rate", "1/s", "--users", "5"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--think", "3s"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--engine", "tgi"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--trace", "{tmp}/none.csv"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--trace", "{tmp}/broken.json"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--arrivals", "gamma"),
    ("capacity", "llama-3.2-1b", "--on", "l40s", "--context", "1M"),
    ("capacity", "llama-3.1-405b", "--on", "1xl40s"),
    ("capacity", "t5-3b", "--on", "l40s"),
    ("cost",),
    ("cost", "--on", "4090", "--hours", "-5/month"),
    ("cost", "--on", "4090", "--hours", "5/fortnight"),
    ("cost", "--on", "4090", "--hours", "200/month", "--pue", "0.5"),
    ("cost", "--on", "4090", "--hours", "200/month", "--scenarios", "0"),
    ("cost", "--on", "4090", "--hours", "200/month", "--currency", "EUR"),
    ("prices", "h1000"),
    ("prices", "--import", "{tmp}/none.csv"),
    ("prices", "h100", "--sort", "beauty"),
    ("models", "no-such-model-at-all"),
    ("gpus", "no-such-card-at-all"),
    ("top", "--count", "0"),
    ("top", "--interval", "-1s"),
    ("top", "--replay", "{tmp}/none.sqlite"),
    ("top", "--once", "--demo", "0"),
    ("top", "--alert", "beauty>3"),
    ("doctor", "--no-frameworks", "--python", "{tmp}/none"),
    ("doctor", "--gpus", "-1"),
    ("memory", "{tmp}/none.pickle"),
    ("memory", "{tmp}/broken.json"),
    ("profile",),
    ("profile", "{tmp}/none.py"),
    ("profile", "--trace", "{tmp}/none.json"),
    ("bench", "--only", "beauty"),
    ("bench", "--device", "gpu99"),
    ("bench", "--fail-below", "none"),
    ("tune",),
    ("tune", "{tmp}/none.py"),
    ("run", "{tmp}/none.py"),
    ("validate", "--data", "{tmp}/none"),
    ("validate", "--family", "beauty"),
    ("lab", "occupancy", "--on", "V100", "--regs", "37"),
    ("lab", "occupancy", "--on", "V100", "--regs", "37", "--block", "2000"),
    ("lab", "occupancy", "--on", "13.7", "--regs", "37", "--block", "32"),
    ("lab", "occupancy", "--on", "V100", "--regs", "37", "--block", "32", "--smem", "97KiB"),
    ("lab", "occupancy", "--cubin", "{tmp}/none.cubin"),
    ("lab", "simulate", "dance"),
    ("lab", "simulate", "gather", "--size", "100M"),
    ("lab", "simulate", "gather", "--grid", "4"),
    ("lab", "simulate", "{tmp}/none.py:k", "--grid", "4", "--block", "32"),
    ("lab", "simulate", "gather", "--on", "p100-pcie-16gb"),
    ("lab", "cpu-vs-gpu", "100k"),
]


def kept() -> dict[str, Any]:
    return json.loads(KEPT.read_text(encoding="utf-8"))


# --- what there is ---


def public_names() -> dict[str, list[str]]:
    """Names of the package; of its functions the parameters too."""
    things = {name: getattr(gpuwise, name) for name in gpuwise.__all__}
    return {name: list(inspect.signature(t).parameters) if inspect.isfunction(t) else [] for name, t in sorted(things.items())}


def flags(command: str) -> dict[str, str]:
    """Flag to its other names and its default: ``--frameworks`` to ``--no-frameworks, default True``."""
    found: dict[str, str] = {}
    for argument in dict(every_command(build()))[command].assemble_argument_collection():
        first, *others = argument.names
        if first == "*":  # a group of flags: they come one by one
            continue
        place = [] if argument.field_info.kind is inspect.Parameter.KEYWORD_ONLY else ["by position"]
        default = argument.field_info.default
        worth = "any number" if default is inspect.Parameter.empty else f"default {default!r}"
        worth = "required" if argument.required else worth
        found[first] = ", ".join([*others, *place, worth])
    return found


def paths(value: object, at: str = "") -> Iterator[str]:
    """Field paths of a document: ``best.time_s.low``, ``rows[].device``. A key that is no name is data: ``*``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            name = key if re.fullmatch(r"[a-z_][a-z0-9_]*", key) else "*"
            here = f"{at}.{name}" if at else name
            yield here
            yield from paths(inner, here)
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{at}[]")


def ask(arguments: Sequence[str], folder: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line in ``folder``, run in this process at 80 columns."""
    words = [a.replace("{tmp}", str(folder)).replace("{root}", str(ROOT)) for a in arguments]
    out, err = io.StringIO(), io.StringIO()
    before, at = {k: os.environ.get(k) for k in ENVIRONMENT}, Path.cwd()
    os.environ.update(ENVIRONMENT)
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words)
    finally:
        os.chdir(at)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    return code, out.getvalue(), err.getvalue().replace(str(folder), "{tmp}").replace(str(ROOT), "{root}")


def furnish(folder: Path) -> None:
    """The files that calls and refusals name."""
    (folder / "trace.json").write_text(json.dumps({"traceEvents": TRACE}))
    (folder / "train.py").write_text(SCRIPT)
    (folder / "levers.toml").write_text("version = 1\n[levers]\nfused_optimizer = true\n")
    (folder / "broken.json").write_text("{ not json")


def fields(calls: Sequence[Sequence[str]], folder: Path) -> list[str]:
    """All field paths of the documents that ``calls`` print."""
    found: set[str] = set()
    for call in calls:
        code, out, err = ask((*call, "--json"), folder)
        lines = out.splitlines()
        assert lines and lines[-1].startswith("{"), f"{' '.join(call)}: exit code {code}\n{err}"
        deepest = 2 if call[0] in OF_THIS_MACHINE else None
        found |= {p for p in paths(json.loads(lines[-1])) if deepest is None or p.count(".") < deepest}
    return sorted(found)


def refusal(arguments: Sequence[str], folder: Path) -> list[object]:
    """Exit code and first line of stderr."""
    code, _, err = ask(arguments, folder)
    return [code, err.split("\n", 1)[0]]


def key(arguments: Sequence[str]) -> str:
    return " ".join(a or "''" for a in arguments)


def needs_torch(calls: Sequence[Sequence[str]]) -> bool:
    return any(GPT in call or "{tmp}/train.py" in call or "hf:" in " ".join(call) for call in calls)


# --- what must hold ---


@pytest.fixture
def folder(tmp_path: Path, home: Path) -> Path:
    """Files to ask about, and an empty ``$GPUWISE_HOME``."""
    place = tmp_path / "here"
    place.mkdir()
    furnish(place)
    return place


def same(found: Any, before: Any) -> None:
    gone, new = sorted(set(before) - set(found)), sorted(set(found) - set(before))
    assert not gone, f"gone: {gone}\n{ADD}"
    assert not new, f"new: {new}\n{ADD}"


def shown(before: Sequence[str], found: Sequence[str]) -> list[str]:
    """``before`` without the fields of elements of lists that are empty in ``found``: what a machine or a measurement shows."""
    empty = {p for p in found if not any(q.startswith(f"{p}[]") for q in found)}
    return [p for p in before if "[]" not in p or p.partition("[]")[0] not in empty]


def test_public_names_and_their_parameters() -> None:
    found, before = public_names(), kept()["public"]
    same(found, before)
    for name in before:
        same(found[name], before[name])


def test_every_command_is_there() -> None:
    same(COMMAND_NAMES, kept()["flags"])


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_flags(command: str) -> None:
    found, before = flags(command), kept()["flags"][command]
    same(found, before)
    assert found == before


@pytest.mark.parametrize("group", [pytest.param(g, marks=pytest.mark.thorough) if g == "pick" else g for g in CALLS])
def test_fields(group: str, folder: Path) -> None:
    if needs_torch(CALLS[group]):
        pytest.importorskip("torch")
    found, before = fields(CALLS[group], folder), kept()["fields"][group]
    same(found, shown(before, found) if group in OF_THIS_MACHINE else before)


@pytest.mark.slow
@pytest.mark.parametrize("group", SLOW)
def test_fields_of_what_is_measured(group: str, folder: Path) -> None:
    pytest.importorskip("torch")
    found = fields(SLOW[group], folder)
    same(found, shown(kept()["fields"][group], found))


@pytest.mark.parametrize("arguments", REFUSED, ids=key)
def test_refusals(arguments: tuple[str, ...], folder: Path) -> None:
    if needs_torch([arguments]):
        pytest.importorskip("torch")
    assert refusal(arguments, folder) == kept()["refused"][key(arguments)], ADD


def test_every_refusal_kept_is_asked() -> None:
    same([key(a) for a in REFUSED], kept()["refused"])


# --- writing it ---


def grown(before: Any, found: Any) -> Any:
    """``before`` with what is new in ``found``; nothing is taken out or changed."""
    if isinstance(before, dict) and isinstance(found, dict):
        return {
            k: grown(before[k], found[k]) if k in before and k in found else before.get(k, found.get(k))
            for k in [*before, *(k for k in found if k not in before)]
        }
    if isinstance(before, list) and all(isinstance(v, str) for v in [*before, *found]):
        return [*before, *(v for v in found if v not in before)]
    return before


def write() -> None:
    before = kept() if KEPT.exists() else {}
    groups = {**CALLS, **SLOW}
    with tempfile.TemporaryDirectory() as name:
        os.environ["GPUWISE_HOME"] = f"{name}/home"
        folder = Path(name) / "here"
        folder.mkdir()
        furnish(folder)
        found = {
            "public": public_names(),
            "flags": {command: flags(command) for command in COMMAND_NAMES},
            "fields": {group: fields(calls, folder) for group, calls in groups.items()},
            "refused": {key(a): refusal(a, folder) for a in REFUSED},
        }
    document = grown(before, found) if before else found
    document["fields"] = {group: sorted(lines) for group, lines in document["fields"].items()}
    KEPT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"{KEPT}\n")


if __name__ == "__main__":
    write()
