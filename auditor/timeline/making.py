"""The database of a tree, made by a program of its own: who shows it needs neither the memory nor the time of that.

    python -m auditor.timeline.making TREE FILE

Says how far it is on stdout, a line of JSON each; when nobody reads that any more, it ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from timeagent import errors
from timeagent.errors import TenureError

UNREAD: Final = 141
UNCAUGHT: Final = 1
"""How Python ends with an exception: a bug."""
LINES_MAX: Final = 20
"""So much is told of what a program said that failed otherwise than by an error of ours."""


def make_index(tree: Path, file: Path, progress: Callable[[int, int, int, str], None]) -> None:
    """Audit a tree into a file, with its timeline, or bring that up to date. Blocks; ``progress`` is that of ``audit``.

    Raises TenureError with what the audit raised.
    """
    command = [sys.executable, "-m", __name__, str(tree.absolute()), str(file.absolute())]
    problem: dict[str, str] | None = None
    words: deque[str] = deque(maxlen=LINES_MAX)
    with subprocess.Popen(  # noqa: S603 - words of ours
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        for line in program.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                words.append(line)
                continue
            if isinstance(said, dict):
                problem = said
            else:
                progress(*said)
    if problem is not None:
        kind: type[TenureError] = getattr(errors, problem.pop("kind"))
        raise kind(**problem)
    if program.returncode:
        what = f"the index of {tree} was not made: {''.join(words).strip() or program.returncode}"
        if program.returncode == UNCAUGHT:
            raise AssertionError(what)
        raise TenureError("index-failed", what, hint="see what tenure audit says of it")


def main(words: list[str]) -> int:
    from auditor.audit import Options, audit  # noqa: PLC0415 - who shows it needs none of this
    from auditor.evidence.opening import open_tree  # noqa: PLC0415

    tree, file = words

    def tell(*said: object) -> None:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    try:
        options = Options(jobs=0, index_file=Path(file), timeline=True)
        audit(open_tree(Path(tree)), options=options, progress=tell)
    except BrokenPipeError:
        return UNREAD
    except TenureError as problem:
        said = {"code": problem.code, "message": problem.message, "hint": problem.hint}
        sys.stdout.write(json.dumps({"kind": type(problem).__name__} | said) + "\n")
        return problem.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
