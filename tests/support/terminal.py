"""A real terminal for tests: tmux, its keys and what it shows."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 120


class Terminal:
    """One tmux server with one window, 100 by 30."""

    def __init__(self, directory: Path) -> None:
        self._base = ["tmux", "-S", str(directory / "tmux.socket"), "-f", "/dev/null"]
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        shell = ["env", "PS1=ready> ", "sh"]
        subprocess.run(
            [*self._base, "-u", "new-session", "-d", "-x", "100", "-y", "30", *shell], check=True, env=environment
        )

    def _tmux(self, *words: str) -> str:
        return subprocess.run([*self._base, *words], check=True, capture_output=True, text=True).stdout

    def seen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def alternate(self) -> bool:
        """Whether a program has the screen to itself."""
        return self._tmux("display-message", "-p", "#{alternate_on}").strip() == "1"

    def type(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def run(self, command: str) -> None:
        self._tmux("send-keys", "-l", command)
        self.type("Enter")

    def until(self, done: Callable[[str], bool], what: str) -> str:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if done(text := self.seen()):
                return text
            time.sleep(0.05)
        raise AssertionError(f"{what} was not seen in:\n{self.seen()}")

    def until_words(self, words: str) -> str:
        return self.until(lambda text: words in text, repr(words))

    def kill(self) -> None:
        subprocess.run([*self._base, "kill-server"], check=False, capture_output=True)
