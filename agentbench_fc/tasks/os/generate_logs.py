"""Makers of problems about logs: count, pick, add up, follow one request, read rotated files.

Not here: their wordings (phrases.py).
"""

from agentbench_fc.tasks.os.generate_world import Conditions, Problem, Setup, Template, World

_LEVELS = ("INFO", "DEBUG", "WARNING")


def _clock(second: int) -> str:
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def _day(w: World) -> str:
    return w.date()[:10]


def _address(w: World) -> str:
    return f"10.{w.number(0, 255)}.{w.number(0, 255)}.{w.number(1, 254)}"


def _seconds(w: World, count: int) -> list[int]:
    return sorted(w.pick(range(86_400), count))


def _count_level(w: World) -> Problem:
    setup, path, hits = Setup(), f"{w.base}/{w.word()}.log", w.number(9, 80)
    wanted = w.pick(("ERROR", "FATAL", "CRITICAL"))
    levels = [wanted] * hits + [w.pick(_LEVELS) for _ in range(w.number(20, 60))]
    w.rng.shuffle(levels)
    day, part = _day(w), w.words(4)
    lines = [
        f"{day} {_clock(second)} {level} {w.pick(part)}: after {w.pick(('ERROR', 'retry', 'pause'))} {w.number(1, 99)}"
        if level != wanted
        else f"{day} {_clock(second)} {level} {w.pick(part)}: gave up"
        for second, level in zip(_seconds(w, len(levels)), levels, strict=True)
    ]
    setup.file(path, "\n".join(lines))
    command = f"awk '$3 == \"{wanted}\"' {path} | wc -l"
    return Problem(fields={"path": path, "level": wanted}, setup=setup, plan=[command], answer=hits)


def _last_request(w: World) -> Problem:
    setup, path, day = Setup(), f"{w.base}/{w.word()}.log", _day(w)
    seconds = _seconds(w, w.number(30, 60))
    rows = [(second, w.pick((*_LEVELS, "ERROR")), w.token()) for second in seconds]
    rows.insert(5, (rows[4][0], "ERROR", w.token()))
    setup.file(path, "\n".join(f"{day} {_clock(s)} {level} request={request}" for s, level, request in rows))
    answer = next(request for _, level, request in reversed(rows) if level == "ERROR")
    command = f"grep ' ERROR ' {path} | tail -n 1 | sed 's/.*request=//'"
    return Problem(fields={"path": path}, setup=setup, plan=[command], answer=answer)


def _access_log(w: World, count: int, addresses: list[str]) -> list[tuple[str, int, str, int, int]]:
    """Rows of address, second, page, status and bytes."""
    pages = [f"/{word}" for word in w.words(5)]
    return [
        (w.pick(addresses), second, w.pick(pages), w.pick((200, 200, 200, 301, 404, 500)), w.number(100, 9000))
        for second in _seconds(w, count)
    ]


def _rendered(day: str, rows: list[tuple[str, int, str, int, int]]) -> str:
    return "\n".join(f'{ip} [{day}:{_clock(s)}] "GET {page}" {status} {size}' for ip, s, page, status, size in rows)


def _busiest_address(w: World) -> Problem:
    setup, path = Setup(), f"{w.base}/access.log"
    addresses = [_address(w) for _ in range(6)]
    counts = w.pick(range(3, 16), 6)
    rows = _access_log(w, sum(counts), addresses)
    owners = [ip for ip, count in zip(addresses, counts, strict=True) for _ in range(count)]
    w.rng.shuffle(owners)
    rows = [(ip, *row[1:]) for ip, row in zip(owners, rows, strict=True)]
    setup.file(path, _rendered(_day(w), rows))
    command = f"cut -d ' ' -f 1 {path} | sort | uniq -c | sort -rn | head -n 1 | awk '{{print $2}}'"
    answer = addresses[counts.index(max(counts))]
    return Problem(fields={"path": path}, setup=setup, plan=[command], answer=answer)


def _bytes_of_status(w: World) -> Problem:
    setup, path, status = Setup(), f"{w.base}/access.log", w.pick((200, 301, 404, 500))
    rows = _access_log(w, w.number(40, 70), [_address(w) for _ in range(5)])
    rows[3] = (*rows[3][:3], status, rows[3][4])
    setup.file(path, _rendered(_day(w), rows))
    total = sum(row[4] for row in rows if row[3] == status)
    command = f"awk '$(NF - 1) == {status} {{s += $NF}} END {{print s}}' {path}"
    return Problem(fields={"path": path, "status": status}, setup=setup, plan=[command], answer=total)


def _within_hours(w: World) -> Problem:
    setup, path, day = Setup(), f"{w.base}/{w.word()}.log", _day(w)
    first = w.number(3, 15)
    last = first + w.number(3, 5)
    inside = sorted(w.pick(range(first * 3600, last * 3600), w.number(9, 60)))
    seconds = sorted([*inside, *w.pick(range(last * 3600, 86_400), 15), *w.pick(range(first * 3600), 15)])
    setup.file(path, "\n".join(f"{day}T{_clock(s)}Z {w.pick(_LEVELS)} step {w.number(1, 30)}" for s in seconds))
    command = f"awk -F'[T:]' '$2 >= {first} && $2 < {last}' {path} | wc -l"
    fields = {"path": path, "first": f"{first:02}:00:00", "last": f"{last:02}:00:00"}
    return Problem(fields=fields, setup=setup, plan=[command], answer=len(inside))


def _failing_users(w: World) -> Problem:
    setup, path, day = Setup(), f"{w.base}/auth.log", _day(w)
    bad = [w.user() for _ in range(w.number(9, 60))]
    good = [w.user() for _ in range(w.number(4, 9))]
    events = [(name, "failed") for name in bad] + [(w.pick(bad), "failed") for _ in range(w.number(5, 30))]
    events += [(w.pick([*good, *bad]), "accepted") for _ in range(20)]
    w.rng.shuffle(events)
    seconds = _seconds(w, len(events))
    lines = [f"{day} {_clock(s)} login {what} for user {name}" for s, (name, what) in zip(seconds, events, strict=True)]
    setup.file(path, "\n".join(lines))
    command = f"grep ' failed ' {path} | awk '{{print $NF}}' | sort -u | wc -l"
    return Problem(fields={"path": path}, setup=setup, plan=[command], answer=len(bad))


def _rotated_logs(w: World) -> Problem:
    setup, name, total = Setup(), w.word(), 0
    day, user = _day(w), w.user()
    others = [w.user() for _ in range(4)]
    for place in range(4):
        path = f"{w.base}/{name}.log" + (f".{place}" if place else "")
        lines = []
        for second in _seconds(w, w.number(15, 30)):
            who, size = w.pick([user, *others]), w.number(10, 900)
            total += size if who == user else 0
            lines.append(f"{day} {_clock(second)} user={who} bytes={size}")
        setup.file(path, "\n".join(lines))
        if place > 1:
            setup.run(f"gzip {path}")
    if not total:
        total, line = 77, f"{day} 23:59:59 user={user} bytes=77"
        setup.run(f"echo '{line}' >> {w.base}/{name}.log")
    plan = [
        f"ls {w.base}",
        f"zcat -f {w.base}/{name}.log* | grep 'user={user} ' | sed 's/.*bytes=//' | awk '{{s += $1}} END {{print s}}'",
    ]
    return Problem(fields={"folder": w.base, "name": name, "user": user}, setup=setup, plan=plan, answer=total)


def _slowest_job(w: World) -> Problem:
    setup, path, day = Setup(), f"{w.base}/{w.word()}.log", _day(w)
    taken, events, durations = set[int](), [], {}
    for _ in range(w.number(8, 14)):
        job, begin = w.token(), w.number(0, 70_000)
        durations[job] = w.number_apart(20, 9000, taken)
        events += [(begin, f"job {job} started"), (begin + durations[job], f"job {job} finished")]
    unfinished = w.token()
    events.append((w.number(0, 70_000), f"job {unfinished} started"))
    lines = [f"{day} {_clock(second)} {what}" for second, what in sorted(events)]
    setup.file(path, "\n".join(lines))
    answer = max(durations, key=durations.__getitem__)
    code = (
        '{split($2, t, ":"); n = t[1] * 3600 + t[2] * 60 + t[3]} / started$/ {b[$4] = n}'
        " / finished$/ {print n - b[$4], $4}"
    )
    plan = [f"head -n 4 {path}", f"awk '{code}' {path} | sort -n | tail -n 1 | cut -d ' ' -f 2"]
    return Problem(fields={"path": path}, setup=setup, plan=plan, answer=answer)


def _broken_in(w: World) -> Problem:
    setup, path, day = Setup(), f"{w.base}/auth.log", _day(w)
    users, intruder = [w.user() for _ in range(7)], w.user()
    runs: list[list[tuple[str, str]]] = [[(intruder, "failed")] * w.number(5, 7) + [(intruder, "accepted")]]
    for place, name in enumerate(users):
        if place < 2:
            runs.append([(name, "failed")] * w.number(6, 9))
        else:
            runs.append([(name, "failed")] * w.number(0, 3) + [(name, "accepted")])
    w.rng.shuffle(runs)
    events = [event for run in runs for event in run]
    seconds = _seconds(w, len(events))
    lines = [f"{day} {_clock(s)} login {what} for user {name}" for s, (name, what) in zip(seconds, events, strict=True)]
    setup.file(path, "\n".join(lines))
    code = '$4 == "failed" {f[$NF]++} $4 == "accepted" {if (f[$NF] >= 5) print $NF; f[$NF] = 0}'
    plan = [f"head -n 3 {path}", f"awk '{code}' {path} | sort -u"]
    return Problem(fields={"path": path}, setup=setup, plan=plan, answer=intruder)


def _merge_logs(w: World) -> Problem:
    setup, day, names = Setup(), _day(w), w.words(3)
    target, lines = f"{w.base}/merged.log", []
    seconds = w.pick(range(86_400), w.number(18, 30))
    for place, name in enumerate(names):
        own = [f"{day} {_clock(s)} {name} {w.token()}" for s in sorted(seconds[place::3])]
        setup.file(f"{w.base}/{name}.log", "\n".join(own))
        lines += own
    plan = [f"cat {w.base}/*.log | sort > /tmp/merged && mv /tmp/merged {target}"]
    state: Conditions = [{"kind": "file", "path": target, "text": "\n".join(sorted(lines))}]
    state += [{"kind": "names", "path": w.base, "names": ["merged.log", *(f"{name}.log" for name in names)]}]
    return Problem(fields={"folder": w.base, "target": target}, setup=setup, plan=plan, state=state)


LOGS = (
    Template("count_level", "logs", "easy", _count_level),
    Template("last_request", "logs", "easy", _last_request),
    Template("busiest_address", "logs", "medium", _busiest_address),
    Template("bytes_of_status", "logs", "medium", _bytes_of_status),
    Template("within_hours", "logs", "medium", _within_hours),
    Template("failing_users", "logs", "medium", _failing_users),
    Template("rotated_logs", "logs", "hard", _rotated_logs),
    Template("slowest_job", "logs", "hard", _slowest_job),
    Template("broken_in", "logs", "hard", _broken_in),
    Template("merge_logs", "logs", "hard", _merge_logs, unseen=True),
)
