"""What the shape of a statement decides before its parts are translated.

- `one_table`: UPDATE and DELETE over a join, which SQLite does not have, as statements over one table.
- `spelled_out`: CREATE … LIKE, and fractions on their way into whole-number columns, which MySQL rounds.
- `check_groups`: MySQL's ONLY_FULL_GROUP_BY: a bare column beside an aggregate must be among the groups.

Not here: the meaning of the parts (translate.py).
"""

from typing import Any, cast

from sqlglot import exp

from agentbench_fc.tasks.db.backend import SqlError
from agentbench_fc.tasks.db.information_schema import Schema

AGGREGATES = {
    "STD": "s", "STDDEV": "s", "STDDEV_POP": "s", "STDDEV_SAMP": "S", "VARIANCE": "v", "VAR_POP": "v", "VAR_SAMP": "V",
}  # fmt: skip
"""Aggregates that sqlglot leaves as they are written: which measure of spread each one is."""


def one_table(tree: exp.Expression) -> exp.Expression:
    """The statement without joins where it changes rows; any other as it is.

    Raises:
        SqlError: it changes several tables at once, or joins in another way than by matching rows.
    """
    if isinstance(tree, exp.Update) and isinstance(tree.this, exp.Table) and tree.this.args.get("joins"):
        return _update(tree)
    if isinstance(tree, exp.Delete) and isinstance(tree.this, exp.Table) and tree.args.get("tables"):
        return _delete(tree)
    return tree


def spelled_out(tree: exp.Expression, schema: Schema) -> exp.Expression:
    """The statement with what MySQL does without being told."""
    properties = tree.args.get("properties") if isinstance(tree, exp.Create) else None
    like = properties.find(exp.LikeProperty) if properties is not None else None
    if like is not None and like.this.name in schema:
        columns = [
            exp.ColumnDef(this=exp.to_identifier(name, quoted=True), kind=exp.DataType.build(kind))
            for name, kind in schema[like.this.name].items()
        ]
        tree.set("this", exp.Schema(this=tree.this, expressions=columns))
        tree.set("properties", None)
    values = tree.args.get("expression") if isinstance(tree, exp.Insert) else None
    table = tree.find(exp.Table) if isinstance(values, exp.Values) else None
    if isinstance(values, exp.Values) and table is not None and table.name in schema:
        kinds = {name.lower(): kind for name, kind in schema[table.name].items()}
        given = [part.name.lower() for part in tree.this.expressions] or list(kinds)
        for row in values.expressions:
            for name, value in zip(given, row.expressions, strict=False):
                fraction = isinstance(value.unnest(), exp.Literal | exp.Neg) and "." in value.sql()
                if kinds.get(name) == "INT" and fraction and not value.find(exp.Literal).is_string:
                    value.replace(exp.Anonymous(this="ROUND", expressions=[value.copy()]))
    return tree


def check_groups(tree: exp.Expression) -> None:
    """Refuses columns that have no single value in their group.

    Raises:
        SqlError: names the column.
    """
    for select in tree.find_all(exp.Select):
        group = select.args.get("group")
        shown = [part.unalias() for part in select.expressions]
        if group is None:
            if any(_in_group(found) for part in shown for found in part.find_all(exp.AggFunc)):
                _check(shown, set(), set(), "In aggregated query without GROUP BY, {} needs an aggregate function")
            continue
        given = [_meant(part, select) for part in group.expressions]
        names = {part.name.lower() for part in given if isinstance(part, exp.Column)}
        _check(shown, names, {part.sql().lower() for part in given}, "{} isn't in GROUP BY")


def _check(shown: list[exp.Expression], names: set[str], texts: set[str], message: str) -> None:
    for part in shown:
        if part.sql().lower() in texts:
            continue
        for column in part.find_all(exp.Column):
            if column.name.lower() in names or isinstance(column.this, exp.Star) or _is_inside(column, part, texts):
                continue
            raise SqlError(f"{message.format(repr(column.name[:60]))}. Aggregate it, or group by it.")


def _is_inside(column: exp.Expression, part: exp.Expression, texts: set[str]) -> bool:
    """Whether the column stands in an aggregate, in a query of its own, or in an expression that is a group."""
    node: Any = column
    while node is not None:
        if isinstance(node, exp.AggFunc | exp.GroupConcat | exp.Subquery | exp.Select | exp.Exists):
            return True
        if isinstance(node, exp.Anonymous) and node.name.upper() in AGGREGATES:
            return True
        if node.sql().lower() in texts:
            return True
        if node is part:
            break
        node = node.parent
    return isinstance(part, exp.Window) or part.find(exp.Window) is not None


def _in_group(aggregate: exp.Expression) -> bool:
    """Whether an aggregate belongs to this SELECT: not over a window, not in a query of its own."""
    node = aggregate.parent
    while node is not None and not isinstance(node, exp.Select):
        if isinstance(node, exp.Window | exp.Subquery | exp.Exists):
            return False
        node = node.parent
    return not isinstance(aggregate.parent, exp.Window)


def _meant(part: exp.Expression, select: exp.Select) -> exp.Expression:
    """What an item of GROUP BY stands for: a position, the alias of something shown, or itself."""
    if isinstance(part, exp.Literal) and not part.is_string and 1 <= int(part.name) <= len(select.expressions):
        return cast("exp.Expression", select.expressions[int(part.name) - 1].unalias())
    if isinstance(part, exp.Column) and not part.table:
        for shown in select.expressions:
            if isinstance(shown, exp.Alias) and shown.alias.lower() == part.name.lower():
                return cast("exp.Expression", shown.this)
    return part


def _update(tree: exp.Update) -> exp.Expression:
    tables, conditions = _joined(tree.this)
    changed = {part.this.table for part in tree.expressions if isinstance(part, exp.EQ)} - {""}
    if len(changed) > 1:
        raise SqlError("An UPDATE of several tables at once is not available here. Update one after the other.")
    name = next(iter(changed), tables[0].alias_or_name)
    target = next((table for table in tables if table.alias_or_name == name), tables[0])
    for part in tree.expressions:
        part.this.set("table", None)
    others = [table for table in tables if table is not target]
    first, *rest = others
    first.set("joins", [exp.Join(this=table) for table in rest])
    tree.set("this", target)
    tree.set("from_", exp.From(this=first))
    where = tree.args.get("where")
    tree.set("where", exp.Where(this=exp.and_(*conditions, *([where.this] if where else []))))
    return tree


def _delete(tree: exp.Delete) -> exp.Expression:
    named = tree.args["tables"]
    if len(named) != 1:
        raise SqlError("A DELETE from several tables at once is not available here. Delete from one after the other.")
    source = tree.this
    tables = [source, *(join.this for join in source.args.get("joins") or [])]
    name = named[0].name
    target = next((table for table in tables if table.alias_or_name == name), None)
    if target is None:
        raise SqlError(f"Unknown table '{name[:60]}' in MULTI DELETE.")
    rows = exp.select(exp.column("rowid", table=name)).from_(source.copy())
    rows.set("where", tree.args.get("where"))
    whole = exp.Table(this=target.this.copy(), db=target.args.get("db"))
    inside = exp.In(this=exp.column("rowid"), query=exp.Subquery(this=rows))
    return exp.Delete(this=whole, where=exp.Where(this=inside))


def _joined(source: exp.Table) -> tuple[list[exp.Table], list[exp.Expression]]:
    tables, conditions = [source], []
    for join in source.args.get("joins") or []:
        if join.side or join.args.get("using") or not isinstance(join.this, exp.Table):
            raise SqlError("Only JOIN … ON is available in an UPDATE here.")
        tables.append(join.this)
        if condition := join.args.get("on"):
            conditions.append(condition)
    source.set("joins", None)
    return tables, conditions
