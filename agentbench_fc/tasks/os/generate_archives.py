"""Makers of problems about archives: look into one, unpack, pack, find what is nested.

Not here: their wordings (phrases.py); reading what an agent packed (state.py).
"""

from agentbench_fc.tasks.os.generate_world import Conditions, Problem, Setup, Template, World

_FORMS = ("tar.gz", "tar.bz2", "tar.xz", "zip")
_LETTER = {"tar": "", "tar.gz": "z", "tar.bz2": "j", "tar.xz": "J"}


def _pack(form: str, archive: str, folder: str, members: str = ".") -> str:
    """The command that packs what is in a folder."""
    if form == "zip":
        return f"(cd {folder} && zip -qr {archive} {members})"
    return f"tar -c{_LETTER[form]}f {archive} -C {folder} {members}"


def _unpack(form: str, archive: str, folder: str) -> str:
    return f"unzip -q {archive} -d {folder}" if form == "zip" else f"tar -xf {archive} -C {folder}"


def _list(form: str, archive: str) -> str:
    return f"zipinfo -1 {archive}" if form == "zip" else f"tar -tf {archive}"


def _show(form: str, archive: str, member: str) -> str:
    return f"unzip -p {archive} '{member}'" if form == "zip" else f"tar -xOf {archive} ./{member}"


def _packed(w: World, setup: Setup, form: str, count: int, ending: str = ".txt") -> tuple[str, dict[str, str]]:
    """An archive with files in two folders; its path, and name -> text. What was packed is gone."""
    work, archive = f"/tmp/{w.word()}", f"{w.base}/{w.word()}.{form}"
    folders = [w.word(), w.word()]
    members = {f"{w.pick(folders)}/{w.file(ending)}": f"{w.word()} {w.token()}" for _ in range(count)}
    for name, text in members.items():
        setup.file(f"{work}/{name}", text)
    setup.folder(w.base)
    setup.run(_pack(form, archive, work))
    setup.run(f"rm -r {work}")
    return archive, members


def _count_members(w: World) -> Problem:
    setup, form, total = Setup(), w.pick(_FORMS), w.number(9, 60)
    work, archive = f"/tmp/{w.word()}", f"{w.base}/{w.word()}.{form}"
    setup.empty(work, [w.file(".txt") for _ in range(total)])
    setup.empty(work, [w.file(".jpg") for _ in range(w.number(3, 20))])
    setup.folder(w.base)
    setup.run(_pack(form, archive, work))
    setup.run(f"cd / && rm -r {work}")
    command = f"{_list(form, archive)} | grep -c '\\.txt$'"
    return Problem(fields={"archive": archive}, setup=setup, plan=[command], answer=total)


def _unpack_archive(w: World) -> Problem:
    setup, form = Setup(), w.pick(_FORMS)
    archive, members = _packed(w, setup, form, w.number(3, 6))
    target = f"{w.base}/{w.word()}"
    plan = [f"mkdir -p {target}", _unpack(form, archive, target)]
    state: Conditions = [{"kind": "file", "path": f"{target}/{name}", "text": text} for name, text in members.items()]
    return Problem(fields={"archive": archive, "target": target}, setup=setup, plan=[" && ".join(plan)], state=state)


def _pack_folder(w: World) -> Problem:
    setup, form, folder = Setup(), w.pick(_FORMS), f"{w.base}/{w.word()}"
    members = {}
    for sub in ("", f"{w.word()}/"):
        for _ in range(w.number(2, 3)):
            members[f"{sub}{w.file('.txt')}"] = w.token()
    for name, text in members.items():
        setup.file(f"{folder}/{name}", text)
    archive = f"{w.base}/{w.word()}.{form}"
    name = folder.rpartition("/")[2]
    state: Conditions = [
        {"kind": "archive", "path": archive, "form": form, "members": {f"{name}/{m}": t for m, t in members.items()}},
        *({"kind": "file", "path": f"{folder}/{m}", "text": t} for m, t in members.items()),
    ]
    fields = {"folder": folder, "archive": archive, "name": name}
    return Problem(fields=fields, setup=setup, plan=[_pack(form, archive, w.base, name)], state=state)


def _text_in_archive(w: World) -> Problem:
    setup, form = Setup(), w.pick(_FORMS)
    archive, members = _packed(w, setup, form, w.number(4, 8))
    name = w.pick(list(members))
    short = name.rpartition("/")[2]
    plan = [_list(form, archive), f"{_show(form, archive, name)}"]
    return Problem(fields={"archive": archive, "name": short}, setup=setup, plan=plan, answer=members[name])


def _size_unpacked(w: World) -> Problem:
    setup, form, total = Setup(), w.pick(_FORMS), 0
    work, archive = f"/tmp/{w.word()}", f"{w.base}/{w.word()}.{form}"
    for ending in (".dat", ".dat", ".dat", ".txt", ".dat"):
        size = w.number(200, 9000)
        total += size if ending == ".dat" else 0
        setup.sized(f"{work}/{w.file(ending)}", size)
    setup.folder(w.base)
    setup.run(_pack(form, archive, work))
    setup.run(f"cd / && rm -r {work}")
    folder = f"/tmp/{w.word()}"
    command = f"mkdir {folder} && {_unpack(form, archive, folder)} && cat {folder}/*.dat | wc -c"
    return Problem(fields={"archive": archive}, setup=setup, plan=[command], answer=total)


def _nested_archive(w: World) -> Problem:
    setup, forms, token = Setup(), w.pick(_FORMS, 3), w.token()
    name, work = w.file(".txt"), f"/tmp/{w.word()}"
    setup.file(f"{work}/0/{name}", f"{w.word()}\ncode: {token}")
    setup.folder(w.base)
    inner, folders = f"{work}/0", []
    for place, form in enumerate(forms, start=1):
        target = f"{work}/{place}" if place < 3 else w.base
        setup.folder(target)
        if place < 3:
            setup.file(f"{target}/{w.file('.md')}", w.token())
        folders.append(f"{target}/{w.word()}.{form}")
        setup.run(_pack(form, folders[-1], inner))
        inner = target
    setup.run(f"cd / && rm -r {work}")
    box = f"/tmp/{w.word()}"
    plan = [f"mkdir {box} && {_unpack(forms[2], folders[2], box)} && ls {box}"]
    plan.append(f"{_unpack(forms[1], f'{box}/{_last(folders[1])}', box)} && ls {box}")
    plan.append(f"{_unpack(forms[0], f'{box}/{_last(folders[0])}', box)} && grep ^code: {box}/{name} | cut -d ' ' -f 2")
    return Problem(fields={"archive": folders[2], "name": name}, setup=setup, plan=plan, answer=token)


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _unpack_some(w: World) -> Problem:
    setup, form = Setup(), w.pick(("tar.gz", "tar.bz2", "tar.xz"))
    work, archive, target = f"/tmp/{w.word()}", f"{w.base}/{w.word()}.{form}", f"{w.base}/{w.word()}"
    wanted, ending = {}, w.pick((".conf", ".key", ".sql"))
    for folder in w.words(3):
        for each in (ending, ending, ".txt"):
            name, text = w.file(each), w.token()
            setup.file(f"{work}/{folder}/{name}", text)
            if each == ending:
                wanted[name] = text
    setup.folder(target)
    setup.run(_pack(form, archive, work))
    setup.run(f"cd / && rm -r {work}")
    box = f"/tmp/{w.word()}"
    plan = [f"mkdir {box} && tar -xf {archive} -C {box}", f"find {box} -name '*{ending}' -exec cp {{}} {target}/ \\;"]
    state: Conditions = [
        {"kind": "names", "path": target, "names": list(wanted)},
        *({"kind": "file", "path": f"{target}/{name}", "text": text} for name, text in wanted.items()),
    ]
    fields = {"archive": archive, "ending": ending, "target": target}
    return Problem(fields=fields, setup=setup, plan=plan, state=state)


def _wrong_name(w: World) -> Problem:
    setup, form, token = Setup(), w.pick(_FORMS), w.token()
    work, name = f"/tmp/{w.word()}", w.file(".txt")
    path = f"{w.base}/{w.file('.dat')}"
    setup.file(f"{work}/{name}", f"ticket {token}")
    setup.folder(w.base)
    setup.run(_pack(form, f"{work}.{form}", work))
    setup.run(f"mv {work}.{form} {path} && rm -r {work}")
    box = f"/tmp/{w.word()}"
    plan = [
        f"head -c 4 {path} | od -c | head -n 1",
        f"mkdir {box} && {_unpack(form, path, box)} && cut -d ' ' -f 2 {box}/{name}",
    ]
    return Problem(fields={"path": path, "name": name}, setup=setup, plan=plan, answer=token)


def _changed_since_backup(w: World) -> Problem:
    setup, form, folder = Setup(), w.pick(_FORMS), f"{w.base}/{w.word()}"
    names = [w.file(".txt") for _ in range(w.number(6, 12))]
    answer = w.pick(names)
    for name in names:
        setup.file(f"{folder}/{name}", w.token())
    archive = f"{w.base}/backup.{form}"
    setup.run(_pack(form, archive, folder))
    setup.file(f"{folder}/{answer}", w.token())
    box = f"/tmp/{w.word()}"
    plan = [
        f"mkdir {box} && {_unpack(form, archive, box)} && diff -rq {box} {folder}",
        f"diff -rq {box} {folder} | awk '{{print $4}}' | xargs basename",
    ]
    return Problem(fields={"archive": archive, "folder": folder}, setup=setup, plan=plan, answer=answer)


ARCHIVES = (
    Template("count_members", "archives", "easy", _count_members),
    Template("unpack_archive", "archives", "easy", _unpack_archive),
    Template("pack_folder", "archives", "medium", _pack_folder),
    Template("text_in_archive", "archives", "medium", _text_in_archive),
    Template("size_unpacked", "archives", "medium", _size_unpacked),
    Template("nested_archive", "archives", "hard", _nested_archive),
    Template("unpack_some", "archives", "hard", _unpack_some),
    Template("wrong_name", "archives", "hard", _wrong_name, unseen=True),
    Template("changed_since_backup", "archives", "hard", _changed_since_backup),
)
