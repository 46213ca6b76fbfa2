from threading import Thread

import pytest

from appliance.lease.spool import LedgerSpool
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


def test_sink_that_fails_loses_blocks_and_is_counted() -> None:
    sink = ListLedger()
    spool = LedgerSpool(sink)
    sink.broken = True
    spool.append(b"a")
    assert spool.drain(0)
    sink.broken = False
    spool.append(b"b")
    spool.drain(0)
    assert (sink.data, spool.appends_failed) == ([b"b"], 1)


def test_large_queue_goes_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.lease.spool.APPEND_BYTES_MAX", 4)
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
