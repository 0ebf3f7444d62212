"""CUDA_VISIBLE_DEVICES as CUDA reads it; torch's own reading of it is the judge where it has one."""

from __future__ import annotations

import os
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.machine.devices.readings import Identity
from gpuwise.machine.devices.visible import PCI_BUS_ID, visible

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")
CARDS = [Identity("nvidia", i, "H100", uuid=u) for i, u in enumerate(UUIDS)]


def _torch_says(value: str) -> list[int]:
    torch = pytest.importorskip("torch")
    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": value}):
        parsed = torch.cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        return torch.cuda._transform_uuid_to_ordinals(parsed, list(UUIDS))
    kept = []
    for number in parsed:
        if number >= len(UUIDS):
            break
        kept.append(number)
    return kept


entries = st.one_of(
    st.integers(-2, 6).map(str), st.sampled_from([*UUIDS, "GPU-aa", "GPU-b", "GPU-", "GPU-zz", "", " 1", "2x", "x", "01"])
)


@pytest.mark.slow  # torch takes long to import
@given(st.lists(entries, min_size=1, max_size=5).map(",".join))
def test_it_is_what_torch_reads(value: str) -> None:
    assert list(visible(CARDS, value).indices) == _torch_says(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0", [0]),
        ("2,1", [2, 1]),
        ("0,0", []),
        ("1,-1,2", [1]),
        ("-1", []),
        ("1,9,2", [1]),
        ("9", []),
        ("0,9,0", []),
        ("0,,1", [0]),
        ("1x,2y", [1, 2]),
        ("x,1", []),
        (" 1, 2", [1, 2]),
        ("01,1", []),
        ("GPU-b", [2]),
        ("GPU-aa", []),
        ("GPU-bb33,GPU-cc", [2, 3]),
        ("GPU-b,GPU-b", []),
        ("GPU-b,GPU-bb", []),
        ("GPU-b,1", [2]),
        ("GPU-b,GPU-zz,GPU-c", [2]),
        ("1,GPU-b", [1]),
        ("NoDevFiles", []),
    ],
)
def test_lists_as_torch_2_13_reads_them(value: str, shown: list[int]) -> None:
    assert list(visible(CARDS, value).indices) == shown


@given(st.lists(entries, max_size=6).map(",".join))
def test_what_ends_a_list_is_said(value: str) -> None:
    seen = visible(CARDS, value)
    assert (seen.stopped_by is None) or seen.reason
    if not seen.indices:
        assert seen.reason
    assert len(set(seen.indices)) == len(seen.indices)


def test_not_set_shows_all_and_empty_none() -> None:
    assert visible(CARDS, None).indices == (0, 1, 2, 3)
    assert visible(CARDS, "").indices == () and "empty" in (visible(CARDS, "").reason or "")
    assert visible([], "0").indices == ()


def test_the_order_of_unlike_cards_is_a_guess_unless_it_is_set() -> None:
    mixed = [
        Identity("nvidia", 0, "slow", n_cores=100, sm_clock_max_hz=1e9),
        Identity("nvidia", 1, "fast", n_cores=900, sm_clock_max_hz=2e9),
    ]
    guess = visible(mixed, "0")
    assert guess.indices == (1,) and not guess.certain
    assert visible(mixed, "0", PCI_BUS_ID).indices == (0,) and visible(mixed, "0", PCI_BUS_ID).certain
    assert visible(CARDS, "0").certain


def test_one_mig_device_is_used() -> None:
    cards = [Identity("nvidia", 0, "H100", uuid="GPU-aa"), Identity("nvidia", 1, "H100", mig_uuids=("MIG-1", "MIG-2"))]
    seen = visible(cards, "MIG-2,MIG-1")
    assert (seen.indices, seen.mig_uuid, seen.reason) == ((1,), "MIG-2", "CUDA uses one MIG device only")
    assert visible(cards, "MIG-9").indices == ()
