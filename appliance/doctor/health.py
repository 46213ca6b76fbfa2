"""Is it healthy? What was seen of a cluster, judged: a line for each thing, and with it what to do. Pure.

All who say how a cluster is say it by these lines: ``status``, ``top``, ``/readyz``, ``/metrics``, and ``doctor`` of
what they share. So they cannot differ in what is wrong, only in what each of them can see. Whether a promise was kept
is the auditor's question, not this one's.

A line fails when leases or messages are impossible for somebody. What another node, or time, makes good by itself is
UNSURE, what has not been seen yet UNKNOWN. Who does not answer never passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from timeagent.console import counted
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND, Instant, Span, rfc3339, span_text

from ..formats.shardmap import chain_of, shard_text
from ..formats.witness import Half


class CheckVerdict(StrEnum):
    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    """The requirement is not met: tenure would refuse to work here, or wait for ever, or could not be believed."""
    UNSURE = "UNSURE"
    """It works, but at a price that should be known; or it cannot be seen from here."""
    UNKNOWN = "UNKNOWN"
    """Nothing is known of it yet, or nobody may ask."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A verdict with its reason. ``way_out`` is empty only where nothing has to be done."""

    name: str
    verdict: CheckVerdict
    reason: str
    way_out: str = ""

    @property
    def words(self) -> str:
        return f"{self.name}: {self.reason}"

    def fields(self) -> dict[str, Any]:
        return {"check": self.name, "verdict": self.verdict, "reason": self.reason, "way_out": self.way_out or None}


def passed(name: str, reason: str) -> HealthCheck:
    return HealthCheck(name, CheckVerdict.PASS, reason)


def failed(name: str, reason: str, way_out: str) -> HealthCheck:
    return HealthCheck(name, CheckVerdict.FAIL, reason, way_out)


def unsure(name: str, reason: str, way_out: str) -> HealthCheck:
    return HealthCheck(name, CheckVerdict.UNSURE, reason, way_out)


def unknown(name: str, reason: str, way_out: str) -> HealthCheck:
    return HealthCheck(name, CheckVerdict.UNKNOWN, reason, way_out)


def judged(name: str, said: str, wrong: str, way_out: str, *, holds: object) -> HealthCheck:
    """Return a requirement that is met, as is ``said``; or that is not, and what is ``wrong``."""
    return passed(name, said) if holds else failed(name, wrong, way_out)


WORST_FIRST: Final = (CheckVerdict.FAIL, CheckVerdict.UNKNOWN, CheckVerdict.UNSURE, CheckVerdict.PASS)


def worst(checks: Iterable[HealthCheck]) -> CheckVerdict:
    """Return the worst verdict of all; of nothing, that all is well."""
    return min((check.verdict for check in checks), key=WORST_FIRST.index, default=CheckVerdict.PASS)


def not_well(checks: Iterable[HealthCheck]) -> list[HealthCheck]:
    found = [check for check in checks if check.verdict is not CheckVerdict.PASS]
    return sorted(found, key=lambda check: WORST_FIRST.index(check.verdict))


def exit_status(checks: Iterable[HealthCheck]) -> int:
    """Return 0 if all is well, 1 if something failed, 3 if something could not be made sure of."""
    return {CheckVerdict.FAIL: 1, CheckVerdict.PASS: 0}.get(worst(checks), 3)


RADIUS_NS_MAX: Final = 250 * MS
"""What the default policy allows."""
TMPFS_BYTES_MIN: Final = 64 * 1024
"""A tmpfs with less room than that is full."""
BYTES_FAIL: Final = 16 * 2**20
BYTES_UNSURE: Final = 2**30
NAMES_FAIL: Final = 1_000
NAMES_UNSURE: Final = 100_000
"""A log in use has 1,800 names a rack, and one for each file, until it is packed, and keeps 432 a day after that."""
ASSUMED_WORDS: Final = "assumed: the policy states it, nothing measures it"
"""Of a radius that ``init --assume-radius`` put into the policy: right where all processes share one clock."""
_TIME_OF_DAY: Final = slice(len("2026-11-20T"), len("2026-11-20T22:10:07"))


def for_long(silent_ns: Span | None) -> str:
    """Say how long there has been no answer, where that is a while."""
    return (
        f" for {max(0, silent_ns) // (100 * MS) / 10:.1f} s" if silent_ns is not None and silent_ns >= 100 * MS else ""
    )


# -- this machine ------------------------------------------------------------------------------------------------------


def judge_clock(radius: Span | None, why: str, source: str, radius_max: Span = RADIUS_NS_MAX) -> HealthCheck:
    """Say whether this machine's clock has a bound. ``radius``: None where nothing bounds it, and ``why``."""
    if radius is None:
        way_out = "tenure time sources says why; run chrony with rtcsync, or the time agent: tenure time run; or state"
        way_out += " one: init --assume-radius, and of a cluster that is there policy set --assumed-radius"
        return failed("clock", f"no bound: {why}", way_out)
    if radius > radius_max:
        wrong = f"known to {span_text(radius)} ({source}); the policy allows {span_text(radius_max)}"
        return failed("clock", wrong, "tenure time sources says what each source knows")
    return passed("clock", f"known to {span_text(radius)} ({source})")


def judge_keys(node: str, refused: TenureError | None, soon: Mapping[str, Instant]) -> HealthCheck:
    """Say whether what this node signs counts; ``refused``: why not. ``soon``: keys in use that end, by purpose."""
    if refused is not None:
        return failed("keys", refused.message, refused.hint or "tenure trust show")
    if soon:
        ends = ", ".join(f"{purpose} until {rfc3339(end)}" for purpose, end in soon.items())
        said = f"processes of {node} use keys that end, and have no next ones: {ends}"
        return unsure("keys", said, "tenure trust rotate makes the next; where that is done: start them again")
    return passed("keys", f"those of {node} count")


def judge_mount(silent_ns: Span | None, why: str = "", *, waiting: bool = False) -> HealthCheck:
    """Say whether the mount answers. ``silent_ns``: for how long it has not; None: it does."""
    if waiting:
        return unknown("mount", "no answer yet", "wait a moment")
    if silent_ns is not None:
        said = f"no answer from the mount{for_long(silent_ns)}" + (f": {why}" if why else "")
        return failed("mount", said, "is its file server up, and reached? dmesg; nfsstat -c")
    return passed("mount", "it answers")


@dataclass(frozen=True, slots=True)
class Room:
    """What is left for users that are not the superuser; None: the file system does not count it."""

    bytes_left: int
    names_left: int | None


def judge_room(room: Room) -> list[HealthCheck]:
    way_out = "free space, or raise the quota; tenure bag retain deletes old packs"
    said = f"{room.bytes_left / 2**30:.1f} GiB left"
    found = _judge_left("room", room.bytes_left, said, (BYTES_FAIL, BYTES_UNSURE), way_out)
    if room.names_left is None:
        return [found, passed("names", "the file system does not run out of names (inodes)")]
    way_out = "make the file system with more inodes; tenure bag pack gives names back, bag forecast counts them"
    said = f"{room.names_left} names (inodes) left"
    return [found, _judge_left("names", room.names_left, said, (NAMES_FAIL, NAMES_UNSURE), way_out)]


def _judge_left(name: str, left: int, said: str, limits: tuple[int, int], way_out: str) -> HealthCheck:
    too_little, little = limits
    if left < too_little:
        return failed(name, said, way_out)
    return unsure(name, said, way_out) if left < little else passed(name, said)


def judge_space(room: Room) -> list[HealthCheck]:
    """Say whether anything can be written to the mount still. That it is getting less is told by the doctor."""
    return [
        check if check.verdict is CheckVerdict.FAIL else passed(check.name, check.reason) for check in judge_room(room)
    ]


def judge_tmpfs(place: Path, bytes_left: int) -> HealthCheck:
    wrong, way_out = f"{place} is full: soon no shard takes new domains", f"see what fills it: du -x {place}"
    return judged("tmpfs", f"{place} has room", wrong, way_out, holds=bytes_left >= TMPFS_BYTES_MIN)


def judge_daemon(node: str, said: Sequence[HealthCheck] | None, runs: str | None, listens: str | None) -> HealthCheck:
    """Say whether this machine's daemon is ready.

    ``said``: what it says of itself; None: nothing. ``runs``, ``listens``: which process has its lock, its door.
    """
    if said is not None:
        wrong = [check for check in not_well(said) if check.verdict is CheckVerdict.FAIL]
        if wrong:
            return failed("daemon", f"{node} is not ready: {'; '.join(c.words for c in wrong)}", wrong[0].way_out)
        return passed("daemon", f"{node} is ready")
    if runs is not None and listens is not None:
        way_out = "tenure top shows whether it comes back; stopped, it goes on with kill -CONT and its number;"
        way_out += " where it has processor time and hangs all the same: kill -9, and start it again"
        return failed("daemon", f"{listens} runs {node}, and does not answer", way_out)
    if runs is not None:
        way_out = "it only starts, or is of another release: wait; journalctl -u says more. "
        way_out += "It need not be ended for that"
        return unsure("daemon", f"{runs} runs {node}, and says nothing of itself at its door on tmpfs", way_out)
    return unsure("daemon", f"none of {node} answers on this machine", "tenure node run; systemctl status")


def judge_etcd(endpoint: str, answer: str | TenureError, *, alone: bool) -> HealthCheck:
    """Say whether an instance of etcd answers. ``answer``: its release; ``alone``: no other instance is asked."""
    if isinstance(answer, str):
        return passed("etcd", f"release {answer} answers at {endpoint}")
    return (failed if alone else unsure)("etcd", answer.message, answer.hint)


# -- shards ------------------------------------------------------------------------------------------------------------


def judge_own_shard(shard: int, ended: str | None, still_ns: Span) -> HealthCheck:
    """Say how a shard is, seen by the daemon that runs it. ``still_ns``: since when its loop has not gone round."""
    name = f"shard {shard_text(shard)}"
    if ended is not None:
        return failed(name, f"has ended: {ended}", "start the daemon again: its supervisor does")
    if still_ns:
        return failed(name, f"stands still{for_long(still_ns)}", "start the daemon again: its watchdog does")
    return passed(name, "runs here")


def judge_awaited_shard(shard: int, runner: str | None, hindered: TenureError | None = None) -> HealthCheck:
    """Say of a shard of this node that it does not run here; ``runner``: which process of this machine has it.

    ``hindered``: why it did not begin.
    """
    name = f"shard {shard_text(shard)}"
    if runner is None and hindered is not None:
        return failed(name, f"does not begin: {hindered.message}", hindered.hint)
    said = "does not run" + (f" here yet: {runner} runs it, and gives it up" if runner else "")
    return failed(name, said, "wait: this node takes it once its ceiling is past; tenure shards ls")


def judge_shard(
    shard: int,
    owner: str,
    *,
    runner: str | None,
    leases: int | None = None,
    blocks_lost: int = 0,
    until_ns: Instant | None = None,
    half: Half = Half.WHOLE,
) -> HealthCheck:
    """Say how a shard is that answers. ``runner``: who; None: it does not say.

    ``until_ns``: when everything is over that an earlier run granted; None: it is. ``half``: its phase while it moves.
    """
    stands = f"run by {runner or owner}" + (f", {counted(leases, 'lease')}" if leases is not None else "")
    if half is not Half.WHOLE:
        stands += f", {half} in a planned move (tenure shards finish ends one that was cut off)"
    name, said, ways = f"shard {shard_text(shard)}", [], []
    if runner not in (None, owner):
        said.append(f"its owner {owner} does not run it")
        or_move = f"; or tenure shards move {chain_of(shard)[1]} {runner}" if half is Half.WHOLE else ""
        ways.append(f"start {owner} again, to which it goes once no lease is out{or_move}")
    if until_ns is not None:
        said.append(f"restarted, recovering until {rfc3339(until_ns + SECOND)[_TIME_OF_DAY]} UTC")
        ways.append("wait: what an earlier run granted has to be over first")
    if blocks_lost:
        said.append(f"lost {counted(blocks_lost, 'ledger block')}")
        ways.append("its daemon's log says why; the audit tells of a gap, no lease is harmed")
    return unsure(name, f"{stands}: {'; '.join(said)}", "; ".join(ways)) if said else passed(name, stands)


def judge_silent_shard(
    shard: int,
    owner: str,
    runner: str,
    silent_ns: Span | None,
    why: str = "",
    way_out: str = "",
    *,
    stopped: bool = False,
    alone: bool = False,
) -> HealthCheck:
    """Say how a shard is that does not answer. ``runner``: who has it, by the newest record of its chain.

    ``stopped``: that record says that it ended in good order. ``alone``: the cluster has one node, whose applications
    run the shard where no daemon does, and nobody was seen to go.
    """
    name = f"shard {shard_text(shard)}"
    if stopped:
        way_out = f"tenure node run, on {owner}: nobody has to wait for what it granted before"
        return unsure(name, f"stopped in good order by {runner}", way_out)
    why = why.removeprefix(f"{name} at node {runner}: ")  # it stands there already
    who = runner if runner == owner else f"{runner}, which stands in for {owner},"
    said = f"no answer from {who}{for_long(silent_ns)}" + (f": {why}" if why else "")
    if alone:
        return unsure(name, said, "the next application runs it; tenure node run does all the time")
    return failed(name, said, way_out or f"is {runner} stopped, or down? tenure status, there")


# -- other nodes -------------------------------------------------------------------------------------------------------


def judge_reached(answers: Sequence[str], silent: Mapping[str, str]) -> HealthCheck:
    """Say which nodes with an address answer. ``silent``: where those that do not should."""
    if silent:
        where = ", ".join(f"{node} at {address}" for node, address in sorted(silent.items()))
        way_out = "is tenure-node running there (tenure status, there), and may this machine reach that port?"
        way_out += " tenure trust move corrects it"
        return unsure("other nodes", f"{len(answers)} answer; no answer from {where}", way_out)
    said = f"{len(answers)} answer" if answers else "no other has an address and a key that counts"
    return passed("other nodes", said)


def judge_releases(known: Mapping[str, str | None]) -> HealthCheck:
    """Say whether all nodes run one release. ``known``: by node; None for one that does not answer."""
    told = {node: release for node, release in known.items() if release is not None}
    words = ", ".join(f"{node} {release}" for node, release in sorted(told.items()))
    if len(set(told.values())) > 1:
        way_out = "finish the upgrade: tenure node upgrade, one node after the other"
        return unsure("releases", f"nodes run different ones: {words}", way_out)
    return passed("releases", words or "no node says")


def judge_clocks(good: bool, words: str) -> HealthCheck:  # noqa: FBT001 - one fact
    way_out = "tenure time sources, on the node that is outside: its bound is not true"
    return judged("clocks", words or "nothing to compare", words, way_out, holds=good)


# -- logs and leases ---------------------------------------------------------------------------------------------------


def judge_log(log: str, problem: str, overdue: int) -> HealthCheck:
    """Say whether a log can be read, and is closed as time goes by. ``overdue``: bags that long could be closed."""
    name = f"log {log}"
    if problem:
        return failed(name, problem, "tenure audit says what is damaged")
    if overdue:
        way_out = f"tenure bag settle {log} does it now; tenure node run does, though an idle log's only with its rack"
        return unsure(name, f"{counted(overdue, 'bag')} overdue for closing", way_out)
    return passed(name, "closed as time goes by")


def judge_ends(recovering: int, dying: int) -> HealthCheck:
    said = [f"{counted(recovering, 'lease')} expired, recovering"] if recovering else []
    said += [f"{counted(dying, 'lease')} will expire, not renewed"] if dying else []
    if said:
        return unsure("leases", "; ".join(said), "wait: their domains are free by themselves; who held them is gone")
    return passed("leases", "whoever holds one renews it")
