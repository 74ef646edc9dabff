"""Data parallel training: the first process owns queue and engines, all of them train on the same batch.

Every process gets the whole batch and computes rows, advantages and corrections for itself: they are small, and equal
input gives equal output. Each then runs its own rows of each micro-batch. There are as many micro-batches, with as many
rows, in every process; a row of nothing fills a gap. So no process ever waits for a gradient that does not come.

Not here: which rows are whose (collate.py); averaging gradients (accelerate, torch).
"""

import datetime
import json
import logging
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agentbench_fc.errors import AgentBenchError, InfrastructureError
from agentrl_trainer.engines.wire import error_from_dict, error_to_dict
from agentrl_trainer.offpolicy import PerRow
from agentrl_trainer.queue import StepBatch
from agentrl_trainer.rollout.codec import decode_group, encode_group

logger = logging.getLogger(__name__)
DISMISS = datetime.timedelta(seconds=20)


class Accelerator(Protocol):
    """What is used of accelerate's `Accelerator`."""

    num_processes: int
    process_index: int
    device: torch.device

    def wait_for_everyone(self) -> None:
        """Returns when all processes have come here."""
        ...


class Ranks:
    """The processes of a run; one alone costs nothing."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.count = accelerator.num_processes
        self.rank = accelerator.process_index

    def share(self, take: Callable[[], StepBatch]) -> StepBatch:
        """The batch that the first process takes, in every process.

        Raises:
            AgentBenchError: what taking it failed with; or, in the others, what the first process has ended with.
        """
        if self.count == 1:
            return take()
        if self.rank:
            head, body = _unpacked(self._broadcast(None))
            if head.get("error"):
                raise error_from_dict(head["error"])
            return _batch_of(head, body)
        batch = take()
        self._broadcast(_packed(*_parts_of(batch)))
        return batch

    def merge(self, values: PerRow) -> PerRow:
        """Per-row arrays of which each process has filled in its own rows, 0 elsewhere: filled in everywhere."""
        if self.count == 1 or not values:
            return values
        flat = torch.from_numpy(np.concatenate(values)).to(self._accelerator.device)
        torch.distributed.all_reduce(flat)
        return [part.copy() for part in np.split(flat.cpu().numpy(), np.cumsum([len(v) for v in values])[:-1])]

    def dismiss(self, error: BaseException) -> None:
        """Ends the other processes, which wait for the next batch; called by the first one, last of all.

        Where one of them is somewhere else or dead, this gives up after a while: the launcher ends it then.
        """
        if self.count == 1 or self.rank:
            return
        fault = error if isinstance(error, AgentBenchError) else InfrastructureError(f"rank 0 stopped: {error!r}")
        try:
            self._broadcast(_packed({"error": error_to_dict(fault)}, b""), limit=DISMISS)
        except RuntimeError as failure:
            logger.warning("the other processes could not be told of the end: %r", failure)

    def wait(self) -> None:
        """Returns when all processes have come here."""
        if self.count > 1:
            self._accelerator.wait_for_everyone()

    def _broadcast(self, content: bytes | None, limit: datetime.timedelta | None = None) -> bytes:
        device = self._accelerator.device
        size = torch.tensor([len(content or b"")], dtype=torch.int64, device=device)
        _done(torch.distributed.broadcast(size, src=0, async_op=True), limit)
        data = torch.empty(int(size), dtype=torch.uint8)
        if content is not None:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        carried: Tensor = data.to(device)
        _done(torch.distributed.broadcast(carried, src=0, async_op=True), limit)
        return carried.cpu().numpy().tobytes()


def _done(work: Any, limit: datetime.timedelta | None) -> None:
    """Waits for a collective; without a limit of its own, as long as the process group allows (`ddp_timeout`)."""
    if limit is None:
        work.wait()
    else:
        work.wait(limit)


def _parts_of(batch: StepBatch) -> tuple[dict[str, Any], bytes]:
    groups = [encode_group(group) for group in batch.groups]
    head = {
        "groups": [group.head for group in groups],
        "sizes": [len(group.body) for group in groups],
        "version": batch.version,
        "waited_s": batch.waited_s,
        "left": batch.left,
        "refill": batch.refill,
    }
    return head, b"".join(group.body for group in groups)


def _batch_of(head: dict[str, Any], body: bytes) -> StepBatch:
    ends = np.cumsum(head["sizes"]).tolist()
    bodies = [body[end - size : end] for end, size in zip(ends, head["sizes"], strict=True)]
    groups = tuple(decode_group(group, part) for group, part in zip(head["groups"], bodies, strict=True))
    return StepBatch(
        groups=groups, version=head["version"], waited_s=head["waited_s"], left=head["left"], refill=head["refill"]
    )


def _packed(head: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + body


def _unpacked(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    head: dict[str, Any] = json.loads(content[8 : 8 + length])
    return head, content[8 + length :]
