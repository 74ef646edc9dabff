"""Makers of problems about text: lines, words, columns of CSV, sections of a configuration.

Not here: logs (generate_logs.py); wordings (phrases.py).
"""

import json
from collections import Counter

from agentbench_fc.tasks.os.generate_world import Conditions, Problem, Setup, Template, World

_COLUMNS = ("price", "weight", "stock", "visits", "hours", "points", "units", "length")


def _table(w: World, rows: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV: a name, a town of a few, and three columns of numbers."""
    towns = w.words(w.number(3, 5))
    header = ["name", "town", *w.pick(_COLUMNS, 3)]
    numbers: list[set[int]] = [set(), set(), set()]
    body = [
        [w.token(), w.pick(towns), *(str(w.number_apart(10, 999, taken)) for taken in numbers)] for _ in range(rows)
    ]
    return header, body


def _csv(header: list[str], body: list[list[str]]) -> str:
    return "\n".join(",".join(row) for row in [header, *body])


def _lines_with_word(w: World) -> Problem:
    setup, path, wanted = Setup(), f"{w.base}/{w.file('.txt')}", w.word()
    filler, hits = w.words(7), w.number(9, 70)
    lines = [f"{w.pick(filler)} {wanted} {w.pick(filler)}" for _ in range(hits)]
    lines += [" ".join(w.pick(filler, 3)) for _ in range(w.number(20, 60))]
    w.rng.shuffle(lines)
    setup.file(path, "\n".join(lines))
    return Problem(fields={"path": path, "word": wanted}, setup=setup, plan=[f"grep -cw {wanted} {path}"], answer=hits)


def _column_sum(w: World) -> Problem:
    setup, path = Setup(), f"{w.base}/{w.file('.csv')}"
    header, body = _table(w, w.number(8, 20))
    place = w.number(2, 4)
    setup.file(path, _csv(header, body))
    command = f"awk -F, 'NR > 1 {{s += ${place + 1}}} END {{print s}}' {path}"
    total = sum(int(row[place]) for row in body)
    return Problem(fields={"path": path, "column": header[place]}, setup=setup, plan=[command], answer=total)


def _nth_line(w: World) -> Problem:
    setup, path = Setup(), f"{w.base}/{w.file('.txt')}"
    lines = [w.token() for _ in range(w.number(15, 60))]
    number = w.number(2, len(lines))
    setup.file(path, "\n".join(lines))
    fields = {"path": path, "number": number}
    return Problem(fields=fields, setup=setup, plan=[f"sed -n {number}p {path}"], answer=lines[number - 1])


def _replace_word(w: World) -> Problem:
    setup, path, old, new = Setup(), f"{w.base}/{w.file('.conf')}", w.word(), w.word()
    filler = w.words(5)
    lines = [" ".join(w.pick([*filler, old], 3)) for _ in range(w.number(6, 14))]
    lines.append(f"{old} {w.pick(filler)} {old}")
    w.rng.shuffle(lines)
    setup.file(path, "\n".join(lines))
    text = "\n".join(lines).replace(old, new)
    return Problem(
        fields={"path": path, "old": old, "new": new},
        setup=setup,
        plan=[f"sed -i 's/{old}/{new}/g' {path}"],
        state=[{"kind": "file", "path": path, "text": text}],
    )


def _frequent_word(w: World) -> Problem:
    setup, path = Setup(), f"{w.base}/{w.file('.txt')}"
    pool = [w.token() for _ in range(8)]
    counts = {word: count for word, count in zip(pool, w.pick(range(3, 20), len(pool)), strict=True)}
    words = [word for word, count in counts.items() for _ in range(count)]
    w.rng.shuffle(words)
    setup.file(path, "\n".join(" ".join(words[n : n + 6]) for n in range(0, len(words), 6)))
    command = f"tr ' ' '\\n' < {path} | sort | uniq -c | sort -rn | head -n 1 | awk '{{print $2}}'"
    answer = max(counts, key=counts.__getitem__)
    return Problem(fields={"path": path}, setup=setup, plan=[command], answer=answer)


def _best_of_town(w: World) -> Problem:
    setup, path = Setup(), f"{w.base}/{w.file('.csv')}"
    header, body = _table(w, w.number(15, 30))
    place, town = w.number(2, 4), w.pick([row[1] for row in body])
    setup.file(path, _csv(header, body))
    best = max((row for row in body if row[1] == town), key=lambda row: int(row[place]))
    command = f"awk -F, '$2 == \"{town}\"' {path} | sort -t , -k {place + 1} -n | tail -n 1 | cut -d , -f 1"
    fields = {"path": path, "column": header[place], "town": town}
    return Problem(fields=fields, setup=setup, plan=[command], answer=best[0])


def _sort_unique(w: World) -> Problem:
    setup, path, target = Setup(), f"{w.base}/{w.file('.txt')}", f"{w.base}/{w.file('.out')}"
    pool = [w.token() for _ in range(w.number(8, 14))]
    lines = [*pool, *(w.pick(pool) for _ in range(w.number(5, 20)))]
    w.rng.shuffle(lines)
    setup.file(path, "\n".join(lines))
    state: Conditions = [
        {"kind": "file", "path": target, "text": "\n".join(sorted(pool))},
        {"kind": "file", "path": path, "text": "\n".join(lines)},
    ]
    plan = [f"LC_ALL=C sort -u {path} > {target}"]
    return Problem(fields={"path": path, "target": target}, setup=setup, plan=plan, state=state)


def _distinct_values(w: World) -> Problem:
    setup, path = Setup(), f"{w.base}/{w.file('.tsv')}"
    pool, place = [w.token() for _ in range(w.number(9, 60))], w.number(2, 3)
    values = [*pool, *(w.pick(pool) for _ in range(w.number(10, 50)))]
    w.rng.shuffle(values)
    rows = [[str(w.number(1, 9)), w.pick("xyz"), w.pick("pqr")] for _ in values]
    for row, value in zip(rows, values, strict=True):
        row[place - 1] = value
    setup.file(path, "\n".join("\t".join(row) for row in rows))
    command = f"cut -f {place} {path} | sort -u | wc -l"
    return Problem(fields={"path": path, "column": place}, setup=setup, plan=[command], answer=len(pool))


def _sum_where(w: World) -> Problem:
    setup, path = Setup(), f"{w.base}/{w.file('.csv')}"
    header, body = _table(w, w.number(18, 36))
    town, sums, bound = w.pick([row[1] for row in body]), header[4], w.number(200, 500)
    setup.file(path, _csv(header, body))
    total = sum(int(row[4]) for row in body if row[1] == town and int(row[2]) > bound)
    command = f"awk -F, '$2 == \"{town}\" && $3 > {bound} {{s += $5}} END {{print s + 0}}' {path}"
    if not total:
        town, total = body[0][1], sum(int(row[4]) for row in body if row[1] == body[0][1])
        bound, command = 0, f"awk -F, '$2 == \"{town}\" && $3 > 0 {{s += $5}} END {{print s + 0}}' {path}"
    fields = {"path": path, "town": town, "column": header[2], "bound": bound, "sums": sums}
    return Problem(fields=fields, setup=setup, plan=[command], answer=total)


def _join_files(w: World) -> Problem:
    setup, items, orders = Setup(), f"{w.base}/items.csv", f"{w.base}/orders.csv"
    groups = w.words(4)
    goods = {w.token(): (w.pick(groups), w.number(2, 90)) for _ in range(w.number(8, 14))}
    wanted = w.pick([group for group, _ in goods.values()])
    rows = [(w.token(), w.pick(list(goods)), w.number(1, 9)) for _ in range(w.number(20, 40))]
    rows.append((w.token(), next(i for i, (group, _) in goods.items() if group == wanted), w.number(1, 9)))
    w.rng.shuffle(rows)
    setup.file(items, "\n".join(["item,group,price", *(f"{i},{g},{p}" for i, (g, p) in goods.items())]))
    setup.file(orders, "\n".join(["order,item,count", *(f"{o},{i},{n}" for o, i, n in rows)]))
    total = sum(goods[item][1] * count for _, item, count in rows if goods[item][0] == wanted)
    plan = [
        f"head -n 3 {items} {orders}",
        "awk -F, 'NR == FNR {g[$1] = $2; p[$1] = $3; next} "
        f'g[$2] == "{wanted}" {{s += p[$2] * $3}} END {{print s}}\' {items} {orders}',
    ]
    return Problem(fields={"folder": w.base, "group": wanted}, setup=setup, plan=plan, answer=total)


def _json_lines(w: World) -> Problem:
    setup, path, states = Setup(), f"{w.base}/{w.file('.jsonl')}", ("paid", "open", "late", "void")
    wanted, total, lines = w.pick(states), 0, []
    for _ in range(w.number(20, 40)):
        state, amount = w.pick(states), w.number(3, 800)
        total += amount if state == wanted else 0
        entries = [("id", w.token()), ("state", state), ("amount", amount), ("note", w.pick(states))]
        w.rng.shuffle(entries)
        lines.append(json.dumps(dict(entries)))
    setup.file(path, "\n".join(lines))
    code = f'import json; rows = map(json.loads, open("{path}")); '
    code += f'print(sum(r["amount"] for r in rows if r["state"] == "{wanted}"))'
    plan = [f"head -n 2 {path}", f"python3 -c '{code}'"]
    return Problem(fields={"path": path, "state": wanted}, setup=setup, plan=plan, answer=total)


def _config_value(w: World) -> Problem:
    setup, path, sections = Setup(), f"{w.base}/{w.file('.ini')}", w.words(4)
    keys = w.pick(("port", "retries", "timeout", "workers", "buffer", "quota"), 4)
    values = {section: {key: w.number(10, 9000) for key in keys} for section in sections}
    section, key, new = w.pick(sections), w.pick(keys), w.number(9001, 9999)

    def text() -> str:
        blocks = (f"[{s}]\n" + "\n".join(f"{k} = {v}" for k, v in pairs.items()) for s, pairs in values.items())
        return "\n\n".join(blocks)

    setup.file(path, text())
    values[section][key] = new
    plan = [f"grep -n '{key}' {path}", f"sed -i '/^\\[{section}\\]/,/^\\[/ s/^{key} = .*/{key} = {new}/' {path}"]
    state: Conditions = [{"kind": "file", "path": path, "text": text()}]
    return Problem(
        fields={"path": path, "section": section, "key": key, "new": new}, setup=setup, plan=plan, state=state
    )


def _median_value(w: World) -> Problem:
    setup, folder = Setup(), w.base
    numbers = [w.number(100, 99_999) for _ in range(2 * w.number(6, 14) + 1)]
    names = [w.file(".val") for _ in range(3)]
    for place, name in enumerate(names):
        setup.file(f"{folder}/{name}", "\n".join(map(str, numbers[place::3])))
    command = f"cat {folder}/*.val | sort -n | awk '{{a[NR] = $1}} END {{print a[(NR + 1) / 2]}}'"
    answer = sorted(numbers)[len(numbers) // 2]
    return Problem(fields={"folder": folder}, setup=setup, plan=[command], answer=answer)


def _rare_pair(w: World) -> Problem:
    setup, path, pool = Setup(), f"{w.base}/{w.file('.txt')}", [w.token() for _ in range(12)]
    lines = [line for token in pool for line in [token] * w.number(2, 6)]
    single = w.token()
    lines.append(single)
    w.rng.shuffle(lines)
    setup.file(path, "\n".join(lines))
    assert Counter(lines)[single] == 1
    return Problem(fields={"path": path}, setup=setup, plan=[f"sort {path} | uniq -u"], answer=single)


TEXT = (
    Template("lines_with_word", "text", "easy", _lines_with_word),
    Template("column_sum", "text", "easy", _column_sum),
    Template("nth_line", "text", "easy", _nth_line),
    Template("replace_word", "text", "easy", _replace_word),
    Template("frequent_word", "text", "medium", _frequent_word),
    Template("best_of_town", "text", "medium", _best_of_town),
    Template("sort_unique", "text", "medium", _sort_unique),
    Template("distinct_values", "text", "medium", _distinct_values),
    Template("rare_pair", "text", "medium", _rare_pair, unseen=True),
    Template("sum_where", "text", "medium", _sum_where),
    Template("join_files", "text", "hard", _join_files),
    Template("json_lines", "text", "hard", _json_lines),
    Template("config_value", "text", "hard", _config_value),
    Template("median_value", "text", "hard", _median_value),
)
