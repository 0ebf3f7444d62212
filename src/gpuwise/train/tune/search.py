"""The search of the tuner: levers one by one on the real script, measured and checked for parity."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gpuwise.errors import GpuwiseError
from gpuwise.train.hook.launch import Limits, Outcome
from gpuwise.train.hook.settings import Stop
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.tune.batch.capacity import Capacity, capacity_of, filled_bytes
from gpuwise.train.tune.batch.fitting import Fitting, fit
from gpuwise.train.tune.batch.probe import Prober
from gpuwise.train.tune.batch.sizes import Sizes, find_sizes
from gpuwise.train.tune.candidates import ASKED_FOR as CACHES
from gpuwise.train.tune.candidates import EMPTIED, Candidate, candidates_of
from gpuwise.train.tune.facts import Facts, facts_of
from gpuwise.train.tune.gate import Gate
from gpuwise.train.tune.parity import Verdict
from gpuwise.train.tune.start import START_LIMIT_S, Start, start_of_run
from gpuwise.train.tune.state import State
from gpuwise.train.tune.stats import LEAST_GAIN, WORTH_KNOWING, Gain, gain_of, pairs_that_tell, spread_of
from gpuwise.train.tune.trial import OBSERVE, Trial, TrialJob, no_steps, run, trial_of
from gpuwise.train.tune.whole import SPARE, Whole, counted, whole_gain, whole_s
from gpuwise.units import format_duration

Levers = dict[str, object]
SLOW_START = 10.0
"""Time limit of a trial, as a multiple of the untouched script's time until it had enough steps (compilation)."""
LEAST_LIMIT_S = 120.0
FINAL_PAIRS, MOST_FINAL_PAIRS, LEAST_PAIRS, MOST_PAIRS = 4, 12, 3, 8
FINAL_SPREAD = 0.2
"""Pairs of all levers together are measured until the 95 % interval is no wider than this share of the gain, or time is up."""
HOPELESS = 0.8
"""After one pair: a lever that is this slow is not measured again."""
EPOCH_LIMIT_S = 90.0
"""A cache helps only from the second epoch on; a trial waits for the first at most this long."""
MISSED = 0.05
"""Probability that the intervals of any lever tried may miss: half of it is below them, and the increase by looking after
every pair is about as large (test_stats.py)."""
MOST_SETTLED = 32
"""Maximum pairs of one lever while no lever is kept yet."""
FINAL_SHARE = 0.4
"""Maximum share of the minutes reserved for measuring all levers together."""
SEEN = 0.01
"""Smallest share of a training that the answer shows. Rule of this project."""
BEYOND = 1.5
"""A gain this many times above what the lever's share of the step allows is attributed to the machine. Rule of this project."""
SEEING_SHARE = 0.1
"""Share of the minutes also reserved if the training's length is unknown: to see whether it ends soon."""
WORTHWHILE = 3.0
"""Times what ``gpuwise run`` takes to start, that levers save in a training that is long. Rule of this project."""
RUN_LENGTH_S = 3600.0
"""Assumed length of a training of unknown length."""
LengthFrom = Literal["script", "option", "assumed"]
"""Source of the training's length: the script's epochs and steps (or its end, where it was seen), ``--run-length``, neither."""
CROWDING = ("workers", "prefetch", "threads")
"""Levers whose processes and threads ask for the processors as other programs do: the loop's waiting for them is its own."""
CROWD = 0.3
"""Share of the loop's time taken by other programs above which such levers are tried last, as their effect is hard to
distinguish; except workers, if they may save most of the step. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a search."""

    minutes: float = 10.0
    steps: int = 10
    """Steady steps of each trial."""
    least_s: float = 2.0
    """They go on until they have covered this long."""
    only: tuple[str, ...] = ()
    parity: bool = True
    run_length_s: float | None = None
    """Length of the training to tune for: compilation and the start of ``gpuwise run`` occur once in it. Default: the script's
    own if known, else ``RUN_LENGTH_S``."""
    find_batch: bool = False
    """Search the largest batch and the best one, with the kept levers."""
    accept_batch: bool = False
    """Use the batch that was found although it changes the training."""
    memory_bytes: float | None = None
    """Memory limit of the training; default: the free memory minus a reserve."""


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """The outcome of one candidate."""

    name: str
    value: object
    label: str
    result: str
    """``kept``, ``refused`` (changes the training), ``not faster``, ``undecided``, ``failed``, ``not tried``, ``no time``."""
    why: str
    gain: Gain | None = None
    ceiling: float | None = None
    parity: Verdict | None = None
    extra_s: float = 0.0
    """Its warm-up beyond the untouched script's."""
    beside: Mapping[str, object] = field(default_factory=dict[str, object])
    """Levers that were put on with it."""

    @property
    def words(self) -> str:
        """The outcome in one line."""
        return f"{self.label}: {self.result}" + ("" if self.why == self.result else f", {self.why}")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a whole tuning."""

    facts: Facts
    before: Trial
    after: Trial
    levers: Levers
    tried: tuple[CandidateResult, ...]
    gain: Gain | None
    """Gain of a step by all levers together, measured against the untouched script; None if none was kept."""
    parity: Verdict | None
    """Parity of all together."""
    spent_s: float
    out_of_time: bool
    fitting: Fitting | None = None
    """Changes that make the script's own batch fit; None if it fits without."""
    sizes: Sizes | None = None
    """Result of the batch finder, if requested."""
    spread: float | None = None
    """How far runs of the same levers lay apart, as a share of their middle: the machine's own noise, the widest seen."""
    run_length_s: float = RUN_LENGTH_S
    """Length of the training tuned for."""
    length_from: LengthFrom = "assumed"
    too_short: str | None = None
    """Reason why nothing is kept although it is faster: the training is too short to recover the start of ``gpuwise run``."""
    pair_s: float = 0.0
    """Seconds of a pair of runs."""
    missed: float = MISSED
    """Probability that the interval of one lever may miss."""
    is_undisturbed: bool = False
    """Gain and rates are of the time in which no other program had the loop's processor."""
    whole: Whole | None = None
    """The whole training by them: imports, the start of ``gpuwise run``, compilation and the first epoch included."""

    @property
    def pairs_missing(self) -> int | None:
        """Pairs of runs that would decide the open levers; None if the runs vary too much for any number."""
        n = 0
        for t in self.open_ones:
            if t.gain is None or t.gain.n_pairs < 2:
                n += LEAST_PAIRS
                continue
            enough = pairs_that_tell(t.gain, missed=self.missed, most=MOST_SETTLED)
            if enough is None:
                return None
            n += enough - t.gain.n_pairs
        return n

    @property
    def could_not_tell(self) -> bool:
        """Whether nothing is kept because the runs vary too much to decide."""
        return not self.levers and bool(self.open_ones)

    @property
    def open_ones(self) -> tuple[CandidateResult, ...]:
        """Levers whose benefit is still undecided."""
        return tuple(
            t
            for t in self.tried
            if t.result == "no time" or (t.result == "undecided" and t.gain is not None and t.gain.high > WORTH_KNOWING)
        )


class _MinutesOver(Exception):
    """A run of a pair was stopped at the end of the minutes: it has no result."""


class Search:
    """One tuning. ``say`` receives progress lines."""

    def __init__(
        self,
        job: TrialJob,
        state: State,
        folder: Path,
        zygote: Zygote | None,
        options: Options,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._job, self._state, self._folder, self._zygote, self._options = job, state, folder, zygote, options
        self._say = say
        self._ends_s = time.monotonic() + options.minutes * 60.0
        self._tries_until_s = self._ends_s
        self._missed = MISSED
        """Probability that the interval of one lever may miss."""
        self._spreads: list[float] = []
        self._base: Levers = {}
        """Levers of both sides of every pair, without which the script does not run."""
        self._best: Levers = {}
        self._fitting: Fitting | None = None
        self._candidates: list[Candidate] = []
        self._reference_wall_s = 0.0
        self._has_workers = True
        self._length_s = RUN_LENGTH_S
        self._length_from: LengthFrom = "assumed"
        self._own_wall_s, self._crowding = 0.0, 1.0
        self._too_short: str | None = None
        self._whole: Whole | None = None
        self._emptied: dict[str, str] = {}
        """Levers without effect beside one that is kept, and why."""
        self._gain_is_undisturbed = False

    def run(self) -> Result:
        """Run it. Raises InputError where the script has no steps to measure, GpuwiseError where it cannot be compared."""
        began = time.monotonic()
        self._say("the untouched script")
        facts, before, capacity = self._look()
        self._has_workers = bool(facts.n_workers)
        gate = Gate(
            self._job, self._folder / "parity", self._zygote, own=facts.autocast, base=self._base, epoch_steps=facts.epoch_steps
        )
        tried: list[CandidateResult] = []
        candidates = candidates_of(facts, self._options.only)
        if before.rate and before.undisturbed_rate and before.rate < (1.0 - CROWD) * before.undisturbed_rate:
            most = max((c.share for c in candidates if c.hopeless is None and c.lever.name not in CROWDING), default=0.0)
            candidates.sort(key=lambda c: c.lever.name in CROWDING and (c.lever.group != "loader" or c.share < most))
        self._candidates = candidates
        self._length_s, self._length_from = self._length(facts, before)
        self._plan(candidates, facts, before)
        for candidate in candidates:
            tried.append(self._try(candidate, facts, before, gate))
            if candidate.hopeless is None:
                self._say(tried[-1].words)
        if self._best == self._base:
            self._settle(candidates, tried, facts, before, gate)
        gain, verdict, before, after = self._together(facts, before, gate, tried)
        sizes = self._sizes(facts, before, capacity) if self._options.find_batch else None
        if sizes is not None and sizes.trial is not None and self._options.accept_batch:
            self._best |= {"batch": sizes.chosen, **dict(sizes.levers)}
            after = sizes.trial
        spent = time.monotonic() - began
        return Result(
            facts,
            before,
            after,
            dict(self._best),
            tuple(tried),
            gain,
            verdict,
            spent,
            any(t.result == "no time" for t in tried),
            self._fitting,
            sizes,
            max(self._spreads, default=None),
            self._length_s,
            self._length_from,
            self._too_short,
            2.0 * max(self._reference_wall_s, 1.0),
            self._missed,
            self._gain_is_undisturbed,
            self._whole,
        )

    def _length(self, facts: Facts, before: Trial) -> tuple[float, LengthFrom]:
        """Seconds of the training that is tuned for, and where they are from."""
        if before.rate and before.undisturbed_rate:
            self._crowding = before.undisturbed_rate / before.rate
        if self._options.run_length_s is not None:
            return self._options.run_length_s, "option"
        if facts.epochs is None or facts.epoch_steps is None or not before.step_s:
            return RUN_LENGTH_S, "assumed"
        own_s = self._own_wall_s = facts.epochs * facts.epoch_steps * before.step_s
        if before.rate and before.undisturbed_rate and self._is_undisturbed(before, before, self._best):
            own_s *= before.rate / before.undisturbed_rate
        return own_s, "script"

    def _plan(self, candidates: list[Candidate], facts: Facts, before: Trial) -> None:
        """Use of the minutes, reported before they are spent."""
        n = sum(c.hopeless is None and not isinstance(self._epoch(c.lever.name, facts, before), str) for c in candidates)
        pair_s = 2.0 * max(self._reference_wall_s, 1.0)
        left_s = max(self._ends_s - time.monotonic(), 0.0)
        seeing_s = 0.0 if self._is_known else SEEING_SHARE * left_s
        held_s = min(FINAL_SHARE * left_s, FINAL_PAIRS * pair_s + seeing_s)
        # those that the time is too short for share in no chance
        in_time = int((left_s - held_s) / (LEAST_PAIRS * pair_s))
        self._missed = MISSED / max(min(n, in_time), 1)
        self._tries_until_s = self._ends_s - held_s
        if n:
            self._say(
                f"{n} levers to try in {(left_s - held_s) / 60.0:.1f} minutes, about {pair_s:.0f} s a pair of runs, at least "
                f"{LEAST_PAIRS} pairs each; {held_s / 60.0:.1f} minutes are reserved for all of them together"
            )
            enough_s = n * LEAST_PAIRS * pair_s + held_s
            if enough_s > left_s:
                self._say(f"that is not enough for all: --minutes {enough_s / 60.0 + 1.0:.0f} would be")

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._ends_s

    @property
    def _no_more_tries(self) -> bool:
        return time.monotonic() + 2.0 * self._reference_wall_s > self._tries_until_s

    # -- the untouched script

    def _look(self) -> tuple[Facts, Trial, Capacity]:
        record = self._state.measured("untouched", self._observe)
        capacity = Capacity(**record["capacity"])
        if "too_large" in record:
            self._make_fit(record["too_large"], capacity)
            record = self._state.measured(f"untouched|{sorted(self._base.items())}", self._observe)
            if "too_large" in record:
                raise GpuwiseError(f"{self._job.script} fits at one time and not at another", hint="--memory gives it a limit")
        facts = record["facts"]
        for name in ("optimizers", "dtypes", "capability"):
            if facts[name] is not None:
                facts[name] = tuple(facts[name])
        before = Trial.read(record["trial"])
        self._reference_wall_s = before.wall_s
        self._limit(max(LEAST_LIMIT_S, SLOW_START * before.wall_s), capacity)
        return Facts(**facts), before, capacity

    def _observe(self) -> dict[str, Any]:
        """The script as it is (or fits): its trial and facts; only its batch if it does not fit."""
        stop = Stop(steps=self._options.steps, at_least_s=self._options.least_s, seconds=60.0)
        outcome = self._run({OBSERVE: True, **self._base}, stop)
        capacity = capacity_of(outcome.journal, self._options.memory_bytes)
        filled = filled_bytes(outcome, capacity)
        loader = next(iter(outcome.journal.of("loader")), None)
        is_capped = self._options.memory_bytes is not None and filled is not None and filled > capacity.memory_bytes
        if (outcome.out_of_memory or is_capped) and loader is not None and loader.get("batch_size"):
            return {"too_large": int(loader["batch_size"]), "capacity": asdict(capacity)}
        trial = trial_of(outcome)
        if not trial.ok or trial.rate is None:
            raise no_steps(self._job.script, outcome)
        return {"trial": trial.keep(), "facts": asdict(facts_of(outcome.journal, trial)), "capacity": asdict(capacity)}

    def _make_fit(self, batch: int, capacity: Capacity) -> None:
        """The base of all that follows, where the script's own batch does not fit."""
        self._say(f"the script's batch of {batch} does not fit in {capacity.words}")
        self._limit(LEAST_LIMIT_S * SLOW_START, capacity)
        fitting = fit(self._prober({}, capacity, 1), batch, capacity)
        levers = dict(fitting.levers)
        if self._options.parity and fitting.part is not None and fitting.part > 1:
            # on batches that fit both ways
            shown: Levers = {"micro_batches": min(int(str(levers["micro_batches"])), fitting.part)}
            gate = Gate(self._job, self._folder / "parity-fit", self._zygote, base={"batch": fitting.part})
            verdict = self._state.measured(f"parity|fit|{fitting.part}|{shown}", lambda: gate.check(shown).keep())
            fitting = replace(fitting, parity=Verdict(**verdict))
            if not Verdict(**verdict).passed:
                raise GpuwiseError(
                    f"the script's batch of {batch} does not fit, and in parts it trains differently: {Verdict(**verdict).words}",
                    hint="give it a smaller batch, or let the script accumulate",
                )
        self._fitting, self._base, self._best = fitting, levers, dict(levers)

    def _limit(self, wall_s: float, capacity: Capacity) -> None:
        """Time limit of every later trial."""
        host = memory_limit() if capacity.device else min(memory_limit(), int(capacity.memory_bytes))
        device = int(capacity.memory_bytes) if capacity.device else None
        self._job = replace(self._job, limits=Limits(wall_s=wall_s, memory_bytes=host), device_memory_bytes=device)

    def _prober(self, levers: Levers, capacity: Capacity, accumulation: int) -> Prober:
        options = self._options
        return Prober(
            self._run,
            self._state,
            capacity,
            base=levers,
            accumulation=accumulation,
            steps=options.steps,
            least_s=options.least_s,
            say=self._say,
        )

    def _sizes(self, facts: Facts, before: Trial, capacity: Capacity) -> Sizes:
        """Run the batch finder with the kept levers."""
        if self._fitting is not None:
            return Sizes(self._fitting.own, capacity.words, why="the script's own batch does not fit as it is")
        rate = before.rate if before.per == "samples" else None
        prober = self._prober(dict(self._best), capacity, facts.accumulation)
        return find_sizes(prober, facts, rate, capacity, Path(self._job.script), tuple(self._best))

    def _run(self, levers: Mapping[str, object], stop: Stop, job: TrialJob | None = None) -> Outcome:
        return run(job or self._job, levers, self._folder / "trial", stop=stop, zygote=self._zygote)

    # -- one candidate

    def _try(self, candidate: Candidate, facts: Facts, before: Trial, gate: Gate, *, most: int = MOST_PAIRS) -> CandidateResult:
        name = candidate.lever.name

        def tried(result: str, why: str, **more: Any) -> CandidateResult:
            more = {"ceiling": candidate.ceiling, "beside": candidate.beside, **more}
            return CandidateResult(name, candidate.value, candidate.label, result, why, **more)

        if candidate.hopeless is not None:
            return tried("not tried", candidate.hopeless)
        if name in self._best:
            return tried("not tried", f"{name}={self._best[name]} is kept")
        if (why := self._emptied.get(candidate.label) or self._emptied.get(name)) is not None:
            return tried("not tried", why)
        skip = self._epoch(name, facts, before)
        if isinstance(skip, str):
            return tried("not tried", skip)
        if self._no_more_tries and not self._state.has(self._key(candidate, 0)):
            return tried("no time", f"the {self._options.minutes:g} minutes are over")
        self._say(candidate.label)
        pairs: list[tuple[float, float]] = []
        last = before
        for at in range(most):
            try:
                a, b = self._pair(candidate, at, skip)
            except _MinutesOver:
                return tried("no time", "a run was not over when the minutes were")
            last = b
            if b.refused.get(name) is not None:
                return tried("not tried", b.refused[name])
            if not b.ok or b.rate is None:
                return tried("failed", "out of memory" if b.out_of_memory else b.how)
            if a.rate is None:
                return tried("failed", "the script without it did not run")
            if name not in b.applied and not self._in_workers(name, facts):
                return tried("not tried", b.refused.get(name) or "there was nothing to change")
            pairs.append(self._rates(a, b, {*self._best, *self._put_on(candidate)}))
            gain = gain_of(pairs, missed=self._missed)
            if (at == 0 and gain.ratio < HOPELESS) or (at + 1 >= LEAST_PAIRS and gain.verdict != "undecided"):
                break
            if at + 1 >= LEAST_PAIRS and gain.ratio < 1.0:
                break
            if self._no_more_tries and not self._state.has(self._key(candidate, at + 1)):
                break
        gain = gain_of(pairs, missed=self._missed)
        self._note_spread([rate for rate, _ in pairs])
        extra_s = max(last.warm_up_s - before.warm_up_s, 0.0)
        if gain.verdict == "not faster" or (gain.ratio < 1.0 and (gain.n_pairs == 1 or gain.high < WORTH_KNOWING)):
            return tried("not faster", f"{gain.ratio:.2f}x", gain=gain, extra_s=extra_s)
        if gain.verdict == "undecided":
            return tried(
                "undecided", f"{gain.ratio:.2f}x, between {gain.low:.2f}x and {gain.high:.2f}x", gain=gain, extra_s=extra_s
            )
        if candidate.ceiling is not None and gain.ratio - 1.0 > BEYOND * (candidate.ceiling - 1.0):
            why = f"{gain.ratio:.2f}x, but what it touches of the step allows {candidate.ceiling:.2f}x: the machine was at it"
            return tried("undecided", why, gain=gain, extra_s=extra_s)
        saved_s = (1.0 - 1.0 / gain.ratio) * self._length_s
        if extra_s > saved_s:
            why = f"its {extra_s:.0f} s of compilation are more than the {saved_s:.0f} s it saves in {self._length_words}"
            return tried("not faster", why, gain=gain, extra_s=extra_s)
        verdict = self._parity(gate, {**self._best, **self._put_on(candidate)})
        if verdict is not None and not verdict.passed:
            return tried("refused", verdict.words, gain=gain, parity=verdict, extra_s=extra_s)
        self._best |= self._put_on(candidate)
        self._empty(candidate, facts, last)
        return tried("kept", f"{gain.ratio:.2f}x", gain=gain, parity=verdict, extra_s=extra_s)

    def _settle(self, candidates: list[Candidate], tried: list[CandidateResult], facts: Facts, before: Trial, gate: Gate) -> None:
        """More pairs of the levers nearest to being kept, if none is, and then of levers that had no time, within the minutes
        reserved for all levers together."""
        self._tries_until_s = self._ends_s
        near = [at for at, t in enumerate(tried) if t.result == "undecided" and t.gain and t.gain.ratio > LEAST_GAIN]
        near.sort(key=lambda at: -getattr(tried[at].gain, "ratio", 0.0))
        for at in near + [at for at, t in enumerate(tried) if t.result == "no time"]:
            if self._no_more_tries:
                return
            tried[at] = self._try(candidates[at], facts, before, gate, most=MOST_SETTLED)
            self._say(tried[at].words)
            if self._best != self._base:
                return

    def _own_pairs(self, other: Levers) -> list[tuple[Trial, Trial]]:
        """Measured pairs of the one kept lever, if ``other`` is the script without it."""
        added = {k: v for k, v in self._best.items() if k not in other}
        if len(added) != 1 or other != self._base:
            return []
        label = next((c.label for c in self._candidates if added == {c.lever.name: c.value}), "")
        keys = [f"{_named(other)}|{label}|{at}" for at in range(MOST_SETTLED)]
        pairs = [self._state.measured(key, dict) for key in keys if self._state.has(key)]
        return [(Trial.read(pair["a"]), Trial.read(pair["b"])) for pair in pairs]

    def _epoch(self, name: str, facts: Facts, before: Trial) -> int | str:
        """Steps of an epoch that a cache needs first; a reason where that takes too long."""
        if name not in CACHES and not set(CACHES) & set(self._best):
            return 0
        if facts.epoch_steps is None or before.step_s is None:
            return "the length of an epoch is unknown, and a cache works from the second on"
        if facts.epochs is not None and facts.epochs < 2.0:
            return "the script makes one pass over its data, and a cache works from the second on"
        long_s = facts.epoch_steps * before.step_s
        if long_s > EPOCH_LIMIT_S:
            return f"an epoch takes {long_s:.0f} s, longer than a trial; a cache works from the second on"
        return facts.epoch_steps

    def _in_workers(self, name: str, facts: Facts) -> bool:
        """Whether a lever works where it cannot say so: in the loader's workers."""
        return name in CACHES and bool(self._best.get("workers", facts.n_workers))

    def _note_spread(self, same: list[float]) -> None:
        spread = spread_of(same)
        if spread is not None:
            self._spreads.append(spread)

    def _pair(self, candidate: Candidate, at: int, skip: int) -> tuple[Trial, Trial]:
        """A run without and one with it, back to back, in alternating order."""
        key = self._key(candidate, at)
        changed: Levers = {**self._best, **self._put_on(candidate)}

        def measure() -> dict[str, Any]:
            order = (dict(self._best), changed) if at % 2 == 0 else (changed, dict(self._best))
            until_s = self._ends_s + 2.0 * self._reference_wall_s
            first, second = (self._measure(levers, skip, until_s=until_s) for levers in order)
            a, b = (first, second) if at % 2 == 0 else (second, first)
            return {"a": a.keep(), "b": b.keep(), "levers": changed}

        record = self._state.measured(key, measure)
        return Trial.read(record["a"]), Trial.read(record["b"])

    @staticmethod
    def _put_on(candidate: Candidate) -> Levers:
        return {**candidate.beside, candidate.lever.name: candidate.value}

    def _empty(self, kept: Candidate, facts: Facts, trial: Trial) -> None:
        """Note what can no longer pay beside a lever that was just kept: by its step's new shares, or as it does the same."""
        beside = f"beside {kept.label}"
        for other in candidates_of(replace(facts, shares=trial.shares or facts.shares), self._options.only):
            if other.hopeless is not None:
                self._emptied.setdefault(other.label, f"{other.hopeless}, {beside}")
        for name in EMPTIED.get(kept.lever.name, ()):
            self._emptied[name] = f"nothing is left for it {beside}"

    def _key(self, candidate: Candidate, at: int) -> str:
        return f"{_named(self._best)}|{candidate.label}|{at}"

    def _measure(self, levers: Mapping[str, object], skip: int, *, until_s: float = math.inf) -> Trial:
        """Raises _MinutesOver where the run is not over at that time."""
        options = self._options
        caches = bool(set(CACHES) & set(levers))
        steps = skip if caches else 0
        # a cache is measured after the epoch in which it fills
        stop = Stop(steps=options.steps, at_least_s=options.least_s, skip=steps, seconds=2.0 * EPOCH_LIMIT_S)
        limits, left_s = self._job.limits, max(until_s - time.monotonic(), 1.0)
        is_cut = limits.wall_s is None or left_s < limits.wall_s
        job = replace(self._job, limits=replace(limits, wall_s=left_s)) if is_cut and left_s < math.inf else None
        outcome = self._run(levers, stop, job)
        if job is not None and outcome.ended == "time":
            raise _MinutesOver
        trial = trial_of(outcome, skip_steps=steps)
        if steps and trial.ok and trial.n_steps < options.steps // 2:
            return replace(trial, ok=False, error="the script ends before its second epoch")
        return trial

    def _parity(self, gate: Gate, levers: Levers) -> Verdict | None:
        if not self._options.parity:
            return None
        label = ",".join(f"{k}={v}" for k, v in levers.items())
        verdict = self._state.measured(f"parity|{label}", lambda: gate.check(levers).keep())
        return Verdict(**verdict)

    # -- all together

    def _together(
        self, facts: Facts, before: Trial, gate: Gate, tried: list[CandidateResult]
    ) -> tuple[Gain | None, Verdict | None, Trial, Trial]:
        """The kept levers against the untouched script, dropping those that add nothing: gain, verdict, and the median pair of
        runs. Nothing is kept unless the total is faster at the low end of its interval."""
        if self._best == self._base:
            return None, None, before, before
        self._say("all of it against the untouched script")
        while True:
            verdict = self._parity(gate, dict(self._best))
            untouched, changed = self._against(dict(self._base), facts, before)
            gain = self._gain(untouched, changed)
            passed = verdict is None or verdict.passed
            if passed and gain.low > LEAST_GAIN and not self._drop_idle(gain, facts, before, tried):
                middle = self._middle(gain, untouched, changed)
                self._too_short = self._start_eats(gain, facts, *middle)
                if self._too_short is not None:
                    self._drop_all(tried, self._too_short)
                return gain, verdict, *middle
            if passed and gain.low > LEAST_GAIN:
                continue
            why = "together with the others it trains otherwise" if not passed else f"together they are not faster: {gain.words}"
            if not self._drop_weakest(tried, why) or self._best == self._base:
                # each passes alone, but together they do not
                middle = self._middle(gain, untouched, changed)
                self._best = dict(self._base)
                return gain, verdict, *middle

    def _against(self, other: Levers, facts: Facts, before: Trial) -> tuple[list[Trial], list[Trial]]:
        """Interleaved runs under ``other`` and with the kept levers."""
        skip = self._epoch("cache_decode", facts, before) if set(CACHES) & set(self._best) else 0
        steps = skip if isinstance(skip, int) else 0
        # if there is no time for other runs, the result of the single lever is all that is known
        is_short = time.monotonic() + 2.0 * FINAL_PAIRS * self._reference_wall_s > self._ends_s
        pairs = self._own_pairs(other) if is_short else []
        untouched: list[Trial] = [a for a, _ in pairs]
        changed: list[Trial] = [b for _, b in pairs]
        for at in range(len(pairs), MOST_FINAL_PAIRS):
            if at >= FINAL_PAIRS and (self._is_late or self._says_enough(self._gain(untouched, changed))):
                break
            key = f"together|{sorted(other.items())}|{sorted(self._best.items())}|{at}"

            def measure(at: int = at) -> dict[str, Any]:
                sides: list[Levers] = [dict(other), dict(self._best)]
                order = sides if at % 2 == 0 else sides[::-1]
                first, second = (self._measure(levers, steps) for levers in order)
                return {"a": (first if at % 2 == 0 else second).keep(), "b": (second if at % 2 == 0 else first).keep()}

            record = self._state.measured(key, measure)
            a, b = Trial.read(record["a"]), Trial.read(record["b"])
            if a.rate is None or b.rate is None or not b.ok:
                raise GpuwiseError(f"the levers together do not run: {b.how}", hint="`--only` leaves levers out")
            untouched.append(a)
            changed.append(b)
        self._note_spread([self._rates(t, t, {*self._best})[0] for t in untouched])
        return untouched, changed

    def _drop_idle(self, gain: Gain, facts: Facts, before: Trial, tried: list[CandidateResult]) -> bool:
        """Whether a lever was dropped that adds nothing beside the others; asked only where the whole is less than its parts."""
        gains = [t for t in tried if t.result == "kept" and t.gain is not None]
        parts = math.prod(t.gain.ratio for t in gains if t.gain is not None)
        if len(gains) < 2 or gain.high > parts:
            return False
        for t in gains[:-1]:
            if self._is_late:
                return False
            without = {k: v for k, v in self._best.items() if k != t.name}
            added = self._gain(*self._against(without, facts, before))
            if added.high < LEAST_GAIN or added.ratio < 1.0:
                self._drop(tried, t, f"it adds nothing beside the others: {added.words}")
                return True
        return False

    def _drop_weakest(self, tried: list[CandidateResult], why: str) -> bool:
        """Whether there was one more to drop."""
        gains = [t for t in tried if t.result == "kept" and t.gain is not None]
        if len(gains) < 2 or self._is_late:
            return False
        self._drop(tried, min(gains, key=lambda t: t.gain.low if t.gain is not None else 0.0), why)
        return True

    def _drop_all(self, tried: list[CandidateResult], why: str) -> None:
        self._best = dict(self._base)
        for at, t in enumerate(tried):
            if t.result == "kept":
                tried[at] = replace(t, result="not faster", why=why)

    def _drop(self, tried: list[CandidateResult], dropped: CandidateResult, why: str) -> None:
        for name in (dropped.name, *dropped.beside):
            self._best.pop(name, None)
        tried[tried.index(dropped)] = replace(dropped, result="not faster", why=why)
        self._say(f"{dropped.label} is dropped: {why}")

    def _start_eats(self, gain: Gain, facts: Facts, before: Trial, after: Trial) -> str | None:
        """Why the levers are not worth ``gpuwise run`` in a training as short as this one; None where they are. By whole
        trainings, where the minutes hold them, else counted from what a step gains and what occurs once."""
        filling_s = (facts.epoch_steps or 0) * (before.step_s or 0.0) if set(CACHES) & set(self._best) else 0.0
        compiling_s = max(after.warm_up_s - before.warm_up_s, 0.0)

        def saved_s() -> float:
            """In the steps, at the low end of the gain."""
            return (1.0 - 1.0 / gain.low) * max(self._length_s - filling_s, 0.0) - compiling_s

        def count(start: Start) -> Whole:
            once_s = start.import_s + before.outside_s + before.warm_up_s
            added_s = start.added_s + compiling_s
            return counted(gain, self._length_s, once_s=once_s, added_s=added_s, filling_s=min(filling_s, self._length_s))

        if self._is_known and saved_s() > START_LIMIT_S and self._length_s > START_LIMIT_S / SEEN:
            self._whole = count(Start(0.0, 0.0))
            return None
        start = self._start
        if start is None:
            self._whole = count(Start(0.0, 0.0))
            return None
        starts = f"`gpuwise run` takes {start.added_s:.1f} s to start"
        if not self._is_known:
            ends = self._ends_soon(gain, start.added_s)
            if ends is None:
                pays = format_duration(start.added_s / (1.0 - 1.0 / gain.low))
                return f"{starts}, which they save in {pays}, and it is unknown whether it trains that long"
            if not ends:
                self._whole = count(start)
                return None
        whole = self._whole = (self._whole_gain(start) if self._length_from == "script" else None) or count(start)
        if whole.is_measured and whole.gain.low > 1.0:
            return None
        if whole.is_measured and (whole.gain.high < LEAST_GAIN or whole.gain.ratio < 1.0):
            return f"whole trainings are {whole.gain.words} as fast, and {starts}"
        if saved_s() > start.added_s:
            return None
        return f"{max(saved_s(), 0.0):.1f} s are saved in {self._length_words}, and {starts}"

    def _ends_soon(self, gain: Gain, start_s: float) -> bool | None:
        """Whether a script of unknown length ends before the levers have saved ``WORTHWHILE`` times the start of ``gpuwise
        run``: it is run untouched until then, or as long as the minutes last. None if they end before that start is saved."""
        limit_s = min(self._seeing_s(gain, start_s), self._ends_s - time.monotonic())

        def run_it() -> dict[str, Any]:
            self._say(f"the untouched script to its end, or for {limit_s:.0f} s")
            job = replace(self._job, limits=replace(self._job.limits, wall_s=limit_s))
            outcome = run(job, self._base, self._folder / "trial", stop=Stop(), zygote=self._zygote)
            return {"seconds": whole_s(outcome, by_clock=self._by_clock), "wall_s": outcome.wall_s}

        saved_s = (1.0 - 1.0 / gain.low) * max(limit_s, self._reference_wall_s) / self._crowding
        trains_on = False if saved_s > start_s else None
        if limit_s <= 0.0:
            return trains_on
        record = self._state.measured(f"whole|{sorted(self._base.items())}|0", run_it)
        if record["seconds"] is None:
            return trains_on
        self._length_s, self._length_from, self._own_wall_s = record["seconds"], "script", record["wall_s"]
        return True

    def _seeing_s(self, gain: Gain, start_s: float) -> float:
        """Seconds for which the script is run to see whether it ends; longer in proportion to other active programs."""
        return WORTHWHILE * start_s / (1.0 - 1.0 / gain.low) * self._crowding + self._reference_wall_s

    def _says_enough(self, gain: Gain) -> bool:
        """Whether ``gain`` is narrow, or further pairs would take the minutes that it needs to see how long the script trains."""
        if gain.within(FINAL_SPREAD):
            return True
        if self._is_known or gain.low <= LEAST_GAIN or (start := self._start) is None:
            return False
        return time.monotonic() + self._seeing_s(gain, start.added_s) > self._ends_s

    @property
    def _is_known(self) -> bool:
        """Whether the training's length is given or known from the script."""
        return self._length_from != "assumed"

    @property
    def _start(self) -> Start | None:
        def measure() -> dict[str, float] | None:
            start = start_of_run(self._folder, dict(self._best))
            return None if start is None else asdict(start)

        record = self._state.measured("start", measure)
        return None if record is None else Start(**record)

    @property
    def _by_clock(self) -> bool:
        return self._has_workers or bool({*CROWDING} & {*self._best})

    def _whole_gain(self, start: Start) -> Whole | None:
        """Measured gain of whole trainings."""

        def measure(levered: bool, at: int) -> float | None:
            levers = self._best if levered else self._base

            def run_it() -> dict[str, Any]:
                return {"seconds": whole_s(self._run(levers, Stop()), by_clock=self._by_clock)}

            return self._state.measured(f"whole|{sorted(levers.items())}|{at}", run_it)["seconds"]

        pair_s = 2.0 * SPARE * (self._own_wall_s + self._reference_wall_s)
        if time.monotonic() + LEAST_PAIRS * pair_s <= self._ends_s:
            self._say("whole trainings, as they are short")
        return whole_gain(measure, start, pair_s, self._ends_s, MISSED)

    @property
    def _length_words(self) -> str:
        if self._length_from == "script":
            return f"the {self._length_s:.3g} s that the script trains"
        return f"a training of {self._length_s:.3g} s"

    def _middle(self, gain: Gain, untouched: list[Trial], changed: list[Trial]) -> tuple[Trial, Trial]:
        """The pair of runs whose gain is nearest to that of all, with the rates that it is of."""

        def off(at: int) -> float:
            a, b = self._rates(untouched[at], changed[at], self._best)
            return abs(math.log(b / a / gain.ratio))

        a, b = (trials[min(range(len(untouched)), key=off)] for trials in (untouched, changed))
        self._gain_is_undisturbed = self._is_undisturbed(a, b, self._best)
        return (undisturbed(a), undisturbed(b)) if self._gain_is_undisturbed else (a, b)

    def _gain(self, untouched: list[Trial], changed: list[Trial]) -> Gain:
        return gain_of([self._rates(a, b, {*self._best}) for a, b in zip(untouched, changed, strict=True)])

    def _rates(self, a: Trial, b: Trial, levers: Iterable[str]) -> tuple[float, float]:
        """Rates of a pair of runs under any of ``levers``: without the time of other programs, which varies between runs by
        more than a lever gains; by wall clock if the script's own processes may have used it."""
        if not self._is_undisturbed(a, b, levers):
            return a.rate or 0.0, b.rate or 0.0
        return a.undisturbed_rate or 0.0, b.undisturbed_rate or 0.0

    def _is_undisturbed(self, a: Trial, b: Trial, levers: Iterable[str]) -> bool:
        return not (self._has_workers or {*CROWDING} & {*levers}) and bool(a.undisturbed_rate and b.undisturbed_rate)


def _named(levers: Mapping[str, object]) -> str:
    return ",".join(f"{k}={v}" for k, v in levers.items())


def undisturbed(trial: Trial) -> Trial:
    """The trial with rate and step of the time in which no other thread had the loop's processor."""
    if not trial.rate or not trial.undisturbed_rate or trial.step_s is None:
        return trial
    return replace(trial, rate=trial.undisturbed_rate, step_s=trial.step_s * trial.rate / trial.undisturbed_rate)


def memory_limit() -> int:
    """Bytes that a trial's processes may hold: what is free now, less a tenth for the others."""
    import psutil

    return int(psutil.virtual_memory().available * 0.9)
