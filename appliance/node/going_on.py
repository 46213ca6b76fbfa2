"""How a run of a shard goes on with what another left: on tmpfs, or in the log of its turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from timeagent.errors import BadTime, Environment, ShardUnavailable, TryAgain

from ..lease.ceiling import Deposed, Extension, InDoubt
from ..lease.shard import Shard
from ..lease.suspension import Suspension
from ..lease.turn_log import LogLost, TurnLog
from .records import StoredLedger


@contextlib.contextmanager
def kept_turns(log: TurnLog) -> Iterator[TurnLog]:
    """Use a log to begin with a shard; it is closed where nothing comes of that. LogLost becomes ShardUnavailable."""
    try:
        yield log
    except LogLost as problem:
        log.close()
        raise ShardUnavailable(problem.code, problem.message, hint=problem.hint) from None
    except BaseException:
        log.close()
        raise


def from_file(said: Suspension, ledger: StoredLedger) -> Callable[[Shard], Extension]:
    """Let a shard go on, if its ledger ends where the run before ended. Asked again while that cannot be told."""

    def resume(shard: Shard) -> Extension:
        last = ledger.resume(said.ledger_file, said.ledger_bytes, said.block_bytes)
        if (why := said.ledger_difference(last)) is not None:
            return Deposed(why)
        return shard.resume(said)

    return _asked_again(resume)


def from_log(said: Suspension, ledger: StoredLedger, log: TurnLog) -> Callable[[Shard], Extension]:
    """Let a shard go on once its ledger has what it may lack. Asked again while that cannot be told."""
    lacks = True

    def resume(shard: Shard) -> Extension:
        nonlocal lacks
        if lacks:
            blocks = log.blocks()  # each time, because another run may have gone on meanwhile
            if blocks:
                ledger.follow()
                ledger.append(b"".join(blocks))
            lacks = False
        return shard.resume(said)

    return _asked_again(resume)


def _asked_again(resume: Callable[[Shard], Extension]) -> Callable[[Shard], Extension]:
    def asked(shard: Shard) -> Extension:
        try:
            return resume(shard)
        except (BadTime, Environment, TryAgain) as problem:
            return InDoubt(problem.message)

    return asked
