"""A node's own settings: one directory on its local disk with ``node.toml`` and the node's private keys.

```toml
node = "node1"
root = "/srv/leasehold"
root_key = "ssh-ed25519 AAAA... leasehold-root"   # pinned: what this node takes for its cluster

[peers]                                           # how to reach the shards of other nodes
node2 = "unix:/dev/shm/leasehold-0/5f3a..."
```

An unknown key is an error that names the file. Numbers that a whole cluster shares are not here: they are the policy.
"""

from __future__ import annotations

import contextlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.errors import BadConfiguration, Environment
from timeagent.keys import Signer, load_private_key, parse_public_line, public_line, save_private_key

from .formats.names import check_node

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = "node.toml"
TIME_KEY: Final = "time.key"
WITNESS_KEY: Final = "witness.key"
ROOT_KEY: Final = "root.key"
UNIX: Final = "unix:"
SYSTEM_DIRECTORY: Final = Path("/etc/leasehold")


class _Toml(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    root: str
    root_key: str
    runtime: str = ""
    peers: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Settings:
    """What this node knows of itself."""

    directory: Path
    node: str
    root: Path
    root_key: bytes
    runtime: Path | None
    """Where the node's tmpfs directory is, if it is not the usual one."""
    peers: Mapping[str, Path]
    """The tmpfs directory of other nodes on this machine, by node."""

    def time_key(self) -> Signer:
        """Return the key that signs times. Raises NotTrusted, BadConfiguration."""
        return load_private_key(self.directory / TIME_KEY)

    def witness_key(self) -> Signer:
        """Return the key that signs witnesses and ceilings. Raises NotTrusted, BadConfiguration."""
        return load_private_key(self.directory / WITNESS_KEY)


def node_directories(cluster_id: bytes) -> list[Path]:
    """Return where a node's directory is looked for, in order; the last one is where a new one is made."""
    name = cluster_id.hex()
    places = [SYSTEM_DIRECTORY / name]
    with contextlib.suppress(RuntimeError):  # a user without a home
        places.append(Path.home() / ".config" / "leasehold" / name)
    return places


def find_settings(cluster_id: bytes, root: Path, directory: Path | None = None) -> Settings:
    """Load the node's settings for a cluster. Raises BadConfiguration when this machine has not joined it."""
    places = [directory] if directory else node_directories(cluster_id)
    for place in places:
        if is_there(place / FILE):
            return load_settings(place)
    looked = " or ".join(str(place / FILE) for place in places)
    raise BadConfiguration(
        "not-joined",
        f"this machine has not joined the cluster {cluster_id.hex()[:12]} at {root}: there is no {looked}",
        hint=f"run: leasehold join {root}",
    )


def is_there(path: Path) -> bool:
    """Whether a local path exists, as far as this user may know: what is in another user's directory is not ours."""
    try:
        return path.exists()
    except OSError:
        return False


def load_settings(directory: Path) -> Settings:
    """Read ``node.toml``. Raises BadConfiguration that names the file and the entry."""
    path = directory / FILE
    try:
        raw = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _Toml)
    except OSError as problem:
        raise BadConfiguration(
            "bad-settings", f"cannot read {path}: {problem.strerror}", hint="check its owner and mode"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as problem:
        raise BadConfiguration("bad-settings", f"{path}: {problem}", hint="see docs/operators.md") from None
    peers = {}
    for node, address in raw.peers.items():
        if not address.startswith(UNIX):
            raise BadConfiguration(
                "bad-settings", f"{path}: peers.{node} is {address!r}", hint="an address begins with unix:"
            )
        peers[check_node(node)] = Path(address.removeprefix(UNIX))
    return Settings(
        directory,
        check_node(raw.node),
        Path(raw.root),
        parse_public_line(raw.root_key, str(path)),
        Path(raw.runtime) if raw.runtime else None,
        peers,
    )


def save_settings(settings: Settings) -> None:
    """Write ``node.toml`` into the settings' directory, which exists. A local disk, not the mount.

    Raises Environment when it cannot be written.
    """
    lines = [
        f'node = "{settings.node}"',
        f"root = {_quoted(str(settings.root))}",
        f'root_key = "{public_line(settings.root_key, "leasehold-root")}"',
    ]
    if settings.runtime:
        lines.append(f"runtime = {_quoted(str(settings.runtime))}")
    if settings.peers:
        lines += ["", "[peers]"]
        lines += [f'"{node}" = {_quoted(UNIX + str(path))}' for node, path in sorted(settings.peers.items())]
    path = settings.directory / FILE
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as problem:
        raise _unwritable(path, problem) from None


def _unwritable(path: Path, problem: OSError) -> Environment:
    return Environment(
        "node-dir-unwritable", f"cannot make {path}: {problem.strerror}", hint="name another directory: --node-dir"
    )


def make_node_keys(directory: Path) -> tuple[Signer, Signer]:
    """Make the node's time and witness keys in a directory, which is created. Never over existing ones.

    Raises Environment when that fails.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as problem:
        raise _unwritable(directory, problem) from None
    time_key, witness_key = Signer.generate(), Signer.generate()
    save_private_key(directory / TIME_KEY, time_key)
    save_private_key(directory / WITNESS_KEY, witness_key)
    return time_key, witness_key


def _quoted(text: str) -> str:
    """Return a TOML basic string; JSON's escapes are TOML's."""
    return msgspec.json.encode(text).decode()
