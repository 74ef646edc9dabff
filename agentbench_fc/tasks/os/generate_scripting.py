"""Makers of problems whose solution is a bash script, tried on inputs that the agent has not seen.

Not here: their wordings (phrases.py); running the script (grading.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentbench_fc.tasks.os.generate_world import Conditions, Problem, Setup, Template, World

_SEPARATORS = {"comma": ",", "semicolon": ";", "colon": ":", "vertical bar": "|"}


def _run(path: str, arguments: Sequence[str], stdout: str, **more: Any) -> Mapping[str, Any]:
    return {"kind": "runs", "argv": ["/bin/bash", path, *arguments], "stdout": stdout, **more}


def _problem(w: World, path: str, script: str, state: Conditions, **fields: Any) -> Problem:
    setup = Setup()
    setup.folder(w.base)
    setup.file(f"{w.base}/{w.file('.txt')}", w.token())
    plan = [f"cat > {path} <<'END'\n#!/bin/bash\n{script}\nEND\nchmod 755 {path}"]
    return Problem(fields={"path": path, **fields}, setup=setup, plan=plan, state=state)


def _path(w: World) -> str:
    return f"{w.base}/{w.word()}.sh"


def _combine_numbers(w: World) -> Problem:
    path, factor, offset = _path(w), w.number(2, 60), w.number(5, 900)
    cases = [(w.number(1, 300), w.number(1, 300)) for _ in range(3)]
    state: Conditions = [_run(path, [str(a), str(b)], str(factor * a + b - offset)) for a, b in cases]
    return _problem(w, path, f"echo $(( {factor} * $1 + $2 - {offset} ))", state, factor=factor, offset=offset)


def _count_in_file(w: World) -> Problem:
    path, wanted, state = _path(w), w.word(), Conditions()
    filler = w.words(4)
    for _ in range(2):
        hits, given = w.number(0, 30), f"/tmp/{w.file('.txt')}"
        lines = [f"{w.pick(filler)} {wanted}" for _ in range(hits)]
        lines += [w.pick(filler) for _ in range(w.number(1, 20))]
        w.rng.shuffle(lines)
        state.append(_run(path, [given], str(hits), files={given: "\n".join(lines) + "\n"}))
    return _problem(w, path, f'grep -c {wanted} "$1"\ntrue', state, word=wanted)


def _sum_of_column(w: World) -> Problem:
    path, (said, separator), column = _path(w), w.pick(list(_SEPARATORS.items())), w.number(2, 4)
    state = Conditions()
    for _ in range(2):
        rows = [
            [w.word() if place == 0 else str(w.number(1, 500)) for place in range(5)] for _ in range(w.number(3, 6))
        ]
        text = "\n".join(separator.join(row) for row in rows) + "\n"
        state.append(_run(path, [], str(sum(int(row[column - 1]) for row in rows)), stdin=text))
    code = f"awk -F'[{separator}]' '{{s += ${column}}} END {{print s + 0}}'"
    return _problem(w, path, code, state, separator=said, column=column)


def _sort_arguments(w: World) -> Problem:
    path, (said, separator) = _path(w), w.pick(list(_SEPARATORS.items()))
    order, bound = w.pick(("ascending", "descending")), w.number(20, 60)
    state = Conditions()
    for _ in range(3):
        numbers = [w.number(1, 200) for _ in range(w.number(4, 8))] + [bound + 1]
        kept = sorted((n for n in numbers if n > bound), reverse=order == "descending")
        state.append(_run(path, [str(n) for n in numbers], separator.join(map(str, kept))))
    flag = "-nr" if order == "descending" else "-n"
    code = f"printf '%s\\n' \"$@\" | awk '$1 > {bound}' | sort {flag} | paste -sd '{separator}'"
    return _problem(w, path, code, state, separator=said, order=order, bound=bound)


def _reverse_words(w: World) -> Problem:
    path, (said, separator) = _path(w), w.pick(list(_SEPARATORS.items()))
    state = Conditions()
    for _ in range(2):
        lines = [
            [w.pick(("red", "blue", "tall", "old", "new", "late")) for _ in range(w.number(2, 5))] for _ in range(3)
        ]
        given = "".join(" ".join(line) + "\n" for line in lines)
        state.append(_run(path, [], "\n".join(separator.join(reversed(line)) for line in lines), stdin=given))
    code = f'awk \'{{for (i = NF; i > 0; i--) printf "%s%s", $i, (i > 1 ? "{separator}" : "\\n")}}\''
    return _problem(w, path, code, state, separator=said)


def _totals_by_key(w: World) -> Problem:
    path, (said, separator), least = _path(w), w.pick(list(_SEPARATORS.items())), w.number(50, 300)
    state = Conditions()
    for _ in range(2):
        keys = w.words(4)
        rows = [(w.pick(keys), w.number(1, 99)) for _ in range(w.number(8, 16))]
        rows.append((keys[0], least))
        totals = {key: sum(n for k, n in rows if k == key) for key in sorted(keys)}
        lines = [f"{key}={total}" for key, total in totals.items() if total >= least]
        given = "".join(f"{key}{separator}{number}\n" for key, number in rows)
        state.append(_run(path, [], "\n".join(lines), stdin=given))
    code = (
        f"awk -F'[{separator}]' '{{s[$1] += $2}} END {{for (k in s) if (s[k] >= {least}) print k \"=\" s[k]}}'"
        " | LC_ALL=C sort"
    )
    return _problem(w, path, code, state, separator=said, least=least)


def _checked_arguments(w: World) -> Problem:
    path, code, word = _path(w), w.number(3, 90), w.word()
    state = Conditions()
    probe = f'/bin/bash {path} "$@"; echo "status $?"'
    for _ in range(2):
        number = w.number(2, 400)
        state.append(_shell(probe, [str(number)], f"{word} {number * number}\nstatus 0"))
    state.append(_shell(probe, [], f"status {code}"))
    state.append(_shell(probe, ["7", "8"], f"status {code}"))
    script = f'[ $# -eq 1 ] || exit {code}\necho "{word} $(( $1 * $1 ))"'
    return _problem(w, path, script, state, code=code, word=word)


def _shell(code: str, arguments: Sequence[str], stdout: str) -> Mapping[str, Any]:
    return {"kind": "runs", "argv": ["/bin/bash", "-c", code, "--", *arguments], "stdout": stdout}


def _mend_script(w: World) -> Problem:
    path, setup, word = _path(w), Setup(), w.word()
    factor = w.number(3, 40)
    broken = f"#!/bin/bash\n# prints {word} and {factor} times the sum of all arguments\ntotal=0\n"
    broken += (
        'for number in "$1"; do\n  total=$(( total + number )\ndone\n' + f"echo {word} $(( total * {factor + 1} ))\n"
    )
    setup.file(path, broken)
    state = Conditions()
    for count in (1, 3, 4):
        numbers = [w.number(1, 500) for _ in range(count)]
        state.append(_run(path, [str(n) for n in numbers], f"{word} {factor * sum(numbers)}"))
    edits = 's/"\\$1"/"$@"/; s/number )$/number ))/; ' + f"s/total \\* {factor + 1}/total * {factor}/"
    plan = [f"cat {path}; bash {path} 1 2", f"sed -i '{edits}' {path} && bash {path} 1 2"]
    return Problem(fields={"path": path, "word": word, "factor": factor}, setup=setup, plan=plan, state=state)


def _to_json(w: World) -> Problem:
    path, key = _path(w), w.word()
    state = Conditions()
    for _ in range(2):
        pairs = {w.word(): w.token() for _ in range(w.number(2, 4))}
        given, extra = "".join(f"{k}={v}\n" for k, v in pairs.items()), w.token()
        wanted = {key: extra} | pairs
        text = "{" + ", ".join(f'"{k}": "{v}"' for k, v in wanted.items()) + "}"
        state.append(_run(path, [extra], text, stdin=given))
    code = f'{{ echo "{key}=$1"; cat; }} | awk -F= \'{{printf "%s\\"%s\\": \\"%s\\"", (NR > 1 ? ", " : "{{"), $1, $2}}'
    code += ' END {print "}"}\''
    return _problem(w, path, code, state, key=key)


SCRIPTING = (
    Template("combine_numbers", "scripting", "easy", _combine_numbers),
    Template("count_in_file", "scripting", "easy", _count_in_file),
    Template("sum_of_column", "scripting", "medium", _sum_of_column),
    Template("sort_arguments", "scripting", "medium", _sort_arguments),
    Template("reverse_words", "scripting", "medium", _reverse_words, unseen=True),
    Template("totals_by_key", "scripting", "hard", _totals_by_key),
    Template("checked_arguments", "scripting", "hard", _checked_arguments),
    Template("mend_script", "scripting", "hard", _mend_script),
    Template("to_json", "scripting", "hard", _to_json),
)
