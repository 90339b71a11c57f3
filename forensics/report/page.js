"use strict";
(() => {
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  /* Theme: the system's, until the reader chooses. Storage may be closed for files; the choice then lasts for this visit. */
  try { const kept = localStorage.getItem("forensics-theme"); if (kept === "dark" || kept === "light") root.dataset.theme = kept; } catch { /* closed */ }
  $("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("forensics-theme", root.dataset.theme); } catch { /* closed */ }
    restyle();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => restyle());

  /* Copy buttons. */
  const legacyCopy = (text) => {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    try { await navigator.clipboard.writeText(button.dataset.copy); } catch { legacyCopy(button.dataset.copy); }
    const before = words.page_copy || button.textContent;
    button.textContent = words.page_copied || "✓";
    setTimeout(() => { button.textContent = before; }, 1600);
  });

  /* A link to a layer opens it. */
  const openTarget = () => { const target = location.hash && $(location.hash.slice(1)); if (target instanceof HTMLDetailsElement) target.open = true; };
  addEventListener("hashchange", openTarget);
  openTarget();

  /* Compressed parts of the page. */
  const unpack = async (id) => {
    const text = $(id).textContent;
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  let words = {};
  let plot = null;
  let drawn = false;
  let log = false;
  let range = null;
  let printing = false;

  /* Ranks: a reading under the matrix, arrow keys, the whole table on demand. */
  function ranks(rows) {
    const grid = $("grid");
    if (!grid) return;
    const read = $("rank-read"), ring = $("grid-on");
    const columns = Number(grid.dataset.columns), wide = Number(grid.dataset.wide), high = Number(grid.dataset.high);
    let at = Math.max(0, rows.findIndex((r) => r[7]));
    const label = ["ranks_rank", "ranks_place", "ranks_last_step", "ranks_last_seen", "ranks_collective", "ranks_error", "ranks_exit"].map((k) => words[k]);
    const show = (i) => {
      if (!(i >= 0 && i < rows.length)) return;
      at = i;
      ring.setAttribute("x", (at % columns) * wide);
      ring.setAttribute("y", Math.floor(at / columns) * high);
      ring.classList.add("on");
      const row = rows[at];
      const parts = row.slice(1, 7).map((v, k) => (v ? (k ? `${label[k + 1]}: ${v}` : v) : "")).filter(Boolean);
      read.textContent = `${label[0]} ${row[0]}${row[7] ? " (" + words.ranks_odd + ")" : ""} · ${parts.join(" · ") || words.ranks_nothing}`;
    };
    const over = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(grid.getScreenCTM().inverse());
      const column = Math.floor(point.x / wide);
      if (column >= 0 && column < columns) show(Math.floor(point.y / high) * columns + column);
    };
    grid.addEventListener("pointermove", over);
    grid.addEventListener("click", over);
    grid.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      show(at + by);
    });
    if (rows.some((r) => r[7])) show(at);
    const all = $("all-ranks");
    all.addEventListener("toggle", () => {
      const box = all.querySelector(".scroll");
      if (!all.open || box.firstChild) return;
      const table = document.createElement("table");
      const head = table.createTHead().insertRow();
      for (const text of label) { const th = document.createElement("th"); th.scope = "col"; th.textContent = text; head.append(th); }
      const body = table.createTBody();
      for (const row of rows) {
        const tr = body.insertRow();
        if (row[7]) tr.className = "odd";
        row.slice(0, 7).forEach((value) => { tr.insertCell().textContent = value === "" ? "–" : value; });
      }
      box.append(table);
    });
  }

  /* The plot. */
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const wrap = (text) => safe(text.replace(/(.{80})/g, "$1\n")).replace(/\n/g, "<br>");
  const TINTS = { light: ["#1c56b0", "#b3202a", "#17683f", "#8a4fc4", "#9a6200", "#0b7285", "#a43a86", "#5b6470"], dark: ["#8fb9ff", "#ff8585", "#6cd3a0", "#c3a3f5", "#f3c463", "#66d0e4", "#ee9bd4", "#a4aebb"] };
  const MARK = { fatal: ["x", 11], error: ["diamond", 9], warning: ["triangle-up", 9], info: ["circle", 6], debug: ["circle", 5] };

  function figure() {
    const isDark = dark() && !printing;
    const tints = TINTS[isDark ? "dark" : "light"];
    const ink = printing ? "#000" : colour("ink"), soft = printing ? "#444" : colour("soft"), line = printing ? "#ccc" : colour("line"), hot = printing ? "#a3161f" : colour("hot");
    const timed = plot.axis === "time";
    const width = printing ? 680 : $("plot").parentElement.clientWidth - 8;
    const narrow = width < 560;
    const eventRows = [...new Set(plot.marks.map((m) => m.source))];
    const gap = printing ? 20 : 26;
    const events = eventRows.length ? 34 + (printing ? 16 : 24) * eventRows.length : 0;
    /* On paper the whole figure stands on one page. */
    const laneHeight = printing ? Math.max(24, Math.min(104, (850 - events) / Math.max(1, plot.lanes.length) - gap)) : narrow ? 92 : 104;
    const heights = plot.lanes.map(() => laneHeight);
    if (events) heights.push(events);
    const inner = heights.reduce((a, b) => a + b, 0) + gap * Math.max(0, heights.length - 1);
    const top = 40, bottom = 44;
    const traces = [];
    const layout = {
      width, height: inner + top + bottom, margin: { l: narrow ? 58 : 86, r: 14, t: top, b: bottom }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink }, showlegend: false, hovermode: "closest", dragmode: narrow ? false : "zoom",
      hoverlabel: { bgcolor: isDark ? "#20262e" : "#fff", bordercolor: soft, font: { color: isDark ? "#e9ecf0" : "#161a20", size: 12 }, align: "left" },
      xaxis: { type: timed ? "date" : "linear", gridcolor: line, linecolor: line, zeroline: false, tickfont: { color: soft }, anchor: "free", position: 0, side: "bottom", tickformatstops: timed ? [{ dtickrange: [null, 59999], value: "%H:%M:%S\n%Y-%m-%d" }, { dtickrange: [60000, 86399999], value: "%H:%M\n%Y-%m-%d" }, { dtickrange: [86400000, null], value: "%m-%d\n%Y" }] : [], nticks: narrow ? 4 : 10 },
      shapes: [], annotations: [],
    };
    if (timed && plot.ranges.all) layout.xaxis.range = (range || plot.ranges.all).map((v) => v + plot.zone);
    let up = inner;
    heights.forEach((height, i) => {
      const name = i ? `yaxis${i + 1}` : "yaxis", ref = i ? `y${i + 1}` : "y";
      const domain = [Math.max(0, (up - height) / inner), up / inner];
      const lane = plot.lanes[i];
      layout.annotations.push({ xref: "paper", yref: "paper", x: 0, y: domain[1], xanchor: "left", yanchor: "bottom", showarrow: false, text: safe(lane ? lane.title + (lane.unit ? ` (${lane.unit})` : "") : words.window_events), font: { size: 12, color: soft } });
      up -= height + gap;
      if (!lane) {
        layout[name] = { domain, anchor: "x", type: "category", categoryarray: eventRows.slice().reverse().map(safe), categoryorder: "array", fixedrange: true, gridcolor: line, tickfont: { color: soft, size: 11 }, range: [-0.6, eventRows.length - 0.4], automargin: false };
        if (narrow) layout[name].tickfont.size = 9;
        for (const severity of Object.keys(MARK)) {
          const items = plot.marks.filter((m) => m.severity === severity);
          if (!items.length) continue;
          traces.push({ type: "scatter", mode: "markers", xaxis: "x", yaxis: ref, x: items.map((m) => m.x + plot.zone), y: items.map((m) => safe(m.source)), text: items.map((m) => wrap(m.text) + "<br>" + safe(m.at)), hovertemplate: "%{x|%H:%M:%S}<br>%{text}<extra></extra>", marker: { symbol: MARK[severity][0], size: MARK[severity][1], color: severity === "fatal" || severity === "error" ? hot : severity === "warning" ? tints[4] : soft } });
        }
        return;
      }
      const useLog = log && lane.log && lane.curves.some((c) => c.y.some((v) => v > 0));
      layout[name] = { domain, anchor: "x", type: useLog ? "log" : "linear", gridcolor: line, zeroline: false, linecolor: line, tickfont: { color: soft, size: 11 }, fixedrange: true, nticks: 4, exponentformat: lane.unit ? "none" : "e", rangemode: lane.unit ? "tozero" : "normal" };
      lane.curves.forEach((curve, k) => {
        const x = curve.x.map((v) => v + curve.x0 + (timed ? plot.zone : 0));
        const tint = curve.culprit ? hot : tints[k % tints.length === 1 ? 5 : k % tints.length];
        const tip = x.map((_, n) => (curve.step && curve.step[n] !== null ? `${safe(words.window_step)} ${curve.step[n]}<br>` : ""));
        const y = useLog ? curve.y.map((v) => (v > 0 ? v : null)) : curve.y;
        traces.push({ type: "scatter", mode: x.length < 40 ? "lines+markers" : "lines", name: safe(curve.name), xaxis: "x", yaxis: ref, x, y, text: tip, connectgaps: false, hovertemplate: (timed ? "%{x|%H:%M:%S}<br>" : `${safe(words.window_step)} %{x}<br>`) + "%{text}" + `${safe(curve.name).replace(/[%{}]/g, "")}: %{y}<extra></extra>`, line: { color: tint, width: curve.culprit ? 2.4 : 1.5 }, marker: { size: 4, color: tint } });
        if (curve.bad) {
          const finite = y.filter((v) => v !== null);
          const level = finite.length ? finite.reduce((a, b) => Math.max(a, b)) : 1;
          traces.push({ type: "scatter", mode: "markers", name: safe(curve.name), xaxis: "x", yaxis: ref, x: curve.bad.map(([n]) => x[n]), y: curve.bad.map(() => level), text: curve.bad.map(([n, v]) => `${tip[n]}${safe(curve.name).replace(/[%{}]/g, "")}: ${v} (${safe(words.window_nonfinite)})`), hovertemplate: (timed ? "%{x|%H:%M:%S}<br>" : "%{x}<br>") + "%{text}<extra></extra>", marker: { symbol: "x", size: 8, color: hot } });
        }
      });
    });
    plot.lines.forEach((mark) => {
      const tone = { healthy: isDark ? "#6cd3a0" : "#17683f", failure: hot, ended: soft }[mark.kind];
      layout.shapes.push({ type: "line", xref: "x", yref: "paper", x0: mark.x + plot.zone, x1: mark.x + plot.zone, y0: 0, y1: 1, line: { color: tone, width: mark.kind === "failure" ? 2 : 1.2, dash: mark.kind === "failure" ? "solid" : "dash" } });
      const [from, to] = layout.xaxis.range || [mark.x, mark.x + 1];
      const place = (mark.x + plot.zone - from) / (to - from);
      if (place < 0 || place > 1) return;
      layout.annotations.push({ xref: "x", yref: "paper", x: mark.x + plot.zone, y: mark.kind === "ended" ? 0 : 1, yanchor: mark.kind === "ended" ? "top" : "bottom", xanchor: place > 0.7 ? "right" : "left", yshift: { healthy: 8, failure: 22, ended: -26 }[mark.kind], showarrow: false, text: safe(mark.label), font: { size: 11, color: tone } });
    });
    return { traces, layout };
  }

  function draw() {
    if (!window.Plotly || !plot) return;
    const { traces, layout } = figure();
    window.Plotly.react("plot", traces, layout, { displayModeBar: false, responsive: false, doubleClick: "reset", scrollZoom: false });
    if (!drawn) {
      drawn = true;
      $("plot").querySelector(".wait")?.remove();
      $("plot").on("plotly_relayout", (change) => { if ("xaxis.autorange" in change || "xaxis.range[0]" in change) press(null); });
    }
  }
  const restyle = () => { if (drawn) draw(); };
  const press = (name) => document.querySelectorAll("[data-range]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.range === name)));

  async function plotting() {
    if (!$("plotly")) return;
    try {
      /* plotly sets style attributes; the policy forbids those as attributes but not as properties. */
      const set = Element.prototype.setAttribute;
      Element.prototype.setAttribute = function (name, value) { if (name === "style" && this.style) this.style.cssText = value; else set.call(this, name, value); };
      const script = document.createElement("script");
      const shared = $("plotly").dataset.src;
      if (!shared) script.textContent = await unpack("plotly");
      /* The bundle also brings the style sheet of a map library; maps are not drawn here and the policy would refuse it. */
      const make = document.createElement;
      document.createElement = function (name, ...more) {
        const element = make.call(document, name, ...more);
        if (name === "style") Object.defineProperty(element, "textContent", { set() {} });
        return element;
      };
      /* Pages of one archive share a copy of the library beside them. */
      if (shared) await new Promise((done, failed) => { script.onload = done; script.onerror = failed; script.src = shared; document.head.append(script); });
      else document.head.append(script);
      document.createElement = make;
      $("plotly").remove();
      draw();
    } catch (error) {
      $("plot").textContent = words.window_failed;
      console.warn(error);
    }
  }

  document.querySelectorAll("[data-range]").forEach((button) => button.addEventListener("click", () => {
    range = plot.ranges[button.dataset.range];
    press(button.dataset.range);
    draw();
  }));
  $("log")?.addEventListener("change", (event) => { log = event.target.checked; draw(); });
  let wait = 0;
  addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(restyle, 150); });
  matchMedia("print").addEventListener("change", (event) => { printing = event.matches; restyle(); });

  unpack("state").then((text) => {
    const state = JSON.parse(text);
    words = state.words;
    plot = state.plot;
    ranks(state.ranks);
    /* The first screen is read first: the plot's library is unpacked when the browser is idle. */
    (window.requestIdleCallback || setTimeout)(plotting);
  });
})();
