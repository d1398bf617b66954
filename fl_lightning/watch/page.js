// The page of fl-lightning watch: it asks for the runs every other second, and draws those that are chosen.
"use strict";

const TOKEN = new URLSearchParams(location.search).get("token");
const PAUSE = 2000; // ms from an answer to the next question
const SHOWN_AT_FIRST = 6; // runs
const CHART_HEIGHT = 280; // px, without the legend
const MOST_CHARACTERS = 44; // above the columns of a heatmap
// M. Petroff's ten (arXiv 2107.02270), as in reports.
const COLOURS = ["#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"];
const KINDS = {
  forgetting: {
    title: "who forgets: accuracy that a local fit costs",
    note: "Accuracy of the received model less that after the local fit, on validation data. Positive, red, is forgetting.",
    axes: ["model of client", "data of client"],
    diverging: true,
  },
  after: {
    title: "accuracy after the local fits",
    note: "Of the models of the clients that took part, on the validation data of each.",
    axes: ["model of client", "data of client"],
  },
  by_class: {
    title: "one round by class",
    note: "Test accuracy by class of the global model before the round, of each client that took part, and of the global model after.",
    axes: ["model", "class"],
  },
  classes: { title: "accuracy by class, over rounds", note: "Test accuracy of the global model.", axes: ["class", "round"] },
  cohorts: { title: "who took part, over rounds", note: "Of several clients in a row, the share of them.", axes: ["client", "round"] },
};

const byId = (id) => document.getElementById(id);
const state = {
  data: { runs: [], charts: {}, remarks: [] },
  chosen: new Set(), // names of runs
  known: new Set(), // names that were on the page before, so that only new runs are chosen by the page
  colours: new Map(), // name -> colour, for as long as the page is open
  cards: new Map(), // name -> its card
  charts: new Map(), // tag -> its figure and plot
  heatmaps: new Map(), // question -> answer
  turn: 0, // of drawing heatmaps, which waits for answers: the last one counts
};

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const chosenRuns = () => state.data.runs.filter((run) => state.chosen.has(run.name));
const number = (value) => (value === null || value === undefined ? "-" : value.toFixed(3));
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- Runs

function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function standing(run) {
  const rounds = `round ${run.round} of ${run.rounds}`;
  if (run.state === "finished") return `finished, ${rounds}`;
  if (run.state === "silent") return `nothing new for ${duration(60 * run.minutes_silent)}, ${rounds}`;
  return `${rounds}, ${run.seconds_left === null ? "time left not known yet" : `${duration(run.seconds_left)} left`}`;
}

function newestValues(run) {
  const tags = Object.keys(state.data.charts).filter((tag) => tag in run.curves);
  const values = tags.slice(0, 4).map((tag) => `${state.data.charts[tag].title} ${number(run.curves[tag].values.at(-1))}`);
  return values.length > 0 ? `last ${values.join(", ")}` : "";
}

function chooseNewRuns() {
  const order = ["running", "silent", "finished"];
  const fresh = state.data.runs.filter((run) => !state.known.has(run.name));
  fresh.sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state));
  for (const run of fresh) {
    if (state.chosen.size < SHOWN_AT_FIRST) state.chosen.add(run.name);
    state.colours.set(run.name, COLOURS[state.colours.size % COLOURS.length]);
    state.known.add(run.name);
  }
}

function card(name) {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () => {
    box.checked ? state.chosen.add(name) : state.chosen.delete(name);
    drawChosen();
  });
  const bar = element("progress");
  bar.setAttribute("aria-label", `rounds of ${name}`);
  const lines = Array.from({ length: 3 }, () => element("p", { className: "detail" }));
  const made = element("li", {}, element("label", {}, box, element("span", { textContent: name })), bar, ...lines);
  made.style.borderLeftColor = state.colours.get(name);
  return Object.assign(made, { box, bar, lines });
}

// Cards are changed and not made anew: a click that falls between two answers would be lost.
function drawRuns() {
  const cards = state.data.runs.map((run) => {
    if (!state.cards.has(run.name)) state.cards.set(run.name, card(run.name));
    const made = state.cards.get(run.name);
    made.box.checked = state.chosen.has(run.name);
    Object.assign(made.bar, { max: Math.max(run.rounds, 1), value: run.round });
    [standing(run), run.label, newestValues(run)].forEach((text, index) => (made.lines[index].textContent = text));
    return made;
  });
  const list = byId("runs");
  if (cards.length !== list.children.length || cards.some((made, index) => made !== list.children[index])) list.replaceChildren(...cards);
  document.querySelector(".choose").hidden = cards.length < 2;
}

function choose(select) {
  state.chosen = new Set(state.data.runs.filter(select).map((run) => run.name));
  drawRuns();
  drawChosen();
}

// ---- Curves, by uPlot

function options(tag, runs, width) {
  const { title } = state.data.charts[tag];
  const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
  const range = (plot, low, high) => (title.includes("accuracy") ? [0, Math.min(1, high + 0.05)] : uPlot.rangeNum(low, high, 0.1, true));
  const lines = runs.map((run) => ({
    label: `${run.name}: ${run.label}`,
    stroke: state.colours.get(run.name),
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
    hooks: { ready: [showLast], setData: [showLast], setCursor: [showLast] },
  };
}

// In the legend, while no pointer is on the chart.
function showLast(plot) {
  if (plot.cursor.left >= 0) return;
  plot.setLegend({ idxs: plot.data.map((values) => values.findLastIndex((value) => value !== null && value !== undefined)) });
}

function drawChart(tag, width) {
  const runs = chosenRuns().filter((run) => tag in run.curves);
  const data = uPlot.join(runs.map(({ curves }) => [curves[tag].rounds, curves[tag].values]));
  const key = runs.map((run) => run.name).join("\n");
  let chart = state.charts.get(tag);
  if (chart?.key === key) {
    const { min, max } = chart.plot.scales.x;
    const zoomed = min > chart.plot.data[0][0] || max < chart.plot.data[0].at(-1);
    chart.plot.setData(data, !zoomed);
    if (zoomed) chart.plot.setScale("x", { min, max });
    if (chart.plot.width !== width) chart.plot.setSize({ width, height: CHART_HEIGHT });
    return chart.figure;
  }
  chart?.plot.destroy();
  const { title, text } = state.data.charts[tag];
  const place = element("div");
  const figure = element("figure", {}, element("h3", { textContent: title }), place, element("figcaption", { textContent: text }));
  figure.setAttribute("aria-label", `${title} over rounds`);
  state.charts.set(tag, { key, figure, plot: new uPlot(options(tag, runs, width), data, place) });
  return figure;
}

function drawCharts() {
  const tags = Object.keys(state.data.charts).filter((tag) => chosenRuns().some((run) => tag in run.curves));
  const place = byId("charts");
  place.parentElement.hidden = tags.length === 0;
  const columns = getComputedStyle(place).gridTemplateColumns.split(" ");
  const figures = tags.map((tag) => drawChart(tag, Math.floor(parseFloat(columns[0])) || place.clientWidth || 400));
  if (figures.length !== place.children.length || figures.some((figure, index) => figure !== place.children[index])) place.replaceChildren(...figures);
}

// ---- Heatmaps

function measuredRounds(kind) {
  const rounds = new Set(chosenRuns().flatMap((run) => run.measured[kind] ?? []));
  return [...rounds].sort((a, b) => a - b);
}

async function drawHeatmaps() {
  const kinds = Object.keys(KINDS).filter((kind) => measuredRounds(kind).length > 0);
  const select = byId("kind");
  select.closest("section").hidden = kinds.length === 0;
  if (kinds.length === 0) return;
  const kind = kinds.includes(select.value) ? select.value : kinds[0];
  if ([...select.options].map((option) => option.value).join() !== kinds.join()) {
    select.replaceChildren(...kinds.map((each) => element("option", { value: each, textContent: KINDS[each].title })));
    select.value = kind;
  }
  byId("kind-note").textContent = KINDS[kind].note;
  const round = roundOfSlider(measuredRounds(kind));
  const shown = chosenRuns().filter((run) => kind in run.measured);
  const turn = ++state.turn;
  const figures = await Promise.all(shown.map((run) => heatmapFigure(run, kind, round)));
  if (turn === state.turn) byId("heatmaps").replaceChildren(...figures.filter((figure) => figure !== null));
}

function nearest(rounds, round) {
  return rounds.reduce((best, candidate, index) => (Math.abs(candidate - round) < Math.abs(rounds[best] - round) ? index : best), 0);
}

function roundOfSlider(rounds) {
  const slider = byId("round");
  const before = slider.rounds?.[slider.value];
  slider.rounds = rounds;
  slider.max = rounds.length - 1;
  // More rounds move the handle, and not the round.
  slider.value = byId("newest").checked || before === undefined ? rounds.length - 1 : nearest(rounds, before);
  const round = rounds[slider.value];
  byId("shown-round").textContent = round;
  slider.setAttribute("aria-valuetext", `round ${round}`);
  return round;
}

async function heatmapFigure(run, kind, asked) {
  const earlier = run.measured[kind].filter((round) => round <= asked);
  if (earlier.length === 0) return null;
  const round = earlier.at(-1);
  const answer = await askHeatmap(run, kind, round);
  if (answer === null) return null;
  const swatch = element("i");
  swatch.style.background = state.colours.get(run.name);
  const title = element("h3", {}, swatch, `${run.name}: ${run.label}`);
  if (answer.failed) return element("figure", {}, title, element("figcaption", { textContent: answer.failed }));
  const clients = answer.clients === null ? "" : ` Took part: clients ${answer.clients.join(", ")}.`;
  const caption = element("figcaption", { textContent: `Round ${round}.${clients}` });
  return element("figure", {}, title, grid(answer, KINDS[kind], run.name), caption);
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

function grid(answer, { diverging = false, axes }, name) {
  const every = Math.ceil((answer.columns.length * Math.max(...answer.columns.map((column) => column.length + 1))) / MOST_CHARACTERS);
  const head = answer.columns.map((column, index) => element("th", { scope: "col" }, element("span", { textContent: index % every === 0 ? column : "" })));
  const rows = answer.rows.map((row, line) => {
    const cells = answer.values[line].map((value, index) => {
      const cell = element("td", { title: `${row}, ${answer.columns[index]}: ${number(value)}` });
      cell.style.background = colour(value, diverging);
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row", textContent: row }), ...cells);
  });
  const table = element("table", {}, element("caption", { textContent: `${axes[1]}, in rows: ${axes[0]}` }), element("tr", {}, element("td"), ...head), ...rows);
  table.setAttribute("aria-label", `heatmap of ${name}`);
  const values = diverging ? [1, 0.5, 0, -0.5, -1] : [1, 0.5, 0];
  const bar = element("div", { className: "bar" }, ...values.map((value) => element("span", { textContent: value })));
  bar.style.background = `linear-gradient(${values.map((value) => colour(value, diverging)).join(", ")}) left / .7rem 100% no-repeat`;
  return element("div", { className: "heatmap" }, table, bar);
}

// ---- The page

function drawChosen() {
  drawCharts();
  return drawHeatmaps();
}

async function draw() {
  byId("folder").textContent = state.data.folder;
  chooseNewRuns();
  drawRuns();
  const remarks = byId("remarks");
  remarks.parentElement.hidden = state.data.remarks.length === 0;
  remarks.replaceChildren(...state.data.remarks.map((remark) => element("li", { textContent: remark })));
  await drawChosen();
}

function say(text, lost = false) {
  byId("standing").textContent = text;
  byId("standing").classList.toggle("lost", lost);
}

function sayWhatIsThere() {
  const counts = ["running", "silent", "finished"].map((name) => [state.data.runs.filter((run) => run.state === name).length, name]);
  const said = counts.filter(([count]) => count > 0).map(([count, name]) => `${count} ${name}`).join(", ");
  if (state.data.ended) say(`The runs are no longer read (${state.data.ended}). Start fl-lightning watch again.`, true);
  else if (!state.data.is_read) say("Reading the runs ...");
  else say(said === "" ? "No runs yet. They appear here as they begin." : `${said}. Read at ${new Date().toLocaleTimeString()}.`);
}

let lastText = "";

async function ask() {
  try {
    const answer = await fetch(`runs.json?${new URLSearchParams({ token: TOKEN })}`);
    const text = await answer.text();
    if (answer.status === 403) say("fl-lightning watch was started again. Open the address that it has printed.", true);
    else {
      if (text !== lastText) {
        state.data = JSON.parse(text);
        lastText = text;
        await draw();
      }
      sayWhatIsThere();
    }
  } catch {
    say("No answer from fl-lightning watch. Start it again and open the address that it prints.", true);
  }
  setTimeout(ask, document.hidden ? 5 * PAUSE : PAUSE);
}

byId("all").addEventListener("click", () => choose(() => true));
byId("none").addEventListener("click", () => choose(() => false));
byId("running").addEventListener("click", () => choose((run) => run.state === "running"));
byId("kind").addEventListener("change", drawHeatmaps);
byId("newest").addEventListener("change", drawHeatmaps);
byId("round").addEventListener("input", () => {
  byId("newest").checked = false;
  drawHeatmaps();
});
addEventListener("resize", drawChosen);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  state.charts.forEach((chart) => (chart.key = null)); // made anew, in other colours
  drawChosen();
});
ask();
