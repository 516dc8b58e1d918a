// What is chosen, as the text of an address, and back. Whatever an address says, the choice is valid.

export function written(state, readings) {
  const kept = new URLSearchParams({ head: state.head }),
    { view } = state;
  if (state.locked) kept.set("query", state.query);
  for (const name of ["key", "pin", "against"]) if (state[name] != null) kept.set(name, state[name]);
  if (readings.length > 1 && state.against == null) kept.set("against", ""); // none, where one is usual
  if (state.order) kept.set("order", state.order);
  if (state.found) kept.set("find", state.found);
  if (state.bright != null) kept.set("scale", state.bright ? "own" : "one");
  if (state.dark != null) kept.set("theme", state.dark ? "dark" : "light");
  if (view.zoom > 1)
    kept.set("view", [view.zoom, view.x, view.y].map((each) => Number(each.toPrecision(6))).join("_"));
  return `${kept}`;
}

export function readBack(text, heads, readings, orders) {
  const kept = new URLSearchParams(text);
  const whole = (name, most) => {
    const number = kept.get(name) ? Number(kept.get(name)) : NaN;
    return Number.isInteger(number) && number >= 0 && number < most ? number : null;
  };
  const head = whole("head", heads.length) ?? 0,
    { lengths, reading } = heads[head].layer;
  const query = whole("query", lengths[0]),
    told = kept.has("against") || readings.length < 2;
  const [zoom, x, y] = (kept.get("view") ?? "").split("_").map(Number);
  const isView = zoom > 1 && x >= 0 && y >= 0 && x <= 1 && y <= 1;
  return {
    head, // its place among all heads
    query: query ?? lengths[0] - 1,
    middle: query ?? lengths[0] - 1, // the query that the lines and the text stand around
    locked: query != null, // whether pointing elsewhere leaves the query as it is
    key: whole("key", lengths[1]),
    pin: whole("pin", heads.length), // a head that stays beside the others
    against: told ? whole("against", readings.length) : reading ? 0 : 1, // a reading that does
    order: Object.hasOwn(orders, kept.get("order")) ? kept.get("order") : "",
    found: (kept.get("find") ?? "").toLowerCase(),
    bright: { own: true, one: false }[kept.get("scale")] ?? null, // null: as the weights ask for
    dark: { dark: true, light: false }[kept.get("theme")] ?? null, // null: as the surroundings are
    view: isView ? { x, y, zoom } : { x: 0, y: 0, zoom: 1 },
  };
}
