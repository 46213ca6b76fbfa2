"""``leasehold status``: whether the cluster works, as seen from this machine. A line for each thing, and what to do.

``tui/statuswatch.py`` has the command, and ``--watch``.
Exit codes as of `doctor`: 0 all is well; 1 something does not work; 3 it works, and something should be known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.opening import open_cluster
from timeagent.console import counted

if TYPE_CHECKING:
    import argparse

    from appliance.cluster import Cluster
    from appliance.doctor.check import Check
    from timeagent.errors import BadTime


def run_status(options: argparse.Namespace) -> int:
    """Look at time, daemon, shards and nodes."""
    from appliance.cli.doctor import told

    with open_cluster(options) as cluster:
        fields = {
            "root": str(cluster.root),
            "cluster": cluster.registers.cluster_id.hex(),
            "node": cluster.settings.node,
            "map": cluster.map.number,
        }
        checks = [*_time(cluster), *_keys(cluster), *_daemon(cluster), *_shards(cluster), *_nodes(cluster)]
        return told("leasehold.status", fields, checks, options)


def _time(cluster: Cluster) -> list[Check]:
    from appliance.cli.node import time_words
    from appliance.doctor.check import Verdict, unsure
    from appliance.doctor.machine import ASSUMED_WORDS, judge_clock
    from timeagent.errors import BadTime
    from timeagent.signedtime import TimeFlags

    try:
        radius, token = cluster.time.now().radius, cluster.time.token()
    except BadTime as problem:
        return [judge_clock(None, problem.message, "", cluster.policy.radius_ns_max)]
    source = ASSUMED_WORDS if token.flags & TimeFlags.ASSUMED else time_words(cluster)
    judged = judge_clock(radius, "", source, cluster.policy.radius_ns_max)
    silent = None if cluster.time_by_agent else _silent_agent(cluster)
    if silent is not None and judged.verdict is Verdict.PASS:
        reason = f"{judged.reason}; but {silent.message}: what began with it has no time meanwhile"
        return [unsure("clock", reason, silent.hint)]
    return [judged]


def _keys(cluster: Cluster) -> list[Check]:
    from appliance.doctor.check import failed, passed
    from timeagent.errors import NotTrusted

    try:
        cluster.check_trusted_now()
    except NotTrusted as problem:
        return [failed("keys", problem.message, problem.hint)]
    return [passed("keys", f"those of {cluster.settings.node} count")]


def _silent_agent(cluster: Cluster) -> BadTime | None:
    """Return what there is to say of an agent that ran here and does not answer; None where none was, or it does."""
    from appliance.cluster import runtime_of
    from timeagent.errors import BadTime
    from timeagent.noncedoor import DOOR_NAME, NonceClient

    runtime = runtime_of(cluster.settings, cluster.registers.cluster_id)
    if not (runtime / DOOR_NAME).exists():
        return None
    try:
        NonceClient(runtime).report()
    except BadTime as problem:
        return problem
    return None


def _daemon(cluster: Cluster) -> list[Check]:
    from appliance.cli.daemon import asked, standing_still
    from appliance.doctor.check import failed, passed, unsure

    answer = asked(cluster.settings, cluster.registers.cluster_id, "/readyz")
    node = cluster.settings.node
    if answer is None:
        who = standing_still(cluster.settings, cluster.registers.cluster_id)
        if who is not None:
            way_out = "does it only start, or get no processor time? One that stands still: kill -9, and start it again"
            return [failed("daemon", f"{who} runs {node}, and does not answer", way_out)]
        return [unsure("daemon", f"none of {node} answers on this machine", "leasehold node run; systemctl status")]
    status, body = answer
    if status != 200:  # noqa: PLR2004 - OK
        said = "; ".join(body.decode("utf-8", "replace").split("\n")).strip("; ")
        way_out = "wait; journalctl -u says more"
        if "no usable time" in said:
            way_out = "leasehold time sources says why; one that began with a time agent needs it: leasehold time run"
        return [failed("daemon", f"{node} is not ready: {said}", way_out)]
    return [passed("daemon", f"{node} is ready")]


def _shards(cluster: Cluster) -> list[Check]:
    from appliance.doctor.check import failed, passed, unsure
    from timeagent.errors import ShardUnavailable

    found = []
    for shard, owner in enumerate(cluster.map.owners):
        name = f"shard {shard}"
        try:
            numbers = cluster.routes.numbers(shard)
        except ShardUnavailable as problem:
            found.append(failed(name, problem.message, problem.hint or f"leasehold node run, on {owner}"))
            continue
        stands = f"run by {numbers.node}, {counted(numbers.leases, 'lease')}"
        if numbers.node != owner:
            away = f"{stands}: its owner {owner} does not run it"
            found.append(unsure(name, away, f"start {owner} again; or leasehold shards move {shard} {numbers.node}"))
        else:
            found.append(passed(name, stands))
    return found


def _nodes(cluster: Cluster) -> list[Check]:
    from importlib.metadata import version

    from appliance.cli.daemon import running_release
    from appliance.cli.upgrade import releases
    from appliance.doctor.machine import judge_reached, judge_releases

    runs = running_release(cluster.settings, cluster.registers.cluster_id)
    known = releases(cluster, runs or version("leasehold"))
    others = {node: release for node, release in known.items() if node != cluster.settings.node}
    answers = [node for node, release in others.items() if release is not None]
    trust = cluster.watch_trust()
    silent = {node: str(trust.address_of(node)) for node, release in others.items() if release is None}
    return [judge_reached(answers, silent), judge_releases(known)]
