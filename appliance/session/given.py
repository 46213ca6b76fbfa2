"""What ``publish`` is given: refused before anything is written, by value, rule and way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.formats.frame import check_payloads
from timeagent.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeagent.units import Span

    from .held import Lease

ATTEMPT_ID_BYTES: Final = 16


def checked_batch(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the batch, to be changed by nobody. Raises BadRequest before anything is written."""
    batch = [] if isinstance(payloads, bytes | str) else list(payloads)
    if isinstance(payloads, bytes | str) or not all(isinstance(payload, bytes) for payload in batch):
        raise BadRequest(
            "bad-payloads", "the payloads are not a list of bytes", hint="publish(log, [b'...'], under=leases)"
        )
    check_payloads(batch)
    return batch


def refuse_readers(leases: Sequence[Lease]) -> None:
    for lease in leases:
        if not lease.mode.may_write:
            raise BadRequest(
                "mode-may-not-write",
                f"the lease on {lease.domain!r} is in mode {lease.mode}: readers reject what is written under it",
                hint="acquire it in mode X, SIX or IX, or upgrade it",
            )


def checked_attempt(attempt_id: bytes) -> bytes:
    if len(attempt_id) != ATTEMPT_ID_BYTES:
        raise BadRequest(
            "bad-attempt-id", f"an attempt id of {len(attempt_id)} bytes", hint=f"it has {ATTEMPT_ID_BYTES} bytes"
        )
    return attempt_id


def chosen_together(asked: bool | None, usual: bool, own: Sequence[Span | None]) -> bool:  # noqa: FBT001 - and its default
    """Return whether leases are taken under a session lease. ``own``: what would give them an expiry of their own."""
    alone = any(each is not None for each in own)
    if asked and alone:
        raise BadRequest(
            "own-expiry",
            "a lease under a session lease has no term and no cap of its own: it lives as long as that is renewed",
            hint="leave out term_ns, hold_ns_max and progress_within_ns, or session_lease",
        )
    return (usual if asked is None else asked) and not alone
