"""``tenure bag pack|retain|forecast``: sealed racks as packs, the old ones deleted, and what a log will cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.console import Progress, counted, instant_fields, note, print_json, say
from timeagent.errors import BadRequest, Damaged
from timeagent.units import DAY, rfc3339

if TYPE_CHECKING:
    import argparse

    from appliance.cluster import Cluster

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
