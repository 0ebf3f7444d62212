from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwise.errors import FieldError, InputError
from gpuwise.processes import BLAS_THREADS
from gpuwise.train.config import Plan, TunedConfig, TunedSpeed, read, write
from gpuwise.train.hook.journal import DENSE_TICKS, Follower, Journal, Writer
from gpuwise.train.run.comparison import comparison_of
from gpuwise.train.run.progress import LoopReader, Progress, loop_of, progress_of
from gpuwise.train.run.run import find_config, run_tuned
from gpuwise.train.ticks import Tick, steps_of
from gpuwise.train.tune.energy import Energy

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for x in DataLoader(torch.randn(64, 4), batch_size=4):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("fused", optimizer.param_groups[0]["fused"], sys.argv[1:])
torch.save(model.state_dict(), sys.argv[1])
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWISE_RECORDS", str(tmp_path / "records.db"))


@pytest.mark.thorough
def test_the_script_runs_as_it_was_tuned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its words, files and exit code are its own."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    tuned = TunedConfig("train.py", {"fused_optimizer": True, "prefetch": 4}, TunedSpeed(100.0, "samples", 0.04, 50.0))
    seen: list[Progress] = []
    result = run_tuned(str(script), [str(tmp_path / "weights.pt")], tuned, look=seen.append, every_s=0.05)
    assert capfd.readouterr().out == f"fused True [{str(tmp_path / 'weights.pt')!r}]\n"
    assert result.outcome.code == 3 and (tmp_path / "weights.pt").exists()
    assert result.refused == {"prefetch": "the loader has no workers"}
    assert result.comparison is not None and result.comparison.per == "samples"
    assert result.comparison.error == pytest.approx(100.0 / result.comparison.rate - 1.0)
    assert result.kept_in is None, "with a lever that did not take hold it is not what the file says"


@pytest.mark.thorough
@pytest.mark.parametrize("said", [None, "3"], ids=["nobody says", "the person says"])
def test_the_scripts_products_have_the_threads_that_they_have_without_gpuwise(
    said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line starts its own numpy with one."""
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv(BLAS_THREADS, raising=False)
    if said is not None:
        monkeypatch.setenv(BLAS_THREADS, said)
    script = tmp_path / "train.py"
    script.write_text("import os, sys\n" + SCRIPT.replace("sys.exit(3)", f"print('threads', os.environ.get('{BLAS_THREADS}'))"))
    write(TunedConfig("train.py", {"fused_optimizer": True}), tmp_path / "gpuwise.toml", {})
    command = [sys.executable, "-m", "gpuwise", "run", "--no-record", str(script), "--", str(tmp_path / "weights.pt")]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"threads {said}" in ran.stdout.splitlines(), ran.stderr


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    tuned = TunedConfig(
        "a/train.py", {"workers": 2, "autocast": "bf16", "trim_padding": True}, TunedSpeed(9.5, "samples", 0.5, 3.0, 7, "cpu")
    )
    write(tuned, tmp_path / "gpuwise.toml", {"workers": "1.50x, order"})
    assert read(tmp_path / "gpuwise.toml") == tuned
    assert "workers = 2  # 1.50x, order" in (tmp_path / "gpuwise.toml").read_text()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("version = 2", "version 2 is not known"),
        ("version = 1\n[levers]\nmagic = true", "no lever 'magic'"),
        ("version = 1\n[levers]\nworkers = -1", "takes a whole number"),
        ("version = 1\n[levers]\nworkers = true", "takes a whole number"),
        ('version = 1\n[levers]\nautocast = "fp7"', "autocast = 'fp7'"),
        ("version = 1\nspeed = 1", "unknown field 'speed'"),
        ("version = 1\n[expected]\nrate = 1", "expected"),
        ("version =", "not TOML"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "gpuwise.toml").write_text(text)
    with pytest.raises((InputError, FieldError), match=match):
        read(tmp_path / "gpuwise.toml")


def test_a_lever_that_is_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "gpuwise.toml").write_text("version = 1\n[levers]\ntrim_padding = false\nthreads = 2\n")
    assert read(tmp_path / "gpuwise.toml").levers == {"threads": 2}


def test_where_the_file_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    script = tmp_path / "in" / "train.py"
    script.touch()
    with pytest.raises(InputError, match=r"no gpuwise\.toml"):
        find_config(str(script), None)
    write(TunedConfig("other.py"), tmp_path / "gpuwise.toml", {})
    with pytest.raises(InputError, match=r"is of other\.py, not of"):
        find_config(str(script), None)
    write(TunedConfig("in/train.py", {"threads": 1}), tmp_path / "in" / "gpuwise.toml", {})
    assert find_config(str(script), None)[1].levers == {"threads": 1}


def ticks(n: int, step_s: float = 0.5) -> list[Tick]:
    return [Tick(at_s=step_s * k, optimizer=0, samples=4 * k, n_batches=k, n_optimizer=k) for k in range(n)]


LOADER = {"event": "loader", "n_samples": 100, "batch_size": 4, "n_batches": 25}
SMALL = {"event": "loader", "n_samples": 8, "batch_size": 4, "n_batches": 2}


def test_progress_tells_rate_loss_memory_cost_and_time_left() -> None:
    journal = Journal(ticks=ticks(13), losses={0: 2.0, 1: 1.5}, events=[SMALL, LOADER], used_bytes=7)
    now = progress_of(
        journal, Plan(epochs=3, price_per_hour=2.0), expected=TunedSpeed(16.0, "samples", 0.25, 1.0), elapsed_s=1800.0
    )
    assert (now.n_steps, now.rate, now.per, now.loss, now.memory_bytes) == (12, 8.0, "samples", 1.5, 7)
    assert (now.epoch, now.epochs, now.total_steps) == (0.48, 3.0, 75.0)
    # 63 turns of half a second, predicted a quarter
    assert (now.left_s, now.predicted_left_s, now.cost_usd) == (31.5, 15.75, 1.0)
    assert progress_of(Journal()) == Progress(0)


@pytest.mark.parametrize(
    ("plan", "events", "total"),
    [
        (Plan(total_steps=40), [LOADER], 40.0),
        (Plan(), [LOADER, {"event": "total", "steps": 60, "by": "transformers"}], 60.0),
        (Plan(epochs=3), [{"event": "total", "steps": 60, "by": "transformers"}], 60.0),
        (Plan(epochs=2), [], None),
        (Plan(), [LOADER], None),
        (Plan(epochs=2), [{**LOADER, "n_batches": None}], 50.0),
    ],
)
def test_how_long_it_goes_on(plan: Plan, events: list[dict[str, object]], total: float | None) -> None:
    assert progress_of(Journal(ticks=ticks(9), events=list(events)), plan).total_steps == total


def test_a_run_of_days_is_read_from_few_ticks() -> None:
    """Of the ticks after the first ones every hundredth is kept; the pace changes there."""
    journal = Journal(ticks=ticks(21))
    journal.events.append({"event": "sparse", "from_tick": 21})
    journal.ticks += [
        Tick(at_s=10.0 + 25.0 * k, optimizer=0, samples=80 + 400 * k, n_batches=20 + 100 * k, n_optimizer=20 + 100 * k)
        for k in range(1, 11)
    ]
    now = progress_of(journal, Plan(total_steps=2020))
    assert now.n_steps == 1020 and now.rate == pytest.approx(16.0, rel=0.2)
    comparison = comparison_of(journal, None, None)
    assert comparison is not None and comparison.rate == 16.0 and comparison.step_s == 0.25
    assert (comparison.n_steps, comparison.train_s, comparison.samples) == (1020, 260.0, 4080.0)


def test_a_loop_read_as_it_grows_is_the_whole_one() -> None:
    """Two optimizers, of which the second turns out to close a turn; the ticks are thinned out at the end."""
    whole = [Tick(at_s=0.1 * k, optimizer=0 if k < 4 else k % 2, samples=k, n_batches=k // 2, n_optimizer=k) for k in range(61)]
    journal, reader = Journal(), LoopReader()
    for n in range(40):
        journal.ticks.append(whole[n])
        assert reader.read(journal) == loop_of(journal), n
    journal.events.append({"event": "sparse", "from_tick": 40})
    for tick in whole[44::4]:
        journal.ticks.append(tick)
        assert reader.read(journal) == loop_of(journal)
    assert len(reader.read(journal).points) > 20 and reader.read(journal).turns > 24


def test_a_tick_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpuwise.train.run.progress as module

    journal, reader, seen = Journal(ticks=ticks(500)), LoopReader(), list[int]()
    monkeypatch.setattr(module, "steps_of", lambda t, closing: (seen.append(len(t)), steps_of(t, closing))[1])
    for _ in range(3):
        reader.read(journal)
    journal.ticks += ticks(505)[500:]
    reader.read(journal)
    assert seen == [500, 6]


def test_predicted_beside_measured() -> None:
    expected = TunedSpeed(10.0, "samples", 0.4, 5.0, 200, energy_j=3.0)
    plan = Plan(price_per_hour=3.6, usd_per_kwh=0.36)
    comparison = comparison_of(Journal(ticks=ticks(13)), expected, 100, plan=plan, energy=Energy(96.0, "RAPL"))
    assert comparison is not None and comparison.rate == 8.0 and comparison.error == pytest.approx(0.25)
    told = {r.name: (r.predicted, r.measured, r.error) for r in comparison.rows()}
    assert told["samples a second"] == (10.0, 8.0, pytest.approx(0.25))
    assert told["seconds a step"] == (0.4, 0.5, pytest.approx(-0.2))
    assert told["memory"] == (200, 100, 1.0)
    assert told["energy a sample"] == (3.0, 2.0, 0.5)
    assert told["time of 12 steps"] == (4.8, 6.0, pytest.approx(-0.2))
    # 3.6 dollars an hour are a thousandth a second; 0.36 a kWh are 1e-7 a joule
    assert told["their cost"] == (pytest.approx(0.0048 + 144e-7), pytest.approx(0.006 + 96e-7), pytest.approx(-0.2, abs=0.01))
    assert comparison_of(Journal(ticks=ticks(3)), None, None) is None
    other = comparison_of(Journal(ticks=ticks(13)), TunedSpeed(10.0, "steps", 0.4, 5.0), None)
    assert other is not None and other.error is None and other.rows()[0].predicted is None


def test_a_plan_is_read_and_bad_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpuwise.toml"
    plan = Plan(epochs=3, price_per_hour=2.5, country="DE")
    write(TunedConfig("train.py", {"workers": 2}, plan=plan), path, {})
    assert read(path).plan == plan
    for text, match in (
        ("price_per_hour = -1", "not a number above zero"),
        ("epochs = true", "not a number"),
        ("speed = 1", "field 'speed' of run"),
        ("country = 3", "not a name"),
        ("total_steps = inf", "not a number"),
    ):
        path.write_text(f"version = 1\n[run]\n{text}\n")
        with pytest.raises(FieldError, match=match):
            read(path)


def test_a_journal_of_a_live_run_stays_small(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "journal", sparse=True)
    for n in range(DENSE_TICKS + 30_000):
        writer.tick(Tick(at_s=writer._began_s + 0.01 * n, optimizer=0, n_optimizer=n))
    writer.event("now", allocated_bytes=1)
    writer.event("now", allocated_bytes=2)
    writer.close()
    follower = Follower(tmp_path / "journal")
    journal = follower.read()
    assert journal.last("sparse")["from_tick"] == DENSE_TICKS
    assert DENSE_TICKS + 300 < len(journal.ticks) < DENSE_TICKS + 1000
    assert [t.n_optimizer for t in journal.ticks[:DENSE_TICKS]] == list(range(DENSE_TICKS))
    assert journal.ticks[-1].n_optimizer == DENSE_TICKS + 29_999
    assert [e["allocated_bytes"] for e in journal.of("now")] == [2]
    assert follower.read() is journal and len(loop_of(journal).points) == len(journal.ticks)
    assert loop_of(journal).turns == DENSE_TICKS + 29_999
