"""What all tests of the screens share: the style sheets are parsed once, not once for each of hundreds of programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from textual.css.stylesheet import Stylesheet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.css.model import RuleSet


@pytest.fixture(scope="session", autouse=True)
def _parsed_once() -> Iterator[None]:
    """A sheet's text, its place and the variables that it uses say all: rules are read only."""
    parsed: dict[object, list[RuleSet]] = {}
    parse = Stylesheet._parse_rules

    def once(self: Stylesheet, *given: object, **named: object) -> list[RuleSet]:
        key = (given, *sorted(named.items()), *sorted(self._variables.items()))
        if key not in parsed:
            parsed[key] = parse(self, *given, **named)  # type: ignore[arg-type]
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", once)
        yield
