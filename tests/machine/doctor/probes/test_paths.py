"""Bridges to the cards and their access control: the walk through a configuration space, and what is found of machines."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.machine.doctor.host import ScriptedHost
from gpuwise.machine.doctor.probes.paths import REDIRECTS, acs_control, extended_capabilities, path_of

ACS = 0x000D
TREE = "../../../devices"
SIZE = 4096


def space(capabilities: list[tuple[int, int]], control: int = 0, size: int = SIZE) -> bytes:
    """A configuration space with capabilities (id, offset) in a list; the control register of access control."""
    made = bytearray(size)
    for at, (number, offset) in enumerate(capabilities):
        following = capabilities[at + 1][1] if at + 1 < len(capabilities) else 0
        struct.pack_into("<I", made, offset, number | 1 << 16 | following << 20)
        if number == ACS:
            struct.pack_into("<HH", made, offset + 4, 0x5F, control)
    return bytes(made)


OFFSETS = st.lists(st.integers(0x108 // 8, (SIZE - 8) // 8).map(lambda n: 8 * n), unique=True, max_size=12)


@given(OFFSETS, st.lists(st.integers(1, 0x2F).filter(lambda n: n != ACS), min_size=13, max_size=13), st.integers(0, 12))
def test_the_walk_finds_every_capability_in_order(offsets: list[int], numbers: list[int], acs_at: int) -> None:
    places = [0x100, *offsets]
    listed = [(ACS if at == acs_at else number, place) for at, (number, place) in enumerate(zip(numbers, places, strict=False))]
    made = space(listed, control=REDIRECTS | 1)
    assert list(extended_capabilities(made)) == listed
    assert acs_control(made) == (REDIRECTS | 1 if acs_at < len(places) else None)


@given(
    st.binary(max_size=SIZE + 64)
    | st.lists(st.sampled_from([0x100, 0x108, 0x110, 0xFFC]), min_size=1).map(
        lambda offsets: bytes(0x100) + b"".join(struct.pack("<II", 1 | o << 20, 0) for o in offsets)
    )
)
def test_a_circle_a_cut_space_and_noise_end_the_walk(noise: bytes) -> None:
    found = list(extended_capabilities(noise))
    offsets = [at for _, at in found]
    assert len(set(offsets)) == len(offsets) and all(0x100 <= at <= min(len(noise), SIZE) - 4 for at in offsets)
    control = acs_control(noise)
    assert control is None or 0 <= control <= 0xFFFF


@pytest.mark.parametrize("length", [0, 64, 256, 0x101, 0x103])
def test_what_is_shown_without_root_has_no_list(length: int) -> None:
    assert list(extended_capabilities(space([(ACS, 0x100)], REDIRECTS)[:length])) == []


@pytest.mark.parametrize("word", [b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_an_empty_list_and_a_silent_device(word: bytes) -> None:
    assert acs_control(bytes(0x100) + word + bytes(SIZE - 0x104)) is None


@pytest.mark.parametrize(
    ("link", "bridges"),
    [
        (
            f"{TREE}/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:04:00.0",
            ("0000:00:01.0", "0000:01:00.0", "0000:02:08.0"),
        ),
        (f"{TREE}/pci0000:00/0000:04:00.0", ()),
        (f"{TREE}/elsewhere", ()),
        (f"{TREE}/pci10000:e0/10000:e0:06.0/0000:04:00.0", ("10000:e0:06.0",)),
    ],
)
def test_the_way_to_a_card(link: str, bridges: tuple[str, ...]) -> None:
    host = ScriptedHost(links={"/sys/bus/pci/devices/0000:04:00.0": link})
    assert path_of(host, "0000:04:00.0") == bridges
    assert path_of(host, "0000:05:00.0") == ()
