// In a notebook: the exact weights of what is looked at, asked for when the eye has come to rest.
import { wholeRow } from "./data.js";

const PATIENCE = 150; // milliseconds
const MOST_PAIRS = 128 * 128; // of a window that is asked for
const MOST_PATCHES = 60; // windows kept of a head

export function askingOf(host, state, redraw) {
  const asked = new Set();
  let waiting = null;

  async function ask(head, rows, keys) {
    const name = `${head.place}:${rows}:${keys}`;
    if (asked.has(name)) return;
    asked.add(name);
    try {
      head.patches.unshift({ rows, keys, weights: await host.ask({ place: head.place, rows, keys }) });
    } catch (error) {
      console.warn(`manyheads: ${error.message}`);
      return;
    }
    for (const old of head.patches.splice(MOST_PATCHES))
      asked.delete(`${head.place}:${old.rows}:${old.keys}`);
    redraw();
  }

  function askFor(head) {
    const { lengths, exact, live } = head.layer,
      { view } = state;
    if (!live || exact) return;
    const query = Math.min(state.query, lengths[0] - 1);
    if (state.locked && !wholeRow(head, query)) ask(head, [query, query + 1], [0, lengths[1]]);
    const seen = (low, length) => [
      Math.floor(low * length),
      Math.min(length, Math.ceil((low + 1 / view.zoom) * length)),
    ];
    const rows = seen(view.y, lengths[0]),
      keys = seen(view.x, lengths[1]);
    if ((rows[1] - rows[0]) * (keys[1] - keys[0]) <= MOST_PAIRS) ask(head, rows, keys);
  }

  return {
    soon(heads) {
      clearTimeout(waiting);
      if (host.ask) waiting = setTimeout(() => heads.forEach(askFor), PATIENCE);
    },
    stop: () => clearTimeout(waiting),
  };
}
