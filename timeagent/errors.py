"""Errors, grouped by what the caller should do; each group has an exit code (docs/exit-codes.md).

Expected results are values, never exceptions: a denied lease, a write that is not committed. A bug is an
AssertionError. Everything here carries a stable ``code``, a message that names the value and the rule (not part of
the interface), and a ``hint``: the way out.
"""

from __future__ import annotations

from types import UnionType

TYPE_CHECKING = False  # as typing has it: `tenure run` loads this module, and has no time for that one
if TYPE_CHECKING:
    from typing import ClassVar

# Exit codes of what is no error of a class below (docs/exit-codes.md).
SOFTWARE = 70
INPUT_OUTPUT = 74
INTERRUPTED = 130
BROKEN_PIPE = 141


class TenureError(Exception):
    """What the caller must do something about."""

    exit_status: ClassVar[int] = 74

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        """Keep the parts apart, so that the command line can print them on lines of their own."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Go from one process to another with all parts, and whatever else was put on it."""
        return type(self).__new__, (type(self), self.message), self.__dict__

    def __str__(self) -> str:
        """Return the message and the way out in one line."""
        return f"{self.message} [{self.code}]" + (f"; {self.hint}" if self.hint else "")


class TryAgain(TenureError):
    """The same call may succeed later."""

    exit_status = 75


class ShardUnavailable(TryAgain):
    """No shard answers for this domain now."""

    exit_status = 69


class LeaseLost(TenureError):
    """Stop writing; acquire again."""

    exit_status = 76


class UnknownOutcome(TenureError):
    """Whether it happened cannot be told now. Only convenience wrappers raise it; the protocol returns Unknown."""

    exit_status = 4


class BadRequest(TenureError):
    """Fix the call."""

    exit_status = 2


class BadConfiguration(BadRequest):
    """Fix the policy or the settings."""

    exit_status = 78


class BadTime(TenureError):
    """Time cannot be trusted now."""

    exit_status = 75


class Damaged(TenureError):
    """Bytes break the format. ``message`` says which file, where, what was expected and what was found."""

    exit_status = 65


class Environment(TenureError):
    """The mount or the operating system is not what is needed."""

    exit_status = 74


class NotTrusted(Environment):
    """A key, a cluster or a user is not the one that was expected."""

    exit_status = 77


def check_type(kind: type | UnionType, **values: object) -> None:
    """Raise BadRequest, by name, for a value that is of another type. True is no number."""
    for name, value in values.items():
        if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, int | None)):
            wanted = kind.__name__ if isinstance(kind, type) else str(kind)
            what = f"{name} is a {type(value).__name__}, {repr(value)[:80]}"
            raise BadRequest("bad-type", what, hint=f"give it a {wanted}")


def check_callable(**values: object) -> None:
    """Raise BadRequest, by name, for what cannot be called."""
    for name, value in values.items():
        if not callable(value):
            what = f"{name} is a {type(value).__name__}, {repr(value)[:80]}"
            raise BadRequest("bad-type", what, hint="give it a function")
