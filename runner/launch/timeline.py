"""How busy each replica was and how many images it made, over the time of a launch."""

from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["Timeline"]

FIRST_SPAN_S = 2.0
MOST_SPANS = 60
T = TypeVar("T", int, float)
MOST_NUMBERS = 8192  # of each kind, so that summary.json stays small with a thousand replicas


class Timeline:
    """Spans of equal length from the start of the launch; they double when there are too many."""

    def __init__(self) -> None:
        self.span_s = FIRST_SPAN_S
        self._busy: dict[int, list[float]] = {}  # replica → busy seconds, by span
        self._images: dict[int, list[int]] = {}
        self._last: dict[int, tuple[float, int]] = {}

    def add(self, now_s: float, replicas: Mapping[int, tuple[float, int]]) -> None:
        """How long each replica was busy so far, and how many images it has made, at a moment of
        the launch. What came since the last call counts as of this moment."""
        most = min(MOST_SPANS, max(4, MOST_NUMBERS // max(1, len(replicas))))
        while now_s >= self.span_s * most:
            self._double()
        span = int(now_s / self.span_s)
        for replica, (busy_s, images) in replicas.items():
            before_s, before = self._last.get(replica, (0.0, 0))
            self._last[replica] = busy_s, images
            _add(self._busy.setdefault(replica, []), span, max(0.0, busy_s - before_s))
            _add(self._images.setdefault(replica, []), span, max(0, images - before))

    def as_json(self) -> dict[str, Any]:
        """`busy_s` and `images` have a number for each span."""
        return {
            "span_s": self.span_s,
            "replicas": [
                {
                    "replica": replica,
                    "busy_s": [round(seconds, 2) for seconds in busy],
                    "images": self._images[replica],
                }
                for replica, busy in sorted(self._busy.items())
            ],
        }

    def _double(self) -> None:
        self.span_s *= 2
        self._busy = {replica: _in_pairs(values) for replica, values in self._busy.items()}
        self._images = {replica: _in_pairs(values) for replica, values in self._images.items()}


def _in_pairs(values: list[T]) -> list[T]:
    return [sum(values[at : at + 2]) for at in range(0, len(values), 2)]


def _add(values: list[Any], span: int, value: float) -> None:
    values.extend([0] * (span + 1 - len(values)))
    values[span] += value
