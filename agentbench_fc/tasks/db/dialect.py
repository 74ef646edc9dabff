"""MySQL's grammar in, SQLite's grammar out: sqlglot's dialects, set up for a session's statements.

`parse` takes one statement of the kinds that can run here. Functions stay as they were written, so that an allow-list
can decide about them (translate.py); names are written between backticks, which SQLite never takes for a text.

Not here: the meaning of a statement (translate.py); SHOW and DESCRIBE (sqlite.py).
"""

import itertools
import logging
import re
from typing import Any, cast

import sqlglot
from sqlglot import exp, tokens
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import SqlglotError, TokenError

from agentbench_fc.tasks.db.backend import SqlError
from agentbench_fc.tasks.db.statements import read

MAX_SQL = 20_000
_KINDS = "SELECT, INSERT, UPDATE, DELETE, SHOW or DESCRIBE"
_WORDS = {
    "SELECT",
    "WITH",
    "(",
    "INSERT",
    "REPLACE",
    "UPDATE",
    "DELETE",
    "CREATE",
    "DROP",
    "ALTER",
    "TRUNCATE",
    "RENAME",
}
_TYPED = {"COUNT", "SUM", "AVG", "MIN", "MAX", "COALESCE", "NULLIF", "ROW_NUMBER", "RANK", "DENSE_RANK"}

# sqlglot warns about what it does not know; a library's warnings are the application's to show.
logging.getLogger("sqlglot").addHandler(logging.NullHandler())
_RENAME = re.compile(r"RENAME\s+TABLE\s+(`[^`]+`|[\w$]+)\s+TO\s+(`[^`]+`|[\w$]+)\s*;?", re.I)
_FUNCTIONS = MySQL.Parser.FUNCTIONS
_TokenType = cast("Any", tokens).TokenType  # where it is defined differs between releases
_FOREIGN = {_TokenType.DCOLON, _TokenType.ILIKE}
"""Operators of other systems, which sqlglot reads in any dialect."""


class _MySql(MySQL):
    """MySQL in which all but a few functions are left as written."""

    Parser = cast(
        "Any",  # mypy sees no class in an attribute of a class
        type(
            "Parser",
            (MySQL.Parser,),
            {
                "FUNCTIONS": {n: f for n, f in _FUNCTIONS.items() if n in _TYPED},
                "COLUMN_OPERATORS": {t: f for t, f in MySQL.Parser.COLUMN_OPERATORS.items() if t not in _FOREIGN},
                "RANGE_PARSERS": {t: f for t, f in MySQL.Parser.RANGE_PARSERS.items() if t not in _FOREIGN},
            },
        ),
    )


class _Sqlite(SQLite):
    """SQLite with names between backticks."""

    class Tokenizer(SQLite.Tokenizer):
        IDENTIFIERS = ["`"]  # noqa: RUF012


def parse(sql: str) -> exp.Expression:
    """The tree of one statement.

    Raises:
        SqlError: it is too long, malformed, more than one, or of a kind that cannot run here.
    """
    if len(sql) > MAX_SQL:
        raise SqlError(f"The statement has {len(sql)} characters; at most {MAX_SQL} are taken.")
    if "\0" in sql:
        raise SqlError("The statement holds a NUL character. Remove it.")
    text = sql.strip()
    word = re.match(r"\(|[A-Za-z]*", text)
    first = word[0].upper() if word else ""
    if first not in _WORDS and text[:1] not in {"/", "#", "-"}:
        what = f"{first} statements cannot be run here" if first else "There is no SQL statement in the query"
        raise SqlError(f"{what}. Use {_KINDS}.")
    text = _RENAME.sub(r"ALTER TABLE \1 RENAME TO \2", text)
    if first not in {"", "("}:
        _check_commas(text)
    if first == "REPLACE":  # sqlglot does not know it; it is an INSERT that puts its row in the place of another
        text = "INSERT" + text[len(first) :]
    try:
        trees = [tree for tree in sqlglot.parse(text, dialect=_MySql) if tree is not None]
    except TokenError:
        raise SqlError("You have an error in your SQL syntax: a quote is open, or a character is no SQL.") from None
    except SqlglotError as error:
        raise SqlError(_syntax_error(error)) from None
    if len(trees) != 1:
        what = f"{len(trees)} statements in one call" if trees else "There is no SQL statement in the query"
        raise SqlError(f"{what}. Send one statement per call.")
    tree = trees[0]
    if isinstance(tree, exp.TruncateTable):
        return exp.Delete(this=tree.expressions[0])
    if isinstance(tree, exp.Insert) and first == "REPLACE":
        tree.set("alternative", "REPLACE")
    if not isinstance(tree, exp.Expression) or isinstance(tree, exp.Command):
        raise SqlError(f"This statement cannot be run here. Use {_KINDS}.")
    return tree


def _check_commas(text: str) -> None:
    """Refuses a comma before nothing, which sqlglot lets pass."""
    try:
        tokens = read(text).tokens
    except SqlError:  # for sqlglot to say
        return
    for token, following in itertools.pairwise(tokens):
        if token.text == "," and following.text.upper() in {"FROM", ")", "WHERE"}:
            raise SqlError(f"You have an error in your SQL syntax near '{following.text}'.")


def to_sqlite(tree: exp.Expression) -> str:
    """The text that SQLite runs."""
    return tree.sql(dialect=_Sqlite, identify=True, comments=False, normalize_functions=False)


def to_mysql(tree: exp.Expression) -> str:
    """The text as MySQL would write it: for names of columns, and for messages."""
    return tree.sql(dialect=_MySql, comments=False)


def _syntax_error(error: SqlglotError) -> str:
    details = getattr(error, "errors", None) or [{}]
    near, line = details[0].get("highlight"), details[0].get("line")
    where = f" near '{str(near)[:60]}' at line {line}" if near else ""
    return f"You have an error in your SQL syntax{where}. Check it against MySQL's grammar."
