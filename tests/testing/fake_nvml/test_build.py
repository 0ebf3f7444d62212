"""Compiling the library, and what is said where that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.testing.fake_nvml import build
from gpuwise.testing.fake_nvml.build import LIBRARY, NoCompilerError, build_library


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # optimising is most of the compiler's work, and none of what is tested here
    monkeypatch.setattr(build, "FLAGS", tuple("-O0" if flag == "-O2" else flag for flag in build.FLAGS))
    made = build_library(tmp_path)
    assert made.name == LIBRARY and made.is_relative_to(tmp_path)
    before = made.stat().st_mtime_ns
    assert build_library(tmp_path) == made and made.stat().st_mtime_ns == before
    assert [p.name for p in made.parent.iterdir()] == [LIBRARY]


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NoCompilerError, match="no C compiler") as caught:
        build_library(tmp_path)
    assert caught.value.hint and "apt install gcc" in caught.value.hint


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "badcc"
    compiler.write_text("#!/bin/sh\necho 'x.c:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(NoCompilerError, match="no such thing"):
        build_library(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoCompilerError, match="cannot be built"):
        build_library(tmp_path / "file")


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.sys, "platform", "win32")
    with pytest.raises(NoCompilerError, match="for Linux"):
        build_library()
