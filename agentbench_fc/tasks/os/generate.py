"""The generated samples: seeded problems of eight families and three levels, each with a script that sets it up.

>>> sample = make_sample("dev", 0)
>>> sample["level"], sample["init"][0]["language"]
('easy', 'bash')

Sample n of a split depends on the split and n alone, so a split can grow without changing what it has. The splits share
no word and no name, and dev and test have kinds of problems that train does not (`unseen`). The gold of an answer is
computed by the maker from the numbers that it drew; the plan is a solution in bash that never sees it.

Not here: the makers (generate_files.py and its siblings), wordings (phrases.py), drawing (generate_world.py).
"""

import json
import random
from typing import Any

from agentbench_fc.tasks.os.generate_access import PERMISSIONS, USERS
from agentbench_fc.tasks.os.generate_archives import ARCHIVES
from agentbench_fc.tasks.os.generate_files import FILES
from agentbench_fc.tasks.os.generate_logs import LOGS
from agentbench_fc.tasks.os.generate_processes import PROCESSES
from agentbench_fc.tasks.os.generate_scripting import SCRIPTING
from agentbench_fc.tasks.os.generate_text import TEXT
from agentbench_fc.tasks.os.generate_world import Template, World
from agentbench_fc.tasks.os.phrases import PHRASES, wording

VERSION = "1"
SIZES = {"train": 2_400, "dev": 240, "test": 240}
LEVELS = ("easy", "medium", "hard")
FAMILIES = ("files", "text", "permissions", "users", "processes", "archives", "scripting", "logs")
TEMPLATES: tuple[Template, ...] = (
    *FILES, *TEXT, *PERMISSIONS, *USERS, *PROCESSES, *ARCHIVES, *SCRIPTING, *LOGS
)  # fmt: skip


def make_split(split: str) -> bytes:
    """All samples of a split as JSON lines."""
    lines = (json.dumps(make_sample(split, number), ensure_ascii=False) for number in range(SIZES[split]))
    return ("\n".join(lines) + "\n").encode()


def make_sample(split: str, number: int) -> dict[str, Any]:
    """Sample `number` of a split, as the JSON object that `Sample.data` holds.

    Levels and families go round: each 24 samples in a row hold every pair once.
    """
    level, family = LEVELS[number % 3], FAMILIES[number // 3 % 8]
    rng = random.Random(f"os/{VERSION}/{split}/{number}")
    template = rng.choice([t for t in templates(split) if (t.family, t.level) == (family, level)])
    world = World(rng, split)
    problem = template.make(world)
    script = problem.setup.script()
    checks = [{"kind": "state", "conditions": list(problem.state)}] if problem.state else []
    return {
        "question": wording(template.name, rng.randrange(len(PHRASES[template.name])), problem.fields),
        "level": level,
        "family": family,
        "template": template.name,
        "unseen": template.unseen,
        "image": "default",
        "init": [{"language": "bash", "code": script}],
        "start": "",
        "match": None if problem.answer is None else {"answer": str(problem.answer), "strip": True},
        "checks": checks,
        "plan": list(problem.plan),
        "reference": None,
        "volatile": ["background"] if "setsid" in script else [],
        "unplayable": "",
        "fault": [],
    }


def templates(split: str) -> list[Template]:
    """The kinds of problems of a split."""
    return [template for template in TEMPLATES if split != "train" or not template.unseen]
