"""Make, open and list logs: a log is what its birth record says, for ever. And what is on its mount, for people.

What is for people judges nothing, and closes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from appliance.formats.birth import BagKind, LogBirth, PlacedBirth, check_grid, check_store, open_birth, store_of
from appliance.formats.framing import Kind
from appliance.formats.names import check_log
from appliance.formats.paths import BIRTH, LOCK, LOGS, MARKER, PRELOCK, RETAINED, SEAL, STORE, Bag, Grid, Rack
from appliance.formats.stamped import body_digest
from timeagent.canonical import encode_for_ever
from timeagent.errors import BadConfiguration, BadRequest, Damaged, Environment, TryAgain
from timeagent.trust import Keyring
from timeagent.units import DAY, Instant

from ..formats.closed import PACK, open_seal
from .ports import NOT_A_DIRECTORY, BagContext, Storage, signed_for_ever


def is_there(storage: Storage, directory: str) -> bool:
    """Whether a directory of a log is there now: a bag, or a rack. Touches the mount.

    That it is not may be this machine's memory, of it or of one above it: a directory that is opened drops what was
    remembered of the names in it. So each of them is opened, from the log's own on.
    """
    if storage.look(directory, ()) is not None:
        return True
    names = directory.split("/")
    above = range(names.index(LOGS) + 2, len(names))
    if not all(storage.look("/".join(names[:depth]), (names[depth],)) for depth in above):
        return False
    return storage.look(directory, ()) is not None


@dataclass(frozen=True, slots=True)
class Store:
    """What is not the root, and may hold a log: its name, as the birth record says it, and the way to it."""

    named: str
    storage: Storage


def create_log(context: BagContext, name: str, kind: BagKind = BagKind.MAILDIR, store: Store | None = None) -> LogBirth:
    """Make a log with the newest policy's span, grace and rack, or return the birth of the one that is there.

    Of several that make it at once the first wins, and all return its birth, which may be of another kind or elsewhere.
    ``store``: where its bags are to be; whoever names one has made sure that it is fit (``doctor.probes``). Raises
    BadRequest for a bad name, or a store in which a root, another log or a forged birth record is; NotTrusted for a
    node whose key is revoked. Touches the mount, and the store.
    """
    found = open_log(context, name)
    if found is not None:
        return found
    numbers = context.records.newest()
    policy = context.records.policy(numbers.policy)
    earliest = context.time.now().earliest
    birth = LogBirth(
        cluster_id=context.records.cluster_id,
        log=name,
        kind=kind,
        created_ns=earliest - earliest % policy.span_ns,
        span_ns=policy.span_ns,
        grace_ns=policy.grace_ns,
        rack_ns=policy.rack_ns,
        created_by=context.node,
    )
    if store is not None:
        birth = PlacedBirth(**msgspec.structs.asdict(birth), store=check_store(store.named))
    keyring = context.records.keyring(numbers.trust)
    raw = signed_for_ever(Kind.BIRTH, encode_for_ever(birth), context.time, keyring)
    if store is not None:
        raw = _placed(store, birth, raw, context.tmp(name), keyring)
    context.storage.ensure_directory(f"{LOGS}/{name}")
    context.storage.publish(_path(name), raw, context.tmp(name))
    found = open_log(context, name)
    if found is None:
        raise Environment("log-vanished", f"{_path(name)} is not there after it was made", hint="check the mount")
    return found


def _placed(store: Store, birth: LogBirth, raw: bytes, tmp: str, keyring: Keyring) -> bytes:
    """Put a birth record in its store; return the one that is there then.

    It may be of somebody else who makes this log, or who died before it was at the root. Who may write to the store
    need not be one who may make logs: so what is there has to be signed by a node of the cluster.
    """
    if store.storage.look(".", (MARKER,)):
        raise BadRequest(
            "store-is-root", f"{store.named} is the root of a cluster", hint="name a directory or a prefix beside it"
        )
    path = f"{LOGS}/{birth.log}/{STORE}"
    store.storage.ensure_directory(f"{LOGS}/{birth.log}")
    store.storage.publish(path, raw, tmp)
    there = store.storage.read(path) if store.storage.look(f"{LOGS}/{birth.log}", (STORE,)) else None
    if there is None:
        raise Environment("log-vanished", f"{path} is not in {store.named} after it was put there", hint="check it")
    found, stamped = open_birth(there, path)
    if (found.cluster_id, found.log, store_of(found)) != (birth.cluster_id, birth.log, store.named):
        raise BadRequest(
            "store-taken",
            f"{store.named} holds a log {found.log!r} of cluster {found.cluster_id.hex()[:12]} already",
            hint="name another directory or prefix, or another log",
        )
    token = stamped.signed_time(path)
    refused = keyring.refuses_time(token, body_digest(Kind.BIRTH, stamped.body))
    if refused or keyring.node_of(token.key_id) != found.created_by:
        raise BadRequest(
            "store-taken",
            f"{store.named} holds a birth record of {found.log!r} that no node of this cluster signed: "
            f"{refused or f'its key is not of {found.created_by}'}",
            hint="name another directory or prefix, or another log; and see who may write there",
        )
    return there


def open_log(context: BagContext, name: str) -> LogBirth | None:
    """Return a log's birth, or None if there is no such log. Raises BadRequest, Damaged. Touches the root only."""
    check_log(name)
    if not context.storage.look(f"{LOGS}/{name}", (BIRTH,)):
        return None
    where = _path(name)
    data = context.storage.read(where)
    if data is None:
        return None
    birth = open_birth(data, where)[0]
    if birth.cluster_id != context.records.cluster_id or birth.log != name:
        raise Damaged(
            "birth-misplaced",
            f"{where} is the birth of {birth.log!r} in cluster {birth.cluster_id.hex()}",
            hint="restore it from a copy of the tree",
        )
    try:
        check_grid(birth.span_ns, birth.grace_ns, birth.rack_ns)
    except BadConfiguration as problem:
        raise Damaged("birth-damaged", f"{where}: {problem.message}") from None
    if birth.created_ns % birth.span_ns:
        raise Damaged("birth-damaged", f"{where}: {birth.created_ns} is not the start of a bag")
    return birth


def list_logs(context: BagContext) -> list[str]:
    """Return the names of all logs, sorted. What is no directory is no log. Raises Environment. Touches the mount."""
    return [name for name in names_there(context.storage) if _has_birth(context, name)]


def names_there(storage: Storage, known: Container[str] = ()) -> list[str]:
    """Return the names under which there may be logs, sorted, without those that are known.

    Raises Environment. Touches the mount: one listing.
    """
    return [name for name in storage.list_afresh(LOGS) or () if name not in known and _is_name(name)]


def _has_birth(context: BagContext, name: str) -> bool:
    try:
        return bool(context.storage.look(f"{LOGS}/{name}", (BIRTH,)))
    except Environment as problem:
        # A file that anybody left beside the logs must not keep a daemon from those that are there.
        if problem.code != NOT_A_DIRECTORY:
            raise
        return False


def _is_name(name: str) -> bool:
    try:
        check_log(name)
    except BadRequest:
        return False
    return True


def _path(name: str) -> str:
    return f"{LOGS}/{name}/{BIRTH}"


def hidden(path: str) -> TryAgain:
    """Return what is to be raised of a directory that has just been seen and is not there: who knows what is in it."""
    what = f"the mount hides {path}, which was there just now, or somebody deleted it"
    return TryAgain("directory-hidden", what, hint="try again; see that nobody deletes there")


_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")


def racks_there(storage: Storage, grid: Grid, after_ns: Instant = 0) -> Iterator[Rack]:
    """Yield the racks that have a directory and end after an instant, newest first; directories are opened afresh.

    Names off the grid do not exist. Touches the mount: the log's directory, and each day's as it is come to. Raises
    TryAgain.
    """
    for day in reversed(storage.list_afresh(grid.log_path) or []):
        names = storage.list_afresh(f"{grid.log_path}/{day}") if _DAY.fullmatch(day) else []
        if names is None:
            raise hidden(f"{grid.log_path}/{day}")
        racks = [grid.parse_rack(day, name) for name in names]
        for rack in sorted((rack for rack in racks if rack is not None), reverse=True):
            if rack.end_ns <= after_ns:
                return
            yield rack


class ClosingState(StrEnum):
    """How far the closing of a bag or rack has come, by the names in its directory."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class BagView:
    bag: Bag
    state: ClosingState
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RackView:
    """One rack directory that is there, with its bags in order."""

    rack: Rack
    state: ClosingState
    bags: tuple[BagView, ...]
    pack_bytes: int | None
    retained: bool
    """Sealed with files, and neither bags nor a pack are there: what it held is gone."""
    strangers: tuple[str, ...]
    """Names in the rack that are neither ours nor on the grid: for the log they do not exist."""


def view_rack(context: BagContext, grid: Grid, rack: Rack) -> RackView:
    """Return a rack as it is now: one listing for it, one for each bag. Touches the mount."""
    names = context.storage.list_afresh(rack.path) or []
    bags, strangers = [], []
    for name in names:
        bag = grid.parse_bag(rack, name)
        if bag is not None:
            inside = context.storage.list_afresh(bag.path) or []
            files = tuple(each for each in inside if grid.data_name(each) is not None)
            bags.append(BagView(bag, _state(inside, LOCK, ClosingState.CLOSED), files))
        elif name not in (PRELOCK, SEAL, PACK, RETAINED):
            strangers.append(name)
    size = context.storage.size_of(f"{rack.path}/{PACK}") if PACK in names else None
    return RackView(
        rack, _state(names, SEAL, ClosingState.SEALED), tuple(bags), size, _gone(context, rack, names), tuple(strangers)
    )


def _gone(context: BagContext, rack: Rack, names: list[str]) -> bool:
    """Whether the rack was emptied by retention. Reads the seal only where nothing else is there."""
    if set(names) - {RETAINED} != {PRELOCK, SEAL}:
        return False
    raw = context.storage.read(f"{rack.path}/{SEAL}")
    return raw is not None and open_seal(raw, f"{rack.path}/{SEAL}")[0].lists_files()


def _state(names: list[str], last: str, reached: ClosingState) -> ClosingState:
    if last in names:
        return reached
    return ClosingState.CLOSING if PRELOCK in names else ClosingState.OPEN


NAMES_PER_RACK: Final = 3
"""A rack's directory, its prelock and its seal stay for ever."""
_RACKS_LOOKED_AT: Final = 144


@dataclass(frozen=True, slots=True)
class Forecast:
    """Names are inodes. Per day, by the newest sealed racks."""

    racks_looked_at: int
    racks_per_day: int
    names_for_ever_per_day: int
    packs_per_day: float
    pack_bytes_per_day: float
    names_now: int
    """In the racks that were looked at: directories and files."""
    names_kept: float
    """Of packs, once retention has begun to delete; without retention after one year."""
    bytes_kept: float


def forecast(context: BagContext, grid: Grid, days: int | None) -> Forecast:
    """Return what a log that goes on like its newest racks comes to. Touches the mount: a listing for each of them."""
    looked, packs, size, names_now, sealed = 0, 0, 0, 0, 0
    for rack in racks_there(context.storage, grid):
        names = context.storage.list_afresh(rack.path) or []
        looked += 1
        names_now += 1 + len(names)
        for name in names:
            if grid.parse_bag(rack, name) is not None:
                names_now += len(context.storage.list_afresh(f"{rack.path}/{name}") or ())
        sealed += SEAL in names
        if PACK in names:
            packs += 1
            size += context.storage.size_of(f"{rack.path}/{PACK}") or 0
        if looked == _RACKS_LOOKED_AT:
            break
    per_day = DAY // grid.birth.rack_ns
    share = per_day / sealed if sealed else 0.0
    kept = days or 365
    return Forecast(
        looked,
        per_day,
        NAMES_PER_RACK * per_day,
        packs * share,
        size * share,
        names_now,
        packs * share * kept,
        size * share * kept,
    )
