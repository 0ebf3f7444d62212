"""Files are written whole or not at all, over nothing; YAML is read back as it was meant."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.export.written import wrapped, write_files
from gpuwise.export.yaml import to_yaml

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
KEYS = st.text(min_size=1, max_size=100)
"""YAML allows a key that stands before its colon 1024 characters as written, a character outside ASCII takes ten."""
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(KEYS, v, max_size=4), max_leaves=12)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5))
def test_yaml_is_read_back(document: dict[str, Any]) -> None:
    yaml: Any = pytest.importorskip("yaml")
    assert yaml.safe_load(to_yaml(document, "a comment")) == document


@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1), min_size=1, max_size=30))
def test_a_wrapped_command_is_the_same_words(words: list[str]) -> None:
    words = [w.replace("$", "S") for w in words]
    assert shlex.split("\n".join(wrapped(words)).replace("\\\n", "")) == words


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        write_files(tmp_path, {"a": "1", "b": "2"})
    assert not (tmp_path / "a").exists() and (tmp_path / "b").read_text() == "mine"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(InputError, match="cannot write"):
        write_files(tmp_path, {"a": "1", "taken/b": "2"})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_scripts_can_be_run(tmp_path: Path) -> None:
    script, text = write_files(tmp_path / "new", {"train.sh": "#!/usr/bin/env bash\n", "a.json": "{}"})
    assert os.access(script, os.X_OK) and not os.access(text, os.X_OK)
