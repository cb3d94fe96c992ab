"""The moment with the least memory between two moments, by a minimum cut.

The bytes alive are a submodular function of the set of completed steps: a buffer is alive if its maker is completed and not all
of its users are. The minimum between two moments is therefore a minimum cut (Picard 1976), found by augmenting paths.
"""

from collections import defaultdict, deque

from solvers.schedules.workload import Done, Workload, bits

Vertex = int | str | tuple[str, int]
SOURCE, SINK = "source", "sink"


class _Network:
    """A flow network: the residual capacity from each vertex to another."""

    def __init__(self) -> None:
        self.left: defaultdict[Vertex, dict[Vertex, int]] = defaultdict(dict)

    def add(self, tail: Vertex, head: Vertex, bytes_: int) -> None:
        if tail != head:
            self.left[tail][head] = self.left[tail].get(head, 0) + bytes_
            self.left[head].setdefault(tail, 0)

    def reached(self) -> dict[Vertex, Vertex]:
        """Vertices that can receive more flow from the source, each with its predecessor; stops at the sink."""
        before: dict[Vertex, Vertex] = {SOURCE: SOURCE}
        waiting = deque[Vertex]([SOURCE])
        while waiting and SINK not in before:
            vertex = waiting.popleft()
            for head, left in self.left[vertex].items():
                if left and head not in before:
                    before[head] = vertex
                    waiting.append(head)
        return before

    def saturate(self) -> dict[Vertex, Vertex]:
        """Send as much flow as possible; return the source's side of the smallest minimum cut."""
        while SINK in (before := self.reached()):
            path: list[Vertex] = [SINK]
            while path[-1] != SOURCE:
                path.append(before[path[-1]])
            pairs = list(zip(path[1:], path, strict=False))
            sent = min(self.left[tail][head] for tail, head in pairs)
            for tail, head in pairs:
                self.left[tail][head] -= sent
                self.left[head][tail] += sent
        return before


def least_live(load: Workload, start: Done, end: Done) -> Done:
    """Among all closed sets between `start` and `end`, the one with the least bytes alive; the smallest of equal ones."""
    between = end & ~start
    unlimited = 1 + sum(load.buffer_bytes(buffer) for buffer in load.maker)
    network = _Network()

    def vertex(step: int) -> Vertex:
        if start >> step & 1:
            return SOURCE
        return step if end >> step & 1 else SINK

    for step in bits(between):
        for earlier in bits(load.before[step] & between):
            network.add(step, earlier, unlimited)  # a step implies the steps before it
    for buffer, maker in load.maker.items():
        # other buffers are the same for every set between start and end
        if not (load.users[buffer] & between) or vertex(maker) == SINK:
            continue
        ended = ("ended", buffer)
        network.add(vertex(maker), ended, load.buffer_bytes(buffer))
        for user in bits(load.users[buffer]):
            network.add(ended, vertex(user), unlimited)
        if buffer in load.kept:
            network.add(ended, SINK, unlimited)
    side = network.saturate()
    return start | sum(1 << step for step in bits(between) if step in side)
