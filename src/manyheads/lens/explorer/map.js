// The map of a head: a row a query, a column a key; the wheel zooms, dragging moves.
import { clamp, fit, make } from "./parts.js";

const LEFT = 86,
  BELOW = 66,
  EDGE = 14; // room for labels
const ROW = 8; // pixels that a label needs
const FONT = "11px system-ui, sans-serif",
  SMALL = "9px system-ui, sans-serif";

export function mapOf(app, head) {
  const { lengths, height, width } = head.layer,
    { state } = app;
  const canvas = make("canvas", { class: "map", role: "img", tabindex: 0 });
  canvas.setAttribute(
    "aria-label",
    `Map of ${head.name}: ${lengths[0]} queries from top to bottom, ${lengths[1]} keys from left to right. Keys j, k, h and l move through it; the weight is read below its name.`,
  );
  const pictures = new Map();
  const pictureOf = (weights, rows, columns) => {
    if (!pictures.has(weights)) pictures.set(weights, app.scale.picture(weights, rows, columns, app.most(head)));
    return pictures.get(weights);
  };
  const side = () => canvas.clientWidth - LEFT - EDGE;
  // Where a token begins on the screen, along the queries (0) or the keys (1).
  const x = (key) => LEFT + (key / lengths[1] - state.view.x) * state.view.zoom * side();
  const y = (query) => EDGE + (query / lengths[0] - state.view.y) * state.view.zoom * side();

  function draw() {
    const size = side(),
      context = fit(canvas, size + LEFT + EDGE, size + EDGE + BELOW);
    const style = getComputedStyle(canvas),
      ink = (name) => style.getPropertyValue(name);
    canvas.style.touchAction = state.view.zoom > 1 ? "none" : "pan-y"; // or a finger could not scroll
    context.save();
    context.beginPath();
    context.rect(LEFT, EDGE, size, size);
    context.clip();
    context.imageSmoothingEnabled = false;
    const place = (picture, rows, keys) =>
      context.drawImage(picture, x(keys[0]), y(rows[0]), x(keys[1]) - x(keys[0]), y(rows[1]) - y(rows[0]));
    place(pictureOf(head.cells, height, width), [0, lengths[0]], [0, lengths[1]]);
    for (const { rows, keys, weights } of head.patches) {
      place(pictureOf(weights, rows[1] - rows[0], keys[1] - keys[0]), rows, keys);
      if (rows[1] - rows[0] === 1) continue; // a query that was looked up, not a window
      context.strokeStyle = ink("--faint");
      context.setLineDash([4, 3]);
      context.strokeRect(x(keys[0]), y(rows[0]), x(keys[1]) - x(keys[0]), y(rows[1]) - y(rows[0]));
      context.setLineDash([]);
    }
    context.restore();
    context.save();
    context.beginPath();
    context.rect(LEFT - 3, EDGE - 3, size + 6, size + 6); // the frame of the last query is seen too
    context.clip();
    context.strokeStyle = ink("--mark");
    context.lineWidth = 1.5;
    const query = Math.min(state.query, lengths[0] - 1);
    context.strokeRect(LEFT - 2, y(query), size + 4, Math.max(y(query + 1) - y(query), 1.5));
    if (state.key != null && state.key < lengths[1])
      context.strokeRect(x(state.key), EDGE - 2, Math.max(x(state.key + 1) - x(state.key), 1.5), size + 4);
    context.restore();
    context.strokeStyle = ink("--line");
    context.strokeRect(LEFT, EDGE, size, size);
    label(context, head.queryTexts, y, size, ink, false);
    label(context, head.keyTexts, x, size, ink, true);
  }

  // Token names beside the map where there is room, their numbers where there is not.
  function label(context, texts, at, size, ink, areKeys) {
    const low = areKeys ? LEFT : EDGE,
      pitch = at(1) - at(0),
      visible = [];
    const first = Math.max(0, Math.floor((low - at(0)) / pitch));
    const after = Math.min(texts.length, Math.ceil((low + size - at(0)) / pitch));
    let step = 1;
    for (let i = 0; pitch * step < (pitch < ROW ? 34 : ROW); i++) step *= [2, 2.5, 2][i % 3];
    for (let i = Math.ceil(first / step) * step; i < after; i += step) visible.push(i);
    context.font = step === 1 && pitch < 11 ? SMALL : FONT;
    const names = visible.map((i) => (step === 1 ? texts[i] : `${i}`));
    const lying = areKeys && names.every((name) => context.measureText(name).width < pitch * step - 4);
    visible.forEach((i, n) => {
      const middle = at(i) + (step === 1 ? pitch / 2 : 0);
      if (middle < low || middle > low + size) return;
      context.fillStyle = ink(i === (areKeys ? state.key : state.query) ? "--mark" : "--faint");
      context.save();
      context.translate(areKeys ? middle : LEFT - 6, areKeys ? low + size - LEFT + EDGE + 6 : middle);
      if (areKeys && !lying) context.rotate(-Math.PI / 2);
      context.textAlign = lying ? "center" : "right";
      context.textBaseline = lying ? "top" : "middle";
      context.fillText(lying ? names[n] : cut(context, names[n], (areKeys ? BELOW : LEFT) - 10), 0, 0);
      context.restore();
    });
    if (!state.found) return;
    context.fillStyle = ink("--mark");
    for (const i of app.matches(texts)) {
      const middle = at(i) + pitch / 2;
      if (middle < low || middle > low + size) continue;
      if (areKeys) context.fillRect(middle - 1, EDGE + size + 1, 2, 5);
      else context.fillRect(LEFT - 6, middle - 1, 5, 2);
    }
  }

  const cut = (context, text, room) => {
    if (context.measureText(text).width <= room) return text;
    const letters = [...text];
    while (letters.length && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
    return `${letters.join("")}…`;
  };

  // The place in the map, 0 to 1, that is pointed at.
  const at = (event) => {
    const box = canvas.getBoundingClientRect(),
      { view } = state;
    return [
      view.x + (event.clientX - box.left - LEFT) / side() / view.zoom,
      view.y + (event.clientY - box.top - EDGE) / side() / view.zoom,
    ];
  };
  const pair = (event) => {
    const [across, down] = at(event),
      { view } = state,
      most = 1 / view.zoom;
    if (across < view.x || across >= view.x + most || down < view.y || down >= view.y + most) return null;
    return [
      clamp(Math.floor(down * lengths[0]), 0, lengths[0] - 1),
      clamp(Math.floor(across * lengths[1]), 0, lengths[1] - 1),
    ];
  };

  const hover = (event) => {
    const found = pair(event);
    if (found && !state.locked) app.look(...found, head);
  };

  let drag = null;
  canvas.onwheel = (event) => {
    event.preventDefault();
    app.zoom(Math.exp(-clamp(event.deltaY, -300, 300) / 300), ...at(event));
    hover(event);
  };
  canvas.onpointerdown = (event) => {
    drag = { start: at(event), moved: false };
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointermove = (event) => {
    if (drag && state.view.zoom > 1) {
      const [across, down] = at(event),
        [x0, y0] = drag.start;
      drag.moved ||= Math.hypot(across - x0, down - y0) * state.view.zoom > 0.01;
      if (drag.moved) app.pan(x0 - across, y0 - down);
      return;
    }
    hover(event);
  };
  canvas.onpointerup = (event) => {
    const found = drag && !drag.moved && pair(event);
    drag = null;
    if (found) app.lock(...found, head);
  };
  canvas.onpointercancel = () => {
    drag = null;
  };
  canvas.onpointerleave = () => {
    if (!state.locked) app.look(state.query, null, head);
  };
  canvas.ondblclick = () => app.zoom(0, 0, 0);

  return { element: canvas, draw, repaint: () => pictures.clear() };
}

// Numbers along the queries, each curve up to its own greatest; a click goes to the query there.
export function profileOf(app, head) {
  const canvas = make("canvas", {
    class: "profile",
    "aria-hidden": "true",
    title: "click: go to this query",
  });
  const length = head.layer.lengths[0],
    { state } = app;
  const room = () => canvas.clientWidth - LEFT - EDGE;
  function draw() {
    const size = room(),
      context = fit(canvas, size + LEFT + EDGE, 52);
    const ink = (name) => getComputedStyle(canvas).getPropertyValue(name);
    head.profiles.forEach((values, i) => {
      const most = Math.max(...values, 1e-9);
      context.strokeStyle = ink(i ? "--second" : "--first");
      context.setLineDash(i ? [4, 2] : []);
      context.beginPath();
      values.forEach((value, j) =>
        context.lineTo(LEFT + ((j + 0.5) / values.length) * size, 48 - (44 * value) / most),
      );
      context.stroke();
    });
    context.setLineDash([]);
    context.strokeStyle = ink("--mark");
    context.strokeRect(
      LEFT + (Math.min(state.query, length - 1) / length) * size,
      0,
      Math.max(size / length, 1),
      52,
    );
    context.font = FONT;
    context.textAlign = "right";
    head.layer.profiles.forEach((name, i) => {
      context.fillStyle = ink(i ? "--second" : "--first");
      context.fillText(name, LEFT - 6, 16 + 22 * i);
    });
  }
  const query = (event) => clamp(Math.floor(((event.offsetX - LEFT) / room()) * length), 0, length - 1);
  canvas.onpointermove = (event) => {
    if (!state.locked) app.look(query(event), null, head);
  };
  canvas.onclick = (event) => app.lock(query(event), null, head);
  return { element: canvas, draw };
}
