// What packing.py packed: heads whose weights can be asked for, each with how exactly it is known.

// Bytes that Python's zlib wrote.
export async function inflate(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function reader(bytes) {
  let at = 0;
  const take = (count) => bytes.slice(at, (at += count));
  // Plain loops: the callbacks of typed arrays take ten times as long, and a page has millions.
  const squares = (count) => {
    const steps = take(count),
      weights = new Float32Array(count);
    for (let i = 0; i < count; i++) weights[i] = (steps[i] / 255) ** 2;
    return weights;
  };
  // Of numbers of two bytes all low bytes stand first, then all high ones.
  const pairs = (numbers, unit = 1) => {
    const count = numbers.length,
      low = take(count),
      high = take(count);
    for (let i = 0; i < count; i++) numbers[i] = (low[i] | (high[i] << 8)) / unit;
    return numbers;
  };
  return {
    squares,
    weights: (count) => pairs(new Float32Array(count), 65535),
    keys: (count, size) =>
      size === 4 ? new Int32Array(take(4 * count).buffer) : pairs(new Uint16Array(count)),
    floats: (count) => new Float32Array(take(4 * count).buffer),
  };
}

// All heads of all readings, layer by layer; a head's place is its index here.
export function unpack(content, bytes) {
  const read = reader(bytes);
  const heads = content.layers.flatMap((layer) => {
    const count = layer.heads,
      size = layer.height * layer.width,
      some = layer.rows.length * layer.top;
    const cells = layer.bits === 8 ? read.squares(count * size) : read.weights(count * size);
    const keys = read.keys(count * some, layer.keyBytes),
      weights = read.weights(count * some);
    const windows = layer.windows.map(([from, to, first, after]) => {
      const area = (to - from) * (after - first),
        all = read.weights(count * area);
      return (head) => ({
        rows: [from, to],
        keys: [first, after],
        weights: all.subarray(head * area, (head + 1) * area),
      });
    });
    const profiles = layer.profiles.map(() => read.floats(count * layer.bins));
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

// The weight of a pair: "exact", or the "greatest" of its cell; "rough" if it is so to 0.002 only.
export function weightAt(head, query, key) {
  const { height, width, lengths, exact, bits } = head.layer;
  const patch = patchOf(head, query, key);
  if (patch) return { weight: fromPatch(patch, query, key), kind: "exact" };
  const kept = stored(head, query).find((each) => each.key === key);
  if (kept) return { weight: kept.weight, kind: "exact" };
  const row = cellOf(query, lengths[0], height),
    column = cellOf(key, lengths[1], width);
  const weight = head.cells[row * width + column];
  const rough = bits === 8;
  if (exact) return { weight, kind: "exact", rough };
  return {
    weight,
    kind: "greatest",
    rough,
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
  const { width, lengths, exact } = head.layer;
  const patch = head.patches.find(
    (each) => inside(query, each.rows) && each.keys[0] === 0 && each.keys[1] === lengths[1],
  );
  if (patch) return rowOfPatch(patch, query);
  if (!exact) return null;
  const row = head.cells.slice(query * width, (query + 1) * width);
  for (const each of stored(head, query)) row[each.key] = each.weight;
  return row;
}
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
  const { height, width } = head.layer;
  const greatest = Array.from({ length: height }, (_, row) =>
    head.cells.subarray(row * width, (row + 1) * width).reduce((most, each) => Math.max(most, each), 0),
  );
  const seen = greatest.filter((each) => each > 0).sort((a, b) => a - b);
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
  if (!exact) return apart.reduce((most, each) => Math.max(most, each), 0);
  return apart.reduce((sum, each) => sum + each, 0) / 2 / height;
}

// Numbers as they are said.
export const said = ({ weight, kind, rough }) => {
  const shown = rough
    ? `≈ ${weight.toFixed(3)}`
    : 0 < weight && weight < 0.00005
      ? "< 0.0001"
      : weight.toFixed(4);
  return kind === "greatest" ? `at most ${shown}` : shown;
};
export const short = (number) => (number == null ? "" : `${Number(number.toPrecision(3))}`);
