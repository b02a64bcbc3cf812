"""Remarks for the user about the model, one line each."""

import itertools

from runner import demo
from runner.model import files as model
from runner.model.complete import without_variant
from runner.plan import Plan
from runner.units import first_few

__all__ = ["model_notices"]

LOOKED_AT = 10_000  # prompts, for words that the demo model does not know


def model_notices(plan: Plan) -> list[str]:
    """What the bundled model does not know, and components that lack the variant asked for."""
    return [*_demo_notices(plan), *_variant_notices(plan)]


def _variant_notices(plan: Plan) -> list[str]:
    spec = plan.manifest.model
    folder = model.local_folder(spec) if spec.variant else None
    plain = without_variant(spec, folder) if folder else []
    if not plain:
        return []
    return [f"{', '.join(plain)}: no variant {spec.variant}, so the plain weights are used"]


def _demo_notices(plan: Plan) -> list[str]:
    """What the bundled model does not know; nothing for any other model."""
    if plan.manifest.model.id != "demo":
        return []
    lines = []
    first = itertools.islice(plan.prompts, LOOKED_AT)
    strange = next((item.prompt for item in first if not demo.knows(item.prompt)), None)
    if strange is not None:
        words = first_few(sorted(demo.WORDS))
        lines.append(
            f'the demo model knows no word of "{strange[:60]}"; it knows {words}, all in '
            f"runner/demo/README.md"
        )
    for size in plan.sizes:
        if size not in demo.SIZES:
            known = ", ".join(f"{width}×{height}" for height, width in sorted(demo.SIZES))
            lines.append(
                f"the demo model was not trained for {size[1]}×{size[0]}; it knows {known}"
            )
    return lines
