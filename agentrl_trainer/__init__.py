"""A thin trainer: TRL's GRPO with asynchronous rollouts, cross-policy sampling and per-task normalization."""
