"""Foreign scripts, levers, ranks and tunings on a GPU: what was said of them before, and what is there.

    PYTHONPATH=src python3 benchmarks/gpu/scripts.py --out FILE --budget 230 [--tiny] [--only SECTION ...]

A JSON line for each item as soon as it is done, the most telling first; ``section`` says which:

``script``  one of ``tests/foreign/scripts.toml`` with a table ``gpu``, as ``foreign_scripts.py`` has it: plain, then alone on the
            card under ``gpuwise profile --whole``. ``right`` where the verdict is one that the table expects.
``ranks``   ``gpuwise run --ranks 1`` beside a plain loop: the largest difference of a loss over all steps, and of a weight
            after a rank was killed (with the difference between two untouched runs beside it, which is the card's own).
``lever``   a small training under ``gpuwise run`` with levers: seconds a step without over those with them, beside the factor
            that :data:`LEVERS` expects; losses beside those without; whether its files load where there is no gpuwise.
``advice``  the same small trainings under ``gpuwise profile``: what its findings promise, to be held beside what the levers gave.
``doctor``, ``top``  both on the machine as it is, beside ``nvidia-smi``; ``driver`` what the driver says that is played in tests.
``tests``   a part of the project's own tests, on a machine that has a GPU.
``limit``   CUDA started under ``ulimit -v``, in GiB: what PyTorch says, and the address space that the process has taken.
``tune``    ``gpuwise tune`` of a script, and whole processes timed before and after outside of it, as ``tune_truth.py`` has it.

Scripts are run plain, and ranks trained, many at once: only what is timed is alone on the card. Watched scripts start side by
side and wait for their turn before they use CUDA (``turn/``). ``.gpu/checkouts`` holds ``OWNER/NAME``, ``.gpu/wheels`` what
the machine lacks. ``--traces`` is a folder for what the profiles traced.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(HERE), str(HERE.parent), str(HERE.parent / "ranks")]

import card_rows  # noqa: E402
import card_watch  # noqa: E402
import foreign_scripts  # noqa: E402
import jobs  # noqa: E402
import tune_truth  # noqa: E402

FIRST = (
    *("accelerate_nlp", "timm_vit", "mingpt_chargpt", "nanogpt", "cleanrl_ppo", "timm_train", "geometric_gcn", "examples_mnist"),
    *("nanogpt_decay", "makemore_transformer", "tcn_copy_memory", "examples_word_transformer"),
)
"""The most telling scripts: each expects another verdict. The others come last."""
N_FIRST = 8
AT_ONCE, IN_LINE = 12, 6
"""Plain scripts and rank trainings at the same time on 16 cores, and watched ones that start while one has the card."""
SCRIPT_LIMIT_S, JOB_LIMIT_S = 60.0, 80.0
SEED, STEPS, SAVE_EVERY, GLOBAL_BATCH = 7, 150, 25, 8

LEVERS: tuple[tuple[str, str, tuple[str, ...], float], ...] = (
    ("gpt", "none", (), 1.0),
    ("gpt", "plain", (), 1.0),
    ("gpt", "tf32", ("tf32 = true",), 2.2),
    ("gpt", "autocast", ('autocast = "bf16"',), 2.4),
    ("gpt", "fused_optimizer", ("fused_optimizer = true",), 1.1),
    ("gpt", "compile", ('compile = "regional"',), 1.1),
    ("gpt", "autocast, compile", ('autocast = "bf16"', 'compile = "regional"'), 3.0),
    ("conv", "none", (), 1.0),
    ("conv", "channels_last", ("channels_last = true",), 1.2),
    ("conv", "autocast", ('autocast = "bf16"',), 1.5),
    ("conv", "autocast, channels_last", ('autocast = "bf16"', "channels_last = true"), 2.2),
    ("conv", "compile", ('compile = "regional"',), 1.3),
    ("loader", "none", (), 1.0),
    ("loader", "workers", ("workers = 8",), 5.0),
    ("loader", "workers, pin_memory", ("workers = 8", "pin_memory = true"), 5.0),
)
"""Training, name, levers as gpuwise.toml has them, and how many times faster they were expected to be on an H100, written before
any was tried there. The first of each is what the others are beside; ``plain`` is without gpuwise."""
FILES = ("gpt, compile", "conv, autocast, channels_last", "loader, workers, pin_memory")
"""Trainings whose files are read where there is no gpuwise."""
ADVISED = ("gpt", "conv", "loader")
EXACT, PRECISION = 2e-3, 3e-2
"""Relative difference of the first ten losses that is taken for the same training: sums in another order, a shorter format."""

RANKS: tuple[tuple[str, str, tuple[str, ...], int], ...] = (
    ("llama", "none", (), 2),
    ("llama", "none, killed", (), -1),
    ("llama", "zero3", ("--sharding", "zero3"), 2),
    ("llama", "zero3, killed", ("--sharding", "zero3"), -1),
    ("images", "none", (), 2),
    ("images", "none, killed", (), -1),
    ("images", "zero3", ("--sharding", "zero3"), 1),
    ("llama", "recompute full", ("--recompute", "full"), 1),
    ("llama", "offload activations", ("--offload", "activations"), 1),
    ("llama", "lora", ("--lora",), 1),
)
"""Training, name, options, and how often it is run; -1: once, with its rank killed at a step drawn by the seed."""
SAME_LOSS, N_LOSSES = 1e-4, 20
"""Relative difference, expected of so many first losses (later ones show how sums in another order grow apart); with adapters of
the first alone."""

TUNES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("accelerate_nlp", ("autocast", "tf32"), "autocast is kept, 1.2 to 2 times: fp32 products are most of the step"),
    ("timm_vit", ("workers",), "workers are kept, 3 times and more: one decodes for a card that could take ten times as many"),
    ("nanogpt_decay", ("autocast", "fused_optimizer"), "autocast is kept, 1.2 to 1.6 times; its optimizer is fused already"),
    (
        "examples_mnist",
        ("workers", "cache_items"),
        "items are kept from the second epoch on: of one epoch nothing, or workers, 2 times",
    ),
)
"""Script, the levers that are tried, and what was expected before."""
TUNE_PAIRS, LEAST_TUNE_S = 2, 75.0

ADDRESS_SPACE: tuple[tuple[int | None, str], ...] = (
    (None, "starts; far more address space is taken than the card and the machine have memory"),
    (400, "starts: more than twice the card's memory, and the machine's"),
    (120, "out of memory: less than twice the card's memory, of which nothing is used"),
    (40, "out of memory"),
    (12, "out of memory, or the import of PyTorch fails"),
)
"""GiB, and what was expected before (NVIDIA/cuda-python, pull request 2458, saw twice the card's memory reserved for a pool)."""
STARTS = """
import torch
try:
    x = torch.ones(8, device="cuda" if torch.version.cuda and torch.cuda.device_count() else "cpu")
    print("started on", x.device.type)
finally:
    print(*(w for w in open("/proc/self/status").read().splitlines() if w.startswith(("VmPeak", "VmHWM"))))
"""


class Rows:
    """Appends rows to a file, and says how long there is still."""

    def __init__(self, path: Path, budget_s: float) -> None:
        self.path, self.end_s = path, time.monotonic() + budget_s

    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def write(self, section: str, item: str, **values: Any) -> None:
        row = {"section": section, "item": item, "left_s": round(self.left_s(), 1), **values}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=str) + "\n")
        sys.stderr.write(f"{section} {item}: {json.dumps(values, default=str)[:160]}\n")

    def attempt(self, section: str, item: str, work: Callable[[], Mapping[str, Any]]) -> None:
        """A row of what ``work`` gives, or of why it gave nothing."""
        began = time.monotonic()
        try:
            values = work()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a failed item is a row, and errors of DCP are no Exception
            values = {"error": f"{type(error).__name__}: {error}"[:600], "traceback": traceback.format_exc()[-1500:]}
        self.write(section, item, **values, took_s=round(time.monotonic() - began, 1))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=230.0, help="seconds")
    parser.add_argument("--tiny", action="store_true", help="small, for a machine without a GPU")
    parser.add_argument("--only", nargs="*", default=["script", "lever", "advice", "doctor", "top", "tests", "tune"])
    parser.add_argument("--items", nargs="*", default=[], help="only these scripts, in this order, and trainings on ranks")
    parser.add_argument("--verdict-only", action="store_true", help="no plain runs; each script until its profile is there")
    parser.add_argument("--first", type=int, default=N_FIRST, help="so many scripts before levers and tunings, the others last")
    parser.add_argument("--traces", type=Path, help="a folder for what the profiles traced")
    parser.add_argument("--checkouts", type=Path, default=ROOT / ".gpu" / "checkouts")
    parser.add_argument("--wheels", type=Path, default=ROOT / ".gpu" / "wheels")
    options = parser.parse_args(arguments)
    rows = Rows(options.out, options.budget)
    scratch = Path(tempfile.mkdtemp(prefix="gpuwise-scripts-"))
    unpack(options.wheels, scratch / "site")
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", ""), str(scratch / "site")]
    os.environ |= {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "NO_COLOR": "1", "HOME": str(scratch / "home")}
    (scratch / "home").mkdir()
    shutil.copy(HERE / "turn" / "sitecustomize.py", scratch / "site" / "sitecustomize.py")
    (options.traces or scratch / "traces").mkdir(parents=True, exist_ok=True)
    rows.attempt("machine", "before", machine)
    try:
        measure(rows, options, scratch)
    finally:
        rows.attempt("machine", "after", machine)
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def measure(rows: Rows, options: argparse.Namespace, scratch: Path) -> None:
    """All sections, the most telling first."""
    scripts = {s["name"]: s for s in foreign_scripts.on_gpu(foreign_scripts.read_list())}
    if options.tiny:
        scripts = {name: shrunk(s) for name, s in scripts.items()}
    order = options.items or [*FIRST, *(n for n in scripts if n not in FIRST)]
    order = [n for n in order if n in scripts]
    given = argparse.Namespace(
        checkouts=options.checkouts,
        python=sys.executable,
        scratch=scratch / "scripts",
        under="profile",
        levers=[],
        limit_s=SCRIPT_LIMIT_S * (4 if options.tiny else 1),
        reuse=False,
        plain_only=True,
        verdict_only=False,
    )
    at_once = 2 if options.tiny else AT_ONCE
    first, rest = order[: options.first], order[options.first :]
    plains: dict[str, Future[dict[str, Any]]] = {}
    trained: dict[str, Future[dict[str, Any]]] = {}
    turn = Turn(scratch / "turn", options.traces or scratch / "traces")
    jobs_begun = start_levers(scratch / "levers", options.tiny) if "lever" in options.only else {}
    with ThreadPoolExecutor(at_once) as pool:
        for gib, expected in ADDRESS_SPACE if "limit" in options.only else ():
            pool.submit(rows.attempt, "limit", f"ulimit -v, {gib} GiB", partial(limited, gib, expected))
        if {"script", "tune"} & set(options.only):
            begin = prepared if options.verdict_only else foreign_scripts.judged
            plains = {name: pool.submit(begin, scripts[name], given) for name in first}
        if "ranks" in options.only:
            rows.attempt("ranks", "begun", lambda: {"n": len(start_ranks(pool, scratch / "ranks", options, trained))})
        if options.verdict_only:
            look(rows, options, ("doctor", "top"))
        # nothing else is timed before all of these are over
    rows.write("machine", "plain runs are over", load=os.getloadavg()[0])
    if trained:
        tell_ranks(rows, scratch / "ranks", trained)
    with ThreadPoolExecutor(1 if options.tiny else IN_LINE) as pool, turn:
        for names, kinds in ((first[:6], ()), ((), ADVISED), (first[6:], ())):
            for name in names if "script" in options.only else ():
                pool.submit(watch, rows, scripts[name], plains[name], given, turn)
            for kind in kinds if "advice" in options.only else ():
                pool.submit(rows.attempt, "advice", kind, partial(advised, kind, scratch, turn, rows, options.tiny))
        if jobs_begun:
            levers(rows, jobs_begun)
            for title in set(FILES) & set(jobs_begun):
                pool.submit(rows.attempt, "lever files", title, partial(files_of, jobs_begun, title))
    look(rows, options, ("tests",) if options.verdict_only else ("doctor", "top", "tests"))
    if "tune" in options.only:
        for name, tried, expected in TUNES:
            if name in plains and rows.left_s() > LEAST_TUNE_S:
                work = partial(tuned, scripts[name], tried, expected, given, rows, options.tiny)
                rows.attempt("tune", name, work)
    if "rest" in options.only and rows.left_s() > 30:
        with ThreadPoolExecutor(at_once) as pool:
            plains = {name: pool.submit(foreign_scripts.judged, scripts[name], given) for name in rest}
        with ThreadPoolExecutor(1 if options.tiny else IN_LINE) as pool:
            for name in rest:
                pool.submit(watch, rows, scripts[name], plains[name], given, turn)


def look(rows: Rows, options: argparse.Namespace, sections: Sequence[str]) -> None:
    """Those sections that are asked for."""
    for section in sections:
        if section in options.only and rows.left_s() > 8:
            {"doctor": look_as_doctor, "top": look_at_top, "tests": own_tests}[section](rows, options)


class Turn:
    """The lock that processes wait for before they use the card (``turn/``); held in a ``with`` here, nobody goes on."""

    def __init__(self, path: Path, traces: Path) -> None:
        self.path, self.traces = path, traces
        self.path.touch()

    def __enter__(self) -> Turn:
        self.file = self.path.open("a")
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def environment(self, name: str) -> dict[str, str]:
        return {"GPU_TURN": str(self.path), "GPU_TRACES": str(self.traces / name)}


# --- the machine ---


def unpack(wheels: Path, site: Path) -> None:
    """Libraries that are there as wheels, into a folder of their own."""
    site.mkdir(parents=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)


def machine() -> dict[str, Any]:
    """The card with its clocks, and the versions."""
    told: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": sys.version.split()[0]}
    for name in ("torch", "transformers", "accelerate", "peft", "timm", "torchvision", "torch-geometric", "lightning"):
        with suppress(metadata.PackageNotFoundError):
            told[name] = metadata.version(name)
    fields = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used,clocks_event_reasons.active"
    try:
        asked = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        told["card"] = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        told["card"] = None
    return told


def limited(gib: int | None, expected: str) -> dict[str, Any]:
    """PyTorch with so much address space at the most."""
    setting = "" if gib is None else f"ulimit -v {gib << 20}; "
    words = ["bash", "-c", f'{setting}exec "$0" -c "$1"', sys.executable, STARTS]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return {"expected": expected, "code": done.returncode, "said": done.stdout[-300:], "error": done.stderr[-400:]}


# --- foreign scripts ---


def watch(rows: Rows, script: Mapping[str, Any], plain: Future[dict[str, Any]], given: argparse.Namespace, turn: Turn) -> None:
    """One script under ``profile``, alone on the card in its turn."""
    if rows.left_s() < 12:
        rows.write("script", script["name"], skipped="no time left")
        return
    expected = {"expected": script["verdict"], "also": script["also"], "why": script["why"]}

    def judged() -> dict[str, Any]:
        before = plain.result()
        if before.get("code") or "missing" in before:
            return {**expected, **before}
        limits = {**vars(given), "reuse": True, "plain_only": False, "limit_s": max(rows.left_s(), 1.0) / 3}
        limits["verdict_only"] = before.get("verdict_only", False)
        in_turn = {**script, "env": {**script.get("env", {}), **turn.environment(script["name"])}}
        row = foreign_scripts.judged(in_turn, argparse.Namespace(**limits))
        return {**expected, **row, "document": document_of(given.scratch / script["name"] / "profile" / "output")}

    rows.attempt("script", script["name"], judged)


def prepared(script: Mapping[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """Its folder with data, for a run without a plain one."""
    source = (given.checkouts / script["repository"] / script["folder"]).resolve()
    if source.is_dir():
        foreign_scripts.prepare((given.scratch / script["name"] / "profile").resolve(), script, source, given.python)
    return {"verdict_only": True}


def document_of(output: Path) -> dict[str, Any] | None:
    """What ``--json`` gave on the last line, without the times of each step."""
    try:
        return json.loads(output.read_text("utf-8", "replace").rstrip().splitlines()[-1])
    except (OSError, IndexError, ValueError):
        return None


def shrunk(script: Mapping[str, Any]) -> dict[str, Any]:
    """The script without a GPU: fewer data and steps."""
    less = {
        "n=32000": "n=3000",
        "n=50000": "n=6000",
        "n=20000": "n=3000",
        "n=12000": "n=4000",
        "n=2880": "n=90",
        "n=1440": "n=90",
    }
    less |= {"n=700000": "n=60000", "size=160": "size=64", "width=768": "width=64", "layers=6": "layers=2", "n=480": "n=224"}
    words = {
        "--device=cuda": "--device=cpu",
        "cuda": "cpu",
        "--max_iters=100": "--max_iters=60",
        "--batch_size=128": "--batch_size=4",
    }
    words |= {
        "--batch_size=64": "--batch_size=4",
        "resnet152": "resnet18",
        "vit_small_patch16_224": "vit_tiny_patch16_224",
        "64": "2",
    }
    words |= {"32": "2", "12": "1", "--max_iters=70": "--max_iters=45", "--trainer.max_iters=200": "--trainer.max_iters=40"}
    made = [words.get(a, a) for a in script["arguments"]]
    if script["name"] == "accelerate_nlp":
        made.append("--cpu")
    if script["name"].startswith("timm"):
        made += ["--device", "cpu"]
    data = [" ".join(less.get(w, w) for w in words_.split()) for words_ in script.get("data", ())]
    return {**script, "arguments": made, "data": data}


# --- ranks ---


def start_ranks(
    pool: ThreadPoolExecutor, root: Path, options: argparse.Namespace, started: dict[str, Future[dict[str, Any]]]
) -> dict[str, Future[dict[str, Any]]]:
    """All trainings of :data:`RANKS` and the plain ones, begun and put into ``started``."""
    targets = make_targets(root, options.tiny)
    steps, every = (12, 4) if options.tiny else (STEPS, SAVE_EVERY)
    drawn, limit_s = random.Random(SEED), JOB_LIMIT_S * (4 if options.tiny else 1)
    for kind in targets:
        started[f"{kind}, plain"] = pool.submit(plain_losses, root, kind, targets[kind], steps, limit_s)
    for kind, name, more, runs in RANKS:
        words = [*as_options(targets[kind]), "--ranks", "1", "--global-batch", str(GLOBAL_BATCH), "--seed", str(SEED), *more]
        for number in range(max(runs, 1)):
            killed_at = drawn.randint(every + 1, steps - every) if runs < 0 else None
            title = f"{kind}, {name}" + (f" {number + 1}" if number else "")
            if options.items and f"{kind}, {name}" not in options.items:
                continue
            started[title] = pool.submit(
                train, root / title.replace(", ", "-").replace(" ", "_"), words, (steps, every), killed_at, limit_s
            )
    return started


def make_targets(root: Path, tiny: bool) -> dict[str, list[str]]:
    """The target and its keywords, of each training."""
    import foreign_data

    root.mkdir(parents=True)
    width, layers = (64, 2) if tiny else (512, 4)
    shape = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "intermediate_size": 3 * width,
    }
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "max_position_embeddings": 512}
    (root / "llama").mkdir()
    (root / "llama" / "config.json").write_text(json.dumps({**config, **shape, "tie_word_embeddings": False}), "utf-8")
    # bytes: the folder has no tokenizer
    foreign_data.text(root / "corpus.txt", 60_000)
    images = str(ROOT / "examples" / "jobs" / "images.py")
    n = 64 if tiny else 256
    made = f"import runpy; runpy.run_path({images!r})['folder_of']('digits', {n})"
    subprocess.run([sys.executable, "-c", made], check=True, capture_output=True)
    return {
        "llama": [f"hf:{root / 'llama' / 'config.json'}", f"data={root / 'corpus.txt'}", "seq_len=64"],
        "images": [f"{images}:make_step", f"images={n}", "source=digits"],
    }


def as_options(target: Sequence[str]) -> list[str]:
    return [target[0], *(word for setting in target[1:] for word in ("--set", setting))]


def plain_losses(root: Path, kind: str, target: Sequence[str], steps: int, limit_s: float) -> dict[str, Any]:
    out = root / f"{kind}-plain.json"
    words = [sys.executable, str(HERE / "plain_task.py"), target[0], str(out), str(steps), str(GLOBAL_BATCH), str(SEED)]
    done = subprocess.run([*words, *target[1:]], capture_output=True, text=True, check=False, timeout=limit_s)
    if done.returncode:
        raise RuntimeError(done.stderr[-800:])
    return json.loads(out.read_text("utf-8"))


def train(out: Path, words: list[str], steps: tuple[int, int], killed_at: int | None, limit_s: float) -> dict[str, Any]:
    """One training, with what its journal says of the losses."""
    told = jobs.train(words, out, steps[0], killed_at, save_every=steps[1], limit_s=limit_s)
    events = [json.loads(line) for line in (out / "rank-0.jsonl").read_text("utf-8").splitlines()]
    losses = {e["step"]: e["loss"] for e in events if e["event"] == "step"}
    device = next(e["device"] for e in events if e["event"] == "begin")
    kept = {key: told.get(key) for key in ("restarts", "resumed", "step_s", "loss", "model", "losses")}
    return {
        "steps": steps[0],
        "killed_at": killed_at,
        "device": device,
        "curve": [losses[s] for s in sorted(losses)],
        "told": kept,
    }


def tell_ranks(rows: Rows, root: Path, trained: Mapping[str, Future[dict[str, Any]]]) -> None:
    for kind, name, _, runs in RANKS:
        title = f"{kind}, {name}"
        if title not in trained:
            continue
        rows.attempt("ranks", title, lambda k=kind, n=name, t=title, r=runs: compared(root, trained, k, n, t, r))


def compared(
    root: Path, trained: Mapping[str, Future[dict[str, Any]]], kind: str, name: str, title: str, runs: int
) -> dict[str, Any]:
    """A training beside the plain one, and beside itself."""
    found, plain = trained[title].result(), trained[f"{kind}, plain"].result()["losses"]
    losses = found.pop("curve")
    number = 1 if name == "lora" else N_LOSSES
    worst = most(losses[:number], plain[:number])
    row = {
        **found,
        "n_losses": len(losses),
        "first": losses[0],
        "last": losses[-1],
        "plain_last": plain[-1],
        "loss_off": worst,
        "loss_off_later": most(losses, plain),
    }
    # a killed run tells the losses of some steps twice: the later ones count
    row["losses_equal"] = len(losses) == len(plain) and worst <= SAME_LOSS

    def folder(of: str) -> Path:
        return root / of.replace(", ", "-").replace(" ", "_")

    if runs == 2:
        row["twice_off"] = apart(folder(title), folder(f"{title} 2"), found["steps"])
    if runs < 0:
        untouched = folder(title.removesuffix(", killed"))
        row["killed_off"] = apart(untouched, folder(title), found["steps"])
        row["bit_equal"] = row["killed_off"] == 0.0
    return row


def most(losses: Sequence[float], others: Sequence[float]) -> float:
    """Largest relative difference."""
    return max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(losses, others, strict=False))


def apart(one: Path, other: Path, steps: int) -> float:
    """Largest difference of a weight after the last step; infinite where the names differ."""
    a, b = jobs.weights(one, steps), jobs.weights(other, steps)
    if a.keys() != b.keys():
        return float("inf")
    return max((float((a[k].double() - b[k].double()).abs().max()) for k in a if a[k].numel()), default=0.0)


# --- levers ---


def start_levers(root: Path, tiny: bool) -> dict[str, tuple[Path, subprocess.Popen[bytes]]]:
    """All trainings of :data:`LEVERS`, which warm up and wait for their turn."""
    root.mkdir(parents=True)
    return {
        f"{kind}, {name}": start_job(root / f"{at:02d}", kind, name, lines, tiny)
        for at, (kind, name, lines, _) in enumerate(LEVERS)
        if not tiny or at % 3 < 2
    }


def levers(rows: Rows, started: Mapping[str, tuple[Path, subprocess.Popen[bytes]]]) -> None:
    """Each has the card to itself, once all have warmed up."""
    until = time.monotonic() + min(70.0, rows.left_s() / 3)
    while time.monotonic() < until and any(p.poll() is None and not (r / "ready").exists() for r, p in started.values()):
        time.sleep(0.1)
    rows.write("lever", "all warm", ready=sum((r / "ready").exists() for r, _ in started.values()), of=len(started))
    bases: dict[str, dict[str, Any]] = {}
    try:
        for kind, name, lines, expected in LEVERS:
            title = f"{kind}, {name}"
            if title in started and rows.left_s() > 5:
                found = timed(*started[title], rows)
                bases.setdefault(kind, found)
                rows.write("lever", title, levers=lines, expected=expected, **beside(found, bases[kind], name))
    finally:
        time.sleep(0.5)
        for _, process in started.values():
            foreign_scripts.end(process)


def timed(place: Path, process: subprocess.Popen[bytes], rows: Rows) -> dict[str, Any]:
    """The card is its own until it has told its times."""
    (place / "go").touch()
    told, until = place / "out.json", time.monotonic() + max(min(40.0, rows.left_s()), 1.0)
    while process.poll() is None and not told.exists() and time.monotonic() < until:
        time.sleep(0.02)
    if not told.exists():
        return {"code": process.poll(), "error": (place / "errors").read_text("utf-8", "replace")[-800:]}
    return json.loads(told.read_text("utf-8"))


def files_of(started: Mapping[str, tuple[Path, subprocess.Popen[bytes]]], title: str) -> dict[str, Any]:
    """Whether the files load without gpuwise and name nothing else than those of the same training without levers."""
    place, base = started[title][0], started[f"{title.partition(',')[0]}, none"][0]
    said = (place / "errors").read_text("utf-8", "replace").splitlines()[-10:]
    return {
        "unloadable": foreign_scripts.unloadable(sys.executable, place, ["out.pt"], Path()),
        "otherwise": foreign_scripts.pickled_otherwise(base, place, ["out.pt"]),
        "said": said,
    }


def start_job(place: Path, kind: str, name: str, lines: Sequence[str], tiny: bool) -> tuple[Path, subprocess.Popen[bytes]]:
    place.mkdir()
    words = [
        kind,
        str(place / "ready"),
        str(place / "go"),
        str(place / "out.json"),
        *(["--tiny", "--steps", "8"] if tiny else []),
    ]
    script = str(HERE / "lever_job.py")
    command = [sys.executable, script, *words]
    if name != "plain":
        config = place / "gpuwise.toml"
        config.write_text(foreign_scripts.config_text(script, lines), "utf-8")
        command = [sys.executable, "-m", "gpuwise", "run", "--no-record", f"--config={config}", script, "--", *words]
    environment = {**os.environ, **foreign_scripts.SURROUNDINGS, "HOME": str(place)}
    with (place / "errors").open("wb") as errors:
        return place, subprocess.Popen(
            command, cwd=place, env=environment, stdout=errors, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True
        )


def beside(found: Mapping[str, Any], base: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Seconds a step and losses of a run with levers, and of the one without."""
    if "losses" not in found or "losses" not in base:
        return dict(found)
    worst = most(found["losses"][:10], base["losses"][:10])
    limit = PRECISION if "autocast" in name or "tf32" in name else EXACT
    return {
        "step_s": found["step_s"],
        "mean_s": found["mean_s"],
        "peak_bytes": found["peak_bytes"],
        "times": base["step_s"] / found["step_s"],
        "loss_off": worst,
        "losses_equal": worst <= limit,
        "first_losses": found["losses"][:3],
    }


def advised(kind: str, scratch: Path, turn: Turn, rows: Rows, tiny: bool) -> dict[str, Any]:
    """What the profile of a training says, before any lever is on it."""
    place = scratch / "advice" / kind
    place.mkdir(parents=True)
    (place / "go").touch()
    words = [kind, *(str(place / name) for name in ("ready", "go", "out.json")), "--steps", "400"]
    command = [sys.executable, "-m", "gpuwise", "profile", "--json", str(HERE / "lever_job.py"), "--", *words]
    environment = {**os.environ, **foreign_scripts.SURROUNDINGS, "HOME": str(place), **turn.environment(f"lever-{kind}")}
    done = subprocess.run(
        [*command, *(["--tiny"] if tiny else [])],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=max(rows.left_s(), 1.0),
    )
    (place / "output").write_text(done.stdout, "utf-8")
    return {"code": done.returncode, "said": done.stderr[-400:], "document": document_of(place / "output")}


# --- doctor, top, the driver and the tests ---


def own_rows(rows: Rows, section: str) -> card_rows.Rows:
    return card_rows.Rows(rows.path, section, rows.end_s)


def look_as_doctor(rows: Rows, options: argparse.Namespace) -> None:
    """Twice as a user has it, which starts the frameworks on the card, and without them."""
    own = own_rows(rows, "doctor")
    for item, words in (("whole", ()), ("files", ("--no-frameworks",)), ("again", ())):
        if item == "again" and rows.left_s() < 100:
            continue
        own.run(f"doctor/{item}", partial(card_watch._doctor, *words), 40.0)


def look_at_top(rows: Rows, options: argparse.Namespace) -> None:
    """``top`` and ``nvidia-smi`` at the same moment, under a load and without one; what the driver says of itself."""
    own = own_rows(rows, "top")
    load = [sys.executable, "-c", card_watch.TINY_LOAD if options.tiny else card_watch.LOAD, "30"]
    process = subprocess.Popen(load, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        own.run("driver", driver_says, 8.0)
        card_watch._wait_for(process, 15.0)
        time.sleep(1.0)
        own.run("top/once", lambda: card_watch._once(process.pid), 8.0)
        own.run("top/frame", top_frame, 8.0)
        for item, words in SMI.items():
            own.run(f"smi/{item}", partial(lambda w: {"text": card_watch.smi(*w)[:6000]}, words), 6.0)
    finally:
        card_watch.end_process(process)


SMI = {
    "gpm": ("dmon", "-c", "2", "-d", "1", "--gpm-metrics", "1,2,3,5,10,11,12,13,20,21"),
    "mig profiles": ("mig", "-lgip"),
    "supported clocks": ("--query-supported-clocks=memory,graphics", "--format=csv,noheader"),
}


def top_frame() -> dict[str, Any]:
    words = card_rows.gpuwise("top", "--once", "--json")
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=8, env=card_rows.environment())
    return {"frame": card_watch.last_json(done.stdout), "code": done.returncode}


def driver_says() -> dict[str, Any]:
    """Limits of the clocks by state, counters of the processors, profiles of MIG: what a played driver has to say too."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def asked(name: str, *arguments: Any) -> Any:
        try:
            value = getattr(pynvml, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - an answer too
            return f"{type(error).__name__}: {error}"[:120]
        fields = getattr(value, "_fields_", None)
        return {f[0]: str(getattr(value, f[0])) for f in fields} if fields else value if isinstance(value, int) else str(value)

    states = {
        f"P{state}, clock {clock}": asked("nvmlDeviceGetMinMaxClockOfPState", handle, clock, state)
        for state in range(16)
        for clock in (0, 1, 2, 3)
    }
    told: dict[str, Any] = {"clocks": {k: v for k, v in states.items() if "Error" not in str(v)}}
    told["states"] = asked("nvmlDeviceGetSupportedPerformanceStates", handle)
    told["profiles"] = {n: asked("nvmlDeviceGetGpuInstanceProfileInfo", handle, n, 2) for n in range(12)}
    told["profiles, first version"] = {n: asked("nvmlDeviceGetGpuInstanceProfileInfo", handle, n, 1) for n in range(12)}
    for name in ("nvmlDeviceGetGpcClkMinMaxVfOffset", "nvmlDeviceGetMaxMigDeviceCount", "nvmlGpmQueryIfStreamingEnabled"):
        told[name] = asked(name, handle)
    try:
        told["gpm"] = counters(pynvml, handle)
    except Exception as error:  # noqa: BLE001 - an answer too
        told["gpm"] = f"{type(error).__name__}: {error}"
    return told


def counters(pynvml: Any, handle: Any) -> dict[str, Any]:
    """The metrics of the processors between two samples 0.2 s apart, by number."""
    if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        return {"supported": False}
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        pynvml.nvmlGpmSampleGet(handle, sample)
        time.sleep(0.2)
    told: dict[int, Any] = {}
    for number in range(1, 91):
        # one by one: of several a single unknown one may refuse all
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics, (asked.sample1, asked.sample2) = pynvml.NVML_GPM_METRICS_GET_VERSION, 1, samples
        asked.metrics[0].metricId = number
        try:
            pynvml.nvmlGpmMetricsGet(asked)
        except pynvml.NVMLError as error:
            told[number] = str(error)
            continue
        metric = asked.metrics[0]
        words = (str(getattr(metric.metricInfo, name)) for name, _ in metric.metricInfo._fields_)
        told[number] = [metric.nvmlReturn, metric.value, *words]
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)
    return {"supported": True, "metrics": told}


TESTS = (
    *("tests/machine", "tests/train/hook", "tests/train/profile", "tests/train/levers", "tests/train/run"),
    *("tests/cli/doctor", "tests/cli/top", "tests/cli/profile"),
)
"""What starts scripts, reads the driver or watches the machine."""


def own_tests(rows: Rows, options: argparse.Namespace) -> None:
    paths = [p for p in TESTS if (ROOT / p).exists()][: 1 if options.tiny else None]
    settings = f"addopts=--import-mode=importlib -p no:anyio -n {1 if options.tiny else 14} --dist worksteal --strict-markers"
    words = ["-o", settings, "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-m", "not slow and not thorough"]
    out = rows.path.with_suffix(".tests")
    began = time.monotonic()
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words, *paths], cwd=ROOT, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(max(rows.left_s() - 3, 1.0))
        except subprocess.TimeoutExpired:
            code = foreign_scripts.STOPPED
        finally:
            foreign_scripts.end(process)
    text = out.read_text("utf-8", "replace")
    out.unlink()
    names = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    told = {"code": code, "took_s": time.monotonic() - began, "failed": names[:80], "tail": text[-300:]}
    rows.write("tests", "own", paths=paths, **told, text=text[:60_000])


# --- tunings ---


def tuned(
    script: Mapping[str, Any], tried: Sequence[str], expected: str, given: argparse.Namespace, rows: Rows, tiny: bool
) -> dict[str, Any]:
    """As many minutes of tuning as leave time for the whole processes after it."""
    plain_s = float(json.loads((given.scratch / script["name"] / "plain.json").read_text("utf-8"))["wall_s"])
    minutes = 0.5 if tiny else max((rows.left_s() - 2 * TUNE_PAIRS * (plain_s + 2) - 15) / 60 / 2, 0.5)
    options = argparse.Namespace(
        checkouts=given.checkouts,
        python=given.python,
        scratch=given.scratch.parent / "tune",
        minutes=min(minutes, 1.5),
        pairs=TUNE_PAIRS,
        times=1,
        levers=list(tried),
        limit_s=max(rows.left_s() - 5, 10.0),
    )
    return {"expected": expected, "tried": list(tried), "minutes": options.minutes, **tune_truth.truth_of(script, options)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
