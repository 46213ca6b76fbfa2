"""The turns of a shard in a key-value store that outlives its machine (docs/protocol/lease.md, "Turns kept in etcd").

Before the replies of a turn leave, all that it changed is there, in one transaction, with the block that the ledger
gets. The transaction is done only while one key, the *head*, is as this run wrote it last: a run that takes the head
over ends all writing of the run before. One without an answer is asked for again as it is, and recognised by its head
if it was done the first time; a run that is not answered for too long ends, without an answer to anybody.

It is a log, not a table, because a transaction of etcd takes 128 operations and 1.5 MiB, and a turn may change
thousands of domains. Each turn says again what was said longest ago, as much as it says new.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from timeagent.canonical import U64, Bytes16, Record, decode, encode
from timeagent.clock import NodeTime
from timeagent.errors import BadConfiguration, Damaged, ShardUnavailable, TryAgain
from timeagent.units import MS, SECOND, Instant, Span

from ..formats.chains import CeilingKind, CeilingRecord
from .domain import Free, SessionRecord, State, Taken
from .store import FORM, LeaseStore
from .whole_shard import Suspension

if TYPE_CHECKING:
    from http.client import HTTPConnection

PART_BYTES: Final = 256 * 1024
REQUEST_BYTES: Final = 1024 * 1024
"""How much is put in one transaction, or a part more: etcd takes 1.5 MiB unless it is told otherwise."""

PAGE: Final = 64
"""How many values are read at once."""

RESTATED_MIN: Final = 4
"""How many domains and sessions a turn says again at least: what is seldom renewed moves to the front by that."""

PAUSE_NS: Final = 50 * MS
"""How long to wait before the store is asked again."""

RECALLS_AHEAD: Final = 2**32
"""By how much a run that goes on begins its recalls above the last turn: some were told after that."""

type Pair = tuple[bytes, bytes]

_PART: Final = re.compile(rb"[0-9a-f]{16}/[0-9a-f]{8}")
"""How the key of a part of a turn or a block ends: what has another among them is not this log's."""

_states: Final = msgspec.msgpack.Decoder(Free | Taken)
_encode: Final = msgspec.msgpack.Encoder().encode


class KeyValues(Protocol):
    """A store of keys and values with transactions, which outlives machines. Blocks for the network."""

    def commit(
        self, guard: bytes, revision: int, puts: Sequence[Pair], deletes: Sequence[Pair]
    ) -> tuple[bool, int, bytes]:
        """Put and delete all or nothing, if ``guard`` has not changed since it had this revision (0: it is not there).

        ``deletes``: first key and end of each range. Return whether it was done, and the guard's revision and value
        after it. Raises TryAgain: it was done, or not, or is going to be.
        """
        ...

    def read(self, first: bytes, end: bytes, limit: int) -> list[Pair]:
        """Return the first so many pairs of a range, in the order of their keys, as nobody may have seen them newer."""
        ...

    def revision(self, key: bytes) -> tuple[int, bytes]:
        """Return revision and value of a key as it is now; 0 and nothing where it is not there."""
        ...

    def close(self) -> None:
        """Let go of what it is reached by. Another call reaches it again."""
        ...


class LogLost(Exception):
    """This run may answer nobody any more: whether its last turn is kept is unknown, or another run has taken over.

    It ends the run's server, and comes out as ShardUnavailable where one begins: no caller sees it.
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


class LogHead(Record, frozen=True):
    """What a run wrote last. It names the run: no two transactions put the same."""

    run: Bytes16
    turn: U64
    ceiling_number: U64
    """The newest record of the chain that the run went by."""
    said: bytes
    """A Suspension: how the shard stood after that turn. Empty: no turn is kept."""
    form: U64 = FORM

    def difference(self, said: Suspension, newest: CeilingRecord) -> str | None:
        """Return why nobody may go on with what is kept, or None. ``newest``: the newest record of the chain, afresh.

        Each record of a chain is told in a turn before the next one is linked: where two are missing turns are missing,
        as in a store that was set up again from a copy.
        """
        if self.form != FORM:
            return f"it is of form {self.form}, and this release reads {FORM}"
        if newest.incarnation != said.incarnation or newest.kind is not CeilingKind.RUNNING:
            return f"record {newest.number} of the chain is not that of a run which it left"
        if newest.number > self.ceiling_number + 1:
            return (
                f"the chain is at record {newest.number}, the newest turn that is kept at {self.ceiling_number}: "
                "turns that were kept are missing"
            )
        return None


class TurnChanges(Record, frozen=True):
    """What a turn changed, and what it says again. Empty: no more is to be known of it."""

    domains: tuple[tuple[str, bytes], ...]
    sessions: tuple[Pair, ...]


class TurnLog:
    """The log of one shard, as one run reads and writes it. One call at a time; blocks for the store.

    First ``found``, then ``take``; then ``load`` or nothing, and ``keep`` from turn to turn.
    """

    def __init__(
        self, store: KeyValues, cluster_id: bytes, shard: int, run: bytes, time: NodeTime, patience_ns: Span
    ) -> None:
        """Touch nothing yet. ``run``: 16 random bytes. ``patience_ns``: how long the store is asked again."""
        self._store = store
        self._prefix = f"tenure/{cluster_id.hex()}/{shard}/".encode()
        self._run = run
        self._time = time
        self._patience_ns = patience_ns
        self._revision = 0
        self._head: LogHead | None = None
        self._turn = 0
        self._where: dict[str | bytes, int] = {}
        """In which turn each domain and session was said last, the longest ago first."""
        self._floor_ns: Instant = 0
        self._settle_to_ns: Instant = 0
        self._first = self._oldest = self._oldest_block = 0
        self.written: Callable[[], int] = lambda: 0
        """How many blocks of this run the ledger has."""
        self.lost: str | None = None
        """Why this run may answer nobody any more, or None."""

    # -- its beginning -------------------------------------------------------------------------------------------------

    def found(self) -> LogHead | None:
        """Return what the run before wrote last, or None. Asks once. Raises TryAgain, Damaged: it can be taken."""
        self._head = None
        self._revision, raw = self._store.revision(self._guard)
        self._head = decode(LogHead, raw, "the head of a shard's log") if raw else None
        return self._head

    def take(self, ceiling_number: int) -> None:
        """Take the head over as it was found: no run before writes any more. Raises TryAgain, LogLost."""
        before = self._head
        self._turn = before.turn if before is not None else 0
        self._first = self._turn + 1
        self._where.clear()
        self._floor_ns = self._settle_to_ns = 0
        head = LogHead(
            run=self._run,
            turn=self._turn,
            ceiling_number=ceiling_number,
            said=before.said if before is not None else b"",
        )
        unfinished = [(self._key(what, self._first), self._end(what)) for what in ("turn", "block")]
        self._commit([(self._guard, encode(head))], unfinished)

    def load(self, store: LeaseStore, said: Suspension) -> None:
        """Read what was out into an empty store. After ``take``. Raises TryAgain, Damaged."""
        found: dict[str | bytes, bytes] = {}
        turn = 0
        for turn, raw in self._values("turn"):
            changes = decode(TurnChanges, raw, f"turn {turn} of a shard's log")
            said_there: dict[str | bytes, bytes] = {**dict(changes.domains), **dict(changes.sessions)}
            found |= said_there
            self._say(said_there, turn)
        if turn != self._turn:
            raise Damaged("log-incomplete", f"a shard's log ends with turn {turn}; its head names {self._turn}")
        with store.transaction():
            for name, state in found.items():
                if not state:
                    continue
                if isinstance(name, bytes):
                    store.put_session(decode(SessionRecord, state, "a session lease"))
                else:
                    store.put(name, _decoded(state))
        self._floor_ns, self._settle_to_ns = said.floor_ns, said.settle_to_ns

    def blocks(self) -> list[bytes]:
        """Return the blocks that the ledger of the run before may lack, in order. After ``take``.

        Raises TryAgain; LogLost where another run has taken over: its ledger has them, and what came after them.
        """
        found = [block for _, block in self._values("block")]
        if self._patiently(lambda: self._store.revision(self._guard))[0] != self._revision:
            raise self._taken()
        return found

    def close(self) -> None:
        """Let go of the store. Idempotent."""
        self._store.close()

    # -- turn by turn --------------------------------------------------------------------------------------------------

    def keep(self, store: LeaseStore, said: Suspension, ceiling_number: int, block: bytes) -> None:
        """Keep what has changed in the store since the last turn. It is there when this returns.

        ``said``: how the shard stands now; ``block``: what the ledger gets. Raises LogLost, now and ever after: nobody
        may be told of the turn, nor of any other.
        """
        if self.lost is not None:
            raise LogLost("log-lost", self.lost)
        turn = self._turn + 1
        names, store.noted = store.noted or {}, {}
        kept = {name: self._state(store, name, said.signed_ns) for name in names}
        kept = {name: state for name, state in kept.items() if state or name in self._where}
        older = islice((each for each in self._where if each not in kept), max(RESTATED_MIN, len(kept)))
        kept.update([(name, self._state(store, name, said.signed_ns)) for name in older])
        oldest = next((said_in for name, said_in in self._where.items() if name not in kept), turn)
        changes = TurnChanges(
            domains=tuple((name, state) for name, state in kept.items() if isinstance(name, str)),
            sessions=tuple((name, state) for name, state in kept.items() if isinstance(name, bytes)),
        )
        puts = [*self._parts("turn", turn, encode(changes)), *self._parts("block", turn, block)]
        oldest_block = self._first + self.written()
        gone = []
        if oldest > self._oldest:
            gone.append((self._key("turn", 0), self._key("turn", oldest)))
        if oldest_block > self._oldest_block:
            gone.append((self._key("block", 0), self._key("block", oldest_block)))
        head = LogHead(run=self._run, turn=turn, ceiling_number=ceiling_number, said=encode(self._covering(said)))
        *parts, last = _in_requests(puts)
        try:
            for each in parts:
                self._commit(each, (), moves=False)
            self._commit([*last, (self._guard, encode(head))], gone)
        except TryAgain as problem:
            self.lost = f"whether turn {turn} of the shard is kept is unknown: {problem.message}"
            raise LogLost("log-in-doubt", self.lost, hint=problem.hint) from None
        self._turn, self._oldest, self._oldest_block = turn, oldest, oldest_block
        self._say(kept, turn)

    def _say(self, states: Mapping[str | bytes, bytes], turn: int) -> None:
        for name, state in states.items():
            self._where.pop(name, None)
            if state:
                self._where[name] = turn

    def _state(self, store: LeaseStore, name: str | bytes, signed_ns: Instant) -> bytes:
        """Return what is to be known of a domain or a session after a crash; empty: the shard's own numbers do."""
        if isinstance(name, bytes):
            session = store.sessions.get(name)
            return b"" if session is None else encode(session)
        state = store.read(name)
        if state is None:
            return b""  # evicted: that raised the shard's own numbers
        memory = state.memory
        if isinstance(state, Taken) or max(memory.floor_ns, memory.settle_to_ns) > signed_ns:
            return _encode(state)
        self._floor_ns = max(self._floor_ns, memory.floor_ns, memory.fence)
        self._settle_to_ns = max(self._settle_to_ns, memory.settle_to_ns)
        return b""

    def _covering(self, said: Suspension) -> Suspension:
        """Return how whoever goes on has to begin: what is forgotten then lies below the shard's own numbers."""
        floor, settle_to = max(said.floor_ns, self._floor_ns), max(said.settle_to_ns, self._settle_to_ns)
        return msgspec.structs.replace(
            said,
            floor_ns=floor,
            settle_to_ns=settle_to,
            begun_floor_ns=floor,
            begun_settle_to_ns=settle_to,
            recalls=said.recalls + RECALLS_AHEAD,
            revoked=(),
        )

    # -- the store -----------------------------------------------------------------------------------------------------

    @property
    def _guard(self) -> bytes:
        return self._prefix + b"head"

    def _key(self, what: str, turn: int) -> bytes:
        return self._prefix + f"{what}/{turn:016x}".encode()

    def _end(self, what: str) -> bytes:
        return self._prefix + f"{what}0".encode()  # the character behind the slash

    def _parts(self, what: str, turn: int, value: bytes) -> list[Pair]:
        key = self._key(what, turn)
        starts = range(0, len(value), PART_BYTES)
        return [(key + f"/{n:08x}".encode(), value[at : at + PART_BYTES]) for n, at in enumerate(starts)]

    def _values(self, what: str) -> Iterator[tuple[int, bytes]]:
        head = len(self._prefix) + len(what) + 1
        own = (pair for pair in self._pairs(what) if _PART.fullmatch(pair[0], head))
        for turn, parts in groupby(own, lambda pair: int(pair[0][head : head + 16], 16)):
            yield turn, b"".join(part for _, part in parts)

    def _pairs(self, what: str) -> Iterator[Pair]:
        first, end = self._key(what, 0), self._end(what)
        while page := self._patiently(lambda: self._store.read(first, end, PAGE)):  # noqa: B023 - called at once
            yield from page
            first = page[-1][0] + b"\0"

    def _commit(self, puts: Sequence[Pair], deletes: Sequence[Pair], *, moves: bool = True) -> None:
        """Commit for as long as the head is this run's. ``moves``: with a new head, which comes last among the puts.

        The same again does nothing more: with a new head it finds the guard changed, and without it puts the same.
        """
        done, revision, value = self._patiently(lambda: self._store.commit(self._guard, self._revision, puts, deletes))
        if not done and not (moves and value == puts[-1][1]):
            raise self._taken()
        self._revision = revision

    def _taken(self) -> LogLost:
        self.lost = "another run of this shard has taken its log over, or it was deleted"
        return LogLost("log-taken", self.lost, hint="let one machine at a time be this node; stop it before you delete")

    def _patiently[T](self, step: Callable[[], T]) -> T:
        until = self._time.boot_ns() + self._patience_ns
        while True:
            try:
                return step()
            except TryAgain:
                if self._time.boot_ns() >= until:
                    raise
            self._time.sleep(PAUSE_NS)


def _decoded(state: bytes) -> State:
    try:
        found: State = _states.decode(state)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Damaged("log-damaged", f"the state of a domain in a shard's log: {problem}") from None
    return found


def _in_requests(puts: Iterable[Pair]) -> list[list[Pair]]:
    """Share what is to be put out among transactions, each as large as one may be."""
    found: list[list[Pair]] = [[]]
    size = 0
    for pair in puts:
        if found[-1] and size + len(pair[1]) > REQUEST_BYTES:
            found.append([])
            size = 0
        found[-1].append(pair)
        size += len(pair[1])
    return found


# -- etcd --------------------------------------------------------------------------------------------------------------

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_OK: Final = 200
_TXN, _RANGE, _STATUS = "/v3/kv/txn", "/v3/kv/range", "/v3/maintenance/status"
_SAID_MAX: Final = 200


class _Value(msgspec.Struct):
    key: bytes
    mod_revision: int
    value: bytes = b""


class _Range(msgspec.Struct):
    kvs: list[_Value] = []

    def first(self) -> tuple[int, bytes]:
        """Return revision and value of the one key that was asked for; 0 and nothing where it is not there."""
        return (self.kvs[0].mod_revision, self.kvs[0].value) if self.kvs else (0, b"")


class _Step(msgspec.Struct):
    response_range: _Range = msgspec.field(default_factory=_Range)


class _Done(msgspec.Struct):
    succeeded: bool = False
    responses: list[_Step] = []


class _Status(msgspec.Struct):
    version: str = "?"
    errors: list[str] = []


class Etcd:
    """One etcd, by its JSON gateway. One call at a time, which waits so long for each part of an answer.

    All instances of one etcd answer alike; the next one is asked when one does not answer. Whatever is not an answer
    leaves open what was done: only questions are repeated here, each once an instance.
    """

    def __init__(
        self, endpoints: Sequence[str], timeout_ns: Span, *, ca: str = "", cert: str = "", key: str = ""
    ) -> None:
        """Touch no network. ``endpoints``: as ``http://10.0.0.1:2379``; ``ca``, ``cert``, ``key``: files of https.

        Raises BadConfiguration.
        """
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_ns / SECOND
        self._context: ssl.SSLContext | None = None
        if any(each.startswith("https:") for each in endpoints):
            used = ca
            try:
                self._context = ssl.create_default_context(cafile=ca or None)
                if cert:
                    used = f"{cert} with {key}" if key else cert
                    self._context.load_cert_chain(cert, key or None)
            except OSError as problem:
                why = f"etcd: {used} cannot be used: {problem}"
                raise BadConfiguration("bad-settings", why, hint="ca, cert and key of [etcd] are PEM files") from None
        self._connection: HTTPConnection | None = None

    def commit(
        self, guard: bytes, revision: int, puts: Sequence[Pair], deletes: Sequence[Pair]
    ) -> tuple[bool, int, bytes]:
        """Do a transaction. See ``KeyValues``."""
        done = [
            *({"requestDeleteRange": {"key": first, "range_end": end}} for first, end in deletes),
            *({"requestPut": {"key": key, "value": value}} for key, value in puts),
        ]
        answer = self._call(
            _TXN,
            {
                "compare": [{"key": guard, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}],
                "success": [*done, {"requestRange": {"key": guard}}],
                "failure": [{"requestRange": {"key": guard}}],
            },
            _Done,
        )
        if not answer.responses:
            raise self._unanswered(_TXN, "its answer lacks responses")
        return answer.succeeded, *answer.responses[-1].response_range.first()

    def read(self, first: bytes, end: bytes, limit: int) -> list[Pair]:
        """Read a range. See ``KeyValues``."""
        found = self._found({"key": first, "range_end": end, "limit": str(limit)})
        return [(each.key, each.value) for each in found.kvs]

    def revision(self, key: bytes) -> tuple[int, bytes]:
        """Read a key. See ``KeyValues``."""
        return self._found({"key": key}).first()

    def version(self) -> str:
        """Return which release answers. Raises ShardUnavailable where none does, or it takes no more writes."""
        said = self._call(_STATUS, {}, _Status)
        if said.errors:
            raise self._unanswered(_STATUS, f"it says {', '.join(said.errors)}")
        return said.version

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _found(self, question: Mapping[str, object]) -> _Range:
        """Ask one instance after the other, each once: who only reads changes nothing by asking again."""
        for _ in self._endpoints[1:]:
            with contextlib.suppress(ShardUnavailable):
                return self._call(_RANGE, question, _Range)
        return self._call(_RANGE, question, _Range)

    def _call[T](self, path: str, question: Mapping[str, object], kind: type[T]) -> T:
        """Ask the instance that answered last. Raises ShardUnavailable: it may have been done, or may be yet."""
        from http.client import HTTPException  # noqa: PLC0415 - it loads all of email: only for who has an etcd

        try:
            if self._connection is None:
                self._connection = self._connect()
            headers = {"Content-Type": "application/json"}
            self._connection.request("POST", path, msgspec.json.encode(question), headers)
            response = self._connection.getresponse()
            body = response.read(ANSWER_BYTES_MAX)
            if response.status != _OK:
                raise self._unanswered(path, f"{response.status} {body[:_SAID_MAX].decode(errors='replace')}")
            return msgspec.json.decode(body, type=kind, strict=False)  # its integers of 64 bits are texts
        except (OSError, HTTPException, UnicodeError, msgspec.DecodeError, RecursionError) as problem:
            raise self._unanswered(path, f"{type(problem).__name__} {problem}".strip()) from None

    def _connect(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection  # noqa: PLC0415 - as above

        where = urlsplit(self._endpoints[0])
        host, port = where.hostname or "", where.port or 2379
        if where.scheme == "https":
            return HTTPSConnection(host, port, timeout=self._timeout_s, context=self._context)
        return HTTPConnection(host, port, timeout=self._timeout_s)

    def _unanswered(self, path: str, why: str) -> ShardUnavailable:
        """Leave the connection, and turn to the next instance."""
        endpoint = self._endpoints.pop(0)
        self._endpoints.append(endpoint)
        with contextlib.suppress(OSError):
            self.close()
        return ShardUnavailable(
            "etcd-unanswered",
            f"etcd at {endpoint}{path}: {why}",
            hint="is it up, does it have a leader and room? etcdctl endpoint status; endpoints stand in node.toml",
        )
