"""Which kind of sandbox works here: docker first, then oci; each is judged by really starting one.

Not here: the kinds (docker.py, oci.py).
"""

import logging
from collections.abc import Callable

from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.tasks.os.sandbox.base import Probe, SandboxBackend, SandboxUnavailable

logger = logging.getLogger(__name__)

NAMES = ("docker", "oci")


def make(name: str) -> SandboxBackend:
    """A backend by its name, not tried yet.

    Raises:
        CallerError: there is none of that name.
    """
    if name == "docker":
        from agentbench_fc.tasks.os.sandbox.docker import DockerBackend

        return DockerBackend()
    if name == "oci":
        from agentbench_fc.tasks.os.sandbox.oci import OciBackend

        return OciBackend()
    raise CallerError(f"no sandbox backend {name!r}. {did_you_mean(name, ['auto', *NAMES])}")


def choose(name: str = "auto", *, maker: Callable[[str], SandboxBackend] = make) -> SandboxBackend:
    """The named backend, or the first one that works.

    Raises:
        SandboxUnavailable: none works; the message has each one's reason and the command that mends it.
        CallerError: no such backend.
    """
    failed: list[Probe] = []
    for each in NAMES if name == "auto" else (name,):
        backend = maker(each)
        probe = backend.probe()
        if probe.ok:
            logger.info("sandboxes: %s, %s", each, probe.detail)
            return backend
        backend.close()
        failed.append(probe)
    raise SandboxUnavailable(
        "no sandbox can be started ["
        + ", ".join(probe.backend for probe in failed)
        + "]. "
        + " ".join(f"{probe.backend}: {probe.detail.rstrip('.')}. Mend it: {probe.mend}." for probe in failed)
    )
