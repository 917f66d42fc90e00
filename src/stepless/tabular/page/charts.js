"use strict";
// Shared by all parts of the page: elements, number formats, and line charts by uPlot.

const DATA = JSON.parse(document.getElementById("page-data").textContent);
const CONTESTANTS = DATA.contestants;
const COLOURS = 8;

/** Make an element. Text is added as text nodes, never parsed as HTML. */
function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

const swatch = (i) => make("span", { class: `swatch k${i % COLOURS}`, "aria-hidden": "true" });

/** Format a number; a dash if there is none. */
function show(value, digits = 4) {
  if (value == null || !Number.isFinite(value)) return "–";
  const text = value.toFixed(digits).replace(/^-/, "−");
  return /[1-9]/.test(text) ? text : text.replace("−", "");
}

/** Format a count, with one decimal if weights make it fractional. */
function showCount(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: Number.isInteger(value) ? 0 : 1 });
}

/** Format a threshold, with more digits near 0 and 1. */
function showCut(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value === 0 || value === 1) return String(value);
  return value < 0.01 || value > 0.99 ? String(Number(value.toPrecision(4))) : value.toFixed(3);
}

// ---------------------------------------------------------------------------------------------------------------------
// Charts
// ---------------------------------------------------------------------------------------------------------------------

let paint = {};
const charts = [];

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  paint = Object.fromEntries(["ground", "ink", "muted", "rule", "strong-rule", "accent"].map((name) => [name, read(name)]));
  paint.series = Array.from({ length: COLOURS }, (_, i) => read(`c${i}`));
}
readColours();

const colour = (i) => paint.series[i % COLOURS];
const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

function axis(options) {
  return {
    font: FONT, labelFont: FONT, labelSize: 22, labelGap: 0, gap: 4,
    stroke: () => paint.muted,
    grid: { stroke: () => paint.rule, width: 1 },
    ticks: { show: false },
    ...options,
  };
}

/** Format ticks with enough digits to tell neighbours apart. */
function ticks(_, splits) {
  const step = splits.length > 1 ? Math.abs(splits[1] - splits[0]) : 1;
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return splits.map((v) => v.toFixed(digits).replace("-", "−"));
}

/** Make a chart that follows the width of its host, the colours of the page and printing. */
function chart(host, height, options, data) {
  const size = () => ({ width: Math.max(host.clientWidth, 120), height: height(host.clientWidth) });
  const drawn = new uPlot(
    {
      ...size(),
      legend: { show: false },
      padding: [8, 10, 0, 0],
      ...options,
      cursor: { drag: { x: false, y: false, setScale: false }, y: false, points: { size: (u, i) => (u.series[i].silent ? 0 : 7) }, ...(options.cursor || {}) },
    },
    data,
    host,
  );
  new ResizeObserver(() => {
    if (host.clientWidth && Math.abs(host.clientWidth - drawn.width) > 1) drawn.setSize(size());
  }).observe(host);
  drawn.resize = () => drawn.setSize(size());
  charts.push(drawn);
  return drawn;
}

/** A plugin that shows the values of the lines at the pointer. */
function tooltip(host, title, label) {
  const tip = make("div", { class: "tip", hidden: true });
  host.append(tip);
  return {
    hooks: {
      setCursor: (u) => {
        const i = u.cursor.idx;
        tip.hidden = i == null || u.cursor.left < 0;
        if (tip.hidden) return;
        const lines = u.series
          .map((series, s) => ({ series, s, value: u.data[s][i] }))
          .filter(({ series, s, value }) => s > 0 && series.show && !series.silent && value != null)
          .sort((a, b) => b.value - a.value)
          .map(({ series, value }) => make("div", {}, swatch(series.colour), make("span", {}, series.label), make("b", {}, show(value, 3))));
        tip.replaceChildren(make("div", { class: "muted" }, `${title} ${label(u.data[0][i])}`), ...lines);
        const right = u.cursor.left > u.over.clientWidth / 2;
        tip.style.top = "8px";
        tip.style.left = right ? "auto" : `${u.over.offsetLeft + u.cursor.left + 12}px`;
        tip.style.right = right ? `${host.clientWidth - u.over.offsetLeft - u.cursor.left + 12}px` : "auto";
      },
    },
  };
}

/** Make a chart of lines over one x axis. */
function lineChart(host, { x, lines, xLabel, yLabel, xRange, yRange, square, guide, draw, stepped, height }) {
  const tall = height || ((width) => (square ? Math.min(Math.max(width * 0.86, 220), 400) : 280));
  const series = lines.map((line) => ({
    label: line.label, colour: line.colour, silent: line.silent, show: line.show !== false,
    stroke: () => (line.stroke ? line.stroke() : colour(line.colour)),
    width: line.width || 1.5, dash: line.dash, spanGaps: line.spanGaps, points: { show: !!line.dots, size: 6, fill: () => colour(line.colour), width: 0 },
    paths: stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
  }));
  const guides = guide ? [{ label: "", silent: true, stroke: () => paint["strong-rule"], width: 1, dash: [4, 4], points: { show: false } }] : [];
  return chart(
    host, tall,
    {
      scales: { x: { time: false, range: xRange }, y: { range: yRange } },
      axes: [axis({ label: xLabel, size: 26, values: ticks, space: 50 }), axis({ label: yLabel, size: 40, values: ticks, space: 36 })],
      series: [{}, ...series, ...guides],
      hooks: draw ? { draw: [draw] } : {},
      plugins: [tooltip(host, xLabel, showCut)],
    },
    [x, ...lines.map((line) => line.y), ...(guide ? [guide] : [])],
  );
}

/** Mark the explorer's position on a chart: a vertical line and a dot. */
function mark(u, x, y, fill) {
  if (![x, y].every((v) => v != null && Number.isFinite(v))) return;
  const { ctx, bbox } = u, ratio = window.devicePixelRatio || 1;
  const left = Math.min(u.valToPos(x, "x", true), bbox.left + bbox.width), top = Math.min(u.valToPos(y, "y", true), bbox.top + bbox.height);
  ctx.save();
  ctx.strokeStyle = paint["strong-rule"];
  ctx.lineWidth = ratio;
  ctx.setLineDash([]);
  ctx.beginPath();
  ctx.moveTo(left, bbox.top);
  ctx.lineTo(left, bbox.top + bbox.height);
  ctx.stroke();
  for (const [radius, style] of [[8, paint.ground], [6, fill]]) {
    ctx.fillStyle = style;
    ctx.beginPath();
    ctx.arc(left, top, radius * ratio, 0, 2 * Math.PI);
    ctx.fill();
  }
  ctx.restore();
}

function repaint() {
  readColours();
  for (const drawn of charts) drawn.redraw(false);
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
window.matchMedia("print").addEventListener("change", repaint);
for (const event of ["beforeprint", "afterprint"]) {
  window.addEventListener(event, () => { repaint(); charts.forEach((drawn) => drawn.resize()); });
}

// ---------------------------------------------------------------------------------------------------------------------
// The comparison: each contestant's mean, interval and folds
// ---------------------------------------------------------------------------------------------------------------------

function drawIntervals() {
  const host = document.getElementById("intervals");
  const held = CONTESTANTS.filter((c) => c.mean != null && c.interval.every((v) => v != null));
  if (!held.length) return host.remove();
  const place = held.map((_, i) => i);
  const each = (of) => held.map(of);
  const folds = Math.min(50, Math.max(...held.map((c) => c.scores.length)));
  const all = held.flatMap((c) => [...c.interval, ...c.scores.filter((v) => v != null)]);
  const low = Math.min(...all), high = Math.max(...all), room = 0.04 * (high - low || 0.1);
  const colours = () => place.map((i) => colour(CONTESTANTS.indexOf(held[i])));
  const faded = () => colours().map((c) => `${c}55`);
  const values = (of) => ({ unit: 1, values: () => of });
  const bars = uPlot.paths.bars({
    size: [0.34, 14], radius: 0.3,
    disp: { y0: values(each((c) => c.interval[0])), y1: values(each((c) => c.interval[1])), fill: { unit: 3, values: faded } },
  });
  const wide = (width) => width > 620;
  const names = (u, splits) => splits.map((i) => (held[i] ? (wide(host.clientWidth) ? clip(held[i].name, 34) : String(i + 1)) : ""));
  const none = () => null;
  const marks = (size, fill) => ({ paths: none, points: { show: true, size, width: 0, fill } });
  chart(
    host, () => 34 * held.length + 52,
    {
      scales: {
        x: { time: false, ori: 1, dir: -1, range: [-0.6, held.length - 0.4] },
        y: { ori: 0, range: [low - room, high + room] },
      },
      axes: [
        axis({ side: 3, splits: () => place, values: names, size: (u) => (wide(host.clientWidth) ? 230 : 26), grid: { show: false }, stroke: () => paint.ink }),
        axis({ side: 2, size: 26, values: ticks, label: DATA.metric, space: 60 }),
      ],
      series: [
        {},
        { width: 0, fill: () => paint.accent, paths: bars, points: { show: false } },
        ...Array.from({ length: folds }, () => marks(3.5, () => paint.muted)),
        ...held.map((c) => marks(10, () => colour(CONTESTANTS.indexOf(c)))),
      ],
      cursor: { show: false },
    },
    [
      place,
      each((c) => c.interval[1]),
      ...Array.from({ length: folds }, (_, f) => each((c) => c.scores[f] ?? null)),
      ...held.map((_, i) => held.map((c, j) => (i === j ? c.mean : null))),
    ],
  );
}
const clip = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// ---------------------------------------------------------------------------------------------------------------------
// ROC, precision–recall and calibration of one class or label
// ---------------------------------------------------------------------------------------------------------------------

// of many contestants, only the best, the winner and the baseline are shown at first
const visible = CONTESTANTS.map((c, i) => CONTESTANTS.length <= 4 || i < 3 || c.baseline || c.winner);
const emphasis = (c) => ({ width: c.baseline || c.winner ? 2.25 : 1.5, dash: c.baseline ? [6, 3] : undefined });
const curveCharts = [];
let unitPlace = 0;

function drawCurves() {
  curveCharts.splice(0).forEach((drawn) => { charts.splice(charts.indexOf(drawn), 1); drawn.destroy(); });
  const curves = DATA.curves[unitPlace];
  const lines = (name) => CONTESTANTS.map((c, i) => ({
    label: c.name, colour: i, y: curves.contestants[i][name], show: visible[i], ...emphasis(c),
  }));
  const areas = (id, name) => document.getElementById(id).replaceChildren(
    ...CONTESTANTS.map((c, i) => make("li", { hidden: !visible[i], title: c.name }, swatch(i), show(curves.contestants[i][name], 3))),
  );
  const hosts = [document.getElementById("roc"), document.getElementById("precision-recall")];
  hosts.forEach((host) => host.replaceChildren());
  const description = (what, name) => `${what}: ${CONTESTANTS.map((c, i) => `${c.name} ${show(curves.contestants[i][name], 3)}`).join(", ")}`;
  hosts.forEach((host) => host.setAttribute("role", "img"));
  hosts[0].setAttribute("aria-label", description("ROC curves, area", "area"));
  hosts[1].setAttribute("aria-label", description("Precision–recall curves, average precision", "averagePrecision"));
  curveCharts.push(
    lineChart(hosts[0], {
      x: curves.rates, lines: lines("roc"), guide: curves.rates, square: true, xRange: [0, 1], yRange: [0, 1.01],
      xLabel: "false positive rate", yLabel: "true positive rate",
    }),
    lineChart(hosts[1], {
      x: curves.recalls, lines: lines("precision"), guide: curves.recalls.map(() => curves.prevalence), square: true,
      xRange: [0, 1], yRange: [0, 1.01], xLabel: "recall", yLabel: "precision",
    }),
  );
  areas("roc-areas", "area");
  areas("pr-areas", "averagePrecision");
  drawCalibration(curves);
}

function drawCalibration(curves) {
  const host = document.getElementById("calibrations");
  host.replaceChildren();
  CONTESTANTS.forEach((c, i) => {
    const { before, after } = curves.contestants[i];
    const chartHost = make("div", { class: "chart", role: "img", "aria-label": `Calibration of ${c.name}: expected error ${before ? `${show(before.error, 3)} before, ` : ""}${show(after.error, 3)} after` });
    const table = make("div", { class: "mini" },
      make("i", {}, ""), make("i", {}, before ? "before" : ""), make("i", {}, before ? "after" : ""),
      ...[["calibration error", "error"], ["Brier score", "brier"], ["log loss", "logLoss"]].flatMap(([title, name]) => [
        make("span", {}, title), make("i", {}, before ? show(before[name], 3) : ""), make("b", {}, show(after[name], 3)),
      ]),
    );
    host.append(make("figure", {}, make("figcaption", {}, c.name), chartHost, table));
    const parts = [[after.predicted, after.observed]];
    if (before) parts.push([before.predicted, before.observed]);
    parts.push([[0, 1], [0, 1]]);
    const joined = uPlot.join(parts);
    const lines = [{ label: before ? "after" : "as it is", colour: i, y: joined[1], dots: true, spanGaps: true, width: 2 }];
    if (before) lines.push({ label: "before", colour: i, stroke: () => paint.muted, y: joined[2], spanGaps: true, dash: [3, 3] });
    const drawn = lineChart(chartHost, {
      x: joined[0], lines: [...lines, { label: "", silent: true, colour: 7, stroke: () => paint["strong-rule"], y: joined.at(-1), spanGaps: true, width: 1 }],
      xRange: [0, 1], yRange: [0, 1], xLabel: "predicted", yLabel: "observed", height: (width) => Math.min(Math.max(width * 0.85, 180), 260),
    });
    curveCharts.push(drawn);
  });
}

function drawLegend() {
  const host = document.getElementById("legend");
  CONTESTANTS.forEach((c, i) => {
    const button = make("button", { type: "button", "aria-pressed": String(visible[i]) }, swatch(i), c.name);
    button.addEventListener("click", () => {
      visible[i] = !visible[i];
      button.setAttribute("aria-pressed", String(visible[i]));
      drawCurves();
      document.dispatchEvent(new Event("shown"));
    });
    host.append(button);
  });
  if (DATA.curves.length < 2) return;
  document.getElementById("unit-title").textContent = DATA.task === "multilabel" ? "Label" : "Class against the rest";
  const select = document.getElementById("unit");
  DATA.curves.forEach((curves, i) => select.append(make("option", { value: i }, DATA.classes[curves.unit])));
  select.addEventListener("change", () => { unitPlace = Number(select.value); drawCurves(); });
  document.getElementById("unit-field").hidden = false;
}

drawIntervals();
if (CONTESTANTS.length && DATA.curves.length) {
  document.getElementById("calibration-note").textContent =
    "Rows in ten groups of similar probability: the mean predicted probability against the observed share. On the diagonal they agree. " +
    "The grey dashed line is the model before calibration, if it has one.";
  drawLegend();
  drawCurves();
} else {
  document.getElementById("curves").remove();
  document.getElementById("calibration").remove();
}
