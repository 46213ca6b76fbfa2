"""What the pages of recipes show is run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.documents import blocks, run_program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import Site

SAID = {
    "README.md": ("deployed by True\nread\nwritten, with one of four licences\n", "one of four\n"),
    "cron.md": ("did True\n",),
    "election.md": (
        "the leader does a\nthe leader does b\n",
        "received from the leader of epoch 7\nreceived from its successor\nrefused: fence-passed\n",
    ),
    "queue.md": ("did a.jpg\ndid b.jpg\n",),
}
RECIPE_LINES_MAX = 30


@pytest.mark.parametrize("page", SAID)
def test_programs_of_a_page_say_what_they_should(page: str, repository: Path, site: Site, tmp_path: Path) -> None:
    programs = blocks((repository / "docs/recipes" / page).read_text(encoding="utf-8"), "python")
    assert len(programs) == len(SAID[page])
    for program, said in zip(programs, SAID[page], strict=True):
        place = "/srv/tenure" if "Cluster" in program else None
        assert run_program(program, place, site, tmp_path) == said


@pytest.mark.parametrize("page", ["queue.md", "cron.md"])
def test_recipe_is_short(page: str, repository: Path) -> None:
    (program,) = blocks((repository / "docs/recipes" / page).read_text(encoding="utf-8"), "python")
    (recipe,) = re.findall(r"^(?:class|def) .*?(?=^\S)", program, re.DOTALL | re.MULTILINE)
    assert len([line for line in recipe.splitlines() if line.strip()]) <= RECIPE_LINES_MAX
