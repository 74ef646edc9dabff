"""Conditions on a sandbox's end state, each met once and missed in the ways an agent might miss it."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from typing import Any

import pytest

from agentbench_fc.tasks.os.archives import MAX_UNPACKED
from agentbench_fc.tasks.os.sandbox.base import Entry
from agentbench_fc.tasks.os.state import KINDS, MAX_CONTENT, Facts, unmet

PASSWD = b"root:x:0:0::/root:/bin/bash\nana:x:1500:1500::/home/ana:/bin/sh\nbob:x:1501:1501::/home/bob:/bin/sh\nshort\n"
GROUP = b"root:x:0:\nana:x:1500:\nteam:x:2000:bob,ana\nbroken:x\n"


def entry(kind: Any, mode: int = 0o644, uid: int = 0, gid: int = 0, size: int = 0, **more: Any) -> Entry:
    return Entry(kind=kind, mode=mode, uid=uid, gid=gid, size=size, **more)


def text(content: bytes, **more: Any) -> Entry:
    return entry("file", size=len(content), content=content, **more)


def a_tar(members: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))
        archive.addfile(_link("./inside", "/etc/passwd"))
    return buffer.getvalue()


def _link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def a_zip(members: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


MEMBERS = {"./a/one.txt": "1", "a/two.txt": "2\n"}
ARCHIVES = {
    "tar": a_tar(MEMBERS),
    "tar.gz": gzip.compress(a_tar(MEMBERS)),
    "tar.bz2": bz2.compress(a_tar(MEMBERS)),
    "tar.xz": lzma.compress(a_tar(MEMBERS)),
    "zip": a_zip(MEMBERS),
}
FACTS = Facts(
    {
        "/etc/passwd": text(PASSWD),
        "/etc/group": text(GROUP),
        "/f": text(b"b\na\n", mode=0o640, uid=1500, gid=2000),
        "/l": entry("link", target="f"),
        "/d": entry("dir", mode=0o750, names=("x", "y")),
        "/p": entry("other"),
        "/proc": entry("dir", names=("1", "77", "self")),
        "/proc/1/cmdline": text(b"agent\0"),
        "/proc/77/cmdline": text(b"/bin/bash\0/srv/workerd\0"),
        **{f"/archive.{form}": text(data) for form, data in ARCHIVES.items()},
    },
    {("/bin/bash", "/s.sh", "2"): (0, "4\n")},
)


@pytest.mark.parametrize(
    ("kind", "met", "missed"),
    [
        (
            "file",
            [{"path": "/f", "text": "b\na"}, {"path": "/f", "text": "a\nb", "unordered": True}],
            [
                {"path": "/f", "text": "a\nb"},
                {"path": "/f", "text": "b"},
                {"path": "/l", "text": "b\na"},
                {"path": "/no", "text": ""},
            ],
        ),
        ("folder", [{"path": "/d"}], [{"path": "/f"}, {"path": "/no"}]),
        ("absent", [{"path": "/no"}], [{"path": "/f"}, {"path": "/l"}]),
        ("link", [{"path": "/l", "target": "/f"}], [{"path": "/l", "target": "/d"}, {"path": "/f", "target": "/f"}]),
        ("mode", [{"path": "/f", "mode": "640"}], [{"path": "/f", "mode": "644"}, {"path": "/l", "mode": "777"}]),
        (
            "owner",
            [{"path": "/f", "user": "ana", "group": "team"}, {"path": "/f", "group": "team"}],
            [{"path": "/f", "user": "bob"}, {"path": "/f", "user": "nobody"}, {"path": "/l", "user": "root"}],
        ),
        ("names", [{"path": "/d", "names": ["y", "x"]}], [{"path": "/d", "names": ["x"]}, {"path": "/f", "names": []}]),
        (
            "user",
            [
                {"name": "ana", "uid": 1500, "home": "/home/ana", "groups": {"team": True, "ana": True, "root": False}},
                {"name": "eve", "absent": True},
            ],
            [
                {"name": "ana", "shell": "/bin/bash"},
                {"name": "ana", "groups": {"team": False}},
                {"name": "ana", "groups": {"root": True}},
                {"name": "eve"},
                {"name": "ana", "absent": True},
                {"name": "short"},
            ],
        ),
        (
            "group",
            [{"name": "team", "gid": 2000}, {"name": "none", "absent": True}],
            [{"name": "team", "gid": 1}, {"name": "none"}, {"name": "team", "absent": True}, {"name": "broken"}],
        ),
        (
            "process",
            [{"marker": "/srv/workerd", "alive": True}, {"marker": "/srv/none", "alive": False}],
            [{"marker": "/srv/workerd", "alive": False}, {"marker": "/srv/none", "alive": True}],
        ),
        (
            "runs",
            [{"argv": ["/bin/bash", "/s.sh", "2"], "stdout": "4"}],
            [{"argv": ["/bin/bash", "/s.sh", "2"], "stdout": "5"}, {"argv": ["/bin/bash", "/no.sh"], "stdout": "4"}],
        ),
        (
            "archive",
            [
                {"path": f"/archive.{form}", "form": form, "members": {"a/one.txt": "1", "a/two.txt": "2"}}
                for form in ARCHIVES
            ],
            [
                {"path": "/archive.zip", "form": "zip", "members": {"a/one.txt": "1"}},
                {"path": "/archive.zip", "form": "zip", "members": {"a/one.txt": "1", "a/two.txt": "3"}},
                {"path": "/archive.zip", "form": "tar.gz", "members": {}},
                {"path": "/archive.tar.gz", "form": "tar.xz", "members": {}},
                {"path": "/archive.tar.gz", "form": "zip", "members": {}},
                {"path": "/f", "form": "tar.bz2", "members": {}},
                {"path": "/no", "form": "zip", "members": {}},
            ],
        ),
    ],
)
def test_a_condition(kind: str, met: list[dict[str, Any]], missed: list[dict[str, Any]]) -> None:
    for condition in met:
        assert unmet([{"kind": kind} | condition], FACTS) is None, condition
    for condition in missed:
        assert unmet([{"kind": kind} | condition], FACTS), condition


def test_every_kind_is_tested() -> None:
    marks = [mark for mark in test_a_condition.pytestmark if mark.name == "parametrize"]
    assert {case[0] for case in marks[0].args[1]} == set(KINDS)


def test_the_first_unmet_condition_is_told() -> None:
    conditions = [{"kind": "folder", "path": "/d"}, {"kind": "folder", "path": "/f"}, {"kind": "absent", "path": "/f"}]
    assert unmet(conditions, FACTS) == "/f is a file, not a directory"
    assert unmet([{"kind": "file", "path": "/f", "text": "b\nc"}], FACTS) == "/f, line 2: 'a', not 'c'"


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("tar.gz", gzip.compress(b"\0" * (MAX_UNPACKED + 1))),
        ("tar.bz2", bz2.compress(b"\0" * (MAX_UNPACKED + 1))),
        ("tar.xz", lzma.compress(b"\0" * (MAX_UNPACKED + 1))),
        ("zip", a_zip({"a": "\0" * (MAX_UNPACKED + 1)})),
        ("zip", b"PK\x03\x04" + b"\0" * 40),
        ("tar.gz", b"\x1f\x8b" + b"\xff" * 40),
        ("tar.xz", lzma.compress(b"x" * 9000)[:-30]),
    ],
)
def test_no_archive_of_an_agent_raises_or_fills_the_memory(form: str, data: bytes) -> None:
    data = data if form != "zip" or len(data) < MAX_CONTENT else data[:MAX_CONTENT]
    facts = Facts({"/a": text(data)})
    assert unmet([{"kind": "archive", "path": "/a", "form": form, "members": {"a": ""}}], facts)


def test_a_huge_file_is_no_match() -> None:
    facts = Facts({"/a": entry("file", size=MAX_CONTENT + 1, content=b"x" * MAX_CONTENT)})
    assert unmet([{"kind": "file", "path": "/a", "text": "x" * MAX_CONTENT}], facts)
