"""Messages between us and the agent in a sandbox: what is damaged, cut or late is a lost sandbox, never an answer."""

import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.tasks.os.sandbox import SandboxLost
from agentbench_fc.tasks.os.sandbox.attached import AttachedStream
from agentbench_fc.tasks.os.sandbox.inside import processes
from agentbench_fc.tasks.os.sandbox.wire import HEAD, SocketStream, Wire, pack, program, unpack


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300)))
def test_both_sides_read_and_write_the_same_messages(fields: list[bytes]) -> None:
    assert processes.pack(fields) == pack(fields)
    assert unpack(pack(fields)[HEAD:]) == processes.unpack(pack(fields)[HEAD:]) == fields


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=60))
def test_no_noise_reads_as_a_message_that_does_not_add_up(noise: bytes) -> None:
    try:
        fields = unpack(noise)
    except ValueError:
        return
    assert pack(fields)[HEAD:] == noise or len(noise) % 4


def answering(*answers: bytes) -> tuple[Wire, socket.socket]:
    """A wire at whose other end these bytes come, whatever is asked."""
    mine, its = socket.socketpair()
    for each in answers:
        its.sendall(each)
    return Wire(SocketStream(mine), "box"), its


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"garbage that is longer than a head", "no message"),
        (pack([b"1", b"ok"])[:-1] + b"X", "wrong checksum"),
        (pack([b"2", b"ok"]), "not that of the question"),
        (pack([b"1"]), "not that of the question"),
        (b"\xfa\xfc\xff\xff\xff\xff0000", "no message"),
        (processes.MAGIC + b"\0\0\0\x08" + b"\x2c\xc1\x6d\x15" + b"\0\0\0\x63abcd", "checksum|damaged"),
    ],
)
def test_a_damaged_answer_is_a_lost_sandbox_never_an_answer(bad: bytes, why: str) -> None:
    wire, its = answering(bad)
    with its:
        with pytest.raises(SandboxLost, match=why):
            wire.ask(b"exec", timeout_s=5)
        with pytest.raises(SandboxLost, match="sandbox box"):
            wire.ask(b"exec", timeout_s=5)
        wire.close()


@pytest.mark.parametrize("cut", [0, 1, HEAD - 1, HEAD, HEAD + 3])
def test_a_cut_answer_is_a_lost_sandbox(cut: int) -> None:
    wire, its = answering(pack([b"1", b"ok", b"output"])[:cut])
    its.shutdown(socket.SHUT_WR)
    with its, pytest.raises(SandboxLost, match="ended"):
        wire.ask(b"exec", timeout_s=5)
    wire.close()


def test_no_answer_is_a_lost_sandbox_in_time() -> None:
    wire, its = answering()
    began = time.monotonic()
    with its, pytest.raises(SandboxLost, match="in time"):
        wire.ask(b"exec", timeout_s=0.2)
    assert time.monotonic() - began < 2
    wire.close()


def test_an_answer_in_small_pieces_is_put_together() -> None:
    wire, its = answering()
    data = pack([b"1", b"ok", b"x" * 100_000])

    def drip() -> None:
        for at in range(0, len(data), 997):
            its.sendall(data[at : at + 997])

    thread = threading.Thread(target=drip)
    thread.start()
    assert wire.ask(b"exec", timeout_s=10) == [b"ok", b"x" * 100_000]
    thread.join()
    its.close()
    wire.close()


def test_frames_of_an_engine_are_taken_apart_wherever_they_are_cut() -> None:
    mine, its = socket.socketpair()

    class Holder:
        def close(self) -> None:
            pass

    stream = AttachedStream(Holder(), mine)
    pieces = ((1, b"one"), (2, b"bad"), (1, b""), (1, b"two"))
    frames = b"".join(bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for kind, data in pieces)
    seen = b""
    for at in range(len(frames)):
        its.sendall(frames[at : at + 1])
        try:
            seen += stream.recv()
        except BlockingIOError:
            continue
    assert (seen, bytes(stream.stderr)) == (b"onetwo", b"bad")
    its.close()
    assert stream.recv() == b""
    stream.close()


def test_the_agents_program_stands_alone(tmp_path: Path) -> None:
    source = program().decode()
    assert "agentbench_fc" not in re.sub(r'"""[\s\S]*?"""', "", source)
    file = tmp_path / "agent.py"
    file.write_text(source.replace("disguise()\n    Agent(0, 1).serve()", "pass"))
    subprocess.run([sys.executable, "-I", "-S", str(file)], check=True, timeout=30)
