"""What was trained on, to be read again: the trajectories of each step in compressed shards that only grow.

    python -m agentrl_trainer.shards runs/20260101-120000 --step 3 | head -1

`transcripts/` in a run's folder holds `0000.jsonl.gz`, … and `index.jsonl`. Each step is one gzip member with one JSON
object per trajectory, so `zcat` reads a whole shard and the index finds a step without reading the others. A member
counts once its line is in the index: what a crash left behind it is cut off when the run goes on.

Not here: transcripts of sessions, which can be played again (agentbench_fc.transcript); figures (report.py).
"""

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.types import Group, Trajectory

FOLDER = "transcripts"
INDEX = "index.jsonl"
SHARD_BYTES = 32 << 20
"""A shard that is larger is not appended to any more."""
Record = dict[str, Any]
_ENTRY: Mapping[str, Any] = {"step": 0, "shard": "", "offset": 0, "bytes": 0}
Decode = Callable[[list[int]], str]


class TranscriptShards:
    """Appends the trajectories of steps.

    Args:
        run: The run's folder.
        decode: Ids to text, control tokens included.
        resumed_at: The step a resumed run goes on from; later steps are taken back. None: a new run.
    """

    def __init__(self, run: Path, decode: Decode, *, resumed_at: int | None = None) -> None:
        self.folder = run / FOLDER
        self._decode = decode
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = [] if resumed_at is None else [entry for entry in read_index(run) if entry["step"] <= resumed_at]
        ends = {entry["shard"]: entry["offset"] + entry["bytes"] for entry in kept}
        for path in self.folder.glob("*.jsonl.gz"):
            if path.name not in ends:
                path.unlink()
            elif path.stat().st_size > ends[path.name]:
                with path.open("r+b") as file:
                    file.truncate(ends[path.name])
        (self.folder / INDEX).write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
        self._number = int(max(ends, default="0").partition(".")[0])

    def append(self, step: int, groups: Sequence[Group]) -> None:
        """Adds what `step` consumed, unusable members included.

        Raises:
            InfrastructureError: the disk is full, or the folder is gone.
        """
        try:
            self._append(step, groups)
        except OSError as error:
            raise InfrastructureError(
                f"transcripts cannot be written: {error} [{self.folder}]. Free space, or set transcripts=false."
            ) from error

    def _append(self, step: int, groups: Sequence[Group]) -> None:
        rows = [record(step, row, self._decode) for group in groups for row in group.trajectories]
        member = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), mtime=0)
        path = self._shard()
        with path.open("ab") as file:
            offset = file.tell()
            file.write(member)
        entry = {
            "step": step, "shard": path.name, "offset": offset, "bytes": len(member), "rows": len(rows),
            "groups": [group.id for group in groups],
        }  # fmt: skip
        with (self.folder / INDEX).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _shard(self) -> Path:
        path = self.folder / f"{self._number:04d}.jsonl.gz"
        if path.exists() and path.stat().st_size > SHARD_BYTES:
            self._number += 1
            return self._shard()
        return path


def record(step: int, row: Trajectory, decode: Decode) -> Record:
    """One trajectory as plain data: its facts, the prompt, and each turn with who sampled it from which weights."""
    turns = []
    for number in range(1, int(row.turns.max(initial=0)) + 1):
        own = row.turns == number
        sampled, observed = own & row.mask, own & ~row.mask
        turns.append(
            {
                "turn": number,
                "engine": int(row.engines[sampled][0]) if sampled.any() else None,
                "versions": np.unique(row.versions[sampled]).tolist(),
                "tokens": int(sampled.sum()),
                "sampled": decode(row.ids[sampled].tolist()),
                "observed": decode(row.ids[observed].tolist()),
            }
        )
    return {
        "v": 1, "step": step, "group_id": row.group_id, "replica": row.replica, "task": row.task,
        "sample_id": row.sample_id, "status": row.status, "reward": row.reward, "raw_reward": row.raw_reward,
        "success": row.success, "usable": row.usable, "fault": row.fault,
        "prompt": decode(row.ids[: row.prompt_length].tolist()), "turns": turns,
        "metrics": json.loads(json.dumps(row.metrics, default=str)),
    }  # fmt: skip


def read_index(run: Path) -> list[Record]:
    """The entries of a run's index, without a last line that a crash has cut.

    Raises:
        CallerError: another line is not one of ours.
    """
    path = run / FOLDER / INDEX
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.exists() else []
    try:
        return [{**_ENTRY, **json.loads(line)} for line in lines if line]
    except (ValueError, TypeError) as error:
        raise CallerError(f"a line is damaged: {error} [{path}]. Remove it, or the folder {FOLDER}.") from error


def read_transcripts(run: Path, step: int | None = None) -> Iterator[Record]:
    """The trajectories of a step, or of all steps in order.

    Raises:
        CallerError: the run has no transcripts, or they are damaged.
    """
    entries = read_index(run)
    if not entries:
        raise CallerError(f"no transcripts here [{run / FOLDER}]. Name the folder of a run with at least one step.")
    for entry in entries:
        if step is None or entry["step"] == step:
            try:
                with (run / FOLDER / entry["shard"]).open("rb") as file:
                    file.seek(entry["offset"])
                    content = gzip.decompress(file.read(entry["bytes"])).decode()
            except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
                raise CallerError(
                    f"step {entry['step']} cannot be read: {error} [{run / FOLDER / entry['shard']}]. The file has "
                    "changed since it was written."
                ) from error
            yield from map(json.loads, content.splitlines())


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints transcripts as JSON lines; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m agentrl_trainer.shards", description="Prints a run's transcripts.")
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--step", type=int, help="of this step alone")
    parser.add_argument("--task", help="of this task alone")
    options = parser.parse_args(arguments)
    try:
        for row in read_transcripts(options.run, options.step):
            if options.task in (None, row["task"]):
                print(json.dumps(row))
    except CallerError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `| head`
        sys.stderr.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
