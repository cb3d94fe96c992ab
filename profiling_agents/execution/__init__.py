"""Running and timing one model at a time in a child process, inside a sandbox and limits."""
