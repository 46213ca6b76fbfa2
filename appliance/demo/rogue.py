"""Processes of the demo that break a rule on purpose: ``python -m appliance.demo.rogue WHAT``. Started by ``director``.

- ``late-writer``: an honest application on a machine that is paused just before its message appears, for longer than
  its lease and the closing of the bag;
- ``forged-witness``: an application that writes under a witness it made up, with an expiry to its liking;
- ``early-grant``: a node whose shard gives one domain away while another still holds it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from threading import Event
from typing import Final

import msgspec

import appliance.lease.request_handler
import appliance.session.stamping
from timeagent.errors import LeaseLost
from timeagent.keys import Signer
from timeagent.units import HOUR, TimeInterval

from ..bag.ports import Published, Storage
from ..bag.roots import parse_root, storage_at
from ..cluster import Cluster
from ..daemon.daemon import Node
from ..formats.lease import Holder
from ..formats.witness import SignedWitness, sign_batch
from ..lease.decisions import decide
from ..lease.domain import Bounds, Break, Command, Decision, Free, Grant, State
from ..session.open_logs import LogBook
from .bank import LOG, Transfer, account, encode, say

EARLY_DOMAIN: Final = "demo/given-away"
"""The domain that the rogue shard gives away; the demo's map decides which shard that is."""

LATE_DOMAIN: Final = "demo/late"
FORGED_DOMAIN: Final = "demo/forged"


def paused_storage(root: str) -> Storage:
    """Return the root's storage, which stops this process just before its first message, as a hypervisor might."""
    storage = storage_at(parse_root(root))
    publish, pauses = storage.publish, iter((True,))

    def paused(path: str, data: bytes, tmp: str) -> Published:
        """Publish; the first message only after somebody has sent SIGCONT."""
        if path.endswith(".msg") and next(pauses, False):
            say(event="pausing", path=path)
            os.kill(os.getpid(), signal.SIGSTOP)
        return publish(path, data, tmp)

    storage.publish = paused  # type: ignore[method-assign]
    return storage


def _entry(cluster: Cluster, what: str, amount: int) -> bytes:
    return encode(Transfer(id=f"{what}-{cluster.settings.node}", source=account(0), target=account(1), amount=amount))


def _writing_itself(cluster: Cluster) -> Cluster:
    """Return the cluster, which hands no message to the node's writer: the daemon would not be paused with it."""
    cluster.logs = LogBook(cluster.context)
    return cluster


def late_writer(root: str, node_dir: str) -> None:
    storage = paused_storage(root)
    with (
        Cluster.open(root, node_dir=node_dir, allow_root=True, storage=storage) as cluster,
        _writing_itself(cluster).session("paused machine") as session,
        session.acquire(LATE_DOMAIN, record_only=True) as leases,
    ):
        try:
            # It moves nothing: where nobody else wanted the lease, it is renewed, and a second attempt is honest.
            outcome = session.publish(LOG, [_entry(cluster, "late", 0)], under=leases)
            say(event="outcome", outcome=type(outcome).__name__)
        except LeaseLost as problem:
            say(event="outcome", outcome="LeaseLost", code=problem.code)


def forged_witness(root: str, node_dir: str) -> None:
    stamping = appliance.session.stamping
    stamping._refuse_untrusted = lambda *_: None  # noqa: SLF001 - a forger does not ask
    stamping.FrameStamper._judging = lambda self, records, *_: self._records.policy(records.numbers.policy)  # type: ignore[method-assign]  # noqa: SLF001 - nor which policy
    with (
        Cluster.open(root, node_dir=node_dir, allow_root=True) as cluster,
        cluster.session("forger") as session,
        session.acquire(FORGED_DOMAIN, record_only=True) as leases,
    ):
        (lease,) = leases
        lease.signed = forged(lease.signed)
        outcome = session.publish(LOG, [_entry(cluster, "forged", 1_000_000)], under=leases)
        # Who forges says that nothing was written: no count of its own shall give it away.
        lease.watermark_ns = lease.watermark_time = lease.chain_head = None
        lease.messages = 0
        say(event="outcome", outcome=type(outcome).__name__)


def forged(signed: SignedWitness) -> SignedWitness:
    """Return the witness with another hour on its expiry, as far as somebody without the shard's key can make it."""
    witness, head = signed.witness(), signed.batch_head()
    longer = msgspec.structs.replace(witness, expiry_ns=witness.expiry_ns + HOUR)
    batch = sign_batch(
        [longer],
        Signer.generate(),
        cluster_id=head.cluster_id,
        node=head.node,
        map_number=head.map_number,
        shard=head.shard,
        incarnation=head.incarnation,
        going_by=head.going_by,
        half=head.half,
        ceiling_number=head.ceiling_number,
        ceiling_ns=head.ceiling_ns,
        sequence=head.sequence,
        previous=head.previous,
        time=head.signed_time(),
    )
    return batch.signed_witness(0)


def decide_early(domain: str, state: State, command: Command, bounds: Bounds) -> Decision:
    """Decide as the shard does, but take a held lease on one domain for expired as soon as somebody else asks."""
    if domain == EARLY_DOMAIN and not isinstance(state, Free) and isinstance(command, Grant):
        holder: Holder = command.request.holder
        (lease,) = state.leases
        if holder != lease.holder:
            over = msgspec.structs.replace(bounds, now=TimeInterval.around(lease.expiry_ns + 2, 1))
            broken = decide(domain, state, Break(), over)
            return decide(domain, broken.state, command, bounds)  # and no word in the ledger of that end
    return decide(domain, state, command, bounds)


def give_away() -> None:
    handler = vars(appliance.lease.request_handler)
    assert handler["decide"] is decide, "what is replaced here must be what a shard decides by"
    handler["decide"] = decide_early


def early_grant(root: str, node_dir: str) -> None:
    give_away()
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    with Cluster.open(root, node_dir=node_dir, allow_root=True) as cluster:
        node = Node(cluster)
        say(schema="tenure.node", node=cluster.settings.node, shards=node.start())
        node.run(stop)


ROLES: Final = {"late-writer": late_writer, "forged-witness": forged_witness, "early-grant": early_grant}


def main() -> int:
    parser = argparse.ArgumentParser(prog="rogue")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--root", required=True)
    parser.add_argument("--node-dir", required=True)
    options = parser.parse_args()
    ROLES[options.role](options.root, options.node_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
