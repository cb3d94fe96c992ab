"""Running and timing one model at a time in a child process, behind walls and limits."""
