"""Certificates as nobody should make them, issued by the key that anybody can be, so that TLS takes many of them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.lease import tls

if TYPE_CHECKING:
    import random

_BEGIN, _END = "-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n"
_INTEGER: Final = 0x02
_STRINGS: Final = (0x04, 0x0C, 0x13, 0x14, 0x16, 0x1A, 0x1C, 0x1E)
"""Octets, UTF-8, printable, T.61, IA5, visible, universal, BMP."""
_PUBLIC_KEY: Final = 6
"""Where the key stands in what is signed: without it nobody can shake hands."""


@dataclass(slots=True)
class Part:
    """One piece of DER: what it holds is bytes, or parts."""

    tag: int
    holds: bytes | list[Part]
    longer: int = 0
    """By how many bytes its length is written longer than it has to be."""

    def encoded(self) -> bytes:
        inside = self.holds if isinstance(self.holds, bytes) else b"".join(each.encoded() for each in self.holds)
        if len(inside) < 0x80 and not self.longer:
            return bytes([self.tag, len(inside)]) + inside
        size = len(inside).to_bytes((len(inside).bit_length() + 7) // 8 + self.longer, "big")
        return bytes([self.tag, 0x80 | len(size)]) + size + inside

    def below(self) -> list[tuple[list[Part], int]]:
        """Every part inside, by the list that it stands in and its place there."""
        found: list[tuple[list[Part], int]] = []
        if isinstance(self.holds, list):
            for number, each in enumerate(self.holds):
                found.append((self.holds, number))
                found += each.below()
        return found


def parsed(data: bytes) -> list[Part]:
    """The parts of some DER, of which every length is below 64 KiB."""
    found: list[Part] = []
    while data:
        tag, size, begin = data[0], data[1], 2
        if size & 0x80:
            begin = 2 + (size & 0x7F)
            size = int.from_bytes(data[2:begin], "big")
        inside = data[begin : begin + size]
        found.append(Part(tag, parsed(inside) if tag & 0x20 else inside))
        data = data[begin + size :]
    return found


def issued(signed: Part, algorithm: Part) -> bytes:
    """The certificate (PEM) over what is to be signed."""
    body = signed.encoded()
    signature = Ed25519PrivateKey.from_private_bytes(tls._ISSUER_SEED).sign(body)
    whole = Part(0x30, body + algorithm.encoded() + Part(0x03, b"\0" + signature).encoded())
    text = base64.encodebytes(whole.encoded()).decode()
    return (_BEGIN + text + _END).encode()


class Certificates:
    """Spoils the certificate of a key in one way after the other, from one source of chance."""

    def __init__(self, public: bytes, chance: random.Random) -> None:
        text = tls.certificate(public, release="1.2.3").decode()
        (whole,) = parsed(base64.b64decode(text.removeprefix(_BEGIN).removesuffix(_END)))
        assert isinstance(whole.holds, list)
        self._signed, self._algorithm = whole.holds[0].encoded(), whole.holds[1]
        self._chance = chance

    def one(self) -> bytes:
        """The next certificate (PEM); few are good, and not all can even be shown."""
        (signed,) = parsed(self._signed)
        for _ in range(self._chance.choice((1, 1, 1, 2, 4))):
            self._spoil(signed)
        return issued(signed, self._algorithm)

    def with_version(self, version: int) -> bytes:
        (signed,) = parsed(self._signed)
        assert isinstance(signed.holds, list)
        signed.holds[0] = Part(0xA0, [Part(_INTEGER, bytes([version]))])
        return issued(signed, self._algorithm)

    def with_name(self, tag: int, text: bytes) -> bytes:
        """Another string as the first in the subject."""
        (signed,) = parsed(self._signed)
        assert isinstance(signed.holds, list)
        held, number = next((held, number) for held, number in signed.holds[5].below() if held[number].tag in _STRINGS)
        held[number] = Part(tag, text)
        return issued(signed, self._algorithm)

    def _spoil(self, signed: Part) -> None:
        chance = self._chance
        assert isinstance(signed.holds, list)
        key = signed.holds[_PUBLIC_KEY] if len(signed.holds) > _PUBLIC_KEY else None
        kept = [] if key is None else [key, *(held[number] for held, number in key.below())]
        places = [(held, number) for held, number in signed.below() if all(held[number] is not each for each in kept)]
        held, number = chance.choice(places)
        part = held[number]
        match chance.randrange(10):
            case 0:
                part.tag = chance.choice(_STRINGS)
            case 1:
                part.tag = chance.randrange(256)
            case 2 | 3 if isinstance(part.holds, bytes) and part.holds:
                at = chance.randrange(len(part.holds))
                flipped = part.holds[at] ^ 1 << chance.randrange(8)
                part.holds = part.holds[:at] + bytes([flipped]) + part.holds[at + 1 :]
            case 4 if isinstance(part.holds, bytes):
                part.holds = chance.randbytes(chance.choice((0, 1, 2, len(part.holds), 300)))
            case 5:
                del held[number]
            case 6:
                held.insert(number, part)
            case 7:
                part.longer = chance.randint(1, 3)
            case 8:
                held[number] = Part(0x30, [part])
            case _:
                held.insert(number, Part(chance.choice((*_STRINGS, _INTEGER)), chance.randbytes(chance.randrange(40))))
