"""The sandbox of the process in which foreign models run. Standard library only: it stands before anything else loads."""
