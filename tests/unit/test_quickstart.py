"""The lines of the README that set up a cluster are found, and typed as a person would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import quickstart
from tests.support.quickstart import Line

SHOWN = "SHA256:" + "A" * 43


@pytest.fixture
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text(encoding="utf-8")


def section(*blocks: str) -> str:
    return f"# x\n\n{quickstart.SECTION}\n\n" + "\n\n".join(f"```sh\n{block}\n```" for block in blocks) + "\n\n## y\n"


class Screens:
    """Machines that remember what was typed. ``join`` says its fingerprint, and ends once it was approved."""

    def __init__(self, code: str = "0") -> None:
        self.typed: list[tuple[str, str]] = []
        self._code = code

    def run(self, machine: str, text: str) -> str:
        if text.startswith("cat /tmp/quickstart.screen"):
            return f"  tenure trust approve {machine} --fingerprint {SHOWN} --root-key FILE\n"
        if text.startswith("cat /tmp/quickstart.code"):
            return self._code
        self.typed.append((machine, text))
        return "done"


def test_readme_sets_up_three_machines(readme: str) -> None:
    lines = quickstart.lines(readme)
    assert len(quickstart.machines(readme)) == 3
    for machine in quickstart.machines(readme):
        texts = [line.text for line in lines if line.machine == machine]
        assert any("apt install" in text for text in texts)
        assert any(f"--node {machine}" in text for text in texts)
        assert any("tenure status" in text for text in texts)
    joined = [line.machine for line in lines if " tenure join " in line.text]
    approved = [found[1] for line in lines if (found := re.search(r"trust approve (\S+)", line.text))]
    assert joined == approved != []


def test_readme_is_followed_to_its_end(readme: str) -> None:
    screens = Screens()
    done = list(quickstart.follow(quickstart.lines(readme), screens.run, lambda: None))
    assert [line for line, _ in done] == quickstart.lines(readme)
    assert sum(SHOWN in text for _, text in screens.typed) == 2
    assert not any("SHA256:..." in text for _, text in screens.typed)


def test_lines_belong_to_the_machines_that_a_block_names() -> None:
    text = section("# on a, b and c\none  # why\n", "# on b\ntwo \\\n  three\n# not this\n")
    assert quickstart.lines(text) == [Line(m, "one  # why") for m in "abc"] + [Line("b", "two    three")]


@pytest.mark.parametrize("text", ["# nothing\n", section(), section("# on a\nx", "y")])
def test_section_that_cannot_be_followed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="A cluster of three"):
        quickstart.lines(text)


def test_join_that_fails_or_that_nobody_lets_in_is_an_error() -> None:
    join, approve = Line("b", "sudo tenure join /r"), Line("a", "tenure trust approve b --fingerprint SHA256:...")
    with pytest.raises(RuntimeError, match="ended with 75"):
        list(quickstart.follow([join, approve], Screens("75").run, lambda: None))
    with pytest.raises(RuntimeError, match="does not end"):
        list(quickstart.follow([join, approve], Screens("").run, lambda: None, tries=3))
    with pytest.raises(RuntimeError, match="nobody let in b"):
        list(quickstart.follow([join], Screens().run, lambda: None))
