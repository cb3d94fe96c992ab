import quiet_libraries  # noqa: F401  # before any library
