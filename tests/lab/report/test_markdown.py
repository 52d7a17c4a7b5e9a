"""Blocks inside markdown pages."""

from __future__ import annotations

import pytest

from elign.lab.report.markdown import PageError, update_section


def test_update_section_replaces_only_the_block(tmp_path):
    page = tmp_path / "page.md"
    page.write_bytes(b"top\n<!-- begin toy -->\nold\nlines\n<!-- end toy -->\nbottom")
    update_section(page, "toy", "| a |\n")
    assert page.read_bytes() == b"top\n<!-- begin toy -->\n| a |\n<!-- end toy -->\nbottom"
    update_section(page, "toy", "| a |\n")
    assert page.read_bytes() == b"top\n<!-- begin toy -->\n| a |\n<!-- end toy -->\nbottom"


def test_a_page_that_is_not_there_is_named_with_what_it_must_hold(tmp_path):
    with pytest.raises(PageError, match=r"there is no page .*begin mine"):
        update_section(tmp_path / "page.md", "mine", "text")


def test_update_section_keeps_windows_line_ends_and_other_blocks(tmp_path):
    page = tmp_path / "page.md"
    page.write_bytes(b"<!-- begin a --><!-- end a -->\r\n<!-- begin b -->\r\nstay\r\n<!-- end b -->\r\n")
    update_section(page, "a", "x\ny")
    expected = b"<!-- begin a -->\r\nx\r\ny\r\n<!-- end a -->\r\n<!-- begin b -->\r\nstay\r\n<!-- end b -->\r\n"
    assert page.read_bytes() == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nothing", "no marker <!-- begin toy -->"),
        ("<!-- begin toy -->", "no marker <!-- end toy -->"),
        ("<!-- begin toy -->\n<!-- begin toy -->\n<!-- end toy -->", "2 times the marker <!-- begin toy -->"),
        ("<!-- begin toy -->\n<!-- end toy -->\n<!-- end toy -->", "2 times the marker <!-- end toy -->"),
        ("<!-- end toy -->\n<!-- begin toy -->", "comes before"),
    ],
)
def test_update_section_refuses_unclear_markers(tmp_path, content, message):
    page = tmp_path / "page.md"
    page.write_text(content)
    with pytest.raises(PageError, match=message):
        update_section(page, "toy", "new")
    assert page.read_text() == content
