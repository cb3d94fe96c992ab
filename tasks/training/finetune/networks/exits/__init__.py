"""Training of exits, all of a SubNet in one forward pass: jointly, part by part, or their heads alone."""

from tasks.training.finetune.networks.exits.network import TrainableExits
from tasks.training.finetune.networks.exits.opening import open_exits

__all__ = ["TrainableExits", "open_exits"]
