"""The command line: what it prints, and the code with which it ends."""

import asyncio
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from fake_openai import FakeOpenAI, expert_answers
from toys import counter_task

from agentbench_fc import cli

TOYS = f"{Path(__file__).parent / 'toys_as_task.py'}:TASK"


class Cli:
    """Runs the command line in this process, as the console script does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["agentbench-fc", *arguments])
        self._monkeypatch.setattr("signal.signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return code or 0, *self._capsys.readouterr()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def test_traces_prints_what_happened_and_the_score(run: Cli) -> None:
    code, out, _ = run("traces", TOYS, "--n", "2")
    assert code == 0
    assert '[1] assistant calls add: {"number": 1}' in out
    assert "[2] tool: Ended at 1." in out
    assert "--- counter/train/1: completed, reward 1, success, 3 turns" in out
    assert out.splitlines()[-1].endswith("2 scored, success 2/2 = 100.0 %, mean reward 1.000, 2.5 turns (2 completed)")
    code, out, _ = run("traces", TOYS, "--sample", "counter/dev/1", "--player", "noop")
    assert (code, "no success" in out, "counter/dev/1" in out) == (0, True, True)


def test_what_traces_writes_replay_confirms_and_a_change_is_found(run: Cli, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    for player in ("expert", "random", "constant"):
        assert run("traces", TOYS, "--n", "3", "--player", player, "--out", str(file), "--seed", "5")[0] == 0
    code, out, _ = run("replay", str(file))
    assert (code, "9 sessions" in out, "no divergence" in out) == (0, True, True)
    file.write_text(file.read_text().replace("The total is 2.", "The total is 9.", 1))
    code, out, _ = run("replay", str(file), "--json")
    report = json.loads(out)
    assert (code, report["ok"], len(report["divergences"])) == (1, False, 1)


def test_traces_as_json_are_transcript_lines(run: Cli, tmp_path: Path) -> None:
    code, out, err = run("traces", TOYS, "--json")
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["start", "turn", "turn", "turn", "end"]
    assert (code, "success 1/1" in err) == (0, True)
    file = tmp_path / "t.jsonl"
    file.write_text(out)
    assert run("replay", str(file))[0] == 0


def test_a_player_is_evaluated_and_the_same_command_has_nothing_left_to_do(run: Cli, tmp_path: Path) -> None:
    command = ["eval", "--task", TOYS, "--player", "expert", "--repeats", "2", "--out", str(tmp_path)]
    code, out, err = run(*command)
    assert (code, "| 100.0 ± 0.0 |" in out, "4/4 episodes" in err) == (0, True, True)
    code, out, err = run(*command, "--json")
    assert (code, json.loads(out)["scored"], "episodes" in err) == (0, 4, False)
    code, _, err = run(*command, "--seed", "1")
    assert code == 2
    assert err == (
        f"agentbench-fc: these results were made with other options: seed was 0, now 1 "
        f"[{tmp_path}/results.jsonl]. Choose another --out.\n"
    )


async def test_eval_compares_policies_and_their_mixtures(tmp_path: Path) -> None:
    answers = expert_answers(counter_task(), "train", limit=2)
    async with FakeOpenAI(answers) as first, FakeOpenAI(answers) as second:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agentbench_fc.cli", "eval", "--task", TOYS, "--split", "train", "--limit", "2",
            "--policy", f"fresh=m@{first.url}", "--policy", f"stale=m@{second.url}", "--repeats", "3",
            "--out", str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0, err.decode()
    for arm in ("fresh", "stale", "mixed trajectories", "mixed steps"):
        assert f"| {arm} | 2 | 6 | 100.0 ± 0.0 | 100.0 | 100.0 | 100.0 |" in out.decode()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["traces", "nope"], "no task 'nope'"),
        (["traces", TOYS, "--player", "exprt"], "Did you mean 'expert'"),
        (["traces", TOYS, "--sample", "counter/train/99"], "no sample 'counter/train/99'"),
        (["traces", TOYS, "--split", "tran"], "Did you mean 'train'"),
        (["traces", TOYS, "--option", "max_turns"], "Write --option key=value"),
        (["traces", TOYS, "--option", "max_turns=3"], "takes no profile, prompt style or options"),
        (["replay", "/nowhere.jsonl"], "cannot be read"),
        (["eval", "--task", TOYS], "either a model or a player"),
        (["eval", "--task", TOYS, "--policy", "fresh=m"], "Write NAME=MODEL@http://host:port/v1"),
        (
            ["eval", "--task", TOYS, "--model", "m", "--base-url", "http://x", "--api-key-env", "NO_KEY"],
            "NO_KEY is not",
        ),
        (["eval", "--task", TOYS, "--player", "expert", "--split", "std"], "no split 'std'"),
    ],
)
def test_an_error_is_one_line_and_the_caller_s_code(run: Cli, arguments: list[str], text: str, tmp_path: Path) -> None:
    out_option = ["--out", str(tmp_path)] if arguments[0] == "eval" else []
    code, out, err = run(*arguments, *out_option)
    assert (code, out) == (2, "")
    assert err.startswith("agentbench-fc: ")
    assert text in err
    assert err.count("\n") == 1


def test_a_task_that_is_broken_is_its_owner_s_fault(run: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    code, _, err = run("traces", f"{tmp_path}/broken.py:TASK")
    assert (code, "cannot be imported" in err) == (3, True)


def test_tasks_and_version(run: Cli) -> None:
    code, out, _ = run("tasks")
    assert code == 0
    rows = json.loads(run("tasks", "--json")[1])
    assert all(row["version"] and row["splits"] and row["tools"] for row in rows)
    assert all(f"{row['task']} {row['version']}" in out for row in rows)
    assert run("--version")[1].startswith("agentbench-fc ")


def test_wrong_usage_ends_with_2(run: Cli) -> None:
    code, _, err = run("traces", TOYS, "--n", "0")
    assert code == 2
    assert "--n" in err
    assert run("trace")[0] == 2


async def test_a_missing_score_is_said_on_stderr_with_the_machines_code(tmp_path: Path) -> None:
    async with FakeOpenAI(expert_answers(counter_task(), "dev"), lambda n, body: "garbage") as fake:
        command = [sys.executable, "-m", "agentbench_fc.cli", "eval", "--task", TOYS, "--retries", "0", "--limit", "1"]
        process = await asyncio.create_subprocess_exec(
            *command, "--model", "m", "--base-url", fake.url, "--out", str(tmp_path), stdout=-1, stderr=-1
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 4
    assert "agentbench-fc: 4 of 4 episodes have no score" in err.decode().splitlines()[-1]
    assert "| model error: garbage | 4 |" in out.decode()


async def test_the_example_evaluates_an_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "evaluate_endpoint.py"))
    async with FakeOpenAI(expert_answers(counter_task(), "dev")) as fake:
        await example["main"](fake.url, "some/model", TOYS)
    assert "success 1.0 ± 0.0, pass@4 1.0" in capsys.readouterr().out
    assert (tmp_path / "runs" / "eval" / "some-model" / "report.md").exists()


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m agentbench_fc.cli traces {TOYS} --n 5 | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_neither_the_package_nor_an_evaluation_needs_a_deep_learning_library() -> None:
    code = (
        "import sys, agentbench_fc.cli, agentbench_fc.evaluate, agentbench_fc.doctor, agentbench_fc.players\n"
        "print(sorted({'torch', 'transformers', 'trl', 'gymnasium'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(json.loads(done.stdout.replace("'", '"'))) <= {"gymnasium"}


def test_a_record_that_cannot_be_written_and_a_misplaced_option_are_one_line(run: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code, _, err = run("traces", TOYS, "--out", str(tmp_path / "file" / "t.jsonl"))
    assert (code, err.count("\n"), "cannot be written" in err) == (2, 1, True)
    for command in (["traces", TOYS], ["eval", "--task", TOYS, "--player", "expert", "--out", str(tmp_path / "eval")]):
        code, _, err = run(*command, "--option", "profile=agentbench")
        assert (code, "'profile' is no option of a task" in err) == (2, True), err
    file = tmp_path / "t.jsonl"
    assert run("traces", TOYS, "--out", str(file))[0] == 0
    file.write_text(file.read_text().replace('"options": {}', '"options": {"profile": "x"}'))
    code, out, _ = run("replay", str(file))
    assert (code, "'profile' is no option of a task" in out) == (1, True)
