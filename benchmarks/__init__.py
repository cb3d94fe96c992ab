import importing  # noqa: F401  # before any library
