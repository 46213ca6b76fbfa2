"""Leases by hand: taken, renewed, given back, revoked and watched from a shell."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import sys
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from appliance.cli.leases import changes
from appliance.formats.framing import pieces
from appliance.formats.lease import Mode, Phase
from appliance.formats.policy import check_policy
from appliance.formats.witness import Revoked, SignedWitness, open_block
from appliance.lease import wire
from appliance.lease.wire import LeaseView
from appliance.node.routes import ShardRoutes, ShardWay
from appliance.single_leases import ByHand
from tenure.__main__ import main
from tests.support.cluster import Site, fast_policy, sites, wait_until
from tests.support.shards import HOLDER
from timeagent.canonical import decode
from timeagent.clock import SystemClock
from timeagent.errors import LeaseLost, ShardUnavailable
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.cluster import Cluster
    from timeagent.units import Span

type Say = Callable[..., "Said"]


class Said:
    """What a command said."""

    def __init__(self, out: str, err: str) -> None:
        self.out, self.err = out, err

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> dict[str, Any]:
        (only,) = self.objects
        return only


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """One node; the longest term is that of the fast policy unless a test names another."""
    term = getattr(request, "param", None)
    if term is None:
        yield from sites(tmp_path)
        return
    fast = fast_policy(random.Random(str(tmp_path)).randbytes(16))
    made = Site(tmp_path, policy=check_policy(replace(fast, lease_term_max_ns=term, renew_period_ns=term // 3)))
    yield made
    made.close()


@pytest.fixture
def node(site: Site) -> Iterator[Cluster]:
    """What runs the shard meanwhile."""
    with site.open() as cluster:
        assert cluster.routes.host.try_host(0, cluster.map)
        yield cluster


@pytest.fixture
def say(site: Site, node: Cluster, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run a verb of ``tenure lease``, with nobody at a keyboard."""
    assert node.routes.host.hosted(0)

    def run(*words: str, status: int = 0) -> Said:
        monkeypatch.setattr("sys.stdin", io.StringIO())
        capfdbinary.readouterr()
        done = main(["lease", *words, *site.options()])
        out, err = capfdbinary.readouterr()
        assert done == status, (words, done, out, err)
        return Said(out.decode(), err.decode())

    return run


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_lease_taken_by_hand_outlives_its_command_and_is_renewed_and_given_back(say: Say) -> None:
    taken = say("acquire", "a", "--term", "1s", "--json").object
    shown = say("show", "a", "--json").object["lease"]
    assert (shown["correlation_id"], shown["process"]) == (taken["correlation_id"], 0)
    renewed = say("renew", "a", "--json").object
    assert renewed["fence"] == taken["fence"]
    assert renewed["expiry_ns"] > taken["expiry_ns"]
    assert say("relinquish", "a", "--lease", taken["correlation_id"], "--json").object["outcome"] == "relinquished"
    assert say("relinquish", "a", status=1).out == "a: there is no such lease (any more)\n"
    assert say("renew", "a", "--json", status=1).object["outcome"] == "unknown"


# Control characters are refused; those that turn the rest of a line around, or break it, are not.
def test_what_others_have_is_shown_as_text(say: Say) -> None:
    say("acquire", "a\u202eb", "--purpose", "c\u2028d")
    for verb in (("ls",), ("show", "a\u202eb")):
        assert "a\\u202eb  X" in say(*verb).out
        assert "(c\\u2028d)" in say(*verb).out


# The longest term of the fast policy is far below a minute; the words say so where nobody reads JSON.
def test_term_that_is_granted_for_less_than_was_asked_is_said(say: Say, node: Cluster) -> None:
    longest = node.policy.lease_term_max_ns
    for verb in (("acquire", "a"), ("renew", "a"), ("acquire", "b", "--session", "new"), ("renew", "b")):
        said = say(*verb, "--term", "60s", "--json")
        assert (said.object["term_asked_ns"], said.object["term_granted_ns"]) == (60 * SECOND, longest), verb
        assert "not for the 60 s that were asked for" in said.err.replace("1 min", "60 s")
    said = say("acquire", "c", "--term", "300ms", "--json")
    assert (said.object["term_asked_ns"], said.object["term_granted_ns"], said.err) == (300 * MS, 300 * MS, "")
    said = say("acquire", "d", "--json")
    assert (said.object["term_asked_ns"], said.object["term_granted_ns"], said.err) == (None, longest, "")


@pytest.mark.parametrize("site", [120 * SECOND], indirect=True)
def test_term_under_a_session_that_ends_before_is_granted_for_less(say: Say) -> None:
    session = say("acquire", "job/1", "--session", "new", "--term", "20s", "--json").object["session_id"]
    said = say("acquire", "job/2", "--session", session, "--term", "90s", "--json")
    assert said.object["term_asked_ns"] == 90 * SECOND
    assert said.object["term_granted_ns"] <= 20 * SECOND
    assert "[term-shortened]" in said.err


# Nobody has broken it yet, so that the shard would take both; for whoever held it, it was over.
@pytest.mark.parametrize("session", [(), ("--session", "new")])
def test_lease_that_was_over_is_not_renewed_and_giving_it_back_says_so(
    say: Say, node: Cluster, session: tuple[str, ...]
) -> None:
    taken = say("acquire", "a", "--term", "150ms", *session, "--json").object
    wait_until(SystemClock(), lambda: node.time.now().surely_past(taken["expiry_ns"]))
    shown = say("show", "a", "--json", status=1).object["lease"]
    assert (shown["correlation_id"], shown["expiry_ns"]) == (taken["correlation_id"], taken["expiry_ns"])
    assert "a  X expired " in say("show", "a", status=1).out
    assert say("renew", "a", "--json", status=1).object["outcome"] == "expired"
    assert say("show", "a", "--json", status=1).object["lease"]["expiry_ns"] == taken["expiry_ns"]
    assert say("relinquish", "a", status=1).out == f"a: expired at {taken['expiry']}\n"
    assert say("show", "a", "--json", status=1).object["lease"] is None


def test_term_that_is_over_before_it_is_of_use_is_refused_as_a_session_refuses_it(say: Say) -> None:
    for words in (("acquire", "a"), ("acquire", "a", "--session", "new")):
        for term in ("0s", "100ms"):
            assert "[term-too-short]" in say(*words, "--term", term, status=2).err
    say("acquire", "a", "--term", "1s")
    assert "[term-too-short]" in say("renew", "a", "--term", "0s", status=2).err


def test_lease_that_another_has_is_not_taken_by_hand(say: Say, node: Cluster) -> None:
    with node.session() as session, session.acquire("a"):
        assert "[busy]" in say("acquire", "a", status=75).err
        assert "[busy]" in say("acquire", "a", "--wait", "20ms", status=75).err


@pytest.mark.parametrize("under", [(), ("--session", "new")])
def test_lease_by_hand_is_kept_and_waits_until_no_earlier_holder_can_believe_in_its_lease(
    say: Say, node: Cluster, under: tuple[str, ...]
) -> None:
    with node.session() as session:
        (held,) = session.acquire("a")
        say("revoke", "a", "--yes", "a", "--reason", "somebody else is to have it")
        assert "[warming]" in say("acquire", "a", *under, status=75).err
        assert say("show", "a", "--json", status=1).object["lease"] is None, "given back"
        taken = say("acquire", "a", "--term", "400ms", "--wait", "60s", "--json", *under).object
        assert node.time.now().surely_past(held.expiry_ns)
        assert say("show", "a", "--json").object["lease"]["correlation_id"] == taken["correlation_id"]
        with pytest.raises(LeaseLost):
            held.check()


@pytest.mark.parametrize(
    ("problem", "status"),
    [(KeyboardInterrupt(), 130), (SystemExit(143), 143), (ShardUnavailable("silent", "no answer"), 69)],
)
def test_lease_by_hand_is_given_back_where_its_wait_is_cut_short(
    say: Say, node: Cluster, monkeypatch: pytest.MonkeyPatch, problem: BaseException, status: int
) -> None:
    def cut_short(*_: object) -> None:
        raise problem

    with node.session() as session:
        session.acquire("a")
        say("revoke", "a", "--yes", "a", "--reason", "somebody else is to have it")
        with monkeypatch.context() as patched:
            patched.setattr(ByHand, "renew", cut_short)
            try:
                say("acquire", "a", "--wait", "60s", status=status)
            except SystemExit as ended:
                assert ended.code == status  # noqa: PT017 - of one case only
        assert say("show", "a", "--json", status=1).object["lease"] is None, "given back"


def test_lease_of_a_process_is_neither_renewed_nor_given_back_by_hand(say: Say, node: Cluster) -> None:
    with node.session() as session, session.acquire("a") as leases:
        for verb in ("renew", "relinquish"):
            said = say(verb, "a", status=2)
            assert "[kept-by-process]" in said.err
            assert "lease revoke" in said.err
        leases[0].check()


def test_of_several_leases_one_has_to_be_named(say: Say) -> None:
    first, second = (say("acquire", "a", "--mode", "S", "--json").object for _ in range(2))
    assert first["correlation_id"] in say("relinquish", "a", status=2).err
    for each in (first, second):
        say("relinquish", "a", "--lease", each["correlation_id"])


@pytest.mark.parametrize("site", [120 * SECOND], indirect=True)  # a slow machine must not let it expire meanwhile
def test_leases_under_a_session_by_hand_are_kept_by_one_renewal_and_given_back_together(say: Say) -> None:
    first = say("acquire", "job/1", "--session", "new", "--term", "90s", "--json").object
    session = first["session_id"]
    assert len(bytes.fromhex(session)) == 16
    second = say("acquire", "job/2", "--session", session, "--json").object
    assert (second["session_id"], second["expiry_ns"]) == (session, first["expiry_ns"]), "it has no expiry of its own"
    renewed = say("renew", "job/2", "--json").object
    assert (renewed["session_id"], renewed["expiry_ns"] > first["expiry_ns"]) == (session, True)
    shown = {each["domain"]: each for each in say("ls", "--json").object["shards"][0]["leases"]}
    assert [shown[name]["expiry_ns"] for name in ("job/1", "job/2")] == [renewed["expiry_ns"]] * 2

    assert say("relinquish", "job/1", "--json").object["outcome"] == "relinquished"
    ended = say("relinquish", "job/2", "--whole-session", "--json").object
    assert ended == {"schema": "tenure.lease-ended", "version": 1, "domain": "job/2", "outcome": "dropped"}
    assert say("show", "job/2", "--json", status=1).object["lease"] is None
    assert "no session lease" in say("acquire", "job/3", "--session", session, status=2).err


# A page of one session's leases may be empty, and not the last: others' leases stand before them.
@pytest.mark.usefixtures("node")
def test_session_whose_leases_stand_behind_those_of_others_is_found(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.lease.request_handler._LOOKED_AT", 1)
    for domain in ("a", "b"):
        say("acquire", domain)
    session = say("acquire", "c", "--session", "new", "--json").object["session_id"]
    assert say("acquire", "d", "--session", session, "--json").object["session_id"] == session


# The answer to the grant was lost, and the same request met the end of its own lease.
def test_grant_that_has_ended_before_its_answer_came_is_said_so(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    call: Any = ShardWay.call
    ended: list[wire.Reply] = []

    def lost(self: ShardWay, requests: list[wire.Request], timeout_ns: Span) -> list[wire.Reply]:
        (reply,) = call(self, requests, timeout_ns)
        if isinstance(reply, wire.Granted) and not ended:
            lease = decode(SignedWitness, reply.signed).witness()
            ended.extend(call(self, [wire.Relinquish(bytes(16), "a", lease.correlation_id)], timeout_ns))
            raise ShardUnavailable("no-answer", "planted")
        return [reply]

    monkeypatch.setattr(ShardWay, "call", lost)
    said = say("acquire", "a", status=75)
    assert (said.out, "[outrun]" in said.err) == ("", True)
    assert isinstance(ended[0], wire.Over)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    "words", ["acquire a", "acquire a --session new", "renew a", "relinquish a", "revoke a --yes a --reason x"]
)
def test_shard_that_answers_something_else_is_said_so(say: Say, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    call = ShardWay.call

    def other(self: ShardWay, requests: list[wire.Request], timeout_ns: Span) -> list[wire.Reply]:
        if isinstance(requests[0], wire.Inspect):
            return call(self, requests, timeout_ns)
        return [wire.ClockTold(node="n")]

    if not words.startswith("acquire"):
        say("acquire", "a")
    monkeypatch.setattr(ShardWay, "call", other)
    said = say(*words.split(), status=69)
    assert (said.out, "the shard answered with a ClockTold [answer-damaged]" in said.err) == ("", True)


def test_term_of_centuries_is_the_longest_that_there_is(say: Say) -> None:
    for words in ("acquire a", "renew a", "acquire b --session new", "renew b"):
        assert "held" in say(*words.split(), "--term", "9000000000s").out


@pytest.mark.parametrize("site", [120 * SECOND], indirect=True)
def test_session_that_is_not_there_or_kept_by_a_process_takes_nothing_by_hand(say: Say, node: Cluster) -> None:
    for wrong in ("x", "00", "00" * 16):
        assert "no-session" in say("acquire", "job/1", "--session", wrong, status=2).err
    with node.session("a process", session_leases=True) as session, session.acquire("job/9"):
        view = say("show", "job/9", "--json").object["lease"]
        assert "no-session" in say("acquire", "job/1", "--session", view["session_id"], status=2).err
        assert "kept-by-process" in say("renew", "job/9", status=2).err
        assert "kept-by-process" in say("relinquish", "job/9", "--whole-session", status=2).err
    say("acquire", "alone")
    assert "under no session lease" in say("relinquish", "alone", "--whole-session", status=2).err
    say("relinquish", "alone")


def test_domains_are_held_under_session_leases_from_a_shell(say: Say) -> None:
    done = say("hold", "a", "b", "--session", "--seconds", "0", "--json")
    assert [each["domain"] for each in done.objects] == ["a", "b"]


def test_nothing_is_taken_by_hand_where_nobody_runs_the_shard(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lease", "acquire", "a", *site.options()]) == 69
    assert "node run" in capfd.readouterr().err


# -- revocation --------------------------------------------------------------------------------------------------------


def ledger(site: Site) -> list[Revoked]:
    found = []
    for path in sorted((site.root / "ledger").rglob("*.ledger")):
        for piece in pieces(path.read_bytes())[0]:
            found += [each for each in open_block(piece, "").decoded("") if isinstance(each, Revoked)]
    return found


def test_revoked_lease_is_lost_to_its_holder_and_the_ledger_says_why(say: Say, node: Cluster, site: Site) -> None:
    with node.session("month end") as session, session.acquire("a") as leases:
        said = say("revoke", "a", "--yes", "a", "--reason", "it hangs", "--json").object
        assert (said["outcome"], said["reason"]) == ("revoked", "it hangs")
        assert said["lease"]["fence"] == str(leases[0].fence)
        wait_until(SystemClock(), lambda: leases[0].ended is not None)
        with pytest.raises(LeaseLost):
            leases[0].check()
        assert leases[0].loss is not None
        assert str(leases[0].loss) == f"revoked by node1/{os.getpid()}: it hangs"
    wait_until(SystemClock(), lambda: bool(ledger(site)))
    (entry,) = ledger(site)
    assert (entry.domain, entry.by.node, entry.by.process, entry.by.purpose) == ("a", "node1", os.getpid(), "it hangs")


def test_successor_of_a_revoked_lease_writes_above_everything_its_holder_wrote(say: Say, node: Cluster) -> None:
    with node.session() as session, node.session() as other:
        leases = session.acquire("a")
        session.publish("log", [b"before"], under=leases)
        expiry = say("show", "a", "--json").object["lease"]["expiry_ns"]
        assert "still counts" in say("revoke", "a", "--yes", "a", "--reason", "r").out
        with other.acquire("a") as mine:
            assert mine[0].floor_ns >= expiry
            assert [each.payload for each in other.read("log", under=mine)] == [b"before"]
            other.publish("log", [b"after"], under=mine)
            assert other.read("log", under=mine)[-1].timestamp_ns > expiry


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "not-confirmed"),
        (("--yes", "a"), "not-confirmed"),
        (("--reason", "r"), "not-confirmed"),
        (("--yes", "b", "--reason", "r"), "not-confirmed"),
        (("--yes", "a", "--reason", " "), "no-reason"),
        (("--yes", "a", "--reason", "x" * 129), "bad-purpose"),
        (("--yes", "a", "--reason", "a\nb"), "bad-purpose"),
    ],
)
def test_revocation_that_is_not_confirmed_in_full_ends_nothing(
    say: Say, node: Cluster, words: tuple[str, ...], code: str
) -> None:
    with node.session() as session, session.acquire("a") as leases:
        assert f"[{code}]" in say("revoke", "a", *words, status=2).err
        session.renew_due()
        leases[0].check()


def test_name_and_reason_are_typed_at_a_terminal(
    node: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mine, theirs = pty.openpty()
    with node.session("month end") as session, session.acquire("a"), os.fdopen(theirs) as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        os.write(mine, b"a\nit hangs\n")
        assert main(["lease", "revoke", "a", *site.options()]) == 0
    os.close(mine)
    said = capfd.readouterr()
    assert "(month end)" in said.err
    assert "a: revoked" in said.out


def test_revoking_what_nobody_has_is_exit_code_1(say: Say) -> None:
    assert "no such lease" in say("revoke", "a", "--yes", "a", "--reason", "r", status=1).out


# -- watching ----------------------------------------------------------------------------------------------------------


def view(number: int = 1, **changed: Any) -> LeaseView:  # noqa: ANN401 - fields of the view
    fields: dict[str, Any] = {
        "domain": "a", "mode": Mode.X, "phase": Phase.HELD, "holder": HOLDER,
        "correlation_id": number.to_bytes(16, "big"), "fence": number, "granted_ns": 1, "expiry_ns": 2,
        "floor_ns": 0, "settle_to_ns": 0, "waiting": 0,
    }  # fmt: skip
    return LeaseView(**(fields | changed))


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        ([], [], []),
        ([], [view()], ["held"]),
        ([], [view(phase=Phase.TENTATIVE)], ["tentative"]),
        ([view(phase=Phase.TENTATIVE)], [view()], ["upgraded"]),
        ([view(mode=Mode.S)], [view()], ["upgraded"]),
        ([view()], [view(expiry_ns=3)], ["renewed"]),
        ([view()], [view(waiting=1)], ["waiting"]),
        ([view()], [view()], []),
        ([view()], [], ["over"]),
        ([view(1)], [view(2)], ["over", "held"]),
    ],
)
def test_what_happened_between_two_looks(before: list[LeaseView], after: list[LeaseView], seen: list[str]) -> None:
    assert [what for what, _ in changes(before, after)] == seen


def test_watching_streams_what_happens(say: Say, node: Cluster) -> None:
    lease = say("acquire", "a", "--json").object["correlation_id"]
    hand = ByHand(node, random.Random(1))

    def give_back() -> None:
        SystemClock().sleep(700 * MS)
        hand.relinquish(hand.leases("a")[0])

    ended = Thread(target=give_back)
    ended.start()
    seen = say("watch", "a", "--seconds", "2s", "--json").objects
    ended.join()
    assert [(each["schema"], each["what"], each["correlation_id"]) for each in seen] == [
        ("tenure.lease-change", "held", lease),
        ("tenure.lease-change", "over", lease),
    ]
    assert say("watch", "a", "--seconds", "0").out == "a: nobody has it\n"


def test_watching_says_that_a_lease_is_over_when_it_has_expired(say: Say) -> None:
    lease = say("acquire", "a", "--term", "1s", "--json").object["correlation_id"]
    seen = say("watch", "a", "--seconds", "2s", "--json").objects
    assert [(each["what"], each["correlation_id"]) for each in seen] == [("held", lease), ("over", lease)]
    assert seen[1]["seen_ns"] > seen[1]["expiry_ns"]
    assert say("watch", "a", "--seconds", "0").out == "a: nobody has it\n"
    assert say("show", "a", "--json", status=1).object["lease"]["correlation_id"] == lease


# Else the domain would be kept free for it while others wait.
def test_who_gave_up_waiting_has_no_place_any_more(say: Say, node: Cluster) -> None:
    say("acquire", "a")
    for wait in ("300ms", "700ms"):
        say("acquire", "a", "--wait", wait, status=75)
        assert [each.waiting for each in ByHand(node, random.Random(1)).leases("a")] == [0]


@pytest.mark.usefixtures("node")
def test_shard_whose_pages_do_not_go_on_is_asked_for_a_session_lease_no_more(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: Any = None
    ahead = iter(["a", "b", "b"])

    def asked(*_: object) -> wire.LeasePage:
        return wire.LeasePage(numbers=numbers, leases=(), more=True, after_domain=next(ahead))

    monkeypatch.setattr(ByHand, "_asked", asked)
    said = say("acquire", "a", "--session", bytes(16).hex(), status=69)
    assert "answered with a LeasePage" in said.err
    assert list(ahead) == []


@pytest.mark.usefixtures("node")
def test_shard_whose_queue_is_full_is_not_asked_without_pause(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    say("acquire", "a")
    asked, calls = ByHand._asked, []

    def counted(self: ByHand, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401 - whatever it takes
        calls.append(arguments)
        return asked(self, *arguments, **more)

    monkeypatch.setattr(ByHand, "_asked", counted)
    monkeypatch.setattr("appliance.lease.waiting.QUEUE_MAX", 0)
    assert say("acquire", "a", "--wait", "700ms", status=75).out == ""
    assert 1 < len(calls) < 8


@pytest.mark.usefixtures("node")
def test_watching_is_left_by_an_interrupt_as_every_watch_is(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    inspect, looks = ShardRoutes.inspect, []

    def interrupt(self: ShardRoutes, shard: int, domain: str | None = None) -> object:
        looks.append(domain)
        if len(looks) > 1:
            raise KeyboardInterrupt
        return inspect(self, shard, domain)

    monkeypatch.setattr(ShardRoutes, "inspect", interrupt)
    said = say("watch", "a")
    assert (said.out, said.err) == ("a: nobody has it\n", "")


def test_watching_where_no_shard_answers_is_exit_code_69(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lease", "watch", "a", "--seconds", "0", *site.options()]) == 69
    assert "asking again" in capfd.readouterr().err
