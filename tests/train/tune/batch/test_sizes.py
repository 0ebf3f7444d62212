"""The batch finder around runs that are told here: what it asks for, keeps, takes apart and says."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpuwise.cli.tune.batch_view import show_fitting, show_sizes
from gpuwise.errors import GpuwiseError
from gpuwise.train.hook.journal import Journal
from gpuwise.train.hook.launch import Outcome
from gpuwise.train.hook.settings import Stop
from gpuwise.train.ticks import Tick
from gpuwise.train.tune.batch.capacity import Capacity, capacity_of, filled_bytes
from gpuwise.train.tune.batch.document import batch_document
from gpuwise.train.tune.batch.fitting import fit
from gpuwise.train.tune.batch.merging import lines_of
from gpuwise.train.tune.batch.probe import CannotError, Prober
from gpuwise.train.tune.batch.sizes import Sizes, find_sizes
from gpuwise.train.tune.candidates import candidates_of
from gpuwise.train.tune.facts import Facts
from gpuwise.train.tune.state import State

MIB = 2**20
CAPACITY = Capacity(1000.0 * MIB, False, "1000 MiB, as given")
FACTS = Facts("cpu", 1, 2, 0, 10, batch=16, n_samples=10_000, optimizers=("AdamW",))


class Machine:
    """Stands for a script on a machine: its memory is 100 MiB and ``sample`` MiB for each sample held."""

    def __init__(
        self,
        *,
        sample: float = 9.0,
        own: int = 16,
        accumulation: int = 1,
        rate: Callable[[int], float] = lambda b: 100.0,
        refuses: Mapping[str, str] | None = None,
        breaks: str | None = None,
        retries: int = 0,
    ) -> None:
        self.sample, self.own, self.accumulation, self.rate = sample, own, accumulation, rate
        self.refuses, self.breaks, self.retries = dict(refuses or {}), breaks, retries
        self.ran: list[dict[str, object]] = []

    def __call__(self, levers: Mapping[str, object], stop: Stop) -> Outcome:
        self.ran.append(dict(levers))
        events: list[Mapping[str, Any]] = [
            {"event": "lever", "name": n, "applied": False, "why": w} for n, w in self.refuses.items() if n in levers
        ]
        batch = int(str(levers.get("batch", self.own)))
        refused = "checkpointing" in self.refuses
        held = batch / int(str(levers.get("micro_batches", 1))) * (0.25 if "checkpointing" in levers and not refused else 1.0)
        memory = (100.0 + self.sample * held) * MIB
        if self.breaks is not None and batch != self.own:
            return Outcome("error", 1, Journal(events=events), 1.0, None, error=self.breaks)
        if memory > 1.2 * CAPACITY.memory_bytes:
            return Outcome("memory", 137, Journal(events=events), 1.0, int(memory), out_of_memory=True)
        events.append({"event": "memory", "retries": self.retries})
        events.append({"event": "longest", "n_items": 10_000, "looked_at": 4000, "varies": True, "length": 64})
        step_s = batch * self.accumulation / self.rate(batch) * (1.3 if "checkpointing" in levers else 1.0)
        ticks = [
            Tick(at_s=k * step_s, optimizer=0, optimizer_s=0.2 * step_s * k, n_batches=n, samples=n * batch)
            for k, n in ((k, k * self.accumulation) for k in range(1, 12))
        ]
        return Outcome("enough", 0, Journal(ticks=ticks, events=events), 1.0, int(memory))


def prober(machine: Machine, folder: Path, *, resume: bool = False, capacity: Capacity = CAPACITY) -> Prober:
    return Prober(
        machine,
        State(folder, {}, resume=resume),
        capacity,
        base={"workers": 2},
        accumulation=machine.accumulation,
        steps=4,
        least_s=0.0,
        say=lambda text: None,
    )


def found(machine: Machine, folder: Path, facts: Facts = FACTS, script: Path = Path("none.py")) -> Sizes:
    return find_sizes(prober(machine, folder), facts, 100.0, CAPACITY, script, ())


def test_the_wall_and_the_batch_worth_taking(tmp_path: Path) -> None:
    machine = Machine(rate=lambda b: 1000.0 * min(b, 50))
    sizes = found(machine, tmp_path)
    assert sizes.why is None and sizes.largest == 100 and sizes.chosen is not None and 48 <= sizes.chosen <= 100
    assert sizes.ends == "one more does not fit"
    assert sizes.gain is not None and sizes.gain.ratio == pytest.approx(min(sizes.chosen, 50) / 16)
    assert all(levers["workers"] == 2 for levers in machine.ran)
    measuring = [levers for levers in machine.ran if "_longest" in levers]
    assert len(measuring) <= 4 + 3 and {levers["_longest"] for levers in measuring} == {3}
    assert {r.batch for r in sizes.runs} == {levers["batch"] for levers in measuring}
    assert sizes.longest == "the longest of 4000 samples out of 10000 that were looked at"
    assert "square-root rule" in sizes.words and f"{sizes.chosen} samples a step in place of 16" in sizes.words
    told = json.loads(json.dumps(batch_document(None, sizes), allow_nan=False))
    assert told["batch"]["largest"] == 100 and told["batch"]["changes"] == "maths" and told["fitting"] is None


def test_killed_and_gone_on_with_nothing_is_run_twice(tmp_path: Path) -> None:
    class KilledError(BaseException):
        pass

    class Dying(Machine):
        def __call__(self, levers: Mapping[str, object], stop: Stop) -> Outcome:
            if len(self.ran) == 3:
                raise KilledError
            return super().__call__(levers, stop)

    rate = lambda b: 1000.0 * min(b, 50)  # noqa: E731
    first, second = Dying(rate=rate), Machine(rate=rate)
    with pytest.raises(KilledError):
        found(first, tmp_path)
    sizes = find_sizes(prober(second, tmp_path, resume=True), FACTS, 100.0, CAPACITY, Path("none.py"), ())
    assert len(first.ran) == 3 and not any(levers in first.ran for levers in second.ran if "_longest" in levers)
    third = Machine(rate=rate)
    assert find_sizes(prober(third, tmp_path, resume=True), FACTS, 100.0, CAPACITY, Path("none.py"), ()) == sizes
    assert not third.ran


def test_no_batch_is_faster(tmp_path: Path) -> None:
    sizes = found(Machine(), tmp_path)
    assert sizes.largest == 100 and sizes.chosen == 16 and sizes.gain is None and sizes.words == ""


def test_blocks_that_recompute_where_the_rate_still_rises_at_the_wall(tmp_path: Path) -> None:
    """A third slower a sample, and four times the batch: worth it only where the batch is what the rate hangs on."""
    rising = found(Machine(rate=lambda b: 100.0 * b), tmp_path / "rising")
    assert rising.largest == 100 and rising.chosen is not None and rising.chosen > 200
    assert dict(rising.levers) == {"checkpointing": "blocks"} and "larger batch fit that is faster" in str(rising.blocks)
    slight = found(Machine(rate=lambda b: 100.0 * b**0.3), tmp_path / "slight")
    assert slight.chosen == 100 and slight.levers == () and str(slight.blocks).endswith("is not faster")
    machine = Machine(rate=lambda b: 100.0 * b)
    assert found(machine, tmp_path / "own", replace(FACTS, checkpoints=3.0)).blocks is None
    assert not any("checkpointing" in levers for levers in machine.ran)


def test_the_data_ends_before_the_memory(tmp_path: Path) -> None:
    facts = Facts("cpu", 1, 2, 0, 10, batch=16, n_samples=70)
    machine = Machine(rate=lambda b: 100.0 * b)
    sizes = found(machine, tmp_path, facts)
    assert sizes.largest == 70 and sizes.ends == "the data has no more samples"
    assert max(int(str(levers["batch"])) for levers in machine.ran) == 70


def test_a_script_that_breaks_with_another_batch(tmp_path: Path) -> None:
    machine = Machine(breaks="RuntimeError: shape '[16, 4]' is invalid")
    sizes = found(machine, tmp_path)
    assert sizes.why == "RuntimeError: shape '[16, 4]' is invalid" and sizes.chosen is None
    assert len(machine.ran) == 2
    why = "Buckets makes its own batches"
    assert found(Machine(refuses={"batch": why}), tmp_path / "b").why == why
    assert "no DataLoader" in str(found(Machine(), tmp_path / "c", Facts("cpu", 1, 2, None, None)).why)


def test_an_allocator_that_tries_again_is_at_its_end(tmp_path: Path) -> None:
    """On a GPU only: there the count is the allocator's, elsewhere there is none."""
    on_device = Capacity(CAPACITY.memory_bytes, True, "1000 MiB on the device")
    with pytest.raises(GpuwiseError, match="not even a batch of 1"):
        from gpuwise.train.tune.batch.finder import find_batch

        find_batch(prober(Machine(retries=2), tmp_path, capacity=on_device).size, on_device.memory_bytes, start=16)
    probe = prober(Machine(retries=2), tmp_path, resume=True, capacity=on_device).probe({"batch": 16})
    assert probe.why == "the allocator had to try 2 times again"


# -- accumulation


def test_micro_batches_merged_at_the_same_global_batch(tmp_path: Path) -> None:
    """16 samples six times a step: 96 fit, so one batch makes a step. The optimizer's part is paid as often as before."""
    script = tmp_path / "train.py"
    script.write_text(
        "loader = DataLoader(data, batch_size=16)\n"
        "for k, x in enumerate(loader):\n"
        "    loss(x).backward()\n"
        "    if (k + 1) % 6 == 0:\n"
        "        optimizer.step()\n"
    )
    facts = Facts("cpu", 1, 2, 0, 10, batch=16, n_samples=10_000, accumulation=6)
    machine = Machine(accumulation=6, rate=lambda b: 100.0 if b < 50 else 200.0)
    merged = found(machine, tmp_path / "state", facts, script).merged
    assert merged is not None and (merged.batch, merged.accumulation, merged.was) == (96, 1, 6)
    # a fifth of each measured step is the optimizer's: 0.8 / 200 + 6 * 0.2 / 200 seconds a sample in place of 1 / 100
    assert merged.ratio == pytest.approx(0.01 / (0.8 / 200 + 6 * 0.2 / 200))
    assert merged.lines == (
        "train.py:1: loader = DataLoader(data, batch_size=16)  ->  batch_size=96",
        "train.py:4: if (k + 1) % 6 == 0:  ->  a step every 1",
    )
    assert {levers["_longest"] for levers in machine.ran if "_longest" in levers} == {18}


def test_the_largest_part_of_the_accumulation_that_fits(tmp_path: Path) -> None:
    facts = Facts("cpu", 1, 2, 0, 10, batch=16, n_samples=10_000, accumulation=12)
    merged = found(Machine(accumulation=12), tmp_path, facts).merged
    assert merged is not None and (merged.batch, merged.accumulation) == (96, 2)
    assert lines_of(tmp_path / "nowhere.py", 1, 1) == ()


# -- a script whose own batch does not fit


def test_the_largest_part_that_fits_with_the_global_batch_held(tmp_path: Path) -> None:
    machine = Machine(own=350)
    fitting = fit(prober(machine, tmp_path), 350, CAPACITY)
    # 100 rows fit; 350 in 4 parts are 88 each
    assert fitting.levers == (("micro_batches", 4),) and fitting.part == 88
    assert not any("batch" in levers for levers in machine.ran)
    assert {3, 4} <= {levers["micro_batches"] for levers in machine.ran}


def test_what_cannot_be_split_recomputes_its_blocks(tmp_path: Path) -> None:
    why = "BatchNorm2d makes a row's result depend on the other rows of the batch"
    fitting = fit(prober(Machine(own=300, refuses={"micro_batches": why}), tmp_path), 300, CAPACITY)
    assert fitting.levers == (("checkpointing", "blocks"),) and fitting.part is None
    assert fitting.notes == (f"not in parts: {why}",)


def test_nothing_makes_it_fit(tmp_path: Path) -> None:
    machine = Machine(own=300, sample=2000.0, refuses={"checkpointing": "the model has no repeated blocks"})
    with pytest.raises(GpuwiseError, match=r"batch of 300 does not fit .* not even a batch of 1 fits.*no repeated blocks"):
        fit(prober(machine, tmp_path), 300, CAPACITY)


def test_what_was_not_run_is_not_taken_for_run(tmp_path: Path) -> None:
    class Smaller(Machine):
        def __call__(self, levers: Mapping[str, object], stop: Stop) -> Outcome:
            return super().__call__({**levers, "batch": 8}, stop)

    with pytest.raises(CannotError, match="had 8 samples instead of 16"):
        prober(Smaller(), tmp_path).size(16)


# -- capacity


def test_capacity_of_a_device_and_of_a_machine() -> None:
    journal = Journal(events=[{"event": "device_memory", "free_bytes": 60e9, "reserved_bytes": 20e9, "total_bytes": 85e9}])
    assert capacity_of(journal) == Capacity(80e9 * 0.95, True, "74.5 GiB free on the device, less 5%")
    assert capacity_of(journal, 2e9).memory_bytes == 2e9 and capacity_of(journal, 2e9).device
    here = capacity_of(Journal())
    assert not here.device and here.memory_bytes > 0 and "free on this machine, less 10%" in here.words


@pytest.mark.parametrize(("device", "filled"), [(True, 7.0), (False, 9.0)])
def test_what_a_run_filled(device: bool, filled: float) -> None:
    memory = {"event": "memory", "peak_reserved_bytes": 7.0, "peak_allocated_bytes": 5.0, "peak_host_bytes": 8.0}
    outcome = Outcome("enough", 0, Journal(events=[memory]), 1.0, 9)
    assert filled_bytes(outcome, Capacity(1.0, device, "")) == filled


def test_every_pair_is_run_in_turns(tmp_path: Path) -> None:
    machine = Machine(rate=lambda b: 1000.0 * min(b, 50))
    found(machine, tmp_path)
    pairs = [levers["batch"] for levers in machine.ran if "_longest" not in levers]
    assert len(pairs) in (6, 8)
    assert [a == 16 for a, _ in itertools.zip_longest(pairs[::2], pairs[1::2])] == [True, False, True, False][: len(pairs) // 2]


# -- what a person reads


@pytest.mark.parametrize("width", [80, 120])
def test_read_at_both_widths(tmp_path: Path, width: int) -> None:
    facts = replace(FACTS, accumulation=6)
    sizes = found(Machine(accumulation=6, rate=lambda b: 1000.0 * min(b, 50)), tmp_path / "a", facts)
    fitting = fit(prober(Machine(own=350), tmp_path / "b"), 350, CAPACITY)
    out = Console(file=io.StringIO(), width=width, highlight=False)
    show_fitting(out, fitting)
    show_sizes(out, sizes, taken=False)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert max(len(line) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    assert "fits in 4 parts of 88 samples" in words and "micro_batches = 4" in words
    assert "Largest that fits: 100 (one more does not fit)" in words and "--accept-batch takes it" in words
    assert "Merged at the same global batch: a batch of 96 with a step every 1 in place of 6" in words
    assert all(f" {run.batch} " in words for run in sizes.runs)


def test_the_scripts_own_recomputing_is_tried_only_where_there_is_some() -> None:
    why = {c.label: c.hopeless for c in candidates_of(replace(FACTS, shares={"forward": 0.4, "backward": 0.5}))}
    assert why["checkpointing=off"] == "the script recomputes no activations"
    own = replace(FACTS, checkpoints=3.0, shares={"forward": 0.4, "backward": 0.5})
    off = [c for c in candidates_of(own) if c.lever.name == "checkpointing"]
    assert [(c.value, c.hopeless, c.ceiling) for c in off] == [("off", None, pytest.approx(1 / 0.6))]
    assert not {"batch", "micro_batches"} & {c.lever.name for c in candidates_of(own)}
