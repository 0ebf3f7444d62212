"""What a release uploads: a wheel and an sdist that build and run, manifests, workflows, the container's file."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tools import release

from gpuwise.cli.app import completion
from gpuwise.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.thorough
def test_the_wheel_and_the_sdist_build_and_the_wheel_runs(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "benchmarks", "shared"))
    for kind in ("sdist", "wheel"):
        code = f"import os; from hatchling import build; os.chdir({str(source)!r}); print(build.build_{kind}({str(tmp_path)!r}))"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    [sdist] = tmp_path.glob("*.tar.gz")
    assert release.version() in wheel.name and release.version() in sdist.name
    names = zipfile.ZipFile(wheel).namelist()
    assert "gpuwise/py.typed" in names and not any(n.startswith(("studies/", "tests/", "tools/", "benchmarks/")) for n in names)
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=True)
    python = fresh / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    [site] = fresh.rglob("site-packages")
    # the dependencies are this environment's; its own .pth files, which name the checkout, are not read there
    (site / "dependencies.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")) + "\n")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    code = "import gpuwise; print(gpuwise.__file__); from gpuwise.cli import main; main()"
    words = [python, "-c", code, "fit", "llama-3.1-8b", "--on", "4090"]
    ran = subprocess.run(words, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert ran.stdout.startswith(str(site)) and "Llama 3.1 8B on 1x RTX 4090" in ran.stdout, ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completions_name_the_commands(shell: str, tmp_path: Path) -> None:
    script = completion(shell)
    assert "capacity" in script and "plan" in script
    program = shutil.which(shell)
    if shell in ("bash", "zsh") and program:
        subprocess.run([program, "-n"], input=script, text=True, check=True)
    if shell == "bash" and program:
        (tmp_path / "gpuwise.bash").write_text(script)
        ask = """source gpuwise.bash
            COMP_WORDS=(gpuwise cap) COMP_CWORD=1 COMP_LINE='gpuwise cap' COMP_POINT=11
            $(complete -p gpuwise | sed 's/.*-F \\([^ ]*\\).*/\\1/') gpuwise cap gpuwise
            printf '%s\\n' "${COMPREPLY[@]}"
        """
        ran = subprocess.run([program, "--norc", "-c", ask], capture_output=True, text=True, cwd=tmp_path, check=True)
        assert "capacity" in ran.stdout.split()


def test_an_unknown_shell_is_refused() -> None:
    with pytest.raises(InputError, match="csh"):
        completion("csh")


def test_a_release_is_cut_checked_and_noted(tmp_path: Path) -> None:
    (tmp_path / "src/gpuwise").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "gpuwise"\nversion = "0.1.0"\n')
    (tmp_path / "src/gpuwise/version.py").write_text('VERSION = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n### Added\n\n- New.\n\n## [0.1.0]\n\n- Old.\n")
    release.cut("0.2.0", datetime.date(2026, 12, 1), tmp_path)
    assert release.version(tmp_path) == "0.2.0"
    release.check("v0.2.0", tmp_path)
    assert release.notes("v0.2.0", tmp_path) == "### Added\n\n- New.\n" and release.notes("v0.1.0", tmp_path) == "- Old.\n"
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n" in (tmp_path / "CHANGELOG.md").read_text()
    for wrong in ("v0.3.0", "0.2.0"):
        with pytest.raises(SystemExit):
            release.check(wrong, tmp_path)
    with pytest.raises(SystemExit):
        release.cut("next", datetime.date(2026, 12, 1), tmp_path)
    (tmp_path / "src/gpuwise/version.py").write_text('VERSION = "0.1.0"\n')
    with pytest.raises(SystemExit):
        release.check("v0.2.0", tmp_path)


def test_manifests_name_the_version_and_the_hash(tmp_path: Path) -> None:
    (tmp_path / "gpuwise-1.2.3.tar.gz").write_bytes(b"source")
    digest = hashlib.sha256(b"source").hexdigest()
    made = release.manifests(tmp_path)
    scoop = json.loads(made["gpuwise.json"])
    assert scoop["version"] == "1.2.3" and scoop["hash"] == f"sha256:{digest}" and scoop["url"].endswith("/gpuwise-1.2.3.tar.gz")
    formula = made["gpuwise.rb"]
    assert f'sha256 "{digest}"' in formula and "/gpuwise-1.2.3.tar.gz" in formula
    assert len(re.findall(r"^\s*(?:class|def|test do)\b", formula, re.M)) == len(re.findall(r"^\s*end$", formula, re.M))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_workflows_are_of_the_schema(path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    subprocess.run(words, check=True, capture_output=True)


def test_the_release_publishes_without_a_secret() -> None:
    yaml: Any = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()
    used = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert all(u.startswith(("actions/", "pypa/")) for u in used)


def test_the_container_runs_as_nobody_special() -> None:
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if line and not line.startswith("#")]
    words = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert set(words) <= {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "ENTRYPOINT", "CMD"}
    last = max(i for i, w in enumerate(words) if w == "FROM")
    assert "USER" in words[last:] and "latest" not in "".join(lines) and "--no-cache-dir" in "".join(lines)
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            assert all((ROOT / name).exists() for name in line.split()[1:-1])


@pytest.mark.slow
def test_the_container_builds_and_answers() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("there is no Docker here")
    subprocess.run([docker, "build", "--quiet", "--file", "Containerfile", "--tag", "gpuwise:test", "."], check=True, cwd=ROOT)
    ran = subprocess.run(
        [docker, "run", "--rm", "gpuwise:test", "fit", "llama-3.1-8b", "--on", "4090"], capture_output=True, text=True
    )
    assert "Llama 3.1 8B on 1x RTX 4090" in ran.stdout, ran.stderr
    who = subprocess.run([docker, "run", "--rm", "--entrypoint", "id", "gpuwise:test", "-u"], capture_output=True, text=True)
    assert who.stdout.strip() == "10001"
