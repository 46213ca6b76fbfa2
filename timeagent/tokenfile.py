"""The page: one file on tmpfs by which a node's time agent tells all its processes the time. No call, no lock.

256 bytes, mapped by who reads; the layout is in docs/protocol/time.md. The agent rewrites it every 50 ms:

1. generation becomes odd;
2. everything else is written;
3. generation becomes the next even number.

A reader copies the page and believes the copy only if its CRC-32 is right: half a page is found out on any machine,
whatever the order in which its memory shows things. A generation that was believed once needs no second look.

Processes that never share a clock epoch with the agent's boot, and pages of another layout, are refused by name; a
page that nobody rewrites is refused when it is older than it says it may be. The file is only ever overwritten in
place: it must not be cut short or replaced while somebody maps it.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from pathlib import Path
from typing import Final, Protocol

import msgspec

from .errors import BadTime, Environment
from .interval import TimeInterval
from .signedtime import TOKEN_BYTES, ClockStatus
from .units import MS, Span

PAGE_NAME: Final = "time.page"
PAGE_BYTES: Final = 256
STALE_NS: Final[Span] = 250 * MS
"""How old a page may be, in CLOCK_BOOTTIME, when it is used."""

MAGIC: Final = b"TNSTPAGE"
VERSION: Final = 1
_KIND: Final = (MAGIC, VERSION, PAGE_BYTES)
GOOD_CRC: Final = 0x2144DF1C
"""The CRC-32 of anything that ends with its own CRC-32 in little-endian order."""

_HEAD: Final = struct.Struct("<8sIIQ16sqqqqIIQQQ")
_WORD: Final = struct.Struct("<Q")
_CRC: Final = struct.Struct("<I")
_BODY: Final = struct.Struct(f"{_HEAD.format}{TOKEN_BYTES}s20x")
GENERATION: Final = slice(16, 24)
_AFTER_GENERATION: Final = slice(24, None)
GENERATION_WORD: Final = 2
"""The same, counted in words of 8 bytes."""
_TOKEN: Final = slice(104, 104 + TOKEN_BYTES)
_CRC_AT: Final = PAGE_BYTES - 4
assert _HEAD.size == _TOKEN.start
assert _BODY.size == _CRC_AT
_NO_TOKEN: Final = bytes(TOKEN_BYTES)
_COPIES_MAX: Final = 64


type PageFields = tuple[bytes, int, int, int, int, int, int, int, int, int, bytes]
"""What a page says, in the order of its layout: all between generation and the zeros at the end."""


class Page(msgspec.Struct, frozen=True, gc=False):
    """One generation of the page."""

    generation: bytes
    boot: bytes
    """The kernel's name of the boot that CLOCK_BOOTTIME counts from: 16 bytes."""
    as_of_boot_ns: int
    as_of_raw_ns: int
    ahead: TimeInterval
    """True time minus CLOCK_BOOTTIME, as of then."""
    drift_ppm: int
    """How fast that grows in either direction; 0: it does not age, it is a statement."""
    status: ClockStatus
    clock_epoch: int
    stale_ns: Span
    silent_until_ns: int
    """While disrupted: until when of CLOCK_BOOTTIME nothing will be said."""
    token: bytes
    """An encoded SignedTime, or nothing where the status is not usable."""

    def fields(self) -> PageFields:
        """Return what it says, for a PageSink."""
        return (
            self.boot,
            self.as_of_boot_ns,
            self.as_of_raw_ns,
            self.ahead.earliest,
            self.ahead.latest,
            self.drift_ppm,
            self.status,
            self.clock_epoch,
            self.stale_ns,
            self.silent_until_ns,
            self.token,
        )


def encode_page(page: Page, generation: bytes | None = None) -> bytes:
    """Return the 256 bytes, of another generation than the page's own if one is given."""
    data = _BODY.pack(*_KIND, int.from_bytes(generation or page.generation, "little"), *page.fields())
    return data + zlib.crc32(data).to_bytes(4, "little")


def decode_page(data: bytes) -> Page | None:
    """Read a copy of the page; None for a torn one. Raises BadTime: it is none, or of another version. Pure."""
    if len(data) < PAGE_BYTES:
        raise BadTime("page-short", f"the time page has {len(data)} bytes, not {PAGE_BYTES}", hint=_HINT)
    magic, version, size, generation, boot, as_of_boot, as_of_raw, low, high, drift, status, epoch, stale, until = (
        _HEAD.unpack_from(data)
    )
    if magic != MAGIC or version != VERSION or size != PAGE_BYTES:
        if not any(data):
            return None  # just made, not written yet
        raise BadTime(
            "page-version",
            f"the time page begins with {magic.hex()}, version {version}, {size} bytes: not what is read here",
            hint="run the agent and its readers from one version",
        )
    if generation % 2 or zlib.crc32(data) != GOOD_CRC or low > high or status > ClockStatus.DISRUPTED:
        return None
    token = data[_TOKEN]
    return Page(
        data[GENERATION],
        boot,
        as_of_boot,
        as_of_raw,
        TimeInterval(low, high),
        drift,
        ClockStatus(status),
        epoch,
        stale,
        until,
        b"" if token == _NO_TOKEN else token,
    )


_HINT: Final = "does the time agent run? tenure time run"


class PageSink(Protocol):
    """Where the agent publishes."""

    def put(self, fields: PageFields) -> None:
        """Publish the next page; its generation is chosen here."""
        ...


class PageWriter:
    """The agent's end. One per file: the caller holds a lock that says so."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, readable by all. Raises Environment. A local tmpfs, not the mount."""
        try:
            path.touch(mode=0o644)
            with path.open("r+b") as file:
                file.seek(0, 2)
                if file.tell() < PAGE_BYTES:  # grown, never cut: a reader may have it mapped
                    file.write(bytes(PAGE_BYTES - file.tell()))
                    file.flush()
                self._map = mmap.mmap(file.fileno(), PAGE_BYTES)
        except OSError as problem:
            raise Environment(
                "page-unwritable", f"cannot write the time page {path}: {problem.strerror}", hint="check its directory"
            ) from None
        self._map[:16] = _HEAD.pack(*_KIND, 0, b"", 0, 0, 0, 0, 0, 0, 0, 0, 0)[:16]  # the same in every page
        # One past what is there, and even: after an agent that died while it wrote, too.
        self._generation = (int.from_bytes(self._map[GENERATION], "little") + 1) & ~1

    def write(self, page: Page) -> None:
        """Publish. ``page.generation`` is not used."""
        self.put(page.fields())

    def put(self, fields: PageFields) -> None:
        """Publish."""
        odd = self._generation + 1
        self._generation = even = (odd + 1) % 2**63
        data = _BODY.pack(*_KIND, even, *fields)
        mapped = self._map
        mapped[GENERATION] = _WORD.pack(odd)
        mapped[_AFTER_GENERATION] = data[_AFTER_GENERATION] + _CRC.pack(zlib.crc32(data))
        mapped[GENERATION] = data[GENERATION]

    def close(self) -> None:
        """Let go of the file. What it says goes stale by itself."""
        self._map.close()


class PageReader:
    """A reader's end: the newest page that is whole. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Map the file. Raises BadTime: there is none, or it is too short."""
        self._path = path
        self.mapped = self._opened()
        """The file, read-only."""
        self.words = memoryview(self.mapped).cast("Q")
        """The same in words of this machine: ``words[GENERATION_WORD]`` says whether a page that was read stands."""
        self._seen: Page | None = None

    def _opened(self) -> mmap.mmap:
        try:
            with self._path.open("rb") as file:
                file.seek(0, 2)
                size = file.tell()
                if size < PAGE_BYTES:
                    raise BadTime(
                        "page-short", f"the time page {self._path} has {size} bytes, not {PAGE_BYTES}", hint=_HINT
                    )
                return mmap.mmap(file.fileno(), PAGE_BYTES, access=mmap.ACCESS_READ)
        except OSError as problem:
            raise BadTime(
                "page-absent", f"cannot read the time page {self._path}: {problem.strerror}", hint=_HINT
            ) from None

    def reopen(self) -> None:
        """Map the file anew: its directory may have been made again. Raises BadTime as the constructor does."""
        self.mapped = self._opened()
        self.words = memoryview(self.mapped).cast("Q")
        self._seen = None

    def page(self) -> Page:
        """Return the newest whole page. Never blocks. Raises BadTime: torn all the time, or another layout."""
        seen = self._seen
        if seen is not None and self.mapped[GENERATION] == seen.generation:
            return seen
        for _ in range(_COPIES_MAX):
            page = decode_page(self.mapped[:PAGE_BYTES])
            if page is not None:
                self._seen = page
                return page
        raise BadTime(
            "page-torn",
            f"the time page {self._path} was half written at each of {_COPIES_MAX} looks",
            hint="an agent that died while it wrote leaves that: start it again",
        )
