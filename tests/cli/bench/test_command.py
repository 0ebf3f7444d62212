"""``gpuwise bench`` as a person runs it, and ``--on this`` on machines that do not exist."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.machine.devices.trees import write

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.run import run_cases
from gpuwise.machine.bench.stress import stress_together
from gpuwise.machine.bench.subjects import Subject, this_processor
from gpuwise.machine.bench.time_limit import MeasurementTimeout
from gpuwise.machine.devices.find import DeviceSearch
from gpuwise.machine.devices.null import NullCard, NullDevices
from gpuwise.machine.devices.readings import EventReason

NAME = "NVIDIA H100 80GB HBM3"
RATES = {"matmul": 700e12, "attention": 500e12, "memory": 3.0e12, "copy": 5.2e10}


def box(n: int = 8, **card: Any) -> NullDevices:
    reasons = int(EventReason.SW_POWER_CAP)
    sample = {"event_reasons": reasons, "power_w": 690.0, "sm_clock_hz": 1.4e9, "temperature_c": 66.0}
    return NullDevices([NullCard("h100-sxm", identity={"name": NAME}, sample=sample, **card)] * n)


def subjects_of(seam: NullDevices, name: str = NAME) -> list[Subject]:
    known = accelerators()["h100-sxm-80gb"]
    cards = [
        Subject(
            "cuda",
            i.index,
            name,
            i.uuid or "",
            accelerator=known if name == NAME else None,
            backend=seam,
            backend_index=i.index,
            memory_bytes=i.memory_bytes or 0,
            capability=(9, 0),
        )
        for i in seam.identities()
    ]
    return [*cards, this_processor()]


def fake_make(
    slow: int | None = None, wrong: int | None = None, corrupt: int | None = None
) -> Callable[[BenchCase, Subject], PreparedCase]:
    """Work of a healthy H100, but for one card."""

    def make(case: BenchCase, subject: Subject) -> PreparedCase:
        if case.family not in RATES:
            raise NotHereError("not in this test")
        p = case.parameters
        amount = 2.0 * p["m"] * p["n"] * p["k"] if case.family == "matmul" else float(p.get("bytes", 10**12))
        rate = RATES[case.family] * (0.7 if subject.index == slow else 1.0) * (0.001 if subject.kind == "cpu" else 1.0)
        right = subject.index != wrong or subject.kind == "cpu"
        counter = itertools.count()
        digest = lambda: next(counter) == 3 and subject.index == corrupt  # noqa: E731
        return PreparedCase(lambda: amount / rate, amount, lambda: Check(right, 0.1 if right else 40.0, "all"), digest=digest)

    return make


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch, home: Path) -> Callable[..., None]:
    def install(n: int = 8, name: str = NAME, **kinds: Any) -> None:
        seam = box(n)
        monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((seam,), {}))
        monkeypatch.setattr("gpuwise.machine.bench.subjects.find_subjects", lambda backends=(): subjects_of(seam, name))
        monkeypatch.setitem(run_cases.__kwdefaults__, "make", fake_make(**kinds))

    return install


ONE = ("bench", "--only", "matmul-bf16-8192x8192x8192")


def test_a_healthy_box_is_normal_and_what_held_it_is_shown(gpuwise: Any, eight: Any) -> None:
    eight()
    ran = gpuwise(*ONE)
    assert ran.code == 0
    assert ran.out.splitlines()[0] == "8 of 8 in their normal range"
    assert "of peak" in ran.out
    assert "SW_POWER_CAP" in ran.out
    assert max(len(line) for line in ran.out.splitlines() if "kept in" not in line) <= 80


def test_one_slow_card_of_eight_is_named_and_can_fail_a_script(gpuwise: Any, eight: Any) -> None:
    eight(slow=5)
    ran = gpuwise(*ONE, "--json")
    assert ran.code == 0
    slow = [r["label"] for r in ran.document["results"] if r["slow_among_siblings"]]
    assert slow == ["gpu5"]
    assert [r["verdict"] for r in ran.document["results"] if r["label"] == "gpu5"] == ["low"]
    assert gpuwise(*ONE, "--fail-below", "0.9").code == 1
    assert gpuwise(*ONE, "--fail-below", "normal").code == 1
    assert gpuwise(*ONE, "--fail-below", "50%").code == 0


def test_a_wrong_answer_comes_before_everything(gpuwise: Any, eight: Any) -> None:
    eight(wrong=2, slow=5)
    ran = gpuwise(*ONE)
    assert ran.code == 1
    assert ran.out.startswith("WRONG ANSWERS")


def test_a_card_nobody_knows_is_measured_without_a_verdict(gpuwise: Any, eight: Any) -> None:
    eight(1, name="ACME 9000")
    ran = gpuwise(*ONE, "--json")
    (result,) = ran.document["results"]
    assert (result["verdict"], result["reason"], result["expected"]) == ("unknown", "unknown GPU", None)
    assert gpuwise(*ONE, "--fail-below", "0.9").code == 0


def test_the_same_product_on_both_and_on_gpus_one_does_not_have(gpuwise: Any, eight: Any) -> None:
    eight(1)
    ran = gpuwise("bench", "--only", "matmul-bf16-2048x2048x2048", "--against", "4090", "--json")
    rows = {s["gpu"]: s for s in ran.document["speedups"]}
    assert rows[NAME]["measured"] == pytest.approx(1000.0)
    other = next(s for gpu, s in rows.items() if gpu != NAME)
    assert other["predicted"]["low"] < other["predicted"]["expected"] < other["predicted"]["high"]


def test_a_faulty_card_under_stress_ends_with_1(gpuwise: Any, eight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    eight(3, corrupt=1)
    monkeypatch.setitem(stress_together.__kwdefaults__, "make", fake_make(corrupt=1))
    ran = gpuwise("bench", "--stress", "0.05s", "--json")
    assert ran.code == 1
    assert ran.document["faulty"] == ["gpu1"]
    monkeypatch.setitem(stress_together.__kwdefaults__, "make", fake_make())
    healthy = gpuwise("bench", "--stress", "0.05s")
    assert healthy.code == 0
    assert "66 C" in healthy.out


def test_records_are_kept_listed_and_carried_to_another_machine(gpuwise: Any, eight: Any, home: Path, tmp_path: Path) -> None:
    eight(2)
    assert gpuwise(*ONE).code == 0
    assert "matmul-bf16-8192x8192x8192" in gpuwise("bench", "--history").out
    lines = home / "lines.jsonl"
    assert gpuwise("bench", "--export", str(lines)).code == 0
    assert len(lines.read_text().splitlines()) == 2
    (home / "records.db").unlink()
    assert gpuwise("bench", "--import", str(lines), "--json").document["new"] == 2
    assert gpuwise("bench", "--import", str(lines), "--json").document["new"] == 0
    assert json.loads(gpuwise("bench", "--export", "-").out.splitlines()[0])["device_name"] == NAME


@pytest.mark.thorough
def test_a_machine_without_gpu_says_what_would_be_measured_on_one(
    gpuwise: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwise.machine.bench.subjects.find_subjects", lambda backends=(): [this_processor()])
    monkeypatch.setitem(run_cases.__kwdefaults__, "make", fake_make())
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((), {}))
    ran = gpuwise("bench", "--quick")
    assert ran.code == 0
    assert "gpu: no driver knows of one" in ran.out
    assert "nccl-all-reduce" in ran.out
    document = gpuwise("bench", "--quick", "--json").document
    assert {"device": "gpu", "measurement": "peer-next-256MiB", "reason": "no driver knows of one"} in document["not_here"]
    assert "gpu:" not in gpuwise("bench", "--quick", "--device", "cpu").out
    ran = gpuwise("bench", "--only", "nccl")
    assert ran.code == 2
    assert "no driver knows of one" in ran.err


def test_cards_that_pytorch_does_not_reach_are_named(gpuwise: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwise.machine.bench.subjects.find_subjects", lambda backends=(): [this_processor()])
    monkeypatch.setitem(run_cases.__kwdefaults__, "make", fake_make())
    seam = NullDevices([NullCard("rtx-4090"), NullCard("rtx-4090")])
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((seam,), {}))
    ran = gpuwise("bench", "--device", "gpu")
    assert ran.code == 2
    assert "the driver has 2 x RTX 4090" in ran.err
    assert "2 x RTX 4090" in " ".join(gpuwise("bench", "--quick").out.split())


def test_nothing_is_kept_where_nothing_should_be(gpuwise: Any, eight: Any, home: Path) -> None:
    eight(1)
    assert gpuwise(*ONE, "--no-save").code == 0
    assert not (home / "records.db").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "warp"), "unknown measurement"),
        (("--device", "gpu77"), "no device"),
        (("--fail-below", "-1"), "--fail-below"),
        (("--fail-below", "fast"), "--fail-below"),
        (("--stress", "0s"), "--stress"),
        (("--stress", "10m", "--calibrate"), "exclude each other"),
        (("--against", "nosuchgpu"), "nosuchgpu"),
        (("--import", "/nonexistent/file"), "cannot be read"),
        (("--calibrate", "--no-save"), "learns from the records"),
    ],
)
def test_bad_input_gives_no_number(gpuwise: Any, eight: Any, words: tuple[str, ...], said: str) -> None:
    eight(1)
    ran = gpuwise("bench", *words)
    assert ran.code == 2
    assert said in ran.err
    assert "hint:" in ran.err
    assert ran.out == ""


def test_a_corrupt_record_file_is_an_error_with_advice(gpuwise: Any, eight: Any, home: Path) -> None:
    eight(1)
    (home / "records.db").write_bytes(b"not a database at all, and long enough to be looked at" * 40)
    ran = gpuwise(*ONE)
    assert ran.code == 1
    assert "corrupt" in ran.err
    assert "GPUWISE_RECORDS" in ran.err


def test_the_list_needs_no_device(gpuwise: Any, home: Path) -> None:
    listed = gpuwise("bench", "--list", "--json").document["measurements"]
    assert {m["family"] for m in listed} >= {"matmul", "attention", "collective", "disk"}
    assert "matmul-fp8-8192x8192x8192" in gpuwise("bench", "--list", "--quick").out


# --- calibrating, and --on this ---


@pytest.mark.thorough
def test_calibrating_teaches_fit_and_op_about_this_machine(gpuwise: Any, eight: Any, home: Path) -> None:
    eight(1)
    learned = gpuwise("bench", "--calibrate", "--each", "0.01s", "--json").document
    families = {f["key"]: f for f in learned["devices"][0]["families"]}
    assert families["matmul/bf16"]["rows"] > 60
    assert families["matmul/bf16"]["error_after"] <= families["matmul/bf16"]["error_before"]
    plain = gpuwise("op", "matmul", "4096", "4096", "4096", "--on", "h100-sxm-80gb", "--json").document
    own = gpuwise("op", "matmul", "4096", "4096", "4096", "--on", "this:0", "--json").document
    plain_s, own_s = (d["rows"][0]["time_s"]["expected"] for d in (plain, own))
    truth = 2 * 4096.0**3 / RATES["matmul"]
    assert abs(own_s / truth - 1) < abs(plain_s / truth - 1)
    assert gpuwise("fit", "llama-3.1-8b", "--on", "this").code == 0


def test_on_this_without_a_gpu_says_what_to_do(gpuwise: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((), {}))
    cpu = "processor\t: 0\nmodel name\t: QEMU Virtual CPU\n\n"
    write(home / "root", {"proc/cpuinfo": cpu, "proc/meminfo": "MemTotal: 32768000 kB\n"})
    monkeypatch.setenv("GPUWISE_ROOT", str(home / "root"))
    for command in (("fit", "llama-3.1-8b"), ("plan", "llama-3.1-8b", "--tokens", "1B")):
        ran = gpuwise(*command, "--on", "this")
        assert ran.code == 2
        assert "no GPU on this machine" in ran.err
    ran = gpuwise("op", "matmul", "512", "512", "512", "--on", "this")
    assert ran.code == 2
    assert "gpuwise bench" in ran.err


def test_op_on_this_is_the_measured_processor_where_there_is_no_gpu(
    gpuwise: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((), {}))
    monkeypatch.setattr("gpuwise.machine.bench.subjects.find_subjects", lambda backends=(): [this_processor()])
    monkeypatch.setitem(run_cases.__kwdefaults__, "make", fake_make())
    assert gpuwise("bench", "--only", "matmul-fp32-512x512x512", "--only", "memory-copy-128MiB", "--each", "0.01s").code == 0
    row = gpuwise("op", "matmul", "1024", "1024", "1024", "--dtype", "fp32", "--on", "this", "--json").document["rows"][0]
    assert row["kind"] == "cpu"


@pytest.mark.thorough
def test_cards_that_differ_have_to_be_named(gpuwise: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seam = NullDevices([NullCard("rtx-4090"), NullCard("rtx-3090")])
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((seam,), {}))
    ran = gpuwise("fit", "llama-3.1-8b", "--on", "this")
    assert ran.code == 2
    assert "this:1" in ran.err
    assert gpuwise("fit", "llama-3.2-1b", "--on", "this:1", "--json").code == 0
    for wrong in ("this:7", "3xthis", "0xthis"):
        assert gpuwise("fit", "llama-3.1-8b", "--on", wrong).code == 2


def test_a_card_of_no_catalogue_is_used_once_it_was_measured(gpuwise: Any, eight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    eight(1, name="ACME 9000")
    seam = NullDevices([NullCard("h100-sxm", identity={"name": "ACME 9000"})])
    monkeypatch.setattr("gpuwise.machine.devices.find.find_devices", lambda: DeviceSearch((seam,), {}))
    ran = gpuwise("op", "matmul", "4096", "4096", "4096", "--on", "this")
    assert ran.code == 1
    assert "bench --calibrate" in ran.err
    assert gpuwise("bench", "--calibrate", "--each", "0.01s").code == 0
    row = gpuwise("op", "matmul", "4096", "4096", "4096", "--on", "this", "--json").document["rows"][0]
    assert row["device"] == "ACME 9000 (this machine)"
    assert 0.5 * RATES["matmul"] < row["flop_per_s"] <= 1.2 * RATES["matmul"]
    assert replace(accelerators()["l40s"], corrections={}) == accelerators()["l40s"]


def test_a_machine_too_busy_to_measure_says_so(gpuwise: Any, eight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    eight(1)

    def late(case: BenchCase, subject: Subject) -> PreparedCase:
        raise MeasurementTimeout

    monkeypatch.setitem(run_cases.__kwdefaults__, "make", late)
    monkeypatch.setattr("gpuwise.cli.bench.command.QUICK_S", -1.0)
    ran = gpuwise("bench", "--quick", "--only", "matmul")
    assert ran.code == 1
    assert ran.out.startswith("nothing was measured: the machine is too busy")


def test_a_crowd_stands_in_the_first_line(gpuwise: Any, eight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    eight(1)
    monkeypatch.setattr("gpuwise.machine.bench.watch.others_busy", lambda *_: {"others_busy": 0.96})
    ran = gpuwise(*ONE[:2], "matmul-fp32-2048x2048x2048", "--device", "cpu")
    assert "in a crowd: other programs took up to 96% of the cores" in " ".join(ran.out.split("\n\n")[0].split())
