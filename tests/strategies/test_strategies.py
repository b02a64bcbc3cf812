"""Preconditions: what would fail late, or draw a wrong image, is refused before weights load."""

import json
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import yaml
from pydantic import TypeAdapter
from support import ROOT, tiny

from runner.cli import main
from runner.errors import ExitCode, ManifestError, ModelError, StrategyError
from runner.launch.devices import Machine
from runner.launch.world import World
from runner.manifest.load import load
from runner.model.configs import ModelConfigs
from runner.prepare.strategy import conditions_of, settle
from runner.strategies import Conditions, Strategy
from runner.strategies.auto import choose, rows
from runner.strategies.checks.backends import BACKENDS, Backend
from runner.strategies.checks.proven import CP_MODELS, PROVEN, TP_MODELS
from runner.strategies.estimate.fit import OVERHEAD, JobSize, in_components, in_phases
from runner.strategies.estimate.sizes import tensor_parallel_shares

GIB = 2**30
SIZE = {"height": 64, "width": 64, "max_sequence_length": 16}


def strategy(text: str):
    return TypeAdapter(Strategy).validate_python(yaml.safe_load(text))


def resolve(
    text: str, folder: Path, *, world_size=2, device="cpu", prompts=("a red fox",), **given
):
    """What a start would do with it before weights load."""
    parameters = {**SIZE, **given.pop("parameters", {})}
    images = [
        SimpleNamespace(prompt_index=place, prompt=prompt, parameters=parameters)
        for place, prompt in enumerate(prompts)
    ]
    in_batch = given.get("batch_size", 1)
    batches = [images[start : start + in_batch] for start in range(0, len(images), in_batch)]
    conditions = Conditions(
        model="m",
        configs=ModelConfigs.read(folder),
        batches=(lambda: batches) if given.pop("batches_known", False) else None,
        dtype=given.pop("dtype", "float32"),
        batch_size=given.pop("batch_size", 1),
        images=lambda: images,
        device=device,
        component_bytes=dict,
        machine=lambda: given.get("planned"),
        planned=given.get("planned"),
        trusts_code=given.get("trusts_code", False),
    )
    return strategy(text).resolve(conditions, World(world_size=world_size))


@pytest.fixture(scope="module")
def flux(models):
    return models / "flux"


@pytest.fixture(scope="module")
def qwen(models):
    return models / "qwen"


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """Configs without weights, with other values than the tiny models have."""

    def make(transformer: dict, *, class_name="FluxTransformer2DModel", vae=None) -> Path:
        folder = tmp_path_factory.mktemp("configs")
        index = {
            "_class_name": "FluxPipeline",
            "transformer": ["diffusers", class_name],
            "vae": ["diffusers", "AutoencoderKL"],
        }
        files = {
            "model_index.json": index,
            "transformer/config.json": transformer,
            "vae/config.json": vae or {"block_out_channels": [4, 4, 4, 4]},
        }
        for name, values in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(values))
        return folder

    return make


def refused(words: str, text: str, folder: Path, **given) -> None:
    with pytest.raises(StrategyError, match=re.escape(words)) as raised:
        resolve(text, folder, **given)
    message = str(raised.value)
    assert "\n" not in message
    assert re.search(r"; (use|leave|give|convert)|: pip install '", message), "no remedy"
    assert raised.value.exit_code == ExitCode.REFUSED


# --- world sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "world_size", "words"),
    [
        ("{kind: context_parallel, ulysses_degree: 2, ring_degree: 2}", 6,
         "ulysses 2 × ring 2 = 4 ranks a replica does not divide 6; use 4 or 8 processes"),
        ("{kind: context_parallel, ulysses_degree: 2}", 1,
         "ulysses 2 = 2 ranks a replica does not divide 1; use 2 processes"),
        ("{kind: context_parallel, ring_degree: 4}", 6, "ring 4 = 4 ranks"),
        ("{kind: tensor_parallel, degree: 4}", 6,
         "degree 4 = 4 ranks a replica does not divide 6; use 4 or 8 processes"),
        ("{kind: device_map, processes: 2}", 3, "processes 2 = 2 ranks a replica"),
    ],
)  # fmt: skip
def test_world_sizes_that_do_not_fit_name_those_that_do(flux, text, world_size, words):
    refused(words, text, flux, world_size=world_size)


def test_a_world_of_several_replicas_fits():
    layout = strategy("{kind: context_parallel, ulysses_degree: 2}").layout(World(5, world_size=8))
    assert (layout.replicas, layout.replica, layout.rank_in_replica) == (4, 2, 1)
    assert not layout.is_leader


def test_with_several_processes_a_device_map_replica_has_one_that_works():
    places = [
        strategy("{kind: device_map, processes: 2}").layout(World(rank, world_size=4))
        for rank in range(4)
    ]
    assert [place.is_idle for place in places] == [False, True, False, True]
    assert [place.replica for place in places] == [0, 0, 1, 1]
    assert all(place.ranks_per_replica == 1 for place in places)


@pytest.mark.parametrize("text", ["{kind: context_parallel}", "{kind: tensor_parallel, degree: 1}"])
def test_degree_one_applies_nothing(flux, text):
    assert resolve(text, flux, world_size=3).remarks == []


# --- context parallel -------------------------------------------------------------------------


def test_a_model_without_a_plan_names_those_with_one(configs):
    folder = configs({}, class_name="SD3Transformer2DModel")
    refused(
        "SD3Transformer2DModel has no plan for it in diffusers; those that have one: Chrono",
        "{kind: context_parallel, ulysses_degree: 2}", folder,
    )  # fmt: skip


def test_the_lists_of_models_with_plans_are_those_of_diffusers():
    import diffusers.models.transformers as home

    for attribute, named in (("_cp_plan", CP_MODELS), ("_tp_plan", TP_MODELS)):
        having = {
            found.group(1)
            for path in Path(home.__file__).parent.glob("*.py")
            for found in re.finditer(
                rf"^class (\w+)\((?:(?!^class ).)*^    {attribute} = \{{",
                path.read_text(), re.MULTILINE | re.DOTALL,
            )
        }  # fmt: skip
        assert having == set(named)


def test_heads_that_padding_cannot_even_out(flux):
    """4 heads on 3 ranks: two heads of padding are as much as one rank gets."""
    refused(
        "ulysses_degree 3 does not divide the 4 attention heads of FluxTransformer2DModel; use one "
        "of 1, 2, 4",
        "{kind: context_parallel, ulysses_degree: 3}", flux, world_size=3,
    )  # fmt: skip


def test_padded_texts_in_a_batch_on_many_ranks(qwen):
    """diffusers shifts their mask on 3 ranks or more: a wrong image without an error."""
    prompts = ("red fox under the blue sea in snow", "fox")
    refused(
        "use batch_size: 1, or use ulysses_degree 2",
        "{kind: context_parallel, ulysses_degree: 4}", qwen,
        world_size=4, prompts=prompts, batch_size=2,
    )  # fmt: skip
    alone = resolve(
        "{kind: context_parallel, ulysses_degree: 4}", qwen, world_size=4, prompts=prompts
    )
    assert alone.strategy.ulysses_anything


def test_texts_of_one_length_in_a_batch_need_no_mask(qwen):
    ring = "{kind: context_parallel, ring_degree: 2}"
    four = "{kind: context_parallel, ulysses_degree: 4}"
    known = {"batch_size": 2, "batches_known": True}
    same = ["a red fox"] * 4
    equal = ["a red fox", "a red cat", "the sun in the snow", "the fox in the snow"]
    unequal = ["a red fox", "a red cat", "the sun", "the fox in the snow"]
    for prompts in (same, equal):
        resolve(ring, qwen, prompts=prompts, **known)
        resolve(four, qwen, prompts=prompts, world_size=4, **known)
    refused("texts of unequal length", ring, qwen, prompts=unequal, **known)
    # Cut to one length they are equal too.
    long = [" ".join(["fox"] * count) for count in (20, 30)]
    resolve(ring, qwen, prompts=long, **known)
    negative = {"negative_prompt": "a dog"}
    resolve(ring, qwen, prompts=same, parameters=negative, **known)
    refused("texts of unequal length", ring, qwen, prompts=same, batch_size=2)  # not known: auto


def test_long_unequal_texts_in_a_batch_on_many_ranks(qwen):
    prompts = ("red fox under the blue sea in snow", "red fox under the blue sea in snow moon sun")
    text = "{kind: context_parallel, ulysses_degree: 4}"
    refused("no multiple of 4 ranks, which is right in batches on 2 ranks only", text, qwen,
            world_size=4, prompts=prompts, batch_size=2,
            parameters={"max_sequence_length": 64})  # fmt: skip


@pytest.mark.parametrize("model", ["flux", "qwen"])
def test_texts_cut_to_fewer_tokens_than_ranks(models, model):
    """However long the prompt is."""
    text, prompts = "{kind: context_parallel, ulysses_degree: 4}", ("red fox under the sea " * 5,)
    cut = {"max_sequence_length": 3}
    refused("has 3 tokens, fewer than 4 ranks a replica; use ulysses_degree 2, or use a "
            "max_sequence_length that is a multiple of 4", text, models / model, world_size=4,
            prompts=prompts, parameters=cut)  # fmt: skip
    resolve(text, models / model, world_size=4, prompts=prompts,
            parameters={"max_sequence_length": 4})  # fmt: skip


def test_a_degree_that_no_model_takes_is_refused_before_the_world_size(flux):
    for kind, name in (("tensor_parallel", "degree"), ("context_parallel", "ulysses_degree")):
        refused(f"{name} 3 does not divide the 4 attention heads of FluxTransformer2DModel; use "
                "one of 1, 2, 4; of these 2 processes take 1, 2",
                f"{{kind: {kind}, {name}: 3}}", flux, world_size=2)  # fmt: skip
    for kind in ("xdit", "para_attn"):
        refused("ulysses_degree 3 does not divide the 4 attention heads of FluxTransformer2DModel; "
                "use one of 1, 2, 4", f"{{kind: {kind}, ulysses_degree: 3}}", flux,
                world_size=2)  # fmt: skip


def test_heads_that_do_not_divide_take_the_anything_variant(configs):
    three = configs({"num_attention_heads": 3, "in_channels": 16})
    found = resolve("{kind: context_parallel, ulysses_degree: 2}", three)
    assert found.strategy.ulysses_anything
    refused(
        "ulysses_degree 4 does not divide the 3 attention heads of FluxTransformer2DModel; use one "
        "of 1, 2, 3; of these 4 processes take 1, 2",
        "{kind: context_parallel, ulysses_degree: 4}", three, world_size=4,
    )  # fmt: skip
    refused(
        "use one of 1",
        "{kind: context_parallel, ulysses_degree: 2, ring_degree: 2}", three, world_size=4,
    )  # fmt: skip


def test_sizes_that_do_not_divide_take_the_anything_variant(flux):
    odd = {"height": 48, "width": 48}  # 9 tokens
    found = resolve("{kind: context_parallel, ulysses_degree: 2}", flux, parameters=odd)
    assert found.strategy.ulysses_anything
    found = resolve("{kind: context_parallel, ring_degree: 2}", flux, parameters=odd)
    assert found.strategy.ring_anything
    found = resolve("{kind: context_parallel, ulysses_degree: 2}", flux)
    assert not found.strategy.ulysses_anything


def test_a_variant_that_was_ruled_out_is_not_taken(flux):
    refused(
        "prompts[0]: the image 48×48 has 9 tokens, no multiple of ulysses 2 × ring 1 = 2 ranks; "
        "leave ulysses_anything out, or use a height or width that is a multiple of 32",
        "{kind: context_parallel, ulysses_degree: 2, ulysses_anything: false}", flux,
        parameters={"height": 48, "width": 48},
    )  # fmt: skip


def test_unified_takes_only_what_divides(flux, qwen):
    unified = "{kind: context_parallel, ulysses_degree: 2, ring_degree: 2}"
    refused("the image 48×48 has 9 tokens", unified, flux, world_size=4,
            parameters={"height": 48, "width": 48})  # fmt: skip
    refused("the text has 10 tokens", unified, flux, world_size=4,
            parameters={"max_sequence_length": 10})  # fmt: skip
    refused('prompts[1]: the prompt "a red fox" has 13 tokens', unified, qwen, world_size=4,
            prompts=("the moon", "a red fox"))  # fmt: skip
    refused('the negative prompt "a red fox" has 13 tokens', unified, qwen, world_size=4,
            prompts=("the moon",), parameters={"negative_prompt": "a red fox"})  # fmt: skip
    resolve(unified, qwen, world_size=4, prompts=("the moon",))


@pytest.mark.parametrize(
    ("prompt", "common", "words"),
    [
        ({"parameters": {"height": 48, "width": 48}}, SIZE, "list.jsonl:3: the image 48×48 has 9"),
        ({"prompt": "a red fox"}, SIZE, 'list.jsonl:3: the prompt "a red fox" has 13'),
        ({}, {"height": 48, "width": 48}, "job.yaml:1: parameters: the image 48×48 has 9"),
        ({}, {**SIZE, "negative_prompt": "a red fox"}, "job.yaml:1: parameters: the negative pr"),
    ],
)
def test_the_line_of_a_length(qwen, plan, tmp_path, prompt, common, words):
    line = json.dumps({"prompt": "the moon", **prompt})
    (tmp_path / "list.jsonl").write_text(f'"the moon"\n\n{line}\n')
    unified = {"kind": "context_parallel", "ulysses_degree": 2, "ring_degree": 2}
    values = {"strategy": unified, "parameters": common, "prompts": {"file": "list.jsonl"}}
    made, world = plan(model=str(qwen), **values), World(world_size=4)
    with pytest.raises(StrategyError, match=f"{tmp_path}/{words}"):
        settle(made, conditions_of(made, ModelConfigs.read(qwen), world, "cpu"), world)


def test_odd_texts_take_the_anything_variant(qwen):
    assert resolve("{kind: context_parallel, ulysses_degree: 2}", qwen).strategy.ulysses_anything
    assert resolve("{kind: context_parallel, ring_degree: 2}", qwen).strategy.ring_anything


def test_a_text_shorter_than_the_ranks_is_refused(qwen):
    refused('prompts[0]: the negative prompt "" has 10 tokens, fewer than 12 ranks',
            "{kind: context_parallel, ulysses_degree: 12}", configs_with(qwen, 12), world_size=12,
            prompts=("a red fox in the snow under a tree",),
            parameters={"negative_prompt": "", "height": 256, "width": 256})  # fmt: skip


def configs_with(folder: Path, heads: int) -> Path:
    """A copy of a model's configs with other heads."""
    import shutil
    import tempfile

    copy = Path(tempfile.mkdtemp()) / "model"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    tiny.edit_json(copy / "transformer" / "config.json", num_attention_heads=heads)
    return copy


def test_ring_never_meets_a_mask(flux, qwen):
    ring = "{kind: context_parallel, ring_degree: 2}"
    refused("batch_size 2: texts of unequal length need an attention mask", ring, qwen,
            batch_size=2)  # fmt: skip
    refused("batch_size 2", "{kind: context_parallel, ring_degree: 2, ulysses_degree: 2}", qwen,
            batch_size=2, world_size=4)  # fmt: skip
    resolve(ring, flux, batch_size=2)  # its texts are padded: no mask
    resolve("{kind: context_parallel, ulysses_degree: 2}", qwen, batch_size=2)


def test_the_masked_ring_refuses_on_the_cpu_too():
    import torch

    from runner.strategies.engines.cpu_support import _attention

    part = torch.zeros(1, 4, 2, 8)
    with pytest.raises(ValueError, match="mask"):
        _attention(None, part, part, part, torch.ones(1, 4), return_lse=True)


def test_attention_with_its_log_sum_exp_is_right():
    import torch

    from runner.strategies.engines.cpu_support import _attention

    query, key, value = torch.randn(3, 1, 5, 2, 8).unbind()  # (B, S, H, D)
    out, lse = _attention(None, query, key, value, return_lse=True)
    scores = torch.einsum("bshd,bthd->bsht", query, key) / 8**0.5
    assert torch.allclose(lse, scores.logsumexp(-1), atol=1e-5)
    assert torch.allclose(
        out, torch.einsum("bsht,bthd->bshd", scores.softmax(-1), value), atol=1e-5
    )


@pytest.mark.parametrize("name", BACKENDS)
def test_what_a_backend_can_do_is_what_diffusers_says(name):
    """Asked for what it cannot do, each says so before it looks for its kernel."""
    import torch
    from diffusers.models import attention_dispatch as dispatch

    registry, member = dispatch._AttentionBackendRegistry, dispatch.AttentionBackendName(name)
    attention, able = registry._backends[member], BACKENDS[name]
    half = dispatch._check_qkv_dtype_bf16_or_fp16 in registry._constraints[member]
    assert able.float32 != half
    part, mask = torch.zeros(1, 4, 2, 8), torch.ones(1, 4, dtype=torch.bool)
    if not able.masks and name != "_native_cudnn":  # whose kernel alone would tell
        with pytest.raises(ValueError, match="`attn_mask` is not supported"):
            attention(part, part, part, attn_mask=mask)
    if not able.lse:
        with pytest.raises(ValueError, match="return_lse"):
            attention(part, part, part, return_lse=True)
    if able.package:
        with pytest.raises(RuntimeError, match=re.split("[>_]", able.package)[0]):
            dispatch._check_attention_backend_requirements(member)


def test_all_backends_of_context_parallel_are_known_and_told():
    table = (ROOT / "docs/strategies.md").read_text()
    for name, able in BACKENDS.items():
        row = next(line for line in table.splitlines() if f"`{name}`" in line and "| " in line)
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1] == (able.device or "all")
        assert [cell.startswith("yes") for cell in cells[2:4]] == [able.float32, able.masks]
        assert cells[5] == able.package.replace(">=", " ")
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    assert set(BACKENDS) == set(get_args(Backend))
    # Nothing here can prove a backend of NPUs.
    assert set(BACKENDS) == _AttentionBackendRegistry._supports_context_parallel - {"_native_npu"}


CUDA = {"device": None, "planned": Machine(2, 80 * GIB, "nvlink")}


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ("ulysses_degree: 2, attention_backend: flash", {"device": "cpu"},
         "attention_backend flash needs a GPU, and there is none; use attention_backend: native"),
        ("ulysses_degree: 2, attention_backend: _native_cudnn",
         {"device": "xpu", "dtype": "bfloat16"},
         "does not run on xpu; use attention_backend: native"),
        ("ulysses_degree: 2, attention_backend: _native_flash", {},
         "takes no float32; use attention_backend: native, or use dtype: bfloat16"),
        ("ring_degree: 2", {"dtype": "bfloat16"},
         "native does not return the log-sum-exp that ring attention needs; use "
         "attention_backend: _native_cudnn or _native_flash or flash, or use ulysses_degree: 2 "
         "instead of ring_degree"),
        ("ring_degree: 2", {},
         "use dtype: bfloat16 with attention_backend: _native_cudnn or _native_flash or flash, or "
         "use ulysses_degree: 2 instead"),
        ("ulysses_degree: 2, attention_backend: flash_hub", {"dtype": "bfloat16"},
         "flash_hub is code from the hub, which runs only with model: {trust_remote_code: true}; "
         "use attention_backend: native or"),
        ("ulysses_degree: 2, attention_backend: sage", {"device": "cuda", "dtype": "bfloat16"},
         "needs sageattention>=2.1.1, and it is not installed: pip install 'sageattention>=2.1.1'"),
    ],
)  # fmt: skip
def test_attention_backends(flux, settings, given, words):
    on = {} if "device" in given else CUDA
    refused(words, f"{{kind: context_parallel, {settings}}}", flux, **on, **given)


@pytest.mark.parametrize(
    ("text", "given", "change"),
    [
        # Ring in float32 on GPUs: another dtype alone would meet native's lack of a log-sum-exp.
        ("ring_degree: 2", CUDA, {"text": "ring_degree: 2, attention_backend: _native_cudnn",
                                  "dtype": "bfloat16"}),
        ("ring_degree: 2", CUDA, {"text": "ulysses_degree: 2"}),
        # An odd image and an odd text: one of both alone would meet the other.
        ("ulysses_degree: 2, ring_degree: 2",
         {"world_size": 4, "parameters": {"height": 48, "max_sequence_length": 10}},
         {"parameters": {"height": 64, "max_sequence_length": 8}}),
    ],
)  # fmt: skip
def test_a_remedy_is_one(flux, text, given, change):
    text, other = (f"{{kind: context_parallel, {t}}}" for t in (text, change.get("text", text)))
    with pytest.raises(StrategyError):
        resolve(text, flux, **given)
    resolve(other, flux, **{**given, **{k: v for k, v in change.items() if k != "text"}})


def test_an_odd_image_with_an_odd_text_are_changed_together(flux):
    refused("use a height or width that is a multiple of 64 and a max_sequence_length that is a "
            "multiple of 4", "{kind: context_parallel, ulysses_degree: 2, ring_degree: 2}", flux,
            world_size=4, parameters={"height": 48, "width": 48,
                                      "max_sequence_length": 10})  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "fits"),
    [("native", True), ("flash_varlen_hub", True), ("_native_cudnn", False), ("flash", False),
     ("_3", False), ("sage_hub", False)],
)  # fmt: skip
def test_backends_meet_a_mask_only_where_they_take_one(qwen, backend, fits):
    backend = "_flash_3_hub" if backend == "_3" else backend
    text = f"{{kind: context_parallel, ulysses_degree: 2, attention_backend: {backend}}}"
    given = {**CUDA, "dtype": "bfloat16", "trusts_code": True}
    resolve(text, qwen, **given)
    if fits:
        resolve(text, qwen, batch_size=2, **given)
    else:
        refused(f"{backend} takes no attention mask, which texts of unequal length in a batch "
                "need; use batch_size: 1, or use attention_backend: native or flash_varlen_hub or",
                text, qwen, batch_size=2, **given)  # fmt: skip


def test_only_what_is_proved_goes_without_a_remark(flux):
    text = "{kind: context_parallel, ulysses_degree: 2"
    assert resolve(f"{text}}}", flux, **CUDA).remarks == []
    new = resolve(f"{text}, attention_backend: flash}}", flux, **{**CUDA, "dtype": "bfloat16"})
    assert "--self-check" in new.remarks[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{kind: context_parallel, ulysses_degree: 2, attention_backend: x}", "'_native_flash'"),
        ("{kind: context_parallel, ulysses_degree: 2, ring_degree: 2, ulysses_anything: true}",
         "ulysses_anything goes with ulysses_degree over 1 and ring_degree 1"),
        ("{kind: context_parallel, ulysses_degree: 2, ring_anything: true}", "ring_anything goes"),
        ("{kind: context_parallel, ulysses_degree: 0}", "must be 1 or more"),
        ("{kind: tensor_parallel}", "degree is missing"),
        ("{kind: tensor_parallel, degree: 2, ulysses_degree: 2}",
         "cannot put tensor and context parallel on one model; use degree alone"),
        ("{kind: tensor_parallel, degree: 2, ulises: 2}", "ulises: unknown key"),
        ("{kind: device_map, map: auto}", "use map: balanced"),
        ("{kind: device_map, max_memory: {cpu: lots}}", "write it as 40GiB"),
        ("{kind: device_map, max_memory: {cpu: 0GiB}}", "write it as 40GiB"),
        ("{kind: device_map, max_memory: {cpu: 99999999999999999999GiB}}", "not a size up to"),
        ("{kind: device_map, max_memory: {cpu: 1e999GiB}}", "not a size up to"),
        ("{kind: device_map, max_memory: {cpu: \u0664GiB}}", "not a size up to"),
        ("{kind: device_map, max_memory: {cpu: -5}}", "write a size as 40GiB"),
        ("{kind: device_map, max_memory: {'-1': 1GB}}", 'as in "0", or cpu'),
        ("{kind: device_map, max_memory: {'01': 1GB}}", 'as in "0", or cpu'),
        ("{kind: device_map, max_memory: {'\u0660': 1GB}}", 'as in "0", or cpu'),
        ("{kind: device_map, max_memory: {disk: 1GB}}", 'as in "0", or cpu'),
        ("tensorparallel", "tensorparallel: must be one of data_parallel, device_map, "
         "context_parallel, tensor_parallel, xdit, para_attn, auto; did you mean tensor_parallel?"),
        ("{tensor_parallel: {degree: 2}}", "must name its kind, as in {kind: tensor_parallel, …}"),
        ("{kind: foo}", "strategy: foo: must be one of data_parallel"),
        ("{ulysses_degree: 2}", "must name its kind, as in {kind: context_parallel, …}"),
        ("{kind: context_parallel, attention_backend: native}",
         "attention_backend goes with a degree over 1; leave it out"),
        ("{kind: xdit, attention_backend: cudnn}", "attention_backend goes with a degree over 1"),
        ("{kind: context_parallel, ulysses_degree: 2, attention_backend: flsh}",
         "did you mean flash?"),
    ],
)  # fmt: skip
def test_what_the_file_alone_tells_is_refused_by_validate(tmp_path, text, words):
    path = tmp_path / "job.yaml"
    path.write_text(f"model: demo\nstrategy: {text}\nprompts: [a]\n")
    with pytest.raises(ManifestError, match=re.escape(words)) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}:2: ")


# --- tensor parallel --------------------------------------------------------------------------


def test_heads_name_the_degrees_that_do(configs):
    six = configs({"num_attention_heads": 6, "attention_head_dim": 8})
    refused("degree 4 does not divide the 6 attention heads of FluxTransformer2DModel; use one of "
            "1, 2, 3, 6", "{kind: tensor_parallel, degree: 4}", six, world_size=4)  # fmt: skip


def test_blocks_are_checked_where_the_heads_divide(tmp_path):
    folder = tiny.flux(tmp_path / "flux", heads=3, width=8)
    # 3 heads of 8: every block is a multiple of 3, and no power of 2 is left over.
    resolve("{kind: tensor_parallel, degree: 3}", folder, world_size=3)


def test_a_unet_has_no_tensor_parallel_plan(tmp_path):
    (tmp_path / "unet").mkdir()
    index = {
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
    }
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    refused("not supported for UNet2DConditionModel; diffusers has plans for Flux2Transformer2D",
            "{kind: tensor_parallel, degree: 2}", tmp_path)  # fmt: skip


def test_pickled_weights_cannot_be_sliced(flux):
    copy = configs_with(flux, 4)
    (copy / "transformer" / "diffusion_pytorch_model.bin").write_bytes(b"")
    refused("pickled weights do not allow", "{kind: tensor_parallel, degree: 2}", copy)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("transformer/config.json", '{"num_layers":', "transformer/config.json: cannot be read"),
        ("vae/config.json", "\\xff", "vae/config.json: cannot be read"),
        (
            "transformer/config.json",
            '{"num_attention_heads": -4}',
            "makes no FluxTransformer2DModel",
        ),
    ],
)
def test_broken_configs_are_named(configs, file, text, words):
    folder = configs({})
    (folder / file).write_text(text)
    with pytest.raises(ModelError, match=words) as raised:
        resolve("{kind: tensor_parallel, degree: 2}", folder)
    assert str(raised.value).endswith("; download the model again")


# --- device_map -------------------------------------------------------------------------------


def test_device_map_without_a_gpu_needs_something_to_do(flux):
    refused("device_map does nothing without a GPU", "{kind: device_map}", flux)
    refused("max_memory names a GPU, and there is none",
            "{kind: device_map, max_memory: {'0': 4GiB, cpu: 8GiB}}", flux)  # fmt: skip
    resolve("{kind: device_map, max_memory: {cpu: 8GiB}}", flux)
    resolve("{kind: device_map, phases: true}", flux)


def test_idle_processes_are_told(flux):
    found = resolve("{kind: device_map, processes: 2, max_memory: {cpu: 1GB}}", flux)
    assert found.remarks == ["1 of every 2 processes idle: the first drives their GPUs"]


@pytest.mark.parametrize(
    ("devices", "world_size", "processes", "gpu", "words"),
    [
        (8, 8, 1, 3, "a replica has 1 (numbered from 0); use 2 processes, or leave it out"),
        (4, 4, 1, 7, "a replica has 1 (numbered from 0); leave it out"),
        (3, 2, 2, 2, "a replica has 2 (numbered from 0); leave it out"),  # 1 is no multiple of 2
        (8, 5, 2, 3, "does not divide 5; use 4 processes"),  # with 6 a replica has 2 GPUs
    ],
)
def test_the_processes_told_for_device_map_pass_its_check(
    flux, devices, world_size, processes, gpu, words
):
    where = {"device": None, "planned": Machine(devices, 80 * GIB, "pcie")}
    text = f"{{kind: device_map, processes: {processes}, max_memory: {{'{gpu}': 4GiB}}}}"
    refused(words, text, flux, world_size=world_size, **where)
    for number in re.findall("use ([0-9]+) process", words):
        resolve(text, flux, world_size=int(number), **where)


def test_phases_need_a_call_that_can_be_taken_apart(configs):
    folder = configs({})
    tiny.edit_json(folder / "model_index.json", _class_name="DDPMPipeline")
    refused("DDPMPipeline has no encode_prompt", "{kind: device_map, phases: true}", folder)


# --- what fits --------------------------------------------------------------------------------

FLUX_DEV = {
    "num_layers": 19, "num_single_layers": 38, "num_attention_heads": 24, "in_channels": 64,
    "attention_head_dim": 128, "joint_attention_dim": 4096, "guidance_embeds": True,
}  # fmt: skip
QWEN = {
    "num_layers": 60, "num_attention_heads": 24, "attention_head_dim": 128, "in_channels": 64,
    "joint_attention_dim": 3584, "guidance_embeds": False,
}  # fmt: skip


def chosen(job, machine):
    return choose(job, machine, rows(job, machine))


def job_size(
    configs, transformer=FLUX_DEV, name="FluxTransformer2DModel", gib=None, size=1024
) -> JobSize:
    folder = configs(transformer, class_name=name, vae={"block_out_channels": [128, 256, 512, 512]})
    model = ModelConfigs.read(folder)
    parameters = {"height": size, "width": size}
    image = SimpleNamespace(prompt_index=0, prompt="", parameters=parameters)
    gib = gib or {"transformer": 22.2, "text_encoder_2": 8.9, "text_encoder": 0.2, "vae": 0.2}
    sizes = {part: int(count * GIB) for part, count in gib.items()}
    return JobSize.of(model, "bfloat16", sizes, 1, [image])


@pytest.mark.parametrize(
    ("transformer", "name", "shares"),
    [
        (FLUX_DEV, "FluxTransformer2DModel", {2: 0.638, 4: 0.458, 8: 0.367}),
        (QWEN, "QwenImageTransformer2DModel", {2: 0.667, 4: 0.501, 8: 0.418}),
    ],
)
def test_tensor_parallel_shares_are_counted(configs, transformer, name, shares):
    model = ModelConfigs.read(configs(transformer, class_name=name))
    whole, *parts = tensor_parallel_shares(model, (1, *shares), "bfloat16").values()
    assert [part / whole for part in parts] == pytest.approx([*shares.values()], abs=0.001)


@pytest.mark.parametrize(
    ("devices", "gib", "interconnect", "kind", "words"),
    [
        (4, 80, "pcie", "data_parallel", "the whole model fits"),
        (4, 30, "nvlink", "device_map", "each component fits on one device, but not all together"),
        (4, 24, "nvlink", "tensor_parallel", "does not fit on one device, and NVLink"),
        (4, 24, "pcie", "device_map", "does not fit on one device, and the interconnect is slow"),
        (1, 30, "pcie", "device_map", "each component fits"),
    ],
)  # fmt: skip
def test_auto_follows_the_guides(configs, devices, gib, interconnect, kind, words):
    strategy, why = chosen(job_size(configs), Machine(devices, gib * GIB, interconnect))
    assert (strategy.kind, words in why) == (kind, True), why
    if devices == 1:
        assert strategy.phases


def test_auto_takes_context_parallel_for_large_activations(configs):
    large = job_size(configs, size=8192, gib={"transformer": 1.0, "vae": 0.2})
    large = JobSize(large.configs, "bfloat16", large.components, 60 * GIB, 10 * GIB)
    strategy, why = chosen(large, Machine(4, 40 * GIB, "nvlink"))
    assert (strategy.kind, strategy.ulysses_degree) == ("context_parallel", 2)
    assert "not with the activations" in why


TRANSFORMER = {"num_attention_heads": 4, "attention_head_dim": 8}


def test_auto_does_not_call_nvlink_slow(configs):
    """Where the model has no plan for tensor parallel."""
    plain = configs(TRANSFORMER, class_name="PixArtTransformer2DModel")
    parts = {"transformer": 30 * GIB, "vae": GIB}
    job = JobSize(ModelConfigs.read(plain), "bfloat16", parts, GIB, GIB)
    strategy, why = chosen(job, Machine(4, 24 * GIB, "nvlink"))
    assert strategy.kind == "device_map"
    assert (
        why == "the largest component does not fit on one device, and tensor parallel does not fit"
    )


def test_a_phase_holds_the_decoder_beside_the_denoiser(configs):
    parts = {"text_encoder": 5 * GIB, "transformer": 20 * GIB, "vae": GIB, "safety_checker": GIB}
    job = JobSize(ModelConfigs.read(configs(TRANSFORMER)), "bfloat16", parts, GIB, 3 * GIB)
    assert in_phases(job, Machine(1, 40 * GIB, "pcie")).weights == 21 * GIB
    decoding = JobSize(job.configs, "bfloat16", parts, GIB, 30 * GIB)
    assert in_phases(decoding, Machine(1, 40 * GIB, "pcie")).weights == 2 * GIB


def test_a_split_fills_one_device_after_another(configs):
    """As device_map loads it: 0.8 of the first device, which has the decoder's activations too."""
    parts = {"transformer": 30 * GIB, "vae": GIB}
    model = ModelConfigs.read(configs(TRANSFORMER))
    machine = Machine(4, 24 * GIB, "pcie")
    found = in_components(JobSize(model, "bfloat16", parts, GIB, 4 * GIB), machine)
    most = int(24 * GIB * 0.8)
    assert most - GIB <= found.weights <= most  # the next block did not fit
    assert not found.fits
    assert in_components(JobSize(model, "bfloat16", parts, GIB, 2 * GIB), machine).fits


# Case 34.
def test_the_estimate_is_what_is_loaded(models):
    """Device by device: one function places for both."""
    import torch

    from runner.strategies.estimate.places import by_use, held, parts_of, placed

    model = ModelConfigs.read(models / "flux")
    parts = [p for name in by_use(model) for p in parts_of(model, name, torch.float32)]
    sizes = {name: sum(p.size for p in parts if p.component == name) for name in model.networks}
    job = JobSize(model, "float32", sizes, 0, 0)
    assert job.parts() == parts
    large = 2 * OVERHEAD + sum(sizes.values())
    for memory in (large, sum(sizes.values()), max(sizes.values())):
        machine, full = Machine(2, memory, "pcie"), int(memory * 0.8)
        estimate = in_components(job, machine)
        loaded = held(parts, placed(parts, {0: full, 1: full, "cpu": large}))
        if "cpu" in loaded:
            assert estimate is None
        else:
            assert estimate.weights == max(loaded.values())


# Case 35.
@pytest.mark.parametrize(("devices", "gib", "hosted"), [(1, 24, 12.6), (1, 16, 19.5), (2, 16, 7.7)])
def test_auto_takes_the_hosts_memory_where_no_device_has_room(configs, devices, gib, hosted):
    job, machine = job_size(configs), Machine(devices, gib * GIB, "pcie")
    strategy, why = chosen(job, machine)
    assert strategy.kind == "device_map"
    assert [*strategy.max_memory] == [str(number) for number in range(devices)]
    assert f"{hosted} GiB of the weights must lie in host memory" in why
    row = next(row for row in rows(job, machine) if row.strategy == strategy)
    assert row.estimate.fits
    assert row.estimate.replicas == 1


def test_a_decoder_of_3d_convolutions_needs_more(configs):
    """Measured in bfloat16: 3.38 GiB at 1024×1024, 13.5 GiB at 2048×2048."""
    folder = configs(TRANSFORMER, vae={"base_dim": 96, "temperal_downsample": [False, True, True]})
    tiny.edit_json(folder / "model_index.json", vae=["diffusers", "AutoencoderKLQwenImage"])
    for side, measured in ((1024, 3.38), (2048, 13.5)):
        image = SimpleNamespace(
            prompt_index=0, prompt="", parameters={"height": side, "width": side}
        )
        job = JobSize.of(ModelConfigs.read(folder), "bfloat16", {"vae": 1}, 1, [image])
        assert job.decoding / GIB == pytest.approx(measured, rel=0.01)


def test_auto_says_what_would_help_where_nothing_fits(configs):
    with pytest.raises(StrategyError, match="cannot put tensor and context parallel") as raised:
        chosen(job_size(configs, size=8192), Machine(2, 10 * GIB, "nvlink"))
    assert "quantization" in str(raised.value)


@pytest.mark.parametrize(("world_size", "processes"), [(4, 2), (2, 1), (1, 1)])
def test_auto_gives_device_map_as_many_processes_as_its_gpus_have(configs, world_size, processes):
    machine = Machine(4, 30 * GIB, "pcie")
    made = job_size(configs)
    image = SimpleNamespace(prompt_index=0, prompt="", parameters={"height": 1024, "width": 1024})
    conditions = Conditions(
        model="m",
        configs=made.configs,
        dtype="bfloat16",
        batch_size=1,
        images=lambda: [image],
        device=None,
        component_bytes=lambda: made.components,
        machine=lambda: machine,
    )
    found = strategy("{kind: auto}").resolve(conditions, World(world_size=world_size))
    assert (found.strategy.kind, found.strategy.processes) == ("device_map", processes)
    assert found.choice.startswith("strategy auto: device_map, since each component fits")


def test_auto_without_a_gpu_is_data_parallel(flux):
    found = resolve("{kind: auto}", flux)
    assert found.strategy.kind == "data_parallel"
    assert found.choice == "strategy auto: data_parallel, since there is no GPU, and it needs none"


def test_every_row_adds_up(configs):
    machine = Machine(4, 40 * GIB, "nvlink")
    found = rows(job_size(configs), machine)
    assert {row.strategy.kind for row in found} == {
        "data_parallel", "device_map", "context_parallel", "tensor_parallel",
    }  # fmt: skip
    for made, estimate in found:
        needs = estimate.weights + estimate.activations
        assert estimate.headroom == machine.memory - needs - OVERHEAD
        assert estimate.ranks_per_replica * estimate.replicas == 4
        assert strategy(json.dumps(made.model_dump())) == made


def test_components_are_counted_from_headers(tmp_path, flux):
    """Also in shards, of a variant, and in another dtype than they have."""
    from runner.model.spec import ModelSpec
    from runner.model.weights import component_bytes

    real = component_bytes(ModelSpec(id=str(flux)), "float32")
    on_disk = sum(path.stat().st_size for path in flux.rglob("*.safetensors"))
    assert on_disk * 0.7 < sum(real.values()) < on_disk
    half = component_bytes(ModelSpec(id=str(flux)), "bfloat16")
    assert half["transformer"] == real["transformer"] // 2
    header = json.dumps({"w": {"dtype": "F16", "shape": [3, 5], "data_offsets": [0, 30]}}).encode()
    variant = flux.parent / "variant"
    import shutil

    shutil.copytree(flux, variant)
    file = variant / "vae" / "diffusion_pytorch_model.fp16.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(30))
    assert component_bytes(ModelSpec(id=str(variant), variant="fp16"), "float32")["vae"] == 60
    assert component_bytes(ModelSpec(id=str(variant)), "float32")["vae"] == real["vae"]
    file.write_bytes(b"\xff" * 8)
    with pytest.raises(ModelError, match="fp16.safetensors: cannot be read"):
        component_bytes(ModelSpec(id=str(variant), variant="fp16"), "float32")


# --- plan --devices ---------------------------------------------------------------------------


@pytest.fixture
def planned(manifest, models, capsys):
    """What `plan` prints for the tiny FLUX model, what it refuses, and its exit code."""

    def said(strategy, *arguments, dtype="float32"):
        path = manifest(
            model=str(models / "flux"), strategy=strategy, dtype=dtype, parameters=SIZE,
            prompts=["a"],
        )  # fmt: skip
        code = main(["plan", str(path), *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return said


def test_where_nothing_fits_the_table_comes_before_the_refusal(planned):
    code, out, err = planned("auto", "--devices", "2x1GiB")
    assert (code, err.count("\n")) == (2, 1)
    assert "data_parallel                            1        2     0.00    -1.00  no" in out
    assert err.startswith("runner: strategy: auto: nothing fits on 2 × 1 GiB on PCIe: ")
    code, out, _ = planned("auto", "--devices", "2x1GiB", "--json")
    assert code == 2
    assert not any(row["fits"] for row in json.loads(out)["comparison"]["strategies"])


@pytest.mark.parametrize(
    ("weights", "size", "words"),
    [
        (60.0, 512, "use quantization"),
        (1.0, 4096, "use smaller images"),
        (60.0, 4096, "cannot put tensor and context parallel on one model"),
    ],
)
def test_auto_says_which_of_both_is_too_large(configs, weights, size, words):
    """Of the weights in one piece: blocks could lie in host memory."""
    made = job_size(configs, size=size, gib={"text_encoder": weights, "vae": 0.2})
    with pytest.raises(StrategyError, match=words):
        chosen(made, Machine(2, 10 * GIB, "pcie"))


def test_a_planned_machine_is_checked_as_a_gpu_machine_would(planned):
    ring = {"kind": "context_parallel", "ring_degree": 2}
    code, _, err = planned(ring, "--devices", "2x80GiB")
    assert (code, err.count("\n")) == (2, 1)
    assert "native does not return the log-sum-exp" in err
    assert planned(ring, "--world-size", "2")[0] == 0  # on which machine is not known
    good = {**ring, "attention_backend": "_native_flash"}
    assert planned(good, "--devices", "2x80GiB", dtype="bfloat16")[0] == 0
    memory = {"kind": "device_map", "max_memory": {"1": "1GiB"}}
    code, _, err = planned(memory, "--devices", "2x80GiB")
    assert "names GPU 1, a replica has 1 (numbered from 0); use 1 process, or leave it" in err
    assert planned(memory, "--devices", "2x80GiB", "--world-size", "1")[0] == 0


def test_a_model_out_of_reach_is_planned_by_the_file_alone(manifest, capsys):
    strategy = {"kind": "context_parallel", "ulysses_degree": 2}
    path = manifest(model="nobody/no-model", strategy=strategy, prompts=["a", "b"])
    assert main(["plan", str(path), "--world-size", "4"]) == 0
    said = capsys.readouterr().out
    assert "2 replicas × 2 ranks = 4" in said
    assert "parameters, sizes and strategy not checked: nobody/no-model: not in the cache" in said
    assert main(["plan", str(path), "--world-size", "3"]) == 2
    assert "does not divide 3; use 2 or 4 processes" in capsys.readouterr().err
    assert main(["plan", str(path), "--devices", "2x80GiB"]) == 2
    assert capsys.readouterr().err.startswith("runner: nobody/no-model: not in the cache")


# Case 17.
def test_a_model_in_parts_is_not_offloaded(planned):
    for strategy in ({"kind": "tensor_parallel", "degree": 2}, {"kind": "device_map"}):
        offload = ("--set", "on_out_of_memory=offload", "--world-size", "2")
        code, _, err = planned(strategy, *offload)
        assert code == 2
        assert err == (
            f"runner: on_out_of_memory: offload: with {strategy['kind']} the parts of the model "
            "stay where they are; use tile\n"
        )
        assert planned(strategy, "--set", "on_out_of_memory=tile", "--world-size", "2")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--interconnect", "nvlink"], "--interconnect: of which machine? use --devices"),
        (["--devices", "0x80GiB"], "write their number"),
        (["--devices", "2x0GiB"], "write their number"),
        (["--devices", "80GiB"], "write their number"),
        (["--devices", "9" * 400 + "x80GiB"], "write their number"),
        (["--devices", f"2x{'9' * 400}GiB"], "write their number"),
        (["--devices", "\u0664x80GiB"], "write their number"),
        (["--devices", "2x80GiB", "--world-size", "3"], "use --world-size 2"),
        (["--world-size", "9" * 5000], "not a whole number from 1 to 1000000"),
        (["--world-size", "\u0664"], "not a whole number from 1 to 1000000"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_machines_and_worlds_that_are_none(planned, capsys, arguments, words):
    try:
        code, _, err = planned("data_parallel", *arguments)
    except SystemExit as ended:  # argparse prints how to call it, too
        code, err = ended.code, capsys.readouterr().err
    assert code == 2
    assert words in err.splitlines()[-1]
    assert "Traceback" not in err


# --- the data ---------------------------------------------------------------------------------


def test_every_proven_combination_names_a_test_that_exists():
    for proven in PROVEN:
        path, _, rest = proven.proof.partition("::")
        name, _, parameters = rest.rstrip("]").partition("[")
        text = (ROOT / path).read_text()
        assert f"def {name}(" in text
        model, _, variant = parameters.partition("-")
        assert f'"{model}"' in text
        assert f'"{variant}"' in text


# Case 45: with GPUs, by what diffusers is asked.
@pytest.mark.parametrize(
    ("local_rank", "processes", "given", "budget"),
    [
        (0, 1, {}, {0: 80 * GIB, 1: 80 * GIB}),
        (1, 1, {}, {2: 80 * GIB, 3: 80 * GIB}),
        (1, 1, {"max_memory": {"0": "1GiB"}}, {2: GIB, 3: 80 * GIB}),
    ],
)
def test_device_map_keeps_to_the_ranks_own_gpus(monkeypatch, local_rank, processes, given, budget):
    import torch

    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda index: (100 * GIB, 100 * GIB))
    world = World(local_rank, local_rank, 2, 2)
    device = torch.device("xpu", 2 * local_rank)
    made = strategy(json.dumps({"kind": "device_map", **given}))
    assert made._budget(device, world) == budget


def test_a_tensor_parallel_rank_loads_to_its_own_device(monkeypatch, flux):
    """Also in the second replica of a node, whose ranks diffusers would number from 0."""
    import torch
    from torch.distributed import device_mesh

    seen = {}

    class Mesh:
        def __init__(self, *_, **__):
            pass

        def size(self):
            return 2

    class Source:
        folder = flux
        dtype = torch.float32

        def component(self, name, parallel_config):
            # What `from_pretrained` does with it, on rank 0 of its group.
            parallel_config.setup(0, 2, torch.device("xpu", 0), parallel_config.mesh)
            seen["device"] = parallel_config._device

        def pipeline(self, **arguments):
            return SimpleNamespace(components={})

    monkeypatch.setattr(device_mesh, "DeviceMesh", Mesh)
    own = torch.device("xpu", 2)
    strategy("{kind: tensor_parallel, degree: 2}").load(Source(), own, World(2, 2, 4, 4))
    assert seen["device"] == own
