"""The verdict on the simulator's rules: what the kernel's mounts showed must be among what the simulator shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tests.nfs_lab.rules import NOT_SHOWN, RULES
from tests.nfs_lab.simulated import allowed
from tests.nfs_lab.table import put

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.nfs_lab.rules import Rule

RULES_BEGIN: Final = "<!-- rules of the mount: written by python -m tests.nfs_lab.run --write -->"
RULES_END: Final = "<!-- end of rules of the mount -->"

type Seen = Mapping[str, Mapping[str, int]]
"""By the rule's title: how often each thing was seen."""


def objections(seen: Seen, may: Mapping[str, frozenset[str]]) -> list[str]:
    """Return what was seen and is not allowed, a line each; a rule of which nothing was seen is one too."""
    found = []
    for title, sights in may.items():
        if not seen.get(title):
            found.append(f"{title}: nothing was seen")
        found += [
            f"{title}: {sight!r} was seen {count} times, and the simulator never shows it"
            for sight, count in sorted(seen.get(title, {}).items())
            if sight not in sights
        ]
    return found


def simulated(rules: Sequence[Rule] = RULES) -> dict[str, frozenset[str]]:
    """Return what the simulator allows, by the rule's title."""
    return {rule.title: allowed(rule) for rule in rules}


def lines(versions: Mapping[str, Seen], may: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the table, and what it does not have. ``versions``: what was seen, by version of NFS."""
    found = [f"| rule | the simulator allows | {' | '.join(f'v{vers} showed' for vers in versions)} |"]
    found.append("|---" * (2 + len(versions)) + "|")
    for title, sights in may.items():
        cells = [" / ".join(sorted(sights))]
        for seen in versions.values():
            shown = [
                f"{'' if sight in sights else 'NOT ALLOWED: '}{sight} ({count})"
                for sight, count in sorted(seen.get(title, {}).items())
            ]
            cells.append(" / ".join(shown) or "not run")
        found.append(f"| {title} | {' | '.join(cells)} |")
    bad = sum("NOT ALLOWED" in line for line in found)
    found += ["", f"Rules of which something was seen that the simulator does not allow: {bad}. Not played:", ""]
    return found + [f"- {name.replace('_', ' ')}: {why}" for name, why in NOT_SHOWN.items()]


def write_rules(document: Path, work: Path, versions: tuple[str, ...]) -> None:
    """Put what was kept of the newest run of each version into the document, if there is any."""
    files = {vers: work / f"rules-{vers}.json" for vers in versions}
    seen = {vers: json.loads(file.read_text()) if file.exists() else {} for vers, file in files.items()}
    if any(seen.values()):
        put(document, RULES_BEGIN, RULES_END, lines(seen, simulated()))
