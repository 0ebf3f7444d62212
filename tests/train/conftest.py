"""One process with PyTorch imported for all runs of scripts in these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwise.train.hook.launch import Limits, Outcome, launch
from gpuwise.train.hook.settings import Settings
from gpuwise.train.hook.zygote import Zygote

PATIENCE = Limits(wall_s=600)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Forks for every run; its torch uses one thread."""
    pytest.importorskip("torch")
    with Zygote(environment={"OMP_NUM_THREADS": "1"}) as started:
        yield started


@pytest.fixture
def run(zygote: Zygote, tmp_path: Path) -> Callable[..., Outcome]:
    """``run(script, *arguments, **settings)``: a script's file or text run and watched; its words go to ``tmp_path/output``."""

    def running(script: Path | str, *arguments: str, limits: Limits = PATIENCE, **settings: object) -> Outcome:
        if isinstance(script, str) and "\n" in script:
            (tmp_path / "script.py").write_text(script)
            script = tmp_path / "script.py"
        given = Settings(str(script), list(arguments), str(tmp_path / "journal.jsonl"), **settings)  # type: ignore[arg-type]
        return launch(given, tmp_path, limits=limits, zygote=zygote, output=tmp_path / "output")

    running.zygote = zygote  # type: ignore[attr-defined]
    return running
