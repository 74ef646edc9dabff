"""The DB task: an episode holds one database, and ends with the answer that is committed.

>>> from agentbench_fc.registry import load_task
>>> task = load_task("db", prompt="compact")
>>> episode = task.open(task.samples("dev")[0], seed=0)
>>> [message["role"] for message in episode.start()]
['system', 'user']

Not here: the turn loop (session.py), SQL (sqlite.py), what is right (grade.py), where samples come from (generate.py,
readers.py).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentbench_fc.episode import Expert, Reply, Sample
from agentbench_fc.errors import TaskError
from agentbench_fc.messages import Message, system, user
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.db import expert, grade, observation
from agentbench_fc.tasks.db.backend import Backend, Database, SqlError, Table
from agentbench_fc.tasks.db.questions import CHANGES
from agentbench_fc.tasks.db.sqlite_file import FileDatabase
from agentbench_fc.tasks.splits import Splits, numbered

Rows = Callable[[str], list[dict[str, Any]]]
"""Split -> the samples' data in id order; an item may name its own `id`."""


class DbEpisode:
    """One problem on one database."""

    def __init__(
        self, spec: TaskSpec, sample: Sample, backend: Backend, database: Database, counts: tuple[int, int]
    ) -> None:
        self._spec = spec
        self._sample = sample
        self._backend = backend
        self._database = database
        self._statements, self._errors = counts

    @classmethod
    def begin(cls, spec: TaskSpec, sample: Sample, backend: Backend, seed: int) -> "DbEpisode":
        """The episode at its start."""
        return cls(spec, sample, backend, _opened(spec, sample.data, backend, seed), (0, 0))

    def start(self) -> list[Message]:
        """System prompt, and the tables (where they are given) with the question."""
        prompts, data = self._spec.prompts, self._sample.data
        lines = [prompts["evidence"].format(evidence=data["evidence"])] if data.get("evidence") else []
        if not data["shown"]:
            lines.append(prompts["hidden"])
        elif data.get("description"):
            given = data["description"]
            lines.append(prompts["table"].format(columns=given) if self._spec.profile == "agentbench" else given)
        else:
            lines += [self._described(table) for table in data["tables"]]
        lines.append(prompts["question"].format(question=data["question"]))
        text = "\n".join(line for line in lines if line)
        return [system(prompts["system"]), user(f"{text}\n" if self._spec.profile == "agentbench" else text)]

    def call(self, name: str, arguments: dict[str, Any]) -> Reply:
        """Runs a statement, or grades the committed answer."""
        if name == "commit_final_answer":
            return self._grade(arguments["answers"])
        self._statements += 1
        try:
            result = self._database.execute(arguments["query"])
        except SqlError as error:
            self._errors += 1
            if self._spec.profile == "agentbench":
                return Reply(observation.render_agentbench_error(error))
            return Reply(f"Error: {error}")
        if self._spec.profile == "agentbench":
            return Reply(observation.render_agentbench(result))
        return Reply(observation.render(result))

    def say(self, text: str) -> Reply | None:
        """A text has no meaning here."""
        return None

    def fork(self) -> "DbEpisode | None":
        """The same problem on a copy of the database; None where there can be no copy."""
        copy = self._database.fork()
        if copy is None:
            return None
        return DbEpisode(self._spec, self._sample, self._backend, copy, (self._statements, self._errors))

    def close(self) -> None:
        """Drops the database."""
        self._database.close()

    def _described(self, table: Mapping[str, Any]) -> str:
        compact = self._spec.prompt == "compact"
        columns = [name if compact else f"{name} ({kind.lower()})" for name, kind in table["columns"]]
        if self._spec.profile == "agentbench":
            names = ",".join(name for name, _ in table["columns"])
            described = f"The table is named {table['name']}, with the headers {names}."
            return self._spec.prompts["table"].format(columns=described)
        return self._spec.prompts["table"].format(name=table["name"], columns=", ".join(columns))

    def _grade(self, answers: list[str]) -> Reply:
        data = self._sample.data
        metrics: dict[str, Any] = {
            "kind": data["kind"],
            "level": data["level"],
            "backend": "sqlite file" if data.get("sqlite_file") else self._backend.name,
            "statements": self._statements,
            "sql_errors": self._errors,
        }
        if data["kind"] in CHANGES:
            metrics |= self._judge_tables()
        else:
            metrics["match"] = int(grade.answers_match(answers, data["gold"]))
            label = data.get("label", [_text(value) for value in data["gold"]])
            metrics["match_agentbench"] = int(grade.agentbench_answers_match(answers, label))
        reward = float(metrics["match_agentbench" if self._spec.profile == "agentbench" else "match"])
        text = "The answer was taken."
        return Reply(text, reward=reward, success=reward == 1.0, done=True, metrics=metrics)

    def _judge_tables(self) -> dict[str, Any]:
        """Compares the tables with those that the sample's own statements make in a fresh database."""
        data = self._sample.data
        tables = _tables(self._spec, data)
        own = self._database.digest(tables) or "missing"
        golden = _opened(self._spec, data, self._backend, 0, gold=True)
        try:
            names = [table.name for table in tables]
            if isinstance(golden, FileDatabase) and isinstance(self._database, FileDatabase):
                names = sorted({*golden.tables(), *self._database.tables()})
            found = {name: self._database.rows(name) for name in names}
            for statement in data["plan"]:
                golden.execute(statement)
            wanted = {name: golden.rows(name) for name in names}
            stored = data.get("answer_md5") or golden.digest(tables)
        except SqlError as error:
            if self._spec.profile == "agentbench" and data.get("answer_md5"):  # the stored hash decides there
                return {"match": int(own == data["answer_md5"]), "match_agentbench": int(own == data["answer_md5"])}
            raise TaskError(f"the gold statement fails: {error} [{self._sample.id}]. Exclude this sample.") from error
        finally:
            golden.close()
        difference = next((d for name in names if (d := grade.tables_differ(found[name], wanted[name]))), None)
        metrics: dict[str, Any] = {"match": int(difference is None), "match_agentbench": int(own == stored)}
        return metrics | ({"difference": difference} if difference else {})


class DbTask:
    """Samples and what opens them; see `make`."""

    def __init__(self, spec: TaskSpec, rows: Rows, splits: Sequence[str], backend: Backend, level: str | None) -> None:
        self.spec = spec
        self.backend = backend.name
        """Recorded in every transcript."""
        self._splits = Splits(spec.name, splits, lambda split: numbered(rows(split)), level=level)
        self._backend = backend

    def samples(self, split: str) -> Sequence[Sample]:
        """All samples of a split (of one level, where the task was made for one), in id order."""
        return self._splits.samples(split)

    def open(self, sample: Sample, seed: int) -> DbEpisode:
        """A fresh database with the sample's tables."""
        return DbEpisode.begin(self.spec, sample, self._backend, seed)

    def expert(self, sample: Sample) -> Expert | None:
        """Statements that answer the question, then the answer that they gave."""
        return expert.solve(sample, self.spec.profile)

    def close(self) -> None:
        """Leaves the server, where there is one."""
        self._backend.close()


def _opened(spec: TaskSpec, data: Mapping[str, Any], backend: Backend, seed: int, *, gold: bool = False) -> Database:
    """The sample's database; `gold` is one in which its own statements are run."""
    shown = spec.profile == "agentbench" and not gold
    if file := data.get("sqlite_file"):
        return FileDatabase(Path(file), changes=data["kind"] in CHANGES, driver_values=shown)
    return backend.open(_tables(spec, data), seed=seed, strict=not gold, driver_values=shown)


def _tables(spec: TaskSpec, data: Mapping[str, Any]) -> list[Table]:
    tables = [Table.from_data(table) for table in data["tables"]]
    if spec.profile != "agentbench":
        return tables
    return [  # AgentBench makes every column TEXT, and writes every value as its text
        Table(
            table.name,
            tuple((name, "TEXT") for name, _ in table.columns),
            tuple(tuple(str(value) for value in row) for row in table.rows),
        )
        for table in tables
    ]


def _text(value: object) -> str:
    return "NULL" if value is None else observation.number(value) if isinstance(value, float) else str(value)
