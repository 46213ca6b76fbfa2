"""A lease that a shell has: a keeper renews it until it is unlocked, or until its owner is gone.

The keeper is a process of its own, and its lease an ordinary one of a session: it ends with its keeper, and with the
machine. It says of itself in a file of the node's runtime directory, which nobody else can change, whose lock it is and
how it stands; a flock on that file says that the keeper lives. It is told to give back by SIGTERM.

A lock that is *held on* when its owner dies is renewed until somebody says ``unlock --force``: nobody comes in before a
human has looked. No lease can promise more: who holds it has to live.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.errors import BadRequest, BadTime, Environment, LeaseLost, TryAgain
from timeagent.units import MS, SECOND, rfc3339

from ..node.runtime import LocalLock
from .processes import ancestors, process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from appliance.session.held import Lease
    from timeagent.clock import Clock
    from timeagent.units import Span

    from .processes import ProcessSeen

BEAT_NS: Final = SECOND
"""How often a keeper looks when nothing wakes it."""
PATIENCE_NS: Final = 30 * SECOND
"""How long a keeper may take to give back."""

HELD: Final = "held"
OWNERLESS: Final = "held on after its owner died"
LOST: Final = "lost"
RECORD_BYTES: Final = 2048


class LockRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What a keeper says of its lock. Written whole, always with as many bytes."""

    domain: str
    fence: int
    keeper: int
    owner: int
    owner_started: int
    owner_name: str
    state: str
    changed_ns: int
    why: str = ""

    def __str__(self) -> str:
        """Return it for people."""
        why = f" ({self.why})" if self.why else ""
        return f"{self.domain}: {self.state}{why} since {rfc3339(self.changed_ns)}, by {self.owner_name}/{self.owner}"


class Owner:
    """The process whose lock it is; another that gets its number is another."""

    def __init__(self, pid: int) -> None:
        """Know this process. Raises BadRequest where there is none."""
        try:
            self.descriptor = os.pidfd_open(pid)
        except (OSError, OverflowError):  # a number that no process can have
            seen = None
        else:
            seen = process(pid)  # of the same one: it has its number until it is reaped, and is gone then
        if seen is None:
            raise BadRequest("no-owner", f"there is no process {pid}", hint="--pid $$ names the shell that calls")
        self.seen: ProcessSeen = seen

    def gone(self) -> bool:
        """Whether it has ended."""
        return _readable(self.descriptor, 0)


class Lock:
    """One lock, in its keeper: the record of it, and the lease."""

    def __init__(self, runtime: Path, lease: Lease, owner: Owner, clock: Clock) -> None:
        """Write the record. Raises Environment."""
        self._path = runtime / f"lock-{os.getpid()}"
        self._lease = lease
        self._owner = owner
        self._clock = clock
        self._alive = LocalLock(self._path)
        self._alive.try_acquire()
        seen = owner.seen
        self.record = LockRecord(lease.domain, lease.fence, os.getpid(), seen.pid, seen.started, seen.name, HELD, 0)
        try:
            self._file = self._path.open("r+b")  # kept open: who holds on opens nothing, of which there may be too much
            self._changed(HELD)
        except OSError as problem:
            self.forget()
            what, hint = f"cannot write {self._path}: {problem.strerror}", "see whether there is room"
            raise Environment("no-runtime", what, hint=hint) from None

    def keep(self, wait: Callable[..., Sequence[int]], *, hold_on: bool) -> None:
        """Return when the lease is to be given back: it is unlocked, or its owner is gone and it is not held on.

        A lock that is lost stays known as that until its owner unlocks it, and is told so, or is gone.
        """
        unlocked = False
        while not unlocked:
            gone = self._owner.gone()
            loss = self._lease.loss
            if loss is not None and self.record.state != LOST:
                self._changed(LOST, str(loss))
            if gone and (not hold_on or self.record.state == LOST):
                self.forget()
                return
            if gone and self.record.state == HELD:
                self._changed(OWNERLESS)
            unlocked = signal.SIGTERM in wait(BEAT_NS, *([] if gone else [self._owner.descriptor]))

    def forget(self) -> None:
        """Remove the record: nobody is left who would ask."""
        self._path.unlink()

    def _changed(self, state: str, why: str = "") -> None:
        now = self.record.changed_ns
        with contextlib.suppress(BadTime):
            now = self._clock.now().midpoint
        self.record = msgspec.structs.replace(self.record, state=state, changed_ns=now, why=why)
        self._file.seek(0)
        self._file.write(msgspec.json.encode(self.record).ljust(RECORD_BYTES))
        self._file.flush()


def locks(runtime: Path, domain: str) -> Iterator[tuple[Path, LockRecord]]:
    """Return the locks on a domain that this user's keepers have here, with their files."""
    for path in sorted(runtime.glob("lock-*")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            record = msgspec.json.decode(path.read_bytes(), type=LockRecord)
            if record.domain == domain:
                yield path, record


def unlock(runtime: Path, domain: str, caller: int, *, force: bool) -> LockRecord:
    """End the lock of a process, or of one that it descends from; return what its keeper said last.

    ``force``: whoever's it is. Raises BadRequest where there is none, or another's; LeaseLost where it was lost;
    TryAgain where its keeper does not end.
    """
    there = list(locks(runtime, domain))
    above = {(each.pid, each.started) for each in ancestors(caller)}
    found = there if force else [each for each in there if (each[1].owner, each[1].owner_started) in above]
    # What was lost before, and nobody asked about, does not hide the one that is held now.
    held = [each for each in found if each[1].state != LOST and LocalLock(each[0]).is_held()]
    named = [each for each in held if each[1].owner == caller]
    if len(held) > 1 and len(named) == 1:
        held = named
    if not found or len(held) > 1:
        what = "; ".join(str(record) for _, record in there) or f"{domain}: not locked by anybody here"
        hint = "--force, once it is sure that its owner does no more" if there else "tenure lease show says who has it"
        code = "several-locks" if found else "not-owner" if there else "not-locked"
        raise BadRequest(code, what, hint="--pid OWNER, with one of these" if found else hint)
    said = [_ended(runtime, path, record) for path, record in held or found]
    lost = [what for record, what in said if what is not None]
    if lost:
        hint = "see what was done meanwhile: others may have had it"
        raise LeaseLost("lock-lost", "; ".join(lost), hint=hint)
    return said[0][0]


def _ended(runtime: Path, path: Path, record: LockRecord) -> tuple[LockRecord, str | None]:
    """End one lock; return what its keeper said last, and in words how it was lost, if it was. Raises TryAgain."""
    kept = LocalLock(path).is_held()
    if kept:
        _end_keeper(record)
        record = next((now for place, now in locks(runtime, record.domain) if place == path), record)
    path.unlink(missing_ok=True)
    if not kept:
        return record, f"{record}; its keeper, process {record.keeper}, has ended since"
    return record, str(record) if record.state == LOST else None


def _end_keeper(record: LockRecord) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(record.keeper)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            if not _readable(descriptor, PATIENCE_NS):
                raise TryAgain(
                    "keeper-hangs", f"its keeper, process {record.keeper}, does not end", hint="try again, or kill it"
                )
        finally:
            os.close(descriptor)


def _readable(descriptor: int, span: Span) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(span // MS))
