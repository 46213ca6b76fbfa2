"""The Unix socket at which a server listens."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from timeagent.errors import Environment

if TYPE_CHECKING:
    from pathlib import Path


def _identity(path: Path) -> tuple[int, int]:
    """Return what tells one file from another under the same name."""
    status = path.stat()
    return status.st_dev, status.st_ino


class UnixListener:
    """A listening socket, and its file."""

    def __init__(self, path: Path, group: int | None) -> None:
        """Listen. A socket that an earlier run left is removed. ``group``: may connect too. Raises Environment."""
        self._path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            self.socket.bind(str(path))
            path.chmod(0o600)
            if group is not None:
                os.chown(path, -1, group)
                path.chmod(0o660)
            self.socket.listen(128)
            self._bound = _identity(path)
        except OSError as problem:
            self.socket.close()
            raise Environment(
                "no-socket", f"cannot listen at {path}: {problem}", hint="use a short path on tmpfs that is writable"
            ) from None

    def unlink(self) -> None:
        """Remove the file, unless another server has bound its own under the same name meanwhile."""
        with contextlib.suppress(OSError):
            if _identity(self._path) == self._bound:
                self._path.unlink()

    def close(self) -> None:
        """Listen no more."""
        self.socket.close()
