"""Makers of problems about files: count them, find one, move, rename, link, clean up.

Not here: their wordings (phrases.py); drawing names (generate_world.py).
"""

from agentbench_fc.tasks.os.generate_world import Conditions, Problem, Setup, Template, World

_ENDINGS = (".log", ".txt", ".csv", ".dat", ".cfg", ".tmp", ".bak", ".json", ".md", ".xml")


def _others(w: World, ending: str, count: int) -> list[str]:
    endings = [e for e in _ENDINGS if e != ending]
    return [w.file(w.pick(endings)) for _ in range(count)]


def _count_by_ending(w: World) -> Problem:
    setup, ending, total = Setup(), w.pick(_ENDINGS), 0
    for folder in w.tree(3):
        names = [w.file(ending) for _ in range(w.number(2, 24))]
        total += len(names)
        setup.empty(folder, names + _others(w, ending, w.number(2, 8)))
    command = f"find {w.base} -type f -name '*{ending}' | wc -l"
    return Problem(fields={"folder": w.base, "ending": ending}, setup=setup, plan=[command], answer=total)


def _total_size(w: World) -> Problem:
    setup, ending, total = Setup(), w.pick(_ENDINGS), 0
    for _ in range(w.number(3, 6)):
        size = w.number(100, 5000)
        total += size
        setup.sized(f"{w.base}/{w.file(ending)}", size)
    for name in _others(w, ending, w.number(2, 4)):
        setup.sized(f"{w.base}/{name}", w.number(100, 5000))
    command = f"cat {w.base}/*{ending} | wc -c"
    return Problem(fields={"folder": w.base, "ending": ending}, setup=setup, plan=[command], answer=total)


def _largest_file(w: World) -> Problem:
    setup, taken, sizes = Setup(), set[int](), {}
    for _ in range(w.number(5, 9)):
        name = w.file(w.pick(_ENDINGS))
        sizes[name] = w.number_apart(50, 6000, taken)
        setup.sized(f"{w.base}/{name}", sizes[name])
    answer = max(sizes, key=sizes.__getitem__)
    return Problem(fields={"folder": w.base}, setup=setup, plan=[f"ls -S {w.base} | head -n 1"], answer=answer)


def _write_file(w: World) -> Problem:
    setup, name, text = Setup(), w.file(w.pick(_ENDINGS)), f"{w.word()} {w.token()}"
    setup.empty(w.base, _others(w, "", 3))
    path = f"{w.base}/{w.word()}/{name}"
    folder = path.rpartition("/")[0]
    plan = [f"mkdir -p {folder}", f"echo '{text}' > {path}"]
    return Problem(
        fields={"path": path, "line": text},
        setup=setup,
        plan=plan,
        state=[{"kind": "file", "path": path, "text": text}],
    )


def _rename_file(w: World) -> Problem:
    setup, text = Setup(), w.token()
    old, new = w.file(".txt"), w.file(".txt")
    others = _others(w, ".txt", 3)
    setup.file(f"{w.base}/{old}", text)
    setup.empty(w.base, others)
    state: Conditions = [
        {"kind": "file", "path": f"{w.base}/{new}", "text": text},
        {"kind": "names", "path": w.base, "names": [new, *others]},
    ]
    fields = {"folder": w.base, "old": old, "new": new}
    return Problem(fields=fields, setup=setup, plan=[f"mv {w.base}/{old} {w.base}/{new}"], state=state)


def _move_by_size(w: World) -> Problem:
    setup, ending, target = Setup(), w.pick(_ENDINGS), f"{w.base}/{w.word()}"
    source, limit = f"{w.base}/{w.word()}", w.number(8, 40) * 100
    setup.folder(target)
    large, kept = [], []
    for _ in range(w.number(3, 5)):
        large.append(w.file(ending))
        setup.sized(f"{source}/{large[-1]}", limit + w.number(1, 900))
    for _ in range(w.number(2, 4)):
        kept.append(w.file(ending))
        setup.sized(f"{source}/{kept[-1]}", limit - w.number(1, 700))
    for name in _others(w, ending, 2):
        kept.append(name)
        setup.sized(f"{source}/{name}", limit + w.number(1, 900))
    plan = [f"find {source} -maxdepth 1 -type f -name '*{ending}' -size +{limit}c -exec mv {{}} {target}/ \\;"]
    state: Conditions = [
        {"kind": "names", "path": target, "names": large},
        {"kind": "names", "path": source, "names": kept},
    ]
    fields = {"source": source, "target": target, "ending": ending, "limit": limit}
    return Problem(fields=fields, setup=setup, plan=plan, state=state)


def _newest_file(w: World) -> Problem:
    setup, ending, dates = Setup(), w.pick(_ENDINGS), {}
    for folder in w.tree(2):
        for _ in range(w.number(2, 4)):
            path = f"{folder}/{w.file(ending)}"
            dates[path] = w.date()
            setup.file(path, w.word())
        path = f"{folder}/{_others(w, ending, 1)[0]}"
        setup.file(path, w.word())
        setup.run(f"touch -d '{w.date(2025, 2025)}' {path}")
    for path, date in dates.items():
        setup.run(f"touch -d '{date}' {path}")
    answer = max(dates, key=dates.__getitem__)
    command = f"find {w.base} -type f -name '*{ending}' -printf '%T@ %p\\n' | sort -n | tail -n 1 | cut -d ' ' -f 2"
    return Problem(fields={"folder": w.base, "ending": ending}, setup=setup, plan=[command], answer=answer)


def _file_with_word(w: World) -> Problem:
    setup, wanted, paths = Setup(), w.word(), []
    for folder in w.tree(3):
        for _ in range(w.number(2, 4)):
            paths.append(f"{folder}/{w.file('.txt')}")
    answer = w.pick(paths)
    filler = w.words(6)
    for path in paths:
        lines = [" ".join(w.pick(filler, 3)) for _ in range(w.number(2, 5))]
        if path == answer:
            lines.insert(w.number(0, len(lines)), f"{w.pick(filler)} {wanted} {w.pick(filler)}")
        setup.file(path, "\n".join(lines))
    command = f"grep -rlw {wanted} {w.base}"
    return Problem(fields={"folder": w.base, "word": wanted}, setup=setup, plan=[command], answer=answer)


def _empty_files(w: World) -> Problem:
    setup, total = Setup(), 0
    for folder in w.tree(3):
        names = [w.file(w.pick(_ENDINGS)) for _ in range(w.number(2, 22))]
        total += len(names)
        setup.empty(folder, [f".{name}" if w.number(0, 3) == 0 else name for name in names])
        for _ in range(w.number(1, 4)):
            setup.file(f"{folder}/{w.file('.txt')}", w.word())
    return Problem(fields={"folder": w.base}, setup=setup, plan=[f"find {w.base} -type f -empty | wc -l"], answer=total)


def _link_release(w: World) -> Problem:
    setup, numbers = Setup(), set[int]()
    versions = [f"v{w.number_apart(2, 30, numbers)}.{w.number(0, 12)}" for _ in range(5)]
    for version in versions:
        setup.file(f"{w.base}/releases/{version}/info.txt", w.token())
    newest = f"v{max(numbers)}." + next(v for v in versions if v.startswith(f"v{max(numbers)}.")).partition(".")[2]
    older = w.pick([v for v in versions if v != newest])
    setup.run(f"ln -s {w.base}/releases/{older} {w.base}/current")
    plan = [
        f"ls {w.base}/releases | sort -V",
        f"ln -sfn {w.base}/releases/$(ls {w.base}/releases | sort -V | tail -n 1) {w.base}/current",
    ]
    state: Conditions = [
        {"kind": "link", "path": f"{w.base}/current", "target": f"{w.base}/releases/{newest}"},
        {"kind": "names", "path": f"{w.base}/releases", "names": versions},
        {"kind": "names", "path": f"{w.base}/releases/{newest}", "names": ["info.txt"]},
    ]
    return Problem(fields={"folder": w.base}, setup=setup, plan=plan, state=state)


def _same_content(w: World) -> Problem:
    setup, paths, texts = Setup(), [], []
    for folder in w.tree(4):
        for _ in range(w.number(2, 4)):
            paths.append(f"{folder}/{w.file('.bin')}")
    size = w.number(6, 9)
    original = f"{w.base}/{w.file('.orig')}"
    texts = ["\n".join(w.token() for _ in range(size)) for _ in paths]
    answer = w.pick(range(len(paths)))
    for path, text in zip(paths, texts, strict=True):
        setup.file(path, text)
    setup.file(original, texts[answer])
    plan = [
        f"md5sum {original}",
        f"find {w.base} -type f ! -path {original} -exec md5sum {{}} + | grep $(md5sum < {original} | cut -d ' ' -f 1)"
        " | awk '{print $2}'",
    ]
    return Problem(fields={"folder": w.base, "original": original}, setup=setup, plan=plan, answer=paths[answer])


def _broken_links(w: World) -> Problem:
    setup, state, kept = Setup(), Conditions(), []
    folder, targets = f"{w.base}/{w.word()}", f"{w.base}/{w.word()}"
    files = [w.file(".txt") for _ in range(w.number(3, 5))]
    setup.empty(targets, files)
    setup.folder(folder)
    for name in files:
        link = w.word()
        kept.append(link)
        setup.run(f"ln -s {targets}/{name} {folder}/{link}")
    for _ in range(w.number(3, 5)):
        setup.run(f"ln -s {targets}/{w.file('.txt')} {folder}/{w.word()}")
    setup.empty(folder, [plain := w.file(".txt")])
    state.append({"kind": "names", "path": folder, "names": [*kept, plain]})
    state.append({"kind": "names", "path": targets, "names": files})
    plan = [f"find {folder} -xtype l", f"find {folder} -xtype l -delete"]
    return Problem(fields={"folder": folder}, setup=setup, plan=plan, state=state)


def _delete_old(w: World) -> Problem:
    setup, year = Setup(), w.number(2022, 2024)
    ending, kept_by_folder = w.pick(_ENDINGS), {}
    for folder in w.tree(2, depth=1):
        kept = []
        for place in range(w.number(4, 7)):
            old, other = place % 2 == 0, w.number(0, 4) == 0
            name = w.file(w.pick([e for e in _ENDINGS if e != ending]) if other else ending)
            date = w.date(2020, year - 1) if old else w.date(year, 2025)
            setup.file(f"{folder}/{name}", w.word())
            setup.run(f"touch -d '{date}' {folder}/{name}")
            if not old or not name.endswith(ending):
                kept.append(name)
        kept_by_folder[folder] = kept
    folders = list(kept_by_folder)
    for folder in folders[1:]:
        kept_by_folder[w.base].append(folder.rpartition("/")[2])
    state: Conditions = [{"kind": "names", "path": folder, "names": kept} for folder, kept in kept_by_folder.items()]
    plan = [f"find {w.base} -type f -name '*{ending}' ! -newermt '{year}-01-01' -delete"]
    fields = {"folder": w.base, "ending": ending, "year": year}
    return Problem(fields=fields, setup=setup, plan=plan, state=state)


def _sum_over_index(w: World) -> Problem:
    setup, total, listed = Setup(), 0, []
    for folder in w.tree(3):
        for _ in range(w.number(2, 4)):
            name, number = f"{w.word()} {w.file('.num')}", w.number(10, 9999)
            setup.file(f"{folder}/{name}", str(number))
            if w.number(0, 2):
                listed.append(f"{folder}/{name}".removeprefix(f"{w.base}/"))
                total += number
    setup.file(f"{w.base}/index.lst", "\n".join(listed) if listed else "")
    command = (
        f"cd {w.base} && while IFS= read -r f; do cat \"$f\"; done < index.lst | awk '{{s += $1}} END {{print s + 0}}'"
    )
    return Problem(
        fields={"index": f"{w.base}/index.lst"}, setup=setup, plan=[f"head {w.base}/index.lst", command], answer=total
    )


FILES = (
    Template("count_by_ending", "files", "easy", _count_by_ending),
    Template("total_size", "files", "easy", _total_size),
    Template("largest_file", "files", "easy", _largest_file),
    Template("write_file", "files", "easy", _write_file),
    Template("rename_file", "files", "easy", _rename_file),
    Template("move_by_size", "files", "medium", _move_by_size),
    Template("newest_file", "files", "medium", _newest_file),
    Template("file_with_word", "files", "medium", _file_with_word),
    Template("empty_files", "files", "medium", _empty_files),
    Template("link_release", "files", "hard", _link_release),
    Template("same_content", "files", "hard", _same_content),
    Template("broken_links", "files", "hard", _broken_links, unseen=True),
    Template("delete_old", "files", "hard", _delete_old),
    Template("sum_over_index", "files", "hard", _sum_over_index),
)
