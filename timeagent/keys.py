"""Keys: Ed25519 signers and verifiers, key ids, and the files of keys, a node's own above all.

Private keys are PKCS#8 PEM files that only their owner may read; public keys are one OpenSSH line, so that people can
diff them and ``ssh-keygen -lf`` prints their fingerprint. A key id is the first 16 bytes of SHA-512(0xff || public):
the first half of the name that Roughtime gives a server.

A node has one key file per purpose on its local disk: ``time.key`` is the first key for times, ``time-2.key`` the next
one; the highest number is the one in use, so nothing is ever renamed over. Under systemd the keys may come as
credentials instead: a file ``time.key`` in ``$CREDENTIALS_DIRECTORY`` is taken before any in the node's directory.

``cryptography`` is imported here and in the TLS set-up.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final, NoReturn, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)

from .canonical import signed_bytes
from .errors import BadConfiguration, BadTime, Environment, NotTrusted, TenureError
from .units import Instant, rfc3339


class Purpose(StrEnum):
    """What a key may sign."""

    TIME = "time"
    WITNESS = "witness"
    ROUGHTIME = "roughtime"
    """The long-term key of the node's Roughtime server: it signs delegations, never answers."""
    TLS = "tls"
    """What the node's ends of encrypted connections are known by; nothing on the mount is signed with it."""


KEY_ID_BYTES: Final = 16


def key_id(public: bytes) -> bytes:
    """Return the 16-byte id of a raw 32-byte public key."""
    return hashlib.sha512(b"\xff" + public).digest()[:KEY_ID_BYTES]


def fingerprint(public: bytes) -> str:
    """Return what ``ssh-keygen -l`` prints for this key: ``SHA256:...``."""
    name = b"ssh-ed25519"
    blob = len(name).to_bytes(4, "big") + name + len(public).to_bytes(4, "big") + public
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")


class Verifier:
    """A public key."""

    __slots__ = ("_key", "id", "public")

    def __init__(self, public: bytes) -> None:
        """Take the raw 32 bytes. Raises NotTrusted for bytes that are no public key."""
        try:
            self._key = Ed25519PublicKey.from_public_bytes(public)
        except ValueError as problem:
            raise NotTrusted("bad-public-key", f"{public.hex()} is not an Ed25519 public key: {problem}") from None
        self.public: bytes = public
        self.id: bytes = key_id(public)

    def verifies(self, context: str, payload: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's over the payload in this context."""
        return self.verifies_exactly(signed_bytes(context, payload), signature)

    def verifies_exactly(self, data: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's over just this data: for protocols whose contexts are not ours."""
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


class Signer:
    """A private key."""

    __slots__ = ("_key", "id", "public")

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = key_id(self.public)

    @classmethod
    def generate(cls) -> Signer:
        """Make a new key from the operating system's randomness."""
        return cls(os.urandom(32))

    @classmethod
    def from_pem(cls, data: bytes, where: str) -> Signer:
        """Read a PKCS#8 PEM. Raises BadConfiguration, naming ``where``."""
        with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
            key = load_pem_private_key(data, password=None)
            if isinstance(key, Ed25519PrivateKey):
                return cls(key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()))
        raise BadConfiguration(
            "bad-key-file",
            f"{where} is no Ed25519 private key in PEM (PKCS#8, without a password)",
            hint="restore it from a backup; a node whose keys are lost joins again under another name",
        )

    end_ns: Final[Instant | None] = None
    """As of ``KeyInUse``: a key by itself is never replaced, and never ends."""

    @property
    def in_use(self) -> Self:
        return self

    def signer_at(self, at: Instant) -> Self:  # noqa: ARG002 - it never ends
        return self

    def sign(self, context: str, payload: bytes) -> bytes:
        """Return 64 bytes over the payload in this context."""
        return self._key.sign(signed_bytes(context, payload))

    def sign_exactly(self, data: bytes) -> bytes:
        """Return 64 bytes over just this data: for protocols whose contexts are not ours."""
        return self._key.sign(data)

    def verifier(self) -> Verifier:
        return Verifier(self.public)

    def to_pem(self) -> bytes:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class KeyInUse:
    """A node's key for one purpose, which a rotation replaces while processes run. Thread-safe.

    Whoever signs takes the key once for each signature, so that key id and signature are of one key.
    """

    def __init__(self, signer: Signer) -> None:
        """Take the first key. It has no end before ``use`` says one."""
        self._now: tuple[Signer, Instant | None] = signer, None

    @property
    def in_use(self) -> Signer:
        """Return the key, whether it has ended or not."""
        return self._now[0]

    @property
    def end_ns(self) -> Instant | None:
        """Return from when on the key counts no more, as far as is known; None: nothing is known."""
        return self._now[1]

    def use(self, signer: Signer, end_ns: Instant | None) -> None:
        """Sign with this key from now on, for instants before its end."""
        self._now = signer, end_ns

    def signer_at(self, at: Instant) -> Signer:
        """Return the key to sign with at an instant. Raises BadTime from its end on: nobody would accept it."""
        signer, end = self._now
        if end is not None and at >= end:
            raise BadTime(
                "key-ended",
                f"the key {fingerprint(signer.public)} of this node ended at {rfc3339(end)}, and no next one is here",
                hint="tenure trust rotate makes one, but for a node that was revoked (tenure trust ls says so); "
                "a process that gets its keys as credentials is started again",
            )
        return signer


class NoKey(KeyInUse):
    """The key of whoever only looks: nothing is signed with it."""

    def __init__(self) -> None:
        """Have none."""

    def signer_at(self, at: Instant) -> NoReturn:
        raise NotTrusted("no-key", f"nothing is signed at {at}: whoever only looks signs nothing")


def save_private_key(path: Path, signer: Signer) -> None:
    """Write a new private key file, mode 0600, never over an existing one. Blocks; a local disk, not the mount."""
    save_private_text(path, signer.to_pem())


def save_private_text(path: Path, data: bytes) -> None:
    """Write a new file that holds a private key among other things; as ``save_private_key`` does."""
    try:
        write_new_file(path, data)
    except FileExistsError:
        raise Environment("key-exists", f"{path} exists already", hint="keep it, or move it away first") from None
    except OSError as problem:
        what = f"cannot write the private key {path}: {problem.strerror}"
        raise Environment("key-unwritable", what, hint="check its directory, and that there is room") from None


def write_new_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a new file as a whole, or none, whatever cuts it off. Never over an existing one. Blocks; a local disk.

    Raises OSError.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            os.fchmod(descriptor, mode)  # whatever the umask
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.link(part, path)  # a part of it would be in the way of who tries again
    finally:
        part.unlink()


def load_private_key(path: Path, *, tolerated_mode: int = 0) -> Signer:
    """Read a private key file. Raises NotTrusted if others may read it, BadConfiguration if it is missing or no key.

    ``tolerated_mode``: permissions of group and others that mean nothing where the file lies.
    """
    return Signer.from_pem(load_private_text(path, tolerated_mode=tolerated_mode), str(path))


def load_private_text(path: Path, *, tolerated_mode: int = 0) -> bytes:
    """Read a file that holds a private key among other things; as ``load_private_key`` does."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(65536)
    except PermissionError as problem:
        what = f"the user {os.geteuid()} cannot read the private key {path}: {problem.strerror}"
        hint = "it has to be that user's, mode 0600: what is called by the superuser works as the user tenure"
        raise BadConfiguration("key-unreadable", what, hint=hint) from None
    except OSError as problem:
        raise BadConfiguration(
            "key-unreadable",
            f"cannot read the private key {path}: {problem.strerror}",
            hint="name the file: init makes root.key in the node's directory; init and join make the node's own keys",
        ) from None
    if mode & 0o077 & ~tolerated_mode:
        raise NotTrusted(
            "key-mode", f"{path} has mode {mode & 0o777:04o}; others may read it", hint=f"chmod 600 {path}"
        )
    return data


def public_line(public: bytes, name: str) -> str:
    """Return ``ssh-ed25519 AAAA... name``, without a newline."""
    key = Ed25519PublicKey.from_public_bytes(public)
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii") + f" {name}"


def parse_public_line(line: str, where: str) -> bytes:
    """Return the raw 32 bytes of an OpenSSH line. Raises BadConfiguration, naming ``where`` and no part of the line.

    Whoever names a private key's file by mistake finds none of it on a terminal or in a log.
    """
    with contextlib.suppress(ValueError, UnsupportedAlgorithm):
        key = load_ssh_public_key(line.encode("ascii", "replace"))
        if isinstance(key, Ed25519PublicKey):
            return key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    raise BadConfiguration(
        "bad-public-key",
        f"{where} holds no ssh-ed25519 line",
        hint="give a public key: one line, ssh-ed25519 AAAA...; the cluster's is `root_key` in each node.toml",
    )


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


def make_private(directory: Path) -> None:
    """Make a directory, and those above it that are not there, for this user alone, whatever the umask.

    Raises OSError.
    """
    for each in (*reversed(directory.parents), directory):
        each.mkdir(mode=0o700, exist_ok=True)


def make_node_keys(directory: Path) -> dict[Purpose, bytes]:
    """Make a node's keys, one for each purpose, in a directory, which is created; return the public ones.

    Never over existing ones. Raises Environment when that fails.
    """
    try:
        make_private(directory)
    except OSError as problem:
        raise unwritable(directory, problem) from None
    keys = {purpose: Signer.generate() for purpose in Purpose}
    for purpose, key in keys.items():
        save_private_key(directory / key_file_name(purpose), key)
    return {purpose: key.public for purpose, key in keys.items()}


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
            os.link(staged, directory / staged.name.removesuffix(_STAGED))  # never over an existing one
            os.unlink(staged)  # noqa: PTH108 - beside its counterpart
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
