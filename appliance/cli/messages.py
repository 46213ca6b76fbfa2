"""``tenure publish``: messages into a log, one a line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options, open_cluster
from appliance.formats.birth import BagKind
from timeagent.console import Command, Progress, counted, note, print_json
from timeagent.errors import BadRequest, TenureError
from timeagent.units import SECOND, parse_span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from appliance.bag.outcome import Outcome
    from appliance.cluster import Cluster
    from appliance.session.session import Session

BATCH_MESSAGES: Final = 4096
BATCH_BYTES: Final = 4 * 1024 * 1024
EXIT_NO: Final = 1
EXIT_UNKNOWN: Final = 4


def _add_publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="the log; made when it does not exist")
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="one message a line; - is standard input")
    parser.add_argument(
        "--lease", metavar="NAME", action="append", required=True, help="the domain to write under; may be repeated"
    )
    parser.add_argument("--kind", choices=tuple(BagKind), help="the kind of a log that this makes; default: maildir")
    parser.add_argument("--wait", metavar="SPAN", default="30s", help="how long to wait for the leases (default 30s)")
    parser.add_argument("--purpose", metavar="TEXT", default="publish", help="what others see as the reason")
    add_cluster_options(parser)


def _batches(stream: BinaryIO) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in stream:
        payload = line.removesuffix(b"\n")
        if batch and (len(batch) == BATCH_MESSAGES or size + len(payload) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(payload)
        size += len(payload)
    if batch:
        yield batch


def run_publish(options: argparse.Namespace) -> int:
    """Publish each line under the named leases, in batches; stop at the first that is not committed."""
    try:
        stream = sys.stdin.buffer if options.file == "-" else Path(options.file).open("rb")  # noqa: SIM115 - below
    except OSError as problem:
        raise BadRequest(
            "no-such-file",
            f"cannot read {options.file}: {problem.strerror}",
            hint="name a file, or - for standard input",
        ) from None
    with stream, open_cluster(options) as cluster, cluster.session(options.purpose) as session:
        return _publish(cluster, session, stream, options)


def _publish(cluster: Cluster, session: Session, stream: BinaryIO, options: argparse.Namespace) -> int:
    from appliance.bag.outcome import Committed, Unknown
    from appliance.formats.frame import check_payloads

    done = 0
    outcome: Outcome | None = None
    progress = Progress("published", _lines(stream))
    try:
        with session.acquire(*options.lease, timeout_s=parse_span(options.wait) / SECOND, record_only=True) as leases:
            for batch in _batches(stream):
                if options.kind and not done:
                    check_payloads(batch)  # what nobody can publish makes no log
                    cluster.create_log(options.log, options.kind)
                outcome = session.publish(options.log, batch, under=leases)
                if not isinstance(outcome, Committed):
                    break
                done += len(batch)
                progress.show(done)
    except (TenureError, KeyboardInterrupt):
        if done:
            note(f"tenure: {counted(done, 'message')} committed to {options.log} before")
        raise
    finally:
        progress.done()
    committed = outcome is None or isinstance(outcome, Committed)
    if options.json:
        name = "Committed" if outcome is None else type(outcome).__name__
        reason = None if outcome is None or isinstance(outcome, Committed) else outcome.reason
        print_json("tenure.publish", {"log": options.log, "committed": done, "outcome": name, "reason": reason})
    else:
        note(f"tenure: {counted(done, 'message')} committed to {options.log}")
    if committed:
        return 0
    assert outcome is not None
    assert not isinstance(outcome, Committed)
    unknown = isinstance(outcome, Unknown)
    note(f"tenure: the next batch is {'of unknown outcome' if unknown else 'not committed'}: {outcome.reason}")
    return EXIT_UNKNOWN if unknown else EXIT_NO


def _lines(stream: BinaryIO) -> int | None:
    """Return how many lines there will be, for a progress bar; None where nobody sees one or nobody can know."""
    if not sys.stderr.isatty() or not stream.seekable():
        return None
    here = stream.tell()
    lines = sum(1 for _ in stream)
    stream.seek(here)
    return lines


COMMANDS: Final = {
    "publish": Command("Write messages to a log under leases.", _add_publish, run_publish),
}
