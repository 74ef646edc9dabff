"""Makers of problems about running processes: what they hold, which one to end, how to make one speak.

Not here: their wordings (phrases.py). A sandbox with such processes is forked by replay (episode.py).
"""

from typing import Any

from agentbench_fc.tasks.os.generate_world import Conditions, Problem, Setup, Template, World

_WAIT = "p=/tmp/.wait.$$\nmkfifo $p\nexec 9<> $p\nrm $p\nwhile :; do read -r -t 3600 -u 9; done"
"""Waits in the shell itself: one process, under the script's name."""


def _names(w: World, count: int) -> list[str]:
    return [f"{word}d" for word in w.words(count)]


def _process(path: str, *, alive: bool) -> dict[str, Any]:
    return {"kind": "process", "marker": path, "alive": alive}


def _end_process(w: World) -> Problem:
    setup, names = Setup(), _names(w, 3)
    paths = [f"{w.base}/{name}" for name in names]
    for path in paths:
        setup.daemon(path, _WAIT)
    state: Conditions = [_process(path, alive=path != paths[0]) for path in paths]
    state += [{"kind": "names", "path": w.base, "names": names}]
    return Problem(fields={"name": names[0]}, setup=setup, plan=[f"pkill -x {names[0]}"], state=state)


def _option_of_process(w: World) -> Problem:
    setup, names = Setup(), _names(w, 3)
    tokens = [w.token() for _ in names]
    option = w.pick(("key", "token", "region", "profile", "channel"))
    for name, token in zip(names, tokens, strict=True):
        setup.daemon(f"{w.base}/{name}", _WAIT, f"--level={w.number(1, 9)} --{option}={token}")
    command = f"tr '\\0' '\\n' < /proc/$(pgrep -x {names[0]})/cmdline | grep -- --{option}= | cut -d = -f 2"
    fields = {"name": names[0], "option": f"--{option}"}
    return Problem(fields=fields, setup=setup, plan=[command], answer=tokens[0])


def _variable_of_process(w: World) -> Problem:
    setup, names = Setup(), _names(w, 3)
    tokens = [w.token() for _ in names]
    variable = w.pick(("REGION", "API_KEY", "CLUSTER", "OWNER_ID", "RELEASE"))
    for name, token in zip(names, tokens, strict=True):
        setup.daemon(f"{w.base}/{name}", _WAIT, variables=f"{variable}={token}")
    command = f"tr '\\0' '\\n' < /proc/$(pgrep -x {names[0]})/environ | grep ^{variable}= | cut -d = -f 2"
    return Problem(fields={"name": names[0], "variable": variable}, setup=setup, plan=[command], answer=tokens[0])


def _folder_of_process(w: World) -> Problem:
    setup, names, folders = Setup(), _names(w, 3), w.tree(4)[1:]
    w.rng.shuffle(folders)
    for folder in folders:
        setup.folder(folder)
    for name, folder in zip(names, folders, strict=False):
        setup.daemon(f"{w.base}/{name}", f"cd {folder}\n{_WAIT}")
    return Problem(
        fields={"name": names[0]}, setup=setup, plan=[f"readlink /proc/$(pgrep -x {names[0]})/cwd"], answer=folders[0]
    )


def _holder_of_file(w: World) -> Problem:
    setup, names = Setup(), _names(w, 4)
    files = [f"{w.base}/{w.file('.db')}" for _ in names]
    for name, path in zip(names, files, strict=True):
        setup.file(path, w.token())
        setup.daemon(f"{w.base}/{name}", f"exec 7<> {path}\n{_WAIT}")
    place = w.number(0, 3)
    command = (
        f"for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null | grep -q '{files[place]}$' && cat $p/comm; done | sort -u"
    )
    return Problem(fields={"path": files[place]}, setup=setup, plan=[command], answer=names[place])


def _deleted_file(w: World) -> Problem:
    setup, name, token = Setup(), _names(w, 1)[0], w.token()
    path = f"{w.base}/{w.file('.key')}"
    setup.file(path, f"{w.word()}\nsecret={token}\n{w.word()}")
    setup.daemon(f"{w.base}/{name}", f"exec 7< {path}\nrm {path}\n{_WAIT}")
    plan = [
        f"ls -l /proc/$(pgrep -x {name})/fd",
        f"grep ^secret= /proc/$(pgrep -x {name})/fd/7 | cut -d = -f 2",
    ]
    return Problem(fields={"name": name, "path": path}, setup=setup, plan=plan, answer=token)


def _restarted_process(w: World) -> Problem:
    setup = Setup()
    worker, keeper, bystander = (f"{w.base}/{name}" for name in _names(w, 3))
    setup.file(worker, f"#!/bin/bash\n{_WAIT}")
    setup.run(f"chmod 755 {worker}")
    setup.daemon(keeper, f"exec 9< /dev/null\nwhile :; do {worker}; sleep 0.2; done")
    setup.daemon(bystander, _WAIT)
    name, parent = worker.rpartition("/")[2], keeper.rpartition("/")[2]
    setup.run(f"for i in $(seq 200); do pgrep -x {name} > /dev/null && break; sleep 0.05; done")
    plan = [
        f"ps -o ppid= -p $(pgrep -x {name}) | xargs ps -o pid,args -p",
        f"pkill -x {parent}; pkill -x {name}; sleep 0.5; pgrep -x {name} | wc -l",
    ]
    state: Conditions = [_process(worker, alive=False), _process(bystander, alive=True)]
    return Problem(fields={"name": name}, setup=setup, plan=plan, state=state)


def _ask_by_signal(w: World) -> Problem:
    setup, name, token = Setup(), _names(w, 1)[0], w.token()
    path = f"{w.base}/{w.file('.status')}"
    body = f"answer() {{ echo 'ticket {token}' | rev > {path}.new; rev {path}.new > {path}; rm {path}.new; }}\n"
    body += "trap answer USR1\nexec 9< /dev/null\nwhile :; do sleep 3600 & wait $!; done"
    setup.daemon(f"{w.base}/{name}", body)
    setup.run(f"chmod 711 {w.base}/{name}")
    plan = [
        f"pkill -USR1 -x {name}; for i in $(seq 50); do [ -s {path} ] && break; sleep 0.1; done; cat {path}",
        f"cut -d ' ' -f 2 {path}",
    ]
    return Problem(fields={"name": name, "path": path}, setup=setup, plan=plan, answer=token)


PROCESSES = (
    Template("end_process", "processes", "easy", _end_process),
    Template("option_of_process", "processes", "easy", _option_of_process),
    Template("variable_of_process", "processes", "medium", _variable_of_process),
    Template("folder_of_process", "processes", "medium", _folder_of_process),
    Template("holder_of_file", "processes", "medium", _holder_of_file, unseen=True),
    Template("deleted_file", "processes", "hard", _deleted_file),
    Template("restarted_process", "processes", "hard", _restarted_process),
    Template("ask_by_signal", "processes", "hard", _ask_by_signal),
)
