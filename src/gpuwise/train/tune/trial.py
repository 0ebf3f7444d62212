"""A trial: one run of the script under some levers, with its rate or the reason why it has none."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.train.hook.journal import Journal
from gpuwise.train.hook.launch import HOW_ENDED, Limits, Outcome, launch
from gpuwise.train.hook.settings import Parity, Settings, Stop
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.ticks import Step, Tick, boundary, steady, steps_of
from gpuwise.train.tune.energy import Energy, Meter
from gpuwise.train.tune.flop import Flop, flop_of
from gpuwise.train.tune.peak import Device, device_of

OBSERVE, NO_DROPOUT, ROUNDING, LONGEST = "_observe", "_no_dropout", "_rounding", "_longest"
"""Same as in :mod:`gpuwise.train.levers.apply`, which needs torch."""
SEED = 20_260_101
BLOCKS = 5
STALLED = 4.0
"""A step this many times longer than the median was delayed by the machine, not the script. Rule of this project."""


METERED = "metered"
"""The event under which a run's own :class:`Meter` is with its journal."""
NOT_METERED, NOT_COUNTED = Energy(why="it was not measured"), Flop(why="it was not counted")


@dataclass(frozen=True, slots=True)
class TrialJob:
    """The script that is tuned, and the conditions of its runs."""

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    seed: int = SEED
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    device_memory_bytes: int | None = None
    """Maximum bytes for a GPU's caching allocator."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one run. Rates are of the steps after the warm-up (after the first epoch where a cache fills in it)."""

    ended: str
    ok: bool
    """It ended as it was meant to, and enough steps were seen."""
    n_steps: int = 0
    step_s: float | None = None
    """Median."""
    rate: float | None = None
    """Samples per second; steps per second if the sample size is unknown."""
    undisturbed_rate: float | None = None
    """The same of the time in which no other thread had the loop's processor."""
    per: str = "samples"
    shares: dict[str, float] = field(default_factory=dict[str, float])
    """Shares of the steps' time: data, copy, forward, backward, optimizer, save, other."""
    columns_per_sample: float | None = None
    """Ids in the batches, the padding with them."""
    warm_up_s: float = 0.0
    """Additional time of the first steps relative to later ones: compilation, first batches."""
    outside_s: float = 0.0
    """Before the first step and after the last: data, building, the end."""
    wall_s: float = 0.0
    memory_bytes: int | None = None
    """Peak of the device's allocator; of the process and its children where there is no device."""
    losses: list[float] = field(default_factory=list[float])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Levers that could not take hold, and why."""
    applied: list[str] = field(default_factory=list[str])
    """Levers that reported success."""
    error: str | None = None
    out_of_memory: bool = False
    energy: Energy = NOT_METERED
    """Energy per sample (per step if the sample size is unknown), over the steady steps."""
    flop: Flop = NOT_COUNTED
    device: Device | None = None

    @property
    def how(self) -> str:
        """Its error, else how it ended."""
        return self.error or HOW_ENDED[self.ended]

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Self:
        """The trial that :meth:`keep` wrote."""
        parts: dict[str, Any] = dict(kept)
        for name, kind in (("energy", Energy), ("flop", Flop), ("device", Device)):
            if parts.get(name) is not None:
                parts[name] = kind(**parts[name])
        return cls(**parts)

    def keep(self) -> dict[str, Any]:
        """The trial as JSON."""
        return asdict(self)


def run(
    job: TrialJob,
    levers: Mapping[str, object],
    folder: Path,
    *,
    stop: Stop,
    zygote: Zygote | None,
    parity: Parity | None = None,
    count: bool = False,
) -> Outcome:
    """Run the script under ``levers``; its ``torch.save`` files and prints go to ``folder``. Its energy is metered; with
    ``OBSERVE``, or ``count``, the operations of one turn of its loop are counted."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = Settings(
        job.script,
        list(job.arguments),
        str(folder / "journal.jsonl"),
        module=job.module,
        stop=stop,
        seed=job.seed,
        levers=dict(levers),
        parity=parity,
        trial=str(folder / "saved"),
        # data that the script fetches stay, from its first run
        tidies=OBSERVE not in levers,
        device_memory_bytes=job.device_memory_bytes,
        count_flop=count or OBSERVE in levers,
    )
    with Meter() as meter:
        outcome = launch(
            settings, folder, limits=job.limits, environment=job.environment, output=folder / "output", zygote=zygote
        )
    outcome.journal.events.append({"event": METERED, "meter": meter})
    return outcome


def trial_of(outcome: Outcome, *, skip_steps: int = 0) -> Trial:
    """Result from a run's journal; ``skip_steps``: an epoch in which a cache fills."""
    from gpuwise.train.levers.table import BY_NAME

    journal = outcome.journal
    ticks, early = journal.ticks, list[Step]()
    event = journal.last("flop")
    if event.get("from_tick") is not None and len(steps_of(ticks[event["to_tick"] :])) > 1:
        # the counted turn does not reflect the script's speed
        early, ticks = steps_of(ticks[: event["from_tick"] + 1]), ticks[event["to_tick"] :]
    late = steps_of(ticks)
    steps = early + late
    kept = steady(late[skip_steps:])
    wall = sum(s.wall_s for s in kept)
    common: dict[str, Any] = {
        "losses": [v for _, v in sorted(journal.losses.items())][:64],
        "error": outcome.error,
        "out_of_memory": outcome.out_of_memory,
        "applied": [name for name in journal.applied if name in BY_NAME],
        "refused": {k: v for k, v in journal.refused.items() if k in BY_NAME},
        "wall_s": outcome.wall_s,
        "memory_bytes": memory_of(outcome),
        "n_steps": len(kept),
    }
    if not kept or wall <= 0:
        return Trial(outcome.ended, ok=False, **common)
    samples, columns = sum(s.samples for s in kept), sum(s.tokens for s in kept)
    median_s = statistics.median(s.wall_s for s in kept)
    before, first_s = steps[: len(steps) - len(kept)], first_step_s(journal)
    energy = energy_of(journal, ticks, kept)
    return Trial(
        outcome.ended,
        ok=outcome.ok,
        step_s=median_s,
        rate=rate_of(kept),
        undisturbed_rate=rate_of([replace(s, wall_s=s.undisturbed_s) for s in kept if s.undisturbed_s > 0] or kept),
        per="samples" if samples else "steps",
        shares=shares_of(kept),
        columns_per_sample=columns / samples if samples and columns else None,
        warm_up_s=max(sum(s.wall_s for s in before) - len(before) * median_s, 0.0) + first_s,
        outside_s=max(outcome.wall_s - (journal.ticks[-1].at_s - journal.ticks[0].at_s) - first_s, 0.0),
        energy=energy,
        flop=flop_of(journal, kept) if event else NOT_COUNTED,
        device=device_of(journal),
        **common,
    )


def energy_of(journal: Journal, ticks: list[Tick], kept: list[Step]) -> Energy:
    """Energy per sample over ``kept``: the last of the turns that ``ticks`` close."""
    meter = journal.last(METERED).get("meter")
    if not isinstance(meter, Meter):
        return NOT_METERED
    closing = boundary(ticks)
    ends = [t.at_s for t in ticks if t.optimizer == closing]
    used = meter.of(journal, ends[-len(kept) - 1], ends[-1])
    n = sum(s.samples for s in kept) or len(kept)
    return used if used.energy_j is None else replace(used, energy_j=used.energy_j / n)


def rate_of(steps: list[Step]) -> float:
    """Samples (or steps) per second: median over up to ``BLOCKS`` blocks of consecutive steps.

    Inside a block every wait counts, such as those of a bursty loader; a single stall of the machine affects one block.
    """
    size = max(len(steps) // BLOCKS, 1)
    blocks = [steps[at : at + size] for at in range(0, len(steps) - size + 1, size)]
    return statistics.median(sum(s.samples or 1 for s in block) / sum(s.wall_s for s in block) for block in blocks)


def shares_of(steps: list[Step]) -> dict[str, float]:
    """Shares of the steps' wall time, by phase; steps in which the machine stalled are excluded."""
    middle = statistics.median(s.wall_s for s in steps)
    steps = [s for s in steps if s.wall_s <= STALLED * middle]
    wall = sum(s.wall_s for s in steps)
    names = ("data", "copy", "forward", "backward", "optimizer", "save", "other")
    return {name: sum(getattr(s, f"{name}_s") for s in steps) / wall for name in names}


def first_step_s(journal: Journal) -> float:
    """Inside forward, backward and optimizer until the first step ended: where compilation falls."""
    if not journal.ticks:
        return 0.0
    first = journal.ticks[0]
    return first.forward_s + first.backward_s + first.optimizer_s


def memory_of(outcome: Outcome) -> int | None:
    """Peak bytes on the device, else of the processes."""
    memory = outcome.journal.last("memory")
    on_device = memory.get("peak_allocated_bytes")
    return int(on_device) if on_device else outcome.peak_memory_bytes


def no_steps(script: str, outcome: Outcome) -> GpuwiseError:
    """Why a script could not be measured, as a message for its owner."""
    journal = outcome.journal
    children = journal.of("child")
    if outcome.journal.end.get("reads_input"):
        return InputError(f"{script} reads standard input", hint="give it the arguments that it needs")
    if outcome.ended == "error":
        where = f" at {outcome.where}" if outcome.where else ""
        return GpuwiseError(f"{script} failed{where}: {outcome.error}", hint="it must run without gpuwise first")
    if not journal.ticks and children:
        what = ", ".join(sorted({str(c["what"]) for c in children}))
        return InputError(
            f"{script} makes no optimizer step itself; it starts other processes ({what})",
            hint="give the script that each of them runs",
        )
    if not journal.ticks:
        return InputError(f"{script} made no optimizer step: {outcome.how}", hint="give a script that trains")
    n = len(journal.steps)
    return InputError(f"{script} made {n} steps, too few to measure", hint="let it run longer: more steps or epochs")
