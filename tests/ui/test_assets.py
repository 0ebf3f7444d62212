"""What the browser loads: vendored files as published, licences beside them, little in all, nothing from outside."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

import gpuwise.ui

ASSETS = Path(gpuwise.ui.__file__).parent / "assets"
VENDOR = ASSETS / "vendor"
OURS = sorted(p for p in ASSETS.iterdir() if p.suffix in (".html", ".js", ".css"))
MOST_GZ = 60_000


def test_every_vendored_file_is_listed_with_its_licence_and_is_the_one_published() -> None:
    listed = json.loads((VENDOR / "vendored.json").read_text())
    assert set(listed) == {p.name for p in VENDOR.iterdir()} - {"vendored.json", "LICENSES.txt"}
    licences = (VENDOR / "LICENSES.txt").read_text()
    for name, row in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == row["sha256"], name
        assert row["licence"] and row["from"].startswith("https://registry.npmjs.org/")
        assert name in licences and row["version"] in licences


def test_all_that_is_loaded_is_under_60_kb() -> None:
    files = [*OURS, *(p for p in VENDOR.iterdir() if p.suffix in (".js", ".css"))]
    assert sum(len(gzip.compress(p.read_bytes())) for p in files) < MOST_GZ


@pytest.mark.parametrize("path", OURS, ids=lambda p: p.name)
def test_nothing_is_inline_and_nothing_comes_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    assert "eval(" not in text and "new Function" not in text
    if path.suffix == ".html":
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", text)
