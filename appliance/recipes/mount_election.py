"""``MountElection``: one leader at a time on the shared directory alone, without a lease and without a shard.

An election is a chain of numbered records in ``elections/<name>/``. Each is linked once, and the first wins; each names
a leader and the instant until which it leads at most. docs/recipes/election.md says why two never lead at once. The
steps, in their order:

1. **look** afresh, and read the newest record.
2. **wait** until its instant is *surely past* by one's own clock, its bound included; or until it says that its leader
   has resigned, and does not name somebody else for the time being.
3. **link** the next number, and look afresh: it counts only if it is the newest (``lease/ceiling.py``).
4. **lead** while it is *surely before* the instant of the newest record of one's own that was linked and seen.
5. **extend** by the next number, again and again; **resign** by the next number, once nothing is done any more.

The epoch is the number of a leader's first record. Who waits looks at the directory a few times a second; there is no
queue, and who comes first after a leader's end is chance. ``Election``, over a lease, has one.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from threading import Event, Lock, RLock, Thread
from typing import Final, Self

from msgspec.structs import replace

from appliance.cluster import Cluster
from appliance.formats.framing import Kind
from appliance.formats.names import check_election, check_purpose
from appliance.formats.stamped import sign
from appliance.lease.ceiling import RECORDS_KEPT, ChainPort, InDoubt, Overtaken, link_record, look_for, newest_of
from appliance.node.records import StoredChain
from timeagent.clock import NodeTime
from timeagent.errors import (
    BadRequest,
    BadTime,
    Environment,
    LeaseLost,
    TenureError,
    TryAgain,
    check_callable,
    check_type,
)
from timeagent.keys import KeyInUse, Signer
from timeagent.units import MS, SECOND, Seconds, Span, TimeInterval, rfc3339, span_of

from ..bag.ports import Storage
from ..formats.chains import ELECTIONS, EpochKind, EpochRecord, opened_epoch
from ..node.runtime import begin
from .election import Leader
from .exclusion import PATIENCE_S, GivenUp

LOOK_NS: Final = 250 * MS
"""About how often who waits looks at the directory."""
PRUNED_PER_LINK: Final = 8

_log = logging.getLogger(__name__)


class MountElection:
    """One election, as one candidate takes part in it."""

    def __init__(  # noqa: PLR0913 - the ports, and who takes part in what
        self,
        storage: Storage,
        time: NodeTime,
        signer: Signer | KeyInUse,
        of: tuple[bytes, str],
        randomness: random.Random,
        name: str,
        candidate: str,
        term_ns: Span,
        *,
        background: bool = True,
    ) -> None:
        """Touch nothing yet. ``of``: cluster and node. ``background``: a thread extends. Use ``MountElection.on``."""
        self.candidate = check_purpose(candidate) or of[1]
        self.name = check_election(name)
        self.time = time
        self.term_ns = term_ns
        self.background = background
        self._of = of
        self._signer = signer
        self._random = randomness
        self._own: MountLeadership | None = None
        self._check_open: Callable[[], object] = lambda: None
        self.chain: ChainPort = StoredChain(storage, f"{ELECTIONS}/{name}", self._opened)

    @classmethod
    def on(cls, cluster: Cluster, name: str, candidate: str = "", *, term_s: Seconds | None = None) -> Self:
        """Take part in an election of a cluster. ``candidate``: left out, the node. ``term_s``: as the policy's leases.

        The candidate of a name is whoever gives it: two of one name are two candidates. Raises BadRequest.
        """
        check_type(Cluster, cluster=cluster)
        check_type(str, name=name, candidate=candidate)
        term = cluster.policy.lease_term_max_ns if term_s is None else span_of(term_s, "term_s")
        if term < 4 * cluster.policy.radius_ns_max:
            raise BadRequest("term-too-short", "clocks may be as wrong as that", hint="ask for a longer term")
        of = cluster.registers.cluster_id, cluster.settings.node
        election = cls(
            cluster.context.storage, cluster.time, cluster.keys.witness, of, cluster.chance(), name, candidate, term
        )
        election._check_open = cluster.check_open
        return election

    def campaign(self, *, timeout_s: Seconds = PATIENCE_S, given_up: GivenUp = lambda: False) -> MountLeadership:
        """Return when this candidate leads. Blocks up to the time-out, then raises TryAgain. Touches the mount.

        ``given_up``: asked meanwhile; once it is true this ends as if the time-out had come. Raises BadTime, Damaged;
        BadRequest, code ``held-here``, where it leads already, and once its cluster is closed; Environment where the
        mount fails until then.
        """
        check_callable(given_up=given_up)
        if self._own is not None and not self._own.over:
            raise BadRequest("held-here", f"{self.candidate!r} leads already", hint="an election for each candidate")
        until = self.time.boot_ns() + span_of(timeout_s, "timeout_s")
        incarnation = self._random.randbytes(8)
        pending: tuple[EpochRecord, bytes] | None = None
        while True:
            self._check_open()
            try:
                pending = pending or self._next(incarnation)
                seen = None if pending is None else self.link(*pending)
            except (Environment, TryAgain):
                if self.time.boot_ns() >= until:
                    raise
                seen = InDoubt("the directory cannot be read")
            if pending is not None and isinstance(seen, list) and self.time.now().surely_before(pending[0].until_ns):
                self._own = MountLeadership(self, pending[0])
                return self._own
            if not isinstance(seen, InDoubt):
                pending = None  # another was faster, or the mount so slow that it is over: look anew
            if self.time.boot_ns() >= until or given_up():
                raise TryAgain("busy", f"another leads {self.name!r}: {self._shown()}", hint="allow more time")
            self.time.sleep(self._random.randint(LOOK_NS // 2, LOOK_NS))

    def _next(self, incarnation: bytes) -> tuple[EpochRecord, bytes] | None:
        """Return the record by which this candidate may begin now, or None: steps 1 and 2."""
        newest, now = self.newest(), self.time.now()
        if not self._may_follow(newest, now):
            return None
        number = 1 if newest is None else newest.number + 1
        return self.signed(
            EpochRecord(
                cluster_id=self._of[0],
                election=self.name,
                number=number,
                epoch=number,
                candidate=self.candidate,
                node=self._of[1],
                incarnation=incarnation,
                since_ns=now.midpoint,
                until_ns=now.latest + self.term_ns,
                kind=EpochKind.LEADS,
                successor="",
                time=b"",
            )
        )

    def leader(self) -> Leader | None:
        """Return who leads, by the newest record. Touches the mount. Raises BadTime, Damaged, Environment."""
        newest = self.newest()
        if newest is None or newest.kind is EpochKind.RESIGNED or self.time.now().surely_past(newest.until_ns):
            return None
        return Leader(newest.candidate, newest.epoch, newest.node, newest.since_ns, newest.until_ns)

    def newest(self) -> EpochRecord | None:
        """Return the newest record, looked at afresh; None: nobody ever led. Raises Damaged, Environment, TryAgain."""
        found = newest_of(self.chain)
        return None if found is None else self._found(*found)

    def follower(self, number: int) -> EpochRecord | None:
        """Return the record that follows a number, looked at afresh; None: there is none yet, or it cannot be read."""
        try:
            numbers = self.chain.list_afresh()
            data = self.chain.read(number + 1) if numbers and numbers[-1] > number else None
        except (Environment, TryAgain):
            return None
        return None if data is None else self._found(number + 1, data)

    def _found(self, number: int, data: bytes) -> EpochRecord:
        return self._opened(data, f"record {number} of the election {self.name!r}", number)

    def _opened(self, data: bytes, where: str, number: int) -> EpochRecord:
        return opened_epoch(data, where, self._of[0], self.name, number)

    def signed(self, record: EpochRecord) -> tuple[EpochRecord, bytes]:
        """Return a record of this candidate with its time, and its file. Raises BadTime."""
        token = self.time.token()
        record = replace(record, time=token.encode())
        return record, sign(Kind.EPOCH, record, self._signer.signer_at(token.midpoint_ns))

    def link(self, record: EpochRecord, data: bytes) -> list[int] | Overtaken | InDoubt:
        """Link a record, and return a listing in which it is the newest: step 3."""
        return link_record(self.chain, record.number, data) or look_for(self.chain, record.number)

    def _may_follow(self, newest: EpochRecord | None, now: TimeInterval) -> bool:
        """Whether the next number may be linked: step 2."""
        if newest is None:
            return True
        if newest.kind is EpochKind.RESIGNED and newest.successor in ("", self.candidate):
            return True
        return now.surely_past(newest.until_ns)

    def _shown(self) -> str:
        leader = self.leader()
        return "nobody now" if leader is None else f"{leader.candidate} until {rfc3339(leader.until_ns)} at least"


class MountLeadership:
    """The lead, for one epoch. Resigned at the end of a ``with`` block. Safe to share between threads."""

    def __init__(self, election: MountElection, first: EpochRecord) -> None:
        """Lead, by a record that is linked and seen, and have a thread extend it. Made by ``campaign``."""
        self._election = election
        self._newest = first
        self._pending: tuple[EpochRecord, bytes] | None = None
        self._lock = RLock()
        self._end = Event()
        self._ending = Lock()
        """Whoever finds that it is over, or listens for that, has it for a moment: each listener is told once."""
        self._over = self._loss = ""
        self._listeners: list[Callable[[str], object]] = []
        self._process = os.getpid()
        if election.background:
            begin(Thread(target=self._keep, name="tenure-election", daemon=True))

    @property
    def epoch(self) -> int:
        """The number of this epoch: every later leader has a higher one."""
        return self._newest.epoch

    @property
    def over(self) -> bool:
        """Whether it was resigned or lost. False says nothing of the clock: ``check`` does."""
        return bool(self._over)

    def check(self, *, margin_s: Seconds = 0) -> None:
        """Raise LeaseLost unless it surely leads now, with this much to spare. Asks only the clock.

        Raises BadTime, and BadRequest in a child after fork.
        """
        self._refuse_child()
        margin_ns, now = span_of(margin_s, "margin_s"), self._election.time.now()
        if not now.surely_before(self._newest.until_ns):
            self._lose("not extended in time")
        if self._over or not now.surely_before(self._newest.until_ns - margin_ns):
            raise LeaseLost(
                "epoch-over",
                f"epoch {self.epoch} of {self._election.name!r} is led until {rfc3339(self._newest.until_ns)}: "
                + (self._over or "for less than is asked for"),
                hint="campaign again, and see what another leader did meanwhile",
            )

    def act[R](self, do: Callable[[], R], *, margin_s: Seconds = 0) -> R:
        """Check, then do it, and return what comes of it. Raises LeaseLost, and then nothing was done."""
        check_callable(do=do)
        self.check(margin_s=margin_s)
        return do()

    def on_lost(self, listener: Callable[[str], object]) -> None:
        """Have a function called, once, with the reason, if the lead is lost: at once, if it is. Not if it is resigned.

        It is called in the thread that finds out.
        """
        check_callable(listener=listener)
        with self._ending:
            loss = self._loss
            if not loss:
                self._listeners.append(listener)
        if loss:
            self._tell(listener)

    def extend(self) -> None:
        """Lead on by the next record: step 5. Touches the mount. A thread does so unasked.

        Raises BadTime, and BadRequest in a child after fork.
        """
        self._refuse_child()
        with self._lock:
            if self._over:
                return
            election, now = self._election, self._election.time.now()
            if not now.surely_before(self._newest.until_ns):
                self._lose("not extended in time")
                return
            if self._pending is None:
                before = self._newest
                until = max(before.until_ns, now.latest + election.term_ns)
                self._pending = election.signed(replace(before, number=before.number + 1, until_ns=until))
            self._link()

    def resign(self, *, to: str | None = None, timeout_s: Seconds = 10) -> bool:
        """Lead no more. Return whether that is in the record: else the others wait for the end of the last one.

        ``to``: only that candidate may follow within the time-out; return whether it led within that. Blocks so long.
        Idempotent. Touches the mount. In a child after fork: nothing, and False. Raises BadRequest for what is no name:
        then the lead is kept.
        """
        if to is not None:
            check_purpose(to)  # before anything: a record cannot hold what is no name of a candidate
        patience_ns = span_of(timeout_s, "timeout_s")
        if self._process != os.getpid():
            return False  # its parent leads on; and the lock may be that of a thread that is not here
        election = self._election
        with self._lock:
            with self._ending:
                if self._over:
                    return False
                self._over = "resigned"  # before the record: nothing is begun any more once another may follow
            self._end.set()
            if self._pending is not None:
                self._link()
            if self._pending is not None:
                return False
            before = self._newest
            try:
                until = 0 if to is None else election.time.now().latest + patience_ns
                resigned_by = replace(
                    before, number=before.number + 1, until_ns=until, kind=EpochKind.RESIGNED, successor=to or ""
                )
                self._pending = election.signed(resigned_by)
            except BadTime as problem:  # no record is signed without a time
                _log.warning("epoch-not-resigned election=%s reason=%s", election.name, problem.message)
                return False
            self._link()
            resigned = self._pending is None
        until_boot = election.time.boot_ns() + patience_ns
        while resigned and to is not None and election.time.boot_ns() < until_boot:
            follower = election.follower(self._newest.number)
            if follower is not None:
                return follower.candidate == to
            election.time.sleep(LOOK_NS // 2)
        return resigned and to is None

    def _refuse_child(self) -> None:
        if self._process != os.getpid():
            hint = "open the cluster in the child, and campaign there"
            raise BadRequest("forked", f"process {self._process} leads, not its child", hint=hint)

    def _link(self) -> None:
        """Link what is pending: then it is the newest; or the lead is lost; or it stays pending."""
        assert self._pending is not None
        record, data = self._pending
        seen = self._election.link(record, data)
        if isinstance(seen, Overtaken):
            self._lose(seen.reason)
        elif not isinstance(seen, InDoubt):
            self._newest, self._pending = record, None
            try:
                for number in [each for each in seen if each <= record.number - RECORDS_KEPT][:PRUNED_PER_LINK]:
                    self._election.chain.unlink(number)
            except TenureError as problem:  # the next link tries again
                _log.info("epoch-not-pruned election=%s reason=%s", self._election.name, problem.message)

    def _lose(self, why: str) -> None:
        with self._ending:
            if self._over:
                return
            self._over = self._loss = why
        self._end.set()
        for listener in self._listeners:
            self._tell(listener)

    def _tell(self, listener: Callable[[str], object]) -> None:
        try:
            listener(self._loss)
        except Exception:  # noqa: BLE001 - whatever an application's function raises
            _log.exception("lost-listener-failed election=%s", self._election.name)

    def _keep(self) -> None:
        while not self._end.wait(self._election.term_ns / 3 / SECOND):
            try:
                self.extend()
            except TenureError as problem:
                _log.warning("epoch-not-extended election=%s reason=%s", self._election.name, problem.message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.resign()
