"""Processors that hide their model, by the numbers of their cores."""

from itertools import combinations

import pytest

from gpuwise.facts.hardware.core_ids import core_ids, processor_of_core
from gpuwise.facts.hardware.cpus import cpus, find_cpu, with_cores
from gpuwise.facts.loading import Record
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.processor import token_time


def test_every_row_names_a_server_with_those_cores() -> None:
    for record in core_ids():
        cpu = cpus()[record.text("taken_as")]
        assert (cpu.family, cpu.kind) == (record.text("core"), "server")


def test_no_two_rows_hold_the_same_numbers() -> None:
    def numbers(row: Record) -> set[tuple[str, int, int, int]]:
        low, high = row.maybe_integer("stepping_low"), row.maybe_integer("stepping_high")
        steps = range(low or 0, (15 if high is None else high) + 1)
        models = range(row.integer("model_low"), row.integer("model_high") + 1)
        return {(row.text("vendor"), row.integer("family"), model, step) for model in models for step in steps}

    for one, other in combinations(core_ids(), 2):
        assert not numbers(one) & numbers(other)


@pytest.mark.parametrize(
    ("name", "numbers", "core"),
    [  # /proc/cpuinfo of rented machines
        ("AMD EPYC 7R13 Processor", ("AuthenticAMD", 25, 1, 1), "Zen 3"),
        ("AMD EPYC 7B12", ("AuthenticAMD", 23, 49, 0), "Zen 2"),
        ("AMD EPYC 9V74 80-Core Processor", ("AuthenticAMD", 25, 17, 1), "Zen 4"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", ("GenuineIntel", 6, 79, 0), "Broadwell"),
        ("Intel(R) Xeon(R) CPU @ 2.00GHz", ("GenuineIntel", 6, 85, 3), "Skylake-SP"),
        ("Intel(R) Xeon(R) CPU @ 2.80GHz", ("GenuineIntel", 6, 85, 7), "Cascade Lake"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", ("GenuineIntel", 6, 143, 8), "Sapphire Rapids"),
        ("aarch64", ("0x41", 8, 0xD40, None), "Neoverse V1"),
    ],
)
def test_a_rented_machine_is_known_by_its_cores(name: str, numbers: tuple[str, int, int, int | None], core: str) -> None:
    cpu = processor_of_core(name, *numbers)
    assert cpu is not None and cpu.family == core
    assert cpu.name == f"{name} ({core})" and core in cpu.assumption and name in cpu.assumption


@pytest.mark.parametrize("numbers", [("AuthenticAMD", 25, 33, 0), ("GenuineIntel", 6, 85, None), ("0x41", 8, 0xD0B, None)])
def test_cores_of_no_server_are_not_guessed(numbers: tuple[str, int, int, int | None]) -> None:
    assert processor_of_core("QEMU Virtual CPU", *numbers) is None


def test_more_cores_are_never_slower_and_all_are_the_processor() -> None:
    whole, arch = find_cpu("EPYC 7763"), find_model("llama-3.1-8b")
    assert with_cores(whole, 64) is whole and with_cores(whole, 96) is whole
    seconds = [token_time(with_cores(whole, n), arch, "Q4_K_M").time_s.expected for n in (1, 2, 4, 8, 16, 32)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[1] > 3 * token_time(whole, arch, "Q4_K_M").time_s.expected
