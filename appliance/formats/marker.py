"""The file TENURE at a root: this directory is that cluster. Plain text, so that people can read it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timeagent.errors import BadConfiguration, Damaged
from timeagent.keys import fingerprint, parse_public_line, public_line

ROOT_VARIABLE: Final = "TENURE_ROOT"
"""The environment variable that names the root where a command is not told it."""

FORMAT: Final = 1
FORMAT_DIGITS_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class Marker:
    """Which cluster a root belongs to, and the public half of its root key."""

    cluster_id: bytes
    root_key: bytes

    def encode(self) -> bytes:
        return (
            f"tenure root, format {FORMAT}\ncluster {self.cluster_id.hex()}\n"
            f"{public_line(self.root_key, 'tenure-root')}\n"
        ).encode("ascii")

    @property
    def fingerprint(self) -> str:
        """What to compare by eye: the root key's fingerprint."""
        return fingerprint(self.root_key)


def format_of(data: bytes) -> int | None:
    """Return the format that a marker states; None where it states none."""
    words = data.split(b"\n", 1)[0].removeprefix(b"tenure root, format ")
    return int(words) if words.isdigit() and len(words) <= FORMAT_DIGITS_MAX else None


def decode_marker(data: bytes, where: str) -> Marker:
    """Read the file. Raises Damaged, naming ``where``, also for a format that this version does not know."""
    lines = data.decode("ascii", "replace").splitlines()
    head = f"tenure root, format {FORMAT}"
    if len(lines) != 3 or lines[0] != head or not lines[1].startswith("cluster "):  # noqa: PLR2004 - head, cluster, root key
        raise Damaged("bad-marker", f"{where} is not the marker of a tenure root: it must begin with {head!r}")
    try:
        marker = Marker(bytes.fromhex(lines[1].removeprefix("cluster ")), parse_public_line(lines[2], where))
    except ValueError:
        raise Damaged("bad-marker", f"{where} names no cluster: {lines[1]!r}") from None
    except BadConfiguration as problem:
        raise Damaged("bad-marker", problem.message) from None
    if len(marker.cluster_id) != 16 or marker.encode() != data:  # noqa: PLR2004 - bytes of an id
        raise Damaged("bad-marker", f"{where} is not written as this version writes it")
    return marker
