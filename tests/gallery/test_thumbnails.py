"""Thumbnails in a folder that somebody else prepared."""

from pathlib import Path

from PIL import Image

from runner.folder.paths import OutputFolder
from runner.gallery.thumbnails import make_thumbnails
from runner.manifest.schema import OutputSpec

FINGERPRINT = "ab" * 16


def test_links_among_the_thumbnails_are_not_followed(tmp_path: Path) -> None:
    folder, documents = OutputFolder(tmp_path / "out", OutputSpec()), tmp_path / "documents"
    documents.mkdir()
    (documents / "letter.txt").write_text("dear")
    folder.thumbnails.mkdir(parents=True)
    for name in ("ab", "cd"):
        (folder.thumbnails / name).symlink_to(documents)
    Image.new("RGB", (512, 512)).save(folder.dir / "000000.png")
    rows = [{"fingerprint": FINGERPRINT, "file_name": "000000.png", "width": 512, "height": 512}]
    make_thumbnails(folder, rows)
    assert [path.name for path in documents.iterdir()] == ["letter.txt"]
    (folder.thumbnails / "ab").unlink()
    make_thumbnails(folder, rows)
    assert [path.name for path in (folder.thumbnails / "ab").iterdir()] == [f"{FINGERPRINT}.webp"]
    make_thumbnails(folder, [])
    assert not [*(folder.thumbnails / "ab").iterdir()]
    assert (documents / "letter.txt").exists()
