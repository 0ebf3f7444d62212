"""The pytest plugin, in a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TEST = """
import pynvml

def test_a_hot_card(fake_nvml):
    fake = fake_nvml(["T4"])
    fake.gpu(0).set(temperature_c=99)
    with fake.in_process():
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetTemperature(pynvml.nvmlDeviceGetHandleByIndex(0), 0) == 99
"""


def _pytest(folder: Path, **env: str) -> str:
    (folder / "test_it.py").write_text(TEST)
    run = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "gpuwise.testing.fake_nvml.fixture",
        "-rs",
        "test_it.py",
    ]
    # only the plugin that is tested
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **env}
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_test_of_somebody_else(tmp_path: Path) -> None:
    assert "1 passed" in _pytest(tmp_path)


def test_it_is_skipped_where_there_is_no_compiler(tmp_path: Path) -> None:
    out = _pytest(tmp_path, PATH=str(tmp_path), CC="nonesuch", XDG_CACHE_HOME=str(tmp_path))
    assert "1 skipped" in out and "no C compiler" in out
