"""Times of a token at many sequences, published by ML.ENERGY, beside a step of the engine.

``PYTHONPATH=. python benchmarks/serving/token_times.py`` asks for the steps of ``energy_runs.csv``: ML.ENERGY's benchmark v3
(github.com/ml-energy/leaderboard@0cd52da, public/data/tasks), vLLM's server of late 2025 with as many requests in flight as
``most``; the mean number in a step, the median time between tokens, and what all GPUs draw. A step of the middle token has no
prompt in it where fewer than a third of the steps have one: the others are left out. Prompts' lengths are not published: 250
tokens of chat and 600 of code are taken.

Prints predicted over published time by device, kind and sequences; ``--data FOLDER`` solves for what a step, a sequence and,
beyond what is taken, a sorted logit cost vLLM before 0.14, of four dense models on H100 and of the loads in the folder, which
weigh alike.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from ratios import print_errors

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.naming import USUAL, find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.simulate import Server

F64 = NDArray[np.float64]
RUNS = Path(__file__).with_name("energy_runs.csv")
VERSION = "0.11.1"
GPUS = {"h100": "H100-SXM", "b200": "B200"}
PROMPT = {"lm-arena-chat": 250, "sourcegraph-fim": 600}
MOST_PROMPTS = 0.35
"""Of steps that begin a prompt."""
LEARNT = ("llama-3.1-8b", "qwen3-14b", "gemma-3-27b", "llama-3.3-70b")
"""On H100; all others are kept from the fit."""
UNSEEN = ("-instruct", "-2507", "-thinking", "-fp8", "-it")
"""Parts of published names that the catalogue's names lack."""


@dataclass(frozen=True)
class Row:
    """``rest_s`` is the predicted step without what it and its sequences cost the host."""

    model: str
    gpu: str
    gpus: int
    experts: bool
    sequences: float
    logits: float
    """Sorted in a step."""
    rest_s: float
    published_s: float

    def ratio(self, iteration_s: float, sequence_s: float) -> float:
        """Predicted over published."""
        return (self.rest_s + iteration_s + sequence_s * self.sequences) / self.published_s


def costs() -> dict[str, float]:
    """Those of :data:`VERSION`."""
    entry = next(e for e in load_json("load")["engines"] if (e["engine"], e["since"]) == ("vllm", "0.8"))
    found: dict[str, float] = entry["costs"]
    return found


def read() -> list[Row]:
    """Runs of models of the catalogue without data parallelism and with a step that has no prompt in the middle."""
    known, found = costs(), list[Row]()
    for row in csv.DictReader(RUNS.open()):
        sequences, output, n = float(row["sequences"]), float(row["output_mean"]), int(row["gpus"])
        if row["weights"] == "mxfp4" or row["dp"] != "1" or sequences / output > MOST_PROMPTS:
            continue
        name = row["model"].split("/")[1].lower()
        for part in UNSEEN:
            name = name.replace(part, "")
        try:
            arch = find_model(name)
            moe, ep = arch.moe is not None, int(row["ep"])
            # Qwen's and DeepSeek's checkpoints in 8 bits scale blocks of 128 x 128, Meta's channels
            weights = (
                "fp8_block" if row["weights"] == "fp8" and arch.family != "llama" and "llama" not in arch.id else row["weights"]
            )
            split = EngineConfig("vllm", weights, tp=n, moe_tp=n // ep if moe else 1, moe_ep=ep if moe else 1, version=VERSION)
            # VLLM_USE_FLASHINFER_MOE_FP8 (ml-energy/benchmark configs/vllm, deepseek-ai, B200, monolithic.env.yaml)
            config = replace(split, experts="flashinfer") if "deepseek" in name and row["gpu"] == "b200" else split
            system = find_cluster(f"{n}x{GPUS[row['gpu']]}", prefer=USUAL).system
            context = PROMPT[row["task"]] + int(output / 2)
            steps = Server(arch, system, config, Settings(max_num_seqs=max(int(row["most"]), 8))).steps(context)
        except GpuwiseError:
            continue
        b = min(max(round(sequences), 1), len(steps.fixed) - 1)
        rest = steps.fixed[b] + steps.slope[b] * b * context - known["iteration_s"] - known["sequence_s"] * b
        found.append(Row(arch.id, row["gpu"], n, moe, sequences, sequences * arch.vocab, rest, float(row["itl_median_ms"]) / 1e3))
    return found


def solved(rows: list[Row], folder: Path) -> tuple[float, ...]:
    """Seconds of a step, of a sequence in it and of a logit. The loads' version sorted none."""
    from gpuwise.calibrate.serving.load import read_load_runs
    from gpuwise.calibrate.serving.load_score import since_index
    from studies.serving.step_fit import stages_of

    known = costs()
    shared = np.array([known[n] for n in ("kernel_slowdown", "communication_slowdown", "layer_s", "experts_layer_s")])
    loads = [s for r in read_load_runs(folder) if not r.reason and since_index(r) == 0 for s in stages_of(r)]
    mine = [r for r in rows if r.gpu == "h100" and r.model in LEARNT]
    count = Counter((r.model, r.gpus) for r in mine)
    weight = np.array([count[r.model, r.gpus] ** -0.5 for r in mine])
    weights = np.concatenate([weight / math.sqrt(float((weight**2).sum())), np.full(len(loads), len(loads) ** -0.5)])
    rest = np.array([r.rest_s for r in mine] + [s.beside_s + float(s.parts[:4] @ shared) for s in loads])
    held = np.array([r.sequences for r in mine] + [float(s.parts[5]) for s in loads])
    published = np.array([r.published_s for r in mine] + [s.tpot_s for s in loads])
    mega = np.concatenate([np.array([r.logits for r in mine]), np.zeros(len(loads))]) / 1e6
    # relative errors are linear in the costs
    left = np.stack([np.ones_like(rest), held, mega], axis=1) / published[:, None] * weights[:, None]
    found, *_ = np.linalg.lstsq(left, (1.0 - rest / published) * weights, rcond=None)
    return float(found[0]), float(found[1]), float(found[2]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="solve, with the loads of this folder")
    parser.add_argument("--costs", default="", help="microseconds of a step and of a sequence: 404,19.7")
    parsed = parser.parse_args()
    rows, known = read(), costs()
    if parsed.data is not None:
        step_s, each_s, logit_s = solved(rows, parsed.data)
        print(f"a step {1e6 * step_s:.0f} us, a sequence {1e6 * each_s:.1f} us, a logit {1e9 * logit_s:+.3f} ns")
        return
    step_s, each_s = (
        (float(x) / 1e6 for x in parsed.costs.split(",")) if parsed.costs else (known["iteration_s"], known["sequence_s"])
    )
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        kind = "experts" if row.experts else "dense"
        size = next(f"to {b} sequences" for b in (16, 64, 256, 4096) if row.sequences <= b)
        learnt = "fit" if row.gpu == "h100" and row.model in LEARNT else "check"
        for group in (f"{row.gpu} {kind} {learnt}", f"{row.gpu} {kind} {size}"):
            groups[group].append(row.ratio(step_s, each_s))
    print_errors(groups)


if __name__ == "__main__":
    main()
