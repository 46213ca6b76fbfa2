"""``tenure trust``: which keys the cluster believes, where its nodes answer, and changing that with the root key."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options, open_cluster, root_key
from timeagent.console import Command, counted, instant_fields, note, print_json, say
from timeagent.trust import Purpose
from timeagent.units import HOUR, SECOND, parse_instant, parse_span, rfc3339

if TYPE_CHECKING:
    from appliance.cluster import Cluster
    from timeagent.trust import KeyEntry

_PUBLIC_BYTES_MAX: Final = 65536


def _add_trust(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    ls = verbs.add_parser("ls", help="every key of the newest trust record")
    show = verbs.add_parser("show", help="a node's public keys, as lines that --public and --key take")
    approve = verbs.add_parser("approve", help="let in a machine that asks with `tenure join`")
    approve.add_argument("--fingerprint", metavar="SHA256:...", help="of the request, as join says it there")
    issue = verbs.add_parser("issue", help="believe keys that were made elsewhere, in place of a node's earlier ones")
    rotate = verbs.add_parser("rotate", help="make this node's next keys and use them")
    revoke = verbs.add_parser("revoke", help="believe nothing that a node or a key signs from an instant on")
    move = verbs.add_parser("move", help="say where a node answers other nodes")
    delegate = verbs.add_parser("delegate", help="make online Roughtime keys ahead, where the long-term key is")
    delegate.add_argument("--roughtime-key", metavar="FILE", required=True, help="the long-term key: roughtime.key")
    delegate.add_argument("--out", metavar="DIR", required=True, help="write them there: roughtime/ of the node")
    delegate.add_argument("--for", dest="span", metavar="SPAN", default="365d", help="for so long (default: 365d)")
    delegate.add_argument("--each", metavar="SPAN", default="30d", help="each key for so long (default: 30d)")
    delegate.add_argument("--json", action="store_true", help="machine-readable output")
    for verb in (show, approve, issue, revoke, move):
        verb.add_argument("node", metavar="NODE")
    for verb in (approve, issue, revoke, move, rotate):
        verb.add_argument("--root-key", metavar="FILE", required=verb is not rotate, help="the cluster's root key")
    issue.add_argument(
        "--public", metavar="FILE", required=True, help="lines `ssh-ed25519 AAAA... NODE:PURPOSE`, as rotate prints"
    )
    purposes = [str(purpose) for purpose in Purpose]
    rotate.add_argument(
        "--purpose", action="append", choices=purposes, help="only these keys (default: all that are here)"
    )
    show.add_argument("--purpose", choices=purposes, help="only this key")
    for verb in (issue, rotate):
        verb.add_argument(
            "--overlap", metavar="SPAN", help="how long the earlier keys stay valid beside the new ones (default: 1d)"
        )
    revoke.add_argument("--key", metavar="SHA256:...", help="only this key, by its fingerprint (default: all)")
    revoke.add_argument("--from", dest="instant", metavar="INSTANT", help="from then on, in RFC 3339 (default: now)")
    move.add_argument("address", metavar="HOST[:PORT]", help="or `none`: it answers nobody")
    for verb in (ls, show, approve, issue, rotate, revoke, move):
        add_cluster_options(verb)


def run_trust(options: argparse.Namespace) -> int:
    """Run one verb."""
    if options.verb == "delegate":
        return _delegate(options)
    verbs = {
        "ls": _list,
        "show": _show,
        "approve": _approve,
        "issue": _issue,
        "rotate": _rotate,
        "revoke": _revoke,
        "move": _move,
    }
    with open_cluster(options) as cluster:
        return verbs[options.verb](cluster, options)


def _list(cluster: Cluster, options: argparse.Namespace) -> int:
    from timeagent.keys import fingerprint, key_id

    record = cluster.registers.trust(cluster.registers.newest().trust)
    if options.json:
        keys = [
            {
                "node": entry.node,
                "purpose": entry.purpose,
                "fingerprint": fingerprint(entry.public),
                "key_id": key_id(entry.public).hex(),
                "public": entry.public.hex(),
                **instant_fields("valid_from", entry.valid_from_ns),
                **instant_fields("valid_until", entry.valid_until_ns),
                **({} if entry.revoked_from_ns is None else instant_fields("revoked_from", entry.revoked_from_ns)),
                "address": entry.address,
            }
            for entry in record.keys
        ]
        root = fingerprint(cluster.settings.root_key)
        print_json("tenure.trust", {"number": record.number, "root_key": root, "keys": keys})
        return 0
    for entry in record.keys:
        until = f"until {rfc3339(entry.valid_until_ns)}"
        if entry.revoked_from_ns is not None:
            until = f"revoked from {rfc3339(entry.revoked_from_ns)}"
        where = f"  at {entry.address}" if entry.address else ""
        names = f"{fingerprint(entry.public)}  id {key_id(entry.public).hex()}"
        say(f"{entry.node}  {entry.purpose:9}  {names}  {until}{where}")
    return 0


def _show(cluster: Cluster, options: argparse.Namespace) -> int:
    """Print the lines of a node's keys that count now, or will: a line for each, and nothing else on stdout."""
    from appliance.admin.trust import check_known
    from timeagent.clock import SystemClock
    from timeagent.errors import NotTrusted
    from timeagent.keys import public_line

    record = cluster.registers.trust(cluster.registers.newest().trust)
    check_known(record.keys, options.node)
    # No signed time is needed to read: a clock that nobody disciplines decides only what is shown.
    now = SystemClock().realtime_ns()
    entries = [
        entry
        for entry in record.keys
        if entry.node == options.node
        and options.purpose in (None, entry.purpose)
        and now < entry.valid_until_ns
        and (entry.revoked_from_ns is None or now < entry.revoked_from_ns)
    ]
    if not entries:
        raise NotTrusted(
            "no-such-key",
            f"the newest trust record has no {options.purpose or ''} key of {options.node} that counts now".replace(
                "  ", " "
            ),
            hint="tenure trust ls shows all keys",
        )
    lines = [public_line(entry.public, f"{entry.node}:{entry.purpose}") for entry in entries]
    if options.json:
        print_json("tenure.trust-public", {"number": record.number, "node": options.node, "public": lines})
    else:
        for line in lines:
            say(line)
    return 0


def _approve(cluster: Cluster, options: argparse.Namespace) -> int:
    """Let a machine in; without a fingerprint only say what it asks for."""
    from appliance.admin.joining import accept, asked, let_in
    from timeagent.keys import fingerprint

    from ..bag.posix import PosixStorage

    storage = PosixStorage(cluster.root)
    there = let_in(cluster.registers, options.node)
    if there is not None and options.fingerprint == there.fingerprint:
        number = cluster.registers.newest().trust
        return _said(options, options.node, number, f"Trust record {number}: {options.node} is let in already.")
    request = asked(storage, options.node)
    if options.fingerprint is None:
        if options.json:
            print_json("tenure.trust-request", {"node": request.node, "fingerprint": request.fingerprint})
        else:
            for purpose, public in request.publics.items():
                say(f"{request.node}  {purpose:9}  {fingerprint(public)}")
            say(
                f"{request.node}  {'request':9}  {request.fingerprint}"
                + f"  at {request.address}" * bool(request.address)
            )
        note("tenure: nothing is approved: compare the request with what join says there, then give --fingerprint")
        return 1
    key = root_key(cluster, options)
    number = accept(storage, cluster.registers, key, request, cluster.time.now().midpoint, options.fingerprint)
    return _said(options, options.node, number, f"Trust record {number}: {options.node} is let in.")


def _issue(cluster: Cluster, options: argparse.Namespace) -> int:
    from appliance.admin.trust import issue

    publics = _public_lines(Path(options.public), options.node)
    key = root_key(cluster, options)
    now = cluster.time.now().midpoint
    number = issue(cluster.registers, key, options.node, publics, now, overlap_ns=_overlap(options))
    words = " and ".join(publics)
    return _said(options, options.node, number, f"Trust record {number}: {options.node} has a new key for {words}.")


def _rotate(cluster: Cluster, options: argparse.Namespace) -> int:
    from appliance.admin.trust import issue
    from timeagent.keyfiles import newest_number, stage_keys, take_up
    from timeagent.keys import public_line

    node, directory = cluster.settings.node, cluster.settings.directory
    here = [purpose for purpose in Purpose if newest_number(directory, purpose)]  # a long-term key may be elsewhere
    purposes = [Purpose(each) for each in options.purpose or here]
    key = root_key(cluster, options) if options.root_key else None
    staged = stage_keys(directory, purposes)
    number = cluster.registers.newest().trust
    known = {entry.public for entry in cluster.registers.trust(number).keys}
    unknown = {purpose: each.public for purpose, each in staged.items() if each.public not in known}
    if unknown and key is None:
        lines = [public_line(public, f"{node}:{purpose}") for purpose, public in unknown.items()]
        if options.json:
            print_json("tenure.trust-staged", {"node": node, "public": lines})
        else:
            for line in lines:
                say(line)
        note(
            f"tenure: these keys are made and not in use yet. Where the root key is: tenure trust issue {node} "
            "--public FILE --root-key FILE; then repeat this call"
        )
        return 1
    if unknown:
        assert key is not None
        now = cluster.time.now().midpoint
        number = issue(cluster.registers, key, node, unknown, now, overlap_ns=_overlap(options))
    take_up(directory, purposes)
    words = " and ".join(purposes)
    note("tenure: running processes take them up within seconds; those that get keys as credentials start again")
    return _said(options, node, number, f"Trust record {number}: {node} uses a new key for {words}.")


def _revoke(cluster: Cluster, options: argparse.Namespace) -> int:
    from appliance.admin.trust import revoke_keys, revoke_node

    key = root_key(cluster, options)
    from_ns = parse_instant(options.instant) if options.instant else cluster.time.now().midpoint
    what = f"no key of {options.node} counts"
    if options.key:
        entry = _entry_named(cluster, options.node, options.key)
        number = revoke_keys(cluster.registers, key, [entry.public], from_ns)
        what = f"the {entry.purpose} key {options.key} of {options.node} does not count"
    else:
        number = revoke_node(cluster.registers, key, options.node, from_ns)
    return _said(options, options.node, number, f"Trust record {number}: {what} from {rfc3339(from_ns)} on.")


def _move(cluster: Cluster, options: argparse.Namespace) -> int:
    from appliance.admin.trust import move_node
    from appliance.formats.address import parse_address

    address = None if options.address == "none" else parse_address(options.address)
    number = move_node(cluster.registers, root_key(cluster, options), options.node, address)
    where = f"answers at {address}" if address else "answers no other node"
    return _said(options, options.node, number, f"Trust record {number}: {options.node} {where}.")


def _delegate(options: argparse.Namespace) -> int:
    """Make online keys: needs no cluster, no network and no mount."""
    from timeagent.clock import SystemClock
    from timeagent.errors import BadRequest, Environment
    from timeagent.keys import load_private_key
    from timeagent.roughtime.server import DELEGATIONS_MAX, make_ahead, save_delegation

    span, each = parse_span(options.span), parse_span(options.each)
    if not (each >= HOUR and 0 < span <= DELEGATIONS_MAX // 2 * each):
        raise BadRequest(
            "bad-delegation-span",
            f"keys of {options.each} for {options.span}: an hour each at least, and not above {DELEGATIONS_MAX} keys",
            hint="say --for 365d --each 30d",
        )
    long_term = load_private_key(Path(options.roughtime_key))
    place = Path(options.out)
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as problem:
        raise Environment("unwritable", f"cannot make {place}: {problem.strerror}", hint="name another --out") from None
    made = list(make_ahead(long_term, SystemClock().realtime_ns(), span_ns=span, each_ns=each))
    paths = [save_delegation(place, online) for online in made]
    until = made[-1].until_s * SECOND
    if options.json:
        print_json("tenure.trust-delegated", {"files": [str(path) for path in paths], **instant_fields("until", until)})
    else:
        say(f"{counted(len(paths), 'online key')} in {place}, until {rfc3339(until)}.")
    return 0


def _said(options: argparse.Namespace, node: str, number: int, text: str) -> int:
    if options.json:
        print_json("tenure.trust-changed", {"number": number, "node": node})
    else:
        say(text)
    return 0


def _overlap(options: argparse.Namespace) -> int:
    from appliance.admin.trust import KEY_OVERLAP_NS
    from timeagent.errors import BadRequest

    overlap = KEY_OVERLAP_NS if options.overlap is None else parse_span(options.overlap)
    if overlap < 0:
        raise BadRequest("bad-overlap", f"an overlap of {options.overlap} is below 0", hint="say 0s, or 1d")
    return overlap


def _public_lines(path: Path, node: str) -> dict[Purpose, bytes]:
    """Read one public key for each purpose. Raises BadRequest for lines that are not of this node."""
    from timeagent.errors import BadRequest
    from timeagent.keys import parse_public_line

    try:
        with path.open("rb") as file:
            text = file.read(_PUBLIC_BYTES_MAX).decode("ascii", "replace")
    except OSError as problem:
        raise BadRequest("unreadable", f"cannot read {path}: {problem.strerror}", hint="check the path") from None
    publics: dict[Purpose, bytes] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        owner, _, purpose = line.rpartition(" ")[2].partition(":")
        if owner != node or purpose not in list(Purpose) or Purpose(purpose) in publics:
            raise BadRequest(
                "bad-public-line",
                f"{path}: {line[:160]!r} does not end in {node}:PURPOSE, or names a purpose twice",
                hint=f"purposes are {', '.join(Purpose)}; tenure trust rotate prints such lines",
            )
        publics[Purpose(purpose)] = parse_public_line(line, str(path))
    if not publics:
        raise BadRequest("no-public-line", f"{path} holds no key", hint="tenure trust rotate prints such lines")
    return publics


def _entry_named(cluster: Cluster, node: str, name: str) -> KeyEntry:
    """Return the entry of a node's key. Raises BadRequest, NotTrusted where the newest trust record has no such."""
    from appliance.admin.trust import check_known
    from timeagent.errors import NotTrusted
    from timeagent.keys import fingerprint

    known = cluster.registers.trust(cluster.registers.newest().trust).keys
    check_known(known, node)
    for entry in known:
        if entry.node == node and fingerprint(entry.public) == name:
            return entry
    raise NotTrusted("no-such-key", f"node {node} has no key {name}", hint="tenure trust ls shows fingerprints")


COMMANDS: Final = {"trust": Command("The keys that the cluster believes, and changing that.", _add_trust, run_trust)}
