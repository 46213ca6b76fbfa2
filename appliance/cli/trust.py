"""``tenure trust`` and ``tenure policy``: the records that the root key signs, shown and changed."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Final

from appliance.cluster import Cluster
from timeagent import keys
from timeagent.clock import SystemClock
from timeagent.console import argument, command, counted, instant_fields, note, present, with_verbs
from timeagent.errors import BadConfiguration, BadRequest, Environment, NotTrusted
from timeagent.roughtime.server import DELEGATIONS_MAX, make_ahead, save_delegation
from timeagent.units import HOUR, SECOND, parse_instant, parse_span, rfc3339, span_text

from ..admin import trust
from ..admin.membership import accept, asked, let_in, request_path
from ..bag.roots import storage_at
from ..formats.names import parse_address
from .opening import EXIT_NO, JSON, ROOT_KEY, cluster_command, root_key
from .shards import WAIT, give_share

_PUBLIC_BYTES_MAX: Final = 65536
_OTHER_KEY: Final = re.compile(r"(?:time|witness|tls|root)(?:-[0-9]+)?\.key")
"""What a key file is called that is not for Roughtime. Only the name tells: one key is as good as another."""


def _list(cluster: Cluster, options: Namespace) -> int:
    record = cluster.registers.newest_trust()
    rows, lines = [], []
    for entry in record.keys:
        revoked = {} if entry.revoked_from_ns is None else instant_fields("revoked_from", entry.revoked_from_ns)
        rows.append(
            {
                "node": entry.node,
                "purpose": entry.purpose,
                "fingerprint": keys.fingerprint(entry.public),
                "key_id": keys.key_id(entry.public).hex(),
                "public": entry.public.hex(),
                **instant_fields("valid_from", entry.valid_from_ns),
                **instant_fields("valid_until", entry.valid_until_ns),
                **revoked,
                "address": entry.address,
            }
        )
        until = f"revoked from {revoked['revoked_from']}" if revoked else f"until {rfc3339(entry.valid_until_ns)}"
        where = f"  at {entry.address}" if entry.address else ""
        names = f"{keys.fingerprint(entry.public)}  id {keys.key_id(entry.public).hex()}"
        lines.append(f"{entry.node}  {entry.purpose:9}  {names}  {until}{where}")
    fields = {"number": record.number, "root_key": keys.fingerprint(cluster.settings.root_key), "keys": rows}
    return present(options, "tenure.trust", fields, *lines)


def _show(cluster: Cluster, options: Namespace) -> int:
    """Print the lines of a node's keys that count now, or will: a line for each, and nothing else on stdout."""
    record = cluster.registers.newest_trust()
    trust.check_known(record.keys, options.node)
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
        which = f"{options.purpose} key" if options.purpose else "key"
        what = f"the newest trust record has no {which} of {options.node} that counts now"
        raise NotTrusted("no-such-key", what, hint="tenure trust ls shows all keys")
    lines = [keys.public_line(entry.public, f"{entry.node}:{entry.purpose}") for entry in entries]
    fields = {"number": record.number, "node": options.node, "public": lines}
    return present(options, "tenure.trust-public", fields, *lines)


def _approve(cluster: Cluster, options: Namespace) -> int:
    """Let a machine in; without a fingerprint only say what it asks for."""
    storage = storage_at(cluster.root)
    there = let_in(cluster.registers, options.node)
    if there is not None and options.fingerprint == there.fingerprint:
        number = cluster.registers.newest_trust().number
        storage.unlink(request_path(options.node))  # as where this was cut off before
        if there.address is not None:
            give_share(cluster, root_key(cluster, options), options.node, parse_span(options.wait))
        return _said(options, options.node, number, f"{options.node} is let in already.")
    request = asked(storage, options.node)
    if options.fingerprint is None:
        at = f"  at {request.address}" if request.address else ""
        present(
            options,
            "tenure.trust-request",
            {
                "node": request.node,
                "fingerprint": request.fingerprint,
                "address": str(request.address) if request.address else None,
                "keys": {purpose: keys.fingerprint(each) for purpose, each in request.publics.items()},
            },
            *(f"{request.node}  {purpose:9}  {keys.fingerprint(each)}" for purpose, each in request.publics.items()),
            f"{request.node}  {'request':9}  {request.fingerprint}{at}",
        )
        note("tenure: nothing is approved: compare the request with what join says there, then give --fingerprint")
        return EXIT_NO
    key = root_key(cluster, options)
    number = accept(storage, cluster.registers, key, request, cluster.time.now().midpoint, options.fingerprint)
    if request.address is not None:
        give_share(cluster, key, options.node, parse_span(options.wait))
    return _said(options, options.node, number, f"{options.node} is let in.")


def _issue(cluster: Cluster, options: Namespace) -> int:
    publics = _public_lines(Path(options.public), options.node)
    key = root_key(cluster, options)
    now = cluster.time.now().midpoint
    number = trust.issue(cluster.registers, key, options.node, publics, now, overlap_ns=_overlap(options))
    words = " and ".join(publics)
    return _said(options, options.node, number, f"{options.node} has a new key for {words}.")


def _rotate(cluster: Cluster, options: Namespace) -> int:
    node, directory = cluster.settings.node, cluster.settings.directory
    # Those that are here: a long-term key may be elsewhere.
    here = [purpose for purpose in keys.Purpose if keys.newest_number(directory, purpose)]
    purposes = [keys.Purpose(each) for each in options.purpose or here]
    if not purposes:
        what = f"{directory} holds no key of {node}: they come as credentials, or are elsewhere"
        raise BadRequest("no-keys-here", what, hint="tenure trust issue believes keys that were made elsewhere")
    key = root_key(cluster, options) if options.root_key else None
    staged = keys.stage_keys(directory, purposes)
    newest = cluster.registers.newest_trust()
    number, known = newest.number, {entry.public for entry in newest.keys}
    unknown = {purpose: each.public for purpose, each in staged.items() if each.public not in known}
    if unknown and key is None:
        lines = [keys.public_line(public, f"{node}:{purpose}") for purpose, public in unknown.items()]
        present(options, "tenure.trust-staged", {"node": node, "public": lines}, *lines)
        issuing = f"tenure trust issue {node} --public FILE --root-key FILE"
        note(f"tenure: these keys are made and not in use yet. Where the root key is: {issuing}; then repeat this call")
        return EXIT_NO
    if unknown and key is not None:
        now = cluster.time.now().midpoint
        number = trust.issue(cluster.registers, key, node, unknown, now, overlap_ns=_overlap(options))
    keys.take_up(directory, purposes)
    words = " and ".join(purposes)
    note("tenure: running processes take them up within seconds; those that get keys as credentials start again")
    return _said(options, node, number, f"{node} uses a new key for {words}.")


def _revoke(cluster: Cluster, options: Namespace) -> int:
    key = root_key(cluster, options)
    from_ns = parse_instant(options.instant) if options.instant else cluster.time.now().midpoint
    what = f"no key of {options.node} counts"
    if options.key:
        known = cluster.registers.newest_trust().keys
        trust.check_known(known, options.node)
        entry = next((e for e in known if e.node == options.node and keys.fingerprint(e.public) == options.key), None)
        if entry is None:
            hint = "tenure trust ls shows fingerprints"
            raise NotTrusted("no-such-key", f"node {options.node} has no key {options.key}", hint=hint)
        number = trust.revoke_keys(cluster.registers, key, [entry.public], from_ns)
        what = f"the {entry.purpose} key {options.key} of {options.node} does not count"
    else:
        number = trust.revoke_node(cluster.registers, key, options.node, from_ns)
    return _said(options, options.node, number, f"{what} from {rfc3339(from_ns)} on.")


def _move(cluster: Cluster, options: Namespace) -> int:
    address = None if options.address == "none" else parse_address(options.address)
    number = trust.move_node(cluster.registers, root_key(cluster, options), options.node, address)
    where = f"answers at {address}" if address else "answers no other node"
    return _said(options, options.node, number, f"{options.node} {where}.")


def _delegate(options: Namespace) -> int:
    """Make online keys: needs no cluster, no network and no mount."""
    span, each = parse_span(options.span), parse_span(options.each)
    if not (each >= HOUR and 0 < span <= DELEGATIONS_MAX // 2 * each):
        what = f"keys of {options.each} for {options.span}: an hour each at least, and not above {DELEGATIONS_MAX} keys"
        raise BadRequest("bad-delegation-span", what, hint="say --for 365d --each 30d")
    file = Path(options.roughtime_key)
    if _OTHER_KEY.fullmatch(file.name):
        what = f"{file} is by its name a key for something else, and a key has one purpose"
        raise BadRequest("wrong-purpose", what, hint="name the node's roughtime.key")
    long_term = keys.load_private_key(file)
    place = Path(options.out)
    try:
        keys.make_private(place)
    except OSError as problem:
        raise Environment("unwritable", f"cannot make {place}: {problem.strerror}", hint="name another --out") from None
    made = list(make_ahead(long_term, SystemClock().realtime_ns(), span_ns=span, each_ns=each))
    paths = [save_delegation(place, online) for online in made]
    until = made[-1].until_s * SECOND
    fields = {"files": [str(path) for path in paths], **instant_fields("until", until)}
    words = f"{counted(len(paths), 'online key')} in {place}, until {rfc3339(until)}."
    return present(options, "tenure.trust-delegated", fields, words)


def _said(options: Namespace, node: str, number: int, text: str) -> int:
    return present(options, "tenure.trust-changed", {"number": number, "node": node}, f"Trust record {number}: {text}")


def _overlap(options: Namespace) -> int:
    overlap = trust.KEY_OVERLAP_NS if options.overlap is None else parse_span(options.overlap)
    if overlap < 0:
        raise BadRequest("bad-overlap", f"an overlap of {options.overlap} is below 0", hint="say 0s, or 1d")
    return overlap


def _public_lines(path: Path, node: str) -> dict[keys.Purpose, bytes]:
    """Read one public key for each purpose. Raises BadRequest for lines that are not of this node."""
    try:
        with path.open("rb") as file:
            text = file.read(_PUBLIC_BYTES_MAX).decode("ascii", "replace")
    except OSError as problem:
        raise BadRequest("unreadable", f"cannot read {path}: {problem.strerror}", hint="check the path") from None
    publics: dict[keys.Purpose, bytes] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        owner, _, purpose = line.rpartition(" ")[2].partition(":")
        if owner != node or purpose not in list(keys.Purpose) or keys.Purpose(purpose) in publics:
            what = f"{path}: {line[:160]!r} does not end in {node}:PURPOSE, or names a purpose twice"
            hint = f"purposes are {', '.join(keys.Purpose)}; tenure trust rotate prints such lines"
            raise BadRequest("bad-public-line", what, hint=hint)
        publics[keys.Purpose(purpose)] = keys.parse_public_line(line, str(path))
    if not publics:
        raise BadRequest("no-public-line", f"{path} holds no key", hint="tenure trust rotate prints such lines")
    return publics


_NUMBERS: Final = {
    "span_ns": "span of the bags of logs that are made from now on",
    "grace_ns": "how long after its end a bag of such a log stays open",
    "rack_ns": "length of a rack of such a log",
    "seal_delay_ns": "from a rack's end to its sealing",
    "radius_ns_max": "a clock known less well neither grants nor writes",
    "assumed_radius_ns": "radius of a clock that nothing measures; 0: none",
    "r1_tolerance_ns": "how far a timestamp may be from its signed time",
    "lease_term_max_ns": "longest term of a lease",
    "renew_period_ns": "how often a holder renews",
    "holder_margin_ns": "how long before the expiry a holder stops",
    "attempt_timeout_ns": "how long one request to a shard may take",
    "batch_ns_max": "how long a writer may gather messages",
    "ceiling_ahead_ns": "how far beyond the longest term a ceiling lies",
    "ceiling_period_ns": "how often a ceiling is extended",
}


def _option(name: str) -> str:
    """Return a number's name on the command line: ``radius_ns_max`` is ``radius-max``."""
    return name.replace("_ns", "").replace("_", "-")


def _show_policy(cluster: Cluster, options: Namespace) -> int:
    newest = cluster.registers.newest_policy()
    number = newest.number if options.number is None else options.number
    if not 1 <= number <= newest.number:
        hint = f"they are numbered from 1 to {newest.number}"
        raise BadRequest("no-such-policy", f"there is no policy {number}", hint=hint)
    policy = cluster.registers.policy(number)
    rows = {name: (getattr(policy, name), what) for name, what in _NUMBERS.items()} | {
        "takeover_ns": (policy.takeover_ns(), "a holder died: its domains are blocked so long, at most"),
        "restart_ns": (policy.restart_ns(), "a shard crashed: all its domains are; one stopped in order blocks none"),
    }
    return present(
        options,
        "tenure.policy",
        {"number": number} | {name: span for name, (span, _) in rows.items()} | {"newest": newest.number},
        f"policy {number}" + ("" if number == newest.number else f" of {newest.number}"),
        *(f"  {_option(name):16}  {span_text(span):>9}  {what}" for name, (span, what) in rows.items()),
    )


def _set_policy(cluster: Cluster, options: Namespace) -> int:
    changes = {name: parse_span(text) for name in _NUMBERS if (text := getattr(options, name)) is not None}
    if not changes:
        raise BadRequest("nothing-to-set", "no number is named", hint="tenure policy show names them all")
    if options.root_key is None and not options.dry_run:
        hint = "say --root-key FILE; with --dry-run nothing is changed"
        raise BadRequest("no-root-key", "the root key signs a policy", hint=hint)
    key = options.root_key and root_key(cluster, options)
    before = cluster.registers.newest_policy()
    try:
        policy = trust.next_policy(before, changes)
    except BadConfiguration as problem:  # names the record's entries
        told = re.sub(r"\w+_ns(_max)?", lambda entry: f"--{_option(entry[0])}", problem.message)
        raise BadConfiguration(problem.code, told, hint=problem.hint) from None
    changed = {name for name in changes if getattr(before, name) != getattr(policy, name)}
    if changed and not options.dry_run:
        trust.publish_policy(cluster.registers, key, policy)
    said = {name: (getattr(before, name), getattr(policy, name)) for name in sorted(changed)}
    words = [f"{_option(name)} {span_text(was)} -> {span_text(now)}" for name, (was, now) in said.items()]
    present(
        options,
        "tenure.policy-changed",
        {
            "number": policy.number,
            "dry_run": options.dry_run,
            "changed": {name: {"before_ns": was, "after_ns": now} for name, (was, now) in said.items()},
            "takeover_ns": policy.takeover_ns(),
        },
        f"Policy {policy.number}{' would be' if options.dry_run else ''}: {', '.join(words)}."
        if changed
        else f"Policy {before.number} says so already: nothing is changed.",
    )
    if not options.json and before.takeover_ns() != policy.takeover_ns():
        note(f"tenure: a dead holder's domains are blocked for {span_text(policy.takeover_ns())} at most")
    return 0


_NODE: Final = argument("node NODE")
_PURPOSES: Final = [str(purpose) for purpose in keys.Purpose]
_OVERLAP: Final = argument("--overlap SPAN", "how long the earlier keys stay valid beside the new ones (default: 1d)")
_TRUST_VERBS: Final = {
    "ls": cluster_command("every key of the newest trust record", _list),
    "show": cluster_command(
        "a node's public keys, as lines that --public and --key take",
        _show,
        _NODE,
        argument("--purpose", "only this key", choices=_PURPOSES),
    ),
    "approve": cluster_command(
        "let in a machine that asks with `tenure join`",
        _approve,
        argument("--fingerprint SHA256:...", "of the request, as join says it there"),
        _NODE,
        WAIT,
        ROOT_KEY,
    ),
    "issue": cluster_command(
        "believe keys that were made elsewhere, in place of a node's earlier ones",
        _issue,
        _NODE,
        ROOT_KEY,
        argument("--public FILE", "lines `ssh-ed25519 AAAA... NODE:PURPOSE`, as rotate prints", required=True),
        _OVERLAP,
    ),
    "rotate": cluster_command(
        "make this node's next keys and use them",
        _rotate,
        argument("--root-key FILE", "the cluster's root key"),
        argument("--purpose", "only these keys (default: all that are here)", action="append", choices=_PURPOSES),
        _OVERLAP,
    ),
    "revoke": cluster_command(
        "believe nothing that a node or a key signs from an instant on",
        _revoke,
        _NODE,
        ROOT_KEY,
        argument("--key SHA256:...", "only this key, by its fingerprint (default: all)"),
        argument("--from INSTANT", "from then on, in RFC 3339 (default: now)", dest="instant"),
    ),
    "move": cluster_command(
        "say where a node answers other nodes",
        _move,
        _NODE,
        ROOT_KEY,
        argument("address HOST[:PORT]", "or `none`: it answers nobody"),
    ),
    "delegate": command(
        "make online Roughtime keys ahead, where the long-term key is",
        _delegate,
        argument("--roughtime-key FILE", "the long-term key: roughtime.key", required=True),
        argument("--out DIR", "write them there: roughtime/ of the node", required=True),
        argument("--for SPAN", "for so long (default: 365d)", dest="span", default="365d"),
        argument("--each SPAN", "each key for so long (default: 30d)", default="30d"),
        JSON,
    ),
}
_POLICY_VERBS: Final = {
    "show": cluster_command(
        "the policy's numbers, and what they come to",
        _show_policy,
        argument("--number N", "an earlier one (default: the newest)", type=int),
    ),
    "set": cluster_command(
        "publish the next policy, which running processes take up by themselves",
        _set_policy,
        *(argument(f"--{_option(name)} SPAN", words, dest=name) for name, words in _NUMBERS.items()),
        argument("--root-key FILE", "the cluster's root key"),
        argument("--dry-run", "only say what would change; needs no root key"),
    ),
}
COMMANDS: Final = {
    "trust": with_verbs("The keys that the cluster believes, and changing that.", _TRUST_VERBS),
    "policy": with_verbs("The numbers that the whole cluster shares.", _POLICY_VERBS),
}
