import importing  # before any library
