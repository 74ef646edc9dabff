"""A finished session as text for people, and the score line of several.

Not here: transcripts for machines (transcript.py), the reports of evaluations (report.py).
"""

from collections import Counter

from agentbench_fc.messages import Message
from agentbench_fc.rewards import settle
from agentbench_fc.session import Session

LONGEST_MESSAGE = 4000
"""Characters of one message; what is cut is said."""


def transcript_text(session: Session) -> str:
    """The whole conversation, turn by turn."""
    lines = [f"=== {session.sample.id} (seed {session.seed})"]
    for played in session.log:
        number = played.turn.turn
        for message in played.sent:
            lines += _agent_lines(message, number)
        for message in played.turn.messages:
            lines.append(_block(f"[{number}] {message['role']}", message.get("content") or ""))
    last = session.last
    reward = "no reward" if not settle(last.status, session.raw_reward).trained else f"reward {session.raw_reward:g}"
    verdict = {True: ", success", False: ", no success", None: ""}[last.success]
    reason = f" ({last.metrics['reason']})" if last.metrics.get("reason") else ""
    lines.append(f"--- {session.sample.id}: {last.status}{reason}, {reward}{verdict}, {last.metrics['turns']} turns")
    return "\n".join(lines)


class Tally:
    """Adds up finished sessions."""

    def __init__(self) -> None:
        self._statuses: Counter[str] = Counter()
        self._won = self._scored = self._turns = 0
        self._reward = 0.0

    def add(self, session: Session) -> None:
        """Takes one more."""
        last = session.last
        self._statuses[str(last.status)] += 1
        if settle(last.status, session.raw_reward).trained:
            self._scored += 1
            self._won += bool(last.success)
            self._reward += session.raw_reward
            self._turns += last.metrics["turns"]

    def line(self, title: str) -> str:
        """The score in one line."""
        ends = ", ".join(f"{count} {status}" for status, count in self._statuses.most_common())
        total = sum(self._statuses.values())
        if not self._scored:
            return f"{title}: {total} episodes, none scored ({ends})"
        n = self._scored
        return (
            f"{title}: {total} episodes, {n} scored, success {self._won}/{n} = {100 * self._won / n:.1f} %, "
            f"mean reward {self._reward / n:.3f}, {self._turns / n:.1f} turns ({ends})"
        )


def _agent_lines(message: Message, number: int) -> list[str]:
    text = message.get("content")
    lines = [_block(f"[{number}] assistant", text)] if text else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        lines.append(_block(f"[{number}] assistant calls {function['name']}", function["arguments"]))
    return lines or [f"[{number}] assistant: (nothing)"]


def _block(head: str, text: str) -> str:
    cut = len(text) - LONGEST_MESSAGE
    shown = text if cut <= 0 else f"{text[:LONGEST_MESSAGE]} … ({cut} more characters)"
    return (
        f"{head}: {shown}" if "\n" not in shown else f"{head}:\n" + "\n".join(f"    {row}" for row in shown.split("\n"))
    )
