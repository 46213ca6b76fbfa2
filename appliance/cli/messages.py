"""``leasehold publish`` and ``leasehold read``: messages in and out of a log."""

from __future__ import annotations

import argparse
import base64
import sys
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options, open_cluster
from timeagent.console import Command, Progress, counted, instant_fields, note, print_json
from timeagent.errors import BadRequest, LeaseholdError
from timeagent.units import parse_instant, parse_span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from appliance.bag.outcome import Outcome
    from appliance.bag.reader import Message
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
    parser.add_argument("--wait", metavar="SPAN", default="30s", help="how long to wait for the leases")
    parser.add_argument("--purpose", metavar="TEXT", default="publish", help="what others see as the reason")
    add_cluster_options(parser)


def _add_read(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG")
    parser.add_argument("--level", choices=("settled", "latest"), default="settled", help="settled is final")
    parser.add_argument("--after", metavar="T", help="only timestamps above this instant")
    parser.add_argument("--until", metavar="T", help="only timestamps up to this instant")
    parser.add_argument("--settle", action="store_true", help="first wait until everything up to now is final")
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
        stream = sys.stdin.buffer if options.file == "-" else open(options.file, "rb")  # noqa: SIM115, PTH123
    except OSError as problem:
        raise BadRequest(
            "no-such-file",
            f"cannot read {options.file}: {problem.strerror}",
            hint="name a file, or - for standard input",
        ) from None
    with stream, open_cluster(options) as cluster, cluster.session(options.purpose) as session:
        return _publish(session, stream, options)


def _publish(session: Session, stream: BinaryIO, options: argparse.Namespace) -> int:
    from appliance.bag.outcome import Committed, Unknown

    done = 0
    outcome: Outcome | None = None
    progress = Progress("published")
    try:
        with session.acquire(*options.lease, timeout_ns=parse_span(options.wait)) as leases:
            for batch in _batches(stream):
                outcome = session.publish(options.log, batch, under=leases)
                if not isinstance(outcome, Committed):
                    break
                done += len(batch)
                progress.show(done)
    except (LeaseholdError, KeyboardInterrupt):
        if done:
            note(f"leasehold: {counted(done, 'message')} committed to {options.log} before")
        raise
    finally:
        progress.done()
    committed = outcome is None or isinstance(outcome, Committed)
    if options.json:
        name = "Committed" if outcome is None else type(outcome).__name__
        reason = None if outcome is None or isinstance(outcome, Committed) else outcome.reason
        print_json("leasehold.publish", {"log": options.log, "committed": done, "outcome": name, "reason": reason})
    else:
        note(f"leasehold: {counted(done, 'message')} committed to {options.log}")
    if committed:
        return 0
    assert outcome is not None
    assert not isinstance(outcome, Committed)
    unknown = isinstance(outcome, Unknown)
    note(f"leasehold: the next batch is {'of unknown outcome' if unknown else 'not committed'}: {outcome.reason}")
    return EXIT_UNKNOWN if unknown else EXIT_NO


def run_read(options: argparse.Namespace) -> int:
    """Print a log's messages, one a line; with --json one object a line."""
    after = parse_instant(options.after) if options.after else 0
    until = parse_instant(options.until) if options.until else None
    with open_cluster(options) as cluster:
        if options.settle:
            cluster.settle(options.log, cluster.time.now().latest)
        out = sys.stdout.buffer
        for message in cluster.read(options.log, level=options.level, after_ns=after, until_ns=until):
            if options.json:
                print_json("leasehold.message", message_fields(message))
            else:
                out.write(message.payload + b"\n")
        out.flush()
        for reason, count in sorted(cluster.logs.opened(options.log).reader.rejected.items()):
            note(f"leasehold: {count} rejected: {reason}")
    return 0


def message_fields(message: Message) -> dict[str, object]:
    """Return a message as JSON shows it; a payload that is not UTF-8 as ``payload_base64``."""
    try:
        payload = {"payload": message.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(message.payload).decode("ascii")}
    return {
        **instant_fields("timestamp", message.timestamp_ns),
        "writer": message.writer,
        "incarnation": message.incarnation.hex(),
        "sequence": message.sequence,
        "index": message.index,
        "attempt": message.attempt_id.hex(),
        "domains": list(message.domains),
        "path": f"{message.bag_path}/{message.file_name}",
        **payload,
    }


COMMANDS: Final = {
    "publish": Command("Write messages to a log under leases.", _add_publish, run_publish),
    "read": Command("Read a log's messages in order.", _add_read, run_read),
}
