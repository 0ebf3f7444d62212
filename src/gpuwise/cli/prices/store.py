"""``gpuwise prices``: what is fetched, imported, kept and dropped."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.cli.out import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.facts.offers.company_prices import PriceImport
    from gpuwise.facts.offers.feeds.refresh import RefreshResult
    from gpuwise.facts.offers.table import Offer

SHOWN = 8
"""Changes and reasons shown of one source."""


def show_template(*, json: bool) -> int:
    """Print the file to fill in."""
    from gpuwise.facts.offers.company_prices import TEMPLATE

    if json:
        print_json({"template": TEMPLATE})
    else:
        sys.stdout.write(TEMPLATE)
    return 0


# --- import ---


def import_file(
    path: Path, day: datetime.date, *, provider: str | None, usd_per_unit: float | None, save: bool, json: bool
) -> int:
    """Check a person's file and keep it, a source for each provider in it."""
    from gpuwise.facts.offers.company_prices import import_offers
    from gpuwise.facts.offers.store import OWN, save_offers

    imported = import_offers(path, day, provider=provider, usd_per_unit=usd_per_unit)
    sources = {o.provider: f"{OWN}{_file_name(o.provider)}" for o in imported.offers}
    if save:
        for name in sorted(set(sources.values())):
            save_offers([o for o in imported.offers if sources[o.provider] == name], name, day)
    names = sorted(set(sources.values()))
    if json:
        print_json(_imported_document(imported, names, save, day))
        return 0
    from gpuwise.cli.out import console

    to = console()
    _show_imported(to, imported, day)
    if save:
        to.print(f"kept as {', '.join(names)}; drop it again with: gpuwise prices --remove {names[0]}")
    else:
        to.print("nothing was kept (--dry-run)")
    return 0


def _file_name(provider: str) -> str:
    """A provider as part of a folder name."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in provider.lower()).strip("-")
    return "-".join(part for part in plain.split("-") if part)[:60] or "mine"


def _show_imported(to: Console, imported: PriceImport, day: datetime.date) -> None:
    from gpuwise.cli.out import table_of
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.offers.currency import HOURS_PER_MONTH
    from gpuwise.units import format_usd

    table = table_of(
        ["accelerator", "provider", "GPUs", "$/h", "1 year", "holds"],
        left=("accelerator", "provider", "holds"),
        wrap=("accelerator", "provider", "holds"),
    )
    for o in imported.offers[:50]:
        reserved = o.reserved_usd_per_hour
        table.add_row(
            accelerators()[o.accelerator_id].name,
            o.provider,
            str(o.count),
            format_usd(o.on_demand_usd_per_hour),
            "-" if reserved is None else format_usd(reserved),
            _holds(o, day),
        )
    to.print(table)
    if len(imported.offers) > 50:
        to.print(f"and {len(imported.offers) - 50} more", style="dim")
    for how in imported.converted:
        month = f", a month of {HOURS_PER_MONTH:g} hours" if "month" in how else ""
        to.print(f"converted: {how}{month}")
    if imported.undated:
        to.print(f"{imported.undated} without as_of: dated today, {day}")
    if imported.expired:
        to.print(f"{len(imported.expired)} expired: kept as history, not used")
    if imported.to_come:
        to.print(f"{len(imported.to_come)} not valid yet: used from the day they begin")


def _holds(o: Offer, day: datetime.date) -> str:
    if o.valid_from is None and o.valid_to is None:
        return "always"
    span = " ".join([*([f"from {o.valid_from}"] if o.valid_from else []), *([f"to {o.valid_to}"] if o.valid_to else [])])
    if o.valid_to is not None and o.valid_to < day:
        return f"{span}, expired"
    return f"{span}, not yet" if o.valid_from is not None and o.valid_from > day else span


def _imported_document(imported: PriceImport, names: list[str], saved: bool, day: datetime.date) -> dict[str, object]:
    return {
        "saved": saved,
        "sources": names,
        "expired": len(imported.expired),
        "not_valid_yet": len(imported.to_come),
        "undated": imported.undated,
        "converted": list(imported.converted),
        "as_of": day.isoformat(),
        "offers": [
            {
                "provider": o.provider,
                "accelerator": o.accelerator_id,
                "count": o.count,
                "on_demand_usd_per_hour": o.on_demand_usd_per_hour,
                "kind": o.kind,
                "valid_from": None if o.valid_from is None else o.valid_from.isoformat(),
                "valid_to": None if o.valid_to is None else o.valid_to.isoformat(),
            }
            for o in imported.offers
        ],
    }


# --- refresh ---


def refresh_store(words: Sequence[str], day: datetime.date, *, save: bool, json: bool) -> int:
    """Fetch from the feeds that ``words`` name and tell what changed; 1 when nothing could be fetched."""
    from gpuwise.facts.offers.feeds.refresh import refresh

    results: list[RefreshResult] = []
    for result in refresh(words, day, save=save):
        results.append(result)
        if not json:
            _progress(result)
    fetched = any(result.offers for result in results)
    if json:
        print_json({"as_of": day.isoformat(), "saved": save, "sources": [_refreshed_document(r) for r in results]})
    else:
        _show_refreshed(results, save)
    if not fetched:
        hint = next((r.error.hint for r in results if r.error is not None and r.error.hint), None)
        sys.stderr.write("error: no prices could be fetched\n")
        sys.stderr.write(f"hint: {hint or 'the shipped prices and those fetched before still serve'}\n")
    return 0 if fetched else 1


def _progress(result: RefreshResult) -> None:
    what = f"{len(result.offers)} offers" if result.error is None else result.error.message
    sys.stderr.write(f"{result.source}: {what}\n")


def _show_refreshed(results: Sequence[RefreshResult], save: bool) -> None:
    from gpuwise.cli.out import console, table_of

    to = console()
    reports = [r for r in results if r.offers or r.skipped]
    if not reports:
        return
    table = table_of(["source", "offers", "new", "changed", "gone", "left out"], left=("source",))
    for r in reports:
        counts = (len(r.offers), len(r.added), len(r.changed), len(r.gone), sum(s.count for s in r.skipped))
        table.add_row(r.source, *(str(n) if n else "-" for n in counts))
    to.print(table)
    changes = sorted((c for r in results for c in r.changed), key=lambda c: -abs(c.share))
    _list(
        to,
        "Changed",
        (
            f"{c.offer.provider} {c.offer.instance or '-'} {c.offer.accelerator_id}: {c.before_usd_per_hour:.3g} to "
            f"{c.offer.on_demand_usd_per_hour:.3g} $/h ({c.share:+.0%})"
            for c in changes
        ),
    )
    _list(to, "Left out, and why", _reasons(results))
    _list(to, "Kept with a remark", (text for r in results for text in r.marked))
    if any(r.path for r in results):
        from gpuwise.facts.offers.store import store_dir

        to.print(f"\nkept in {store_dir()}", style="dim", soft_wrap=True)
    elif not save:
        to.print("\nnothing was kept (--dry-run)", style="dim")


def _reasons(results: Sequence[RefreshResult]) -> list[str]:
    from gpuwise.facts.offers.feeds.tally import merge_skipped

    every = merge_skipped([r.skipped for r in results])
    return [f"{s.count} x {s.reason}, for example {s.example}" for s in every]


def _list(to: Console, title: str, lines: Iterable[str]) -> None:
    every = list(lines)
    if not every:
        return
    to.print()
    to.print(title, style="bold")
    for line in every[:SHOWN]:
        to.print(f"  {line}")
    if len(every) > SHOWN:
        to.print(f"  and {len(every) - SHOWN} more (all with --json)", style="dim")


def _refreshed_document(r: RefreshResult) -> dict[str, object]:
    return {
        "source": r.source,
        "offers": len(r.offers),
        "error": None if r.error is None else r.error.message,
        "added": [_name(o) for o in r.added],
        "gone": [_name(o) for o in r.gone],
        "changed": [_name(c.offer) | {"before_usd_per_hour": c.before_usd_per_hour} for c in r.changed],
        "skipped": [{"reason": s.reason, "count": s.count, "example": s.example} for s in r.skipped],
        "marked": list(r.marked),
        "path": None if r.path is None else str(r.path),
    }


def _name(o: Offer) -> dict[str, object]:
    return {
        "provider": o.provider,
        "instance": o.instance,
        "accelerator": o.accelerator_id,
        "count": o.count,
        "usd_per_hour": o.on_demand_usd_per_hour,
    }


# --- what is kept ---


def show_stored(*, json: bool) -> int:
    """List what is kept on this machine; a damaged file is named in place of its count."""
    from gpuwise.errors import DataError
    from gpuwise.facts.offers.store import offers_in, store_dir, stored_files

    files = stored_files()
    rows: list[tuple[str, str, str, str]] = []
    documents: list[dict[str, object]] = []
    damaged = ""
    for source in sorted({f.source for f in files}):
        of = [f for f in files if f.source == source]
        try:
            n_offers: int | None = len(offers_in(of[-1]))
        except DataError as error:
            n_offers, damaged = None, str(error)
        rows.append((source, str(len(of)), of[-1].day.isoformat(), "damaged" if n_offers is None else str(n_offers)))
        documents.append({"source": source, "files": len(of), "newest": of[-1].day.isoformat(), "offers": n_offers})
    if json:
        print_json({"path": str(store_dir()), "sources": documents})
        return 0
    from gpuwise.cli.out import console, table_of

    to = console()
    if rows:
        table = table_of(["source", "files", "newest", "offers"], left=("source", "newest"), wrap=("source",))
        for row in rows:
            table.add_row(*row)
        to.print(table)
    else:
        to.print("nothing is kept yet: --import adds your own prices, --refresh fetches some")
    to.print(f"in {store_dir()}", style="dim", soft_wrap=True)
    if damaged:
        to.print(damaged, style="yellow", soft_wrap=True)
    return 0


def remove_source(source: str, *, json: bool) -> int:
    """Drop a source with all of its files."""
    from gpuwise.facts.offers.store import remove

    paths = remove(source)
    if json:
        print_json({"removed": [str(path) for path in paths]})
    else:
        sys.stdout.write(f"dropped {source}: {len(paths)} file{'s' if len(paths) > 1 else ''}\n")
    return 0
