"""What watching a training loop costs, as a ratio in one run: blocks of watched and of unwatched steps take turns.

    python benchmarks/watch_overhead.py [--seconds 30]

Each pair of blocks gives a ratio; pairs whose order changes from one to the next cancel drift. The loop is the worst for a watch:
small, on a processor, with a loader. Nothing but the watch differs: its tick does what a watched child's does (a journal). Times
are of the loop's own thread on the processor, which waiting for others does not move.

Beside the ratios, two figures that a busy machine moves less: what the watch adds to a step in microseconds, from a loop with
next to no work in its steps, and the length of a step from which that is 1 %; and how many calls of Python functions of
gpuwise a step makes, which is the same on every machine. Takes about 75 seconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpuwise.train.hook.journal import Writer
from gpuwise.train.hook.watch import Watch

BLOCK = 12
TINY, TINY_BLOCK = 8, 200
"""Width of layers whose step is next to nothing, and steps of a block of them."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0, help="for each width")
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        tiny = Loop(TINY, TINY_BLOCK, journal)
        pairs = taken(tiny, seconds / 3)
        added = sorted((a - b) / TINY_BLOCK for a, b in pairs)
        middle, low, high = (1e6 * added[len(added) * k // 4] for k in (2, 1, 3))
        print(
            f"The watch adds {middle:.1f} us to a step (middle half of {len(added)} pairs: {low:.1f} to {high:.1f}), in "
            f"{tiny.calls():.1f} calls of its functions; that is 1 % of a step of {middle / 10:.2f} ms."
        )
        tiny.close()
        print("\n| width | step, median | ratios | median ratio | of the calm half |")
        print("|---|---|---|---|---|")
        for width in (128, 512):
            loop = Loop(width, BLOCK, journal)
            show(width, taken(loop, seconds))
            loop.close()


class Loop:
    """Steps of one model, watched or not."""

    def __init__(self, width: int, steps: int, journal: Path) -> None:
        self._steps = steps
        self._model = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._loader = DataLoader(TensorDataset(torch.randn(steps * 4, 16, width)), 4)
        self._writer = Writer(journal)

    def close(self) -> None:
        """The journal."""
        self._writer.close()

    def _block(self) -> float:
        began = time.thread_time()
        for (x,) in self._loader:
            self._model(x).square().mean().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        return time.thread_time() - began

    def _under_watch(self, measure: Callable[[], Any]) -> Any:
        writer = self._writer
        watch = Watch(on_tick=writer.tick, tell=writer.event, losses=lambda losses: writer.event("losses", losses=losses))
        watch.open()
        # outermost modules are looked for in the first steps only
        self._block()
        try:
            return measure()
        finally:
            watch.close()

    def watched(self) -> float:
        """Seconds of a block."""
        return float(self._under_watch(self._block))

    def plain(self) -> float:
        """The same without the watch."""
        self._block()
        return self._block()

    def calls(self) -> float:
        """Calls of Python functions of gpuwise a step."""
        seen = [0]

        def count(frame: FrameType, event: str, _: object) -> None:
            seen[0] += event == "call" and "/gpuwise/" in frame.f_code.co_filename

        def counted() -> None:
            sys.setprofile(count)
            try:
                self._block()
            finally:
                sys.setprofile(None)

        self._under_watch(counted)
        return seen[0] / self._steps


def taken(loop: Loop, seconds: float) -> list[tuple[float, float]]:
    """Pairs of blocks, watched and not, for so long."""
    loop.plain()
    pairs: list[tuple[float, float]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(pairs) < 6:
        if len(pairs) % 2:
            pairs.append((loop.watched(), loop.plain()))
        else:
            b = loop.plain()
            pairs.append((loop.watched(), b))
    return pairs


def show(width: int, pairs: list[tuple[float, float]]) -> None:
    """One row."""
    ratios = [a / b for a, b in pairs]
    calm = sorted(pairs, key=sum)[: max(len(pairs) // 2, 1)]
    print(
        f"| {width} | {1e3 * statistics.median(b for _, b in pairs) / BLOCK:.2f} ms | {len(ratios)} | "
        f"{statistics.median(ratios):.4f} | {statistics.median(a / b for a, b in calm):.4f} |"
    )


if __name__ == "__main__":
    main()
