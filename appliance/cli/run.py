"""``tenure run``: a command under leases. ``tenure lock`` and ``unlock``: a lease that a shell has."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.console import (
    Progress,
    argument,
    command,
    epilog,
    instant_fields,
    note,
    present,
    printable,
    report_error,
)
from timeagent.errors import SOFTWARE, BadRequest, BadTime, TenureError, TryAgain
from timeagent.units import SECOND, parse_span, rfc3339

from ..formats.lease import Mode
from ..node.runtime import runtime_of
from ..recipes import processes
from ..recipes.election import Election
from ..recipes.exclusion import Hold, Semaphore
from ..recipes.lock import Lock, Owner, locks, unlock
from ..recipes.quick_run import WAIT
from ..session.asking import waiting_text
from ..session.held import Lease
from ..session.renewal import grace_ns
from .opening import add_cluster_options, cluster_command, open_cluster

if TYPE_CHECKING:  # what a cluster loads may begin threads: it is loaded behind the forks here
    from timeagent.clock import Clock
    from timeagent.units import Instant, Span

    from ..cluster import Cluster
    from ..formats.policy import PolicyNumbers
    from ..session.asking import Leases
    from ..session.session import Session

_DIGITS_MAX: Final = 18
"""So many digits a semaphore's number may have to be read as one at all."""


class Held:
    """Leases of one acquire as their holder reckons with them. Asks only the clock."""

    def __init__(self, leases: Sequence[Lease], clock: Clock, policy: PolicyNumbers) -> None:
        """Reckon from now on. Raises BadTime."""
        self._leases = leases
        self._clock = clock
        self._policy = policy
        self._counted = self._expiry_ns(), clock.now().latest, clock.boot_ns()

    def _expiry_ns(self) -> Instant:
        return min(lease.usable_until_ns(self._policy.holder_margin_ns) for lease in self._leases)

    def left_ns(self) -> Span:
        """Return how long they may still be used, were none renewed any more.

        Between two renewals time is taken to pass at least as fast as the boot clock: neither a clock that is set back
        nor one that has no bound just now makes a lease longer.
        """
        expiry, (before, latest, boot) = self._expiry_ns(), self._counted
        counted = latest + self._clock.boot_ns() - boot
        try:
            now = self._clock.now().latest
        except BadTime:
            return expiry - counted
        if expiry == before:
            return expiry - max(now, counted)
        self._counted = expiry, now, self._clock.boot_ns()
        return expiry - now

    def grace_ns(self) -> Span:
        term = min(*(lease.term_ns for lease in self._leases), self._policy.lease_term_max_ns)
        return grace_ns(term, self._policy)

    def lost(self) -> str | None:
        """Say which lease is over against its holder's will, and why."""
        return next(filter(None, (lease.over_text() for lease in self._leases)), None)

    def in_doubt(self) -> bool:
        return any(lease.loss is not None and lease.loss.in_doubt for lease in self._leases)


def _run(options: Namespace) -> int:
    """Run the command; return its exit code. Raises TryAgain, ShardUnavailable, LeaseLost, and what opening raises."""
    name = options.words[0]
    missing = processes.program_missing(name)
    if missing is not None:
        there = missing == processes.NOT_EXECUTABLE
        why = "cannot be run [not-executable]" if there else "is not there [not-found]"
        note(f"tenure: {name} {why}; no lease was taken")
        note(f"  way out: {'chmod +x, or name what runs it: -- sh FILE' if there else 'see whether the path is right'}")
        return missing
    tree = processes.ProcessTree(options.words)  # while this process has no second thread
    came: list[int] = []

    def end(number: int, _frame: object) -> None:
        came.append(number)  # a callback or a destructor that runs just now may swallow what is raised
        raise _ended_by(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as of nohup
            signal.signal(number, end)
    with tree, open_cluster(options) as cluster:
        try:
            asked = _asked(options)
            own = cluster.settings.node if options.elect is not None else processes.purpose_of("run", Path(name).name)
            purpose = options.purpose or own
            with _held(cluster, asked, purpose, options, lambda: bool(came)) as leases, tree:
                if options.lease is not None:
                    leases.sort(key=lambda lease: options.lease.index(lease.domain))
                return _run_under(cluster, leases, tree, came)
        except TryAgain:
            if came:
                raise _ended_by(came[0]) from None
            raise


type Asking = Callable[[Session], Callable[..., Leases | Hold]]
"""What a session is asked for leases by."""


def _asked(options: Namespace) -> Asking:
    """Return what asks for that which the command is to be run under. Raises BadRequest."""
    if sum(each is not None for each in (options.lease, options.semaphore, options.elect)) != 1:
        raise BadRequest("no-lease", "run takes --lease, --semaphore or --elect", hint="one of the three")
    if options.lease is not None:
        return _all_of(options.lease, options)
    if options.mode is not None:
        raise BadRequest("no-mode", "--mode is that of a --lease", hint="leave it out: slot and lead are one's own")
    if options.elect is not None:
        return lambda session: Election(session, options.elect).acquire
    name, _, size = options.semaphore.rpartition(":")
    if not name or not size.isascii() or not size.isdecimal() or len(size) > _DIGITS_MAX:
        raise BadRequest("bad-semaphore", f"{options.semaphore!r} is no semaphore", hint="NAME:N, such as licence:4")
    return lambda session: Semaphore(session, name, int(size)).acquire


def _all_of(names: Sequence[str], options: Namespace) -> Asking:
    return lambda session: partial(session.acquire, *names, mode=Mode(options.mode or Mode.X))


@contextlib.contextmanager
def _held(
    cluster: Cluster, asked: Asking, purpose: str, options: Namespace, given_up: Callable[[], bool]
) -> Iterator[list[Lease]]:
    """Hold what is asked for, for a block; a terminal shows who is waited for. Raises as ``Session.acquire``."""
    with cluster.session(purpose) as session:
        with Progress("waiting, place") as progress:
            held = asked(session)(
                timeout_s=parse_span(options.wait) / SECOND,
                waiting=lambda denied: progress.show(denied.place, waiting_text(denied)),
                given_up=given_up,
            )
        with held:
            yield [held.lease] if isinstance(held, Hold) else list(held)


def _run_under(cluster: Cluster, leases: Sequence[Lease], tree: processes.ProcessTree, came: Sequence[int]) -> int:
    with processes.Signals(processes.HEARD) as signals:
        if came:
            raise _ended_by(came[0])
        for lease in leases:
            lease.on_lost(lambda _: signals.wake())
        held = Held(leases, cluster.time, cluster.policy)
        run = processes.Run(held, cluster.time, tree, signals.wait, processes.note_at_once)
        return run.to_its_end(_environment(leases))


def _environment(leases: Sequence[Lease]) -> dict[str, str]:
    first = leases[0]
    told = {"TENURE_LEASE": first.domain, "TENURE_FENCE": str(first.fence), "TENURE_EXPIRY": rfc3339(first.expiry_ns)}
    if len(leases) > 1:
        told["TENURE_FENCES"] = "\n".join(f"{lease.domain}={lease.fence}" for lease in leases)
    return told


def _ended_by(number: int) -> BaseException:
    """Return what ends this process for a signal, before the command has begun."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(processes.SIGNALLED + number)


def _lock(options: Namespace) -> int:
    """Leave a keeper behind and return, once it has the lease or has said why not."""
    if options.pid is None and stat.S_ISFIFO(os.fstat(1).st_mode):
        what = "standard output is a pipe, as in $(...): who calls may be a shell that ends at once"
        raise BadRequest("no-owner", what, hint="say whose lock it is: --pid $$")
    owner = Owner(os.getppid() if options.pid is None else options.pid)
    ours, its = socket.socketpair()
    sys.stderr.flush()
    if not os.fork():  # while this process has no second thread
        ours.close()
        _be_the_keeper(options, owner, its)
    its.close()
    with ours, ours.makefile("rb") as told:
        said = told.read()
    code, _, fields = said.partition(b"\n")
    if fields:
        held = msgspec.json.decode(fields)
        present(options, "tenure.held", held, held["fence"])
    return int(code or SOFTWARE)


def _be_the_keeper(options: Namespace, owner: Owner, caller: socket.socket) -> None:
    """Keep the lock, in a process that was forked for it, and end. What hinders it is said, and its code told."""
    code = SOFTWARE
    try:
        os.setsid()
        code = _keep(options, owner, caller)
    except TenureError as problem:
        code = report_error(problem)
    except BaseException:  # noqa: BLE001 - whatever it is, it is said, and nothing of the caller's is run here
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            caller.sendall(str(code).encode())
        os._exit(code)


def _keep(options: Namespace, owner: Owner, caller: socket.socket) -> int:
    """Take the lease, tell who called, and keep it to the end of the lock. Gives up where the caller has gone."""
    processes.close_all_but(caller.fileno(), owner.descriptor)  # who reads a pipe of the caller's waits for its end
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    whose = f"{owner.seen.name}/{owner.seen.pid}" + ", held on if that dies" * options.hold_if_orphaned
    purpose = options.purpose or processes.purpose_of("lock of", whose)

    def gone() -> bool:
        return owner.gone() or bool(select.select([caller], [], [], 0)[0])

    with open_cluster(options) as cluster:
        runtime = cluster.routes.runtime
        try:
            with (
                _held(cluster, _all_of([options.domain], options), purpose, options, gone) as (lease,),
                processes.Signals([signal.SIGTERM]) as signals,
            ):
                lock = Lock(runtime, lease, owner, cluster.time)
                lease.on_lost(lambda _: signals.wake())
                fields = {"domain": lease.domain, "mode": lease.mode, "fence": str(lease.fence)}
                told = msgspec.json.encode(fields | instant_fields("expiry", lease.expiry_ns))
                try:
                    caller.sendall(b"0\n" + told)
                except OSError:  # it has gone meanwhile, and has no lock
                    lock.forget()
                    return 0
                caller.close()
                os.dup2(nowhere, 2)
                lock.keep(signals.wait, hold_on=options.hold_if_orphaned)
        except TryAgain:
            for _, record in locks(runtime, options.domain):
                note(f"tenure: {printable(str(record))}")
            raise
    return 0


def _unlock(cluster: Cluster, options: Namespace) -> int:
    """Give a lock back, once its keeper has ended. Raises BadRequest, LeaseLost, TryAgain."""
    runtime = runtime_of(cluster.settings, cluster.registers.cluster_id)
    record = unlock(runtime, options.domain, options.pid or os.getpid(), force=options.force)
    fields = {"domain": record.domain, "fence": str(record.fence), "owner": record.owner, "state": record.state}
    return present(options, "tenure.unlocked", fields)


_RUN: Final = """\
CMD is started when the leases are held and nobody before can believe any more to hold them, and they are renewed until
CMD, and all that descends from it, has ended. Its exit code is that of CMD, 128+N where signal N ended it; 75 where the
leases were not to be had in time, 69 where no shard answered, 76 where one was lost: then CMD and its descendants have
got SIGTERM, and SIGKILL before the expiry. 127 and 126: there is no such program, or it cannot be run.

What CMD finds in its environment: TENURE_FENCE, the fencing token of the first lease, a decimal integer that only
grows: whatever receives what CMD writes should refuse a lower one than it has seen. TENURE_LEASE, that lease's name.
TENURE_EXPIRY, its expiry at the start in RFC 3339; it is renewed, and so later than that as long as CMD runs.
TENURE_FENCES, where several are held: a line NAME=FENCE for each.

Of an election the fence is the epoch, and the candidate's name is --purpose, or else the node's. SIGTERM goes to CMD as
ever, and when that has ended the next candidate leads, at once.

With --quick, and nothing beside it but one --lease, --mode X or S, and --wait, this node's daemon has the lease and
hands it to one CMD of the machine after another, so that each starts in a tenth of the time. CMD ends with that daemon
then, as if the lease were lost, also where that is only restarted. Where no daemon runs, CMD has a lease of its own, as
ever.
"""
_LOCK: Final = """\
Prints the fence, once the lease is held. A keeper in the background renews it until `tenure unlock NAME`, or until the
process that called, or --pid, is gone. It ends nothing: a shell that goes on after a loss is not stopped (`tenure run`
does that); unlock exits with 76 then, and whatever receives what is written should compare fences.
"""
_TAKING: Final = (
    argument("--mode", "X, or shared with others: S, IX, IS, SIX (default X)", choices=[str(mode) for mode in Mode]),
    argument("--wait SPAN", f"how long to wait (default {WAIT}; 0: not at all)", default=WAIT),
    argument("--purpose TEXT", "what others see as the reason (default: what it is for)"),
)
_NAME: Final = argument("domain NAME")
_PID: Final = argument("--pid PID", "whose lock it is (default: the process that calls)", type=int)

COMMANDS: Final = {
    "run": command(
        "Run a command under leases; nothing of it outlives them.",
        _run,
        argument("words CMD", "the command, after --, with its arguments", nargs="+"),
        argument("--lease NAME", "may be repeated: all or none", action="append"),
        argument("--semaphore NAME:N", "at most N at a time, in place of --lease; N is the same for all"),
        argument("--elect NAME", "as the leader of an election, in place of --lease; see --purpose"),
        argument("--quick", "by a lease of the node's daemon, and no longer than that: see below"),
        *_TAKING,
        add_cluster_options,
        epilog(_RUN),
    ),
    "lock": command(
        "Take a lease for a shell; a keeper renews it until `unlock`.",
        _lock,
        _NAME,
        _PID,
        argument(
            "--hold-if-orphaned",
            "if its owner dies without unlocking, hold on until somebody says `unlock --force`, on this machine",
        ),
        *_TAKING,
        add_cluster_options,
        epilog(_LOCK),
    ),
    "unlock": cluster_command(
        "Give back what `lock` took.",
        _unlock,
        _NAME,
        _PID,
        argument("--force", "also another's of this user, or one whose owner has died"),
    ),
}
