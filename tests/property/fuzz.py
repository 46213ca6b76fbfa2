"""Everything that may come in at a door of ours, by the million: no thread ends, and honest requests are answered.

    python -m tests.property.fuzz                              10,000 certificates, 1,000,000 frames at every door
    python -m tests.property.fuzz --only tls http --frames 5000 --certificates 100
    python -m tests.property.fuzz --state FILE                 goes on where it was stopped

Inputs come from a seed, in steps of some hundred; after each step an honest request has to be answered, every thread
has to run, and none may have met what it did not expect. A step that fails is named by its door and its number.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import socket
import ssl
import struct
import sys
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from appliance.daemon.daemon import Node
from appliance.formats.shardmap import ShardMap
from appliance.lease import tls
from appliance.lease.ceiling import CeilingChain, Extended, ShardIdentity
from appliance.lease.connection import ClientLimits
from appliance.lease.server import ShardServer
from appliance.lease.shard import Shard
from appliance.lease.store import LeaseStore
from appliance.lease.wire import PROTOCOL_VERSION, Granted, Hello, Welcome, encode_answer, encode_call
from appliance.node import writer_wire
from appliance.node.runtime import writer_socket
from tests.support.certificates import Certificates
from tests.support.cluster import Site
from tests.support.frames import Frames, JudgingLedger
from tests.support.machine import HandMachine, StatedSource
from tests.support.nodes import DoorWorld, entry, hello, read_answer, read_to_the_end, tls_key
from tests.support.shards import HOLDER, POLICY, RIVAL, World, acquire
from tests.support.timeagent import HandAgent, own
from tests.support.values import CLUSTER, NODE, WITNESS_KEY
from timeagent.clock import SystemClock
from timeagent.errors import BadTime, TenureError
from timeagent.sources.nonce import (
    QUESTION_BYTES,
    NonceClient,
    NonceKind,
    NonceQuestion,
    answers,
    bind_unix,
    encode_question,
    nonce_door,
)
from timeagent.sources.port import Endpoint, UdpExchange, bind_udp
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK: Final = SystemClock()
PATIENCE_NS: Final = 60 * SECOND
STEP: Final = 500
"""How many inputs lie between two honest requests."""


class Unexpected(logging.Handler):
    """Remembers what was logged as an exception: a thread met what it did not expect."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(self.format(record))


class Fuzzer(ABC):
    """One door, and who sends to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def send(self, chance: random.Random) -> int:
        """Send some inputs that are mostly bad; return how many."""

    @abstractmethod
    def check(self, chance: random.Random) -> None:
        """Ask honestly; fail if that is not answered, or something has ended."""

    @abstractmethod
    def close(self) -> None: ...


def bursts(chance: random.Random, one: Callable[[], bytes], connected: Callable[[], socket.socket]) -> int:
    """Send a few inputs on each of some connections, of which some end in the middle of everything; return how many."""
    sent = 0
    while sent < STEP:
        few = chance.randint(1, 8)
        sent += few
        with connected() as plain, contextlib.suppress(OSError):  # cut off before all of it was sent
            plain.sendall(b"".join(one() for _ in range(few)))
            if chance.randrange(8):
                plain.shutdown(socket.SHUT_WR)
                read_to_the_end(plain)
    return sent


def unix(path: Path) -> socket.socket:
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    plain.settimeout(PATIENCE_NS / SECOND)
    plain.connect(str(path))
    return plain


# -- the shard's own socket --------------------------------------------------------------------------------------------


class ShardDoor(Fuzzer):
    """A served shard whose ledger judges every grant."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.world = World(path)
        self.ledger = JudgingLedger()
        identity = ShardIdentity(CLUSTER, 1, 0, NODE, bytes(8))
        self.store = LeaseStore(path / "fuzzed.db")
        shard = Shard(
            identity,
            ShardMap(number=1, cluster_id=CLUSTER, owners=(NODE,)),
            POLICY,
            store=self.store,
            chain=CeilingChain(self.world.chain, self.world.time, WITNESS_KEY, POLICY, identity),
            time=self.world.time,
            signer=WITNESS_KEY,
            ledger=self.ledger,
            randomness=self.world.chance,
            domains_max=10_000,
        )
        assert isinstance(shard.start(), Extended)
        self.frames = Frames(self.world, random.Random(1), self.out)  # type: ignore[arg-type]
        self.server = ShardServer(shard, path / "s", limits=ClientLimits(connections_max=16), clock=CLOCK)
        self.thread = Thread(target=self.server.run, daemon=True)
        self.thread.start()

    def connected(self) -> socket.socket:
        return unix(self.path / "s")

    def out(self) -> list[object]:
        return [each for holders in list(self.ledger.out.values()) for each in list(holders.values())]

    def send(self, chance: random.Random) -> int:
        self.frames.chance = chance
        return bursts(chance, self.frames.one, self.connected)

    def check(self, chance: random.Random) -> None:
        """A well-behaved client is served: one has it, the other does not, whatever was sent before."""
        domain = f"new-{chance.randbytes(8).hex()}"
        with self.connected() as plain:
            plain.sendall(encode_call([Hello(version=1, cluster_id=CLUSTER)]))
            assert isinstance(read_answer(plain)[0], Welcome)
            plain.sendall(encode_call([acquire(self.world, domain, holder=HOLDER)]))
            mine = read_answer(plain)[0]
            plain.sendall(encode_call([acquire(self.world, domain, holder=RIVAL)]))
            theirs = read_answer(plain)[0]
        assert isinstance(mine, Granted)
        assert not isinstance(theirs, Granted)
        assert domain in {str(each.domain) for each in self.out()}  # type: ignore[attr-defined]
        self.ledger.out.pop(domain)
        assert self.thread.is_alive()

    def close(self) -> None:
        self.server.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.store.close()
        self.world.close()


# -- other nodes -------------------------------------------------------------------------------------------------------


class TlsDoor(Fuzzer):
    """The door for other nodes: what is no TLS, what is no Hello, and what comes behind a good one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.world = DoorWorld(path)
        self.honest = self.world.transport("node-c", hello("node-c"))
        self.frames = Frames(self.world.world, random.Random(1), list)
        self.context = tls.client_context(tls_key("node-b"))
        self.good = encode_call([hello("node-b")])
        self.frames.one()

    def plain(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.world.door.address.port), timeout=PATIENCE_NS / SECOND)

    def connected(self) -> socket.socket:
        shown = self.context.wrap_socket(self.plain())
        if self.frames.chance.randrange(2):
            shown.sendall(self.good)
        return shown

    def no_tls(self) -> bytes:
        chance = self.frames.chance
        begin = chance.choice([b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x16\x03\x03\x00\x05", b"\x80"])
        return begin + chance.randbytes(chance.randrange(600))

    def hello_or_frame(self) -> bytes:
        return self.frames.spoiled(self.good) if self.frames.chance.randrange(2) else self.frames.one()

    def send(self, chance: random.Random) -> int:
        self.frames.chance = chance
        if not chance.randrange(8):
            return bursts(chance, self.no_tls, self.plain)
        return bursts(chance, self.hello_or_frame, self.connected)

    def check(self, chance: random.Random) -> None:
        del chance
        (reply,) = self.honest.call([hello("node-c")], PATIENCE_NS)
        assert isinstance(reply, Welcome)
        self.honest.close()  # each time by a new handshake
        assert all(each.is_alive() for each in self.world.threads)
        assert not self.world.door.refused["unexpected"]

    def close(self) -> None:
        self.world.close()


class CertificatesShown(TlsDoor):
    """The same door, shown certificates that nobody should make. Those that cannot even be shown do not count."""

    def send(self, chance: random.Random) -> int:
        made, shown = Certificates(tls_key("node-b").public, chance), 0
        own = self.path / "own.pem"
        while shown < STEP // 10:
            own.write_bytes(made.one() + tls_key("node-b").to_pem())
            try:
                self.context.load_cert_chain(own)
            except ssl.SSLError:
                continue
            shown += 1
            try:
                with self.context.wrap_socket(self.plain()) as connection:
                    connection.sendall(self.good)
                    connection.shutdown(socket.SHUT_WR)
                    read_to_the_end(connection)
            except OSError:
                pass  # the other end's library has refused it
        return shown


class CertificatesMet(Fuzzer):
    """The end that connects, to somebody at a node's address who shows such certificates and answers nonsense."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.world = DoorWorld(path)
        self.frames = Frames(self.world.world, random.Random(1), list)
        self.frames.one()
        welcome = Welcome(version=PROTOCOL_VERSION, node="node-x", map_number=1, shard=0, incarnation=bytes(8))
        self.answer = encode_answer([welcome])
        self.context = tls.server_context(tls_key("node-x"))
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.ending = Event()
        self.thread = Thread(target=self.impostor, name="impostor", daemon=True)
        self.thread.start()
        address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.world.trust.put(*self.world.trust.entries, entry("node-x", address))
        self.line = self.world.transport(to="node-x")

    def impostor(self) -> None:
        while not self.ending.is_set():
            accepted, _ = self.listener.accept()
            try:
                accepted.settimeout(PATIENCE_NS / SECOND)
                with self.context.wrap_socket(accepted, server_side=True) as connection:
                    connection.recv(65536)
                    connection.sendall(self.frames.spoiled(self.answer))
            except OSError:
                accepted.close()

    def send(self, chance: random.Random) -> int:
        self.frames.chance = chance
        made, shown = Certificates(tls_key("node-x").public, chance), 0
        own = self.path / "shown.pem"
        while shown < STEP // 10:
            own.write_bytes(made.one() + tls_key("node-x").to_pem())
            try:
                self.context.load_cert_chain(own)
            except ssl.SSLError:
                continue
            shown += 1
            for ask in (lambda: self.line.call([hello("node-b")], PATIENCE_NS), lambda: self.line.release(PATIENCE_NS)):
                with contextlib.suppress(TenureError):  # which has a code; whatever else it may be comes out
                    ask()
            self.line.close()
        return shown

    def check(self, chance: random.Random) -> None:
        del chance
        honest = self.world.transport()
        (reply,) = honest.call([hello("node-b")], PATIENCE_NS)
        assert isinstance(reply, Welcome)
        honest.close()
        assert self.thread.is_alive()

    def close(self) -> None:
        self.ending.set()
        socket.create_connection(self.listener.getsockname(), timeout=PATIENCE_NS / SECOND).close()
        self.thread.join(60)
        self.listener.close()
        self.world.close()


# -- a whole daemon ----------------------------------------------------------------------------------------------------


class DaemonDoor(Fuzzer):
    """A daemon over a root of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.site = Site(path)
        self.cluster = self.site.open()
        self.node = Node(self.cluster)
        self.node.start()

    def ask(self, path: str) -> bytes:
        with self.connected() as visitor:
            visitor.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            return read_to_the_end(visitor)

    def connected(self) -> socket.socket:
        place = self.node.web_address
        assert isinstance(place, Path)
        return unix(place)

    def check(self, chance: random.Random) -> None:
        del chance
        assert self.ask("/healthz").endswith(b"\r\n\r\nok\n")
        assert self.node._observed.ended() == []
        assert not self.node._webs[-1].refused["unexpected"]

    def close(self) -> None:
        self.node.stop()
        self.cluster.close()
        self.node.close()
        self.site.close()


class HttpDoor(DaemonDoor):
    """The read-only door, where each connection is one request."""

    PATHS: Final = ("/healthz", "/readyz", "/v1/shards", "/v1/leases?shard=0&limit=3", "/nowhere", "/healthz")
    WORDS: Final = tuple(
        rb"% %00 %ff ? & = ; // \0 [ ] : http:// limit= shard= after= Host:x Content-Length:3".split(b" ")
    )
    BREAKS: Final = (b" ", b"\r", b"\n", b"\r\n\r\n", b"\0", b"\xff", b"\r\nHost: x", b"\r\nTransfer-Encoding: a")

    def send(self, chance: random.Random) -> int:
        for _ in range(STEP):
            data = bytearray(f"GET {chance.choice(self.PATHS)} HTTP/1.1\r\nHost: localhost\r\nA: b\r\n\r\n".encode())
            for _ in range(chance.randint(1, 6)):
                at = chance.randrange(len(data) + 1)
                match chance.randrange(6):
                    case 0:
                        data[at:at] = chance.choice(self.WORDS + self.BREAKS)
                    case 1:
                        del data[at : at + chance.randint(1, 10)]
                    case 2:
                        data[at:at] = chance.randbytes(chance.choice((1, 3, 30)))
                    case 3:
                        data[at : at + 1] = bytes([chance.randrange(256)])
                    case 4 if not chance.randrange(20):
                        data[at:at] = chance.choice((b"x", b"a: b\r\n", b"&a=b", b"[")) * chance.choice((100, 9000))
                    case _:
                        data[at:at] = data[: chance.randrange(len(data) + 1)] if len(data) < 9000 else b""
            with self.connected() as visitor, contextlib.suppress(OSError):  # cut off before all of it was sent
                visitor.sendall(data)
                if chance.randrange(8):
                    visitor.shutdown(socket.SHUT_WR)
                    read_to_the_end(visitor)
        return STEP


class WriterDoor(DaemonDoor):
    """The socket by which the processes of a machine hand in what they write."""

    def good(self) -> bytes:
        return writer_wire.encode(writer_wire.WriterHello(version=1, cluster_id=self.site.cluster_id, node="node1"))

    def send(self, chance: random.Random) -> int:
        def one() -> bytes:
            frames = chance.randbytes(chance.randrange(200))
            log = chance.choice(("ledger", "", "../x", "a" * 300, "\0", "\u202e"))
            start = chance.choice((0, 1, 2**63 - 1, chance.randrange(2**63)))
            submit = writer_wire.Submit(number=chance.randrange(2**63), log=log, bag_start_ns=start, frames=frames)
            data = bytearray(chance.choice((writer_wire.encode(submit), self.good())))
            match chance.randrange(6):
                case 0:
                    data[:4] = struct.pack(">I", chance.choice((0, 1, 2**32 - 1, writer_wire.WIRE_BYTES_MAX)))
                case 1 | 2:
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                case 3:
                    data[4:] = b"\x91" * chance.randrange(3000)
                    data[:4] = struct.pack(">I", len(data) - 4)
            return bytes(data)

        def connected() -> socket.socket:
            plain = unix(writer_socket(self.cluster.routes.runtime))
            if chance.randrange(4):
                plain.sendall(self.good())
            return plain

        return bursts(chance, one, connected)

    def check(self, chance: random.Random) -> None:
        super().check(chance)
        with unix(writer_socket(self.cluster.routes.runtime)) as plain:
            plain.sendall(self.good())
            answer = writer_wire.decode_answer(writer_wire.receive(plain) or b"")
            assert isinstance(answer, writer_wire.WriterWelcome)


# -- the time agent ----------------------------------------------------------------------------------------------------


class AgentDoor(Fuzzer):
    """The time agent's two doors: its machine's, and its peers'."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        machine = HandMachine()
        hand = HandAgent(machine, own(StatedSource(machine)))
        hand.ask()
        udp = bind_udp("127.0.0.1", 0)
        self.port = udp.getsockname()[1]
        self.stopped = Event()
        self.doors = [
            nonce_door(bind_unix(path), hand.agent, local_door=True),
            nonce_door(udp, hand.agent, local_door=False),
        ]
        self.threads = [Thread(target=each.serve, args=(self.stopped.is_set,), daemon=True) for each in self.doors]
        for thread in self.threads:
            thread.start()

    def send(self, chance: random.Random) -> int:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        local.bind("")
        local.connect(str(self.path / "time.sock"))
        remote = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        remote.connect(("127.0.0.1", self.port))
        with local, remote:
            for number in range(STEP):
                question = NonceQuestion(chance.choice(list(NonceKind)), chance.randbytes(8), chance.randbytes(32))
                data = bytearray(encode_question(question))
                match chance.randrange(5):
                    case 0:
                        data = data[: chance.choice((0, 1, 47, 48, len(data) - 1))]
                    case 1:
                        data += chance.randbytes(chance.choice((1, 900)))
                    case 2:
                        data = bytearray(chance.randbytes(QUESTION_BYTES))
                if data:
                    data[chance.randrange(min(len(data), 16))] ^= 1 << chance.randrange(8)
                local.send(data)
                remote.send(data)
                if number % 50 == 49:  # a full queue drops datagrams without a word: let it be emptied
                    self.by_udp(chance)
        return STEP

    def by_udp(self, chance: random.Random) -> None:
        question = NonceQuestion(NonceKind.PEER, chance.randbytes(8), bytes(32))
        exchange = UdpExchange(Endpoint("127.0.0.1", self.port), timeout_ns=SECOND)
        for left in reversed(range(60)):
            try:
                exchange(encode_question(question), lambda data: answers(question, data))
            except BadTime:
                assert left
            else:
                return

    def check(self, chance: random.Random) -> None:
        assert b'"tenure.time.report"' in NonceClient(self.path).report()
        self.by_udp(chance)
        assert all(each.is_alive() for each in self.threads)

    def close(self) -> None:
        self.stopped.set()
        for door, thread in zip(self.doors, self.threads, strict=True):
            door.wake()
            thread.join(60)
            assert not thread.is_alive()
            door.close()


# -- the run -----------------------------------------------------------------------------------------------------------

FUZZERS: Final[dict[str, type[Fuzzer]]] = {
    "certificates": CertificatesShown,
    "impostors": CertificatesMet,
    "tls": TlsDoor,
    "unix": ShardDoor,
    "writer": WriterDoor,
    "http": HttpDoor,
    "agent": AgentDoor,
}
CERTIFICATES: Final = ("certificates", "impostors")


def fuzz(
    name: str, wanted: int, done: int = 0, *, seed: int = 1, told: Callable[[int], object] = lambda _: None
) -> int:
    """Send at least so many inputs to a door, with honest requests in between; return how many."""
    unexpected = Unexpected()
    logging.getLogger("appliance").addHandler(unexpected)
    try:
        with tempfile.TemporaryDirectory(prefix="tenure-test-", dir="/dev/shm") as place:
            fuzzer = FUZZERS[name](Path(place))
            try:
                while done < wanted:
                    chance = random.Random(f"{seed} {name} {done}")
                    done += fuzzer.send(chance)
                    fuzzer.check(chance)
                    assert not unexpected.seen, f"{name}, step that ended at {done}: {unexpected.seen[0]}"
                    told(done)
            finally:
                fuzzer.close()
    finally:
        logging.getLogger("appliance").removeHandler(unexpected)
    return done


def main(words: list[str] | None = None) -> int:
    """Run what is asked for; 0 when nothing has ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.fuzz")
    parser.add_argument("--only", nargs="+", choices=sorted(FUZZERS), default=list(FUZZERS))
    parser.add_argument("--certificates", type=int, default=10_000)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, help="where it is kept how far each door is")
    options = parser.parse_args(words)
    state: dict[str, int] = {}
    if options.state is not None and options.state.exists():
        state = json.loads(options.state.read_text())
    for name in options.only:

        def told(done: int, name: str = name) -> None:
            state[name] = done
            if options.state is not None:
                new = options.state.with_suffix(".new")  # whoever stops this finds one or the other
                new.write_text(json.dumps(state))
                new.replace(options.state)

        wanted = options.certificates if name in CERTIFICATES else options.frames
        done = fuzz(name, wanted, state.get(name, 0), seed=options.seed, told=told)
        sys.stdout.write(f"{name}: {done} inputs, all honest requests answered, no thread ended\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
