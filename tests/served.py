"""What child processes serve in tests: every way to answer, to misbehave and to die."""

import os
import signal
import subprocess
import sys
import time
from typing import Any


class Served:
    """A counter with bad manners."""

    def __init__(self, begin: int = 0, fail: str = "") -> None:
        if fail == "raise":
            raise ValueError("no such graph")
        if fail == "hang":
            time.sleep(60)
        self.total = begin
        self.ballast = b""

    def add(self, number: int) -> int:
        self.total += number
        return self.total

    def echo(self, value: Any) -> Any:
        return value

    def pid(self) -> int:
        return os.getpid()

    def prints(self, text: str) -> str:
        print(text)
        os.write(1, b"raw " + text.encode() + b"\n")
        sys.stdin.read()
        return "printed"

    def raises(self, ours: bool) -> None:
        from agentbench_fc.errors import NotFound

        if ours:
            raise NotFound("no entity m.0 [kg]. Look again.")
        raise KeyError("m.0")

    def hangs(self) -> None:
        print("about to hang", file=sys.stderr)
        time.sleep(60)

    def holds_the_gil(self) -> None:
        pow(7, 10**9)  # one C call of hours, during which no Python thread or signal handler runs

    def dies(self) -> None:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def exits(self) -> None:
        sys.exit(5)

    def unfit(self) -> object:
        return object()

    def grows(self) -> None:
        self.ballast = os.urandom(40 * 2**20)

    def leaves_a_process(self) -> int:
        return subprocess.Popen(["sleep", "60"], start_new_session=True).pid

    def leaves_one_in_the_group(self) -> int:
        return subprocess.Popen(["sleep", "60"]).pid
