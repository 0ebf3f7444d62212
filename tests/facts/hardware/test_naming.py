from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import AmbiguousNameError, GpuwiseError, InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import USUAL, counted, find_accelerator, find_cards, find_cluster, is_counted
from gpuwise.units import GIB

TYPED = {
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "RTX4090-24GB": "rtx-4090",
    "4090 d": "rtx-4090-d",
    "4070tisuper": "rtx-4070-ti-super",
    "7900xtx": "rx-7900-xtx",
    "a100-80gb": "a100-sxm-80gb",
    "A100-40GB": "a100-sxm-40gb",
    "V100-16GB": "v100-sxm-16gb",
    "H100 SXM5 80GB": "h100-sxm-80gb",
    "H100-SXM": "h100-sxm-80gb",
    "h100 pcie": "h100-pcie-80gb",
    "h200": "h200-sxm-141gb",
    "H200 NVL": "h200-nvl-141gb",
    "A6000-48GB": "rtx-a6000",
    "m1": "apple-m1",
    "M1 Ultra": "apple-m1-ultra",
    "mi300x": "mi300x",
    "gb10": "gb10",
    "trillium": "tpu-v6e",
    "iphone 16 pro": "apple-a18-pro-ane",
}
REPORTED_BY_DRIVERS = {
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H100 NVL": "h100-nvl-94gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA GH200 144G HBM3e": "gh200-144gb",
    "NVIDIA B200": "b200-sxm",
    "NVIDIA B300 SXM6 AC": "b300-sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB10": "gb10",
    "NVIDIA L4": "l4",
    "NVIDIA A10G": "a10g",
    "Tesla T4": "t4",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm-32gb",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4060 Laptop GPU": "rtx-4060-laptop",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "Quadro RTX 6000": "quadro-rtx-6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-blackwell-server",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000-blackwell-workstation",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "rtx-pro-6000-blackwell-max-q",
    "AMD Instinct MI210": "mi210",
    "AMD Instinct MI250X/MI250": "mi250x",
    "AMD Radeon RX 7900 XTX": "rx-7900-xtx",
    "Intel(R) Arc(TM) Pro B60 Graphics": "arc-pro-b60",
    "Intel(R) Graphics [0xe211]": "arc-pro-b60",
}
WRITTEN_IN_TABLES = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb300": "gb300",
    "l40s": "l40s",
    "b60": "arc-pro-b60",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
    "rtx_pro6000_maxq": "rtx-pro-6000-blackwell-max-q",
    "pro6000maxq": "rtx-pro-6000-blackwell-max-q",
    "Tesla_T4": "t4",
    "RTX_6000_Ada_Generation": "rtx-6000-ada",
    "RTX_2080_Super_with_Max-Q_Design": "rtx-2080-super-max-q",
    "RTX_3080": "rtx-3080-10gb",
    "TitanRTX": "titan-rtx",
    "H100-96GB-HBM2e-500W (Grand Teton)": "h100-sxm-96gb-hbm2e-500w",
    "H100-95GB-HBM2e": "h100-sxm-96gb-hbm2e-500w",
    "B200 (184 GiB class, inferred from % memory)": "b200-sxm",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "b200-sxm",
    "NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)": "b300-sxm",
    "NVIDIA Blackwell GPU (GB200)": "gb200",
    "AMD Instinct MI325X 256GB HBM3E DLC": "mi325x",
    "NVIDIA RTX Pro 6000 SE PCIe 96GB": "rtx-pro-6000-blackwell-server",
    "Intel(R) Gaudi(R) 2 AI Accelerator": "gaudi2",
    "NVIDIA RTX 4000 Ada-PCIe-20GB": "rtx-4000-ada",
    "GH200 96GB (HBM3)": "gh200-96gb",
    "A100_80GB_SXM4": "a100-sxm-80gb",
}


@pytest.mark.parametrize(("text", "device"), [*TYPED.items(), *REPORTED_BY_DRIVERS.items(), *WRITTEN_IN_TABLES.items()])
def test_names_lead_to_their_device(text, device):
    assert find_accelerator(text).id == device


@pytest.mark.parametrize("device", list(accelerators()))
def test_every_id_and_name_leads_back(device):
    accelerator = accelerators()[device]
    for text in (device, device.upper(), accelerator.name, f"{accelerator.vendor} {accelerator.name}"):
        assert find_accelerator(text).id == accelerator.id


@pytest.mark.parametrize(
    ("text", "among"),
    [
        ("h100", {"h100-sxm-80gb", "h100-pcie-80gb", "h100-nvl-94gb"}),
        ("a100", {"a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb"}),
        ("NVIDIA A100 PCIe", {"a100-pcie-40gb", "a100-pcie-80gb"}),
        ("v100", {"v100-sxm-16gb", "v100-pcie-32gb"}),
        ("gh200", {"gh200-96gb", "gh200-144gb"}),
        ("rtx 6000", {"quadro-rtx-6000", "rtx-6000-ada", "rtx-pro-6000-blackwell-server"}),
        ("rtx pro 6000", {"rtx-pro-6000-blackwell-server", "rtx-pro-6000-blackwell-workstation"}),
        ("5060 ti", {"rtx-5060-ti-8gb", "rtx-5060-ti-16gb"}),
    ],
)
def test_an_ambiguous_name_lists_its_candidates(text, among):
    with pytest.raises(AmbiguousNameError) as caught:
        find_accelerator(text)
    assert among <= set(caught.value.candidates)
    for candidate in caught.value.candidates:
        assert find_accelerator(candidate).id == candidate


@pytest.mark.parametrize(
    ("text", "first"),
    [("h100", "h100-sxm-80gb"), ("a100", "a100-sxm-80gb"), ("v100", "v100-sxm-32gb"), ("8xA100", "8xa100-sxm-80gb")],
)
def test_an_ambiguous_name_says_which_most_people_mean(text, first):
    with pytest.raises(AmbiguousNameError, match="the most common is '" + first) as caught:
        find_cluster(text)
    assert caught.value.candidates[0] == first


@pytest.mark.parametrize(
    ("text", "device", "total", "others"),
    [
        ("H100", "h100-sxm-80gb", 1, ("h100-sxm-94gb", "h100-pcie-80gb", "h100-nvl-94gb")),
        ("8xA100", "a100-sxm-80gb", 8, ("a100-sxm-40gb", "a100-pcie-40gb", "a100-pcie-80gb")),
        ("8xH100", "h100-sxm-80gb", 8, ("h100-sxm-94gb", "h100-pcie-80gb", "h100-nvl-94gb")),
    ],
)
def test_the_usual_part_is_taken_and_said(text, device, total, others):
    cluster = find_cluster(text, prefer=USUAL)
    assert (cluster.accelerator.id, cluster.n_accelerators) == (device, total)
    assert cluster.accelerator.name in cluster.assumption
    assert all(other in cluster.assumption for other in others)
    assert cluster == find_cluster(f"{total}x{device}") and not find_cluster(f"{total}x{device}", prefer=USUAL).assumption


@pytest.mark.parametrize(
    ("text", "counted"), [("H100", False), ("RTX 4090", False), ("1xH100", True), ("H100 x2", True), ("dgx-h100", True)]
)
def test_whether_a_name_says_how_many(text, counted):
    assert is_counted(text) is counted


def test_a_preference_settles_an_ambiguity_and_nothing_else():
    assert find_accelerator("A100", prefer=("sxm", "80gb")).id == "a100-sxm-80gb"
    assert find_accelerator("NVIDIA A100 PCIe", prefer=("sxm", "80gb")).id == "a100-pcie-80gb"
    assert find_accelerator("GH200", prefer=("sxm", "80gb", "96gb")).id == "gh200-96gb"
    assert find_accelerator("4090", prefer=("sxm",)).id == "rtx-4090"
    with pytest.raises(AmbiguousNameError):
        find_accelerator("A100", prefer=("sxm",))


@pytest.mark.parametrize(("text", "near"), [("h10o-sxm-80gb", "h100-sxm-80gb"), ("mi3000x", "MI300X"), ("rtx 4091", "RTX 4090")])
def test_an_unknown_name_suggests_the_nearest(text, near):
    with pytest.raises(UnknownNameError) as caught:
        find_accelerator(text)
    assert near in caught.value.nearest and near in (caught.value.hint or "")


FORUM_NAMES = {
    "rtx pro 6000": "rtx-pro-6000-blackwell-workstation",
    "RTX 6000 Blackwell": "rtx-pro-6000-blackwell-workstation",
    "6000 pro": "rtx-pro-6000-blackwell-workstation",
    "PRO 6000 96GB": "rtx-pro-6000-blackwell-workstation",
    "rtx pro 6000 max-q": "rtx-pro-6000-blackwell-max-q",
    "rtx pro 5000": "rtx-pro-5000-blackwell-48gb",
    "rtx 6000 ada": "rtx-6000-ada",
    "6000 ada": "rtx-6000-ada",
    "A6000": "rtx-a6000",
    "a100 80gb pcie": "a100-pcie-80gb",
    "a100-80": "a100-sxm-80gb",
    "A100 40g": "a100-sxm-40gb",
    "h20": "h20-96gb",
    "gh200": "gh200-96gb",
    "mi300": "mi300x",
    "MI50 32GB": "mi50-32gb",
    "m3 ultra": "apple-m3-ultra-80c",
    "M3 Ultra 512GB": "apple-m3-ultra-80c",
    "mac studio m3 ultra": "apple-m3-ultra-80c",
    "macbook pro m4 max": "apple-m4-max-40c",
    "MacBook Pro M4 Pro": "apple-m4-pro",
    "Mac mini M4": "apple-m4",
    "macbook-air-m2": "apple-m2",
    "MacBook Pro M3 Pro": "apple-m3-pro",
    "M2 MacBook Air": "apple-m2",
    "dgx spark": "gb10",
    "asus ascent gx10": "gb10",
    "strix halo": "ryzen-ai-max-395",
    "framework desktop": "ryzen-ai-max-395",
    "ai max 395": "ryzen-ai-max-395",
    "5090 laptop": "rtx-5090-laptop",
    "4090m": "rtx-4090-laptop",
    "rtx 5090 mobile": "rtx-5090-laptop",
    "4090D": "rtx-4090-d",
    "L4 24GB": "l4",
    "Tesla P40 24GB": "p40",
    "3060 12gb": "rtx-3060-12gb",
    "4060 Ti 16GB": "rtx-4060-ti-16gb",
    "ASUS Dual RTX 4070 Super": "rtx-4070-super",
    "EVGA 3090 Ti": "rtx-3090-ti",
    "7900 XTX": "rx-7900-xtx",
    "r9700": "radeon-ai-pro-r9700",
    "arc b580": "arc-b580",
    "gaudi 3": "gaudi3",
}


@pytest.mark.parametrize(("text", "device"), FORUM_NAMES.items())
def test_names_as_forums_write_them(text, device):
    """As threads of r/LocalLLaMA, Level1Techs and vendors' shops write them."""
    assert find_cluster(text, prefer=USUAL).accelerator.id == device


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4090 48GB", "RTX 4090 has 24 GB in the catalogue"),
        ("2x2080 Ti 22GB", "RTX 2080 Ti has 11 GB"),
        ("mac studio", "name the chip"),
        ("g3.8xlarge", "instance type"),
        ("Standard_NV6", "instance type"),
    ],
)
def test_what_is_nearly_a_name_is_told_what_is_missing(text, says):
    with pytest.raises(UnknownNameError) as caught:
        find_cluster(text, prefer=USUAL)
    assert says in (caught.value.hint or "")


def test_parts_of_several_families_stay_ambiguous():
    with pytest.raises(AmbiguousNameError):
        find_cluster("RTX 6000", prefer=USUAL)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A100 MIG 3g.20gb", "slices of a GPU"),
        ("1g.10gb", "slices of a GPU"),
        ("4xH100 1g.10gb", "slices of a GPU"),
        ("cpu", "that is a CPU"),
        ("2xXeon 8480", "that is a CPU"),
    ],
)
def test_what_is_not_planned_for_is_said_so(text, says):
    with pytest.raises(UnknownNameError) as caught:
        find_cluster(text)
    assert says in (caught.value.hint or "") and not caught.value.nearest


@pytest.mark.parametrize("text", ["", "?", "80gb", "sxm", "nvidia", "MI300X and MI325X", "x" * 10_000, "i9_10940x"])
def test_what_names_no_device_is_unknown(text):
    with pytest.raises(UnknownNameError):
        find_accelerator(text)


@pytest.mark.parametrize(
    ("text", "device", "total", "hosts", "per_host", "system"),
    [
        ("4090", "rtx-4090", 1, 1, 4, "consumer-box"),
        ("4xRTX4090", "rtx-4090", 4, 1, 4, "consumer-box"),
        ("8x3090", "rtx-3090", 8, 1, 8, "pcie-server"),
        ("8xH100-SXM", "h100-sxm-80gb", 8, 1, 8, "dgx-h100"),
        ("8 x H100 SXM", "h100-sxm-80gb", 8, 1, 8, "dgx-h100"),
        ("2x8xH200", "h200-sxm-141gb", 16, 2, 8, "dgx-h200"),
        ("64x8xH100-SXM", "h100-sxm-80gb", 512, 64, 8, "dgx-h100"),
        ("512xA100-80GB", "a100-sxm-80gb", 512, 64, 8, "dgx-a100"),
        ("4x4xA100-80GB", "a100-sxm-80gb", 16, 4, 4, "hgx-a100-4gpu"),
        ("12xH100-SXM", "h100-sxm-80gb", 12, 2, 6, "dgx-h100"),
        ("72xGB200", "gb200", 72, 18, 4, "gb200-nvl72"),
        ("GB200 NVL72", "gb200", 72, 18, 4, "gb200-nvl72"),
        ("2xgb300-nvl72", "gb300", 144, 36, 4, "gb300-nvl72"),
        ("2xp6e-gb200", "gb200", 8, 2, 4, "gb200-nvl72"),
        ("dgx-h100", "h100-sxm-80gb", 8, 1, 8, "dgx-h100"),
        ("2xDGX H100", "h100-sxm-80gb", 16, 2, 8, "dgx-h100"),
        ("2xp5.48xlarge", "h100-sxm-80gb", 16, 2, 8, "p5"),
        ("1xL4", "l4", 1, 1, 8, "pcie-server"),
        ("8xMI250X", "mi250x", 8, 1, 8, "frontier-node"),
        ("256xTPU-v5e", "tpu-v5e", 256, 32, 8, "tpu-v5e-pod"),
        ("apple m3 max", "apple-m3-max-40c", 1, 1, 1, "single-device"),
    ],
)
def test_clusters(text, device, total, hosts, per_host, system):
    cluster = find_cluster(text)
    assert cluster.accelerator.id == device
    assert (cluster.n_accelerators, cluster.n_systems) == (total, hosts)
    assert (cluster.system.count, cluster.system.id) == (per_host, system)


def test_an_ambiguous_cluster_offers_names_that_can_be_typed():
    with pytest.raises(AmbiguousNameError) as caught:
        find_cluster("4xH100")
    assert caught.value.candidates[0] == "4xh100-sxm-80gb"
    assert {find_cluster(c).n_accelerators for c in caught.value.candidates} == {4}
    assert find_cluster("4xH100", prefer=("sxm", "80gb")).accelerator.id == "h100-sxm-80gb"


@pytest.mark.parametrize(
    ("text", "device", "total"),
    [
        ("8 H100", "h100-sxm-80gb", 8),
        ("8xH100", "h100-sxm-80gb", 8),
        ("H100x8", "h100-sxm-80gb", 8),
        ("h100:8", "h100-sxm-80gb", 8),
        ("H100 (8x)", "h100-sxm-80gb", 8),
        ("H100-PCIe (x8)", "h100-pcie-80gb", 8),
        ("gpu:a100-80gb:4", "a100-sxm-80gb", 4),
        ("eight H100", "h100-sxm-80gb", 8),
        ("2 x 8 H100", "h100-sxm-80gb", 16),
        ("8 H100s", "h100-sxm-80gb", 8),
        ("8H100", "h100-sxm-80gb", 8),
        ("8xH800", "h800-sxm-80gb", 8),
        ("16x8xH800", "h800-sxm-80gb", 128),
        ("two 4090", "rtx-4090", 2),
        ("dual 3090", "rtx-3090", 2),
        ("pair of 3090s", "rtx-3090", 2),
        ("quad RTX 3090", "rtx-3090", 4),
        ("single 4090", "rtx-4090", 1),
        ("a100-80 x8", "a100-sxm-80gb", 8),
        ("4090 x 2", "rtx-4090", 2),
        ("4090x100", "rtx-4090", 100),
        ("RTX 4090", "rtx-4090", 1),
        ("6000 Ada", "rtx-6000-ada", 1),
        ("2 6000 Ada", "rtx-6000-ada", 2),
        ("7900 XTX", "rx-7900-xtx", 1),
        ("7900 XTX x2", "rx-7900-xtx", 2),
        ("2x7900 xt", "rx-7900-xt", 2),
        ("gaudi 2", "gaudi2", 1),
        ("2 gaudi", "gaudi", 2),
        ("2 gaudi 2", "gaudi2", 2),
        ("gaudi2:2", "gaudi2", 2),
        ("8 snapdragon-8-elite-hexagon", "snapdragon-8-elite-hexagon", 8),
        ("snapdragon-8-elite-hexagon:8", "snapdragon-8-elite-hexagon", 8),
        ("adreno x1", "adreno-x1-85", 1),
        ("8 L40S", "l40s", 8),
        ("one of two MI250X", "mi250x", 1),
        ("dgx-h100 x2", "h100-sxm-80gb", 16),
        ("2 dgx-h100", "h100-sxm-80gb", 16),
    ],
)
def test_counts_as_people_write_them(text, device, total):
    cluster = find_cluster(text)
    assert (cluster.accelerator.id, cluster.n_accelerators) == (device, total)


@pytest.mark.parametrize("text", ["8xA100", "8xV100", "2xH100", "4xH800", "8xGH200"])
def test_what_memory_or_form_stays_open_is_asked_for(text):
    with pytest.raises(AmbiguousNameError):
        find_cluster(text)


@pytest.mark.parametrize(
    "text", ["RTX 4091", "2xRTX 4091", "RTX 4090 2", "RTX 3080 12", "8x", "x8", "2x2", "8xH100:2", "2 nodes of 8 H100"]
)
def test_what_has_no_plain_reading_is_unknown(text):
    with pytest.raises(UnknownNameError):
        find_cluster(text)


DEVICE = st.sampled_from(sorted(accelerators()))


@given(
    DEVICE,
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from(("{n}x{d}", "{n} x {d}", "{n} {d}", "{d}x{n}", "{d} x {n}", "{d}:{n}", "gpu:{d}:{n}")),
)
def test_every_device_is_counted_the_same_however_it_is_written(device, n, written):
    plain = find_cluster(f"{n}x{device}")
    assert find_cluster(written.format(n=n, d=device)) == plain
    assert find_cluster(written.format(n=n, d=device.upper())) == plain
    assert plain.n_accelerators == n and plain.accelerator.id == device


@given(
    DEVICE,
    st.sampled_from(
        ("0x{d}", "0 {d}", "{d}x0", "{d}:0", "-2x{d}", "-2 {d}", "{d}:-2", "1.5x{d}", "2.5 {d}", "9999999x{d}", "{d}x9999999")
    ),
)
def test_a_count_that_cannot_be_is_refused(device, written):
    with pytest.raises(InputError) as caught:
        find_cluster(written.format(d=device))
    assert caught.value.hint


@given(st.text(max_size=30))
def test_any_text_is_a_cluster_or_an_input_error(text):
    try:
        cluster = find_cluster(text)
    except InputError as error:
        assert error.message
    else:
        assert 1 <= cluster.n_accelerators <= 1_000_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0xH100-SXM", "has a count of zero"),
        ("-8xH100-SXM", "whole count"),
        ("1.5xH100-SXM", "whole count"),
        ("2x-8xH100-SXM", "whole count"),
        ("99999999999999999999xH100-SXM", "is more than"),
        ("1000000x8xH100-SXM", "is more than"),
        ("2x2x2xL4", "3 counts"),
        ("2x8xdgx-h100", "twice"),
        ("13xH100-SXM", "equal systems"),
        ("2x16xH100-SXM", "largest holds 8"),
        ("", "not the name"),
        ("y" * 500, "not the name"),
    ],
)
def test_impossible_counts_are_refused_with_a_hint(text, says):
    with pytest.raises(InputError, match=says) as caught:
        find_cluster(text)
    assert caught.value.hint


@given(st.text(max_size=60) | st.text(alphabet="0123456789xX-. h100a4sxmrtgb(_)/", max_size=24))
def test_any_text_gives_a_device_or_an_error_for_people(text):
    for finder in (find_accelerator, find_cards, find_cluster):
        try:
            found = finder(text)
        except GpuwiseError as error:
            assert error.message
        else:
            assert found is not None


@given(
    st.integers(1, 1_000_000),
    st.sampled_from(["h100-sxm-80gb", "rtx-4090", "gb200", "mi300x", "l4", "apple-m1"]),
)
def test_systems_hold_every_device_or_the_count_is_refused(total, device):
    try:
        cluster = find_cluster(f"{total}x{device}")
    except InputError as error:
        assert error.hint and not isinstance(error, UnknownNameError)
        return
    assert cluster.n_accelerators == total
    assert cluster.n_systems * cluster.system.count >= total
    if cluster.n_systems > 1:
        assert cluster.n_systems * cluster.system.count == total


@pytest.mark.parametrize("text", ["h100,b200", "8xH100-SXM+8xA100", "4090 & 3090"])
def test_kinds_of_gpus_are_named_one_at_a_time(text):
    with pytest.raises(UnknownNameError) as error:
        find_cluster(text)
    assert "GPUs of one kind at a time" in (error.value.hint or "")


@pytest.mark.parametrize(
    "text", ["3090+3060", "3090 3060", "3090-3060", "3090|3060", "3090x3060", "2x3090 and 4090", "4090 plus 3090"]
)
def test_several_gpus_are_not_a_count_of_one(text):
    """ "3090+3060" was read as 3,090 cards."""
    with pytest.raises(UnknownNameError, match="GPUs of one kind at a time"):
        find_cluster(text, prefer=USUAL)


@pytest.mark.parametrize(
    ("text", "label", "n"),
    [
        ("3090+3060", "1x RTX 3090 + 1x RTX 3060 12GB", 2),
        ("1x3090+1x3060", "1x RTX 3090 + 1x RTX 3060 12GB", 2),
        ("2x3090 and RTX 4070", "2x RTX 3090 + 1x RTX 4070", 3),
        ("RX 7900 XTX, 4090", "1x RX 7900 XTX + 1x RTX 4090", 2),
        ("3090+3090", "2x RTX 3090", 2),
        ("2x3090", "2x RTX 3090", 2),
        ("4090", "1x RTX 4090", 1),
    ],
)
def test_unlike_cards_are_one_grammar(text, label, n):
    found = find_cards(text, prefer=USUAL)
    assert (found.label, found.n_accelerators) == (label, n)
    assert bool(found.parts) == ("+" in label) == ("layers are split by memory" in found.assumption)


def test_unlike_cards_have_the_memory_of_all_and_take_the_time_of_each_share():
    both = find_cards("3090+2x3060", prefer=USUAL)
    large, small = accelerators()["rtx-3090"], accelerators()["rtx-3060-12gb"]
    total = large.memory_bytes + 2 * small.memory_bytes
    assert both.accelerator.memory_bytes * 3 == pytest.approx(total)
    shares = (large.memory_bytes / total, 2 * small.memory_bytes / total)
    seconds = sum(s / a.memory_bandwidth_bytes_per_s for s, a in zip(shares, (large, small), strict=True))
    assert 1 / both.accelerator.memory_bandwidth_bytes_per_s == pytest.approx(seconds)
    slower, faster = sorted((large.peak("fp16"), small.peak("fp16")))
    assert slower < both.accelerator.peak("fp16") < faster


@pytest.mark.parametrize("text", ["M4 Max, 3090", "gb200 nvl72 + h100-sxm", "foo+3090", "3090 3060", "3090+", "9x8xH100+4090"])
def test_what_no_pc_holds_together_is_refused(text):
    with pytest.raises(InputError) as error:
        find_cards(text, prefer=USUAL)
    assert error.value.hint


@pytest.mark.parametrize("text", ["3090+", "4090/", "40904090", "4090 4090", "M4 Ultra", "AMD H100", "hbm3", "7", "server"])
def test_what_is_nearly_a_name_is_no_device(text):
    with pytest.raises(UnknownNameError):
        find_cluster(text, prefer=USUAL)


_SEPARATORS = ["", " ", "+", "-", "/", ",", "&", " and ", " (", "|"]


def _cannot_be_one(first: str, second: str) -> bool:
    """Whether two names share no word that a product is known by."""
    return find_accelerator(first, prefer=USUAL).family != find_accelerator(second, prefer=USUAL).family


def _check_joined(first: str, second: str, separator: str) -> None:
    if not _cannot_be_one(first, second):
        return
    with pytest.raises(InputError):
        cluster = find_cluster(first + separator + second, prefer=USUAL)
        assert cluster.assumption, f"{first}{separator}{second} is {cluster.label} in silence"
        raise InputError("reported")


_NAMES = st.sampled_from(sorted(accelerators()))


@settings(max_examples=25)
@given(_NAMES, _NAMES, st.sampled_from(_SEPARATORS))
def test_two_names_are_never_one_device_in_silence(first, second, separator):
    _check_joined(first, second, separator)


@pytest.mark.slow
@settings(max_examples=4000)
@given(_NAMES, _NAMES, st.sampled_from(_SEPARATORS))
def test_many_pairs_of_names_are_never_one_device_in_silence(first, second, separator):
    _check_joined(first, second, separator)


@settings(max_examples=60)
@given(_NAMES, st.integers(1, 16), st.sampled_from(["{n}x{d}", "{n} x {d}", "{n}*{d}", "{d} x{n}", "{d}:{n}", "{n} {d}"]))
def test_every_id_takes_a_count_however_it_is_written(device, n, form):
    try:
        expected = find_cluster(f"{n}x{device}")
    except InputError:
        return  # no equal systems of so many
    assert find_cluster(form.format(n=n, d=device)) == expected
    assert (expected.accelerator.id, expected.n_accelerators) == (device, n)


def test_every_alias_leads_to_its_device_or_reports_the_reading():
    for device in accelerators().values():
        for alias in device.aliases:
            found = find_cluster(alias, prefer=USUAL)
            assert found.accelerator.id == device.id or found.n_accelerators > 1 or found.assumption, alias


def test_a_memory_size_is_that_of_the_device_that_is_named():
    """ "RTX 4060 8GB" was the Ti, "RTX 5070 Ti 12GB" the laptop: each card with each size of another."""
    sizes = {f"{a.memory_nominal_gb:g}GB" for a in accelerators().values()}
    for name in ("RTX 4060", "RTX 4060 Ti", "RTX 5070 Ti", "RTX 3060", "RTX 3080", "GTX 1060", "A100 PCIe", "M3 Max", "T4"):
        for size in sizes:
            try:
                found = find_cluster(f"{name} {size}", prefer=USUAL)
            except UnknownNameError as error:
                assert "GB in the catalogue" in (error.hint or "")
                continue
            assert f"{found.accelerator.memory_nominal_gb:g}GB" == size
            words = found.accelerator.name.lower().replace("apple", "").split()
            assert {"ti", "laptop", "super"} & {*words} == {"ti", "laptop", "super"} & {*name.lower().split()}


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ("M3 Max", "is taken with 128 GB, the largest; it is also sold with 48, 64 GB"),
        ("M3 Max", "with 36 or 96 GB as Apple M3 Max 30c of 300 GB/s"),
        ("M3 Max 36GB", "M3 Max 36GB is read as Apple M3 Max 30c 36 GB"),
        ("M4 Max 36GB", "is read as Apple M4 Max 32c"),
        ("780M", "is taken with 32 GB; it is also sold with"),
        ("Iris Xe 32GB", ""),
        ("RTX 3060", "RTX 3060 is read as RTX 3060 12GB, which most people mean (not rtx-3060-8gb)"),
        ("GTX 1060", "GTX 1060 is read as GTX 1060 6GB"),
        ("Jetson Orin", "is read as Jetson AGX Orin 64GB"),
        ("A100 40GB", "(not a100-pcie-40gb)"),
        ("H100 PCIe 94GB", "is read as H100 NVL 94GB"),
        ("H200 PCIe", "is read as H200 NVL 141GB"),
        ("B200 192GB", "which shows 180 GB"),
        ("strix halo", "with 128 GB, the largest"),
        ("H100 SXM5 80GB", ""),
        ("H100 NVL", ""),
        ("RTX 4090", ""),
        ("M3 Max 64GB", ""),
        ("L40S", ""),
    ],
)
def test_what_a_name_leaves_open_is_reported(text, report):
    found = find_cluster(text, prefer=USUAL)
    assert report in found.assumption if report else not found.assumption


def test_a_chip_has_the_memory_that_is_asked_for():
    cluster = find_cluster("M3 Max 64GB")
    assert cluster.accelerator.memory_bytes == 64 * GIB == cluster.system.host_memory_bytes
    assert cluster.accelerator.name == "Apple M3 Max 40c 64 GB"
    for device in accelerators().values():
        for gb in device.memory_sizes_gb:
            for text in (f"{device.id}-{gb:g}gb", f"{device.name} {gb:g} GB"):
                found = find_cluster(text).accelerator
                assert found.memory_bytes == pytest.approx(gb * GIB)
                assert find_cluster(found.typed).accelerator == found
        if device.memory_sizes_gb:
            assert device.memory_nominal_gb in device.memory_sizes_gb
            assert device.vendor != "Apple" or device.memory_nominal_gb == max(device.memory_sizes_gb)


@pytest.mark.parametrize(
    ("text", "device", "gb", "gb_per_s"),
    [
        ("M3 Max 36GB", "apple-m3-max-30c", 36, 300),
        ("M3 Max 300GB/s", "apple-m3-max-30c", 96, 300),
        ("MacBook Pro M3 Max 30-core GPU 96GB", "apple-m3-max-30c", 96, 300),
        ("M3 Max 64GB", "apple-m3-max-40c", 64, 400),
        ("M4 Max 36GB", "apple-m4-max-32c", 36, 410),
        ("M5 Max 32-core", "apple-m5-max-32c", 36, 460),
        ("Mac Studio M2 Ultra 192GB", "apple-m2-ultra", 192, 800),
        ("RX 580 4GB", "rx-580", 4, 256),
        ("RX 580", "rx-580", 8, 256),
        ("GTX 960 4GB", "gtx-960", 4, 112),
    ],
)
def test_a_chip_of_several_versions_is_the_one_with_the_memory_or_bandwidth(text, device, gb, gb_per_s):
    found = find_cluster(text).accelerator
    assert (found.id, found.memory_bytes, found.memory_bandwidth_bytes_per_s) == (device, gb * GIB, gb_per_s * 1e9)


def test_counted_devices_are_those_of_their_name_with_the_count() -> None:
    for name in ("h100-sxm-80gb", "rtx-4090", "rtx-a5000", "mi300x", "gh200-96gb", "l4"):
        one = find_cluster(name)
        for n in (1, 2, 4, 8, 16, 64):
            assert replace(counted(one.accelerator, n), assumption=one.assumption) == find_cluster(f"{n}x{name}")
    with pytest.raises(InputError, match="'9xh100-sxm-80gb' does not fill"):
        counted(find_cluster("h100-sxm-80gb").accelerator, 9)


def test_no_name_has_the_bar_that_parts_them_where_all_are_spelled_at_once() -> None:
    assert not [a.id for a in accelerators().values() for s in (a.id, a.name, a.memory_type, *a.aliases) if "|" in s]
