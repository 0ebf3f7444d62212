"""The fake library as its clients see it, and its script."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time

import pynvml
import pytest

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.sources import sources
from gpuwise.testing.fake_nvml import (
    Card,
    fake_nvml,
    function_names,
    profile_names,
    profile_sources,
    ramp,
    sine,
    square,
)


def _client(fake, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"from pynvml import *\n{code}"], env=fake.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_true_client_in_another_process_sees_the_cards() -> None:
    with fake_nvml(["H100-SXM", "GB10"], driver="570.124.06") as fake:
        seen = _client(
            fake,
            "nvmlInit(); print(nvmlSystemGetDriverVersion(), nvmlDeviceGetCount())\n"
            "print(*[nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(i)) for i in range(2)], sep=';')",
        )
        assert seen.splitlines() == ["570.124.06 2", "NVIDIA H100 80GB HBM3;NVIDIA GB10"]
        assert fake.calls()["nvmlDeviceGetName"] == 2


def test_a_change_is_seen_by_a_client_that_runs() -> None:
    with fake_nvml(["T4"]) as fake:
        code = (
            "import sys; nvmlInit(); h = nvmlDeviceGetHandleByIndex(0)\n"
            "for line in sys.stdin:\n print(nvmlDeviceGetTemperature(h, 0), flush=True)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", f"from pynvml import *\n{code}"],
            env=fake.env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as client:
            assert client.stdin is not None and client.stdout is not None
            for wanted in (30, 95, 41):
                fake.gpu(0).set(temperature_c=wanted)
                client.stdin.write("\n")
                client.stdin.flush()
                assert int(client.stdout.readline()) == wanted
            client.stdin.close()


@pytest.fixture
def card():
    with fake_nvml(["H100-SXM", "RTX-4090"]) as fake, fake.in_process():
        pynvml.nvmlInit()
        yield fake, pynvml.nvmlDeviceGetHandleByIndex(0)


def test_lost_and_back(card) -> None:
    fake, handle = card
    fake.gpu(0).lose()
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetPowerUsage(handle)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetTemperature(pynvml.nvmlDeviceGetHandleByIndex(1), 0) == 28
    fake.gpu(0).restore()
    assert pynvml.nvmlDeviceGetPowerUsage(handle) == 100_890


def test_driver_unloaded_and_back_needs_a_new_start(card) -> None:
    fake, handle = card
    fake.unload()
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlDeviceGetPowerUsage(handle)
    fake.load()
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetPowerUsage(handle)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(0)) == 100_890


def test_a_mismatch_stops_those_who_start_only(card) -> None:
    fake, handle = card
    fake.mismatch()
    with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
        pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetPowerUsage(handle)


def test_injected_errors(card) -> None:
    fake, handle = card
    fake.fail("nvmlDeviceGetPowerUsage", 4)
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceGetPowerUsage(handle)
    fake.heal()
    fake.gpu(0).fail("nvmlDeviceGetPowerUsage", 999, every=3)
    outcomes = []
    for _ in range(6):
        try:
            outcomes.append(bool(pynvml.nvmlDeviceGetPowerUsage(handle)))
        except pynvml.NVMLError_Unknown:
            outcomes.append(False)
    assert outcomes.count(False) == 2
    with pytest.raises(UnknownNameError, match="nvmlDeviceGetPowerUsag"):
        fake.fail("nvmlDeviceGetPowerUsag", 3)


def test_latency_is_waited(card) -> None:
    fake, handle = card
    fake.latency("nvmlDeviceGetPcieThroughput", 0.02)
    begun = time.monotonic()
    pynvml.nvmlDeviceGetPcieThroughput(handle, 0)
    assert time.monotonic() - begun >= 0.02


def test_waves_agree_with_the_library(card) -> None:
    fake, handle = card
    for wave in (square(100, 700, 1e6, duty=0.5), sine(100, 700, 1e6), ramp(100, 0.0)):
        fake.gpu(0).set(power_w=wave)
        assert pynvml.nvmlDeviceGetPowerUsage(handle) == pytest.approx(1000 * fake.gpu(0).get("power_w"), abs=10)
    fake.gpu(0).set(power_w=square(100, 700, 0.02))
    seen = {pynvml.nvmlDeviceGetPowerUsage(handle) for _ in range(4) if not time.sleep(0.01)}
    assert seen <= {100_000, 700_000}


def test_energy_counts_with_the_power(card) -> None:
    fake, handle = card
    fake.gpu(0).set(power_w=500)
    begun = time.monotonic()
    first = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    time.sleep(0.1)
    fake.gpu(0).set(power_w=0)
    passed_s = time.monotonic() - begun
    second = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    assert 500 * 0.1 <= (second - first) / 1000 <= 500 * passed_s * 1.5
    time.sleep(0.02)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == second


def test_xid_events_reach_who_waits(card) -> None:
    fake, handle = card
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 1)
    fake.xid(1, 31)
    fake.xid(0, 79)
    seen = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert (seen.eventType, seen.eventData) == (8, 79)
    pynvml.nvmlEventSetFree(events)


def test_who_waits_sleeps_until_the_script_changes(card) -> None:
    """Switches of the waiting thread are counted: one that looked every 20 ms would have some twenty."""
    fake, handle = card
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    seen: list[int] = []
    slept: list[int] = []

    def wait() -> None:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        seen.append(pynvml.nvmlEventSetWait_v2(events, 60_000).eventData)
        slept.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.4)
    assert waiting.is_alive()
    fake.gpu(0).set(temperature_c=70)
    fake.xid(0, 48)
    waiting.join(300)
    assert seen == [48] and slept[0] <= 12
    pynvml.nvmlEventSetFree(events)


def test_processes_and_their_use(card) -> None:
    fake, handle = card
    fake.gpu(0).add_process(os.getpid(), memory_bytes=2**30, sm=0.4)
    fake.gpu(0).add_process(4, "graphics", memory_bytes=None)
    (compute,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert (compute.pid, compute.usedGpuMemory) == (os.getpid(), 2**30)
    (graphics,) = pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    assert (graphics.pid, graphics.usedGpuMemory) == (4, None)
    assert {u.pid: u.smUtil for u in pynvml.nvmlDeviceGetProcessUtilization(handle, 0)} == {os.getpid(): 40, 4: 0}
    fake.gpu(0).remove_process(os.getpid())
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []


def test_field_values_tell_each_its_own_error(card) -> None:
    fake, _ = card
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    fake.gpu(1).field(297, 12)
    fake.gpu(1).set(held_sw_power_cap_s=1.5)
    got = pynvml.nvmlDeviceGetFieldValues(handle, [82, 74, 297, 194, 250])
    assert [f.nvmlReturn for f in got] == [3, 0, 0, 0, 3]
    assert [got[1].value.ullVal, got[2].value.ullVal, got[3].value.siVal] == [1_500_000_000, 12, -2]


def test_nvlink_counters_are_of_one_link_or_of_all(card) -> None:
    fake, handle = card
    fake.gpu(0).set(nvlink_sent_bytes=18 * 2**20, nvlink_crc_errors=3)
    questions = [(138, 2**32 - 1), (138, 4), (138, 18), (163, 0), (163, 1)]
    got = pynvml.nvmlDeviceGetFieldValues(handle, questions)
    assert [(f.nvmlReturn, f.value.ullVal) for f in got] == [(0, 18 * 1024), (0, 1024), (2, 0), (0, 3), (0, 0)]


def test_threads_and_children_of_a_client_are_served() -> None:
    code = (
        "import os, threading\nnvmlInit(); h = nvmlDeviceGetHandleByIndex(0)\n"
        "def work():\n for _ in range(300): nvmlDeviceGetTemperature(h, 0)\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n[t.start() for t in threads]\n"
        "pid = os.fork()\n"
        "if pid == 0:\n work(); os._exit(7)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n[t.join() for t in threads]\nprint(code)"
    )
    with fake_nvml(["T4"]) as fake:
        assert _client(fake, code).strip() == "7"
        assert fake.calls()["nvmlDeviceGetTemperature"] == 5 * 300


def test_a_script_edited_by_hand_is_read_again(card) -> None:
    fake, handle = card
    state = fake.folder / "state"
    text = state.read_text()
    assert "gpu 0 temperature_c 30.0" in text
    time.sleep(0.06)  # the library looks at most every 50 ms
    state.write_text(text.replace("gpu 0 temperature_c 30.0", "gpu 0 temperature_c 77"))
    assert pynvml.nvmlDeviceGetTemperature(handle, 0) == 77


def test_mig_devices_are_devices(card) -> None:
    fake, handle = card
    uuid = fake.gpu(0).add_mig_device(3, 2**34, used_bytes=2**30)
    assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]
    part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    assert pynvml.nvmlDeviceGetUUID(part) == uuid
    assert pynvml.nvmlDeviceGetMemoryInfo(part).total == 2**34
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetUtilizationRates(part)


@pytest.mark.parametrize(
    ("profile", "mb", "name"),
    [
        ("h100-sxm", 9984, "1g.10gb"),
        ("h100-sxm", 40448, "3g.40gb"),
        ("h200-sxm", 71168, "3g.71gb"),
        ("a100-sxm", 81152, "7g.80gb"),
    ],
)
def test_a_mig_device_has_the_name_of_its_profile(profile: str, mb: int, name: str) -> None:
    with fake_nvml([profile]) as fake:
        fake.gpu(0).add_mig_device(1, mb * 2**20)
        code = "nvmlInit(); print(nvmlDeviceGetName(nvmlDeviceGetMigDeviceHandleByIndex(nvmlDeviceGetHandleByIndex(0), 0)))"
        assert _client(fake, code).strip().endswith(f" MIG {name}")


def test_names_that_are_not_utf8_arrive_as_bytes() -> None:
    with fake_nvml([Card("T4", {"name": os.fsdecode(b"T\xff 4%")})]) as fake:
        code = (
            "import ctypes as c, os\nlib = c.CDLL('libnvidia-ml.so.1'); lib.nvmlInit_v2(); d = c.c_void_p()\n"
            "lib.nvmlDeviceGetHandleByIndex_v2(0, c.byref(d)); b = c.create_string_buffer(96); lib.nvmlDeviceGetName(d, b, 96)\n"
            "print(b.value.hex())"
        )
        assert bytes.fromhex(_client(fake, code).strip()) == b"T\xff 4%"


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_has_sources_that_are_listed(name: str) -> None:
    assert profile_sources(name)
    assert set(profile_sources(name)) <= set(sources())


def test_bad_input_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="h100-sxm"):
        fake_nvml(["H100-SMX"])
    with pytest.raises(UnknownNameError, match="power_w"):
        fake_nvml([Card("T4", {"power": 3})])
    with pytest.raises(InputError, match="not text"):
        fake_nvml([Card("T4", {"name": 3})])
    with pytest.raises(InputError, match="not a finite number"):
        fake_nvml([Card("T4", {"power_w": float("nan")})])
    with pytest.raises(InputError, match="at most 32"):
        fake_nvml({"T4": 33})
    with fake_nvml(["T4"]) as fake, pytest.raises(InputError, match="counted from 0"):
        fake.gpu(1)


def test_the_functions_that_clients_ask_for_are_there() -> None:
    assert len(function_names()) >= 160
    wanted = {
        "nvmlInit_v2",
        "nvmlInitWithFlags",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetDriverModel",
        "nvmlEventSetWait_v2",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetRemappedRows",
    }
    assert wanted <= set(function_names())


def test_the_command_runs_another(tmp_path) -> None:
    run = [sys.executable, "-m", "gpuwise.testing.fake_nvml"]
    count = [sys.executable, "-c", "import pynvml as p, sys; p.nvmlInit(); sys.exit(40 + p.nvmlDeviceGetCount())"]
    assert subprocess.run([*run, "T4", "H100", "--", *count], check=False).returncode == 42
    assert subprocess.run([*run, "2xT4", "H100", "--", *count], check=False).returncode == 43
    assert subprocess.run([*run, "99xT4", "--", *count], capture_output=True, check=False).returncode == 2
    bad = subprocess.run([*run, "GTX-9999", "--", *count], capture_output=True, text=True, check=False)
    assert bad.returncode == 2 and "GTX-9999" in bad.stderr and "hint:" in bad.stderr
    assert subprocess.run(run, capture_output=True, check=False).returncode == 2
