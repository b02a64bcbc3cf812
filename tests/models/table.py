"""Write runner/model/proven.json and docs/models.md: make models-table

Runs tests/models and takes down what each test finds. Exit code 1 where there is a fault.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import PYTHONPATH, ROOT
from support.proven import FILE, PAGE, page, read, table


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="findings-") as name:
        environment = {**os.environ, "FINDINGS": name, "PYTHONPATH": PYTHONPATH}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/models", *arguments]
        ended = subprocess.run(command, cwd=ROOT, env=environment)
        found = table(read(Path(name) / "pipelines"), read(Path(name) / "schedulers"))
    if ended.returncode:
        return ended.returncode
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")
    for case, reason in found["faults"].items():
        print(f"fault: {case}: {reason}")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
