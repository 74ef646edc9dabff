"""A stock TRL `GRPOTrainer` on KG: `python examples/trl_grpo_kg.py [model directory] [steps]`.

The task is TRL's environment_factory; nothing of agentrl_trainer takes part but its small default model. Any Hugging
Face model whose chat template knows tools does instead.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import agentrl_trainer
from agentbench_fc.integrations.trl import dataset, environment_factory

TINY = Path(agentrl_trainer.__file__).parent / "assets" / "tiny-fc"


def main(model: str, steps: int) -> None:
    gpu = torch.cuda.is_available()
    if not gpu:
        torch.set_num_threads(1)  # more threads only slow a model as small as the default one
    args = GRPOConfig(
        output_dir="runs/trl-kg",
        max_steps=steps,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=512,
        max_tool_calling_iterations=15,
        learning_rate=3e-4,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=not gpu,
        bf16=gpu,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(model),
        args=args,
        train_dataset=dataset("kg", n=256, prompt="compact", level="easy"),
        environment_factory=environment_factory("kg", prompt="compact", level="easy"),
    )
    trainer.train()
    for row in trainer.state.log_history:
        if "rewards/kg/mean" in row:
            print(f"step {row['step']}: reward {row['rewards/kg/mean']:.2f}, calls {row['tools/call_frequency']:.1f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(TINY), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
