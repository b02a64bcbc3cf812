"""The folders of tiny models, by family."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support import phased_families as families
from support import tiny

from runner import demo
from runner.render.load import quiet_libraries


@pytest.fixture(scope="session")
def family_folder(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's model, which is made when it is first asked for."""
    quiet_libraries()
    home = tmp_path_factory.mktemp("families")
    known = {"flux": models / "flux", "qwen": models / "qwen", "demo": demo.MODEL_DIR}

    def folder(family: str) -> Path:
        path = known.get(family, home / family)
        if not path.exists():
            tiny.stable_diffusion_3(path) if family == "sd3" else families.save(family, path)
        return path

    return folder
