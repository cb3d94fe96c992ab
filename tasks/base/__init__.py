"""What all rooms of `tasks` use: artifacts, errors, schemas of files between stages, progress, pages, places, processes."""
