"""What only the report of a detection run has, in a real browser: pictures with boxes, and the table of classes.

That the page opens without a word in the console, asks for nothing, turns dark and fits a phone is tested for all
reports in `test_reports.py`; here the same is asked of the pictures.
"""

from __future__ import annotations

import pytest

PHONE = (420, 860)
PICTURES = """
return Array.from(document.querySelectorAll("svg.picture"), (svg) => {
  const box = svg.getBoundingClientRect();
  const image = svg.querySelector("image").getBoundingClientRect();
  return {
    words: svg.getAttribute("aria-label") || "", role: svg.getAttribute("role"), visible: svg.checkVisibility(),
    width: box.width, height: box.height, right: box.right, image: Math.min(image.width, image.height),
  };
});
"""
SIDEWAYS = "const root = document.documentElement; return root.scrollWidth > root.clientWidth"
CELLS = "return Array.from(arguments[0].tBodies[0].rows, (row) => row.cells[arguments[1]].textContent)"


@pytest.fixture
def opened(browser, detection_report):
    browser.open(detection_report)
    return browser


def test_every_picture_is_seen_and_said(opened):
    pictures = opened.run(PICTURES)
    assert len(pictures) >= 3
    for picture in pictures:
        assert picture["role"] == "img"
        assert "found" in picture["words"]
        assert "there is" in picture["words"]
        assert picture["visible"]
        assert min(picture["width"], picture["height"], picture["image"]) > 0
        # None is blown up over the whole page.
        assert picture["height"] < 500
    # Those of one test image stand side by side.
    tops = "return Array.from(arguments[0].querySelectorAll('svg'), (svg) => svg.getBoundingClientRect().top)"
    for row in opened.driver.find_elements("css selector", ".panels"):
        assert len(set(opened.run(tops, row))) == 1
    # The page's own rules must not forbid what it shows.
    decode = """
    const done = arguments[0];
    const images = Array.from(document.querySelectorAll("svg.picture image"), (image) => image.decode());
    Promise.all(images).then(() => done(images.length), (error) => done(String(error)));
    """
    assert opened.driver.execute_async_script(decode) == len(pictures)
    assert opened.messages() == []


def test_classes_sort_by_name_and_by_task(opened):
    (table,) = opened.driver.find_elements("css selector", "#detections ~ .scroll table")
    heads = table.find_elements("css selector", "thead button")
    assert [head.text for head in heads[:3]] == ["class", "task", "base"]
    printed = opened.run(CELLS, table, 0)
    assert len(printed) == 10

    def choose(column):
        opened.run("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", heads[column])
        heads[column].click()
        return opened.run(CELLS, table, column)

    assert choose(1) == ["1"] * 5 + ["2"] * 5
    assert choose(1) == ["2"] * 5 + ["1"] * 5
    assert (choose(0), choose(0), choose(0)) == (printed, printed[::-1], printed)


@pytest.mark.parametrize("touch", [True, False])
def test_pictures_fit_a_phone(opened, touch):
    opened.size(PHONE, touch=touch)
    opened.frame()
    assert opened.run("return innerWidth") == PHONE[0]
    assert not opened.run(SIDEWAYS)
    for picture in opened.run(PICTURES):
        assert picture["right"] <= PHONE[0]
        # Wide enough to see what is on it.
        assert picture["width"] > 100


def test_dark_colours_leave_pictures_as_they_are(opened):
    colours = """
    const box = document.querySelector("svg.picture rect.there");
    const words = document.querySelector(".panels figcaption");
    const page = getComputedStyle(document.body).backgroundColor;
    return [page, getComputedStyle(words).color, getComputedStyle(box).stroke];
    """
    day = opened.run(colours)
    opened.dark(True)
    opened.wait("return document.getElementById('theme').getAttribute('aria-pressed') === 'true'")
    opened.frame()
    night = opened.run(colours)
    assert night[0] != day[0]
    assert night[1] != day[1]
    assert night[2] == day[2]


def test_speaks_of_average_precision(opened):
    text = opened.run("return document.body.innerText")
    assert "Mean average precision after each task" in text
    assert "of each region whether it lies on an old object" in text
    assert "of each test image" not in text
    titles = opened.run("return JSON.parse(document.getElementById('report-data').textContent).figures")
    assert titles["curves"]["layout"]["yaxis"]["title"]["text"] == "mean average precision (%)"
