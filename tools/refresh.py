"""Re-execute chapters in place and put them into the one form in which they are committed.

A second run changes no byte. A chapter that raises, warns, or weighs too much is left as it was and
named.

    python tools/refresh.py                     all chapters
    python tools/refresh.py book/01_name.ipynb  some
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nbclient.exceptions import CellExecutionError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "book" / "_ext"))
import notebooks


def refresh(path: Path) -> list[str]:
    """Refresh one chapter; return what forbids it, and then leave the file alone."""
    before = notebooks.read(path)
    path.write_text(notebooks.text(notebooks.normalize(before)), "utf-8")
    try:
        after = notebooks.normalize(notebooks.execute(path, widget_state=False))
    except CellExecutionError as error:
        return [str(error)]
    if found := notebooks.problems(after):
        return found
    path.write_text(notebooks.text(after), "utf-8")
    return []


def main() -> None:
    """Refresh the chapters named on the command line, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", type=Path)
    paths = parser.parse_args().chapters or notebooks.chapter_paths()
    paths = [path.resolve() for path in paths]
    failed = False
    with ThreadPoolExecutor(2) as pool:
        for path, found in zip(paths, pool.map(refresh, paths), strict=True):
            print(f"{path.name}: {'refused' if found else 'refreshed'}", flush=True)
            for problem in found:
                print(f"  {problem}")
            failed |= bool(found)
    sys.exit(failed)


if __name__ == "__main__":
    main()
