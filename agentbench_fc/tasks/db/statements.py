r"""A statement as it is read before a server sees it: one per call, nothing that grants cannot hold back.

>>> read("SELECT 'a;b' -- and; more\n;").words
('SELECT',)
>>> read("SELECT 1; DROP TABLE t")
Traceback (most recent call last):
agentbench_fc.tasks.db.backend.SqlError: 2 statements in one call. Send one statement per call.

The server is the judge of everything else: grants keep a session in its own database, a watchdog ends what takes too
long. Here stand the few things for which there is no grant: dropping the database itself, a prepared transaction that
outlives its connection, locks that all sessions share, and SQL hidden in comments or in a text.

Not here: grants and deadlines (server.py, mysql.py); the embedded back end's own allow-list (translate.py).
"""

import itertools
import re
from dataclasses import dataclass

from agentbench_fc.tasks.db.backend import DATABASE_NAME, SqlError

MAX_STATEMENT = 1_000_000
"""Characters; the private server's max_allowed_packet is 4 MiB."""

_TOKEN = re.compile(
    r"""
    (?P<space>\s+ | --(?=[\s\x00-\x1f]|\Z)[^\n]* | \#[^\n]* | /\*(?!M?!)(?s:.*?)\*/)
    |(?P<text>'(?:[^'\\]|''|\\(?s:.))*' | "(?:[^"\\]|""|\\(?s:.))*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<word>[@\w$]+)
    |(?P<open>['"`] | /\*(?!M?!))
    |(?P<hidden>/\*M?!)
    |(?P<other>(?s:.))
    """,
    re.X,
)
_TRANSACTION = {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"}
_BY_TEXT = {"PREPARE", "EXECUTE", "DEALLOCATE"}
_UNAVAILABLE = {"XA", "KILL", "HANDLER", "BACKUP"}
_SHARED_FUNCTIONS = {"GET_LOCK", "RELEASE_LOCK", "RELEASE_ALL_LOCKS", "IS_FREE_LOCK", "IS_USED_LOCK", "LOAD_FILE"}
_SETTABLE = {
    "SQL_MODE", "GROUP_CONCAT_MAX_LEN", "TIME_ZONE", "LC_TIME_NAMES", "DIV_PRECISION_INCREMENT", "COLLATION_CONNECTION",
    "SQL_SAFE_UPDATES", "SQL_BIG_SELECTS", "FOREIGN_KEY_CHECKS", "UNIQUE_CHECKS", "SQL_NOTES", "SQL_WARNINGS",
}  # fmt: skip
"""What a session may set for itself; others would lift its limits, or leave it unable to go on."""
_STATE = {"TEMPORARY", "RAND", "LAST_INSERT_ID", "FOUND_ROWS", "ROW_COUNT"}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL that is neither space nor comment."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement as the model wrote it, without its final semicolon."""

    tokens: tuple[Token, ...]
    pieces: tuple[tuple[str, str], ...]
    """(kind, text) of everything, spaces and comments too: together they are the statement."""

    @property
    def words(self) -> tuple[str, ...]:
        """The bare words in capitals."""
        return tuple(token.text.upper() for token in self.tokens if token.kind == "word")

    @property
    def first(self) -> str:
        """The first word in capitals; empty where there is another beginning."""
        return self.tokens[0].text.upper() if self.tokens[0].kind == "word" else ""

    @property
    def leaves_state(self) -> bool:
        """Whether the connection may know more afterwards than the tables do: variables, temporary tables, locks."""
        state = any(word in _STATE or word.startswith("@") for word in self.words)
        return state or self.first in {"SET", "LOCK"}

    def named(self, database: str) -> str:
        """The text with the session's database under its real name, where the model calls it by the shown one."""
        ours = [i for i, token in enumerate(self.tokens) if _bare(token) == DATABASE_NAME]
        schemata = "INFORMATION_SCHEMA" in self.words
        if not ours and not schemata:
            return "".join(text for _, text in self.pieces)
        listing = self.first == "SHOW"
        after = [token.text for token in self.tokens[1:]] + [""]
        qualifies = all(after[i] == "." for i in ours)  # elsewhere the name may well be an alias
        result: list[str] = []
        seen = -1
        for kind, text in self.pieces:
            if kind == "space":
                result.append(text)
                continue
            seen += 1
            if seen in ours and ((after[seen] == "." and qualifies) or (listing and _follows_from(self.tokens, seen))):
                result.append(f"`{database}`")
            elif schemata and kind == "text" and text[1:-1] == DATABASE_NAME:
                result.append(f"'{database}'")
            else:
                result.append(text)
        return "".join(result)


def read(sql: str) -> Statement:
    """Splits one statement into its tokens.

    Raises:
        SqlError: none, more than one, malformed, or too long.
    """
    if len(sql) > MAX_STATEMENT:
        raise SqlError(f"The statement has {len(sql)} characters; at most {MAX_STATEMENT} are taken.")
    if "\0" in sql:
        raise SqlError("The statement holds a NUL character. Remove it.")
    pieces: list[tuple[str, str]] = []
    statements, ended = 0, True
    for match in _TOKEN.finditer(sql):
        kind, text = str(match.lastgroup), match[0]
        if kind == "open":
            what = "comment" if text == "/*" else f"quote {text}"
            raise SqlError(f"You have an error in your SQL syntax: the {what} is never closed.")
        if kind == "hidden":
            raise SqlError("Comments that the server would execute are not taken. Write the SQL itself.")
        if text == ";":
            ended = True
            continue
        if kind != "space" and ended:
            statements, ended = statements + 1, False
        if statements <= 1:
            pieces.append((kind, text))
    if statements != 1:
        what = f"{statements} statements in one call" if statements else "There is no SQL statement in the query"
        raise SqlError(f"{what}. Send one statement per call.")
    tokens = tuple(Token(kind, text) for kind, text in pieces if kind != "space")
    return Statement(tokens, tuple(pieces))


def check(statement: Statement, *, transactions: bool) -> None:
    """Refuses what grants cannot hold back.

    Args:
        statement: What `read` gave.
        transactions: Whether BEGIN and its like are let through; each call is committed at once all the same.

    Raises:
        SqlError: it is one of these.
    """
    words = statement.words
    first, second = statement.first, words[1] if len(words) > 1 else ""
    if first in {"DROP", "CREATE", "ALTER"} and ({"DATABASE", "SCHEMA"} & set(words[1:4])) and not _is_name(words):
        raise SqlError("The database itself can be neither made, changed nor dropped. Work with its tables.")
    if first in {"CREATE", "ALTER"} and "DIRECTORY" in words:
        raise SqlError("Files cannot be placed. Leave out DATA DIRECTORY and INDEX DIRECTORY.")
    if first in _BY_TEXT:
        raise SqlError("Prepared statements are not available here. Send the statement itself.")
    if first in _UNAVAILABLE:
        raise SqlError(f"{first} is not available here.")
    opens = first in _TRANSACTION or (first == "START" and second == "TRANSACTION")
    if not transactions and (opens or (first == "SET" and any("AUTOCOMMIT" in word for word in words))):
        raise SqlError("There are no transactions here: each statement is committed at once. Send the statement alone.")
    if first == "SET":
        _check_set(statement)
    for token, following in itertools.pairwise(statement.tokens):
        if token.kind in {"word", "name"} and following.text == "(":
            name = token.text.strip("`").upper()
            if name in _SHARED_FUNCTIONS:
                raise SqlError(f"The function {name} is not available here.")


def _check_set(statement: Statement) -> None:
    """Only variables of the model's own, and those that cannot harm the session, may be set."""
    words = [token.text.upper().removeprefix("@@").strip("`") for token in statement.tokens]
    for scope in ("SESSION", "LOCAL"):
        words = [word.removeprefix(f"{scope}.") for word in words if word != scope]
    if words[1:2] == ["NAMES"] and words[2:3] and words[2].strip("'\"") in {"UTF8", "UTF8MB4"}:
        return
    named = [word for word, after in itertools.pairwise(words) if after in {"=", ":"} and word != ":"]
    wrong = next((word for word in named if not word.startswith("@") and word not in _SETTABLE), None)
    if wrong is None and (not named or {"STATEMENT", "GLOBAL", "PERSIST"} & set(words)):
        wrong = words[1] if len(words) > 1 else "nothing"
    if wrong is None and any("NO_BACKSLASH" in word for word in words):
        wrong = "NO_BACKSLASH_ESCAPES"
    if wrong is not None:
        known = ", ".join(sorted(_SETTABLE)).lower()
        raise SqlError(f"{wrong[:60]} cannot be set here. What can be set: @variables, and {known}.")


def database_used(statement: Statement) -> str | None:
    """The name in a USE statement; None for any other."""
    if statement.first != "USE" or len(statement.tokens) != 2:
        return None
    return _bare(statement.tokens[1])


def _bare(token: Token) -> str:
    if token.kind == "name":
        return token.text[1:-1].replace("``", "`")
    return token.text if token.kind == "word" else ""


def _is_name(words: tuple[str, ...]) -> bool:
    # CREATE TABLE schema (…): the word is the name of something else that is made.
    return len(words) > 1 and words[1] in {"TABLE", "VIEW", "INDEX", "UNIQUE", "TEMPORARY", "SEQUENCE"}


def _follows_from(tokens: tuple[Token, ...], at: int) -> bool:
    return at > 0 and tokens[at - 1].text.upper() in {"FROM", "IN"}
