"""The page as docs/protocol/time.md lays it out: each field where the table has it, and a reader in C that agrees."""

import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.timeagent import encode_page, page_fields
from tests.unit.test_tokenfile import PAGE
from timeagent.agent.page import GOOD_CRC, PAGE_NAME, AgentTime, PageWriter
from timeagent.clock import SystemClock, boot_id
from timeagent.keys import Signer
from timeagent.signedtime import ClockStatus, TimeFlags, sign_time
from timeagent.units import DAY, MS, TimeInterval

KEY = Signer(b"the time key of the page reader.")
ROW = re.compile(r"^\| (\d+) \| (\d+) \| ([\w ]*)\|", re.MULTILINE)


@pytest.fixture(scope="module")
def section(repository: Path) -> str:
    text = (repository / "docs/protocol/time.md").read_text(encoding="utf-8")
    return text.split("### The page\n")[1].split("### The doors\n")[0]


def test_fields_are_where_the_table_has_them(section: str) -> None:
    rows = [(int(at), int(size), name.strip()) for at, size, name in ROW.findall(section)]
    assert [at for at, _, _ in rows] == [sum(size for _, size, _ in rows[:index]) for index in range(len(rows))]
    assert sum(size for _, size, _ in rows) == 256
    data = encode_page(replace(PAGE, silent_until_ns=77, ahead=TimeInterval(-2, 9)))
    found = {name: data[at : at + size] for at, size, name in rows}
    little = {name: int.from_bytes(value, "little", signed="ahead" in name) for name, value in found.items()}
    assert found["magic"] == b"TNSTPAGE"
    assert (little["version"], little["size"]) == (1, 256)
    assert found["boot"] == PAGE.boot
    assert (little["as_of_boot_ns"], little["as_of_raw_ns"]) == (PAGE.as_of_boot_ns, PAGE.as_of_raw_ns)
    assert (little["earliest_ahead_ns"], little["latest_ahead_ns"]) == (-2, 9)
    assert (little["drift_ppm"], little["status"]) == (PAGE.drift_ppm, PAGE.status)
    assert (little["clock epoch"], little["stale_ns"], little["silent_until_ns"]) == (2**62, 250 * MS, 77)
    assert found["token"] == PAGE.token
    assert little["crc"] == zlib.crc32(data[:252])
    assert f"`{GOOD_CRC:08x}`" in section


# The reader in C and the reader in Python look one after the other; what they say must overlap in order.
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed: the page reader was NOT compiled")
def test_reader_in_c_compiles_and_agrees(section: str, tmp_path: Path) -> None:
    source = section.split("```c\n")[1].split("```", maxsplit=1)[0]
    (tmp_path / "reader.c").write_text(source)
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", "reader", "reader.c"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    clock, boot = SystemClock(), boot_id()
    writer = PageWriter(tmp_path / PAGE_NAME)
    ahead = TimeInterval.around(clock.realtime_ns() - clock.boot_ns(), 5 * MS)

    def write(status: ClockStatus = ClockStatus.SYNCHRONIZED, *, age: int = 0, drift_ppm: int = 200) -> None:
        token = sign_time(
            KEY, ahead, status=status, flags=TimeFlags.NONE, staleness_ns=1, sequence=1, clock_epoch=1
        ).encode()
        writer.put(
            page_fields(
                replace(
                    PAGE,
                    boot=boot,
                    as_of_boot_ns=clock.boot_ns() - age,
                    as_of_raw_ns=clock.raw_ns() - age,
                    ahead=ahead,
                    drift_ppm=drift_ppm,
                    status=status,
                    stale_ns=DAY,  # this test is about the bytes, and may be slow
                    token=token,
                )
            )
        )

    def read() -> tuple[int, list[int]]:
        done = subprocess.run([tmp_path / "reader", tmp_path / PAGE_NAME], capture_output=True, text=True, check=False)
        return done.returncode, [int(word) for word in done.stdout.split()]

    times = AgentTime(tmp_path, clock, key_id=KEY.id, radius_ns_max=DAY)
    for drift_ppm in (200, 0):
        write(drift_ppm=drift_ppm)
        before = times.now()
        status, said = read()
        after = times.now()
        assert status == 0
        middle = sum(said) // 2
        assert before.midpoint - MS <= middle <= after.midpoint + MS
        # A pause between a reader's two clocks looks like a slew, and widens what it says: no upper bound here.
        assert (said[1] - said[0]) // 2 >= 5 * MS
    write(ClockStatus.DISRUPTED)
    assert read() == (75, [])
    write(age=2 * DAY)
    assert read() == (75, [])
    (tmp_path / PAGE_NAME).write_bytes(bytes(256))
    assert read() == (75, [])
