"""``tenure top`` and ``tenure status``: the live screen, and whether the cluster works, as seen from this machine.

``top --once`` prints one snapshot of the screen, ``--serve`` shows it to browsers: each page runs a program of its own,
which only looks (docs/decisions/0004-textual-serve.md). With ``--write`` a lease can be ended from the screen, as
``tenure lease revoke`` does; nothing else changes anything.

``status`` says a line for each thing, and what to do. ``--watch``: the overview as text, again and again. In a terminal
the whole overview is drawn over what was there; in a pipe it is a line a second, with ``--json`` an object a line. Exit
codes as of `doctor`: 0 all is well; 1 something does not work; 3 it works, and something should be known. Those of
``--watch`` say so of what was shown last.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from textwrap import wrap
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.opening import add_cluster_options
from appliance.doctor.health import exit_status, judge_mount, not_well
from timeagent.clock import SystemClock
from timeagent.console import argument, command, present, print_json, printable, say, whole_from
from timeagent.errors import BadConfiguration, BadRequest, Damaged, Environment, TryAgain
from timeagent.units import SECOND, rfc3339

from .feed import Feed, ask_once
from .model.overview import health, json_fields, level_cell, numbers_words, text_snapshot
from .model.state import ClusterState, Reach

if TYPE_CHECKING:
    from .app import Revoke
    from .feed import StateSource
    from .sources.live import LiveSource


PATIENCE_NS: Final = 5 * SECOND
"""How long each answer is waited for: longer than a shard's owner that stands still is given."""

PORT: Final = 7480
"""Where pages are served unless another is named."""

START_PATIENCE_NS: Final = SECOND
"""How long the screen waits for the mount before it opens without it; until then a wrong path is refused at once."""


def run_top(options: argparse.Namespace) -> int:
    if options.db is not None and options.path and options.offline is None:
        options.path, options.offline = None, options.path
    offline = options.offline is not None or options.db is not None
    if options.write and (offline or options.serve is not None or _as_text(options)):
        raise BadRequest("cannot-write", "--write is for the live screen", hint="leave out one of the options")
    if options.serve is not None:
        return _serve(options)
    if offline:
        return _offline(options)
    from .sources.live import live_source  # noqa: PLC0415 - the cluster's library, only when called

    if options.path and options.root:
        raise BadRequest("two-roots", f"both {options.path} and --root {options.root} are named", hint="name one")
    source = live_source(options.path or options.root, options.node_dir, allow_root=options.allow_root)
    if _as_text(options):
        return _once(source, options)
    return _live(source, write=options.write)


def _offline(options: argparse.Namespace) -> int:
    """Show a copy; it is read while the screen is open already."""
    from auditor.timeline.timeline_reader import reading_index  # noqa: PLC0415 - the auditor, only when called

    from .sources.record import RecordSource  # noqa: PLC0415

    if options.path or options.root:
        what = "--offline" if options.offline else "--db"
        raise BadRequest("two-roots", f"both {options.path or options.root} and {what} are named", hint="name one")
    index_file = Path(options.db).absolute() if options.db is not None else None
    copy = Path(options.offline).absolute() if options.offline is not None else None
    source = RecordSource(copy, SystemClock(), index_file)
    if _as_text(options) or copy is None:
        source.reading.put()
        if source.reading.error is not None:
            raise source.reading.error
    elif not copy.exists():
        raise Damaged("no-tree", f"{options.offline} is not there", hint="name a root, a copy of one or a tar file")
    with reading_index(index_file):
        if not _as_text(options):
            return _open_screen(source)
        try:
            return _print(source.state_at(), options)
        finally:
            if source.reading.answer is not None:
                source.reading.answer.timeline.close()


def _serve(options: argparse.Namespace) -> int:
    options_of = ("offline", "db", "root", "node_dir")
    named = [(f"--{name.replace('_', '-')}", getattr(options, name)) for name in options_of]
    words = [word for option, value in named if value for word in (option, str(Path(value).absolute()))]
    words += ["--allow-root"] if options.allow_root else []
    return serve([*words, *([str(Path(options.path).absolute())] if options.path else [])], options.serve)


def _as_text(options: argparse.Namespace) -> bool:
    if options.in_browser:
        return False
    return bool(options.once or options.json or not (sys.stdout.isatty() and sys.stdin.isatty()))


def _once(source: LiveSource, options: argparse.Namespace) -> int:
    with closing(source):
        state = ask_once(source, PATIENCE_NS)
    if not state.cluster_id:
        what, hint = f"no answer from the mount at {state.path}", "see whether its file server answers"
        raise source.mount.error or TryAgain("no-answer", what, hint=hint)
    return _print(state, options)


def _print(state: ClusterState, options: argparse.Namespace) -> int:
    columns = shutil.get_terminal_size((120, 36)).columns
    return present(options, "tenure.top", json_fields(state), text_snapshot(state, columns))


def _live(source: LiveSource, *, write: bool) -> int:
    first = Thread(target=source.mount.put, daemon=True)
    first.start()
    first.join(START_PATIENCE_NS / SECOND)
    if source.mount.error is not None:
        raise source.mount.error
    if not write:
        return _open_screen(source)
    revoker = Revoker(source, random.Random(os.urandom(32)))  # noqa: S311 - names, seeded from the system
    revoker.check()
    return _open_screen(source, revoker.revoke)


def _open_screen(source: StateSource, revoke: Revoke | None = None) -> int:
    from .app import TopApp  # noqa: PLC0415 - the screen's library, only for the screen

    app = TopApp(Feed(source, SystemClock()), revoke=revoke)
    app.run()
    if app._exception is not None:  # noqa: SLF001 - the library has no other door to it
        raise app._exception  # noqa: SLF001 - the same
    return app.return_code or 0


HOST: Final = "127.0.0.1"


def serve(words: Sequence[str], port: int) -> int:
    """Answer on loopback until Ctrl-C. ``words``: what stands after ``tenure top``.

    Raises BadRequest for what is no port, BadConfiguration, Environment where it cannot be listened at.
    """
    if not 0 < port < 2**16:
        raise BadRequest("bad-port", f"{port} is no port to serve at", hint="name one between 1 and 65535")
    try:
        library: Any = importlib.import_module("textual_serve.server")
        web: Any = importlib.import_module("aiohttp.web")
    except ImportError:
        what = "pages are served by textual-serve, which is not installed"
        raise BadConfiguration("no-textual-serve", what, hint="pip install 'tenure[serve]'") from None
    command = shlex.join([sys.executable, "-P", "-m", "tenure", "top", *words, "--in-browser"])
    server = library.Server(command, host=HOST, port=port, title="tenure top")
    make = server._make_app  # noqa: SLF001 - the library has no other door to what it answers

    async def guarded() -> object:
        application = await make()
        application.middlewares.append(web.middleware(_only_our_pages(web, port)))
        return application

    async def begun(_application: object) -> None:
        say(f"tenure top: {server.public_url} until Ctrl-C")
        sys.stdout.flush()

    server._make_app, server.on_startup, server.initialize_logging = guarded, begun, lambda: None  # noqa: SLF001 - as above
    try:
        server.serve()
    except BrokenPipeError:
        raise  # of our own output
    except OSError as problem:
        hint = f"name another port than {port}: --serve PORT"
        raise Environment("not-served", f"nothing can be served there: {problem.strerror}", hint=hint) from None
    return 0


def _only_our_pages(web: Any, port: int) -> Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]:  # noqa: ANN401 - an extra
    """Refuse what another site's page asks for: a browser lets it, and it would see the screens."""
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}

    async def asked(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:  # noqa: ANN401
        origin = request.headers.get("Origin")
        if request.headers.get("Host") not in hosts or (origin and origin.removeprefix("http://") not in hosts):
            return web.Response(status=403, text="this is for pages of this machine\n")
        return await handler(request)

    return asked


class Revoker:
    """Revokes through the cluster that a live source has opened. Any thread; one at a time."""

    def __init__(self, source: LiveSource, randomness: random.Random) -> None:
        self._source = source
        self._random = randomness

    def check(self) -> None:
        """Raise BadConfiguration where the mount has answered and shards cannot be asked from here."""
        answer = self._source.mount.answer
        if answer is not None and answer.offline:
            hint = "join this machine, or name its settings with --node-dir"
            raise BadConfiguration("cannot-write", f"nothing can be revoked from here: {answer.offline}", hint=hint)

    def revoke(self, domain: str, correlation_id: str, typed: str, reason: str) -> str:
        """End one lease; return what came of it, in words. Blocks for the shard, at most three attempts.

        Raises BadRequest (the name does not match; no reason), BadConfiguration, ShardUnavailable.
        """
        from appliance.formats.lease import LeaseOutcome  # noqa: PLC0415
        from appliance.single_leases import ByHand  # noqa: PLC0415 - the cluster's library, only when something is revoked

        if typed != domain:
            raise BadRequest("not-confirmed", f"{typed!r} is not {domain!r}: nothing was revoked", hint="type the name")
        self.check()
        cluster = self._source.cluster
        if cluster is None:
            raise BadConfiguration("cannot-write", "the mount has not answered yet", hint="wait for it, then try again")
        hand = ByHand(cluster, self._random)
        views = [view for view in hand.leases(domain) if view.correlation_id.hex() == correlation_id]
        if not views:
            return f"{domain}: there is no such lease (any more)"
        outcome, _ = hand.revoke(views[0], reason)
        if outcome is not LeaseOutcome.REVOKED:
            return f"{domain}: {outcome}"
        return f"{domain}: revoked. What its holder writes up to {rfc3339(views[0].expiry_ns)} still counts"


# -- tenure status -----------------------------------------------------------------------------------------------------


HOME, REST_OF_LINE, REST, CLEAR = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"
EVERY_NS: Final = SECOND


def run_status(options: argparse.Namespace) -> int:
    if options.count is not None and not options.watch:
        raise BadRequest("no-watch", "--count is of --watch", hint="say --watch too")
    from .sources.live import live_source  # noqa: PLC0415 - the cluster's library, only when called

    source = live_source(options.root, options.node_dir, allow_root=options.allow_root, needs_node=not options.watch)
    try:
        return watch(source, options) if options.watch else _told_once(source, options)
    finally:
        source.close()


def _told_once(source: LiveSource, options: argparse.Namespace) -> int:
    """Look at everything, say a line for each. Raises TenureError for what is no root, or not this machine's."""
    from appliance.cli.doctor import told  # noqa: PLC0415

    state = ask_once(source, PATIENCE_NS)
    answer = source.mount.answer
    if answer is None and source.mount.error is not None:
        raise source.mount.error
    fields = {
        "root": state.path,
        "cluster": state.cluster_id or None,
        "node": answer.own_node if answer else None,
        "map": answer.shard_map.number if answer else None,
    }
    return told("tenure.status", fields, health(state), options)


def watch(source: LiveSource, options: argparse.Namespace) -> int:
    """Show the overview once a second, until it is interrupted, or so many times; return how it was in the end.

    Raises TenureError for what is no root.
    """
    clock = SystemClock()
    ask_once(source, EVERY_NS)
    if source.mount.error is not None:
        raise source.mount.error
    failed: list[BaseException] = []
    feed = Feed(source, clock, EVERY_NS)
    screen = sys.stdout.isatty() and not options.json
    shown, checks, due_ns = 0, [judge_mount(None, waiting=True)], clock.boot_ns()
    try:
        feed.start(lambda _: None, failed.append)
        while options.count is None or shown < options.count:
            state = source.state_at()
            if state.mount.reach is not Reach.WAITING:  # there is an answer, or surely none now
                checks = health(state)
                _show(state, json=options.json, screen=screen, first=not shown)
                shown += 1
            if failed:
                raise failed[0]
            # What took longer than a second, a suspend for example, is not made up for.
            due_ns = max(due_ns + EVERY_NS, clock.boot_ns())
            if shown != options.count:
                clock.sleep(due_ns - clock.boot_ns())
    except KeyboardInterrupt:
        pass  # that is how it is left
    finally:
        feed.stop()
    return exit_status(checks)


def _show(state: ClusterState, *, json: bool, screen: bool, first: bool) -> None:
    if json:
        print_json("tenure.top", json_fields(state))
    elif screen:
        size = shutil.get_terminal_size((120, 36))
        room = size.columns - 1  # what a terminal went on with below would push the first lines out of it
        lines = [part for line in text_snapshot(state, room).split("\n") for part in wrap(line, max(1, room)) or [""]]
        drawn = "".join(f"{line}{REST_OF_LINE}\n" for line in lines[: size.lines - 1])
        sys.stdout.write((CLEAR if first else "") + HOME + drawn + REST)
        sys.stdout.flush()
    else:
        say(status_line(state))
        sys.stdout.flush()


def status_line(state: ClusterState) -> str:
    """Return the overview in one line: when, how it is, the numbers, and every reason with its way out."""
    checks = health(state)
    when = rfc3339(state.clock.now.midpoint)[: len("2026-11-20T22:10:07")]
    reasons = [f"{check.words} → {check.way_out}" if check.way_out else check.words for check in not_well(checks)]
    parts = (f"{when}Z  {level_cell(checks).text}", numbers_words(state), *reasons)
    return printable(" · ".join(part for part in parts if part))


COMMANDS: Final = {
    "top": command(
        "The live screen: nodes, leases, bags. Looks; changes nothing without --write.",
        run_top,
        argument("path PATH", "a root, or a copy of one (default: --root)", nargs="?"),
        argument("--offline TREE", "a copy, a part of one or a tar file: read and audited as a whole, any instant"),
        argument(
            "--db FILE",
            "the index of `audit --db`: alone it needs no copy; with a copy it is made, or what is new is added",
        ),
        add_cluster_options,
        argument("--write", "leases may be revoked from the screen; without it nothing can be changed"),
        argument(
            "--serve PORT",
            f"show the screens to browsers of this machine (default: port {PORT}); needs tenure[serve]",
            type=int,
            nargs="?",
            const=PORT,
        ),
        argument("--in-browser", argparse.SUPPRESS),
        argument("--once", "print one snapshot as text and exit; also where stdout is no terminal"),
    ),
    "status": command(
        "Whether the cluster works, as seen from here.",
        run_status,
        add_cluster_options,
        argument(
            "--watch",
            "the overview as text, once a second, until Ctrl-C; in a pipe a line each time; exit code as of the last",
        ),
        argument("--count N", "with --watch: stop after N times", type=whole_from(1)),
    ),
}
