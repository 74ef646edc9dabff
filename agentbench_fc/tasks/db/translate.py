"""One statement of MySQL's dialect -> SQLite text that means the same on a session's connection.

>>> translate("SELECT `a`, b / 2 FROM t WHERE b > '3'", {"t": {"a": "TEXT", "b": "INT"}}).sql
"SELECT `a`, my_divide(`b`, 2) FROM `t` WHERE `b` > my_number('3')"

sqlglot parses and writes; in between one pass over the tree puts MySQL's semantics in: numbers against texts, division,
functions by an allow-list, collations, casts. Every name is written between backticks, which SQLite never takes for a
text (a name that does not exist would otherwise be a silent constant).

Not here: what the functions do (mysql_functions.py); SHOW and DESCRIBE, which never reach SQLite (sqlite.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from sqlglot import exp

from agentbench_fc.tasks.db import mysql_dates, mysql_functions
from agentbench_fc.tasks.db.backend import DATABASE_NAME, SqlError
from agentbench_fc.tasks.db.dialect import parse, to_mysql, to_sqlite
from agentbench_fc.tasks.db.information_schema import COLLATION, Schema, collated, information_schema
from agentbench_fc.tasks.db.shapes import AGGREGATES, check_groups, one_table, spelled_out

Verb = Literal["rows", "change", "schema"]

FUNCTIONS = mysql_functions.FUNCTIONS | mysql_dates.FUNCTIONS
_ALIASES = mysql_functions.ALIASES | mysql_dates.ALIASES
_VERBS: dict[type[exp.Expression], Verb] = {
    exp.Select: "rows",
    exp.SetOperation: "rows",
    exp.Insert: "change",
    exp.Update: "change",
    exp.Delete: "change",
    exp.Create: "schema",
    exp.Drop: "schema",
    exp.Alter: "schema",
}
_TEXT_TYPES = {
    exp.DataType.Type.TEXT, exp.DataType.Type.VARCHAR, exp.DataType.Type.CHAR, exp.DataType.Type.NCHAR,
    exp.DataType.Type.TINYTEXT, exp.DataType.Type.MEDIUMTEXT, exp.DataType.Type.LONGTEXT, exp.DataType.Type.ENUM,
}  # fmt: skip
_NUMERIC_NODES = (
    exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Count, exp.Sum, exp.Avg, exp.Predicate, exp.And, exp.Or, exp.Not,
    exp.Boolean, exp.RowNumber, exp.Rank, exp.DenseRank, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseNot,
)  # fmt: skip
_TEXT_NODES = (
    exp.Anonymous, exp.Literal, exp.Case, exp.If, exp.Coalesce, exp.Paren, exp.Subquery, exp.Max, exp.Min, exp.Nullif,
)  # fmt: skip
_WINDOW_FUNCTIONS = {"LAG", "LEAD", "FIRST_VALUE", "LAST_VALUE", "NTH_VALUE", "NTILE", "PERCENT_RANK", "CUME_DIST"}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)


@dataclass(frozen=True, slots=True)
class Translation:
    """A statement ready for SQLite."""

    sql: str
    verb: Verb
    columns: tuple[str | None, ...] = ()
    """Names of the result's columns as MySQL would give them; None: SQLite's own name is right (a `*`)."""


def translate(sql: str, schema: Schema, *, strict: bool = True) -> Translation:
    """Parses, checks and rewrites one statement.

    Raises:
        SqlError: it is no single statement of a kind that can be run here.
    """
    try:
        tree = parse(sql)
        verb = next((v for kind, v in _VERBS.items() if isinstance(tree, kind)), None)
        if verb is None:
            raise SqlError("This statement cannot be run here. Use SELECT, INSERT, UPDATE, DELETE, SHOW or DESCRIBE.")
        columns = _column_names(tree) if verb == "rows" else ()
        tree = spelled_out(one_table(tree), schema)
        check_groups(tree)
        tree = _Rewriter(schema, strict=strict and isinstance(tree, exp.Update)).rewrite(tree)
        return Translation(to_sqlite(tree), verb, columns)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # Texts that are almost SQL give half-made trees, on which sqlglot and the rules below stumble.
        raise SqlError("You have an error in your SQL syntax. Check it against MySQL's grammar.") from None
    except RecursionError:
        raise SqlError("The statement is nested too deeply. Write a simpler one.") from None


def _column_names(tree: exp.Expression) -> tuple[str | None, ...]:
    query = tree
    while isinstance(query, (exp.SetOperation, exp.Subquery)):
        query = query.this
    if not isinstance(query, exp.Select) or any(isinstance(p, exp.Star) or p.is_star for p in query.expressions):
        return ()
    return tuple(p.alias_or_name if isinstance(p, (exp.Alias, exp.Column)) else to_mysql(p) for p in query.expressions)


class _Rewriter:
    """The pass over one tree, from the leaves up, so that a node sees its children rewritten."""

    def __init__(self, schema: Schema, *, strict: bool) -> None:
        self._schema = schema
        self._strict = strict
        self._types: dict[str, set[str]] = {}
        self._known = {name: name for name in schema}

    def rewrite(self, tree: exp.Expression) -> exp.Expression:
        nodes = cast("list[exp.Expression]", list(tree.walk()))
        self._check_tables(nodes, created=tree.find(exp.Create) is not None)
        for node in reversed(nodes):
            new = self._node(node)
            if new is not node:
                if node is tree:
                    tree = new
                else:
                    node.replace(new)
        return tree

    def _check_tables(self, nodes: list[exp.Expression], *, created: bool) -> None:
        ctes = {node.alias for node in nodes if isinstance(node, exp.CTE)}
        for node in nodes:
            if not isinstance(node, exp.Table):
                continue
            database, name = node.db, node.name
            if database.lower() == "information_schema":
                node.replace(information_schema(name, self._schema, node.alias))
                continue
            if database and database != DATABASE_NAME:
                raise SqlError(f"Unknown database '{database}'. There is only `{DATABASE_NAME}`.")
            node.set("db", None)
            if name.upper() == "DUAL" and isinstance(node.parent, exp.From) and name not in self._schema:
                node.parent.pop()
                continue
            if name in self._schema:
                for column, kind in self._schema[name].items():
                    self._types.setdefault(column.lower(), set()).add(kind.upper())
            elif name not in ctes and not created and not _may_be_missing(node):
                raise SqlError(f"Table '{name[:60]}' doesn't exist. SHOW TABLES lists those that do.")

    def _node(self, node: exp.Expression) -> exp.Expression:
        for kind, rule in _RULES.items():
            if isinstance(node, kind):
                return rule(self, node)
        return node

    # Kinds of values

    def is_number(self, node: exp.Expression | None) -> bool:
        if isinstance(node, (exp.Paren, exp.Alias, exp.Distinct, exp.Ordered)):
            return self.is_number(node.this if node.this is not None else next(iter(node.expressions), None))
        if isinstance(node, exp.Subquery):
            query = node.this
            return (
                isinstance(query, exp.Select) and len(query.expressions) == 1 and self.is_number(query.expressions[0])
            )
        if isinstance(node, exp.Literal):
            return not node.is_string
        if isinstance(node, exp.Anonymous):
            function = FUNCTIONS.get(str(node.this).removeprefix("my_").upper())
            return function is not None and function.kind == "number"
        if isinstance(node, exp.Column):
            kinds = self._types.get(node.name.lower())
            return bool(kinds) and all(_is_numeric_type(kind) for kind in kinds or ())
        if isinstance(node, (exp.Min, exp.Max, exp.Window)):
            return self.is_number(node.this)
        if isinstance(node, exp.Coalesce):
            return all(self.is_number(part) for part in [node.this, *node.expressions])
        if isinstance(node, exp.If):
            return self.is_number(node.args.get("true"))
        if isinstance(node, exp.Case):
            return all(self.is_number(branch) for branch in node.args["ifs"])
        return isinstance(node, _NUMERIC_NODES)

    def number(self, node: exp.Expression) -> exp.Expression:
        """The node as MySQL takes it where a number is wanted."""
        if self.is_number(node) or isinstance(node, (exp.Null, exp.Interval)):
            return node
        return _call("STRICT_NUMBER" if self._strict else "NUMBER", node)

    # Rules

    def comparison(self, node: exp.Expression) -> exp.Expression:
        left, right = node.this, node.expression
        if isinstance(left, exp.Tuple) or isinstance(right, exp.Tuple):
            return node
        if isinstance(node.parent, exp.Update) and node.arg_key == "expressions":
            return self.assignment(node)
        if self.is_number(left) != self.is_number(right):
            node.set("this", self.number(left))
            node.set("expression", self.number(right))
        elif not self.is_number(left):
            node.set("this", _comparable(left))
        return node

    def assignment(self, node: exp.Expression) -> exp.Expression:
        value, kinds = node.expression, self._types.get(node.this.name.lower(), set())
        if kinds == {"INT"} and self.is_number(value) and not (isinstance(value, exp.Literal) and value.is_int):
            node.set("expression", _call("ROUND", value))
        if self.is_number(value) and not isinstance(value, exp.Literal) and not any(map(_is_numeric_type, kinds)):
            node.set("expression", _call("TEXT", value))  # 13, where SQLite would write 13.0
        return node

    def between(self, node: exp.Expression) -> exp.Expression:
        parts = {key: node.args[key] for key in ("this", "low", "high")}
        if any(self.is_number(part) for part in parts.values()):
            for key, part in parts.items():
                node.set(key, self.number(part))
        else:
            node.set("this", _comparable(node.this))
        return node

    def choice(self, node: exp.Expression) -> exp.Expression:
        """CASE x WHEN y and NULLIF(x, y), which compare."""
        if node.this is not None and not self.is_number(node.this):
            node.set("this", _comparable(node.this))
        return node

    def membership(self, node: exp.Expression) -> exp.Expression:
        items = node.expressions
        if isinstance(node.this, exp.Tuple) or not items:
            return node
        numbers = [self.is_number(item) for item in items]
        if all(numbers) and not self.is_number(node.this):
            node.set("this", self.number(node.this))
        elif self.is_number(node.this) and not all(numbers):
            node.set("expressions", [self.number(item) for item in items])
        elif not self.is_number(node.this):
            node.set("this", _comparable(node.this))
        return node

    def arithmetic(self, node: exp.Expression) -> exp.Expression:
        left, right = node.this, node.expression
        interval = right if isinstance(right, exp.Interval) else None
        if interval is not None:
            return _shifted("DATE_SUB" if isinstance(node, exp.Sub) else "DATE_ADD", left, interval)
        names: dict[type[exp.Expression], str] = {
            exp.Div: "DIVIDE",
            exp.IntDiv: "DIV",
            exp.Mod: "MOD",
            exp.BitwiseXor: "BIT_XOR_OF",
        }
        left, right = self.number(left), self.number(right)
        if name := names.get(type(node)):
            return _call(name, left, right)
        node.set("this", left)
        node.set("expression", right)
        return node

    def negative(self, node: exp.Expression) -> exp.Expression:
        node.set("this", self.number(node.this))
        return node

    def total(self, node: exp.Expression) -> exp.Expression:
        inner = node.this
        if isinstance(inner, exp.Distinct):
            inner.set("expressions", [self.number(part) for part in inner.expressions])
        elif inner is not None:
            exact = isinstance(node, exp.Avg) and isinstance(inner, exp.Column) and self.is_number(inner)
            node.set("this", self.number(inner))
            if exact and not isinstance(node.parent, exp.Window):
                return _call("ROUND", node.copy(), exp.Literal.number(4))  # AVG of exact numbers has four decimals
        return node

    def call(self, node: exp.Expression) -> exp.Expression:
        written = str(node.this)
        name = _ALIASES.get(written.upper(), written.upper())
        arguments = list(node.expressions)
        if name in _WINDOW_FUNCTIONS and isinstance(node.parent, exp.Window):
            return node
        if name == "IFNULL":
            name = "COALESCE"
            return exp.Coalesce(this=arguments[0], expressions=arguments[1:]) if len(arguments) == 2 else _wrong(name)
        if name in AGGREGATES and len(arguments) == 1:
            return _call("SPREAD", arguments[0], exp.Literal.string(AGGREGATES[name]))
        if name not in FUNCTIONS or name in mysql_functions.INTERNAL:
            raise SqlError(f"FUNCTION {written[:60]} does not exist here.")
        function = FUNCTIONS[name]
        if name in {"DATE_ADD", "DATE_SUB"} and len(arguments) == 2:
            unit = arguments[1]
            return _shifted(name, arguments[0], unit if isinstance(unit, exp.Interval) else exp.Interval(this=unit))
        if name == "TIMESTAMPDIFF" and arguments:
            arguments[0] = exp.Literal.string(arguments[0].name)
        if not function.least <= len(arguments) <= function.most:
            return _wrong(written)
        if name == "ROUND" and not self.is_number(arguments[0]):
            name = "ROUND_DOUBLE"
        return _call(name, *arguments)

    def concatenated(self, node: exp.Expression) -> exp.Expression:
        inner, keys, distinct = node.this, [], False
        if isinstance(inner, exp.Order):
            for ordered in inner.expressions:
                keys += [ordered.this, exp.Literal.number(int(bool(ordered.args.get("desc"))))]
            inner = inner.this
        if isinstance(inner, exp.Distinct):
            distinct, parts = True, inner.expressions
            inner = parts[0] if len(parts) == 1 else _call("CONCAT", *parts)
        separator = node.args.get("separator") or exp.Literal.string(",")
        return exp.Anonymous(
            this="my_group_concat", expressions=[inner, separator, exp.Literal.number(int(distinct)), *keys]
        )

    def cast(self, node: exp.Expression) -> exp.Expression:
        target, value = node.args["to"], node.this
        kind = target.this
        if kind in _TEXT_TYPES:
            text = _call("TEXT", value)
            return _call("CHAR_CUT", text, target.expressions[0].this) if target.expressions else text
        if kind in exp.DataType.INTEGER_TYPES or kind in {exp.DataType.Type.BIGINT, exp.DataType.Type.UBIGINT}:
            return _call("SIGNED", value)
        if kind == exp.DataType.Type.DECIMAL:
            scale = target.expressions[1].this if len(target.expressions) > 1 else exp.Literal.number(0)
            return _call("ROUND", _call("NUMBER", value), scale)
        if kind in exp.DataType.REAL_TYPES:
            return _call("FLOAT", value)
        if kind == exp.DataType.Type.DATE:
            return _call("DATE", value)
        if kind in exp.DataType.TEMPORAL_TYPES:
            return cast("exp.Expression", value)
        if kind in {exp.DataType.Type.BINARY, exp.DataType.Type.VARBINARY}:
            return exp.Collate(this=value, expression=exp.to_identifier("BINARY"))
        raise SqlError(f"CAST to {to_mysql(target)} is not supported here.")

    def collate(self, node: exp.Expression) -> exp.Expression:
        name = node.expression.name.lower()
        exact = name in {"binary", "my_binary"} or name.endswith("_bin")
        node.set("expression", exp.to_identifier("BINARY" if exact else COLLATION))
        return node

    def column_definition(self, node: exp.Expression) -> exp.Expression:
        kind = node.args.get("kind")
        if kind is not None and kind.this in _TEXT_TYPES:
            node.set("kind", exp.DataType.build("text"))
            constraint = exp.CollateColumnConstraint(this=exp.to_identifier(COLLATION))
            node.set("constraints", [exp.ColumnConstraint(kind=constraint), *node.args.get("constraints", [])])
        return node

    def created(self, node: exp.Expression) -> exp.Expression:
        kind = str(node.args.get("kind") or "").upper()
        if kind == "COLUMN" and isinstance(node.parent, exp.Alter):
            return node
        if kind not in {"TABLE", "INDEX"}:
            raise SqlError(f"{'CREATE' if isinstance(node, exp.Create) else 'DROP'} {kind} is not allowed here.")
        if isinstance(node, exp.Create):
            node.set("properties", None)  # ENGINE=, CHARSET= and the like mean nothing here
        return node

    def limited(self, node: exp.Expression) -> exp.Expression:
        """UPDATE and DELETE of the first rows of an order: not every build of SQLite has it."""
        order, limit = node.args.get("order"), node.args.get("limit")
        if limit is not None:
            first = exp.select("rowid").from_(node.this.copy())
            first.set("where", node.args.get("where"))
            first.set("order", order)
            first.set("limit", limit)
            node.set("where", exp.Where(this=exp.In(this=exp.column("rowid"), query=exp.Subquery(this=first))))
        node.set("order", None)
        node.set("limit", None)
        return node

    def counted(self, node: exp.Expression) -> exp.Expression:
        """COUNT(DISTINCT a, b): rows in which none of them is NULL, by all of them."""
        inner = node.this
        if isinstance(inner, exp.Distinct) and len(inner.expressions) > 1:
            lengths = [
                _call("CONCAT", _call("LENGTH", part), exp.Literal.string(":"), part) for part in inner.expressions
            ]
            inner.set("expressions", [collated(_call("CONCAT", *lengths))])
        return node

    def cut(self, node: exp.Expression) -> exp.Expression:
        if isinstance(node.expression, exp.Neg):
            raise SqlError("You have an error in your SQL syntax: LIMIT and OFFSET take no negative number.")
        return node

    def grouped(self, node: exp.Expression) -> exp.Expression:
        """GROUP BY and ORDER BY: a text that is made has no collation in SQLite, nor has its alias."""
        if not isinstance(node.find_ancestor(exp.Select, exp.SetOperation), exp.SetOperation):
            keys = node.expressions if isinstance(node, exp.Group) else [node.this]
            for key in keys:
                if not isinstance(key, exp.Literal | exp.Collate) and not self.is_number(key):
                    key.replace(collated(key.copy()))
        return node

    def xor(self, node: exp.Expression) -> exp.Expression:
        return exp.NEQ(
            this=exp.Paren(this=exp.Not(this=node.this)), expression=exp.Paren(this=exp.Not(this=node.expression))
        )

    def matched(self, node: exp.Expression) -> exp.Expression:
        return _negated(node, _call("REGEXP_LIKE", node.this, node.expression))

    def liked(self, node: exp.Expression) -> exp.Expression:
        if isinstance(node.parent, exp.Escape):
            return node
        exact = any(
            isinstance(side, exp.Collate) and side.expression.name == "BINARY" for side in (node.this, node.expression)
        )
        return _negated(node, _call("LIKE_EXACTLY" if exact else "LIKE", node.this, node.expression))

    def escaped(self, node: exp.Expression) -> exp.Expression:
        inner = node.this
        if not isinstance(inner, exp.Like):
            return node
        return _negated(inner, _call("LIKE", inner.this, inner.expression, node.expression))

    def part(self, node: exp.Expression) -> exp.Expression:
        """Functions that sqlglot reads into nodes of its own, and the clock."""
        if isinstance(node, exp.Substring):
            return _call("SUBSTRING", *(a for a in (node.this, node.args.get("start"), node.args.get("length")) if a))
        if isinstance(node, exp.Trim):
            mark = node.expression or exp.Literal.string(" ")
            return _call("TRIM", node.this, mark, exp.Literal.string(str(node.args.get("position") or "BOTH").upper()))
        if isinstance(node, exp.StrPosition):
            return _call("LOCATE", node.args["substr"], node.this)
        if isinstance(node, exp.Extract):
            name = node.this.name.upper()
            return _call(name, node.expression) if name in mysql_dates.FUNCTIONS else _wrong(f"EXTRACT({name})")
        if isinstance(node, (exp.Floor, exp.Ceil)):
            return _call("FLOOR" if isinstance(node, exp.Floor) else "CEIL", node.this)
        if isinstance(node, exp.CurrentDate):
            return _call("CURDATE")
        return _call("CURTIME" if isinstance(node, (exp.CurrentTime, exp.Localtime)) else "NOW")

    def refused(self, node: exp.Expression) -> exp.Expression:
        raise SqlError(f"Variables such as {to_mysql(node)[:40]} are not available here.")


_Rule = Callable[[_Rewriter, exp.Expression], exp.Expression]
_RULES: dict[type[exp.Expression] | tuple[type[exp.Expression], ...], _Rule] = {
    _COMPARISONS: _Rewriter.comparison,
    exp.Between: _Rewriter.between,
    exp.In: _Rewriter.membership,
    (exp.Case, exp.Nullif): _Rewriter.choice,
    (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.BitwiseXor): _Rewriter.arithmetic,
    exp.Neg: _Rewriter.negative,
    (exp.Sum, exp.Avg): _Rewriter.total,
    exp.Anonymous: _Rewriter.call,
    exp.GroupConcat: _Rewriter.concatenated,
    exp.Cast: _Rewriter.cast,
    exp.Collate: _Rewriter.collate,
    exp.ColumnDef: _Rewriter.column_definition,
    (exp.Create, exp.Drop): _Rewriter.created,
    (exp.Update, exp.Delete): _Rewriter.limited,
    exp.Count: _Rewriter.counted,
    (exp.Group, exp.Ordered): _Rewriter.grouped,
    (exp.Limit, exp.Offset): _Rewriter.cut,
    exp.Xor: _Rewriter.xor,
    exp.RegexpLike: _Rewriter.matched,
    exp.Like: _Rewriter.liked,
    exp.Escape: _Rewriter.escaped,
    (
        exp.Substring, exp.Trim, exp.StrPosition, exp.Extract, exp.Floor, exp.Ceil,
        exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.Localtime, exp.Localtimestamp,
    ): _Rewriter.part,
    (exp.Parameter, exp.SessionParameter, exp.Placeholder): _Rewriter.refused,
}  # fmt: skip


def _call(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=f"my_{name.lower()}", expressions=list(arguments))


def _negated(node: exp.Expression, call: exp.Expression) -> exp.Expression:
    return exp.Not(this=call) if node.args.get("negate") else call


def _wrong(name: str) -> exp.Expression:
    raise SqlError(f"Incorrect parameter count in the call to function '{name[:60]}'.")


def _shifted(name: str, moment: exp.Expression, interval: exp.Interval) -> exp.Expression:
    unit = interval.args.get("unit")
    return _call(name, moment, interval.this, exp.Literal.string(unit.name.upper() if unit is not None else "DAY"))


def _comparable(node: exp.Expression) -> exp.Expression:
    """The node with the collation spelled out: SQLite gives it to bare columns alone."""
    return collated(node) if isinstance(node, _TEXT_NODES) else node


def _is_numeric_type(kind: str) -> bool:
    return kind.split("(")[0].strip() in {
        "INT",
        "INTEGER",
        "BIGINT",
        "SMALLINT",
        "TINYINT",
        "DECIMAL",
        "DOUBLE",
        "FLOAT",
        "REAL",
    }


def _may_be_missing(node: exp.Table) -> bool:
    parent = node.parent
    return isinstance(parent, exp.AlterRename) or (isinstance(parent, exp.Drop) and bool(parent.args.get("exists")))
