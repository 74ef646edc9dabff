"""Makers of problems about permissions and about users and groups.

Not here: their wordings (phrases.py); how a state is judged (state.py).
"""

from typing import Any

from agentbench_fc.tasks.os.generate_world import Conditions, Problem, Setup, Template, World

_FILE_MODES = ("600", "640", "644", "660", "440", "400", "664", "604", "620", "444")
_DIR_MODES = ("700", "750", "755", "770", "710", "711", "775", "751")


def _mode(path: str, mode: str) -> dict[str, Any]:
    return {"kind": "mode", "path": path, "mode": mode}


def _people(w: World, setup: Setup, count: int) -> dict[str, int]:
    """Users with numbers of their own."""
    taken, users = set[int](), {}
    for _ in range(count):
        name = w.user()
        users[name] = w.number_apart(1200, 59_000, taken)
        setup.run(f"useradd -u {users[name]} -m -s /bin/bash {name}")
    return users


def _set_mode(w: World) -> Problem:
    setup, path = Setup(), f"{w.base}/{w.file('.txt')}"
    setup.file(path, w.token())
    before, after = w.pick(_FILE_MODES, 2)
    setup.run(f"chmod {before} {path}")
    return Problem(
        fields={"path": path, "mode": after}, setup=setup, plan=[f"chmod {after} {path}"], state=[_mode(path, after)]
    )


def _read_mode(w: World) -> Problem:
    setup, path = Setup(), f"{w.base}/{w.file('.sh')}"
    mode = f"{w.number(4, 7)}{w.number(0, 7)}{w.number(0, 7)}"
    setup.file(path, w.token())
    setup.run(f"chmod {mode} {path}")
    return Problem(fields={"path": path}, setup=setup, plan=[f"stat -c %a {path}"], answer=mode)


def _modes_of_tree(w: World) -> Problem:
    setup, file_mode, dir_mode = Setup(), w.pick(_FILE_MODES), w.pick(_DIR_MODES)
    folders, files = w.tree(3), []
    for folder in folders:
        for _ in range(w.number(1, 3)):
            files.append(f"{folder}/{w.file('.txt')}")
            setup.file(files[-1], w.word())
            setup.run(f"chmod {w.pick([m for m in _FILE_MODES if m != file_mode])} {files[-1]}")
    setup.run(f"find {w.base} -type d -exec chmod {w.pick([m for m in _DIR_MODES if m != dir_mode])} {{}} +")
    plan = [
        f"find {w.base} -type f -exec chmod {file_mode} {{}} +",
        f"find {w.base} -type d -exec chmod {dir_mode} {{}} +",
    ]
    state: Conditions = [_mode(f, file_mode) for f in files] + [_mode(f, dir_mode) for f in folders]
    fields = {"folder": w.base, "file_mode": file_mode, "dir_mode": dir_mode}
    return Problem(fields=fields, setup=setup, plan=plan, state=state)


def _count_writable(w: World) -> Problem:
    setup, total = Setup(), 0
    for folder in w.tree(3):
        wide = [w.file(".dat") for _ in range(w.number(2, 22))]
        total += len(wide)
        closed = [w.file(".dat") for _ in range(w.number(2, 9))]
        setup.empty(folder, wide + closed)
        setup.run(f"chmod {w.pick(('646', '666', '662', '777'))} {' '.join(wide)}")
        setup.run(f"chmod {w.pick(('640', '664', '775', '600'))} {' '.join(closed)}")
    command = f"find {w.base} -type f -perm -o=w | wc -l"
    return Problem(fields={"folder": w.base}, setup=setup, plan=[command], answer=total)


def _find_setuid(w: World) -> Problem:
    setup, paths = Setup(), []
    for folder in w.tree(4):
        for _ in range(w.number(2, 3)):
            paths.append(f"{folder}/{w.word()}")
            setup.file(paths[-1], f"echo {w.word()}")
    setup.run(f"chmod 755 {' '.join(paths)}")
    answer, other = w.pick(paths, 2)
    setup.run(f"chmod 4755 {answer}")
    setup.run(f"chmod 2755 {other}")
    command = f"find {w.base} -type f -perm -4000"
    return Problem(fields={"folder": w.base}, setup=setup, plan=[command], answer=answer)


def _change_owner(w: World) -> Problem:
    setup = Setup()
    old, new, third = _people(w, setup, 3)
    state: Conditions = []
    for folder in w.tree(2):
        for _ in range(w.number(2, 3)):
            path, owner = f"{folder}/{w.file('.txt')}", w.pick((old, old, third))
            setup.file(path, w.word())
            setup.run(f"chown {owner}:{owner} {path}")
            state.append({"kind": "owner", "path": path, "user": new if owner == old else owner})
    path = f"{w.base}/{w.file('.txt')}"
    setup.file(path, w.word())
    setup.run(f"chown {old}:{old} {path}")
    state.append({"kind": "owner", "path": path, "user": new})
    plan = [f"find {w.base} -user {old} -exec chown {new} {{}} +"]
    return Problem(fields={"folder": w.base, "old": old, "new": new}, setup=setup, plan=plan, state=state)


def _readable_by_group(w: World) -> Problem:
    setup, group, path = Setup(), w.word(), f"{w.base}/{w.file('.txt')}"
    users = list(_people(w, setup, 4))
    setup.file(path, w.token())
    setup.run(f"chmod 600 {path}")
    inside, outside = users[:2], users[2:]
    plan = [f"groupadd {group}", *(f"usermod -aG {group} {user}" for user in inside)]
    plan.append(f"chgrp {group} {path} && chmod 640 {path}")
    state: Conditions = [{"kind": "group", "name": group}]
    state += [{"kind": "user", "name": user, "groups": {group: user in inside}} for user in users]
    state += [{"kind": "owner", "path": path, "user": "root", "group": group}, _mode(path, "640")]
    fields = {"path": path, "group": group, "inside": " and ".join(inside), "outside": " and ".join(outside)}
    return Problem(fields=fields, setup=setup, plan=[" && ".join(plan)], state=state)


def _shut_writable(w: World) -> Problem:
    setup = Setup()
    state: Conditions = []
    for folder in w.tree(3):
        for _ in range(w.number(2, 3)):
            path, mode = f"{folder}/{w.file('.dat')}", int(w.pick(_FILE_MODES), 8)
            wide = w.number(0, 1) == 1 or len(state) < 2
            setup.file(path, w.word())
            setup.run(f"chmod {mode | 0o022 if wide else mode & ~0o002:o} {path}")
            state.append(_mode(path, f"{(mode | 0o022) & ~0o002 if wide else mode & ~0o002:o}"))
    plan = [f"find {w.base} -type f -perm -o=w -exec chmod o-w {{}} +"]
    return Problem(fields={"folder": w.base}, setup=setup, plan=plan, state=state)


def _shared_folder(w: World) -> Problem:
    setup, group, folder = Setup(), w.word(), f"{w.base}/{w.word()}"
    member, guest = _people(w, setup, 2)
    setup.folder(folder)
    setup.run(f"groupadd {group}")
    plan = [f"usermod -aG {group} {member}", f"chgrp {group} {folder} && chmod 3770 {folder}"]
    state: Conditions = [
        {"kind": "user", "name": member, "groups": {group: True}},
        {"kind": "user", "name": guest, "groups": {group: False}},
        {"kind": "owner", "path": folder, "group": group},
        _mode(folder, "3770"),
    ]
    fields = {"folder": folder, "group": group, "member": member}
    return Problem(fields=fields, setup=setup, plan=plan, state=state)


def _number_of_user(w: World) -> Problem:
    setup = Setup()
    users = _people(w, setup, 3)
    name = w.pick(list(users))
    return Problem(fields={"user": name}, setup=setup, plan=[f"id -u {name}"], answer=users[name])


def _name_of_number(w: World) -> Problem:
    setup = Setup()
    users = _people(w, setup, 4)
    name = w.pick(list(users))
    command = f"getent passwd {users[name]} | cut -d : -f 1"
    return Problem(fields={"number": users[name]}, setup=setup, plan=[command], answer=name)


def _create_user(w: World) -> Problem:
    setup, name, number = Setup(), w.user(), w.number(2000, 50_000)
    shell = w.pick(("/bin/bash", "/bin/sh", "/usr/sbin/nologin"))
    home = f"{w.base}/{w.word()}"
    setup.folder(w.base)
    plan = [f"useradd -m -d {home} -u {number} -s {shell} {name}"]
    state: Conditions = [
        {"kind": "user", "name": name, "uid": number, "home": home, "shell": shell},
        {"kind": "folder", "path": home},
    ]
    fields = {"user": name, "number": number, "home": home, "shell": shell}
    return Problem(fields=fields, setup=setup, plan=plan, state=state)


def _join_group(w: World) -> Problem:
    setup, old, new = Setup(), w.word(), w.word()
    name, other = _people(w, setup, 2)
    setup.run(f"groupadd {old} && groupadd {new} && usermod -aG {old} {name}")
    plan = [f"usermod -aG {new} {name}", f"id {name}"]
    state: Conditions = [
        {"kind": "user", "name": name, "groups": {new: True, old: True}},
        {"kind": "user", "name": other, "groups": {new: False}},
    ]
    return Problem(fields={"user": name, "group": new}, setup=setup, plan=plan, state=state)


def _members_of_group(w: World) -> Problem:
    setup, group = Setup(), w.word()
    users = list(_people(w, setup, 6))
    members = w.pick(users, w.number(2, 4))
    setup.run(f"groupadd {group}")
    for name in members:
        setup.run(f"usermod -aG {group} {name}")
    command = f"getent group {group} | cut -d : -f 4 | tr , '\\n' | sort | paste -sd ,"
    return Problem(fields={"group": group}, setup=setup, plan=[command], answer=",".join(sorted(members)))


def _remove_user(w: World) -> Problem:
    setup = Setup()
    name, kept = _people(w, setup, 2)
    state: Conditions = [
        {"kind": "user", "name": name, "absent": True},
        {"kind": "absent", "path": f"/home/{name}"},
        {"kind": "user", "name": kept},
        {"kind": "folder", "path": f"/home/{kept}"},
    ]
    return Problem(fields={"user": name}, setup=setup, plan=[f"userdel -r {name}", "ls /home"], state=state)


def _highest_of_group(w: World) -> Problem:
    setup, group, bound = Setup(), w.word(), w.number(20_000, 40_000)
    taken = set[int]()
    setup.run(f"groupadd {group}")
    numbers: dict[str, int] = {}
    for place in range(6):
        name, member = w.user(), place % 3 != 2
        low, high = (1200, bound) if member else (bound, 59_000)
        number = w.number_apart(low, high, taken)
        setup.run(f"useradd -u {number} -M {name}" + (f" -G {group}" if member else ""))
        if member:
            numbers[name] = number
    answer = max(numbers, key=numbers.__getitem__)
    plan = [
        f"getent group {group}",
        f"for u in $(getent group {group} | cut -d : -f 4 | tr , ' '); do echo $(id -u $u) $u; done"
        " | sort -n | tail -n 1 | cut -d ' ' -f 2",
    ]
    return Problem(fields={"group": group}, setup=setup, plan=plan, answer=answer)


def _retire_group(w: World) -> Problem:
    setup, group = Setup(), w.word()
    users = list(_people(w, setup, 5))
    members = w.pick(users, w.number(2, 3))
    setup.run(f"groupadd {group}")
    for name in members:
        setup.run(f"usermod -aG {group} {name}")
    closed = "/usr/sbin/nologin"
    plan = [
        f"for u in $(getent group {group} | cut -d : -f 4 | tr , ' '); do usermod -s {closed} $u; done",
        f"grep {closed} /etc/passwd | tail -n 5",
    ]
    state: Conditions = [{"kind": "user", "name": n, "shell": closed if n in members else "/bin/bash"} for n in users]
    return Problem(fields={"group": group, "shell": closed}, setup=setup, plan=plan, state=state)


def _count_shell(w: World) -> Problem:
    setup, shell, total = Setup(), f"/usr/bin/{w.word()}", w.number(9, 60)
    lines = []
    for number in range(total + w.number(5, 20)):
        used = shell if number < total else w.pick(("/bin/bash", "/bin/sh", "/bin/false"))
        lines.append(f"{w.user()}:x:{61_000 + number}:{61_000 + number}::/nonexistent:{used}")
    w.rng.shuffle(lines)
    setup.run("cat >> /etc/passwd <<'END'\n" + "\n".join(lines) + "\nEND")
    command = f"getent passwd | cut -d : -f 7 | grep -cx {shell}"
    return Problem(fields={"shell": shell}, setup=setup, plan=[command], answer=total)


PERMISSIONS = (
    Template("set_mode", "permissions", "easy", _set_mode),
    Template("read_mode", "permissions", "easy", _read_mode),
    Template("modes_of_tree", "permissions", "medium", _modes_of_tree),
    Template("count_writable", "permissions", "medium", _count_writable),
    Template("find_setuid", "permissions", "medium", _find_setuid),
    Template("change_owner", "permissions", "medium", _change_owner),
    Template("readable_by_group", "permissions", "hard", _readable_by_group),
    Template("shut_writable", "permissions", "hard", _shut_writable),
    Template("shared_folder", "permissions", "hard", _shared_folder, unseen=True),
)
USERS = (
    Template("number_of_user", "users", "easy", _number_of_user),
    Template("name_of_number", "users", "easy", _name_of_number),
    Template("create_user", "users", "easy", _create_user),
    Template("join_group", "users", "medium", _join_group),
    Template("members_of_group", "users", "medium", _members_of_group),
    Template("remove_user", "users", "medium", _remove_user),
    Template("count_shell", "users", "medium", _count_shell, unseen=True),
    Template("highest_of_group", "users", "hard", _highest_of_group),
    Template("retire_group", "users", "hard", _retire_group),
)
