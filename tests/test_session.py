"""The turn loop: what every task gets for free."""

import json
import random
import threading
import time
from collections import Counter as Multiset
from typing import Any

import pytest
from toys import Counter, ForkingCounter, Rude, counter_task, rude_task

from agentbench_fc.episode import ToolEpisode, make_task
from agentbench_fc.errors import CallerError, Conflict, Gone
from agentbench_fc.messages import Message, ToolCall, assistant
from agentbench_fc.rewards import Status
from agentbench_fc.session import Session


def call(name: str, call_id: str = "c1", **arguments: Any) -> list[Message]:
    return [assistant(None, [ToolCall(call_id, name, json.dumps(arguments))])]


def started(task: Any, split: str = "train", index: int = 0, seed: int = 0) -> Session:
    session = Session(task, task.samples(split)[index], seed=seed)
    session.start()
    return session


def text_of(session: Session) -> str:
    return str(session.last.messages[-1]["content"])


def test_an_episode_from_start_to_reward() -> None:
    session = Session(counter_task(), counter_task().samples("train")[1])
    opening = session.start()
    assert (opening.turn, opening.status, opening.finish) == (0, Status.RUNNING, False)
    assert opening.messages == [{"role": "user", "content": "Reach 2."}]
    assert [t["function"]["name"] for t in opening.tools] == ["add", "roll", "submit"]
    assert session.interact(call("add", number=2), turn=1).messages[0]["content"] == "The total is 2."
    end = session.interact(call("submit"), turn=2)
    assert (end.finish, end.status, end.reward, end.success) == (True, Status.COMPLETED, 1.0, True)
    assert end.metrics["turns"] == 2
    assert end.metrics["invalid_calls"] == 0


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("add", "{", "not valid JSON"),
        ("add", "[]", "do not match its schema"),
        ("add", "{}", "'number' is a required property"),
        ("add", '{"number": "one"}', "do not match its schema at $.number"),
        ("add", '{"number": 1, "more": 2}', "Additional properties"),
        ("add", '{"number": NaN}', "NaN is not JSON"),
        ("add", '{"number": 1e999}', "out of range"),
        ("add", '{"number": ' + "9" * 5000 + "}", "not valid JSON"),
        ("add", "[" * 1000 + "]" * 1000, "nested too deeply"),
        ("add", '{"number":' * 200_000, "longer than 1,000,000"),
        ("add", "", "not valid JSON"),
        ("fly", "{}", "there is no tool 'fly'. The tools are: add, roll, submit."),
        ("", "{}", "there is no tool ''"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_call_costs_a_turn_not_the_episode(name: str, arguments: str, complaint: str) -> None:
    session = started(counter_task())
    turn = session.interact([assistant(None, [ToolCall("c1", name, arguments)])])
    assert [m.get("tool_call_id") for m in turn.messages] == ["c1"]
    assert complaint in str(turn.messages[0]["content"])
    assert len(str(turn.messages[0]["content"])) < 1000
    assert (turn.finish, turn.reward) == (False, None)
    session.interact(call("add", number=1))
    end = session.interact(call("submit"))
    assert (end.reward, end.metrics["invalid_calls"]) == (1.0, 1)


def test_a_turn_without_a_call_asks_for_one() -> None:
    session = started(counter_task())
    turn = session.interact([assistant("I think.")])
    assert turn.messages == [
        {
            "role": "user",
            "content": "There was no tool call in that turn. Call one of these tools: add, roll, submit.",
        }
    ]
    assert session.counters.no_call_turns == 1


def test_a_model_that_never_calls_reaches_the_limit() -> None:
    session = started(counter_task())
    for _ in range(Counter.max_turns):
        turn = session.interact([assistant("hm")])
    assert (turn.status, turn.finish, turn.reward, turn.success) == (Status.LIMIT_REACHED, True, 0.0, False)
    with pytest.raises(Gone, match="has finished as task limit reached"):
        session.interact([assistant("hm")])


def test_a_task_may_end_a_model_that_calls_nonsense() -> None:
    class Strict(Counter):
        max_invalid_calls = 1

    session = started(counter_task(Strict))
    assert not session.interact(call("fly")).finish
    turn = session.interact(call("fly"))
    assert (turn.status, turn.reward) == (Status.INVALID_ACTION, 0.0)


def test_calls_after_the_end_and_surplus_calls_are_answered_but_not_run() -> None:
    session = started(counter_task())
    calls = [ToolCall("a", "submit", "{}"), ToolCall("b", "add", '{"number": 1}')]
    turn = session.interact([assistant(None, calls)])
    assert [m.get("tool_call_id") for m in turn.messages] == ["a", "b"]
    assert "Not run" in str(turn.messages[1]["content"])

    class OneByOne(Counter):
        calls_per_turn = "first"

    session = started(counter_task(OneByOne))
    calls = [ToolCall("a", "add", '{"number": 1}'), ToolCall("a", "add", '{"number": 1}')]
    turn = session.interact([assistant(None, calls)])
    assert [m.get("tool_call_id") for m in turn.messages] == ["a", "a"]
    assert "only the first call" in str(turn.messages[1]["content"])
    assert session.counters.surplus_calls == 1


@pytest.mark.parametrize("messages", [None, [], "text", [1], [{"role": "user", "content": "x"}], {"role": "assistant"}])
def test_what_only_a_client_gets_wrong_is_refused_and_costs_no_turn(messages: Any) -> None:
    session = started(counter_task())
    with pytest.raises(CallerError):
        session.interact(messages)
    assert session.turn == 0


def test_a_repeated_turn_returns_the_stored_reply_and_is_not_played_again() -> None:
    session = started(counter_task())
    first = session.interact(call("add", number=1), turn=1)
    assert session.interact(call("add", number=1), turn=1) == first
    assert session.interact(call("add", number=0), turn=2).messages[0]["content"] == "The total is 1."
    for wrong in (1, 4, -1, 0):
        with pytest.raises(Conflict, match="out of order"):
            session.interact(call("add", number=1), turn=wrong)
    end = session.interact(call("submit"), turn=3)
    assert session.interact(call("submit"), turn=3) == end


def test_order_of_calls_is_checked() -> None:
    session = Session(counter_task(), counter_task().samples("train")[0])
    with pytest.raises(Conflict, match="not started"):
        session.interact(call("submit"))
    session.start()
    with pytest.raises(Conflict, match="started already"):
        session.start()


def test_a_second_call_at_once_is_a_conflict() -> None:
    class Patient(Rude):
        call_timeout_s = 60.0

    session = started(make_task(Patient, samples={"train": [{}]}))
    episode: Any = session._episode
    thread = threading.Thread(target=session.interact, args=(call("hangs"),))
    thread.start()
    assert episode._inner.entered.wait(60)
    with pytest.raises(Conflict, match="another call is under way"):
        session.interact(call("prints", size=1))
    episode._inner.release.set()
    thread.join()
    session.cancel()


@pytest.mark.parametrize("kind", ["zero", "exit", "recursion"])
def test_an_error_of_a_tool_is_shown_to_the_model(kind: str) -> None:
    session = started(rude_task())
    turn = session.interact(call("raises", kind=kind))
    assert str(turn.messages[0]["content"]).startswith("Error: ")
    assert not turn.finish
    assert session.counters.tool_errors == 1
    assert session.interact(call("ends")).reward == 1.0


@pytest.mark.parametrize(("kind", "fault"), [("task", "task"), ("infrastructure", "environment")])
def test_a_fault_of_the_environment_ends_the_session_unscored(kind: str, fault: str) -> None:
    session = started(rude_task())
    turn = session.interact(call("raises", kind=kind))
    assert (turn.status, turn.finish, turn.reward, turn.success) == (Status.TASK_ERROR, True, None, None)
    assert turn.metrics["fault"] == fault
    assert len(turn.messages) == 1


def test_a_hanging_tool_costs_its_deadline_and_blocks_no_one_else() -> None:
    task = rude_task()
    session, neighbour = started(task), started(task)
    began = time.monotonic()
    assert "did not finish within 0.8 seconds" in str(session.interact(call("hangs")).messages[0]["content"])
    assert time.monotonic() - began < 2, "of the 5 s that it hangs"
    assert neighbour.interact(call("ends")).reward == 1.0
    end = session.interact(call("ends"))  # the hanging call still runs: it must not run beside another one
    assert (end.status, end.metrics["fault"]) == (Status.TASK_ERROR, "environment")


def test_a_late_call_that_returns_lets_the_session_go_on() -> None:
    session = started(rude_task())
    episode: Any = session._episode
    assert "did not finish" in str(session.interact(call("hangs")).messages[0]["content"])
    episode._inner.release.set()
    assert session.interact(call("ends")).reward == 1.0
    assert session.last.metrics["timeouts"] == 1


def test_a_start_that_fails_or_hangs_is_reported_as_such() -> None:
    for how in ("raise", "hang"):
        turn = Session(task := rude_task(start=how), task.samples("train")[0]).start()
        assert (turn.status, turn.finish, turn.reward) == (Status.INIT_FAILED, True, None)
        assert turn.metrics["reason"]


def test_long_and_broken_output_is_cut_and_cleaned() -> None:
    session = started(rude_task())
    session.interact(call("prints", size=10_000_000))
    assert text_of(session) == "x" * 1000 + "\n[cut: 9999000 more characters]"
    session.interact(call("surrogate"))
    assert text_of(session) == "bad ? text"


@pytest.mark.parametrize("amount", [1.5, -0.1])
def test_a_reward_outside_its_range_is_a_fault_of_the_task(amount: float) -> None:
    turn = started(rude_task()).interact(call("pays", amount=amount))
    assert (turn.status, turn.metrics["fault"]) == (Status.TASK_ERROR, "task")


def test_rewards_add_up() -> None:
    session = started(rude_task())
    assert session.interact(call("pays", amount=0.25)).reward == 0.25
    end = session.cancel(status="agent context limit")
    assert (end.reward, end.metrics["raw_reward"], end.success) == (0.0, 0.25, False)


def test_what_a_tool_returns_becomes_text() -> None:
    session = started(rude_task())
    session.interact(call("returns", what="list"))
    assert text_of(session) == '[1, "é"]'
    session.interact(call("returns", what="none"))
    assert text_of(session) == "null"


def test_cancel_is_idempotent_and_frees_the_episode() -> None:
    session = started(rude_task())
    episode = session._episode
    end = session.cancel(reason="no longer needed")
    assert (end.status, end.finish, end.reward, end.metrics["reason"]) == (
        Status.CANCELLED,
        True,
        None,
        "no longer needed",
    )
    assert session.cancel() == end
    session.close()
    assert episode is not None
    assert episode._inner.closed == 1  # type: ignore[attr-defined]
    with pytest.raises(CallerError, match="cannot end a session as completed"):
        started(rude_task()).cancel(status="completed")


def test_a_cancel_during_a_call_ends_the_session_with_it() -> None:
    class Patient(Rude):
        call_timeout_s = 60.0

    task = make_task(Patient, samples={"train": [{}]})
    session = started(task)
    episode: Any = session._episode
    thread = threading.Thread(target=session.interact, args=(call("hangs"),))
    thread.start()
    assert episode._inner.entered.wait(60)
    assert session.cancel().status is Status.CANCELLED
    episode._inner.release.set()
    thread.join()
    assert (session.status, session.last.reward) == (Status.CANCELLED, None)


@pytest.mark.parametrize("episode", [Counter, ForkingCounter])
@pytest.mark.parametrize("turn", [0, 1, 2, None])
def test_a_fork_goes_its_own_way(episode: type[ToolEpisode], turn: int | None) -> None:
    session = started(counter_task(episode), index=4, seed=3)
    for _ in range(2):
        session.interact(call("roll"))
    before = text_of(session)
    child, sibling = session.fork(turn), session.fork(turn)
    assert child.turn == (2 if turn is None else turn)
    assert child.parent == (session.id, child.turn)
    assert [p.turn.messages for p in child.log] == [p.turn.messages for p in session.log[: child.turn + 1]]
    child.interact(call("add", number=100))
    assert text_of(session) == before
    while sibling.turn < 2:
        sibling.interact(call("roll"))
    assert text_of(sibling) == before
    assert text_of(session) == before
    rolls = [s.interact(call("roll")).messages for s in (session, sibling)]
    assert rolls[0] == rolls[1]  # the random state was forked too


def test_a_finished_turn_cannot_be_forked() -> None:
    session = started(counter_task())
    session.interact(call("add", number=1))
    session.interact(call("submit"))
    with pytest.raises(CallerError, match="ended the session"):
        session.fork()
    with pytest.raises(CallerError, match="there is no turn 9"):
        session.fork(9)
    assert session.fork(1).interact(call("submit")).reward == 1.0


# random messages: drawn by plain code from a seed, since 10,000 of them through hypothesis' engine take minutes


def random_text(rng: random.Random) -> str:
    return "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x110000)])) for _ in range(rng.randrange(12)))


def random_json(rng: random.Random, depth: int = 3) -> Any:
    leaf = [None, True, rng.randrange(-5, 9), rng.random(), float("nan"), float("inf"), 10**400, random_text(rng)]
    if depth and rng.random() < 0.4:
        if rng.random() < 0.5:
            return [random_json(rng, depth - 1) for _ in range(rng.randrange(4))]
        return {random_text(rng): random_json(rng, depth - 1) for _ in range(rng.randrange(4))}
    return rng.choice(leaf)


def random_arguments(rng: random.Random) -> Any:
    match rng.randrange(8):
        case 0 | 1:
            return json.dumps({"number": rng.randrange(-3, 9)})
        case 2:
            return "{}"
        case 3:
            return json.dumps(random_json(rng))
        case 4:
            return random_json(rng)
        case 5:
            return random_text(rng)
        case 6:
            depth = rng.choice([10, 300, 400, 500, 900, 1000])
            return rng.choice(["[" * depth + "]" * depth, '{"number":' * depth + "1" + "}" * depth])
    return rng.choice(['{"number": NaN}', '{"number": "\\ud800"}', '"\\ud800"', "\ud800", '{"number": -0.0}'])


def random_message(rng: random.Random) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": rng.choice([None, random_text(rng)])}
    if rng.random() < 0.8:
        count = 100 if rng.random() < 0.01 else rng.randrange(4)
        names = ["add", "add", "roll", "submit", "fly", "", "add\ud800", random_text(rng)]
        ids = ["a", "a", "b", "", None, "\ud800", random_text(rng)]
        message["tool_calls"] = [
            {"id": rng.choice(ids), "function": {"name": rng.choice(names), "arguments": random_arguments(rng)}}
            for _ in range(count)
        ]
    return message


def check_next_state(session: Session, messages: list[dict[str, Any]]) -> None:
    before = session.turn
    turn = session.interact(messages)
    sent = [c for m in messages for c in m.get("tool_calls") or []]
    results = [m for m in turn.messages if m["role"] == "tool"]
    assert len(results) == len(sent)
    for message, tool_call in zip(results, sent, strict=True):
        if isinstance(tool_call["id"], str) and tool_call["id"].isascii() and tool_call["id"]:
            assert message["tool_call_id"] == tool_call["id"]
    assert turn.turn == before + 1
    assert turn.finish == (turn.status is not Status.RUNNING)
    json.dumps(turn.messages).encode()
    for message in turn.messages:
        str(message["content"]).encode("utf-8")


@pytest.mark.parametrize("seed", range(4))
def test_random_messages_always_give_a_valid_next_state(seed: int) -> None:
    rng = random.Random(seed)
    task = counter_task()
    session = started(task)
    for _ in range(2500):  # 10,000 messages in all
        if session.finished:
            session = started(task, index=rng.randrange(5), seed=seed)
        check_next_state(session, [random_message(rng)])


def test_huge_arguments_are_answered_and_not_remembered() -> None:
    session = started(counter_task())
    huge = {"id": "h", "function": {"name": "add", "arguments": '{"number": "' + "x" * 10_000_000 + '"}'}}
    began = time.process_time()
    check_next_state(session, [{"role": "assistant", "content": "y" * 10_000_000, "tool_calls": [huge]}])
    assert time.process_time() - began < 5
    assert sum(len(str(m)) for m in session.log[-1].sent) < 2_100_000


def test_equal_calls_give_equal_episodes_and_seeds_matter() -> None:
    def rolls(seed: int) -> list[str]:
        session = started(counter_task(), index=2, seed=seed)
        return [str(session.interact(call("roll")).messages[0]["content"]) for _ in range(5)]

    assert rolls(1) == rolls(1)
    assert len(Multiset(tuple(rolls(random.Random(s).randrange(10**6))) for s in range(8))) > 1
