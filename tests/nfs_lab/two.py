"""Two clients of one server, on which the rules of the mount are played: the kernel's, and the simulated ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

OWNER = 1000


class Two(Protocol):
    """Clients ``a`` and ``b``. Paths are of this round alone; the directory ``d`` is there. Spans in seconds."""

    def call(self, who: str, verb: str, path: str, *rest: object, uid: int = OWNER) -> object:
        """Let a client do a verb of the storage port; return what JSON can say of it, or the code of the refusal."""
        ...

    def together(self, *bodies: Callable[[], None]) -> None:
        """Do these at once; return when all have ended."""
        ...

    def now(self) -> float:
        """Return a time that only runs on."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def cut(self, who: str, seconds: float) -> None:
        """Cut a client off from the server for so long, from now on; return at once."""
        ...

    def healed(self) -> bool:
        """Whether the newest cut is over."""
        ...

    def restart_server(self) -> None:
        """Let the server lose its power and come back; return when it is gone."""
        ...

    def back(self) -> bool:
        """Whether it has been switched on again."""
        ...

    def delegate(self) -> None:
        """Let the server give read delegations from now on, in this round, where the version has them."""
        ...

    def chmod(self, path: str, *, writable: bool) -> None:
        """Let ``b`` take the write permission of something away, or give it back."""
        ...

    def hold(self, path: str, uid: int) -> None:
        """Let ``a`` open a file to append to it, and keep it open."""
        ...

    def write_held(self, path: str, text: str, uid: int) -> str:
        """Let it write, flush and close that: ``lands``, or the code of the refusal."""
        ...

    def killed(self, verb: str, path: str, *rest: object, cut: float = 0) -> None:
        """Let a process of ``a`` begin a verb and be killed in the midst; return when what it sent had time to arrive.

        ``cut``: it is cut off when it begins, for so long.
        """
        ...

    def lose_reply(self, path: str, text: str) -> tuple[object, bool]:
        """Let ``a`` publish; the link's reply is lost. Return what it says, and whether the repeat was told EEXIST."""
        ...

    def clock_difference(self) -> float:
        """Set the clock of ``a`` an hour ahead of the server's; return the server's, as ``a`` asks it, less its own."""
        ...
