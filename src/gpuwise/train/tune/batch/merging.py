"""The gain of larger micro-batches at the same global batch, and the lines of the script to change."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.files import read_text
from gpuwise.train.tune.batch.probe import Prober


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """``n_batches`` of the script's batches as one, so that ``accumulation`` are left of its ``was``."""

    batch: int
    accumulation: int
    was: int
    ratio: float | None
    """Ratio of rates to the script's own batch; None if neither fits or nothing was measured."""
    lines: tuple[str, ...] = ()
    """Lines of the script, as ``file:line: code``, and their replacements."""


def divisors_below(n: int) -> list[int]:
    """Those of ``n`` that are not 1, the largest first."""
    return [d for d in range(n, 1, -1) if n % d == 0]


def merge(
    prober: Prober, own: int, accumulation: int, largest: int, lines: Callable[[int, int], tuple[str, ...]]
) -> MergedBatch | None:
    """The largest batch that fits and leaves the global batch as it is; None where the script does not accumulate, or no such
    batch fits. Raises CannotError."""
    for times in divisors_below(accumulation):
        if own * times > largest:
            continue
        before, after = prober.probe({"batch": own}), prober.probe({"batch": own * times})
        if not after.fits:
            continue
        n_steps = accumulation // times
        ratio = None
        if before.rate and after.rate:
            # the run that measured it still steps every `accumulation` batches: seconds a sample, with the optimizer's paid
            # as often as once in the global batch
            optimizer_s = after.optimizer_share / after.rate
            ratio = 1.0 / before.rate / ((1.0 - after.optimizer_share) / after.rate + optimizer_s * times)
        return MergedBatch(own * times, n_steps, accumulation, ratio, lines(own * times, n_steps))
    return None


def lines_of(script: Path, batch: int, accumulation: int) -> tuple[str, ...]:
    """Lines where the script creates its first loader and counts its batches; empty if unreadable."""
    try:
        source = read_text(script)
        tree = ast.parse(source)
    except (InputError, SyntaxError, ValueError):
        return ()
    text = source.splitlines()
    texts: list[str] = []
    loader = next((n for n in calls_of(tree) if name_of(n) == "DataLoader"), None)
    if loader is not None:
        argument = next((k.value for k in loader.keywords if k.arg == "batch_size"), loader)
        texts.append(f"{script.name}:{argument.lineno}: {text[argument.lineno - 1].strip()}  ->  batch_size={batch}")
    for node in ast.walk(tree):
        counts = isinstance(node, ast.If) and any(isinstance(n, ast.Mod) for n in ast.walk(node.test))
        if isinstance(node, ast.If) and counts and any(name_of(c) == "step" for c in calls_of(node)):
            texts.append(f"{script.name}:{node.lineno}: {text[node.lineno - 1].strip()}  ->  a step every {accumulation}")
    return tuple(texts)


def calls_of(tree: ast.AST) -> list[ast.Call]:
    """In the order of their lines."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    return sorted(calls, key=lambda n: (n.lineno, n.col_offset))


def name_of(call: ast.Call) -> str | None:
    """``step`` of ``optimizer.step()``."""
    return getattr(call.func, "attr", getattr(call.func, "id", None))
