"""``leasehold time now|sources|verify``: what this machine knows of the time, and what a signed time says.

Works without a cluster and without keys. Exit codes: 0; 1 a signature is not the key's; 3 nothing to verify with;
65 not a signed time; 75 no source has a bound.
"""

from __future__ import annotations

import argparse
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .canonical import DIGEST_BYTES
from .clock import MachineClock, SystemClock
from .console import Command, instant_fields, note, print_json, report_error, say
from .errors import BadRequest, BadTime, Damaged, Environment
from .interval import TimeInterval
from .keys import Verifier, fingerprint, parse_public_line
from .sampled import Look, SampledClock
from .signedtime import TOKEN_BYTES, ClockStatus, SignedTime, TimeFlags
from .sources.adjtimex import KernelSource
from .sources.assumed import AssumedSource
from .sources.port import Source
from .units import DAY, Span, parse_span, rfc3339, span_text

UNBOUNDED_RADIUS_NS: Final[Span] = DAY
"""What is shown where nothing is known: so wide that nobody mistakes it for a bound."""

_FILE_BYTES_MAX: Final = 65536
_DONE: Final = 0
_NO: Final = 1
_NOT_VERIFIED: Final = 3

type AssumedRadius = Callable[[], Span]
"""Asks for the radius that a cluster's policy states: 0 where it states none, or where there is no cluster."""


def time_command(
    assumed_radius_ns: AssumedRadius = lambda: 0,
    *,
    machine: MachineClock | None = None,
    sources: Callable[[MachineClock], list[Source]] = lambda machine: [KernelSource(machine)],
    add_options: Callable[[argparse.ArgumentParser], object] = lambda _: None,
) -> Command:
    """Return the word ``time``. ``sources`` are those that measure; an assumed one is asked last, if one is stated.

    ``add_options``: more options for ``now`` and ``sources``, by which ``assumed_radius_ns`` finds its cluster.
    """
    clock = machine if machine is not None else SystemClock()

    def run(options: argparse.Namespace) -> int:
        if options.verb == "verify":
            return _verify(options)
        asked = sources(clock)
        radius = _stated_radius(options, assumed_radius_ns)
        return _now(clock, asked, radius, options) if options.verb == "now" else _sources(clock, asked, radius, options)

    return Command("what this machine knows of the time", lambda parser: _add_arguments(parser, add_options), run)


def _add_arguments(parser: argparse.ArgumentParser, add_options: Callable[[argparse.ArgumentParser], object]) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="now|sources|verify")
    now = verbs.add_parser("now", help="the time, as an interval that holds it")
    sources = verbs.add_parser("sources", help="what each time source says, or why it says nothing")
    verify = verbs.add_parser("verify", help="read a signed time of 128 bytes, raw or in hex, and check its signature")
    for verb in (now, sources):
        verb.add_argument(
            "--assume-radius", metavar="SPAN", help="without a bound, take the clock to be this good: 250ms"
        )
        add_options(verb)
    verify.add_argument("file", metavar="FILE", help="the signed time; - for standard input")
    verify.add_argument("--key", metavar="FILE", help="the node's public time key, one ssh-ed25519 line")
    verify.add_argument("--over", metavar="HEX", help="the 32 bytes that a signed time of the nonce door covers")
    for verb in (now, sources, verify):
        verb.add_argument("--json", action="store_true", help="print one JSON object")


def _stated_radius(options: argparse.Namespace, assumed_radius_ns: AssumedRadius) -> Span:
    if options.assume_radius is None:
        return assumed_radius_ns()
    radius = parse_span(options.assume_radius)
    if not 0 < radius <= UNBOUNDED_RADIUS_NS:
        raise BadRequest(
            "bad-radius",
            f"a radius of {options.assume_radius!r} is not between 1 ns and {span_text(UNBOUNDED_RADIUS_NS)}",
            hint="state how far the clock can be off, such as 250ms",
        )
    return radius


# ---- now ----


def _now(machine: MachineClock, measuring: list[Source], radius: Span, options: argparse.Namespace) -> int:
    sources = [*measuring, AssumedSource(machine, radius)] if radius else measuring
    clock = SampledClock(machine, sources, radius_ns_max=UNBOUNDED_RADIUS_NS)
    look: Look | None = None
    problem: BadTime | None = None
    try:
        look = clock.look()
    except BadTime as refused:
        problem = refused
    now = look.now if look else TimeInterval.around(machine.realtime_ns(), UNBOUNDED_RADIUS_NS)
    fields: dict[str, Any] = {
        **instant_fields("earliest", now.earliest),
        **instant_fields("latest", now.latest),
        "radius_ns": now.radius,
        "bounded": look is not None,
        "status": _word(look.sample.status if look else ClockStatus.UNKNOWN),
        "source": look.sample.source if look else "none",
        "assumed": look is not None and look.sample.assumed,
        "refused": [{"source": name, "reason": reason} for name, reason in clock.refusals.items()],
    }
    if options.json:
        print_json("leasehold.time.now", fields)
    else:
        _say_now(now, fields)
    if problem is None:
        return _DONE
    return report_error(
        BadTime(
            problem.code,
            problem.message,
            hint="run chrony, or say how far the clock can be off: --assume-radius 250ms here, "
            "assumed_radius_ns in a cluster's policy",
        )
    )


def _say_now(now: TimeInterval, fields: dict[str, Any]) -> None:
    say(f"earliest  {rfc3339(now.earliest)}")
    say(f"latest    {rfc3339(now.latest)}")
    if fields["bounded"]:
        label = " (assumed: stated, not measured)" if fields["assumed"] else ""
        say(f"radius    {span_text(now.radius)}{label}")
    else:
        say("radius    unbounded: the machine's clock plus or minus a day")
    say(f"status    {fields['status']}")
    say(f"source    {fields['source']}")
    for refused in fields["refused"]:
        say(f"refused   {refused['source']}: {refused['reason']}")


# ---- sources ----


def _sources(machine: MachineClock, measuring: list[Source], radius: Span, options: argparse.Namespace) -> int:
    shown = [_source_fields(machine, source) for source in measuring]
    if radius:
        shown.append(_source_fields(machine, AssumedSource(machine, radius)))
    else:
        reason = "no radius is stated: --assume-radius, or assumed_radius_ns in a cluster's policy"
        shown.append(_unbounded("assumed", reason))
    if options.json:
        print_json("leasehold.time.sources", {"sources": shown})
        return _DONE
    for fields in shown:
        if fields["bounded"]:
            say(f"{fields['source']:8}  {fields['earliest']} .. {fields['latest']}")
            say(f"{'':8}  radius {span_text(fields['radius_ns'])}, {fields['status']}")
        else:
            say(f"{fields['source']:8}  no bound: {fields['reason']}")
    return _DONE


def _source_fields(machine: MachineClock, source: Source) -> dict[str, Any]:
    try:
        look = SampledClock(machine, [source], radius_ns_max=UNBOUNDED_RADIUS_NS).look()
    except BadTime:
        try:  # the source's own words, without those of the clock around it
            source.sample()
        except BadTime as problem:
            return _unbounded(source.name, str(problem))
        return _unbounded(source.name, "the clock was set while the source was read")
    return {
        "source": source.name,
        "bounded": True,
        **instant_fields("earliest", look.now.earliest),
        **instant_fields("latest", look.now.latest),
        "radius_ns": look.now.radius,
        "status": _word(look.sample.status),
        "assumed": look.sample.assumed,
        "reason": None,
    }


def _unbounded(name: str, reason: str) -> dict[str, Any]:
    nothing = instant_fields("earliest", None) | instant_fields("latest", None)
    status = _word(ClockStatus.UNKNOWN)
    rest = {"radius_ns": None, "status": status, "assumed": name == "assumed", "reason": reason}
    return {"source": name, "bounded": False, **nothing, **rest}


# ---- verify ----


def _verify(options: argparse.Namespace) -> int:
    token = SignedTime.decode(_token_bytes(options.file), _named(options.file))
    over = _digest(options.over)
    verdict, reason = _verdict(token, options.key, over)
    if options.json:
        print_json("leasehold.time.verify", _token_fields(token) | {"verified": verdict, "reason": reason})
    else:
        _say_token(token)
        say("signature {}".format({True: "good", False: "BAD", None: "not checked"}[verdict]))
    if reason:
        note(f"leasehold: {reason}")
    return {True: _DONE, False: _NO, None: _NOT_VERIFIED}[verdict]


def _verdict(token: SignedTime, key_file: str | None, over: bytes | None) -> tuple[bool | None, str]:
    nonce = bool(token.flags & TimeFlags.NONCE)
    if over is not None and not nonce:
        return False, "the signed time came by the page door: it covers no digest"
    if key_file is None:
        return None, "the signature was not checked: name the node's public time key with --key"
    if nonce and over is None:
        return None, "the signature was not checked: it covers a digest as well, to be given with --over"
    key = Verifier(parse_public_line(_read(key_file)[:4096].decode("ascii", "replace").strip(), key_file))
    if key.id != token.key_id:
        return (
            False,
            f"signed by key {token.key_id.hex()}, but {key_file} holds {key.id.hex()} ({fingerprint(key.public)})",
        )
    good = token.verified_by(key, over)
    return good, "" if good else f"the signature is not by the key in {key_file} over these bytes"


def _token_fields(token: SignedTime) -> dict[str, Any]:
    return {
        **instant_fields("earliest", token.interval.earliest),
        **instant_fields("latest", token.interval.latest),
        **instant_fields("midpoint", token.midpoint_ns),
        "radius_ns": token.radius_ns,
        "staleness_ns": token.staleness_ns,
        "status": _word(token.status),
        "assumed": bool(token.flags & TimeFlags.ASSUMED),
        "door": "nonce" if token.flags & TimeFlags.NONCE else "page",
        "sequence": token.sequence,
        "clock_epoch": token.clock_epoch,
        "key_id": token.key_id.hex(),
    }


def _say_token(token: SignedTime) -> None:
    fields = _token_fields(token)
    say(f"earliest  {fields['earliest']}")
    say(f"latest    {fields['latest']}")
    say(f"radius    {span_text(token.radius_ns)}" + (" (assumed: stated, not measured)" if fields["assumed"] else ""))
    say(f"status    {fields['status']}")
    say(f"door      {fields['door']}, at most {span_text(token.staleness_ns)} after signing")
    say(f"sequence  {token.sequence} of clock epoch {token.clock_epoch}")
    say(f"key       {fields['key_id']}")


def _token_bytes(file: str) -> bytes:
    data = _read(file)
    if len(data) == TOKEN_BYTES:
        return data
    text = "".join(data.decode("ascii", "replace").split())
    if set(text) <= set(string.hexdigits) and len(text) == 2 * TOKEN_BYTES:
        return bytes.fromhex(text)
    raise Damaged(
        "time-damaged",
        f"{_named(file)} has {len(data)} bytes: neither {TOKEN_BYTES} bytes nor {2 * TOKEN_BYTES} hexadecimal digits",
    )


def _digest(text: str | None) -> bytes | None:
    if text is None:
        return None
    if len(text) != 2 * DIGEST_BYTES or not set(text) <= set(string.hexdigits):
        raise BadRequest(
            "bad-digest", f"{text[:80]!r} is not {2 * DIGEST_BYTES} hexadecimal digits", hint="check --over"
        )
    return bytes.fromhex(text)


def _read(file: str) -> bytes:
    try:
        if file == "-":
            return sys.stdin.buffer.read(_FILE_BYTES_MAX)
        with Path(file).open("rb") as opened:
            return opened.read(_FILE_BYTES_MAX)
    except OSError as problem:
        raise Environment("unreadable", f"cannot read {file}: {problem.strerror}", hint="check the path") from None


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def _word(status: ClockStatus) -> str:
    return status.name.lower().replace("_", "-")


COMMANDS: Final = {"time": time_command()}
