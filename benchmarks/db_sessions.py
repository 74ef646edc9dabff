"""A DB session on MariaDB (create, load 25 rows, three queries, grade, drop) against AgentBench's calls for the same.

Both run on the same private server, its files in shared memory, without TLS. AgentBench's side is its own sequence of
calls through mysql-connector-python's asyncio driver, written anew: connect, create the database, connect again to it,
and before each call ask which database is the current one; load by two statements; commit after each; grade by its
hash; drop. It has no user of the session's own, no deadline and no caps; ours has them all.

    python benchmarks/db_sessions.py [--pairs 15] [--parallel 16] [--seconds 4]

The driver is installed into a virtual environment of its own in the cache folder. Prints two ratios, and exits 1 where
a session takes more than 1/3 of the time alone, or sessions per second at 16 at once are less than twice as many.
"""

import argparse
import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from operator import truediv
from pathlib import Path
from typing import Any

DRIVER = "mysql-connector-python==9.3.0"
NAME = "flights"
COLUMNS = ("number", "from", "to", "day", "seats")
ROWS = [[f"AF{i}", "Paris", f"Town {i}", f"2024-05-{i:02d}", str(i * 7)] for i in range(1, 26)]
QUERIES = (
    f"SELECT * FROM {NAME} LIMIT 3",
    f"SELECT COUNT(*) FROM {NAME} WHERE seats > 50",
    f"UPDATE {NAME} SET seats = '0' WHERE number = 'AF7'",
)
MOST_TIME = 1 / 3
LEAST_RATE = 2.0


def theirs(door: str, user: str, password: str) -> None:
    """The other side's process: reads `alone` or `many N SECONDS`, answers with seconds, or sessions a second."""
    driver = importlib.import_module("mysql.connector.aio")

    class Session:
        """AgentBench's calls, one after the other."""

        def __init__(self, number: int) -> None:
            self.name = f"dbbench_{os.getpid()}_{number}"
            self.database: str | None = None
            self.connection: Any = None

        async def connected(self) -> Any:
            if self.connection is not None:
                if await self.connection.get_database() == self.database:
                    return self.connection
                await self.connection.close()
            self.connection = await driver.connect(
                unix_socket=door, user=user, password=password, database=self.database, ssl_disabled=True,
                connection_timeout=10, read_timeout=30, write_timeout=30,
            )  # fmt: skip
            return self.connection

        async def execute(self, sql: str) -> str:
            connection = await self.connected()
            async with await connection.cursor() as cursor:
                await cursor.execute(sql)
                rows = list(await cursor.fetchall()) if cursor.with_rows else []
            await connection.commit()
            return str(rows)

        async def play(self) -> str:
            connection = await self.connected()
            async with await connection.cursor() as cursor:
                await cursor.execute(f"CREATE DATABASE {self.name}")
            self.database = self.name
            connection = await self.connected()
            columns = ",".join(f"`{name}` TEXT" for name in COLUMNS)
            marks = ",".join("(" + ",".join(["%s"] * len(COLUMNS)) + ")" for _ in ROWS)
            async with await connection.cursor() as cursor:
                await cursor.execute(f"CREATE TABLE IF NOT EXISTS `{NAME}` ({columns})", ())
                await cursor.execute(
                    f"INSERT INTO `{NAME}` VALUES {marks}", tuple(cell for row in ROWS for cell in row)
                )
            await connection.commit()
            for query in QUERIES:
                await self.execute(query)
            names = ",".join(f"`{name}`" for name in COLUMNS)
            graded = await self.execute(
                "SELECT MD5(GROUP_CONCAT(h ORDER BY h)) FROM "
                f"(SELECT SUBSTRING(MD5(CONCAT_WS(',', {names})), 1, 5) AS h FROM `{NAME}`) AS s"
            )
            connection = await self.connected()
            async with await connection.cursor() as cursor:
                await cursor.execute(f"DROP DATABASE IF EXISTS {self.name}")
            await connection.commit()
            await connection.close()
            return graded

    async def serve() -> None:
        numbers = iter(range(10**9))
        for line in sys.stdin:
            what, *arguments = line.split()
            start = time.perf_counter()
            if what == "alone":
                graded = await Session(next(numbers)).play()
                answer = {"seconds": time.perf_counter() - start, "hash": graded.strip("[](),'")}
            else:
                parallel, seconds = int(arguments[0]), float(arguments[1])
                done = 0

                async def repeat(until: float) -> None:
                    nonlocal done
                    while time.perf_counter() < until:
                        await Session(next(numbers)).play()
                        done += 1

                await asyncio.gather(*(repeat(start + seconds) for _ in range(parallel)))
                answer = {"rate": done / (time.perf_counter() - start)}
            print(json.dumps(answer), flush=True)

    asyncio.run(serve())


def ours(backend: Any, tables: list[Any]) -> str:
    """The same session through the task's backend."""
    database = backend.open(tables, driver_values=True)
    try:
        for query in QUERIES:
            database.execute(query)
        return str(database.digest(tables))
    finally:
        database.close()


def rate(backend: Any, tables: list[Any], parallel: int, seconds: float) -> float:
    """Our sessions a second on `parallel` threads."""
    start = time.perf_counter()

    def repeat(_: int) -> int:
        done = 0
        while time.perf_counter() < start + seconds:
            ours(backend, tables)
            done += 1
        return done

    with ThreadPoolExecutor(parallel) as pool:
        done = sum(pool.map(repeat, range(parallel)))
    return done / (time.perf_counter() - start)


def interpreter() -> Path:
    """A Python that has the other side's driver."""
    from agentbench_fc.cache import cache_dir

    home = cache_dir() / "benchmarks" / DRIVER.replace("==", "-")
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", DRIVER], check=True)
        (home / "ready").touch()
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()

    from agentbench_fc.tasks.db.backend import Table
    from agentbench_fc.tasks.db.mysql import MysqlBackend
    from agentbench_fc.tasks.db.private import PrivateServer

    tables = [Table(NAME, tuple((name, "TEXT") for name in COLUMNS), tuple(map(tuple, ROWS)))]
    backend = MysqlBackend(PrivateServer())
    address = backend.server.address
    command = [str(interpreter()), __file__, "--theirs", str(address.socket), address.user, address.password]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(text: str) -> dict[str, Any]:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(f"{text}\n")
        other.stdin.flush()
        answer: dict[str, Any] = json.loads(other.stdout.readline())
        return answer

    try:
        for _ in range(3):  # the first ones load code
            assert ask("alone")["hash"] == ours(backend, tables), "a faster wrong answer is no claim"
        alone: tuple[list[float], list[float]] = ([], [])
        many: tuple[list[float], list[float]] = ([], [])
        for pair in range(options.pairs):
            for side in (0, 1) if pair % 2 else (1, 0):
                start = time.perf_counter()
                if side == 0:
                    alone[0].append(float(ask("alone")["seconds"]))
                else:
                    ours(backend, tables)
                    alone[1].append(time.perf_counter() - start)
        for pair in range(3):
            for side in (0, 1) if pair % 2 else (1, 0):
                if side == 0:
                    many[0].append(float(ask(f"many {options.parallel} {options.seconds}")["rate"]))
                else:
                    many[1].append(rate(backend, tables, options.parallel, options.seconds))
    finally:
        assert other.stdin is not None
        other.stdin.close()
        other.wait(timeout=30)
        backend.close()

    low, middle, high = statistics.quantiles(map(truediv, alone[0], alone[1]), n=4)
    times = [1000 * statistics.median(side) for side in alone]
    rates = [statistics.median(side) for side in many]
    ratio = statistics.median(map(truediv, many[1], many[0]))
    load = f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    print(
        f"one session alone: {middle:.1f}x faster [{low:.1f}, {high:.1f}], "
        f"{times[0]:.1f} -> {times[1]:.1f} ms, {options.pairs} pairs, {load}"
    )
    print(f"{options.parallel} at once: {ratio:.1f}x the sessions a second, {rates[0]:.0f} -> {rates[1]:.0f}, {load}")
    return 0 if middle >= 1 / MOST_TIME and ratio >= LEAST_RATE else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--theirs"]:
        theirs(*sys.argv[2:])
    else:
        sys.exit(main())
