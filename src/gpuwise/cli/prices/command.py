"""``gpuwise prices``: what an hour of an accelerator costs, where, and how old that is."""

from __future__ import annotations

import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Bytes, Money, Whole, refuse
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown, parts_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.facts.offers.search import Kind, OfferFilter, Order
else:
    Shown = options_shown("prices")

Flag = Annotated[bool, Parameter(negative="")]


def today() -> datetime.date:
    """The day by which prices are old."""
    return datetime.date.today()


def prices(
    *words: str,
    provider: Annotated[str | None, Parameter(metavar="NAME")] = None,
    region: Annotated[str | None, Parameter(metavar="NAME")] = None,
    count: Whole | None = None,
    min_memory: Bytes | None = None,
    max_price: Money | None = None,
    kind: Annotated[str, Parameter(metavar="on-demand|spot|reserved")] = "on-demand",
    spot: Flag = False,
    sort: Annotated[str | None, Parameter(metavar="KEY", show_default="price")] = None,
    buy: Flag = False,
    history: Flag = False,
    refresh: Flag = False,
    import_: Annotated[Path | None, Parameter(name="--import")] = None,
    usd_rate: Money | None = None,
    dry_run: Flag = False,
    template: Flag = False,
    stored: Flag = False,
    remove: Annotated[str | None, Parameter(metavar="NAME")] = None,
    shown: Shown | None = None,
    json: Flag = False,
) -> int:
    """Show what an accelerator costs per hour, where, and how old the price is.

    Shipped prices are a dated snapshot. --refresh fetches new ones and --import adds your own contract; both are saved with
    their history. Other commands use your own contract where there is one.

    Parameters
    ----------
    words
        An accelerator (h100, 4090), or words to search for (lambda a100); with --refresh, feeds: skypilot,
        skypilot:aws, gpuhunt, gpuhunt:runpod.
    provider
        Only this provider. With --import: the provider of prices whose provider is not in the file.
    region
        Only regions whose name contains this: us-east, eu.
    count
        Accelerators per instance: 8.
    min_memory
        Least memory of one accelerator: 40GB.
    max_price
        Most US dollars an hour and accelerator; with --buy, for one accelerator.
    kind
        on-demand, spot or reserved (one year).
    spot
        The same as --kind spot.
    sort
        price, per-pflop (an hour of 1e15 dense bf16 FLOP/s), per-gb (an hour of a GB of memory) or age.
    buy
        Purchase prices, new and used, in place of rent.
    history
        Show the price month by month.
    refresh
        Fetch prices from feeds on the network, check and save them.
    import_
        Check and save a CSV file of your own prices.
    usd_rate
        US dollars per unit of the file's currency: 1.08.
    dry_run
        Show what --import or --refresh would save, and save nothing.
    template
        Print a CSV file to fill in for --import.
    stored
        Show which prices are saved on this machine, and where.
    remove
        Remove a saved source from this machine: own-acme.
    json
        One JSON document on the last line of stdout.
    """
    _one_thing(
        buy=buy,
        history=history,
        refresh=refresh,
        template=template,
        stored=stored,
        remove=remove is not None,
        **{"import": import_ is not None},
    )
    if usd_rate is not None and import_ is None:
        raise InputError("--usd-rate without --import", hint="it converts the prices of an imported file")
    if dry_run and import_ is None and not refresh:
        raise InputError("--dry-run without --import or --refresh", hint="nothing else is kept")
    of_rent = {"provider": provider, "region": region, "count": count, "spot": spot, "sort": sort}
    of_rent |= {"kind": kind != "on-demand", "min_memory": min_memory, "max_price": max_price}
    chosen = [name for name, value in of_rent.items() if value]
    if refresh or import_ is not None or template or stored or remove is not None:
        what = "is of prices to show, not of those that are kept"
        refuse(chosen, what, allowed=() if import_ is None else ("provider",))
        refuse(() if shown is None else [*(parts_shown(shown) or ("all",))], what)
        from gpuwise.cli.prices import store as prices_store

        if template:
            return prices_store.show_template(json=json)
        if refresh:
            return prices_store.refresh_store(words, today(), save=not dry_run, json=json)
        _no_words(words)
        if import_ is not None:
            return prices_store.import_file(
                import_, today(), provider=provider, usd_per_unit=usd_rate, save=not dry_run, json=json
            )
        if remove is not None:
            return prices_store.remove_source(remove, json=json)
        return prices_store.show_stored(json=json)
    query = " ".join(words)
    if history or buy:
        hint = f"leave it out, or leave out --{'history' if history else 'buy'}"
        refuse(chosen, "applies to current rental prices", hint, () if history else ("min_memory", "max_price"))
    if history:
        from gpuwise.cli.prices.history import history as history_of
        from gpuwise.report.answers.prices import history_answer

        report(history_of(query), partial(history_answer, today=today()), shown, json=json)
        return 0
    if buy:
        from gpuwise.cli.prices.buy import purchases
        from gpuwise.report.answers.prices import purchases_answer

        report(purchases(query, today(), min_memory, max_price), partial(purchases_answer, named=bool(query)), shown, json=json)
        return 0
    offer_filter, order = _wanted(kind, sort, spot, provider, region, count, min_memory, max_price)
    return _rent(query, offer_filter, order, shown, json=json)


def _one_thing(**flags: bool) -> None:
    """Raises InputError when two things are asked for at once."""
    both = [f"--{name}" for name, yes in flags.items() if yes]
    if len(both) > 1:
        raise InputError(f"{both[0]} and {both[1]} exclude each other", hint="give one of them")


def _no_words(words: tuple[str, ...]) -> None:
    if words:
        raise InputError(f"{words[0]!r} has no meaning here", hint="leave it out")


def _wanted(
    kind: str,
    sort: str | None,
    spot: bool,
    provider: str | None,
    region: str | None,
    count: int | None,
    min_memory: float | None,
    max_price: float | None,
) -> tuple[OfferFilter, Order | None]:
    """The options as a search. Raises UnknownNameError."""
    from gpuwise.errors import UnknownNameError
    from gpuwise.facts.offers.search import KINDS, ORDERS, OfferFilter

    if kind not in KINDS:
        raise UnknownNameError("kind of price", kind, KINDS, hint="it is one of " + ", ".join(KINDS))
    if spot and kind == "reserved":
        raise InputError("--spot and --kind reserved exclude each other", hint="give one of them")
    if sort is not None and sort not in ORDERS:
        raise UnknownNameError("order", sort, ORDERS, hint="it is one of " + ", ".join(ORDERS))
    kinds: dict[str, Kind] = {k: k for k in KINDS}
    orders: dict[str, Order] = {o: o for o in ORDERS}
    return OfferFilter(
        "spot" if spot else kinds[kind], provider, region, count, min_memory, max_price
    ), None if sort is None else orders[sort]


def _rent(query: str, offer_filter: OfferFilter, order: Order | None, shown: Shown | None, *, json: bool) -> int:
    from gpuwise.cli.prices.document import document
    from gpuwise.facts.offers.offer import book
    from gpuwise.facts.offers.search import offers_named, select, sort_offers
    from gpuwise.report.answers.prices import offers_answer

    day = today()
    offers = offers_named(query, book(day))
    priced = sort_offers(select(offers, offer_filter), order or "price", day)
    if not priced:
        raise _nothing(query, offer_filter, bool(offers))
    found = {"as_of": day.isoformat(), "kind": offer_filter.kind, "offers": [document(row, day) for row in priced]}
    named = bool(query or offer_filter.provider)
    report(found, partial(offers_answer, order=order or "", named=named), shown, json=json)
    return 0


def _nothing(query: str, offer_filter: OfferFilter, listed: bool) -> Exception:
    """Why nothing was found, and what to loosen."""
    from gpuwise.errors import UnknownNameError, UnpredictableError
    from gpuwise.facts.offers.offer import book

    for what in ("provider", "region"):
        wanted, known = getattr(offer_filter, what), {getattr(offer, what) for offer in book(today())}
        if wanted is not None and not any(wanted.lower() in name.lower() for name in known):
            return UnknownNameError(what, wanted, sorted(known))
    if not listed:
        return UnpredictableError(
            "it has no rental offer",
            f"{query!r} has no known rental offer",
            hint=f"`gpuwise prices {query} --buy` shows what it costs to buy",
        )
    by_option = {
        "--provider": offer_filter.provider,
        "--region": offer_filter.region,
        "--count": offer_filter.count,
        "--min-memory": offer_filter.min_memory_bytes,
        "--max-price": offer_filter.max_usd_per_hour,
    }
    options = [name for name, value in by_option.items() if value is not None]
    what = "" if offer_filter.kind == "on-demand" else f"{offer_filter.kind} "
    return UnpredictableError(
        "no such offer",
        f"no {what}offer{f' of {query!r}' if query else ''} matches",
        hint=f"loosen {', '.join(options)}" if options else "`gpuwise prices` lists the offers",
    )
