"""Tests of many cases alike: one share of the cases is part of `make test`, all of them are `make verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet

FULL = 100
"""The examples of a property that states no number, in the profile of `make verify`."""


def examples(full: int) -> settings:
    """Try a property with so many examples in `make verify`, and with as large a part of them as others have else."""
    return settings(max_examples=max(5, full * settings().max_examples // FULL))


def sampled[T](cases: Iterable[T], one_in: int) -> list[T | ParameterSet]:
    """Return cases for ``parametrize``: one in so many for `make test`, the others marked."""
    return [
        case if number % one_in == 0 else pytest.param(case, marks=pytest.mark.verify)
        for number, case in enumerate(cases)
    ]


def shares(count: int) -> list[int | ParameterSet]:
    """Return the numbers of so many shares, for ``parametrize``: the first for `make test`, the others marked."""
    return [0, *(pytest.param(number, marks=pytest.mark.verify) for number in range(1, count))]
