"""What `import agentbench_fc` costs, in CPU time, against `import gymnasium`, on which it builds.

Each pair runs the two imports in fresh interpreters one after the other, the order alternating, so that drift of the
machine cancels. Start-up of the interpreter is not counted. The last line is the claim; exit code 1 where it fails.
"""

import os
import statistics
import subprocess
import sys

PAIRS = 15
LIMIT = 3.0
UNWANTED = ("torch", "transformers", "trl", "pydantic", "jsonschema", "yaml", "sqlglot", "pyoxigraph", "aiohttp")
PROGRAM = "import sys, time; start = time.process_time(); import {0}; print(time.process_time() - start, *sys.modules)"


def cpu_seconds(module: str) -> float:
    """CPU seconds of one import in a fresh interpreter.

    Raises:
        RuntimeError: it loads what it must not load.
    """
    command = [sys.executable, "-c", PROGRAM.format(module)]
    seconds, *loaded = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    if unwanted := set(UNWANTED) & set(loaded):
        raise RuntimeError(f"import {module} loads {', '.join(sorted(unwanted))}")
    return float(seconds)


def main(pairs: int) -> None:
    ratios = []
    for pair in range(-1, pairs):  # the first pair warms the disk cache and the byte code
        names = ("agentbench_fc", "gymnasium") if pair % 2 else ("gymnasium", "agentbench_fc")
        seconds = {name: cpu_seconds(name) for name in names}
        if pair >= 0:
            ratios.append(seconds["agentbench_fc"] / seconds["gymnasium"])
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"import agentbench_fc / import gymnasium, CPU time: {median:.2f}x [{low:.2f}, {high:.2f}], {pairs} pairs, ")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; limit {LIMIT:g}x: {'ok' if median < LIMIT else 'NO'}")
    sys.exit(median >= LIMIT)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS)
