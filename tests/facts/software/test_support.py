import datetime
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import FieldError, UnknownNameError
from gpuwise.facts.hardware.accelerators import DTYPES, accelerators
from gpuwise.facts.loading import shipped_text
from gpuwise.facts.software.support import (
    DTYPE_LEVELS,
    JOBS,
    LEVELS,
    TOPICS,
    parse_facts,
    support_of,
    target_of,
    targets,
)
from gpuwise.facts.sources import sources

DEVICES = list(accelerators().values())
FACT = """topic,subject,targets,level,reason,as_of,source
framework,pytorch,sm_75..sm_90,full,because,2026-01-31,pytorch-release
"""


def verdict(device: str, job: str) -> str:
    return support_of(accelerators()[device]).works_for(job).level


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.id)
def test_every_device_has_a_target_and_a_sourced_verdict_for_every_job(device):
    software = support_of(device)
    assert software.target in targets() and software.runtime == software.runtimes[0]
    for job in JOBS:
        found = software.works_for(job)
        assert found.level in LEVELS and found.subject == job and found.reason
        assert found.level == "unknown" or found.source_key in sources()
    stated = itertools.chain(
        software.versions.values(), software.compile.values(), software.attention.values(), software.frameworks.values()
    )
    for fact in stated:
        assert fact.level in LEVELS and fact.source_key in sources()
        assert datetime.date(2025, 1, 1) <= fact.as_of <= datetime.date(2026, 11, 21)
    assert all(fact.level in DTYPE_LEVELS for fact in software.dtypes.values())


def test_a_device_has_one_target_only():
    for device in DEVICES:
        named = {"accelerator": device.id, "compute_capability": device.compute_capability, "family": device.family}
        fits = [t for t in targets().values() if named[t.match] is not None and named[t.match] in t.values]
        by_match = [t.match for t in fits]
        assert len(by_match) == len(set(by_match)), (device.id, [t.key for t in fits])
        assert target_of(device) in fits


def test_every_named_device_of_a_target_exists():
    for target in targets().values():
        if target.match == "accelerator":
            assert set(target.values) <= set(accelerators()), target.key


def test_a_published_matrix_rate_and_a_verdict_do_not_contradict_each_other():
    for device in DEVICES:
        dtypes = support_of(device).dtypes
        assert set(device.peak_flop_per_s) <= set(dtypes) <= set(DTYPES)
        for dtype in device.peak_flop_per_s:
            assert dtypes[dtype].level in ("native", "emulated"), (device.id, dtype)


def test_what_the_wheels_hold():
    # PyTorch 2.15 is compiled for sm_75, 80, 86, 90, 100 and 120; CUDA code runs on later devices of the same major.
    compiled = ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
    jetson = ("sm_72", "sm_87", "sm_110")
    for device in DEVICES:
        software = support_of(device)
        if device.compute_capability is None or software.target in jetson:
            continue
        major, minor = (int(part) for part in device.compute_capability.split("."))
        runs = any(major == m and minor >= n for m, n in compiled)
        assert (software.of("framework", "pytorch").level == "full") == runs, device.id


@pytest.mark.parametrize(
    ("subject", "least", "most"),
    [
        ("flash-attention-2", (8, 0), (9, 0)),
        ("sdpa-flash", (8, 0), (12, 1)),
        ("sdpa-memory-efficient", (5, 0), (12, 1)),
        ("flash-attention-3", (9, 0), (9, 0)),
    ],
)
def test_attention_kernels_follow_the_compute_capability(subject, least, most):
    for device in DEVICES:
        if device.compute_capability is None:
            continue
        capability = tuple(int(part) for part in device.compute_capability.split("."))
        full = support_of(device).of("attention", subject).level == "full"
        assert full == (least <= capability <= most), device.id


def test_bf16_is_native_from_ampere_on():
    for device in DEVICES:
        if device.compute_capability is None:
            continue
        expected = "native" if float(device.compute_capability) >= 8 else "emulated"
        assert support_of(device).of("dtype", "bf16").level == expected, device.id


def test_jobs_of_well_known_devices():
    for device in ("rtx-3090", "rtx-4090", "rtx-5090", "a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm", "mi300x"):
        assert [verdict(device, job) for job in JOBS] == ["full"] * len(JOBS), device
    assert {job: verdict("rx-7900-xtx", job) for job in ("infer", "finetune", "learn")} == {
        "infer": "full",
        "finetune": "partial",
        "learn": "partial",
    }
    assert verdict("t4", "train") == "partial" and verdict("t4", "finetune") == "full"
    assert verdict("v100-sxm-32gb", "train") == "partial" and verdict("p40", "infer") == "partial"
    assert verdict("k80", "train") == "none" and verdict("inferentia2", "train") == "none"
    assert verdict("apple-m4-max-40c", "train") == "partial" and verdict("apple-m4-max-40c", "infer") == "full"
    assert verdict("tpu-v5e", "train") == "full" and verdict("apple-a18-pro-ane", "train") == "none"
    assert verdict("rubin-vr200", "train") == "unknown"


def test_a_verdict_names_what_is_missing():
    reason = support_of(accelerators()["t4"]).works_for("train").reason
    assert "pytorch" in reason and "bf16" in reason
    reason = support_of(accelerators()["p40"]).works_for("infer").reason
    assert reason.startswith("llama.cpp") and "batches" in reason
    assert "2.14" in support_of(accelerators()["p100-pcie-16gb"]).of("version", "pytorch").reason


def test_unknown_is_said():
    software = support_of(accelerators()["rubin-vr200"])
    found = software.of("framework", "vllm")
    assert (found.level, found.source_key, found.as_of) == ("unknown", None, None)
    assert software.best("attention").level == "unknown"


def test_what_is_stated_outweighs_what_nobody_speaks_of():
    software = support_of(accelerators()["apple-m4-ane"])
    assert software.of("framework", "bitsandbytes").level == "unknown"
    assert software.best("framework", ("bitsandbytes", "pytorch")).level == "none"


def test_names_that_do_not_exist():
    software = support_of(accelerators()["t4"])
    with pytest.raises(UnknownNameError, match="job 'trian'") as caught:
        software.works_for("trian")
    assert "train" in str(caught.value)
    with pytest.raises(UnknownNameError, match="topic"):
        software.of("frameworks", "pytorch")


@given(
    st.sampled_from(DEVICES),
    st.sampled_from(TOPICS),
    st.lists(st.sampled_from(["pytorch", "jax", "vllm", "bf16", "x"]), max_size=4),
)
def test_the_best_is_one_of_the_asked_and_none_is_better(device, topic, subjects):
    software = support_of(device)
    rank = DTYPE_LEVELS if topic == "dtype" else LEVELS
    best = software.best(topic, subjects)
    for subject in subjects:
        found = software.of(topic, subject)
        if found.source_key is not None:
            assert rank.index(found.level) <= rank.index(best.level)
    if best.source_key is not None and subjects:
        assert best.subject in subjects or topic == "dtype"


def test_a_run_of_targets_is_read_in_the_order_of_the_file():
    (fact,) = parse_facts(FACT, "mine.csv", targets())
    assert fact.targets == {"sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90"}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("sm_75..sm_90", "sm_76", "sm_76"),
        ("sm_75..sm_90", "sm_90..sm_75", "backwards"),
        (",full,", ",native,", "does not belong"),
        (",full,", ",fully,", "level"),
        ("pytorch-release", "hearsay", "not in sources.csv"),
        ("framework,", "frameworks,", "topic"),
        ("framework,pytorch", "dtype,fp7", "fp7|does not belong"),
        ("2026-01-31", "soon", "as_of"),
        ("because,", "", "6 cells where the header has 7"),
        ("because", "", "reason"),
    ],
)
def test_bad_facts_are_refused(old, new, says):
    assert old in FACT
    with pytest.raises(FieldError, match=says) as caught:
        parse_facts(FACT.replace(old, new), "mine.csv", targets())
    assert "mine.csv" in str(caught.value)


def test_two_facts_about_one_thing_are_refused():
    with pytest.raises(FieldError, match="two facts for sm_80"):
        parse_facts(FACT + FACT.splitlines()[1].replace("sm_75..sm_90", "sm_80"), "mine.csv", targets())


def test_no_fact_is_left_without_a_device():
    used = {target_of(device).key for device in DEVICES}
    for fact in parse_facts(shipped_text("software.csv"), "software.csv", targets()):
        assert fact.targets & used, (fact.topic, fact.subject, fact.targets)
