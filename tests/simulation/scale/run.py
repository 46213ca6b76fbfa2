"""What a cluster asks of the mount: predicted beside simulated beside measured (docs/scaling.md).

    python -m tests.simulation.scale.run --nodes 30                 simulate ten minutes; a row, judged by the model
    python -m tests.simulation.scale.run --nodes 300 --minutes 60   the same of 300 nodes and 10,000 clients for an hour
    python -m tests.simulation.scale.run --nodes 3 --measure        daemons and clients on a directory of this machine
    python -m tests.simulation.scale.run --write ROWS               rows of earlier runs into document and picture
    python -m tests.simulation.scale.run --mutant NAME              plant a needless step; has to end with 1

A row is a line of JSON on stdout. Exit 1: it is not what the model says, by more than --within (default 0.05; 0.15 of a
measured one).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from tests.simulation.cluster import UNTUNED
from tests.simulation.scale import measured, model
from tests.simulation.scale.cast import Cast, Load
from tests.simulation.scale.mutants import MUTANTS, plant_needless
from timeagent.units import MINUTE, MS, SECOND

if TYPE_CHECKING:
    from appliance.formats.policy import Policy

DOCS: Final = Path(__file__).parents[3] / "docs"
BEGINS: Final = "<!-- rows: written by python -m tests.simulation.scale.run --write -->"
ENDS: Final = "<!-- end of rows -->"
RADIUS_NS: Final = 20 * MS
STYLE: Final = """<style>
text { font-family: "DejaVu Sans", Helvetica, Arial, sans-serif; font-size: 12px; fill: #111 }
.title { font-size: 16px; font-weight: bold } .small { font-size: 10.5px }
.axis { stroke: #999; stroke-width: 0.6 } .line { stroke: #111; fill: none }
.simulated { fill: #fff; stroke: #111; stroke-width: 1.4 } .measured { fill: #b00000; stroke: #b00000 }
</style>"""
LEGEND: Final = "33 clients a node; line: predicted, circles: simulated, squares: measured, by share of its prediction"
FEW: Final = 1.0
"""So many calls a second are allowed to be there or not, whatever the share: a rack's round here or there."""


def typical(nodes: int) -> Load:
    """Return a load that grows with the nodes: 300 of them have 10,000 clients, 30 logs in use and 300 idle ones."""
    return Load(
        nodes, idle_logs=nodes, used_logs=max(1, nodes // 10), writers=max(1, nodes // 3), clients=10_000 * nodes // 300
    )


def simulated(load: Load, minutes: int, *, whole: bool = True, deaths: int = 0) -> dict[str, Any]:
    """Run a cast in which so many nodes die; return its row."""
    cast = Cast(load, minutes * MINUTE, whole=whole, deaths=deaths).run()
    lags = sorted(cast.lags)
    return {
        "how": "simulated",
        "load": msgspec.to_builtins(load),
        "minutes": minutes,
        "predicted": model.calls_s(load, UNTUNED),
        "found": cast.rates,
        "bytes_predicted": model.bytes_s(load, UNTUNED) if whole else {},
        "bytes": {kind: count / minutes / 60 for kind, count in cast.bytes.items()},
        "lag_s": [each / SECOND for each in (lags[0], lags[len(lags) // 2], lags[-1])] if lags else [],
        "recovery_s": sorted((each.begun_ns - each.died_ns) / SECOND for each in cast.recoveries),
    }


def complaints(row: dict[str, Any], policy: Policy, within: float) -> list[str]:
    """Return where a row is not what the model says."""
    said = [
        f"{kind}: {row[found].get(kind, 0):.4g} {unit}, not {expected:.4g}"
        for found, predicted, unit in (("found", "predicted", "calls/s"), ("bytes", "bytes_predicted", "bytes/s"))
        for kind, expected in row[predicted].items()
        if abs(row[found].get(kind, 0) - expected) > max(within * expected, FEW)
    ]
    bounds = {"lag_s": model.lag_ns(policy, RADIUS_NS), "recovery_s": model.recovery_ns(policy, RADIUS_NS)}
    for name, (low, high) in bounds.items():
        said += [
            f"{name}: {each:.2f}, not {low / SECOND:.2f} to {high / SECOND:.2f}"
            for each in row.get(name, ())
            if not low <= each * SECOND <= high
        ]
    return said


def write(rows: list[dict[str, Any]]) -> None:
    """Write rows into the document, and draw the picture."""
    rows.sort(key=lambda row: (row["how"], row["load"]["nodes"]))
    kinds = list(rows[0]["predicted"])
    lines = [
        f"| nodes, clients | how | {' | '.join(kinds)} | all | horizon lag, s | a dead node's shards begin after, s |",
        "|---|---|" + "---|" * (len(kinds) + 3),
    ]
    for row in rows:
        load, lag, back = row["load"], row.get("lag_s", []), row.get("recovery_s", [])
        for how, values, times in (("predicted", row["predicted"], False), (row["how"], row["found"], True)):
            cells = [f"{values.get(kind, 0):,.0f}" for kind in kinds] + [f"{sum(values.values()):,.0f}"]
            cells += [" to ".join(f"{each:.1f}" for each in (lag[0], lag[-1])) if times and lag else ""]
            cells += [" to ".join(f"{each:.1f}" for each in (back[0], back[-1])) if times and back else ""]
            minutes = f", {row['minutes']} min" if times else ""
            lines.append(f"| {load['nodes']}, {load['clients']:,} | {how}{minutes} | {' | '.join(cells)} |")
    document = DOCS / "scaling.md"
    text = document.read_text(encoding="utf-8")
    begin, end = text.index(BEGINS) + len(BEGINS), text.index(ENDS)
    body = "\n".join(lines)
    document.write_text(f"{text[:begin]}\n{body}\n{text[end:]}", encoding="utf-8")
    (DOCS / "pictures" / "scaling.svg").write_text(picture(rows), encoding="utf-8")


def picture(rows: list[dict[str, Any]]) -> str:
    """Draw calls a second by number of nodes, both in powers of ten: the model as a line, what was found as points."""
    left, top, width, height = 70.0, 60.0, 560.0, 300.0

    def at(nodes: float, calls: float) -> tuple[float, float]:
        return left + width * math.log10(nodes) / 3, top + height * (1 - (math.log10(calls) - 1) / 4)

    def of(load: Load) -> float:
        return sum(model.calls_s(load, UNTUNED).values())

    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="680" height="420" viewBox="0 0 680 420" role="img">',
        "<title>calls of storage verbs a second, by number of nodes</title>",
        STYLE,
        '<rect width="680" height="420" fill="#fff"/>',
        '<text x="12" y="26" class="title">calls of storage verbs a second, by number of nodes</text>',
        f'<text x="12" y="44" class="small">{LEGEND}</text>',
    ]
    for power in range(4):
        x, _ = at(10**power, 10)
        out += [f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + height}" class="axis"/>']
        out += [f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle" class="small">{10**power:,}</text>']
    for power in range(1, 6):
        _, y = at(1, 10**power)
        out += [f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" class="axis"/>']
        out += [f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" class="small">{10**power:,}</text>']
    points = (at(nodes, of(typical(nodes))) for nodes in (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000))
    out += [f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="line"/>']
    for row in rows:
        nodes, share = row["load"]["nodes"], sum(row["found"].values()) / sum(row["predicted"].values())
        x, y = at(nodes, share * of(typical(nodes)))
        if row["how"] == "measured":
            out += [f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" class="measured"/>']
        else:
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="simulated"/>']
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    """Run what is asked for, show it, judge it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--within", type=float, default=None)
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    parser.add_argument("--write", type=Path, metavar="ROWS")
    options = parser.parse_args()
    if options.write is not None:
        write([json.loads(line) for line in options.write.read_text(encoding="utf-8").splitlines()])
        return 0
    with pytest.MonkeyPatch.context() as patch:
        if options.mutant is not None:
            plant_needless(patch, options.mutant)
        if options.measure:
            row, policy = measured.row(options.nodes), measured.POLICY
        else:
            load = typical(options.nodes)
            whole, deaths = options.nodes <= measured.WHOLE_MAX, (options.nodes + 20) // 50
            row, policy = simulated(load, options.minutes, whole=whole, deaths=deaths), UNTUNED
    print(json.dumps(row))
    said = complaints(row, policy, options.within or (0.15 if options.measure else 0.05))
    for each in said:
        print(each, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
