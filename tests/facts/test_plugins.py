"""Plugins: the example package adds each kind of thing when it is installed, and wrong ones are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuwise.errors import InputError
from gpuwise.facts.plugins import Plugin, plugins

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's wheel as it lies in an environment."""
    wheels = pytest.importorskip("hatchling.builders.wheel")
    folder, site = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("site")
    (wheel,) = wheels.WheelBuilder(str(EXAMPLE)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    return site


def asked(site: Path, home: Path, *words: str) -> dict[str, object]:
    """The document of a command where the plugin is installed."""
    path = os.pathsep.join([str(site), *(p for p in sys.path if p)])
    environment = {**os.environ, "PYTHONPATH": path, "GPUWISE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "gpuwise", *words, "--json"], env=environment, capture_output=True, text=True, timeout=300
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_gpu_with_its_price_and_a_stack(installed: Path, tmp_path: Path) -> None:
    words = ("plan", "gpt2", "--on", "8x acme a100 96gb", "--tokens", "1B")
    acme = asked(installed, tmp_path, *words, "--stack", "acme-trainer")
    assert acme["cluster"]["accelerator"] == "acme-a100-96gb"  # type: ignore[index]
    best = acme["best"]
    assert best["price"]["usd_per_gpu_hour"]["expected"] == 0.75 and best["strategy"]["stack"] == "acme-trainer"  # type: ignore[index]
    like = asked(installed, tmp_path, *words, "--stack", "trainer")["best"]
    assert best["step_time_s"] == like["step_time_s"]  # type: ignore[index]


def test_an_engine_and_a_check_of_the_doctor(installed: Path, tmp_path: Path) -> None:
    words = ("capacity", "llama-3.2-1b", "--on", "L40S", "--rate", "2/s", "--quick", "--engine")
    acme, like = (asked(installed, tmp_path, *words, engine)["served"] for engine in ("acme-serve", "vllm"))
    assert acme["configuration"]["engine"] == "acme-serve"  # type: ignore[index]
    assert acme["at_limit"]["requests_per_s"] == like["at_limit"]["requests_per_s"]  # type: ignore[index]
    assert "acme-no-scratch" in json.dumps(asked(installed, tmp_path, "doctor", "--no-frameworks"))


def test_a_persons_own_row_wins_over_a_plugin(installed: Path, tmp_path: Path) -> None:
    row = (installed / "gpuwise_acme" / "facts" / "accelerators.csv").read_text().replace(",96,", ",48,")
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "accelerators.csv").write_text(row)
    found = asked(installed, tmp_path, "gpus", "acme-a100-96gb")["accelerators"]
    assert found[0]["memory_bytes"] == pytest.approx(48e9, rel=0.1)  # type: ignore[index]


def distribution(site: Path, name: str, entries: str) -> None:
    (site / f"{name}-1.dist-info").mkdir()
    (site / f"{name}-1.dist-info" / "entry_points.txt").write_text(entries)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_entry_points_of_our_group_alone_are_read(site: Path) -> None:
    distribution(site, "gpuwise_acme", "[console_scripts]\nx = y:z\n[gpuwise.plugins]\nb = bee\na=ay\n")
    distribution(site, "other", "[gpuwise.plugins]\nc = sea\n")
    distribution(site, "gpuwise", "[gpuwise.plugins]\nd = dee\n")
    assert plugins.__wrapped__() == (Plugin("a", "ay"), Plugin("b", "bee"))


def test_two_of_a_name_and_a_missing_package_are_refused(site: Path) -> None:
    distribution(site, "gpuwise_a", "[gpuwise.plugins]\nx = one\n")
    with pytest.raises(InputError, match="the plugin x names one, which is not installed"):
        plugins.__wrapped__()[0].folder("facts")
    distribution(site, "gpuwise_b", "[gpuwise.plugins]\nx = two\n")
    with pytest.raises(InputError, match="two plugins are called x: one and two"):
        plugins.__wrapped__()
