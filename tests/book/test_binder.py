"""Binder's environment: what repo2docker makes of it, and the chapters run in it by a server."""

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile

import notebooks
import pytest
import websocket

ROOT = notebooks.ROOT
BINDER = ROOT / ".binder"
VENV = ROOT / "_build" / "binder"


def pins(path):
    """Return {name: set of version and marker} of a pinned list."""
    found = {}
    for line in path.read_text("utf-8").splitlines():
        if line and not line.startswith(("#", "-")):
            name, _, rest = line.partition("==")
            found.setdefault(name, set()).add(rest.split(";")[0].strip())
    return found


def test_pins_are_those_of_the_book():
    book, binder = pins(ROOT / "requirements.txt"), pins(BINDER / "requirements.txt")
    assert binder
    assert {name: versions for name, versions in binder.items() if versions != book.get(name)} == {}


def test_pins_are_complete():
    for folder in (ROOT, BINDER):
        asked = re.findall(r"^[a-z][\w-]*", (folder / "requirements.in").read_text("utf-8"), re.M)
        assert set(asked) <= pins(folder / "requirements.txt").keys(), "run `make lock`"


def test_environment_is_lean():
    assert not {"sphinx", "jupyter-book", "pytest", "playwright"} & set(
        pins(BINDER / "requirements.txt")
    )


def test_repo2docker_makes_the_expected_dockerfile(tmp_path):
    # A copy without the builds: repo2docker would otherwise look at everything in the folder.
    source = tmp_path / "book"
    shutil.copytree(BINDER, source / ".binder")
    for name in ("pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, source)
    done = subprocess.run(
        [sys.executable, "-m", "repo2docker", "--no-build", "--debug", str(source)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    dockerfile = done.stdout + done.stderr
    assert "conda environment for python=3.11" in dockerfile
    install = re.search(r"RUN .*/bin/pip install --no-cache-dir -r (\S+)", dockerfile)
    assert install.group(1) == '".binder/requirements.txt"'
    assert "RUN ./.binder/postBuild" in dockerfile
    # The whole book's list stands at the root; Binder's own folder keeps it out.
    assert not re.search(r"-r .?requirements\.txt", dockerfile)


def copy_package(tree):
    """Copy what an installation needs: setuptools leaves files beside the sources."""
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)


def test_a_plain_installation_brings_the_mathematics_alone(tmp_path):
    copy_package(tmp_path / "tree")
    script = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "tree", check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    folders = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"mixattn"}


def install(python):
    """Install Binder's list: with uv, which is much faster, or else with pip as Binder does."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (uv, pip):
        done = subprocess.run(
            [*command, "-r", BINDER / "requirements.txt"],
            capture_output=True,
            text=True,
            env={**os.environ, "UV_SYSTEM_CERTS": "1"},
            check=False,
        )
        if done.returncode == 0:
            return
    pytest.fail(f"cannot install Binder's list:\n{done.stderr}")


@pytest.fixture(scope="module")
def binder_python():
    """Return the Python of an environment made from .binder/ alone; it is kept between runs."""
    digest = hashlib.sha256(sys.version.encode())
    inputs = [*BINDER.iterdir(), ROOT / "pyproject.toml", *(ROOT / "src").rglob("*.py")]
    for path in sorted(inputs):
        digest.update(path.read_bytes())
    stamp = VENV / "key"
    requirements = (BINDER / "requirements.txt").read_text("utf-8")
    python = VENV / "bin" / "python"
    installed = VENV / "requirements.txt"
    if not installed.exists() or installed.read_text("utf-8") != requirements:
        venv.create(VENV, with_pip=True, clear=True)
        install(python)
        installed.write_text(requirements, "utf-8")
    if not stamp.exists() or stamp.read_text("utf-8") != digest.hexdigest():
        tree = VENV / "tree"  # it stays: the installation points to it
        copy_package(tree)
        path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path}
        subprocess.run(["bash", BINDER / "postBuild"], cwd=tree, check=True, env=environment)
        stamp.write_text(digest.hexdigest(), "utf-8")
    return python


@pytest.fixture(scope="module")
def server(binder_python, tmp_path_factory):
    """Start a Jupyter server there, in a copy of the chapters; give its address and token."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(ROOT / "book", home / "book", ignore=shutil.ignore_patterns("_ext", "_static"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "JUPYTER_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"IPYTHONDIR": str(home / "ipython"), "JUPYTER_CONFIG_DIR": str(home / "config")}
    options = ["--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--port={port}"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [binder_python, "-m", "jupyter_server", *options, f"--IdentityProvider.token={token}"],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    address = f"127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://{address}/api?token={token}", timeout=5).close()
                break
            except OSError:
                ended = process.poll() is not None or time.monotonic() > deadline
                assert not ended, (home / "log").read_text()
                time.sleep(0.25)
        yield address, token
    finally:
        process.terminate()
        process.wait(timeout=20)


def execute(server, path):
    """Run a notebook through the server's API; return the output of every code cell."""
    address, token = server
    request = urllib.request.Request(
        f"http://{address}/api/kernels?token={token}",
        data=json.dumps({"name": "python3", "path": path}).encode(),
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        kernel = json.load(answer)["id"]
    with urllib.request.urlopen(
        f"http://{address}/api/contents/{path}?token={token}", timeout=60
    ) as answer:
        cells = json.load(answer)["content"]["cells"]
    channel = websocket.create_connection(
        f"ws://{address}/api/kernels/{kernel}/channels?token={token}", timeout=120
    )
    try:
        return [
            run_cell(channel, "".join(cell["source"]))
            for cell in cells
            if cell["cell_type"] == "code"
        ]
    finally:
        channel.close()


def run_cell(channel, source):
    """Send one cell and collect its outputs until the kernel is idle again."""
    header = {
        "msg_id": secrets.token_hex(16),
        "msg_type": "execute_request",
        "session": "test",
        "username": "test",
        "version": "5.3",
    }
    content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
    message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}}
    channel.send(json.dumps(message | {"content": content}))
    outputs = []
    while True:
        answer = json.loads(channel.recv())
        if answer["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        kind, content = answer["header"]["msg_type"], answer["content"]
        if kind == "error":
            pytest.fail("\n".join(content["traceback"]))
        if kind == "stream":
            outputs.append(content["text"])
        elif kind in {"display_data", "execute_result"}:
            outputs.append(content["data"].get("text/plain", "") + "\n")
        elif kind == "status" and content["execution_state"] == "idle":
            return "".join(outputs)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", notebooks.chapter_paths(), ids=lambda path: path.stem)
def test_chapter_runs_in_binder_and_prints_the_same(server, chapter):
    committed = [
        "".join(
            output["text"]
            if output.output_type == "stream"
            else output.data.get("text/plain", "") + "\n"
            for output in cell.outputs
        )
        for cell in notebooks.read(chapter).cells
        if cell.cell_type == "code"
    ]
    assert execute(server, f"book/{chapter.name}") == committed
