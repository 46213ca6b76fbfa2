"""Our server as a process: one shard on a Unix socket, its ledger drained by a thread as in a node.

``python -m tests.bench.leases.served DIRECTORY NAME [--unsigned] [--term-s N] [--domains-max N]``; ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import random
import signal
from pathlib import Path
from threading import Thread

from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap
from appliance.lease.ceiling import CeilingChain, Extended, ShardIdentity
from appliance.lease.connection import ClientLimits
from appliance.lease.server import ShardServer
from appliance.lease.shard import DOMAINS_MAX, Shard
from appliance.lease.store import LeaseStore
from appliance.lease.witness_ledger import LedgerSpool
from tests.support.shards import MemoryChain
from tests.support.values import CLUSTER, TIME_KEY, WITNESS_KEY, trust_record
from timeagent.agent.bounded_clock import EmbeddedTime
from timeagent.clock import SystemClock
from timeagent.keys import Signer
from timeagent.sources.local import AssumedSource
from timeagent.trust import Keyring
from timeagent.units import MS, SECOND

KEYRING = Keyring(trust_record().keys)
LEDGER_BYTES_MAX = 256 * 1024 * 1024


def policy(term_s: int = 10) -> Policy:
    """The cluster's numbers for a benchmark: nothing but the longest term and the radius differ from the defaults."""
    return Policy(number=1, cluster_id=CLUSTER, assumed_radius_ns=5 * MS, lease_term_max_ns=term_s * SECOND)


def node_time(numbers: Policy) -> EmbeddedTime:
    """Time with a bound that is assumed, as a node without an agent has it."""
    clock = SystemClock()
    return EmbeddedTime(clock, [AssumedSource(clock, numbers.assumed_radius_ns)], TIME_KEY, radius_ns_max=250 * MS)


class ZeroSigner(Signer):
    """Signs with zeros: all of a shard's work but the signature."""

    def __init__(self) -> None:
        self.id = WITNESS_KEY.id

    def sign(self, context: str, payload: bytes) -> bytes:
        del context, payload
        return bytes(64)


class FileLedger:
    """Appends blocks to a file on tmpfs; begins it anew when it has grown large."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    def append(self, data: bytes) -> None:
        if self._file.tell() > LEDGER_BYTES_MAX:
            self._file.seek(0)
            self._file.truncate()
        self._file.write(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("name")
    parser.add_argument("--unsigned", action="store_true")
    parser.add_argument("--term-s", type=int, default=10)
    parser.add_argument("--domains-max", type=int, default=DOMAINS_MAX)
    options = parser.parse_args()
    numbers = policy(options.term_s)
    now = node_time(numbers)
    identity = ShardIdentity(CLUSTER, 1, 0, "node-a", bytes(8))
    spool = LedgerSpool(FileLedger(options.directory / f"{options.name}.ledger"))
    Thread(target=spool.run, daemon=True).start()
    shard = Shard(
        identity,
        ShardMap(number=1, cluster_id=CLUSTER, owners=("node-a",)),
        numbers,
        store=LeaseStore(options.directory / f"{options.name}.db"),
        chain=CeilingChain(MemoryChain(), now, WITNESS_KEY, numbers, identity),
        time=now,
        signer=ZeroSigner() if options.unsigned else WITNESS_KEY,
        ledger=spool,
        randomness=random.Random(),
        domains_max=options.domains_max,
    )
    assert isinstance(shard.start(), Extended)
    # One process of this machine is the whole load: the limits of one peer would be measured, not the shard.
    limits = ClientLimits(requests_per_second=10_000_000, burst=10_000_000)
    server = ShardServer(shard, options.directory / f"{options.name}.sock", limits=limits)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.run()


if __name__ == "__main__":
    main()
