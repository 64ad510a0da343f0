"""The Chinese README says the same: code, output and figures are those of the English one, and so are its links."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)]+)\)")
CODE = re.compile(r"`([^`]+)`")
OTHER = {"README.md", "README.zh-CN.md"}


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def prose(name):
    return BLOCK.sub("", text(name))


def test_code_and_output_are_the_same_in_the_same_order():
    assert BLOCK.findall(text("README.zh-CN.md")) == BLOCK.findall(text("README.md"))


def test_links_lead_to_the_same_places_in_the_same_order():
    english, chinese = ([link for link in LINK.findall(prose(name)) if link not in OTHER] for name in sorted(OTHER))
    assert chinese == english


def test_commands_and_names_are_the_same():
    assert set(CODE.findall(prose("README.zh-CN.md"))) == set(CODE.findall(prose("README.md")))


def test_each_leads_to_the_other():
    assert "(README.zh-CN.md)" in text("README.md")
    assert "(README.md)" in text("README.zh-CN.md")


def test_chinese_sentences_have_chinese_punctuation():
    wrong = re.findall(r"[\u4e00-\u9fff][,;:?!]", CODE.sub("", LINK.sub("]", prose("README.zh-CN.md"))))
    assert wrong == []
