"""What the `trl` section may set of TRL's `GRPOConfig`: what our loop reads, and nothing that another section decides.

Not here: the configuration that is made of it (trainer.py); TRL itself.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from agentbench_fc.errors import CallerError, did_you_mean

OURS = frozenset(
    {"output_dir", "max_steps", "learning_rate", "warmup_steps", "lr_scheduler_type", "weight_decay", "adam_beta1",
     "adam_beta2", "max_grad_norm", "loss_type", "epsilon", "epsilon_high", "delta", "beta", "temperature", "seed",
     "bf16", "use_cpu", "gradient_checkpointing", "activation_checkpointing", "gradient_accumulation_steps",
     "steps_per_generation", "num_iterations",
     "num_generations", "per_device_train_batch_size", "max_completion_length", "save_strategy", "eval_strategy",
     "top_p", "top_k", "min_p", "use_vllm", "scale_rewards", "report_to", "logging_strategy", "auto_find_batch_size",
     "chat_template_kwargs"}
)  # fmt: skip
"""Fields of `GRPOConfig` that follow from the configuration; the `trl` section may not set them."""
IDLE = frozenset(
    {"repetition_penalty", "generation_kwargs", "cache_implementation", "mask_truncated_completions", "reward_weights",
     "multi_objective_aggregation", "shuffle_dataset", "max_tool_calling_iterations", "use_transformers_paged",
     "use_transformers_continuous_batching", "generation_batch_size", "num_generations_eval", "eval_steps", "do_eval",
     "save_steps", "save_total_limit", "num_train_epochs", "dataloader_num_workers", "log_completions",
     "log_multimodal", "num_completions_to_print", "log_unique_prompts", "log_completions_hub_repo",
     "model_init_kwargs", "transformers_continuous_batching_config"}
)  # fmt: skip
"""Fields about what is bypassed here (with all that begin with `vllm_`): set, they would do nothing, unnoticed."""


def check_trl(options: Mapping[str, Any], fields: Mapping[str, Field[Any]]) -> dict[str, Any]:
    """Refuses fields that are unknown, not the section's to set, without effect, or of a wrong type.

    Args:
        options: The section.
        fields: Those of `GRPOConfig`.

    Returns:
        The section; numbers that YAML takes for texts (`1e-8`, without a dot) are numbers.

    Raises:
        CallerError: the first one that cannot be.
    """
    values = dict(options)
    for key, value in options.items():
        if key in OURS:
            raise CallerError(f"{key} is decided elsewhere [trl.{key}]. Remove it; see the other sections.")
        if key in IDLE or key.startswith("vllm_"):
            raise CallerError(f"{key} does nothing here: rollouts are not TRL's [trl.{key}]. Remove it.")
        if key not in fields:
            raise CallerError(f"unknown key {key!r} [trl]. {did_you_mean(key, set(fields) - OURS - IDLE)}")
        kind = type(fields[key].default)
        if kind is float and isinstance(value, str):
            with contextlib.suppress(ValueError):
                values[key] = value = float(value)
        fits = isinstance(value, kind) or value is None or (kind is float and isinstance(value, int))
        if kind in {bool, int, float} and not (fits and isinstance(value, bool) is (kind is bool)):
            raise CallerError(f"{key} is {value!r} [trl.{key}]. TRL wants a value of type {kind.__name__}.")
    return values
