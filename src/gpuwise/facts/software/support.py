"""Software support of a device: number formats, compilers, attention kernels, frameworks, and the consequences for a job.

Software is built for targets, not products: a CUDA compute capability, an AMD ``gfx`` number, a family.
``data/software_targets.csv`` has the target of each device; each line of ``data/software.csv`` is one dated fact about a
range of targets; ``data/software_jobs.toml`` lists the facts that a job depends on. Unpublished support is ``unknown``, which
is neither ``none`` nor ``full``.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType

from gpuwise.errors import DataError, UnknownNameError
from gpuwise.facts.hardware.accelerators import DTYPES, Accelerator
from gpuwise.facts.loading import Field, Record, ShippedData, parse_csv, shipped_text
from gpuwise.facts.sources import check_source, cited_rows, cited_tables, sources

TOPICS = ("version", "dtype", "compile", "attention", "framework", "job")
LEVELS = ("none", "unknown", "partial", "full")
"""Worst to best. ``unknown`` ranks above ``none``: no failure is known."""
DTYPE_LEVELS = ("none", "unknown", "emulated", "native")
"""Worst to best. ``native``: the device has instructions for products in it; ``emulated``: it runs by conversion to a
wider format; ``none``: the software refuses it."""
JOBS = ("train", "finetune", "infer", "image", "learn")


@dataclass(frozen=True, slots=True)
class Support:
    """One verdict and what it rests on."""

    level: str
    """One of :data:`LEVELS`, or of :data:`DTYPE_LEVELS` for a number format."""
    reason: str
    source_key: str | None
    """The row of ``data/sources.csv``; None only when the level is ``unknown`` for want of any fact."""
    as_of: datetime.date | None
    subject: str = ""
    """Subject of the verdict: ``pytorch``, ``bf16``, ``flash-attention-2``, ``train``."""
    weak: bool = False
    """The source is a third party or an estimate."""


@dataclass(frozen=True, slots=True)
class Software:
    """Software support of one device. A subject that is absent from a mapping is unknown."""

    accelerator_id: str
    target: str
    """Compilation target of the software: ``sm_90``, ``gfx942``, ``apple-m1``, ``tpu-v5e``."""
    runtime: str
    """The first choice among :attr:`runtimes`."""
    runtimes: tuple[str, ...]
    """``cuda``, ``rocm``, ``xla``, ``mps``, ``mlx``, ``xpu``, ``neuron``, ``gaudi``, ``cann``, ``vulkan``, ``core-ml``, ..."""
    versions: Mapping[str, Support]
    """Which releases still serve it: ``pytorch``, ``cuda``, ``rocm``, ..."""
    dtypes: Mapping[str, Support]
    compile: Mapping[str, Support]
    attention: Mapping[str, Support]
    frameworks: Mapping[str, Support]
    jobs: Mapping[str, Support]
    """Verdicts a source gives for a whole job (``train`` on a chip sold for inference); :meth:`works_for` heeds them."""

    def of(self, topic: str, subject: str) -> Support:
        """The verdict on one subject, ``unknown`` when no fact speaks of it. Raises UnknownNameError on a topic."""
        support = self._topic(topic).get(subject)
        return support or Support("unknown", f"no source says whether {subject} runs on it", None, None, subject)

    def best(self, topic: str, subjects: Iterable[str] = ()) -> Support:
        """The best stated verdict among ``subjects`` (all of the topic when empty), the first among equals.

        A subject without a verdict does not count against those with one; ``unknown`` when none is stated.
        """
        rank = DTYPE_LEVELS if topic == "dtype" else LEVELS
        stated = self._topic(topic)
        chosen = [stated[name] for name in (tuple(subjects) or stated) if name in stated]
        if not chosen:
            return Support("unknown", f"no source names a {_NAMES[topic]} for it", None, None, topic)
        return max(chosen, key=lambda s: rank.index(s.level))

    def works_for(self, job: str) -> Support:
        """How well the device serves ``job`` (one of :data:`JOBS`) today.

        ``full``: a framework for the job supports it fully, and so do all its requirements (number format, compiler, fused
        attention). ``partial``: it works with a part missing, which the reason names. ``none``: no framework runs. Raises
        UnknownNameError.
        """
        rule = _jobs().get(job)
        if rule is None:
            raise UnknownNameError("job", job, JOBS)
        return self.jobs.get(job) or _judge(self, rule)

    def _topic(self, topic: str) -> Mapping[str, Support]:
        tables = {
            "version": self.versions,
            "dtype": self.dtypes,
            "compile": self.compile,
            "attention": self.attention,
            "framework": self.frameworks,
            "job": self.jobs,
        }
        if topic not in tables:
            raise UnknownNameError("topic", topic, TOPICS)
        return tables[topic]


@dataclass(frozen=True, slots=True)
class Target:
    """One thing software is compiled for, with the devices that are it."""

    key: str
    name: str
    runtimes: tuple[str, ...]
    match: str
    """``compute_capability``, ``family`` or ``accelerator``."""
    values: tuple[str, ...]
    source_key: str


@dataclass(frozen=True, slots=True)
class _Fact:
    topic: str
    subject: str
    targets: frozenset[str]
    support: Support


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    full_with: tuple[str, ...]
    partial_with: tuple[str, ...]
    wants: tuple[str, ...]
    lacks: str


TARGET_SCHEMA: dict[str, Field] = {
    "target": Field("text"),
    "name": Field("text"),
    "runtimes": Field("names"),
    "match": Field("text", choices=("compute_capability", "family", "accelerator")),
    "values": Field("names"),
    "source": Field("text"),
}
FACT_SCHEMA: dict[str, Field] = {
    "topic": Field("text", choices=TOPICS),
    "subject": Field("text"),
    "targets": Field("names"),
    "level": Field("text", choices=tuple(dict.fromkeys((*LEVELS, *DTYPE_LEVELS)))),
    "reason": Field("text"),
    "as_of": Field("date"),
    "source": Field("text"),
}
JOB_SCHEMA: dict[str, Field] = {
    "full_with": Field("names"),
    "partial_with": Field("names"),
    "wants": Field("names", required=False),
    "lacks": Field("text"),
    "source": Field("text"),
}


_NAMES = {
    "version": "release",
    "dtype": "number format",
    "compile": "graph compiler",
    "attention": "fused attention kernel",
    "framework": "framework",
    "job": "job",
}
_PUBLISHED_RATE = Support("native", "a dense rate is published for it", "rule-published-rate", None)


@lru_cache(maxsize=1024)
def support_of(accelerator: Accelerator) -> Software:
    """Software support of ``accelerator``. Raises DataError when a shipped file is corrupt or has no target for it."""
    target = target_of(accelerator)
    by_topic: dict[str, dict[str, Support]] = {topic: {} for topic in TOPICS}
    for fact in _facts():
        if target.key in fact.targets:
            by_topic[fact.topic].setdefault(fact.subject, fact.support)
    for dtype in accelerator.peak_flop_per_s:
        by_topic["dtype"].setdefault(dtype, _PUBLISHED_RATE)
    sealed = {topic: MappingProxyType(facts) for topic, facts in by_topic.items()}
    return Software(
        accelerator_id=accelerator.id,
        target=target.key,
        runtime=target.runtimes[0],
        runtimes=target.runtimes,
        versions=sealed["version"],
        dtypes=sealed["dtype"],
        compile=sealed["compile"],
        attention=sealed["attention"],
        frameworks=sealed["framework"],
        jobs=sealed["job"],
    )


def target_of(accelerator: Accelerator) -> Target:
    """Software target of ``accelerator``: by its id if the file names it, else its compute capability or family.

    Raises DataError when the file has none.
    """
    named = {
        "accelerator": accelerator.id,
        "compute_capability": accelerator.compute_capability,
        "family": accelerator.family,
    }
    for match, value in named.items():
        for target in targets().values():
            if target.match == match and value in target.values:
                return target
    raise DataError(f"software_targets.csv has no target for {accelerator.id}", hint="add a line for its family")


@cache
def targets() -> Mapping[str, Target]:
    """Targets by key, in the order of the file: a run ``sm_75..sm_90`` is read in it. Raises DataError."""
    rows = cited_rows("software_targets.csv", TARGET_SCHEMA)
    return MappingProxyType(
        {
            r.text("target"): Target(
                key=r.text("target"),
                name=r.text("name"),
                runtimes=r.names("runtimes"),
                match=r.text("match"),
                values=r.names("values"),
                source_key=r.text("source"),
            )
            for r in rows
        }
    )


def parse_facts(text: str, file: str, targets: Iterable[str]) -> list[_Fact]:
    """Facts from CSV text over ``targets``, in their order. Raises FieldError."""
    order = tuple(targets)
    facts: list[_Fact] = []
    claimed: dict[tuple[str, str], set[str]] = {}
    for record in parse_csv(text, FACT_SCHEMA, file):
        check_source(record)
        topic, subject, level = record.text("topic"), record.text("subject"), record.text("level")
        if level not in (DTYPE_LEVELS if topic == "dtype" else LEVELS):
            raise record.error(f"level {level!r} does not belong to topic {topic!r}", field="level")
        if topic == "dtype" and subject not in DTYPES:
            raise record.error(f"subject {subject!r} is not a dtype", field="subject", hint="one of " + ", ".join(DTYPES))
        covered = _expand(record, order)
        spoken_of = claimed.setdefault((topic, subject), set())
        if twice := covered & spoken_of:
            raise record.error(f"{subject} has two facts for {', '.join(sorted(twice))}", field="targets")
        spoken_of |= covered
        support = Support(
            level=level,
            reason=record.text("reason"),
            source_key=record.text("source"),
            as_of=record.date("as_of"),
            subject=subject,
            weak=sources()[record.text("source")].doubtful,
        )
        facts.append(_Fact(topic, subject, covered, support))
    return facts


@cache
def _facts() -> tuple[_Fact, ...]:
    with ShippedData():
        return tuple(parse_facts(shipped_text("software.csv"), "software.csv", targets()))


@cache
def _jobs() -> Mapping[str, _Job]:
    records = cited_tables("software_jobs.toml", JOB_SCHEMA)
    return MappingProxyType(
        {
            name: _Job(name, r.names("full_with"), r.names("partial_with"), r.names("wants"), r.text("lacks"))
            for name, r in records.items()
        }
    )


def _judge(software: Software, job: _Job) -> Support:
    """The verdict of :meth:`Software.works_for`: the best framework of the job, limited by missing parts."""
    meant = software.best("framework", job.full_with)
    if meant.level not in ("full", "partial"):
        return _stand_in(software, job)
    missing = [support for want in job.wants if (support := _support_for(software, want)).level not in ("full", "native")]
    reasons = [f"{meant.subject}: {meant.reason}", *(f"{m.subject}: {m.reason}" for m in missing)]
    level = "partial" if missing or meant.level == "partial" else "full"
    return _verdict(job, meant, level, "; ".join(reasons))


def _stand_in(software: Software, job: _Job) -> Support:
    """The verdict where no framework meant for the job serves it."""
    other = software.best("framework", job.partial_with)
    if other.level in ("full", "partial"):
        return _verdict(job, other, "partial", f"{other.subject}: {other.reason}; {job.lacks}")
    best = software.best("framework", (*job.full_with, *job.partial_with))
    return _verdict(job, best, best.level, f"{best.subject}: {best.reason}" if best.source_key else best.reason)


def _support_for(software: Software, want: str) -> Support:
    """``bf16`` of ``dtype:bf16``; the best of the topic for a bare ``compile``."""
    topic, _, subject = want.partition(":")
    return software.best(topic, subject.split("|") if subject else ())


def _verdict(job: _Job, rests_on: Support, level: str, reason: str) -> Support:
    return Support(level, reason, rests_on.source_key, rests_on.as_of, job.name, rests_on.weak)


def _expand(record: Record, order: tuple[str, ...]) -> frozenset[str]:
    """``sm_75..sm_90`` as the targets from one to the other in the order of the file. Raises FieldError."""
    covered: set[str] = set()
    for part in record.names("targets"):
        first, dots, last = part.partition("..")
        for name in (first, last if dots else first):
            if name not in order:
                raise record.error(
                    f"target {name!r} is not in software_targets.csv", field="targets", hint="add a line or fix the name"
                )
        start, stop = order.index(first), order.index(last if dots else first)
        if stop < start:
            raise record.error(f"targets {part!r} runs backwards", field="targets", hint=f"write {last}..{first}")
        covered.update(order[start : stop + 1])
    return frozenset(covered)
