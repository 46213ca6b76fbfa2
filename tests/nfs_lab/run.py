"""``make nfs-lab``: play every scenario on real NFS, judge each, say what was shown.

    python -m tests.nfs_lab.run [--short] [--vers 4.2 --vers 3] [--only NAME ...] [--rounds N] [--no-agents]
    python -m tests.nfs_lab.run --measure | --rules | --quickstart [--vers 4.2 --vers 3]
    python -m tests.nfs_lab.run --write

Exit code 0: all promises held, or nothing could be tried, which is said loudly; 1: an objection. What was shown is kept
in the work directory, one JSON object a line; ``--write`` puts the newest of each row into docs/verification.md.
``--rules`` plays the rules of the simulator's mount on the kernel's; an objection is what the simulator never shows.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.nfs_lab import fileserver, power, stalls
from tests.nfs_lab.channel import MachineError
from tests.nfs_lab.lab import MOUNT, SQUASHED, Impossible, Lab, work_directory
from tests.nfs_lab.loopback import run_loopback
from tests.nfs_lab.mounted import play_rules
from tests.nfs_lab.newcomers import QUICKSTART, follow_readme
from tests.nfs_lab.referee import Referee
from tests.nfs_lab.rulebook import objections, simulated, write_rules
from tests.nfs_lab.rules import RULES
from tests.nfs_lab.scenario import Scenario, Stage
from tests.nfs_lab.share import REPOSITORY
from tests.nfs_lab.site import Site
from tests.nfs_lab.table import write_costs, write_table
from tests.nfs_lab.tellers import Tellers

SCENARIOS: Final = (*power.SCENARIOS[:4], *stalls.SCENARIOS, *fileserver.SCENARIOS, *power.SCENARIOS[4:])
SHOWN: Final = (*SCENARIOS, fileserver.WHOLE, QUICKSTART)
RESULTS: Final = "results.jsonl"
VERSIONS: Final = ("4.2", "3")
MEASURED_ROUNDS: Final = 60


class Narrator:
    """Says on stderr what goes on, with the seconds since the beginning."""

    def __init__(self) -> None:
        """Begin to count."""
        self._begun = time.monotonic()

    def __call__(self, text: str) -> None:
        """Say a line."""
        print(f"nfs-lab: {time.monotonic() - self._begun:6.0f} s  {text}", file=sys.stderr, flush=True)


def older_version(target: Path) -> Path | None:
    """Check out the newest commit with other code than this one, to be upgraded to; None: there is no history here."""
    if shutil.which("git") is None:
        return None
    words = ["git", "log", "-n", "2", "--format=%H", "--", "tenure", "appliance", "auditor", "timeagent", "tui"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    commits = done.stdout.split()
    if done.returncode or len(commits) < len(VERSIONS):
        return None
    target.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commits[1]], cwd=REPOSITORY, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    return target


def play(stage: Stage, referee: Referee, scenario: Scenario, say: Narrator) -> dict[str, Any]:
    """Play and judge one; return its row."""
    say(f"{scenario.name}: {scenario.title}")
    begun = time.monotonic()
    cuts = sum(machine.cuts for machine in stage.lab.machines.values())
    try:
        shown, objections = scenario.play(stage), []
    except MachineError as problem:
        shown, objections = "", [str(problem)]
        for node in stage.lab.nodes:
            if node.on:
                say(f"{node.name} said: {stage.site.journal(node)}")
    row: dict[str, Any] = {
        "scenario": scenario.name,
        "vers": stage.lab.vers,
        "engine": stage.lab.engine,
        "shown": shown,
    }
    if not objections:
        played = time.monotonic()
        found = referee.judge(scenario.may, scenario.must, anew=scenario.anew)
        say(f"{scenario.name}: judged in {time.monotonic() - played:.0f} s")
        objections = found.objections
        if objections:
            referee.keep_copy(work_directory() / "objected" / f"{scenario.name}-{stage.lab.vers}")
        row |= {
            "acknowledged": found.acknowledged,
            "read": found.read,
            "findings": dict(found.findings),
            "summary": found.summary,
        }
    row |= {
        "objections": objections,
        "seconds": round(time.monotonic() - begun),
        "cuts": sum(machine.cuts for machine in stage.lab.machines.values()) - cuts,
    }
    for objection in objections:
        say(f"OBJECTION: {objection}")
    counts = f"acknowledged {row.get('acknowledged')}, read {row.get('read')}, findings {row.get('findings')}"
    say(f"{scenario.name}: {shown}; {counts}")
    return row


def keep(row: dict[str, Any]) -> dict[str, Any]:
    """Keep a row in the work directory; return it."""
    with (work_directory() / RESULTS).open("a") as results:
        results.write(json.dumps(row) + "\n")
    return row


def measure_version(vers: str, say: Narrator) -> None:
    """Measure over one version of NFS, on the only client of a server; keep what was found."""
    with Lab(1, vers) as lab:
        site, node = Site(lab, agents=False), lab.nodes[0]
        lab.server.shell(f"chown 742:742 {SQUASHED}; chmod 2775 {SQUASHED}")
        site.install(node)
        site.command(node, f"init {MOUNT} --node alone")
        say(f"NFS {vers}: measuring, with nothing else at work")
        words = f"/opt/tenure/lab/measure.py --root {MOUNT} --rounds {MEASURED_ROUNDS}"
        found = json.loads(site.command(node, f"--program {words}", 3600))
    (work_directory() / f"measured-{vers}.json").write_text(json.dumps(found))


def judge_rules(vers: str, titles: list[str] | None, say: Narrator) -> list[str]:
    """Play the simulator's rules, or those of some titles, over one version of NFS; return what is not allowed."""
    kept = work_directory() / f"rules-{vers}.json"
    rules = tuple(rule for rule in RULES if titles is None or rule.title in titles)
    seen = play_rules(vers, say, rules)
    kept.write_text(json.dumps((json.loads(kept.read_text()) if kept.exists() else {}) | seen))
    found = [f"NFS {vers}: {objection}" for objection in objections(seen, simulated(rules))]
    for objection in found:
        say(f"OBJECTION: {objection}")
    return found


def run_version(
    vers: str, chosen: list[Scenario], rounds: int, say: Narrator, *, agents: bool = True
) -> list[dict[str, Any]]:
    """Play scenarios over one version of NFS, on one cluster."""
    work = work_directory()
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="version-", dir=work) as scratch:
        other = older_version(Path(scratch) / "other")
        lab = Lab(3, vers, versions={power.NEXT: other} if other else {})
    rows = []
    with lab:
        say(f"NFS {vers}: server and three clients are up")
        site = Site(lab, agents=agents)
        site.found()
        tellers = Tellers(site)
        tellers.open_accounts()
        tellers.start(*lab.nodes)
        stage, referee = Stage(lab, site, tellers), Referee(site, tellers, lab.run)
        tellers.await_progress(*lab.nodes)
        say("the cluster is founded and the bank is open")
        ordered = [(number, scenario) for number in range(rounds) for scenario in chosen]
        for number, scenario in (*ordered, (0, fileserver.WHOLE)):
            if scenario.name == "upgrade" and (other is None or number):
                continue
            row = play(stage, referee, scenario, say) | {"agents": agents}
            rows.append(keep(row))
            if row["objections"] and not row["shown"]:
                return rows  # nobody knows in what state it is
        site.stop(*lab.nodes)
    return rows


def summary(rows: list[dict[str, Any]]) -> str:
    """What it came to, in a line."""
    cuts, minutes = sum(row["cuts"] for row in rows), sum(row["seconds"] for row in rows) / 60
    bad = [row for row in rows if row["objections"]]
    per_version = {row["vers"]: 0 for row in rows}
    for row in rows:  # each counts from the beginning of its cluster
        per_version[row["vers"]] = max(per_version[row["vers"]], row.get("acknowledged", 0))
    return (
        f"{len(rows)} scenarios, {cuts} power cuts, {minutes:.0f} minutes of load, "
        f"{sum(per_version.values())} messages acknowledged, {len(bad)} with objections"
    )


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="nfs-lab")
    parser.add_argument("--short", action="store_true", help="a few scenarios, a few minutes")
    parser.add_argument("--vers", action="append", choices=VERSIONS, help="of NFS; repeatable (default: both)")
    parser.add_argument("--only", action="append", metavar="NAME", help="a scenario, or a rule's title; repeatable")
    parser.add_argument("--rounds", type=int, default=1, help="play all of them so often")
    parser.add_argument(
        "--no-agents", dest="agents", action="store_false", help="no time agent: each process asks the kernel"
    )
    parser.add_argument("--quickstart", action="store_true", help="only follow the README on fresh machines")
    parser.add_argument("--measure", action="store_true", help="only measure what operations cost")
    parser.add_argument("--rules", action="store_true", help="only play the rules of the simulator's mount")
    parser.add_argument(
        "--write", action="store_true", help="write the table of docs/verification.md from what was kept"
    )
    options = parser.parse_args()
    if options.write:
        work = work_directory()
        write_table(REPOSITORY / "docs" / "verification.md", work / RESULTS, SHOWN)
        costs = {vers: work / f"measured-{vers}.json" for vers in VERSIONS}
        write_costs(REPOSITORY / "docs" / "performance.md", costs)
        write_rules(REPOSITORY / "docs" / "nfs.md", work, VERSIONS)
        return 0
    names = {rule.title for rule in RULES} if options.rules else {scenario.name for scenario in SCENARIOS}
    if unknown := set(options.only or ()) - names:
        parser.error(f"nothing is called {', '.join(sorted(unknown))}; there are: {', '.join(sorted(names))}")
    if options.only:
        chosen = [scenario for scenario in SCENARIOS if scenario.name in options.only]
    else:
        chosen = [scenario for scenario in SCENARIOS if scenario.short or not options.short]
    faulthandler.register(signal.SIGUSR1)  # what it waits for, on stderr
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by the lab's exit, which leaves no machine behind
    say = Narrator()
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    try:
        for vers in options.vers or (VERSIONS[:1] if options.short else VERSIONS):
            if options.measure:
                measure_version(vers, say)
                continue
            if options.rules:
                broken += judge_rules(vers, options.only, say)
                continue
            if not options.quickstart:
                rows += run_version(vers, chosen, options.rounds, say, agents=options.agents)
            if options.quickstart or not (options.short or options.only):
                rows.append(keep(follow_readme(vers, say)))
    except Impossible as problem:
        return run_loopback(str(problem), say)
    say(f"{len(broken)} objections to the rules" if options.rules else summary(rows))
    return 1 if broken or any(row["objections"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
