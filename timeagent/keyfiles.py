"""A node's private keys on its local disk: one file per purpose, ``time.key`` and so on; each rotation has a new name.

``time.key`` is the first key for times, ``time-2.key`` the next one; the highest number is the one in use, so nothing
is ever renamed over. Under systemd the keys may come as credentials instead: a file ``time.key`` in
``$CREDENTIALS_DIRECTORY`` is taken before any in the node's directory.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from .errors import Environment, TenureError
from .keys import Signer, load_private_key, name_private_key, save_private_key
from .trust import Purpose

type NodeKeys = Mapping[Purpose, Signer]
"""The keys of one node, one for each purpose."""

CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"
"""The environment variable by which systemd names a unit's own credentials (systemd.exec(5))."""

CREDENTIAL_MODE: Final = 0o040
"""systemd lets the unit's user in by an access list, and then the group's bits are the list's mask: nobody's group."""

_STAGED: Final = ".staged"
_NUMBERED: Final = re.compile(r"(?P<purpose>[a-z]+)(?:-(?P<number>[1-9][0-9]{0,8}))?\.key")


def key_file_name(purpose: Purpose, number: int = 1) -> str:
    """Return the name of the ``number``-th key file of a purpose."""
    return f"{purpose}.key" if number == 1 else f"{purpose}-{number}.key"


def newest_number(directory: Path, purpose: Purpose) -> int:
    """Return the highest number of a purpose's key files in a directory, or 0. Blocks; a local disk."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError:
        return 0
    matches = [match for name in names if (match := _NUMBERED.fullmatch(name)) and match["purpose"] == purpose]
    return max((int(match["number"] or 1) for match in matches), default=0)


def key_path(directory: Path, purpose: Purpose) -> Path:
    """Return the file that holds a node's key for this purpose: a credential, or the newest file of its directory."""
    credential = credential_path(key_file_name(purpose))
    return credential or directory / key_file_name(purpose, max(1, newest_number(directory, purpose)))


def credential_path(name: str) -> Path | None:
    """Return where systemd put the credential of this name, or None where it put none."""
    place = os.environ.get(CREDENTIALS)
    if not place:
        return None
    path = Path(place) / name
    return path if path.exists() else None


def load_node_key(directory: Path, purpose: Purpose) -> Signer:
    """Read a node's key. Raises NotTrusted if others may read it, BadConfiguration if it is missing or no key."""
    return load_key_file(key_path(directory, purpose), directory)


def load_key_file(path: Path, directory: Path) -> Signer:
    """Read what ``key_path`` has found for this node's directory; as ``load_node_key`` does."""
    return load_private_key(path, tolerated_mode=CREDENTIAL_MODE if path.parent != directory else 0)


def is_own_key(directory: Path, purpose: Purpose, identifier: bytes) -> bool:
    """Whether a key id is that of a key for this purpose, in use or replaced. Reads key files; a local disk."""
    numbers = range(newest_number(directory, purpose), 0, -1)
    paths = [credential_path(key_file_name(purpose)), *(directory / key_file_name(purpose, each) for each in numbers)]
    for path in filter(None, paths):
        with contextlib.suppress(TenureError):  # one that was removed, or whose mode is wrong, is not looked at
            if load_key_file(path, directory).id == identifier:
                return True
    return False


def make_node_keys(directory: Path) -> dict[Purpose, Signer]:
    """Make a node's keys, one for each purpose, in a directory, which is created. Never over existing ones.

    Raises Environment when that fails.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as problem:
        raise unwritable(directory, problem) from None
    keys = {purpose: Signer.generate() for purpose in Purpose}
    for purpose, key in keys.items():
        save_private_key(directory / key_file_name(purpose), key)
    return keys


def unwritable(path: Path, problem: OSError) -> Environment:
    """Return the error for a node's directory that cannot be written."""
    return Environment(
        "node-dir-unwritable", f"cannot make {path}: {problem.strerror}", hint="name another directory: --node-dir"
    )


def stage_keys(directory: Path, purposes: Iterable[Purpose]) -> dict[Purpose, Signer]:
    """Return the keys that are to come next, made now or left from an earlier try; they are not yet in use.

    Each lies beside the key in use until ``take_up`` gives it its name: a cluster that does not know a key yet would
    refuse the node that uses it. Raises Environment, NotTrusted, BadConfiguration.
    """
    staged = {}
    for purpose in purposes:
        path = _staged_path(directory, purpose)
        if not path.exists():
            save_private_key(path, Signer.generate())
        staged[purpose] = load_private_key(path)
    return staged


def take_up(directory: Path, purposes: Iterable[Purpose]) -> None:
    """Use the staged keys from now on. Raises Environment. Safe to repeat after a crash."""
    for purpose in purposes:
        staged = _staged_path(directory, purpose)
        try:
            name_private_key(staged, directory / staged.name.removesuffix(_STAGED))
        except OSError as problem:
            raise unwritable(staged, problem) from None


def _staged_path(directory: Path, purpose: Purpose) -> Path:
    number = newest_number(directory, purpose)
    newest = directory / key_file_name(purpose, max(1, number))
    leftover = newest.with_name(newest.name + _STAGED)
    with contextlib.suppress(OSError):
        if newest.samefile(leftover):  # taken up, and then it was cut off
            leftover.unlink()
    return directory / (key_file_name(purpose, number + 1) + _STAGED)
