"""AgentBench's function-call tasks behind one interface: Gymnasium envs, sessions, evaluation."""
