"""Serve the built site to this machine alone."""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent / "_build" / "html"
PORT = 8000


def main() -> None:
    """Serve on the first free port from 8000 on, until interrupted."""
    handler = partial(SimpleHTTPRequestHandler, directory=SITE)
    for port in range(PORT, PORT + 50):
        try:
            server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except OSError:
            continue
        break
    else:
        raise SystemExit(f"no free port from {PORT} to {port}")
    print(f"Open http://127.0.0.1:{port}/ (Ctrl-C stops the server)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
