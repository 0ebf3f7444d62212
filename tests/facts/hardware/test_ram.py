"""Memory as people write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.facts.hardware.ram import FASTEST_MT_S, Ram, read_ram
from gpuwise.units import GIB

WRITTEN = {
    "ddr4-3200x2": Ram("DDR4", 3200, 2),
    "DDR4-3200": Ram("DDR4", 3200),
    "ddr5": Ram("DDR5"),
    "2x ddr5-5600": Ram("DDR5", 5600, 2),
    "64GB DDR4 3200 dual channel": Ram("DDR4", 3200, 2, 64 * GIB),
    "DDR5-6400 dual channel, 96 GB": Ram("DDR5", 6400, 2, 96 * GIB),
    "lpddr5x-8533 x 2": Ram("LPDDR5X", 8533, 2),
    "DDR4 quad channel": Ram("DDR4", None, 4),
    "DDR4 8ch": Ram("DDR4", None, 8),
    "DDR5-6000 MT/s": Ram("DDR5", 6000),
    "128GB": Ram(size_bytes=128 * GIB),
    "1TB ddr4-2400x8": Ram("DDR4", 2400, 8, 1024 * GIB),
    "ddr3l-1600x2": Ram("DDR3", 1600, 2),
}


@pytest.mark.parametrize(("text", "ram"), WRITTEN.items())
def test_memory_as_people_write_it(text: str, ram: Ram) -> None:
    assert read_ram(text) == ram


@given(st.sampled_from(sorted(FASTEST_MT_S)), st.integers(200, 12_000), st.integers(0, 40))
def test_what_no_memory_has_is_refused(type_: str, mt_s: int, channels: int) -> None:
    text = f"{type_.lower()}-{mt_s}x{channels}"
    if mt_s <= FASTEST_MT_S[type_] and 1 <= channels <= 16:
        ram = read_ram(text)
        assert (ram.type, ram.mt_s, ram.channels) == (type_, mt_s, channels)
        assert read_ram(ram.text) == ram
    else:
        with pytest.raises(InputError) as caught:
            read_ram(text)
        assert caught.value.hint


NONSENSE = ("", " ", "ddr", "ddr9-3200", "3200", "fast", "ddr4-3200x2 rtx 3060", "ddr2x-800", "4x ddr4-3200x2", "0GB")


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_ram(text)
