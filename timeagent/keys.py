"""Keys: Ed25519 signers and verifiers, key ids, key files. ``cryptography`` is imported here and in the TLS set-up.

Private keys are PKCS#8 PEM files that only their owner may read; public keys are one OpenSSH line, so that people can
diff them and ``ssh-keygen -lf`` prints their fingerprint. A key id is the first 16 bytes of SHA-512(0xff || public):
the first half of the name that Roughtime gives a server.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
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
from .errors import BadConfiguration, BadTime, Environment, NotTrusted
from .units import Instant, rfc3339

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
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
            raise BadConfiguration("bad-key-file", f"{where} is not a private key: {problem}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise BadConfiguration("bad-key-file", f"{where} is not an Ed25519 key", hint="make one with tenure init")
        return cls(key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()))

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
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Environment("key-exists", f"{path} exists already", hint="keep it, or move it away first") from None
    except OSError as problem:
        raise Environment(
            "key-unwritable", f"cannot write the private key {path}: {problem.strerror}", hint="check its directory"
        ) from None
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def name_private_key(staged: Path, path: Path) -> None:
    """Give a whole key file its name, never over an existing one. Raises OSError. A local disk, not the mount."""
    os.link(staged, path)
    os.unlink(staged)  # noqa: PTH108 - beside its counterpart


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
