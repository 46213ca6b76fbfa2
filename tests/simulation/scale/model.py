"""What a cluster asks of the mount, reckoned from its size and its policy (docs/scaling.md says the same in words)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from appliance.bag import metronome
from appliance.daemon import failover, pace
from appliance.lease import sockets
from appliance.lease.ceiling import PRUNED_PER_LINK, RECORDS_KEPT
from appliance.lease.witness_ledger import GATHER_S
from timeagent.units import DAY, MS, SECOND

if TYPE_CHECKING:
    from appliance.formats.policy import Policy
    from tests.simulation.scale.cast import Load
    from timeagent.units import Span

WATCH_S: Final = 1.1
"""Each record is looked for after so long: a second, and a tenth in which nobody is heard."""
WATCHED_BY_DAEMON: Final = 3
"""Trust record, policy, map."""
WATCHED_BY_CLIENT: Final = 2
"""Trust record, policy."""
NAMED: Final = 2
"""Whoever signs a list names the newest trust record and policy, looked for at that moment."""
ROUND: Final = 7
"""Calls of a node for a log that it does not use, once a rack: two looks for the seal, and five where it is packed."""
SEALED: Final = 8
"""More calls of the one node that seals the rack."""
BAG: Final = 13.4
"""Calls for a bag of a log in use but for its files: closed, followed by the one who does, sealed, packed, swept."""
FLUSHED: Final = 12.9
"""Calls for a flush, with a file and a node of its own in that bag: written, followed, closed, packed, swept."""
LINKED: Final = 6
"""Calls for a ceiling record: two directories, the link, the look; one that is old is read and removed."""
CHECKED: Final = 2
"""Calls by which a daemon sees whether its shard's chain went on without it."""
RECORD_BYTES: Final = 305
RENEWAL_BYTES: Final = 461
"""Of a turn that renews one session lease, in the ledger."""
CEILING_BYTES: Final = 687
"""Of a turn that tells the ledger of a ceiling record."""


def appends_s(turns_s: float) -> float:
    """Return how often a ledger is appended to: a first block at once, then what has come within GATHER_S."""
    return 1 / (GATHER_S + math.exp(-turns_s * GATHER_S) / turns_s) if turns_s else 0.0


def extensions_s(policy: Policy) -> float:
    """Return how often a shard with leases out links a record: at the first tick after a period."""
    return SECOND / (policy.ceiling_period_ns + sockets.TICK_NS / 2)


def turns_s(load: Load, policy: Policy) -> float:
    """Return how many turns of a shard leave a block in its ledger each second."""
    sessions = load.clients / load.shards_there
    return sessions * SECOND / policy.renew_period_ns + (extensions_s(policy) if load.clients else 0)


def calls_s(load: Load, policy: Policy, flushes_s: float | None = None) -> dict[str, float]:
    """Return calls of verbs a second, by kind, of all together. ``flushes_s``: other than one of each writer."""
    rack_s, bags_s = policy.rack_ns / SECOND, load.used_logs * SECOND / policy.span_ns
    held = load.shards_there if load.clients else 0
    flushed = load.writers if flushes_s is None else flushes_s
    return {
        "records": (WATCHED_BY_DAEMON * load.nodes + WATCHED_BY_CLIENT * load.clients) / WATCH_S
        + NAMED * (bags_s + 2 * load.logs / rack_s),
        "names": load.nodes * SECOND / pace.NEW_LOGS_NS,
        "chains": load.shards_there * CHECKED * SECOND / failover.CHECK_NS + held * LINKED * extensions_s(policy),
        "ledgers": load.shards_there * appends_s(turns_s(load, policy)),
        "logs": load.logs * (ROUND * load.nodes + SEALED) / rack_s + BAG * bags_s + FLUSHED * flushed,
    }


def bytes_s(load: Load, policy: Policy) -> dict[str, float]:
    """Return bytes written a second to chains and ledgers; what applications write comes to it."""
    held = load.shards_there if load.clients else 0
    renewals_s = load.clients * SECOND / policy.renew_period_ns
    return {
        "chains": held * extensions_s(policy) * RECORD_BYTES,
        "ledgers": renewals_s * RENEWAL_BYTES + held * extensions_s(policy) * CEILING_BYTES,
    }


def files(load: Load, policy: Policy, kept: Span) -> dict[str, int]:
    """Return how many inodes there are at most, with packs that are kept for so long."""
    chain = 1 + RECORDS_KEPT + PRUNED_PER_LINK
    racks, seal = -(-kept // policy.rack_ns), 3  # its directory, prelock and seal stay for ever; then there is a pack
    open_ns = policy.rack_ns + metronome.DELAY_NS + metronome.STAGGER_NS + metronome.CALM_NS
    bags = -(-open_ns // policy.span_ns)
    return {
        "records": 3 + 1 + load.nodes + 1,
        "chains": load.shards_there * chain,
        "ledgers": 2 * load.shards_there,
        "racks": load.logs * racks * seal + load.used_logs * racks,
        "racks a day": load.logs * seal * DAY // policy.rack_ns,
        "open bags": load.used_logs * bags * 3 + load.writers * bags,
    }


def recovery_ns(policy: Policy, radius_ns: Span = 0, dead_before: int = 1) -> tuple[Span, Span]:
    """Return after how long a dead node's shard begins at its heir, where somebody asks for it: soonest and latest."""
    ahead = policy.lease_term_max_ns + policy.ceiling_ahead_ns
    probes = dead_before * policy.attempt_timeout_ns
    soonest = ahead - policy.ceiling_period_ns - 2 * sockets.TICK_NS + probes
    return soonest, ahead + 4 * radius_ns + 2 * failover.BEAT_NS + probes


def lag_ns(policy: Policy, radius_ns: Span = 0) -> tuple[Span, Span]:
    """Return how far the horizon of a log in use is behind the clock: soonest and latest."""
    beats = 2 * 100 * MS
    return policy.grace_ns, policy.grace_ns + policy.span_ns + pace.STAGGER_NS + beats + 4 * radius_ns
