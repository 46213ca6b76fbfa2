"""What every test may ask for."""

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run and no limit on seconds: a failure is about the code, never about the machine.
# More, and other ones each time: make test ARGS=--hypothesis-profile=explore
settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=2_000, deadline=None, print_blob=True)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]
