"""Code of the tasks, one folder each; all that is special to a task stays inside."""
