"""Encode, denoise, decode, one after another: only what a phase needs is loaded, then freed.

A call is made in three parts, for any pipeline. The first runs it until it would draw its noise,
and keeps what `encode_prompt` returned. The second runs it with these results in place of
`encode_prompt`, until it would decode. The third decodes the latents.
Weights are read once a phase for a whole window of calls.
"""

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from runner.model.configs import ModelConfigs
from runner.model.text_memory import TextMemory
from runner.model.truncation import Truncation
from runner.strategies.base import Source
from runner.strategies.estimate.sizes import empty

__all__ = ["PhasedPipeline"]

Call = Mapping[str, Any]


class _Left(Exception):
    """A call was stopped on purpose; `value` is the argument it had then."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


class _Absent(torch.nn.Module):
    """Stands for a component that is not loaded: the attributes that calls read."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config, self.dtype, self.device = config, dtype, device
        self.decode = _leave


class PhasedPipeline:
    """Called as the pipeline is. `prepare` makes the images of many calls in advance; what one of
    them raises is raised when that call is made."""

    def __init__(
        self, source: Source, place: Callable[[], dict[str, Any]], device: torch.device
    ) -> None:
        self.source = source
        self.place = place  # arguments of from_pretrained, which put a component on the devices
        self.device = device
        configs = ModelConfigs.read(source.folder)
        shapes = {name: empty(configs, name) for name in configs.networks}
        self.pipe = source.pipeline(**shapes)
        self.denoiser = configs.denoiser
        self.encoders = [name for name in shapes if name not in (configs.denoiser, "vae")]
        self._absent = {
            name: _Absent(shape.config, source.dtype, device) for name, shape in shapes.items()
        }
        for name in shapes:
            self._free(name)
        self._made: dict[Any, list[Any]] = {}  # one a call that was prepared
        self.texts = TextMemory()
        self.truncation = Truncation(self.pipe)
        self._cut: dict[str, Any] = {}  # what was cut off the texts of each call

    @property
    def components(self) -> dict[str, Any]:
        """Empty: between calls none is loaded."""
        return {}

    def set_progress_bar_config(self, **config: Any) -> None:
        self.pipe.set_progress_bar_config(**config)

    def __call__(self, *, callback_on_step_end: Any = None, **arguments: Any) -> SimpleNamespace:
        call = {**arguments, "callback_on_step_end": callback_on_step_end}
        if not self._made.get(_key(call)):
            self._make([call])
        made = self._made[_key(call)].pop()
        self.truncation.cut = self._cut.get(_key(call), {})
        if isinstance(made, Exception):
            raise made
        return SimpleNamespace(images=made)

    def prepare(self, calls: Sequence[Call]) -> None:
        self._made, self._cut = {}, {}
        self._make(calls)

    def _make(self, calls: Sequence[Call]) -> None:
        times = Counter(map(_key, calls))
        distinct = list({_key(call): call for call in calls}.values())
        prompts = self._phase(self.encoders, distinct, self._encode)
        latents = self._phase([self.denoiser], distinct, lambda call: self._denoise(call, prompts))
        images = self._phase(["vae"], distinct, lambda call: self._decode(latents[_key(call)]))
        for key, image in images.items():
            self._made.setdefault(key, []).extend([image] * times[key])

    def _phase(
        self, names: Sequence[str], calls: Sequence[Call], act: Callable[[Call], Any]
    ) -> dict[Any, Any]:
        """Load these components; what `act` returns or raises for each call."""
        for name in names:
            component = self.source.component(name, **self.place())
            self.texts.watch(name, component)
            object.__setattr__(self.pipe, name, component)
        results: dict[Any, Any] = {}
        try:
            for call in calls:
                try:
                    results[_key(call)] = act(call)
                except Exception as error:
                    results[_key(call)] = error.with_traceback(None)
        finally:
            for name in names:
                self._free(name)
        return results

    def _free(self, name: str) -> None:
        object.__setattr__(self.pipe, name, self._absent[name])
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()

    def _encode(self, call: Call) -> list[Any]:
        """What each `encode_prompt` of the call returned, on the CPU."""
        kept: list[Any] = []

        def encode(*given: Any, **named: Any) -> Any:
            found = type(self.pipe).encode_prompt(self.pipe, *given, **named)
            kept.append(_moved(found, "cpu"))
            return found

        self.truncation.clear()
        self._call(call, encode_prompt=encode, prepare_latents=_leave)
        self._cut[_key(call)] = self.truncation.cut
        return kept

    def _denoise(self, call: Call, prompts: Mapping[Any, Any]) -> Any:
        """The last latents, on the CPU."""
        encoded = prompts[_key(call)]
        if isinstance(encoded, Exception):
            raise encoded
        given = iter(encoded)
        latents = self._call(call, encode_prompt=lambda *_, **__: _moved(next(given), self.device))
        return _moved(latents, "cpu")

    @torch.no_grad()
    def _decode(self, latents: Any) -> Any:
        if isinstance(latents, Exception):
            raise latents
        image = self.pipe.vae.decode(_moved(latents, self.device), return_dict=False)[0]
        if image.ndim == 5:  # (B, C, frames, H, W) of a video model's decoder, one frame
            image = image[:, :, 0]
        return self.pipe.image_processor.postprocess(image, output_type="pt")

    def _call(self, call: Call, **replaced: Any) -> Any:
        """Make the call with some of the pipeline's methods replaced, until one raises `_Left`."""
        for name, method in replaced.items():
            object.__setattr__(self.pipe, name, method)
        try:
            # A copy of the generator: later phases must find it untouched.
            self.pipe(**{**call, "generator": _copied(call["generator"])})
        except _Left as left:
            return left.value
        finally:
            for name in replaced:
                object.__delattr__(self.pipe, name)
        raise TypeError(f"{type(self.pipe).__name__} cannot be split into phases")


def _leave(value: Any = None, *_: Any, **__: Any) -> Any:
    raise _Left(value)


def _key(call: Call) -> str:
    """The same for equal calls: all arguments but the callback, of generators the seeds."""
    generators = call["generator"]
    several = generators if isinstance(generators, list) else [generators]
    seeds = [generator.initial_seed() for generator in several]
    values = {**call, "generator": seeds, "callback_on_step_end": None}
    return repr(sorted(values.items()))


def _copied(generators: Any) -> Any:
    if isinstance(generators, list):
        return [_copied(generator) for generator in generators]
    return torch.Generator(generators.device).manual_seed(generators.initial_seed())


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(_moved(inner, device) for inner in value)
    return value
