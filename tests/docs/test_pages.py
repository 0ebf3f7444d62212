"""The documentation says what the program does: examples run, names exist, links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.docs import reference

import gpuwise
from gpuwise.cli.app import build, every_command, run

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for match in BLOCK.finditer(_read(page)):
            if match[1] == language:
                yield page, match[2]


def _commands() -> list[str]:
    """Every gpuwise command of every page whose output stands on none; those with DIR need files of the reader's, those in bash
    blocks a GPU, a plugin or minutes."""
    found: dict[str, None] = {}
    for language in ("sh", "console"):
        for _, body in _blocks(language):
            lines = [line.removeprefix("$ ").rpartition("&& ")[2] for line in body.split("\n")]
            found |= dict.fromkeys(line for line in lines if line.startswith("gpuwise ") and "DIR" not in line)
    return [c for c in found if c not in {shown for shown, _ in _shown()}]


def _shown() -> list[tuple[str, str]]:
    """Every command whose output stands on a page, with that output."""
    return sorted({example for page in PAGES for example in reference.examples(_read(page))})


# --- examples ---


LONG = "gpuwise capacity llama-3.3-70b"
"""Ten seconds of simulated fleets: run in the slow group."""
LIVE = "gpuwise top --demo --once"
"""Cards that heat up as the clock goes: each look is another."""


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.slow] if c.startswith(LONG) else []) for c in _commands()]
)
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(shlex.split(command)[1:])
    assert code == 0 or (code == 1 and "--for" in command and not err.getvalue()), err.getvalue()
    assert out.getvalue().strip()


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "output"), _shown(), ids=[command for command, _ in _shown()])
def test_pages_show_what_the_program_says(command: str, output: str) -> None:
    """If it fails: ``python -m tools.docs.reference --examples README.md docs``."""
    code, now = reference.outcome(command)
    assert code in ((2,) if output.startswith("error:") else (0, 1) if "--for" in command else (0,))
    assert command == LIVE or now == output


def test_recorded_output_is_there() -> None:
    empty = [f"{p.name}: {c}" for p in PAGES for c, body in reference.examples(_read(p)) if not body.strip()]
    assert empty == [], "run `python -m tools.docs.reference --examples README.md docs`"
    bodies = [body for p in PAGES for _, body in reference.examples(_read(p))]
    assert not any("Traceback" in body or "there is no file" in body or "/tmp/" in body for body in bodies)


def test_refreshing_keeps_everything_but_the_output() -> None:
    page = "a\n\n```console\n$ gpuwise --version\nold\n```\n\n"
    page += "<!-- output: gpuwise --version -->\n```text\n```\nz\n"
    shown = reference.refresh_page(page)
    assert shown.count(gpuwise.__version__) == 2 and "old" not in shown
    assert shown.startswith("a\n") and shown.endswith("```\nz\n")
    assert reference.refresh_page(shown) == shown


@pytest.mark.parametrize(("page", "code"), [b for b in _blocks("python") if b[0].parent.name in ("guides", "learn")])
def test_python_examples_run(page: Path, code: str) -> None:
    if any(word in code for word in ("import torch", "make_step", "choose_workers")):
        pytest.importorskip("torch")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, str(page), "exec"), {})
    assert out.getvalue().strip() or "print(" not in code


# --- the README ---


def test_readme_has_exactly_two_shell_commands() -> None:
    commands = [body.strip() for page, body in _blocks("sh") if page.name == "README.md"]
    assert len(commands) == 2
    assert re.fullmatch(r"pip install \. && gpuwise fit \S+ --on \"[^\"]+\"", commands[0])
    assert commands[1] == "pip install -e '.[test,test-torch,test-export,test-browser]' && pytest -n auto --dist worksteal"


def test_readme_shows_the_output_of_its_first_command() -> None:
    text = _read(ROOT / "README.md")
    first = next(body.strip() for page, body in _blocks("sh") if page.name == "README.md")
    assert next(reference.examples(text))[0] == first.partition("&& ")[2]


# --- links and navigation ---


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", _read(page)):
            path, _, anchor = target.partition("#")
            if target.startswith("http"):
                continue
            place = page.parent / path if path else page
            headings = re.findall(r"^#+ (.+)$", _read(place), re.MULTILINE) if place.suffix == ".md" and place.exists() else []
            known = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            if not place.exists() or (anchor and anchor not in known):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", _read(ROOT / "mkdocs.yml"), re.MULTILINE))
    assert named == {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")}


def test_tables_are_whole() -> None:
    """Every row of a table has as many cells as its head, so that it renders."""
    wrong = []
    for page in PAGES:
        width = 0
        for n, line in enumerate(re.sub(r"^```.*?^```$", "", _read(page), flags=re.DOTALL | re.MULTILINE).split("\n")):
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            if cells and width and cells != width:
                wrong.append(f"{page.name}: {n}: {line[:60]}")
            width = cells
    assert wrong == []


# --- the reference ---


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


def test_every_command_and_option_is_documented(pages: dict[str, str]) -> None:
    app = build()
    for name, command in every_command(app):
        part = pages["cli.md"].partition(f"## gpuwise {name}\n")[2].partition("\n## ")[0]
        assert part, f"gpuwise {name} is not documented"
        for argument in command.assemble_argument_collection(default_parameter=app.default_parameter, parse_docstring=True):
            if argument.show:
                shown = argument.names if argument.index is None else (argument.name.lstrip("-").upper(),)
                assert all(word in part for word in shown), argument.name
                assert argument.parameter.help, f"gpuwise {name} {argument.name} has no help"


def test_every_public_name_is_documented(pages: dict[str, str]) -> None:
    for name in set(gpuwise.__all__) - {"__version__"}:
        assert f"### {name}\n" in pages["python.md"], name


def test_every_column_is_documented(pages: dict[str, str]) -> None:
    from gpuwise.facts.loading import DATA

    for path in DATA.rglob("*.csv"):
        head = next(line for line in path.read_text().split("\n") if line and not line.startswith("#"))
        part = pages["files.md"].partition(f"## {path.name}\n")[2].partition("\n## ")[0]
        assert all(f"| `{column}` |" in part for column in head.split(",")), path.name
    for path in DATA.rglob("*.toml"):
        name = "models_*.toml" if path.name.startswith("models_") else path.name
        part = pages["files.md"].partition(f"## {name}\n")[2].partition("\n## ")[0]
        if name == path.name:
            tables = tomllib.loads(path.read_text()).values()
            used = {key for table in tables for one in (table if isinstance(table, list) else [table]) for key in one}
            assert all(f"| `{key}` |" in part for key in used), path.name
        assert part, path.name


def test_pages_are_on_disk_and_checked(pages: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in pages:
        begins = {".md": reference.STAMP, ".json": "{", ".txt": "# gpuwise\n"}[Path(name).suffix]
        assert _read(DOCS / "reference" / name).startswith(begins), name
    assert reference.main(["--check", str(tmp_path)]) == 1
    assert "hint: python -m tools.docs.reference" in capsys.readouterr().err
    assert reference.main([str(tmp_path)]) == 0 == reference.main(["--check", str(tmp_path)])
    assert reference.main([]) == 2


def test_changelog_has_this_version() -> None:
    text = _read(ROOT / "CHANGELOG.md")
    assert f"## [{gpuwise.__version__}] - 20" in text and "## [Unreleased]" in text


def test_json_of_the_documented_fields() -> None:
    """The fields scripts rely on."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["plan", "gpt2", "--on", "a100-80gb-sxm", "--tokens", "1B", "--json"]) == 0
    document = json.loads(out.getvalue().strip().split("\n")[-1])
    best = document["best"]
    assert {"strategies", "seconds"} <= set(document["search"])
    for name in ("step_time_s", "memory_bytes", "tokens_per_s_per_gpu", "mfu", "cost_usd"):
        assert set(best[name]) == {"low", "expected", "high", "basis"}
        assert 0 < best[name]["low"] <= best[name]["expected"] <= best[name]["high"]
    assert best["strategy"]["micro_batch"] >= 1
