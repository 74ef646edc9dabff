"""The examples in the docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import agentbench_fc

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(agentbench_fc.__path__, "agentbench_fc.")
    if not module.ispkg and ".integrations." not in module.name
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
