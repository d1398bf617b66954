// The page of fl-lightning watch: it asks for the runs every other second, and draws those that are chosen.
"use strict";

const TOKEN = new URLSearchParams(location.search).get("token");
const PAUSE = 2000; // ms from an answer to the next question
const SHOWN_AT_FIRST = 6; // runs
const CHART_HEIGHT = 280; // px, without the legend
const MOST_CHARACTERS = 44; // above the columns of a heatmap
const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]]; // of runs with one colour

const byId = (id) => document.getElementById(id);
const state = {
  data: { runs: [], charts: {}, kinds: {} },
  text: "", // of the last answer
  chosen: new Map(), // name of a run -> whether it is drawn
  cards: new Map(), // name of a run -> its card
  charts: new Map(), // tag -> its figure and plot
  heatmaps: new Map(), // question -> answer
  turn: 0, // of drawing heatmaps, which waits for answers: the last one counts
};

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const copied = (id) => byId(id).content.firstElementChild.cloneNode(true);
const chosenRuns = () => state.data.runs.filter((run) => state.chosen.get(run.name));
const number = (value) => value?.toFixed(3) ?? "-";
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Elements stay where they are if they can: a click between two answers would be lost.
function fill(place, children) {
  if (children.length !== place.children.length || children.some((child, index) => child !== place.children[index])) place.replaceChildren(...children);
}

// ---- Runs

function chooseNewRuns() {
  const order = ["running", "silent", "finished"];
  const fresh = state.data.runs.filter((run) => !state.chosen.has(run.name));
  fresh.sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state));
  for (const run of fresh) state.chosen.set(run.name, chosenRuns().length < SHOWN_AT_FIRST);
}

function card(run) {
  if (!state.cards.has(run.name)) {
    const made = copied("card");
    made.querySelector("input").addEventListener("change", (event) => choose(({ name }) => (name === run.name ? event.target.checked : state.chosen.get(name))));
    made.querySelector("span").textContent = run.name;
    made.querySelector("progress").setAttribute("aria-label", `rounds of ${run.name}`);
    state.cards.set(run.name, made);
  }
  const made = state.cards.get(run.name);
  made.style.borderLeftColor = run.color;
  made.querySelector("input").checked = state.chosen.get(run.name);
  Object.assign(made.querySelector("progress"), { max: Math.max(run.rounds, 1), value: run.round });
  made.querySelectorAll("p").forEach((line, index) => (line.textContent = [run.standing, run.label, run.newest][index]));
  return made;
}

function choose(select) {
  for (const run of state.data.runs) state.chosen.set(run.name, select(run));
  return draw();
}

// ---- Curves, by uPlot

function options(title, runs, width) {
  const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
  const range = (plot, low, high) => (title.includes("accuracy") ? [0, Math.min(1, high + 0.05)] : uPlot.rangeNum(low, high, 0.1, true));
  const lines = runs.map((run) => ({
    label: `${run.name}: ${run.label}`,
    stroke: run.color,
    dash: DASHES[run.line % DASHES.length],
    width: 1.5,
    value: (plot, value) => number(value),
  }));
  return {
    width,
    height: CHART_HEIGHT,
    scales: { x: { time: false }, y: { range } },
    series: [{ label: "round" }, ...lines],
    axes: [{ ...axis, label: "round", values: (plot, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")) }, { ...axis, label: title, size: 60 }],
    cursor: { sync: { key: "round" } },
    legend: { markers: { dash: (plot, index) => ["solid", "dashed", "dotted", "double"][(runs[index - 1]?.line ?? 0) % DASHES.length] } },
    hooks: { ready: [showLast], setData: [showLast], setCursor: [showLast] },
  };
}

// In the legend, while no pointer is on the chart.
function showLast(plot) {
  if (plot.cursor.left < 0) plot.setLegend({ idxs: plot.data.map((values) => values.findLastIndex((value) => value != null)) });
}

function chart(tag, width) {
  const runs = chosenRuns().filter((run) => tag in run.curves);
  const data = uPlot.join(runs.map(({ curves }) => [curves[tag].rounds, curves[tag].values]));
  const key = runs.map((run) => [run.name, run.color, run.line]).join("\n");
  const { title, text } = state.data.charts[tag];
  const known = state.charts.get(tag);
  if (known?.key !== key) {
    known?.plot.destroy();
    const figure = copied("chart");
    figure.setAttribute("aria-label", `${title} over rounds`);
    figure.querySelector("h3").textContent = title;
    figure.querySelector("figcaption").textContent = text;
    state.charts.set(tag, { key, figure, plot: new uPlot(options(title, runs, width), data, figure.querySelector("div")) });
    return figure;
  }
  const { plot, figure } = known;
  const { min, max } = plot.scales.x;
  const zoomed = min > plot.data[0][0] || max < plot.data[0].at(-1);
  plot.setData(data, !zoomed);
  if (zoomed) plot.setScale("x", { min, max });
  if (plot.width !== width) plot.setSize({ width, height: CHART_HEIGHT });
  return figure;
}

function drawCharts() {
  const tags = Object.keys(state.data.charts).filter((tag) => chosenRuns().some((run) => tag in run.curves));
  const place = byId("charts");
  place.parentElement.hidden = tags.length === 0;
  const width = parseInt(getComputedStyle(place).gridTemplateColumns) || place.clientWidth || 400;
  fill(place, tags.map((tag) => chart(tag, width)));
}

// ---- Heatmaps

async function drawHeatmaps() {
  const runs = chosenRuns();
  const kinds = Object.keys(state.data.kinds).filter((kind) => runs.some((run) => kind in run.measured));
  const select = byId("kind");
  select.closest("section").hidden = kinds.length === 0;
  if (kinds.length === 0) return;
  const kind = kinds.includes(select.value) ? select.value : kinds[0];
  if ([...select.options].map((option) => option.value).join() !== kinds.join()) {
    select.replaceChildren(...kinds.map((each) => element("option", { value: each, textContent: state.data.kinds[each].title })));
    select.value = kind;
  }
  byId("kind-note").textContent = state.data.kinds[kind].note;
  const shown = runs.filter((run) => kind in run.measured);
  const round = roundOfSlider([...new Set(shown.flatMap((run) => run.measured[kind]))].sort((a, b) => a - b));
  const turn = ++state.turn;
  const figures = await Promise.all(shown.map((run) => heatmapFigure(run, kind, round)));
  if (turn === state.turn) byId("heatmaps").replaceChildren(...figures.filter((figure) => figure !== null));
}

function roundOfSlider(rounds) {
  const [first, last] = [rounds[0], rounds.at(-1)];
  const step = Math.min(...rounds.slice(1).map((round, index) => round - rounds[index]), Math.max(last - first, 1));
  const slider = Object.assign(byId("round"), { min: first, max: last, step });
  if (byId("newest").checked) slider.value = last;
  const round = byId("newest").checked ? last : Number(slider.value); // steps may miss the last
  byId("shown-round").textContent = round;
  return round;
}

async function heatmapFigure(run, kind, asked) {
  const round = run.measured[kind].findLast((measured) => measured <= asked);
  const answer = round === undefined ? null : await askHeatmap(run, kind, round);
  if (answer === null) return null;
  const figure = copied("heatmap");
  figure.querySelector("i").style.background = run.color;
  figure.querySelector("b").textContent = `${run.name}: ${run.label}`;
  const clients = answer.clients ? ` Took part: clients ${answer.clients.join(", ")}.` : "";
  figure.querySelector("figcaption").textContent = answer.failed ?? `Round ${round}.${clients}`;
  if (!answer.failed) figure.querySelector("div").append(...grid(answer, state.data.kinds[kind], run.name));
  return figure;
}

async function askHeatmap(run, kind, round) {
  const question = `heatmap.json?${new URLSearchParams({ token: TOKEN, run: run.name, kind, round })}`;
  const key = `${question} ${run.sessions}`; // a resumed run does rounds again
  if (!state.heatmaps.has(key)) {
    const answer = await fetch(question);
    if (answer.status === 404) return null; // the run has been removed in the meantime
    if (!answer.ok) return { failed: await answer.text() };
    if (state.heatmaps.size > 500) state.heatmaps.clear();
    state.heatmaps.set(key, await answer.json());
  }
  return state.heatmaps.get(key);
}

function colour(value, diverging) {
  if (value === null) return "transparent";
  const share = Math.min(Math.abs(value) * (diverging ? 1.25 : 1), 1);
  return `color-mix(in srgb, var(--${diverging ? (value > 0 ? "red" : "blue") : "most"}) ${100 * share}%, var(--neutral))`;
}

function grid({ rows, columns, values }, { diverging, axes }, name) {
  const every = Math.ceil((columns.length * Math.max(...columns.map((column) => column.length + 1))) / MOST_CHARACTERS);
  const head = columns.map((column, index) => element("th", { scope: "col" }, element("span", { textContent: index % every === 0 ? column : "" })));
  const lines = rows.map((row, line) => {
    const cells = values[line].map((value, index) => element("td", { title: `${row}, ${columns[index]}: ${number(value)}` }));
    cells.forEach((cell, index) => (cell.style.background = colour(values[line][index], diverging)));
    return element("tr", {}, element("th", { scope: "row", textContent: row }), ...cells);
  });
  const table = element("table", {}, element("caption", { textContent: axes[1] }), element("tr", {}, element("td", { textContent: axes[0] }), ...head), ...lines);
  table.setAttribute("aria-label", `heatmap of ${name}`);
  const ticks = diverging ? [1, 0.5, 0, -0.5, -1] : [1, 0.5, 0];
  const bar = element("div", { className: "bar" }, ...ticks.map((tick) => element("span", { textContent: tick })));
  bar.style.background = `linear-gradient(${ticks.map((tick) => colour(tick, diverging)).join(", ")}) left / .7rem 100% no-repeat`;
  return [table, bar];
}

// ---- The page

function draw() {
  fill(byId("runs"), state.data.runs.map(card));
  document.querySelector(".choose").hidden = state.data.runs.length < 2;
  drawCharts();
  return drawHeatmaps();
}

async function show(text) {
  if (text === state.text) return;
  state.text = text;
  state.data = JSON.parse(text);
  byId("folder").textContent = state.data.folder;
  const remarks = byId("remarks");
  remarks.parentElement.hidden = state.data.remarks.length === 0;
  remarks.replaceChildren(...state.data.remarks.map((remark) => element("li", { textContent: remark })));
  chooseNewRuns();
  await draw();
}

function say(text, lost = false) {
  byId("standing").textContent = text;
  byId("standing").classList.toggle("lost", lost);
}

async function ask() {
  try {
    const answer = await fetch(`runs.json?${new URLSearchParams({ token: TOKEN })}`);
    const text = await answer.text();
    if (answer.status === 403) say("fl-lightning watch was started again. Open the address that it has printed.", true);
    else {
      await show(text);
      const { ended, runs, standing } = state.data;
      if (ended) say(`The runs are no longer read (${ended}). Start fl-lightning watch again.`, true);
      else say(runs.length > 0 ? `${standing} Read at ${new Date().toLocaleTimeString()}.` : standing);
    }
  } catch {
    say("No answer from fl-lightning watch. Start it again and open the address that it prints.", true);
  }
  setTimeout(ask, document.hidden ? 5 * PAUSE : PAUSE);
}

for (const [id, select] of Object.entries({ all: () => true, none: () => false, running: (run) => run.state === "running" })) {
  byId(id).addEventListener("click", () => choose(select));
}
byId("kind").addEventListener("change", drawHeatmaps);
byId("newest").addEventListener("change", drawHeatmaps);
byId("round").addEventListener("input", () => {
  byId("newest").checked = false;
  drawHeatmaps();
});
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  state.charts.forEach((chart) => (chart.key = null)); // made anew, in other colours
  draw();
});
ask();
