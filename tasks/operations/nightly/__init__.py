"""Nights: the same run again and again, each compared with the one before, and their trends as a page.

Each night leaves one record. Its latencies are measured anew every night, in rounds, so that a changed device is detected
although no stage is run again.
"""
