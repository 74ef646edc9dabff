"""`agentbench-fc doctor --url`: whether a controller answers, and what its workers say.

Not here: the findings of this machine (agentbench_fc/doctor.py).
"""

import asyncio
from typing import Any

from agentbench_fc.connecting import connect
from agentbench_fc.doctor import Finding, State
from agentbench_fc.errors import AgentBenchError
from agentbench_fc.serve.faults import Unauthorized

WAIT_S = 5.0


def look(url: str) -> list[Finding]:
    """What is to be said about the service at a URL; it starts nothing and waits a few seconds at most."""
    return asyncio.run(_look(url))


async def _look(url: str) -> list[Finding]:
    async with connect(url, timeout_s=WAIT_S, attempt_timeout_s=WAIT_S) as client:
        try:
            reply = await client.raw("GET", "/v1/list_workers")
        except Unauthorized as error:
            return [Finding("service", url, "missing", str(error), "export AGENTBENCH_FC_TOKEN=…")]
        except AgentBenchError as error:
            return [Finding("service", url, "missing", str(error), "agentbench-fc serve TASK…")]
    workers = reply["workers"]
    alive = [worker for worker in workers if worker["status"] == "alive"]
    tasks = sorted({load["task"] for worker in alive for load in worker["tasks"]})
    detail = f"{len(alive)} of {len(workers)} workers alive, serving {', '.join(tasks) or 'nothing'}"
    mend = "" if alive else f"agentbench-fc worker TASK… --controller {url}"
    return [Finding("service", url, "ok" if alive else "missing", detail, mend), *map(_worker, workers)]


def _worker(worker: dict[str, Any]) -> Finding:
    state: State = "ok" if worker["status"] == "alive" and not worker["reason"] else "optional"
    detail = f"{worker['status']}, {worker['sessions']} of {worker['capacity']} sessions [{worker['address']}]"
    if worker["reason"]:
        detail += f": {worker['reason']}"
    words = " | ".join(worker["log"])
    return Finding(
        "service", worker["worker_id"], state, detail, f"its log: {words}" if state != "ok" and words else ""
    )
