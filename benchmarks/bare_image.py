"""One image of the demo model with diffusers alone: `python bare_image.py PATH`."""

import argparse

import torch
from diffusers import DiffusionPipeline

from runner.demo import MODEL_DIR, PARAMETERS

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("path")
path = parser.parse_args().path
pipe = DiffusionPipeline.from_pretrained(MODEL_DIR, dtype=torch.float32)
if torch.accelerator.is_available():
    pipe.to(torch.accelerator.current_accelerator())
generator = torch.Generator("cpu").manual_seed(1)
pipe("a red heart", generator=generator, **PARAMETERS).images[0].save(path)
