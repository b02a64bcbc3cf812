"""Which pipelines of diffusers make images from texts alone, by their source."""

from collections.abc import Mapping

import diffusers
import pytest

from runner.model.kinds import needed_inputs, needed_parameters, product
from runner.model.signature import TUPLES, PipelineCall, pipeline_call

# All that do in diffusers 0.42.1. A class that is not here must be refused.
TEXT_TO_IMAGE = """
AltDiffusion Amused AuraFlow Bria BriaFibo BriaFibo2 BriaFiboEdit Chroma CogView3Plus CogView4
Cosmos2TextToImage DreamLite DreamLiteMobile ErnieImage Flux Flux2 Flux2Klein Flux2KleinKV
FluxKontext GlmImage HiDreamImage HunyuanDiT HunyuanDiTPAG HunyuanImage IF Ideogram4 JoyImageEdit
Kandinsky3 KandinskyCombined KandinskyV22Combined Kolors KolorsPAG Krea2 LDMTextToImage
LatentConsistencyModel LongCatImage Lumina Lumina2 NucleusMoEImage OmniGen OvisImage PRX PRXPixel
PixArtAlpha PixArtSigma PixArtSigmaPAG QwenImage QwenImage21 Sana SanaPAG SanaSprint
SemanticStableDiffusion StableCascadeCombined StableDiffusion StableDiffusion3 StableDiffusion3PAG
StableDiffusionAttendAndExcite StableDiffusionGLIGEN StableDiffusionModelEditing
StableDiffusionPAG StableDiffusionPanorama StableDiffusionParadigms StableDiffusionSAG
StableDiffusionSafe StableDiffusionXL StableDiffusionXLPAG StableUnCLIP UnCLIP UniDiffuser
VQDiffusion VersatileDiffusionTextToImage WuerstchenCombined ZImage ZImageOmni
"""

# Where the name or the signature would mislead: class → what is needed and what is made.
SURPRISING = {
    "Cosmos3OmniPipeline": (["image", "video"], "videos"),
    "FluxPriorReduxPipeline": (["image"], "an image's embedding for another pipeline, no images"),
    "HunyuanImageRefinerPipeline": (["image"], ""),
    "Kandinsky5T2IPipeline": ([], "images in a form that is not read yet"),
    "KandinskyPriorPipeline": ([], "an image's embedding for another pipeline, no images"),
    "KandinskyV22ControlnetPipeline": (["image_embeds", "negative_image_embeds", "hint"], ""),
    "LLaDA2Pipeline": ([], "texts"),
    "LTX2Pipeline": ([], "videos"),
    "LongCatAudioDiTPipeline": ([], "sound"),
    "MusicLDMPipeline": ([], "sound"),
    "OnnxStableDiffusionPipeline": ([], "images with ONNX files in place of PyTorch"),
    "QwenImageEditPlusPipeline": (["image"], ""),
    "QwenImageLayeredPipeline": (["image"], ""),
    "ShapEPipeline": ([], "3-D shapes"),
    "StableCascadeDecoderPipeline": (["image_embeddings"], ""),
    "StableDiffusionDepth2ImgPipeline": (["image"], ""),
    "StableDiffusionDiffEditPipeline": (["mask_image"], ""),
    "StableDiffusionInpaintPipeline": (["image", "mask_image"], ""),
    "StableDiffusionLDM3DPipeline": ([], "pictures with their depth"),
    "StableDiffusionPix2PixZeroPipeline": (["source_embeds", "target_embeds"], ""),
    "StableDiffusionUpscalePipeline": (["image"], ""),
    "StableDiffusionXLControlNetUnionPipeline": (["control_image"], ""),
    "TextToVideoZeroPipeline": ([], "videos"),
    "VersatileDiffusionDualGuidedPipeline": (["image"], ""),
    "WanPipeline": ([], "videos"),
    "ZImageControlNetInpaintPipeline": (["image", "mask_image", "control_image"], ""),
}


@pytest.fixture(scope="module")
def calls() -> Mapping[str, PipelineCall]:
    """Every pipeline of diffusers that can be called."""
    names = [name for name in dir(diffusers) if "Pipeline" in name]
    found = {name: pipeline_call(name) for name in names}
    return {name: call for name, call in found.items() if call is not None}


def test_all_classes(calls: Mapping[str, PipelineCall]) -> None:
    passed = {
        name
        for name, call in calls.items()
        if {"prompt", "generator"} <= call.arguments.keys()
        and not product(call)
        and not needed_inputs(call)
    }
    wanted = {f"{name}Pipeline" for name in TEXT_TO_IMAGE.split()}
    assert len(calls) > 280
    wanted = wanted - {"StableDiffusionSafePipeline"} | {"StableDiffusionPipelineSafe"}
    assert passed == wanted


def test_the_reasons(calls: Mapping[str, PipelineCall]) -> None:
    assert {n: (needed_inputs(calls[n]), product(calls[n])) for n in SURPRISING} == SURPRISING


def test_what_each_prompt_must_have(calls: Mapping[str, PipelineCall]) -> None:
    found = {
        name: needed_parameters(call)
        for name, call in calls.items()
        if name.removesuffix("Pipeline") in TEXT_TO_IMAGE.split() and needed_parameters(call)
    }
    assert found == {
        "BriaFiboEditPipeline": ["height", "width"],
        "StableDiffusionAttendAndExcitePipeline": ["token_indices"],
        "StableDiffusionGLIGENPipeline": ["gligen_phrases", "gligen_boxes"],
    }


def test_what_calls_read_from_their_kwargs(calls: Mapping[str, PipelineCall]) -> None:
    """Nothing but the callbacks that the runner sets itself. Another name that a newer diffusers
    reads would be accepted."""
    found = {name: call.rest for name, call in calls.items() if call.node.args.kwarg}
    assert len(found) >= 40
    assert {key for read in found.values() for key in read} == {
        "callback",
        "callback_steps",
        "prior_callback",
        "prior_callback_steps",
    }


def test_which_arguments_are_tuples(calls: Mapping[str, PipelineCall]) -> None:
    found = {
        name: {kind in call.wants(name) for kind in ("list", "List")}
        for call in calls.values()
        if call.name.removesuffix("Pipeline") in TEXT_TO_IMAGE.split()
        for name in call.arguments
        if "tuple[" in call.wants(name).lower()
    }
    assert {name for name, has_list in found.items() if True not in has_list} == set(TUPLES)
