"""The rogue parts of the demo do what they say: else no fault is planted, and its audit has nothing to find."""

from pathlib import Path

import pytest

import appliance.lease.request_handler
from appliance.demo.rogue import EARLY_DOMAIN, give_away
from appliance.lease.wire import Denied, Granted
from tests.support.shards import HOLDER, RIVAL, World, acquire, one


def test_rogue_shard_gives_one_held_domain_away_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appliance.lease.request_handler, "decide", vars(appliance.lease.request_handler)["decide"])
    give_away()
    world = World(tmp_path)
    shard = world.started()
    for domain, answer in ((EARLY_DOMAIN, Granted), ("demo/other", Denied)):
        assert isinstance(one(shard, acquire(world, domain, holder=HOLDER)), Granted)
        assert isinstance(one(shard, acquire(world, domain, holder=RIVAL)), answer)
    world.close()
