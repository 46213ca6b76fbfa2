"""What a key costs in a real terminal: processor time of the whole program, what Textual itself takes beside it.

    python -m tests.bench.bench_tui_keys [LEASES]

The program runs behind a pseudo terminal of 120 by 36 and writes to it as to any; each key is followed by quiet, and
counted until then. Two small programs of the same library say what the least is: a key that does nothing, a page of
lines that are drawn already, another screen with nothing on it but such a page.
"""

from __future__ import annotations

import fcntl
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, ClassVar

from tests.bench.tui_bars import WAIT_SECONDS, keys_over, told

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH, HEIGHT = 120, 36
ROUNDS = 12
NOTHING = "\x1b[24~"  # F12
KEYS = (
    ("nothing bound", NOTHING),
    ("overview", "1"),
    ("leases", "2"),
    ("bags", "3"),
    ("time", "4"),
    ("findings", "5"),
    ("replay", "6"),
    ("leases", "2"),
    ("leases: a row down", "j"),
    ("leases: a page down", "\x1b[6~"),
    ("leases: last row", "G"),
    ("leases: first row", "g"),
    ("leases: other way round", "S"),
    ("leases: from last to first", "g"),
)
FLOOR = (("nothing bound", NOTHING), ("another page", "a"), ("back", "b"), ("another screen", "1"), ("back", "2"))


class Watched:
    """A program behind a pseudo terminal."""

    def __init__(self, *words: str) -> None:
        self._near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        command = [sys.executable, "-m", "tests.bench.bench_tui_keys", *words]
        self._program = subprocess.Popen(
            command, stdin=far, stdout=far, stderr=far, env=environment, start_new_session=True
        )
        os.close(far)
        self.written = 0
        self._last = time.monotonic()
        Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self._near, 65536)
            except OSError:
                return
            self.written += len(data)
            self._last = time.monotonic()

    def quiet(self, seconds: float = 0.12) -> None:
        """Wait until it has written nothing for so long. Raises TimeoutError where it never rests."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() - self._last < seconds:
            if time.monotonic() > end:
                raise TimeoutError("the program writes without end")
            time.sleep(0.01)

    def spent_ms(self) -> float:
        """Return processor time so far, of all its threads."""
        tasks = Path(f"/proc/{self._program.pid}/task")
        return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks.iterdir()) / 1e6

    def cost(self, keys: str) -> tuple[float, int]:
        """Press keys; return (ms of processor time, bytes written) until it is quiet."""
        before, written = self.spent_ms(), self.written
        self._last = time.monotonic()
        os.write(self._near, keys.encode())
        self.quiet()
        return self.spent_ms() - before, self.written - written

    def end(self) -> None:
        os.write(self._near, b"q")
        self._program.wait(30)


def measured(keys: tuple[tuple[str, str], ...], *words: str) -> dict[str, tuple[float, float]]:
    """Return, by what the key does, the median of its milliseconds and of the bytes that it brought."""
    program = Watched(*words)
    program.quiet(2.0)
    for _, key in keys * 2:
        program.cost(key)
    idle = statistics.median(program.cost("")[0] for _ in range(ROUNDS))
    found: dict[str, list[tuple[float, int]]] = {}
    for _ in range(ROUNDS):
        for name, key in keys:
            found.setdefault(name, []).append(program.cost(key))
    program.end()
    return {
        name: (statistics.median(ms for ms, _ in each) - idle, statistics.median(size for _, size in each))
        for name, each in found.items()
    }


def report(leases: str) -> int:
    """Print what each key takes; return 1 if ours is over its bar, or one wrote nothing: then nothing was measured."""
    broken = []
    for title, found in (
        ("the library alone", measured(FLOOR, "--floor")),
        (f"{leases} leases", measured(KEYS, "--open", leases)),
    ):
        print(f"{title}: ms of processor time, bytes to the terminal")
        for name, (ms, size) in found.items():
            print(f"  {name:28}{ms:8.1f}{size:10,.0f}")
            if not size and name != "nothing bound":
                broken.append(f"{title}, {name}: the key changed nothing, and its cost says nothing")
    return told(broken + keys_over(title, {name: ms for name, (ms, _) in found.items()}))


def open_screens(leases: int) -> None:
    """Show the screens on so many leases, until they are left."""
    from dataclasses import replace

    from tests.support.screens import HandFeed, RecordedSource, busy_state, lease
    from tui.app import TopApp
    from tui.model.state import LeaseRows

    rows = LeaseRows(lease(f"account/{n:07d}", n % 10_000_000_000) for n in range(leases))
    TopApp(HandFeed(RecordedSource(replace(busy_state(), leases=rows)))).run()


def open_floor() -> None:
    """Show two pages of drawn lines, and two screens with one each, until they are left."""
    from rich.segment import Segment
    from rich.style import Style
    from textual.app import App
    from textual.screen import Screen
    from textual.strip import Strip
    from textual.widget import Widget

    styles = [Style.parse(text) for text in ("bold red", "green", "dim", "yellow", "white")]

    class Page(Widget):
        number = 0
        lines: dict[tuple[int, int], Strip] = {}  # noqa: RUF012 - shared by all

        def render_line(self, y: int) -> Strip:
            place = self.number, y
            if place not in self.lines:
                parts = [Segment(f"{self.number} {y} {n}".ljust(9), styles[n % 5]) for n in range(self.size.width // 9)]
                self.lines[place] = Strip(parts).adjust_cell_length(self.size.width)
            return self.lines[place]

    class One(Screen[None]):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def compose(self) -> Iterator[Page]:
            page = Page()
            page.number = self.number
            yield page

    class Floor(App[None]):
        BINDINGS: ClassVar = [
            ("a", "page(1)", ""),
            ("b", "page(0)", ""),
            ("1", "go('one')", ""),
            ("2", "go('two')", ""),
            ("q", "quit", ""),
        ]

        def on_mount(self) -> None:
            self.install_screen(One(2), "one")
            self.install_screen(One(0), "two")
            self.push_screen("two")

        def action_page(self, number: int) -> None:
            page = self.screen.query_one(Page)
            page.number = number
            page.refresh()

        def action_go(self, name: str) -> None:
            self.switch_screen(name)

    Floor().run()


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--floor"]:
        open_floor()
    elif words[:1] == ["--open"]:
        open_screens(int(words[1]))
    else:
        return report(*(words or ["10000"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
