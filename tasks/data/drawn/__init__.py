"""Images that are drawn in memory, without files: digits, noisy digits, glyphs, scenes."""
