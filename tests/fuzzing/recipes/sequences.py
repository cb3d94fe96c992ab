"""Attention, matrix products of computed values, look-ups of tokens, recurrent layers."""

from typing import Any

from tests.fuzzing.drafts import TOKENS, Draft, Unfit, Value
from tests.fuzzing.recipes.record import Make, Recipe

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _heads(draft: Draft, value: Value, heads: int) -> Value:
    """(N, T, C) as (N, heads, T, C / heads)."""
    _, steps, width = value.shape
    apart = draft.reshape(value.name, [0, steps if draft.chance(0.5) else 0, heads, width // heads])
    return draft.transpose(apart.name, 0, 2, 1, 3)


def _attention(draft: Draft) -> Value:
    """Of one or several heads, over itself or another sequence, with or without a mask."""
    value = draft.sequence()
    if value.shape[1] > 64:
        raise Unfit
    other = draft.sequence() if draft.chance(0.3) else value
    if other.shape[1] > 64:
        raise Unfit
    heads = int(draft.choose((1, 2, 4)))
    width = heads * int(draft.choose((4, 8)))
    query, key, content = (_heads(draft, draft.linear(one, width), heads) for one in (value, other, other))
    turned = draft.transpose(key.name, 0, 1, 3, 2)
    scores = draft.one("MatMul", f"{query.name} {turned.name}")
    scores = draft.one("Mul", f"{scores.name} {draft.constant(0.35)}")
    if draft.chance(0.2):
        scores = draft.one("Add", f"{scores.name} {draft.weight(*scores.shape[1:], letter='b')}")
    shares = draft.one("Softmax", scores.name, axis=-1)
    mixed = draft.transpose(draft.one("MatMul", f"{shares.name} {content.name}").name, 0, 2, 1, 3)
    joined = draft.reshape(mixed.name, [0, 0, width] if draft.chance(0.5) else [0, 0, -1])
    found = draft.linear(joined, value.shape[2])
    return draft.one("Add", f"{found.name} {value.name}") if draft.chance(0.7) else found


def _packed_attention(draft: Draft) -> Value:
    """Queries, keys and values of one linear map, apart by a reshape and look-ups, or a split."""
    value = draft.sequence()
    _, steps, width = value.shape
    if steps > 64:
        raise Unfit
    heads, size = 2, 8
    packed = draft.linear(value, 3 * heads * size)
    if draft.chance(0.5):
        apart = draft.reshape(packed.name, [0, steps, 3, heads, size])
        turned = draft.transpose(apart.name, 2, 0, 3, 1, 4)
        parts = [draft.one("Gather", f"{turned.name} {draft.constant(i)}", axis=0) for i in range(3)]
    else:
        pieces = draft.add("Split", f"{packed.name} {draft.constant([heads * size] * 3)}", 3, axis=2)
        parts = [_heads(draft, piece, heads) for piece in pieces]
    query, key, content = parts
    scores = draft.one("MatMul", f"{query.name} {draft.transpose(key.name, 0, 1, 3, 2).name}")
    mixed = draft.one("MatMul", f"{draft.one('Softmax', scores.name, axis=-1).name} {content.name}")
    joined = draft.reshape(draft.transpose(mixed.name, 0, 2, 1, 3).name, [0, 0, -1])
    return draft.one("Add", f"{value.name} {draft.linear(joined, width).name}")


def _product(draft: Draft) -> Value:
    """Of two computed values."""
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank in (3, 4))
    order = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
    if value.shape[-2] > 64:
        raise Unfit
    found = draft.one("MatMul", f"{value.name} {draft.transpose(value.name, *order).name}")
    return draft.one("Mul", f"{found.name} {draft.constant(1.0 / value.shape[-1])}")


def _einsum(draft: Draft) -> Value:
    value = draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank in (3, 4))
    out = draft.width()
    if value.rank == 4:
        equation, weight = "bchw,oc->bohw", draft.weight(out, value.shape[1])
    else:
        equation, weight = draft.choose((("btc,co->bto", (2, out)), ("bij,ik->bkj", (1, out))))
        weight = draft.weight(value.shape[weight[0]], out)
    return draft.one("Einsum", f"{value.name} {weight}", equation=equation)


def _embedding(draft: Draft) -> Value:
    """Tokens, looked up; learned positions."""
    tokens = draft.tokens()
    found = draft.one("Gather", f"{draft.weight(TOKENS, draft.width())} {tokens.name}", axis=0)
    if draft.chance(0.5):
        found = draft.one("Add", f"{found.name} {draft.weight(1, *found.shape[1:], letter='b')}")
    return found


def _masked(draft: Draft) -> Value:
    """A mean over the tokens that are not zero."""
    tokens = draft.tokens()
    table = draft.weight(TOKENS, draft.width())
    found = draft.one("Gather", f"{table} {tokens.name}", axis=0)
    zero = draft.constant(0)
    if tokens.kind != "int64":
        raise Unfit
    mask = draft.one("Cast", draft.one("Greater", f"{tokens.name} {zero}").name, to=1)
    weighted = draft.one("Mul", f"{found.name} {draft.by_axes('Unsqueeze', mask.name, [2]).name}")
    total = draft.by_axes("ReduceSum", weighted.name, [1], 13, keepdims=0)
    count = draft.by_axes("ReduceSum", mask.name, [1], 13, keepdims=1)
    return draft.one("Div", f"{total.name} {draft.one('Add', f'{count.name} {draft.constant(1.0)}').name}")


def _recurrent(op: str) -> Make:
    def make(draft: Draft) -> Value:
        value = draft.sequence()
        if value.shape[1] > 32:
            raise Unfit
        _, _, width = value.shape
        hidden, directions = int(draft.choose((8, 12, 16))), int(draft.choose((1, 1, 2)))
        gates = GATES[op] * hidden
        first = draft.transpose(value.name, 1, 0, 2)
        weights = [draft.weight(directions, gates, width), draft.weight(directions, gates, hidden)]
        if draft.chance(0.7):
            weights.append(draft.weight(directions, 2 * gates, letter="b"))
        attributes: dict[str, Any] = {"hidden_size": hidden}
        if op == "GRU":
            attributes["linear_before_reset"] = int(draft.choose((0, 1)))
        if directions == 2 or draft.chance(0.3):
            attributes["direction"] = "bidirectional" if directions == 2 else "reverse"
        states = 3 if op == "LSTM" else 2
        results = draft.add(op, " ".join([first.name, *weights]), int(draft.choose((1, states))), **attributes)
        if len(results) > 1 and draft.chance(0.4):
            last = draft.transpose(results[1].name, 1, 0, 2)
            return draft.reshape(last.name, [0, -1])
        turned = draft.transpose(results[0].name, 2, 0, 1, 3)
        return draft.reshape(turned.name, [0, 0, -1])

    return make


RECIPES = (
    Recipe("attention", _attention, ("MatMul", "Softmax", "Linear"), share=2.5),
    Recipe("packed attention", _packed_attention, ("MatMul", "Softmax", "Gather", "Split"), share=1.5),
    Recipe("MatMul", _product, ("MatMul", "Transpose")),
    Recipe("Einsum", _einsum, ("Einsum",)),
    Recipe("Embedding", _embedding, ("Embedding", "Add"), share=1.5),
    Recipe("masked mean", _masked, ("Embedding", "Greater", "Cast", "ReduceSum", "Div"), share=0.5),
    *(Recipe(op, _recurrent(op), (op,), share=0.7) for op in GATES),
)
