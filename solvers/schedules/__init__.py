"""Orders of steps with the least peak memory, and offsets of their values in one block.

A step reads and writes values of given sizes; a value takes memory from the step that writes it to the last step that
reads it (`solvers.schedules.workload`). `solvers.schedules.best` finds the order, `solvers.schedules.workload` the
offsets.
"""

from solvers.schedules.best import Schedule, best_order
from solvers.schedules.workload import Interval, Placement, ScheduledStep, Workload, place
