"""information_schema for the embedded back end: its tables as constant rows, made from what the database holds.

Not here: SHOW and DESCRIBE (sqlite.py).
"""

from collections.abc import Mapping

from sqlglot import exp

from agentbench_fc.tasks.db.backend import DATABASE_NAME, SqlError

COLLATION = "my_ci"
Schema = Mapping[str, Mapping[str, str]]
"""Table -> column -> MySQL type."""


def information_schema(name: str, schema: Schema, alias: str) -> exp.Expression:
    """The query that stands for one of its tables.

    Raises:
        SqlError: a table that is not offered here.
    """
    names: tuple[str, ...]
    rows: list[tuple[str, ...]]
    if name.lower() == "tables":
        names = ("TABLE_SCHEMA", "TABLE_NAME", "TABLE_TYPE")
        rows = [(DATABASE_NAME, table, "BASE TABLE") for table in schema]
    elif name.lower() == "columns":
        names = ("TABLE_SCHEMA", "TABLE_NAME", "COLUMN_NAME", "DATA_TYPE", "COLUMN_TYPE", "ORDINAL_POSITION")
        rows = [
            (DATABASE_NAME, table, column, kind.lower(), kind.lower(), str(at))
            for table, columns in schema.items()
            for at, (column, kind) in enumerate(columns.items(), 1)
        ]
    else:
        raise SqlError(f"Table 'information_schema.{name[:60]}' is not available here. Use SHOW TABLES or DESCRIBE.")
    query: exp.Expression | None = None
    for row in rows or [("",) * len(names)]:
        cells = [exp.Literal.number(v) if v.isdigit() else collated(exp.Literal.string(v)) for v in row]
        values = [exp.alias_(cell, n, quoted=True) for n, cell in zip(names, cells, strict=True)]
        select = exp.Select(expressions=values)
        query = select if query is None else exp.Union(this=query, expression=select, distinct=False)
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias or name.upper())))


def collated(node: exp.Expression) -> exp.Expression:
    """The node compared as MySQL compares texts."""
    return exp.Collate(this=exp.Paren(this=node), expression=exp.to_identifier(COLLATION))
