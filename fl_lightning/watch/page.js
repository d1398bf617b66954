// The page of fl-lightning watch: asks for the runs every other second, and draws those that are chosen.
"use strict";

const TOKEN = new URLSearchParams(location.search).get("token");
const PAUSE = 2000; // ms from an answer to the next question
const SHOWN_AT_FIRST = 6; // runs
const COLOURS = ["#2f7ed8", "#d9822b", "#2a9d62", "#c2438b", "#7a5bd0", "#a3801c", "#1b9aaa", "#d1495b"];
const KINDS = {
  change: {
    title: "who forgets: change by the local fits",
    note: "Rows are the models of the clients that took part, columns their validation data. Red is forgetting.",
    diverging: true,
  },
  after: {
    title: "accuracy after the local fits",
    note: "Rows are the models of the clients that took part, columns their validation data.",
  },
  by_class: {
    title: "one round by class",
    note: "Test accuracy by class of the global model before the round, of each client that took part, and of the global model after.",
  },
  classes: { title: "accuracy by class, over rounds", note: "Test accuracy of the global model. A row a class, a column an evaluation." },
  cohorts: { title: "who took part, over rounds", note: "A row a client, or the share of some of them, a column a round." },
};

const byId = (id) => document.getElementById(id);
const state = {
  data: { runs: [], charts: {}, remarks: [] },
  chosen: new Set(), // names of runs
  known: new Set(), // names that were on the page before, so that new runs alone are chosen by the page
  colours: new Map(), // name -> colour, for as long as the page is open
  cards: new Map(), // name -> its card
  heatmaps: new Map(), // question -> answer
  turn: 0, // of drawing heatmaps, which waits for answers: the last one counts
};

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const chosenRuns = () => state.data.runs.filter((run) => state.chosen.has(run.name));

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
  const shown = Object.entries(run.curves).filter(([tag]) => /accuracy$|forgetting/.test(tag)).slice(0, 3);
  return shown.map(([tag, curve]) => `${tag} ${number(curve.values.at(-1))}`).join(", ");
}

const number = (value) => (value === null || value === undefined ? "-" : value.toFixed(3));

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

// ---- Curves

function scale(from, to, start, end) {
  return (value) => start + ((value - from) / (to - from || 1)) * (end - start);
}

function ticks(from, to, count) {
  const raw = (to - from) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const found = [];
  for (let tick = Math.ceil(from / step - 1e-9) * step; tick <= to + step * 1e-6; tick += step) found.push(Number(tick.toFixed(9))); // and no 1e-17
  return found;
}

const tickText = (value) => String(Number(value.toPrecision(6)));

function range(tag, curves) {
  const values = curves.flatMap(({ curve }) => curve.values).filter((value) => value !== null);
  const [low, high] = [Math.min(...values, 0), Math.max(...values, 0.01)];
  return tag.includes("accuracy") && high <= 1 ? [0, Math.min(1, Math.ceil(high * 10) / 10)] : [low, high];
}

function path(curve, x, y) {
  let pen = "M"; // lifted where a value is missing
  return curve.rounds
    .map((round, index) => {
      if (curve.values[index] === null) {
        pen = "M";
        return "";
      }
      const part = `${pen}${x(round).toFixed(1)} ${y(curve.values[index]).toFixed(1)}`;
      pen = "L";
      return part;
    })
    .join("");
}

function chart(tag, width) {
  const curves = chosenRuns().filter((run) => tag in run.curves).map((run) => ({ run, curve: run.curves[tag] }));
  const [height, left, right, top, bottom] = [220, 46, 16, 8, 24];
  const last = Math.max(1, ...curves.map(({ curve }) => curve.rounds.at(-1) ?? 0));
  const [low, high] = range(tag, curves);
  const [x, y] = [scale(0, last, left, width - right), scale(low, high, height - bottom, top)];
  const drawn = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${tag} over rounds` });
  for (const tick of ticks(low, high, 5)) {
    drawn.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    drawn.append(shape("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick)));
  }
  for (const tick of ticks(0, last, 5)) {
    if (tick === Math.round(tick)) drawn.append(shape("text", { x: x(tick), y: height - 7, "text-anchor": "middle" }, tickText(tick)));
  }
  for (const { run, curve } of curves) {
    const line = shape("path", { class: "curve", d: path(curve, x, y), "stroke-linecap": "round" }); // a single point is a dot
    line.style.stroke = state.colours.get(run.name);
    drawn.append(line);
  }
  const caption = element("figcaption", { textContent: state.data.charts[tag] });
  followPointer(drawn, caption, curves, { x, last, left, right: width - right, width, top, bottom: height - bottom });
  return element("figure", {}, element("h3", { textContent: tag }), drawn, caption);
}

function followPointer(drawn, caption, curves, box) {
  const line = shape("line", { class: "pointer", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const said = caption.textContent;
  drawn.append(line);
  drawn.addEventListener("pointermove", (event) => {
    const area = drawn.getBoundingClientRect();
    const at = ((event.clientX - area.left) / area.width) * box.width;
    const share = (at - box.left) / (box.right - box.left);
    const round = Math.round(Math.min(Math.max(share, 0), 1) * box.last);
    line.setAttribute("x1", box.x(round));
    line.setAttribute("x2", box.x(round));
    line.setAttribute("visibility", "visible");
    const values = curves.map(({ run, curve }) => `${run.name} ${number(curve.values[nearest(curve.rounds, round)])}`);
    caption.replaceChildren(element("b", { textContent: `Round ${round}: ` }), values.join(", "));
  });
  drawn.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    caption.textContent = said;
  });
}

function nearest(rounds, round) {
  return rounds.reduce((best, candidate, index) => (Math.abs(candidate - round) < Math.abs(rounds[best] - round) ? index : best), 0);
}

function drawCharts() {
  if (document.querySelector("#charts svg:hover")) return; // somebody is reading values
  const tags = Object.keys(state.data.charts).filter((tag) => chosenRuns().some((run) => tag in run.curves));
  const place = byId("charts");
  place.parentElement.hidden = tags.length === 0;
  const columns = getComputedStyle(place).gridTemplateColumns.split(" ");
  place.replaceChildren(...tags.map((tag) => chart(tag, parseFloat(columns[0]) || place.clientWidth || 400)));
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
  const title = element("h3", {}, swatch, run.name);
  if (answer.failed) return element("figure", {}, title, element("figcaption", { textContent: answer.failed }));
  const clients = answer.clients === null ? "" : ` Took part: clients ${answer.clients.join(", ")}.`;
  const caption = element("figcaption", { textContent: `Round ${round}.${clients}` });
  return element("figure", {}, title, grid(answer, KINDS[kind].diverging === true, run.name), caption);
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
  const strength = Math.min(Math.abs(value), 1);
  const end = diverging ? (value < 0 ? "--low" : "--high") : "--most";
  return mix(end, diverging ? Math.min(1, strength * 1.25) : strength);
}

function mix(end, share) {
  const style = getComputedStyle(document.documentElement);
  const [from, to] = ["--neutral", end].map((name) => style.getPropertyValue(name).trim().split(" ").map(Number));
  return `rgb(${from.map((part, index) => Math.round(part + (to[index] - part) * share)).join(" ")})`;
}

function grid(answer, diverging, name) {
  const [width, top, left] = [400, 18, 8 + 6.2 * Math.min(16, Math.max(...answer.rows.map((row) => row.length)))];
  const cell = (width - left) / answer.columns.length;
  const tall = Math.min(Math.max(cell, 14), 30);
  const height = top + tall * answer.rows.length + 2;
  const drawn = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `heatmap of ${name}` });
  const every = Math.ceil((6.5 * Math.max(...answer.columns.map((column) => column.length)) + 6) / cell);
  answer.columns.forEach((column, index) => {
    if (index % every === 0) drawn.append(shape("text", { x: left + (index + 0.5) * cell, y: 12, "text-anchor": "middle" }, column));
  });
  answer.rows.forEach((row, line) => {
    drawn.append(shape("text", { x: left - 5, y: top + (line + 0.5) * tall + 4, "text-anchor": "end" }, row.slice(0, 16)));
    answer.values[line].forEach((value, index) => {
      const part = shape("rect", { x: left + index * cell, y: top + line * tall, width: cell + 0.3, height: tall + 0.3 });
      part.style.fill = colour(value, diverging);
      part.append(shape("title", {}, `${row}, ${answer.columns[index]}: ${number(value)}`));
      drawn.append(part);
    });
  });
  return drawn;
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
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawChosen);
ask();
