"""How many passes over its data a loop makes, read from its source while it runs."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwise.train.hook.totals import find_epochs

FUNCTION = """
def train(loader, seen):
    for batch in loader:
        seen()
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for batch in loader:\n    seen()\n", 1),
        ("for epoch in range(3):\n    for batch in loader:\n        seen()\n", 3),
        ("for epoch in range(1, args.epochs + 1):\n    train(loader, seen)\n", 7),
        ("for epoch in tqdm(range(config['epochs'])):\n    for i, batch in enumerate(loader):\n        seen()\n", 4),
        ("def main():\n    train(loader, seen)\nfor seed in range(2):\n    main()\n", 2),
        ("def main():\n    for epoch in range(5):\n        train(loader, seen)\nmain()\n", 5),
        # steps, and how many nobody knows
        ("for step in range(100):\n    seen()\n", None),
        ("while step():\n    for batch in loader:\n        seen()\n", None),
        ("for epoch in range(ask()):\n    for batch in loader:\n        seen()\n", None),
        ("seen()\n", None),
    ],
)
def test_epochs_are_those_of_the_loops_around(tmp_path: Path, text: str, expected: int | None) -> None:
    script = tmp_path / "script.py"
    script.write_text(FUNCTION + text)
    found: list[Any] = []
    ended: Iterator[bool] = iter([True, False])
    names = {
        "loader": [1],
        "seen": lambda: found.append(find_epochs(sys._getframe(1))),
        "args": Namespace(epochs=7),
        "config": {"epochs": 4},
        "tqdm": lambda values: values,
        "ask": lambda: 2,
        "step": lambda: next(ended),
    }
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert found[0] == expected
