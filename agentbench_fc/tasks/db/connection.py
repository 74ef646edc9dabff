"""PyMySQL's connection with what a session needs at its start in one round trip.

Imported only where PyMySQL is known to be installed.

Not here: who connects, and where (server.py).
"""

import socket
from typing import Any

from pymysql.connections import Connection
from pymysql.err import OperationalError


class SettledConnection(Connection):  # type: ignore[misc]
    """A connection whose session variables are set along with its character set."""

    def __init__(self, settings: str, **options: Any) -> None:
        self._settings = settings
        super().__init__(defer_connect=True, autocommit=True, **options)

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """PyMySQL calls this once it has logged in."""
        self.query(f"SET NAMES {charset} COLLATE {collation}{', ' if self._settings else ''}{self._settings}")

    def enter(self, door: str | None, timeout_s: float) -> None:
        """Connects: through a local socket where `door` names one.

        Raises:
            pymysql.err.Error: nobody answers, or lets us in.
        """
        if door is None:
            self.connect()
            return
        link = socket.socket(socket.AF_UNIX)  # PyMySQL leaves its own unclosed when nobody answers
        try:
            link.settimeout(timeout_s)
            link.connect(door)
            link.settimeout(None)
        except OSError as error:
            link.close()
            raise OperationalError(2003, f"no server at {door}: {error}") from error
        self._secure = True  # as PyMySQL has it for its own local sockets: a password may be sent as it is
        self.connect(link)
