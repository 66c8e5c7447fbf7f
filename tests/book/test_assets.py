"""Third-party browser code: pinned, verified, and kept out of the repository."""

import base64
import hashlib
import io
import json
import subprocess
import tarfile

import assets
import pytest


def archive(**files):
    """Return the bytes of a tarball with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            tar.addfile(item, io.BytesIO(content))
    return buffer.getvalue()


def test_the_lock_names_no_address_and_pins_what_the_manifest_asks_for():
    lock = json.loads((assets.HERE / "package-lock.json").read_text("utf-8"))
    manifest = json.loads((assets.HERE / "package.json").read_text("utf-8"))
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]
    for name, version in (manifest["dependencies"] | manifest["devDependencies"]).items():
        assert assets.locked(name)[0] == version


def test_a_changed_download_is_refused():
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(b"good").digest()).decode()
    assets.verify(b"good", integrity, "x")
    with pytest.raises(ValueError, match="the lock file pins"):
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


def test_no_third_party_code_is_committed():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=assets.HERE, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert not [name for name in tracked if name.endswith((".tgz", ".woff", ".woff2", ".min.js"))]
