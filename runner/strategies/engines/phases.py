"""Encode, denoise, decode, one after another: only what a phase needs is loaded, then freed.

The pipeline's own call is made three times, each time with other parts of it replaced:

1. The text encoders are loaded. The call is left where it would draw its noise; the results of
   `encode_prompt` are kept.
2. The denoiser and the VAE are loaded, and `encode_prompt` gives the kept results. The call is left
   at `vae.decode`; its latents are kept, and the shapes of what the denoiser returned.
3. The VAE and the safety checker are loaded. `encode_prompt` gives the kept results, the denoiser
   zeros of the kept shapes, and `vae.decode` decodes the kept latents. So whatever the call does
   after its last step is done here too: crop, convert, check.

Weights are read once a phase for a whole window of calls.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import signature
from typing import Any

import torch

from runner.launch.device_errors import is_out_of_memory
from runner.launch.devices import free_memory
from runner.model.configs import ModelConfigs
from runner.model.replaced import replaced
from runner.model.text_memory import TextMemory
from runner.model.truncation import Truncation
from runner.strategies.base import Source
from runner.strategies.checks.phases import phases_of
from runner.strategies.engines.placement import Place, load_component
from runner.strategies.estimate.sizes import empty

__all__ = ["PhasedPipeline"]

Call = Mapping[str, Any]
STEP_CALLBACK = "callback_on_step_end"


class _Left(Exception):
    """A call was stopped on purpose; `value` is the argument it had then."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class _Denoised:
    """A call before it is decoded. All tensors are in host memory."""

    texts: Sequence[Any]  # what each `encode_prompt` returned
    outputs: Sequence[Any]  # of each call of the denoiser, with meta tensors
    latents: torch.Tensor  # as `vae.decode` takes them


class PhasedPipeline:
    """Called as the pipeline is. `prepare` makes the images of many calls in advance; what one of
    them raises is raised when that call is made."""

    def __init__(self, source: Source, place: Place, device: torch.device) -> None:
        self.source = source
        self.place = place
        self.device = device
        configs = ModelConfigs.read(source.folder)
        shapes = {name: empty(configs, name) for name in configs.networks}
        self.pipe = source.pipeline(**shapes)
        self.denoiser = configs.denoiser
        self.encoders, _, (_, *self.checkers) = phases_of(configs)
        self._absent = {
            name: _stand_in(shape, source.dtype, device) for name, shape in shapes.items()
        }
        self._unload(shapes)
        self._takes_callback = STEP_CALLBACK in signature(self.pipe.__call__).parameters
        self._made: dict[Any, list[Any]] = {}  # one a call that was prepared
        self._denoised: dict[Any, _Denoised] = {}  # calls for whose decoding there was no memory
        self.texts = TextMemory()
        self.truncation = Truncation(self.pipe)
        # A context for each call, made from its generators.
        self.around_call: Callable[[Any], contextlib.AbstractContextManager[None]] = (
            contextlib.nullcontext
        )
        self._cut: dict[str, Any] = {}  # what was cut off the texts of each call

    @property
    def components(self) -> dict[str, Any]:
        """Empty: between calls none is loaded."""
        return {}

    @property
    def vae(self) -> Any:
        """A model without numbers. Tiling, slicing and dtype set here hold for what is decoded
        next."""
        return self._absent["vae"]

    def set_progress_bar_config(self, **config: Any) -> None:
        self.pipe.set_progress_bar_config(**config)

    def __call__(self, *, callback_on_step_end: Any = None, **arguments: Any) -> Any:
        call = {**arguments, STEP_CALLBACK: callback_on_step_end}
        if not self._made.get(_key(call)):
            self._make([call], is_last_try=True)
        made = self._made[_key(call)].pop()
        self.truncation.cut = self._cut.get(_key(call), {})
        if isinstance(made, Exception):
            raise made
        return made

    def prepare(self, calls: Sequence[Call]) -> None:
        self._made, self._cut, self._denoised = {}, {}, {}
        self._make(calls)

    def _make(self, calls: Sequence[Call], *, is_last_try: bool = False) -> None:
        """The images of the calls, or what was raised instead. Where there was no memory to decode,
        the last try is the call itself: the VAE may be tiled by then."""
        times = Counter(map(_key, calls))
        distinct = {_key(call): call for call in calls}
        failed: dict[Any, Exception] = {}
        new = {key: call for key, call in distinct.items() if key not in self._denoised}
        texts = self._phase([], self.encoders, new, self._encode, failed)
        encoded = {key: distinct[key] for key in texts}
        with self._loaded(["vae"] if len(failed) < len(distinct) else []):
            self._denoised |= self._phase(
                ["vae"],
                [self.denoiser],
                encoded,
                lambda call: self._denoise(call, texts[_key(call)]),
                failed,
            )
            ready = {key: call for key, call in distinct.items() if key in self._denoised}
            images = self._phase(["vae"], self.checkers, ready, self._decode, failed)
        for key in distinct:
            if key in ready and is_out_of_memory(failed.get(key)):
                if not is_last_try:
                    continue
            else:
                self._denoised.pop(key, None)
            made = failed[key] if key in failed else images[key]
            self._made.setdefault(key, []).extend([made] * times[key])

    def _phase(
        self,
        there: Sequence[str],
        names: Sequence[str],
        calls: Mapping[Any, Call],
        act: Callable[[Call], Any],
        failed: dict[Any, Exception],
    ) -> dict[Any, Any]:
        """What `act` returns for each call while these components are loaded, beside those that are
        there; what it raises goes to `failed`."""
        results: dict[Any, Any] = {}
        with self._loaded(names if calls else [], there):
            for key, call in calls.items():
                try:
                    results[key] = act(call)
                except Exception as error:
                    failed[key] = error.with_traceback(None)
        return results

    @contextlib.contextmanager
    def _loaded(self, names: Sequence[str], there: Sequence[str] = ()) -> Iterator[None]:
        try:
            if names:
                self._load(names, self.place([*there, *names]))
            yield
        finally:
            self._unload(names)
            if names:
                free_memory()

    def _load(self, names: Iterable[str], places: Mapping[str, Mapping[str, Any]]) -> None:
        for name in names:
            component = load_component(self.source, name, places[name])
            self.texts.watch(name, component)
            object.__setattr__(self.pipe, name, component)

    def _unload(self, names: Iterable[str]) -> None:
        for name in names:
            object.__setattr__(self.pipe, name, self._absent[name])

    def _encode(self, call: Call) -> list[Any]:
        """What each `encode_prompt` of the call returned, in host memory."""
        kept: list[Any] = []

        def encode(*given: Any, **named: Any) -> Any:
            found = type(self.pipe).encode_prompt(self.pipe, *given, **named)
            kept.append(_each(_to_host, found))
            return found

        self.truncation.clear()
        with replaced(self.pipe, encode_prompt=encode, prepare_latents=_leave):
            self._left(call)
        self._cut[_key(call)] = self.truncation.cut
        return kept

    def _denoise(self, call: Call, texts: Sequence[Any]) -> _Denoised:
        outputs: list[Any] = []
        denoiser = getattr(self.pipe, self.denoiser)
        hook = denoiser.register_forward_hook(
            lambda *given: outputs.append(_each(_shape, given[2]))
        )
        try:
            with (
                replaced(self.pipe, encode_prompt=self._given(texts)),
                replaced(self.pipe.vae, decode=_leave),
            ):
                latents = self._left(call)
        finally:
            hook.remove()
        return _Denoised(texts, outputs, _to_host(latents))

    def _decode(self, call: Call) -> Any:
        """The pipeline's output, in host memory."""
        denoised = self._denoised[_key(call)]
        outputs = iter(denoised.outputs)
        raised: list[Exception] = []
        vae, absent = self.pipe.vae, self._absent[self.denoiser]
        decode_whole = vae.decode

        def decode(latents: torch.Tensor, *given: Any, **named: Any) -> Any:
            if latents.shape != denoised.latents.shape:
                raise TypeError(f"{type(self.pipe).__name__} decodes in several parts")
            dtype = torch.float32 if self._is_float32 else latents.dtype
            try:
                return decode_whole(denoised.latents.to(latents.device, dtype), *given, **named)
            except Exception as error:
                raised.append(error)  # Sana's call only warns where there is no memory
                raise

        def denoise(*given: Any, **named: Any) -> Any:
            return _each(self._zeros, next(outputs))

        self._set_up(vae)
        try:
            with (
                replaced(self.pipe, encode_prompt=self._given(denoised.texts)),
                replaced(vae, decode=decode),
                replaced(absent, forward=denoise),
            ):
                return _each(_to_host, self._call({**call, STEP_CALLBACK: None}))
        except Exception as error:
            raise (raised[0] if raised else error) from None

    def _set_up(self, vae: Any) -> None:
        """As `self.vae` was set."""
        if getattr(self.vae, "use_tiling", False):
            vae.enable_tiling()
        if getattr(self.vae, "use_slicing", False):
            vae.enable_slicing()
        if self._is_float32:
            vae.to(torch.float32)

    @property
    def _is_float32(self) -> bool:
        """Whether half precision was found too small for the VAE."""
        return bool(self.vae.dtype == torch.float32 != self.source.dtype)

    def _given(self, texts: Sequence[Any]) -> Callable[..., Any]:
        """An `encode_prompt` that returns these, one after another."""
        left = iter(texts)
        return lambda *_, **__: _each(lambda tensor: tensor.to(self.device, copy=True), next(left))

    def _zeros(self, shape: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(shape, device=self.device)

    def _left(self, call: Call) -> Any:
        """Make the call until it is left; the argument that was given then."""
        try:
            self._call(call)
        except _Left as left:
            return left.value
        raise TypeError(f"{type(self.pipe).__name__} cannot be split into phases")

    def _call(self, call: Call) -> Any:
        # A copy of the generator: later phases must find it untouched.
        generators = _copied(call["generator"])
        arguments = {**call, "generator": generators}
        if not self._takes_callback:
            arguments.pop(STEP_CALLBACK, None)
        with self.around_call(generators):
            return self.pipe(**arguments)


def _leave(value: Any = None, *_: Any, **__: Any) -> Any:
    raise _Left(value)


def _stand_in(model: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A model without numbers that says it were on the device: calls read all kinds of attributes
    of a component before they use it."""

    def forward(*_: Any, **__: Any) -> Any:
        raise TypeError(f"{model_class.__name__} is used in another phase than it is loaded for")

    model_class = type(model)
    model = model.to(dtype)
    values = {"device": device, "forward": forward, "__module__": model_class.__module__}
    model.__class__ = type(model_class.__name__, (model_class,), values)
    return model


def _key(call: Call) -> str:
    """The same for equal calls: all arguments but the callback, of generators the seeds."""
    generators = call["generator"]
    several = generators if isinstance(generators, list) else [generators]
    seeds = [generator.initial_seed() for generator in several]
    values = {**call, "generator": seeds, STEP_CALLBACK: None}
    return repr(sorted(values.items()))


def _copied(generators: Any) -> Any:
    if isinstance(generators, list):
        return [_copied(generator) for generator in generators]
    return torch.Generator(generators.device).manual_seed(generators.initial_seed())


def _each(act: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The value with every tensor in it replaced by what `act` returns for it."""
    if isinstance(value, torch.Tensor):
        return act(value)
    if is_dataclass(value) and not isinstance(value, type):  # outputs of models and pipelines
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        return type(value)(**{name: _each(act, inner) for name, inner in values.items()})
    if isinstance(value, dict):
        return {name: _each(act, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_each(act, inner) for inner in value)
    return value


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=True)  # a pipeline may change what it has returned


def _shape(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")
