"""The tasks that a client has loaded: each once per profile, prompt style and options, and closed with the client.

Not here: how a task is found (registry.py).
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError
from agentbench_fc.registry import load_task

logger = logging.getLogger(__name__)


def check_options(options: Any) -> None:
    """Whether these can be a task's options.

    Raises:
        CallerError: no dict by name, or what is given beside the options, such as the profile, stands among them.
    """
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise CallerError(f"options is {options!r:.80} [task options]. Give a dict of the task's options by name.")
    for key in ("name", "profile", "prompt"):
        if key in options:
            raise CallerError(f"{key!r} is no option of a task [task options]. Give it beside the options.")


class LoadedTasks:
    """Loads tasks on threads; requests for the same one share a load, and a load that failed is tried again.

    Args:
        given: Tasks by name that exist already; they stay their owner's to close.
        submit: Runs a function on a thread and gives its future.
    """

    def __init__(self, given: Mapping[str, Task], submit: Callable[[Callable[[], Task]], "Future[Task]"]) -> None:
        self._given = dict(given)
        self._submit = submit
        self._lock = threading.Lock()
        self._loads: dict[str, Future[Task]] = {}
        self._closed = False

    def get(self, name: str, profile: str, prompt: str, options: Mapping[str, Any]) -> "Future[Task]":
        """The task, now or in time. The future is shared: never cancel it.

        Raises:
            CallerError: a given task was asked for under another profile, prompt style or options, the options are no
                options, or all was closed.
        """
        check_options(options)
        if name in self._given:
            return self._get_given(name, profile, prompt, options)
        key = _key(name, profile, prompt, options)
        with self._lock:
            if self._closed:  # nobody would close it any more
                raise CallerError("the client was closed [client]. Make another one.")
            future = self._loads.get(key)
            if future is not None:
                return future
            future = self._submit(lambda: load_task(name, profile=profile, prompt=prompt, **options))
            self._loads[key] = future
        future.add_done_callback(lambda done: self._loaded(key, done))  # outside: it may be done, and wants the lock
        return future

    def adopt(self, task: Task, name: str, profile: str, prompt: str, options: Mapping[str, Any]) -> None:
        """Takes over a task that was loaded elsewhere under this name and these options; it is closed with the rest."""
        future: Future[Task] = Future()
        future.set_result(task)
        with self._lock:
            self._loads[_key(name, profile, prompt, options)] = future

    def has(self, name: str, profile: str, prompt: str, options: Mapping[str, Any]) -> bool:
        """Whether it has been loaded, or is just being."""
        with self._lock:
            return _key(name, profile, prompt, options) in self._loads

    def names(self) -> list[str]:
        """The tasks given and those loaded so far."""
        with self._lock:
            return sorted({*self._given, *(json.loads(key)[0] for key in self._loads)})

    def close(self) -> None:
        """Closes the tasks loaded here; safe to repeat."""
        with self._lock:
            loads, self._loads = self._loads, {}
            self._closed = True
        for future in loads.values():
            if future.done() and not future.cancelled() and future.exception() is None:
                _close(future.result())

    def _get_given(self, name: str, profile: str, prompt: str, options: Mapping[str, Any]) -> "Future[Task]":
        task = self._given[name]
        for what, wanted, present in (("profile", profile, task.spec.profile), ("prompt", prompt, task.spec.prompt)):
            if wanted not in {"default", present}:
                raise CallerError(f"task {name!r} was given with {what} {present!r}, not {wanted!r} [client].")
        if options:
            raise CallerError(f"task {name!r} was given ready-made and takes no options {sorted(options)} [client].")
        future: Future[Task] = Future()
        future.set_result(task)
        return future

    def _loaded(self, key: str, done: "Future[Task]") -> None:
        """A load has ended: one that failed may be tried again, and one that comes after the end is closed."""
        failed = done.cancelled() or done.exception() is not None
        with self._lock:
            late = self._closed
            if failed and self._loads.get(key) is done:
                del self._loads[key]
        if late and not failed:
            _close(done.result())


def _close(task: Task) -> None:
    try:
        task.close()
    except Exception:  # the others must be closed all the same
        logger.exception("closing task %s failed", task.spec.name)


def _key(name: str, profile: str, prompt: str, options: Mapping[str, Any]) -> str:
    return json.dumps([name, profile, prompt, dict(options)], sort_keys=True, default=repr)
