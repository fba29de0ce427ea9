const $ = (id) => document.getElementById(id), AROUND = 9, CELL = 30, BATCH = 25;  // digits beside a step; steps a slice
const models = { lined: new Model(DATA.lined), plain: new Model(DATA.plain) };
const state = { a: "", b: "", width: 0, truth: "", steps: { lined: [], plain: [] }, run: 0, timer: null };

const written = (name) => state.steps[name].map((step) => DATA.characters[step.token]).join("");

// All steps of some models, in slices, so that the page stays alive; a later call ends an earlier one.
async function compute(names) {
  const id = ++state.run;
  for (const name of names) {
    const steps = (state.steps[name] = []);
    for (const step of models[name].write(sourceOf(state.a, state.b), state.width)) {
      steps.push(step);
      if (steps.length % BATCH) continue;
      $("told").textContent = `${steps.length} of ${state.width} digits …`;
      await new Promise((next) => setTimeout(next));
      if (id !== state.run) return;
    }
  }
  $("told").textContent = "";
  sums("lined", "right");
  sums("plain", "failed");
  near();
}

function number(id) {
  const text = $(id).value.replace(/[\s,._']/g, "");
  if (!/^\d+$/.test(text)) throw new Error(`expected digits, got ${text ? `“${text.slice(0, 20)}”` : "nothing"}`);
  return text.replace(/^0+(?=\d)/, "");
}

function start() {
  try { [state.a, state.b] = ["a", "b"].map(number); } catch (error) { $("told").textContent = error.message; return; }
  state.width = widthOf(state.a, state.b);
  state.truth = sumOf(state.a, state.b).split("").reverse().join("") + "&";  // as it is written, units first
  $("step").max = state.width - 1;
  $("step").value = Math.min(5, state.width - 1);
  compute(["lined", "plain"]);
}

function cell(row, text, kind, depth) {
  const made = row.insertCell();
  made.textContent = text;
  made.className = kind;
  if (depth) made.style.background = `rgba(0, 88, 168, ${Math.min(depth, 1) * 0.75})`;
  if (depth > 0.6) made.style.color = "#fff";
}

function sums(name, verdict) {
  const output = written(name), shown = document.createDocumentFragment(), wrong = [];
  for (let place = state.width - 1; place >= 0; place--) {
    const digit = output[place] ?? "?", fine = digit === state.truth[place];
    const mark = document.createElement(fine ? "span" : "b");
    if (!fine) { wrong.push(place); mark.className = "wrong"; }
    mark.textContent = digit;
    shown.append(mark);
  }
  $(name).replaceChildren(shown);
  $(verdict).textContent = !wrong.length ? `All ${state.width} digits are right.`
    : `${wrong.length} of ${state.width} digits are wrong, the first at place ${wrong.at(-1) + 1}, counted from the right.`;
}

function near() {
  const step = Number($("step").value), w = state.width, lined = state.steps.lined[step], plain = state.steps.plain[step];
  const around = Math.max(2, Math.min(AROUND, Math.floor(($("near").parentElement.clientWidth / CELL - 3) / 2)));
  const high = Math.min(w - 1, Math.max(step + around, 2 * around)), low = Math.max(0, high - 2 * around);
  const places = Array.from({ length: high - low + 1 }, (_, i) => high - i);
  const a = digitsOf(state.a, w).reverse(), b = digitsOf(state.b, w).reverse();
  const seen = new Set(lined.cross), before = new Set(lined.self);
  const head = (row, text) => { const th = document.createElement("th"); th.textContent = text; th.scope = "row"; row.append(th); };
  const fill = (id, rows) => {
    $(id).replaceChildren();
    for (const [name, content] of rows) {
      const row = $(id).insertRow();
      head(row, name);
      for (const place of places) cell(row, ...content(place));
    }
  };
  const now = (place) => (place === step ? " now" : "");
  fill("near", [
    ["a", (p) => [a[p], (seen.has(w - p) ? "seen" : "") + now(p)]],
    ["b", (p) => [b[p], (seen.has(2 * w + 1 - p) ? "seen" : "") + now(p)]],
    ["sum", (p) => [written("lined")[p], [p > step ? "yet" : written("lined")[p] !== state.truth[p] ? "wrong" : "",
      p < step && before.has(p + 1) ? "seen" : ""].join(" ") + now(p)]],
  ]);
  fill("looks", [
    ["a", (p) => [a[p], now(p), plain.weights[w - p]]],
    ["b", (p) => [b[p], now(p), plain.weights[2 * w + 1 - p]]],
    ["sum", (p) => [written("plain")[p], (p > step ? "yet" : written("plain")[p] !== state.truth[p] ? "wrong" : "") + now(p)]],
  ]);
  $("at").textContent = `place ${step + 1} of ${w}`;
  for (const line of models.lined.lines) {
    const token = tokenOn(line, step, w), tokens = line.attention === "cross" ? seen : before;
    line.chip.classList.toggle("here", isOpen(line) && token >= 0 && tokens.has(token));
  }
}

const isOpen = (line) => !models.lined.closed.has(line.name);

function mark() {
  for (const line of models.lined.lines) line.chip.setAttribute("aria-pressed", String(isOpen(line)));
  $("share").textContent = `${Number($("tau").value).toFixed(2)}: ${models.lined.lines.filter(isOpen).length} lines`;
}

function keep(kept) {
  models.lined.closed = new Set(models.lined.lines.filter((line) => !kept(line)).map((line) => line.name));
  mark();
  compute(["lined"]);
}

function play(on) {
  clearInterval(state.timer);
  $("play").setAttribute("aria-pressed", String(on));
  $("play").textContent = on ? "Pause" : "Play";
  if (!on) return;
  if (Number($("step").value) >= state.width - 1) $("step").value = 0;
  state.timer = setInterval(() => {
    if (Number($("step").value) >= state.width - 1) { play(false); return; }
    $("step").value = Number($("step").value) + 1;
    near();
  }, 350);
}

const randomDigits = (count) => Array.from({ length: count }, (_, i) => Math.floor(Math.random() * (i ? 10 : 9)) + (i ? 0 : 1)).join("");
$("add").addEventListener("click", start);
for (const button of document.querySelectorAll("[data-digits]")) {
  button.addEventListener("click", () => {
    for (const id of ["a", "b"]) $(id).value = randomDigits(Number(button.dataset.digits));
    start();
  });
}
$("carries").addEventListener("click", () => { $("a").value = "9".repeat(40); $("b").value = "1"; start(); });
$("step").addEventListener("input", () => { play(false); near(); });
window.addEventListener("resize", () => { if (state.steps.plain.length > state.width) near(); });
$("play").addEventListener("click", () => play($("play").getAttribute("aria-pressed") !== "true"));
$("tau").addEventListener("change", () => keep((line) => line.share > Number($("tau").value)));
[$("a").value, $("b").value] = DATA.first;
$("tau").value = DATA.tau;
for (const line of models.lined.lines) {
  line.chip = document.createElement("button");
  line.chip.textContent = `${line.name} ${line.share.toFixed(2)}`;
  line.chip.title = `${line.attention}-attention`;
  line.chip.addEventListener("click", () => keep((other) => isOpen(other) !== (other === line)));
  $("lines").append(line.chip);
}
mark();
start();
