"use strict";
(() => {
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  try { const kept = localStorage.getItem("forensics-theme"); if (kept === "dark" || kept === "light") root.dataset.theme = kept; } catch { /* closed */ }
  $("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("forensics-theme", root.dataset.theme); } catch { /* closed */ }
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());

  const HEIGHT = 34;
  let state = null, order = [], sort = { column: 1, down: true }, measure = "count", cause = "";

  /* The table: only the rows in view exist. */
  const text = (row, column) => {
    const value = state.columns[column.id][row];
    if (value === null || value === undefined) return "–";
    if (column.kind === "time") return new Date(value * 1000).toISOString().slice(0, 16).replace("T", " ");
    if (column.kind === "span") return value >= 172800 ? (value / 86400).toFixed(1) + " d" : value >= 5400 ? (value / 3600).toFixed(1) + " h" : value >= 90 ? (value / 60).toFixed(0) + " min" : value.toFixed(0) + " s";
    if (column.kind === "share") return Math.round(value * 100) + " %";
    if (column.kind === "hours") return value >= 100 ? value.toFixed(0) : value.toFixed(1);
    return String(column.words ? column.words[value] ?? value : value);
  };
  function heads() {
    const line = $("rows").querySelector("thead").insertRow();
    state.table.forEach((column, at) => {
      const th = document.createElement("th");
      th.scope = "col";
      th.style.width = column.width + "px";
      if (column.number) th.className = "num";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = column.title;
      button.title = state.words.sort.replace("{column}", column.title);
      button.addEventListener("click", () => { sort = { column: at, down: sort.column === at ? !sort.down : Boolean(column.number) }; select(); });
      th.append(button);
      line.append(th);
    });
  }
  function select() {
    const wanted = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const layer = $("layer").value;
    order = [];
    for (let row = 0; row < state.count; row += 1) {
      if (layer && state.columns.layer[row] !== layer) continue;
      if (cause && state.columns.cause[row] !== cause) continue;
      if (wanted.length && !wanted.every((word) => state.text[row].includes(word))) continue;
      order.push(row);
    }
    const column = state.table[sort.column], values = state.columns[column.id], way = sort.down ? -1 : 1;
    const key = column.words ? (row) => column.words[values[row]] ?? values[row] : (row) => values[row];
    order.sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === y) return a - b;
      if (x === null) return 1;
      if (y === null) return -1;
      return (x < y ? -1 : 1) * way;
    });
    $("rows").querySelectorAll("thead th").forEach((th, at) => th.setAttribute("aria-sort", at === sort.column ? (sort.down ? "descending" : "ascending") : "none"));
    $("shown").textContent = state.words.shown.replace("{n}", order.length).replace("{all}", state.count);
    $("rows").scrollTop = 0;
    view();
  }
  function view() {
    const box = $("rows"), body = box.querySelector("tbody");
    const first = Math.max(0, Math.floor(box.scrollTop / HEIGHT) - 10), last = Math.min(order.length, first + Math.ceil(box.clientHeight / HEIGHT) + 20);
    const lines = [];
    const gap = (height) => { const tr = document.createElement("tr"); tr.className = "gap"; tr.style.height = height + "px"; const td = document.createElement("td"); td.colSpan = state.table.length; tr.append(td); return tr; };
    if (first) lines.push(gap(first * HEIGHT));
    for (const row of order.slice(first, last)) {
      const tr = document.createElement("tr");
      state.table.forEach((column, at) => {
        const cell = document.createElement(at ? "td" : "th");
        if (column.number) cell.className = "num";
        const value = text(row, column);
        if (at) cell.textContent = value;
        else {
          cell.scope = "row";
          const link = document.createElement("a");
          link.href = "reports/" + encodeURIComponent(state.columns.run[row]) + ".html";
          link.textContent = value;
          cell.append(link);
        }
        if (value.length > 12) cell.title = value;
        tr.append(cell);
      });
      lines.push(tr);
    }
    if (last < order.length) lines.push(gap((order.length - last) * HEIGHT));
    body.replaceChildren(...lines);
  }
  let waiting = false;
  $("rows").addEventListener("scroll", () => { if (waiting) return; waiting = true; requestAnimationFrame(() => { waiting = false; view(); }); });
  addEventListener("resize", () => { if (state) view(); });
  let typing = 0;
  $("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(select, 120); });
  $("layer").addEventListener("change", () => { cause = ""; select(); });
  $("clear").addEventListener("click", () => { $("filter").value = ""; $("layer").value = ""; cause = ""; select(); });
  document.addEventListener("click", (event) => {
    const pick = event.target.closest("button.pick");
    if (!pick || !state) return;
    $("filter").value = pick.dataset.text ? pick.dataset.text.toLowerCase() : "";
    $("layer").value = pick.dataset.layer || "";
    cause = pick.dataset.cause || "";
    select();
    $("runs").scrollIntoView();
  });

  /* The bars over time. */
  function draw() {
    if (!window.Plotly || !state || !$("plot")) return;
    const bars = state.time.layers.map((layer) => ({ type: "bar", name: layer.label, x: state.time.x, y: layer[measure], marker: { color: colour(layer.tone) }, hovertemplate: "%{x|%Y-%m-%d}: %{y:.5~g}<extra>" + layer.label + "</extra>" }));
    const ink = colour("ink"), line = colour("line"), soft = colour("soft"), narrow = $("plot").parentElement.clientWidth < 560;
    window.Plotly.react("plot", bars, {
      barmode: "stack", width: $("plot").parentElement.clientWidth - 8, height: 340, margin: { l: 56, r: 14, t: 12, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink }, showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: soft } }, dragmode: false,
      hoverlabel: { bgcolor: colour("card"), bordercolor: soft, font: { color: ink, size: 12 } }, bargap: 0.15,
      xaxis: { type: "date", gridcolor: line, linecolor: line, tickfont: { color: soft }, nticks: narrow ? 4 : 10, fixedrange: true }, yaxis: { gridcolor: line, zeroline: false, tickfont: { color: soft }, fixedrange: true, rangemode: "tozero" },
    }, { displayModeBar: false, responsive: false });
    $("plot").querySelector(".wait")?.remove();
  }
  document.querySelectorAll("[data-measure]").forEach((button) => button.addEventListener("click", () => {
    measure = button.dataset.measure;
    document.querySelectorAll("[data-measure]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    draw();
  }));
  async function plotting() {
    if (!$("plot")) return;
    /* plotly sets style attributes and a style sheet for maps; the policy allows properties only. */
    const set = Element.prototype.setAttribute, make = document.createElement;
    Element.prototype.setAttribute = function (name, value) { if (name === "style" && this.style) this.style.cssText = value; else set.call(this, name, value); };
    document.createElement = function (name, ...more) {
      const element = make.call(document, name, ...more);
      if (name === "style") Object.defineProperty(element, "textContent", { set() {} });
      return element;
    };
    try {
      await new Promise((done, failed) => { const script = make.call(document, "script"); script.onload = done; script.onerror = failed; script.src = state.plotly; document.head.append(script); });
      draw();
    } catch {
      $("plot").textContent = state.words.failed;
    } finally {
      document.createElement = make;
    }
  }
  let wait = 0;
  addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(draw, 150); });

  const bytes = Uint8Array.from(atob($("state").textContent), (c) => c.charCodeAt(0));
  new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text().then((unpacked) => {
    state = JSON.parse(unpacked);
    for (const name of state.interned) { const { words, at } = state.columns[name]; state.columns[name] = at.map((i) => (i < 0 ? null : words[i])); }
    state.text = Array.from({ length: state.count }, (_, row) => state.searched.map((name) => state.columns[name][row] ?? "").join(" ").toLowerCase());
    heads();
    select();
    (window.requestIdleCallback || setTimeout)(plotting);
  });
})();
