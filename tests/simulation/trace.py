"""What happened in a run, line by line, and what its operations saw: for who replays a seed.

Answers stand beside the lines, not in them: the digest of a run is that of its lines. Where no trace is kept nothing of
this is in the way: a mount is wrapped only where there is one.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from timeagent.errors import TenureError
from timeagent.units import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tests.simulation.mount import SimulatedMount
    from tests.simulation.objects import SimulatedObjects

NAMES_MAX = 3
"""So many names of a directory are said, and how many more there are."""


class Trace(list[str]):
    """Lines, and the answer to the operation that a line is the last of."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[int, str] = {}

    def answered(self, who: str, text: str) -> None:
        """Say what the operation saw that was noted last."""
        assert f" {who:22} " in self[-1], f"{who} did not do what was noted last: {self[-1]}"
        self.answers[len(self) - 1] = text

    def told(self) -> Iterator[str]:
        """Yield every line, with its answer."""
        for number, line in enumerate(self):
            answer = self.answers.get(number)
            yield line if answer is None else f"{line} -> {answer}"


def _names(found: Collection[str] | None) -> str:
    if found is None:
        return "no directory"
    shown = ", ".join(sorted(found)[:NAMES_MAX]) or "nothing"
    return shown if len(found) <= NAMES_MAX else f"{shown} and {len(found) - NAMES_MAX} more"


def _bytes(data: bytes | None) -> str:
    return "not there" if data is None else f"{len(data)} bytes, {crc32(data):08x}"


SHORT: dict[str, Callable[[Any], str]] = {
    "ensure_directory": lambda _: "done",
    "look": _names,
    "list_afresh": _names,
    "read": _bytes,
    "size_of": lambda size: "not there" if size is None else f"{size} bytes",
    "read_from": _bytes,
    "publish": lambda published: published.value,
    "publish_stream": lambda published: published.value,
    "ensure_marker": lambda there: "there" if there else "no directory",
    "append": lambda size: f"{size} bytes now",
    "unlink": lambda _: "done",
    "remove_directory": lambda gone: "gone" if gone else "not empty",
    "server_clock": lambda instant: rfc3339(instant)[11:-4],
}
"""How the answer of each verb of a mount is said; ``read_each`` says those of ``read``."""


class Told:
    """A mount whose answers stand in the trace."""

    def __init__(self, mount: SimulatedMount | SimulatedObjects) -> None:
        self._mount = mount
        self._scheduler = mount.scheduler

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a mount has
        what = getattr(self._mount, name)
        if name == "read_each":
            return lambda directory, names: (self.read(f"{directory}/{each}") for each in names)
        if name not in SHORT:
            return what

        @wraps(what)
        def verb(*arguments: Any) -> Any:  # noqa: ANN401
            steps = self._scheduler.steps
            try:
                found = what(*arguments)
            except TenureError as problem:
                self._say(problem.code, steps)
                raise
            self._say(SHORT[name](found), steps)
            return found

        return verb

    def _say(self, text: str, steps: int) -> None:
        """Say what was seen, unless no step was taken for it since there were so many: it has no line."""
        actor, trace = self._scheduler.current, self._scheduler.trace
        if actor is not None and trace is not None and self._scheduler.steps > steps:
            trace.answered(actor.name, text)


def told[M: SimulatedMount | SimulatedObjects](mount: M) -> M:
    """Return a mount that says in the trace what it answers, if there is one; else the mount itself."""
    return mount if mount.scheduler.trace is None else cast("M", Told(mount))
