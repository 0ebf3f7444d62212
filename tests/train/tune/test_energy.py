"""The energy of a stretch of a run: by played cards, a played processor, and a true NVML client on a card that is not there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuwise.machine.devices.null import NullCard, NullDevices
from gpuwise.testing.fake_nvml import NoCompilerError, fake_nvml
from gpuwise.train.hook.journal import Journal
from gpuwise.train.tune.energy import TOO_SHORT, Energy, Meter, Rapl

CARD: dict[str, Any] = {"index": 0, "name": "NVIDIA GeForce RTX 4090", "uuid": None}


def journal_of(*devices: dict[str, Any]) -> Journal:
    """Of a process whose clock reads 100 s now."""
    return Journal(begin={"at_s": time.time(), "clock_s": 100.0}, events=[{"event": "devices", "devices": list(devices)}])


class Clock:
    """The seconds of a test: they pass when it says so, for the meter, its cards and the run alike."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1.8e9
        monkeypatch.setattr(time, "time", lambda: self.now_s)

    def cards(self, power_w: float | None) -> NullDevices:
        return NullDevices([NullCard("rtx-4090", script=lambda t: {"power_w": power_w})], clock=lambda: self.now_s)

    def meter(self, devices: list[NullDevices], powercap: Path = Path("/nowhere")) -> Meter:
        """Whose own thread never reads: :meth:`watch` does."""
        return Meter(devices, powercap=powercap, every_s=1e6)

    def watch(self, meter: Meter, seconds: float, every_s: float = 0.02) -> None:
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            meter._read()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_stretch_of_a_run_by_its_own_clock(clock: Clock) -> None:
    devices = clock.cards(200.0)
    name = devices.identities()[0].name
    with clock.meter([devices]) as meter:
        journal = journal_of({**CARD, "name": name})
        clock.watch(meter, 1.2)
    told = meter.of(journal, 100.2, 101.0)
    assert told.energy_j == pytest.approx(200.0 * 0.8) and told.basis == "integrated power"
    assert meter.of(journal).energy_j == pytest.approx(200.0 * 1.2)
    assert meter.of(journal, 100.2, 100.4) == Energy(why=TOO_SHORT)
    # a stretch that the meter did not see is no energy of 0
    assert meter.of(journal, 150.0, 160.0).energy_j is None


def test_the_meter_reads_by_itself_while_it_is_open() -> None:
    devices = NullDevices([NullCard("rtx-4090", script=lambda t: {"power_w": 200.0})])
    with Meter([devices], powercap=Path("/nowhere"), every_s=0.001) as meter:
        track = meter._gpus[0].track
        while len(track.at_s) < 5:
            time.sleep(0.001)
    n, whole_s = len(track.at_s), track.at_s[-1] - track.at_s[0]
    assert n >= 6 and track.used_j[-1] > 0 and whole_s > 0
    assert not meter._thread.is_alive()


def test_cards_that_the_run_is_not_on_do_not_count(clock: Clock) -> None:
    with clock.meter([clock.cards(200.0)]) as meter:
        journal = journal_of()
        clock.watch(meter, 0.3)
    assert "no energy counter" in (meter.of(journal).why or "")
    other = meter.of(journal_of({**CARD, "name": "NVIDIA H200", "uuid": "x"})).why or ""
    assert "does not list NVIDIA H200" in other
    assert meter.of(Journal()).why == "the run did not begin"
    assert "second step" in (meter.of(Journal(begin={"at_s": 1.0, "clock_s": 1.0})).why or "")


def test_a_card_that_says_no_power_has_no_energy(clock: Clock) -> None:
    devices = clock.cards(None)
    with clock.meter([devices]) as meter:
        clock.watch(meter, 0.2)
    told = meter.of(journal_of({**CARD, "name": devices.identities()[0].name}))
    assert told.energy_j is None and "does not say what power" in (told.why or "")


def counters(folder: Path, **joules: float) -> None:
    """Packages and their parts, in microjoules as powercap writes them."""
    for name, value in joules.items():
        place = folder / f"intel-rapl:{name.replace('_', ':')}"
        place.mkdir(parents=True, exist_ok=True)
        kind = {"0": "package-0", "1": "package-1", "0_0": "core", "0_1": "dram", "2": "psys"}[name.removeprefix("n")]
        (place / "name").write_text(kind + "\n")
        (place / "energy_uj").write_text(f"{int(value * 1e6)}\n")
        (place / "max_energy_range_uj").write_text("262143328850\n")


def test_the_processor_by_its_packages_and_memory_with_counters_that_wrap(tmp_path: Path) -> None:
    def write(**joules: float) -> None:
        for name, value in joules.items():
            counters(tmp_path, **{name: value})

    for name, value in (("0", 262_100.0), ("1", 10.0), ("0_0", 5.0), ("0_1", 7.0), ("2", 900.0)):
        write(**{name: value})
    rapl = Rapl(tmp_path)
    assert rapl.readable and rapl.read() == 0.0
    for name, value in (("0", 56.671150), ("1", 15.0), ("0_0", 999.0), ("0_1", 8.0), ("2", 5000.0)):
        write(**{name: value})
    # 262,143.32885 - 262,100 + 56.67115, 5 of the second package, 1 of memory; cores and psys would count twice
    assert rapl.read() == pytest.approx(100.0 + 5.0 + 1.0)


def test_a_run_on_the_processor_is_metered_there(clock: Clock, tmp_path: Path) -> None:
    counters(tmp_path, **{"0": 1000.0})
    with clock.meter([], powercap=tmp_path) as meter:
        journal = journal_of()
        clock.watch(meter, 0.1)
        counters(tmp_path, **{"0": 1042.0})
        clock.watch(meter, 0.6)
    told = meter.of(journal)
    assert told.energy_j == pytest.approx(42.0) and told.basis == "RAPL"


def test_counters_that_may_not_be_read_say_so(tmp_path: Path) -> None:
    counters(tmp_path, **{"0": 1.0})
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert not Rapl(tmp_path).readable and "only root" in Rapl(tmp_path).why
    assert Rapl(tmp_path).read() is None


PRETENDS = """
import time, types
import torch
# a script on a card that is not there: what torch says of it, and nothing else, is made up
torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: 0
torch.cuda.is_current_stream_capturing = lambda: True  # no events are recorded, which it has not
torch.cuda.max_memory_allocated = lambda *a: 5 * 10**9
torch.cuda.memory_allocated = lambda *a: 4 * 10**9
torch.cuda.memory_stats = lambda *a: {"allocated_bytes.all.peak": 5 * 10**9}
torch.cuda.get_device_capability = lambda *a: (9, 0)
told = types.SimpleNamespace(name="NVIDIA H100 80GB HBM3", uuid=%r, total_memory=85 * 10**9, major=9, minor=0)
torch.cuda.get_device_properties = lambda *a: told
torch.backends.cuda.matmul.allow_tf32 = False
model = torch.nn.Linear(64, 32)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(60):
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""

MEASURES = """
import json, sys
from pathlib import Path
from gpuwise.train.hook.settings import Stop
from gpuwise.train.tune.flop import utilisation
from gpuwise.train.tune.peak import peaks_of
from gpuwise.train.tune.trial import TrialJob, run, trial_of
folder = Path(sys.argv[1])
stop = Stop(steps=10, at_least_s=1.5)
outcome = run(TrialJob(str(folder / "script.py")), {}, folder / "trial", stop=stop, zygote=None, count=True)
t = trial_of(outcome)
share, why = utilisation(t.flop, t.rate, peaks_of(t.device))
steps = outcome.journal.steady
mean_rate = sum(s.samples for s in steps) / sum(s.wall_s for s in steps)
print(json.dumps({**t.keep(), "share": share, "why": why, "mean_rate": mean_rate}))
"""


@pytest.mark.slow
def test_a_true_client_of_a_played_card_gives_known_power_times_time(tmp_path: Path) -> None:
    """From the driver's library to joules a sample: 350 W, whatever the speed of this machine."""
    pytest.importorskip("torch")
    try:
        fake = fake_nvml(["H100-SXM"])
    except NoCompilerError:
        pytest.skip("no C compiler")
    with fake:
        card = fake.gpu(0)
        card.set(power_w=350.0)
        (tmp_path / "script.py").write_text(PRETENDS % card.uuid.removeprefix("GPU-"))
        done = subprocess.run(
            [sys.executable, "-c", MEASURES, str(tmp_path)],
            env=fake.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["device"]["accelerator"] == "h100-sxm" or "h100" in told["device"]["accelerator"]
    assert told["energy"]["basis"] == "energy counter"
    # the trial's own rate is a median, the energy a mean: a machine that stalls would set them apart
    assert told["energy"]["energy_j"] * told["mean_rate"] == pytest.approx(350.0, rel=0.2)
    assert told["energy"]["energy_j"] >= 350.0 * 0.05 / 8 * 0.9
    flop = 2 * (2 * 8 * 64 * 32) / 8
    assert told["flop"]["per_sample"] == {"fp32": flop}
    assert told["share"] == pytest.approx(flop * told["rate"] / 66.9e12, rel=0.01) and told["why"] is None
    assert told["memory_bytes"] == 5 * 10**9
