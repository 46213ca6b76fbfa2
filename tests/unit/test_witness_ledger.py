from threading import Thread

import pytest

from appliance.lease.witness_ledger import LAST_TRIES, LedgerSpool
from tests.support.shards import ListLedger
from timeagent.errors import Environment


def test_blocks_reach_the_sink_in_order_and_several_at_once() -> None:
    sink = ListLedger()
    spool = LedgerSpool(sink)
    for block in (b"a", b"b", b"c"):
        spool.append(block)
    assert spool.drain(0)
    assert sink.data == [b"abc"]


def test_block_that_does_not_fit_is_refused_and_makes_nobody_wait() -> None:
    sink = ListLedger()
    spool = LedgerSpool(sink, bytes_max=3)
    spool.append(b"abc")
    with pytest.raises(Environment, match="wait for the mount"):
        spool.append(b"d")
    spool.drain(0)
    spool.append(b"d")
    spool.drain(0)
    assert sink.data == [b"abc", b"d"]


def test_what_a_sink_refuses_is_kept_and_goes_first() -> None:
    sink = ListLedger()
    spool = LedgerSpool(sink)
    sink.broken = True
    spool.append(b"a")
    spool.append(b"b")
    assert spool.drain(0)
    spool.append(b"c")
    assert spool.drain(0)
    sink.broken = False
    assert spool.drain(0)
    assert (sink.data, spool.appends_failed, spool.blocks_lost) == ([b"abc"], 2, 0)


def test_what_is_kept_takes_room() -> None:
    sink = ListLedger()
    spool = LedgerSpool(sink, bytes_max=3)
    sink.broken = True
    spool.append(b"ab")
    spool.drain(0)
    with pytest.raises(Environment, match="wait for the mount"):
        spool.append(b"cd")
    sink.broken = False
    spool.drain(0)
    spool.append(b"cd")


def test_the_end_does_not_wait_for_a_sink_that_goes_on_refusing() -> None:
    sink = ListLedger()
    spool = LedgerSpool(sink)
    sink.broken = True
    spool.append(b"a")
    spool.append(b"b")
    thread = Thread(target=spool.run, daemon=True)
    thread.start()
    spool.close()
    thread.join(20)
    assert not thread.is_alive()
    assert (sink.data, spool.blocks_lost) == ([], 2)
    assert spool.appends_failed >= LAST_TRIES


def test_large_queue_goes_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.lease.witness_ledger.APPEND_BYTES_MAX", 4)
    sink = ListLedger()
    spool = LedgerSpool(sink)
    for block in (b"aaa", b"bb", b"cc", b"dddddd"):
        spool.append(block)
    spool.close()
    while spool.drain(0):
        pass
    assert sink.data == [b"aaa", b"bbcc", b"dddddd"]


def test_closing_writes_what_is_queued_and_ends_the_thread() -> None:
    sink = ListLedger()
    spool = LedgerSpool(sink)
    thread = Thread(target=spool.run)
    thread.start()
    for number in range(100):
        spool.append(b"%03d" % number)
    spool.close()
    thread.join(20)
    assert not thread.is_alive()
    assert b"".join(sink.data) == b"".join(b"%03d" % number for number in range(100))
    with pytest.raises(Environment):
        spool.append(b"late")
