"""What is made of a diagnosis: the document, the script, the shared report, the container files; on every scenario."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from gpuwise.cli.answer import text
from gpuwise.facts.sources import sources
from gpuwise.machine.doctor.checks.table import CHECKS, examine, verdict_of
from gpuwise.machine.doctor.finding import Finding, Fix, Severity, Verdict
from gpuwise.machine.doctor.images import compose, dockerfile
from gpuwise.machine.doctor.report import Diagnosis, diagnose, document, fix_plan, summary
from gpuwise.machine.doctor.share import redact, share_text
from gpuwise.report.answers.machine import doctor_answer
from gpuwise.text import capital
from studies.scripted_machine import ScriptedMachine, scripted_machine, torch

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
FINE = torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)])


def _scenarios() -> Iterator[tuple[str, Callable[[], ScriptedMachine]]]:
    for path in sorted(Path(__file__).parent.glob("test_scenarios_*.py")):
        scenarios = import_module(f".{path.stem}", __package__)
        yield from ((name, made[0]) for name, made in scenarios.FAULTY.items())
        yield from scenarios.HEALTHY.items()


SCENARIOS = dict(_scenarios())


@pytest.fixture(scope="module")
def diagnoses() -> dict[str, Diagnosis]:
    return {name: diagnose(make().look()) for name, make in SCENARIOS.items()}


def test_there_are_as_many_scenarios_as_promised(diagnoses: dict[str, Diagnosis]) -> None:
    faulty = {f.id for d in diagnoses.values() for f in d.faults}
    assert len(faulty) >= 32 and len(SCENARIOS) >= 100
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", key) for key in faulty)


def test_every_finding_is_in_the_guide(diagnoses: dict[str, Diagnosis]) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "doctor.md").read_text(encoding="utf-8")
    known = {f.id for d in diagnoses.values() for f in d.findings if not f.id.startswith("xid-")}
    assert sorted(key for key in known if f"`{key}`" not in guide) == []


def test_a_first_screen_has_the_verdict_first_and_a_command_last(diagnoses: dict[str, Diagnosis]) -> None:
    by_finding = {tuple(f.id for f in d.findings): d for d in diagnoses.values()}
    for d in by_finding.values():
        lines = text(doctor_answer(document(d))).strip().splitlines()
        assert len(lines) <= 25 and lines[0].startswith(capital(d.verdict.value))
        assert re.search(r"  gpuwise (doctor --fix-plan fix\.sh|bench --quick)$", lines[-1])
        assert not d.faults or any(line.startswith("Seen: ") for line in lines)


def test_every_script_is_one_the_shell_accepts(diagnoses: dict[str, Diagnosis], tmp_path: Path) -> None:
    for at, d in enumerate(diagnoses.values()):
        (tmp_path / f"{at}.sh").write_text(fix_plan(d), encoding="utf-8")
    for path in tmp_path.iterdir():
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, ""), path.read_text(encoding="utf-8")


def test_every_document_is_json_and_every_source_is_known(diagnoses: dict[str, Diagnosis]) -> None:
    for d in diagnoses.values():
        back = json.loads(json.dumps(document(d), allow_nan=False))
        assert back["verdict"] in {v.value for v in Verdict} and back["exit_code"] == d.exit_code
        assert set(back) == {"verdict", "exit_code", "summary", "findings", "notes", "machine"}
        for finding in d.findings:
            assert set(finding.sources) <= set(sources())


def test_every_fault_says_what_to_do(diagnoses: dict[str, Diagnosis]) -> None:
    for d in diagnoses.values():
        for f in d.faults:
            assert f.what and f.why and f.evidence and f.fixes and f.check, f.id
            assert all(m.commands or m.where == "person" for m in f.fixes), f.id
            assert not any("\n" in c for m in f.fixes for c in m.commands), f.id


def test_every_commands_quotes_are_closed(diagnoses: dict[str, Diagnosis]) -> None:
    import shlex

    for d in diagnoses.values():
        for command in (c for f in d.findings for m in f.fixes if m.where != "windows" for c in m.commands):
            assert shlex.split(command, comments=True), command


# --- the script ---


def _run(script: str, answers: str, tmp_path: Path) -> tuple[int, str]:
    """A script with its questions read from a file instead of the terminal, and with sudo that only says what it got."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sudo", "pip", "python"):
        (tools / name).write_text('#!/bin/sh\necho "RAN $0 $*" | sed "s#$PWD/bin/##"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    (tmp_path / "answers").write_text(answers, encoding="utf-8")
    path = tmp_path / "mend.sh"
    text = script.replace("</dev/tty", "<&3").replace("/venv/bin/python", "python")
    path.write_text(text.replace("set -euo pipefail", "set -euo pipefail\nexec 3<answers"), encoding="utf-8")
    done = subprocess.run(
        ["bash", str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
        env={"PATH": f"{tools}:/usr/bin:/bin"},
    )
    return done.returncode, done.stdout


MISSING = "no driver"


def test_the_script_does_nothing_unless_told_yes(diagnoses: dict[str, Diagnosis], tmp_path: Path) -> None:
    assert _run(fix_plan(diagnoses[MISSING]), "\nn\n", tmp_path) == (0, "")


def test_the_script_does_the_steps_and_asks_before_a_restart(diagnoses: dict[str, Diagnosis], tmp_path: Path) -> None:
    script = fix_plan(diagnoses[MISSING])
    status, out = _run(script, "y\nn\n", tmp_path)
    assert status == 0
    assert [line.split("RAN ")[1] for line in out.splitlines()] == [
        "sudo apt-get update",
        "sudo apt-get install -y nvidia-driver-580-open",
    ]
    assert script.count("sudo reboot") == 1 and 'if ask "Restart this machine now?"; then sudo reboot; fi' in script


def test_the_script_stops_at_the_first_command_that_fails(tmp_path: Path) -> None:
    finding = Finding("x", Severity.LIMIT, "x", ("x",), "x", (Fix("x", ("false", "sudo never")),), "x")
    assert _run(fix_plan(Diagnosis(scripted_machine().look(), (finding,))), "y\n", tmp_path) == (1, "")


def test_what_a_script_cannot_do_is_a_comment(diagnoses: dict[str, Diagnosis]) -> None:
    assert "\n#    Type this in your own shell, which a script cannot change: unset CUDA_VISIBLE_DEVICES" in fix_plan(
        diagnoses["S7 CUDA_VISIBLE_DEVICES is empty"]
    )
    inside = fix_plan(diagnoses["docker without --gpus"])
    assert "[on the machine itself, not in the container]" in inside and "if ask" not in inside
    assert "[in PowerShell]" in fix_plan(diagnoses["WSL without passthrough"])


@pytest.mark.parametrize("text", ["0\nrm -rf ~", "0\r\nreboot", "$(reboot)", "`reboot`", "'; reboot; '", "\x1b]0;x\x07"])
def test_nothing_of_the_machine_becomes_a_command(text: str, tmp_path: Path) -> None:
    machine = scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, error=text)]).but(
        environment={"CUDA_VISIBLE_DEVICES": text, "LD_LIBRARY_PATH": f"{text}:/x/stubs"}, files={"/x/stubs/libcuda.so": ""}
    )
    script = fix_plan(diagnose(machine.look()))
    _, out = _run(script, "n\n" * 9, tmp_path)
    assert out == "" and all(line.isprintable() for line in script.split("\n"))


def test_a_healthy_machine_has_nothing_to_fix(tmp_path: Path) -> None:
    script = fix_plan(diagnose(scripted_machine(answers=[FINE]).look()))
    assert "# Nothing to fix." in script and "if ask" not in script


# --- the shared report ---


def test_a_shared_report_names_nobody() -> None:
    secrets = (
        "ada",
        "engine7",
        "GPU-00000000-1111-2222-3333-444444444444",
        "1324500000",
        "203.0.113.77",
        "fe80::1ff:fe23:4567:890a",
        "hf_abcdefghijklmnop",
        "ada@example.org",
        "00:1a:2b:3c:4d:5e",
        "hunter2",
        "s3cret",
    )
    error = (
        "cannot reach 203.0.113.77 or fe80::1ff:fe23:4567:890a as ada@example.org on engine7 (00:1a:2b:3c:4d:5e), "
        "password=hunter2, https://ada:s3cret@pypi.example/simple, hf_abcdefghijklmnop, serial 1324500000"
    )
    machine = scripted_machine(answers=[torch("2.13.0+cu130", "13.0", CU130, error=error)]).but(
        environment={"CUDA_VISIBLE_DEVICES": "GPU-00000000-1111-2222-3333-444444444444", "PYTHONPATH": "/home/ada/src"}
    )
    text = share_text(diagnose(machine.look()), names={"engine7": "<host>", "ada": "<user>"})
    assert [s for s in secrets if s in text] == []
    assert "torch-sees-no-gpu" in text and "RTX 4090" in text and "580.95.05" in text and "/home/<user>/src" in text


@pytest.mark.parametrize("version", ["580.95.05", "9.10.2.21", "2.13.0+cu130", "12.8.4.1", "2.30.7"])
def test_versions_are_no_addresses(version: str) -> None:
    machine = scripted_machine(
        answers=[FINE], packages={"nvidia-cudnn-cu13": "9.10.2.21", "nvidia-cublas-cu12": "12.8.4.1"}
    ).look()
    assert redact(f"version {version}, found", machine, {}) == f"version {version}, found"


def test_names_that_are_parts_of_words_stay() -> None:
    machine = scripted_machine().look()
    assert redact("torchvision on torch1 by torch", machine, {"torch1": "<host>"}) == "torchvision on <host> by torch"


# --- container files ---


@pytest.mark.parametrize(
    ("card", "driver", "cuda", "base", "wheel"),
    [
        ("RTX 4090", "580.95.05", (13, 0), "nvidia/cuda:13.0.1-base-ubuntu24.04", "torch==2.15.0"),
        (
            "RTX 5090",
            "570.124.06",
            (12, 8),
            "nvidia/cuda:12.8.1-base-ubuntu24.04",
            "'torch==2.11.*' --index-url https://download.pytorch.org/whl/cu128",
        ),
        ("A100 SXM4 80GB", "550.54.14", (12, 4), "nvidia/cuda:12.4.1-base-ubuntu22.04", "whl/cu126"),
        (
            "GTX 1080 Ti",
            "580.95.05",
            (13, 0),
            "nvidia/cuda:13.0.1-base-ubuntu24.04",
            "'torch==2.14.*' --index-url https://download.pytorch.org/whl/cu126",
        ),
        ("V100 SXM2 32GB", "470.57.02", (11, 4), None, "No image and wheel"),
        ("T4", "525.147.05", None, "nvidia/cuda:11.8.0-base-ubuntu22.04", "whl/cu126"),
    ],
)
def test_a_dockerfile_fits_driver_and_card(
    card: str, driver: str, cuda: tuple[int, int] | None, base: str | None, wheel: str
) -> None:
    text = dockerfile(scripted_machine(cards=(card,), driver=driver, cuda=cuda).look())
    assert [line for line in text.splitlines() if line.startswith("FROM")] == ([f"FROM {base}"] if base else [])
    assert wheel in text


def test_nvidias_own_image_is_offered_where_it_runs() -> None:
    assert "FROM nvcr.io/nvidia/pytorch:24.05-py3" in dockerfile(
        scripted_machine(cards=("H100 SXM",), driver="550.54.14", cuda=(12, 4)).look()
    )
    assert "FROM nvcr.io/nvidia/pytorch:25.12-py3" in dockerfile(
        scripted_machine(cards=("B200",), driver="590.44.01", cuda=(13, 1)).look()
    )
    # its CUDA 12.4 has no code for Blackwell
    assert "nvcr.io" not in dockerfile(scripted_machine(cards=("RTX 5090",), driver="570.124.06", cuda=(12, 8)).look())


def test_compose_hands_in_what_there_is() -> None:
    one = compose(scripted_machine().look())
    assert "driver: nvidia" in one and "capabilities: [gpu]" in one and "shm_size: 8gb" in one and "memlock" not in one
    assert "memlock: -1" in compose(scripted_machine(cards=("H100 SXM",) * 8).look())
    assert "driver: nvidia" not in compose(scripted_machine(cards=(), driver=None).look())
    assert "python:3.12-slim" in dockerfile(scripted_machine(cards=(), driver=None).look())


# --- the verdict ---


def test_the_gravest_finding_makes_the_verdict() -> None:
    def one(severity: Severity) -> Finding:
        return Finding("x", severity, "x", (), "x")

    assert verdict_of(()) is Verdict.READY and verdict_of([one(Severity.NOTE)]) is Verdict.READY
    assert verdict_of([one(Severity.NOTE), one(Severity.LIMIT)]) is Verdict.LIMITS
    assert verdict_of([one(Severity.LIMIT), one(Severity.BLOCKER)]) is Verdict.NOT_READY


def test_two_findings_that_would_hide_each_other_leave_the_first() -> None:
    def check(name: str, hides: str) -> Callable[[object], list[Finding]]:
        return lambda _: [Finding(name, Severity.LIMIT, "x", (), "x", hides=(hides,))]

    machine = scripted_machine().look()
    assert [f.id for f in examine(machine, (check("a-1", "b-*"), check("b-2", "a-*")))] == ["a-1"]
    assert [f.id for f in examine(machine, (check("torch-sees-no-gpu", "x"), check("b", "*-sees-no-gpu")))] == ["b"]
    assert len(set(CHECKS)) == len(CHECKS)


def test_the_summary_counts_cards() -> None:
    assert summary(scripted_machine(cards=["H100 SXM"] * 8).look()).startswith("8 x H100 SXM")
    assert summary(scripted_machine(cards=(), driver=None).look()).startswith("no GPU that answers")
