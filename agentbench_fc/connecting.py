"""From a URL to a client, for everything that takes `url=`.

Not here: the client itself (serve/client.py); it is only imported when a URL is given.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbench_fc.serve.client import HttpClient

TOKEN = "AGENTBENCH_FC_TOKEN"
"""Variable that holds the servers' token."""


def connect(url: str, **options: Any) -> "HttpClient":
    """A client of the controller or worker at `url`; the token comes from the variable AGENTBENCH_FC_TOKEN.

    Raises:
        CallerError: it is no URL.
    """
    from agentbench_fc.serve.client import HttpClient

    return HttpClient(url, token=os.environ.get(TOKEN) or None, **options)
