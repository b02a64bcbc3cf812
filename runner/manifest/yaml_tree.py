"""YAML text → a tree that knows its lines.

PyYAML's own constructors drop the line of every value, keep the last of two equal keys, and turn
`no` into False and `007` into 7 silently. So the events of its (C) parser are read here. Each node
keeps its line and its text. Equal keys are a problem. A value whose YAML 1.1 meaning would surprise
its author becomes `Odd`, which no setting accepts.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from runner.errors import ManifestError, Problem
from runner.say import cut

__all__ = [
    "EXPONENT",
    "MAX_DEPTH",
    "NOT_FINITE",
    "TOO_DEEP",
    "Document",
    "Found",
    "Node",
    "Odd",
    "document",
    "set_value",
]

MAX_DEPTH = 60  # levels below the top of a file
TOO_DEEP = f"nested too deep: {MAX_DEPTH} levels at most"
MAX_ALIASED = 100_000  # nodes that aliases may add: an alias bomb has millions

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_KINDS = ("bool", "null", "int", "float", "timestamp")
_UNFIT = "does not fit its value, or is not supported; remove it"
NOT_FINITE = "a number that is not finite"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OCTAL = re.compile(r"[-+]?0[0-7]+")
EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")  # text in YAML 1.1 only
_LIKE_TEXT = re.compile(r"\s*(- +)*([\w.]+: +)?[-@`%\[{&*!|>\"']")  # a value that begins like this
_LINE_END = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # as YAML counts lines
_COMMENT = re.compile(r"\s+(#\S.*)")  # a comment that may be text: `# a note` has a blank
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Odd:
    """A plain scalar that YAML 1.1 reads as something that its author may not mean."""

    text: str
    reading: str  # "a date", "the number 7"
    plain: str = ""  # that number in the form that every reader understands

    def __str__(self) -> str:
        return self.text


NO_KEYS: Mapping[str, str] = MappingProxyType({})  # one for all nodes that are not mappings


@dataclass(slots=True)
class Node:
    """A value with its place: `value` is a dict or a list of nodes, or a scalar."""

    value: Any
    place: str
    text: str = ""  # a scalar as it is written
    key_places: Mapping[str, str] = field(default_factory=lambda: NO_KEYS)  # of a mapping

    def plain(self) -> Any:
        """The value without places, for pydantic."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def depth(self) -> int:
        """Levels below this one, with those of aliases."""
        value = self.value
        below = value.values() if isinstance(value, dict) else value
        nodes = below if isinstance(value, dict | list) else ()
        return max((1 + node.depth() for node in nodes), default=0)

    def walk(self, path: Sequence[int | str]) -> "Found":
        """What the file has of `path`: pydantic also names union members and the keys of short
        forms, which are not in the file."""
        node, place, found = self, self.place, list[int | str]()
        for part in path:
            child = None
            if isinstance(node.value, dict):
                child = node.value.get(part)
            elif isinstance(node.value, list) and isinstance(part, int):
                child = node.value[part]
            if child is not None:
                place = node.key_places.get(str(part), child.place)
                node = child
                found.append(part)
        return Found(node, tuple(found), place)


class Found(NamedTuple):
    """What a file has of a path, and the line that a message names for it."""

    node: Node
    path: tuple[int | str, ...]
    place: str  # of its key; an item of a list has none, so its own


class Document(NamedTuple):
    """A file's tree, what is wrong in it, and where YAML takes part of a prompt for something else:
    that is no fault."""

    root: Node
    problems: list[Problem]
    remarks: list[Problem]


def document(text: str, name: str, above: Sequence[str] = ()) -> Document:
    """The one document in `text`; `name` is the file's name in messages, `above` the keys under
    which it will stand.

    Raises ManifestError if no tree can be built: not YAML, no document, two documents, too deep.
    """
    try:
        builder = _Builder(text, name, above)
        return Document(builder.build(), builder.problems, builder.remarks())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = _place(name, mark.line) if mark else name
        reason = " ".join(str(part) for part in (error.context, error.problem) if part)
        if "character escape code" in reason:
            reason += "; write the character itself: YAML has no pairs like JSON's \\ud83e\\udd8a"
        elif mark:
            reason += _hint(text, mark, reason)
        raise ManifestError([Problem(place, f"not YAML: {reason}")]) from None
    except yaml.reader.ReaderError as error:
        character = chr(error.character)
        place = _place(name, text.partition(character)[0].count("\n"))
        reason = f"the character {character!r} is not allowed as it is"
        remedy = f"remove it, or write {repr(character)[1:-1]} in double quotes"
        raise ManifestError([Problem(place, f"not YAML: {reason}; {remedy}")]) from None


def _hint(text: str, mark: Any, reason: str) -> str:
    """What to do about a line that is not YAML, where it looks like text that wants quotes."""
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    if line[mark.column : mark.column + 1] == "\t":
        return "; indent with blanks: YAML takes no tabs there"
    if "mapping values are not allowed" in reason:
        return '; a text that has ": " in it must stand in quotes'
    if _LIKE_TEXT.match(line):
        return "; if this is text, put all of it in quotes"
    return ""


def _merged(mappings: Sequence[Node]) -> Node:
    """One mapping at the place of the last; of equal keys the last one counts."""
    items: dict[str, Node] = {}
    places: dict[str, str] = {}
    for mapping in mappings:
        items.update(mapping.value)
        places.update(mapping.key_places)
    return Node(items, mappings[-1].place, key_places=places)


def _is_merge(key: Any) -> bool:
    """Whether the event of a key is a plain `<<`."""
    return isinstance(key, yaml.ScalarEvent) and key.value == "<<" and bool(key.implicit[0])


def _place(name: str, line: int) -> str:
    """`job.yaml:7`; a --set argument has no lines."""
    return name if name.startswith("--set") else f"{name}:{line + 1}"


def set_value(root: Node, assignment: str) -> None:
    """Put `key.key=value` (a --set argument) into the tree; the value is read as YAML.

    Raises ManifestError for an assignment without `=`, a value that is not YAML, or a path that
    leads through something other than a mapping.
    """
    place = f"--set {cut(assignment, 80)}"
    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ManifestError([Problem(place, "must look like key=value or key.key=value")])
    value, problems, _ = document(text or "null", place, keys)
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
            child = _long_form(key, child, place)
            _assign(node, key, child, place)
        node = child
    if not isinstance(node.value, dict):
        raise ManifestError([Problem(place, "the manifest is not a mapping of keys")])
    _assign(node, keys[-1], _moved(value, place), place)


def _assign(mapping: Node, key: str, value: Node, place: str) -> None:
    mapping.value[key] = value
    mapping.key_places = {**mapping.key_places, key: place}


def _long_form(key: str, short: Node | None, place: str) -> Node:
    """The mapping that `model: demo` stands for, so that another of its keys can be set."""
    main = {"model": "id", "strategy": "kind", "output": "dir"}.get(key)
    mapping = Node({}, place)
    if main and short is not None:
        _assign(mapping, main, short, short.place)
    return mapping


def _moved(node: Node, place: str) -> Node:
    """The same values, all at one place."""
    if isinstance(node.value, dict):
        values = {key: _moved(child, place) for key, child in node.value.items()}
        return Node(values, place, key_places=dict.fromkeys(values, place))
    if isinstance(node.value, list):
        return Node([_moved(child, place) for child in node.value], place)
    return Node(node.value, place, node.text)


class _Builder:
    """Recursive descent over the parser's events; depth is bounded, so recursion is safe."""

    def __init__(self, text: str, name: str, above: Sequence[str]) -> None:
        self.loader = _Loader(text)
        # Only a comment needs them.
        self.lines = _LINE_END.split(text) if "#" in text else []
        self.name = name
        self.above = [*above]  # the keys that lead to the value that is read now
        self.used: set[str] = set()  # anchors that an alias names
        self.labels: dict[str, str] = {}  # anchors of prompts → their places
        self.cut: list[Problem] = []  # prompts that end where a comment begins
        self.problems: list[Problem] = []
        self.anchors: dict[str, tuple[Node, int]] = {}  # with the number of nodes below
        self.open: set[str] = set()
        self.line, self.place = -1, name
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
        line = event.start_mark.line
        if line != self.line:  # what stands on one line shares one string
            self.line, self.place = line, _place(self.name, line)
        return self.place

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
            if "prompts" in self.above and isinstance(node.value, str):
                self._look_for_more(event, place)
        else:
            self._refuse_tag(event, place)
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            node = self._mapping(place, depth) if is_mapping else self._sequence(place, depth)
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
        self.used.add(anchor)
        self.count += size
        self.aliased += size
        if self.aliased > MAX_ALIASED:
            message = f"aliases expand to more than {MAX_ALIASED:,} values"
            raise ManifestError([Problem(place, message)])
        if depth + node.depth() > MAX_DEPTH:
            raise ManifestError([Problem(place, TOO_DEEP)])
        return node

    def _sequence(self, place: str, depth: int) -> Node:
        items = []
        while not self.loader.check_event(yaml.SequenceEndEvent):
            items.append(self._node(depth + 1))
        self.loader.get_event()
        return Node(items, place)

    def _mapping(self, place: str, depth: int) -> Node:
        items: dict[str, Node] = {}
        places: dict[str, str] = {}
        sources: list[Node] = []  # what `<<` brings, in the file's order
        while not self.loader.check_event(yaml.MappingEndEvent):
            event = self.loader.peek_event()
            key_place = self._place(event)
            key = self._node(depth + 1)
            self.above.append(key.text)
            value = self._node(depth + 1)
            self.above.pop()
            if _is_merge(event):
                sources += self._sources(value)
            elif self._is_new(key, places, key_place):
                items[key.value], places[key.value] = value, key_place
        self.loader.get_event()
        own = Node(items, place, key_places=places)
        return _merged([*reversed(sources), own]) if sources else own

    def _is_new(self, key: Node, places: Mapping[str, str], place: str) -> bool:
        """Whether the key can be put into a mapping that has keys at `places`."""
        if not isinstance(key.value, str):
            message = f"the key {key.text or 'here'} is not text; quote it"
        elif key.value in places:
            message = f"{key.value}: given twice, first at {places[key.value]}; keep one"
        else:
            return True
        self.problems.append(Problem(place, message))
        return False

    def _sources(self, node: Node) -> list[Node]:
        """The mappings of `<<: *anchor` or `<<: [*one, *two]`."""
        nodes = node.value if isinstance(node.value, list) else [node]
        sources = [source for source in nodes if isinstance(source.value, dict)]
        if len(sources) < len(nodes):
            self.problems.append(Problem(node.place, "<< takes a mapping or a list of them"))
        return sources

    def _look_for_more(self, event: Any, place: str) -> None:
        """Note what follows a prompt without quotes, and what YAML takes from its start."""
        if event.anchor:
            self.labels[event.anchor] = place
        end = event.end_mark
        is_plain = event.style in (None, "") and end.line < len(self.lines)
        found = _COMMENT.match(self.lines[end.line], end.column) if is_plain else None
        if found:
            words = f'YAML takes "{cut(found[1].rstrip(), 60)}" as a comment'
            remedy = "quote the whole text if it is part of it"
            self.cut.append(Problem(_place(self.name, end.line), f"{words}; {remedy}"))

    def remarks(self) -> list[Problem]:
        """What YAML takes from prompts, without a fault."""
        labels = (
            Problem(place, f'YAML takes "&{name}" as an anchor; quote the text if it is part of it')
            for name, place in self.labels.items()
            if name not in self.used
        )
        return [*self.cut, *labels]

    def _refuse_tag(self, event: Any, place: str) -> None:
        if event.tag not in (None, "!", f"{_TAG}map", f"{_TAG}seq"):
            self.problems.append(Problem(place, f"the tag {event.tag} is not supported; remove it"))

    def _scalar(self, event: Any, place: str) -> Any:
        tag, text = event.tag, event.value
        if tag is None or tag == "!":
            tag = self.loader.resolve(yaml.ScalarNode, text, event.implicit)
        elif tag == f"{_TAG}str":
            return text
        elif not self._fits(tag, text):
            shown = tag.replace(_TAG, "!!")
            self.problems.append(Problem(place, f"the tag {cut(shown, 60)} {_UNFIT}"))
            return text
        kind = tag.removeprefix(_TAG)
        if kind == "bool":
            return text.lower() in ("yes", "true", "on")
        if kind == "null":
            return None
        if kind == "int":
            return _integer(text)
        if kind == "float":
            is_plain = _FLOAT.fullmatch(text) and math.isfinite(float(text))
            return float(text) if is_plain else _odd_number(text, kind)
        if kind == "timestamp":
            return Odd(text, "a date")
        if event.implicit[0] and "parameters" in self.above and EXPONENT.fullmatch(text):
            return float(text) if math.isfinite(float(text)) else Odd(text, NOT_FINITE)
        return text

    def _fits(self, tag: str, text: str) -> bool:
        """Whether the text means by itself what its tag says. YAML has `!!float 1`, too."""
        plain = self.loader.resolve(yaml.ScalarNode, text, (True, False))
        is_float = (tag, plain) == (f"{_TAG}float", f"{_TAG}int")
        return tag.removeprefix(_TAG) in _KINDS and (tag == plain or is_float)


def _integer(text: str) -> int | Odd:
    """Only plain decimals: 010 would be 8, 12:30:45 would be 45045, 1_000 would be 1000."""
    if _DECIMAL.fullmatch(text) and len(text) <= 100:
        return int(text)
    if len(text) > 100:
        return Odd(cut(text, 20), "a number of more than 100 digits")
    return _odd_number(text, "int")


def _odd_number(text: str, kind: str) -> Odd:
    """A number that YAML 1.1 knows in a form of its own: 0x10, 010, 1_000, 12:30, .inf."""
    reader = yaml.constructor.SafeConstructor()
    read = reader.construct_yaml_int if kind == "int" else reader.construct_yaml_float
    try:
        number = read(yaml.ScalarNode(f"{_TAG}{kind}", text))
    except (ValueError, OverflowError):
        return Odd(text, "a number")
    if not math.isfinite(number):
        return Odd(text, NOT_FINITE)
    if ":" in text:
        return Odd(text, f"the number {number}")  # a time was meant, or a ratio
    plain = str(number)
    if _OCTAL.fullmatch(text) and int(text) != number:
        plain = f"{int(text)}, or {number} if octal is meant"
    return Odd(text, f"the number {number}", plain)
