"""The page: what is written is read, and whatever else is in the file is refused by name."""

import errno
import mmap
import os
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.timeagent import encode_page, page_fields
from timeagent.agent.page import PAGE_BYTES, Page, PageReader, PageWriter, decode_page
from timeagent.errors import BadTime, Environment
from timeagent.signedtime import ClockStatus
from timeagent.units import MS, TimeInterval

EVEN = (2).to_bytes(8, "little")
PAGE = Page(
    EVEN,
    bytes(range(16)),
    as_of_boot_ns=123_456_789,
    as_of_raw_ns=123_000_000,
    ahead=TimeInterval(1_795_212_607_000_000_000, 1_795_212_607_010_000_000),
    drift_ppm=200,
    status=ClockStatus.SYNCHRONIZED,
    clock_epoch=2**62,
    stale_ns=250 * MS,
    silent_until_ns=0,
    token=bytes(range(128)),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "time.page"


def code_of(path: Path) -> str:
    with pytest.raises(BadTime) as refused:
        PageReader(path).page()
    return refused.value.code


def test_page_reads_back_as_it_was_written(path: Path) -> None:
    writer = PageWriter(path)
    writer.put(page_fields(PAGE))
    assert path.stat().st_size == PAGE_BYTES
    assert PageReader(path).page() == PAGE
    silent = replace(PAGE, token=b"", status=ClockStatus.DISRUPTED, silent_until_ns=5, ahead=TimeInterval(-2, -1))
    writer.put(page_fields(silent))
    assert PageReader(path).page() == replace(silent, generation=(4).to_bytes(8, "little"))


def test_reader_sees_each_next_page_and_decodes_it_once(path: Path) -> None:
    writer = PageWriter(path)
    writer.put(page_fields(PAGE))
    reader = PageReader(path)
    first = reader.page()
    assert reader.page() is first
    writer.put(page_fields(replace(PAGE, as_of_boot_ns=7)))
    assert reader.page().as_of_boot_ns == 7


def test_every_flipped_bit_is_found(path: Path) -> None:
    good = encode_page(PAGE)
    assert decode_page(good) == PAGE
    for bit in range(8 * PAGE_BYTES):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        try:
            assert decode_page(bytes(data)) is None, bit
        except BadTime as refused:
            assert refused.code == "page-version"  # noqa: PT017 - the other good answer
            assert bit // 8 < 16


# Half of one page and half of the next: at whatever byte the copy was torn.
def test_torn_copy_is_found_wherever_it_is_torn() -> None:
    one = encode_page(PAGE)
    two = encode_page(replace(PAGE, generation=(4).to_bytes(8, "little"), as_of_boot_ns=2**40, token=bytes(128)))
    for cut in range(17, PAGE_BYTES):
        for torn in (one[:cut] + two[cut:], two[:cut] + one[cut:]):
            assert torn in (one, two) or decode_page(torn) is None


def test_page_that_was_never_written_is_not_believed(path: Path) -> None:
    PageWriter(path)
    assert code_of(path) == "page-torn"


def test_agent_that_died_while_it_wrote_is_found_out_and_the_next_one_goes_on(path: Path) -> None:
    PageWriter(path).put(page_fields(PAGE))
    data = bytearray(path.read_bytes())
    data[16:24] = (3).to_bytes(8, "little")
    path.write_bytes(data)
    assert code_of(path) == "page-torn"
    PageWriter(path).put(page_fields(PAGE))
    assert int.from_bytes(PageReader(path).page().generation, "little") == 6


def test_writer_goes_on_over_whatever_is_there(path: Path) -> None:
    path.write_bytes(b"\xff" * PAGE_BYTES)
    writer = PageWriter(path)
    for _ in range(3):
        writer.put(page_fields(PAGE))
        assert PageReader(path).page().token == PAGE.token


def test_short_file_is_refused(path: Path) -> None:
    path.write_bytes(bytes(PAGE_BYTES - 1))
    assert code_of(path) == "page-short"
    with pytest.raises(BadTime) as refused:
        decode_page(bytes(10))
    assert refused.value.code == "page-short"
    PageWriter(path).put(page_fields(PAGE))  # grown in place
    PageReader(path).page()


@pytest.mark.parametrize(("at", "value"), [(0, b"X"), (8, b"\2"), (13, b"\0")])
def test_page_of_another_layout_is_refused(path: Path, at: int, value: bytes) -> None:
    PageWriter(path).put(page_fields(PAGE))
    data = bytearray(path.read_bytes())
    data[at : at + 1] = value
    path.write_bytes(data)
    assert code_of(path) == "page-version"


def test_page_that_is_not_there_is_refused(path: Path) -> None:
    assert code_of(path) == "page-absent"
    with pytest.raises(Environment) as refused:
        PageWriter(path.parent / "nowhere" / "time.page")
    assert refused.value.code == "page-unwritable"


# Nobody would find it any more: whoever supervises the agent starts one that makes the file again.
def test_writer_whose_file_was_removed_ends_by_name(path: Path) -> None:
    writer = PageWriter(path)

    def publish_for_five_seconds() -> None:
        for _ in range(100):
            writer.put(page_fields(PAGE))

    publish_for_five_seconds()
    path.unlink()
    with pytest.raises(Environment) as ended:
        publish_for_five_seconds()
    assert ended.value.code == "runtime-gone"
    assert str(path) in ended.value.message


def test_file_that_was_made_anew_is_found(path: Path) -> None:
    PageWriter(path).put(page_fields(PAGE))
    reader = PageReader(path)
    reader.page()
    path.unlink()
    PageWriter(path).put(page_fields(replace(PAGE, as_of_boot_ns=9)))
    reader.reopen()
    assert reader.page().as_of_boot_ns == 9


# One writer in a thread, as fast as it can; what is read is always one of its pages, whole.
def test_reader_never_sees_half_a_page(path: Path) -> None:
    writer = PageWriter(path)
    writer.put(page_fields(PAGE))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            writer.put(
                page_fields(replace(PAGE, as_of_boot_ns=number, as_of_raw_ns=number, token=number.to_bytes(8) * 16))
            )

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    reader = PageReader(path)
    for _ in range(3000):
        try:
            page = reader.page()
        except BadTime as refused:
            if refused.code != "page-torn":
                raise
            time.sleep(0.001)  # the writer's thread was stopped in the middle of the page, and has not gone on yet
            continue
        if page.as_of_boot_ns != PAGE.as_of_boot_ns:
            assert page.as_of_raw_ns == page.as_of_boot_ns
            assert page.token == page.as_of_boot_ns.to_bytes(8) * 16
    stop.set()
    thread.join(10)


# A reader must not be able to spoil the page for the others.
def test_readers_map_is_read_only(path: Path) -> None:
    PageWriter(path).put(page_fields(PAGE))
    mapped: mmap.mmap = PageReader(path).mapped
    with pytest.raises(TypeError):
        mapped[0] = 1


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOMEM])
def test_look_that_fails_says_nothing_of_a_removal(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    writer = PageWriter(path)

    def failed(*_: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as fault:
        fault.setattr(os, "stat", failed)
        for _ in range(100):
            writer.put(page_fields(PAGE))
