"""What is shown and left behind, and signals that wait for the end of a step."""

import json
import os
import signal
from pathlib import Path

import pytest

from agentrl_trainer.display import Live, Plain, Silent, make_display
from agentrl_trainer.evaluation import eval_metrics, summarize
from agentrl_trainer.interrupts import Interrupted, Interrupts
from agentrl_trainer.report import RunReport, read_metrics

STEP = {
    "loss": 0.5, "success/db": 0.25, "batch/trajectories": 8, "batch/unusable": 2, "batch/trained_tokens": 100,
    "lag/mean": 1.0, "lag/max": 2, "lag/masked_share": 0.1, "time/train_s": 1.0, "time/wait_s": 3.0,
    "status/completed": 0.8, "status/task_error": 0.2, "entropy": float("nan"),
}  # fmt: skip


def scores(success: list[bool]) -> list[dict[str, object]]:
    records: list[dict[str, object]] = [
        {"success": s, "raw_reward": float(s), "status": "completed", "turns": 3} for s in success
    ]
    return [*records, {"usable": False, "success": None, "raw_reward": None, "status": "task error"}]


def test_faults_are_counted_but_not_scored() -> None:
    result = summarize("db", "greedy", scores([True, False, False, False]))
    assert (result.episodes, result.success, result.reward, result.turns) == (4, 0.25, 0.25, 3)
    assert result.statuses == {"completed": 4, "task error": 1}
    assert eval_metrics([result]) == {"eval/db/success_greedy": 0.25, "eval/db/reward_greedy": 0.25}
    assert summarize("db", "greedy", []).success == 0


def test_the_summary_holds_scores_before_and_after_statuses_lags_and_speed(tmp_path: Path) -> None:
    report = RunReport(tmp_path, Silent())
    report.evaluation(0, [summarize("db", "sampled", scores([True, False]))])
    report.step(1, STEP)
    report.step(2, STEP)
    report.evaluation(2, [summarize("db", "sampled", scores([True, True]))])
    text = report.finish()
    content = json.loads((tmp_path / "summary.json").read_text())
    assert content["scores"][0]["success_before"] == 0.5
    assert content["scores"][0]["success_after"] == 1.0
    assert content["statuses"] == {"completed": 16, "task_error": 4}
    assert (content["trained_tokens"], content["tokens_per_s"], content["waited_share"]) == (200, 25.0, 0.75)
    assert (content["lag_max"], content["masked_share"]) == (2, pytest.approx(0.1))
    assert "db    sampled   2         0.50            1.00" in text
    assert "masked 10.00%" in text
    assert (tmp_path / "summary.txt").read_text() == text + "\n"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_resumed_report_takes_back_later_steps_and_a_cut_line(tmp_path: Path) -> None:
    report = RunReport(tmp_path, Silent())
    for step in (1, 2, 3):
        report.step(step, STEP)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind": "step", "st')
    assert [r["step"] for r in read_metrics(path)] == [1, 2, 3]
    RunReport(tmp_path, Silent(), resumed_at=2).step(3, STEP)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert json.loads(path.read_text().splitlines()[0])["entropy"] is None, "JSON has no NaN"
    assert read_metrics(tmp_path / "absent") == []


def test_displays(capsys: pytest.CaptureFixture[str]) -> None:
    plain = make_display("auto", 12)
    assert isinstance(plain, Plain)
    plain.step(3, {"success/db": 0.5, "loss": 0.1})
    plain.close()
    assert capsys.readouterr().out == "step  3/12  db success 0.50 · loss +0.100\n"
    live = make_display("rich", 12)
    assert isinstance(live, Live)
    live.note("[not markup]")
    live.step(3, STEP)
    live.close()
    shown = capsys.readouterr().out
    assert "[not markup]" in shown
    assert isinstance(make_display("none", 12), Silent)


def test_a_signal_waits_while_it_is_held() -> None:
    done = []
    before = signal.getsignal(signal.SIGINT)  # ignored in a shell's background jobs

    def step(interrupts: Interrupts) -> None:
        with interrupts.held():
            interrupts.hold()
            os.kill(os.getpid(), signal.SIGTERM)
            interrupts.release()
            done.append("the step")

    with Interrupts() as interrupts:
        with pytest.raises(Interrupted) as raised:
            step(interrupts)
        assert done == ["the step"]
        assert raised.value.exit_code == 143
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "a second signal ends the process"
    with Interrupts(), pytest.raises(Interrupted) as raised:
        os.kill(os.getpid(), signal.SIGINT)
    assert raised.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before
