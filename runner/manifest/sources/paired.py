"""Prompts paired with the images of a folder: an id is the name of its image."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.errors import ManifestError, Problem
from runner.manifest.prompts import Prompt
from runner.manifest.sources.prompt_list import Overrides, PromptList

__all__ = ["Paired", "images_by_name"]

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".avif")
MAX_PROBLEMS = 100


def images_by_name(folder: Path, shown: str) -> dict[str, str]:
    """Name without its ending → file, for the images in a folder and in those below it. Files start
    with `shown`, the folder as the manifest names it. Raises ValueError for a name of two files."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in ENDINGS and not path.name.startswith("."):
            inside = path.relative_to(folder)
            name, file = inside.with_suffix("").as_posix(), (Path(shown) / inside).as_posix()
            if (other := found.setdefault(name, file)) != file:
                raise ValueError(f"{other} and {file} have one name; keep one of them")
    return found


class Paired(PromptList):
    """Raises ManifestError for prompts without an id, or without an image of that name."""

    def __init__(self, prompts: PromptList, images: Mapping[str, Mapping[str, str]]) -> None:
        """`images` are those of each parameter, by name."""
        self._prompts = prompts
        self._images = images
        problems: list[Problem] = []
        for place, prompt in enumerate(prompts):
            if len(problems) < MAX_PROBLEMS and (lacking := self._lacking(prompt)):
                problems.append(Problem(prompts.where(place), lacking))
        if problems:
            raise ManifestError(problems)

    def _lacking(self, prompt: Prompt) -> str:
        for parameter, files in self._images.items():
            if parameter in prompt.parameters:
                continue
            if prompt.id is None:
                return f"{parameter}: images pairs prompts with files by their ids; add an id"
            if prompt.id not in files:
                near = next(iter(files.values()), "it has no image")
                return f"{parameter}: no image is named {prompt.id} in the folder ({near} …)"
        return ""

    def _with_images(self, prompt: Prompt) -> Prompt:
        found = {parameter: files.get(prompt.id or "") for parameter, files in self._images.items()}
        return prompt._replace(parameters={**found, **prompt.parameters})

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return map(self._with_images, self._prompts)

    def __getitem__(self, index: Any) -> Any:
        found = self._prompts[index]
        return (
            self._with_images(found)
            if isinstance(found, Prompt)
            else [*map(self._with_images, found)]
        )

    def where(self, place: int) -> str:
        return self._prompts.where(place)

    def checksum(self) -> int:
        return self._prompts.checksum()

    def text_sums(self) -> Iterable[int]:
        return self._prompts.text_sums()

    def id_sums(self) -> Iterable[int]:
        return self._prompts.id_sums()

    @property
    def names_input(self) -> bool:
        return True

    def overrides(self) -> Iterator[Overrides]:
        return map(Overrides.of, self)
