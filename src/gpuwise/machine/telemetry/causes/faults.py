"""Rules for what is broken or badly connected: lost cards, memory errors, PCIe and NVLink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuwise.machine.devices.readings import State
from gpuwise.machine.telemetry.causes.cause import Cause, Severity, is_busy, span_words
from gpuwise.machine.telemetry.frames import Card, Frame

FASTEST_STATES = 2
"""Performance states up to P2 are those of work (GeForce cards compute in P2); in the others the PCIe link is slowed too."""


# --- the card does not answer ---


def away(card: Card, frame: Frame) -> Iterator[Cause]:
    """The cause of a card that is lost or does not answer, with when it last did."""
    is_lost = card.sample.state is State.LOST
    evidence = [card.sample.error or "the driver gave no reason"]
    if card.last_seen_s is not None:
        evidence.append(f"it last answered {span_words(max(0.0, frame.at_s - card.last_seen_s))} ago")
    yield Cause(
        "lost" if is_lost else "unreachable",
        card.number,
        f"GPU {card.number} is lost: it fell off the bus or has to be reset."
        if is_lost
        else f"GPU {card.number} does not answer.",
        tuple(evidence),
        "the whole GPU",
        Severity.FAULT,
        "stop what uses it, then `nvidia-smi --gpu-reset` or reboot; if it comes again, reseat the card and check its power"
        if is_lost
        else "`gpuwise doctor` looks for the reason",
    )


# --- faults the card keeps count of ---


def errors(card: Card, frame: Frame) -> Iterator[Cause]:
    """Causes from the card's memory errors and the driver's recovery action."""
    h, n = card.health, card.number
    if h is None:
        return
    if h.recovery_action not in (None, "none"):
        yield Cause(
            "recovery-action",
            n,
            f"GPU {n}: the driver asks for a {h.recovery_action}.",
            (),
            None,
            Severity.FAULT,
            "save the work that runs on it, then do what it asks",
        )
    if h.ecc_uncorrected:
        new = card.counted.get("ecc_uncorrected", 0)
        evidence = [f"{h.ecc_uncorrected} since the driver was loaded"] + ([f"{new} while watching"] if new else [])
        if h.ecc_uncorrected_ever is not None:
            evidence.append(f"{h.ecc_uncorrected_ever} ever")
        yield Cause(
            "ecc-uncorrected",
            n,
            f"GPU {n} has memory errors that could not be corrected.",
            tuple(evidence),
            None,
            Severity.FAULT,
            "results computed since may be wrong; reset the GPU, and have it replaced if they come again",
        )
    if h.remap_failed:
        yield Cause(
            "remap-failed",
            n,
            f"GPU {n} could not replace a broken row of its memory.",
            _remapping_evidence(card),
            None,
            Severity.FAULT,
            "the card has to be replaced",
        )
    if h.remap_pending or h.retired_pages_pending:
        yield Cause(
            "remap-pending",
            n,
            f"GPU {n} has broken memory that is replaced at the next reset.",
            _remapping_evidence(card),
            None,
            Severity.FAULT,
            "reset the GPU when nothing runs on it",
        )


def _remapping_evidence(card: Card) -> tuple[str, ...]:
    h = card.health
    if h is None or h.remapped_rows_uncorrected is None:
        return ()
    return (f"{h.remapped_rows_uncorrected + (h.remapped_rows_corrected or 0)} rows replaced so far",)


def xids(card: Card, frame: Frame) -> Iterator[Cause]:
    """Errors the driver reported while watching: the gravest speaks, all are evidence."""
    codes = Counter(x.code for n, x in frame.xids if n == card.number)
    if not codes:
        return
    from gpuwise.facts.hardware.xids import xid

    # a code that is in no catalogue may be anything
    grave = [c for c in codes if (fact := xid(c)) is None or fact.is_fault]
    worst = (grave or list(codes))[-1]
    fact = xid(worst)
    meaning = "which is in no catalogue" if fact is None else fact.meaning
    others = [f"Xid {c}{f' {n} times' if n > 1 else ''}" for c, n in codes.items()]
    yield Cause(
        "xid",
        card.number,
        f"GPU {card.number}: the driver reported Xid {worst}: {meaning}.",
        tuple(others),
        None,
        Severity.FAULT if grave else Severity.NOTE,
        None if fact is None else fact.advice,
    )


# --- links ---


def links(card: Card, frame: Frame) -> Iterator[Cause]:
    """Causes by PCIe and NVLink: lanes, generation, replays, links that are down."""
    s, i, h, n = card.sample, card.identity, card.health, card.number
    if s.pcie_width is not None and i.pcie_width_max is not None and 0 < s.pcie_width < i.pcie_width_max:
        yield Cause(
            "pcie-width",
            n,
            f"GPU {n} has {s.pcie_width} PCIe lanes of the {i.pcie_width_max} that card and slot have.",
            _pcie(card),
            f"{(1 - s.pcie_width / i.pcie_width_max) * 100:.0f} % of the speed of copies to and from it",
            Severity.SLOWS,
            "reseat the card or its riser; check whether the slot shares lanes with another device",
        )
    working = is_busy(card) and s.performance_state is not None and s.performance_state <= FASTEST_STATES
    generation, top = s.pcie_generation, i.pcie_generation_max
    if working and generation is not None and top is not None and generation < top:
        yield Cause(
            "pcie-generation",
            n,
            f"GPU {n} is under load on PCIe generation {generation}; card and slot have {top}.",
            _pcie(card),
            None,
            Severity.SLOWS,
            "check the slot's setting in the firmware, and the riser",
        )
    if card.counted.get("pcie_replays", 0) > 0:
        yield Cause(
            "pcie-replays",
            n,
            f"GPU {n} repeats PCIe packets: the link has errors.",
            (f"{card.counted['pcie_replays']} while watching",),
            None,
            Severity.SLOWS,
            "reseat the card or its riser",
        )
    if h is None:
        return
    if h.nvlinks_active is not None and i.n_nvlinks is not None and 0 < h.nvlinks_active < i.n_nvlinks:
        yield Cause(
            "nvlink-down",
            n,
            f"GPU {n} has {h.nvlinks_active} of {i.n_nvlinks} NVLinks active.",
            (),
            None,
            Severity.FAULT,
            "`nvidia-smi nvlink --status` shows which; check the bridge or the fabric manager",
        )
    if card.counted.get("nvlink_errors", 0) > 0:
        yield Cause(
            "nvlink-errors",
            n,
            f"GPU {n} has errors on its NVLinks.",
            (f"{card.counted['nvlink_errors']} while watching",),
            None,
            Severity.SLOWS,
            "`nvidia-smi nvlink --errorcounters` shows on which link",
        )


def _pcie(card: Card) -> tuple[str, ...]:
    s, i = card.sample, card.identity
    if s.pcie_generation is None or s.pcie_width is None:
        return ()
    top = f"generation {i.pcie_generation_max or '?'} x{i.pcie_width_max or '?'}"
    return (f"generation {s.pcie_generation} x{s.pcie_width} of {top}",)
