"""A node's own settings: one directory on its local disk with ``node.toml`` and the node's private keys.

```toml
node = "node1"
root = "/srv/tenure"
root_key = "ssh-ed25519 AAAA... tenure-root"   # pinned: what this node takes for its cluster
listen = "0.0.0.0:7420"                           # where `node run` answers other nodes
http = "127.0.0.1:7421"                           # where it answers people and Prometheus; or "unix:/run/x.sock"
group = "monitoring"                              # who else may use the Unix sockets
node_writer = "auto"                              # share files with other processes: auto, always, never

[etcd]                                            # what keeps the turns of this node's shards; without it tmpfs does
endpoints = ["https://10.0.0.1:2379"]             # ca, cert, key: PEM files

[peers]                                           # how to reach the shards of other nodes
node2 = "unix:/dev/shm/tenure-0/5f3a..."
```

An unknown key is an error that names the file. Numbers that a whole cluster shares are not here: they are the policy.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from timeagent.errors import BadConfiguration, BadRequest, check_type
from timeagent.keys import Purpose, Signer, load_node_key, parse_public_line, public_line, unwritable, write_new_file

from ..bag.roots import Root, parse_root
from ..formats.birth import ROOT_VARIABLE
from ..formats.names import Address, check_node, parse_address
from ..formats.paths import MARKER

FILE: Final = "node.toml"
ROOT_KEY: Final = "root.key"
UNIX: Final = "unix:"
SYSTEM_DIRECTORY: Final = Path("/etc/tenure")


class Sharing(StrEnum):
    """Whether a process hands what it publishes to its node's writer, where a daemon runs one."""

    AUTO = "auto"
    """If the log is not on a local file system: there a publication costs more than asking somebody to make it."""
    ALWAYS = "always"
    NEVER = "never"


class EtcdAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How an etcd is reached."""

    endpoints: tuple[str, ...]
    ca: str = ""
    cert: str = ""
    key: str = ""


class _Toml(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    node: str
    root: str
    root_key: str
    runtime: str = ""
    listen: str = ""
    http: str = ""
    group: str = ""
    node_writer: Sharing = Sharing.AUTO
    pack: bool = True
    retention_days: int = 0
    etcd: EtcdAccess | None = None
    peers: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Settings:
    directory: Path
    node: str
    root: Root
    root_key: bytes
    runtime: Path | None = None
    """Where the node's tmpfs directory is, if it is not the usual one."""
    peers: Mapping[str, Path] = field(default_factory=dict)
    """The tmpfs directory of other nodes on this machine, by node."""
    listen: Address | None = None
    """Where ``node run`` listens for other nodes; None: nowhere."""
    http: Address | Path | None = None
    """Where ``node run`` answers HTTP; None: on a Unix socket in the tmpfs directory."""
    group: str = ""
    """The Unix group that may use the sockets on tmpfs beside the node's own user; empty: nobody."""
    node_writer: Sharing = Sharing.AUTO
    pack: bool = True
    """Whether ``node run`` packs sealed racks."""
    retention_days: int = 0
    """After so many days ``node run`` deletes packs; 0: never."""
    etcd: EtcdAccess | None = None
    """What keeps the turns of this node's shards; None: nothing does, and a crash forgets them."""

    def __post_init__(self) -> None:
        check_root(self.root)

    def key(self, purpose: Purpose) -> Signer:
        """Return one of the node's keys. Raises NotTrusted, BadConfiguration."""
        return load_node_key(self.directory, purpose)

    def is_root(self, root: Root) -> bool:
        """Whether this is the root that ``node.toml`` names, by whatever path; if that is gone, this may be it.

        Touches both mounts where the paths differ.
        """
        named = self.root
        if named == root or not isinstance(named, Path) or not isinstance(root, Path):
            return named == root
        return not is_there(named / MARKER) or named.samefile(root)


def check_root(root: Root) -> Root:
    """Return the root. Raises BadRequest for one that ``node.toml``, which is UTF-8, could not name."""
    try:
        str(root).encode()
    except UnicodeEncodeError:
        what = f"the path of the root {root} has bytes that are no UTF-8: {FILE} could not name it"
        raise BadRequest("bad-root", what, hint="name a directory whose path is UTF-8") from None
    return root


def root_path(named: str | Path | None) -> Root:
    """Return the root that a call or TENURE_ROOT names. Raises BadRequest when neither does."""
    check_type(str | os.PathLike | None, root=named)
    chosen = named or os.environ.get(ROOT_VARIABLE)
    if not chosen:
        raise BadRequest(
            "no-root-named",
            "no root is named",
            hint=f"pass --root (in Python: Cluster.open(root)), or set {ROOT_VARIABLE}",
        )
    return parse_root(chosen)


def node_directories(cluster_id: bytes) -> list[Path]:
    """Return where a node's directory is looked for, in order."""
    name = cluster_id.hex()
    places = [SYSTEM_DIRECTORY / name]
    with contextlib.suppress(RuntimeError):  # a user without a home
        places.append(Path.home() / ".config" / "tenure" / name)
    return places


def new_directory(cluster_id: bytes) -> Path:
    """Return where a new node's directory is made: in /etc/tenure, where that is this user's to write; else at home.

    Nothing is written. Where tenure is installed as a service there is such a directory.
    """
    places = node_directories(cluster_id)
    return places[0] if os.access(SYSTEM_DIRECTORY, os.W_OK | os.X_OK) else places[-1]


def find_settings(cluster_id: bytes, root: Root, directory: Path | None = None) -> Settings:
    """Load the node's settings for a cluster. Raises BadConfiguration when this machine has not joined it."""
    places = [directory] if directory else node_directories(cluster_id)
    for place in places:
        if is_there(place / FILE):
            return load_settings(place)
    looked = " or ".join(str(place / FILE) for place in places)
    raise BadConfiguration(
        "not-joined",
        f"this machine has not joined the cluster {cluster_id.hex()[:12]} at {root}: there is no {looked}",
        hint=f"run: tenure join {root}" + ("" if directory else "; or name where its settings are: --node-dir"),
    )


def is_there(path: Path) -> bool:
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
        raise _bad(f"cannot read {path}: {problem.strerror}", "check its owner and mode") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as problem:
        raise _bad(f"{path}: {problem}", "see docs/operators.md") from None
    if raw.retention_days < 0:
        raise _bad(f"{path}: retention_days is {raw.retention_days}", "days, or 0 to delete nothing")
    peers = {}
    for node, address in raw.peers.items():
        if not address.startswith(UNIX):
            raise _bad(f"{path}: peers.{node} is {address!r}", "an address begins with unix:")
        peers[_checked(path, "peers", check_node, node)] = Path(address.removeprefix(UNIX))
    endpoints = () if raw.etcd is None else raw.etcd.endpoints
    wrong = [each for each in endpoints if not _is_endpoint(each)]
    if wrong or (raw.etcd is not None and not endpoints):
        said = f"{path}: etcd.endpoints is {wrong[0] if wrong else []!r}"
        raise _bad(said, 'addresses as "http://10.0.0.1:2379", one at least')
    socket = raw.http.startswith(UNIX)
    return Settings(
        directory,
        _checked(path, "node", check_node, raw.node),
        _checked(path, "root", parse_root, raw.root),
        parse_public_line(raw.root_key, str(path)),
        Path(raw.runtime) if raw.runtime else None,
        peers,
        _address(path, "listen", raw.listen),
        Path(raw.http.removeprefix(UNIX)) if socket else _address(path, "http", raw.http),
        raw.group,
        raw.node_writer,
        raw.pack,
        raw.retention_days,
        raw.etcd,
    )


def _bad(what: str, way_out: str) -> BadConfiguration:
    return BadConfiguration("bad-settings", what, hint=way_out)


def _address(path: Path, entry: str, text: str) -> Address | None:
    return _checked(path, entry, parse_address, text) if text else None


def _checked[T](path: Path, entry: str, check: Callable[[str], T], text: str) -> T:
    """Return what an entry says. Raises BadConfiguration, which names it, where ``check`` raises BadRequest."""
    try:
        return check(text)
    except BadRequest as problem:
        raise _bad(f"{path}: {entry}: {problem.message}", problem.hint) from None


def _is_endpoint(text: str) -> bool:
    try:
        where = urlsplit(text)
        named = where.scheme in ("http", "https") and where.hostname and where.username is None
        return bool(named) and where.port != 0  # a port that is none raises
    except ValueError:
        return False


def save_settings(settings: Settings) -> None:
    """Write ``node.toml`` into the settings' directory, which exists. A local disk, not the mount.

    Raises Environment when it cannot be written.
    """
    raw = _Toml(
        node=settings.node,
        root=str(settings.root),
        root_key=public_line(settings.root_key, "tenure-root"),
        runtime=str(settings.runtime or ""),
        listen=str(settings.listen or ""),
        http=UNIX * isinstance(settings.http, Path) + str(settings.http or ""),
        group=settings.group,
        node_writer=settings.node_writer,
        pack=settings.pack,
        retention_days=settings.retention_days,
        etcd=settings.etcd,
        peers={node: UNIX + str(path) for node, path in sorted(settings.peers.items())},
    )
    lines, tables = list[str](), list[str]()
    for name, value in msgspec.to_builtins(raw).items():
        if isinstance(value, dict):
            tables += ["", f"[{name}]", *(f"{_quoted(key)} = {_quoted(entry)}" for key, entry in value.items())]
        else:
            lines.append(f"{name} = {_quoted(value)}")
    path = settings.directory / FILE
    try:
        path.unlink(missing_ok=True)
        write_new_file(path, "\n".join([*lines, *tables, ""]).encode(), 0o644)  # it says which cluster this is
    except OSError as problem:
        raise unwritable(path, problem) from None


def _quoted(value: object) -> str:
    """Return a value as TOML: of texts, numbers, lists and what is true JSON's words are TOML's, but for a bare DEL."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
