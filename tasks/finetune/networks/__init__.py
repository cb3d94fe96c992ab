"""Networks in training, one class for each way of training: they say what a step trains, and its losses."""

from tasks.finetune.networks.opening import open_network
from tasks.finetune.networks.plain import TrainableNetwork
from tasks.finetune.networks.record import Forward, Role, Trainable
from tasks.finetune.networks.supernet import TrainableSuperNet

__all__ = ["Forward", "Role", "Trainable", "TrainableNetwork", "TrainableSuperNet", "open_network"]
