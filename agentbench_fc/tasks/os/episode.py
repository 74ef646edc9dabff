"""One problem in one sandbox: bash until the agent commits.

Not here: the turn loop (session.py); running bash (sandbox/); what is right (grading.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentbench_fc.episode import Reply, Sample
from agentbench_fc.errors import TaskError
from agentbench_fc.messages import Message, system, user
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.os import observation
from agentbench_fc.tasks.os.boxes import set_up
from agentbench_fc.tasks.os.grading import Grader, Known
from agentbench_fc.tasks.os.sandbox.base import Sandbox, SandboxSpent


@dataclass(frozen=True, slots=True)
class Rules:
    """What all episodes of a task share."""

    spec: TaskSpec
    grader: Grader
    command_timeout_s: float
    """Of one script in the shell."""


class OsEpisode:
    """A sandbox that the sample's scripts have set up, and the agent's shell in it."""

    def __init__(self, rules: Rules, sample: Sample, box: Sandbox, known: Known, counts: Mapping[str, int]) -> None:
        self._rules = rules
        self._spec = rules.spec
        self._sample = sample
        self._box = box
        self._known = known
        self._counts = dict(counts)

    @classmethod
    def begin(cls, rules: Rules, sample: Sample) -> "OsEpisode":
        """The episode at its start.

        Raises:
            TaskError: the sample lacks a file, or a script of its own fails.
            InfrastructureError: there is no sandbox.
        """
        if reason := sample.data["unplayable"]:
            raise TaskError(f"the sample cannot be played: {reason} [{sample.id}]. Exclude it, or mend its data.")
        reference = rules.grader.find_reference(sample.id, sample.data)
        box = rules.grader.boxes.open(sample.data["image"])
        try:
            set_up(box, sample.id, sample.data)
            known = Known(reference, rules.grader.find_changed(sample.data, box))
        except BaseException:
            box.close()
            raise
        return cls(rules, sample, box, known, {"commands": 0, "failed_commands": 0, "timeouts_in_shell": 0})

    def start(self) -> list[Message]:
        """System prompt and problem."""
        prompts = self._spec.prompts
        told = prompts["system"].format(timeout=f"{self._rules.command_timeout_s:g}")
        return [system(told), user(prompts["question"].format(question=self._sample.data["question"]))]

    def call(self, name: str, arguments: dict[str, Any]) -> Reply:
        """Runs a script, or ends the episode with an answer or without one."""
        try:
            if name == "bash_action":
                return self._run(arguments["script"])
            return self._end(name, arguments)
        except SandboxSpent as error:
            text = "The system is beyond use after what was run in it. The task has ended."
            metrics = self._metrics() | {"sandbox": "spent", "reason": str(error)}
            return Reply(text, reward=0.0, success=False, done=True, metrics=metrics)

    def say(self, text: str) -> Reply | None:
        """A text has no meaning here."""
        return None

    def fork(self) -> "OsEpisode | None":
        """The same problem in a copy of the sandbox; None where a copy would not be faithful, as with processes."""
        if "background" in self._sample.data["volatile"]:
            return None
        copy = self._box.fork()
        return None if copy is None else OsEpisode(self._rules, self._sample, copy, self._known, self._counts)

    def close(self) -> None:
        """Throws the sandbox away."""
        self._box.close()

    def _run(self, script: str) -> Reply:
        result = self._box.shell(script, timeout_s=self._rules.command_timeout_s)
        self._counts["commands"] += 1
        self._counts["failed_commands"] += bool(result.code)
        self._counts["timeouts_in_shell"] += result.timed_out
        agentbench = self._spec.profile == "agentbench"
        render = observation.render_agentbench if agentbench else observation.render
        return Reply(render(result, self._rules.command_timeout_s))

    def _end(self, name: str, arguments: Mapping[str, str]) -> Reply:
        data = self._sample.data
        answer: str | None = arguments.get("answer")
        if name == "finish_action" and self._spec.profile == "agentbench":
            answer = arguments["thought"]  # AgentBench takes the first argument, whatever it is, for the answer
        verdict = self._rules.grader.grade(self._sample.id, data, answer, self._box, self._known)
        text = "The answer was taken." if name == "answer_action" else "The task has ended."
        return Reply(
            text,
            reward=float(verdict.passed),
            success=verdict.passed,
            done=True,
            metrics=self._metrics() | dict(verdict.metrics),
        )

    def _metrics(self) -> dict[str, Any]:
        data = self._sample.data
        return {
            "backend": self._box.backend,
            "level": data["level"],
            "family": data["family"],
            "volatile": list(data["volatile"]),
            **self._counts,
        }
