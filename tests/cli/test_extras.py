"""Commands that need an optional library, without it: one line and a hint, before anything is computed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HINT = "hint: pip install 'gpuwise[{}]'"
OWN_CODE = "examples/train_gpt.py:make_step"


@pytest.mark.parametrize(
    ("library", "extra", "command"),
    [
        ("pyarrow", "parquet", ("top", "--demo", "--record", "{}/watch.parquet", "--interval", "1s")),
        ("pyarrow", "parquet", ("top", "--replay", "{}/old.parquet", "--once")),
        ("torch", "torch", ("fit", OWN_CODE, "--on", "h100-sxm")),
        ("torch", "torch", ("plan", OWN_CODE, "--on", "h100-sxm")),
        ("gpuhunt", "prices", ("prices", "--refresh", "gpuhunt")),
    ],
    ids=lambda value: " ".join(value[:1] + value[-2:]) if isinstance(value, tuple) else value,
)
def test_a_missing_library_is_named_with_its_extra(
    gpuwise: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    home: Path,
    library: str,
    extra: str,
    command: tuple[str, ...],
) -> None:
    (tmp_path / "old.parquet").write_bytes(b"PAR1")
    for name in [n for n in sys.modules if n.split(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    ran = gpuwise(*(word.replace("{}", str(tmp_path)) for word in command))
    error, hint = ran.err.splitlines()
    assert ran.code == 1 and ran.out == ""
    assert error.startswith("error: ") and error.endswith(f"needs {library}, which is not installed")
    assert hint.startswith(HINT.format(extra))
    assert {p.name for p in tmp_path.iterdir()} == {"old.parquet"}
