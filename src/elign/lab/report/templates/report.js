// Draws the figures from the embedded data, follows the theme, sorts tables and moves the slider. No network, no state
// beyond the page except the reader's choice of theme.
(function () {
  "use strict";
  const root = document.documentElement;
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const darkSystem = window.matchMedia("(prefers-color-scheme: dark)");
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  // Not plotly's own "responsive": it waits for the window and then a while longer, see below.
  const settings = { responsive: false, displayModeBar: false, displaylogo: false };

  // ---- colours: specifications name them "@name" or "@name/opacity"; the style sheet holds their values ----
  function resolve(name) {
    const parts = name.slice(1).split("/");
    const hex = getComputedStyle(root).getPropertyValue("--" + parts[0]).trim();
    if (parts.length < 2) return hex;
    const channels = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return "rgba(" + channels.join(",") + "," + parts[1] + ")";
  }
  function coloured(value) {
    if (typeof value === "string") return /^@[a-z]+(-\d+)?(\/[\d.]+)?$/.test(value) ? resolve(value) : value;
    if (Array.isArray(value)) return value.map(coloured);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, coloured(inner)]));
    }
    return value;
  }
  // A figure is drawn when the reader comes near it: a long report opens at once, on a phone too.
  const plots = Array.from(document.querySelectorAll("[data-figure]"));
  const drawn = new Set();
  function draw(plot) {
    const specification = coloured(report.figures[plot.dataset.figure]);
    if (touch) specification.layout.dragmode = false;
    drawn.add(plot);
    Plotly.react(plot, specification.data, specification.layout, settings);
    // Plotly measures texts in a picture outside of the page, which has nothing to say.
    const measure = document.getElementById("js-plotly-tester");
    if (measure) measure.setAttribute("aria-hidden", "true");
  }
  function drawAll() { plots.forEach(draw); }
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "600px" });
  window.addEventListener("beforeprint", drawAll);

  // The drawing has a width of its own and would stick out of a page that became narrower. This is called before the
  // narrower page is painted, and also when the window stays as it is and only a scroll bar appears.
  const sizes = new ResizeObserver((entries) => {
    for (const entry of entries) {
      if (drawn.has(entry.target) && entry.contentRect.width) Plotly.relayout(entry.target, { autosize: true });
    }
  });
  plots.forEach((plot) => { near.observe(plot); sizes.observe(plot); });

  // ---- theme ----
  const themeButton = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : darkSystem.matches);
  function themeChanged() {
    themeButton.setAttribute("aria-pressed", String(isDark()));
    drawn.forEach(draw);
  }
  // Some browsers refuse storage to files opened from disk; the choice then lasts as long as the page.
  function remembered() { try { return localStorage.getItem("report-theme"); } catch { return null; } }
  function remember(theme) { try { localStorage.setItem("report-theme", theme); } catch { /* not remembered */ } }
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    themeChanged();
  });
  darkSystem.addEventListener("change", themeChanged);

  // ---- sortable tables: ascending, descending, as printed ----
  function compare(one, other) {
    const [a, b] = [Number(one), Number(other)];
    return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b;
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const printed = Array.from(body.rows);
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      head.setAttribute("aria-sort", "none");
      head.querySelector("button").addEventListener("click", () => {
        const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
        heads.forEach((each) => each.setAttribute("aria-sort", each === head ? next : "none"));
        const value = (row) => row.cells[column].dataset.value.replace("-inf", "-Infinity");
        const sign = next === "descending" ? -1 : 1;
        const rows = next === "none" ? printed : printed.slice().sort((a, b) => sign * compare(value(a), value(b)));
        body.append(...rows);
      });
    });
  }

  // ---- the walk through the steps ----
  for (const controls of document.querySelectorAll("[data-walk]")) {
    const name = controls.dataset.walk;
    const frames = report.frames[name];
    const slider = controls.querySelector("input");
    const text = controls.querySelector("output");
    const play = controls.querySelector("button");
    const plot = document.getElementById("figure-" + name);
    const description = plot.getAttribute("aria-label");
    const traces = report.figures[name].data;
    let shown = 0;
    let moving = 0;
    let timer = 0;

    const between = (from, to, part) => from.map((list, k) => list.map((value, i) => value + (to[k][i] - value) * part));
    function place(from, to, part) {
      const x = between(frames.x[from], frames.x[to], part);
      const y = between(frames.y[from], frames.y[to], part);
      Plotly.restyle(plot, { x: x, y: y, "marker.symbol": frames.symbols[to] }, frames.traces);
    }
    function show(index) {
      const from = shown;
      shown = index;
      // Kept in the specification too, so that a change of theme redraws this step.
      frames.traces.forEach((trace, k) => {
        traces[trace].x = frames.x[index][k];
        traces[trace].y = frames.y[index][k];
        traces[trace].marker.symbol = frames.symbols[index][k];
      });
      slider.value = index;
      slider.setAttribute("aria-valuetext", frames.texts[index]);
      text.textContent = frames.texts[index];
      plot.setAttribute("aria-label", description + " Now: " + frames.texts[index] + ".");
      cancelAnimationFrame(moving);
      if (!drawn.has(plot)) return;
      if (calm.matches || Math.abs(from - index) !== 1) return place(index, index, 1);
      // A short glide lets the eye follow single points; it shows no step that was not computed for longer than that.
      const start = performance.now();
      const glide = (now) => {
        const part = (now - start) / 250;
        if (part >= 1) return place(index, index, 1);
        place(from, index, Math.max(0, part));
        moving = requestAnimationFrame(glide);
      };
      moving = requestAnimationFrame(glide);
    }
    function stop() {
      clearInterval(timer);
      timer = 0;
      play.textContent = "Play";
      text.setAttribute("aria-live", "polite");
    }
    slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
    play.addEventListener("click", () => {
      if (timer) return stop();
      text.setAttribute("aria-live", "off");
      play.textContent = "Pause";
      show(shown === frames.texts.length - 1 ? 0 : shown + 1);
      timer = setInterval(() => {
        if (shown >= frames.texts.length - 1) {
          stop();
          // Said once, now that the walk has ended.
          text.textContent = frames.texts[shown];
        } else show(shown + 1);
      }, 600);
    });
  }

  themeChanged();
})();
