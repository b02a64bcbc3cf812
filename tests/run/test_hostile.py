"""Manifests, prompts and output folders from strangers are data, whatever they contain."""

import json
import os
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin
from support.jobs import Job, print_of

from runner.cli import main
from runner.errors import FolderError
from runner.folder import png as images
from runner.folder.journal import merge
from runner.folder.owners import live_launches, live_parts
from runner.folder.paths import OutputFolder
from runner.folder.scan import scan
from runner.manifest.schema import OutputSpec
from runner.say import printable

PROMPTS = [
    "../../../etc/passwd",
    "/etc/passwd\x00",
    "$(touch pwned) `touch pwned`; touch pwned",
    "<script>alert(1)</script>",
    "\x1b]0;pwned\x07\x1b[2J",
    "a\nb\r\n\tc",
    "\u202egnp.exe",
    "'; DROP TABLE images; --",
    "{0.__class__} %s %(x)s ${HOME}",
    "x" * 20_000,
    "\ud83e\udd8a".encode("utf-16", "surrogatepass").decode("utf-16"),
]


def test_prompts_reach_no_file_name_and_no_terminal(tmp_path: Path) -> None:
    job = Job(tmp_path, prompts=PROMPTS)
    end = job.run()
    assert end.code == 0, end.err
    assert job.images() == [f"{i:06d}.png" for i in range(len(PROMPTS))]
    assert [line["prompt"] for line in job.metadata()] == PROMPTS
    assert "\x1b" not in end.err + end.out
    left = {path.name for path in tmp_path.rglob("*")}
    assert not any("pwned" in name or "passwd" in name for name in left)


def test_words_for_a_terminal() -> None:
    assert printable("a\x1b[2Jb\x07\nc\u202e") == "a\ufffd[2Jb\ufffd\nc\ufffd"


@pytest.mark.parametrize(
    "text",
    [
        "model: demo\nprompts: !!python/object/apply:os.system ['touch pwned']\n",
        "model: !!python/name:os.system demo\nprompts: [a]\n",
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in pairwise("abcdefghi")),
        "model: demo\nprompts: " + "[" * 5000 + "]" * 5000 + "\n",
        "model: demo\nprompts: [" + "9" * 5000 + "]\n",
        "<<: *x\nmodel: demo\nprompts: [a]\n",
        "model: demo\noutput: {dir: [1]}\nprompts: [a]\n",
    ],
    ids=["call", "name", "laughs", "deep", "digits", "no anchor", "list"],
)
def test_hostile_yaml_is_refused_in_words(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(text)
    assert main(["validate", "job.yaml"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("runner: job.yaml")
    assert len(err) < 20_000
    assert not Path("pwned").exists()


def test_no_line_of_an_error_is_endless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"model: demo\nprompts: [a]\nparameters: *{'x' * 5000}\n")
    assert main(["validate", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.endswith("xxx before it\n")
    assert len(err) < 1100


@pytest.mark.parametrize("words", [["validate", "a\udcff.yaml"], ["m.yaml", "--output", "\udcff"]])
def test_words_that_are_not_utf8_are_refused_in_a_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "not UTF-8" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["journal", "locks", "locks/guard", "summary.json", "000000"])
def test_links_in_the_output_folder_are_not_followed(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path, 3, output=str(tmp_path / "out"))
    if name == "000000":
        values = job.manifest.read_text().replace(
            f"output: {job.output}", f"output: {{dir: {job.output}, images_per_folder: 2}}"
        )
        job.manifest.write_text(values)
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = job.output / (name if name[0] in "s0" else f".runner/{name}")
    inside.parent.mkdir(parents=True, exist_ok=True)
    (job.output / ".runner").mkdir(exist_ok=True)
    inside.symlink_to(outside / "new" if "guard" in name or "json" in name else outside)
    end = job.run()
    assert end.code == 2
    assert f"{inside}: a link, which the runner does not follow" in end.err
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["locks/guard", "locks/batches", "trial.json", "refused"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_own_files_that_are_no_files(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    folder = OutputFolder(tmp_path, OutputSpec())
    folder.locks.mkdir(parents=True)
    make(folder.own / name)
    with pytest.raises(FolderError, match=f"{name}: (is not a file|a link)"):
        folder.check()


def test_an_image_that_is_a_link_is_foreign(tmp_path: Path) -> None:
    job = Job(tmp_path, 3)
    assert job.run().code == 0
    outside = tmp_path / "outside.png"
    (job.output / "000001.png").rename(outside)
    (job.output / "000001.png").symlink_to(outside)
    before = outside.read_bytes()
    end = job.run()
    assert end.code == 2
    assert "not written by the runner" in end.err
    assert outside.read_bytes() == before


def test_the_stop_file_is_no_way_out(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "out", OutputSpec())
    folder.own.mkdir(parents=True)
    folder.stop_file(None).symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        folder.ask_to_stop(None)
    assert not (tmp_path / "outside").exists()


def test_hostile_journals_and_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.folder.owners.GLANCE_S", 0.5)
    folder = OutputFolder(tmp_path, OutputSpec())
    folder.journals.mkdir(parents=True)
    lines = [
        '{"done": "x"}',
        '{"done": 1e999, "fingerprint": "F", "size": 1, "crc": 1, "made": {}}',
        '{"done": 1, "fingerprint": "F", "size": "big", "crc": 1, "made": {}}',
        '{"done": 2, "fingerprint": "F", "size": 1, "crc": 1, "made": 7}',
        '{"done": -1, "fingerprint": "F", "size": 1, "crc": 1, "made": {}}',
        '{"failed": [], "fingerprint": {}, "kind": 1, "error": null}',
        '{"verified": 5}',
        "[" * 100_000,
        "\x00\xff",
        '{"done": 3, "fingerprint": "F", "size": 1, "crc": 1, "made": {}}',
    ]
    data = "".join(f"{line}\n" for line in lines).replace('"F"', f'"{print_of(7)}"')
    (folder.journals / "000001-00000-aa.jsonl").write_bytes(data.encode("latin-1"))
    os.mkfifo(folder.journals / "000002-00000-bb.jsonl")
    (folder.journals / "000003-00000-cc.jsonl").symlink_to("/dev/zero")
    assert sorted(merge(folder.journals, 10).done) == [3]
    folder.locks.mkdir()
    for name, text in (("all", '{"pid": "x"}'), ("1-of-2", '{"shard": [1], "pid": 1}')):
        (folder.locks / f"{name}.json").write_text(text)
        os.utime(folder.locks / f"{name}.json", (0, 0))
    assert live_launches(folder) == set()
    assert live_parts(folder) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("failures.jsonl", '{"kind": "my own notes", "x": 1}'),
        ("summary.json", '{"launch": {"id": []}, "budget": 3}'),
        ("metadata.jsonl", '{"file_name": "a.png", "fingerprint": "mine"}'),
        ("summary.json", '["launch", "outcome"]'),
    ],
)
def test_a_report_with_a_word_of_ours_is_not_ours(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text + "\n")
    with pytest.raises(FolderError, match=f"{name}: was not written by the runner"):
        OutputFolder(tmp_path, OutputSpec()).check()


def test_hidden_names_that_are_nearly_ours(tmp_path: Path) -> None:
    """A file is a leftover only if its whole name fits the pattern; a FIFO is not opened."""
    folder = OutputFolder(tmp_path, OutputSpec())
    for name in (".000002.png.claim", ".holiday.jpg.claim", "000003.png.claim"):
        (tmp_path / name).write_text("0a0b0c0d")
    os.mkfifo(tmp_path / ".000004.png.claim")
    part = "5f3a90c2.0a0b0c0d.part"
    (tmp_path / f".000001.png.{part}").mkdir()
    (tmp_path / f".000005.png.{part}").symlink_to(tmp_path)
    (tmp_path / f".000006.png.{part}").touch()
    found = {path.name: launch for path, launch in scan(folder, range(9)).temporaries}
    assert found == {".000002.png.claim": "0a0b0c0d", f".000006.png.{part}": "5f3a90c2"}


def test_a_hostile_image_is_no_image_of_ours(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    assert job.run().code == 0
    path = job.output / "000001.png"
    text = images.read_text(path)
    assert text is not None
    info = PngImagePlugin.PngInfo()
    info.add_text("fingerprint", text["fingerprint"])
    info.add_text("made", "[[[")
    Image.new("RGB", (4, 4)).save(path, pnginfo=info)
    for journal in (job.output / ".runner" / "journal").glob("*"):
        journal.unlink()
    assert job.run().code == 2
    info.add_text("pixels", f"{zlib.crc32(bytes(48)):08x}")
    Image.new("RGB", (4, 4)).save(path, pnginfo=info)
    assert job.run().code == 0  # adopted: every value is forged well; its record is empty
    assert len(job.metadata()) == 2
    strange = {**job.summary(), "launch": {"x": 1}, "done": []}
    (job.output / "summary.json").write_text(json.dumps(strange))
    assert job.status() == 0
    bomb = tmp_path / "bomb.png"
    data = bytearray(path.read_bytes())
    data[16:24] = b"\x00\x00\xff\xff" * 2
    bomb.write_bytes(data)
    assert images.read_text(bomb, is_whole=True) is None
