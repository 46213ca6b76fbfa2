"""An audit by the native core says of every fault, to the byte, what one by the Python beside it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bench.corpus.build import build_bank
from tests.fault_injection.crafted import CRAFTED
from tests.fault_injection.plants import all_plants
from tests.support.by_rules import by_columns_first
from tests.support.shares import sampled
from timeagent import core

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STORIES = [*CRAFTED, *(story for stories in all_plants().values() for story in stories)]


def by_both(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes]:
    native = core.chosen("")
    if native is None:
        pytest.skip("the native core is not built here")
    monkeypatch.setattr(core, "native", None)
    said = by_columns_first(root)
    monkeypatch.setattr(core, "native", native)
    return said, by_columns_first(root)


@pytest.mark.parametrize("story", sampled(STORIES, 5), ids=lambda story: story.__name__)
def test_both_say_the_same_of_every_fault(
    tmp_path: Path, story: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    story(tmp_path)
    one, other = by_both(tmp_path, monkeypatch)
    assert one == other


def test_both_say_the_same_of_a_tree_of_the_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_bank(tmp_path / "tree", 200, message_bytes=10)
    one, other = by_both(tmp_path / "tree", monkeypatch)
    assert one == other
