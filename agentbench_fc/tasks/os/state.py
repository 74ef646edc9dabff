"""What must hold in a sandbox at the end: conditions as data, judged on facts that the agent cannot colour.

A condition is a small object such as `{"kind": "mode", "path": "/srv/a", "mode": "640"}`. The facts are looked up by
the sandbox's own agent process, by system calls, so a replaced `stat` or a shadowed `python3` changes nothing; archives
are read on this side, by a bounded process. Only `runs` starts something inside: the script that the agent was asked
to write.

>>> facts = Facts({"/srv/a": Entry(kind="file", mode=0o600, uid=0, gid=0, size=0)})
>>> unmet([{"kind": "mode", "path": "/srv/a", "mode": "640"}], facts)
'/srv/a has mode 600, not 640'
>>> unmet([{"kind": "absent", "path": "/srv/b"}], facts) is None
True

Not here: answers (checks.py); looking (grading.py); reading archives (archives.py).
"""

import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.tasks.os import archives
from agentbench_fc.tasks.os.sandbox.base import Entry

MAX_CONTENT = 256 * 1024
"""Bytes of a file that are looked at; no generated sample asks for more."""
_DYING_TRIES, _DYING_PAUSE_S = 30, 0.1

Condition = Mapping[str, Any]


class View(Protocol):
    """Looks into a sandbox from beside the agent."""

    def look(self, paths: Sequence[str]) -> Mapping[str, Entry | None]:
        """Each path as it is; None where there is nothing. Files come with their first `MAX_CONTENT` bytes."""
        ...

    def run(self, argv: Sequence[str], stdin: str, files: Mapping[str, str]) -> tuple[int, str]:
        """Exit code and output of a program in a process of its own, after `files` were put."""
        ...


@dataclass(frozen=True, slots=True)
class Facts:
    """A view on fixed facts, for tests and examples."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    outputs: Mapping[tuple[str, ...], tuple[int, str]] = field(default_factory=dict)

    def look(self, paths: Sequence[str]) -> Mapping[str, Entry | None]:
        """What was given."""
        return {path: self.entries.get(path) for path in paths}

    def run(self, argv: Sequence[str], stdin: str, files: Mapping[str, str]) -> tuple[int, str]:
        """What was given; else a program that is not found."""
        return self.outputs.get(tuple(argv), (127, ""))


def unmet(conditions: Sequence[Condition], view: View) -> str | None:
    """The first condition that does not hold, in words; None: all hold."""
    for condition in conditions:
        reason = KINDS[condition["kind"]](condition, view)
        if reason is not None:
            return reason
    return None


def _entry(view: View, path: str) -> Entry | None:
    return view.look([path])[path]


def _text(view: View, path: str) -> str:
    """The text of a file of the system; empty where there is none."""
    entry = _entry(view, path)
    return entry.content.decode("utf-8", "replace") if entry and entry.kind == "file" else ""


def _file(condition: Condition, view: View) -> str | None:
    path = condition["path"]
    entry = _entry(view, path)
    if entry is None or entry.kind != "file":
        return f"{path} is {_a(entry)}, not a regular file"
    if entry.size > MAX_CONTENT:
        return f"{path} is larger than anything asked for"
    found, wanted = entry.content.decode("utf-8", "replace").rstrip("\n"), condition["text"].rstrip("\n")
    if condition.get("unordered"):
        found, wanted = "\n".join(sorted(found.split("\n"))), "\n".join(sorted(wanted.split("\n")))
    if found == wanted:
        return None
    lines = zip([*found.split("\n"), None], [*wanted.split("\n"), None], strict=False)
    number, (have, want) = next((n, pair) for n, pair in enumerate(lines, start=1) if pair[0] != pair[1])
    return f"{path}, line {number}: {_short(have)}, not {_short(want)}"


def _short(line: str | None) -> str:
    return "nothing" if line is None else repr(line[:80])


def _folder(condition: Condition, view: View) -> str | None:
    entry = _entry(view, condition["path"])
    return None if entry and entry.kind == "dir" else f"{condition['path']} is {_a(entry)}, not a directory"


def _absent(condition: Condition, view: View) -> str | None:
    entry = _entry(view, condition["path"])
    return None if entry is None else f"{condition['path']} is still there, {_a(entry)}"


def _link(condition: Condition, view: View) -> str | None:
    path = condition["path"]
    entry = _entry(view, path)
    if entry is None or entry.kind != "link":
        return f"{path} is {_a(entry)}, not a symbolic link"
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.target))
    return None if target == condition["target"] else f"{path} points at {target}, not at {condition['target']}"


def _mode(condition: Condition, view: View) -> str | None:
    path = condition["path"]
    entry = _entry(view, path)
    if entry is None or entry.kind not in {"file", "dir"}:
        return f"{path} is {_a(entry)}"
    wanted = int(condition["mode"], 8)
    return None if entry.mode == wanted else f"{path} has mode {entry.mode:o}, not {wanted:o}"


def _owner(condition: Condition, view: View) -> str | None:
    path = condition["path"]
    entry = _entry(view, path)
    if entry is None or entry.kind not in {"file", "dir"}:
        return f"{path} is {_a(entry)}"
    for key, number, table in (("user", entry.uid, "/etc/passwd"), ("group", entry.gid, "/etc/group")):
        wanted = condition.get(key)
        if wanted is not None and _number(view, table, wanted) != number:
            return f"{path} belongs to {key} {number}, not to {wanted}"
    return None


def _names(condition: Condition, view: View) -> str | None:
    path = condition["path"]
    entry = _entry(view, path)
    if entry is None or entry.kind != "dir":
        return f"{path} is {_a(entry)}, not a directory"
    found, wanted = set(entry.names), set(condition["names"])
    if found == wanted:
        return None
    return f"{path} lacks {sorted(wanted - found)[:3]} and has {sorted(found - wanted)[:3]} beside"


def _records(view: View, table: str) -> dict[str, list[str]]:
    rows = [line.split(":") for line in _text(view, table).splitlines() if ":" in line]
    return {row[0]: row for row in rows}


def _number(view: View, table: str, name: str) -> int | None:
    row = _records(view, table).get(name, [])
    return int(row[2]) if len(row) > 2 and row[2].isascii() and row[2].isdigit() else None


def _user(condition: Condition, view: View) -> str | None:
    name = condition["name"]
    row = _records(view, "/etc/passwd").get(name)
    if condition.get("absent"):
        return None if row is None else f"user {name} still exists"
    if row is None or len(row) < 7:
        return f"there is no user {name}"
    for key, place in (("uid", 2), ("home", 5), ("shell", 6)):
        if key in condition and row[place] != str(condition[key]):
            return f"the {key} of {name} is {row[place]}, not {condition[key]}"
    groups = _records(view, "/etc/group")
    found = {group for group, fields in groups.items() if len(fields) > 3 and name in fields[3].split(",")}
    found |= {group for group, fields in groups.items() if len(fields) > 2 and fields[2] == row[3]}
    wrong = {group: wanted for group, wanted in condition.get("groups", {}).items() if (group in found) != wanted}
    return f"groups of {name}: {sorted(found)}, against {wrong}" if wrong else None


def _group(condition: Condition, view: View) -> str | None:
    name = condition["name"]
    row = _records(view, "/etc/group").get(name)
    if condition.get("absent"):
        return None if row is None else f"group {name} still exists"
    if row is None or len(row) < 4:
        return f"there is no group {name}"
    if "gid" in condition and row[2] != str(condition["gid"]):
        return f"group {name} has number {row[2]}, not {condition['gid']}"
    return None


def _process(condition: Condition, view: View) -> str | None:
    marker, wanted = condition["marker"].encode(), condition["alive"]
    for attempt in range(_DYING_TRIES):  # one that was told to end takes its time
        if attempt:
            time.sleep(_DYING_PAUSE_S)
        if _is_running(marker, view) == wanted:
            return None
        if wanted:
            break
    return f"a process {condition['marker']} {'does not run' if wanted else 'runs still'}"


def _is_running(marker: bytes, view: View) -> bool:
    listed = _entry(view, "/proc")
    pids = [name for name in listed.names if name.isdigit()] if listed else []
    found = view.look([f"/proc/{pid}/cmdline" for pid in pids])
    return any(entry is not None and marker in entry.content for entry in found.values())


def _runs(condition: Condition, view: View) -> str | None:
    code, output = view.run(condition["argv"], condition.get("stdin", ""), condition.get("files", {}))
    found, wanted = output.strip(), condition["stdout"].strip()
    if found == wanted:
        return None
    return f"{' '.join(condition['argv'])[:120]} gave {found[:80]!r} (exit code {code}), not {wanted[:80]!r}"


def _archive(condition: Condition, view: View) -> str | None:
    path = condition["path"]
    entry = _entry(view, path)
    if entry is None or entry.kind != "file" or not 0 < entry.size <= MAX_CONTENT:
        return f"{path} is {_a(entry)}, not an archive"
    try:
        members = archives.unpack(entry.content, condition["form"])
    except archives.Unreadable as error:
        return f"{path} is no {condition['form']} archive: {error}"
    except archives.ReaderLost as error:
        raise InfrastructureError(f"{error} [task os, grading {path}]. Start the episode again.") from error
    wanted = condition["members"]
    if set(members) != set(wanted):
        return f"{path} holds {sorted(members)[:5]}, not {sorted(wanted)[:5]}"
    wrong = [name for name in wanted if members[name].rstrip("\n") != wanted[name].rstrip("\n")]
    return f"{wrong[0]} in {path} has other content" if wrong else None


def _a(entry: Entry | None) -> str:
    kinds = {"file": "a file", "dir": "a directory", "link": "a symbolic link"}
    return "not there" if entry is None else kinds.get(entry.kind, "something else")


KINDS: Mapping[str, Callable[[Condition, View], str | None]] = {
    "file": _file,
    "folder": _folder,
    "absent": _absent,
    "link": _link,
    "mode": _mode,
    "owner": _owner,
    "names": _names,
    "user": _user,
    "group": _group,
    "process": _process,
    "runs": _runs,
    "archive": _archive,
}
"""Every kind of condition that a generated sample may state."""
