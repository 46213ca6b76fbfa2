"""A fold: what an application makes of messages, one after the other. Pure: no I/O, no clock, no chance."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from appliance.bag.message import MessageBatch
from appliance.formats.names import check_log, check_view
from appliance.formats.view import FoldIdentity, LogStart
from timeagent.errors import BadRequest, check_callable, check_type
from timeagent.units import Instant


@dataclass(frozen=True, slots=True)
class Fold[S]:
    """One view's way from messages to a state.

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
        if not self.logs or len(set(self.logs)) != len(self.logs) or self.version < 0:
            raise BadRequest(
                "bad-fold",
                f"the fold {self.view} version {self.version} reads {len(self.logs)} logs: {', '.join(self.logs)}",
                hint="name one log or several, each once, and a version of 0 or more",
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
