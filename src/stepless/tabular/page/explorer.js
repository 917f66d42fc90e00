"use strict";
// The explorer: knobs move the decisions, and counts and metrics follow, by formulas traced from the Python ones.

const HELD = DATA.explorer;
const MULTICLASS = DATA.task === "multiclass";
const K = DATA.classes.length;
const DENSE = MULTICLASS && K > 5; // with so many classes, columns are numbered instead of named
const MOST_CELLS = 40;
const ONE = FORMULAS.one.length ? FORMULAS.one : FORMULAS.all;

/** The tuned positions of a contestant's knobs; ½ or no offset if nothing was tuned. */
function tunedKnobs(contestant) {
  const tuned = CONTESTANTS[contestant].tuned || [];
  if (MULTICLASS) return Array.from({ length: K }, (_, k) => tuned[k] ?? 0);
  return HELD.units.map((unit, u) => nearest(unit.cuts, tuned[u] ?? 0.5));
}

function plainKnobs() {
  return MULTICLASS ? new Array(K).fill(0) : HELD.units.map((unit) => nearest(unit.cuts, 0.5));
}

function nearest(cuts, value) {
  let low = 0, high = cuts.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (cuts[middle] <= value) low = middle; else high = middle;
  }
  return value - cuts[low] <= cuts[high] - value ? low : high;
}

// ---------------------------------------------------------------------------------------------------------------------
// Counts
// ---------------------------------------------------------------------------------------------------------------------

/** The counts tp, fp, fn, tn of a label at one of its cuts. */
function cellsAt(contestant, unit, cut) {
  const { tp, fp, positive, negative } = HELD.units[unit];
  const hits = tp[contestant][cut], alarms = fp[contestant][cut];
  return [hits, alarms, Math.max(positive - hits, 0), Math.max(negative - alarms, 0)];
}

function decode(text, Type) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Type(bytes.buffer);
}
const sample = MULTICLASS && HELD ? { target: decode(HELD.target, Uint16Array), logs: HELD.logs.map((log) => decode(log, Float32Array)) } : null;

/** The confusion matrix, row by row: a sample is decided as the class with the highest log-probability minus offset. */
function matrixAt(contestant, offsets) {
  const matrix = new Float64Array(K * K), logs = sample.logs[contestant];
  for (let row = 0; row < HELD.rows; row++) {
    let best = 0;
    for (let k = 1; k < K; k++) {
      if (logs[row * K + k] - offsets[k] > logs[row * K + best] - offsets[best]) best = k;
    }
    matrix[sample.target[row] * K + best] += HELD.weight ? HELD.weight[row] : 1;
  }
  return matrix;
}

/** The counts tp, fp, fn, tn of each class against the rest; sums only, as a difference could round an empty cell. */
function cellsOf(matrix) {
  const cells = new Float64Array(4 * K), rows = new Float64Array(K);
  for (let t = 0; t < K; t++) for (let d = 0; d < K; d++) rows[t] += matrix[t * K + d];
  for (let t = 0; t < K; t++) {
    for (let d = 0; d < K; d++) {
      const count = matrix[t * K + d];
      if (t === d) { cells[4 * t] = count; continue; }
      cells[4 * d + 1] += count;
      cells[4 * t + 2] += count;
      cells[4 * d + 3] += rows[t] - count;
    }
  }
  return cells;
}

function countsAt(contestant, knobs) {
  if (MULTICLASS) {
    const matrix = matrixAt(contestant, knobs);
    return { matrix, cells: cellsOf(matrix) };
  }
  return { matrix: null, cells: knobs.flatMap((cut, unit) => cellsAt(contestant, unit, cut)) };
}

// ---------------------------------------------------------------------------------------------------------------------
// The page
// ---------------------------------------------------------------------------------------------------------------------

function explore() {
  const prices = [1, 1];
  const state = CONTESTANTS.map((_, i) => tunedKnobs(i));
  let current = Math.max(CONTESTANTS.findIndex((c) => c.winner), 0);
  let focus = 0; // the label or class of the chart and the matrix
  let charted = 0; // the metric of the chart
  const value = (m, counts) => FORMULAS.all[m](counts.cells, counts.matrix, prices);

  // the metric of the comparison first, then those with costs of errors, then all others
  const order = DATA.metrics.map((_, m) => m).sort((a, b) => rank(a) - rank(b) || a - b);
  function rank(m) { return DATA.metrics[m].chosen || (DATA.asked && m === 0) ? 0 : DATA.metrics[m].priced ? 1 : 2; }

  // --- knobs -------------------------------------------------------------------------------------------------------
  const names = DATA.task === "binary" ? ["Threshold"] : DATA.classes;
  const reach = MULTICLASS ? Math.max(3, ...CONTESTANTS.flatMap((c) => c.tuned || []).map((o) => Math.ceil(1.2 * Math.abs(o ?? 0)))) : 0;
  const knobs = names.map((name, u) => {
    const what = DATA.task === "binary" ? "Threshold" : MULTICLASS ? `Offset of ${name}` : `Threshold of ${name}`;
    const range = make("input", MULTICLASS
      ? { type: "range", min: -reach, max: reach, step: 0.01, "aria-label": what }
      : { type: "range", min: 0, max: HELD.units[u].cuts.length - 1, step: 1, "aria-label": what });
    const number = make("input", { type: "number", step: 0.01, "aria-label": `${what}, typed`, ...(MULTICLASS ? {} : { min: 0, max: 1 }) });
    range.addEventListener("input", () => { state[current][u] = Number(range.value); turned(u); });
    number.addEventListener("change", () => {
      const typed = Number(number.value);
      if (number.value !== "" && Number.isFinite(typed)) state[current][u] = MULTICLASS ? typed : nearest(HELD.units[u].cuts, typed);
      turned(u);
    });
    return { range, number, row: make("div", { class: "knob" }, make("span", {}, name), range, number) };
  });

  function turned(u) {
    const moved = focus !== u;
    focus = u;
    if (moved && focusSelect) focusSelect.value = String(u);
    update(moved || MULTICLASS);
  }

  // --- parts -------------------------------------------------------------------------------------------------------
  const select = make("select", { "aria-label": "Contestant" }, ...CONTESTANTS.map((c, i) => make("option", { value: i }, c.name)));
  select.value = String(current);
  select.addEventListener("change", () => { current = Number(select.value); update(MULTICLASS); });

  const button = (text, press) => make("button", { type: "button", class: "act", onclick: press }, text);
  const set = (knobsOf) => () => { state[current] = knobsOf(current); update(MULTICLASS); };
  const buttons = [
    button(MULTICLASS ? "Tuned offsets" : names.length > 1 ? "Tuned thresholds" : "Tuned threshold", set(tunedKnobs)),
    button(MULTICLASS ? "No offsets" : "½", set(plainKnobs)),
  ];
  if (DATA.task === "binary") buttons.push(button("Least cost on these rows", set(cheapest)));

  function cheapest(contestant) {
    const cost = (cut) => { const [, alarms, misses] = cellsAt(contestant, 0, cut); return prices[0] * alarms + prices[1] * misses; };
    return [HELD.units[0].cuts.reduce((best, _, cut) => (cost(cut) < cost(best) ? cut : best), 0)];
  }

  const price = (place, text) => {
    const input = make("input", { type: "number", min: 0, step: "any", value: 1, id: `price-${place}` });
    input.addEventListener("input", () => {
      const typed = Number(input.value);
      const good = input.value !== "" && Number.isFinite(typed) && typed > 0;
      input.setAttribute("aria-invalid", String(!good));
      if (!good) return;
      prices[place] = typed;
      // the threshold of least expected cost for calibrated probabilities
      const pays = prices[0] / (prices[0] + prices[1]);
      state[current] = HELD.units.map((unit) => nearest(unit.cuts, pays));
      update(true);
    });
    return make("label", { class: "field" }, make("span", {}, text), input);
  };
  const costs = MULTICLASS ? null : make("div", { class: "row" }, price(0, "A false alarm costs"), price(1, "a miss costs"));

  const focusSelect = names.length > 1
    ? make("select", { "aria-label": MULTICLASS ? "Class of the chart" : "Label of the chart and the table" }, ...names.map((name, i) => make("option", { value: i }, name)))
    : null;
  if (focusSelect) focusSelect.addEventListener("change", () => { focus = Number(focusSelect.value); update(true); });

  const summary = make("p", { role: "status", "aria-live": "polite", id: "summary" });
  const rules = make("p", { id: "rules" });
  const matrix = make("div", { class: "scroll-x", id: "confusion", tabindex: DENSE ? 0 : null, "aria-label": DENSE ? "Confusion matrix" : null, role: DENSE ? "region" : null });
  const rows = order.map((m) => {
    const metric = DATA.metrics[m];
    const here = make("td", { class: "number", "data-metric": metric.name }), there = make("td", { class: "number muted" });
    return { m, here, there, row: make("tr", { class: metric.chosen ? "chosen" : null, title: metric.summary }, make("th", { scope: "row" }, metric.name), here, there) };
  });
  const scores = make("table", { class: "scores", id: "scores" },
    make("caption", {}, names.length > 1 ? `Every metric${DATA.average ? `, average ${DATA.average}` : ""}` : "Every metric"),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "metric"), make("th", { scope: "col", class: "number" }, "here"), make("th", { scope: "col", class: "number" }, "tuned"))),
    make("tbody", {}, ...rows.map(({ row }) => row)));

  const metricSelect = make("select", { "aria-label": "Metric of the chart" }, ...order.filter((m) => MULTICLASS || ONE[m]).map((m) => make("option", { value: m }, DATA.metrics[m].name)));
  charted = Number(metricSelect.value);
  metricSelect.addEventListener("change", () => { charted = Number(metricSelect.value); update(true); });
  const chartHost = make("div", { class: "chart", id: "metric-chart", role: "img" });
  const against = MULTICLASS ? "against the offset of" : names.length > 1 ? "against the threshold of" : "against the threshold";

  document.getElementById("explorer-body").append(
    make("div", { class: "panel" },
      make("div", { class: "row" }, make("label", { class: "field" }, make("span", {}, "Contestant"), select)),
      make("div", { class: knobs.length > 8 ? "knobs scroll" : "knobs" }, ...knobs.map(({ row }) => row)),
      make("div", { class: "row" }, ...buttons),
      ...(costs ? [costs] : []),
      summary,
      ...(DATA.constraints.length ? [rules] : []),
      ...(DENSE ? [] : [matrix]),
      make("figure", {}, make("figcaption", { class: "row" }, metricSelect, make("span", { class: "muted" }, against), ...(focusSelect ? [focusSelect] : [])), chartHost),
    ),
    make("div", { class: "panel" }, scores),
    ...(DENSE ? [make("div", { class: "panel whole" }, matrix)] : []),
  );

  // --- the chart ---------------------------------------------------------------------------------------------------
  let drawn = null;
  function marker(u) {
    const counts = countsAt(current, state[current]);
    const at = MULTICLASS ? state[current][focus] : HELD.units[focus].cuts[state[current][focus]];
    const y = MULTICLASS ? value(charted, counts) : ONE[charted](cellsAt(current, focus, state[current][focus]), null, prices);
    mark(u, at, y, colour(current));
  }
  function redraw() {
    if (drawn) { charts.splice(charts.indexOf(drawn), 1); drawn.destroy(); chartHost.replaceChildren(); }
    const finite = (v) => (Number.isFinite(v) ? v : null);
    let x, lines, xRange;
    if (MULTICLASS) {
      x = Array.from({ length: 81 }, (_, i) => -reach + (i * reach) / 40);
      const moved = (offset) => state[current].map((o, k) => (k === focus ? offset : o));
      lines = [{ label: CONTESTANTS[current].name, colour: current, width: 2, y: x.map((o) => finite(value(charted, countsAt(current, moved(o))))) }];
      xRange = [-reach, reach];
    } else {
      const { cuts, tp, fp } = HELD.units[focus];
      x = cuts;
      lines = CONTESTANTS.map((c, i) => ({
        label: c.name, colour: i, show: visible[i] || i === current, ...emphasis(c),
        y: cuts.map((_, cut) => finite(ONE[charted](cellsAt(i, focus, cut), null, prices))),
      }));
      // the counts do not change beyond the highest score
      const last = Math.max(...cuts.filter((_, cut) => tp.some((t, i) => t[cut] + fp[i][cut] > 0)));
      xRange = [0, Math.min(1, last * 1.02)];
    }
    const all = lines.filter((line) => line.show !== false).flatMap((line) => line.y.filter((v, i) => v != null && x[i] <= xRange[1]));
    let low = Math.min(...all), high = Math.max(...all);
    if (DATA.metrics[charted].priced) low = Math.max(low, high - 3 * Math.max(Math.abs(high), 0.05)); // net benefit falls without bound
    const room = 0.05 * (high - low || 0.1);
    chartHost.setAttribute("aria-label", `${DATA.metrics[charted].name} ${against}${focusSelect ? ` ${names[focus]}` : ""}`);
    drawn = lineChart(chartHost, {
      x, lines, xRange, yRange: [low - room, high + room], xLabel: MULTICLASS ? "offset" : "threshold", yLabel: clip(DATA.metrics[charted].name, 28), draw: marker,
    });
  }

  // --- updating ----------------------------------------------------------------------------------------------------
  let waiting = 0, stale = false;
  function update(newChart) {
    stale = stale || newChart;
    showNumbers();
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => {
      if (stale || !drawn || current !== drawn.of) { redraw(); drawn.of = current; } else drawn.redraw(false);
      stale = false;
    });
  }
  function showNumbers() {
    const at = state[current];
    knobs.forEach(({ range, number }, u) => {
      const shown = MULTICLASS ? show(at[u], 2) : showCut(HELD.units[u].cuts[at[u]]);
      range.value = String(at[u]);
      range.setAttribute("aria-valuetext", shown);
      if (document.activeElement !== number || Number(number.value) !== Number(shown.replace("−", "-"))) number.value = shown.replace("−", "-");
    });
    const here = countsAt(current, at), there = countsAt(current, tunedKnobs(current));
    rows.forEach(({ m, here: cell, there: other }) => {
      const now = value(m, here), tuned = value(m, there), gain = (now - tuned) * DATA.metrics[m].better;
      cell.textContent = show(now);
      cell.className = `number${gain > 5e-5 ? " up" : gain < -5e-5 ? " down" : ""}`;
      other.textContent = show(tuned);
    });
    summary.textContent = summarise(here);
    rules.replaceChildren(...DATA.constraints.filter((c) => FORMULAS.all[c.formula]).map((c) => {
      const v = FORMULAS.all[c.formula](here.cells, here.matrix, prices), holds = c.atLeast ? v >= c.bound : v <= c.bound;
      return make("span", { class: holds ? "holds" : "broken" }, `${c.text.replace(">=", "≥").replace("<=", "≤")} ${holds ? "holds" : "does not hold"}: ${show(v, 3)}. `);
    }));
    matrix.replaceChildren(MULTICLASS ? classTable(here.matrix) : labelTable(cellsAt(current, focus, at[focus])));
  }
  function summarise(counts) {
    const name = CONTESTANTS[current].name, chosen = DATA.metrics[order[0]];
    const result = `${chosen.name} ${show(value(order[0], counts), 3)}`;
    if (DATA.task !== "binary") return `${name}: ${result}.`;
    const [tp, fp, fn] = counts.cells;
    return `${name} at ${showCut(HELD.units[0].cuts[state[current][0]])}: ${showCount(tp)} found, ${showCount(fn)} missed, ${showCount(fp)} false alarms; ${result}.`;
  }

  // --- confusion ---------------------------------------------------------------------------------------------------
  function cell(count, total, right) {
    const share = total > 0 ? count / total : NaN;
    const made = make("td", {}, make("b", {}, showCount(count)), make("span", {}, Number.isFinite(share) ? `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %` : "–"));
    if (Number.isFinite(share)) made.style.background = `rgba(var(--shade), ${((right ? 0.32 : 0.2) * share).toFixed(3)})`;
    return made;
  }
  function labelTable([tp, fp, fn, tn]) {
    const [no, yes] = DATA.task === "binary" ? DATA.classes : [`not ${names[focus]}`, names[focus]];
    const line = (title, left, right, hit) => make("tr", {}, make("th", { scope: "row" }, title), cell(left, left + right, hit === 0), cell(right, left + right, hit === 1));
    return make("table", { class: "matrix" }, make("caption", {}, "Rows: the truth. Columns: the decision."),
      make("thead", {}, make("tr", {}, make("td", {}), make("th", { scope: "col" }, `decided ${no}`), make("th", { scope: "col" }, `decided ${yes}`))),
      make("tbody", {}, line(`truly ${no}`, tn, fp, 0), line(`truly ${yes}`, fn, tp, 1)));
  }
  function classTable(counted) {
    if (K > MOST_CELLS) return make("p", { class: "note" }, `The matrix of ${K} classes is too large to be shown.`);
    const body = DATA.classes.map((name, t) => {
      const line = Array.from(counted.slice(t * K, t * K + K)), total = line.reduce((a, b) => a + b, 0);
      const cells = line.map((count, d) => cell(count, total, t === d));
      if (DENSE) cells.forEach((made) => { made.title = made.lastChild.textContent; made.lastChild.remove(); });
      return make("tr", {}, make("th", { scope: "row", title: name }, DENSE ? `${t + 1}  ${name}` : name), ...cells);
    });
    return make("table", { class: DENSE ? "matrix dense" : "matrix small" }, make("caption", {}, "Rows: the truth. Columns: the decision."),
      make("thead", {}, make("tr", {}, make("td", {}), ...DATA.classes.map((name, d) => make("th", { scope: "col", title: name }, DENSE ? String(d + 1) : name)))),
      make("tbody", {}, ...body));
  }

  document.addEventListener("shown", () => update(true));
  const pooled = "Every row is scored by a model that has not seen it (first repeat), and all rows are counted together, so numbers differ a little from the means over folds above.";
  const sampled = MULTICLASS && HELD.rows < HELD.of ? ` The explorer counts a sample of ${showCount(HELD.rows)} of ${showCount(HELD.of)} rows, weighted to stand for all.` : "";
  const help = MULTICLASS ? " A row is decided as the class with the highest log-probability minus offset: raise an offset, and its class is chosen less often." : " Typed costs move the threshold to the one of least expected cost for calibrated probabilities.";
  const averaged = DATA.asked ? ` The ${DATA.asked} average of the comparison cannot be computed from counts; here it is ${DATA.average}.` : "";
  document.getElementById("explorer-note").textContent = pooled + help + averaged + sampled;
  update(true);
}

if (HELD && CONTESTANTS.length) explore();
else document.getElementById("explorer").remove();
