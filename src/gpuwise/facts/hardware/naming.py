"""Names as people type them: ``4090``, ``a100-80gb``, ``NVIDIA H100 80GB HBM3``, ``8xH100-SXM``,
``2xdgx-h100``.

A name is read as a set of words. A device matches when it has every word that means something; among those
the one that carries most of them wins, then the one that is fully named but for brand, memory and form. What
is left is ambiguous and says so, with one rule to settle it: a memory size without a form means the SXM part,
which is what people and data sets mean by ``A100-80GB``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import AmbiguousNameError, InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.counts import LONGEST_NAME, check_counts, readings
from gpuwise.facts.hardware.systems import (
    Cluster,
    System,
    box,
    default_system,
    system_with,
    systems,
    systems_of,
    with_count,
)

_NOISE_WORDS = """
    nvidia amd intel google aws apple huawei qualcomm mediatek tesla geforce instinct radeon gpu
    gpus graphics card accelerator accelerators ai tm r chip one of two four gcds per the with
    design generation edition workstation blackwell hopper ampere lovelace ultra grace superchip cts
    dlc virtualized aarch64 dual turbo ms maxsun oc device class npu tensor core data center nvlink ac lc
    asus msi gigabyte zotac evga pny palit gainward sapphire xfx powercolor asrock founders fe vram
"""
NOISE = frozenset(_NOISE_WORDS.split())
"""Words that may be there or not; they break ties but never rule a device out."""
_DISTINCT = frozenset({"ultra", "workstation"})
"""Noise in one product name, but what sets another apart (M1 Ultra), so never taken for granted."""
_BRAND = frozenset({"rtx", "gtx", "rx", "geforce", "radeon", "tesla", "instinct", "nvidia", "amd", "intel"}) | frozenset(
    {"apple", "arc", "google", "tpu"}
)
_FORMS = frozenset({"sxm", "pcie", "oam", "nvl", "soc", "cloud", "superchip"})
_PART_WORDS = frozenset({"laptop", "maxq", "ti", "super", "xt", "xtx"})
"""What sets parts of one product apart, and names none alone."""
_SPELLINGS = (
    (re.compile(r"\((?:r|tm)\)"), " "),
    (re.compile(r"\bmac\s?book(?:\s(?:pro|air))?\b|\bmac[\s-]?(?:studio|mini)\b|\bimac\b"), "apple"),
    (re.compile(r"\b([ahv][18]00)[\s-]+(16|32|40|80|94|96)\b(?!\s*g)"), r"\1 \2gb"),
    (re.compile(r"\b([1-9]0[5-9]0)m\b"), r"\1 laptop"),
    (re.compile(r"\b([1-9]0[5-9]0)d\b"), r"\1 d"),
    (re.compile(r"\bmax[\s_-]*q\b|maxq"), " maxq "),
    (re.compile(r"(?<=\d)\s*gi?b?\b(?!\d)"), "gb"),
    (re.compile(r"\bmobile\b"), "laptop"),
)
_WORD = re.compile(r"[a-z0-9]+")
_SXM = re.compile(r"sxm[2456]?")
_MEMORY = re.compile(r"[0-9]+gb")
_PARENTHESES = re.compile(r"\(([^()]*)\)")
_PLURAL = re.compile(r"(?<=[0-9a-z])s$", re.IGNORECASE)
_FULL_HOST = 8
"""Devices of one host from which a bare name means the part that is soldered eight to a board."""

USUAL = ("sxm", "oam", "80gb", "32gb", "workstation", "96gb", "48gb")
"""What settles a name that fits several parts of one family (``a100``, ``v100``, ``mi300``, ``rtx pro 6000``), one word after the
other: the part most data sets mean, and the first that was sold."""


_SEVERAL = re.compile(r"[,;+&/]")
_NOT_PLANNED = (
    (
        re.compile(r"\bmig\b|\b[1-7]g\.[0-9]+gb|\b[1-7]c\.[1-7]g", re.IGNORECASE),
        "slices of a GPU (MIG) are not predicted, name the whole GPU; `gpuwise top` shows those of this machine",
    ),
    (
        re.compile(r"^\s*(?:cpu|processor|xeon|epyc|threadripper|i[3579]-?[0-9]{4,5}|core i[3579])\b", re.IGNORECASE),
        "that is a CPU: `gpuwise op` and `gpuwise lab` compare one with a GPU (--against 'EPYC 9654')",
    ),
    (
        re.compile(r"^\s*(?:apple\s+)?(?:mac\s?book|mac[\s-]?studio|mac[\s-]?mini|imac|mac)\b", re.IGNORECASE),
        "a Mac comes with several chips: name the chip, like 'M3 Ultra' or 'M4 Max'",
    ),
    (
        re.compile(r"^\s*(?:standard_\S+|[a-z]+[0-9]+[a-z-]*\.(?:[0-9]*x?large|metal)|[a-z][0-9]-\w+-\w+)\s*$", re.IGNORECASE),
        "that looks like a cloud's instance type: name its GPUs, like 4xA10G",
    ),
)
"""What people ask for beside GPUs, and what to do instead."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """The words of one device."""

    accelerator: Accelerator
    words: frozenset[str]
    """Words of its id, name and aliases."""
    implied: frozenset[str]
    """Words that are true of it without being part of its name: memory, memory type, form."""
    spellings: tuple[frozenset[str], ...]
    """The words of each way to write it in full; the first two are its id and its name."""


def find_accelerator(text: str, prefer: Iterable[str] = ()) -> Accelerator:
    """The device a person means by ``text``.

    ``prefer`` settles an ambiguity: words tried one after the other (``prefer=("sxm", "80gb")`` reads a data
    set's ``A100`` as the SXM part of 80 GB). Raises UnknownNameError with the nearest names, or
    AmbiguousNameError with the ids that fit.
    """
    if len(text) <= LONGEST_NAME:
        literal = _literal().get(text.strip().lower())
        if literal is not None:
            return literal
        inside = _PARENTHESES.findall(text)
        for attempt in (text, _PARENTHESES.sub(" ", text), *inside, _PLURAL.sub("", text.strip())):
            candidates = _candidates(_words(attempt))
            if candidates:
                return _settle(text, candidates, prefer)
    raise _unknown(text[:LONGEST_NAME], [text[:LONGEST_NAME]])


def find_cluster(text: str, prefer: Iterable[str] = ()) -> Cluster:
    """The cluster a person means: ``4090``, ``8xH100-SXM``, ``512xA100-80GB`` (64 systems of 8),
    ``2x8xH200``, ``dgx-h100``, ``2xdgx-h100``; also ``8 H100``, ``H100x8``, ``h100:8``, ``eight H100``.

    One count before a device counts devices, which fill the system it is usually in; two count systems and the devices in
    each; a count before a system counts systems, of a rack (``GB200 NVL72``) racks. A bare name that fits several parts means the
    SXM part where eight stand in one host (``8xH800``), and else what ``prefer`` settles; ``assumption`` of the cluster says so.
    Raises UnknownNameError, AmbiguousNameError, and InputError for a count that is zero, absurd or
    does not divide into equal systems.
    """
    counts, name = _counts(text)
    system = _find_system(name)
    if system is not None:
        if len(counts) > 1:
            raise InputError(f"{text!r} counts {name!r} twice", hint=f"write {counts[0]}x{name}")
        return Cluster(system, (counts or [1])[0] * _counted_by(system, name))
    accelerator, assumption = _part_of(name, counts, text, prefer)
    if len(counts) == 2:
        return Cluster(_host_of(accelerator, counts[1], text), counts[0] * counts[1], assumption)
    if len(counts) > 2:
        raise InputError(f"{text!r} has {len(counts)} counts", hint="write systems x devices x name, like 2x8xH200")
    total = (counts or [1])[0]
    system = default_system(accelerator)
    if system.id == "consumer-box" and total > system.count:
        system = box("pcie-server", accelerator)  # eight GeForce cards stand in one server, not in two PCs
    return Cluster(_fill_hosts(system, total, text), total, assumption)


def _part_of(name: str, counts: Sequence[int], text: str, prefer: Iterable[str]) -> tuple[Accelerator, str]:
    """The part that ``name`` means, and in words what was assumed where it means several. Raises UnknownNameError,
    AmbiguousNameError with names that can be typed."""
    try:
        return find_accelerator(name), ""
    except AmbiguousNameError as error:
        several, is_usual = error.candidates, error.usual
    usual = _usual_of_full_hosts(several, counts)
    try:
        part = find_accelerator(name, prefer) if usual is None else accelerators()[usual]
    except AmbiguousNameError:
        before = "".join(f"{count}x" for count in counts)
        raise AmbiguousNameError("accelerator", text, [before + c for c in several], usual=is_usual) from None
    others = [c for c in several if c != part.id]
    return part, f"{name} is read as {part.name}, which most people mean (not {', '.join(others)})"


def is_counted(text: str) -> bool:
    """Whether ``text`` says how many devices it means, by a count or by the name of a system. Raises InputError."""
    counts, name = _counts(text)
    return bool(counts) or _find_system(name) is not None


def named_with_count(text: str) -> tuple[str, ...]:
    """The ids of the devices that ``text`` may mean when counted or named by their system (``8 H100``, ``dgx-h100``).

    Raises UnknownNameError, InputError.
    """
    _, name = _counts(text)
    system = _find_system(name)
    if system is not None:
        return (system.accelerator.id,)
    try:
        return (find_accelerator(name).id,)
    except AmbiguousNameError as error:
        return error.candidates


def _counts(text: str) -> tuple[list[int], str]:
    """The counts in ``text`` and the name beside them. Raises InputError on a count that cannot be, UnknownNameError where
    no reading leaves a known name."""
    tried = [*readings(text)]
    spelled_out = [r for r in tried if r[1].strip().lower() in _spelled_out()]  # "Adreno X1" counts no Adreno
    for counts, name in (*spelled_out, *tried):
        if _is_known(name):
            check_counts(counts, text)
            return counts, name
    raise _unknown(text, [name for _, name in tried])


def _is_known(name: str) -> bool:
    """Whether ``name`` means a system, a device or several."""
    if _find_system(name) is not None:
        return True
    try:
        find_accelerator(name)
    except AmbiguousNameError:
        return True
    except UnknownNameError:
        return False
    return True


def _unknown(text: str, names: Sequence[str]) -> UnknownNameError:
    """The error for ``text``, with the nearest to whichever of the ``names`` in it comes closest to a known one."""
    for pattern, hint in _NOT_PLANNED:
        if any(pattern.search(name) for name in (text, *names)):
            return UnknownNameError("accelerator", text.strip(), (), hint=hint)
    for name in (text, *names):
        if other := _other_memory(name):
            return UnknownNameError("accelerator", text.strip(), (), hint=other)
    several = [part.strip() for part in _SEVERAL.split(text)]
    if len(several) > 1 and all(any(_is_known(name) for _, name in readings(part)) for part in several):
        hint = f"GPUs of one kind at a time: {several[0]} or {several[1]}; `gpuwise compare` sets kinds beside one another"
        return UnknownNameError("accelerator", text.strip(), (), hint=hint)
    all_names = _all_names()
    errors = [UnknownNameError("accelerator", name, all_names) for name in dict.fromkeys(names)]

    def likeness(error: UnknownNameError) -> float:
        near = error.nearest
        return difflib.SequenceMatcher(None, error.name.lower(), near[0].lower()).ratio() if near else 0.0

    return max(errors, key=likeness, default=UnknownNameError("accelerator", text.strip(), all_names))


def _other_memory(text: str) -> str:
    """The hint where ``text`` names a device with memory that it does not come with; else empty."""
    words = _words(text)
    sized = _candidates(frozenset(w for w in words if not _MEMORY.fullmatch(w)))
    if not sized or not any(_MEMORY.fullmatch(w) for w in words):
        return ""
    sizes = ", ".join(dict.fromkeys(f"{e.accelerator.name} has {e.accelerator.memory_nominal_gb:g} GB" for e in sized))
    return f"{sizes} in the catalogue, which has no part with that memory"


def _usual_of_full_hosts(candidates: Iterable[str], counts: Sequence[int]) -> str | None:
    """Which of ``candidates`` people mean who count eight in one host: the SXM part, and of several the one that most such
    systems are sold with (H100 of 80 GB, not of 94); None where none stands out (A100 of 40 and 80 GB)."""
    if not counts or counts[-1] % _FULL_HOST or (len(counts) == 2 and counts[-1] != _FULL_HOST):
        return None
    sold = [
        (sum(s.count == _FULL_HOST for s in systems_of(accelerators()[c])), c)
        for c in candidates
        if accelerators()[c].form == "SXM"
    ]
    most = max((n for n, _ in sold), default=0)
    best = [c for n, c in sold if n == most]
    return best[0] if most and len(best) == 1 else None


def _find_system(text: str) -> System | None:
    key = _system_key(text)
    return (_systems_by_name() if "/" not in key else _systems_by_device()).get(key)


def _counted_by(system: System, name: str) -> int:
    """Accelerators that ``name`` of ``system`` stands for: those of the rack, or of one host where it names that."""
    hosts = {_system_key(alias) for alias in system.host_aliases}
    return system.count if not system.rack or _system_key(name) in hosts else system.rack


def _system_key(text: str) -> str:
    return re.sub(r"[\s_-]+", "-", text.strip().lower())


@cache
def _systems_by_name() -> Mapping[str, System]:
    """By id and alias."""
    table: dict[str, System] = {}
    for system_id, system in systems().items():
        table[_system_key(system_id)] = system
        table |= {_system_key(alias): system for alias in (*system.aliases, *system.host_aliases)}
    return MappingProxyType(table)


@cache
def _systems_by_device() -> Mapping[str, System]:
    """By ``system/device``, for a system may be sold with several."""
    return MappingProxyType(
        {
            f"{system.id}/{accelerator.id}": system_with(system.id, accelerator)
            for accelerator in accelerators().values()
            for system in systems_of(accelerator)
            if system.id in systems()
        }
    )


def _host_of(accelerator: Accelerator, count: int, text: str) -> System:
    """A system with ``count`` of ``accelerator`` in each host: one sold so, else its usual one less full."""
    options = systems_of(accelerator)
    if options[0].id == "consumer-box":
        options = (*options, box("pcie-server", accelerator))
    for system in options:
        if system.count == count:
            return system
    largest = max(options, key=lambda s: s.count)
    if count > largest.count:
        raise InputError(
            f"{text!r} puts {count} {accelerator.name} into one system; the largest holds {largest.count}",
            hint=f"count the devices: {count}x{accelerator.id}",
        )
    return with_count(options[0] if count < options[0].count else largest, count)


def _fill_hosts(system: System, total: int, text: str) -> System:
    """``system`` with its hosts equally full for ``total`` devices. Raises InputError when that leaves them
    less than half full."""
    if total <= system.count or total % system.count == 0:
        return system
    for count in range(system.count - 1, system.count // 2 - 1, -1):
        if count and total % count == 0:
            return with_count(system, count)
    below = total // system.count * system.count
    name = system.accelerator.id
    raise InputError(
        f"{text!r} does not fill equal systems of up to {system.count}",
        hint=f"take {below}x{name} or {below + system.count}x{name}",
    )


def _settle(text: str, candidates: list[_Entry], prefer: Iterable[str]) -> Accelerator:
    """The one candidate left after ``prefer``. Raises AmbiguousNameError."""
    settled = _preferred(candidates, prefer)
    if len(settled) == 1:
        return settled[0].accelerator
    candidates = sorted(settled, key=lambda c: c.accelerator.form != "SXM")  # stable: the part most people rent comes first
    usual = _preferred(candidates, USUAL)
    first = usual if len(usual) == 1 else []
    ids = [c.accelerator.id for c in (*first, *(c for c in candidates if c not in first))]
    raise AmbiguousNameError("accelerator", text, ids, usual=bool(first))


def _preferred(candidates: list[_Entry], wishes: Iterable[str]) -> list[_Entry]:
    """Which of ``candidates``, where they are parts of one family, have what is wished for, as far as any of them has it."""
    if len({c.accelerator.family for c in candidates}) > 1:
        return candidates
    for wish in wishes:
        words = _words(wish)
        candidates = [c for c in candidates if words <= c.words | c.implied] or candidates
    return candidates


def _candidates(words: frozenset[str]) -> list[_Entry]:
    """The devices ``words`` may mean; empty when nothing fits."""
    meant = words - NOISE
    if not any(_names_a_product(word) for word in meant):
        return []
    needed = meant | words & _DISTINCT
    exact = [e for e in _entries() if any(needed == s - (NOISE - _DISTINCT) for s in e.spellings)]
    if len(exact) == 1:
        return exact
    fitting = [e for e in _entries() if meant <= e.words | e.implied]
    if not fitting:
        return []
    best = max(len(words & e.words) for e in fitting)
    fitting = [e for e in fitting if len(words & e.words) == best]
    plain = [e for e in fitting if any(_is_decoration(s - words) for s in e.spellings[:2])]
    fitting = plain or fitting
    if len(fitting) > 1 and any(_MEMORY.fullmatch(word) for word in words):
        fitting = [e for e in fitting if e.accelerator.form == "SXM"] or fitting
    return fitting


def _is_decoration(words: frozenset[str]) -> bool:
    taken_for_granted = _BRAND | _FORMS | (NOISE - _DISTINCT)
    return all(w in taken_for_granted or _MEMORY.fullmatch(w) for w in words)


def _names_a_product(word: str) -> bool:
    return not (word in _BRAND or word in _FORMS or word in _PART_WORDS or _MEMORY.fullmatch(word)) or word == "tpu"


def _raw_words(text: str) -> list[str]:
    lowered = text.lower().replace("_", " ")
    for pattern, spelling in _SPELLINGS:
        lowered = pattern.sub(spelling, lowered)
    return ["sxm" if _SXM.fullmatch(w) else w for w in _WORD.findall(lowered)]


def _words(text: str) -> frozenset[str]:
    """The words of ``text``, with run-together ones taken apart (``rtx4090``, ``pro6000maxq``)."""
    words: list[str] = []
    vocabulary = _vocabulary()
    for word in _raw_words(text):
        words += [word] if word in vocabulary else _take_apart(word, vocabulary) or [word]
    return frozenset("sxm" if _SXM.fullmatch(w) else w for w in words)


def _take_apart(word: str, vocabulary: frozenset[str]) -> list[str] | None:
    """``word`` as a sequence of known words of two letters or more, longest first; None when it is not
    one."""
    if not word:
        return []
    for end in range(len(word), 1, -1):
        if word[:end] in vocabulary:
            rest = _take_apart(word[end:], vocabulary)
            if rest is not None:
                return [word[:end], *rest]
    return None


@cache
def _vocabulary() -> frozenset[str]:
    words = set(NOISE | _BRAND | _FORMS)
    for entry in _entries():
        words |= entry.words | entry.implied
    return frozenset(words)


@cache
def _entries() -> tuple[_Entry, ...]:
    return tuple(_entry(a) for a in accelerators().values())


def _entry(accelerator: Accelerator) -> _Entry:
    spellings = [frozenset(_raw_words(s)) for s in (accelerator.id, accelerator.name, *accelerator.aliases) if "_" not in s]
    memory = accelerator.memory_nominal_gb or 0.0
    implied = {f"{memory:g}gb", accelerator.form.lower(), *_raw_words(accelerator.memory_type)}
    if accelerator.form == "Superchip":
        implied.add("sxm")  # tables write "GB200 SXM"
    return _Entry(accelerator, frozenset[str]().union(*spellings), frozenset(implied), tuple(spellings))


@cache
def _literal() -> Mapping[str, Accelerator]:
    """Ids, and aliases written with an underscore: those are other tools' identifiers and only match letter
    by letter."""
    table = {a.id: a for a in accelerators().values()}
    for accelerator in accelerators().values():
        table |= {alias.lower(): accelerator for alias in accelerator.aliases if "_" in alias}
    return MappingProxyType(table)


@cache
def _spelled_out() -> frozenset[str]:
    return frozenset(name.lower() for name in _all_names())


@cache
def _all_names() -> tuple[str, ...]:
    names: list[str] = []
    for accelerator in accelerators().values():
        names += [accelerator.id, accelerator.name, *accelerator.aliases]
    return tuple(dict.fromkeys(names))
