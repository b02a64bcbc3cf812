"""YAML text → a tree that knows its lines.

PyYAML's own constructors lose the line of every value, keep the last of two equal keys and turn
`no` into False and `007` into 7 without a word. So the events of its (C) parser are read here: each
node keeps its line and its text, equal keys are a problem, and a value whose YAML 1.1 meaning would
surprise its author becomes `Odd`, which no setting accepts.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from runner.errors import ManifestError, Problem
from runner.say import cut

__all__ = ["MAX_DEPTH", "TOO_DEEP", "Node", "Odd", "document", "set_value"]

MAX_DEPTH = 60  # levels below a file's first
TOO_DEEP = f"nested too deep: {MAX_DEPTH} levels at most"
MAX_ALIASED = 100_000  # nodes that aliases may add: an alias bomb has millions

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Odd:
    """A plain scalar that YAML 1.1 reads as something its author may not mean."""

    text: str
    reading: str  # "a date", "the number 7"
    plain: str = ""  # how to write that number for all readers

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Node:
    """A value with its place: `value` is a dict or a list of nodes, or a scalar."""

    value: Any
    place: str
    text: str = ""  # a scalar as it is written

    def plain(self) -> Any:
        """The value without places, as pydantic takes it."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def depth(self) -> int:
        """Levels below this one, those that aliases bring too."""
        value = self.value
        below = value.values() if isinstance(value, dict) else value
        nodes = below if isinstance(value, dict | list) else ()
        return max((1 + node.depth() for node in nodes), default=0)

    def walk(self, path: Sequence[int | str]) -> tuple["Node", tuple[int | str, ...]]:
        """The node at `path`, or the last one on the way to it, and the path that it really has:
        pydantic names union members and the keys of short forms, which are nowhere in the file."""
        node, found = self, list[int | str]()
        for part in path:
            child = None
            if isinstance(node.value, dict):
                child = node.value.get(part)
            elif isinstance(node.value, list) and isinstance(part, int):
                child = node.value[part]
            if child is not None:
                node = child
                found.append(part)
        return node, tuple(found)


def document(text: str, name: str) -> tuple[Node, list[Problem]]:
    """The one document in `text` and what is wrong with it; `name` is the file's name in places.

    Raises ManifestError where nothing can be built: not YAML, no or two documents, too deep.
    """
    try:
        builder = _Builder(text, name)
        return builder.build(), builder.problems
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = _place(name, mark.line) if mark else name
        reason = " ".join(str(part) for part in (error.context, error.problem) if part)
        if "character escape code" in reason:
            reason += "; write the character itself: JSON's \\ud83e\\udd8a pairs are no YAML"
        raise ManifestError([Problem(place, f"not YAML: {reason}")]) from None
    except yaml.reader.ReaderError as error:
        character = chr(error.character)
        place = _place(name, text.partition(character)[0].count("\n"))
        reason = f"the character {character!r} must not stand there as it is"
        remedy = "remove it, or write it as here, in double quotes"
        raise ManifestError([Problem(place, f"not YAML: {reason}; {remedy}")]) from None


def _place(name: str, line: int) -> str:
    """An argument has no lines."""
    return name if name.startswith("--set") else f"{name}:{line + 1}"


def set_value(root: Node, assignment: str) -> None:
    """Put `key.key=value` (a --set argument) into the tree; the value is read as YAML.

    Raises ManifestError for an assignment without `=` or a path through something not a mapping.
    """
    place = f"--set {cut(assignment, 80)}"
    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ManifestError([Problem(place, "must look like key=value or key.key=value")])
    value, problems = document(text or "null", place)
    if problems:
        raise ManifestError(problems)
    if len(keys) + value.depth() > MAX_DEPTH:
        raise ManifestError([Problem(place, TOO_DEEP)])
    node = root
    for key in keys[:-1]:
        if not isinstance(node.value, dict):
            break
        child = node.value.get(key)
        if child is None or not isinstance(child.value, dict):
            # A short form (`model: demo`) becomes its long form's mapping where one key is set.
            short = {"model": "id", "strategy": "kind", "output": "dir"}.get(key)
            fields = {short: child} if short and child is not None else {}
            child = node.value[key] = Node(fields, place)
        node = child
    if not isinstance(node.value, dict):
        raise ManifestError([Problem(place, "the manifest is not a mapping of keys")])
    node.value[keys[-1]] = _replaced(value, place)


def _replaced(node: Node, place: str) -> Node:
    """The same values, all at one place: an argument has no lines."""
    if isinstance(node.value, dict):
        return Node({key: _replaced(child, place) for key, child in node.value.items()}, place)
    if isinstance(node.value, list):
        return Node([_replaced(child, place) for child in node.value], place)
    return Node(node.value, place, node.text)


class _Builder:
    """Recursive descent over the parser's events; depth is bounded, so recursion is safe."""

    def __init__(self, text: str, name: str) -> None:
        self.loader = _Loader(text)
        self.name = name
        self.problems: list[Problem] = []
        self.anchors: dict[str, tuple[Node, int]] = {}  # with the number of nodes below
        self.open: set[str] = set()
        self.count = 0
        self.aliased = 0

    def build(self) -> Node:
        self._skip(yaml.StreamStartEvent)
        if self.loader.check_event(yaml.StreamEndEvent):
            raise ManifestError([Problem(self.name, "the file is empty")])
        self._skip(yaml.DocumentStartEvent)
        root = self._node(0)
        self._skip(yaml.DocumentEndEvent)
        if not self.loader.check_event(yaml.StreamEndEvent):
            place = self._place(self.loader.peek_event())
            raise ManifestError([Problem(place, "a second document; one manifest is one document")])
        return root

    def _skip(self, kind: type) -> None:
        if self.loader.check_event(kind):
            self.loader.get_event()

    def _place(self, event: Any) -> str:
        return _place(self.name, event.start_mark.line)

    def _node(self, depth: int) -> Node:
        event = self.loader.get_event()
        place = self._place(event)
        if depth > MAX_DEPTH:
            raise ManifestError([Problem(place, TOO_DEEP)])
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, place, depth)
        anchor, before = event.anchor, self.count
        self.count += 1
        if anchor:
            self.open.add(anchor)
        if isinstance(event, yaml.ScalarEvent):
            node = Node(self._scalar(event, place), place, event.value)
        else:
            self._refuse_tag(event, place)
            items = (
                self._mapping(depth)
                if isinstance(event, yaml.MappingStartEvent)
                else list(self._sequence(depth))
            )
            node = Node(items, place)
        if anchor:
            self.open.discard(anchor)
            self.anchors[anchor] = (node, self.count - before)
        return node

    def _alias(self, anchor: str | None, place: str, depth: int) -> Node:
        if anchor in self.open:
            raise ManifestError([Problem(place, f"*{anchor} contains itself")])
        if anchor is None or anchor not in self.anchors:
            raise ManifestError([Problem(place, f"*{anchor} has no &{anchor} before it")])
        node, size = self.anchors[anchor]
        self.count += size
        self.aliased += size
        if self.aliased > MAX_ALIASED:
            message = f"aliases expand to more than {MAX_ALIASED:,} values"
            raise ManifestError([Problem(place, message)])
        if depth + node.depth() > MAX_DEPTH:
            raise ManifestError([Problem(place, TOO_DEEP)])
        return node

    def _sequence(self, depth: int) -> Iterator[Node]:
        while not self.loader.check_event(yaml.SequenceEndEvent):
            yield self._node(depth + 1)
        self.loader.get_event()

    def _mapping(self, depth: int) -> dict[str, Node]:
        items: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        places: dict[str, str] = {}
        while not self.loader.check_event(yaml.MappingEndEvent):
            event = self.loader.peek_event()
            place = self._place(event)
            is_merge = isinstance(event, yaml.ScalarEvent) and event.value == "<<"
            is_merge = is_merge and event.implicit[0]
            key = self._node(depth + 1)
            value = self._node(depth + 1)
            if is_merge:
                merged = {**self._merge(value), **merged}
            elif not isinstance(key.value, str):
                message = f"the key {key.text or 'here'} is not text; quote it"
                self.problems.append(Problem(place, message))
            elif key.value in items:
                message = f"{key.value}: given twice, first at {places[key.value]}; keep one"
                self.problems.append(Problem(place, message))
            else:
                items[key.value], places[key.value] = value, place
        self.loader.get_event()
        return {**merged, **items}

    def _merge(self, node: Node) -> dict[str, Node]:
        """What `<<: *anchor` or `<<: [*one, *two]` brings; the earlier one wins."""
        sources = node.value if isinstance(node.value, list) else [node]
        items: dict[str, Node] = {}
        for source in sources:
            if isinstance(source.value, dict):
                items = {**source.value, **items}
            else:
                self.problems.append(Problem(node.place, "<< takes a mapping or a list of them"))
        return items

    def _refuse_tag(self, event: Any, place: str) -> None:
        if event.tag not in (None, "!", f"{_TAG}map", f"{_TAG}seq"):
            self.problems.append(Problem(place, f"the tag {event.tag} is not supported; remove it"))

    def _scalar(self, event: Any, place: str) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        elif not tag.startswith(_TAG):
            self.problems.append(Problem(place, f"the tag {tag} is not supported; remove it"))
        kind, text = tag.removeprefix(_TAG), event.value
        if kind == "bool":
            return text.lower() in ("yes", "true", "on")
        if kind == "null":
            return None
        if kind == "int":
            return _integer(text)
        if kind == "float":
            is_plain = _FLOAT.fullmatch(text) and math.isfinite(float(text))
            return float(text) if is_plain else _odd_number(text)
        if kind == "timestamp":
            return Odd(text, "a date")
        if kind not in ("str", "merge", "value"):
            self.problems.append(Problem(place, f"the tag !!{kind} is not supported; remove it"))
        return text


def _integer(text: str) -> int | Odd:
    """Only plain decimals: 010 would be 8, 12:30:45 would be 45045, 1_000 would be 1000."""
    if _DECIMAL.fullmatch(text) and len(text) <= 100:
        return int(text)
    if len(text) > 100:
        return Odd(text[:20] + "…", "a number of more than 100 digits")
    return _odd_number(text)


def _odd_number(text: str) -> Odd:
    try:
        number = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return Odd(text, "a number")
    if not math.isfinite(number):
        return Odd(text, "a number that is not finite")
    return Odd(text, f"the number {number}", str(number))
