"""Published images a second of networks of timm that nothing was fitted to, beside what gpuwise says of their code.

    python benchmarks/gpu/published.py benchmarks/records/gpu/published_steps.csv [--only WORD ...] > TABLE.md

A step is captured as its authors timed it: in training forward, backward and SGD. ``better`` of two layouts is the faster one,
as its source reports it; ``written`` attention is timm's without fused kernels. Batches that a source doesn't state are its
script's default.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

Step = Callable[[], object]


def make_step(model: str, mode: str, form: str, batch: str, size: str, layout: str, attention: str) -> Step:
    """A forward pass or a training step of a network of timm; all as text, as ``gpuwise fit --set`` hands it over."""
    os.environ["TIMM_FUSED_ATTN"] = "0" if attention == "written" else "1"
    import timm
    import timm.layers
    import torch
    from torch.nn.functional import cross_entropy

    timm.layers.set_fused_attn(attention != "written")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = form == "tf32"
    lies = torch.channels_last if layout == "last" else torch.preserve_format
    dtype = torch.float16 if form == "fp16" else torch.float32
    network = timm.create_model(model, pretrained=False).to("cuda", dtype)
    images = torch.randn(int(batch), 3, int(size), int(size), device="cuda", dtype=dtype).to(memory_format=lies)
    if layout == "last":
        network = network.to(memory_format=lies)
    if mode == "inference":
        network.eval()

        def forward() -> object:
            with torch.no_grad():
                return network(images)

        return forward
    labels = torch.randint(1000, (int(batch),), device="cuda")
    optimizer = torch.optim.SGD(network.train().parameters(), lr=0.01, momentum=0.9)

    def train() -> object:
        optimizer.zero_grad()
        cross_entropy(network(images), labels).backward()
        return optimizer.step()

    return train


def predicted(row: dict[str, str]) -> tuple[float, float, float]:
    """Images a second, and the 80 % interval."""
    from gpuwise import capture
    from gpuwise.facts.hardware.naming import find_accelerator
    from gpuwise.predict.step.capture_time import captured_time

    gpu = find_accelerator(row["gpu"])
    capability = (gpu.compute_capability or "8.0").split(".")
    seconds: list[Any] = []
    for layout in ("first", "last") if row["layout"] == "better" else (row["layout"],):
        words = {"mode": row["mode"], "form": row["format"], "layout": layout, "attention": row["attention"]}
        sizes = {"model": row["model"], "batch": row["batch"], "size": row["size"]}
        made = capture(make_step, keywords={**words, **sizes}, capability=(int(capability[0]), int(capability[1])), n_steps=2)
        seconds.append(captured_time(made, gpu).step_time_s)
    best = min(seconds, key=lambda s: s.expected)
    n = float(row["batch"])
    return n / best.expected, n / best.high, n / best.low


def rows_of(path: Path) -> list[dict[str, str]]:
    """Rows of the table; its first line is a remark."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    print("| network | GPU | pass | format | batch | published | predicted | seconds, predicted / measured | inside |")
    print("|---|---|---|---|---:|---:|---:|---:|---|")
    ratios: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    for row in rows_of(options.table):
        if options.only and not any(w in " ".join(row.values()) for w in options.only):
            continue
        names = f"| {row['model']} | {row['gpu']} | {row['mode']} | {row['format']} | {row['batch']} | {row['images_per_s']} |"
        try:
            per_s, low, high = predicted(row)
        except Exception as error:  # noqa: BLE001 - one network costs no other
            print(f"{names} {type(error).__name__}: {str(error)[:60]} | | |", flush=True)
            continue
        measured = float(row["images_per_s"])
        inside = low <= measured <= high
        ratios[f"{row['source'].split()[0].split('/')[-1]}, {row['mode']}"].append((measured / per_s, inside))
        print(f"{names} {per_s:.0f} | {measured / per_s:.2f} | {'yes' if inside else 'no'} |", flush=True)
    print("\n| rows | n | median ratio | median error | inside |\n|---|---:|---:|---:|---:|")
    for name, each in [*ratios.items(), ("all", [r for group in ratios.values() for r in group])]:
        if each:
            errors = [abs(r - 1.0) for r, _ in each]
            share = sum(i for _, i in each) / len(each)
            print(f"| {name} | {len(each)} | {median(r for r, _ in each):.2f} | {100 * median(errors):.1f} % | {share:.0%} |")


if __name__ == "__main__":
    main()
