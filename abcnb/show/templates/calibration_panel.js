// The calibration panel, drawn by the browser: in JupyterLab as a widget, on a page without a kernel as it is.
//
// `data` holds the strength of every line of every direction in both frames; `state` holds what the controls say.

// ---- numbers: what abcnb.calibration and abcnb.lines compute

// d, κσ + μ and the kept lines of one attention, one list per head.
function calibrate(data, state, name) {
  const table = data.frames[state.frame][name], config = data.config;
  const summed = table.strength[Math.min(state.shown, table.strength.length - 1)];
  const direction = line => table.families[table.family[line]][0];
  const chosen = table.family.map((_, line) => line).filter(line => state["directions_" + name].includes(direction(line)));
  const pools = new Map();
  chosen.forEach((line, k) => {
    const pool = state.pool === "direction" ? direction(line) : 0;
    if (!pools.has(pool)) pools.set(pool, []);
    pools.get(pool).push(k);
  });
  const long = chosen.map(line => table.support[line] >= state.min_support * table.rows);
  return summed.map(ofHead => {
    const d = chosen.map(line => state.statistic === "mean" ? ofHead[line] / table.support[line] : ofHead[line]);
    const lines = new Array(chosen.length);
    for (const pool of pools.values()) {
      const mean = pool.reduce((sum, k) => sum + d[k], 0) / pool.length;
      const sigma = Math.sqrt(pool.reduce((sum, k) => sum + (d[k] - mean) ** 2, 0) / pool.length);
      const top = Math.max(...pool.map(k => d[k]));
      const threshold = state["kappa_" + name] * sigma + mean + 1e-6 * Math.abs(mean);
      for (const k of pool) {
        const compared = state.threshold_on === "centred" ? d[k] - top : d[k];
        const value = config.value === "centred" ? d[k] - top : config.value === "zero" ? 0 : d[k];
        lines[k] = {
          direction: direction(chosen[k]), segment: table.families[table.family[chosen[k]]][1],
          offset: table.offset[chosen[k]], support: table.support[chosen[k]], strength: d[k],
          z: (d[k] - mean) / Math.max(sigma, 1e-12), value: value, kept: compared > threshold && long[k],
        };
      }
    }
    if (config.empty_head === "strongest" && !lines.some(line => line.kept)) {
      let best = -1;
      lines.forEach((line, k) => { if (long[k] && (best < 0 || line.strength > lines[best].strength)) best = k; });
      if (best >= 0) lines[best].kept = true;
    }
    return lines.filter(line => line.kept);
  });
}

// Coordinate x of a family is column columns[x - low]; its line of offset c is at x = c + slope * row.
function trace(frame, name, line, size) {
  const delta = line.direction, total = name === "self" ? size.rows : size.columns;
  if (name === "self" || frame === "columns") {
    if (frame === "places" && delta === 0) return {slope: 0, low: 0, columns: [0]};
    const across = Array.from({length: total}, (_, j) => delta >= 0 ? j : total - 1 - j);
    return {slope: Math.abs(delta), low: 0, columns: across};
  }
  if (delta === 0) return {slope: 0, low: 0, columns: size.structural};
  const places = size.places[line.segment];
  return delta < 0 ? {slope: -delta, low: -1, columns: places}
                   : {slope: delta, low: 0, columns: places.slice().reverse()};
}

function columnAt(along, offset, row) {
  const index = offset + along.slope * row - along.low;
  return index >= 0 && index < along.columns.length ? along.columns[index] : -1;
}

function nearestRow(along, offset, row) {
  if (along.slope === 0) return row;
  const first = Math.ceil((along.low - offset) / along.slope);
  const last = Math.floor((along.low + along.columns.length - 1 - offset) / along.slope);
  return Math.min(Math.max(row, Math.max(first, 0)), Math.max(last, 0));
}

// The columns that a head's lines open in one row, under the rule for rows that none of them reaches.
function opened(rule, name, lines, traces, row) {
  const where = lines.map((line, k) => {
    const column = columnAt(traces[k], line.offset, row);
    return name === "self" && column > row ? -1 : column;
  });
  if (where.some(column => column >= 0) || rule === "transparent") return where;
  const ends = lines.map((line, k) => {
    const near = nearestRow(traces[k], line.offset, row);
    let column = columnAt(traces[k], line.offset, near);
    if (name === "self" && column >= 0) column = Math.min(column, row);
    return {column: column, distance: column >= 0 ? Math.abs(near - row) : Infinity};
  });
  const best = Math.min(...ends.map(end => end.distance));
  return ends.map(end => end.distance === best ? end.column : -1);
}

// The bias of one head at a target length: rows of numbers, -Infinity where closed.
function expand(data, frame, name, lines, size) {
  const total = name === "self" ? size.rows : size.columns;
  const traces = lines.map(line => trace(frame, name, line, size)), bias = [];
  for (let row = 0; row < size.rows; row++) {
    const values = new Array(total).fill(-Infinity);
    opened(data.config.closed_rows, name, lines, traces, row).forEach((column, k) => {
      if (column >= 0) values[column] = Math.max(values[column], lines[k].value);
    });
    if (values.every(value => value === -Infinity)) values.fill(0);
    if (name === "self") values.fill(-Infinity, row + 1);
    bias.push(values);
  }
  return bias;
}

// Of each attention the kept lines, biases, open columns and transparent heads.
function compute(data, state) {
  const found = {}, size = data.sizes[state.size];
  for (const name of ["cross", "self"]) {
    const heads = calibrate(data, state, name);
    const biases = heads.map(lines => expand(data, state.frame, name, lines, size));
    found[name] = {
      lines: heads, biases: biases,
      open: biases.map(bias => {
        const counts = bias.map(row => row.filter(value => value > -Infinity).length).sort((a, b) => a - b);
        return counts[(counts.length - 1) >> 1];
      }),
      transparent: heads.flatMap((lines, head) => lines.length ? [] : [head]),
    };
  }
  return found;
}

// A line for the reader where the controls ask for something that cannot be, or that keeps nothing.
function problem(state, found) {
  const off = ["cross", "self"].filter(name => !state["directions_" + name].length);
  if (off.length) return "No direction is on for " + off[0] + "-attention: turn on at least one Δ.";
  const empty = ["cross", "self"].filter(name => found && found[name].lines.every(lines => !lines.length));
  if (!empty.length) return "";
  return "No line is kept in " + empty.map(name => name + "-attention").join(" and ") +
    ", so all its heads are transparent: lower κ or the minimum support.";
}

// Whether the controls say what a stored score was retrained with.
function agrees(state, choices) {
  return Object.entries(choices).every(([key, value]) =>
    typeof value === "number" ? Math.abs(value - state[key]) < 1e-9 : String(value) === String(state[key]));
}

// ---- the panel

function element(kind, attributes, ...children) {
  const made = Object.assign(document.createElement(kind), attributes);
  made.append(...children);
  return made;
}

function table(header, rows) {
  const head = element("tr", {}, ...header.map(name => element("th", {scope: "col"}, name)));
  const body = rows.map(row => element("tr", {}, ...row.map(cell => element("td", {}, String(cell)))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

function number(value) {
  return value.toFixed(2).replace("-", "−");
}

// Fills an element with the panel; `tell` hears every new state. Returns a function that takes a state from elsewhere.
function show(root, data, state, tell) {
  const followers = [];  // each makes one control say what the state says

  function choose(changes) {
    state = {...state, ...changes};
    redraw();
    tell(state);
  }

  function slider(text, key, low, high, step) {
    const shown = element("output", {});
    const [min, max] = [Math.min(low, state[key]), Math.max(high, state[key])];
    const input = element("input", {type: "range", ariaLabel: text, min: min, max: max, step: step});
    input.addEventListener("input", () => choose({[key]: Number(input.value)}));
    followers.push(() => { input.value = state[key]; shown.value = number(state[key]); });
    return element("label", {}, text, input, shown);
  }

  function toggles(key) {
    const boxes = data.directions.map(delta => {
      const box = element("input", {type: "checkbox"});
      box.addEventListener("change", () =>
        choose({[key]: data.directions.filter(d => d === delta ? box.checked : state[key].includes(d))}));
      followers.push(() => { box.checked = state[key].includes(delta); });
      return element("label", {}, box, String(delta).replace("-", "−"));
    });
    return element("div", {}, "Δ: ", ...boxes);
  }

  // A choice among [name, changes]; the first whose changes hold is the one shown.
  function select(text, options) {
    const input = element("select", {ariaLabel: text}, ...options.map(([name], i) => element("option", {value: i}, name)));
    input.addEventListener("change", () => choose(options[input.value][1]));
    followers.push(() => { input.value = options.findIndex(([, changes]) => agrees(state, changes)); });
    return element("label", {}, text, input);
  }

  function of(key, pairs) {
    return pairs.map(([name, value]) => [name, {[key]: value}]);
  }

  function colour(share) {
    const stops = data.colours, x = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const i = Math.min(Math.floor(x), stops.length - 2);
    return [0, 1, 2].map(c => stops[i][c] + (stops[i + 1][c] - stops[i][c]) * (x - i));
  }

  function paint(canvas, bias, low, high) {
    const rows = bias.length, columns = bias[0].length;
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    bias.flat().forEach((value, k) => {
      const [r, g, b] = value === -Infinity ? [204, 204, 204] : colour((value - low) / (high - low));
      image.data.set([r, g, b, 255], 4 * k);
    });
    context.putImageData(image, 0, 0);
  }

  function section(name) {
    const figures = data.frames.places[name].strength[0].map(() => {
      const caption = element("figcaption", {}), canvas = element("canvas", {role: "img"});
      return {caption: caption, canvas: canvas, figure: element("figure", {}, caption, canvas)};
    });
    const axes = element("p", {className: "axes"}), title = element("h4", {}, "Bias of " + name + "-attention");
    const maps = element("div", {className: "maps"}, ...figures.map(part => part.figure));
    return {figures: figures, axes: axes, maps: maps, nodes: [title, axes, maps]};
  }

  function drawAttention(name, found) {
    const part = sections[name], result = found[name], size = data.sizes[state.size];
    const finite = result.biases.flat(2).filter(value => value > -Infinity);
    const high = finite.reduce((a, b) => Math.max(a, b), 0);
    let low = finite.reduce((a, b) => Math.min(a, b), 0);
    if (high - low <= 1e-6) low = high - 1;
    part.maps.classList.toggle("single", state.head >= 0);
    result.biases.forEach((bias, h) => {
      const {caption, canvas, figure} = part.figures[h];
      figure.hidden = state.head >= 0 && state.head !== h;
      if (figure.hidden) return;
      paint(canvas, bias, low, high);
      const what = result.transparent.includes(h) ? "transparent" : result.open[h] + " open in a row";
      caption.textContent = "head " + h + ": " + what;
      canvas.setAttribute("aria-label", name + "-attention, head " + h + ": " + what);
    });
    const scale = element("span", {className: "scale"});
    scale.style.background = "linear-gradient(to right," + data.colours.map(c => "rgb(" + c.join(",") + ")").join(",") + ")";
    part.axes.replaceChildren(
      "Down: " + size.rows + " output steps. Across: " + (name === "cross" ? size.columns + " source columns" :
      "the steps attended to") + ". Bias " + number(low) + " ", scale, " " + number(high) + ", ",
      element("span", {className: "grey"}), " closed. \"Open\": columns that a typical row opens.",
      result.transparent.length ? " Transparent heads: " + result.transparent.join(", ") + "." : "");
  }

  function drawLines(found) {
    const cells = ["cross", "self"].flatMap(name => found[name].lines.flatMap((kept, h) => kept.map(line => [
      h, name, data.names[line.direction],
      name === "cross" && state.frame === "places" && line.direction ? line.segment + 1 : "",
      String(line.offset).replace("-", "−"), line.support, line.strength.toPrecision(4).replace("-", "−"), number(line.z),
    ]))).filter(row => state.head < 0 || row[0] === state.head);
    count.textContent = cells.length + " kept lines";
    const header = ["head", "attention", "direction", "operand", "offset", "support", "strength", "z-score"];
    lines.replaceChildren(table(header, cells));
  }

  function drawBeforehand() {
    const {lengths, scores} = data.beforehand, here = scores.map(score => agrees(state, score.choices));
    beforehand.hidden = !scores.length;
    const header = ["", "retrained with", ...lengths.map(n => n + " digits")];
    beforehand.replaceChildren(
      element("h4", {}, "Exact match (%) after retraining, measured beforehand" +
        (here.includes(true) ? "" : "; not with these settings")),
      table(header, scores.map((score, k) => [here[k] ? "→" : "", score.name, ...score.shares])));
  }

  function redraw() {
    followers.forEach(follow => follow());
    message.textContent = problem(state, null);
    results.hidden = message.textContent !== "";
    drawBeforehand();
    if (results.hidden) return;
    const found = compute(data, state);
    message.textContent = problem(state, found);
    drawAttention("cross", found);
    drawAttention("self", found);
    drawLines(found);
  }

  const heads = data.frames.places.cross.strength[0].map((_, h) => [String(h), h]);
  const kappa = name => slider("κ " + name, "kappa_" + name, -2, 6, 0.05);
  const more = [
    select("Line strength", of("statistic", [["sum of its cells", "sum"], ["mean of its cells", "mean"]])),
    select("σ and μ over", of("pool", [["all lines of a head", "head"], ["each direction of a head", "direction"]])),
    select("Threshold on", of("threshold_on", [["strength", "line"], ["strength − maximum", "centred"]])),
    slider("Minimum support", "min_support", 0, 1, 0.05),
    select("Frame", of("frame", [["places", "places"], ["columns", "columns"]])),
  ];
  const view = [
    select("Target length", of("size", data.sizes.map((size, i) => [size.name, i]))),
    select("Layer", data.layers),
    select("Head", of("head", [["all", -1], ...heads])),
  ];
  const column = parts => element("div", {className: "column"}, ...parts);
  const message = element("p", {className: "message", role: "status"});
  const beforehand = element("div", {className: "beforehand"});
  const count = element("h4", {}), lines = element("div", {className: "lines", tabIndex: 0});
  const sections = {cross: section("cross"), self: section("self")};
  const results = element("div", {}, ...sections.cross.nodes, ...sections.self.nodes, count, lines);
  root.classList.add("abcnb-panel");
  root.replaceChildren(
    element("p", {}, element("strong", {}, data.title), " " + data.note),
    element("div", {className: "controls"},
      element("fieldset", {}, element("legend", {}, "Cross-attention"), kappa("cross"), toggles("directions_cross")),
      element("fieldset", {}, element("legend", {}, "Self-attention"), kappa("self"), toggles("directions_self")),
      column(view), element("details", {}, element("summary", {}, "More choices"), column(more))),
    beforehand, message, results);
  // Else JupyterLab takes the keys as its own: an arrow that moves a slider would fold a heading, too.
  root.querySelectorAll("input, select").forEach(control => { control.dataset.lmSuppressShortcuts = "true"; });
  redraw();
  return next => {
    if (JSON.stringify(next) === JSON.stringify(state)) return;
    state = next;
    redraw();
  };
}
