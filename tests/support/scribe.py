"""A process that writes to a log of each kind, under leases that others want too, until its input ends.

Run as a script: ``scribe.py ROOT NODE-DIR SEED``. Says a line when it is ready, and one for each message that was
committed.
"""

from __future__ import annotations

import random
import select
import sys
from itertools import count
from pathlib import Path

from appliance.bag.writing import Committed, Unknown
from appliance.cluster import Cluster
from timeagent.errors import BadTime, LeaseLost, TryAgain

KINDS = {"mails": "maildir", "lines": "log"}
DOMAINS = 6


def told_to_stop() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def say(word: str) -> None:
    print(word, flush=True)


def main(root: Path, node_dir: Path, seed: int) -> None:
    chance = random.Random(seed)
    with (
        Cluster.open(root, node_dir=node_dir, allow_root=True) as cluster,
        cluster.session("scribe", session_leases=seed % 2 == 0) as session,
    ):
        for log, kind in KINDS.items():
            cluster.create_log(log, kind)
        say("ready")
        for number in count():
            if told_to_stop():
                return
            names = (f"d{each}" for each in chance.sample(range(DOMAINS), chance.choice((1, 1, 2))))
            try:
                with session.acquire(*names, timeout_s=1) as leases:
                    for log in chance.choices(list(KINDS), k=chance.choice((1, 1, 3))):
                        text = b"%d " % number + b"x" * chance.choice((10, 300, 5_000))
                        outcome = session.publish(log, [text], under=leases)
                        if isinstance(outcome, Unknown):
                            outcome = session.resolve(log, leases)
                        if isinstance(outcome, Committed):
                            say("committed")
            except (BadTime, LeaseLost, TryAgain):
                continue


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
