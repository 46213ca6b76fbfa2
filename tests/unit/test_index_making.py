"""The program that makes an index for the screens: how its end is told where it was started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from auditor.explain.archive import make_index
from tests.fault_injection.fixtures import small_tree
from timeagent.errors import Damaged, TenureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the program do something else when it opens the tree."""

    def plant(body: str) -> None:
        script = (
            f"import os\nfrom auditor.evidence import opening\ndef broken(_):\n    {body}\nopening.open_tree = broken\n"
        )
        (tmp_path / "sitecustomize.py").write_text(script)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return plant


def make(tmp_path: Path) -> None:
    make_index(tmp_path / "tree", tmp_path / "index", lambda *_: None)


def test_bug_in_it_is_a_bug_here_with_its_traceback(tmp_path: Path, planted: Callable[[str], None]) -> None:
    small_tree(tmp_path / "tree")
    planted("1 // 0")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        make(tmp_path)


def test_its_end_by_a_signal_is_no_bug(tmp_path: Path, planted: Callable[[str], None]) -> None:
    small_tree(tmp_path / "tree")
    planted("os.kill(os.getpid(), 9)")
    with pytest.raises(TenureError) as raised:
        make(tmp_path)
    assert raised.value.code == "index-failed"


def test_what_it_refuses_is_refused_here(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(Damaged) as raised:
        make(tmp_path)
    assert raised.value.code == "not-a-tree"
    assert raised.value.hint


# The copy that one looks at is often the directory that one is in.
def test_files_in_the_working_directory_are_no_modules_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tree(tmp_path / "tree")
    (tmp_path / "tree/msgspec.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path / "tree")
    make(tmp_path)
    assert (tmp_path / "index").is_file()
