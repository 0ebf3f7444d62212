"""Events a second of CPU of the simulated caching allocator: transformer steps, the same with expandable segments, random sizes.

Transformer steps repeat, and all but the first few are copied; "every event run" is without that. Beside each figure is
what a bare Python loop does in the same process, as shared machines differ from hour to hour:

    python benchmarks/allocator_speed.py [MILLIONS_OF_EVENTS]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from gpuwise.predict.memory.allocator import loop as allocator_loop
from gpuwise.predict.memory.allocator.simulation import AllocatorSettings, simulate


def transformer_steps(events: int, layers: int = 32) -> tuple[list[int], list[int], list[int]]:
    """Forward and backward of a transformer's blocks over and over: 8 activations and 8 temporaries a block."""
    storage, sign, size = [], [], []

    def new(bytes_: int) -> int:
        size.append(bytes_)
        storage.append(len(size) - 1)
        sign.append(1)
        return len(size) - 1

    def free(s: int) -> None:
        storage.append(s)
        sign.append(-1)

    hidden, wide, rows = 1024, 4096, 8192
    for _ in range(layers):
        for n in (3 * hidden * hidden, hidden * hidden, hidden * wide, wide * hidden, hidden, hidden):
            new(4 * n)
    while len(storage) < events:
        saved = []
        for _ in range(layers):
            kept = []
            for n in (hidden, 3 * hidden, hidden, 16, hidden, wide, wide, hidden):
                kept.append(new(2 * rows * n))
                free(new(rows * n + 640))
            saved.append(kept)
        grad = new(2 * rows * hidden)
        for kept in reversed(saved):
            for s in reversed(kept):
                after, temporary = new(2 * rows * hidden), new(2 * rows * wide)
                free(grad)
                free(s)
                free(temporary)
                grad = after
        free(grad)
    return storage, sign, size


def random_events(events: int) -> tuple[list[int], list[int], list[int]]:
    """Sizes from 32 B to 64 MiB, log-uniform, about 300 alive, freed in any order."""
    rng = np.random.default_rng(1)
    storage, sign, live, count = [], [], list[int](), 0
    coins = rng.random(2 * events)
    for coin in coins.tolist():
        if live and (len(live) > 300 or coin < 0.5):
            i = int(coin * 1e9) % len(live)
            live[i], live[-1] = live[-1], live[i]
            storage.append(live.pop())
            sign.append(-1)
        else:
            live.append(count)
            storage.append(count)
            sign.append(1)
            count += 1
        if len(storage) >= events:
            break
    return storage, sign, np.exp2(rng.uniform(5, 26, count)).astype(np.int64).tolist()


def bare_loop() -> float:
    """Iterations a second of a loop that adds and writes a dictionary."""
    seen: dict[int, int] = {}
    numbers = list(range(1_000_000))
    start = time.process_time()
    for x in numbers:
        y = x + 1
        seen[x & 1023] = y
    return len(numbers) / (time.process_time() - start)


def main() -> None:
    events = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 500_000
    steps = transformer_steps(events)
    cases = [
        ("transformer steps", steps, "", True),
        ("transformer steps, every event run", steps, "", False),
        ("the same, expandable segments", steps, "expandable_segments:True", True),
        ("the same, every event run", steps, "expandable_segments:True", False),
        ("transformer steps, max_split_size", steps, "max_split_size_mb:128", True),
        ("the same, every event run", steps, "max_split_size_mb:128", False),
        ("random sizes", random_events(events), "", True),
    ]
    find = allocator_loop.find_repeats
    for name, (storage, sign, size), conf, repeats in cases:
        arrays = [np.array(values, dtype=np.int64) for values in (storage, sign, size)]
        settings = AllocatorSettings.parse(conf)
        allocator_loop.find_repeats = find if repeats else lambda codes: ()
        best = 0.0
        for _ in range(3):
            start = time.process_time()
            run = simulate(*arrays, settings=settings)
            best = max(best, run.n_events / (time.process_time() - start))
        bare = bare_loop()
        print(f"{name:40} {best / 1e6:6.2f} M events/s of CPU; a bare loop {bare / 1e6:.2f} M/s; {best / bare:.2f} of it")


if __name__ == "__main__":
    main()
