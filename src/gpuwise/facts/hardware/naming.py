"""Names as people type them: ``4090``, ``a100-80gb``, ``NVIDIA H100 80GB HBM3``, ``8xH100-SXM``,
``2xdgx-h100``.

A name is read as a set of words. A device matches when it has every word that means something; one that is
fully named but for brand, memory and form goes before one that is not (``4060 8GB`` is no 4060 Ti, which has a
word more). A memory size that no such device has is an error. Whatever the name leaves open is in the
assumption of the cluster: which memory, which form, or a name that is not written out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain
from types import MappingProxyType

from gpuwise.errors import AmbiguousNameError, InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators, with_memory
from gpuwise.facts.hardware.counts import LONGEST_NAME, check_counts, leading_counts, readings
from gpuwise.facts.hardware.instances import named_instance
from gpuwise.facts.hardware.scheduled import is_scheduled, scheduled_cluster
from gpuwise.facts.hardware.systems import (
    Cluster,
    System,
    box,
    default_system,
    joined,
    system_key,
    system_names,
    system_with,
    systems,
    systems_of,
    usual_system,
    with_count,
)
from gpuwise.facts.hardware.this import is_this, this_cluster
from gpuwise.units import GIGA

_VENDORS = {
    **dict.fromkeys(("nvidia", "geforce"), "NVIDIA"),
    **dict.fromkeys(("amd", "radeon", "instinct"), "AMD"),
    **dict.fromkeys(("intel", "arc"), "Intel"),
    "apple": "Apple",
}
"""Words that a device of another vendor does not have."""
_FAMILIES = {"blackwell": "Blackwell", "hopper": "Hopper", "ampere": "Ampere", "lovelace": "Ada"}
"""Words that a device of another architecture does not have."""
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
BRANDS = frozenset({"rtx", "gtx", "rx", "geforce", "radeon", "tesla", "instinct", "nvidia", "amd", "intel"}) | frozenset(
    {"apple", "arc", "google", "tpu"}
)
_FORMS = frozenset({"sxm", "pcie", "oam", "nvl", "soc", "cloud", "superchip"})
_PART_WORDS = frozenset({"laptop", "maxq", "ti", "super", "xt", "xtx"})
"""What sets parts of one product apart, and names none alone."""
_SPELLINGS = (
    (re.compile(r"\((?:r|tm)\)"), " "),
    (re.compile(r"\bmax\+"), "max "),
    (re.compile(r"\bmi250x/mi250\b"), "mi250x mi250"),
    (re.compile(r"\bblackwell ultra\b"), "blackwell"),
    (re.compile(r"\bmac\s?book(?:\s(?:pro|air))?\b|\bmac[\s-]?(?:studio|mini)\b|\bimac\b"), "apple"),
    (re.compile(r"\b([ahv][18]00)[\s-]+(16|32|40|80|94|96)\b(?!\s*g)"), r"\1 \2gb"),
    (re.compile(r"\b([1-9]0[5-9]0)m\b"), r"\1 laptop"),
    (re.compile(r"\b([1-9]0[5-9]0)d\b"), r"\1 d"),
    (re.compile(r"\bmax[\s_-]*q\b|maxq"), " maxq "),
    (re.compile(r"(?<=\d)\s*gb/s\b"), "gbps"),
    (re.compile(r"\b\d{1,2}[\s-]*cores?[\s-]*cpu\b"), " "),
    (re.compile(r"\b(\d{1,2})[\s-]*cores?\b(?:[\s-]*gpu\b)?"), r"\1c"),
    (re.compile(r"(?<=\d)\s*gi?b?\b(?!\d)"), "gb"),
    (re.compile(r"\bmobile\b"), "laptop"),
)
_WORD = re.compile(r"[a-z0-9]+")
_SXM = re.compile(r"sxm[2456]?")
_MEMORY = re.compile(r"[0-9]+gb")
_CORES = re.compile(r"[0-9]{1,2}c")
"""GPU cores of a chip of Apple: what sets its versions apart."""
_MEMORY_TYPE = re.compile(r"[0-9]+gb$|g?ddr|lpddr|hbm|unified$")
_TELLING = frozenset({"orin", "xavier"})
"""Words without a number from which a device is read though more of its name is left out."""
_NEAR_MEMORY = 0.03
"""Tables write what a device shows or what is soldered on (B200: 180, 184 and 192 GB)."""
_PARENTHESES = re.compile(r"\(([^()]*)\)")
_PLURAL = re.compile(r"(?<=[0-9a-z])s$", re.IGNORECASE)
_FULL_HOST = 8
"""Devices of one host from which a bare name means the part that is soldered eight to a board."""

USUAL = ("sxm", "oam", "80gb", "32gb", "workstation", "96gb", "48gb")
"""What settles a name that fits several parts of one family (``a100``, ``v100``, ``mi300``, ``rtx pro 6000``), one word after the
other: the part most data sets mean, and the first that was sold."""


_SEVERAL = re.compile(r"[,;+&/|]|\s(?:and|plus|with)\s", re.IGNORECASE)
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


class UnlikeGpusError(UnknownNameError):
    """GPUs of several kinds where one is expected."""

    def __init__(self, text: str, kinds: Sequence[str], otherwise: str = "") -> None:
        joint = "+".join(kinds)
        hint = (
            f"GPUs of one kind at a time: {' or '.join(kinds)}; `gpuwise fit MODEL --for run --on {joint}` splits a model over"
            " unlike cards, `gpuwise compare` sets kinds beside one another"
        )
        super().__init__("accelerator", text, (), hint=f"{hint}; {otherwise}" if otherwise else hint)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The words of one device."""

    id: str
    words: frozenset[str]
    """Words of its id, name and aliases."""
    implied: frozenset[str]
    """Words that are true of it without being part of its name: memory, memory type, form."""
    spellings: tuple[frozenset[str], ...]
    """The words of each way to write it in full; the first two are its id and its name."""
    meant: tuple[frozenset[str], ...]
    """Those of ``spellings`` that mean something."""
    sized: Accelerator | None = None
    """The device with the memory asked for, where it is sold with several sizes."""

    @property
    def accelerator(self) -> Accelerator:
        return self.sized or accelerators()[self.id]


def find_accelerator(text: str, prefer: Iterable[str] = ()) -> Accelerator:
    """The device a person means by ``text``.

    ``prefer`` settles an ambiguity: words tried one after the other (``prefer=("sxm", "80gb")`` reads a data
    set's ``A100`` as the SXM part of 80 GB). Raises UnknownNameError with the nearest names, or
    AmbiguousNameError with the ids that fit.
    """
    return read_accelerator(text, prefer)[0]


def read_accelerator(text: str, prefer: Iterable[str] = ()) -> tuple[Accelerator, str]:
    """The device of :func:`find_accelerator`, and in words what the name leaves open and was assumed; empty where it says all."""
    if is_this(text):
        return this_cluster(text).accelerator, ""
    if is_scheduled(text):
        return scheduled_cluster(text).accelerator, ""
    if len(text) <= LONGEST_NAME:
        if (named := _literal().get(text.strip().lower())) is not None:
            literal = accelerators()[named]
            return literal, _assumed(text, frozenset(_raw_words(text)), literal, ())
        for attempt in chain((text,), _without_remark(text), (_PLURAL.sub("", text.strip()),), _without_case(text)):
            words = _words(attempt)
            candidates, dropped = _candidates(words)
            if candidates:
                settled = _settle(text, candidates, prefer)
                parts = [e.id for e in (*candidates, *dropped) if e.id != settled.id]
                return settled, _assumed(text, words, settled, parts)
    raise _unknown(text[:LONGEST_NAME], [text[:LONGEST_NAME]])


_MAC = re.compile(r"(?:apple[\s-]+)?\b(?:mac[\s-]?book(?:[\s-]+(?:air|pro))?|mac[\s-]?(?:studio|mini|pro)|imac)\b", re.IGNORECASE)
"""A Mac by its case; the chip has another name (MacBook Pro M3 Pro)."""


def _without_case(text: str) -> Iterable[str]:
    """The chip of a Mac that is named with its case: MacBook Air M2, M4 Pro Mac mini 48GB."""
    chip, cases = _MAC.subn(" ", _PLURAL.sub("", text.strip()))
    if cases and any(_names_a_product(w) for w in frozenset(_raw_words(chip)) - NOISE):
        yield chip


def _without_remark(text: str) -> Iterable[str]:
    """``text`` without what stands in parentheses, and that alone: a remark (``A10G (AWS g5)``) that names neither another memory
    size nor another variant (``4060 (16GB)`` is not the 4060)."""
    inside = _PARENTHESES.findall(text)
    outside = _PARENTHESES.sub(" ", text)
    sizes = [float(w[:-2]) for part in inside for w in _words(part) if _MEMORY.fullmatch(w)]
    found = _candidates(_words(outside))[0]
    memories = [e.accelerator.memory_nominal_gb or 0.0 for e in found]
    same_memory = all(any(abs(size - gb) <= _NEAR_MEMORY * gb for gb in memories) for size in sizes)
    if same_memory and not any(_words(part) & _PART_WORDS for part in inside):
        yield outside
    if not any(_names_a_product(w) for w in frozenset(_raw_words(outside)) - NOISE):
        yield from inside  # "NVIDIA Blackwell GPU (B200-SXM-180GB)"


def _assumed(text: str, words: frozenset[str], device: Accelerator, parts: Sequence[str]) -> str:
    """What ``text`` leaves open of ``device``: its memory, its form, or words of its name; ``parts`` are others it fits."""
    sizes = {float(w[:-2]) for w in words if _MEMORY.fullmatch(w)}
    name = text.strip()
    if not sizes and device.memory_sizes_gb:
        return _size_taken(device)
    entry = _entry_of(device)
    bare = words - _sizes(words)
    alone = [s - NOISE for s in entry.spellings]
    exact = any(bare - NOISE == s for s in alone)
    forms, own = bare & _FORMS, entry.spellings[0]
    if not sizes and not (exact and forms) and _sizes(own):
        alike = [e.id for e in _entries() if _without_size(e) == _without_size(entry) and forms <= e.spellings[0]]
        parts = [*parts, *(i for i in alike if i not in parts and i != device.id)]
        return _reading(name, device, parts) if parts or not forms or forms - own else ""
    if sizes and device.memory_nominal_gb not in sizes:
        return f"{name} is read as {device.name}, which shows {device.memory_nominal_gb:g} GB"
    written_out = any(_is_decoration(s - bare) for s in entry.spellings)
    other_form = bool(forms - own and own & _FORMS)
    return _reading(name, device, parts) if parts or other_form or not (exact or written_out) else ""


def _size_taken(device: Accelerator) -> str:
    """That the memory was left open, and which sizes the chip and its narrower version (an M3 Max of 300 GB/s) are sold with."""
    own, gb = device.memory_sizes_gb, device.memory_nominal_gb
    if len(own) == 1:
        return ""
    others = ", ".join(f"{size:g}" for size in own if size != gb)
    taken = f"{device.name} is taken with {gb:g} GB{', the largest' * (gb == max(own))}; it is also sold with {others} GB"
    narrower = next((e.accelerator for e in _entries() if _is_narrower(e, _entry_of(device))), None)
    if narrower is not None:
        sizes = " or ".join(f"{size:g}" for size in narrower.memory_sizes_gb)
        rate = narrower.memory_bandwidth_bytes_per_s / GIGA
        taken += f", with {sizes} GB as {narrower.name} of {rate:g} GB/s"
    return f"{taken} (write '{device.name} {own[0]:g}GB')"


def _is_narrower(other: _Entry, entry: _Entry) -> bool:
    """Whether ``other`` is the same chip with fewer cores and less bandwidth."""
    cores = frozenset(w for w in other.spellings[0] | entry.spellings[0] if _CORES.fullmatch(w))
    if other.spellings[0] - cores != entry.spellings[0] - cores:
        return False
    return other.accelerator.memory_bandwidth_bytes_per_s < entry.accelerator.memory_bandwidth_bytes_per_s


def _reading(name: str, device: Accelerator, others: Sequence[str]) -> str:
    not_these = f", which most people mean (not {', '.join(others)})" if others else ""
    return f"{name} is read as {device.name}{not_these}"


def _without_size(entry: _Entry) -> frozenset[str]:
    """The words of its id but for memory and form."""
    return frozenset(w for w in entry.spellings[0] if not _MEMORY.fullmatch(w) and w not in _FORMS)


def _sizes(words: Iterable[str]) -> frozenset[str]:
    """The memory sizes among ``words``."""
    return frozenset(w for w in words if _MEMORY.fullmatch(w))


def find_cluster(text: str, prefer: Iterable[str] = ()) -> Cluster:
    """The cluster a person means: ``4090``, ``8xH100-SXM``, ``512xA100-80GB`` (64 systems of 8),
    ``2x8xH200``, ``dgx-h100``, ``2xdgx-h100``; also ``8 H100``, ``H100x8``, ``h100:8``, ``eight H100``;
    ``this``, the GPUs of this machine; ``slurm:gpu``, ``k8s``, those of a scheduler's nodes.

    One count before a device counts devices, which fill the system it is usually in; two count systems and the devices in
    each; a count before a system counts systems, of a rack (``GB200 NVL72``) racks. A bare name that fits several parts means the
    SXM part where eight stand in one host (``8xH800``), and else what ``prefer`` settles; ``assumption`` of the cluster says so.
    Raises UnknownNameError, AmbiguousNameError, and InputError for a count that is zero, absurd or
    does not divide into equal systems.
    """
    if is_this(text):
        return this_cluster(text)
    if is_scheduled(text):
        return scheduled_cluster(text)
    counts, name = _counts(text)
    system = _find_system(name)
    if system is not None:
        if len(counts) > 1:
            raise InputError(f"{text!r} contains {name!r} twice", hint=f"write {counts[0]}x{name}")
        rows, instance = (counts or [1])[0], named_instance(name)
        if instance is None:
            return Cluster(system, rows * _counted_by(system, name))
        return Cluster(system, rows * (instance.count or system.count), instance=instance.name, provider=instance.provider)
    accelerator, assumption = _part_of(name, counts, text, prefer)
    if len(counts) == 2:
        return Cluster(_host_of(accelerator, counts[1], text), counts[0] * counts[1], assumption)
    if len(counts) > 2:
        raise InputError(f"{text!r} has {len(counts)} counts", hint="write systems x devices x name, like 2x8xH200")
    return replace(counted(accelerator, (counts or [1])[0], text), assumption=assumption)


def counted(accelerator: Accelerator, total: int, text: str = "") -> Cluster:
    """``total`` devices in the system that ``accelerator`` is usually in. Raises InputError, in which they are called ``text``,
    where they do not divide into equal ones."""
    system = default_system(accelerator)
    if system.id == "consumer-box" and total > system.count:
        system = box("pcie-server", accelerator)  # eight GeForce cards stand in one server, not in two PCs
    return Cluster(_fill_hosts(system, total, text or f"{total}x{accelerator.id}"), total)


def _part_of(name: str, counts: Sequence[int], text: str, prefer: Iterable[str]) -> tuple[Accelerator, str]:
    """The part that ``name`` means, and in words what was assumed where it means several. Raises UnknownNameError,
    AmbiguousNameError with names that can be typed."""
    try:
        return read_accelerator(name)
    except AmbiguousNameError as error:
        several, is_usual = error.candidates, error.usual
    usual = _usual_of_full_hosts(several, counts)
    try:
        part = find_accelerator(name, prefer) if usual is None else accelerators()[usual]
    except AmbiguousNameError:
        before = "".join(f"{count}x" for count in counts)
        raise AmbiguousNameError("accelerator", text, [before + c for c in several], usual=is_usual) from None
    return part, _reading(name, part, [c for c in several if c != part.id])


def is_counted(text: str) -> bool:
    """Whether ``text`` says how many devices it means, by a count or by the name of a system. Raises InputError."""
    if is_this(text) or is_scheduled(text):
        return True
    counts, name = _counts(text)
    return bool(counts) or _find_system(name) is not None


def named_with_count(text: str) -> tuple[str, ...]:
    """The ids of the devices that ``text`` may mean when counted or named by their system (``8 H100``, ``dgx-h100``).

    Raises UnknownNameError, InputError.
    """
    if is_scheduled(text):
        return (scheduled_cluster(text).accelerator.id,)
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
    if several := _several(text):
        raise several
    tried = [*readings(text)]
    spelled_out = [r for r in tried if r[1].strip().lower() in known_devices()]  # "Adreno X1" counts no Adreno
    for counts, name in (*spelled_out, *tried):
        if _is_known(name):
            check_counts(counts, text)
            _check_not_a_name(counts, name, text)
            return counts, name
    raise _unknown(text, [name for _, name in tried])


def _check_not_a_name(counts: Sequence[int], name: str, text: str) -> None:
    """Raises UnknownNameError where a count is what a GPU is called: "3090 3060" is no 3,090 cards, though "3090xH100" counts."""
    if leading_counts(text)[0] and not name[:1].isdigit():
        return
    for count in counts:
        if count < 1000 or not any(_is_plain(e, frozenset({str(count)})) for e in _entries()):
            continue
        rows, other = next(n for n in (8, 4, 2, 1) if count % n == 0), name.strip(" -")
        many = f"for {count:,} of {other} write {count // rows}x{rows}x{other}"
        raise UnlikeGpusError(text.strip(), (str(count), other), many)


def _several(text: str) -> UnlikeGpusError | None:
    """The error for a ``text`` that names several GPUs (``3090+3060``); None for one kind."""
    kinds = kinds_in(text)
    return None if len(kinds) < 2 else UnlikeGpusError(text.strip(), kinds)


def kinds_in(text: str) -> tuple[str, ...]:
    """The parts of ``text`` that name a GPU each (``1x3090+2x3060``); fewer than two where it names one kind."""
    parts = [part.strip() for part in _SEVERAL.split(text)] if len(text) <= LONGEST_NAME else []
    if len(parts) < 2 or not _SEVERAL.search(_spelled(text)) or _find_system(text) is not None:
        return ()
    known: list[str] = []
    for part in filter(None, parts):
        try:
            known += [part] if any(_is_known(name) for _, name in readings(part)) else []
        except InputError:
            continue
    return tuple(known)


def find_cards(text: str, prefer: Iterable[str] = ()) -> Cluster:
    """The cluster of :func:`find_cluster`, or unlike cards in one host (``3090+3060``, ``2x3090 + 3060``): layers in turn go over
    them by their memory. Raises as :func:`find_cluster`, and InputError for cards that no host holds together."""
    kinds = kinds_in(text)
    if len(kinds) < 2 or len(kinds) < len([part for part in _SEVERAL.split(text) if part.strip()]):
        return find_cluster(text, prefer)
    return joined([find_cluster(kind, prefer) for kind in kinds])


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
    if several := _several(text):
        return several
    all_names = _all_names()
    errors = [UnknownNameError("accelerator", name, all_names) for name in dict.fromkeys(names)]

    def likeness(error: UnknownNameError) -> float:
        near = error.nearest
        return difflib.SequenceMatcher(None, error.name.lower(), near[0].lower()).ratio() if near else 0.0

    if len(errors) < 2:
        return next(iter(errors), UnknownNameError("accelerator", text.strip(), all_names))
    return max(errors, key=likeness)


def _other_memory(text: str) -> str:
    """The hint where ``text`` names a device with memory that it does not come with; else empty."""
    words = _words(text)
    asked = _sizes(words)
    sized, dropped = _candidates(words - asked)
    if not sized or not asked:
        return ""
    gb_by_name: dict[str, str] = {}
    for e in (*sized, *dropped):
        a = e.accelerator
        gb_by_name[a.name] = " or ".join(f"{gb:g}" for gb in a.memory_sizes_gb or (a.memory_nominal_gb or 0.0,))
    has = ", ".join(f"{name} has {gb} GB" for name, gb in gb_by_name.items())
    fitting = (e.accelerator for e in _entries() if words <= e.words | e.implied | NOISE)
    others = [f"{a.name} with it is {a.id}" for a in fitting if a.name not in gb_by_name][:2]
    return "; ".join([f"{has} in the catalogue, which has no part with that memory", *others])


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
    key = system_key(text)
    if "/" in key:
        return _systems_by_device().get(key)
    if named := _system_ids().get(key):
        return usual_system(named)
    instance = named_instance(text)
    if instance is None or instance.count is None:
        return None
    return _host_of(accelerators()[instance.accelerator_id], instance.count, text)


def _counted_by(system: System, name: str) -> int:
    """Accelerators that ``name`` of ``system`` stands for: those of the rack, or of one host where it names that."""
    hosts = {system_key(alias) for alias in system.host_aliases}
    return system.count if not system.rack or system_key(name) in hosts else system.rack


@cache
def _system_ids() -> Mapping[str, str]:
    """By id and alias."""
    table: dict[str, str] = {}
    for system_id, names in system_names().items():
        table |= {system_key(name): system_id for name in names}
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
    ids = [c.id for c in (*first, *(c for c in candidates if c not in first))]
    raise AmbiguousNameError("accelerator", text, ids, usual=bool(first))


def _preferred(candidates: list[_Entry], wishes: Iterable[str]) -> list[_Entry]:
    """Which of ``candidates``, where they are parts of one family, have what is wished for, as far as any of them has it."""
    if len({c.accelerator.family for c in candidates}) > 1:
        return candidates
    for wish in wishes:
        words = _words(wish)
        candidates = [c for c in candidates if words <= c.words | c.implied] or candidates
    return candidates


def _candidates(words: frozenset[str]) -> tuple[list[_Entry], list[_Entry]]:
    """The devices ``words`` may mean, empty when nothing fits, and those that only another form sets apart."""
    fitting, dropped = _fitting(words)
    return [*fitting], [*dropped]


@lru_cache(1024)
def _fitting(words: frozenset[str]) -> tuple[Sequence[_Entry], Sequence[_Entry]]:
    sizes = _sizes(words)
    meant = words - NOISE - sizes
    if not any(_names_a_product(word) for word in meant):
        return [], []
    needed = meant | words & _DISTINCT
    exact = [e for e in _entries() if any(needed | sizes == s for s in e.meant)]
    if len(exact) == 1:
        return exact, []
    fitting = [e for e in _entries() if meant <= e.words | e.implied and not _contradicts(words, e)]
    if not fitting:
        return [], []
    unsized = [e for e in fitting if any(needed == s for s in e.meant)]
    best = max(len(words & e.words) for e in fitting)
    closest = [e for e in fitting if len(words & e.words) == best] if not sizes else fitting
    plain = [e for e in closest if _is_plain(e, words)]
    if sizes:
        written = [e for e in (unsized, plain) if e]
        same_part = [e for e in fitting if e.words & _PART_WORDS <= words]
        fixed = any(not _is_sized(e) and not e.accelerator.memory_sizes_gb for pool in written for e in pool)
        versions = [e for e in same_part if not written or _same_chip(e, written[0])]
        pools = [*written, *([] if fixed else [versions])]
        with_size = ([sized for e in pool if (sized := _with_size(e, sizes)) is not None] for pool in pools)
        fitting = next(filter(None, with_size), list[_Entry]())
    else:
        fitting = unsized if len(unsized) == 1 else plain or closest
    if not any(e in fitting for e in (*unsized, *plain)) and not any(_is_telling(word) for word in meant) and not sizes:
        return [], []
    dropped: list[_Entry] = []
    if len(fitting) > 1 and sizes:
        soldered = [e for e in fitting if e.accelerator.form == "SXM"]
        dropped = [e for e in fitting if e not in soldered] if soldered else []
        fitting = soldered or fitting
    return fitting, dropped


def _contradicts(words: frozenset[str], entry: _Entry) -> bool:
    """Whether ``words`` say another vendor or architecture than that of ``entry``, or that it is an Ultra."""
    a = entry.accelerator
    vendors = {_VENDORS[w] for w in words if w in _VENDORS}
    families = [_FAMILIES[w] for w in words if w in _FAMILIES]
    other = any(not a.family.startswith(family) for family in families)
    return bool(vendors and a.vendor not in vendors) or other or ("ultra" in words and "ultra" not in entry.words)


def _with_size(entry: _Entry, sizes: frozenset[str]) -> _Entry | None:
    """``entry`` with the memory asked for; None where it is not sold with it."""
    if sizes <= entry.words | entry.implied:
        return entry
    sold = {f"{gb:g}gb": gb for gb in entry.accelerator.memory_sizes_gb}
    if len(sizes) == 1 and (gb := sold.get(next(iter(sizes)))) is not None:
        return replace(entry, sized=with_memory(entry.accelerator, gb))
    return None


def _is_sized(entry: _Entry) -> bool:
    """Whether the memory is a part of the device's id, so that another size is another part."""
    return any(_MEMORY.fullmatch(w) for w in entry.spellings[0])


def _same_chip(entry: _Entry, written: Sequence[_Entry]) -> bool:
    """Whether ``entry`` is one of ``written`` but for the number of cores and the memory in its name."""

    def chip(e: _Entry) -> frozenset[str]:
        return frozenset(w for w in e.spellings[0] if not _CORES.fullmatch(w) and not _MEMORY.fullmatch(w))

    return any(chip(entry) == chip(e) or _is_sized(e) for e in written)


def _is_telling(word: str) -> bool:
    """Whether a device may be read from ``word`` though more of its name is left out."""
    return word in _TELLING or (len(word) > 2 and any(c.isdigit() for c in word) and not _MEMORY_TYPE.match(word))


def _is_plain(entry: _Entry, words: frozenset[str]) -> bool:
    """Whether ``words`` name the device in full but for brand, memory and form."""
    return any(words & s and _is_decoration(s - words) for s in entry.spellings[:2])


def _is_decoration(words: frozenset[str]) -> bool:
    taken_for_granted = BRANDS | _FORMS | (NOISE - _DISTINCT)
    return all(w in taken_for_granted or _MEMORY.fullmatch(w) for w in words)


def _names_a_product(word: str) -> bool:
    if word.isdigit() and len(word) < 3:
        return False
    return not (word in BRANDS or word in _FORMS or word in _PART_WORDS or _MEMORY_TYPE.match(word)) or word == "tpu"


def _raw_words(text: str) -> list[str]:
    return _words_of(_spelled(text))


def _words_of(spelled: str) -> list[str]:
    return ["sxm" if _SXM.fullmatch(w) else w for w in _WORD.findall(spelled)]


def _spelled(text: str) -> str:
    lowered = text.lower().replace("_", " ")
    for pattern, spelling in _SPELLINGS:
        lowered = pattern.sub(spelling, lowered)
    return lowered


def _words(text: str) -> frozenset[str]:
    """The words of ``text``, with run-together ones taken apart (``rtx4090``, ``pro6000maxq``)."""
    words: list[str] = []
    vocabulary = _vocabulary()
    for word in _raw_words(text):
        words += [word] if word in vocabulary else _take_apart(word, vocabulary) or [word]
    products = [w for w in words if w not in NOISE and _names_a_product(w) and any(c.isdigit() for c in w)]
    if len(set(products)) < len(products) or not all(_parts_are_remarks(text)):
        return frozenset()  # "40904090", "3090+"
    return frozenset("sxm" if _SXM.fullmatch(w) else w for w in words)


def _parts_are_remarks(text: str) -> Iterable[bool]:
    """For what stands beside a comma, a plus or a slash: whether it is words, of which one part alone names a product."""
    parts = _SEVERAL.split(_spelled(text))
    if len(parts) < 2:
        return
    yield all(_WORD.search(part) for part in parts)
    yield sum(any(_names_a_product(w) for w in _words(part) - NOISE) for part in parts) < 2


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
    words = set(NOISE | BRANDS | _FORMS)
    for entry in _entries():
        words |= entry.words | entry.implied
    return frozenset(words)


@cache
def _entries() -> tuple[_Entry, ...]:
    """Those of the catalogue, from the texts of its rows: few of them are asked for."""
    rows = accelerators()
    types, forms, sizes, rates = (rows.texts(c) for c in ("memory_type", "form", "memory_gb", "bandwidth_gb_s"))
    every = {key: [types[key], *(s for s in names if "_" not in s)] for key, names in rows.names().items()}
    # spelled at once: a bar is in no name, and in none of the spellings
    spelled = iter(_spelled("|".join(name for names in every.values() for name in names)).split("|"))
    words = {key: [_words_of(next(spelled)) for _ in names] for key, names in every.items()}
    return tuple(_entry(key, words[key], forms[key], {_rounded(sizes[key], "gb"), _rounded(rates[key], "gbps")}) for key in every)


def _rounded(cell: str, unit: str) -> str:
    """``32gb``; what is no number is reported where the row is read."""
    try:
        return f"{float(cell):g}{unit}"
    except ValueError:
        return cell


def _entry(accelerator_id: str, words: Sequence[Sequence[str]], form: str, sizes: set[str]) -> _Entry:
    """``words`` of its memory's type, its id, its name and its aliases; ``sizes``: its memory and bandwidth."""
    memory_type, *names = words
    spellings = [frozenset(name) for name in names]
    meant = [s - (NOISE - _DISTINCT) for s in spellings]
    implied = {*sizes, form.lower(), *memory_type}
    if form == "Superchip":
        implied.add("sxm")  # tables write "GB200 SXM"
    return _Entry(accelerator_id, frozenset[str]().union(*spellings), frozenset(implied), tuple(spellings), tuple(meant))


def _entry_of(device: Accelerator) -> _Entry:
    return next(e for e in _entries() if e.id == device.id)


@cache
def _literal() -> Mapping[str, str]:
    """Ids by id, and by aliases with an underscore: those are other tools' identifiers and only match letter by letter."""
    names = accelerators().names()
    aliases = {alias.lower(): key for key, (_, _, *others) in names.items() for alias in others if "_" in alias}
    return MappingProxyType({key: key for key in names} | aliases)


@cache
def known_devices() -> frozenset[str]:
    """Every name of a device in full, in small letters."""
    return frozenset(name.lower() for name in _all_names())


@cache
def _all_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in accelerators().names().values() for name in names))
