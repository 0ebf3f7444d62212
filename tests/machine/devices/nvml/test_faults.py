"""NVIDIA devices when things go wrong: cards and drivers that go and come back, refusals, errors at random."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwise.errors import (
    DeviceError,
    DeviceLostError,
    DevicePermissionError,
    DriverMismatchError,
    InputError,
    NoDriverError,
    ReadingError,
)
from gpuwise.machine.devices.nvml.backend import RESTART_AFTER_S, NvmlDevices, open_nvml
from gpuwise.machine.devices.readings import Health, Identity, Sample, State
from gpuwise.testing.fake_nvml import FakeNvml, fake_nvml, function_names, square

Opened = Any


# --- away and back ---


def test_a_lost_card_keeps_its_place_and_comes_back(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("T4", "H100-SXM")
    before = devices.identities()
    fake.gpu(0).lose()
    s = devices.sample(0)
    assert (s.state, s.error, s.temperature_c) == (State.LOST, "the GPU is lost", None)
    assert devices.sample(1).state is State.OK
    lost, other = devices.identities()
    assert (lost.index, lost.name, lost.pci_bus_id) == (0, "Tesla T4", before[0].pci_bus_id) and other == before[1]
    with pytest.raises(DeviceLostError) as caught:
        devices.health(0)
    assert caught.value.index == 0 and caught.value.hint
    assert {p.link for p in devices.peers()} == {"unknown"}
    fake.gpu(0).lose(16)
    assert devices.sample(0).error == "the GPU has to be reset"
    fake.gpu(0).restore()
    assert devices.sample(0).state is State.OK and devices.identities() == before


def test_a_card_lost_before_the_start_has_a_place_too(machine: Callable[..., Opened]) -> None:
    fake, _, _ = machine("T4", "H100-SXM")
    fake.gpu(0).lose()
    devices = open_nvml()
    assert [i.name for i in devices.identities()] == ["lost", "NVIDIA H100 80GB HBM3"]
    fake.gpu(0).restore()
    assert devices.identities()[0].name == "Tesla T4" and devices.sample(0).state is State.OK
    devices.close()


def test_the_driver_goes_and_comes_back(machine: Callable[..., Opened]) -> None:
    fake, devices, clock = machine("T4", "GB10")
    fake.unload()
    assert [devices.sample(i).state for i in (0, 1)] == [State.UNREACHABLE] * 2
    assert devices.sample(0).error == "the driver is not loaded"
    with pytest.raises(NoDriverError):
        devices.health(0)
    assert [i.name for i in devices.identities()] == ["Tesla T4", "NVIDIA GB10"]
    assert devices.driver().version is None and devices.driver().unknown
    fake.reset_calls()
    for _ in range(20):
        devices.sample(0)
    assert fake.calls().get("nvmlInitWithFlags", 0) == 0  # a start is tried now and then only
    fake.load()
    clock.now_s += RESTART_AFTER_S
    assert devices.sample(0).state is State.OK
    assert devices.driver().version == "580.95.05"


def test_a_driver_that_went_and_came_unseen_is_found_again(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("T4")
    fake.unload()
    fake.load()
    devices.sample(0)
    assert devices.sample(0).state is State.OK


def test_a_driver_of_another_version_after_an_update(machine: Callable[..., Opened]) -> None:
    fake, devices, clock = machine("T4")
    fake.mismatch()
    assert devices.sample(0).state is State.OK  # those that run go on
    fake.unload()
    devices.sample(0)
    fake.load()
    clock.now_s += RESTART_AFTER_S
    assert devices.sample(0).error == "library and driver are of different versions"
    fake.heal()
    clock.now_s += RESTART_AFTER_S
    assert devices.sample(0).state is State.OK


def test_a_card_that_is_plugged_in_is_found(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("T4")
    fake.add("H100-SXM")
    assert [i.name for i in devices.identities()] == ["Tesla T4", "NVIDIA H100 80GB HBM3"]


def test_a_card_that_this_user_may_not_open(machine: Callable[..., Opened]) -> None:
    fake, _, _ = machine("T4")
    fake.fail("nvmlDeviceGetHandleByIndex_v2", 4)
    devices = open_nvml()
    assert devices.identities()[0].name == "unreachable"
    s = devices.sample(0)
    assert (s.state, s.error) == (State.UNREACHABLE, "no permission")
    with pytest.raises(DevicePermissionError):
        devices.health(0)
    fake.heal()
    assert devices.sample(0).state is State.OK
    devices.close()


def test_many_threads_while_the_driver_comes_and_goes(machine: Callable[..., Opened]) -> None:
    fake, _, _ = machine("T4", "H100-SXM")
    devices = NvmlDevices()
    errors: list[BaseException] = []
    stop = threading.Event()

    def work(step: Callable[[], object]) -> None:
        while not stop.is_set():
            try:
                step()
            except DeviceError:
                continue
            except BaseException as error:  # noqa: BLE001 - whatever it is fails the test
                errors.append(error)
                return

    steps = (lambda: devices.sample(0), lambda: devices.sample(1), lambda: devices.wait_for_xid(0.01), devices.identities)
    threads = [threading.Thread(target=work, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for _ in range(3):
        fake.unload()
        time.sleep(0.02)
        fake.load()
        fake.xid(0, 13)
        fake.gpu(1).lose()
        time.sleep(0.02)
        fake.gpu(1).restore()
    stop.set()
    for thread in threads:
        thread.join(timeout=300)
    assert not errors and not any(t.is_alive() for t in threads)
    devices.close()


def test_samples_after_close_say_so(machine: Callable[..., Opened]) -> None:
    _, devices, _ = machine("T4")
    devices.close()
    devices.close()
    assert devices.sample(0).state is State.UNREACHABLE


@pytest.mark.parametrize("index", [-1, 1, 99])
def test_a_device_that_is_not_there_is_bad_input(machine: Callable[..., Opened], index: int) -> None:
    _, devices, _ = machine("T4")
    for ask in (devices.sample, devices.health):
        with pytest.raises(InputError, match="counted from 0"):
            ask(index)


# --- what does not start ---


@pytest.mark.parametrize(
    ("code", "error", "hint"),
    [
        (9, NoDriverError, "modprobe"),
        (18, DriverMismatchError, "reboot"),
        (4, DevicePermissionError, "container"),
        (17, DevicePermissionError, "--gpus all"),
        (999, DeviceError, "systemd"),
        (19, DeviceError, "doctor"),
        (4242, DeviceError, "doctor"),
    ],
)
def test_why_it_does_not_start(code: int, error: type[DeviceError], hint: str) -> None:
    with fake_nvml(["T4"]) as fake, fake.in_process():
        fake.refuse_init(code)
        with pytest.raises(error) as caught:
            open_nvml()
        assert caught.value.code == code and caught.value.vendor == "nvidia"
        assert caught.value.hint and hint in caught.value.hint


def test_every_code_has_words() -> None:
    import pynvml

    from gpuwise.machine.devices.nvml.errors import REASONS

    known = {v for k, v in vars(pynvml).items() if k.startswith("NVML_ERROR_") and isinstance(v, int)}
    assert known <= set(REASONS)


def test_no_cards_is_no_error(machine: Callable[..., Opened]) -> None:
    _, devices, _ = machine()
    assert devices.identities() == () and devices.peers() == ()


# --- XIDs ---


def test_an_xid_is_waited_for(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("T4", "H100-SXM")
    assert devices.wait_for_xid(0.0) is None
    timer = threading.Timer(0.05, fake.xid, (1, 79))
    timer.start()
    devices._clock = time.monotonic
    seen = devices.wait_for_xid(120.0)
    timer.join()
    assert seen is not None
    assert (seen.code, seen.pci_bus_id) == (79, devices.identities()[1].pci_bus_id) and "bus" in seen.text


def test_xids_that_cannot_be_asked_for(machine: Callable[..., Opened]) -> None:
    fake, devices, _ = machine("T4")
    fake.fail("nvmlDeviceRegisterEvents", 3)
    with pytest.raises(ReadingError, match="not supported"):
        devices.wait_for_xid(0.0)
    fake.heal()
    assert devices.wait_for_xid(0.0) is None
    fake.unload()
    devices.sample(0)
    with pytest.raises(ReadingError, match="not loaded"):
        devices.wait_for_xid(0.0)
    with pytest.raises(InputError):
        devices.wait_for_xid(-1.0)


# --- whatever goes wrong ---

DEVICE_FUNCTIONS = [n for n in function_names() if n.startswith("nvmlDeviceGet")]
CODES = st.sampled_from([1, 2, 3, 4, 6, 7, 9, 10, 13, 15, 16, 17, 18, 19, 21, 25, 26, 27, 28, 999, 4711])


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeNvml]:
    with fake_nvml(["H100-SXM", "RTX-3060"]) as fake, fake.in_process():
        yield fake


@settings(max_examples=settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(DEVICE_FUNCTIONS), st.tuples(CODES, st.integers(1, 3)), max_size=8), st.booleans())
def test_a_sample_is_never_an_error(shared: FakeNvml, failures: dict[str, tuple[int, int]], unloaded: bool) -> None:
    shared.heal()
    shared.gpu(0).add_process(5, memory_bytes=2**20)
    now = [1000.0]
    devices = NvmlDevices(clock=lambda: now[0])
    try:
        with shared.change():
            for function, (code, every) in failures.items():
                shared.fail(function, code, every=every)
            if unloaded:
                shared.unload()
        for _ in range(3):
            now[0] += RESTART_AFTER_S
            for index in (0, 1):
                s = devices.sample(index)
                assert isinstance(s, Sample) and (s.state is State.OK) == (s.error is None)
                if s.state is State.OK:
                    untold = {f.name for f in fields(s) if getattr(s, f.name) is None}
                    assert untold - {"error"} <= set(s.unknown)
            for identity in devices.identities():
                assert isinstance(identity, Identity) and identity.name
            try:
                assert isinstance(devices.health(0), Health)
            except DeviceError as error:
                assert error.message
            devices.peers()
        shared.heal()
        now[0] += RESTART_AFTER_S
        devices.sample(0)
        now[0] += RESTART_AFTER_S
        assert devices.sample(0).state is State.OK
    finally:
        devices.close()


# --- in processes of their own, by the loader's own way ---

PLAYED = """
import sys
from gpuwise.errors import DeviceError
from gpuwise.machine.devices.nvml.backend import open_nvml
try:
    devices = open_nvml()
except DeviceError as error:
    print(type(error).__name__, error.code)
    sys.exit(0)
for line in sys.stdin:
    s = devices.sample(int(line))
    print(s.state, s.temperature_c, flush=True)
"""


def test_another_process_follows_what_is_played() -> None:
    with (
        fake_nvml(["H100-SXM", "RTX-4090"]) as fake,
        subprocess.Popen(
            [sys.executable, "-c", PLAYED], env=fake.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as client,
    ):
        assert client.stdin is not None and client.stdout is not None

        def seen(index: int) -> str:
            assert client.stdin is not None and client.stdout is not None
            client.stdin.write(f"{index}\n")
            client.stdin.flush()
            return client.stdout.readline().strip()

        assert seen(0) == "ok 30.0"
        fake.gpu(0).set(temperature_c=95, power_w=square(100, 700, 0.1))
        assert seen(0) == "ok 95.0"
        fake.gpu(0).lose()
        assert seen(0) == "lost None" and seen(1) == "ok 28.0"
        fake.gpu(0).restore()
        assert seen(0) == "ok 95.0"
        client.stdin.close()


@pytest.mark.parametrize(
    ("code", "said"), [(9, "NoDriverError 9"), (18, "DriverMismatchError 18"), (4, "DevicePermissionError 4")]
)
def test_a_process_that_starts_is_told_why_not(code: int, said: str) -> None:
    with fake_nvml(["T4"]) as fake:
        fake.refuse_init(code)
        done = subprocess.run([sys.executable, "-c", PLAYED], env=fake.env, capture_output=True, text=True, check=False, input="")
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, said, "")


def test_without_the_library_there_is_no_driver(tmp_path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library")
    done = subprocess.run(
        [sys.executable, "-c", PLAYED],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        input="",
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "NoDriverError None", "")
