"""What a sandbox costs, side by side with AgentBench's way: one container and one terminal per sample.

    eval "$(scripts/os_engine.sh start /tmp/engine)"
    python benchmarks/os_sandbox.py [--pairs 9] [--json]
    scripts/os_engine.sh stop /tmp/engine

AgentBench's way, emulated with the docker SDK: create (init, 1 GiB, 2 CPUs), start, inspect, two lists, a login shell
on a terminal, its prompt; commands are typed there; initial and check scripts are `exec_run`s. Runs of both sides
alternate, so that the machine's noise falls on both; every run must give the same answers. Needs a container engine,
root, runc and the image `default` (`agentbench-fc sandbox build`).
"""

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentbench_fc.tasks.os.sandbox import Sandbox, cgroups
from agentbench_fc.tasks.os.sandbox.docker import DockerBackend
from agentbench_fc.tasks.os.sandbox.oci import OciBackend
from agentbench_fc.tasks.os.sandbox.owner import Owner
from agentbench_fc.tasks.os.sandbox.pool import Sandboxes

PROMPT = re.compile(rb"root@[\w-]+:[^\n]*# ")
ESCAPES = re.compile(rb"\x1b\[[?0-9;]*[A-Za-z]|\x1b\][^\x07]*\x07")
INIT = "mkdir -p /root/logs && seq 1 500 | sed 's/^/line /' > /root/logs/a.log"
COMMANDS = ("ls /root/logs", "wc -l /root/logs/a.log", "grep -c 7 /root/logs/a.log")
REFERENCE = "grep -c 7 /root/logs/a.log"
CHECK = "import sys; sys.exit(int(sys.argv[1]) != int(sys.argv[2]))"
GOAL = {"cold start, oci": 4.0, "start, warm pool": 30.0, "exec, oci": 10.0, "episodes per second, oci": 2.5}
MAX_IDLE_MIB = 12.0


class AgentBench:
    """One sample's container and terminal, as AgentBench's worker has them."""

    def __init__(self, client: Any, image: str) -> None:
        host = client.create_host_config(mem_limit="1g", memswap_limit="1g", nano_cpus=2_000_000_000, init=True)
        host["NetworkMode"] = "none"
        self._client = client
        self.id = client.create_container(image, ["sleep", "infinity"], working_dir="/root", host_config=host)["Id"]
        client.start(self.id)
        client.inspect_container(self.id)
        for _ in range(2):
            client.containers(all=True, filters={"id": self.id})
        # a terminal's prompt is what its end of output is told by; Debian's root has one without colours
        run = client.exec_create(self.id, ["bash", "--login"], stdin=True, tty=True, environment={"PS1": r"\u@\h:\w# "})
        self._holder = client.exec_start(run["Id"], socket=True, tty=True)
        self._link: socket.socket = self._holder._sock
        self._link.settimeout(30)
        self._until_prompt()

    def type(self, command: str) -> str:
        """A command in the terminal; its output without echo and prompt."""
        self._link.sendall(command.encode() + b"\n")
        lines = ESCAPES.sub(b"", self._until_prompt()).replace(b"\r", b"").split(b"\n")
        return b"\n".join(lines[1:-1]).decode()  # without the echo and the prompt

    def exec(self, argv: list[str]) -> tuple[int, str]:
        """A fresh process by the engine's exec."""
        run = self._client.exec_create(self.id, argv, workdir="/root")
        out = self._client.exec_start(run["Id"])
        return self._client.exec_inspect(run["Id"])["ExitCode"], out.decode()

    def close(self) -> None:
        """Removes the container."""
        self._holder._response.close()
        self._link.close()
        self._client.remove_container(self.id, force=True, v=True)

    def _until_prompt(self) -> bytes:
        seen = b""
        while True:
            seen += self._link.recv(65536)
            tail = seen.rpartition(b"\n")[2]
            if PROMPT.search(tail):
                return seen


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(old: Callable[[], float], new: Callable[[], float], pairs: int) -> dict[str, float]:
    """Medians of seconds that each run reports, and of their quotient; the order alternates."""
    seconds: dict[str, list[float]] = {"old": [], "new": []}
    old(), new()
    for i in range(pairs):
        for name, run in [("old", old), ("new", new)][:: 1 if i % 2 else -1]:
            seconds[name].append(run())
    quotients = [a / b for a, b in zip(seconds["old"], seconds["new"], strict=True)]
    low, median, high = statistics.quantiles(quotients, n=4)
    return {
        "old_ms": statistics.median(seconds["old"]) * 1000,
        "new_ms": statistics.median(seconds["new"]) * 1000,
        "ratio": median,
        "low": low,
        "high": high,
    }


def theirs_cold(client: Any, image: str) -> float:
    start = time.perf_counter()
    box = AgentBench(client, image)
    assert box.type("echo hello").strip() == "hello"
    seconds = time.perf_counter() - start
    box.close()
    return seconds


def ours_cold(start_box: Callable[[], Sandbox]) -> float:
    start = time.perf_counter()
    box = start_box()
    assert box.exec(["echo", "hello"]).stdout == b"hello\n"
    seconds = time.perf_counter() - start
    box.close()
    return seconds


def ours_warm(pool: Sandboxes) -> float:
    deadline = time.monotonic() + 60
    while pool.ready("default") < 2 and time.monotonic() < deadline:
        time.sleep(0.05)

    def start() -> Sandbox:
        return pool.open("default")

    return ours_cold(start)


def their_episode(client: Any, image: str) -> None:
    box = AgentBench(client, image)
    try:
        assert box.exec(["bash", "-c", INIT])[0] == 0
        answer = [box.type(command) for command in COMMANDS][-1].strip()
        _, expected = box.exec(["bash", "-c", REFERENCE])
        assert box.exec(["python3", "-c", CHECK, answer, expected])[0] == 0
    finally:
        box.close()


def our_episode(start_box: Callable[[], Sandbox]) -> None:
    with start_box() as box:
        assert box.exec(["bash", "-c", INIT]).ok
        answer = [box.shell(command).output.decode() for command in COMMANDS][-1].strip()
        expected = box.exec(["bash", "-c", REFERENCE]).stdout.decode()
        assert box.exec(["python3", "-c", CHECK, answer, expected]).ok


def seconds_per_episode(play: Callable[[], None], count: int, threads: int = 3) -> float:
    with ThreadPoolExecutor(threads) as pool:
        return timed(lambda: [each.result() for each in [pool.submit(play) for _ in range(count)]]) / count


def idle_mib(backend: OciBackend, count: int) -> float:
    """Memory per idle sandbox with its shell: what its control group holds, and its share of the keeper's."""
    boxes = [backend.create("default") for _ in range(count)]
    try:
        for box in boxes:
            box.warm()
        own = statistics.median(held(f"{Owner.me().name}/{box.id}") for box in boxes)
        keeper = sum(
            rss(pid) for pid in below(os.getpid()) if b"oci_keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        return (own + keeper / count) / 2**20
    finally:
        for box in boxes:
            box.close()


def held(group: str) -> int:
    """Bytes of a control group, of version 1 or 2, with the kernel's, without clean pages of files."""
    files = {file.name: file for folder in cgroups.folders(group) for file in folder.iterdir()}
    total = sum(
        int(files[name].read_text())
        for name in ("memory.current", "memory.usage_in_bytes", "memory.kmem.usage_in_bytes")
        if name in files
    )
    facts = dict(line.split(" ") for line in files["memory.stat"].read_text().splitlines())
    return total - int(facts["inactive_file"]) - int(facts["active_file"])


def below(pid: int) -> list[int]:
    """The processes below a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def rss(pid: int) -> int:
    """Bytes of a process that are its own or shared, by their share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def measure(docker: DockerBackend, oci: OciBackend, pairs: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with docker.create("default") as box, docker.engine() as client, oci.create("default") as mine:
        image = client.inspect_container(box.id)["Config"]["Image"]

        def cold() -> float:
            return theirs_cold(client, image)

        found["cold start, oci"] = ratio(cold, lambda: ours_cold(lambda: oci.create("default")), pairs)
        found["cold start, docker"] = ratio(cold, lambda: ours_cold(lambda: docker.create("default")), pairs)
        with Sandboxes(oci, warm=2) as pool:
            pool.open("default").close()
            found["start, warm pool"] = ratio(cold, lambda: ours_warm(pool), pairs)
        oci = OciBackend()  # the pool has closed the other one
        theirs = AgentBench(client, image)
        with oci.create("default") as mine:
            for name, target in (("exec, oci", mine), ("exec, docker", box)):

                def ours(target: Sandbox = target) -> float:
                    return timed(lambda: target.exec(["echo", "x"]))

                found[name] = ratio(lambda: timed(lambda: theirs.exec(["echo", "x"])), ours, 3 * pairs)
            found["persistent shell, oci"] = ratio(
                lambda: timed(lambda: theirs.exec(["echo", "x"])),
                lambda: timed(lambda: mine.shell("echo x")),
                3 * pairs,
            )
        theirs.close()
        found["episodes per second, oci"] = ratio(
            lambda: seconds_per_episode(lambda: their_episode(client, image), 9),
            lambda: seconds_per_episode(lambda: our_episode(lambda: oci.create("default")), 9),
            max(3, pairs // 3),
        )
        found["episodes per second, docker"] = ratio(
            lambda: seconds_per_episode(lambda: their_episode(client, image), 9),
            lambda: seconds_per_episode(lambda: our_episode(lambda: docker.create("default")), 9),
            max(3, pairs // 3),
        )
        found["idle MiB, oci"] = idle_mib(oci, 16)
        oci.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    docker, oci = DockerBackend(), OciBackend()
    for backend in (docker, oci):
        probe = backend.probe()
        if not probe.ok:
            sys.exit(f"{probe.backend}: {probe.detail}. {probe.mend}")
    try:
        found = measure(docker, oci, options.pairs)
    finally:
        docker.close()
        oci.close()
    found["machine"] = {"cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    missed = [name for name, least in GOAL.items() if found[name]["ratio"] < least]
    missed += ["idle MiB, oci"] if found["idle MiB, oci"] > MAX_IDLE_MIB else []
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {options.pairs} pairs; AgentBench's way, ours")
        for name, row in found.items():
            if isinstance(row, dict) and "ratio" in row:
                goal = f", goal {GOAL[name]:g}x" if name in GOAL else ""
                print(
                    f"{name:28} {row['old_ms']:8.1f} ms  {row['new_ms']:8.1f} ms  "
                    f"{row['ratio']:6.1f}x [{row['low']:.1f}, {row['high']:.1f}]{goal}"
                )
        print(f"{'idle sandbox, oci':28} {found['idle MiB, oci']:8.1f} MiB, goal at most {MAX_IDLE_MIB:g}")
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
