"""llama.cpp's own figures of local machines, asked of its model here: ``python benchmarks/serving/local.py``.

``local_runs.csv`` holds one model on one device a line with its source: tokens of a prompt a second, in batches of ``batch``
(``n_ubatch``), and tokens written a second after it, of one sequence whose cache holds ``depth`` tokens before.

Prints every run, then median and mean error by device family.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

from ratios import print_errors

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.streams import prompt_time, token_time

RUNS = Path(__file__).with_name("local_runs.csv")
WRITTEN = 128
"""Tokens that llama-bench writes."""


def figures(row: dict[str, str]) -> list[tuple[str, float, float]]:
    """(figure, published, predicted) seconds of a token."""
    arch, device = find_model(row["model"]), find_accelerator(row["gpu"])
    prompt, depth = int(row["prompt"]), int(row["depth"])
    form, batch = load_json("single_stream")["form"], int(row["batch"])
    seconds = prompt_time(form, arch, device, row["weights"], batch=batch)(prompt, depth) / prompt
    before = depth or (0 if prompt <= 2048 else prompt)  # llama-bench writes into a cache of its own
    token = token_time(arch, device, row["weights"], context=before + WRITTEN / 2).expected
    return [("prompt", 1.0 / float(row["prompt_per_s"]), seconds), ("written", 1.0 / float(row["written_per_s"]), token)]


def main() -> None:
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    with RUNS.open() as file:
        for row in csv.DictReader(file):
            found = figures(row)
            words = "; ".join(f"{name} {1 / p:.4g} {1 / q:.4g} tokens/s ({q / p:.2f})" for name, p, q in found)
            print(f"{row['model']} {row['weights']} {row['gpu']} {row['prompt']}@{row['depth']}: {words}")
            for name, p, q in found:
                for group in ("all", row["gpu"].split("-")[0]):
                    ratios[(name, group)].append(q / p)
    print_errors(ratios)


if __name__ == "__main__":
    main()
