"""A materialised view: a fold over everything settled, kept as checkpoints on the mount (docs/protocol/views.md).

A checkpoint is named by its fold and its horizon, which is the least of its logs' horizons, and made of nothing but the
settled messages below that. So everybody who makes it makes the same bytes: any number of aggregators may race, die
anywhere and begin again. The steps of one advance:

1. list       the checkpoints that are there, and read the newest: the fold goes on from it;
2. horizon    refresh that of every log, and take the least: above it one log could still gain a message;
3. fold       the messages of all logs in one order, bag by bag;
4. link       the checkpoint; if it is there already, it must be the same.

1 comes before 2: a checkpoint that is ahead of horizons that were looked at later breaks a promise, and is told.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from appliance.bag.message import MessageBatch, before, merged
from appliance.formats.names import check_log, check_view
from appliance.formats.paths import TMP
from appliance.formats.view import (
    VIEWS,
    Checkpoint,
    FoldIdentity,
    LogStart,
    checkpoint_bytes,
    checkpoint_path,
    fold_path,
    open_checkpoint,
    parse_horizon,
)
from appliance.session.open_logs import LogBook
from timeagent.errors import BadRequest, Damaged, TryAgain, check_callable, check_type
from timeagent.units import Instant, rfc3339

from .bag.ports import BagContext, Published


@dataclass(frozen=True, slots=True)
class Fold[S]:
    """One view's way from messages to a state. Pure: no I/O, no clock, no chance.

    The state after some messages may depend on their sequence only, not on how it was cut into batches, nor on the
    machine, the process or the time: aggregators on several nodes must come to the same bytes. Whoever changes what
    the functions do gives the fold another version.
    """

    view: str
    version: int
    logs: tuple[str, ...]
    """Which logs it reads: their messages come in one order, by timestamp."""
    initial: bytes
    """The state before the first message, encoded."""
    decode: Callable[[bytes], S]
    """Read a state. May raise ValueError."""
    step: Callable[[S, MessageBatch], S]
    """Take in the next messages, at least one; may change the state given and return it. Must not fail: a message that
    makes no sense to the application is the application's to skip, the same way everywhere."""
    encode: Callable[[S], bytes]
    """Write a state: one state, one encoding."""

    def __post_init__(self) -> None:
        """Raise BadRequest for names that cannot be paths, and for a fold over nothing."""
        check_view(self.view)
        check_type(int, version=self.version)
        check_type(tuple, logs=self.logs)
        check_type(bytes, initial=self.initial)
        check_callable(decode=self.decode, step=self.step, encode=self.encode)
        for log in self.logs:
            check_log(log)
        if not self.logs or len(set(self.logs)) != len(self.logs) or not 0 <= self.version < 2**63:
            raise BadRequest(
                "bad-fold",
                f"the fold {self.view} version {self.version} reads {len(self.logs)} logs: {', '.join(self.logs)}",
                hint="name one log or several, each once, and a version of 0 or more, below 2**63",
            )

    def identity(self, cluster_id: bytes, created_ns: Mapping[str, Instant]) -> FoldIdentity:
        """Return what names the fold's checkpoints. ``created_ns``: when each of its logs began."""
        return FoldIdentity(
            cluster_id=cluster_id,
            view=self.view,
            version=self.version,
            logs=tuple(LogStart(log=log, created_ns=created_ns[log]) for log in sorted(self.logs)),
            initial=hashlib.sha256(self.initial).digest(),
        )


def in_one_order(logs: Sequence[Iterator[MessageBatch]]) -> Iterator[MessageBatch]:
    """Yield batches that hold the messages of all logs, by timestamp.

    Each log's batches are settled and follow each other: below ``complete_ns`` nothing of that log comes later. So
    what lies below the least of these, over all logs, can be handed out.
    """
    if len(logs) == 1:
        yield from logs[0]
        return
    heads = {number: head for number, log in enumerate(logs) if (head := next(log, None)) is not None}
    while heads:
        bound = min(head.complete_ns for head in heads.values())
        below: list[MessageBatch] = []
        for number, head in list(heads.items()):
            lower, upper = head.split(bound)
            below.append(lower)
            following = upper if len(upper) or head.complete_ns > bound else next(logs[number], None)
            if following is None:
                del heads[number]
            else:
                heads[number] = following
        together = merged(below)
        if len(together):
            yield together


_DELETE = "delete the file: checkpoints are made again"


class View[S]:
    """One fold of one cluster. Any number of these, in any processes, may work on the same view."""

    def __init__(self, context: BagContext, logs: LogBook, fold: Fold[S]) -> None:
        """Open the fold's logs. Raises BadRequest for one that does not exist. Touches the mount."""
        self._storage = context.storage
        self._fold = fold
        self.logs = tuple(sorted(fold.logs))
        opened = {name: logs.opened(name) for name in self.logs}
        created = {name: log.grid.birth.created_ns for name, log in opened.items()}
        self._readers = [log.reader for log in opened.values()]
        self._cluster_id = context.records.cluster_id
        self.digest = fold.identity(self._cluster_id, created).digest()
        self.path = fold_path(fold.view, self.digest)
        self._tmp = f"{VIEWS}/{fold.view}/{TMP}/{context.node}"

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be read, or None. Touches the mount.

        A damaged one, or another cluster's, is passed over: the fold goes on from an older one, or from the beginning.
        """
        for horizon in reversed(self._horizons()):
            path = checkpoint_path(self._fold.view, self.digest, horizon)
            data = self._storage.read(path)
            if data is None:
                continue  # pruned meanwhile
            with contextlib.suppress(Damaged):
                checkpoint = open_checkpoint(data, path)
                if checkpoint.cluster_id == self._cluster_id:
                    return checkpoint
        return None

    def state(self, checkpoint: Checkpoint) -> S:
        """Return what a checkpoint holds. Raises Damaged if the fold cannot read it."""
        path = checkpoint_path(checkpoint.view, checkpoint.fold, checkpoint.horizon_ns)
        try:
            return self._fold.decode(checkpoint.state)
        except ValueError as problem:
            raise Damaged(
                "view-damaged", f"{path}: the fold cannot read its own state: {problem}", hint=_DELETE
            ) from None

    def advance(self, progress: Callable[[int], None] | None = None) -> Checkpoint:
        """Fold what was settled since the newest checkpoint, publish the result, and return it.

        Closes nothing: ``Horizon.settle`` does. ``progress`` is called with the number of messages taken in so far.
        Raises as ``Reader.batches``; Damaged where the same fold gave other bytes, or was published above the horizon;
        BadRequest for a fold that does not keep its rules. Touches the mount; idempotent.
        """
        if progress is not None:
            check_callable(progress=progress)
        newest = self.newest()
        horizon = min(reader.horizon.refresh() for reader in self._readers)
        if newest is not None and newest.horizon_ns > horizon:
            raise Damaged(
                "view-ahead",
                f"{self.path} has a checkpoint at {rfc3339(newest.horizon_ns)}, and its logs are settled up to "
                f"{rfc3339(horizon)} only",
                hint=f"an NFS client may see late what another machine closed: try again in a minute, then {_DELETE}",
            )
        if newest is not None and newest.horizon_ns == horizon:
            return newest
        state = self._decoded(self._fold.initial) if newest is None else self.state(newest)
        start, messages = (0, 0) if newest is None else (newest.horizon_ns, newest.messages)
        readings = [reader.batches(before(start), horizon - 1) for reader in self._readers]
        for batch in in_one_order(readings):
            state = self._fold.step(state, batch)
            messages += len(batch)
            if progress is not None:
                progress(messages)
        return self._published(
            Checkpoint(
                cluster_id=self._cluster_id,
                view=self._fold.view,
                fold=self.digest,
                horizon_ns=horizon,
                messages=messages,
                state=self._encoded(state),
            )
        )

    def prune(self, keep: int) -> int:
        """Delete all but the newest ``keep`` checkpoints, at least one; return how many were there too many.

        Those above the newest that can be read are damaged, and do not count: they stay. Harms nobody: who misses one
        that it has seen listed takes another. Touches the mount.
        """
        check_type(int, keep=keep)
        if keep < 1:
            raise BadRequest(
                "bad-keep", f"keep {keep} checkpoints: a view without one begins anew", hint="keep 1 or more"
            )
        newest = self.newest()
        surplus = [each for each in self._horizons() if newest is None or each <= newest.horizon_ns][:-keep]
        for horizon in surplus:
            self._storage.unlink(checkpoint_path(self._fold.view, self.digest, horizon))
        return len(surplus)

    def _horizons(self) -> list[Instant]:
        names = self._storage.list_afresh(self.path) or ()
        return sorted(horizon for name in names if (horizon := parse_horizon(name)) is not None)

    def _published(self, checkpoint: Checkpoint) -> Checkpoint:
        path = checkpoint_path(checkpoint.view, checkpoint.fold, checkpoint.horizon_ns)
        data = checkpoint_bytes(checkpoint)
        self._storage.ensure_directory(self.path)
        published = self._storage.publish(path, data, self._tmp)
        if published is Published.ABSENT:
            raise TryAgain("no-directory", f"{self.path} vanished while it was written to", hint="try again")
        there = self._storage.read(path) if published is Published.LOST else data
        if there is not None and there != data:
            raise Damaged(
                "view-differs",
                f"{path} holds other bytes than the same fold gives here",
                hint="the file is damaged (delete it), or two programs say the same version and do different things",
            )
        return checkpoint

    def _decoded(self, raw: bytes) -> S:
        try:
            return self._fold.decode(raw)
        except ValueError as problem:
            what = f"the fold {self._fold.view} version {self._fold.version} cannot read {raw[:60]!r}: {problem}"
            hint = "let decode read the initial state, and whatever encode returns"
            raise BadRequest("bad-fold", what, hint=hint) from None

    def _encoded(self, state: S) -> bytes:
        """Encode, and make sure that who goes on from it goes on from the same state."""
        raw = self._fold.encode(state)
        check_type(bytes | bytearray, encoded=raw)
        if self._fold.encode(self._decoded(raw)) != raw:
            raise BadRequest(
                "fold-not-canonical",
                f"the fold {self._fold.view} version {self._fold.version} encodes the same state in two ways",
                hint="let encode(decode(bytes)) return the bytes: sort what has no order",
            )
        return raw
