// What packing.py packed: heads whose weights can be asked for, each with how exactly it is known.
import { clamp } from "./parts.js";

// Bytes that Python's zlib wrote.
export async function inflate(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function reader(bytes) {
  let at = 0;
  const take = (count) => bytes.slice(at, (at += count));
  // Plain loops: the callbacks of typed arrays take ten times as long, and a page has millions.
  // Of numbers of two bytes all low bytes stand first, then all high ones.
  const pairs = (count) => {
    const low = take(count),
      high = take(count),
      numbers = new Uint16Array(count);
    for (let i = 0; i < count; i++) numbers[i] = low[i] | (high[i] << 8);
    return numbers;
  };
  // Rows in steps of their own greatest numbers, of each of which the upper half stands before them.
  const scaled = (rows, length, steps) => {
    const greatest = new Float32Array(Uint32Array.from(pairs(rows), (half) => half << 16).buffer);
    const numbers = new Float32Array(rows * length),
      squared = isRough({ steps }),
      taken = squared ? take(numbers.length) : pairs(numbers.length);
    for (let row = 0, i = 0; row < rows; row++)
      for (const last = i + length; i < last; i++) {
        const share = taken[i] / steps;
        numbers[i] = greatest[row] * (squared ? share * share : share);
      }
    return numbers;
  };
  const keys = (count, size) => (size === 4 ? new Int32Array(take(4 * count).buffer) : pairs(count));
  return { scaled, keys };
}
const FINEST = 50_000;
export const isRough = ({ steps }) => steps <= 255;

// All heads of all readings, layer by layer; a head's place is its index here.
export function unpack(content, bytes) {
  const read = reader(bytes);
  const heads = content.layers.flatMap((layer) => {
    const count = layer.heads,
      size = layer.height * layer.width,
      some = layer.rows.length * layer.top;
    const cells = read.scaled(count * layer.height, layer.width, layer.steps),
      keys = read.keys(count * some, layer.keyBytes),
      weights = read.scaled(count * layer.rows.length, layer.top, FINEST);
    const windows = layer.windows.map(([from, to, first, after]) => {
      const area = (to - from) * (after - first),
        all = read.scaled(count * (to - from), after - first, FINEST);
      return (head) => ({
        rows: [from, to],
        keys: [first, after],
        weights: all.subarray(head * area, (head + 1) * area),
      });
    });
    const profiles = layer.profiles.map(() => read.scaled(count, layer.bins, FINEST));
    const own = (array, head, length) => array.subarray(head * length, (head + 1) * length);
    return Array.from({ length: count }, (_, head) => ({
      layer,
      head,
      name: `${layer.layer}, head ${head}`,
      does: layer.does[head],
      number: (measure) => (Object.hasOwn(layer.numbers, measure) ? layer.numbers[measure][head] : null),
      cells: own(cells, head, size),
      topKeys: own(keys, head, some),
      topWeights: own(weights, head, some),
      patches: windows.map((window) => window(head)), // exact windows; a notebook adds more
      profiles: profiles.map((each) => own(each, head, layer.bins)),
      queryTexts: content.texts[layer.queries],
      keyTexts: content.texts[layer.keys],
    }));
  });
  heads.forEach((head, place) => {
    head.place = place;
  });
  return heads;
}

// Token i of n is in cell floor(i * count / n), here as in pooled.py.
const cellOf = (token, length, count) => Math.min(count - 1, Math.floor((token * count) / length));
const tokensOf = (cell, length, count) => [
  Math.ceil((cell * length) / count),
  Math.ceil(((cell + 1) * length) / count),
];
const inside = (token, [from, to]) => from <= token && token < to;
const patchOf = (head, query, key) =>
  head.patches.find((each) => inside(query, each.rows) && inside(key, each.keys));
const fromPatch = (patch, query, key) =>
  patch.weights[(query - patch.rows[0]) * (patch.keys[1] - patch.keys[0]) + key - patch.keys[0]];

// The weight of a pair, and the greatest of its row, of which its steps are shares: "exact", or the
// "greatest" of its cell; "rough" if there are few steps.
export function weightAt(head, query, key) {
  const { height, width, lengths, exact } = head.layer;
  const patch = patchOf(head, query, key);
  if (patch)
    return {
      weight: fromPatch(patch, query, key),
      most: greatest(rowOfPatch(patch, query)),
      kind: "exact",
    };
  const strongest = stored(head, query),
    kept = strongest.find((each) => each.key === key);
  if (kept) return { weight: kept.weight, most: strongest[0].weight, kind: "exact" };
  const row = cellOf(query, lengths[0], height),
    column = cellOf(key, lengths[1], width),
    cells = rowOfCells(head, row);
  const found = { weight: cells[column], most: greatest(cells), rough: isRough(head.layer) };
  if (exact) return { ...found, kind: "exact" };
  return {
    ...found,
    kind: "greatest",
    queries: tokensOf(row, lengths[0], height),
    keys: tokensOf(column, lengths[1], width),
  };
}

// The strongest keys that were stored of a query, if any were.
function stored(head, query) {
  const { rows, top, lengths } = head.layer,
    row = rows.indexOf(query),
    found = [];
  for (let i = row * top; row >= 0 && i < (row + 1) * top; i++)
    if (head.topKeys[i] < lengths[1]) found.push({ key: head.topKeys[i], weight: head.topWeights[i] });
  return found;
}

// A query's weights on all keys, or null where only some are known.
export function wholeRow(head, query) {
  const { lengths, exact } = head.layer;
  const patch = head.patches.find(
    (each) => inside(query, each.rows) && each.keys[0] === 0 && each.keys[1] === lengths[1],
  );
  if (patch) return rowOfPatch(patch, query);
  if (!exact) return null;
  const row = rowOfCells(head, query).slice();
  for (const each of stored(head, query)) row[each.key] = each.weight;
  return row;
}
const rowOfCells = ({ cells, layer }, row) => cells.subarray(row * layer.width, (row + 1) * layer.width);
const greatest = (weights) => weights.reduce((most, each) => Math.max(most, each), 0);
const rowOfPatch = ({ rows, keys, weights }, query) =>
  weights.subarray((query - rows[0]) * (keys[1] - keys[0]), (query - rows[0] + 1) * (keys[1] - keys[0]));

// What a query reads, as far as it is known: a map from keys to weights, and the strongest of them.
export function rowOf(head, query, count = 8) {
  const whole = wholeRow(head, query);
  const known = new Map(whole?.entries() ?? stored(head, query).map(({ key, weight }) => [key, weight]));
  if (!whole)
    for (const patch of head.patches)
      if (inside(query, patch.rows))
        rowOfPatch(patch, query).forEach((weight, i) => known.set(patch.keys[0] + i, weight));
  const best = [];
  for (const [key, weight] of known) {
    if (weight <= (best[count - 1]?.weight ?? 0)) continue;
    best.splice(best.findLastIndex((each) => each.weight >= weight) + 1, 0, { key, weight });
    best.length = Math.min(best.length, count);
  }
  return { known, top: best };
}

// The query nearest to one of which anything is known.
export function nearestQuery(head, query) {
  const { exact, rows } = head.layer;
  if (exact || head.patches.some((each) => inside(query, each.rows))) return query;
  return rows.reduce((best, each) => (Math.abs(each - query) < Math.abs(best - query) ? each : best));
}

// What three queries in four do not exceed on their strongest key.
export function typical(head) {
  const most = Array.from({ length: head.layer.height }, (_, row) => greatest(rowOfCells(head, row)));
  const seen = most.filter((each) => each > 0).sort((a, b) => a - b);
  return seen[Math.floor(seen.length * 0.75)] ?? 1;
}

// How much of their weight two heads place differently, 0 to 1; null where they see different tokens.
export function difference(head, other) {
  const { lengths, height, width, exact } = head.layer;
  if (
    !other ||
    `${lengths},${height},${width}` !== `${other.layer.lengths},${other.layer.height},${other.layer.width}`
  )
    return null;
  const apart = head.cells.map((weight, i) => Math.abs(weight - other.cells[i]));
  if (!exact) return greatest(apart);
  return apart.reduce((sum, each) => sum + each, 0) / 2 / height;
}

// Numbers as they are said: a weight to four places, or as many as its row's greatest needs.
const places = (most) => (most > 0 ? clamp(3 - Math.floor(Math.log10(most)), 4, 60) : 4);
export const figures = (weight, most) => weight.toFixed(places(most));
export function said({ weight, most, kind, rough }) {
  const least = 10 ** -places(most);
  const shown = rough
    ? `≈ ${weight.toFixed(places(most) - 1)}`
    : 0 < weight && weight < least / 2
      ? `< ${figures(least, most)}`
      : figures(weight, most);
  return kind === "greatest" ? `at most ${shown}` : shown;
}
export const short = (number) => (number == null ? "" : `${Number(number.toPrecision(3))}`);
