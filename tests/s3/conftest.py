from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.s3.servers import NotInstalledError, Store, moto


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """A good store, which this process and those that it starts use."""
    try:
        with moto() as serving:
            os.environ.update(serving.environment)
            yield serving
    except NotInstalledError as why:
        pytest.skip(str(why))


@pytest.fixture
def root(store: Store, request: pytest.FixtureRequest) -> str:
    """The address of an empty root."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"s3://bags/{name}"
