"""The same questions, with published answers, asked of gpuwise and of other tools, each in an environment of its own.

    python benchmarks/peers/compare.py install PEERS [--calculon CHECKOUT]     once; PEERS is a folder
    python benchmarks/peers/compare.py ask PEERS > benchmarks/records/peers_DATE.md
    python benchmarks/peers/compare.py page benchmarks/records/peers_DATE.md docs/index.md

``questions.toml`` has the questions. A peer's adapter makes its own call of one and returns the figure, or raises why it cannot.
Peers with a choice that the question leaves open have their default. Calculon is in no registry: name a checkout of it.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = {
    "llmfit": "llmfit",
    "aiconfigurator": "aiconfigurator",
    "llm-analysis": "llm-analysis",
    "genz-llm": "genz-llm",
    "hf-vram-calc": "hf-vram-calc",
    "vramcalc": "vramcalc",
    "ridgepoint": "ridgepoint",
    "whichllm": "whichllm",
    "hf-mem": "hf-mem",
    "accelerate": "accelerate",
    "calculon": "pandas psutil",  # what its checkout imports
}
"""Name of a peer, and of its package on PyPI."""
PATIENCE_S = 300
NOT_ASKED = "not asked of it"
FULL = 2
"""llm-analysis's number of full recompute."""
BEGIN, END = "<!-- peers: python benchmarks/peers/compare.py page -->", "<!-- end of peers -->"
Question = Mapping[str, Any]


class Cannot(Exception):
    """Why a peer has no answer to a question."""


def run(words: list[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Standard output of a command. Raises Cannot with the last line of its errors."""
    try:
        ran = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=cwd,
            env={**os.environ, "COLUMNS": "200", **(env or {})},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Cannot(f"did not run: {type(error).__name__}") from None
    if ran.returncode:
        lines = [line for line in (ran.stderr or ran.stdout).splitlines() if line.strip() and "GLIBC" not in line]
        raise Cannot(lines[-1][:120] if lines else f"exit code {ran.returncode}")
    return ran.stdout


def config(q: Question, folder: Path) -> Path:
    """A Hugging Face config.json of the question's dimensions, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"hidden_size": q["hidden"], "num_hidden_layers": q["layers"], "num_attention_heads": q["heads"]}
    sizes |= {"num_key_value_heads": q["kv_heads"], "intermediate_size": q["ffn"], "vocab_size": q["vocab"]}
    rest = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "tie_word_embeddings": False}
    rest |= {"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    (folder / "config.json").write_text(json.dumps(sizes | rest))
    return folder


@dataclass(frozen=True)
class Peers:
    """The folder with an environment for each peer."""

    folder: Path

    def program(self, peer: str, name: str) -> str:
        path = self.folder / peer / "bin" / name
        if not path.is_file():
            raise Cannot("not installed")
        return str(path)

    def llmfit(self, q: Question) -> float:
        if q["kind"] != "decode":
            raise Cannot(NOT_ASKED)
        hardware = {"total_ram_gb": float(q["memory_gb"]), "unified_memory": q.get("unified", False)}
        hardware |= {"gpu_memory_bandwidth_gbps": q["bandwidth_gb_s"]}
        profile = self.folder / "profile.json"
        profile.write_text(json.dumps({"schema_version": 1, "name": "profile", "hardware": hardware}))
        words = [self.program("llmfit", "llmfit"), "--json", "--profile", str(profile), "plan", q["model"]]
        out = run([*words, "--context", str(q["context"]), "--quant", q["weights"]])
        return next(p["estimated_tps"] for p in json.loads(out)["run_paths"] if p["path"] == "gpu")

    def aiconfigurator(self, q: Question) -> float:
        if q["kind"] != "token_time":
            raise Cannot(NOT_ASKED)
        given = {"backend_name": q["engine"], "isl": q["prompt"], "osl": q["answer"], "batch_size": q["users"]}
        given |= {"tp_size": q.get("tp", 1), "gemm_quant_mode": q["gemm"], "mode": "agg"}
        code = (
            "import json,logging,sys; logging.disable(logging.CRITICAL)\n"
            "from aiconfigurator.cli.api import cli_estimate\n"
            "m, s, given = json.loads(sys.argv[1]); print(cli_estimate(m, s, **given).tpot)"
        )
        words = [self.program("aiconfigurator", "python"), "-c", code, json.dumps([q["model"], q["system"], given])]
        return float(run(words).split()[-1])

    def genz(self, q: Question) -> float:
        if q["kind"] != "token_time":
            raise Cannot(NOT_ASKED)
        given = {"model": q["genz_model"], "batch_size": q["users"], "input_tokens": q["prompt"], "output_tokens": q["answer"]}
        given |= {"Bb": 1, "system_name": "H200_GPU", "bits": "int8", "tensor_parallel": q.get("tp", 1)}
        code = (
            "import json,sys\nfrom GenZ import decode_moddeling\n"
            "g = json.loads(sys.argv[1]); g['system_name'] = {'Flops': 1979, 'Memory_size': 141, 'Memory_BW': 4800, 'ICN': 450,"
            " 'real_values': True}\n"
            "print(float(decode_moddeling(**g)['Latency']))"
        )
        return float(run([self.program("genz-llm", "python"), "-c", code, json.dumps(given)]).split()[-1])

    def analysis(self, q: Question) -> float:
        if q["kind"] not in ("gpu_hours", "step_time"):
            raise Cannot(NOT_ASKED)
        words = [self.program("llm-analysis", "python"), "-m", "llm_analysis.analysis", "train"]
        out = self.folder / "llm-analysis-out"
        given = {"model_name": q["analysis_model"], "gpu_name": "a100-sxm-80gb", "output_dir": str(out), "batch_size_per_gpu": 1}
        if q["kind"] == "gpu_hours":
            tp = q.get("tp", 1)
            given |= {
                "dp_size": q["gpus"] // tp,
                "tp_size": tp,
                "sp_size": tp,
                "ds_zero": 3,
                "activation_recomputation": 1,
                "seq_len": q["context"],
            }
            given |= {"global_batch_size": q["global_batch"], "total_num_tokens": q["tokens"]}
        else:
            given |= {"tp_size": 8, "pp_size": 8, "dp_size": 1, "seq_len": 2048, "global_batch_size": 64, "total_num_tokens": 1e9}
            selective = q["recompute"] == "selective"
            given |= {"activation_recomputation": 1 if selective else FULL, "sp_size": 8 if selective else 1}
        text = run([*words, *(f"--{k}={v}" for k, v in given.items())])
        text += "".join(p.read_text() for p in sorted(out.glob("*summary.json"), key=lambda p: p.stat().st_mtime)[-1:])
        name = "gpu_hours" if q["kind"] == "gpu_hours" else "latency_per_iter"
        return float(re.findall(rf'"{name}": ([0-9.e+]+)', text)[-1])

    def calculon(self, q: Question) -> float:
        if q["kind"] != "step_time":
            raise Cannot(NOT_ASKED)
        checkout = self.folder / "calculon" / "checkout"
        program, run_file = (
            checkout / "bin" / "calculon",
            checkout / "validation" / "seqsel" / "tab5" / f"{q['calculon_run']}.json",
        )
        out = self.folder / "calculon.json"
        words = [
            self.program("calculon", "python"),
            str(program),
            "llm",
            str(checkout / "models" / f"{q['calculon_model']}.json"),
        ]
        system = checkout / "systems" / "a100_80e.json"
        run([*words, str(run_file), str(system), str(out)], cwd=checkout, env={"PYTHONPATH": str(checkout)})
        return float(json.loads(out.read_text())["total_time"])

    def hf_vram_calc(self, q: Question) -> float:
        if q["kind"] != "train_memory":
            raise Cannot(NOT_ASKED)
        if "special" in q:
            raise Cannot(f"no option for {q['special']}")
        out = self.folder / "hf-vram-calc.json"
        words = [
            self.program("hf-vram-calc", "hf-vram-calc"),
            "--model",
            "asked",
            "--model_path",
            str(config(q, self.folder / "asked")),
        ]
        words += ["--dtype", "bf16", "--max_batch_size", str(q["micro_batch"]), "--max_seq_len", str(q["context"])]
        run([*words, "--lora_rank", str(q["lora_rank"] or 64), "--output_json", str(out)])
        [found] = json.loads(out.read_text())["memory_requirements"]
        return found["lora_size_gib" if q["lora_rank"] else "training_gib"] * 2**30 / 1e9

    def vramcalc(self, q: Question) -> float:
        if q["kind"] != "train_memory":
            raise Cannot(NOT_ASKED)
        if "special" in q:
            raise Cannot(f"no option for {q['special']}")
        words = [
            self.program("vramcalc", "vramcalc"),
            "estimate",
            str(config(q, self.folder / "asked")),
            "--json",
            "--grad-checkpoint",
        ]
        words += [
            "--precision",
            "pure",
            "--batch",
            str(q["micro_batch"]),
            "--seq",
            str(q["context"]),
            "--lora",
            str(q["lora_rank"]),
            "--train",
        ]
        return json.loads(run(words))["estimate"]["total"] / 1e9

    def ridgepoint(self, q: Question) -> float:
        if q["kind"] != "kv_tokens":
            raise Cannot(NOT_ASKED)
        words = [self.program("ridgepoint", "ridgepoint"), "fit", q["ridgepoint_model"], "--gpu", q["ridgepoint_gpu"]]
        found = json.loads(run([*words, "--engine", "vllm", "--ctx", str(q["context"]), "--json"]))
        per_token = found["capacity"]["bytes_per_seq"] / found["capacity"]["ctx"]
        return found["memory"]["kv_pool_bytes"]["best"] / per_token

    def gpuwise(self, q: Question) -> float:
        ran = subprocess.run(
            [sys.executable, "-m", "gpuwise", *shlex.split(q["gpuwise"]), "--json"], capture_output=True, text=True
        )  # the exit code of `fit` is the answer, not a failure
        if not ran.stdout.strip():
            raise Cannot(ran.stderr.strip().splitlines()[-1])
        document = json.loads(ran.stdout.splitlines()[-1])
        if "error" in document:
            raise Cannot(document["error"])
        found = [*values(document, q["at"].split("."))]
        if not found:
            raise Cannot(f"no {q['at']}")
        return float(found[0]) * q.get("factor", 1.0)


def values(document: Any, path: list[str]) -> Any:
    """What stands at a dotted path; ``*`` is any way down."""
    if not path:
        yield document
    elif path[0] == "*":
        yield from values(document, path[1:])
        for item in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
            yield from values(item, path)
    elif isinstance(document, list) and path[0].isdigit():
        yield from values(document[int(path[0])], path[1:])
    elif isinstance(document, dict) and path[0] in document:
        yield from values(document[path[0]], path[1:])


ADAPTERS: Mapping[str, Callable[[Peers, Question], float]] = {
    "gpuwise": Peers.gpuwise,
    "llmfit": Peers.llmfit,
    "aiconfigurator": Peers.aiconfigurator,
    "genz-llm": Peers.genz,
    "llm-analysis": Peers.analysis,
    "calculon": Peers.calculon,
    "hf-vram-calc": Peers.hf_vram_calc,
    "vramcalc": Peers.vramcalc,
    "ridgepoint": Peers.ridgepoint,
}
ABSENT = {
    "hf-mem": "not asked: it reads models from the Hub, which the machine of this run does not reach",
    "accelerate estimate-memory": "not asked: it reads models from the Hub, as above",
    "whichllm": "does not start as installed that day (`click_type` of typer); ranks models for the machine it runs on",
    "llm-checker": "not asked: it ranks models for a machine",
    "nvitop": "not asked: it watches GPUs",
    "aisimulate": "its package downloads itself from another index, which the machine of this run does not reach",
}
"""Peers without a figure to compare, and why."""


KINDS = {
    "decode": "tokens/s of one user at home",
    "train_memory": "memory of a fine-tuning",
    "kv_tokens": "the cache of a server",
    "token_time": "token times under load",
    "step_time": "a step of a training on many GPUs",
    "gpu_hours": "the hours of a whole training",
}
NOTES = (
    "gpuwise's coefficients were fitted on other rows of some of these sources (llama.cpp's table, InferenceX), and its "
    "answers to the questions of memory were known when they were chosen. aiconfigurator ships InferenceX's table. "
    "Calculon's efficiencies were set on the paper whose steps are asked.",
    "llm-analysis has its default efficiency, 1. With the share of the peak that is reached, which one has to know, it is nearer "
    "(0.5: Llama 2 7B -7 %).",
    "GenZ counts kernels without an engine around them.",
    "llmfit and whichllm also rank models by how good they are; that is not asked here.",
)


def ask(folder: Path) -> str:
    """The record: a table of errors, what each cannot answer, and the versions."""
    questions = tomllib.loads(Path(__file__).with_name("questions.toml").read_text())["question"]
    peers = Peers(folder)
    found: dict[tuple[str, str], float | str] = {}
    for q in questions:
        for name, adapter in ADAPTERS.items():
            try:
                found[q["id"], name] = adapter(peers, q)
            except Cannot as reason:
                found[q["id"], name] = str(reason)
            except Exception as error:  # noqa: BLE001  whatever a peer's answer looks like is its answer
                found[q["id"], name] = f"{type(error).__name__}: {error}"[:120]
            print(f"{q['id']}: {name}: {found[q['id'], name]}", file=sys.stderr)
    lines = [
        f"# Other tools on the same questions, {datetime.date.today().isoformat()}",
        "",
        "`python benchmarks/peers/compare.py ask PEERS`",
        "",
    ]
    lines += ["| question | published | gpuwise | others | nearest |", "|---|---:|---:|---|---|"]
    for q in questions:
        errors = {n: v / q["measured"] - 1.0 for n in ADAPTERS if isinstance(v := found[q["id"], n], float)}
        shown = {n: f"{100.0 * e:+.0f} %" for n, e in errors.items()}
        nearest = min(errors, key=lambda n: abs(errors[n])) if len(errors) > 1 else "gpuwise alone"
        others = ", ".join(f"{n} {e}" for n, e in shown.items() if n != "gpuwise") or "no answer"
        lines.append(
            f"| {q['id']} | {q['measured']:,} {q['unit']} | {shown.get('gpuwise', 'no answer')} | {others} | {nearest} |"
        )
    kinds = dict.fromkeys(q["kind"] for q in questions)
    lines += ["", "| tool | answers here | no answer here |", "|---|---|---|"]
    for name in ADAPTERS:
        answered = {k for k in kinds if any(isinstance(found[q["id"], name], float) for q in questions if q["kind"] == k)}
        yes, no = ([KINDS[k] for k in kinds if (k in answered) is wanted] for wanted in (True, False))
        lines.append(f"| {name} | {', '.join(yes) or 'nothing'} | {', '.join(no) or 'nothing'} |")
    lines += [f"| {name} | nothing | all: {why} |" for name, why in ABSENT.items()]
    lines += ["", "## Notes", "", *(f"- {note}" for note in NOTES)]
    lines += [f"- {n}, {i}: {v}" for (i, n), v in found.items() if isinstance(v, str) and v != NOT_ASKED]
    lines += ["", "## The questions", ""]
    lines += [f"- **{q['id']}**: {q['text']} ({q['source']}). `gpuwise {q['gpuwise']}`" for q in questions]
    lines += ["", "## Versions", "", *versions(folder)]
    return "\n".join(lines)


def versions(folder: Path) -> list[str]:
    """A line for each peer."""
    lines = [f"- gpuwise {run([sys.executable, '-m', 'gpuwise', '--version']).split()[-1]}"]
    for peer, package in PACKAGES.items():
        python = folder / peer / "bin" / "python"
        if peer == "calculon" and (folder / peer / "checkout").is_dir():
            lines.append("- calculon caa4b11")
        elif python.is_file():
            code = f"import importlib.metadata as m; print(m.version({package!r}))"
            lines.append(f"- {peer} {run([str(python), '-c', code]).strip()}")
    return lines


def install(folder: Path, calculon: Path | None) -> None:
    """An environment for each peer; one that does not install is reported and left out."""
    for peer, package in PACKAGES.items():
        venv.create(folder / peer, with_pip=True)
        try:
            run([str(folder / peer / "bin" / "pip"), "install", "--quiet", *package.split()])
        except Cannot as reason:
            print(f"{peer}: {reason}", file=sys.stderr)
    if calculon is not None:
        (folder / "calculon" / "checkout").symlink_to(calculon.resolve())


def page(record: Path, target: Path) -> None:
    """Write the record's table between the marks of ``target``."""
    text = target.read_text()
    _, mark, rest = record.read_text().partition("| question")
    table = mark + rest.partition("## Notes")[0].rstrip()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    target.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


def main() -> None:
    match sys.argv[1:]:
        case ["install", folder]:
            install(Path(folder), None)
        case ["install", folder, "--calculon", checkout]:
            install(Path(folder), Path(checkout))
        case ["ask", folder]:
            print(ask(Path(folder)))
        case ["page", record, target]:
            page(Path(record), Path(target))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
