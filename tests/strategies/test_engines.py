"""xDiT and ParaAttention with their real packages, on CPUs (make test-engines)."""

import inspect
import itertools
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.launches import Launcher
from support.replicas import EVEN, EVEN_NEGATIVE, floats, render, write

from runner.errors import StrategyError
from runner.launch.world import World
from runner.model.configs import ModelConfigs
from runner.strategies import Conditions, XDit
from runner.strategies.engines.xdit_models import MODELS, SCHEDULERS

pytestmark = pytest.mark.engines
CLASSES = {"flux": "FluxTransformer2DModel", "qwen": "QwenImageTransformer2DModel"}


@pytest.fixture(scope="module")
def one_process(ranks, models, tmp_path_factory):
    """The float images of one process, by model. FLUX without true_cfg_scale and negative prompt
    as well, which xfuser's pipeline does not take."""
    found = {}
    for name, is_plain in (("flux", False), ("qwen", False), ("flux", True)):
        path = write(
            tmp_path_factory.mktemp(name), models / name, "data_parallel", "", EVEN, EVEN_NEGATIVE
        )
        if is_plain:
            plain(path)
        ended = render(ranks, 1, path, "support.patches:keep_floats")
        assert ended.codes == [0], ended.words
        found[name, is_plain] = floats(path.parent)
    return found


def plain(path: Path) -> None:
    text = path.read_text()
    start, end = text.index("true_cfg_scale"), text.index("}", text.index("true_cfg_scale"))
    path.write_text(text[:start] + text[end:])


def difference(expected: list[np.ndarray], folder: Path) -> float:
    pairs = zip(expected, floats(folder), strict=True)
    return float(max(np.abs(one - other).max() for one, other in pairs))


# --- ParaAttention ----------------------------------------------------------------------------

PARA_ATTN = {
    "ulysses": (2, "{kind: para_attn, ulysses_degree: 2}"),
    "ring": (2, "{kind: para_attn, ring_degree: 2}"),
    "unified": (4, "{kind: para_attn, ulysses_degree: 2, ring_degree: 2}"),
}


@pytest.mark.parametrize("variant", PARA_ATTN)
@pytest.mark.parametrize("model", CLASSES, ids=CLASSES.get)
def test_para_attn_equals_one_process(ranks, models, one_process, tmp_path, model, variant):
    world_size, strategy = PARA_ATTN[variant]
    path = write(tmp_path / "job", models / model, strategy, "", EVEN, EVEN_NEGATIVE)
    ended = render(ranks, world_size, path, "support.patches:keep_floats")
    assert ended.codes == [0] * world_size, ended.words
    found = difference(one_process[model, False], path.parent)
    print(f"{model} {strategy}: {found:.1e}")
    assert found <= 1e-5


# --- xDiT: images -----------------------------------------------------------------------------

XDIT = [
    ("flux", 2, "ulysses_degree: 2"),
    ("flux", 4, "ulysses_degree: 2"),  # two replicas
    ("qwen", 2, "ulysses_degree: 2"),
    # All steps are warm-up steps: what comes after them is approximate.
    ("flux", 2, "pipefusion_degree: 2, warmup_steps: 2"),
    ("flux", 4, "pipefusion_degree: 2, ulysses_degree: 2, warmup_steps: 2"),
]


@pytest.fixture(scope="module")
def xfuser_ranks():
    launcher = Launcher("support.xfuser_probes:install")
    yield launcher
    launcher.close()


@pytest.mark.parametrize(("model", "world_size", "degrees"), XDIT)
def test_xdit_equals_one_process(
    xfuser_ranks, models, one_process, tmp_path, model, world_size, degrees
):
    """Everything is xfuser's but what it asks of the device."""
    strategy = f"{{kind: xdit, {degrees}}}"
    path = write(tmp_path / "job", models / model, strategy, "", EVEN, EVEN_NEGATIVE)
    is_plain = "pipefusion" in degrees
    if is_plain:
        plain(path)
    ended = render(xfuser_ranks, world_size, path, "support.patches:keep_floats")
    assert ended.codes == [0] * world_size, ended.words
    found = difference(one_process[model, is_plain], path.parent)
    print(f"{model} {strategy} on {world_size}: {found:.1e}")
    assert found <= 1e-5
    lines = (path.parent / "out" / "metadata.jsonl").read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == list(EVEN)


def test_pipefusion_after_its_warm_up(xfuser_ranks, ranks, models, tmp_path):
    """Close to one process, closer with more warm-up steps; and no image has anything of another's,
    whatever size, text length and steps that one had."""
    others = [
        {"prompt": EVEN[1], "parameters": parameters}
        for parameters in ({"max_sequence_length": 32}, {"height": 96}, {"num_inference_steps": 1})
    ]
    first = {"prompt": EVEN[0], "seed": 3, "parameters": {"num_inference_steps": 4}}

    def images(launcher: Launcher, world_size: int, strategy: str) -> list[np.ndarray]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        path = write(folder, models / "flux", strategy, "", [first, *others, first])
        plain(path)
        ended = render(launcher, world_size, path, "support.patches:keep_floats")
        assert ended.codes == [0] * world_size, ended.words
        return floats(folder)

    expected = images(ranks, 1, "data_parallel")
    differences = []
    for warmup in (1, 3):
        strategy = f"{{kind: xdit, pipefusion_degree: 2, warmup_steps: {warmup}}}"
        found = images(xfuser_ranks, 2, strategy)
        assert np.array_equal(found[0], found[-1])
        differences.append(float(np.abs(expected[0] - found[0]).max()))
        print(f"flux PipeFusion, {warmup} of 4 steps warm-up: {differences[-1]:.1e}")
    assert 1e-2 > differences[0] > differences[1] > 1e-5


def write_sd3(folder: Path, model: Path, strategy: str) -> Path:
    folder.mkdir()
    path = folder / "job.yaml"
    parameters = {"height": 64, "width": 64, "num_inference_steps": 2, "guidance_scale": 4.0}
    path.write_text(
        f"model: {model}\nstrategy: {strategy}\noutput: {folder / 'out'}\nseed: 3\n"
        f"parameters: {json.dumps({**parameters, 'negative_prompt': 'a cat'})}\n"
        f"prompts: {json.dumps(EVEN)}\n"
    )
    return path


def test_xdit_shares_guidance_and_stages(xfuser_ranks, ranks, tmp_path):
    """CFG parallel, and a pipeline that xfuser wraps whatever the degrees."""
    from support import tiny

    model = tiny.stable_diffusion_3(tmp_path / "model")
    path = write_sd3(tmp_path / "one", model, "data_parallel")
    assert render(ranks, 1, path, "support.patches:keep_floats").codes == [0]
    expected = floats(path.parent)
    for number, (world_size, degrees) in enumerate([
        (2, "cfg_degree: 2"),
        (2, "ulysses_degree: 2"),
        (4, "pipefusion_degree: 2, ulysses_degree: 2, warmup_steps: 2"),
        (4, "cfg_degree: 2, ulysses_degree: 2"),
    ]):  # fmt: skip
        path = write_sd3(tmp_path / str(number), model, f"{{kind: xdit, {degrees}}}")
        ended = render(xfuser_ranks, world_size, path, "support.patches:keep_floats")
        assert ended.codes == [0] * world_size, ended.words
        found = difference(expected, path.parent)
        print(f"SD 3 {degrees}: {found:.1e}")
        assert found <= 1e-5


# --- xDiT: what we took from xfuser 0.7.0 -----------------------------------------------------


@pytest.fixture(scope="module")
def xfuser():
    """Imported in this process, its device probes answered."""
    import torch
    from support import xfuser_probes

    is_available, check_device = torch.cuda.is_available, XDit._check_device
    xfuser_probes.install()
    import xfuser

    for name in logging.root.manager.loggerDict:
        if name.startswith("xfuser"):
            logging.getLogger(name).setLevel(logging.ERROR)
    yield xfuser
    torch.cuda.is_available, XDit._check_device = is_available, check_device


def flags(call: Any) -> dict[str, bool]:
    """What `check_model_parallel_state` around a wrapped call allows; all where it is not there."""
    found = dict.fromkeys(("sequence", "pipefusion", "cfg"), True)
    while call is not None:
        for name, cell in zip(call.__code__.co_freevars, call.__closure__ or (), strict=True):
            kind = name.split("_")[0]
            if name.endswith("_available") and kind in found:
                found[kind] = cell.cell_contents
        call = getattr(call, "__wrapped__", None)
    return found


def test_the_supported_list_is_that_of_the_wrapped_pipelines(xfuser):
    import diffusers
    from xfuser.model_executor.pipelines.register import xFuserPipelineWrapperRegister as Register

    need_more = {"FluxControlPipeline", "LattePipeline", "CogVideoXPipeline", "ConsisIDPipeline"}
    ours = {name for name, supported in MODELS.items() if supported.wraps}
    assert ours == {found.__name__ for found in Register._XFUSER_PIPE_MAPPING} - need_more
    for name in ours:
        supported, pipeline = MODELS[name], getattr(diffusers, name)
        call = Register.get_class(pipeline).__call__
        allowed, taken = flags(call), inspect.signature(call).parameters
        passes_all = "args" in taken
        has_guidance = passes_all or "negative_prompt" in taken
        assert supported.ulysses == allowed["sequence"], name
        assert not supported.ring or allowed["sequence"], name
        assert supported.pipefusion == allowed["pipefusion"], name
        assert supported.cfg == (allowed["cfg"] and has_guidance), name
        lost = set() if passes_all else set(inspect.signature(pipeline.__call__).parameters)
        lost = {n for n in lost - set(taken) if not n.endswith("_embeds") and "image" not in n}
        assert set(supported.ignores) == lost, name


# The pipeline's class → a model of xfuser's own runner.
RUNNER_MODELS = {
    "FluxPipeline": "FLUX.1-dev",
    "Flux2Pipeline": "FLUX.2-dev",
    "Flux2KleinPipeline": "FLUX.2-klein-9B",
    "Lumina2Pipeline": "Lumina2",
    "QwenImagePipeline": "Qwen-Image",
    "StableDiffusion3Pipeline": "SD3.5",
}


@pytest.mark.parametrize("name", RUNNER_MODELS)
def test_the_supported_list_is_that_of_its_runner(xfuser, name):
    import xfuser.model_executor.models.runner_models  # noqa: F401  (it registers them)
    from xfuser.model_executor.models.runner_models.base_model import MODEL_REGISTRY

    has, ours = MODEL_REGISTRY[RUNNER_MODELS[name]].capabilities, MODELS[name]
    assert ours.ulysses == has.ulysses_degree
    assert ours.ring == has.ring_degree
    assert ours.pipefusion == has.pipefusion_parallel_degree
    assert ours.cfg == has.use_cfg_parallel


def test_transformers_and_schedulers_are_there(xfuser):
    import importlib

    from xfuser.model_executor.schedulers.register import xFuserSchedulerWrappersRegister as Steps

    for supported in MODELS.values():
        module, _, name = supported.transformer.partition(":")
        assert not module or hasattr(importlib.import_module(module), name)
    known = {found.__name__ for found in Steps._XFUSER_SCHEDULER_MAPPING}
    assert set(SCHEDULERS) <= known


CALLS = {
    "xfuser.core.distributed:init_distributed_environment": [
        "world_size", "rank", "distributed_init_method", "local_rank", "backend",
    ],
    "xfuser.core.distributed:initialize_runtime_state": ["pipeline", "engine_config"],
    "xfuser.core.distributed:get_runtime_state": [],
    "xfuser.core.distributed.runtime_state:DiTRuntimeState.set_input_parameters": [
        "self", "height", "width", "batch_size", "num_inference_steps", "seed",
        "max_condition_sequence_length", "split_text_embed_in_sp",
    ],
    "xfuser:xFuserArgs.create_config": ["self"],
    "xfuser.model_executor.pipelines.base_pipeline:xFuserPipelineBaseWrapper.__init__": [
        "self", "pipeline", "engine_config", "cache_args",
    ],
    "xfuser.model_executor.pipelines.register:xFuserPipelineWrapperRegister.get_class": ["pipe"],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_calls_to_xfuser_are_as_they_were(xfuser, name):
    import importlib

    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    assert list(inspect.signature(found).parameters) == CALLS[name]


def test_the_arguments_of_xfuser_are_as_they_were(xfuser):
    import importlib.metadata

    assert importlib.metadata.version("xfuser") == "0.7.0"
    fields = xfuser.xFuserArgs.__dataclass_fields__
    defaults = {
        "ulysses_degree": 1,
        "ring_degree": 1,
        "pipefusion_parallel_degree": 1,
        "use_cfg_parallel": False,
        "warmup_steps": 1,
        "attention_backend": None,
        "data_parallel_degree": 1,
        "tensor_parallel_degree": 1,
    }
    assert {name: fields[name].default for name in defaults} == defaults


# --- xDiT: what xfuser refuses, we refuse -----------------------------------------------------

DEGREES = list(itertools.product((1, 2, 3, 4, 6, 8), (1, 2, 3, 4), (1, 2, 3, 4), (1, 2)))


def xdit(degrees: tuple[int, ...]) -> XDit:
    names = ("ulysses_degree", "ring_degree", "pipefusion_degree", "cfg_degree")
    return XDit(**dict(zip(names, degrees, strict=True)))


@pytest.fixture
def xfuser_refuses(xfuser, monkeypatch):
    """xfuser's own words about degrees, heads and rows of the image; nothing where it takes them.
    The checks are its own, the groups that they ask are ours."""
    import diffusers
    import torch
    from xfuser import xFuserArgs
    from xfuser.core.distributed import runtime_state
    from xfuser.model_executor.pipelines import base_pipeline, register

    now = SimpleNamespace(world_size=1, shared=1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: now.world_size)
    monkeypatch.setattr(runtime_state, "get_sequence_parallel_world_size", lambda: now.shared)
    monkeypatch.setattr(runtime_state, "get_sequence_parallel_rank", lambda: 0)

    def ask_call(name: str) -> None:
        """What the wrapped call looks at first."""
        call = register.xFuserPipelineWrapperRegister.get_class(getattr(diffusers, name)).__call__
        allowed = flags(call)
        guard = base_pipeline.xFuserPipelineBaseWrapper.check_model_parallel_state(
            allowed["cfg"], allowed["sequence"], allowed["pipefusion"]
        )
        guard(lambda: None)()

    def words(name: str, model: ModelConfigs, strategy: XDit, world_size: int, height: int) -> str:
        now.world_size, now.shared = world_size, strategy.sequence_ranks
        config = SimpleNamespace(**model.config)
        pipe = SimpleNamespace(transformer=SimpleNamespace(config=config))
        try:
            engine, _ = xFuserArgs(
                model="x",
                data_parallel_degree=max(1, world_size // strategy.ranks),
                ulysses_degree=strategy.ulysses_degree,
                ring_degree=strategy.ring_degree,
                pipefusion_parallel_degree=strategy.pipefusion_degree,
                use_cfg_parallel=strategy.cfg_degree == 2,
            ).create_config()
            kind = "UnetRuntimeState" if model.denoiser == "unet" else "DiTRuntimeState"
            state = object.__new__(getattr(runtime_state, kind))
            state.parallel_config = engine.parallel_config
            monkeypatch.setattr(base_pipeline, "get_runtime_state", lambda: state)
            if MODELS[name].wraps and world_size == strategy.ranks:
                ask_call(name)
            if model.denoiser == "unet":
                state.parallel_config.world_size = strategy.ranks  # of one replica
                state.sanity_check()
                return ""
            state._check_model_and_parallel_config(pipe, engine.parallel_config)
            state.input_config = SimpleNamespace(height=height, width=1024)
            state.backbone_patch_size = model.config.get("patch_size", 1)
            state.vae_scale_factor = model.vae_factor * (2 if name.startswith("Flux") else 1)
            if MODELS[name].asks_size or not MODELS[name].transformer:
                state._calc_patches_metadata()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return words


def ours(folder: Path, strategy: XDit, world_size: int, height: int) -> str:
    parameters = {"height": height, "width": 1024, "use_resolution_binning": False}
    image = SimpleNamespace(prompt_index=0, prompt="x", parameters=parameters)
    conditions = Conditions(
        model="x", configs=ModelConfigs.read(folder),
        dtype="bfloat16", batch_size=1, images=lambda: [image],
        device=None, component_bytes=dict, machine=lambda: None,
    )  # fmt: skip
    try:
        strategy.resolve(conditions, World(world_size=world_size))
    except StrategyError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """A folder of configs for each pipeline: 12 heads, 10 blocks, 8 px a latent."""
    folders = {}
    for name, supported in MODELS.items():
        folder = folders[name] = tmp_path_factory.mktemp(name)
        denoiser = "transformer" if supported.ulysses else "unet"
        classes = {"FluxPipeline": "FluxTransformer2DModel"}
        index = {
            "_class_name": name,
            denoiser: ["diffusers", classes.get(name, "AnyModel")],
            "vae": ["diffusers", "AutoencoderKL"],
            "scheduler": ["diffusers", "DDIMScheduler"],
        }
        patch = 1 if name.startswith("Flux") else 2
        files = {
            "model_index.json": index,
            f"{denoiser}/config.json": {
                "num_attention_heads": 12, "num_layers": 10, "patch_size": patch,
            },
            "vae/config.json": {"block_out_channels": [1, 1, 1, 1]},
        }  # fmt: skip
        for path, values in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(json.dumps(values))
    return folders


@pytest.mark.parametrize("name", MODELS)
def test_what_xfuser_refuses_is_refused_before(xfuser_refuses, configs, name):
    """All degrees with their own number of ranks, at heights that do and do not divide; and with
    every number of ranks up to 16."""
    model = ModelConfigs.read(configs[name])
    refused = taken = 0
    for degrees in DEGREES:
        strategy = xdit(degrees)
        cases = [(strategy.ranks, height) for height in (16, 512, 768, 1024)]
        cases += [(world_size, 1536) for world_size in range(1, 17)]
        for world_size, height in cases if strategy.ranks > 1 else ():
            theirs = xfuser_refuses(name, model, strategy, world_size, height)
            if theirs:
                refused += 1
                words = ours(configs[name], strategy, world_size, height)
                assert words, (strategy, world_size, height, theirs)
            elif not ours(configs[name], strategy, world_size, height):
                taken += 1
    print(f"{name}: {refused} refused by xfuser, all of them by us; {taken} taken by both")
    assert refused > 1000
    assert taken or name == "SanaSprintPipeline"
