"""The learned accuracy predictor that sensitivities are compared with.

Source: Once-for-All (ICLR 2020), Appendix A: one-hot codes of the choices, three hidden layers of 400, trained on the
accuracies of random SubNets, here standardised.
"""

import torch
from torch import nn
from torch.nn import functional

from solvers.tables import Codes, Values

HIDDEN = 400
STEPS = 500
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-4


def one_hot(codes: Codes, cardinalities: Codes) -> torch.Tensor:
    """Codes (n, V) as (n, sum of the cardinalities): a one for the choice of each variable."""
    columns = [functional.one_hot(torch.from_numpy(codes[:, v]), int(k)) for v, k in enumerate(cardinalities)]
    return torch.cat(columns, dim=1).float()


class Mlp:
    """Fitted on the canonical codes (n, V) of evaluated SubNets and a number of each (n,): all of them in each step."""

    def __init__(self, codes: Codes, values: Values, cardinalities: Codes, seed: int, steps: int = STEPS) -> None:
        self._cardinalities = cardinalities
        self._mean, self._deviation = float(values.mean()), float(values.std()) or 1.0
        x_NF = one_hot(codes, cardinalities)
        y_N = torch.from_numpy((values - self._mean) / self._deviation).float()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            self._network = nn.Sequential(
                nn.Linear(x_NF.shape[1], HIDDEN),
                nn.ReLU(),
                nn.Linear(HIDDEN, HIDDEN),
                nn.ReLU(),
                nn.Linear(HIDDEN, HIDDEN),
                nn.ReLU(),
                nn.Linear(HIDDEN, 1),
            )
            optimiser = torch.optim.AdamW(self._network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
            for _ in range(steps):
                optimiser.zero_grad()
                functional.mse_loss(self._network(x_NF)[:, 0], y_N).backward()
                optimiser.step()
                schedule.step()

    @torch.no_grad()
    def predict(self, codes: Codes) -> Values:
        """The number (n,) of canonical codes (n, V)."""
        found: Values = self._network(one_hot(codes, self._cardinalities))[:, 0].double().numpy()
        return found * self._deviation + self._mean
