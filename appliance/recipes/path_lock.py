"""Locks on the paths of a tree, for programs that rename, copy and delete whole folders (docs/recipes/paths.md).

Every path is a folder too: who reads or writes it does so to all that is below it. A path that is read is leased in
mode S and one that is written in X; each path above it in IS or IX, which says that somebody works further down. Where
one task asks for two of these on one path it takes the mode that allows both: S and IX are SIX. Two tasks wait for each
other just where one writes what the other reads or writes; siblings never do. What a path costs is one lease for each
of its levels, whatever else is locked or lies below it, and all of a tree is in one shard: three calls in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Final, Protocol, Self, runtime_checkable

from timeagent.errors import BadRequest, check_type
from timeagent.units import Seconds, span_of

from ..cluster import Cluster
from ..formats.lease import Mode, covers
from ..formats.names import check_domain, check_log, check_purpose
from ..session.held import Lease
from ..session.session import Session

type AnyPath = str | PurePosixPath


class AwaitedSession(Protocol):
    """What is needed of a session of asyncio (``tenure.aio``)."""

    async def acquire(self, *domains: str, mode: Mapping[str, Mode], timeout_s: Seconds) -> Sequence[Lease]: ...

    def check_held(self, leases: Sequence[Lease]) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class AnyCluster[S: Session | AwaitedSession](Protocol):
    """A ``Cluster``, or an ``AsyncCluster``."""

    def session(self, purpose: str = "") -> S:
        """Begin a session."""


def path_modes(read: Iterable[AnyPath], write: Iterable[AnyPath]) -> dict[PurePosixPath, Mode]:
    """Return the mode of each path that a task has to lease, those above others first. Pure. Raises BadRequest.

    Nothing below a path that is locked as a whole is leased: that one covers it.
    """
    modes: dict[PurePosixPath, Mode] = {}
    _check_several(read=read, write=write)
    for paths, whole, above in ((write, Mode.X, Mode.IX), (read, Mode.S, Mode.IS)):
        for each in paths:
            path = checked_path(each)
            modes[path] = _both(modes.get(path), whole)
            for parent in path.parents:
                modes[parent] = _both(modes.get(parent), above)
    return {path: modes[path] for path in sorted(modes) if not _is_covered(path, modes)}


def _check_several(**several: Iterable[AnyPath]) -> None:
    """Raise BadRequest for one path alone: its letters would be taken for paths, and "/" for the whole tree."""
    for name, paths in several.items():
        if isinstance(paths, str) or not isinstance(paths, Iterable):
            what = f"{name} is a {type(paths).__name__}, {repr(paths)[:80]}"
            raise BadRequest("bad-type", what, hint="give it a list of paths")


def checked_path(path: AnyPath) -> PurePosixPath:
    """Return an absolute path without repeated slashes. Raises BadRequest: where it leads must not need a look."""
    check_type(str | PurePosixPath, path=path)
    found = PurePosixPath(path)
    if found.root != "/" or ".." in found.parts:
        raise BadRequest(
            "bad-path",
            f"{str(path)[:200]!r} is no path to lock: it begins with one slash, and never goes up by '..'",
            hint="name it from the top of the tree, as /inbox/2026",
        )
    return found


def _both(one: Mode | None, other: Mode) -> Mode:
    """Return the weakest mode that allows what both allow."""
    if one is None or covers(other, one):
        return other
    return one if covers(one, other) else Mode.SIX


def _is_covered(path: PurePosixPath, modes: dict[PurePosixPath, Mode]) -> bool:
    whole = [modes[parent] for parent in path.parents if parent in modes]
    return Mode.X in whole or (modes[path] in (Mode.S, Mode.IS) and any(covers(each, Mode.S) for each in whole))


class PathLock[S: Session | AwaitedSession]:
    """Locks paths of one tree. Safe to share between threads, or tasks."""

    def __init__(self, cluster: AnyCluster[S], tree: str = "paths", *, purpose: str = "") -> None:
        """Lock nothing yet; touch nothing. ``tree``: its name in the cluster; trees of other names are not touched."""
        if not isinstance(cluster, AnyCluster):
            check_type(Cluster, cluster=cluster)
        self._cluster = cluster
        self._root: Final = f"/{check_log(tree)}"
        self._purpose = check_purpose(purpose) or f"paths of {tree}"

    def __call__(
        self, read: Iterable[AnyPath] = (), write: Iterable[AnyPath] = (), *, timeout_s: Seconds = 30
    ) -> HeldPaths[S]:
        """Return what locks these paths, all or none, for a ``with`` or ``async with`` block; locks nothing yet.

        Entering the block begins a session, and blocks up to the time-out; it raises what ``Session.acquire`` raises:
        TryAgain, code ``busy``, naming who has what. Blocks never wait for each other in a circle; who enters another
        one inside a block may, until the time-out: name all paths in one. Raises BadRequest for a bad path.
        """
        span_of(timeout_s, "timeout_s")
        modes = path_modes(read, write)
        if not modes:
            raise BadRequest("no-path", "there is no path to lock", hint="name what is read, or written")
        domains = {check_domain(self._root + str(path).rstrip("/")): mode for path, mode in modes.items()}
        return HeldPaths(partial(self._cluster.session, self._purpose), domains, timeout_s)

    def read(self, path: AnyPath, *, timeout_s: Seconds = 30) -> HeldPaths[S]:
        """Return what keeps everybody from changing anything in a path."""
        return self(read=[path], timeout_s=timeout_s)

    def delete(self, path: AnyPath, *, timeout_s: Seconds = 30) -> HeldPaths[S]:
        """Return what keeps everybody else away from a path."""
        return self(write=[path], timeout_s=timeout_s)

    def copy(self, source: AnyPath, target: AnyPath, *, timeout_s: Seconds = 30) -> HeldPaths[S]:
        """Return what is needed to copy a path to another."""
        return self(read=[source], write=[target], timeout_s=timeout_s)

    def rename(self, old: AnyPath, new: AnyPath, *, timeout_s: Seconds = 30) -> HeldPaths[S]:
        """Return what is needed to give a path another name."""
        return self(write=[old, new], timeout_s=timeout_s)


class HeldPaths[S: Session | AwaitedSession]:
    """The paths of one block, held by a session of its own. Made by ``PathLock``."""

    def __init__(self, begin: Callable[[], S], modes: Mapping[str, Mode], timeout_s: Seconds) -> None:
        """Hold nothing yet."""
        self._begin = begin
        self._modes = modes
        self._timeout_s = timeout_s
        self._session: S | None = None
        self.leases: Sequence[Lease] = ()
        """The leases of the block, in order of domain: fences, time left, what to do when one is lost."""

    @property
    def session(self) -> S:
        """What holds them, to publish messages under them. Raises BadRequest outside of the block."""
        if self._session is None:
            raise BadRequest("not-held", "nothing is held before the block, nor after it", hint="call it inside")
        return self._session

    @property
    def writing(self) -> list[Lease]:
        """Those of the leases under which messages may be published."""
        return [lease for lease in self.leases if lease.mode.may_write]

    def check(self) -> None:
        """Raise LeaseLost unless all paths are surely held now. Never blocks: call it before each step that counts."""
        self.session.check_held(self.leases)

    def _refuse_twice(self) -> None:
        if self._session is not None:
            raise BadRequest("held-already", "these are locked by a block already", hint="make one for each block")

    def __enter__(self) -> Self:
        """Lock them. Blocks; touches the mount. Raises BadRequest where they are locked already."""
        self._refuse_twice()
        session = self._begin()
        if not isinstance(session, Session):
            raise BadRequest("not-awaited", "this cluster is for asyncio", hint="say async with, or open a Cluster")
        self._session = session
        try:
            self.leases = session.acquire(*self._modes, mode=self._modes, timeout_s=self._timeout_s)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        """Unlock them. Blocks until the outcome of what was published under them is known."""
        session, self._session = self._session, None
        assert isinstance(session, Session)
        session.close()

    async def __aenter__(self) -> Self:
        """Lock them. Cancelled, it leaves nothing locked. Raises BadRequest where they are locked already."""
        self._refuse_twice()
        session = self._begin()
        if isinstance(session, Session):
            session.close()
            raise BadRequest("nothing-to-await", "this cluster blocks", hint="say with, or open an AsyncCluster")
        self._session = session
        try:
            self.leases = await session.acquire(*self._modes, mode=self._modes, timeout_s=self._timeout_s)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *problem: object) -> None:
        """Unlock them, also if cancelled."""
        session, self._session = self._session, None
        assert session is not None
        assert not isinstance(session, Session)
        await session.close()
