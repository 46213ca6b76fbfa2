"""The demo: what counts as a takeover, and that its rogue parts do what they say, or its audit had nothing to find."""

import os
import random
from pathlib import Path

import pytest

import appliance.lease.request_handler
from appliance.demo import director as director_module
from appliance.demo.director import Director
from appliance.demo.machines import DemoPlace, demo_policy, set_up_place
from appliance.demo.rogue import EARLY_DOMAIN, give_away
from appliance.lease.wire import Denied, Granted
from tests.support.shards import HOLDER, RIVAL, World, acquire, one
from timeagent.clock import SystemClock
from timeagent.errors import Environment

KILLED_NS = 1_000
HELD = "account/06"


def acknowledged(boot_ns: int) -> dict[str, object]:
    return {
        "event": "acknowledged",
        "id": f"at-{boot_ns}",
        "boot_ns": boot_ns,
        "source": HELD,
        "target": "account/01",
    }


@pytest.mark.parametrize(
    ("by", "boot_ns", "takeovers"),
    [
        pytest.param("node1", KILLED_NS + 40, {HELD: 40}, id="another node, after the cut"),
        pytest.param("node1", KILLED_NS - 1, {}, id="another node, before the cut, told after it"),
        pytest.param("node3", KILLED_NS + 40, {}, id="the node itself, back again"),
    ],
)
def test_a_takeover_is_written_by_another_node_after_the_cut(
    tmp_path: Path, by: str, boot_ns: int, takeovers: dict[str, int]
) -> None:
    place = DemoPlace(tmp_path, tmp_path, demo_policy(b"c" * 16), ())
    director = Director(place, SystemClock(), random.Random(1), print)
    director.course.victim, director.course.held_by_victim = "node3", [HELD]
    director._killed_ns = KILLED_NS
    director._events.put((by, acknowledged(boot_ns)))
    director._drain()
    assert director.course.acknowledged == [f"at-{boot_ns}"]
    assert director.course.takeover_ns == takeovers


# Everybody may know its name, as from the documents: whoever owns it could put other keys and settings there.
@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can make what belongs to another user")
def test_empty_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(Environment, match="belongs to user 65534") as refused:
        set_up_place(tmp_path, 2, SystemClock().realtime_ns(), random.Random(1))
    assert refused.value.code == "demo-not-ours"
    assert list(tmp_path.iterdir()) == []


def test_command_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(director_module, "AUDIT_SECONDS", 0.01)
    with pytest.raises(Environment, match="tenure audit") as refused:
        director_module.audit(DemoPlace(tmp_path, tmp_path, demo_policy(b"c" * 16), ()))
    assert refused.value.code == "demo-stuck"


def test_rogue_shard_gives_one_held_domain_away_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appliance.lease.request_handler, "decide", vars(appliance.lease.request_handler)["decide"])
    give_away()
    world = World(tmp_path)
    shard = world.started()
    for domain, answer in ((EARLY_DOMAIN, Granted), ("demo/other", Denied)):
        assert isinstance(one(shard, acquire(world, domain, holder=HOLDER)), Granted)
        assert isinstance(one(shard, acquire(world, domain, holder=RIVAL)), answer)
    world.close()
