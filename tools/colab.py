"""Write copies of the chapters for Colab, in which the first cell knows the repository.

Colab gives a notebook no way to ask where it was opened from, and the committed chapters belong to
whichever repository holds them. So the deploy workflow publishes these copies on the branch
`colab`, which is where the site's Colab buttons lead.

    python tools/colab.py https://github.com/OWNER/NAME@COMMIT folder
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "book" / "_ext"))
import notebooks
import refresh

EMPTY = 'repository = ""'


def filled(path: Path, repository: str) -> str:
    """Text of a chapter whose first cell installs from `repository`."""
    notebook = notebooks.read(path)
    first = notebook.cells[0]
    if EMPTY not in first.source:
        raise ValueError(f"{path.name}: the first cell is not Colab's; run `make refresh`")
    lines = [
        f'repository = "{repository}"' if line.startswith(EMPTY) else line
        for line in first.source.splitlines()
    ]
    first.source = "\n".join(lines)
    return refresh.text(notebook)


def main(repository: str, folder: Path) -> None:
    """Write every chapter's copy under the same path as in the repository."""
    for path in notebooks.chapter_paths():
        target = folder / path.relative_to(notebooks.ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(filled(path, repository), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
