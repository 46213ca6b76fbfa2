"""The fixture ``tenure_cluster`` for pytest: ``pytest_plugins = ["tenure.pytest_plugin"]`` in conftest.py."""

from collections.abc import Iterator

import pytest

from tenure.testing import SteppedCluster


@pytest.fixture
def tenure_cluster() -> Iterator[SteppedCluster]:
    """A cluster in this process, with a clock that the test moves."""
    with SteppedCluster() as cluster:
        yield cluster
