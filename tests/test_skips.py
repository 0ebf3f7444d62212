import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.skips import broken_import

HERE = Path(__file__).parent
BROKEN = {
    "its own error": "raise ImportError('undefined symbol')",
    "something that it needs": "import a_package_that_nobody_has",
    "an operator": "raise RuntimeError('operator torchvision::nms does not exist')",
}


@pytest.mark.parametrize("place", ["module", "test"])
@pytest.mark.parametrize("cause", BROKEN)
def test_broken_import_fails_instead_of_skipping(cause: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "half_installed.py").write_text(BROKEN[cause] + "\n")
    asked = 'pytest.importorskip("half_installed")'
    body = asked if place == "test" else "pass"
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n{asked if place == 'module' else ''}\ndef test_it():\n    {body}\n"
        'def test_absent():\n    pytest.importorskip("not_installed_at_all")\n'
    )
    (tmp_path / "conftest.py").write_text((HERE / "skips.py").read_text())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode in (1, 2), ran.stdout
    assert "1 failed, 1 skipped" in ran.stdout if place == "test" else "1 error" in ran.stdout, ran.stdout


def test_missing_package_is_still_a_skip() -> None:
    assert broken_import("could not import 'not_installed_at_all.part': No module named 'not_installed_at_all'") is None
    assert broken_import("no Slurm to start here") is None
    assert broken_import("could not import 'json.nothing': No module named 'json.nothing'") is not None


def _catches_its_import(node: ast.Try) -> bool:
    """Whether an import is tried, and a test skipped where it fails."""
    tried = any(isinstance(inside, (ast.Import, ast.ImportFrom)) for line in node.body for inside in ast.walk(line))
    calls = [c for handler in node.handlers for c in ast.walk(handler) if isinstance(c, ast.Call)]
    return tried and any(isinstance(c.func, ast.Attribute) and c.func.attr == "skip" for c in calls)


def test_no_test_skips_itself_around_an_import() -> None:
    """``pytest.importorskip`` tells a package that is absent from one that is broken; a handler of its own does not."""
    found = [
        f"{file.relative_to(HERE)}:{node.lineno}"
        for file in sorted(HERE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Try) and _catches_its_import(node)
    ]
    assert not found, f"use pytest.importorskip: {found}"
