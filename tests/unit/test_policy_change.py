"""A policy that changes while processes run: the record, who takes it up, and that nothing written before is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.admin.trust import next_policy, publish_policy
from appliance.bag.writing import Committed
from appliance.cli.trust import _NUMBERS
from appliance.formats.framing import Kind, open_frame, pieces
from appliance.formats.policy import Policy
from appliance.node.record_watch import PolicyWatch
from auditor.audit import audit
from auditor.evidence.tree import Tree
from tenure.__main__ import main
from tests.support.cluster import Site, fast_policy, sites
from timeagent.errors import BadConfiguration, BadTime, TryAgain
from timeagent.keys import Signer, save_private_key
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.session.held import Lease

LONGER = {"lease_term_max_ns": 4_800 * MS, "renew_period_ns": 1_600 * MS}
SHORTER = {"lease_term_max_ns": 2_200 * MS, "renew_period_ns": 700 * MS, "r1_tolerance_ns": 600 * MS}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1", "node2")


def change(site: Site, **numbers: int) -> int:
    policy = next_policy(site.registers.newest_policy(), numbers)
    publish_policy(site.registers, site.root_key, policy)
    return policy.number


def granted_ns(lease: Lease) -> int:
    """For how long it was granted, at least: by the least that its shard's clock allows."""
    time = lease.signed.batch_head().signed_time()
    return lease.own_expiry_ns - time.midpoint_ns - time.radius_ns


def policies_named(site: Site) -> list[int]:
    """Which policy each frame of the log names, in the order of their files' names."""
    files = sorted((site.root / "logs" / "log").glob("*-*-*/*/*/*.msg"))
    found = [piece for path in files for piece in pieces(path.read_bytes())[0]]
    return [open_frame(piece, "f").head.policy_number for piece in found]


# The record.


def test_next_policy_has_the_next_number_and_keeps_the_rest() -> None:
    policy = fast_policy()
    longer = next_policy(policy, LONGER)
    assert longer == msgspec.structs.replace(policy, number=2, **LONGER)
    assert next_policy(longer, LONGER) is longer


def test_policy_that_breaks_a_relation_is_not_made() -> None:
    with pytest.raises(BadConfiguration, match="renew_period_ns"):
        next_policy(fast_policy(), {"lease_term_max_ns": SECOND})


def test_one_of_two_who_change_it_at_once_is_told(site: Site) -> None:
    before = site.registers.newest_policy()
    publish_policy(site.registers, site.root_key, next_policy(before, LONGER))
    with pytest.raises(TryAgain) as caught:
        publish_policy(site.registers, site.root_key, next_policy(before, SHORTER))
    assert caught.value.code == "policy-changed"
    assert site.registers.newest_policy().lease_term_max_ns == LONGER["lease_term_max_ns"]


def test_every_number_of_a_policy_can_be_set_and_is_taken_up_or_said_not_to_be() -> None:
    spans = set(Policy.__struct_fields__) - {"number", "cluster_id"}
    assert set(_NUMBERS) == spans
    at_birth = {"rack_ns"}
    asked_anew = {"seal_delay_ns"}
    nobodys = {"batch_ns_max"}
    live = set(PolicyWatch.__annotations__) | {"r1_tolerance_ns", "assumed_radius_ns"}
    assert live | at_birth | asked_anew | nobodys == spans


# Taking it up.


def test_newer_policies_are_taken_up_and_bounds_for_others_never_narrow(site: Site) -> None:
    watched, told = PolicyWatch(site.registers), []
    watched.on_change(lambda policy: told.append(policy.number))
    first = watched.granted_ns_max, watched.ahead_ns_max, watched.r1_tolerance_ns
    change(site, **LONGER)
    change(site, **SHORTER)
    watched.refresh()
    assert told == [2, 3]
    assert watched.newest.number == 3
    assert (watched.lease_term_max_ns, watched.renew_period_ns) == (2_200 * MS, 700 * MS)
    assert watched.granted_ns_max == first[0] + 2_400 * MS
    assert watched.ahead_ns_max == first[1] + 2_400 * MS
    assert watched.r1_tolerance_ns == first[2]
    again = PolicyWatch(site.registers)
    assert (again.granted_ns_max, again.ahead_ns_max) == (watched.granted_ns_max, watched.ahead_ns_max)


def test_fault_of_one_who_is_told_keeps_it_from_nobody_else(site: Site) -> None:
    watched, told = PolicyWatch(site.registers), []

    def failing(policy: object) -> None:
        raise RuntimeError("planted")

    watched.on_change(failing)
    watched.on_change(lambda policy: told.append(policy.number))
    change(site, **LONGER)
    watched.refresh()
    change(site, **SHORTER)
    watched.refresh()
    assert (told, watched.failures) == ([2, 3], 2)


def test_policy_that_cannot_be_read_leaves_what_is_known(site: Site) -> None:
    watched = PolicyWatch(site.registers)
    (site.root / "policy" / "00000002").write_bytes(b"nothing of ours")
    watched.refresh()
    assert (watched.newest.number, watched.failures) == (1, 1)
    (site.root / "policy" / "00000002").unlink()
    change(site, **LONGER)
    watched.refresh()
    assert watched.newest.number == 2


def test_radius_of_a_running_process_is_limited_anew(site: Site) -> None:
    with site.open() as cluster:
        cluster.time.now()
        change(site, radius_ns_max=1 * MS, assumed_radius_ns=0)
        cluster.policy.refresh()
        with pytest.raises(BadTime) as caught:
            cluster.time.now()
        assert caught.value.code == "radius-too-wide"


# A cluster that runs: the shard of node1 serves sessions of both nodes.


@pytest.mark.parametrize("first", ["shard", "holder"])
def test_what_was_granted_before_a_lowering_is_written_under_and_read_for_ever(site: Site, first: str) -> None:
    with site.daemon("node1") as served, site.daemon("node2") as holding:
        served.routes.own_shards()
        session = holding.session()
        with session.acquire("d") as leases:
            assert session.publish("log", [b"before"], under=leases) == Committed()
            number = change(site, **SHORTER)
            (served if first == "shard" else holding).policy.refresh()
            assert session.publish("log", [b"between"], under=leases) == Committed()
            (holding if first == "shard" else served).policy.refresh()
            assert session.publish("log", [b"after"], under=leases) == Committed()
        with session.acquire("d") as leases:
            assert granted_ns(leases[0]) <= SHORTER["lease_term_max_ns"]
            assert session.publish("log", [b"new"], under=leases) == Committed()
        holding.settle("log", holding.time.now().latest)
        assert [m.payload for m in holding.read("log")] == [b"before", b"between", b"after", b"new"]
        assert policies_named(site)[0] == 1
        assert policies_named(site)[-1] == number
    assert not audit(Tree(site.root)).findings


def test_longer_term_is_granted_to_a_session_that_runs(site: Site) -> None:
    with site.daemon("node1") as served, site.daemon("node2") as holding:
        served.routes.own_shards()
        session = holding.session()
        change(site, **LONGER)
        served.policy.refresh()
        with session.acquire("d") as leases:
            assert granted_ns(leases[0]) <= 2_400 * MS  # no more than was asked for
        holding.policy.refresh()
        with session.acquire("d") as leases:
            assert granted_ns(leases[0]) > 2_400 * MS
            assert session.publish("log", [b"m"], under=leases) == Committed()
        holding.settle("log", holding.time.now().latest)
        assert [m.payload for m in holding.read("log")] == [b"m"]
    assert not audit(Tree(site.root)).findings


# The command.


def test_policy_is_shown_and_set(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    key = ["--root-key", str(site.root_key_file)]
    wanted = ["--lease-term-max", "4.8s", "--renew-period", "1600ms"]

    def say(*words: str) -> tuple[int, str, str]:
        status = main(["policy", *words, *site.options()])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    status, out, err = say("set", *wanted, "--dry-run")
    assert (status, out) == (0, "Policy 2 would be: lease-term-max 2.4 s -> 4.8 s, renew-period 800 ms -> 1.6 s.\n")
    assert "blocked for" in err
    assert site.registers.newest_number(Kind.POLICY) == 1
    assert say("set", *wanted)[0] == 2
    status, out, _ = say("set", *wanted, *key, "--json")
    assert json.loads(out)["changed"]["lease_term_max_ns"] == {"before_ns": 2_400 * MS, "after_ns": 4_800 * MS}
    assert say("set", *wanted, *key)[1] == "Policy 2 says so already: nothing is changed.\n"
    assert "  lease-term-max        4.8 s  longest term of a lease\n" in say("show")[1]
    shown = json.loads(say("show", "--number", "1", "--json")[1])
    assert (shown["number"], shown["newest"], shown["lease_term_max_ns"]) == (1, 2, 2_400 * MS)
    assert say("show", "--number", "3")[0] == 2
    assert say("set", *key)[0] == 2
    status, _, err = say("set", "--holder-margin", "1ms", *key)
    assert status == 78
    assert "--holder-margin (1 ms)" in err
    assert "--radius-max (" in err
    assert "_ns" not in err
    assert say("set", "--lease-term-max", "soon", *key)[0] == 2
    other = site.root.parent / "other.key"
    save_private_key(other, Signer(bytes(32)))
    for more in ([], ["--dry-run"]):
        assert say("set", "--batch-max", "200ms", "--root-key", str(other), *more)[0] == 77
        assert say("set", "--batch-max", "200ms", "--root-key", str(other.with_name("no.key")), *more)[0] == 78
    assert say("set", "--batch-max", "200ms", *key, "--dry-run")[0] == 0
    assert site.registers.newest_number(Kind.POLICY) == 2
