"""What goes in through the command line comes back to the byte: of either kind, before and after packing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.formats.birth import BagKind
from tests.support.cluster import Site
from tests.support.round_trip import LOG, RoundTrip

if TYPE_CHECKING:
    from pathlib import Path

MANY = 20_000


@pytest.mark.verify
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", list(BagKind))
def test_many_messages_come_back_to_the_byte_before_and_after_packing(
    site: Site, tmp_path: Path, kind: BagKind
) -> None:
    RoundTrip(site, tmp_path / "trip", kind, MANY).run()


def test_one_altered_byte_is_noticed(site: Site, tmp_path: Path) -> None:
    trip = RoundTrip(site, tmp_path / "trip", BagKind.LOG, 50)
    trip.say("publish", "publish", LOG, str(trip.sent), "--lease", "a")
    trip.sent.write_bytes(trip.sent.read_bytes()[:-2] + b"?\n")
    with pytest.raises(AssertionError, match="is not what was sent"):
        trip.read_back("read latest", "--level", "latest")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", list(BagKind))
def test_a_million_messages_come_back_to_the_byte_before_and_after_packing(
    site: Site, tmp_path: Path, kind: BagKind
) -> None:
    RoundTrip(site, tmp_path / "trip", kind, 1_000_000).run()
