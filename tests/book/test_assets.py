"""Third-party browser code: pinned, verified, and kept out of the repository."""

import base64
import hashlib
import io
import re
import sys
import tarfile

import assets
import pytest
from notebooks import ROOT


def archive(**files):
    """Return the bytes of a tarball with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            tar.addfile(item, io.BytesIO(content))
    return buffer.getvalue()


def test_what_the_site_serves_is_pinned():
    assert assets.SERVED.keys() <= assets.PINS.keys()
    for pin in assets.PINS.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", pin["version"])
        algorithm, _, digest = pin["integrity"].partition("-")
        assert algorithm == "sha512"
        assert len(base64.b64decode(digest, validate=True)) == 64


def test_a_changed_download_is_refused():
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(b"good").digest()).decode()
    assets.verify(b"good", integrity, "x")
    with pytest.raises(ValueError, match="pins sha512"):
        assets.verify(b"evil", integrity, "x")


def test_only_the_wanted_files_are_unpacked_and_none_outside(tmp_path, monkeypatch):
    tarball = tmp_path / "x.tgz"
    files = {"package/a.js": b"a", "package/f/b.woff": b"b", "package/f/c.txt": b"c"}
    files |= {
        "package/f/../../../evil.woff": b"e",
        "/etc/evil.woff": b"e",
        "package/g/f/d.woff": b"d",
    }
    tarball.write_bytes(archive(**files))
    monkeypatch.setattr(assets, "tarball", lambda name: tarball)
    assets.unpack("x", {"a.js": "a.js", "f/*.woff": "fonts"}, tmp_path / "out")
    written = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert written == ["out/a.js", "out/fonts/b.woff", "x.tgz"]


def test_a_wrong_download_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "CACHE", tmp_path)
    monkeypatch.setitem(assets.PINS, "x", {"version": "1.0.0", "integrity": "sha512-AAAA"})
    script = "import pathlib, sys; pathlib.Path(sys.argv[-1], 'x-1.0.0.tgz').write_bytes(b'evil')"
    monkeypatch.setattr(assets, "node", lambda tool: [sys.executable, "-c", script])
    with pytest.raises(ValueError, match="pins sha512"):
        assets.tarball("x")
    assert list(tmp_path.iterdir()) == []


def test_no_third_party_code_is_in_the_sources():
    # Asked of the folders, not of git: the book may come as an archive.
    folders = (".binder", ".ci", ".github", "assignments", "benchmarks", "book", "src", "tools")
    files = [path.name for folder in folders for path in (ROOT / folder).rglob("*")]
    assert "assets.py" in files
    assert not [name for name in files if name.endswith((".tgz", ".woff", ".woff2", ".min.js"))]
