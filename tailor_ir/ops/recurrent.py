"""Recurrent layers. Hidden features are cut alike in all gates and directions."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import factors_of
from tailor_ir.errors import ImportFailed, MixedSamples
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # ONNX's iofc -> torch's ifgo; ONNX's zrh -> torch's rzn
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
FIRST_STATE = 5  # input position of the first initial state
LayerRun = Callable[..., tuple[torch.Tensor, ...]]
"""Takes x, states, weights and torch's settings; returns results (T, B, D·H), then the final states (D, B, H)."""
PLAIN: dict[str, LayerRun] = {"Tanh": torch.rnn_tanh, "Relu": torch.rnn_relu}

ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}
"""Default activations of one direction, for operators with several."""


def _turn(stacked: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Reorder the rows of the gates."""
    pieces = stacked.chunk(len(order), 0)
    return torch.cat([pieces[i] for i in order], 0)


def _gru_of_reset_states(
    x: torch.Tensor, states: torch.Tensor, weights: Sequence[torch.Tensor], has_biases: bool, **settings: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """A GRU that applies the reset gate before the recurrent weight (ONNX's default); torch applies it after."""
    sequences, final = [], []
    for direction, h in enumerate(states):
        size = len(weights) // len(states)
        w, r, *biases = weights[direction * size : (direction + 1) * size]
        whole = F.linear(x, w, torch.stack(biases).sum(0) if has_biases else None)
        rows: list[torch.Tensor] = [x] * len(x)
        for step in range(len(x))[:: -1 if direction else 1]:
            of_gates, of_new = whole[step].split((2 * h.shape[-1], h.shape[-1]), -1)
            gates, new = r.split((2 * h.shape[-1], h.shape[-1]))
            reset, kept = torch.sigmoid(of_gates + F.linear(h, gates)).chunk(2, -1)
            candidate = torch.tanh(of_new + F.linear(reset * h, new))
            rows[step] = h = torch.lerp(candidate, h, kept)
        sequences.append(torch.stack(rows))
        final.append(h)
    return torch.cat(sequences, -1), torch.stack(final)


class Recurrent(nn.Module):
    """An LSTM, GRU or RNN over x (T, B, I); weights (D, G·H, I), (D, G·H, H), biases (D, 2·G·H) given with each call.

    D directions, G gates in ONNX's order, H hidden features. Returns (T, D, B, H), then the final states (D, B, H).
    """

    def __init__(
        self, op: str, hidden: int, directions: int, names: tuple[str, ...], results: int, run: LayerRun
    ) -> None:
        super().__init__()
        self.run = run
        self.op, self.hidden, self.directions, self.names, self.results = op, hidden, directions, names, results

    def forward(self, *operands: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        given = dict(zip(self.names, operands, strict=True))
        x, order = given["x"], GATES[self.op]
        weights = []
        for direction in range(self.directions):
            weights += [_turn(given[name][direction], order) for name in ("w", "r")]
            if "b" in given:
                weights += [_turn(half, order) for half in given["b"][direction].chunk(2)]
        shape = (self.directions, x.shape[1], self.hidden)
        zeros = x.new_zeros(shape)
        states = tuple(given.get(name, zeros).expand(shape) for name in ("h", "c")[: STATES[self.op]])
        y, *final = self.run(
            x,
            states if self.op == "LSTM" else states[0],
            weights,
            has_biases="b" in given,
            num_layers=1,
            dropout=0.0,
            train=False,
            bidirectional=self.directions == 2,
            batch_first=False,
        )
        sequence = y.unflatten(-1, (self.directions, self.hidden)).transpose(1, 2)
        return sequence if self.results == 1 else (sequence, *final)[: self.results]


def _named_inputs(node: Node) -> dict[str, str]:
    """Letter in ONNX's specification -> name of the value, without absent inputs."""
    letters = ("x", "w", "r", "b", "lengths", "h", "c", "peepholes")
    return {letter: name for letter, name in zip(letters, node.inputs, strict=False) if name}


def _activations(node: Node) -> tuple[str, ...]:
    """Activations that differ from torch's; () if all are torch's."""
    given = node.attribute("activations", ())
    if not isinstance(given, tuple):
        raise ImportFailed(f"{node.place}: activations {given!r}; allowed: a list of names")
    names, own = tuple(map(str, given)), ACTIVATIONS.get(node.op)
    is_known = names in ((), own, (own or ()) * 2) if own else len(set(names)) <= 1 and set(names) <= set(PLAIN)
    return () if is_known else names


def _axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    given = _named_inputs(node)
    for unsupported in ("lengths", "peepholes"):
        if unsupported in given:
            raise ImportFailed(
                f"{node.place}: {unsupported} are given; allowed: none; export it without them, for "
                "sequences of one length"
            )
    direction, activations = str(node.attribute("direction", "forward")), ", ".join(_activations(node))
    directions = 2 if direction == "bidirectional" else 1
    others = {
        f"direction {direction}": direction not in ("forward", "bidirectional"),
        f"activations {activations}": bool(activations),
        "input_forget=1": bool(node.int("input_forget", 0)),
        "layout=1": bool(node.int("layout", 0)),
    }
    if found := next((name for name, is_there in others.items() if is_there), None):
        raise ImportFailed(
            f"{node.place}: {found}; allowed: the form of torch.nn.{node.op}; write it in this form, "
            "or its steps in other operators"
        )
    x, weight, recurrent = p.of(given["x"]), p.of(given["w"]), p.of(given["r"])
    if any(p.pool.is_batch(factor) for factor in factors_of(x[:1])):
        raise MixedSamples(
            f"{node.place}: its steps are the axis of samples; allowed: networks that treat all "
            "samples alike, with steps along another axis; give an example of one sample, whose axis of samples has one entry"
        )
    p.unify(x[2], weight[2], node)
    p.pool.freeze_positions(x[2], f"{node.place}: a weight has one entry for each position")
    p.freeze((weight[0], recurrent[0]), node, "directions")
    hidden, gates = recurrent[2], p.pool.fixed(len(GATES[node.op]))
    for rows in (weight[1], recurrent[1]):
        p.unify(rows, p.pool.product((gates, hidden)), node)
    if "b" in given:
        half = p.pool.product((gates, hidden))
        own = p.of(given["b"])
        p.freeze(own[:1], node, "directions")
        p.unify(own[1], p.pool.concat((half, half)), node)
    state = (p.pool.fixed(directions), x[1], hidden)
    for name in ("h", "c"):
        if name in given:
            for dim, wanted in zip(p.of(given[name]), state, strict=True):
                if dim.size != 1 or wanted is not x[1] or given[name] not in p.graph.initializers:
                    p.unify(dim, wanted, node)  # a stored state may have one row for all samples
    return (x[0], *state), state, state


def _run(node: Node) -> LayerRun:
    match node.op:
        case "LSTM":
            return torch.lstm
        case "GRU":
            return torch.gru if node.int("linear_before_reset", 0) else _gru_of_reset_states
    return PLAIN[str((node.attribute("activations") or ("Tanh",))[0])]  # type: ignore[index]


def _lower(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    directions, _, hidden = shapes.inputs[2]
    return Recurrent(node.op, hidden, directions, tuple(_named_inputs(node)), len(node.outputs), _run(node))


def _order(node: Node, p: Propagation) -> Dims:
    """Steps, and directions of the weights; hidden features are permuted in all gates alike."""
    given = _named_inputs(node)
    return tuple(p.of(given[name])[0] for name in "xwr")


OPERATORS = (
    Operator(
        names=tuple(GATES),
        axes=_axes,
        order=_order,
        lower=_lower,
        attributes=lambda node, shapes: {"hidden_size": shapes.inputs[2][2]},
    ),
)
