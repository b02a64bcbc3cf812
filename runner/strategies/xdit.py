"""xDiT: the package xfuser makes the images of a replica.

It is used in two ways, as in xfuser's own runner. Its transformers go into diffusers' pipeline
(Ulysses, ring); its wrapped pipelines replace the call (PipeFusion, CFG parallel). Both leave the
image on the last rank of the replica, which is therefore the leader.

What xfuser would refuse deep in a call, or draw wrong, is refused here before weights load.
"""

import functools
import importlib.util
import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from runner.errors import StrategyError
from runner.launch.layout import Layout, grouped
from runner.launch.world import World
from runner.model.configs import ModelConfigs
from runner.strategies.base import (
    RING,
    ULYSSES,
    Degree,
    Exactness,
    Resolution,
    Source,
    StrategyBase,
    kind_field,
)
from runner.strategies.checks.conditions import Conditions
from runner.strategies.checks.packages import check_heads, check_lengths, check_package, native
from runner.strategies.checks.proven import remarks
from runner.strategies.context_parallel import ContextParallel
from runner.strategies.data_parallel import load_whole
from runner.strategies.engines.xdit_models import FAILS, MODELS, SCHEDULERS, XFUSER, Supported
from runner.strategies.engines.xfuser_pipeline import XfuserPipeline
from runner.units import counted, install_line

if TYPE_CHECKING:
    import torch

__all__ = ["XDit"]

Backend = Literal[
    "sdpa", "sdpa_efficient", "sdpa_flash", "cudnn", "flash", "flash_3", "flash_4", "sage"
]
NO_RING = ("sdpa", "flash_4")  # they do not return the log-sum-exp
FLOAT32 = ("sdpa", "sdpa_efficient")
# What a backend imports, and the package that has it.
BACKEND_MODULES = {
    "flash": ("flash_attn", "flash-attn"),
    "flash_3": ("flash_attn_interface", "flash-attn-3"),
    "flash_4": ("flash_attn", "flash-attn"),
    "sage": ("sageattention", "sageattention"),
}
# They draw the nearest of a few sizes, and scale the image to the one asked for.
BINNED = ("HunyuanDiTPipeline", "PixArtAlphaPipeline", "PixArtSigmaPipeline")
DEFAULT_ROWS = 128  # of latents, where the transformer's config does not say
_CACHE = "reuses earlier steps: another image, with the same fingerprint; leave it out"
_DECODES = "the rank that holds the image decodes it alone; leave it out"
# Arguments of xfuser, and what to do instead.
REFUSED = {
    "degree": "use strategy: {kind: tensor_parallel, degree: …}",
    "cache_method": _CACHE,
    "data_parallel_degree": "more processes make more replicas; leave it out",
    "fully_shard_degree": "use strategy: {kind: device_map}",
    "pipefusion_parallel_degree": "use pipefusion_degree",
    "tensor_parallel_degree": "use strategy: {kind: tensor_parallel, degree: …}",
    "use_cfg_parallel": "use cfg_degree: 2",
    "use_fbcache": _CACHE,
    "use_parallel_vae": _DECODES,
    "use_teacache": _CACHE,
    "use_torch_compile": "is set up for each model only in xfuser's own runner; leave it out",
    "vae_parallel_size": _DECODES,
}


class XDit(StrategyBase):
    """`warmup_steps` are the first steps, which PipeFusion computes in full; in later ones a stage
    uses what its neighbours computed one step before."""

    own_groups: ClassVar[bool] = True
    refused: ClassVar[Mapping[str, str]] = REFUSED

    kind: Literal["xdit"] = kind_field("xdit", "the package xfuser makes the images of a replica")
    ulysses_degree: Degree = ULYSSES
    ring_degree: Degree = RING
    pipefusion_degree: Degree = Field(
        default=1,
        description="ranks that each hold a part of the transformer's blocks, one after another",
        examples=[2],
    )
    cfg_degree: Literal[1, 2] = Field(
        default=1,
        description="2: one half of the ranks computes with the prompt, the other without",
        examples=[2],
    )
    warmup_steps: Annotated[int, Field(ge=1)] = Field(
        default=1, description="first steps, which PipeFusion computes in full", examples=[4]
    )
    attention_backend: Backend | None = Field(
        default=None,
        description="xfuser's attention to use; the fastest that is installed if not given",
        examples=["flash"],
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.attention_backend and self.ranks == 1:
            raise ValueError("attention_backend goes with a degree over 1; leave it out")
        return self

    @property
    def exactness(self) -> Exactness:
        if self.pipefusion_degree > 1:
            return Exactness("lossy", "PipeFusion computes with values of the step before")
        return super().exactness

    @property
    def not_compiled(self) -> str:
        return "blocks that xDiT has changed are not proven right when compiled"

    @property
    def sequence_ranks(self) -> int:
        """The ranks that share the tokens of an image."""
        return self.ulysses_degree * self.ring_degree

    @property
    def ranks(self) -> int:
        return self.sequence_ranks * self.pipefusion_degree * self.cfg_degree

    @property
    def degrees(self) -> dict[str, int]:
        names = ("ulysses", "ring", "pipefusion", "cfg")
        return {name: getattr(self, f"{name}_degree") for name in names}

    def layout(self, world: World) -> Layout:
        factors = " × ".join(f"{name} {degree}" for name, degree in self.degrees.items())
        return grouped(world, self.ranks, f"{factors} = {self.ranks}", leader=self.ranks - 1)

    def resolve(self, conditions: Conditions, world: World) -> Resolution:
        if self.ranks == 1:
            return super().resolve(conditions, world)
        configs = conditions.configs
        supported = self._check_model(conditions)
        for count in (configs.heads, configs.config.get("num_kv_heads")):
            check_heads("xdit", self.ulysses_degree, count, configs.denoiser_class)
        self._check_stages(configs)
        if self._is_wrapped(supported) and self._splits:
            _check_scheduler(configs)
        self._check_backend(conditions)
        if self.sequence_ranks > 1 and configs.text_varies and conditions.batch_size > 1:
            raise StrategyError(
                f"strategy: xdit with batch_size {conditions.batch_size}: xfuser ignores the mask "
                f"that texts of unequal length need, a wrong image; use batch_size: 1, or "
                f"context_parallel with ulysses_degree"
            )
        self._check_images(conditions, supported)
        check_lengths("xdit", self.sequence_ranks, conditions, ContextParallel())
        self.layout(world)
        self._check_device(conditions)
        lines = check_package("xdit", XFUSER, conditions)
        if conditions.device is not None:
            self._check_modules()
        return Resolution(self, lines + self._remarks(configs))

    def _check_model(self, conditions: Conditions) -> Supported:
        configs = conditions.configs
        supported = MODELS.get(configs.pipeline_class)
        if supported is None:
            raise StrategyError(
                f"strategy: xdit: xfuser {XFUSER.version} makes no images with "
                f"{configs.pipeline_class}, only with {', '.join(MODELS)}; use {native(configs)} "
                f"for {conditions.model}"
            )
        name = configs.pipeline_class
        works = {
            degree: getattr(supported, degree) and (name, degree) not in FAILS
            for degree in self.degrees
        }
        takes = [f"{degree}_degree" for degree in works if works[degree]]
        remedy = f"use {' or '.join([*takes, native(configs)])}"
        for degree, count in self.degrees.items():
            if count == 1 or works[degree]:
                continue
            if (name, degree) in FAILS:
                raise StrategyError(
                    f"strategy: xdit: {degree}_degree with {name} {FAILS[name, degree]} (xfuser "
                    f"{XFUSER.version}); {remedy}"
                )
            raise StrategyError(
                f"strategy: xdit: {name} takes no {degree}_degree over 1 in xfuser "
                f"{XFUSER.version}; {remedy}"
            )
        return supported

    def _check_stages(self, configs: ModelConfigs) -> None:
        """xfuser gives each stage as many blocks, rounded up, and the last stage the rest."""
        config, stages = configs.config, self.pipefusion_degree
        is_sd3 = configs.pipeline_class == "StableDiffusion3Pipeline"
        if is_sd3 and stages > 1 and self.sequence_ranks == 1:
            raise StrategyError(
                f"strategy: xdit: pipefusion_degree alone fails after the warm-up with "
                f"{configs.pipeline_class} (xfuser {XFUSER.version} keeps its keys twice); add "
                f"ulysses_degree: 2, or use it alone"
            )
        blocks = sum(config.get(name) or 0 for name in ("num_layers", "num_single_layers"))
        if not blocks or math.ceil(blocks / stages) * (stages - 1) < blocks:
            return
        low = next(n for n in range(stages, 0, -1) if math.ceil(blocks / n) * (n - 1) < blocks)
        raise StrategyError(
            f"strategy: xdit: pipefusion_degree {stages} leaves no block for the last stage of the "
            f"{blocks} blocks of {configs.denoiser_class}; use pipefusion_degree: {low}"
        )

    def _check_device(self, conditions: Conditions) -> None:
        if conditions.device == "cpu":
            raise StrategyError(
                "strategy: xdit needs a GPU, and there is none; use context_parallel, which also "
                "runs on CPUs, or data_parallel"
            )

    def _check_modules(self) -> None:
        needed = [("triton", "triton")]  # xfuser does not declare it
        if self.attention_backend in BACKEND_MODULES:
            needed.append(BACKEND_MODULES[self.attention_backend])
        for module, package in needed:
            if importlib.util.find_spec(module) is None:
                raise StrategyError(
                    f"strategy: xdit: xfuser needs {module}, which is not installed: "
                    f"{install_line(package)}"
                )

    def _check_backend(self, conditions: Conditions) -> None:
        backend = self.attention_backend
        if self.ring_degree > 1 and backend in NO_RING:
            raise StrategyError(
                f"strategy: xdit: attention_backend {backend} does not work with ring_degree; use "
                f"cudnn, sdpa_flash or flash_3, or ulysses_degree"
            )
        if conditions.dtype != "float32":
            return
        if backend is not None and backend not in FLOAT32:
            raise StrategyError(
                f"strategy: xdit: attention_backend {backend} takes no float32; use dtype: "
                f"bfloat16, or attention_backend: sdpa"
            )
        if self.ring_degree > 1:
            raise StrategyError(
                "strategy: xdit: ring_degree needs attention kernels that take no float32; use "
                "dtype: bfloat16, or ulysses_degree"
            )

    def _check_images(self, conditions: Conditions, supported: Supported) -> None:
        """Check what depends on parameters; images that share theirs are checked once."""
        configs, is_wrapped = conditions.configs, self._is_wrapped(supported)
        has_rows = configs.denoiser == "transformer" and (is_wrapped or supported.asks_size)
        seen: Any = None
        for image in conditions.images():
            if image.parameters is seen:
                continue
            seen, where = image.parameters, functools.partial(conditions.where, image.prompt_index)
            if is_wrapped:
                self._check_parameters(where, image.parameters, configs, supported)
            if has_rows:
                self._check_rows(where, image.parameters, configs)

    def _check_parameters(
        self,
        where: Callable[[str], str],
        parameters: Mapping[str, Any],
        configs: ModelConfigs,
        supported: Supported,
    ) -> None:
        ignored = [name for name in supported.ignores if name in parameters]
        if ignored:
            raise StrategyError(
                f"{where(ignored[0])}: {ignored[0]}: xfuser's {configs.pipeline_class} ignores it; "
                f"leave it out, or use {native(configs)}"
            )
        if parameters.get("eta") and self._splits:
            raise StrategyError(
                f"{where('eta')}: eta: the ranks would add the same noise to their different parts "
                f"of the image; leave it out, or use data_parallel"
            )
        guidance = parameters.get("guidance_scale")
        if self.cfg_degree == 2 and guidance is not None and guidance <= 1:
            raise StrategyError(
                f"{where('guidance_scale')}: guidance_scale {guidance} makes no second image "
                f"for cfg_degree 2 to share; use a guidance_scale over 1, or cfg_degree: 1"
            )

    def _check_rows(
        self, where: Callable[[str], str], parameters: Mapping[str, Any], configs: ModelConfigs
    ) -> None:
        """xfuser splits an image by rows of latents, over the ranks and over PipeFusion's patches.
        The last patch may be smaller."""
        is_binned = configs.pipeline_class in BINNED and parameters.get(
            "use_resolution_binning", True
        )
        if is_binned and self._splits:
            name = "use_resolution_binning"
            raise StrategyError(
                f"{where(name)}: {configs.pipeline_class} chooses another size, which may "
                f"have rows that the ranks cannot share; use {name}: false"
            )
        # FLUX packs two rows of latents into one.
        side = configs.vae_factor * (2 if configs.pipeline_class.startswith("Flux") else 1)
        unit = self.sequence_ranks * int(configs.config.get("patch_size") or 1)
        default = (configs.config.get("sample_size") or DEFAULT_ROWS) * configs.vae_factor
        height = int(parameters.get("height") or default)
        rows = height // side
        patch = math.ceil(math.ceil(rows / self.pipefusion_degree) / unit) * unit
        last = rows - patch * (math.ceil(rows / patch) - 1)
        if rows % self.sequence_ranks or last % unit:
            raise StrategyError(
                f"{where('height')}: height {height} is {counted(rows, 'row')} of latents for "
                f"{counted(self.sequence_ranks, 'rank')} and "
                f"{counted(self.pipefusion_degree, 'PipeFusion stage')}, which xfuser cannot "
                f"split; use a height that is a multiple of {side * unit * self.pipefusion_degree}"
            )

    @property
    def _splits(self) -> bool:
        """Whether the latents of an image are split."""
        return self.sequence_ranks > 1 or self.pipefusion_degree > 1

    def _is_wrapped(self, supported: Supported) -> bool:
        return self.pipefusion_degree > 1 or not supported.transformer

    def _remarks(self, configs: ModelConfigs) -> list[str]:
        if self.pipefusion_degree > 1:
            return [
                f"PipeFusion is approximate: after {self.warmup_steps} warm-up steps its images "
                f"differ from those of other strategies, though their fingerprints do not"
            ]
        degrees = "+".join(name for name, degree in self.degrees.items() if degree > 1)
        backend = self.attention_backend or "of xfuser's choice"
        return remarks(configs.denoiser_class, f"xdit {degrees}", backend)

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        if self.ranks == 1:
            return load_whole(source, device)
        supported = MODELS[ModelConfigs.read(source.folder).pipeline_class]
        engine = self._engine(source, device, world)
        if self._is_wrapped(supported):
            from xfuser.model_executor.pipelines.register import xFuserPipelineWrapperRegister

            pipe = source.pipeline()
            # Wrapped while still on the CPU: a stage keeps only its own blocks.
            pipe = xFuserPipelineWrapperRegister.get_class(pipe)(pipe, engine).to(device)
        else:
            from xfuser.core.distributed import initialize_runtime_state

            module, _, name = supported.transformer.partition(":")
            model_class = getattr(importlib.import_module(module), name)
            transformer = source.component("transformer", model_class=model_class)
            pipe = source.pipeline(transformer=transformer).to(device)
            initialize_runtime_state(pipe, engine)
        asks_size = supported.asks_size and not self._is_wrapped(supported)
        return XfuserPipeline(pipe, self.warmup_steps, asks_size=asks_size)

    def _engine(self, source: Source, device: "torch.device", world: World) -> Any:
        """xfuser's configuration of this replica, whose process group is torch's default one."""
        import torch
        from xfuser import xFuserArgs
        from xfuser.core.distributed import init_distributed_environment

        for name in logging.root.manager.loggerDict:
            if name.startswith("xfuser"):  # they have handlers of their own
                logging.getLogger(name).setLevel(logging.ERROR)
        init_distributed_environment(
            world_size=self.ranks,
            rank=self.layout(world).rank_in_replica,
            local_rank=device.index or 0,
        )
        backend = self.attention_backend
        if backend is None and source.dtype == torch.float32:
            backend = "sdpa"
        engine, _ = xFuserArgs(
            model=str(source.folder),
            ulysses_degree=self.ulysses_degree,
            ring_degree=self.ring_degree,
            pipefusion_parallel_degree=self.pipefusion_degree,
            use_cfg_parallel=self.cfg_degree == 2,
            warmup_steps=self.warmup_steps,
            attention_backend=backend,
        ).create_config()
        # PipeFusion's buffers have this dtype; xfuser's default is float16.
        engine.runtime_config.dtype = source.dtype
        return engine


def _check_scheduler(configs: ModelConfigs) -> None:
    """A wrapped pipeline runs the scheduler on each rank's part of the latents, and on each
    PipeFusion patch, separately."""
    name, noisy = configs.index["scheduler"][1], SCHEDULERS.get(configs.index["scheduler"][1])
    config = configs.scheduler
    if noisy is None or any(config.get(key) in values for key, values in noisy.items()):
        raise StrategyError(
            f"strategy: xdit: xfuser runs the scheduler on parts of an image, right only with "
            f"{', '.join(SCHEDULERS)} that add no noise; {configs.pipeline_class} has {name}; use "
            f"cfg_degree or data_parallel"
        )
