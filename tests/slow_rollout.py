"""A rollout process that needs 1.5 s, or $SLOW_ROLLOUT_S, to be ready, then beats; for tests of its handle."""

import argparse
import os
import signal
import time

from agentrl_trainer.engines.child import join_parent
from agentrl_trainer.engines.wire import receive_frame, send_frame

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int)
    parser.add_argument("--parent", type=int)
    arguments = parser.parse_args()
    sock = join_parent(arguments.socket, arguments.parent, on_death=signal.SIGTERM)
    assert receive_frame(sock) is not None
    time.sleep(float(os.environ.get("SLOW_ROLLOUT_S", "1.5")))
    send_frame(sock, {"op": "ready"})
    for _ in range(3000):
        send_frame(sock, {"op": "beat", "stats": {"alive": 1}})
        time.sleep(0.1)
