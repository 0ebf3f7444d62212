"""A profile as one JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpuwise.train.profile.finding import Finding
from gpuwise.train.profile.result import Profile
from gpuwise.train.profile.split import Split


def document(profile: Profile, *, code: int | None = None) -> dict[str, Any]:
    """The profile as a JSON document, seconds a step. ``code`` is the exit code of the script where one was run."""
    facts = profile.data.facts
    return {
        "name": profile.name,
        "device": profile.device,
        "verdict": asdict(profile.verdict),
        **_split(profile.split),
        "steps": profile.split.n_steps if facts is None else len(facts.steps),
        "samples_per_s": profile.samples_per_s,
        "utilisation": profile.utilisation,
        "power_w": None if facts is None else facts.power_w,
        "held_back": {} if facts is None else dict(facts.held_back),
        "constant_batch_s": None if facts is None or facts.constant is None else facts.constant.wall_s,
        "findings": [_finding(f, profile.split.wall_s) for f in profile.findings],
        "slower": [{**asdict(s), "lost_s": s.lost_s} for s in profile.slower],
        "ranks": [{"rank": rank, **_split(split)} for rank, split in profile.ranks],
        "notes": list(profile.notes),
        **({} if code is None else {"exit_code": code}),
    }


def _finding(finding: Finding, wall_s: float) -> dict[str, Any]:
    """The fields of a finding, its fix under the key ``mend``, and the share of the step that it would save."""
    fields = {"mend" if name == "fix" else name: value for name, value in asdict(finding).items()}
    return {**fields, "share": finding.saved_s / wall_s}


def _split(split: Split) -> dict[str, Any]:
    return {
        "wall_s": split.wall_s,
        "busy_share": split.busy_share,
        "parts": dict(split.parts),
        "families": dict(split.families),
    }
