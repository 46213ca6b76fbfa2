"""``tenure run``: a command under leases. ``tenure lock`` and ``unlock``: a lease that a shell has."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options, open_cluster
from appliance.formats.lease import Mode
from timeagent.console import Command, Progress, instant_fields, json_line, note, print_json, report_error
from timeagent.errors import BadRequest, TenureError, TryAgain
from timeagent.units import SECOND, parse_span, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from appliance.cluster import Cluster
    from appliance.lease.client import LeaseDenied
    from appliance.session.held import Lease
    from appliance.session.session import Leases

    from ..recipes.lock import Owner
    from ..recipes.processes import ProcessTree

_HUNG_UP: Final = 128 + signal.SIGHUP
SOFTWARE: Final = 70

_RUN: Final = """\
CMD is started when the leases are held and nobody before can believe any more to hold them, and they are renewed until
CMD, and all that descends from it, has ended. Its exit code is that of CMD, 128+N where signal N ended it; 75 where the
leases were not to be had in time, 69 where no shard answered, 76 where one was lost: then CMD and its descendants have
got SIGTERM, and SIGKILL before the expiry. 127 and 126: there is no such program, or it cannot be run.

What CMD finds in its environment: TENURE_FENCE, the fencing token of the first lease, a decimal integer that only
grows: whatever receives what CMD writes should refuse a lower one than it has seen. TENURE_LEASE, that lease's name.
TENURE_EXPIRY, its expiry at the start in RFC 3339; it is renewed, and so later than that as long as CMD runs.
TENURE_FENCES, where several are held: a line NAME=FENCE for each.
"""
_LOCK: Final = """\
Prints the fence, once the lease is held. A keeper in the background renews it until `tenure unlock NAME`, or until the
shell that called, or --pid, is gone. It ends nothing: a shell that goes on after a loss is not stopped (`tenure run`
does that); unlock exits with 76 then, and whatever receives what is written should compare fences.
"""


def _add_taking(parser: argparse.ArgumentParser, purpose: str) -> None:
    modes = [str(mode) for mode in Mode]
    parser.add_argument(
        "--mode", default="X", choices=modes, help="X, or shared with others: S, IX, IS, SIX (default X)"
    )
    parser.add_argument("--wait", default="30s", metavar="SPAN", help="how long to wait (default 30s; 0: not at all)")
    parser.add_argument("--purpose", metavar="TEXT", help=f"what others see as the reason (default: {purpose})")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _RUN
    parser.add_argument("words", metavar="CMD", nargs="+", help="the command, after --, with its arguments")
    parser.add_argument(
        "--lease", metavar="NAME", action="append", required=True, help="run under it; may be repeated: all or none"
    )
    _add_taking(parser, "run, and the program's name")
    add_cluster_options(parser)


def run_run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code. Raises TryAgain, ShardUnavailable, LeaseLost, and what opening raises."""
    from ..recipes.processes import NOT_FOUND, ProcessTree, program_missing

    name = options.words[0]
    missing = program_missing(name, shutil.which)
    if missing is not None:
        why = "is not there [not-found]" if missing == NOT_FOUND else "cannot be run [not-executable]"
        note(f"tenure: {name} {why}; no lease was taken")
        return missing
    command = ProcessTree(options.words)  # while this process has no thread
    signal.signal(signal.SIGHUP, _hung_up) if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else None
    with contextlib.closing(command), open_cluster(options) as cluster:
        purpose = options.purpose or f"run {Path(name).name}"
        with _taken(cluster, options.lease, purpose, options) as leases, contextlib.closing(command):
            return _run_under(cluster, leases, command, options)


def _run_under(cluster: Cluster, leases: Leases, command: ProcessTree, options: argparse.Namespace) -> int:
    from ..recipes.processes import Signals
    from ..recipes.run import HEARD, Held, Run

    by_name = {lease.domain: lease for lease in leases}
    named = [by_name[each] for each in dict.fromkeys(options.lease)]
    with Signals(HEARD) as signals:
        for lease in leases:
            lease.on_lost(lambda _: signals.wake())
        held = Held(leases, cluster.time, cluster.policy)
        return Run(held, cluster.time, command, signals.wait, note).to_its_end(_environment(named))


def _environment(leases: Sequence[Lease]) -> dict[str, str]:
    first = leases[0]
    told = {"TENURE_LEASE": first.domain, "TENURE_FENCE": str(first.fence), "TENURE_EXPIRY": rfc3339(first.expiry_ns)}
    if len(leases) > 1:
        told["TENURE_FENCES"] = "\n".join(f"{lease.domain}={lease.fence}" for lease in leases)
    return told


@contextlib.contextmanager
def _taken(
    cluster: Cluster,
    names: Sequence[str],
    purpose: str,
    options: argparse.Namespace,
    given_up: Callable[[], bool] = lambda: False,
) -> Iterator[Leases]:
    """Hold the leases for a block; on a terminal it is shown meanwhile who has them."""
    progress = Progress("waiting, place")

    def show(denied: LeaseDenied) -> None:
        who = f"{denied.holder.node}/{denied.holder.process} ({denied.holder.purpose})"
        since, until = (f"{rfc3339(each)[11:19]}Z" for each in (denied.since_ns, denied.until_ns))
        progress.show(denied.place, f"for {denied.domain}: {who} has it since {since}, until {until} at least")

    timeout_s = parse_span(options.wait) / SECOND
    with cluster.session(purpose) as session:
        try:
            leases = session.acquire(
                *names, mode=Mode(options.mode), timeout_s=timeout_s, waiting=show, given_up=given_up
            )
        finally:
            progress.done()
        with leases:
            yield leases


def _hung_up(_number: int, _frame: object) -> None:
    raise SystemExit(_HUNG_UP)


def _add_lock(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _LOCK
    parser.add_argument("domain", metavar="NAME")
    parser.add_argument("--pid", type=int, metavar="PID", help="whose lock it is (default: the process that calls)")
    parser.add_argument(
        "--hold-if-orphaned",
        action="store_true",
        help="if its owner dies without unlocking, hold on until somebody says `unlock --force`, on this machine",
    )
    _add_taking(parser, "lock, and whose it is")
    add_cluster_options(parser)


def run_lock(options: argparse.Namespace) -> int:
    """Leave a keeper behind and return, once it has the lease or says why not."""
    from ..recipes.lock import Owner

    if options.pid is None and stat.S_ISFIFO(os.fstat(1).st_mode):
        raise BadRequest(
            "no-owner",
            "standard output is a pipe, as in $(...): who calls may be a shell that ends at once",
            hint="say whose lock it is: --pid $$",
        )
    owner = Owner(os.getppid() if options.pid is None else options.pid)
    ours, its = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    if not os.fork():  # while this process has no thread
        ours.close()
        status = SOFTWARE
        try:
            os.setsid()
            status = _keeper(options, owner, its)
        except TenureError as problem:
            status = report_error(problem)
        except BaseException:  # noqa: BLE001 - whatever it is, it is told, and this process ends here
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                its.sendall(str(status).encode())
            os._exit(status)
    its.close()
    with ours, ours.makefile() as told:
        said = told.read()
    code, _, text = said.partition("\n")
    sys.stdout.write(text)
    return int(code) if code else SOFTWARE


def _keeper(options: argparse.Namespace, owner: Owner, caller: socket.socket) -> int:
    """Take the lease, tell who called, and keep it to the end of the lock. Gives up where the caller has gone."""
    from ..recipes.lock import Lock, locks
    from ..recipes.processes import Signals

    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    whose = f"{owner.seen.name}/{owner.seen.pid}"
    purpose = options.purpose or f"lock of {whose}" + ", held on if that dies" * options.hold_if_orphaned

    def left() -> bool:
        return owner.gone() or bool(select.select([caller], [], [], 0)[0])

    with open_cluster(options) as cluster:
        runtime = cluster.routes.runtime
        try:
            with (
                _taken(cluster, [options.domain], purpose, options, left) as leases,
                Signals([signal.SIGTERM]) as heard,
            ):
                lock = Lock(runtime, leases, owner, cluster.time)
                leases[0].on_lost(lambda _: heard.wake())
                caller.sendall(f"0\n{_held_text(leases[0], options)}".encode())
                caller.close()
                os.dup2(nowhere, 2)
                lock.keep(heard.wait, hold_on=options.hold_if_orphaned)
        except TryAgain:
            for _, record in locks(runtime, options.domain):
                note(f"tenure: {record}")
            raise
    return 0


def _held_text(lease: Lease, options: argparse.Namespace) -> str:
    if not options.json:
        return f"{lease.fence}\n"
    fields = {"domain": lease.domain, "mode": lease.mode, "fence": lease.fence}
    return json_line("tenure.held", fields | instant_fields("expiry", lease.expiry_ns))


def _add_unlock(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("domain", metavar="NAME")
    parser.add_argument("--pid", type=int, metavar="PID", help="whose lock it is (default: the shell that calls)")
    parser.add_argument("--force", action="store_true", help="also another's of this user, or one whose owner has died")
    add_cluster_options(parser)


def run_unlock(options: argparse.Namespace) -> int:
    """Give a lock back, once its keeper has ended. Raises BadRequest, LeaseLost, TryAgain."""
    from ..node.runtime import runtime_of
    from ..recipes.lock import unlock

    with open_cluster(options) as cluster:
        runtime = runtime_of(cluster.settings, cluster.registers.cluster_id)
        record = unlock(runtime, options.domain, options.pid or os.getpid(), force=options.force)
    if options.json:
        fields = {"domain": record.domain, "fence": record.fence, "owner": record.owner, "state": record.state}
        print_json("tenure.unlocked", fields)
    return 0


COMMANDS: Final = {
    "run": Command("Run a command under leases; nothing of it outlives them.", _add_run, run_run),
    "lock": Command("Take a lease for a shell; a keeper renews it until `unlock`.", _add_lock, run_lock),
    "unlock": Command("Give back what `lock` took.", _add_unlock, run_unlock),
}
