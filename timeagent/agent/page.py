"""The page: one file on tmpfs by which a node's time agent tells all its processes the time; and time read from it.

256 bytes, mapped by who reads; the layout is in docs/protocol/time.md. The agent rewrites it every 50 ms:

1. generation becomes odd;
2. everything else is written;
3. generation becomes the next even number.

A reader copies the page and believes the copy only if its CRC-32 is right: half a page is found out on any machine,
whatever the order in which its memory shows things. A generation that was believed once needs no second look.

The file is only ever overwritten in place: it must not be cut short or replaced while somebody maps it.
"""

from __future__ import annotations

import mmap
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ..clock import MachineClock, boot_id
from ..errors import BadTime, Damaged, Environment
from ..signedtime import TOKEN_BYTES, ClockStatus, SignedTime
from ..sources.nonce import NonceClient
from ..units import MS, Span, TimeInterval, span_text

PAGE_NAME: Final = "time.page"
PAGE_BYTES: Final = 256
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
_FIRST_LOOKS: Final = 200
_LOOK_EACH: Final = 64
"""Generations, of which each page takes two."""


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


class PageWriter:
    """The agent's end. One per file: the caller holds a lock that says so."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, readable by all. Raises Environment. A local tmpfs, not the mount."""
        self._path = path
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
        self._generation = (int.from_bytes(self._map[GENERATION], "little") % 2**63 + 1) & ~1

    def put(self, fields: PageFields) -> None:
        """Publish. Raises Environment, within two seconds, when somebody has removed the file: nobody finds it then."""
        odd = self._generation + 1
        self._generation = even = (odd + 1) % 2**63
        if even % _LOOK_EACH == 0:
            try:
                self._path.stat()
            except (FileNotFoundError, NotADirectoryError):
                what = f"somebody removed the time page {self._path}: nobody finds it"
                hint = "start the agent again, and see who removes files there (systemd: RemoveIPC=)"
                raise Environment("runtime-gone", what, hint=hint) from None
            except OSError:
                pass  # nobody can say now
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
        self.reopen()

    def reopen(self) -> None:
        """Map the file anew: its directory may have been made again. Raises BadTime as the constructor does."""
        try:
            with self._path.open("rb") as file:
                file.seek(0, 2)
                size = file.tell()
                if size < PAGE_BYTES:
                    raise BadTime(
                        "page-short", f"the time page {self._path} has {size} bytes, not {PAGE_BYTES}", hint=_HINT
                    )
                self.mapped = mmap.mmap(file.fileno(), PAGE_BYTES, access=mmap.ACCESS_READ)
        except OSError as problem:
            raise BadTime(
                "page-absent", f"cannot read the time page {self._path}: {problem.strerror}", hint=_HINT
            ) from None
        self.words = memoryview(self.mapped).cast("Q")
        """In words of this machine: ``words[GENERATION_WORD]`` says whether a page that was read stands."""
        self._seen: Page | None = None

    def page(self) -> Page:
        """Return the newest whole page; while the next one is being written, the one before. Never blocks.

        An agent may lose its processor in the midst of a page: what was read before is as good as a look before that,
        and grows old by itself. Raises BadTime: torn all the time, and none was read before; or another layout.
        """
        seen = self._seen
        if seen is not None and self.mapped[GENERATION] == seen.generation:
            return seen
        for _ in range(_COPIES_MAX):
            page = decode_page(self.mapped[:PAGE_BYTES])
            if page is not None:
                self._seen = page
                return page
        if seen is not None:
            return seen
        raise BadTime(
            "page-torn",
            f"the time page {self._path} was half written at each of {_COPIES_MAX} looks",
            hint="an agent that died while it wrote leaves that: start it again",
        )


_RUNS: Final = frozenset({"no-time", "key-ended", "clock-disrupted", "radius-too-wide"})
"""With these words an agent that runs says that it has nothing to say."""

type _View = tuple[int, int, int, int, int, int, Span, Span, SignedTime | None]
"""What a look needs of a page: generation (as its word of memory), as of (boot, raw), true minus boot (earliest,
latest), drift, how far it may grow, staleness, token (None: it has no time to tell). A tuple, because a look is taken
apart in one go."""


class AgentTime:
    """A NodeTime by the agent's page and door, for processes of a machine on which ``tenure time run`` runs.

    Reading is a look into mapped memory and at two clocks: no call to anybody. Thread-safe.

    What is refused, by code of BadTime: ``page-absent``, ``page-short``, ``page-version``, ``page-torn``,
    ``page-damaged``, ``page-other-boot``, ``page-other-key``, ``page-stale`` (older than it may be: the agent stands
    still), ``page-ahead`` (another CLOCK_BOOTTIME than this process has: a time namespace), ``no-time``, ``key-ended``,
    ``clock-disrupted``, ``radius-too-wide``.
    """

    def __init__(
        self,
        directory: Path,
        clock: MachineClock,
        *,
        key_id: bytes,
        radius_ns_max: Span,
        is_own: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """Map the page in the node's tmpfs directory. Raises BadTime if there is none.

        ``key_id``: of the node's time key; another key's page is refused, unless ``is_own`` says that it is one of this
        node's too: the agent takes a rotation up sooner than this process, or later.
        """
        self._reader = PageReader(directory / PAGE_NAME)
        self._door = NonceClient(directory)
        self._machine = clock
        self._boot_ns = clock.boot_ns
        self._raw_ns = clock.raw_ns
        self._boot = boot_id()
        self._key_id = key_id
        self._is_own = is_own
        self.limit_radius(radius_ns_max)
        self._words = self._reader.words
        self._view: _View | None = None

    def limit_radius(self, radius_ns_max: Span) -> None:
        """Refuse, from now on, time that is known less well than this."""
        self._radius_ns_max = radius_ns_max
        self._width_max = 2 * radius_ns_max

    def boot_ns(self) -> int:
        return self._boot_ns()

    def sleep(self, span: Span) -> None:
        self._machine.sleep(span)

    def now(self) -> TimeInterval:
        """Return the interval that holds true time. Raises BadTime."""
        return self.now_and_token()[0]

    def token(self) -> SignedTime:
        """Return the agent's current signed time. Raises BadTime as ``now`` does."""
        return self.now_and_token()[1]

    def now_and_token(self, *, again: bool = True) -> tuple[TimeInterval, SignedTime]:
        """Return both, from one look at the page; from one more if that was stale. Raises BadTime."""
        view = self._view
        if view is None or self._words[GENERATION_WORD] != view[0]:
            view = self._judged()
        _, as_of_boot, as_of_raw, low, high, drift_ppm, room, stale_ns, token = view
        boot = self._boot_ns()
        age = boot - as_of_boot
        if not 0 <= age <= stale_ns:
            return self._stale(age, stale_ns, again=again)
        if token is None:
            page = self._reader.page()
            if page.token and page.status.usable:  # it has the time since this look
                return self.now_and_token(again=again)
            raise self._silent(page)
        grown = 0
        if drift_ppm:
            grown = age * drift_ppm // 1_000_000 + 1
            slewed = self._raw_ns() - as_of_raw - age
            if not -grown <= slewed <= grown:
                grown += abs(slewed) * (1_000_000 + drift_ppm) // 1_000_000 + 1  # as clock.excess_slew_ns has it
        if grown > room:
            raise self._too_wide(high - low + 2 * grown)
        return TimeInterval(boot + low - grown, boot + high + grown), token

    def token_over(self, digest: bytes) -> SignedTime:
        """Return a signed time over 32 bytes, made now by the agent. Blocks for its answer. Raises BadTime."""
        token = self._door.sign(digest)
        self._check_key(token)
        if token.radius_ns > self._radius_ns_max:
            raise self._too_wide(2 * token.radius_ns)
        return token

    def _judged(self) -> _View:
        """Judge what does not change while the page stands, once."""
        page = self._reader.page()
        if page.boot != self._boot:
            raise BadTime(
                "page-other-boot", f"the time page is of boot {page.boot.hex()}, this is {self._boot.hex()}", hint=_HINT
            )
        token = None
        if page.token and page.status.usable:
            try:
                token = SignedTime.decode(page.token, "the time page")
            except Damaged as problem:
                raise BadTime(
                    "page-damaged", problem.message, hint="run the agent and its readers from one version"
                ) from None
            self._check_key(token)
        ahead = page.ahead
        self._view = view = (
            int.from_bytes(page.generation, sys.byteorder),
            page.as_of_boot_ns,
            page.as_of_raw_ns,
            ahead.earliest,
            ahead.latest,
            page.drift_ppm,
            (self._width_max - (ahead.latest - ahead.earliest)) // 2,
            page.stale_ns,
            token,
        )
        return view

    def _silent(self, page: Page) -> BadTime:
        left = page.silent_until_ns - self._boot_ns()
        if page.status is ClockStatus.DISRUPTED and left > 0:
            return BadTime(
                "clock-disrupted",
                f"what the agent knows of the time contradicts itself; it says nothing for another {span_text(left)}",
                hint="tenure time sources names who disagrees",
            )
        if page.status.usable:
            what = "the time agent has a bound, and its key has ended: it signs nothing"
            return BadTime("key-ended", what, hint="tenure trust ls says which keys count; trust rotate makes the next")
        return BadTime(
            "no-time", "the time agent has no bound", hint="tenure time sources says why; tenure time wait waits"
        )

    def _stale(self, age: Span, stale_ns: Span, *, again: bool) -> tuple[TimeInterval, SignedTime]:
        """Refuse a page that is too old, unless the file was made anew meanwhile and holds another one."""
        if age < 0:
            raise BadTime(
                "page-ahead",
                f"the time page was written {span_text(-age)} after now: this process has another CLOCK_BOOTTIME",
                hint="run the agent and its readers in one time namespace",
            )
        if again:
            self._reader.reopen()
            self._words, self._view = self._reader.words, None
            return self.now_and_token(again=False)
        raise BadTime(
            "page-stale",
            f"the time page is {span_text(age)} old; {span_text(stale_ns)} are allowed",
            hint=f"{_HINT}; if it does, it stands still: see its scheduling in docs/operators.md",
        )

    def _check_key(self, token: SignedTime) -> None:
        if token.key_id == self._key_id:
            return
        if not self._is_own(token.key_id):
            raise BadTime(
                "page-other-key",
                f"the time agent signs with key id {token.key_id.hex()}, this node's time key has {self._key_id.hex()}",
                hint="start the agent with this node's directory: --node-dir; tenure trust ls names every id",
            )
        self._key_id = token.key_id

    def _too_wide(self, width: Span) -> BadTime:
        return BadTime(
            "radius-too-wide",
            f"the clock is known to {span_text((width + 1) // 2)}; the policy allows {span_text(self._radius_ns_max)}",
            hint="tenure time sources says what each source knows",
        )


def running_agent(
    directory: Path, clock: MachineClock, *, key_id: bytes, radius_ns_max: Span, is_own: Callable[[bytes], bool]
) -> AgentTime | None:
    """Return the agent's time if one runs for this node and publishes now, whatever it may say; else None.

    Waits for a page that is half written, at most ``_FIRST_LOOKS`` milliseconds.
    """
    for _ in range(_FIRST_LOOKS):
        try:
            agent = AgentTime(directory, clock, key_id=key_id, radius_ns_max=radius_ns_max, is_own=is_own)
            agent.now_and_token()
        except BadTime as problem:
            if problem.code == "page-torn":
                clock.sleep(MS)
                continue
            return agent if problem.code in _RUNS else None
        return agent
    return None
