"""``tenure publish``, ``read``, ``tail``, ``view``: messages into a log, out of it in order, and their sums."""

from __future__ import annotations

import base64
import importlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from appliance.cluster import Cluster
from appliance.session.open_logs import OpenLog
from appliance.session.session import Session
from timeagent.console import (
    Argument,
    Command,
    Progress,
    argument,
    command,
    counted,
    epilog,
    instant_fields,
    note,
    present,
    print_json,
    printable,
    together,
    with_verbs,
)
from timeagent.errors import BadRequest, Environment, TenureError, UnknownOutcome
from timeagent.units import INSTANT_MAX, SECOND, Span, parse_instant, parse_span, rfc3339

from ..bag.closedbags import RackGone
from ..bag.message import START, Message, MessageBatch, Position, before, cursor_text, is_cursor, parse_cursor
from ..bag.metronome import Metronome
from ..bag.reader import Follower, Level, Wait
from ..bag.writing import Committed, Outcome, Unknown
from ..doctor.file_system import is_local
from ..formats.birth import BagKind
from ..formats.framing import FRAME_BYTES_MAX, check_payloads
from ..formats.names import check_log
from ..formats.view import VIEWS, Checkpoint, parse_fold, parse_horizon
from ..views import Fold, View
from .opening import EXIT_NO, add_cluster_options, cluster_command, open_cluster

BATCH_MESSAGES: Final = 4096
BATCH_BYTES: Final = 4 * 1024 * 1024
_CLOSED_WITHIN_NS: Final[Span] = 10 * SECOND
"""So long after a bag is due a daemon has closed it, if one runs."""
KEPT: Final = 8
"""So many checkpoints of a fold ``prune`` leaves by default."""
FOLDS: Final = {"balances": "appliance.demo.bank:BALANCES"}
"""Folds that come with tenure, by the name of their view."""


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Return the lines of a stream. One that no frame has room for comes in pieces: the first of them is refused."""
    return iter(partial(stream.readline, FRAME_BYTES_MAX), b"")


def _batches(stream: BinaryIO) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in _pieces(stream):
        payload = line.removesuffix(b"\n")
        if batch and (len(batch) == BATCH_MESSAGES or size + len(payload) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(payload)
        size += len(payload)
    if batch:
        yield batch


def run_publish(options: Namespace) -> int:
    """Publish each line under the named leases, in batches; stop at the first that is not committed."""
    check_log(options.log)  # also where there is nothing to publish
    try:
        stream = sys.stdin.buffer if options.file == "-" else Path(options.file).open("rb")  # noqa: SIM115 - below
    except OSError as problem:
        hint = "name a file, or - for standard input"
        raise BadRequest("no-such-file", f"cannot read {options.file}: {problem.strerror}", hint=hint) from None
    with stream, open_cluster(options) as cluster, cluster.session(options.purpose) as session:
        return _publish(cluster, session, stream, options)


def _publish(cluster: Cluster, session: Session, stream: BinaryIO, options: Namespace) -> int:
    done = 0
    outcome: Outcome | None = None
    timeout_s = parse_span(options.wait) / SECOND
    try:
        with (
            Progress("published", _lines(stream)) as progress,
            session.acquire(*options.lease, timeout_s=timeout_s, record_only=True) as leases,
        ):
            for batch in _batches(stream):
                if (options.kind or options.store) and not done:
                    check_payloads(batch)  # what nobody can publish makes no log
                    cluster.create_log(options.log, options.kind or BagKind.MAILDIR, store=options.store)
                outcome = session.publish(options.log, batch, under=leases)
                if not isinstance(outcome, Committed):
                    break
                done += len(batch)
                progress.show(done)
    except BaseException:  # an end by SIGTERM and an input that cannot be read any more among them
        if done:
            note(f"tenure: {counted(done, 'message')} committed to {options.log} before")
        raise
    name, reason, status = "Committed", None, 0
    if outcome is not None and not isinstance(outcome, Committed):
        name, reason = type(outcome).__name__, outcome.reason
        status = UnknownOutcome.exit_status if isinstance(outcome, Unknown) else EXIT_NO
    present(options, "tenure.publish", {"log": options.log, "committed": done, "outcome": name, "reason": reason})
    if not options.json:
        note(f"tenure: {counted(done, 'message')} committed to {options.log}")
    if status:
        how = "of unknown outcome" if isinstance(outcome, Unknown) else "not committed"
        note(f"tenure: the next batch is {how}: {reason}")
    return status


def _lines(stream: BinaryIO) -> int | None:
    """Return how many lines there will be, for a progress bar; None where nobody sees one or nobody can know."""
    if not sys.stderr.isatty() or not stream.seekable():
        return None
    here = stream.tell()
    lines = sum(1 for _ in _pieces(stream))
    stream.seek(here)
    return lines


class _Output:
    """Messages on standard output, a batch in one write."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self.messages = 0
        # A terminal shows the messages themselves.
        self._progress = None if sys.stdout.isatty() else Progress("read")

    def write(self, batch: MessageBatch) -> None:
        if self._options.json:
            data = b"".join([self._line(message, settled=batch.settled) for message in batch])
        else:
            data = (b"\0" if self._options.print0 else b"\n").join([*batch.payloads(), b""])
        sys.stdout.buffer.write(data)
        self.messages += len(batch)
        if self._progress is not None:
            self._progress.show(self.messages)

    def _line(self, message: Message, *, settled: bool) -> bytes:
        cursor = cursor_text(self._options.log, message.position) if settled else None
        head = {"schema": "tenure.message", "version": 1}
        return msgspec.json.encode(head | message_fields(message) | {"cursor": cursor}) + b"\n"

    def close(self) -> None:
        sys.stdout.flush()
        if self._progress is not None:
            self._progress.done()


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


def _position(text: str | None, log: str) -> Position:
    if text is None:
        return START
    return parse_cursor(text, log) if is_cursor(text) else before(parse_instant(text) + 1)


def _conclude(
    options: Namespace, schema: str, fields: Mapping[str, object], rejected: Mapping[str, int], gone: Sequence[RackGone]
) -> None:
    """Say on standard error what was rejected or is gone; with --json everything about the reading, as one object."""
    if options.json:
        missing = [instant_fields("start", each.start_ns) | instant_fields("end", each.end_ns) for each in gone]
        every = {"schema": schema, "version": 1, "log": options.log, **fields}
        note(msgspec.json.encode(every | {"rejected": dict(sorted(rejected.items())), "gone": missing}).decode())
        return
    for each in gone:
        note(f"tenure: retention has deleted what was there from {rfc3339(each.start_ns)} to {rfc3339(each.end_ns)}")
    for reason, count in sorted(rejected.items()):
        note(f"tenure: {count} rejected: {reason}")


def run_read(options: Namespace) -> int:
    after = _position(options.after, options.log)
    until = parse_instant(options.until) if options.until else None
    if options.limit is not None and options.limit < 0:
        raise BadRequest("bad-limit", f"--limit {options.limit} is no number of messages", hint="0 or more")
    level = Level(options.level)
    if options.as_of is not None and level is not Level.STALE_OK:
        raise BadRequest("as-of-unused", f"--as-of says nothing of --level {level}", hint="say --level stale-ok too")
    with open_cluster(options) as cluster:
        if options.settle:
            cluster.settle(options.log, cluster.time.now().latest)
        reader = cluster.logs.opened(options.log).reader
        as_of = cluster.time.now().earliest - parse_span(options.as_of or "1m") if level is Level.STALE_OK else 0
        reading = reader.batches(after, until, level, as_of, gone_ok=True)
        output = _Output(options)
        cut: Position | None = None
        try:
            for batch in reading:
                room = len(batch) if options.limit is None else options.limit - output.messages
                if room < len(batch):
                    head = batch.head(room)
                    # Where a limit ends the reading: after the last message that was printed.
                    cut = reading.position if not batch.settled else head.last if len(head) else after
                    output.write(head)
                    break
                output.write(batch)
                after = reading.position
        except (KeyboardInterrupt, SystemExit, TenureError):
            cut = after if output.messages else None
            raise
        finally:
            output.close()
            cursor = cursor_text(options.log, reading.position if cut is None else cut)
            if cut is not None and not options.json:
                note(f"tenure: there is more; it goes on with --after {cursor}")
        whole = level is Level.SETTLED and cut is None and until is None and not options.settle
        if whole and not options.json and (bags := reader.open_bags()):
            note(f"tenure: {counted(bags, 'bag')} not closed yet: --settle waits until everything up to now is final")
        said = {"messages": output.messages, "cursor": cursor, **instant_fields("horizon", reading.horizon_ns)}
        _conclude(options, "tenure.read", said, reader.rejected, reading.gone)
    return 0


def run_tail(cluster: Cluster, options: Namespace) -> int:
    with ExitStack() as until_the_end:
        log = cluster.logs.opened(options.log)
        if options.begin == "now":
            after = before(cluster.time.now().midpoint)
        else:
            after = START if options.begin == "start" else _position(options.begin, options.log)
        metronome = Metronome(cluster.context, log.grid, log.horizon)
        follower = Follower(
            log.reader,
            _wait(cluster, log, until_the_end),
            after,
            level=Level(options.level),
            poll_ns=parse_span(options.poll),
            gone_ok=True,
            help_closing=(lambda: metronome.turn(cluster.time.now()))
            if options.settle
            else noting_stalls(log, cluster.time.boot_ns),
        )
        output = _Output(options)
        cursor, terminated = follower.cursor, None
        try:
            for batch in follower.batches():
                output.write(batch)
                # Before anybody can see what was written: an interruption from here on repeats nothing.
                cursor = follower.cursor
                sys.stdout.flush()
        except KeyboardInterrupt:
            pass
        except (SystemExit, TenureError) as ended:
            terminated = ended
        finally:
            output.close()
        if follower.overtaken:
            left_out = counted(follower.overtaken, "message")
            note(f"tenure: {left_out} appeared below others that were shown; tail --level settled has them")
        if not options.json:
            note(f"tenure: {counted(output.messages, 'message')}; it goes on with --from {cursor}")
        said = {"messages": output.messages, "overtaken": follower.overtaken, "cursor": cursor}
        _conclude(options, "tenure.tail", said, log.reader.rejected, follower.gone)
        if terminated is not None:
            raise terminated
    return 0


def noting_stalls(log: OpenLog, boot_ns: Callable[[], int]) -> Callable[[], None]:
    """Return what is called before each look, and says so once the log has a bag that nobody closes."""
    patience = log.grid.birth.span_ns + log.grid.birth.grace_ns + _CLOSED_WITHIN_NS
    reached, since = log.horizon.reached, boot_ns()

    def look() -> None:
        nonlocal reached, since
        now = boot_ns()
        if log.horizon.reached != reached:
            reached, since = log.horizon.reached, now
        elif now - since > patience:
            since = now
            if log.reader.open_bags():
                note("tenure: a bag is due, and no daemon has closed it: run one here, or say --settle")
                since = INSTANT_MAX  # once, until it goes on

    return look


def _wait(cluster: Cluster, log: OpenLog, until_the_end: ExitStack) -> Wait:
    """Return how to wait: by time; on a local file system also until something appears, where the kernel tells."""
    if isinstance(cluster.root, Path) and is_local(cluster.root):
        from ..bag.wakeup import LocalWait

        with suppress(OSError):  # a user has 128 inotify instances, unless it is told otherwise: time alone does
            return until_the_end.enter_context(LocalWait(cluster.root, lambda instant: log.grid.rack(instant).path))
    return lambda span, _: cluster.time.sleep(span)


# -- views -------------------------------------------------------------------------------------------------------------


def named_fold(view: str, spec: str | None) -> Fold[Any]:
    """Return the fold of a view: one that comes with tenure, or the one that ``spec`` names. Raises BadRequest."""
    spec = spec or FOLDS.get(view)
    if spec is None:
        hint = f"name it: --fold MODULE:NAME; known: {', '.join(FOLDS)}"
        raise BadRequest("no-such-view", f"no fold is known for the view {view!r}", hint=hint)
    module, _, name = spec.partition(":")
    try:
        fold = getattr(importlib.import_module(module), name)
    except Exception as problem:  # noqa: BLE001 - whatever a module does when it is imported
        hint = "write MODULE:NAME, with the module on PYTHONPATH"
        raise BadRequest("bad-fold", f"{spec!r} cannot be imported: {problem}", hint=hint) from None
    if not isinstance(fold, Fold) or fold.view != view:
        kind = f"the fold of the view {fold.view}" if isinstance(fold, Fold) else f"a {type(fold).__name__}"
        raise BadRequest("bad-fold", f"{spec!r} is {kind}, not a fold of {view}", hint="name the view as its fold does")
    return fold


def _list_views(cluster: Cluster, options: Namespace) -> int:
    for view in _view_names(cluster, VIEWS):
        for fold in _view_names(cluster, f"{VIEWS}/{view}"):
            if parse_fold(fold) is None:
                continue
            names, path = _view_names(cluster, f"{VIEWS}/{view}/{fold}"), printable(f"{VIEWS}/{view}/{fold}")
            horizons = [at for name in names if (at := parse_horizon(name)) is not None]
            newest = max(horizons, default=None)
            fields = {
                "view": printable(view),
                "path": path,
                "checkpoints": len(horizons),
                **instant_fields("newest", newest),
            }
            reached = "" if newest is None else f", the newest at {rfc3339(newest)}"
            present(options, "tenure.view", fields, f"{path}  {counted(len(horizons), 'checkpoint')}{reached}")
    return 0


def _view_names(cluster: Cluster, directory: str) -> list[str]:
    """Return what is in a directory; nothing for a foreign file that stands in its place."""
    try:
        return cluster.context.storage.list_afresh(directory) or []
    except Environment as problem:
        if problem.code != "not-a-directory":
            raise
        return []


def _view_fields(view: View[Any], checkpoint: Checkpoint) -> dict[str, object]:
    counts = {"messages": checkpoint.messages, "state_bytes": len(checkpoint.state)}
    return {"view": checkpoint.view, "path": view.path, **counts, **instant_fields("horizon", checkpoint.horizon_ns)}


def _show_view(_cluster: Cluster, view: View[Any], options: Namespace) -> int:
    checkpoint = view.newest()
    if checkpoint is None:
        note(f"tenure: {view.path} has no checkpoint yet; tenure view advance {options.view} makes one")
        return EXIT_NO
    if options.json:
        try:
            state: dict[str, object] = {"state": msgspec.json.decode(checkpoint.state)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # it may begin like JSON all the same
            state = {"state_base64": base64.b64encode(checkpoint.state).decode("ascii")}
        print_json("tenure.view-state", {**_view_fields(view, checkpoint), **state})
        return 0
    reached = f"{counted(checkpoint.messages, 'message')} before {rfc3339(checkpoint.horizon_ns)}"
    note(f"tenure: {options.view} after {reached}")
    sys.stdout.buffer.write(checkpoint.state + b"\n")
    return 0


def _advance_view(cluster: Cluster, view: View[Any], options: Namespace) -> int:
    if options.settle:
        target = cluster.time.now().latest
        for log in view.logs:
            cluster.settle(log, target)
    with Progress("folded") as progress:
        checkpoint = view.advance(progress.show)
    words = f"{view.path}/{checkpoint.horizon_ns:019d}  {counted(checkpoint.messages, 'message')}"
    return present(options, "tenure.view-advance", _view_fields(view, checkpoint), words)


def _prune_view(_cluster: Cluster, view: View[Any], options: Namespace) -> int:
    deleted = view.prune(options.keep)
    fields = {"view": options.view, "path": view.path, "deleted": deleted}
    return present(options, "tenure.view-prune", fields, f"deleted {counted(deleted, 'checkpoint')}")


def _on_view(help_text: str, work: Callable[[Cluster, View[Any], Namespace], int], *own: Argument) -> Command:
    def run(cluster: Cluster, options: Namespace) -> int:
        return work(cluster, View(cluster.context, cluster.logs, named_fold(options.view, options.fold)), options)

    view = argument("view VIEW", f"{', '.join(FOLDS)}, or what --fold is called here")
    fold = argument("--fold MODULE:NAME", "a fold of yours, to be imported")
    return cluster_command(help_text, run, *own, view, fold)


_VIEW_VERBS: Final = {
    "ls": cluster_command("the views that have checkpoints, their folds, how far they are", _list_views),
    "show": _on_view("the state of a view at its newest checkpoint, as the fold wrote it", _show_view),
    "advance": _on_view(
        "take in what was settled since, and publish a checkpoint",
        _advance_view,
        argument("--settle", "first wait until everything up to now is final"),
    ),
    "prune": _on_view(
        "delete all but the newest checkpoints of a fold",
        _prune_view,
        argument("--keep N", f"how many stay (default {KEPT})", type=int, default=KEPT),
    ),
}
_LOG: Final = argument("log LOG")
_EPILOG: Final = """\
A payload is printed as it is, with a newline after it. One that holds newlines itself looks like several then: say
--print0 (a NUL after each) where none holds a NUL, or --json, which is never ambiguous: one object a line, with the
payload as "payload" where it is UTF-8 and as "payload_base64" where it is not.

A cursor is the text in "cursor" of each settled message with --json; after a reading that was cut short it is said on
standard error. Reading goes on exactly after it, whatever was written meanwhile.
"""


_FORM: Final = together(argument("--print0", "a NUL after each payload instead of a newline"), epilog(_EPILOG))

COMMANDS: Final = {
    "publish": command(
        "Write messages to a log under leases.",
        run_publish,
        argument("log LOG", "the log; made when it does not exist"),
        argument("file FILE", "one message a line; - is standard input", nargs="?", default="-"),
        argument("--lease NAME", "the domain to write under; may be repeated", action="append", required=True),
        argument("--kind", "the kind of a log that this makes; default: maildir", choices=tuple(BagKind)),
        argument(
            "--store STORE",
            "where the bags of a log that this makes are: a directory, the same on every node, or "
            "s3://BUCKET/PREFIX; default: at the root",
        ),
        argument("--wait SPAN", "how long to wait for the leases (default 30s)", default="30s"),
        argument("--purpose TEXT", "what others see as the reason", default="publish"),
        add_cluster_options,
    ),
    "read": command(
        "Read a log's messages in order.",
        run_read,
        _LOG,
        argument(
            "--level",
            "settled is final; latest takes in what is open; stale-ok is as settled, and may end at --as-of",
            choices=("settled", "latest", "stale-ok"),
            default="settled",
        ),
        argument("--as-of SPAN", "how old a stale-ok answer may be (default 1m)"),
        argument("--after CURSOR|T", "only what stands after this cursor or instant"),
        argument("--until T", "only timestamps up to this instant"),
        argument("--limit N", "at most so many messages", type=int),
        argument("--settle", "first wait until everything up to now is final"),
        _FORM,
        add_cluster_options,
    ),
    "tail": cluster_command(
        "Follow a log: print its messages as they become final.",
        run_tail,
        _LOG,
        argument("--from now|start|CURSOR|T", "default: now", dest="begin", default="now"),
        argument(
            "--level",
            "settled leaves nothing out; latest is sooner, and leaves out what appears below what it has shown",
            choices=("settled", "latest"),
            default="settled",
        ),
        argument("--poll SPAN", "how often to look (default 500ms)", default="500ms"),
        argument("--settle", "close what is due oneself: nothing becomes final where no daemon runs that would"),
        _FORM,
    ),
    "view": with_verbs("Materialised views: what settled messages add up to.", _VIEW_VERBS),
}
