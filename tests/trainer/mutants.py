"""Breaks the trainer's pure modules one line at a time and reports which breaks the unit tests do not notice.

`python tests/trainer/mutants.py [FOLDER]`: prints a line per mutant; exit code 1 if one survives or no longer applies.
Each mutant is a copy of the package with one text replaced. The heavy libraries are imported once; every mutant then
runs in a fork, so that all of them together take seconds.
"""

import io
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One line of one module, broken."""

    module: str
    old: str
    new: str
    tests: str


ADVANTAGES, ROWS, QUEUE = "test_advantages.py", "test_rows_and_collate.py", "test_queue.py"
NORMALIZATION, OFFPOLICY, MIXTURE = "test_normalization.py", "test_offpolicy.py", "test_mixture.py"
MUTANTS = [
    Mutant("advantages", "centred = own - own.mean()", "centred = own.mean() - own", ADVANTAGES),
    Mutant("advantages", "centred / own.std()", "centred * own.std()", ADVANTAGES),
    Mutant("advantages", "float(np.average(advantages, weights=lengths))", "float(advantages.mean())", ADVANTAGES),
    Mutant("advantages", "if scale <= EPS:", "if False:", ADVANTAGES),
    Mutant("advantages", "max(spread.scale, floor)", "spread.scale + floor", NORMALIZATION),
    Mutant("advantages", "advantages - spread.center if center else advantages", "advantages", ADVANTAGES),
    Mutant("advantages", "NORMAL * mad", "mad", NORMALIZATION),
    Mutant("normalization", "old = decay * self.weight", "old = self.weight", NORMALIZATION),
    Mutant("normalization", "decay * self.moment", "self.moment", NORMALIZATION),
    Mutant("normalization", "+ delta**2 * old * weight / self.weight", "", NORMALIZATION),
    Mutant("normalization", "self.state |= self._moved", "pass", NORMALIZATION),
    Mutant("normalization", "self._moved[task] = replace(", "self.state[task] = replace(", NORMALIZATION),
    Mutant("offpolicy", "np.log(options.max_ratio)", "options.max_ratio", OFFPOLICY),
    Mutant("offpolicy", "~outside if", "outside if", OFFPOLICY),
    Mutant("offpolicy", "keep[keep] = m2_mask(", "keep[keep] |= m2_mask(", OFFPOLICY),
    Mutant("offpolicy", "np.argsort(-(log_ratio**2)", "np.argsort((log_ratio**2)", OFFPOLICY),
    Mutant("offpolicy", "threshold * np.arange(len(order), -1, -1)", "threshold * len(order)", OFFPOLICY),
    Mutant("offpolicy", 'if kind == "mean"', 'if kind != "mean"', OFFPOLICY),
    Mutant("offpolicy", "(new - old)[mask]", "(old - new)[mask]", OFFPOLICY),
    Mutant("mixture", "prior[:, None] + paths", "paths", MIXTURE),
    Mutant("mixture", "np.logaddexp.reduce(prior", "np.maximum.reduce(prior", MIXTURE),
    Mutant("mixture", "version - version % stale_sync_steps", "version", MIXTURE),
    Mutant("mixture", "max(newest, version)", "version", MIXTURE),
    Mutant("mixture", "known >= oldest - lag", "known > oldest", MIXTURE),
    Mutant("advantages", "chosen = members[included[members]]", "chosen = members", ADVANTAGES),
    Mutant("advantages", "<= tolerance", "< 0", ADVANTAGES),
    Mutant("rows", "alive & informative", "alive", ROWS),
    Mutant("rows", "[mask.sum() for mask in masks]", "[1 for mask in masks]", ROWS),
    Mutant("types", "if t.usable and t.reward is not None", "if t.reward is not None", ROWS),
    Mutant("staleness", "> max_lag)", ">= max_lag)", ROWS),
    Mutant("staleness", "engines < fresh_engines", "engines <= fresh_engines", ROWS),
    Mutant("staleness", "trajectory.mask & ~late", "trajectory.mask | ~late", ROWS),
    Mutant("collate", "trained[row, :n] = rows.masks[i]", "trained[row, :n] = 1", ROWS),
    Mutant("collate", "attention[row, :n] = 1", "attention[row, :] = 1", ROWS),
    Mutant("collate", "torch.tensor(float(total))", "torch.tensor(float(len(members)))", ROWS),
    Mutant("collate", "token_budget // len", "2 * token_budget // len", ROWS),
    Mutant("collate", "min((t.prompt_length", "max((t.prompt_length", ROWS),
    Mutant("queue", "self._count(rule) >= rule.min_trajectories", "self._count(rule) >= 1", QUEUE),
]


def main(folder: Path) -> int:
    """Runs all mutants below `folder`."""
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    import hypothesis  # noqa: F401  # imported once, before the forks
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import yaml  # noqa: F401

    survivors = 0
    for number, mutant in enumerate([None, *MUTANTS]):
        copy = folder / f"mutant{number}"
        _copy(copy)
        if mutant is not None:
            path = copy / "agentrl_trainer" / f"{mutant.module}.py"
            text = path.read_text()
            if mutant.old not in text:
                print(f"gone      {mutant.module}: {mutant.old!r} is not in the module. Update the list.")
                survivors += 1
                continue
            path.write_text(text.replace(mutant.old, mutant.new, 1))
        failed = _fails(copy, [mutant.tests] if mutant else sorted({m.tests for m in MUTANTS}))
        if mutant is None:
            if failed:
                print("the tests fail without any mutant")
                return 1
            continue
        print(f"{'killed' if failed else 'SURVIVED':9s} {mutant.module}: {mutant.old!r} -> {mutant.new!r}")
        survivors += not failed
    return min(survivors, 1)


def _copy(target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "assets", "tests")
    shutil.copytree(ROOT / "agentrl_trainer", target / "agentrl_trainer", ignore=ignore)
    (target / "agentbench_fc").symlink_to(ROOT / "agentbench_fc")
    (target / "pytest.ini").write_text("[pytest]\n")
    (target / "tests" / "trainer").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", target / "tests")
    for name in ("conftest.py", *sorted({mutant.tests for mutant in MUTANTS})):
        shutil.copy(ROOT / "tests" / "trainer" / name, target / "tests" / "trainer")


def _fails(copy: Path, tests: list[str]) -> bool:
    """Whether the tests fail against the copy, in a process of its own."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    code = 2
    try:
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        sys.dont_write_bytecode = True
        import hypothesis
        import pytest

        # finding a failure is enough here: no shrinking, no plugins, and the same examples every time
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", phases=phases, derandomize=True, max_examples=40, database=None)
        hypothesis.settings.load_profile("mutants")
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        names = [str(copy / "tests" / "trainer" / test) for test in tests]
        options = ["-x", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", str(copy / "pytest.ini")]
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            code = int(pytest.main([*options, f"--rootdir={copy}", *names]))
        import agentrl_trainer

        if not str(agentrl_trainer.__file__).startswith(str(copy)):
            code = 0  # tested the wrong package: that kills nothing
    finally:
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(made)))
