"""The queue of starts that wait for a slot: bounded, and fair between tasks and clients.

A slot of a task goes to the client that holds the fewest sessions of that task, and of equals to the one that waits
longest. When the queue is full, the newest start of whoever has most in it makes room, so that one client cannot keep
the others out.

Not here: slots (fleet.py), deadlines (controller.py).
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentbench_fc.errors import Unavailable


@dataclass(eq=False, slots=True)
class Ticket:
    """A start that waits."""

    task: str
    client: str
    number: int
    evict: Callable[[], None]
    """Called when it has to make room."""


class StartQueue:
    """All waiting starts.

    Args:
        max_waiting: Most tickets at once.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max = max_waiting
        self._count = 0
        self._number = 0
        self._lines: OrderedDict[str, dict[str, deque[Ticket]]] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def waiting(self, task: str) -> int:
        """Tickets of a task."""
        return sum(len(line) for line in self._lines.get(task, {}).values())

    def tasks(self) -> list[str]:
        """Tasks with tickets; the one served last comes last."""
        return list(self._lines)

    def push(self, task: str, client: str, evict: Callable[[], None]) -> Ticket:
        """Joins the queue.

        Raises:
            Unavailable: the queue is full, and this client has as many in it as any.
        """
        if self._count >= self._max:
            longest = max((line for lines in self._lines.values() for line in lines.values()), key=len)
            if len(self._lines.get(task, {}).get(client, ())) + 1 >= len(longest):
                raise Unavailable(f"{self._count} starts are waiting already [task {task}]. Try again later.")
            victim = longest[-1]
            self.remove(victim)
            victim.evict()
        self._number += 1
        ticket = Ticket(task, client, self._number, evict)
        self._lines.setdefault(task, {}).setdefault(client, deque()).append(ticket)
        self._count += 1
        return ticket

    def pop(self, task: str, held: Mapping[str, int]) -> Ticket | None:
        """The ticket whose turn it is, given how many sessions of the task each client holds."""
        lines = self._lines.get(task)
        if not lines:
            return None
        client = min(lines, key=lambda c: (held.get(c, 0), lines[c][0].number))
        ticket = lines[client][0]
        self.remove(ticket)
        if task in self._lines:
            self._lines.move_to_end(task)
        return ticket

    def remove(self, ticket: Ticket) -> bool:
        """Leaves the queue; whether it was in it."""
        lines = self._lines.get(ticket.task, {})
        line = lines.get(ticket.client)
        if line is None or ticket not in line:
            return False
        line.remove(ticket)
        self._count -= 1
        if not line:
            del lines[ticket.client]
        if not lines:
            del self._lines[ticket.task]
        return True
