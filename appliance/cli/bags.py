"""``tenure bag``: look at a log's racks and bags; close what is due, pack what is sealed, delete what is old."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import islice
from typing import Final

from appliance.cluster import Cluster
from appliance.session.open_logs import OpenLog
from timeagent.console import (
    Progress,
    argument,
    counted,
    instant_fields,
    note,
    present,
    printable,
    say,
    whole_from,
    with_verbs,
)
from timeagent.errors import BadRequest, Damaged
from timeagent.units import DAY, INSTANT_MAX, SECOND, parse_instant, parse_span, rfc3339, span_text

from ..bag.closedbags import open_packed
from ..bag.closing import Authority, NotDue
from ..bag.logs import BagView, forecast, racks_there, view_rack
from ..bag.metronome import Metronome
from ..bag.packer import NotPacked, Packer, PackState, Retention
from ..bag.ports import Storage
from ..formats.closed import open_lock
from ..formats.paths import LOCK, PRELOCK, Bag
from .opening import EXIT_NO, cluster_command

_NEWEST_RACKS: Final = 144
_DAYS_MAX: Final = INSTANT_MAX // DAY


def _list(cluster: Cluster, options: Namespace) -> int:
    grid = cluster.logs.opened(options.log).grid
    newest_first = list(islice(racks_there(cluster.context.storage, grid), min(options.last, sys.maxsize) or None))
    for rack in reversed(newest_first):
        view = view_rack(cluster.context, grid, rack)
        state = "retained" if view.retained else view.state if view.pack_bytes is None else "packed"
        size = "" if view.pack_bytes is None else f"  {view.pack_bytes} bytes"
        fields = {"path": rack.path, "state": state, "pack_bytes": view.pack_bytes}
        present(
            options,
            "tenure.rack",
            fields | {"bags": [_fields(bag) for bag in view.bags], "strangers": [*map(printable, view.strangers)]},
            f"{rack.path}  {state}  {counted(len(view.bags), 'bag')}{size}",
            *(f"  {bag.bag.path}  {bag.state}  {counted(len(bag.files), 'file')}" for bag in view.bags),
        )
        for stranger in () if options.json else view.strangers:
            note(f"tenure: {rack.path}/{printable(stranger)} is not on the log's grid: it does not exist")
    return 0


def _fields(view: BagView) -> dict[str, object]:
    when = instant_fields("start", view.bag.start_ns) | instant_fields("due", view.bag.due_ns)
    return {"path": view.bag.path, "state": view.state, "files": len(view.files), **when}


def _show(cluster: Cluster, options: Namespace) -> int:
    log, bag = _named_bag(cluster, options.path)
    names = cluster.context.storage.list_afresh(bag.path)
    state, rows = _sealed_rows(cluster, log, bag) if names is None else _rows(cluster.context.storage, bag, names)
    return present(
        options,
        "tenure.bag",
        {"path": bag.path, "closed": state != "open", "files": rows},
        f"{bag.path}: {state}, timestamps from {rfc3339(bag.start_ns)} until {rfc3339(bag.end_ns)}",
        *(f"  {row['name']}  {row['bytes']} bytes  {row['state']}" for row in rows),
    )


def _rows(storage: Storage, bag: Bag, names: Sequence[str]) -> tuple[str, list[dict[str, object]]]:
    """Return the state of a bag that has a directory, and its files: what its lock lists, and what is there."""
    raw = storage.read(f"{bag.path}/{LOCK}")
    listed = dict(open_lock(raw, f"{bag.path}/{LOCK}")[0].by_name()) if raw else {}
    rows: list[dict[str, object]] = []
    for name in sorted({*names, *listed} - {LOCK, PRELOCK}):
        entry, size = listed.get(name), storage.size_of(f"{bag.path}/{name}")
        if raw is None:
            state = "open"
        elif entry is None:
            state = "void: not on the list"
        else:
            state = "missing" if size is None else "short" if size < entry.size else "listed"
        listed_bytes = entry.size if entry else None
        rows.append({"name": printable(name), "bytes": size, "listed_bytes": listed_bytes, "state": state})
    return "closed" if raw else "open", rows


def _sealed_rows(cluster: Cluster, log: OpenLog, bag: Bag) -> tuple[str, list[dict[str, object]]]:
    """Return the same of a bag without a directory, as the seal of its rack has it."""
    authority = Authority(cluster.context, log.grid)
    seal = authority.sealer.sealed(bag.rack)
    lock = None if seal is None else authority.in_seal(seal, bag).lock
    if lock is None:
        raise BadRequest("no-such-bag", f"{bag.path} is not there", hint="tenure bag ls shows what is")
    state = "retained: gone" if open_packed(cluster.context.storage, bag.rack) is None else "packed"
    return state, [{"name": e.name, "bytes": e.size, "listed_bytes": e.size, "state": state} for e in lock.entries]


def _close(cluster: Cluster, options: Namespace) -> int:
    log, bag = _named_bag(cluster, options.path)
    authority = Authority(cluster.context, log.grid)
    result = authority.read(bag) or authority.close(bag)
    if isinstance(result, NotDue):
        note(f"tenure: {bag.path} cannot be closed before {rfc3339(result.due_ns)}")
        return EXIT_NO
    files = None if result.lock is None else len(result.lock.entries)
    void = "does not exist: its rack was sealed without it"
    words = void if files is None else f"holds {counted(files, 'file')}, for ever"
    fields = {"path": bag.path, "closed": files is not None, "files": files}
    return present(options, "tenure.close", fields, f"{bag.path} {words}")


def _settle(cluster: Cluster, options: Namespace) -> int:
    now = cluster.time.now()
    target = parse_instant(options.to) if options.to else now.latest
    log = cluster.logs.opened(options.log)
    reached = log.horizon.refresh()
    ahead = target - now.latest
    if ahead > parse_span(options.wait):
        what = f"{rfc3339(target)} lies {span_text(ahead)} ahead, and nothing is final before its time"
        hint = f"name an earlier instant, or say that you mean it: --wait {-(-ahead // SECOND)}s"
        raise BadRequest("too-far-ahead", what, hint=hint)
    if target > reached and (left := log.grid.bag(target - 1).due_ns - now.earliest) > SECOND:
        note(f"tenure: {options.log} can be final up to {rfc3339(target)} in {span_text(left)} at the earliest")
    with Progress("settling, seconds", max(0, target - reached) // SECOND) as progress:
        horizon = cluster.settle(
            options.log, target, lambda to: progress.show((to - reached) // SECOND, f"closed before {rfc3339(to)}")
        )
    fields = {"log": options.log, **instant_fields("horizon", horizon)}
    return present(options, "tenure.settle", fields, f"everything of {options.log} before {rfc3339(horizon)} is final")


def _seal(cluster: Cluster, options: Namespace) -> int:
    report = Metronome(cluster.context, cluster.logs.opened(options.log).grid).turn(cluster.time.now())
    fields = {"log": options.log, "closed": report.bags_closed, "sealed": report.racks_sealed}
    words = f"closed {counted(report.bags_closed, 'bag')}, sealed {counted(report.racks_sealed, 'rack')}"
    return present(options, "tenure.seal", fields, words)


def _named_bag(cluster: Cluster, path: str) -> tuple[OpenLog, Bag]:
    parts = path.strip("/").split("/")
    if len(parts) == 5 and parts[0] == "logs":  # noqa: PLR2004 - logs/LOG/DAY/RACK/BAG
        log = cluster.logs.opened(parts[1])
        rack = log.grid.parse_rack(parts[2], parts[3])
        bag = log.grid.parse_bag(rack, parts[4]) if rack else None
        if bag is not None:
            return log, bag
    raise BadRequest("no-such-bag", f"{path!r} is not the path of a bag", hint="copy it from: tenure bag ls LOG")


def pack(cluster: Cluster, options: Namespace) -> int:
    log = cluster.logs.opened(options.log)
    packer = Packer(cluster.context, log.grid, Authority(cluster.context, log.grid).sealer)
    chosen = sorted(racks_there(cluster.context.storage, log.grid))[0 if options.all else -_NEWEST_RACKS :]
    made, swept, said = 0, 0, []
    with Progress("packing", len(chosen)) as progress:
        for done, rack in enumerate(chosen, 1):
            try:
                report = packer.pack(rack, again=True)
            except Damaged as problem:
                said.append(problem.message)
                note(f"tenure: {problem.message}")  # now: another rack's error may end this
            else:
                made += report.made
                swept += report.swept
                for place in report.left:
                    note(f"tenure: {place} holds files that are not ours: its directory stays")
                if report.state is PackState.UNSEALED and options.all:
                    note(f"tenure: {rack.path} is not sealed: it is packed after that")
            progress.show(done)
    fields = {"log": options.log, "racks": len(chosen), "packed": made, "directories_removed": swept, "damaged": said}
    words = f"packed {counted(made, 'rack')}, removed {swept} bag directories"
    return present(options, "tenure.pack", fields, words, status=Damaged.exit_status if said else 0)


def retain(cluster: Cluster, options: Namespace) -> int:
    if not 1 <= options.days <= _DAYS_MAX:
        hint = f"use --days 1 to {_DAYS_MAX}"
        what = f"{options.days} days: a pack is kept for at least one, and time has no more than {_DAYS_MAX}"
        raise BadRequest("bad-days", what, hint=hint)
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
    fields = {"log": options.log, "dry_run": options.dry_run, "bytes": size, "packs": rows, "not_packed": unpacked}
    verb = "would delete" if options.dry_run else "deleted"
    words = f"{verb} {counted(len(rows), 'pack')} of racks that ended before {rfc3339(cutoff)}: {size} bytes"
    return present(options, "tenure.retain", fields | instant_fields("cutoff", cutoff), words)


def show_forecast(cluster: Cluster, options: Namespace) -> int:
    if options.days is not None and options.days > _DAYS_MAX:
        raise BadRequest("bad-days", f"time has no more than {_DAYS_MAX} days", hint="name fewer --days")
    found = forecast(cluster.context, cluster.logs.opened(options.log).grid, options.days)
    after = f"kept for {counted(options.days, 'day')}" if options.days else "after one year without retention"
    return present(
        options,
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
        f"{options.log}: {found.racks_per_day} racks a day, by the newest {counted(found.racks_looked_at, 'rack')}",
        f"  names in these racks           {found.names_now}",
        f"  names that stay for ever       {found.names_for_ever_per_day} a day",
        f"  packs                          {found.packs_per_day:.1f} a day, {found.pack_bytes_per_day:.0f} bytes a day",
        f"  packs, {after}: {found.names_kept:.0f} names, {found.bytes_kept:.0f} bytes",
    )


_LOG: Final = argument("log LOG")
_VERBS: Final = {
    "ls": cluster_command(
        "the racks and bags that are there, with their states",
        _list,
        _LOG,
        argument("--last N", "only the newest N racks", type=whole_from(1), default=0),
    ),
    "show": cluster_command(
        "one bag: its lock file's list against what is in the directory",
        _show,
        argument("path PATH", "as bag ls prints it"),
    ),
    "close": cluster_command("close one bag, if it is due", _close, argument("path PATH")),
    "settle": cluster_command(
        "wait until everything before an instant is final, helping to close",
        _settle,
        _LOG,
        argument("--to T", "an instant (default: now)"),
        argument("--wait SPAN", "how far ahead the instant may lie (default 1m)", default="1m"),
    ),
    "seal": cluster_command("close and seal whatever is due, once", _seal, _LOG),
    "pack": cluster_command(
        "make one file of each sealed rack, and remove its bags' directories",
        pack,
        _LOG,
        argument("--all", "every rack since the log's birth, not only the newest"),
    ),
    "retain": cluster_command(
        "delete the packs of old racks; their prelocks and seals stay",
        retain,
        _LOG,
        argument("--days N", "keep what ended less than N days ago", type=int, required=True),
        argument("--dry-run", "say what would be deleted, and delete nothing"),
    ),
    "forecast": cluster_command(
        "what the log costs in names and bytes, if it goes on like this",
        show_forecast,
        _LOG,
        argument("--days N", "with packs kept for N days (default: for ever)", type=whole_from(1)),
    ),
}
COMMANDS: Final = {"bag": with_verbs("Look at a log's racks and bags, and close what is due.", _VERBS)}
