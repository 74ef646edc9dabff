"""Frames survive both kinds of sockets; a cut frame is an end, an absurd one is refused; errors keep their class."""

import asyncio
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError, NotFound, TaskError
from agentrl_trainer.engines.base import ContextFull
from agentrl_trainer.engines.wire import (
    Frame,
    FrameWriter,
    error_from_dict,
    error_to_dict,
    read_frame,
    receive_frame,
    send_frame,
)

heads = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.booleans(), max_size=4)


@given(frames=st.lists(st.tuples(heads, st.binary(max_size=3000)), max_size=5))
def test_frames_cross_between_an_asyncio_side_and_a_blocking_one(frames: list[tuple[dict[str, object], bytes]]) -> None:
    ours, theirs = socket.socketpair()
    echoed: list[Frame] = []

    def echo() -> None:
        with theirs:
            while (frame := receive_frame(theirs)) is not None:
                echoed.append(frame)
                send_frame(theirs, frame.head, frame.body)

    async def talk() -> list[Frame | None]:
        reader, stream = await asyncio.open_connection(sock=ours)
        writer = FrameWriter(stream)
        for head, body in frames:
            await writer.send(head, body)
        answers = [await read_frame(reader) for _ in frames]
        await writer.aclose()
        return answers

    thread = threading.Thread(target=echo)
    thread.start()
    answers = asyncio.run(talk())
    thread.join(5)
    assert echoed == answers == [Frame(head, body) for head, body in frames]


@pytest.mark.parametrize("sent", [b"", b"\0" * 7, struct.pack(">QQ", 5, 0) + b"{}", struct.pack(">QQ", 2, 9) + b"{}ab"])
def test_a_cut_frame_is_the_end(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(sent)
        assert receive_frame(ours) is None


async def test_a_cut_frame_is_the_end_for_asyncio_too() -> None:
    ours, theirs = socket.socketpair()
    reader, stream = await asyncio.open_connection(sock=ours)
    with theirs:
        theirs.sendall(struct.pack(">QQ", 2, 9) + b"{}ab")
    assert await read_frame(reader) is None
    stream.close()
    with pytest.raises(InfrastructureError, match="the other process is gone"):
        await _send_much(FrameWriter(stream))


async def _send_much(writer: FrameWriter) -> None:
    for _ in range(100):  # the first writes may still fit into a buffer
        await writer.send({"op": "x"}, b"x" * 100_000)


def test_an_absurd_length_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack(">QQ", 1 << 40, 0))
        with pytest.raises(InfrastructureError, match="same release"):
            receive_frame(ours)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ContextFull("a"), ContextFull),
        (NotFound("b"), CallerError),
        (TaskError("c"), TaskError),
        (InfrastructureError("d"), InfrastructureError),
        (AgentBenchError("e"), TaskError),
    ],
)
def test_an_error_keeps_its_class_and_text(error: AgentBenchError, kind: type[AgentBenchError]) -> None:
    again = error_from_dict(error_to_dict(error))
    assert type(again) is kind
    assert str(again) == str(error)
