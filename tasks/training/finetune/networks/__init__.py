"""Networks in training, one class for each way of training; each defines what a step trains, and its losses."""

from tasks.training.finetune.networks.opening import open_network
from tasks.training.finetune.networks.plain import TrainableNetwork
from tasks.training.finetune.networks.record import Forward, Judge, Role, Trainable, Verdict
from tasks.training.finetune.networks.supernet import TrainableSuperNet

__all__ = ["Forward", "Judge", "Role", "Trainable", "TrainableNetwork", "TrainableSuperNet", "Verdict", "open_network"]
