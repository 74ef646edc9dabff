"""Hold a die: roll it until it shows the wanted face, then keep it."""

from collections.abc import Generator

from agentbench_fc import Reply, Sample, Task, ToolCall, ToolEpisode, Turn, make_task, tool


class Dice(ToolEpisode):
    """The die of an episode follows its seed."""

    max_turns = 8
    finish_tool = "keep"

    def start(self) -> str:
        """The prompt."""
        self.face = 0
        return f"Roll the die until it shows at least {self.sample.data['wanted']}, then keep it."

    @tool
    def roll(self) -> str:
        """Rolls the die."""
        self.face = self.rng.randint(1, self.sample.data["faces"])
        return f"It shows {self.face}."

    @tool
    def keep(self) -> Reply:
        """Keeps what the die shows."""
        return self.finish("Kept.", reward=float(self.face >= self.sample.data["wanted"]))


def expert(sample: Sample) -> Generator[ToolCall | str, Turn, None]:
    """Rolls until it fits."""
    call = ToolCall("c0", "roll", "{}")
    for turn in range(1, Dice.max_turns):
        seen = yield call
        content = str(seen.messages[0]["content"])
        if int(content.removeprefix("It shows ").removesuffix(".")) >= sample.data["wanted"]:
            break
        call = ToolCall(f"c{turn}", "roll", "{}")
    yield ToolCall("end", "keep", "{}")


def make(faces: int = 6) -> Task:
    """The task with dice of so many faces."""
    samples = [{"wanted": wanted, "faces": faces} for wanted in range(1, faces)]
    return make_task(Dice, samples={"train": samples * 8, "dev": samples}, expert=expert)
