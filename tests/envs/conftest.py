"""Fixtures of the tests of envs."""

from collections.abc import Iterator

import pytest
from vector_toys import Gates


@pytest.fixture
def gates() -> Iterator[Gates]:
    made = Gates()
    yield made
    for gate in made.gates:
        gate.set()
