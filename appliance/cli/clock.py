"""``tenure time run|now|wait|sources|verify|evidence``: what this machine knows of the time; what signed times say.

All but ``run`` work without a cluster and without keys.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import string
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from timeagent import showing
from timeagent.agent.evidence import SCHEMA, judge_exchange
from timeagent.agent.settings import FILE, load_agent_settings, own_sources, parse_agent_settings
from timeagent.canonical import DIGEST_BYTES
from timeagent.clock import MachineClock, SystemClock
from timeagent.console import (
    Argument,
    Command,
    argument,
    command,
    instant_fields,
    note,
    present,
    printable,
    report_error,
    whole_from,
    with_verbs,
)
from timeagent.errors import INTERRUPTED, BadRequest, BadTime, Damaged, Environment, TenureError
from timeagent.keys import Verifier, fingerprint, parse_public_line
from timeagent.signedtime import TOKEN_BYTES, SignedTime, TimeFlags
from timeagent.sources.nonce import DOOR_NAME, Exchanged
from timeagent.sources.port import Source
from timeagent.units import MS, SECOND, Span, TimeInterval, parse_span, rfc3339, span_text

from ..admin.membership import read_marker
from ..bag.roots import parse_root, storage_at
from ..formats.birth import ROOT_VARIABLE
from ..node.runtime import refuse_strangers, runtime_of, user_directory
from ..node.settings import find_settings, load_settings
from .opening import EXIT_NO, JSON, add_cluster_options, registers_at

_FILE_BYTES_MAX: Final = 65536
_EVIDENCE_BYTES_MAX: Final = 1 << 20
_REPORT_BYTES_MAX: Final = 16 * 1024 * 1024
_NOT_VERIFIED: Final = 3
_WAIT_STEP_NS: Final[Span] = 200 * MS
_WATCH_PERIOD_NS: Final[Span] = SECOND


def find_agent(root: str | Path | None, node_dir: str | Path | None) -> Path | None:
    """Return the directory of the agent's door: of the node that is named, else of the only one of this user."""
    if root is None and node_dir is None:
        refuse_strangers(user_directory())
        doors = list(user_directory().glob(f"*/{DOOR_NAME}"))
        return doors[0].parent if len(doors) == 1 else None
    try:
        path = parse_root(root) if root else load_settings(Path(node_dir or "")).root
        marker = read_marker(storage_at(path), path)
        settings = find_settings(marker.cluster_id, path, Path(node_dir) if node_dir else None)
    except TenureError:
        return None  # whatever is wrong there: it is not what was asked
    directory = runtime_of(settings, marker.cluster_id)
    return directory if (directory / DOOR_NAME).exists() else None


def machine_sources(clock: MachineClock, node_dir: str | Path | None) -> list[Source]:
    """Return this machine's time services, as the node's own settings have them where it is named."""
    settings = load_agent_settings(Path(node_dir)) if node_dir else parse_agent_settings("", Path(FILE))
    return own_sources(clock, settings, random.Random(os.urandom(8)))  # noqa: S311 - numbers of questions


def assumed_radius_ns(root: str | Path | None) -> Span:
    """Return the radius that the policy of a root states; 0 where it states none, or there is no root. Touches it."""
    path = parse_root(root) if root else None
    return registers_at(storage_at(path), path).newest_policy().assumed_radius_ns if path else 0


class _Record(msgspec.Struct, rename={"schema_name": "schema"}):
    schema_name: str
    kind: str
    own_key_id: str
    exchanges: list[dict[str, str]]


def judge_evidence(options: Namespace) -> int:
    record = _opened(_read(options.file, _EVIDENCE_BYTES_MAX), options.file)
    keys = {key.id: key for key in map(_public, options.key)}
    shown: list[dict[str, Any]] = []
    lines = []
    for each in record.exchanges:
        peer_name = each.get("peer")
        try:
            parts = Exchanged(*(bytes.fromhex(each[part.name]) for part in dataclasses.fields(Exchanged)))
        except (KeyError, ValueError):
            raise _damaged(f"{options.file}: the exchange with {peer_name} is not in hex") from None
        own = keys.get(bytes.fromhex(record.own_key_id))
        peer = keys.get(SignedTime.decode(parts.answer, options.file).key_id)
        proven = judge_exchange(parts, own, peer) if own and peer else None
        shown.append({"peer": peer_name, "proven": proven})
        what = "not checked: name both public time keys with --key" if proven is None else "; ".join(proven)
        lines.append(f"{printable(str(peer_name))}: {what or 'both clocks can have been right'}")
    unchecked = any(each["proven"] is None for each in shown)
    status = EXIT_NO if any(each["proven"] for each in shown) else _NOT_VERIFIED if unchecked else 0
    fields = {"kind": record.kind, "exchanges": shown}
    return present(options, "tenure.time.evidence.verdict", fields, *lines, status=status)


def _opened(data: bytes, where: str) -> _Record:
    try:
        record = msgspec.json.decode(data, type=_Record)
        bytes.fromhex(record.own_key_id)
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise _damaged(f"{where} is no evidence of a time agent: {problem}") from None
    if record.schema_name != SCHEMA:
        raise _damaged(f"{where} has the schema {record.schema_name!r}, not {SCHEMA!r}")
    return record


def _damaged(what: str) -> Damaged:
    hint = "name a file of the agent's evidence directory, as it was written"
    return Damaged("evidence-damaged", what, hint=hint)


def _public(file: str) -> Verifier:
    return Verifier(parse_public_line(_read(file)[:4096].decode("ascii", "replace").strip(), file))


@dataclass(frozen=True, slots=True)
class _Asking:
    clock: MachineClock
    sources: list[Source]
    radius: Span
    find_agent: Callable[[], Path | None]


def _run_agent(options: Namespace) -> int:
    from .agent import run_agent  # with all that an agent is made of

    return run_agent(options)


def _asking(summary: str, verb: Callable[[_Asking, Namespace], int], *own: Argument) -> Command:
    """Return a verb that asks the agent of this machine, or the sources that measure; an assumed one is asked last."""

    def ask(options: Namespace) -> int:
        clock, root, text = SystemClock(), options.root or os.environ.get(ROOT_VARIABLE), options.assume_radius
        sources = machine_sources(clock, options.node_dir)
        radius = assumed_radius_ns(root) if text is None else _stated_radius(text)
        return verb(_Asking(clock, sources, radius, lambda: find_agent(root, options.node_dir)), options)

    assume = argument("--assume-radius SPAN", "without a bound, take the clock to be this good: 250ms")
    return command(summary, ask, assume, *own, add_cluster_options)


def _stated_radius(text: str) -> Span:
    radius = parse_span(text)
    if not 0 < radius <= showing.UNBOUNDED_RADIUS_NS:
        what = f"a radius of {text!r} is not between 1 ns and {span_text(showing.UNBOUNDED_RADIUS_NS)}"
        raise BadRequest("bad-radius", what, hint="state how far the clock can be off, such as 250ms")
    return radius


def _by_agent(asking: _Asking, *, quiet: bool) -> showing.Known | None:
    """Return what the agent of this machine says; None where none runs, or answers."""
    directory = asking.find_agent()
    if directory is not None:
        try:
            return showing.known_by_agent(directory, asking.clock)
        except BadTime as problem:
            if not quiet:
                note(f"tenure: {problem.message}; asking the sources from here")
    return None


def _known(asking: _Asking, *, quiet: bool = False) -> showing.Known:
    return _by_agent(asking, quiet=quiet) or showing.known_without_agent(asking.clock, asking.sources, asking.radius)


def _now(asking: _Asking, options: Namespace) -> int:
    known = _known(asking)
    present(options, "tenure.time.now", known.fields(), *_now_lines(known))
    return 0 if known.problem is None else report_error(_unbounded_error(known.problem))


def _unbounded_error(problem: BadTime) -> BadTime:
    if problem.code != "no-time":
        return problem
    return BadTime(
        problem.code,
        problem.message,
        hint="run chrony, or say how far the clock can be off: --assume-radius 250ms here, "
        "tenure policy set --assumed-radius for a cluster",
    )


def _now_lines(known: showing.Known) -> list[str]:
    if known.problem is None:
        radius = span_text(known.now.radius)
        radius += " (assumed: stated, not measured)" if known.assumed else ""
        radius += " (cluster time: not UTC)" if known.cluster_time else ""
    else:
        radius = "unbounded: the machine's clock plus or minus a day"
    lines = [
        f"earliest  {rfc3339(known.now.earliest)}",
        f"latest    {rfc3339(known.now.latest)}",
        f"radius    {radius}",
        f"status    {known.status}",
        f"source    {known.source}" + (f", clock epoch {known.clock_epoch}" if known.agent else ""),
    ]
    for each in known.sources:
        if each.interval is None:
            lines.append(f"refused   {each.source}: {each.reason}")
        elif known.agent:
            said = f"{rfc3339(each.interval.earliest)} .. {rfc3339(each.interval.latest)}"
            lines.append(f"{each.role:9} {each.source}: {said}")
    return lines


def _wait(asking: _Asking, options: Namespace) -> int:
    """Wait until there is a bound that is narrow enough. Start by waiting for time, not by failing."""
    began, left = asking.clock.boot_ns(), parse_span(options.timeout)
    narrow = parse_span(options.radius)
    while True:
        known = _known(asking, quiet=True)
        if known.problem is None and known.now.radius <= narrow:
            return present(options, "tenure.time.now", known.fields())
        if asking.clock.boot_ns() - began >= left:
            why = known.problem or BadTime(
                "radius-too-wide",
                f"the clock is known to {span_text(known.now.radius)}; {span_text(narrow)} were asked",
            )
            return report_error(_unbounded_error(why))
        asking.clock.sleep(min(_WAIT_STEP_NS, left))


def _sources(asking: _Asking, options: Namespace) -> int:
    shown = 0
    try:
        while True:
            _show_sources(asking, options)
            shown += 1
            if not options.watch or shown == options.count:
                return 0
            asking.clock.sleep(_WATCH_PERIOD_NS)
    except KeyboardInterrupt:
        return 0 if options.watch else INTERRUPTED


def _show_sources(asking: _Asking, options: Namespace) -> None:
    known = _by_agent(asking, quiet=True)
    views = list(known.sources) if known else showing.sources_without_agent(asking.clock, asking.sources, asking.radius)
    summary = known.fields() if known and known.problem is None else None
    fields = {"agent": known is not None, "now": summary, "sources": [view.fields() for view in views]}
    lines = _source_lines(views)
    if options.watch:
        lines = [*_plot_lines(views, known.together if known else None), "", *lines]
        if sys.stdout.isatty():
            lines[0] = "\x1b[H\x1b[J" + lines[0]
    present(options, "tenure.time.sources", fields, *lines)


def _source_lines(views: list[showing.SourceView]) -> list[str]:
    lines = [] if views else ["no source is asked: time.toml of this node switches them off, and no radius is stated"]
    for view in views:
        if view.interval is None:
            lines.append(f"{view.source:10}  no bound: {view.reason}")
        else:
            lines.append(f"{view.source:10}  {rfc3339(view.interval.earliest)} .. {rfc3339(view.interval.latest)}")
            role = "" if view.role == "asked" else f", {view.role}"
            lines.append(f"{'':10}  radius {span_text(view.interval.radius)}, {view.status}{role}")
    return lines


def _plot_lines(views: list[showing.SourceView], together: TimeInterval | None) -> list[str]:
    columns = shutil.get_terminal_size((100, 24)).columns
    style = showing.UNICODE if (sys.stdout.encoding or "").lower().startswith("utf") else showing.ASCII
    words = [f"{span_text(each.interval.radius)} {each.role}" if each.interval else "no bound" for each in views]
    rows = [showing.Row(each.source, each.interval, said) for each, said in zip(views, words, strict=True)]
    return showing.plot(rows, together, columns, style)


def _verify(options: Namespace) -> int:
    data, named = _read(options.file, _REPORT_BYTES_MAX), _named(options.file)
    if data.lstrip()[:1] == b"{":  # a signed time never begins so
        from timeagent.roughtime.malfeasance import verify_report

        return verify_report(data, named, options)
    token = SignedTime.decode(_token_bytes(data, named), named)
    verdict, reason = _verdict(token, options.key, _digest(options.over))
    fields = _token_fields(token)
    present(
        options,
        "tenure.time.verify",
        fields | {"verified": verdict, "reason": reason},
        f"earliest  {fields['earliest']}",
        f"latest    {fields['latest']}",
        f"radius    {span_text(token.radius_ns)}" + (" (assumed: stated, not measured)" if fields["assumed"] else ""),
        f"status    {fields['status']}",
        f"door      {fields['door']}, at most {span_text(token.staleness_ns)} after signing",
        f"sequence  {token.sequence} of clock epoch {token.clock_epoch}",
        f"key       {fields['key_id']}",
        "signature {}".format({True: "good", False: "BAD", None: "not checked"}[verdict]),
    )
    if reason:
        note(f"tenure: {reason}")
    return {True: 0, False: EXIT_NO, None: _NOT_VERIFIED}[verdict]


def _verdict(token: SignedTime, key_file: str | None, over: bytes | None) -> tuple[bool | None, str]:
    nonce = bool(token.flags & TimeFlags.NONCE)
    if over is not None and not nonce:
        return False, "the signed time came by the page door: it covers no digest"
    if key_file is None:
        return None, "the signature was not checked: name the node's public time key with --key"
    if nonce and over is None:
        return None, "the signature was not checked: it covers a digest as well, to be given with --over"
    key = _public(key_file)
    if key.id != token.key_id:
        held = f"{fingerprint(key.public)}, with id {key.id.hex()}"
        return False, f"signed by the key with id {token.key_id.hex()}, but {key_file} holds {held}"
    good = token.verified_by(key, over)
    return good, "" if good else f"the signature is not by the key in {key_file} over these bytes"


def _token_fields(token: SignedTime) -> dict[str, Any]:
    return {
        **instant_fields("earliest", token.interval.earliest),
        **instant_fields("latest", token.interval.latest),
        **instant_fields("midpoint", token.midpoint_ns),
        "radius_ns": token.radius_ns,
        "staleness_ns": token.staleness_ns,
        "status": token.status.word,
        "assumed": bool(token.flags & TimeFlags.ASSUMED),
        "door": "nonce" if token.flags & TimeFlags.NONCE else "page",
        "sequence": token.sequence,
        "clock_epoch": token.clock_epoch,
        "key_id": token.key_id.hex(),
    }


def _token_bytes(data: bytes, named: str) -> bytes:
    if len(data) == TOKEN_BYTES:
        return data
    text = "".join(data.decode("ascii", "replace").split())
    if set(text) <= set(string.hexdigits) and len(text) == 2 * TOKEN_BYTES:
        return bytes.fromhex(text)
    what = f"{named} has {len(data)} bytes: neither {TOKEN_BYTES} bytes nor {2 * TOKEN_BYTES} hexadecimal digits"
    raise Damaged("time-damaged", what, hint="name a file with one signed time, raw or in hex, or a malfeasance report")


def _digest(text: str | None) -> bytes | None:
    if text is None:
        return None
    if len(text) != 2 * DIGEST_BYTES or not set(text) <= set(string.hexdigits):
        hint = "check --over"
        raise BadRequest("bad-digest", f"{text[:80]!r} is not {2 * DIGEST_BYTES} hexadecimal digits", hint=hint)
    return bytes.fromhex(text)


def _read(file: str, bytes_max: int = _FILE_BYTES_MAX) -> bytes:
    try:
        if file == "-":
            return sys.stdin.buffer.read(bytes_max)
        with Path(file).open("rb") as opened:
            return opened.read(bytes_max)
    except OSError as problem:
        raise Environment(
            "unreadable", f"cannot read {file}: {problem.strerror or problem}", hint="check the path"
        ) from None


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


_VERBS: Final = {
    "run": command("the node's time agent: until SIGTERM or SIGINT", _run_agent, add_cluster_options),
    "now": _asking("the time, as an interval that holds it", _now),
    "wait": _asking(
        "wait until the time is known well enough; for units and scripts",
        _wait,
        argument("--timeout SPAN", "give up after this long (default: 60s)", default="60s"),
        argument("--radius SPAN", "how well it must be known (default: 250ms)", default="250ms"),
    ),
    "sources": _asking(
        "what each time source says, or why it says nothing",
        _sources,
        argument("--watch", "once a second, with the intervals drawn, until Ctrl-C"),
        argument("--count N", "with --watch: stop after N times", type=whole_from(1)),
    ),
    "verify": command(
        "judge a signed time, or a Roughtime malfeasance report",
        _verify,
        argument("file FILE", "128 bytes, raw or in hex, or a report; - for standard input"),
        argument("--key FILE", "the node's public time key, one ssh-ed25519 line"),
        argument("--over HEX", "the 32 bytes that a signed time of the nonce door covers"),
        JSON,
    ),
    "evidence": command(
        "what the signatures in the agent's evidence prove",
        judge_evidence,
        argument("file FILE", "a file of the agent's evidence directory"),
        argument("--key FILE", "a node's public time key, one line; once per node", action="append", default=[]),
        JSON,
    ),
}
COMMANDS: Final = {"time": with_verbs("What this machine knows of the time.", _VERBS)}
