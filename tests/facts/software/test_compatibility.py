"""The table of wheels against its own laws, and against what the wheels of this environment say of themselves."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import DataError, FieldError, InputError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.loading import shipped_text
from gpuwise.facts.software import compatibility
from gpuwise.facts.software.compatibility import (
    at_least,
    cuda_error_in,
    cuda_errors,
    family_driver,
    find_wheel,
    generation_of,
    generation_of_chip,
    generations,
    images,
    newest_cuda,
    parse_capability,
    parse_version,
    parse_wheels,
    rocm_builds,
    runs_on,
    wheels,
    wheels_for,
)
from gpuwise.facts.software.os_commands import os_commands, os_commands_for
from gpuwise.facts.sources import sources

CAPABILITIES = [
    (3, 5),
    (5, 2),
    (6, 0),
    (6, 1),
    (7, 0),
    (7, 5),
    (8, 0),
    (8, 6),
    (8, 9),
    (9, 0),
    (10, 0),
    (10, 3),
    (12, 0),
    (12, 1),
]
CAPABILITY = st.sampled_from(CAPABILITIES)
DRIVER = st.tuples(st.integers(400, 650), st.integers(0, 200))
ROWS = {(w.release, w.build): w for w in wheels()}


def names(found: tuple) -> list[tuple[str, str]]:
    return [(w.release, w.build) for w in found]


# --- what the wheels say ---


def test_the_table_has_every_release_and_its_default_build() -> None:
    assert len(wheels()) == 44
    defaults = {w.series: w.build for w in wheels() if w.pypi_default}
    assert defaults == {
        (2, 15): "cu132",
        (2, 14): "cu130",
        (2, 13): "cu130",
        (2, 12): "cu130",
        (2, 11): "cu130",
        (2, 10): "cu128",
        (2, 9): "cu128",
        (2, 8): "cu128",
        (2, 7): "cu126",
        (2, 6): "cu124",
        (2, 5): "cu124",
        (2, 4): "cu121",
        (2, 3): "cu121",
        (2, 2): "cu121",
        (2, 1): "cu121",
        (2, 0): "cu117",
        (1, 13): "cu117",
    }


@pytest.mark.parametrize(
    ("capability", "first", "last"),
    [
        ((3, 7), "1.13.1", "2.0.1"),
        ((6, 1), "1.13.1", "2.7.1"),
        ((7, 0), "1.13.1", "2.10.0"),
        ((7, 5), "1.13.1", "2.15.0"),
        ((8, 9), "1.13.1", "2.15.0"),
        ((9, 0), "2.1.2", "2.15.0"),
        ((10, 0), "2.8.0", "2.15.0"),
        ((12, 0), "2.8.0", "2.15.0"),
    ],
)
def test_the_cliffs_of_plain_pip_install(capability: tuple[int, int], first: str, last: str) -> None:
    """From which release to which `pip install torch` runs on a card."""
    served = [w.release for w in wheels_for([capability], None) if w.pypi_default]
    assert (served[-1], served[0]) == (first, last)


def test_the_last_wheels_of_old_cards() -> None:
    for capability in ((5, 2), (6, 1), (7, 0)):
        assert names(wheels_for([capability], (580,)))[0] == ("2.14.*", "cu126")
    assert wheels_for([(6, 1), (12, 0)], None) == ()


@pytest.mark.parametrize(
    ("capability", "driver", "python", "best"),
    [
        ((8, 9), "550.54.14", (3, 11), ("2.14.*", "cu126")),
        ((8, 9), "580.65.06", (3, 11), ("2.15.0", "cu132")),
        ((8, 9), "580.65.06", (3, 10), ("2.14.1", "cu130")),
        ((12, 0), "570.26", (3, 12), ("2.11.*", "cu128")),
        ((8, 0), "450.80.02", (3, 9), ("2.7.1", "cu118")),
        ((8, 0), "449.0", (3, 9), None),
    ],
)
def test_what_runs_is_found(
    capability: tuple[int, int], driver: str, python: tuple[int, int], best: tuple[str, str] | None
) -> None:
    found = names(wheels_for([capability], parse_version(driver), python=python))
    assert (found[0] if found else None) == best


def test_an_installed_wheel_is_found() -> None:
    assert find_wheel("2.13.0+cu130", "cu130") == ROWS["2.13.0", "cu130"]
    assert find_wheel("2.7.0") == ROWS["2.7.1", "cu126"], "another patch of the series"
    assert find_wheel("2.9.1", "cu126") == ROWS["2.9.*", "cu126"]
    assert find_wheel("2.13.0", "cpu") is None and find_wheel("9.9.9") is None and find_wheel("abc") is None


# --- laws ---


@given(capabilities=st.lists(CAPABILITY, min_size=1, max_size=3), older=DRIVER, newer=DRIVER, windows=st.booleans())
def test_a_newer_driver_never_loses_a_wheel(
    capabilities: list[tuple[int, int]], older: tuple[int, int], newer: tuple[int, int], windows: bool
) -> None:
    older, newer = sorted((older, newer))
    assert set(names(wheels_for(capabilities, older, windows=windows))) <= set(
        names(wheels_for(capabilities, newer, windows=windows))
    )


@given(first=CAPABILITY, second=CAPABILITY, driver=DRIVER)
def test_a_wheel_for_two_cards_is_one_for_each(first: tuple[int, int], second: tuple[int, int], driver: tuple[int, int]) -> None:
    both = set(names(wheels_for([first, second], driver)))
    assert both == set(names(wheels_for([first], driver))) & set(names(wheels_for([second], driver)))


@given(built=CAPABILITY, card=CAPABILITY)
def test_compiled_code_runs_on_its_own_major_and_no_lower_minor(built: tuple[int, int], card: tuple[int, int]) -> None:
    name = f"{built[0]}{built[1]}"
    assert runs_on([f"sm_{name}"], card) == (card[0] == built[0] and card[1] >= built[1])
    assert runs_on([f"compute_{name}"], card) == (card >= built)
    assert runs_on([f"sm_{name}a"], card) == (card == built)
    assert not runs_on([f"sm_{name}"], card) or runs_on([f"compute_{name}"], card)


@given(
    names_=st.lists(st.text(max_size=8) | st.sampled_from(["sm_80", "sm_9", "gfx942", "8.0+PTX", ""]), max_size=4),
    card=CAPABILITY,
)
def test_what_is_no_architecture_runs_nowhere(names_: list[str], card: tuple[int, int]) -> None:
    assert runs_on(names_, card) == runs_on(
        [n for n in names_ if re.fullmatch(r"(sm|compute)_[0-9]+[af]?", n.strip().lower())], card
    )


def test_listed_capabilities_obey_the_rule() -> None:
    for wheel in wheels():
        for name in wheel.architectures:
            assert runs_on(wheel.architectures, (int(name[3:-1]), int(name[-1]))), wheel.release


def test_a_default_wheel_and_its_build_of_another_release_agree() -> None:
    """Within one CUDA family every wheel names the same oldest driver, and none is newer than the one of its toolkit."""
    for wheel in wheels():
        assert family_driver(wheel.cuda) == wheel.driver_linux
        assert wheel.paired_driver_linux is None or at_least(wheel.paired_driver_linux, wheel.driver_linux)
        assert wheel.build == "cu" + "".join(map(str, wheel.cuda))
        assert wheel.python_min <= wheel.python_max


def test_wheels_come_newest_first() -> None:
    orders = [w.order for w in wheels()]
    assert orders == sorted(orders, reverse=True)
    found = wheels_for([(8, 0)], None)
    assert [w.experimental for w in found] == sorted(w.experimental for w in found)


# --- drivers, cards, errors, images, systems ---


def test_every_catalogued_card_of_nvidia_belongs_to_a_generation() -> None:
    for a in accelerators().values():
        if a.vendor == "NVIDIA" and a.compute_capability:
            assert generation_of(parse_capability(a.compute_capability)), a.id


def test_generations_say_which_driver_serves_them() -> None:
    for a, b in itertools.pairwise(generations().values()):
        assert (a.first_driver or 0) <= (b.first_driver or 0)
    for g in generations().values():
        assert (g.first_driver or 0) <= g.install_driver <= (g.last_driver or 999)
    pascal, blackwell = generation_of((6, 1)), generation_of((12, 0))
    assert pascal and (pascal.last_driver, pascal.kernel_modules) == (580, "proprietary")
    assert blackwell and (blackwell.first_driver, blackwell.kernel_modules) == (570, "open")
    assert generation_of((99, 0)) is None


@pytest.mark.parametrize(
    ("chip", "name"),
    [
        ("AD102 [GeForce RTX 4090]", "ada"),
        ("GB202", "blackwell"),
        ("GP102", "pascal"),
        ("gk110", "kepler"),
        ("Navi 31", None),
        ("", None),
    ],
)
def test_a_chip_says_its_generation(chip: str, name: str | None) -> None:
    found = generation_of_chip(chip)
    assert (found.name if found else None) == name


def test_the_newest_cuda_of_a_driver() -> None:
    assert newest_cuda((580, 95, 5)) == (13, 0)
    assert newest_cuda((550, 54, 14)) == (12, 4)
    assert newest_cuda((470, 256, 2)) == (11, 4)
    assert newest_cuda((528, 33)) == (12, 0), "Windows' number of branch 525"
    assert newest_cuda((300,)) is None


def test_errors_are_recognised_by_number_and_by_words() -> None:
    for error in cuda_errors():
        assert cuda_error_in(f"RuntimeError: CUDA error: {error.phrase.upper()}") is error
        assert cuda_error_in(f"Unexpected error from cudaGetDeviceCount(). Error {error.code}: x") is error
    assert cuda_error_in("error 8040: something else") is None
    assert cuda_error_in("") is None


def test_images_and_amd_builds() -> None:
    assert {i.kind for i in images()} == {"cuda", "ngc"}
    for image in images():
        assert family_driver(image.cuda) and image.source_key in sources()
    assert rocm_builds()[0][0] >= rocm_builds()[-1][0]


def test_every_system_has_every_command() -> None:
    for family in os_commands().values():
        for commands in (family.driver_open, family.driver_closed, family.rebuild, family.initramfs, family.toolkit):
            assert commands
            for command in commands:
                assert set(re.findall(r"\{(\w+)\}", re.sub(r"\$\{\w+\}", "", command))) <= {"branch", "version", "arch"}, command
    claimed = [name for family in os_commands().values() for name in family.ids]
    assert len(claimed) == len(set(claimed))
    assert os_commands_for(("linuxmint", "ubuntu", "debian")) is os_commands()["ubuntu"]
    assert os_commands_for(("nixos",)) is None and os_commands_for(()) is None


# --- bad input ---


@pytest.mark.parametrize("text", ["", "x", "v580", ".", "-1", "²", " "])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_version(text)


@pytest.mark.parametrize("text", ["", "8", "8.", ".9", "a.b", "8.9.1", "-8.9", "²·1"])
def test_what_is_no_capability_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_capability(text)


def _table() -> list[str]:
    return [line for line in shipped_text("compatibility.csv").split("\n") if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("architectures", "sm90"),
        ("architectures", "8.0"),
        ("cuda", "twelve"),
        ("driver_linux", ""),
        ("driver_linux", "x"),
        ("python_min", "three"),
        ("source", "nowhere"),
        ("pypi_default", "yes"),
        ("release", ""),
    ],
)
def test_a_bad_cell_is_named(column: str, cell: str) -> None:
    rows = _table()
    cells = rows[1].split(",")
    cells[rows[0].split(",").index(column)] = cell
    with pytest.raises(FieldError) as caught:
        parse_wheels("\n".join([rows[0], ",".join(cells)]), "mine.csv")
    assert caught.value.field == column and caught.value.line == 2


def test_a_row_that_stands_twice_is_refused() -> None:
    rows = _table()
    with pytest.raises(FieldError, match="twice"):
        parse_wheels("\n".join([rows[0], rows[1], rows[1]]), "mine.csv")


def test_a_changed_digit_gives_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shipped_text("compatibility.csv").replace("525.60.13", "525.60.14", 1)
    monkeypatch.setattr(compatibility, "shipped_text", lambda name: text)
    wheels.cache_clear()
    try:
        with pytest.raises(DataError, match="checksum"):
            wheels()
    finally:
        wheels.cache_clear()
