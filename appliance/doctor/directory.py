"""What was found in a directory, judged. Pure: appliance/bag/probe.py tries things out, here is what they mean."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final

from timeagent.units import MINUTE, SECOND, span_text

from .check import HealthCheck, failed, passed, unsure

if TYPE_CHECKING:
    from appliance.bag.probe import Directory, Linked, Room
    from timeagent.interval import TimeInterval
    from timeagent.units import Instant

BYTES_FAIL: Final = 16 * 2**20
BYTES_UNSURE: Final = 2**30
NAMES_FAIL: Final = 1_000
NAMES_UNSURE: Final = 100_000
"""A log in use has about 1,300 names a rack until it is packed, and keeps 432 a day after that."""
_BOTH_NAMES: Final = 2
CLOCK_UNSURE_NS: Final = 2 * SECOND
CLOCK_FAIL_NS: Final = MINUTE
"""The default delay of a rack's seal: a server's clock that is so far ahead gives no second opinion on it."""


def judge_directory(found: Directory, *, where: str) -> HealthCheck:
    """Say whether the processes of all machines can work in a directory."""
    name, said = (
        "directory mode",
        f"{where} has mode {stat.S_IMODE(found.mode):04o}, user {found.uid}, group {found.gid}",
    )
    if found.sticky:
        return failed(
            name,
            f"{said}: sticky ones refuse to open files that another user has made (fs.protected_regular)",
            f"chmod -t {where}, and one group for all processes",
        )
    if found.mode & stat.S_IWOTH:
        return unsure(name, f"{said}: anybody may write there", f"chmod o-w {where}")
    return passed(name, said)


def judge_owner(owner: int, user: int) -> HealthCheck:
    """Say whether files belong to who makes them."""
    name = "user mapping"
    if owner != user:
        return failed(
            name,
            f"user {user} made a file and user {owner} has it: the server maps users (all_squash, or an id domain)",
            "export without all_squash; the same numeric user and group on all machines",
        )
    return passed(name, f"files belong to who makes them (user {user})")


def judge_linked(found: Linked) -> HealthCheck:
    """Say whether link(2) decides."""
    name, way_out = "hard links", "use a file system with hard links, and one for the whole root"
    if not found.second_refused:
        return failed(name, "a second file was linked to a name that was taken", way_out)
    if not found.content_kept:
        return failed(name, "the name holds another file than the one that was linked first", way_out)
    if found.names != _BOTH_NAMES:
        return failed(name, f"a file with two names says that it has {found.names}", way_out)
    return passed(name, "link(2) takes a name once, and says so")


def judge_exclusive(*, refused: bool) -> HealthCheck:
    """Say whether O_EXCL decides."""
    if not refused:
        return failed("exclusive create", "O_EXCL opened a file that was there", "use NFSv3, v4 or a Linux file system")
    return passed("exclusive create", "O_EXCL takes a name once")


def judge_listed(*, listed: bool) -> HealthCheck:
    """Say whether one's own new file is seen."""
    if not listed:
        return failed(
            "listing", "a new file was not in its directory's list, or empty", "see dmesg; is the mount well?"
        )
    return passed("listing", "a new file is seen at once, whole")


def judge_room(room: Room) -> list[HealthCheck]:
    """Say whether there is room for bytes and for names."""
    said = f"{room.bytes_left / 2**30:.1f} GiB left"
    way_out = "free space, or raise the quota; tenure bag retain deletes old packs"
    if room.bytes_left < BYTES_FAIL:
        found = [failed("room", said, way_out)]
    elif room.bytes_left < BYTES_UNSURE:
        found = [unsure("room", said, way_out)]
    else:
        found = [passed("room", said)]
    if room.names_left is None:
        return [*found, passed("names", "the file system does not run out of names (inodes)")]
    said = f"{room.names_left} names (inodes) left"
    way_out = "make the file system with more inodes; tenure bag pack gives names back, bag forecast counts them"
    if room.names_left < NAMES_FAIL:
        return [*found, failed("names", said, way_out)]
    if room.names_left < NAMES_UNSURE:
        return [*found, unsure("names", said, way_out)]
    return [*found, passed("names", said)]


def judge_server_clock(server: Instant, local: TimeInterval) -> HealthCheck:
    """Say how far the file server's clock is from here. ``local``: CLOCK_REALTIME before and after it was asked."""
    name = "server clock"
    off = server - local.latest if server > local.latest else min(0, server - local.earliest)
    said = f"the file server's clock is {span_text(abs(off))} {'ahead' if off > 0 else 'behind'}"
    way_out = "run chrony on the file server, too"
    if off > CLOCK_FAIL_NS:
        return failed(name, f"{said}: it gives no second opinion on when a rack may be sealed", way_out)
    if abs(off) > CLOCK_UNSURE_NS:
        return unsure(name, f"{said}" + ("" if off > 0 else ": seals are late by as much"), way_out)
    return passed(name, said if off else "the file server's clock and this machine's agree")
