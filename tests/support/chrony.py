"""chrony's tracking report, encoded here: written apart from the decoder that it tests."""

import math
import struct
from dataclasses import dataclass

UPDATED_S = 1_795_212_600


def chrony_float(value: float) -> bytes:
    """7 bits of signed exponent, 25 of signed coefficient: coefficient * 2 ** (exponent - 25)."""
    if value == 0:
        return bytes(4)
    mantissa, exponent = math.frexp(value)  # 0.5 <= |mantissa| < 1
    coefficient = round(mantissa * 2**24)
    exponent += 1
    if abs(coefficient) == 2**24:
        coefficient //= 2
        exponent += 1
    return ((exponent & 0x7F) << 25 | coefficient & 0x1FFFFFF).to_bytes(4, "big")


@dataclass
class Report:
    """A synchronised chronyd; every field can be made worse."""

    reference: int = 0xC0000201
    stratum: int = 3
    leap: int = 0
    seconds: int = UPDATED_S
    nanoseconds: int = 0
    correction: float = 0.0
    delay: float = 0.002
    dispersion: float = 0.001
    interval: float = 64.0
    version: int = 6
    kind: int = 2
    command: int = 33
    reply: int = 5
    status: int = 0

    def encode(self, sequence: int) -> bytes:
        head = struct.pack(
            ">BBBBHHHHHHIII",
            self.version,
            self.kind,
            0,
            0,
            self.command,
            self.reply,
            self.status,
            0,
            0,
            0,
            sequence,
            0,
            0,
        )
        body = struct.pack(
            ">I16sHHHH", self.reference, bytes([192, 0, 2, 1]).ljust(16, b"\0"), 1, 0, self.stratum, self.leap
        )
        body += struct.pack(">III", self.seconds >> 32, self.seconds & 0xFFFFFFFF, self.nanoseconds)
        last_offset = rms = frequency = residual = skew = 0.0
        for value in (
            self.correction,
            last_offset,
            rms,
            frequency,
            residual,
            skew,
            self.delay,
            self.dispersion,
            self.interval,
        ):
            body += chrony_float(value)
        return head + body
