"""``gpuwise doctor`` from the outside: real processes, the true NVML client on a library that plays cards."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.answer import text
from gpuwise.machine.doctor.report import diagnose, document
from gpuwise.report.answers.machine import doctor_answer
from gpuwise.testing.fake_nvml import FakeNvml
from studies.scripted_machine import scripted_machine, torch

pytest_plugins = ["gpuwise.testing.fake_nvml.fixture"]

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
FAKE_TORCH = """
import os, types
__version__, _build = os.environ.get("FAKE_TORCH", "2.13.0+cu130 13.0").split()
version = types.SimpleNamespace(cuda=None if _build == "-" else _build, hip=None)
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120")
backends = types.SimpleNamespace(
    cudnn=types.SimpleNamespace(version=lambda: 92000), mps=types.SimpleNamespace(is_available=lambda: False)
)
_cards = [tuple(map(int, c.split("."))) for c in os.environ.get("FAKE_CARDS", "").split()]
class _Sum(float):
    def __matmul__(self, other): return self
    def sum(self): return 64.0 ** 3
def get_num_threads(): return 1
def ones(*shape, device): return _Sum()
class cuda:
    nccl = types.SimpleNamespace(version=lambda: (2, 29, 7))
    is_available = staticmethod(lambda: bool(_cards))
    device_count = staticmethod(lambda: len(_cards))
    @staticmethod
    def init(): raise RuntimeError("No CUDA GPUs are available")
    @staticmethod
    def get_device_properties(i): return types.SimpleNamespace(name="card", major=_cards[i][0], minor=_cards[i][1], uuid="")
"""


class Inside:
    """Runs the command in this process, with an empty Python environment to look at and the fake library for NVML."""

    def __init__(self, run: Callable[..., Any], python: str, patch: pytest.MonkeyPatch) -> None:
        self.run, self.python, self.patch = run, python, patch

    def __call__(self, *arguments: str, on: FakeNvml | None = None, **variables: str) -> Any:
        for name, value in variables.items():
            self.patch.setenv(name, value)
        with on.in_process() if on else nullcontext():
            return self.run("doctor", "--python", self.python, *arguments)

    def document(self, *arguments: str, on: FakeNvml | None = None, **variables: str) -> Any:
        done = self(*arguments, "--json", on=on, **variables)
        assert done.err == "", done.err
        assert done.document["exit_code"] == done.code
        return done.document

    def ids(self, *arguments: str, on: FakeNvml | None = None, **variables: str) -> list[str]:
        return [f["id"] for f in self.document(*arguments, on=on, **variables)["findings"]]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=300)
    return place


@pytest.fixture
def doctor(empty: Path, tmp_path: Path, gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Inside:
    """An environment without any framework."""
    for name in ("VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return Inside(gpuwise, str(empty / "bin" / "python"), monkeypatch)


@pytest.fixture
def with_torch(doctor: Inside, empty: Path) -> Iterator[Inside]:
    """The same with a PyTorch that says what FAKE_TORCH and FAKE_CARDS tell it to."""
    site = next(empty.glob("lib/python3*/site-packages"))
    package, info = site / "torch", site / "torch-2.13.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text(FAKE_TORCH, encoding="utf-8")
    (info / "METADATA").write_text("Name: torch\n", encoding="utf-8")
    yield doctor
    shutil.rmtree(package)
    shutil.rmtree(info)


# --- the true client on cards that do not exist ---


def test_healthy_cards_are_ready(with_torch: Inside, fake_nvml: Callable[..., FakeNvml]) -> None:
    fake = fake_nvml(["H100-SXM", "RTX 4090"])
    done = with_torch("--gpus", "2", on=fake, FAKE_CARDS="9.0 8.9")
    assert done.code == 0 and done.out.startswith("Ready. No fault") and done.err == ""
    assert "H100" in done.out and "RTX 4090" in done.out


def test_a_machine_without_gpu_is_not_ready_when_one_is_asked_for(doctor: Inside) -> None:
    """In a process of its own: a library that was loaded once in this one stays."""
    words = ["doctor", "--json", "--gpus", "64", "--python", doctor.python]
    code = f"import sys; from gpuwise.cli.app import run; sys.exit(run({words!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)
    assert "gpus-missing" in [f["id"] for f in found["findings"]]
    assert done.returncode == found["exit_code"] == (1 if found["machine"]["vendors"] else 2) and done.stderr == ""


@pytest.mark.parametrize(
    ("card", "said", "cards", "finding"),
    [
        ("RTX 4090", "2.13.0+cpu -", "", "torch-cpu-wheel"),
        ("RTX 4090", "2.13.0+cu130 13.0", "", "torch-sees-no-gpu"),
        ("V100-SXM", "2.13.0+cu130 13.0", "", "torch-lacks-card"),
    ],
)
def test_a_wheel_that_does_not_fit_is_named(
    with_torch: Inside, fake_nvml: Callable[..., FakeNvml], card: str, said: str, cards: str, finding: str
) -> None:
    assert with_torch.ids(on=fake_nvml([card]), FAKE_TORCH=said, FAKE_CARDS=cards) == [finding]


@pytest.mark.parametrize(
    ("readings", "finding"),
    [
        ({"pcie_width": 4}, "pcie-narrow"),
        ({"power_limit_w": 300}, "power-limit-low"),
        ({"ecc_uncorrected": 12}, "ecc-uncorrected"),
        ({"remap_failed": 1}, "row-remap-failed"),
        ({"remap_pending": 1}, "row-remap-pending"),
    ],
)
def test_a_card_at_fault_is_named(
    doctor: Inside, fake_nvml: Callable[..., FakeNvml], readings: dict[str, float], finding: str
) -> None:
    fake = fake_nvml(["H100-SXM", "H100-SXM"])
    fake.gpu(1).set(**readings)
    found = doctor.document(on=fake)
    assert [(f["id"], f["cards"]) for f in found["findings"]] == [(finding, [1])]
    assert found["verdict"] == "ready with limits"


def test_a_lost_card_is_named_and_the_other_one_counts(doctor: Inside, fake_nvml: Callable[..., FakeNvml]) -> None:
    fake = fake_nvml(["H100-SXM", "H100-SXM"])
    fake.gpu(0).lose()
    found = doctor.document("--gpus", "2", on=fake)
    assert [(f["id"], f["cards"], f["severity"]) for f in found["findings"]] == [("gpu-lost", [0], "limit")]


def test_a_driver_updated_under_the_kernel_asks_for_a_restart(doctor: Inside, fake_nvml: Callable[..., FakeNvml]) -> None:
    fake = fake_nvml(["RTX 4090"])
    fake.mismatch()
    done = doctor(on=fake)
    assert done.code == 2 and "driver-library-mismatch" in done.out and "sudo reboot" in done.out


@pytest.mark.parametrize("code", [4, 9, 10, 12, 17, 18, 99, 999])
def test_no_refusal_of_the_library_is_a_traceback(doctor: Inside, fake_nvml: Callable[..., FakeNvml], code: int) -> None:
    fake = fake_nvml(["RTX 4090"])
    fake.refuse_init(code)
    done = doctor(on=fake)
    assert done.err == "" and done.code in (0, 2)
    assert done.out.splitlines()[0].startswith(("Ready", "Not ready"))


def test_hidden_cards_are_named(with_torch: Inside, fake_nvml: Callable[..., FakeNvml]) -> None:
    fake = fake_nvml(["RTX 4090"])
    assert with_torch.ids(on=fake, CUDA_VISIBLE_DEVICES="") == ["cuda-visible-devices-empty"]
    assert with_torch.ids(on=fake, CUDA_VISIBLE_DEVICES="3") == ["cuda-visible-devices-invalid"]


# --- what is written ---


def test_the_script_the_dockerfile_and_the_compose_file_are_written_once(
    with_torch: Inside, fake_nvml: Callable[..., FakeNvml]
) -> None:
    fake = fake_nvml(["RTX 4090"])
    asked = ("--fix-plan", "mend.sh", "--dockerfile", "Dockerfile", "--compose", "compose.yaml")
    done = with_torch(*asked, on=fake, FAKE_TORCH="2.13.0+cpu -")
    place = Path.cwd()
    assert done.code == 2 and done.err.count("wrote ") == 3
    assert "torch==2.13.0" in (place / "mend.sh").read_text(encoding="utf-8")
    assert "\nFROM nvidia/cuda:" in (place / "Dockerfile").read_text(encoding="utf-8")
    assert "driver: nvidia" in (place / "compose.yaml").read_text(encoding="utf-8")
    again = with_torch("--fix-plan", "mend.sh", on=fake)
    assert again.code == 2 and "already exists" in again.err and "hint:" in again.err


def test_a_dash_prints_instead(doctor: Inside, fake_nvml: Callable[..., FakeNvml]) -> None:
    fake = fake_nvml(["RTX 4090"])
    assert doctor("--dockerfile", "-", on=fake).out.startswith("# For NVIDIA GeForce RTX 4090")
    assert doctor("--compose", "-", on=fake).out.startswith("services:")
    assert doctor("--fix-plan", "-", on=fake).out.startswith("#!/usr/bin/env bash")


def test_a_shared_report_hides_identifiers(doctor: Inside, fake_nvml: Callable[..., FakeNvml]) -> None:
    fake = fake_nvml(["RTX 4090"])
    done = doctor(
        "--share", on=fake, USER="ada-lovelace", NVIDIA_VISIBLE_DEVICES=fake.gpu(0).uuid, PYTHONPATH="/home/ada-lovelace/x"
    )
    assert fake.gpu(0).uuid not in done.out and "ada-lovelace" not in done.out
    assert "RTX 4090" in done.out and "```text" in done.out


# --- what it costs ---


def test_looking_loads_nothing_heavy_and_runs_on_the_true_client(doctor: Inside, fake_nvml: Callable[..., FakeNvml]) -> None:
    heavy = ("numpy", "torch", "textual", "pandas", "matplotlib", "rich.table", "pyarrow", "psutil")
    code = (
        f"import sys; from gpuwise.cli.app import run\nrun(['doctor', '--json', '--python', {doctor.python!r}])\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    env = fake_nvml(["RTX 4090"]).env
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True, env=env)
    document, loaded = done.stdout.splitlines()
    assert loaded == "[]" and '"name":"NVIDIA GeForce RTX 4090"' in document


def test_without_frameworks_no_process_is_started_for_one(with_torch: Inside, fake_nvml: Callable[..., FakeNvml]) -> None:
    asked = ("--no-frameworks",)
    found = with_torch.document(*asked, on=fake_nvml(["RTX 4090"]), FAKE_TORCH="2.13.0+cpu -")
    assert found["machine"]["frameworks"] == []


# --- how it looks ---


@pytest.mark.parametrize("width", [60, 80, 120])
def test_commands_break_as_a_shell_reads_them(width: int) -> None:
    error = "The NVIDIA driver on your system is too old (found version 12040)"
    machine = scripted_machine(driver="550.54.14", cuda=(12, 4), answers=[torch("2.13.0+cu130", "13.0", CU130, error=error)])
    answer = doctor_answer(json.loads(json.dumps(document(diagnose(machine.look())))))
    for screen in (text(answer, width=width), text(answer, None, width)):
        assert screen.startswith("Not ready. ") and max(map(len, screen.splitlines())) <= width
        whole = re.sub(r" *\\\n +", " ", screen)
        assert "pip install 'torch==2.13.*' --index-url https://download.pytorch.org/whl/cu126" in whole
        assert screen.rstrip().endswith("gpuwise doctor --fix-plan fix.sh")


def test_bad_options_are_refused(doctor: Inside) -> None:
    for arguments in (
        ["--gpus", "0"],
        ["--gpus", "many"],
        ["--limit", "soon"],
        ["--fix-plan", "/no/such/folder/x"],
        ["--nonsense"],
    ):
        done = doctor(*arguments)
        assert done.code == 2 and done.err.startswith("error: ") and "hint: " in done.err, arguments


def test_an_interpreter_that_is_not_there_is_a_finding(doctor: Inside) -> None:
    doctor.python = "/no/such/python"
    done = doctor()
    assert done.code == 2 and "python-does-not-start" in done.out
