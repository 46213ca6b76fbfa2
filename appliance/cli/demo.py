"""``tenure demo``: a cluster of several nodes on this machine, a power cut, a takeover, and the audit of it all."""

from __future__ import annotations

import os
import random
import tempfile
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from timeagent.clock import SystemClock
from timeagent.console import argument, command, counted, note, own_name, present, say
from timeagent.errors import BadRequest
from timeagent.units import MS, SECOND, span_text

from ..bag.roots import parse_root
from ..demo.director import FAULTS, Director, audit, plant, verify
from ..demo.machines import DemoPlace, set_up_place
from .opening import EXIT_NO

NODES_MIN: Final = 2
SECONDS_MIN: Final = 1
SECONDS_MAX: Final = 3600


def run_demo(options: Namespace) -> int:
    if options.nodes < NODES_MIN:
        too_few = f"--nodes {options.nodes}: a takeover needs at least {NODES_MIN}"
        raise BadRequest("too-few-nodes", too_few, hint=f"--nodes {NODES_MIN} or more")
    if not SECONDS_MIN <= options.seconds <= SECONDS_MAX:
        what = f"--seconds {options.seconds:g}: from {SECONDS_MIN} to {SECONDS_MAX} can be traded"
        raise BadRequest("bad-seconds", what, hint="leave it out for 8")
    directory = Path(options.directory or tempfile.mkdtemp(prefix="tenure-demo-")).absolute()
    root = parse_root(options.root) if options.root else None
    clock = SystemClock()
    seed = int.from_bytes(os.urandom(4), "big") if options.seed is None else options.seed
    randomness = random.Random(seed)  # noqa: S311 - who dies when; keys come from elsewhere
    keys = random.Random(os.urandom(32))  # noqa: S311 - as good as its seed, and for a cluster of minutes
    place = set_up_place(directory, options.nodes, clock.realtime_ns(), keys, root)
    tell, start = note if options.json else say, clock.boot_ns()

    def story(text: str) -> None:
        tell(f"{(clock.boot_ns() - start) / SECOND:5.1f} s  {text}")

    story(f"A cluster of {options.nodes} nodes over {place.root} (seed {seed}).")
    director = Director(place, clock, randomness, story, agents=options.agents)
    try:
        _course(director, options, randomness)
        return _judge(director, options)
    finally:
        director.discard()


def _course(director: Director, options: Namespace, randomness: random.Random) -> None:
    whole = int(options.seconds * SECOND)
    before = randomness.randrange(whole // 8, whole // 2 + 1)
    director.begin(options.fault)
    director.trade(before)
    director.cut_power()
    director.take_over()
    director.trade(whole - before)
    plant(options.fault, director, runs=True)
    director.finish()
    director.close()


def _judge(director: Director, options: Namespace) -> int:
    place = director.place
    acknowledged = {each for machine in director.machines for each in machine.acknowledged()}
    verdict = verify(place, acknowledged)
    same = f"Every node reads the same {verdict.transfers_read} transfers."
    director.narrate(same if verdict.nodes_agree else "The nodes do NOT read the same.")
    plant(options.fault, director, runs=False)
    status, report = audit(place)
    codes = sorted({finding["code"] for finding in report["findings"]})
    clean = report["summary"]["violations"] == 0 and report["summary"]["unverifiable"] == 0
    named = options.fault in codes if options.fault else clean
    good = verdict.good and named
    takeovers = director.course.takeover_ns
    fields: dict[str, Any] = asdict(verdict) | {
        "takeovers": len(takeovers),
        "audit": report["summary"],
        "audit_exit": status,
        "finding_codes": codes,
        "time": "agent" if director.course.time_by_agent else "embedded",
        "victim": director.course.victim,
        "takeover_ms": {domain: span // MS for domain, span in sorted(takeovers.items())},
        "fault": options.fault,
        "directory": str(place.directory),
    }
    present(options, "tenure.demo", fields, *_lines(place, fields, options.fault, good=good))
    return 0 if good else EXIT_NO


def _lines(place: DemoPlace, fields: dict[str, Any], fault: str | None, *, good: bool) -> list[str]:
    summary = fields["audit"]
    slowest = span_text(max(fields["takeover_ms"].values(), default=0) * MS)
    counts = f"lost {len(fields['lost'])}, doubled {fields['doubled']}"
    judged = (
        f"{counted(summary['messages'], 'message')}, {summary['witnesses']} witnesses, "
        f"{counted(summary['violations'], 'violation')}"
    )
    rows = [
        ("transfers acknowledged", f"{fields['transfers_acknowledged']}"),
        ("transfers in the record", f"{fields['transfers_read']}  ({counts})"),
        ("sum conserved", f"{'yes' if fields['sum_conserved'] else 'NO'}, lowest balance {fields['lowest_balance']}"),
        ("takeovers", f"{fields['takeovers']}, the slowest after {slowest}"),
        ("audit", judged),
        *(("", f"found: {code}") for code in fields["finding_codes"]),
    ]
    if fault:
        rows.append(("planted", f"{fault}: {'named by the audit' if fault in fields['finding_codes'] else 'MISSED'}"))
    place_of_node = f"--root {place.root} --node-dir {place.machines[0].directory}"
    superuser = " --allow-root" if os.geteuid() == 0 else ""
    held = f"The audit named the planted fault, {fault}; all promises held." if fault else "All promises held."
    tenure = own_name()
    return [
        "",
        *(f"  {label:24}{text}" for label, text in rows),
        "",
        held if good else "Something is WRONG: keep the directory, it holds the evidence.",
        "Try next:",
        f"  {tenure} audit {place.root}",
        f"  {tenure} read bank {place_of_node}{superuser} --json | head -3",
        f"  {tenure} top {'--offline ' * isinstance(place.root, Path)}{place.root}",
    ]


COMMANDS: Final = {
    "demo": command(
        "A cluster on this machine that you can break, then its audit.",
        run_demo,
        argument("directory DIR", "where to put it (default: a new directory)", nargs="?"),
        argument("--root", "the cluster's root: an empty directory, or s3://BUCKET/PREFIX (default: in DIR)", type=str),
        argument("--nodes N", "how many nodes (default 3)", type=int, default=3),
        argument("--seconds S", "how long to trade, about (default 8)", type=float, default=8.0),
        argument("--agents", "run a time agent on each node: time comes from there"),
        argument("--fault", "plant a fault that the audit must name", choices=FAULTS),
        argument("--seed", "repeat the random choices of another run: who dies, and when", type=int),
        argument("--json", "the result as one object; the story goes to stderr"),
    )
}
