"""The API page documents the public names of `mixattn`: all of them, and nothing else."""

import re
from pathlib import Path

import mixattn

API_PAGE = Path(__file__).parents[2] / "book" / "api.md"


def test_api_page_lists_each_public_name_once():
    listed = re.findall(
        r"^\.\. auto(?:class|function):: mixattn\.(\w+)$", API_PAGE.read_text("utf-8"), re.M
    )
    assert sorted(listed) == sorted(mixattn.__all__)
