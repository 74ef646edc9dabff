"""Servers for the tests of this folder: one private MariaDB for the whole run, and the same one by its address."""

import importlib.util
from collections.abc import Iterator

import pytest
from conftest import missing

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.tasks.db.backend import Backend, SqliteBackend
from agentbench_fc.tasks.db.mysql import MysqlBackend
from agentbench_fc.tasks.db.private import PrivateServer, find_server
from agentbench_fc.tasks.db.server import Existing

DEADLINE_S = 1.0


def need_server() -> None:
    """Skips where there is no MariaDB to start, or no driver."""
    try:
        find_server()
    except InfrastructureError as error:
        missing(str(error))
    if importlib.util.find_spec("pymysql") is None:
        missing("PyMySQL is not installed")


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MysqlBackend]:
    need_server()
    backend = MysqlBackend(PrivateServer(), deadline_s=DEADLINE_S)
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def dsn(mariadb: MysqlBackend) -> str:
    address = mariadb.server.address
    return f"mysql://{address.user}:{address.password}@localhost/?socket={address.socket}"


@pytest.fixture(scope="session")
def existing(dsn: str) -> Iterator[MysqlBackend]:
    backend = MysqlBackend(Existing(dsn), deadline_s=DEADLINE_S)
    yield backend
    backend.close()


@pytest.fixture(params=["sqlite", "mariadb", "dsn"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "sqlite":
        return SqliteBackend()
    return request.getfixturevalue("mariadb" if request.param == "mariadb" else "existing")
