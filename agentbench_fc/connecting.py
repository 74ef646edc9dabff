"""From a URL to a client, for everything that takes `url=`.

Not here: the client itself (serve/client.py); it is only imported when a URL is given.
"""

import os
from typing import TYPE_CHECKING, Any

from agentbench_fc.errors import InfrastructureError

if TYPE_CHECKING:
    from agentbench_fc.serve.client import HttpClient

TOKEN = "AGENTBENCH_FC_TOKEN"
"""Variable that holds the servers' token."""
CONTACT_S = 10.0
"""A server that does not answer for so long at the beginning is not there."""


def connect(url: str, **options: Any) -> "HttpClient":
    """A client of the controller or worker at `url`; the token comes from the variable AGENTBENCH_FC_TOKEN.

    Raises:
        CallerError: it is no URL.
    """
    from agentbench_fc.serve.client import HttpClient

    return HttpClient(url, token=os.environ.get(TOKEN) or None, **options)


def reach(url: str) -> None:
    """Asks the controller or worker at `url` for a sign of life.

    Every start waits by itself for a controller to return; at the beginning a wrong address must show at once.

    Raises:
        CallerError: it is no URL, or the token is refused.
        InfrastructureError: no answer within `CONTACT_S`.
    """
    from agentbench_fc.sync_client import SyncClient

    with SyncClient(connect(url, timeout_s=CONTACT_S)) as client:
        try:
            client.list_workers()
        except InfrastructureError as error:
            raise InfrastructureError(f"{error} Is it running? `agentbench-fc serve TASK` starts one.") from error
