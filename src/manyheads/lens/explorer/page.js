// What Python packed (packing.py), unpacked and drawn. Tokens only ever become text nodes.
const LIGHT = ["#ffffff", "#cfe3f2", "#93c3e2", "#4f9bcb", "#2271b0", "#114a87", "#08264f"];
const DARK = ["#12161c", "#14304f", "#1c5288", "#2f7db8", "#62aad6", "#a9d2ec", "#f2f8fc"];
const TITLES = {
  effective_keys: "effective keys", peak: "peak", distance: "distance", previous: "previous token",
  next: "next token", itself: "itself", first: "first token", duplicate: "same token before",
  induction: "what followed last time",
};
const NEAR = 150; // tokens around the query that are written out
const $ = (id) => document.getElementById(id);
const make = (tag, text = "", cls = "") => Object.assign(document.createElement(tag), { textContent: text, className: cls });

const content = JSON.parse($("content").textContent);
const heads = unpack(await inflate($("data").textContent.trim()));
const state = { head: 0, pin: null, query: 0, key: null, middle: 0, locked: false, found: "" };

async function inflate(base64) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function unpack(buffer) {
  let at = 0;
  const take = (Kind, count) => {
    const bytes = count * Kind.BYTES_PER_ELEMENT;
    at += bytes;
    return new Kind(buffer.slice(at - bytes, at));
  };
  return content.layers.flatMap((layer) => {
    const size = layer.height * layer.width, some = layer.rows.length * layer.top;
    const cells = take(layer.bits === 8 ? Uint8Array : Uint16Array, layer.heads * size);
    const keys = take(layer.keyBytes === 4 ? Int32Array : Uint16Array, layer.heads * some);
    const weights = take(Uint16Array, layer.heads * some);
    const profiles = layer.profiles.map(() => take(Float32Array, layer.heads * layer.bins));
    return Array.from({ length: layer.heads }, (_, head) => ({
      layer, head,
      name: `${layer.layer}, head ${head}`,
      does: layer.does[head],
      number: (measure) => layer.numbers[measure][head],
      cells: cells.subarray(head * size, (head + 1) * size),
      keys: keys.subarray(head * some, (head + 1) * some),
      weights: weights.subarray(head * some, (head + 1) * some),
      profiles: profiles.map((each) => each.subarray(head * layer.bins, (head + 1) * layer.bins)),
      queryTexts: content.texts[layer.queries], keyTexts: content.texts[layer.keys],
    }));
  });
}

// Numbers: what is stored, and how exactly.
const cellWeight = (head, cell) =>
  head.layer.bits === 8 ? (head.cells[cell] / 255) ** 2 : head.cells[cell] / 65535;

function strongest(head, query) {
  const { rows, top, lengths } = head.layer;
  let row = rows.indexOf(query);
  if (row < 0) row = rows.reduce((best, each, i) => (Math.abs(each - query) < Math.abs(rows[best] - query) ? i : best), 0);
  const found = [];
  for (let i = row * top; i < (row + 1) * top; i++)
    if (head.keys[i] < lengths[1]) found.push({ key: head.keys[i], weight: head.weights[i] / 65535 });
  return { query: rows[row], found };
}

function weightAt(head, query, key) {
  const { height, width, lengths, exact, bits } = head.layer;
  const top = strongest(head, query);
  const kept = top.query === query && top.found.find((each) => each.key === key);
  if (kept) return { weight: kept.weight, said: kept.weight.toFixed(4) };
  const cell = cellOf(query, lengths[0], height) * width + cellOf(key, lengths[1], width);
  const weight = cellWeight(head, cell);
  if (exact) return { weight, said: bits === 16 ? weight.toFixed(4) : `≈ ${weight.toFixed(3)}` };
  return { weight, said: `at most ≈ ${weight.toFixed(3)} (greatest of its cell)` };
}

// Cells as Python cuts them: token i of n is in cell floor(i * count / n).
const cellOf = (token, length, count) => Math.min(count - 1, Math.floor((token * count) / length));

// Colours.
let colours = [];
function mix(stops) {
  const parts = stops.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  colours = Array.from({ length: 256 }, (_, i) => {
    const x = (i / 255) * (parts.length - 1), low = Math.min(Math.floor(x), parts.length - 2);
    return parts[low].map((c, j) => Math.round(c + (parts[low + 1][j] - c) * (x - low)));
  });
}
const colourOf = (weight) => colours[Math.round(Math.sqrt(Math.min(1, Math.max(0, weight))) * 255)];
const isDark = () => document.documentElement.classList.contains("dark");

function picture(head) {
  const { height, width } = head.layer;
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const image = new ImageData(width, height);
  for (let i = 0; i < height * width; i++) image.data.set([...colourOf(cellWeight(head, i)), 255], 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// The overview.
function drawOverview() {
  const order = $("order").value, overview = $("overview");
  overview.replaceChildren();
  overview.style.setProperty("--across", Math.min(16, Math.max(6, ...content.layers.map((each) => each.heads))));
  const places = heads.map((_, i) => i);
  if (order) places.sort((a, b) => (heads[b].number(order) ?? -1) - (heads[a].number(order) ?? -1));
  let row = null, layer = null;
  for (const place of places) {
    const head = heads[place];
    if (!row || (!order && head.layer !== layer)) {
      layer = head.layer;
      overview.append(make("h2", order ? TITLES[order] : layer.layer), (row = make("div", "", "row")));
    }
    row.append(thumbnail(head, place, order));
  }
  mark();
}

function thumbnail(head, place, order) {
  const button = make("button");
  button.dataset.place = place;
  const said = order ? show(head.number(order)) : head.does;
  const small = picture(head);
  small.style.imageRendering = small.width < 60 ? "pixelated" : "auto";
  button.append(small, make("small", order ? `${content.layers.indexOf(head.layer)}.${head.head}` : `${head.head}`), make("small", said));
  button.title = button.ariaLabel = `${head.name}: ${head.does}, ${show(head.number("effective_keys"))} effective keys`;
  button.onclick = () => choose(place);
  return button;
}

const show = (number) => (number == null ? "" : `${Number(number.toPrecision(3))}`);
const mark = () => {
  for (const button of $("overview").querySelectorAll("button")) button.ariaCurrent = `${+button.dataset.place === state.head}`;
};

// One head: its map, with zoom and pan, and its profile along the queries.
function panel(place) {
  const head = heads[place], { lengths, exact, bits, rows } = head.layer;
  const root = make("div", "", "panel"), map = make("canvas", "", "map"), profile = make("canvas", "", "profile");
  map.width = map.height = 840;
  const numbers = Object.keys(TITLES).filter((name) => head.number(name) != null);
  const kept = exact
    ? `every weight${bits === 8 ? ", to about 0.002; the strongest to 0.0001" : " to 0.0001"}`
    : `${lengths[0]} × ${lengths[1]}: a cell shows its greatest weight; strongest keys of ${rows.length} queries to 0.0001`;
  root.append(make("h2", `${head.name}: ${head.does}`), make("p", numbers.map((n) => `${TITLES[n]} ${show(head.number(n))}`).join(" · ")), map, profile, make("p", `${head.layer.profiles.join(" (blue), ")} (orange) along the queries. Stored: ${kept}.`));
  const source = picture(head);
  const view = { x: 0, y: 0, zoom: 1 };
  const draw = () => {
    const context = map.getContext("2d"), { width: w, height: h } = source, side = map.width;
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, side, side);
    context.drawImage(source, view.x * w, view.y * h, w / view.zoom, h / view.zoom, 0, 0, side, side);
    const place = (token, length, low) => ((token / length - low) * view.zoom) * side;
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--mark");
    context.lineWidth = 2;
    const cell = (side * view.zoom) / lengths[0];
    context.strokeRect(-2, place(state.query, lengths[0], view.y), side + 4, Math.max(cell, 2));
    if (state.key != null) context.strokeRect(place(state.key, lengths[1], view.x), -2, Math.max((side * view.zoom) / lengths[1], 2), side + 4);
  };
  const at = (event) => {
    const box = map.getBoundingClientRect();
    return [view.x + (event.clientX - box.left) / box.width / view.zoom, view.y + (event.clientY - box.top) / box.height / view.zoom];
  };
  const keep = () => {
    view.zoom = Math.min(Math.max(view.zoom, 1), 64);
    view.x = Math.min(Math.max(view.x, 0), 1 - 1 / view.zoom);
    view.y = Math.min(Math.max(view.y, 0), 1 - 1 / view.zoom);
    draw();
  };
  map.onwheel = (event) => {
    event.preventDefault();
    const [x, y] = at(event), factor = Math.exp(-event.deltaY / 300), zoom = Math.min(Math.max(view.zoom * factor, 1), 64);
    Object.assign(view, { x: x - ((x - view.x) * view.zoom) / zoom, y: y - ((y - view.y) * view.zoom) / zoom, zoom });
    keep();
  };
  let drag = null;
  map.onpointerdown = (event) => { drag = { start: at(event), moved: false }; map.setPointerCapture(event.pointerId); };
  map.onpointermove = (event) => {
    const [x, y] = at(event);
    if (drag && view.zoom > 1) {
      drag.moved ||= Math.hypot(x - drag.start[0], y - drag.start[1]) * view.zoom > 0.01;
      view.x += drag.start[0] - x;
      view.y += drag.start[1] - y;
      return keep();
    }
    if (!state.locked) look(Math.min(lengths[0] - 1, Math.floor(y * lengths[0])), Math.min(lengths[1] - 1, Math.floor(x * lengths[1])));
  };
  map.onpointerup = (event) => {
    if (drag && !drag.moved) {
      const [x, y] = at(event);
      lock(Math.min(lengths[0] - 1, Math.floor(y * lengths[0])), Math.min(lengths[1] - 1, Math.floor(x * lengths[1])));
    }
    drag = null;
  };
  map.ondblclick = () => { Object.assign(view, { x: 0, y: 0, zoom: 1 }); keep(); };
  drawProfile(profile, head);
  root.refresh = draw;
  draw();
  return root;
}

function drawProfile(canvas, head) {
  canvas.width = 840; canvas.height = 108;
  const context = canvas.getContext("2d");
  head.profiles.forEach((values, i) => {
    const most = Math.max(...values, 1e-9);
    context.strokeStyle = i ? "#d55e00" : "#2f7db8";
    context.lineWidth = 2;
    context.beginPath();
    values.forEach((value, j) => context.lineTo((j + 0.5) / values.length * 840, 104 - 100 * value / most));
    context.stroke();
  });
}

// The text: which keys the query reads.
function drawText() {
  const head = heads[state.head], { lengths, exact } = head.layer, text = $("text");
  text.replaceChildren();
  const same = head.queryTexts === head.keyTexts;
  const top = strongest(head, state.query);
  const weights = new Map(top.found.map((each) => [each.key, each.weight]));
  const block = (title, texts, middle, isKeys) => {
    const first = Math.max(0, middle - NEAR), after = Math.min(texts.length, middle + NEAR + 1);
    const range = after - first < texts.length ? ` (${first} to ${after - 1} of ${texts.length})` : "";
    text.append(make("h3", title + range));
    const line = make("div");
    for (let i = first; i < after; i++) {
      const token = make("span", texts[i], "token");
      token.dataset.token = i;
      if (isKeys) {
        const weight = exact ? weightAt(head, state.query, i).weight : weights.get(i) ?? 0;
        const colour = colourOf(weight);
        token.style.background = `rgb(${colour})`;
        const light = colour[0] * 0.3 + colour[1] * 0.59 + colour[2] * 0.11 > 140;
        token.style.color = light ? "#1b1f24" : "#ffffff";
        token.title = `${i}: ${weight.toFixed(4)}`;
      }
      if ((same || !isKeys) && i === state.query) token.classList.add("query");
      if (state.found && texts[i].toLowerCase().includes(state.found)) token.classList.add("found");
      if (same || !isKeys) token.dataset.query = i;
      line.append(token, " ");
    }
    text.append(line);
  };
  if (!same) block("query", head.queryTexts, state.middle, false);
  block(same ? "text: what the outlined token reads" : "keys", head.keyTexts, same ? state.middle : top.found[0]?.key ?? 0, true);
  $("strongest").replaceChildren(...top.found.filter((each) => each.weight > 0).map((each) => make("li", `${each.weight.toFixed(4)}  ${each.key} “${head.keyTexts[each.key]}”`)));
  return top;
}

function recolour(top) {
  const head = heads[state.head], name = (texts, i) => `${i} “${texts[i]}”`;
  const near = top.query === state.query ? "" : ` (strongest keys are those of query ${name(head.queryTexts, top.query)})`;
  const asked = state.key != null ? state.key : top.found[0]?.key;
  const value = asked == null ? "sees nobody" : `→ key ${name(head.keyTexts, asked)}: ${weightAt(head, state.query, asked).said}`;
  $("readout").textContent = `query ${name(head.queryTexts, state.query)} ${value}${near}${state.locked ? " · locked" : ""}`;
  for (const each of $("panels").children) each.refresh();
}

// The text stays where it is while one points at it, and follows the query otherwise.
function look(query, key, middle = query) { Object.assign(state, { query, key, middle }); recolour(drawText()); }
function lock(query, key, middle) { state.locked = !(state.locked && query === state.query); look(query, key, middle); remember(); }

function choose(place) {
  state.head = (place + heads.length) % heads.length;
  const head = heads[state.head];
  state.query = Math.min(state.query, head.layer.lengths[0] - 1);
  state.key = null;
  $("panels").replaceChildren(...[state.head, state.pin].filter((each, i) => each != null && !(i && each === state.head)).map(panel));
  mark();
  look(state.query, null);
  remember();
}

function step(rows) {
  // The same head of the layer above or below.
  const own = heads[state.head], layer = content.layers.indexOf(own.layer) + rows;
  const next = content.layers[layer];
  if (next) choose(heads.findIndex((each) => each.layer === next && each.head === Math.min(own.head, next.heads - 1)));
}

function find(text, again) {
  state.found = text.toLowerCase();
  if (state.found) {
    const texts = heads[state.head].queryTexts, start = state.query + (again ? 1 : 0);
    const next = [...texts.keys()].map((i) => (i + start) % texts.length).find((i) => texts[i].toLowerCase().includes(state.found));
    if (next != null) { state.locked = true; state.query = next; }
  }
  look(state.query, null);
}

// State in the address, so that a link shows the same.
function remember() {
  const kept = new URLSearchParams({ head: state.head, query: state.query, order: $("order").value, theme: isDark() ? "dark" : "light" });
  if (state.pin != null) kept.set("pin", state.pin);
  history.replaceState(null, "", `#${kept}`);
}

function recall() {
  const kept = new URLSearchParams(location.hash.slice(1));
  const number = (name, most) => { const n = Number(kept.get(name)); return Number.isInteger(n) && n >= 0 && n < most ? n : 0; };
  const wished = kept.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.classList.toggle("dark", wished === "dark");
  if (kept.get("order") in TITLES) $("order").value = kept.get("order");
  state.pin = kept.has("pin") ? number("pin", heads.length) : null;
  state.head = number("head", heads.length);
  const queries = heads[state.head].layer.lengths[0];
  state.query = kept.has("query") ? number("query", queries) : queries - 1;
  state.locked = kept.has("query");
}

function paint() {
  mix(isDark() ? DARK : LIGHT);
  const scale = $("scale").getContext("2d");
  for (let x = 0; x < 160; x++) { scale.fillStyle = `rgb(${colourOf(x / 159)})`; scale.fillRect(x, 0, 1, 10); }
  drawOverview();
  choose(state.head);
}

const toggleTheme = () => { document.documentElement.classList.toggle("dark"); paint(); };
const compare = () => { state.pin = state.pin == null ? state.head : null; choose(state.head); };
const move = (by) => { state.locked = true; look(Math.min(Math.max(state.query + by, 0), heads[state.head].layer.lengths[0] - 1), null); remember(); };
const KEYS = {
  ArrowLeft: () => choose(state.head - 1), ArrowRight: () => choose(state.head + 1),
  ArrowUp: () => step(-1), ArrowDown: () => step(1), j: () => move(1), k: () => move(-1),
  c: compare, t: toggleTheme, "/": () => $("find").focus(),
  Escape: () => { state.locked = false; $("find").value = ""; find("", false); },
};

$("order").append(Object.assign(make("option", "layer by layer"), { value: "" }), ...Object.entries(TITLES)
  .filter(([name]) => heads.some((head) => head.number(name) != null))
  .map(([name, title]) => Object.assign(make("option", title), { value: name })));
$("order").onchange = () => { drawOverview(); remember(); };
const pointed = (event) => Number(event.target.dataset.query ?? -1);
$("text").onpointerover = (event) => { const query = pointed(event); if (query >= 0 && !state.locked && query !== state.query) look(query, null, state.middle); };
$("text").onpointerdown = (event) => { const query = pointed(event); if (query >= 0) lock(query, null, state.middle); };
$("theme").onclick = toggleTheme;
$("find").oninput = () => find($("find").value, false);
$("find").onkeydown = (event) => { if (event.key === "Enter") find($("find").value, true); if (event.key === "Escape") { KEYS.Escape(); event.target.blur(); } event.stopPropagation(); };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT" || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
recall();
paint();
document.documentElement.dataset.ready = "true";
