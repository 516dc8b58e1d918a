// The explorer: what is chosen, what follows from it, and the keys that choose.
import { readBack, written } from "./address.js";
import { askingOf } from "./asking.js";
import { scale } from "./colour.js";
import { inflate, nearestQuery, short, typical, unpack } from "./data.js";
import { frameOf } from "./frame.js";
import { measuresOf, overviewOf } from "./overview.js";
import { panelOf } from "./panel.js";
import { clamp } from "./parts.js";

const PALE = 0.05; // a typical strongest weight below it is hard to see on the scale to 1

// host: dark() as the surroundings are; recall() and remember(text) of what is chosen;
// ask({place, rows, keys}) for the exact weights of layers that are live; keys, where keys are
// listened for.
export async function explore(root, content, bytes, host) {
  const heads = unpack(content, await inflate(bytes));
  const state = {}; // what is chosen: see address.js
  const orders = Object.fromEntries(measuresOf(content, heads));
  const readings = content.readings;
  // Where hardly any weight is large, one scale for all would show blank maps.
  const typicals = heads.map(typical);
  const isPale = typicals.filter((each) => each < PALE).length > heads.length / 2;
  if (readings.length > 1) orders.difference = "difference to the one beside";
  let panels = [];

  const app = {
    heads,
    state,
    host,
    orders,
    measures: (head) => measuresOf(content, [head]),
    head: () => heads[state.head],
    reading: (head) => head.layer.reading,
    readingOf: (head) => (readings.length > 1 ? readings[head.layer.reading] : null),
    isBright: () => state.bright ?? isPale,
    most: (head) => (app.isBright() ? typicals[head.place] : 1), // the weight shown the strongest
    partner: (head) => partnerOf(head, state.against === app.reading(head) ? 0 : state.against),
    choose(head) {
      Object.assign(state, { head: head.place, key: state.locked ? state.key : null });
      drawPanels();
      remember();
    },
    look(query, key, head, middle = query) {
      Object.assign(state, { query, key, middle });
      update();
    },
    lock(query, key, head, middle) {
      const near = head.layer.live ? query : nearestQuery(head, query);
      state.locked = !(state.locked && near === state.query && key === state.key);
      app.look(near, near === query ? key : null, head, middle ?? near);
      remember();
    },
    step(queries, keys) {
      const head = app.head(),
        { lengths, exact, rows, live } = head.layer;
      const query = Math.min(state.query, lengths[0] - 1);
      const next =
        exact || live
          ? query + queries
          : rows[clamp(rows.indexOf(nearestQuery(head, query)) + queries, 0, rows.length - 1)];
      const key = keys ? clamp((state.key ?? query) + keys, 0, lengths[1] - 1) : state.key;
      state.locked = true;
      app.look(clamp(next, 0, lengths[0] - 1), key, head);
      follow();
      remember();
    },
    // Zoom around a place of the map, 0 to 1; by 0: show all of it.
    zoom(factor, across, down) {
      const { view } = state,
        before = view.zoom,
        most = Math.max(8, ...app.head().layer.lengths.map((each) => each / 6));
      view.zoom = clamp(before * factor, 1, most);
      view.x = across - ((across - view.x) * before) / view.zoom;
      view.y = down - ((down - view.y) * before) / view.zoom;
      app.pan(0, 0);
    },
    pan(across, down) {
      const { view } = state,
        most = 1 - 1 / view.zoom;
      view.x = clamp(view.x + across, 0, most);
      view.y = clamp(view.y + down, 0, most);
      update();
      remember();
    },
    isFound: (text) => state.found !== "" && text.toLowerCase().includes(state.found),
    matches: (texts) => [...texts.keys()].filter((i) => app.isFound(texts[i])),
  };

  // The same head of another reading: of the layer of that name, or else of that number.
  function partnerOf(head, reading) {
    if (reading == null || reading === app.reading(head)) return null;
    const layers = content.layers.filter((each) => each.reading === reading);
    const own = content.layers.filter((each) => each.reading === app.reading(head));
    const layer = layers.find((each) => each.layer === head.layer.layer) ?? layers[own.indexOf(head.layer)];
    return heads.find((each) => each.layer === layer && each.head === head.head) ?? null;
  }

  const overview = overviewOf(app);
  const frame = frameOf(root, content, orders, overview.element, {
    order(name) {
      state.order = name;
      overview.draw();
      remember();
    },
    reading: (reading) => changeReading(reading),
    beside: (what) => compare(what),
    search: (by) => search(by),
    letGo: () => letGo(),
    theme: () => toggleTheme(),
    bright: () => toggleBright(),
  });
  const { order, beside, find, count, stage } = frame;

  // ---- what follows from a choice
  const others = () =>
    [
      state.pin === state.head ? null : heads[state.pin],
      state.against === app.reading(app.head()) ? null : partnerOf(app.head(), state.against),
    ].filter(Boolean);

  function drawPanels() {
    const shown = [app.head(), ...new Set(others())];
    if (shown.map((each) => each.place).join() !== panels.map((each) => each.head.place).join()) {
      panels = shown.map((head, i) => panelOf(app, head, i === 0));
      stage.replaceChildren(...panels.map((each) => each.element));
      stage.dataset.count = panels.length;
    }
    frame.reading.value = app.reading(app.head());
    const most = app.most(app.head());
    frame.most.textContent = `${short(most)}${app.isBright() ? " and more in this head" : ""}, by its square root`;
    frame.bright.textContent = app.isBright() ? "one scale for all" : "brighter";
    beside.value = state.pin != null ? "pin" : (state.against ?? "");
    overview.mark();
    update();
  }

  const redraw = () => panels.forEach((panel) => panel.draw());
  const asking = askingOf(host, state, redraw);
  function update() {
    redraw();
    asking.soon(panels.map((panel) => panel.head));
  }

  function repaint() {
    const dark = state.dark ?? host.dark();
    root.classList.toggle("dark", dark);
    app.scale = scale(dark);
    const ramp = app.scale.picture(
      Float32Array.from({ length: 256 }, (_, i) => (i / 255) ** 2),
      1,
      256,
      1,
    );
    frame.legend.getContext("2d").drawImage(ramp, 0, 0);
    for (const panel of panels) panel.repaint();
    overview.draw();
    drawPanels();
  }

  // ---- choices
  function changeReading(reading) {
    const next = partnerOf(app.head(), reading) ?? heads.find((head) => app.reading(head) === reading);
    if (state.against === reading) state.against = app.reading(app.head());
    state.head = next.place;
    overview.draw();
    app.choose(next);
  }
  function compare(what) {
    state.pin = what === "pin" ? state.head : null;
    state.against = what === "pin" || what === "" ? null : Number(what);
    overview.draw();
    app.choose(app.head());
  }
  function neighbour(by) {
    const shown = overview.shown(),
      next = shown[clamp(shown.indexOf(app.head()) + by, 0, shown.length - 1)];
    app.choose(next);
  }
  function layerAt(by) {
    const own = app.head(),
      at = content.layers.indexOf(own.layer) + by,
      layer = content.layers[at];
    if (layer?.reading === own.layer.reading)
      app.choose(
        heads.find((each) => each.layer === layer && each.head === Math.min(own.head, layer.heads - 1)),
      );
  }
  // Keep the query in sight where the map is zoomed.
  function follow() {
    const { view } = state,
      { lengths } = app.head().layer;
    const into = (at, low) => (at < low ? at - low : Math.max(0, at - (low + 1 / view.zoom)));
    const down = into((state.query + 0.5) / lengths[0], view.y),
      across = state.key == null ? 0 : into((state.key + 0.5) / lengths[1], view.x);
    if (down || across) app.pan(across, down);
  }
  function zoomHere(factor) {
    const { lengths } = app.head().layer,
      query = (state.query + 0.5) / lengths[0];
    app.zoom(factor, state.key == null ? query : (state.key + 0.5) / lengths[1], query);
  }
  function toggleTheme() {
    state.dark = !(state.dark ?? host.dark());
    repaint();
    remember();
  }
  function toggleBright() {
    state.bright = !app.isBright();
    repaint();
    remember();
  }

  // ---- finding tokens
  function search(by) {
    state.found = find.value.toLowerCase().replace(/^ | $/g, "␣");
    const texts = app.head().queryTexts,
      found = app.matches(texts);
    const after =
      by < 0
        ? (found.findLast((i) => i < state.query) ?? found.at(-1))
        : (found.find((i) => i >= state.query + by) ?? found[0]);
    if (after != null) Object.assign(state, { locked: true, query: after, middle: after, key: null });
    count.textContent =
      state.found === "" ? "" : found.length ? `${found.indexOf(after) + 1} of ${found.length}` : "none";
    update();
    if (after != null) follow();
    remember();
  }
  function letGo() {
    Object.assign(state, { locked: false, key: null, found: "" });
    find.value = count.textContent = "";
    update();
    remember();
  }

  // ---- the keyboard
  const KEYS = {
    ArrowLeft: () => neighbour(-1),
    ArrowRight: () => neighbour(1),
    ArrowUp: () => layerAt(-1),
    ArrowDown: () => layerAt(1),
    j: () => app.step(1, 0),
    k: () => app.step(-1, 0),
    h: () => app.step(0, -1),
    l: () => app.step(0, 1),
    "+": () => zoomHere(1.5),
    "=": () => zoomHere(1.5),
    "-": () => zoomHere(1 / 1.5),
    0: () => app.zoom(0, 0, 0),
    c: () => compare(state.pin == null ? "pin" : ""),
    b: toggleBright,
    t: toggleTheme,
    "/": () => find.focus(),
    Escape: letGo,
    r: () => {
      if (readings.length > 1) changeReading((app.reading(app.head()) + 1) % readings.length);
    },
    "?": () => {
      frame.help.open = !frame.help.open;
    },
  };
  const onKey = (event) => {
    if (
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      /^(SELECT|INPUT)$/.test(event.target.tagName) ||
      !KEYS[event.key]
    )
      return;
    event.preventDefault();
    event.stopPropagation();
    KEYS[event.key]();
  };

  // ---- what is chosen, as text
  const remember = () => host.remember(written(state, readings));
  function recall() {
    Object.assign(state, readBack(host.recall(), heads, readings, orders));
    order.value = state.order;
    find.value = state.found;
  }

  recall();
  repaint();
  host.keys.addEventListener("keydown", onKey);
  const resized = new ResizeObserver(redraw);
  resized.observe(stage);
  root.dataset.ready = "true";
  return {
    recall: () => {
      recall();
      repaint();
    },
    repaint: () => {
      if (state.dark == null) repaint();
    },
    close: () => {
      resized.disconnect();
      asking.stop();
      host.keys.removeEventListener("keydown", onKey);
    },
  };
}
