"""The rollout process: one coroutine per trajectory, whole groups, bounded staleness."""
