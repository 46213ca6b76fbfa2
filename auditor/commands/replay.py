"""The command ``replay``: the state at an instant, step by step, and what if."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from auditor.audit import Options, audit, audit_with_timeline
from auditor.columns.events import AS_IT_WAS, BagClosed, Event, WhatIf, clock, event_fields, event_words
from auditor.evidence.opening import open_tree
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.timeline.report import SCHEMA, json_fields, newest_delivered, text_lines
from auditor.timeline.timeline_reader import Timeline, open_audited, reading_index
from auditor.timeline.what_if import Changes, changes, judged_timeline
from timeagent.console import Progress, argument, print_json, printable, say, say_all, together, whole_from
from timeagent.errors import BadRequest
from timeagent.units import parse_instant, parse_span, rfc3339

from .running import AuditProgress, path_arguments, pinned

CHANGES_SHOWN: Final = 20
STEPS_SHOWN_MAX: Final = 100_000

add_arguments: Final = together(
    path_arguments(index=False, needed=False),
    argument(
        "--db FILE",
        "the file of `audit --db`: without PATH no tree is needed; with PATH it is made, or brought up to date",
        type=Path,
    ),
    argument("--at T", "the instant: RFC 3339 in UTC, nanoseconds, start or end (default: end)"),
    argument("--from T", "with --step: where to begin (default: start)", dest="first"),
    argument("--to T", "with --step: where to end (default: end)", dest="last"),
    argument("--step", "one line per event, or per bag that was closed", choices=("event", "bag")),
    argument("--domain NAME", "follow one domain only"),
    argument("--log NAME", "with --step: one log only"),
    argument("--newest N", "show the last N messages delivered of each log", type=whole_from(1), default=0),
    argument("--drop-late", "what if: leave out what came after its bag was due"),
    argument("--shift NODE=SPAN", "what if: its clock had shown so much more (-: less)", action="append", default=[]),
    argument("--grace SPAN", "what if: bags had taken what was signed so long after their end"),
    argument("--json", "one JSON object instead of text"),
)


def run(arguments: argparse.Namespace) -> int:
    """Show the state at an instant, or the steps between two. Returns the exit code (docs/exit-codes.md)."""
    _check(arguments)
    lens = _lens(arguments)
    tree = None if arguments.path is None else open_tree(arguments.path, arguments.store)
    timeline, changed = _read(arguments, tree, lens)
    with closing(timeline), reading_index(arguments.db):
        end = timeline.state_at()
        unknown = sorted(set(lens.shifts) - set(end.clocks))
        if unknown:
            hint = f"its nodes: {', '.join(sorted(end.clocks)) or 'none'}"
            raise BadRequest("no-such-node", f"nothing in the tree is signed by {unknown[0]!r}", hint=hint)
        if arguments.domain is not None and end.domains.get(arguments.domain) is None:
            hint = "replay PATH lists them"
            raise BadRequest("no-such-domain", f"the tree tells of no lease on {arguments.domain!r}", hint=hint)
        if arguments.step:
            return _steps(arguments, timeline, changed)
        state = timeline.state_at(_instant(arguments.at or "end", timeline))
        delivered = {
            log: newest_delivered(timeline, state, tree, log, newest=arguments.newest, domain=arguments.domain)
            for log in state.logs
            if tree is not None
        }
        if arguments.json:
            fields = json_fields(state, delivered, domain=arguments.domain)
            print_json(SCHEMA, fields | _changed_fields(lens, changed))
        else:
            say_all(text_lines(state, delivered, domain=arguments.domain))
            say_all(_changed_lines(changed))
        return 0


def _read(arguments: argparse.Namespace, tree: Tree | None, lens: WhatIf) -> tuple[Timeline, Changes | None]:
    """Return the timeline: of a database, or of the tree as it was with its audit's findings, or through a lens."""
    root_key = pinned(arguments.root_key)
    if tree is None:
        audited = open_audited(arguments.db)
        # A key is checked, not used: all was verified by the one that the audit had.
        if root_key is not None and audited.audit.root_key != root_key:
            what = f"the audit that made {arguments.db} went by another root key"
            raise BadRequest("other-root-key", what, hint="audit the tree again, with --root-key and --db")
        return audited.timeline, None
    if lens.any:
        with Progress("replay") as line:
            judged = partial(
                judged_timeline,
                tree,
                root_key=root_key,
                signatures=Signatures(),
                progress=lambda done, path: line.show(done, printable(path)),
            )
            before, (timeline, after) = judged(AS_IT_WAS)[1], judged(lens)
            return timeline, changes(before, after)
    with AuditProgress() as progress:
        if arguments.db is None:
            return audit_with_timeline(tree, root_key=root_key, progress=progress.show_part)[1], None
        options = Options(jobs=0, index_file=arguments.db, timeline=True)
        audit(tree, root_key=root_key, options=options, progress=progress.show_part)
    return open_audited(arguments.db).timeline, None


def _check(arguments: argparse.Namespace) -> None:
    if arguments.path is None:
        if arguments.db is None:
            raise BadRequest("no-path", "there is no PATH to replay", hint="name a copy of a root, or --db FILE")
        needs_bytes = {"--newest": arguments.newest > 0, "--shift, --grace and --drop-late": _lens(arguments).any}
        for option in (name for name, named in needs_bytes.items() if named):
            hint = "name PATH too"
            raise BadRequest("needs-tree", f"an index alone is not enough for {option}: frames are read", hint=hint)
    if arguments.step is None and (arguments.first or arguments.last or arguments.log):
        raise BadRequest("no-step", "--from, --to and --log go with --step", hint="add --step event, or use --at")
    if arguments.step == "bag" and arguments.domain is not None:
        raise BadRequest("bag-of-domain", "a bag is no domain's: --step bag goes with --log", hint="use --step event")
    if arguments.step is not None and arguments.at:
        raise BadRequest("two-instants", "--at is one instant, --step goes over many", hint="use --from and --to")


def _lens(arguments: argparse.Namespace) -> WhatIf:
    shifts = {}
    for each in arguments.shift:
        node, equals, span = each.partition("=")
        if not equals or not node or not span:
            raise BadRequest("bad-shift", f"{each!r} is not NODE=SPAN", hint="write n1=+1.5s or n1=-200ms")
        sign = -1 if span[0] == "-" else 1
        shifts[node] = sign * parse_span(span[1:] if span[0] in "+-" else span)
    grace = None if arguments.grace is None else parse_span(arguments.grace)
    return WhatIf(shifts, grace, arguments.drop_late)


def _instant(text: str, timeline: Timeline) -> int:
    if text in ("start", "end"):
        return timeline.start_ns if text == "start" else timeline.end_ns
    return parse_instant(text)


def _steps(arguments: argparse.Namespace, timeline: Timeline, changed: Changes | None) -> int:
    first = _instant(arguments.first or "start", timeline)
    last = _instant(arguments.last or "end", timeline)
    if first > last:
        hint = "exchange the two"
        raise BadRequest("empty-range", f"--from {rfc3339(first)} lies after --to {rfc3339(last)}", hint=hint)
    known = sorted(timeline.state_at().logs)
    if arguments.log is not None and arguments.log not in known:
        hint = f"its logs: {', '.join(known) or 'none'}"
        raise BadRequest("no-such-log", f"the tree tells of no log {arguments.log!r}", hint=hint)
    chosen = _chosen(arguments, timeline, first, last)
    if arguments.json:
        steps = [_step_fields(timeline, position, event) for position, event in chosen]
        print_json(f"{SCHEMA}.steps", {"steps": steps} | _changed_fields(_lens(arguments), changed))
        return 0
    for position, event in chosen:
        say(f"{rfc3339(event.instant_ns)}  {event_words(event)}{_after(timeline, position, event)}")
    say_all(_changed_lines(changed))
    return 0


def _chosen(arguments: argparse.Namespace, timeline: Timeline, first: int, last: int) -> Iterator[tuple[int, Event]]:
    shown = 0
    for position, event in timeline.between(first, last, domain=arguments.domain, log=arguments.log):
        if arguments.step == "bag" and not isinstance(event, BagClosed):
            continue
        shown += 1
        if shown > STEPS_SHOWN_MAX:
            hint = "narrow it with --from, --to or --domain"
            raise BadRequest("too-many-steps", f"more than {STEPS_SHOWN_MAX:,} events", hint=hint)
        yield position, event


def _after(timeline: Timeline, position: int, event: Event) -> str:
    if not isinstance(event, BagClosed):
        return ""
    log = timeline.state_after(position).logs.get(event.log)
    return "" if log is None else f"; settled up to {clock(log.horizon_ns)}, {log.delivered} delivered"


def _step_fields(timeline: Timeline, position: int, event: Event) -> dict[str, Any]:
    fields = {"position": position, **event_fields(event)}
    if isinstance(event, BagClosed):
        log = timeline.state_after(position).logs.get(event.log)
        fields |= {"delivered": log.delivered if log else None, "horizon_ns": log.horizon_ns if log else None}
    return fields


def _changed_lines(changed: Changes | None) -> Iterator[str]:
    if changed is None:
        return
    yield ""
    more, fewer = len(changed.appear), len(changed.vanish)
    yield f"What if: {more} findings would be there that are not, {fewer} that are would not"
    for sign, findings in (("+", changed.appear), ("-", changed.vanish)):
        for each in findings[:CHANGES_SHOWN]:
            yield f"  {sign} {each.code}: {printable(each.explanation)}"
        if len(findings) > CHANGES_SHOWN:
            yield f"  {sign} … {len(findings) - CHANGES_SHOWN:,} more: --json"


def _changed_fields(lens: WhatIf, changed: Changes | None) -> dict[str, Any]:
    if changed is None:
        return {"what_if": None}
    return {
        "what_if": {
            "shift_ns": dict(sorted(lens.shifts.items())),
            "grace_ns": lens.grace_ns,
            "drop_late": lens.drop_late,
            "findings_more": [each.fields() for each in changed.appear],
            "findings_fewer": [each.fields() for each in changed.vanish],
        }
    }
