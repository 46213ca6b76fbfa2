"""The public names: what they take, whether they can be found, and that asyncio has all of them.

Every verb is asked by its signature, so that one that is added is asked as well.
"""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, assert_type

import pytest

import tenure
from appliance.session.held import Lease
from tenure import (
    BadRequest,
    CachedValue,
    Cluster,
    Election,
    FenceGate,
    Fold,
    Leases,
    Mode,
    MountElection,
    Mutex,
    PathLock,
    Semaphore,
    Session,
)
from tenure.aio import AsyncLeases, AsyncSession
from tests.support.cluster import Site
from timeagent.units import DAY, INSTANT_MAX, MS, SECOND, Span, span_of

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = "log"
WRONG: tuple[object, ...] = (None, 5, 1.5, True, "text", b"bytes", ["x"], {"x": 1}, object())
SECONDS = (int, float)
NONE = type(None)

TAKEN: dict[str, tuple[type, ...]] = {
    "after": (int,),
    "after_ns": (int,),
    "allow_root": (bool,),
    "as_of_ns": (int,),
    "change": (),
    "cluster": (),
    "count": (int,),
    "do": (),
    "domain": (str,),
    "domains": (str,),
    "flush_s": SECONDS,
    "fold": (),
    "given_up": (),
    "hold_s_max": (*SECONDS, NONE),
    "keep": (int,),
    "kind": (),
    "last": (int, NONE),
    "lease": (),
    "leases": (),
    "level": (NONE,),
    "listener": (),
    "log": (str,),
    "margin_s": SECONDS,
    "mode": (),
    "name": (str,),
    "node": (str,),
    "node_dir": (str, NONE),
    "path": (str,),
    "patience_s": SECONDS,
    "payloads": (),
    "progress": (NONE,),
    "progress_within_s": (*SECONDS, NONE),
    "purpose": (str,),
    "read": (),
    "recall": (NONE,),
    "record_only": (bool,),
    "root": (str, NONE),
    "session": (),
    "session_lease": (bool, NONE),
    "session_leases": (bool,),
    "shard": (int,),
    "sticky_s": (*SECONDS, NONE),
    "store": (str, NONE),
    "term_s": (*SECONDS, NONE),
    "timeout_s": (*SECONDS, NONE),
    "to": (str, NONE),
    "to_ns": (int,),
    "tree": (str,),
    "under": (),
    "until_ns": (int, NONE),
    "waiting": (),
    "write": (),
}
"""Of each parameter, whatever the verb, the types of ``WRONG`` that are right; others are not listed there."""


def verbs(of: type) -> dict[str, Callable[..., Any]]:
    """Return the public verbs of a class."""
    return {name: getattr(of, name) for name, each in vars(of).items() if name[0] != "_" and inspect.isroutine(each)}


def name_of(verb: Callable[..., Any]) -> str:
    return getattr(verb, "__qualname__", type(verb).__name__)


def complaints(verb: Callable[..., Any], good: dict[str, Any]) -> list[str]:
    """Call a verb with one wrong value after the other in the place of good ones; return where that is not refused."""
    found = []
    for name, parameter in inspect.signature(verb).parameters.items():
        for value in WRONG if name != "storage" else ():  # for tests, which bring anything that does as one
            if type(value) in TAKEN[name]:
                continue
            given = {**good, name: value}
            several = [given.pop(each) for each in list(given) if each == "domains"]
            try:
                answer = verb(*several, **given)
                if inspect.isgenerator(answer):
                    next(answer, None)
            except BadRequest:
                continue
            except Exception as problem:  # noqa: BLE001 - whatever else it is, it is to be told
                found.append(f"{name_of(verb)}({name}={value!r}): {problem!r}")
            else:
                found.append(f"{name_of(verb)}({name}={value!r}): taken, default {parameter.default!r}")
    return found


def test_wrong_type_is_a_bad_request_in_every_verb_of_a_session_and_a_lease(site: Site) -> None:
    with site.open() as cluster, cluster.session("types") as session, session.acquire("d") as leases:
        session.publish(LOG, [b"1"], under=leases)
        good: dict[str, dict[str, Any]] = {
            "acquire": {"domains": "e", "timeout_s": 0},
            "upgrade": {"lease": leases[0], "mode": "X"},
            "relinquish": {"leases": []},
            "publish": {"log": LOG, "payloads": [b"1"], "under": leases},
            "read": {"log": LOG},
            "read_domains": {"log": LOG, "under": leases},
            "resolve": {"log": LOG, "leases": leases},
            "horizon": {"log": LOG},
        }
        asked = {name: getattr(session, name) for name in verbs(Session)}
        found = [
            each for name, verb in asked.items() if name != "close" for each in complaints(verb, good.get(name, {}))
        ]
        for verb in (leases[0].check, leases[0].on_lost, leases[0].on_recall):
            found += complaints(verb, {})
        session.check_held(leases)
    assert found == [], "\n".join(found)


def test_wrong_type_is_a_bad_request_in_every_verb_of_a_cluster(site: Site) -> None:
    fold = Fold("v", 1, (LOG,), b"", bytes, lambda state, _: state, bytes)
    with site.open() as cluster:
        cluster.create_log(LOG)
        good: dict[str, dict[str, Any]] = {
            "open": {"root": site.root, "node_dir": site.node_dir(), "allow_root": True},
            "clock_of": {"shard": 0, "node": "node1"},
            "create_log": {"name": LOG},
            "settle": {"log": LOG, "to_ns": 0},
            "view": {"fold": fold},
            "read": {"log": LOG},
            "batches": {"log": LOG},
            "follow": {"log": LOG},
        }
        asked = {name: getattr(cluster, name) for name in verbs(Cluster)}
        found = [
            each for name, verb in asked.items() if name != "close" for each in complaints(verb, good.get(name, {}))
        ]
        found += complaints(cluster.view(fold).prune, {}) + complaints(cluster.view(fold).advance, {})
    assert found == [], "\n".join(found)


def test_wrong_type_is_a_bad_request_in_every_tool(site: Site) -> None:
    with closing(FenceGate()) as gate, site.open() as cluster, cluster.session("types") as session:
        value, election, paths = CachedValue(session, LOG, "v"), Election(session, "e"), PathLock(cluster)
        found = complaints(FenceGate, {}) + complaints(gate.highest, {}) + complaints(value.update, {})
        found += complaints(CachedValue, {"session": session, "log": LOG, "domain": "v"})
        found += complaints(PathLock, {"cluster": cluster}) + complaints(paths, {"write": ["/a"]})
        for tool in (Mutex(session, "m"), Semaphore(session, "s", 2), election):
            found += complaints(tool.acquire, {})
        lead, over_mount = election.campaign(), MountElection.on(cluster, "m").campaign()
        for told in (lead.act, lead.check, lead.on_lost, lead.resign, over_mount.act, over_mount.resign):
            found += complaints(told, {"do": int} if told.__name__ == "act" else {})
        lead.check()
        over_mount.check()
        over_mount.resign()
        value.set(b"1")
        value.close()
        for batch in cluster.batches(LOG, level="latest"):
            found += complaints(batch.head, {})
            with pytest.raises(BadRequest):
                batch.head(-1)
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("value", [None, 1.5, object()])
def test_wrong_type_in_a_fold_is_a_bad_request(place: int, value: object) -> None:
    parts: list[Any] = ["v", 1, (LOG,), b"", bytes, lambda state, _: state, bytes]
    parts[place] = value
    with pytest.raises(BadRequest):
        Fold(*parts)


# -- spans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "span"),
    [
        (0, 0),
        (2, 2 * SECOND),
        (0.25, 250 * MS),
        (1e-9, 1),
        (timedelta(milliseconds=1.5), 1_500_000),
        (timedelta(days=3, microseconds=1), 3 * DAY + 1000),
        (123456.789012345, 123_456_789_012_345),
    ],
)
def test_span_is_written_in_seconds_or_as_a_timedelta(written: float | timedelta, span: Span) -> None:
    assert span_of(written, "x") == span


# Nanoseconds in the place of seconds would be a wait for years: most are beyond what fits.
@pytest.mark.parametrize(
    "wrong",
    [-1, -0.001, timedelta(microseconds=-1), timedelta.max, float("nan"), float("inf"), 30 * SECOND, INSTANT_MAX, "1s"],
)
def test_what_is_no_span_is_refused_with_its_name(wrong: Any) -> None:  # noqa: ANN401
    with pytest.raises(BadRequest, match="wait_s="):
        span_of(wrong, "wait_s")


def test_term_that_is_granted_can_be_seen(site: Site) -> None:
    with site.open() as cluster, cluster.session() as session:
        longest = cluster.policy.lease_term_max_ns
        for asked, names in ((timedelta(minutes=1), "long"), (0.5, "short"), (None, "none")):
            (lease,) = session.acquire(names, term_s=asked)
            wanted = None if asked is None else span_of(asked, "asked")
            assert lease.term_ns == min(longest, wanted or longest)


def test_names_of_spans_say_their_unit() -> None:
    told = {f"{of.__name__}.{name}": each for of in (Session, Cluster) for name, each in verbs(of).items()}
    told["Lease.check"] = Lease.check
    named = [
        (verb, each.name, str(each.annotation).removesuffix(" | None"))
        for verb, function in told.items()
        for each in inspect.signature(function).parameters.values()
    ]
    spans = [each for each in named if each[2] in ("Seconds", "Span", "timedelta")]
    assert len(spans) > 6
    assert [each for each in spans if each[2] != "Seconds" or not each[1].removesuffix("_max").endswith("_s")] == []


# -- finding them ------------------------------------------------------------------------------------------------------


def test_package_shows_its_names_before_they_are_loaded() -> None:
    script = "import tenure; print(*dir(tenure))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert set(tenure.__all__) <= set(done.stdout.split())


def test_help_of_the_package_shows_its_names() -> None:
    shown = pydoc.render_doc(tenure, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert [name for name in tenure.__all__ if name not in shown] == []
    assert "Take leases on one or several domains" in shown


def of_one(session: Session, leases: Leases, others: AsyncLeases) -> None:
    """Be checked by mypy, with the rest of the tests."""
    assert_type(session.acquire("a", "b", mode={"a": "X", "b": Mode.S}), Leases)
    assert_type(leases[0], Lease)
    assert_type(others[0], Lease)
    assert_type(leases[:1], tuple[Lease, ...])


def test_type_checkers_know_that_one_of_several_leases_is_a_lease() -> None:
    assert all(issubclass(each, tuple) for each in (Leases, AsyncLeases))  # whose own types say so


# -- asyncio -----------------------------------------------------------------------------------------------------------


def test_asyncio_has_every_verb_of_a_session_with_the_same_parameters() -> None:
    own = verbs(AsyncSession)
    assert set(verbs(Session)) - set(own) == set()
    assert set(own) - set(verbs(Session)) == {"begin", "run", "take"}
    properties = [name for name, each in vars(Session).items() if isinstance(each, property)]
    assert [name for name in properties if not isinstance(vars(AsyncSession).get(name), property)] == []
    for name, verb in verbs(Session).items():
        if name != "acquire":  # hands on whatever it is given
            mine, its = inspect.signature(own[name]), inspect.signature(verb)
            assert mine.parameters == its.parameters, name
