"""The TLS set-up between nodes: certificates made from a node's TLS key, and whose key is at the other end.

TLS 1.3 proves that the other end has the private key of the certificate that it shows. Whose key that is, and whether
it counts, the cluster's trust record says, and nothing else: the names, dates and the issuer in a certificate prove
nothing. There is an issuer only because the TLS library asks a client for its certificate, and hands over what it
shows, if and only if some issuer vouches for it. So every certificate is issued by one key that anybody can compute.

Whoever takes a connection from here calls ``peer_key`` and asks the trust record before it reads or writes a byte.
"""

from __future__ import annotations

import functools
import hashlib
import os
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from timeagent.core import LazyModule
from timeagent.errors import NotTrusted
from timeagent.keys import key_id

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from cryptography import x509

    from timeagent.keys import KeyInUse, Signer

    from ..formats.names import Address
else:
    x509 = LazyModule("cryptography.x509")

_ISSUER_SEED: Final = hashlib.sha256(b"tenure: the issuer that anybody can be").digest()
_FROM: Final = datetime(2000, 1, 1, tzinfo=UTC)
_UNTIL: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""The dates mean nothing, so they exclude nothing: the trust record says from when until when a key counts."""

_RELEASE_CHARACTERS_MAX: Final = 64
"""What a certificate may hold there."""


def _name(text: str, release: str = "") -> x509.Name:
    told = [x509.NameAttribute(x509.oid.NameOID.ORGANIZATIONAL_UNIT_NAME, release)] if release else []
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text), *told])


def certificate(public: bytes, *, release: str = "", start: datetime = _FROM, end: datetime = _UNTIL) -> bytes:
    """Return the certificate (PEM) of a raw public key. The same key and release have the same certificate, always.

    ``release``: what the node runs, for people; nothing is decided by it.
    """
    serial = int.from_bytes(hashlib.sha256(public + release.encode()).digest()[:16], "big") | 1
    subject = _name(f"tenure {key_id(public).hex()}", release)
    return _issued(Ed25519PublicKey.from_public_bytes(public), subject, serial, start, end)


@functools.cache
def _issuer() -> bytes:
    issuer = Ed25519PrivateKey.from_private_bytes(_ISSUER_SEED)
    return _issued(issuer.public_key(), _name("tenure"), 1, _FROM, _UNTIL)


def _issued(public: Ed25519PublicKey, subject: x509.Name, serial: int, start: datetime, end: datetime) -> bytes:
    is_issuer = subject == _name("tenure")
    issuer = Ed25519PrivateKey.from_private_bytes(_ISSUER_SEED)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_name("tenure"))
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=is_issuer, path_length=0 if is_issuer else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)
    )
    return built.sign(issuer, None).public_bytes(Encoding.PEM)


def server_context(signer: Signer, own: bytes | None = None) -> ssl.SSLContext:
    """Return the set-up of the end that listens. ``own``: another certificate of the key than the usual one."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, signer, own)
    context.num_tickets = 0  # nothing is resumed: every connection is judged by the trust record of its time
    return context


def client_context(signer: Signer, own: bytes | None = None) -> ssl.SSLContext:
    """Return the set-up of the end that connects. ``own``: another certificate of the key than the usual one."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, signer, own)


class OwnEnds:
    """The set-up of this node's ends of connections, made anew when a rotation replaces its key. Thread-safe."""

    def __init__(self, make: Callable[[Signer], ssl.SSLContext], key: Signer | KeyInUse) -> None:
        """Take what makes it of a key."""
        self._make = make
        self._key = key
        self._made: tuple[Signer, ssl.SSLContext] | None = None

    def wrap_socket(
        self, plain: socket.socket, *, server_side: bool = False, do_handshake_on_connect: bool = True
    ) -> ssl.SSLSocket:
        """Begin with a connection, as ssl.SSLContext does, with the key of now."""
        key, made = self._key.in_use, self._made
        if made is None or made[0] is not key:
            made = self._made = key, self._make(key)
        return made[1].wrap_socket(plain, server_side=server_side, do_handshake_on_connect=do_handshake_on_connect)


def _context(protocol: int, signer: Signer, own: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a node is who its key says
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=_issuer().decode("ascii"))
    # The library reads files only; this one is memory, and gone with its descriptor.
    descriptor = os.memfd_create("tenure-tls", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(own or certificate(signer.public))
        file.write(signer.to_pem())
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context


def peer_key(connection: ssl.SSLSocket) -> bytes:
    """Return the raw public key that the other end has proven to have. The handshake must be done. Raises NotTrusted.

    Whether the key counts is not judged here.
    """
    public = _shown(connection, x509.Certificate.public_key)
    if not isinstance(public, Ed25519PublicKey):
        raise NotTrusted("no-node-key", "the other end shows no Ed25519 key", hint="it is no node of a cluster")
    return public.public_bytes(Encoding.Raw, PublicFormat.Raw)


def peer_release(connection: ssl.SSLSocket) -> str:
    """Return the release that the other end's certificate names; empty: it names none. The handshake must be done.

    Raises NotTrusted.
    """
    unit = x509.oid.NameOID.ORGANIZATIONAL_UNIT_NAME
    told = _shown(connection, lambda shown: shown.subject.get_attributes_for_oid(unit))
    return str(told[0].value)[:_RELEASE_CHARACTERS_MAX] if told else ""


def _shown[T](connection: ssl.SSLSocket, part: Callable[[x509.Certificate], T]) -> T:
    """Return a part of the certificate that the other end shows. Raises NotTrusted if there is none to be read."""
    shown = connection.getpeercert(binary_form=True)
    try:
        assert shown is not None, "none is shown"
        return part(x509.load_der_x509_certificate(shown))
    except Exception as problem:  # noqa: BLE001 - TLS takes what this library refuses, in ways that it lists nowhere
        raise NotTrusted(
            "bad-certificate",
            f"the other end's certificate cannot be read: {type(problem).__name__}: {str(problem)[:200]!a}",
            hint="it is no node of a cluster",
        ) from None


class Trust(Protocol):
    """The newest trust record that is known here. Thread-safe; never touches the mount, never blocks."""

    @property
    def number(self) -> int:
        """Return the record's number."""
        ...

    def node_of(self, key_id: bytes) -> str | None:
        """Return whose TLS key this is, whatever its validity, or None."""
        ...

    def refuses(self, key_id: bytes) -> str | None:
        """Return why nobody may be at the other end of a connection with this TLS key now, or None if it is good."""
        ...

    def address_of(self, node: str) -> Address | None:
        """Return where a node answers other nodes, or None where no good key of it says so."""
        ...

    def look(self) -> None:
        """Have the newest record read soon: somebody showed a key that is not known yet."""
        ...
