"""Processors: figures that must agree with one another, names as people write them, rows that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import AmbiguousNameError, FieldError, InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.cpus import CPU_DTYPES, CPU_SCHEMA, all_cpu_names, cpu_from_record, cpus, find_cpu
from gpuwise.facts.hardware.ram import FASTEST_MT_S, read_ram
from gpuwise.facts.loading import parse_csv, shipped_text

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
    "AMD Ryzen 7 5700G with Radeon Graphics": "ryzen-7-5700g",
    "Intel(R) Core(TM) i7-11700K @ 3.60GHz": "core-i7-11700k",
    "11th Gen Intel(R) Core(TM) i7-1185G7 @ 3.00GHz": "core-i7-1185g7",
    "12th Gen Core i7-1260P": "core-i7-1260p",
    "Intel(R) Xeon(R) CPU E5-2697 v2 @ 2.70GHz": "xeon-e5-2697-v2",
    "Xeon E3-1245 V2": "xeon-e3-1245-v2",
    "AMD FX(tm)-8320 Eight-Core Processor": "fx-8320",
    "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S": "ryzen-ai-maxplus-395",
    "Framework 13 (Ryzen AI 5 340 16GB)": "ryzen-ai-5-340",
    "Ryzen 7 PRO 8840U": "ryzen-7-8840u",
    "Ryzen Threadripper PRO 3955WX 16-Cores": "threadripper-pro-3955wx",
    "Threadripper 3970X": "threadripper-3970x",
    "Raspberry Pi 5 Model B Rev 1.0": "raspberry-pi-5",
    "Pi 5 - 16GB": "raspberry-pi-5",
    "Pi 400 - 4GB": "raspberry-pi-4",
    "Xeon QYFS, 512GB DDR5 4800": "xeon-platinum-8480plus",
    "Apple M1 Ultra 16P+4E": "apple-m1-ultra-cpu",
    "Apple Mac mini M4": "apple-m4-cpu",
    "Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU": "snapdragon-x1e-80-100",
    "Qualcomm Snapdragon 888 ARM64": "snapdragon-888",
    "HiFive Premier P550 (4-core RISC-V)": "eic7700x",
    "cpu: Core Ultra 7 268V": "core-ultra-7-268v",
    "N100": "intel-n100",
}


@pytest.mark.parametrize(("text", "expected"), NAMES.items())
def test_names_as_people_write_them(text: str, expected: str) -> None:
    assert find_cpu(text).id == expected


def test_every_id_name_and_alias_finds_its_own_row() -> None:
    for cpu in cpus().values():
        for name in (cpu.id, cpu.name, *cpu.aliases):
            assert find_cpu(name).id == cpu.id, name


GENERIC = ("x86 8 cores", "12-core x86", "x86 (unnamed)", "cpu", "Intel", "Core", "QEMU Virtual version 2.5+", "aarch64")


@pytest.mark.parametrize("text", ["", " ", "h100", "nonsense", "x" * 5000, "\x00", "Dell Optiplex 780", "2x", *GENERIC])
def test_what_is_no_processor_is_refused(text: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_cpu(text)
    assert caught.value.hint
    assert ("lscpu" in caught.value.hint) == (text in GENERIC)


SPELLED = ("{}", "{} CPU", "  {}  ", "{} Processor", "cpu: {}", "{}, 64GB", "{} (mine)")


@given(st.sampled_from(all_cpu_names()), st.sampled_from(SPELLED), st.booleans())
def test_a_name_is_found_in_every_dress(name: str, spelled: str, upper: bool) -> None:
    text = spelled.format(name)
    assert find_cpu(text.upper() if upper else text).id == find_cpu(name).id


@given(
    st.sampled_from(all_cpu_names()), st.sampled_from((2, 4)), st.sampled_from(("{0}x {1}", "{0}x{1}", "{0} x {1}", "{1} x{0}"))
)
def test_sockets_multiply_cores_rates_and_memory(name: str, n: int, spelled: str) -> None:
    one, several = find_cpu(name), find_cpu(spelled.format(n, name))
    assert (several.id, several.sockets, several.cores) == (one.id, n, n * one.cores)
    assert several.peak("fp32") == n * one.peak("fp32")
    assert several.memory_bandwidth_bytes_per_s == n * one.memory_bandwidth_bytes_per_s
    assert several.name == f"{n}x {one.name}" and several.memory == one.memory


def test_spelled_sockets() -> None:
    assert (
        find_cpu("dual EPYC 7763").sockets == find_cpu("EPYC 7763 x2").sockets == find_cpu("EPYC 7763 (2 sockets)").sockets == 2
    )


@given(st.sampled_from(sorted(cpus())), st.integers(1, 12), st.sampled_from((800, 1600, 2000, 3000)))
def test_named_memory_gives_the_bandwidth_or_is_refused(cpu_id: str, channels: int, mt_s: int) -> None:
    cpu = cpus()[cpu_id]
    text = f"{cpu.memory_type}-{mt_s}x{channels}".lower()
    try:
        with_ram = find_cpu(cpu_id, read_ram(text))
    except InputError as error:
        assert channels > cpu.memory_channels or mt_s > FASTEST_MT_S[cpu.memory_type], error
        return
    assert with_ram.memory_bandwidth_bytes_per_s == pytest.approx(channels * 8 * mt_s * 1e6)
    assert with_ram.assumption == "" and with_ram == find_cpu(f"{cpu_id} {text}")


def test_memory_that_was_not_named_is_stated() -> None:
    cpu = find_cpu("Ryzen 7 7840HS")
    assert cpu.memory == "DDR5-5600 x 2" and cpu.memory_bandwidth_bytes_per_s == pytest.approx(89.6e9)
    assert "DDR5-5600 x 2, the fastest stated for it (it also takes LPDDR5X-7500)" in cpu.assumption
    assert find_cpu("Raspberry Pi 5").assumption == find_cpu("Apple M4").assumption == ""  # soldered, of one kind
    assert "8 large and 2 small" in find_cpu("M1 Pro 6P+2E").assumption
    assert find_cpu("Ryzen 7 7840HS lpddr5x-7500").memory_bandwidth_bytes_per_s == pytest.approx(120e9)
    assert find_cpu("i5-12400 ddr4").memory == "DDR4-3200 x 2"


@pytest.mark.parametrize(
    ("cpu", "ram", "message"),
    [
        ("EPYC 9654", "ddr4-3200x12", "takes DDR5, not DDR4"),
        ("i7-8700K", "ddr4-3200x4", "has 2 memory channels, not 4"),
        ("Intel N100", "ddr5-4800x2", "has 1 memory channel, not 2"),
        ("i7-8700K ddr4-2666", "ddr4-3200x2", "names its memory, and --ram another"),
    ],
)
def test_memory_that_a_processor_does_not_take_is_refused(cpu: str, ram: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        find_cpu(cpu, read_ram(ram))
    assert caught.value.hint


def test_a_family_is_ambiguous_and_a_slip_gets_the_nearest() -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        find_cpu("epyc")
    assert "epyc-9654" in caught.value.candidates
    with pytest.raises(UnknownNameError) as slip:
        find_cpu("epcy-9654")
    assert slip.value.nearest[0] == "epyc-9654"


def test_the_catalogue_spans_desktop_laptop_and_server() -> None:
    assert len(cpus()) >= 1400
    assert {c.kind for c in cpus().values()} == {"desktop", "laptop", "server", "board", "phone"}
    assert {c.vendor for c in cpus().values()} >= {"Intel", "AMD", "Apple", "AWS", "Ampere"}


def test_figures_lie_where_processors_are() -> None:
    for cpu in cpus().values():
        per_core = cpu.peak("fp32") / (cpu.cores + cpu.efficiency_cores)
        assert (2e9 if cpu.family == "SiFive P550" else 8e9) < per_core < 600e9, cpu.id
        assert 3e9 < cpu.memory_bandwidth_bytes_per_s < 1e12, cpu.id
        assert cpu.source and set(cpu.peak_flop_per_s) <= set(CPU_DTYPES)
        for dtype in ("bf16", "int8"):
            if dtype in cpu.peak_flop_per_s:
                assert cpu.peak(dtype) >= 2 * cpu.peak("fp32") * 0.99, cpu.id
        if cpu.rental is not None:
            assert cpu.usd_per_hour is not None and 0.01 < cpu.usd_per_hour / cpu.cores < 0.15, cpu.id


def test_what_no_data_sheet_was_at_hand_for_is_weak() -> None:
    assert find_cpu("Core Ultra 7 155H").weak[0] == "all"
    assert "base_mhz" in find_cpu("i7-1260P").weak
    assert find_cpu("Xeon E5-2697 v2").weak == ("allcore_mhz",)


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
        ("kind", "toaster", "kind"),
        ("memory_also", "DDR4", "memory_also"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(column: str, cell: str, field: str) -> None:
    head, *rows = _rows()
    at = next(i for i, row in enumerate(rows) if row.startswith("epyc-9654,"))
    cells = ["epyc-9654", *_split(rows[at])[1:]]
    cells[head.split(",").index(column)] = cell
    quoted = ",".join(f'"{c}"' if "," in c else c for c in cells)
    with pytest.raises(FieldError) as caught:
        cpu_from_record(*parse_csv("\n".join([head, quoted]), CPU_SCHEMA, "cpus.csv"))
    assert caught.value.field == field and caught.value.line == 2 and caught.value.hint


def _split(row: str) -> list[str]:
    import csv

    return next(csv.reader([row]))
