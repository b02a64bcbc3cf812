"""Which finished images go to which places, since a list of prompts may move.

A finished image belongs to its fingerprint, not to its place. Places are indices of images; those
below 0 stand for files that are on their way already.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from runner.plan import Fingerprints, Plan

__all__ = ["Step", "in_order", "match"]


def match(
    spare: Mapping[int, bytes], plan: Plan, fingerprints: Fingerprints, todo: bytearray
) -> dict[int, int]:
    """Source → target, for images that do not fit where they are and those that must be made.
    `spare` has the fingerprint of each such image; images of one fingerprint are interchangeable.
    """
    places: dict[bytes, list[int]] = {}
    for place in sorted(spare, reverse=True):
        places.setdefault(spare[place], []).append(place)
    moves: dict[int, int] = {}
    if not places:
        return moves
    for task in plan.tasks():
        if not todo[task.index]:
            continue
        fingerprint = fingerprints.digest(task)
        if found := places.get(fingerprint):
            moves[found.pop()] = task.index
    return moves


class Step(NamedTuple):
    """A file to rename; without a target it only makes room, and comes again later."""

    source: int
    target: int | None


def in_order(moves: Mapping[int, int]) -> Iterator[Step]:
    """The moves, so that each finds its target free. Only a circle of them needs to set one image
    aside."""
    left = dict(moves)
    for start in moves:
        if start not in left:
            continue
        chain = [start]
        while (end := left[chain[-1]]) in left and end != start:
            chain.append(end)
        if end == start:
            yield Step(start, None)
        for source in reversed(chain):
            yield Step(source, left.pop(source))
