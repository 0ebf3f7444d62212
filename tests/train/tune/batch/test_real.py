"""The batch finder on real processes with a limit on their memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwise.train.config import read
from gpuwise.train.hook.launch import Limits, Outcome
from gpuwise.train.hook.settings import Stop
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.tune.batch.capacity import Capacity
from gpuwise.train.tune.batch.finder import find_batch
from gpuwise.train.tune.batch.probe import CannotError, Levers, Prober
from gpuwise.train.tune.document import document, write_config
from gpuwise.train.tune.facts import checkpoints_of, taken_batches
from gpuwise.train.tune.search import Options, Result, Search
from gpuwise.train.tune.state import FILE, State
from gpuwise.train.tune.trial import OBSERVE, TrialJob, run
from gpuwise.workload.changes.diff import Patch

HERE = Path(__file__).parents[1]
MIB = 2**20


def job(batch: int, rows: int = 96, accumulation: int = 1, kind: str = "plain") -> TrialJob:
    arguments = (str(batch), str(rows), str(accumulation), kind)
    return TrialJob(str(HERE / "big_rows.py"), arguments, limits=Limits(wall_s=900, memory_bytes=1200 * MIB))


def prober(zygote: Zygote, folder: Path, of: TrialJob, capacity: Capacity, accumulation: int = 1) -> Prober:
    def running(levers: Levers, stop: Stop) -> Outcome:
        return run(of, levers, folder / "run", stop=stop, zygote=zygote)

    state = State(folder, {}, resume=False)
    return Prober(running, state, capacity, base={}, accumulation=accumulation, steps=1, least_s=0.0, say=lambda text: None)


def test_the_wall_of_a_process(zygote: Zygote, tmp_path: Path) -> None:
    """What is found was run within the limit, and one sample more is over it: that was run, or the line says so.

    A process's resident memory is no line to the byte: the search has all the runs it takes by default.
    """
    small = prober(zygote, tmp_path / "small", job(2), Capacity(1e12, False, "")).probe({"batch": 2})
    assert small.memory_bytes is not None and small.largest_batch == 2 and small.n_steps >= 3
    limit = small.memory_bytes + 60 * MIB
    asked = prober(zygote, tmp_path, job(2), Capacity(limit, False, "as given"))
    found = find_batch(asked.size, limit, start=2, most=96)
    memory = {m.batch: m.memory_bytes for m in found.runs if m.memory_bytes is not None}
    assert memory[found.largest] <= limit
    over = {m.batch for m in found.runs if not m.fits}
    sizes = sorted(m.batch for m in found.runs if m.fits)
    slope = (memory[sizes[-1]] - memory[sizes[0]]) / (sizes[-1] - sizes[0])
    assert slope > 4 * MIB, "a sample's activations"
    assert found.exact and all(found.largest < batch for batch in over)
    assert found.largest + 1 in over or memory[found.largest] + 2 * slope > limit
    assert found.largest >= 3 and not found.at_most
    kept = [json.loads(line) for line in (tmp_path / FILE).read_bytes().splitlines()]
    assert [line["key"] for line in kept[1:]] == [f"memory|batch={m.batch}" for m in found.runs]


def test_longest_first_and_scripts_that_cannot(zygote: Zygote, tmp_path: Path) -> None:
    """tiny_text's rows are padded to one length as batches, and of very unequal length as items."""
    nowhere = Capacity(1e12, False, "")
    text = TrialJob(str(HERE / "tiny_text.py"), ("48",), limits=Limits(wall_s=900))
    told = prober(zygote, tmp_path / "text", text, nowhere).probe({"batch": 5}).longest
    assert told is not None and told["looked_at"] == 512 and told["varies"] and told["length"] > 30
    with pytest.raises(CannotError, match=r"shape '\[4, 256\]' is invalid"):
        prober(zygote, tmp_path / "fixed", job(4, kind="fixed"), nowhere).size(6)
    with pytest.raises(CannotError, match="BatchNorm1d makes a row's result depend"):
        prober(zygote, tmp_path / "norm", job(4, kind="norm"), nowhere).probe({"micro_batches": 2})


def test_checkpoints_are_counted_in_the_observed_run(zygote: Zygote, tmp_path: Path) -> None:
    """Three blocks, two batches a step."""
    outcome = run(job(1, accumulation=2, kind="own"), {OBSERVE: True}, tmp_path / "run", stop=Stop(most_steps=3), zygote=zygote)
    assert checkpoints_of(outcome.journal) == 6.0 and taken_batches(outcome.journal) == 2.0


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_held_in_parts(zygote: Zygote, tmp_path: Path) -> None:
    """Six samples take some 80 MiB more than one; the limit leaves room for some."""
    base = prober(zygote, tmp_path / "base", job(1), Capacity(1e12, False, "")).probe({"batch": 1}).memory_bytes
    assert base is not None
    limit = base + 40 * MIB
    options = Options(minutes=30, steps=1, least_s=0.0, only=("tf32",), memory_bytes=limit, find_batch=True)
    folder = tmp_path / "tuning"
    result = Search(job(6, rows=48), State(folder, {}, resume=False), folder, zygote, options).run()
    fitting = result.fitting
    assert fitting is not None and fitting.own == 6 and fitting.part is not None and 1 <= fitting.part < 6
    parts = dict(fitting.levers)["micro_batches"]
    assert result.levers == {"micro_batches": parts} and result.facts.batch == 6
    assert result.before.memory_bytes is not None and result.before.memory_bytes <= limit
    assert fitting.parity is None or fitting.parity.passed
    assert result.sizes is not None and result.sizes.why == "the script's own batch does not fit as it is"
    told = json.loads(json.dumps(document(result, Patch("", ()), None), allow_nan=False))
    assert told["fitting"]["levers"] == {"micro_batches": parts}
    write_config(result, "big_rows.py", tmp_path / "gpuwise.toml")
    assert read(tmp_path / "gpuwise.toml").levers == {"micro_batches": parts}
    lines = (folder / FILE).read_bytes()
    again = Search(job(6, rows=48), State(folder, {}, resume=True), folder, zygote, options).run()
    assert (folder / FILE).read_bytes() == lines and again.fitting == fitting


WAITS = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset

class Model(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)

model = Model(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    for (x,) in DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_larger_batch_is_taken_only_where_it_is_accepted(zygote: Zygote, tmp_path: Path) -> None:
    """Every call of the model waits: what a batch costs does not hang on its size, and the data has 24 rows."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS)

    def tuned(*, resume: bool, accept: bool) -> Result:
        options = Options(
            minutes=30, steps=3, least_s=0.1, only=("tf32",), memory_bytes=4e9, find_batch=True, accept_batch=accept
        )
        state = State(tmp_path / "out", {}, resume=resume)
        return Search(TrialJob(str(script), limits=Limits(wall_s=900)), state, tmp_path / "out", zygote, options).run()

    told = tuned(resume=False, accept=False)
    sizes = told.sizes
    assert sizes is not None and sizes.why is None and told.levers == {}
    assert sizes.largest == sizes.chosen == 24 and sizes.ends == "the data has no more samples"
    assert sizes.gain is not None and sizes.gain.ratio > 3.0 and "linear rule" in sizes.words
    lines = (tmp_path / "out" / FILE).read_bytes()
    taken = tuned(resume=True, accept=True)
    assert (tmp_path / "out" / FILE).read_bytes() == lines and taken.sizes == sizes
    assert taken.levers == {"batch": 24}
    assert taken.after.rate is not None and taken.before.rate is not None and taken.after.rate > 3 * taken.before.rate
    write_config(taken, "waits.py", tmp_path / "gpuwise.toml")
    assert read(tmp_path / "gpuwise.toml").levers == {"batch": 24}
