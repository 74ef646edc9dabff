"""The service: workers run sessions, a controller dispatches to them, HttpClient is the client over HTTP.

    agentbench-fc serve db kg                      # a controller and its workers, one process tree
    async with HttpClient("http://127.0.0.1:5020") as client: …

All state of a session lives in its worker; a controller can be killed at any time and loses none. Install
`agentbench-fc[serve]` for the two servers; the client needs nothing beyond the core.

Not here: what a session is (session.py); the client in process (client.py).
"""
