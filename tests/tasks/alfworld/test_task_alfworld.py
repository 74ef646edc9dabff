"""The task through sessions: both profiles, bad input, limits, forks, lists of actions, shaped reward, options."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alfworld_toys import contents, need_engine
from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.episode import Turn
from agentbench_fc.errors import CallerError, NotFound
from agentbench_fc.messages import Message, ToolCall, assistant
from agentbench_fc.registry import load_task
from agentbench_fc.rewards import Status, settle
from agentbench_fc.session import Session
from agentbench_fc.tasks.alfworld.engine import NOTHING, Engine, Game
from agentbench_fc.tasks.alfworld.progress import read_goal
from agentbench_fc.tasks.alfworld.rules import LEAST_BLEU, bleu, listed, nearest, read_actions
from agentbench_fc.tasks.alfworld.task import AlfworldTask


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    need_engine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def made(**options: Any) -> AlfworldTask:
    task = load_task("alfworld", level="easy", processes=1, **options)
    assert isinstance(task, AlfworldTask)
    return task


@pytest.fixture(scope="module")
def task(cache: None) -> Iterator[AlfworldTask]:
    task = made()
    yield task
    task.close()


@pytest.fixture(scope="module")
def original(cache: None) -> Iterator[AlfworldTask]:
    """Under AgentBench's rules."""
    task = made(profile="agentbench")
    yield task
    task.close()


def started(task: AlfworldTask, number: int = 0) -> Session:
    session = Session(task, task.samples("train")[number])
    assert session.start().status is Status.RUNNING
    return session


def act(session: Session, action: str) -> Turn:
    return session.interact([assistant(None, [ToolCall("c1", "take_action", json.dumps({"action": action}))])])


def text(turn: Turn) -> str:
    (message,) = turn.messages
    return str(message["content"])


def play(session: Session) -> Turn:
    for action in session.sample.data["walkthrough"]:
        turn = act(session, action)
    return turn


def told(session: Session) -> list[list[Message]]:
    return [played.turn.messages for played in session.log]


@pytest.mark.parametrize("number", range(6))
def test_walkthroughs_win_in_both_profiles(task: AlfworldTask, original: AlfworldTask, number: int) -> None:
    for each in (task, original):
        turn = play(started(each, number))
        assert (turn.status, turn.reward, turn.success) == (Status.COMPLETED, 1.0, True)
        assert settle(turn.status, turn.reward).terminated
        assert turn.metrics["task_type"] == each.samples("train")[number].data["task_type"]


@pytest.mark.parametrize("expert", ["walkthrough", "explorer"])
def test_experts_win(expert: str) -> None:
    task = made(expert=expert, max_turns=50)
    for number in range(6):
        session = Session(task, task.samples("train")[number])
        turn = session.start()
        moves = task.expert(session.sample)
        assert moves is not None
        move = next(moves)
        while not turn.finish:
            assert isinstance(move, ToolCall)
            turn = session.interact([assistant(None, [move])])
            if not turn.finish:
                move = moves.send(turn)
        assert turn.success, session.sample.id
    task.close()


def test_the_opening_names_the_room_the_task_and_the_actions(task: AlfworldTask, original: AlfworldTask) -> None:
    opening = started(task).last.messages
    assert [message["role"] for message in opening] == ["system", "user"]
    assert "20 turns" in opening[0]["content"]
    room = str(opening[1]["content"])
    assert room.startswith("You are in the middle of a room.")
    assert "\n\nYour task is to: " in room
    assert "go to" in read_actions(room)[0]
    ours = str(started(original).last.messages[1]["content"])
    assert ours.startswith("Here is your task. You are in the middle of a room.")
    assert ". AVAILABLE ACTIONS: go to " in ours
    assert read_actions(ours) == read_actions(room)


@pytest.mark.parametrize(
    "action",
    ["", "  ", "fly", "x" * 100_000, "\x00\x1b[2J", "去冰箱 1", "go to fridge 1\nlook", "Look", "{actions}"],
    ids=range(9),
)
def test_a_wrong_action_costs_a_turn_and_nothing_else(task: AlfworldTask, action: str) -> None:
    session = started(task)
    turn = act(session, action)
    assert text(turn).startswith(NOTHING + "\n")
    assert (turn.status, turn.reward, turn.metrics["nothing_happened"]) == (Status.RUNNING, None, 1)
    assert read_actions(text(turn)) == read_actions(str(session.log[0].turn.messages[1]["content"]))
    assert play(session).success


@pytest.mark.parametrize("arguments", ["", "{", "[]", "{}", '{"action": 1}', '{"action": "look", "x": 1}'])
def test_wrong_arguments_are_told(task: AlfworldTask, arguments: str) -> None:
    session = started(task)
    turn = session.interact([assistant(None, [ToolCall("c1", "take_action", arguments)])])
    assert text(turn).startswith("Error: ")
    assert not turn.finish


def test_twenty_turns_are_the_limit(task: AlfworldTask) -> None:
    session = started(task)
    for _ in range(20):
        assert not session.finished
        turn = act(session, "look")
    assert (turn.status, turn.reward, turn.success) == (Status.LIMIT_REACHED, 0.0, False)
    assert settle(turn.status, turn.reward).truncated


def test_three_equal_actions_end_an_original_episode(original: AlfworldTask, task: AlfworldTask) -> None:
    session = started(original)
    for action in ("look", "look", "look"):
        assert act(session, action).status is Status.RUNNING  # the rule holds from the fourth action on
    turn = act(session, "look")
    assert (turn.status, turn.reward, turn.success) == (Status.INVALID_ACTION, 0.0, False)
    session = started(original)
    for action in ("look", "inventory", "look", "look", "inventory", "look"):
        assert act(session, action).status is Status.RUNNING
    fair = started(task)
    for _ in range(10):
        assert act(fair, "look").status is Status.RUNNING


def test_an_original_action_is_repaired_and_told_in_the_metrics(original: AlfworldTask) -> None:
    session = started(original)
    wanted = session.sample.data["walkthrough"][0]
    turn = act(session, f"Please {wanted.upper()} now\nand look")
    assert turn.metrics["executed_action"] == wanted
    assert turn.metrics["repaired"] == 1
    assert text(turn).startswith("You arrive at ")
    turn = act(session, "sing")
    assert (turn.metrics["repaired"], turn.metrics["nothing_happened"]) == (1, 1)
    assert text(turn).startswith(NOTHING)


def test_a_turn_without_a_call_is_told(task: AlfworldTask, original: AlfworldTask) -> None:
    for each in (task, original):
        turn = started(each).interact([assistant("I look around.")])
        assert "no tool call" in text(turn)
        assert not turn.finish


def test_only_the_first_original_call_counts(original: AlfworldTask) -> None:
    calls = [ToolCall(f"c{n}", "take_action", '{"action": "look"}') for n in range(2)]
    first, second = started(original).interact([assistant(None, calls)]).messages
    assert str(first["content"]).startswith("You are in the middle")
    assert str(second["content"]).startswith("Not run")


def test_a_fork_goes_its_own_way_at_any_turn(task: AlfworldTask) -> None:
    session = started(task)
    for action in session.sample.data["walkthrough"][:-1]:
        act(session, action)
    twin, early = session.fork(), session.fork(1)
    assert told(twin) == told(session)
    assert act(twin, session.sample.data["walkthrough"][-1]).success
    assert not session.finished
    assert act(session, "inventory").messages != twin.last.messages
    for action in session.sample.data["walkthrough"][1:]:
        turn = act(early, action)
    assert turn.success
    for each in (session, twin, early):
        each.close()
        each.close()


def test_the_same_actions_give_the_same_episode_in_another_process() -> None:
    transcripts = []
    for number in range(2):
        task = made(sessions_per_process=100 + number)  # other settings, other process
        session = started(task, 3)
        play(session)
        transcripts.append(told(session))
        task.close()
    assert transcripts[0] == transcripts[1]


def test_a_dead_process_ends_its_session_as_the_environment_s_fault(task: AlfworldTask) -> None:
    session = started(task)
    child = task._rules.workers.pool.pin(timeout_s=60)
    os.kill(child.pid, signal.SIGKILL)
    turn = act(session, "look")
    task._rules.workers.pool.unpin(child)
    assert (turn.status, turn.metrics["fault"]) == (Status.TASK_ERROR, "environment")
    assert not settle(turn.status, turn.reward).trained
    assert play(started(task)).success


def test_tasks_share_their_processes_until_the_last_is_closed() -> None:
    tasks = [made(sessions_per_process=77) for _ in range(3)]
    sessions = [started(task) for task in tasks]
    children = list(tasks[0]._rules.workers.pool._users)
    assert len(children) == 1
    for task in tasks[:2]:
        task.close()
        task.close()
    assert play(sessions[2]).success
    assert children[0].alive
    tasks[2].close()
    assert not children[0].alive
    again = made(sessions_per_process=77)
    assert play(started(again)).success
    again.close()


# lists


def test_a_grouped_list_is_shorter_and_says_the_same() -> None:
    engine = Engine()
    for content in contents(6):
        play = engine.start(Game.read(content))
        for command in ("", *play.game.walkthrough):
            seen = play.step(command) if command else play.seen
            grouped = listed(seen.admissible, "grouped")
            assert sorted(read_actions(f"{seen.feedback}\n\nPossible actions:\n{grouped}")) == list(seen.admissible)
            assert len(grouped) < len(listed(seen.admissible, "full"))
            assert read_actions(f"Here. AVAILABLE ACTIONS: {listed(seen.admissible, 'full')}") == list(seen.admissible)
    engine.close()
    room = [*(f"go to drawer {n}" for n in range(1, 13)), *(f"go to cabinet {n}" for n in range(1, 13)), "help", "look"]
    assert len(listed(room, "grouped")) < 0.2 * len(listed(room, "full"))


def test_a_grouped_episode_is_explained_and_won() -> None:
    task = made(actions="grouped")
    session = started(task)
    assert "go to _: " in session.log[0].turn.messages[0]["content"]
    assert "go to _: " in session.log[0].turn.messages[1]["content"]
    assert play(session).success
    task.close()


@pytest.mark.parametrize(
    ("reference", "candidate", "score"),
    [
        ("take mug 1 from desk 1", "take mug 1 from desk 1", 1.0),
        ("take mug 1 from desk 1", "pick up mug 1", 0.10202995073993343),
        ("go to fridge 1", "go to the fridge", 0.18616487055295167),
        ("go to fridge 1", "fridge", 0.049787068367863944),
        ("look", "fridge 1", 0.0),
        ("open drawer 3", "open the drawer number 3 now please", 0.042587297623443834),
        ("look", "", 0.0),
    ],
)
def test_bleu_is_nltk_s(reference: str, candidate: str, score: float) -> None:
    """Values of `sentence_bleu` with `SmoothingFunction().method4`, nltk 3.10.4."""
    assert bleu(reference.split(), candidate.split()) == pytest.approx(score, abs=1e-12)


words = st.lists(st.sampled_from("go to take mug 1 2 from desk".split()), max_size=8)


@given(words, words)
def test_bleu_is_a_share_and_one_only_for_equals(reference: list[str], candidate: list[str]) -> None:
    score = bleu(reference, candidate)
    assert 0 <= score <= 1 + 1e-12
    if len(candidate) >= 4:
        assert (score > 1 - 1e-9) == (reference == candidate)


def test_the_first_of_the_nearest_is_taken_and_far_ones_are_not() -> None:
    assert nearest("go to the desk", ["go to bed 1", "go to desk 1", "go to desk 2"]) == "go to desk 1"
    assert nearest("sing", ["look", "help"]) is None
    assert nearest("look", []) is None
    assert nearest("", ["look"]) is None


@given(st.lists(st.sampled_from("go to desk 1 a".split()), min_size=100, max_size=900))
def test_what_is_too_long_to_be_near_needs_no_reckoning(words: list[str]) -> None:
    commands = ["go to desk 1", "look"]
    scores = [bleu(command.split(), words) for command in commands]
    best = scores.index(max(scores))
    assert nearest(" ".join(words), commands) == (commands[best] if scores[best] > LEAST_BLEU else None)


def test_an_endless_action_is_understood_at_once() -> None:
    commands = [f"take mug {n} from desk {n}" for n in range(200)]
    started = time.process_time()
    assert nearest("take mug 1 from desk 1 " * 40_000, commands) is None
    assert time.process_time() - started < 2


# the shaped reward


@pytest.mark.parametrize("number", range(6))
def test_sub_goals_pay_in_part_and_a_game_earns_one_in_all(number: int) -> None:
    content = contents(6)[number]
    game = Game.read(content)
    goal = read_goal(game.problem)
    assert goal is not None
    engine = Engine()
    play = engine.start(game)
    done = [goal.done(play.facts)]
    for command in game.walkthrough:
        play.step(command)
        done.append(goal.done(play.facts))
    engine.close()
    assert done[0] == 0
    assert done == sorted(done)
    assert done[-1] == goal.steps - 1
    assert set(done) == set(range(goal.steps))


def test_a_shaped_reward_is_paid_once_and_sums_to_one() -> None:
    task = made(subgoal_reward=0.4)
    for number in range(6):
        session = started(task, number)
        rewards = []
        for action in session.sample.data["walkthrough"]:
            rewards.append(act(session, action).reward)
            if not session.finished:
                rewards.append(act(session, "look").reward)
        paid = [reward for reward in rewards if reward]
        assert sum(paid) == pytest.approx(1.0)
        assert paid[-1] == pytest.approx(0.6)
        assert len(paid) >= 2
    session = started(task)
    take = next(a for a in session.sample.data["walkthrough"] if a.startswith("take"))
    for action in session.sample.data["walkthrough"]:
        turn = act(session, action)
        if action == take:
            break
    assert turn.reward
    back = take.replace("take", "move").replace("from", "to")
    assert [act(session, action).reward for action in (back, take, back, take)] == [None] * 4
    task.close()


@pytest.mark.parametrize(
    "problem", ["", "(:goal (and))", "(:goal (objectType ?o AType) (receptacleType ?r B) (objectType ?p CType))"]
)
def test_other_goals_have_no_steps(problem: str) -> None:
    assert read_goal(problem) is None


# options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"actions": "short"}, "no list of actions 'short'"),
        ({"actions": 3}, "no list of actions"),
        ({"expert": "me"}, "no expert 'me'"),
        ({"subgoal_reward": 1}, "subgoal_reward is 1"),
        ({"subgoal_reward": "0.5"}, "subgoal_reward"),
        ({"subgoal_reward": float("nan")}, "subgoal_reward"),
        ({"trust_games": "yes"}, "trust_games"),
        ({"processes": 0}, "processes is 0"),
        ({"processes": 1.5}, "processes is 1.5"),
        ({"sessions_per_process": -1}, "sessions_per_process"),
        ({"max_rss_mb": True}, "max_rss_mb"),
        ({"max_rss_mb": float("inf")}, "max_rss_mb"),
        ({"max_rss_mb": float("nan")}, "max_rss_mb"),
        ({"level": "brutal"}, "no level 'brutal'"),
        ({"task_type": "dance"}, "no task_type 'dance'"),
        ({"profile": "agentbench", "actions": "grouped"}, "AgentBench lists all actions"),
        ({"profile": "agentbench", "subgoal_reward": 0.5}, "AgentBench lists all actions"),
        ({"data": "/nonexistent"}, "/nonexistent"),
    ],
    ids=str,
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CallerError, match=words):
        load_task("alfworld", **options)


def test_no_such_split(task: AlfworldTask) -> None:
    with pytest.raises(NotFound, match="no split 'tset'"):
        task.samples("tset")


@pytest.mark.parametrize("module", ["textworld", "fast_downward", "alfworld"])
def test_what_is_not_installed_is_named_with_the_line_that_installs_it(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CallerError, match=rf"{module}.*pip install 'agentbench-fc\[alfworld\]'"):
        load_task("alfworld")


def test_a_session_imports_nothing_of_the_engine_into_its_own_process() -> None:
    code = """
import sys
import time
from agentbench_fc.registry import load_task
from agentbench_fc.session import Session
task = load_task("alfworld", level="easy", processes=1)
print(Session(task, task.samples("train")[0]).start().status)
task.close()
print({"textworld", "alfworld", "fast_downward", "tatsu", "jericho"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split("\n")[:2] == ["running", "set()"]


def official(root: Path, content: dict[str, Any]) -> Path:
    place = root / "json_2.1.1" / "valid_seen" / "pick_and_place_simple-Book-None-Bed-301" / "trial_T1"
    place.mkdir(parents=True)
    (place / "game.tw-pddl").write_text(json.dumps(content), encoding="utf-8")
    return root


@pytest.mark.parametrize("kind", ["grammar", "pddl"])
def test_a_wrong_game_file_fails_its_own_start(tmp_path: Path, kind: str) -> None:
    good = contents(1)[0]
    content = {
        "grammar": {**good, "grammar": good["grammar"].replace("You open", "You shut")},
        "pddl": {**good, "pddl_problem": good["pddl_problem"][:-100]},
    }[kind]
    task = load_task("alfworld", data=official(tmp_path, content), processes=1)
    samples = task.samples("valid_seen")
    session = Session(task, samples[0])
    turn = session.start()
    assert turn.status is Status.INIT_FAILED
    assert turn.metrics["reason"].endswith((".", "here come from."))
    task.close()


def test_trusted_games_play(tmp_path: Path) -> None:
    good = contents(1)[0]
    data = official(tmp_path, {**good, "grammar": good["grammar"].replace("You open", "You shut")})
    task = load_task("alfworld", data=data, processes=1, trust_games=True)
    session = Session(task, task.samples("valid_seen")[0])
    session.start()
    for action in good["walkthrough"]:
        turn = act(session, action)
    assert turn.success
    task.close()
