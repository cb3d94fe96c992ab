"""Parts that all rooms of the run time need: errors in one line, files, messages that are files, telemetry."""
