"""Processors: figures that must agree with one another, names as people write them, rows that are refused."""

from __future__ import annotations

import pytest

from gpuwise.errors import AmbiguousNameError, FieldError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.cpus import CPU_DTYPES, cpus, find_cpu, parse_cpus
from gpuwise.facts.loading import shipped_text

NAMES = {
    "EPYC 9654": "epyc-9654",
    "9654": "epyc-9654",
    "AMD EPYC 7763 64-Core Processor": "epyc-7763",
    "Intel(R) Xeon(R) Platinum 8480+": "xeon-platinum-8480plus",
    "xeon 8480": "xeon-platinum-8480plus",
    "8480C": "xeon-platinum-8480plus",
    "i5-12400": "core-i5-12400",
    "Intel Core i9-13900K": "core-i9-13900k",
    "graviton 4": "graviton4",
    "altra": "altra-q80-30",
    "Altra Max": "altra-max-m128-30",
    "m2": "apple-m2-cpu",
    "M2 Ultra CPU": "apple-m2-ultra-cpu",
    "threadripper 7995wx": "threadripper-pro-7995wx",
    "8275CL": "xeon-platinum-8275cl",
}


@pytest.mark.parametrize(("text", "expected"), NAMES.items())
def test_names_as_people_write_them(text: str, expected: str) -> None:
    assert find_cpu(text).id == expected


def test_every_id_name_and_alias_finds_its_own_row() -> None:
    for cpu in cpus().values():
        for name in (cpu.id, cpu.name, *cpu.aliases):
            assert find_cpu(name).id == cpu.id, name


@pytest.mark.parametrize("text", ["", " ", "h100", "nonsense", "x" * 5000, "\x00", "cpu"])
def test_what_is_no_processor_is_refused(text: str) -> None:
    with pytest.raises(UnknownNameError):
        find_cpu(text)


def test_a_family_is_ambiguous_and_a_slip_gets_the_nearest() -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        find_cpu("epyc")
    assert "epyc-9654" in caught.value.candidates
    with pytest.raises(UnknownNameError) as slip:
        find_cpu("epcy-9654")
    assert slip.value.nearest[0] == "epyc-9654"


def test_the_catalogue_spans_desktop_laptop_and_server() -> None:
    assert len(cpus()) >= 35
    assert {c.kind for c in cpus().values()} == {"desktop", "laptop", "server"}
    assert {c.vendor for c in cpus().values()} >= {"Intel", "AMD", "Apple", "AWS", "Ampere"}


def test_figures_lie_where_processors_are() -> None:
    for cpu in cpus().values():
        per_core = cpu.peak("fp32") / (cpu.cores + cpu.efficiency_cores)
        assert 30e9 < per_core < 600e9, cpu.id
        assert 30e9 < cpu.memory_bandwidth_bytes_per_s < 1e12, cpu.id
        assert cpu.source and set(cpu.peak_flop_per_s) <= set(CPU_DTYPES)
        for dtype in ("bf16", "int8"):
            if dtype in cpu.peak_flop_per_s:
                assert cpu.peak(dtype) >= 2 * cpu.peak("fp32") * 0.99, cpu.id
        if cpu.rental is not None:
            assert cpu.usd_per_hour is not None and 0.01 < cpu.usd_per_hour / cpu.cores < 0.15, cpu.id


def test_published_peaks() -> None:
    """Peaks the vendors or papers print, at the clock they print them for."""
    assert find_cpu("epyc 9654").peak("fp32") == pytest.approx(96 * 3.55e9 * 32)
    assert find_cpu("graviton3").peak("fp32") == pytest.approx(64 * 2.6e9 * 32)
    amx = find_cpu("xeon 8480+")
    assert amx.peak("bf16") / amx.peak("fp32") == pytest.approx(16)  # 1024 against 64 a clock
    hybrid = find_cpu("i9-13900k")
    assert hybrid.peak("fp32") == pytest.approx(8 * 5.5e9 * 32 + 16 * 4.3e9 * 16)


def test_a_format_without_instructions_is_refused() -> None:
    with pytest.raises(UnpredictableError, match="no bf16 instructions"):
        find_cpu("ryzen 9 5950x").peak("bf16")


def _rows() -> list[str]:
    return [line for line in shipped_text("cpus.csv").split("\n") if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("column", "cell", "field"),
    [
        ("bandwidth_gb_s", "400", "bandwidth_gb_s"),
        ("memory_channels", "6", "bandwidth_gb_s"),
        ("allcore_mhz", "2000", "allcore_mhz"),
        ("max_mhz", "3000", "allcore_mhz"),
        ("source", "nobody", "source"),
        ("tdp_w", "-5", "tdp_w"),
        ("cores", "0", "cores"),
        ("fp32_per_clock", "nan", "fp32_per_clock"),
        ("rental_usd_h", "2", "rental_instance"),
        ("efficiency_cores", "4", "efficiency_mhz"),
        ("cell_sources", "height=intel-ark-cpus", "cell_sources"),
        ("kind", "phone", "kind"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(column: str, cell: str, field: str) -> None:
    head, *rows = _rows()
    at = next(i for i, row in enumerate(rows) if row.startswith("epyc-9654,"))
    cells = ["epyc-9654", *_split(rows[at])[1:]]
    cells[head.split(",").index(column)] = cell
    quoted = ",".join(f'"{c}"' if "," in c else c for c in cells)
    with pytest.raises(FieldError) as caught:
        parse_cpus("\n".join([head, quoted]), "cpus.csv")
    assert caught.value.field == field and caught.value.line == 2 and caught.value.hint


def test_an_id_twice_is_refused() -> None:
    head, *rows = _rows()
    with pytest.raises(FieldError, match="appears twice"):
        parse_cpus("\n".join([head, rows[0], rows[0]]), "cpus.csv")


def _split(row: str) -> list[str]:
    import csv

    return next(csv.reader([row]))
