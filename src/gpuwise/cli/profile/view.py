"""A profile as a person reads it, on one screen: the answer, the step in parts, what to fix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.cli.bars import stacked
from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.cli.words import percent
from gpuwise.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gpuwise.train.profile.finding import Finding
    from gpuwise.train.profile.result import Profile
    from gpuwise.train.profile.split import Split

MOST_FINDINGS, MOST_SLOWER, MOST_PARTS = 4, 3, 8
LEAST = 0.005
"""Of the step: smaller parts are told together."""


def show_profile(profile: Profile, *, html: Path | None = None) -> None:
    """Print the whole answer."""
    from rich.text import Text

    to = console()
    healthy = profile.verdict.kind == "healthy"
    to.print(Text.assemble((profile.name, "bold"), f"  {_rate(profile)}"))
    to.print(Text(profile.verdict.sentence, "bold green" if healthy else "bold yellow"))
    _parts(to, profile)
    for number, finding in enumerate(profile.findings[:MOST_FINDINGS], 1):
        _finding(to, number, finding, profile.split.wall_s)
    more_findings = profile.findings[MOST_FINDINGS:]
    if more_findings:
        to.print()
        to.print(f"and {len(more_findings)} smaller: {', '.join(f.kind for f in more_findings)}", style="dim")
    _slower(to, profile)
    _ranks(to, profile)
    to.print()
    for note in profile.notes:
        to.print(note, style="dim")
    if html is not None:
        to.print(f"wrote {html}", style="dim")


def _rate(profile: Profile) -> str:
    """``24.1 ms a step, 1,330 samples/s, device busy 84 %``."""
    parts = [f"{format_duration(profile.split.wall_s)} a step"]
    if profile.samples_per_s is not None:
        parts.append(f"{profile.samples_per_s:,.{0 if profile.samples_per_s >= 10 else 2}f} samples/s")
    parts.append(f"{profile.device} busy {100 * profile.split.busy_share:.0f} %")
    if profile.utilisation is not None:
        parts.append(f"products reach {percent(profile.utilisation)} of the {profile.main_format} peak")
    facts = profile.data.facts
    if facts is not None and facts.power_w is not None:
        parts.append(f"{facts.power_w:.0f} W")
    return ", ".join(parts)


def shown_parts(split: Split) -> dict[str, float]:
    """Parts that matter, computing by family; the small together."""
    every = {**{k: v for k, v in split.parts.items() if k != "compute"}, **split.families}
    ordered = sorted(((k, v) for k, v in every.items() if v > 0), key=lambda p: -p[1])
    largest = {k: v for k, v in ordered[:MOST_PARTS] if v >= LEAST * split.wall_s}
    remainder = sum(v for k, v in ordered if k not in largest)
    return {**largest, **({"the rest": remainder} if remainder > 0 else {})}


def _parts(to: Console, profile: Profile) -> None:
    parts = shown_parts(profile.split)
    bar, keys = stacked(parts, profile.split.wall_s, min(to.width, 100) - 4)
    to.print()
    to.print("  ", bar, sep="")
    to.print(_legend(parts, dict(keys), profile.split.wall_s, to.width))


def _legend(parts: Mapping[str, float], keys: Mapping[str, Text], wall_s: float, width: int) -> object:
    from rich.padding import Padding
    from rich.text import Text

    columns = 3 if width >= 110 else 2
    table = grid(columns, pad=3)
    cells = [
        Text.assemble(keys[name], f" {name} ", (f"{format_duration(s)}, {percent(s / wall_s)}", "dim"))
        for name, s in parts.items()
    ]
    for at in range(0, len(cells), columns):
        row = cells[at : at + columns]
        table.add_row(*row, *[Text("")] * (columns - len(row)))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _finding(to: Console, number: int, finding: Finding, wall_s: float) -> None:
    from rich.text import Text

    share = percent(min(finding.saved_s / wall_s, 1.0)) if wall_s > 0 else ""
    to.print()
    to.print(
        Text.assemble(
            f"{number}. ",
            (finding.title, "bold"),
            f"  {format_duration(finding.saved_s)} a step, {share}",
            (f"  ({finding.confidence} confidence)", "dim"),
        )
    )
    for evidence in finding.evidence[:3]:
        to.print(Text("   " + evidence.words, "dim"))
    for line in finding.fix[:3]:
        to.print(Text(f"   > {line}", "green"))
    if finding.note:
        to.print(Text(f"   {finding.note}", "dim"))


def _slower(to: Console, profile: Profile) -> None:
    operations = [s for s in profile.slower if s.lost_s >= LEAST * profile.split.wall_s][:MOST_SLOWER]
    if not operations:
        return
    table = table_of(
        ["operation", "calls", "takes", "could take", "lost"], left=("operation",), wrap=("operation",), gives_way=("calls",)
    )
    for s in operations:
        table.add_row(
            f"{s.op} {s.shape} {s.dtype}",
            f"{s.count:,}",
            format_duration(s.measured_s),
            format_duration(s.expected_s),
            format_duration(s.lost_s),
        )
    section(to, f"Slower than this device can ({operations[0].basis} rates)", table)


def _ranks(to: Console, profile: Profile) -> None:
    if not profile.ranks:
        return
    table = table_of(["rank", "step", "busy", "communication", "data wait", "host gaps"], gives_way=("busy",))
    for rank, split in profile.ranks[:8]:
        table.add_row(
            str(rank),
            format_duration(split.wall_s),
            percent(split.busy_share),
            *(percent(split.share(p)) for p in ("communication", "data wait", "host gaps")),
        )
    if len(profile.ranks) > 8:
        table.add_row(f"and {len(profile.ranks) - 8} more", *[""] * 5)
    section(to, "Ranks", table)
