"""The reports in a real browser: they open, move, sort, fit a phone, turn dark, and ask nobody for anything.

Last comes what only the report of detectors has: pictures with boxes, and the table of classes.
"""

from __future__ import annotations

import math

import pytest

PHONE = (420, 860)
POINTS = """
const plot = document.getElementById("figure-" + document.querySelector("[data-walk]").dataset.walk);
return Array.from(plot.querySelectorAll("path.point"), (point) => {
  const place = point.transform.baseVal.consolidate().matrix;
  return [place.e, place.f];
});
"""
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
CELLS = "return Array.from(arguments[0].tBodies[0].rows, (row) => row.cells[arguments[1]].textContent)"
COLUMN = "return Array.from(arguments[0].tBodies[0].rows, (row) => Number(row.cells[arguments[1]].dataset.value))"
TITLES = "return Array.from(arguments[0].tBodies[0].rows, (row) => row.cells[0].textContent)"
TOO_WIDE = """
const root = document.documentElement;
const wide = Array.from(document.querySelectorAll(".plot svg.main-svg"))
  .filter((svg) => svg.getBoundingClientRect().right > svg.closest(".plot").getBoundingClientRect().right + 1)
  .map((svg) => svg.closest(".plot").id);
return [root.scrollWidth > root.clientWidth, wide];
"""


def find(page, selector):
    return page.driver.find_element("css selector", selector)


def settle(page):
    """Until a walk's glide has ended."""
    last = None
    for _ in range(100):
        page.frame()
        now = page.run(POINTS)
        if now == last:
            return now
        last = now
    raise AssertionError("the points do not come to rest")


def moved(before, after):
    """How many points are elsewhere; plotly's margins may change by a pixel when it draws again."""
    return sum(math.dist(a, b) > 2 for a, b in zip(before, after, strict=True))


def test_draws_every_figure_without_a_word_in_the_console(page):
    page.draw_all()
    assert page.run("return document.querySelectorAll('[data-figure]').length") >= 4
    assert page.messages() == []


def test_asks_for_nothing(page):
    page.draw_all()
    asked = page.requests()
    # The page itself is in the log, so the log works.
    assert asked[0].startswith("file:")
    assert all(address.startswith(("data:", "blob:")) for address in asked[1:]), asked[1:]


def test_slider_moves_the_points_by_keyboard(walk_page):
    page = walk_page
    slider = find(page, "[data-walk] input")
    page.draw(find(page, "[data-walk] + .plot"))
    said = find(page, "[data-walk] output")
    start, text = settle(page), said.text
    page.run("arguments[0].focus()", slider)
    page.press("ARROW_RIGHT")
    one = settle(page)
    assert said.text != text
    assert slider.get_attribute("aria-valuetext") == said.text
    page.press("END")
    end = settle(page)
    assert len(start) == len(one) == len(end) > 20
    # What does not belong to an old image stays where it is.
    assert 0 < moved(start, end) < len(start)
    assert moved(start, one) > 0
    assert moved(one, end) > 0
    page.press("HOME")
    assert moved(settle(page), start) == 0
    assert said.text == text


def test_play_walks_to_the_end(walk_page):
    page = walk_page
    button = find(page, "[data-walk] button")
    page.draw(find(page, "[data-walk] + .plot"))
    page.run("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    assert button.text == "Pause"
    page.wait("const s = document.querySelector('[data-walk] input'); return s.value === s.max")
    page.wait("return arguments[0].textContent === 'Play'", button)


@pytest.mark.parametrize("how", ["click", "keyboard"])
def test_tables_sort(walk_page, how):
    page = walk_page
    table = find(page, "table.sortable")
    printed = page.run(TITLES, table)
    heads = table.find_elements("css selector", "thead button")
    # The first column of numbers that are not all alike; texts and missing numbers are None.
    columns = {number: page.run(COLUMN, table, number) for number in range(1, len(heads))}
    column = next(number for number, each in columns.items() if None not in each and len(set(each)) > 1)

    def choose():
        page.run("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", heads[column])
        if how == "click":
            heads[column].click()
        else:
            page.run("arguments[0].focus()", heads[column])
            page.press("ENTER")
        return page.run("return arguments[0].closest('th').getAttribute('aria-sort')", heads[column])

    assert choose() == "ascending"
    values = page.run(COLUMN, table, column)
    assert values == sorted(values)
    assert choose() == "descending"
    assert page.run(COLUMN, table, column) == values[::-1]
    assert choose() == "none"
    assert page.run(TITLES, table) == printed


def test_everything_that_is_seen_has_words(page):
    page.draw_all()
    wordless = """
    const named = (element) => (element.getAttribute("aria-label") || element.getAttribute("alt") || "").trim();
    const seen = document.querySelectorAll("img, canvas, [role=img], svg:not([aria-hidden=true])");
    return Array.from(seen).filter((e) => !named(e) && !e.closest("[role=img][aria-label]")).map((e) => e.outerHTML);
    """
    assert page.run(wordless) == []
    labels = page.run("return Array.from(document.querySelectorAll('[data-figure]'), (e) => e.ariaLabel)")
    assert len(labels) >= 4
    assert all(len(label) > 40 for label in labels)
    assert all(
        figure.find_elements("css selector", "figcaption")
        for figure in page.driver.find_elements("css selector", "figure")
    )


@pytest.mark.parametrize("touch", [True, False])
def test_nothing_sticks_out_on_a_phone(page, touch):
    page.draw_all()
    page.size(PHONE, touch=touch)
    # At once, not after a while: a page that was made narrower must not scroll sideways for a moment either.
    page.frame()
    assert page.run(TOO_WIDE) == [False, []]
    page.driver.refresh()
    page.draw_all()
    assert page.run("return innerWidth") == PHONE[0]
    assert page.run(TOO_WIDE) == [False, []]
    cut = """
    return Array.from(document.querySelectorAll(".plot")).flatMap((plot) => {
      const right = plot.getBoundingClientRect().right + 1;
      const texts = Array.from(plot.querySelectorAll("text"));
      return texts.filter((text) => text.getBoundingClientRect().right > right).map((text) => text.textContent);
    });
    """
    assert page.run(cut) == []


def test_follows_the_theme_of_the_system_and_the_button(page):
    colours = """
    const text = document.querySelector(".plot svg.main-svg text");
    return [getComputedStyle(document.body).backgroundColor, getComputedStyle(text).fill];
    """
    pressed = "return document.getElementById('theme').getAttribute('aria-pressed')"
    page.draw(find(page, ".plot"))
    day = page.run(colours)
    page.dark(True)
    page.wait(f"{pressed} === 'true'")
    page.frame()
    night = page.run(colours)
    assert all(sum(_channels(a)) > sum(_channels(b)) for a, b in [(day[0], night[0]), (night[1], day[1])])
    page.run("document.getElementById('theme').focus()")
    page.press("SPACE")
    page.frame()
    assert page.run(colours) == day
    assert page.run(pressed) == "false"
    page.run("localStorage.clear()")


def test_everything_can_be_reached_by_keyboard(page):
    reached = set()
    focus = "const e = document.activeElement; return e === document.body ? null : Array.from(all()).indexOf(e)"
    every = "const all = () => document.querySelectorAll('a[href], button, input, summary, .scroll, pre');"
    hidden = "return Array.from(all()).flatMap((e, i) => e.checkVisibility() ? [] : [i])"
    count = page.run(f"{every} return all().length")
    for _ in range(count + 5):
        page.press("TAB")
        now = page.run(every + focus)
        if now is None or (now in reached and now == 0):
            break
        reached.add(now)
    folded = set(page.run(every + hidden))
    assert reached == set(range(count)) - folded


def _channels(colour):
    return [int(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]


@pytest.fixture
def opened(browser, detection_report):
    browser.open(detection_report)
    return browser


@pytest.mark.parametrize("touch", [True, False])
def test_pictures_fit_a_phone_in_any_colours(opened, touch):
    colours = """
    const box = document.querySelector("svg.picture rect.there");
    const words = document.querySelector(".panels figcaption");
    return [getComputedStyle(words).color, getComputedStyle(box).stroke];
    """
    day = opened.run(colours)
    opened.size(PHONE, touch=touch)
    opened.dark(True)
    opened.wait("return document.getElementById('theme').getAttribute('aria-pressed') === 'true'")
    opened.frame()
    for picture in opened.run(PICTURES):
        assert picture["right"] <= PHONE[0]
        # Wide enough to see what is on it.
        assert picture["width"] > 100
    night = opened.run(colours)
    assert night[0] != day[0]
    assert night[1] == day[1]


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
