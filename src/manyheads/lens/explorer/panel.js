// One head: its name and numbers, its map, its lines, its text.
import { nearestQuery, rowOf, said, short, weightAt } from "./data.js";
import { mapOf, profileOf } from "./map.js";
import { make, quoted } from "./parts.js";
import { linesOf, textOf } from "./tokens.js";

export function panelOf(app, head, isMain) {
  const { state } = app,
    { lengths } = head.layer;
  const parts = [mapOf(app, head), profileOf(app, head), linesOf(app, head), textOf(app, head)];
  const [map, profile, lines, text] = parts,
    whose = app.readingOf(head);
  const readout = make("p", { class: "readout", role: isMain ? "status" : null });
  const heading = make("h3"),
    strongest = make("ol", { class: "strongest", "aria-label": "strongest keys" });
  const element = make(
    "section",
    { class: "panel", "aria-label": head.name },
    ...(whose == null ? [] : [make("p", { class: "whose", title: whose }, whose)]),
    make("h2", {}, ...breakable(head.name), make("span", {}, ` ${head.does}`)),
    make(
      "p",
      { class: "numbers" },
      ...app.measures(head).map(([name, called]) =>
        make("span", {}, called, " ", make("b", {}, short(head.number(name)))),
      ),
    ),
    readout,
    make(
      "div",
      { class: "views" },
      make("div", {}, map.element, profile.element, make("p", { class: "note" }, storedAs(head))),
      lines.element,
    ),
    text.element,
    heading,
    strongest,
  );

  function draw() {
    for (const part of parts) part.draw();
    const query = Math.min(state.query, lengths[0] - 1),
      near = nearestQuery(head, query),
      { top } = rowOf(head, near);
    const asked =
      state.key != null && state.key < lengths[1]
        ? { query, key: state.key }
        : top.length
          ? { query: near, key: top[0].key }
          : null;
    readout.replaceChildren(
      ...(asked ? told(asked) : [`query ${quoted(head.queryTexts, near)} sees nobody`]),
    );
    heading.textContent = `strongest keys of query ${quoted(head.queryTexts, near)}${near === query ? "" : ", the nearest that was kept"}`;
    if (state.locked) readout.append(make("span", { class: "locked" }, "locked, esc lets go"));
    strongest.replaceChildren(
      ...top.map(({ key, weight }) =>
        make("li", {}, make("b", {}, weight.toFixed(4)), ` ${quoted(head.keyTexts, key)}`),
      ),
    );
  }

  function told({ query, key }) {
    const which = state.key == null ? "strongest key" : "key";
    const found = weightAt(head, query, key),
      number = make("b", {}, said(found));
    if (found.kind !== "greatest")
      return [`query ${quoted(head.queryTexts, query)} → ${which} ${quoted(head.keyTexts, key)}: `, number];
    const span = ([from, to]) => (to - from > 1 ? `${from} to ${to - 1}` : `${from}`);
    return [
      `queries ${span(found.queries)} → keys ${span(found.keys)}: `,
      number,
      ", the greatest weight of this cell.",
    ];
  }

  return { element, draw, head, repaint: map.repaint };
}

// A path, which may go on in the next line behind each of its dots.
const breakable = (path) => path.split(/(?<=\.)/).flatMap((part) => [part, make("wbr")]);

// What the page holds of this head, and how exactly.
function storedAs(head) {
  const { lengths, exact, bits, height, width, rows, windows, live } = head.layer;
  if (exact)
    return bits === 16
      ? "Every weight is exact."
      : "Weights to about 0.002, the strongest of each query exact.";
  const pooled = `${lengths[0]} × ${lengths[1]} weights in ${height} × ${width} cells: a cell shows its greatest.`;
  const kept = ` Exact: the strongest keys of ${rows.length} queries${windows.length ? ", and the dashed windows" : ""}.`;
  return pooled + (live ? " Zoom in, or lock a query, and its exact weights are computed." : kept);
}
