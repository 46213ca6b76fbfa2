"""A shared directory tree as a world to explore: a Storage for each actor, and every answer that a mount may give.

The server does one thing at a time (link, exclusive creation and mkdir have one winner). What a client sees of it is
less than that, each with all its possibilities:

- *looks in pieces*: a look opens its directory, and then asks for one name after the other; a name that was absent at
  the opening may be answered from what was cached then, or be found now;
- *listings in pieces*: what appears while a directory is listed may be in the listing or not, name by name;
- *cached absences*: a name that was looked for in vain may stay absent for this client, file or directory, with all
  that is below it, until its directory is opened or it makes the name itself;
- *faults*: a request is reported failed; one that changes something was not done, or done, or is on the way and may
  still arrive, at any time or never. The number of faults in one run is bounded;
- *clocks*: each time that one is read it says one of the given instants, in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from appliance.bag.ports import Published
from tests.support.clocks import HandTime
from tests.support.explorer import Answer, Refusal
from timeagent.errors import Environment

if TYPE_CHECKING:
    from tests.support.explorer import Port, Request
    from timeagent.keys import Signer
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant, Span, TimeInterval

type Absent = frozenset[str]
"""What one client remembers not to be there."""

FAILED = Refusal(Environment, "mount-failed")


@dataclass(frozen=True, slots=True)
class Tree:
    """The server's truth: immutable. ``on_the_way``: requests whose clients no longer wait for them."""

    files: frozenset[tuple[str, bytes]]
    directories: frozenset[str]
    on_the_way: frozenset[tuple[Any, ...]] = frozenset()

    def read(self, path: str) -> bytes | None:
        return next((data for name, data in self.files if name == path), None)

    def names(self, directory: str) -> frozenset[str]:
        inside = directory + "/"
        paths = (*(path for path, _ in self.files), *self.directories)
        below = (path[len(inside) :] for path in paths if path.startswith(inside))
        return frozenset(rest for rest in below if rest and "/" not in rest)

    def has(self, path: str) -> bool:
        return path in self.directories or self.read(path) is not None

    def with_file(self, path: str, data: bytes) -> Tree:
        return Tree(self.files | {(path, data)}, self.directories, self.on_the_way)

    def with_directory(self, path: str) -> Tree:
        parts = path.split("/")
        above = {"/".join(parts[: n + 1]) for n in range(len(parts))}
        return Tree(self.files, self.directories | above, self.on_the_way)

    def without(self, path: str) -> Tree:
        """Remove a file, or an empty directory."""
        if path in self.directories:
            return self if self.names(path) else Tree(self.files, self.directories - {path}, self.on_the_way)
        files = frozenset(each for each in self.files if each[0] != path)
        return Tree(files, self.directories, self.on_the_way)

    def sent(self, request: tuple[Any, ...]) -> Tree:
        return Tree(self.files, self.directories, self.on_the_way | {request})

    def arrived(self, request: tuple[Any, ...]) -> Tree:
        return Tree(self.files, self.directories, self.on_the_way - {request})


def parent(path: str) -> str:
    return path.rpartition("/")[0]


class ExploredStorage:
    """The Storage port of one actor."""

    listing_pause_ns: Span = 0

    def __init__(self, port: Port) -> None:
        self._ask = port.ask

    def ensure_directory(self, path: str) -> None:
        self._ask("mkdir", path)

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        there: frozenset[str] | None = self._ask("look", directory, tuple(names))
        if there is None:
            return None
        found = set(there)
        for name in names:
            if name not in there and self._ask("look on", directory, name):
                found.add(name)
        return frozenset(found)

    def list_afresh(self, directory: str) -> list[str] | None:
        first: frozenset[str] | None = self._ask("list", directory)
        return None if first is None else sorted(self._ask("list on", directory, first))

    def read(self, path: str) -> bytes | None:
        data: bytes | None = self._ask("read", path)
        return data

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        return (self.read(f"{directory}/{name}") for name in names)

    def size_of(self, path: str) -> int | None:
        data = self.read(path)
        return None if data is None else len(data)

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        data = self.read(path)
        return None if data is None else data[offset : offset + limit]

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        return self.publish(path, b"".join(chunks), tmp)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        # What happens in the client's own directory is seen by nobody.
        assert tmp
        published: Published = self._ask("publish", path, data)
        return published

    def ensure_marker(self, path: str) -> bool:
        made: bool = self._ask("mark", path)
        return made

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        raise NotImplementedError(path, data, expected_size)

    def unlink(self, path: str) -> None:
        self._ask("unlink", path)

    def remove_directory(self, path: str) -> bool:
        gone: bool = self._ask("rmdir", path)
        return gone

    def server_clock(self, tmp: str) -> Instant:
        assert tmp
        clock: Instant = self._ask("server clock")
        return clock


class ExploredTime(HandTime):
    """A clock that says, whenever it is asked, any of some instants; after a sleep only the last of them."""

    def __init__(self, port: Port, signer: Signer, instants: tuple[Instant, ...]) -> None:
        super().__init__(signer, instants[-1], 0)
        self._port = port
        self._instants = instants

    def now(self) -> TimeInterval:
        if len(self._instants) > 1:
            self.midpoint_ns = self._port.ask("now", self._instants)
        return super().now()

    def sleep(self, span: Span) -> None:
        assert span > 0
        self._instants = self._instants[-1:]
        self.midpoint_ns = self._instants[0]

    def _sign(self, digest: bytes | None) -> SignedTime:
        """Sign what was said last; always under one number, so that equal statements are equal bytes."""
        instants, self._instants, self._sequence = self._instants, (), 0
        signed = super()._sign(digest)
        self._instants = instants
        return signed


@dataclass(frozen=True, slots=True)
class Mount:
    """Which of a mount's imperfections are explored."""

    pieces: bool = False
    """Looks and listings take more than one moment."""
    absences: bool = False
    """Clients cache absences."""
    faults: frozenset[str] = frozenset({"publish"})
    """Which requests may be reported failed, where the run has faults at all."""
    server_clocks: tuple[Instant, ...] = (2**62,)


PIECES = Mount(pieces=True)
ABSENCES = Mount(absences=True)
ROUGH = Mount(pieces=True, absences=True)
EVERY_VERB = frozenset({"look", "list", "read", "mkdir", "publish", "mark", "unlink", "rmdir", "server clock"})
ANY_FAULT = Mount(faults=EVERY_VERB)


class TreeWorld:
    """The world of a tree."""

    revalidates = True
    """False, for a mutant: opening a directory drops nothing of what is cached about it."""

    def __init__(self, tree: Tree, mount: Mount) -> None:
        self._tree = tree
        self._mount = mount

    def start(self) -> Tree:
        return self._tree

    def answers(self, tree: Tree, request: Request, memory: Absent | None) -> tuple[Answer, ...]:
        verb, *rest = request
        absent = memory or frozenset()
        match verb:
            case "now":
                return tuple(Answer(instant, tree, memory) for instant in rest[0])
            case "server clock":
                each = [Answer(instant, tree, memory) for instant in self._mount.server_clocks]
            case "look" | "look on" | "list" | "list on" | "read":
                each = self._seen(tree, verb, rest, absent)
            case _:
                each = self._changed(tree, verb, rest, absent)
        if verb in self._mount.faults and not any(answer.cost for answer in each):
            each.append(Answer(FAILED, tree, memory, cost=1))
        return tuple(dict.fromkeys(each))

    def by_itself(self, tree: Tree) -> Iterable[tuple[str, Tree]]:
        for request in sorted(tree.on_the_way):
            rest = tree.arrived(request)
            yield f"{request[0]} {request[1]} is lost", rest
            yield f"{request[0]} {request[1]} arrives late", _done(rest, request)[0]

    # -- looking -------------------------------------------------------------------------------------------------------

    def _seen(self, tree: Tree, verb: str, rest: list[Any], absent: Absent) -> list[Answer]:
        match verb:
            case "look on":
                return self._looked_on(tree, rest[0], rest[1], absent)
            case "list on":
                return self._listed_on(tree, rest[0], rest[1], absent)
            case "read":
                return self._read(tree, rest[0], absent)
            case _:
                return self._opened(tree, verb, rest, absent)

    def _opened(self, tree: Tree, verb: str, rest: list[Any], absent: Absent) -> list[Answer]:
        directory = rest[0]
        answers = [Answer(None, tree, absent)] if _hidden(directory, absent) else []
        if directory not in tree.directories:
            return [*answers, Answer(None, tree, self._remembering(tree, directory, absent))]
        there = tree.names(directory)
        hidden: set[str] = set()
        if self.revalidates:
            absent = frozenset(path for path in absent if parent(path) != directory)
        else:
            hidden = {name for name in there if f"{directory}/{name}" in absent}
        if verb == "list":
            return [*answers, Answer(there - hidden, tree, absent)]
        found = there.intersection(rest[1]) - hidden
        return [*answers, Answer(found, tree, absent)]

    def _looked_on(self, tree: Tree, directory: str, name: str, absent: Absent) -> list[Answer]:
        path = f"{directory}/{name}"
        answers = [Answer(False, tree, self._remembering(tree, path, absent))]  # noqa: FBT003 - the answer is no
        if self._mount.pieces and name in tree.names(directory) and path not in absent:
            answers.append(Answer(True, tree, absent))  # noqa: FBT003
        return answers

    def _listed_on(self, tree: Tree, directory: str, first: frozenset[str], absent: Absent) -> list[Answer]:
        if not self._mount.pieces:
            return [Answer(first, tree, absent)]
        new = sorted(tree.names(directory) - first)
        subsets = (each for size in range(len(new) + 1) for each in combinations(new, size))
        return [Answer(first.union(each), tree, absent) for each in subsets]

    def _read(self, tree: Tree, path: str, absent: Absent) -> list[Answer]:
        answers = [Answer(None, tree, absent)] if _hidden(path, absent) else []
        data = b"" if path in tree.directories else tree.read(path)
        if data is None:
            return [*answers, Answer(None, tree, self._remembering(tree, path, absent))]
        return [*answers, Answer(data, tree, absent)]

    def _remembering(self, tree: Tree, path: str, absent: Absent) -> Absent:
        """Remember the highest name on this path that is not there."""
        if not self._mount.absences:
            return absent
        while parent(path) and parent(path) not in tree.directories:
            path = parent(path)
        return absent | {path}

    # -- changing ------------------------------------------------------------------------------------------------------

    def _changed(self, tree: Tree, verb: str, rest: list[Any], absent: Absent) -> list[Answer]:
        path = rest[0]
        nowhere = {"publish": Published.ABSENT, "mark": False}
        answers = [Answer(nowhere[verb], tree, absent)] if verb in nowhere and _hidden(parent(path), absent) else []
        after, value = _done(tree, (verb, *rest))
        known = _without(absent, path) if verb == "mkdir" else absent - {path}
        answers.append(Answer(value, after, known))
        if verb in self._mount.faults:
            answers += self._failed(tree, after, (verb, *rest), absent)
        return answers

    @staticmethod
    def _failed(tree: Tree, after: Tree, request: tuple[Any, ...], absent: Absent) -> Iterator[Answer]:
        yield Answer(FAILED, tree, absent, cost=1)
        if after != tree:
            yield Answer(FAILED, after, absent, cost=1)
            yield Answer(FAILED, tree.sent(request), absent, cost=1)


def _hidden(path: str, absent: Absent) -> bool:
    return any(path == each or path.startswith(each + "/") for each in absent)


def _without(absent: Absent, path: str) -> Absent:
    return frozenset(each for each in absent if each != path and not path.startswith(each + "/"))


def _done(tree: Tree, request: tuple[Any, ...]) -> tuple[Tree, Any]:
    """What the server does, at one moment, and what it says."""
    verb, path, *data = request
    match verb:
        case "mkdir":
            return tree if path in tree.directories else tree.with_directory(path), None
        case "unlink":
            return tree.without(path), None
        case "rmdir":
            return (tree, False) if tree.names(path) else (tree.without(path), True)
        case "publish":
            if parent(path) not in tree.directories:
                return tree, Published.ABSENT
            return (tree, Published.LOST) if tree.has(path) else (tree.with_file(path, *data), Published.WON)
        case "mark":
            if parent(path) not in tree.directories:
                return tree, False
            return tree if tree.has(path) else tree.with_file(path, b""), True
    raise AssertionError(verb)
