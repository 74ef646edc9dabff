"""Fresh processes, files and looks: what graders and initial scripts rest on, the same for each kind of sandbox."""

import time
from collections.abc import Iterator

import pytest
from os_boxes import backend, engine, open_backend, until  # noqa: F401

from agentbench_fc.errors import CallerError
from agentbench_fc.tasks.os.sandbox import Sandbox, SandboxBackend, SandboxSpent
from agentbench_fc.tasks.os.sandbox.box import GRACE_S


@pytest.fixture(scope="module")
def box(backend: SandboxBackend) -> Iterator[Sandbox]:  # noqa: F811
    with backend.create("default") as sandbox:
        yield sandbox


def test_output_and_status_of_a_process(box: Sandbox) -> None:
    result = box.exec(["bash", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.code, result.stdout, result.stderr, result.timed_out, result.truncated) == (
        3,
        b"out\n",
        b"err\n",
        False,
        False,
    )
    assert not result.ok
    with pytest.raises(SandboxSpent, match="status 3: err"):
        result.check()
    assert box.exec(["bash", "-c", "kill -TERM $$"]).code == 143


def test_arguments_input_environment_and_folder(box: Sandbox) -> None:
    assert box.exec(["printf", "%s|", "a b", "", "'\"$x\n", b"\xff"]).stdout == b"a b||'\"$x\n|\xff|"
    assert box.exec(["wc", "-c"], stdin=bytes(3_000_000)).stdout == b"3000000\n"
    assert box.exec(["head", "-c", "1"], stdin=b"x" * 3_000_000).stdout == b"x"
    assert (
        box.exec(["sh", "-c", "echo $A $HOME $PWD; umask"], env={"A": "b"}, cwd="/tmp").stdout
        == b"b /root /tmp\n0022\n"
    )
    seen = box.exec(["env"]).stdout.decode().split("\n")
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in seen
    assert box.exec(["pwd"], cwd="/no/such/folder").stdout == b"/\n"


def test_nothing_of_the_persistent_shell_reaches_a_fresh_process(box: Sandbox) -> None:
    box.shell(
        "export EVIL=1 PATH=/evil BASH_ENV=/evil LD_PRELOAD=/evil.so; cd /var; umask 777; ulimit -n 20; exec 5>/tmp/f"
    )
    assert b"EVIL" not in box.exec(["env"]).stdout
    assert box.exec(["bash", "-c", "pwd; umask; ls /proc/self/fd | wc -w"]).stdout == b"/root\n0022\n4\n"
    box.shell("exit")


def test_a_program_that_cannot_run_is_a_status_as_in_a_shell(box: Sandbox) -> None:
    assert box.exec(["no-such-program"]).code == 127
    assert box.exec(["/etc/passwd"]).code == 126
    assert b"no-such-program" in box.exec(["no-such-program"]).stderr
    for argv in ([], ["a\0b"]):
        with pytest.raises(CallerError, match="sandbox exec"):
            box.exec(argv)


def test_a_timeout_kills_the_whole_tree_and_keeps_the_output(box: Sandbox) -> None:
    began = time.monotonic()
    script = "echo before; (trap '' TERM; sleep 77) & setsid sleep 77 & sleep 77"
    result = box.exec(["bash", "-c", script], timeout_s=1.5)
    assert (result.timed_out, result.code, result.stdout) == (True, 124, b"before\n")
    assert time.monotonic() - began < 1.5 + GRACE_S
    assert box.exec(["pgrep", "-f", "sleep 77"]).stdout == b""


def test_what_stays_in_the_background_is_not_waited_for_and_lives(box: Sandbox) -> None:
    for script in ("sleep 300 & echo ok", "(while :; do echo noise; sleep 0.01; done) & echo ok"):
        result = box.exec(["bash", "-c", script], timeout_s=100)
        assert not result.timed_out
        assert b"ok\n" in result.stdout
    assert until(30, lambda: box.exec(["pgrep", "-cfx", "sleep 300"]).stdout == b"1\n")
    assert box.exec(["pgrep", "-f", "echo noise"]).ok
    box.exec(["pkill", "-9", "-f", "sleep|echo noise"])


def test_output_is_capped_while_it_is_drained(box: Sandbox) -> None:
    result = box.exec(["bash", "-c", "yes | head -c 20000000; echo err >&2"], cap_bytes=100)
    assert (result.code, result.stdout, result.stderr, result.truncated) == (0, b"y\n" * 50, b"err\n", True)
    result = box.exec(["yes"], timeout_s=0.5, cap_bytes=10)
    assert (result.timed_out, len(result.stdout)) == (True, 10)


def test_zombies_are_reaped(box: Sandbox) -> None:
    box.exec(["bash", "-c", "for i in $(seq 20); do (sleep 0.05 &) ; done"])
    assert until(30, lambda: not box.exec(["pgrep", "-fx", "sleep 0.05"]).ok)
    assert until(10, lambda: b"Z" not in box.exec(["ps", "-eo", "stat="]).stdout)


def test_files_are_put(box: Sandbox) -> None:
    data = bytes(range(256)) * 1000
    box.put("/tmp/new/folder/file", data, 0o751)
    seen = box.exec(["sh", "-c", "stat -c '%a %U %s' /tmp/new/folder/file; md5sum < /tmp/new/folder/file"]).stdout
    import hashlib

    assert seen == f"751 root {len(data)}\n{hashlib.md5(data).hexdigest()}  -\n".encode()
    with pytest.raises(SandboxSpent, match="cannot be written"):
        box.put("/proc/version", b"x")
    with pytest.raises(CallerError, match="absolute"):
        box.put("relative", b"x")


def test_a_look_sees_files_folders_and_links_without_any_program_of_the_sandbox(box: Sandbox) -> None:
    script = (
        "mkdir -p /tmp/look/d; cd /tmp/look; printf hello > f; chmod 2640 f; chown 1000:2000 f; ln -s ../x l; mkfifo p;"
        "touch d/b d/a; mkdir empty"
    )
    box.exec(["bash", "-c", script]).check()
    paths = [f"/tmp/look/{name}" for name in ("f", "d", "l", "p", "none", "empty")]
    seen = box.look(paths, content=3, digest=True)
    file, folder, link, fifo, none, empty = (seen[path] for path in paths)
    assert file is not None and folder is not None and link is not None and fifo is not None and empty is not None  # noqa: PT018
    assert (file.kind, file.mode, file.uid, file.gid, file.size, file.content) == (
        "file",
        0o2640,
        1000,
        2000,
        5,
        b"hel",
    )
    assert file.sha256 == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert (folder.kind, folder.names, empty.names) == ("dir", ("a", "b"), ())
    assert (link.kind, link.target, fifo.kind, none) == ("link", "../x", "other", None)
    assert box.look(["/etc/passwd/x"]) == {"/etc/passwd/x": None}
    status = box.look(["/proc/1/status"], content=100)["/proc/1/status"]
    assert status is not None
    assert status.content.startswith(b"Name:")
    box.exec(["bash", "-c", "head -c 9000000 /dev/zero > /tmp/look/big"])
    with pytest.raises(SandboxSpent, match="too much"):
        box.look(["/tmp/look/big"], content=10_000_000)
    with pytest.raises(CallerError, match="absolute"):
        box.look(["x"])


def test_changes_are_seen_from_outside(backend: SandboxBackend) -> None:  # noqa: F811
    with backend.create("default") as box:
        assert box.changes() == []
        box.shell(
            "echo x >> /etc/passwd; rm /usr/bin/wget; mkdir /root/new; touch /root/new/f; mv /usr/bin/bc /usr/bin/bcc"
        )
        seen = {(change.path, change.kind) for change in box.changes()}
        assert {
            ("/etc/passwd", "modified"),
            ("/usr/bin/wget", "deleted"),
            ("/usr/bin/bc", "deleted"),
            ("/usr/bin/bcc", "added"),
            ("/root/new/f", "added"),
        } <= seen
        assert not any(path in ("/etc", "/usr/bin", "/root") for path, _ in seen)


def test_a_fork_has_the_files_and_the_shell_state_and_goes_its_own_way(backend: SandboxBackend) -> None:  # noqa: F811
    with backend.create("default") as box:
        box.exec(["bash", "-c", "echo 1 > /root/file; rm /etc/hostname; mkdir -p /srv/d; chown 1000 /srv/d"]).check()
        box.shell(
            "cd /srv; x=5; export y='a b'; f() { echo f$x; }; alias ll='echo ll'; shopt -s extglob; set -u; umask 027"
        )
        box.shell("arr=(1 'two 2' 3); declare -A map=([k]=v); readonly fixed=9; (exit 3)")
        copy = box.fork()
        if backend.name == "docker":
            assert copy is None
            return
        assert copy is not None
        with copy:
            seen = copy.shell(
                "echo $?; pwd; f; ll; echo $y ${arr[1]} ${map[k]} $fixed; umask; shopt extglob; echo $-; cat /root/file"
            )
            assert seen.output == b"3\n/srv\nf5\nll\na b two 2 v 9\n0027\nextglob        \ton\nhiuBs\n1\n"
            assert copy.exec(["sh", "-c", "ls /etc/hostname; stat -c %u /srv/d"]).stdout == b"1000\n"
            copy.shell("echo 2 > /root/file; x=6")
            assert box.shell("echo $x; cat /root/file").output == b"5\n1\n"
        box.shell("sleep 100 & disown")
        assert box.fork() is None
        box.shell("pkill sleep; su - nobody -s /bin/bash")
        assert box.fork() is None


def test_two_backends_of_one_process_do_not_meet(backend: SandboxBackend, request: pytest.FixtureRequest) -> None:  # noqa: F811
    other = open_backend(backend.name, request)
    try:
        with backend.create("default") as first:
            with other.create("default") as second:
                assert first.id != second.id
                assert second.exec(["true"]).ok
            assert first.exec(["true"]).ok, "the other's end is not this one's"
            started = time.monotonic()
            other.close()
            assert time.monotonic() - started < 8, "nor does it wait for this one's"
            assert first.exec(["true"]).ok
    finally:
        other.close()
