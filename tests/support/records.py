"""A hypothesis strategy for any record, derived from its declared types."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from appliance.formats.birth import LogBirth, PlacedBirth
from appliance.formats.chains import CeilingRecord, EpochRecord
from appliance.formats.closed import LockFile, RackSeal
from appliance.formats.framing import FrameHead
from appliance.formats.policy import Policy
from appliance.formats.shardmap import Layout, ShardMap
from appliance.formats.stamped import Signed, Stamped
from appliance.formats.view import Checkpoint, FoldIdentity
from appliance.formats.witness import (
    BatchHead,
    CeilingCopy,
    Ended,
    LedgerBlock,
    Resumed,
    Revoked,
    SessionEnded,
    SessionWitness,
    SignedWitness,
    Stopped,
    Witness,
)
from timeagent.canonical import Record
from timeagent.trust import TrustRecord

RECORDS: tuple[type[Record], ...] = (
    BatchHead,
    CeilingCopy,
    CeilingRecord,
    Checkpoint,
    Ended,
    EpochRecord,
    FoldIdentity,
    FrameHead,
    LedgerBlock,
    LockFile,
    LogBirth,
    PlacedBirth,
    Policy,
    RackSeal,
    Resumed,
    SessionEnded,
    SessionWitness,
    Revoked,
    ShardMap,
    Signed,
    SignedWitness,
    Stamped,
    Stopped,
    TrustRecord,
    Witness,
)


def records(kind: type[Record]) -> st.SearchStrategy[Any]:
    """Values of a record's kind, edges of every range included."""
    return _of(msgspec.inspect.type_info(kind))


def _of(info: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return _built(cls, {field.name: _of(field.type) for field in fields})
        case msgspec.inspect.IntType(ge=low, le=high):
            return st.one_of(st.sampled_from([low, 127, 128, 2**31, 2**32, high]), st.integers(low, high))
        case msgspec.inspect.StrType(min_length=low, max_length=high):
            return st.text(st.characters(exclude_categories=["Cs"]), min_size=low or 0, max_size=min(high or 40, 40))
        case msgspec.inspect.BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=300 if high is None else high)
        case msgspec.inspect.EnumType(cls=cls):
            return st.sampled_from(cls)
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(_of(item), max_size=4).map(tuple)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*map(_of, types))
        case msgspec.inspect.NoneType():
            return st.none()
    raise AssertionError(f"no strategy for {info}")


def _repaired(cls: type, of: dict[str, Any]) -> dict[str, Any]:
    """What a record demands of its fields together, beyond their types."""
    if cls is LockFile:
        return of | {"entries": _in_order(of["entries"], "name")}
    if cls is RackSeal:
        return of | {"entries": _in_order(of["entries"], "bag")}
    if cls is TrustRecord:
        return of | {"keys": tuple({key.public: key for key in of["keys"]}.values())}
    if cls is ShardMap:
        number = max(1, of["number"])
        before = of["before"] and _layout(of["before"].owners, of["before"].chains, number)
        layout = _layout(of["owners"], of["chains"], number)
        chains = layout.chains if of["chains"] else ()
        return of | {"number": number, "owners": layout.owners, "chains": chains, "before": before}
    return of


def _layout(owners: tuple[str, ...], chains: tuple[int, ...], number: int) -> Layout:
    """Return one with a chain for each owner, that began under a map up to this one."""
    owners = owners or ("node-a",)
    begun = [*chains, *[1] * len(owners)][: len(owners)]
    return Layout(owners=owners, chains=tuple(1 + chain % number for chain in begun))


def _in_order(entries: tuple[Any, ...], by: str) -> tuple[Any, ...]:
    named = {getattr(entry, by): entry for entry in entries}
    return tuple(named[name] for name in sorted(named))


def _built(cls: type, fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(fields).map(lambda of: cls(**_repaired(cls, of)))
