"""How a process reaches the shards of its cluster, and finds them again (docs/protocol/lease.md, "Who runs a shard").

Another node's shard is reached over TLS at the address that the trust record names, or, if it is on this machine, over
the Unix socket in the directory that the settings name. So is the own shard, which the daemon runs, or in a cluster of
one node whichever process took the lock on tmpfs first (``shards.py``).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from msgspec.structs import replace

from timeagent.clock import NodeTime
from timeagent.errors import ShardUnavailable, TenureError
from timeagent.units import Span, TimeInterval

from ..bag.ports import Storage
from ..formats.paths import chain_path
from ..formats.policy import PolicyNumbers
from ..formats.shardmap import ShardMap, chain_of, shard_text
from ..lease import tls, wire
from ..lease.ceiling import newest_record
from ..lease.transport import SocketTransport, TlsTransport, Transport, UnixTransport
from .record_watch import MapWatch, TrustWatch
from .records import StoredChain
from .runtime import is_there, kept_by, shard_socket
from .settings import Settings
from .shards import ShardHost

LOOK_ATTEMPTS: Final = 3
"""How many attempts' time a shard has to answer people."""

NUMBERS: Final = wire.Inspect(after_domain="", leases_max=1)

_GONE: Final = frozenset({"deposed", "not-running"})
_OF_MAPS: Final = frozenset({wire.NEWER_MAP, wire.MAP_NOT_YET})
"""Who is told so asks again; the newest map may not be known here."""


@dataclass(frozen=True, slots=True)
class TimeThere:
    """What time another node says it is, between two readings of this machine's CLOCK_BOOTTIME."""

    told: wire.ClockTold
    asked_ns: int
    answered_ns: int

    @property
    def ahead(self) -> TimeInterval | None:
        """True time minus CLOCK_BOOTTIME here, by that node: its interval, widened by the round trip. None: no bound.

        It looked at its clock somewhere between question and answer, and nobody knows where: both ends count.
        """
        told = self.told
        if told.earliest_ns is None or told.latest_ns is None or told.earliest_ns > told.latest_ns:
            return None
        return TimeInterval(told.earliest_ns - self.answered_ns, told.latest_ns - self.asked_ns)


@dataclass(eq=False, repr=False)
class ShardWay:
    """The transport to one shard, wherever it runs."""

    _routes: ShardRoutes
    _shard: int

    def call(self, requests: list[wire.Request], timeout_ns: Span) -> list[wire.Reply]:
        """Call it where it answered last. What is said by a shard that is not the right one any more, is *not now*."""
        node = self._routes.node_at(self._shard)
        try:
            replies = self._routes.line(self._shard, node).call(requests, timeout_ns)
        except ShardUnavailable as problem:
            self._routes.missed(self._shard, node)
            raise self._routes.explained(self._shard, problem) from None
        not_done = [reply for reply in replies if isinstance(reply, wire.Unavailable | wire.Refused)]
        if any(_is_elsewhere(reply) for reply in not_done):
            self._routes.missed(self._shard, node)
        elif any(isinstance(reply, wire.Unavailable) and reply.code in _OF_MAPS for reply in not_done):
            self._routes.maps.look()
        return [_not_now(reply) for reply in replies] if not_done else replies


def _is_gone(reply: wire.Reply) -> bool:
    return isinstance(reply, wire.Unavailable) and reply.code in _GONE


def _is_elsewhere(reply: wire.Reply) -> bool:
    return _is_gone(reply) or (isinstance(reply, wire.Refused) and reply.code == "wrong-shard")


def _not_now(reply: wire.Reply) -> wire.Reply:
    """Return what a caller makes of a reply: that the domain belongs to another shard can change with the map."""
    if isinstance(reply, wire.Refused) and reply.code == "wrong-shard":
        return wire.Unavailable(request_id=reply.request_id, code="moved", message=reply.message)
    return reply


@dataclass(eq=False, repr=False)
class OwnShard:
    """The transport to this machine's own shard: in a cluster of one node it hosts it when nobody else does."""

    _routes: ShardRoutes
    _shard: int
    _time: NodeTime
    _socket: UnixTransport

    def call(self, requests: list[wire.Request], timeout_ns: Span) -> list[wire.Reply]:
        """Call it; where whoever ran it has ended, take that place and call again. Raises what ``try_host`` raises."""
        problem: ShardUnavailable | None = None
        replies: list[wire.Reply] = []
        began = self._time.boot_ns()
        try:
            replies = self._socket.call(requests, timeout_ns)
        except ShardUnavailable as why:
            problem = why
        if problem is not None or any(map(_is_gone, replies)):
            left = timeout_ns - (self._time.boot_ns() - began)
            if self._routes.host.try_host(self._shard, self._routes.maps.newest) and left > 0:
                return self._socket.call(requests, left)
            if problem is not None:
                raise problem
        return replies


@dataclass(eq=False, repr=False)
class ShardRoutes:
    """One process's way to every shard. Thread-safe."""

    host: ShardHost
    maps: MapWatch
    _storage: Storage
    _settings: Settings
    _time: NodeTime
    _policy: PolicyNumbers
    runtime: Path
    _trust: TrustWatch

    def __post_init__(self) -> None:
        self._ends: tls.OwnEnds | None = None
        self._ways: dict[int, ShardWay] = {}
        self._lines: dict[tuple[int, str, bool], Transport] = {}
        self._own_lines: dict[int, tuple[ShardMap, Transport]] = {}
        """Those to this node's own shards, and by which map they are: nothing else decides about them."""
        self._sockets: list[SocketTransport] = []
        self._at: dict[int, tuple[int, str]] = {}
        """Where a shard answered last, and by which map that was found out."""
        self._stand_ins: dict[int, tuple[int, str]] = {}
        """Who answered a look in the place of a shard's owner, and by which map."""
        self._lock = Lock()

    @property
    def map(self) -> ShardMap:
        return self.maps.newest

    def own_shards(self) -> list[int]:
        newest = self.map
        return [shard for shard in newest.shards if newest.owner_of(shard) == self._settings.node]

    def transport(self, shard: int) -> Transport:
        """Return the way to a shard. Raises ShardUnavailable when no address of its node is known."""
        self.line(shard, self.node_at(shard))
        with self._lock:
            return self._ways.setdefault(shard, ShardWay(self, shard))

    def node_at(self, shard: int) -> str:
        """Return which node to ask for a shard. Raises ShardUnavailable for one that the map does not have."""
        newest, owner = self.map, self._owner(shard)
        number, node = self._at.get(shard, (0, ""))
        return node if number == newest.number else owner

    def missed(self, shard: int, node: str) -> None:
        """Note that a shard is not at a node: ask the next one, and look for a newer map. Never blocks."""
        newest = self.map
        self.maps.look()
        if newest.owner_of(shard) is None or self.node_at(shard) != node:
            return
        order = newest.heirs(shard, self._reachable())
        place = order.index(node) + 1 if node in order else 0
        self._at[shard] = newest.number, order[place % len(order)]

    def explained(self, shard: int, problem: ShardUnavailable) -> ShardUnavailable:
        """Return why a shard did not answer; also, if it is this node's, that its daemon is missing here."""
        own = self.map.owner_of(shard) == self._settings.node
        missing = self.host.missing_daemon(shard) if own else None
        if missing is None or problem.code == missing.code:
            return problem
        return ShardUnavailable(missing.code, f"{problem.message}; {missing.message}", hint=missing.hint)

    def _reachable(self) -> list[str]:
        return [*self._settings.peers, self._settings.node, *self._trust.nodes()]

    def line(self, shard: int, node: str) -> Transport:
        """Return the line to a shard at a node. Raises ShardUnavailable when none is known."""
        by, newest = self._own_lines.get(shard), self.map
        if by is not None and by[0] is newest and node == self._settings.node:
            return by[1]
        local = self._is_local(shard, node)
        owned = local and node == self._settings.node == newest.owner_of(shard)
        with self._lock:
            found = self._lines.get((shard, node, local))
            if found is None or isinstance(found, OwnShard) is not owned:
                socket = self._line(shard, node, local=local)
                self._sockets.append(socket)
                found = socket
                if owned:
                    assert isinstance(socket, UnixTransport)
                    found = OwnShard(self, shard, self._time, socket)
                self._lines[shard, node, local] = found
            if owned:
                self._own_lines[shard] = newest, found
            return found

    def _owner(self, shard: int) -> str:
        owner = self.map.owner_of(shard)
        if owner is None:
            raise ShardUnavailable(
                "moved",
                f"map {self.map.number} has no shard {shard_text(shard)}",
                hint="ask again: who asks looks for the newest map",
            )
        return owner

    def _socket_of(self, shard: int, node: str) -> Path | None:
        runtime = self.runtime if node == self._settings.node else self._settings.peers.get(node)
        return None if runtime is None else shard_socket(runtime, shard)

    def _is_local(self, shard: int, node: str) -> bool:
        """Whether a node's shard is reached by its socket here. One that it does not own, perhaps by its door."""
        path = self._socket_of(shard, node)
        if path is None:
            return False
        return node == self.map.owner_of(shard) or is_there(path) or self._trust.address_of(node) is None

    def where(self, shard: int) -> str:
        """Return where a shard is reached, in words: a socket's path, an address, or why nowhere."""
        owner = self._owner(shard)
        path = self._socket_of(shard, owner)
        return str(path or self._trust.address_of(owner) or "no address")

    def _line(self, shard: int, node: str, *, local: bool) -> SocketTransport:
        """Return a new transport to a shard's socket. Raises ShardUnavailable when none is known."""
        greeting = wire.Hello(
            version=wire.PROTOCOL_VERSION, cluster_id=self.map.cluster_id, node=self._settings.node, shard=shard
        )
        if local:
            path = self._socket_of(shard, node)
            assert path is not None
            return UnixTransport(path, self._time, greeting)
        trust = self._trust
        if trust.address_of(node) is None:
            trust.look()
            raise ShardUnavailable(
                "no-address",
                f"shard {shard_text(shard)} belongs to node {node}, and trust record {trust.number} says nowhere where "
                "it answers",
                hint=f"say it: tenure trust move {node} HOST:PORT; or run this on {node}",
            )
        if self._ends is None:
            self._ends = tls.OwnEnds(tls.client_context, self.host.keys.tls)
        return TlsTransport(node, self._ends, trust, self._time, greeting)

    # -- looking -------------------------------------------------------------------------------------------------------

    def inspect(self, shard: int, domain: str | None = None) -> tuple[wire.ShardNumbers, list[wire.LeaseView]]:
        """Return a shard's numbers and all its leases, or those of one domain, unsigned. Never starts a shard.

        Raises ShardUnavailable.
        """
        question = wire.Inspect(after_domain="", leases_max=wire.PAGE_LEASES_MAX, domain=domain)
        node, page = self._first_page(shard, question)
        found = list(page.leases)
        with contextlib.closing(self._to_look(shard, node)) as line:
            while page.more:
                if page.after_domain <= question.after_domain:
                    what = f"shard {shard_text(shard)} at node {node} shows one page of its leases again and again"
                    raise ShardUnavailable("no-answer", what, hint=f"see which release {node} runs: tenure shards ls")
                question = replace(question, after_domain=page.after_domain)
                page = self._page(line, shard, node, question)
                found += page.leases
        return page.numbers, found

    def expect(self, shard: int, node: str) -> None:
        """Look for a shard where its chain says that it runs, before its owner: one that stands still takes long."""
        newest = self.map
        if newest.owner_of(shard) not in (None, node):
            self._stand_ins.setdefault(shard, (newest.number, node))

    def numbers(self, shard: int) -> wire.ShardNumbers:
        """Return how a shard stands, unsigned. Never starts a shard. Raises ShardUnavailable."""
        return self._first_page(shard, NUMBERS)[1].numbers

    def clock_of(self, shard: int, node: str) -> TimeThere:
        """Ask a node that runs a shard what time it is there. Blocks; never starts a shard.

        Asked twice over one connection, so that connecting is in no round trip; the second answer counts. Raises
        ShardUnavailable: of a release that knows no such question, with the code ``call-damaged``.
        """
        with contextlib.closing(self._to_look(shard, node)) as line:
            line.call([wire.AskClock()], LOOK_ATTEMPTS * self._policy.attempt_timeout_ns)
            asked = self._time.boot_ns()
            (reply,) = line.call([wire.AskClock()], self._policy.attempt_timeout_ns)
            answered = self._time.boot_ns()
        if not isinstance(reply, wire.ClockTold):
            raise ShardUnavailable("no-answer", f"shard {shard_text(shard)} answered with a {type(reply).__name__}")
        return TimeThere(reply, asked, answered)

    def probe(self, shard: int, node: str) -> str:
        """Ask a node once whether it runs a shard: "runs", "not-here", or why nothing is known of it. Blocks."""
        try:
            with contextlib.closing(self._line(shard, node, local=False)) as line:
                line.call([NUMBERS], self._policy.attempt_timeout_ns)
        except ShardUnavailable as problem:
            return problem.code
        return "runs"

    def _first_page(self, shard: int, question: wire.Inspect) -> tuple[str, wire.LeasePage]:
        """Ask the owner; where it does not answer, whoever linked the newest record of the chain.

        That one is asked first from then on, as long as it answers: an owner that stands still takes all the patience
        of each look.
        """
        newest, owner = self.map, self._owner(shard)
        number, stand_in = self._stand_ins.get(shard, (0, owner))
        if number == newest.number:
            try:
                return stand_in, self._page_at(shard, stand_in, question)
            except ShardUnavailable:
                self._stand_ins.pop(shard, None)
        try:
            return owner, self._page_at(shard, owner, question)
        except ShardUnavailable:
            runner = self.runner(shard)
            if runner is None or runner == owner:
                raise
            page = self._page_at(shard, runner, question)
            self._stand_ins[shard] = newest.number, runner
            return runner, page

    def _page_at(self, shard: int, node: str, question: wire.Inspect) -> wire.LeasePage:
        with contextlib.closing(self._to_look(shard, node)) as line:
            return self._page(line, shard, node, question)

    def runner(self, shard: int) -> str | None:
        """Return who linked the newest record of a shard's chain, or None. Touches the mount."""
        chain = StoredChain(self._storage, chain_path(*chain_of(shard)))
        try:
            newest = newest_record(chain)
        except TenureError:
            return None
        return None if newest is None else newest.node

    def _to_look(self, shard: int, node: str) -> SocketTransport:
        """Return a transport of the caller's own to a shard that runs. Raises ShardUnavailable."""
        line = self._line(shard, node, local=self._is_local(shard, node))
        if isinstance(line, UnixTransport) and not is_there(line.path):
            raise ShardUnavailable(
                "not-running",
                f"shard {shard_text(shard)} at node {node} is not running (there is no {line})",
                hint=self._hint(node),
            )
        return line

    def _page(self, line: SocketTransport, shard: int, node: str, question: wire.Inspect) -> wire.LeasePage:
        try:
            (reply,) = line.call([question], LOOK_ATTEMPTS * self._policy.attempt_timeout_ns)
        except ShardUnavailable as problem:
            raise ShardUnavailable(
                problem.code,
                f"shard {shard_text(shard)} at node {node}: {problem.message}",
                hint=self._hint(node, line) if problem.code == "no-answer" else problem.hint,
            ) from None
        if isinstance(reply, wire.Unavailable):
            raise ShardUnavailable(
                reply.code, f"shard {shard_text(shard)} at node {node} says not now: {reply.message}"
            )
        if not isinstance(reply, wire.LeasePage):
            raise ShardUnavailable("no-answer", f"shard {shard_text(shard)} answered with a {type(reply).__name__}")
        return reply

    def _hint(self, node: str, line: SocketTransport | None = None) -> str:
        if isinstance(line, TlsTransport):
            return f"is the daemon of {node} down, or does it stand still? tenure status, on {node}"
        who = kept_by(line.path) if isinstance(line, UnixTransport) else None
        if who is not None:
            return f"{who} runs it, and does not answer: does it stand still, or get no processor time?"
        return f"no process of {node} runs it now: tenure node run, on {node}"

    def close(self) -> None:
        self.host.close()
        with self._lock:
            for transport in self._sockets:
                transport.close()
