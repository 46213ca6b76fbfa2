"""Where a demo lives: one directory with the cluster's root and, beside it, what would be each machine's own disk.

```
DIR/cluster/            the root: what would be the NFS mount; or it is where --root says
DIR/machines/node1/     node.toml, keys, journal, stderr.log of one machine
```

The tmpfs directories are made under /dev/shm and removed at the end.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from appliance.admin.founding import enroll, found_cluster, publish_map
from appliance.formats.policy import Policy
from timeagent.errors import Environment
from timeagent.keys import Signer, save_private_key
from timeagent.units import MS, SECOND, Instant

from ..bag.roots import Root, storage_at
from ..node.runtime import default_directory
from ..node.settings import ROOT_KEY, Settings, save_settings


def demo_policy(cluster_id: bytes) -> Policy:
    """Return short terms, so that a takeover takes about five seconds; clocks of one machine agree to 5 ms."""
    return Policy(
        number=1,
        cluster_id=cluster_id,
        span_ns=500 * MS,
        grace_ns=1_100 * MS,
        rack_ns=5 * SECOND,
        seal_delay_ns=2 * SECOND,
        radius_ns_max=20 * MS,
        assumed_radius_ns=5 * MS,
        lease_term_max_ns=2_400 * MS,
        renew_period_ns=800 * MS,
        holder_margin_ns=100 * MS,
        attempt_timeout_ns=400 * MS,
        ceiling_ahead_ns=600 * MS,
        ceiling_period_ns=300 * MS,
    )


ROOT_NAME: Final = "cluster"
MACHINES_NAME: Final = "machines"


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """A demo's directory, set up."""

    directory: Path
    root: Root
    policy: Policy
    machines: tuple[Settings, ...]

    @property
    def mount(self) -> Path:
        """The root of a demo that has it in a directory."""
        assert isinstance(self.root, Path)
        return self.root

    def forget(self) -> None:
        """Remove the machines' tmpfs directories: what a reboot would do."""
        for settings in self.machines:
            assert settings.runtime is not None
            shutil.rmtree(settings.runtime, ignore_errors=True)


def set_up_place(
    directory: Path, nodes: int, now: Instant, randomness: random.Random, root: Root | None = None
) -> DemoPlace:
    """Found a cluster of so many nodes in a new or empty directory. Raises Environment when it is not empty.

    ``root``: where the root is, if not in that directory.
    """
    if directory.exists() and any(directory.iterdir()):
        raise Environment("demo-not-empty", f"{directory} is not empty", hint="name a new directory")
    root = root or directory / ROOT_NAME
    if isinstance(root, Path):
        root.mkdir(parents=True, exist_ok=True)
    machines = directory / MACHINES_NAME
    machines.mkdir(parents=True, mode=0o700)
    cluster_id = randomness.randbytes(16)
    storage = storage_at(root)
    root_key = Signer.generate()
    policy = demo_policy(cluster_id)
    registers = found_cluster(storage, root, policy, root_key, cluster_id)
    save_private_key(machines / ROOT_KEY, root_key)
    names = [f"node{number}" for number in range(1, nodes + 1)]
    runtimes = {name: default_directory(cluster_id, name) for name in names}
    settled = []
    for name in names:
        settings = enroll(registers, root, root_key, name, now, machines / name)
        peers = {other: place for other, place in runtimes.items() if other != name}
        settings = replace(settings, runtime=runtimes[name], peers=peers)
        save_settings(settings)
        settled.append(settings)
    publish_map(registers, root_key, names)
    return DemoPlace(directory, root, policy, tuple(settled))
