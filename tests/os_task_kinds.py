"""Each kind of sandbox by name, for tests that load the OS task."""

from collections.abc import Iterator

import pytest
from os_boxes import engine, open_backend  # noqa: F401  (`engine` is a fixture that open_backend asks for)


@pytest.fixture(scope="session", params=["oci", "docker"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """`oci` and `docker`, where they work; for docker, DOCKER_HOST names the engine meanwhile."""
    open_backend(request.param, request).close()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "docker":
            patch.setenv("DOCKER_HOST", request.getfixturevalue("engine"))
        yield request.param
