"""``tenure time verify REPORT``: judge a Roughtime malfeasance report, offline, with nothing but the report.

Exit codes: 0 the report proves that at least one of its servers was wrong; 1 all of it verifies and can be true; 3 part
of it does not verify, so it proves nothing; 65 it is no report.
"""

from __future__ import annotations

import base64
from typing import Final

from .console import instant_fields, note, print_json, say
from .keys import fingerprint
from .malfeasance import Consistent, Proven, Queried, Unverified, Verdict, accused, decode_report, judge
from .roughwire import RoughtimeAnswer
from .units import SECOND, rfc3339

_PROVEN: Final = 0
_CONSISTENT: Final = 1
_UNVERIFIED: Final = 3


def verify_report(data: bytes, where: str, *, as_json: bool) -> int:
    """Judge a report and say so; return the exit code. Raises Damaged, naming ``where``."""
    chain = decode_report(data, where)
    verdict = judge(chain)
    if as_json:
        print_json("tenure.time.verify.report", _fields(chain, verdict))
    else:
        _say(chain, verdict)
    match verdict:
        case Proven():
            return _PROVEN
        case Consistent():
            note("tenure: everything in it verifies, and all of it can be true: it accuses nobody")
            return _CONSISTENT
        case Unverified():
            note(f"tenure: response {verdict.position} does not verify: {verdict.reason}")
            return _UNVERIFIED


def _fields(chain: tuple[Queried, ...], verdict: Verdict) -> dict[str, object]:
    answers = () if isinstance(verdict, Unverified) else verdict.answers
    return {
        "verdict": {Proven: "proven", Consistent: "consistent", Unverified: "unverified"}[type(verdict)],
        "responses": [_answer_fields(each, answer) for each, answer in zip(chain, answers, strict=False)],
        "contradictions": [
            {"earlier": pair.earlier, "later": pair.later, "apart_ns": pair.apart_s * SECOND}
            for pair in (verdict.contradictions if isinstance(verdict, Proven) else ())
        ],
        "accused": [
            {"public_key": base64.b64encode(public).decode(), "contradictions": count}
            for public, count in (accused(chain, verdict) if isinstance(verdict, Proven) else ())
        ],
        "position": verdict.position if isinstance(verdict, Unverified) else None,
        "reason": verdict.reason if isinstance(verdict, Unverified) else None,
    }


def _answer_fields(each: Queried, answer: RoughtimeAnswer) -> dict[str, object]:
    return {
        "public_key": base64.b64encode(each.public).decode(),
        "fingerprint": fingerprint(each.public),
        "roughtime_version": answer.version,
        **instant_fields("earliest", max(0, answer.interval.earliest)),
        **instant_fields("latest", answer.interval.latest),
    }


def _say(chain: tuple[Queried, ...], verdict: Verdict) -> None:
    if isinstance(verdict, Unverified):
        say(f"{len(chain)} responses; nothing is proven")
        return
    for position, (each, answer) in enumerate(zip(chain, verdict.answers, strict=True)):
        said = f"{rfc3339(answer.midpoint_s * SECOND)} ± {answer.radius_s} s"
        say(f"{position:3}  {base64.b64encode(each.public).decode()}  {said}")
    if isinstance(verdict, Consistent):
        say("consistent")
        return
    for pair in verdict.contradictions:
        say(f"response {pair.later} came after response {pair.earlier} and lies wholly before it, by {pair.apart_s} s")
    named = accused(chain, verdict)
    public, count = named[0]
    say(f"proven: at least one of {len(named)} servers was wrong")
    say(f"named in most of the contradictions ({count}): {base64.b64encode(public).decode()}")
