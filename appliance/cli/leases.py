"""``tenure lease``: who holds what, and holding leases from a shell."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from appliance.cli.byhand import add_by_hand, run_by_hand
from appliance.cli.leasewatch import add_watch, run_watch
from appliance.cli.opening import add_cluster_options, open_cluster
from appliance.formats.lease import Mode
from appliance.lease.wire import lease_fields
from timeagent.console import Command, counted, instant_fields, note, print_json, say
from timeagent.errors import ShardUnavailable
from timeagent.units import MS, SECOND, parse_span, span_text

if TYPE_CHECKING:
    from appliance.cluster import Cluster
    from appliance.lease.wire import LeaseView
    from appliance.session.session import Leases, Session
    from timeagent.units import Instant, Span

EXIT_NO: Final = 1


def _add_lease(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    ls = verbs.add_parser("ls", help="all leases of all shards; exit 69 if one did not answer")
    show = verbs.add_parser("show", help="one domain: held by whom, until when; exit 1 if nobody has it")
    hold = verbs.add_parser("hold", help="hold domains for a while: for trying things out")
    show.add_argument("domain", metavar="DOMAIN")
    hold.add_argument("domains", metavar="DOMAIN", nargs="+")
    hold.add_argument(
        "--mode",
        default="X",
        choices=[str(mode) for mode in Mode],
        help="X, or shared with others: S, IX, IS, SIX (default X)",
    )
    hold.add_argument("--seconds", default="10", metavar="S", help="how long (default 10)")
    hold.add_argument("--wait", default="30s", metavar="SPAN", help="how long to wait for them (default 30s)")
    hold.add_argument("--purpose", default="lease hold", metavar="TEXT")
    hold.add_argument("--session", action="store_true", help="under session leases: one renewal a shard keeps them all")
    watch = verbs.add_parser("watch", help="one domain: each change of its leases, as it happens")
    add_watch(watch)
    for verb in (ls, show, hold, watch):
        add_cluster_options(verb)
    add_by_hand(verbs)


def run_lease(options: argparse.Namespace) -> int:
    """Run one verb."""
    verbs = {"ls": _list, "show": _show, "hold": _hold, "watch": run_watch}
    with open_cluster(options) as cluster:
        return verbs.get(options.verb, run_by_hand)(cluster, options)


def _line(view: LeaseView, now: Instant) -> str:
    left = view.expiry_ns - now
    until = f"{span_text(left)} left" if left > 0 else f"expired {span_text(-left)} ago"
    purpose = f"  ({view.holder.purpose})" if view.holder.purpose else ""
    queue = f"  {view.waiting} waiting" if view.waiting else ""
    session = "" if view.session_id is None else f"  session {view.session_id.hex()[-8:]}"
    who = f"{view.holder.node}/{view.holder.process}"
    return f"{view.domain}  {view.mode} {view.phase}  {who}  {until}{session}{queue}{purpose}"


def _list(cluster: Cluster, options: argparse.Namespace) -> int:
    """Show all leases. 69 unless every shard answered: those that did not are named, and what they have is missing."""
    now = cluster.time.now().midpoint
    silent = []
    shards = []
    for shard in range(len(cluster.map.owners)):
        try:
            numbers, leases = cluster.inspect(shard)
        except ShardUnavailable as problem:
            silent.append(str(shard))
            shards.append({"shard": shard, "node": cluster.map.owners[shard], "answers": False})
            note(f"tenure: {problem.message} [{problem.code}]")
            continue
        shards.append(
            {
                "shard": shard,
                "node": numbers.node,
                "answers": True,
                "incarnation": numbers.incarnation.hex(),
                **instant_fields("ceiling", numbers.ceiling_ns),
                "leases": [lease_fields(view) for view in leases],
            }
        )
        if not options.json:
            for view in leases:
                say(_line(view, now))
    if options.json:
        print_json("tenure.leases", {"shards": shards})
    elif len(silent) < len(shards) and not any(each.get("leases") for each in shards):
        note("tenure: nobody has a lease" + (" on the shards that answer" if silent else ""))
    if silent:
        note(f"tenure: {counted(len(silent), 'shard')} of {len(shards)} did not answer: {', '.join(silent)}")
    return ShardUnavailable.exit_status if silent else 0


def _show(cluster: Cluster, options: argparse.Namespace) -> int:
    shard = cluster.map.shard_of(options.domain)
    _, views = cluster.routes.inspect(shard, options.domain)
    now = cluster.time.now()
    if options.json:
        fields = [lease_fields(each) for each in views]
        print_json("tenure.lease", {"shard": shard, "lease": fields[0] if fields else None, "leases": fields})
    elif not views:
        say(f"{options.domain}: nobody has it (shard {shard})")
    else:
        for view in views:
            say(_line(view, now.midpoint))
    return EXIT_NO if all(now.surely_past(view.expiry_ns) for view in views) else 0


def _hold(cluster: Cluster, options: argparse.Namespace) -> int:
    span = parse_span(options.seconds)
    with (
        cluster.session(options.purpose, session_leases=options.session) as session,
        session.acquire(
            *options.domains, mode=Mode(options.mode), timeout_s=parse_span(options.wait) / SECOND
        ) as leases,
    ):
        for lease in leases:
            fields = {
                "domain": lease.domain,
                "mode": lease.mode,
                "fence": lease.fence,
                **instant_fields("expiry", lease.expiry_ns),
            }
            if options.json:
                print_json("tenure.held", fields)
            else:
                say(f"{lease.domain}: held, mode {lease.mode}, fence {lease.fence}")
        _wait(cluster, session, leases, span)
    return 0


def _wait(cluster: Cluster, session: Session, leases: Leases, span: Span) -> None:
    """Wait as long as the leases are held. Raises LeaseLost as soon as they are not."""
    until = cluster.time.boot_ns() + span
    known: dict[str, str] = {}
    while (left := until - cluster.time.boot_ns()) > 0:
        session.check_held(leases)
        for lease in leases:
            now = lease.outlook()
            if known.get(lease.domain, "held") != now.state:
                why = "" if now.reason is None else f" ({now.reason})"
                note(f"tenure: {lease.domain}: {now.state}{why}, good for {span_text(now.good_ns)}")
            known[lease.domain] = now.state
        cluster.time.sleep(min(left, 100 * MS))


COMMANDS: Final = {"lease": Command("Who holds what; holding a lease from a shell.", _add_lease, run_lease)}
