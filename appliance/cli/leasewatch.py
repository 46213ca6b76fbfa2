"""``tenure lease watch``: one domain, what happens to the leases on it, as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.lease.wire import lease_fields
from timeagent.console import instant_fields, note, print_json, say
from timeagent.errors import ShardUnavailable
from timeagent.units import MS, parse_span, rfc3339

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from appliance.cluster import Cluster
    from appliance.lease.wire import LeaseView

BEAT_NS: Final = 200 * MS
"""How often it is looked: what begins and ends in between is not shown, and the ledger has it."""

type Change = tuple[str, LeaseView]


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add what ``watch`` takes."""
    parser.add_argument("domain", metavar="DOMAIN")
    parser.add_argument("--seconds", metavar="S", help="how long (default: until it is interrupted)")


def run_watch(cluster: Cluster, options: argparse.Namespace) -> int:
    """Show each change, from what there is at first. A shard that does not answer is said so once, and asked again.

    Interrupting is how it is left. 69 if it never answered.
    """
    time = cluster.time
    until = None if options.seconds is None else time.boot_ns() + parse_span(options.seconds)
    before: Sequence[LeaseView] = ()
    answered, silent = False, False
    try:
        while True:
            try:
                _, views = cluster.routes.inspect(cluster.map.shard_of(options.domain), options.domain)
            except ShardUnavailable as problem:
                if not silent:
                    note(f"tenure: {problem.message}; asking again")
                silent = True
            else:
                if not answered and not views and not options.json:
                    say(f"{options.domain}: nobody has it")
                for what, view in changes(before, views):
                    _show(what, view, options, time.now().midpoint)
                before, answered, silent = views, True, False
            if until is not None and time.boot_ns() >= until:
                return 0 if answered else ShardUnavailable.exit_status
            time.sleep(BEAT_NS)
    except KeyboardInterrupt:
        return 0 if answered else ShardUnavailable.exit_status  # that is how it is left


def changes(before: Sequence[LeaseView], after: Sequence[LeaseView]) -> Iterator[Change]:
    """Return what has happened between two looks at one domain: what is over first."""
    were = {each.correlation_id: each for each in before}
    are = {each.correlation_id: each for each in after}
    for name, view in were.items():
        if name not in are:
            yield "over", view
    for name, view in are.items():
        known = were.get(name)
        if known is None:
            yield str(view.phase), view
        elif (known.mode, known.phase) != (view.mode, view.phase):
            yield "upgraded", view
        elif known.expiry_ns != view.expiry_ns:
            yield "renewed", view
        elif known.waiting != view.waiting:
            yield "waiting", view


def _show(what: str, view: LeaseView, options: argparse.Namespace, now: int) -> None:
    if options.json:
        print_json("tenure.lease-change", {"what": what, **instant_fields("seen", now), **lease_fields(view)})
        return
    queue = f", {view.waiting} waiting" if view.waiting else ""
    who = f"{view.holder.node}/{view.holder.process}"
    say(f"{rfc3339(now)}  {what}  {view.mode}  {who}  fence {view.fence}  until {rfc3339(view.expiry_ns)}{queue}")
