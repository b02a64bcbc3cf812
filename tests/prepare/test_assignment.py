"""What rank 0 broadcasts, and what another rank makes of it."""

import shutil
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from runner.errors import ModelError
from runner.launch.store import LocalStore
from runner.launch.world import World
from runner.manifest.load import load
from runner.manifest.resolve import decide, fill
from runner.model import files as model
from runner.plan import Fingerprints, Plan
from runner.prepare.assignment import KEY, Assignment, broadcast, receive


def test_another_rank_must_have_the_same_weights(
    flux: Path, tmp_path: Path, manifest: Callable[..., Path]
) -> None:
    """Each host may have a copy of its own."""
    copy = Path(shutil.copytree(flux, tmp_path / "model"))
    loaded = load(manifest(model=str(copy), seed=1, prompts=["a cat"]))
    resolved = decide(loaded.manifest, None)
    whole = fill(loaded.manifest, resolved)
    plan = Plan(whole, loaded.prompts, loaded.root)
    prints = Fingerprints(whole, model.identity(whole.model))
    assignment = Assignment(
        launch="a",
        generation=1,
        begun=time.monotonic(),
        resolved=resolved,
        manifest=whole,
        plan=plan,
        fingerprints=prints,
        pending=array("Q", [0]),
        compares_first=False,
        deaths={},
    )
    store = LocalStore()
    rank: Any = SimpleNamespace(
        job=SimpleNamespace(loaded=loaded),
        store=store,
        world=World(),
        stop=SimpleNamespace(requested=False),
        heartbeat=SimpleNamespace(wait_for_value=lambda *_: store.get(KEY)),
    )
    broadcast(rank, assignment)
    got = receive(rank)
    assert got.fingerprints.of(got.plan.task(0)) == prints.of(plan.task(0))
    path = copy / "text_encoder" / "model.safetensors"
    values = {name: value * 1.1 for name, value in load_file(path).items()}
    save_file(values, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="its files on this host are not those of rank 0's host"):
        receive(rank)
