"""What may be audited: a root or a copy of it, a part of one, a tar file."""

from __future__ import annotations

import os
import posixpath
import re
import tarfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

from appliance.formats.birth import FORMAT, format_of
from appliance.formats.paths import BIRTH, LOGS, MARKER, STORE
from timeagent.console import printable
from timeagent.errors import BadRequest, Damaged, Environment

from .tree import LEVELS_MAX, LINK, NOT_REGULAR, TOPS, ListedTree, Opened, Tree, is_hidden, text_of_bytes

NAME_BYTES_MAX: Final = 1024 * 1024
"""More than the header of any name, link or attribute that a tar program writes."""
_ENCODING: Final = ("utf-8", "surrogateescape")
"""What names in it are read by, whatever the locale is."""
_FOLDED: Final = re.compile(r"(s3|gs|az):/(?=[^/])")
_OF_NAMES: Final = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)


class _Member(tarfile.TarInfo):
    """A member whose header is refused where reading on by it would not end, or take all memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header. Raises ReadError for a size that no tar program writes."""
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _OF_NAMES and member.size > NAME_BYTES_MAX):
            raise tarfile.ReadError(f"a header states {member.size} bytes")
        return member


def _members(file: IO[bytes]) -> list[tarfile.TarInfo]:
    """Return the members of a tar file in order. Raises TarError for what is none, or ends too early; OSError.

    ``tarfile`` takes a header that is cut off, or garbled, for the end of the archive: what stands behind it would be
    missing, and nobody would say so. Whoever unpacks it is told.
    """
    found: list[tarfile.TarInfo] = []
    try:
        encoding, errors = _ENCODING
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_Member, encoding=encoding, errors=errors) as archive:
            for each in archive:
                each.pax_headers = {}  # each keeps a copy of all that headers before it say of all members
                said = archive.pax_headers.items()
                archive.pax_headers = {name: value for name, value in said if name in tarfile.PAX_FIELDS}
                if each.size < 0:  # as an attribute says it
                    raise tarfile.ReadError(f"{each.name} has {each.size} bytes")
                if each.type in tarfile.SUPPORTED_TYPES:
                    found.append(each)
            end = archive.offset
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as problem:  # of made-up headers
        raise tarfile.ReadError(str(problem)) from None
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"it is cut off, or damaged, at offset {end}")
    return found


class TarTree(ListedTree):
    """A copy of a cluster's root, or a part of one, in an uncompressed tar file."""

    def __init__(self, path: Path) -> None:
        """List the members. Raises Damaged for what is no tar file, Environment for what cannot be read."""
        super().__init__(path)
        self._places: dict[str, tuple[int, int] | str] = {}
        """Where the bytes of a member are and how many, or why they cannot be read.

        In the file that was opened: another one may be put in its place meanwhile.
        """
        try:
            with path.open("rb") as file:
                self._descriptor = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptor)
                found = os.fstat(self._descriptor)
                members = _members(file)
        except tarfile.TarError as problem:
            raise Damaged(
                "not-a-tree",
                f"{path} is neither a directory nor an uncompressed tar file: {problem}",
                hint="unpack it, or name a directory",
            ) from None
        except OSError as problem:
            raise Environment("unreadable", f"cannot read {path}: {problem.strerror}", hint="check its mode") from None
        self._identity = f"{found.st_size} {found.st_dev} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"
        root = self._root(members, path)
        self.inside = _text(root)
        stands: dict[str, tuple[int, int] | str] = {}
        for each in members:
            place = _place(each, stands)
            stands[posixpath.normpath(each.name)] = place
            name = _text(_inside(each.name, root))
            if not name:
                continue
            levels = name.split("/", LEVELS_MAX)
            if len(levels) > LEVELS_MAX:
                self._add("/".join(levels[:LEVELS_MAX]), is_directory=True)
                continue
            self._add(name, is_directory=each.isdir())
            self._places[name] = place

    @staticmethod
    def _root(members: list[tarfile.TarInfo], path: Path) -> str:
        """Return the directory that holds the marker, nearest to the top; without one, that of a part of a tree."""
        marked = [name for each in members if posixpath.basename(name := posixpath.normpath(each.name)) == MARKER]
        parts = [part for part in map(_part, members) if part is not None]
        if not marked and not parts:
            raise Damaged("not-a-tree", f"{path} holds no file {MARKER}", hint="name a tar file of a tenure root")
        least = min((name.count("/") for name in marked), default=0)
        found = {posixpath.dirname(name) for name in marked if name.count("/") == least} or set(parts)
        if len(found) > 1 and "" not in found:
            names = ", ".join(map(_text, sorted(found)))
            what = f"{path} holds {len(found)} trees: {names}"
            raise Damaged("not-a-tree", what, hint="unpack it, and name one of them; or make a tar file of one")
        (root,) = sorted(found)[:1]
        if root.split("/", 1)[0] == "..":
            raise Damaged("not-a-tree", f"the members of {path} lead out of it", hint="make a tar file of the root")
        return root

    def names(self, directory: str) -> list[tuple[str, bool]]:
        found = super().names(directory)
        files = [f"{directory}/{name}" if directory else name for name, is_inner in found if not is_inner]
        if directory not in self._children:
            files.append(directory)
        for path in files:
            why = self._places.get(path)
            if isinstance(why, str) and (path == directory or not is_hidden(path.rpartition("/")[2])):
                self._cannot(path, why)
        return found

    def identity(self, path: str) -> str:
        return f"{self._identity} {self._places.get(path)}"

    def open_file(self, path: str) -> Opened | None:
        place = self._places.get(path, NOT_REGULAR if path in self._children else None)
        if place is None:
            return None
        if isinstance(place, str):
            self.unreadable[path] = place
            return None
        try:
            return Opened(os.dup(self._descriptor), *place)
        except OSError as problem:
            self.unreadable[path] = str(problem.strerror)
            return None


def _text(name: str) -> str:
    return text_of_bytes(name.encode(*_ENCODING))


def _place(member: tarfile.TarInfo, stands: dict[str, tuple[int, int] | str]) -> tuple[int, int] | str:
    """Return where a member's bytes are and how many, or why they cannot be read. ``stands``: of those before it."""
    if member.issym():
        return LINK
    if member.islnk():
        return stands.get(posixpath.normpath(member.linkname), "it is a hard link to what the tar file does not hold")
    if not member.isreg():
        return NOT_REGULAR
    if member.issparse():
        return "it is stored with holes (tar --sparse): unpack the tar file, and name the directory"
    return member.offset_data, member.size


def _part(member: tarfile.TarInfo) -> str | None:
    """Return the directory of which a member would be the part of a tree: at the top, or in its only directory."""
    plain = posixpath.normpath(member.name).lstrip("/")
    inner = (plain if member.isdir() else posixpath.dirname(plain)).split("/")
    return next(("/".join(inner[:depth]) for depth in (0, 1) if TOPS.intersection(inner[depth : depth + 1])), None)


def _inside(name: str, root: str) -> str:
    """Return a member's path below the root; nothing for what is not below it."""
    plain = posixpath.normpath(name).lstrip("/")
    if plain == "." or plain.split("/", 1)[0] == "..":
        return ""
    top = root.lstrip("/")
    if top:
        plain = plain[len(top) + 1 :] if plain.startswith(f"{top}/") else ""
    return plain


class JoinedTree(Tree):
    """A copy of a cluster's root, with copies of the stores that the bags of some of its logs are in."""

    def __init__(self, root: Tree, stores: Sequence[Tree]) -> None:
        """Find the logs of each store. Raises BadRequest for one that holds none of this root."""
        super().__init__(root.root)
        self.said, self.inside, self.stores = root.said, root.inside, tuple(stores)
        self._top, self.unreadable = root, root.unreadable
        self._logs: dict[str, Tree] = {}
        for store in stores:
            store.unreadable = self.unreadable
            found = [log for log in store.logs() if _is_of(root, store, log)]
            if not found:
                what = f"{store.said or store.root} holds the bags of no log of {root.said or root.root}"
                raise BadRequest("no-store", what, hint="name the copy of a store that a log's birth record names")
            self._logs |= dict.fromkeys(found, store)

    def _of(self, path: str) -> Tree:
        top, _, below = path.partition("/")
        log, _, rest = below.partition("/")
        return self._top if top != LOGS or rest == BIRTH else self._logs.get(log, self._top)

    def names(self, directory: str) -> list[tuple[str, bool]]:
        """Return the names in a directory, of a log's own those at the root too."""
        found = self._of(directory).names(directory)
        if directory.count("/") == 1 and self._of(directory) is not self._top:
            found = sorted({*found, *self._top.names(directory)})
        return found

    def size(self, path: str) -> int:
        return self._of(path).size(path)

    def identity(self, path: str) -> str:
        return self._of(path).identity(path)

    def open_file(self, path: str) -> Opened | None:
        return self._of(path).open_file(path)


def _is_of(root: Tree, store: Tree, log: str) -> bool:
    there = store.read(f"{LOGS}/{log}/{STORE}")
    return there is not None and there == root.read(f"{LOGS}/{log}/{BIRTH}")


PART: Final = f"a part of a tree: it holds no file {MARKER}"
NAMED_MAX: Final = 4
"""So many trees below a directory are named."""


def _of_our_format(tree: Tree) -> Tree:
    """Return the tree. Raises Damaged for one that another version wrote: what it holds would be judged wrongly."""
    stated = format_of(tree.read(MARKER, 256) or b"")
    if stated not in (None, FORMAT):
        what = f"{tree.said or tree.root} is a tree of format {stated}; this version judges format {FORMAT}"
        raise Damaged("other-format", what, hint="audit it with the version of tenure that wrote it")
    return tree


def find_root(path: Path, *, part: bool = False) -> Path:
    """Return the path, which is a root. Raises Damaged for what is none, with the trees below it as the way out.

    Raises Environment for what does not exist or may not be read.

    ``part``: a part of one will do. None is chosen of what lies below: whoever reads a verdict must know of what.
    """
    try:
        if not path.exists():
            raise Environment("no-root", f"{path} does not exist", hint="is the file system mounted?")
        if not path.is_dir():
            raise Damaged("not-a-tree", f"{path} is not a directory", hint="name a copy of a tenure root")
        if os.path.lexists(path / MARKER):
            return path
        inner = (each for each in sorted(path.iterdir()) if each.name not in TOPS)
        below = [each for each in inner if each.is_dir() and os.path.lexists(each / MARKER)]
        if part and not below and any((path / name).is_dir() for name in TOPS):
            return path
    except OSError as problem:
        raise Environment("unreadable", f"cannot read {path}: {problem.strerror}", hint="check its mode") from None
    what = f"{path} holds no file {MARKER}"
    if not below:
        hint = "name the directory that holds it: the root of the cluster, or a copy of it"
        raise Damaged("not-a-tree", what, hint=hint)
    names = ", ".join(map(str, below[:NAMED_MAX])) + (", …" if len(below) > NAMED_MAX else "")
    there = f"a tree lies below it: {names}" if len(below) == 1 else f"{len(below)} trees lie below it: {names}"
    raise Damaged("not-a-tree", f"{what}; {there}", hint=f"name it: {names}" if len(below) == 1 else "name one of them")


def address_of(path: Path) -> str | None:
    """Return the address that a path stands for, or None: a Path makes one slash of two."""
    folded = _FOLDED.match(str(path))
    return None if folded is None else f"{folded[1]}://{str(path)[folded.end() :]}"


def open_tree(path: Path, stores: Sequence[Path] = ()) -> Tree:
    """Return the tree at a path, or at the address that it stands for.

    ``stores``: where what is in the stores of its logs is, named in the same way.

    Raises Damaged with the way out where there is none, Environment for no access, BadRequest for other stores.
    """
    if stores:
        return JoinedTree(open_tree(path), [open_tree(each) for each in stores])
    address = address_of(path)
    if address is not None:
        from .fetched import FetchedTree  # noqa: PLC0415 - and all that it loads

        return _of_our_format(FetchedTree(address))
    return _of_our_format(TarTree(path) if path.is_file() else Tree(find_root(path, part=True)))


def whereabouts(tree: Tree) -> dict[str, Any]:
    """Return what JSON shows of where a tree is: a report without it may be of another one than its reader thinks."""
    place = {
        "path": printable(tree.said or str(tree.root.resolve())),
        "inside": printable(tree.inside),
        "marker": any(name == MARKER for name, _ in tree.names("")),
    }
    return place | {"stores": [whereabouts(each) for each in tree.stores]} if isinstance(tree, JoinedTree) else place


def where_words(place: dict[str, Any]) -> str:
    """Return the same in words."""
    inside = f", in it {place['inside']}" if place["inside"] else ""
    stores = "".join(f" and {printable(each['path'])}" for each in place.get("stores", ()))
    return f"{place['path']}{inside}" + ("" if place["marker"] else f" ({PART})") + stores
