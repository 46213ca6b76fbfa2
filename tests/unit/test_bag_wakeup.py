"""A wake-up makes the next look come sooner, on local file systems only; without one, time alone does."""

import logging
from pathlib import Path
from threading import Thread

import pytest
from watchdog.observers.api import EventQueue, ObservedWatch
from watchdog.observers.inotify import InotifyEmitter

from appliance.bag.wakeup import LocalWait
from appliance.doctor.file_system import is_local
from timeagent.clock import SystemClock
from timeagent.units import MS, SECOND

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /dev/shm rw,nosuid shared:2 - tmpfs tmpfs rw
40 22 0:44 / /srv rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2
41 40 8:2 / /srv/disk\\040two rw - xfs /dev/sdb1 rw
42 22 0:45 / /home rw - fuse.sshfs host:/ rw
43 42 0:46 / /home rw - btrfs /dev/sdc1 rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/var/bags", True),
        ("/dev/shm/bags", True),
        ("/srv/bags", False),
        ("/srv", False),
        ("/srvbags", True),
        ("/srv/disk two/bags", True),
        ("/home/bags", True),  # the later of two mounts covers the earlier
    ],
)
def test_mount_that_holds_a_path_decides(path: str, *, local: bool) -> None:
    assert is_local(Path(path), MOUNTS) is local


# A root may be named by a link on the local disk.
def test_link_is_where_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/srv/bags")
    assert is_local(tmp_path, MOUNTS)
    assert not is_local(tmp_path / "link", MOUNTS)
    assert not is_local(tmp_path / "link" / "logs", MOUNTS)


def test_path_on_no_known_mount_is_not_local() -> None:
    assert not is_local(Path("/x"), "")
    assert not is_local(Path("/x"), "1 1 0:1 / / rw - unheardof none rw")


# Far below the span: only an event can have ended the wait, and a bound ends the test if none comes.
@pytest.mark.parametrize("name", ["lock", "bag", "seal"])
def test_what_appears_near_the_horizon_ends_the_wait(tmp_path: Path, name: str) -> None:
    rack = tmp_path / "rack"
    (rack / "open").mkdir(parents=True)
    clock = SystemClock()

    def appear() -> None:
        while not over:
            clock.sleep(20 * MS)
            if name == "bag":
                (rack / f"bag{clock.boot_ns()}").mkdir()
            else:
                (rack / "open" / name).unlink(missing_ok=True)
                (rack / "open" / name).touch()

    over: list[bool] = []
    with LocalWait(tmp_path, lambda _: "rack") as wait:
        wait(0, 0)
        helper = Thread(target=appear, daemon=True)
        begin = clock.boot_ns()
        helper.start()
        wait(100 * SECOND, 0)
        over.append(True)
        helper.join()
    assert clock.boot_ns() - begin < 100 * SECOND


def test_rack_that_is_not_there_yet_is_waited_for_by_time(tmp_path: Path) -> None:
    racks = iter(["nowhere", "rack", "rack", "other"])
    (tmp_path / "rack").mkdir()
    (tmp_path / "other").mkdir()
    with LocalWait(tmp_path, lambda _: next(racks)) as wait:
        for _ in range(4):
            wait(MS, 0)


def test_event_that_overtakes_the_end_of_its_watch_is_not_told_to_stderr(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emitter = InotifyEmitter(EventQueue(), ObservedWatch(str(tmp_path), recursive=True))
    emitter.queue_events(0)
    assert not caplog.records
    logging.getLogger("watchdog.observers.inotify").error("what else it has to say")
    assert [record.message for record in caplog.records] == ["what else it has to say"]
