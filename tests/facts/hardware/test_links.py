"""Links as a person states them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.links import link_words, with_links
from gpuwise.facts.hardware.naming import find_cluster

PAIRS = """\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity
GPU0\t X \tNV4\tPIX\tPXB\tSYS\t0-31
GPU1\tNV4\t X \tPXB\tPIX\tSYS\t0-31
GPU2\tPIX\tPXB\t X \tNV4\tPIX\t0-31
GPU3\tPXB\tPIX\tNV4\t X \tPIX\t0-31
NIC0\tSYS\tSYS\tPIX\tPIX\t X
"""


@pytest.mark.parametrize(
    ("on", "text", "words"),
    [
        ("2x3090", None, "PCI Express through the host's memory, 31.5 GB/s each way"),
        ("2x3090", "nvlink", "NVLink 3, 56.2 GB/s each way"),
        ("4x3090", PAIRS, "NVLink 3 in pairs, 56.2 GB/s each way"),
        ("4xL40S", PAIRS.replace("NV4", "SYS"), "PCI Express, 31.5 GB/s each way"),
        ("4xL40S", "no-p2p", "PCI Express through the host's memory, 31.5 GB/s each way"),
        ("2x4090", "pcie4x8", "PCI Express through the host's memory, 15.8 GB/s each way"),
        ("8xH100-SXM", None, "NVLink 4, 450 GB/s each way"),
        ("4090", "pcie3x8", ""),
    ],
)
def test_links_are_named(on: str, text: str | None, words: str) -> None:
    assert link_words(with_links(find_cluster(on), text)) == words


def test_every_pair_behind_a_switch_shows_all_lanes() -> None:
    node = find_cluster("8xH100-SXM")
    names = [f"GPU{i}" for i in range(8)]
    rows = [" ".join([name, *("X" if name == other else "NV18" for other in names)]) for name in names]
    assert with_links(node, "\n".join([" ".join(names), *rows])) == node


@pytest.mark.parametrize(
    ("on", "text", "says"),
    [
        ("2x4090", "nvlink", "has no NVLink"),
        ("4x4090", PAIRS, "has no NVLink"),
        ("8x3090", PAIRS, "has 4 GPUs"),
        ("2x3090", "pcie9x3", "no links are called"),
        ("2x3090", "pcie5x4", "is not known"),
        ("2x3090", "hello\nworld", "not the output"),
    ],
)
def test_other_links_are_refused_with_a_hint(on: str, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        with_links(find_cluster(on), text)
    assert caught.value.hint


def test_a_file_of_the_matrix_is_read(tmp_path: Path) -> None:
    (tmp_path / "topology.txt").write_text(PAIRS)
    cluster = find_cluster("4x3090")
    assert with_links(cluster, str(tmp_path / "topology.txt")) == with_links(cluster, PAIRS)
