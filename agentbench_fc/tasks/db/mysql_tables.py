"""Whole tables on a server: loaded from a sample, and copied from one session's database to another's.

Not here: the statements of the model (mysql.py).
"""

from collections.abc import Iterator, Sequence

from agentbench_fc.tasks.db.backend import Table
from agentbench_fc.tasks.db.server import Connection

CHUNK = 400_000
"""Characters of one INSERT while tables are loaded."""
_TYPES = {"TEXT": "TEXT", "INT": "INT", "DECIMAL": "DECIMAL(20,4)"}


def loading(admin: Connection, database: str, tables: Sequence[Table]) -> Iterator[str]:
    """The statements that make tables and their rows."""
    for table in tables:
        name = f"{quoted(database)}.{quoted(table.name)}"
        columns = ", ".join(f"{quoted(column)} {_TYPES[kind]}" for column, kind in table.columns)
        yield f"CREATE TABLE {name} ({columns})"
        begin = f"INSERT INTO {name} VALUES "
        values: list[str] = []
        size = 0
        for row in table.rows:
            values.append(f"({', '.join(admin.escape(value) for value in row)})")
            size += len(values[-1])
            if size > CHUNK:
                yield begin + ", ".join(values)
                values, size = [], 0
        if values:
            yield begin + ", ".join(values)


def copied(admin: Connection, source: str, target: str) -> bool:
    """Copies tables and views; False where a copy would not be the same."""
    with admin.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, table_type, auto_increment FROM information_schema.tables WHERE table_schema = %s "
            "ORDER BY create_time, table_name",
            (source,),
        )
        found = cursor.fetchall()
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.referential_constraints WHERE constraint_schema = %s", (source,)
        )
        if cursor.fetchone()[0] or any(kind not in {"BASE TABLE", "VIEW"} for _, kind, _ in found):
            return False
        for name, kind, counter in found:
            if kind != "BASE TABLE":
                continue
            old, new = f"`{source}`.{quoted(name)}", f"`{target}`.{quoted(name)}"
            cursor.execute(f"CREATE TABLE {new} LIKE {old}")
            cursor.execute(f"INSERT INTO {new} SELECT * FROM {old}")
            if counter is not None:
                cursor.execute(f"ALTER TABLE {new} AUTO_INCREMENT = {int(counter)}")
        return not any(kind == "VIEW" for _, kind, _ in found)


def quoted(name: str) -> str:
    """A name as an identifier, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
