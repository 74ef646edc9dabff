"""What an evaluation stands on: endpoint, agents, results file, scores, report. The run itself is evaluate.py."""
