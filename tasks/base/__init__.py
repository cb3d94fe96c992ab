"""Parts of all rooms of `tasks`: artifacts, errors, schemas of files between stages, progress, pages, places, processes."""
