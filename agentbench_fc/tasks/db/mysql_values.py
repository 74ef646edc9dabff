r"""Values as a server sends them: as the embedded back end has them, or as AgentBench's driver gives them.

>>> plain(Decimal("7.0000")), plain(Decimal("7.3333")), plain(b"caf\xc3\xa9")
(7, 7.3333, 'café')

AgentBench's profile shows rows by Python's `str`, so there the types count: `Decimal('7.0000')`,
`datetime.date(2020, 1, 2)`, `b'\x01'`. PyMySQL gives what mysql-connector-python 9.3 gives, BIT and SET columns aside.

Not here: how rows are shown (observation.py).
"""

from decimal import Decimal
from functools import partial
from typing import Any

from agentbench_fc.tasks.db.backend import Value
from agentbench_fc.tasks.db.server import Connection

MAX_CELL = 65_535


def decoders(connection: Connection, *, driver_values: bool) -> dict[int, Any]:
    """What turns the server's texts into values, by type of field; other types stay texts, as the server wrote them."""
    from pymysql.constants import FIELD_TYPE

    if driver_values:  # PyMySQL and AgentBench's driver agree but for this type
        return dict(connection.decoders) | {FIELD_TYPE.BIT: partial(int.from_bytes, byteorder="big")}
    whole = ("TINY", "SHORT", "INT24", "LONG", "LONGLONG", "YEAR")
    kinds = {int: whole, float: ("FLOAT", "DOUBLE"), Decimal: ("DECIMAL", "NEWDECIMAL")}
    return {getattr(FIELD_TYPE, name): kind for kind, names in kinds.items() for name in names}


def plain(value: Any) -> Value:
    """A value of the server's as the embedded back end has it: a number, a text, or None; a long text is cut."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else _narrowed(value)
    if isinstance(value, bytes):
        return value[:MAX_CELL].decode("utf-8", "replace")
    return value[:MAX_CELL] if isinstance(value, str) else value


def _narrowed(value: Decimal) -> Value:
    return float(value) if len(value.as_tuple().digits) <= 15 else f"{value:f}"


def cut(value: Any) -> Any:
    """The value, a long text cut."""
    return value[:MAX_CELL] if isinstance(value, str | bytes) else value
