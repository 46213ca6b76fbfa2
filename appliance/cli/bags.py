"""``tenure bag``: look at a log's racks and bags; close what is due, pack what is sealed, delete what is old."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options, open_cluster
from timeagent.console import Command, Progress, counted, instant_fields, note, print_json, printable, say, whole_from
from timeagent.errors import BadRequest, Damaged
from timeagent.units import DAY, SECOND, parse_instant, parse_span, rfc3339, span_text

if TYPE_CHECKING:
    import argparse

    from appliance.cluster import Cluster
    from appliance.formats.paths import Bag
    from appliance.session.open_logs import OpenLog
    from timeagent.units import Instant, Span

    from ..bag.survey import BagView, RackView

EXIT_NO: Final = 1


def _add_bag(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    ls = verbs.add_parser("ls", help="the racks and bags that are there, with their states")
    ls.add_argument("log", metavar="LOG")
    ls.add_argument("--last", type=whole_from(1), default=0, metavar="N", help="only the newest N racks")
    show = verbs.add_parser("show", help="one bag: its lock file's list against what is in the directory")
    show.add_argument("path", metavar="PATH", help="as bag ls prints it")
    close = verbs.add_parser("close", help="close one bag, if it is due")
    close.add_argument("path", metavar="PATH")
    settle = verbs.add_parser("settle", help="wait until everything before an instant is final, helping to close")
    settle.add_argument("log", metavar="LOG")
    settle.add_argument("--to", metavar="T", help="an instant (default: now)")
    settle.add_argument("--wait", metavar="SPAN", default="1m", help="how far ahead the instant may lie (default 1m)")
    seal = verbs.add_parser("seal", help="close and seal whatever is due, once")
    seal.add_argument("log", metavar="LOG")
    pack = verbs.add_parser("pack", help="make one file of each sealed rack, and remove its bags' directories")
    pack.add_argument("log", metavar="LOG")
    pack.add_argument("--all", action="store_true", help="every rack since the log's birth, not only the newest")
    retain = verbs.add_parser("retain", help="delete the packs of old racks; their prelocks and seals stay")
    retain.add_argument("log", metavar="LOG")
    retain.add_argument("--days", type=int, required=True, metavar="N", help="keep what ended less than N days ago")
    retain.add_argument("--dry-run", action="store_true", help="say what would be deleted, and delete nothing")
    forecast = verbs.add_parser("forecast", help="what the log costs in names and bytes, if it goes on like this")
    forecast.add_argument("log", metavar="LOG")
    forecast.add_argument(
        "--days", type=whole_from(1), metavar="N", help="with packs kept for N days (default: for ever)"
    )
    for verb in (ls, show, close, settle, seal, pack, retain, forecast):
        add_cluster_options(verb)


def run_bag(options: argparse.Namespace) -> int:
    """Run one verb."""
    verbs = {
        "ls": _list,
        "show": _show,
        "close": _close,
        "settle": _settle,
        "seal": _seal,
        "pack": pack,
        "retain": retain,
        "forecast": show_forecast,
    }
    with open_cluster(options) as cluster:
        return verbs[options.verb](cluster, options)


def _list(cluster: Cluster, options: argparse.Namespace) -> int:
    from ..bag.survey import racks, view_rack

    grid = cluster.logs.opened(options.log).grid
    found = list(racks(cluster.context, grid))[-options.last :] if options.last else racks(cluster.context, grid)
    for rack in found:
        view = view_rack(cluster.context, grid, rack)
        if options.json:
            fields = {"path": rack.path, "state": _rack_state(view), "pack_bytes": view.pack_bytes}
            print_json("tenure.rack", fields | {"bags": [_fields(b) for b in view.bags]})
            continue
        size = "" if view.pack_bytes is None else f"  {view.pack_bytes} bytes"
        say(f"{rack.path}  {_rack_state(view)}  {counted(len(view.bags), 'bag')}{size}")
        for bag in view.bags:
            say(f"  {bag.bag.path}  {bag.state}  {counted(len(bag.files), 'file')}")
        for stranger in view.strangers:
            note(f"tenure: {rack.path}/{printable(stranger)} is not on the log's grid: it does not exist")
    return 0


def _rack_state(view: RackView) -> str:
    if view.retained:
        return "retained"
    return view.state if view.pack_bytes is None else "packed"


def _fields(view: BagView) -> dict[str, object]:
    return {
        "path": view.bag.path,
        "state": view.state,
        "files": len(view.files),
        **instant_fields("start", view.bag.start_ns),
        **instant_fields("due", view.bag.due_ns),
    }


def _show(cluster: Cluster, options: argparse.Namespace) -> int:
    from appliance.formats.lockfile import open_lock
    from appliance.formats.paths import LOCK

    _, bag = _named_bag(cluster, options.path)
    storage = cluster.context.storage
    names = storage.list_afresh(bag.path)
    if names is None:
        return _show_sealed(cluster, options, bag)
    raw = storage.read(f"{bag.path}/{LOCK}")
    listed = dict(open_lock(raw, f"{bag.path}/{LOCK}")[0].by_name()) if raw else {}
    rows = []
    for name in sorted({*names, *listed} - {LOCK, "prelock"}):
        entry = listed.get(name)
        size = storage.size_of(f"{bag.path}/{name}")
        if raw is None:
            state = "open"
        elif entry is None:
            state = "void: not on the list"
        else:
            state = "missing" if size is None else "short" if size < entry.size else "listed"
        rows.append(
            {"name": printable(name), "bytes": size, "listed_bytes": entry.size if entry else None, "state": state}
        )
    if options.json:
        print_json("tenure.bag", {"path": bag.path, "closed": raw is not None, "files": rows})
        return 0
    state = "closed" if raw else "open"
    say(f"{bag.path}: {state}, timestamps from {rfc3339(bag.start_ns)} until {rfc3339(bag.end_ns)}")
    for row in rows:
        say(f"  {row['name']}  {row['bytes']} bytes  {row['state']}")
    return 0


def _show_sealed(cluster: Cluster, options: argparse.Namespace, bag: Bag) -> int:
    """Show a bag without a directory, as the seal of its rack has it."""
    from appliance.bag.authority import Authority

    from ..bag.listedfiles import open_packed

    authority = Authority(cluster.context, cluster.logs.opened(bag.log).grid)
    seal = authority.sealer.sealed(bag.rack)
    lock = None if seal is None else authority.in_seal(seal, bag).lock
    if lock is None:
        raise BadRequest("no-such-bag", f"{bag.path} is not there", hint="tenure bag ls shows what is")
    state = "retained: gone" if open_packed(cluster.context.storage, bag.rack) is None else "packed"
    rows = [{"name": e.name, "bytes": e.size, "listed_bytes": e.size, "state": state} for e in lock.entries]
    if options.json:
        print_json("tenure.bag", {"path": bag.path, "closed": True, "files": rows})
        return 0
    say(f"{bag.path}: {state}, timestamps from {rfc3339(bag.start_ns)} until {rfc3339(bag.end_ns)}")
    for row in rows:
        say(f"  {row['name']}  {row['bytes']} bytes  {row['state']}")
    return 0


def _close(cluster: Cluster, options: argparse.Namespace) -> int:
    from appliance.bag.authority import Authority
    from appliance.bag.closer import NotDue

    log, bag = _named_bag(cluster, options.path)
    authority = Authority(cluster.context, log.grid)
    result = authority.read(bag) or authority.close(bag)
    if isinstance(result, NotDue):
        note(f"tenure: {bag.path} cannot be closed before {rfc3339(result.due_ns)}")
        return EXIT_NO
    files = None if result.lock is None else len(result.lock.entries)
    if options.json:
        print_json("tenure.close", {"path": bag.path, "closed": files is not None, "files": files})
    else:
        void = "does not exist: its rack was sealed without it"
        say(f"{bag.path} {void if files is None else f'holds {counted(files, "file")}, for ever'}")
    return 0


def _settle(cluster: Cluster, options: argparse.Namespace) -> int:
    now = cluster.time.now()
    target = parse_instant(options.to) if options.to else now.latest
    log = cluster.logs.opened(options.log)
    reached = log.horizon.refresh()
    _refuse_far_ahead(options, target, target - now.latest)
    if target > reached and (left := log.grid.bag(target - 1).due_ns - now.earliest) > SECOND:
        note(f"tenure: {options.log} can be final up to {rfc3339(target)} in {span_text(left)} at the earliest")
    progress = Progress("settling, seconds", max(0, target - reached) // SECOND)
    horizon = cluster.settle(
        options.log, target, lambda to: progress.show((to - reached) // SECOND, f"closed before {rfc3339(to)}")
    )
    progress.done()
    if options.json:
        print_json("tenure.settle", {"log": options.log, **instant_fields("horizon", horizon)})
    else:
        say(f"everything of {options.log} before {rfc3339(horizon)} is final")
    return 0


def _refuse_far_ahead(options: argparse.Namespace, target: Instant, ahead: Span) -> None:
    """Raise BadRequest for an instant that the user cannot have meant to wait for."""
    if ahead > parse_span(options.wait):
        raise BadRequest(
            "too-far-ahead",
            f"{rfc3339(target)} lies {span_text(ahead)} ahead, and nothing is final before its time",
            hint=f"name an earlier instant, or say that you mean it: --wait {-(-ahead // SECOND)}s",
        )


def _seal(cluster: Cluster, options: argparse.Namespace) -> int:
    from ..bag.metronome import Metronome

    log = cluster.logs.opened(options.log)
    report = Metronome(cluster.context, log.grid).turn(cluster.time.now())
    if options.json:
        print_json("tenure.seal", {"log": options.log, "closed": report.bags_closed, "sealed": report.racks_sealed})
    else:
        say(f"closed {counted(report.bags_closed, 'bag')}, sealed {counted(report.racks_sealed, 'rack')}")
    return 0


def _named_bag(cluster: Cluster, path: str) -> tuple[OpenLog, Bag]:
    parts = path.strip("/").split("/")
    if len(parts) == 5 and parts[0] == "logs":  # noqa: PLR2004 - logs/LOG/DAY/RACK/BAG
        log = cluster.logs.opened(parts[1])
        rack = log.grid.parse_rack(parts[2], parts[3])
        bag = log.grid.parse_bag(rack, parts[4]) if rack else None
        if bag is not None:
            return log, bag
    raise BadRequest("no-such-bag", f"{path!r} is not the path of a bag", hint="copy it from: tenure bag ls LOG")


EXIT_DAMAGED = 65
_NEWEST_RACKS = 144


def pack(cluster: Cluster, options: argparse.Namespace) -> int:
    """Pack the sealed racks of a log, the newest ones or all, and sweep their directories."""
    from appliance.bag.authority import Authority

    from ..bag.logs import racks_there
    from ..bag.packer import Packer, PackState

    log = cluster.logs.opened(options.log)
    packer = Packer(cluster.context, log.grid, Authority(cluster.context, log.grid).sealer)
    racks = sorted(racks_there(cluster.context.storage, log.grid))
    racks = racks if options.all else racks[-_NEWEST_RACKS:]
    progress = Progress("packing", len(racks))
    made = swept = 0
    problems: list[Damaged] = []
    for done, rack in enumerate(racks, 1):
        try:
            report = packer.pack(rack, again=True)
        except Damaged as problem:
            problems.append(problem)
        else:
            made += report.made
            swept += report.swept
            for place in report.left:
                note(f"tenure: {place} holds files that are not ours: its directory stays")
            if report.state is PackState.UNSEALED and options.all:
                note(f"tenure: {rack.path} is not sealed: it is packed after that")
        progress.show(done)
    progress.done()
    said = [problem.message for problem in problems]
    for message in said:
        note(f"tenure: {message}")
    if options.json:
        fields = {"log": options.log, "racks": len(racks), "packed": made, "directories_removed": swept}
        print_json("tenure.pack", fields | {"damaged": said})
    else:
        say(f"packed {counted(made, 'rack')}, removed {swept} bag directories")
    return EXIT_DAMAGED if problems else 0


def retain(cluster: Cluster, options: argparse.Namespace) -> int:
    """Delete the packs of racks that ended more than so many days ago, or say which they are."""
    from ..bag.packer import NotPacked, Retention

    if options.days < 1:
        raise BadRequest(
            "bad-days", f"{options.days} days: a pack is kept for at least one", hint="use --days 1 or more"
        )
    log = cluster.logs.opened(options.log)
    retention = Retention(cluster.context, log.grid, options.days * DAY)
    cutoff = retention.cutoff()
    rows, unpacked, size = [], [], 0
    for each in retention.old(cutoff):
        if isinstance(each, NotPacked):
            unpacked.append(each.rack.path)
            continue
        if not options.dry_run:
            retention.delete(each)
        size += each.size
        rows.append({"path": each.path, "bytes": each.size, **instant_fields("end", each.rack.end_ns)})
        if not options.json:
            say(f"{each.path}  {each.size} bytes")
    for path in unpacked:
        note(f"tenure: {path} is old enough and not packed: tenure bag pack {options.log} --all")
    if options.json:
        fields = {"log": options.log, "dry_run": options.dry_run, "bytes": size, "packs": rows, "not_packed": unpacked}
        print_json("tenure.retain", fields | instant_fields("cutoff", cutoff))
    else:
        verb = "would delete" if options.dry_run else "deleted"
        say(f"{verb} {counted(len(rows), 'pack')} of racks that ended before {rfc3339(cutoff)}: {size} bytes")
    return 0


def show_forecast(cluster: Cluster, options: argparse.Namespace) -> int:
    """Say what the log costs in names (inodes) and bytes, if it goes on as it does."""
    from ..bag.survey import forecast

    grid = cluster.logs.opened(options.log).grid
    found = forecast(cluster.context, grid, options.days)
    if options.json:
        print_json(
            "tenure.forecast",
            {
                "log": options.log,
                "racks_looked_at": found.racks_looked_at,
                "racks_per_day": found.racks_per_day,
                "names_now": found.names_now,
                "names_for_ever_per_day": found.names_for_ever_per_day,
                "packs_per_day": round(found.packs_per_day, 3),
                "pack_bytes_per_day": round(found.pack_bytes_per_day),
                "days_kept": options.days,
                "names_of_packs": round(found.names_kept),
                "bytes_of_packs": round(found.bytes_kept),
            },
        )
        return 0
    say(f"{options.log}: {found.racks_per_day} racks a day, by the newest {counted(found.racks_looked_at, 'rack')}")
    say(f"  names in these racks           {found.names_now}")
    say(f"  names that stay for ever       {found.names_for_ever_per_day} a day")
    say(f"  packs                          {found.packs_per_day:.1f} a day, {found.pack_bytes_per_day:.0f} bytes a day")
    after = f"kept for {counted(options.days, 'day')}" if options.days else "after one year without retention"
    say(f"  packs, {after}: {found.names_kept:.0f} names, {found.bytes_kept:.0f} bytes")
    return 0


COMMANDS: Final = {"bag": Command("Look at a log's racks and bags, and close what is due.", _add_bag, run_bag)}
