// The tokens of a head: lines from queries to keys, and the text with what a query reads in it.
import { nearestQuery, rowOf } from "./data.js";
import { clamp, make, reveal } from "./parts.js";

const ALL = 40; // up to so many tokens are lined up whole; of more, those near the query
const PITCH = 16; // pixels from one token to the next
const FAINTEST = 0.01; // a weight below has no line, unless the query has none much greater
const NEAR = 150; // tokens around the query that are written out as text

const svg = (tag, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};

// Some tokens around one of them; all if they are few.
function near(length, middle, most) {
  if (length <= most) return [0, length];
  const first = clamp(middle - Math.floor(most / 2), 0, length - most);
  return [first, first + most];
}
// A weight in the least room.
const brief = (weight) => (weight >= 0.005 ? weight.toFixed(2) : `${Number(weight.toPrecision(1))}`);
const range = (first, after) => Array.from({ length: after - first }, (_, i) => first + i);

export function linesOf(app, head) {
  const { state } = app,
    { lengths } = head.layer,
    same = head.queryTexts === head.keyTexts;
  const left = make("div", { class: "column queries" }),
    right = make("div", { class: "column keys" });
  const canvas = svg("svg", { "aria-hidden": "true" }),
    note = make("p", { class: "note" });
  const element = make(
    "div",
    { class: "lines" },
    make("div", { class: "columns" }, left, canvas, right),
    note,
  );

  function draw() {
    const query = nearestQuery(head, Math.min(state.query, lengths[0] - 1)),
      { known, top } = rowOf(head, query);
    const queries = range(...near(lengths[0], Math.min(state.middle, lengths[0] - 1), ALL));
    const around = range(...near(lengths[1], same ? state.middle : (top[0]?.key ?? 0), ALL));
    const keys = [...new Set([...around, ...top.map((each) => each.key)])].sort((a, b) => a - b);
    column(left, queries, head.queryTexts, query, "query");
    column(right, keys, head.keyTexts, state.key, "key");
    const rowOfKey = new Map(keys.map((key, row) => [key, row])),
      width = canvas.clientWidth || 120;
    canvas.style.height = `${PITCH * Math.max(queries.length, keys.length)}px`;
    const most = app.most(head),
      strength = (weight) => Math.min(1, weight / most);
    const lines = queries.flatMap((from, row) => {
      const { known: own, top: strongest } = rowOf(head, from),
        least = Math.min(FAINTEST, strongest[0]?.weight / 2);
      return keys
        .filter((key) => own.get(key) >= least)
        .map((key) => {
          const weight = own.get(key),
            y1 = PITCH * (row + 0.5),
            y2 = PITCH * (rowOfKey.get(key) + 0.5),
            isAsked = from === query;
          return svg("path", {
            d: `M0 ${y1} C ${width / 2} ${y1} ${width / 2} ${y2} ${width} ${y2}`,
            class: isAsked ? (key === state.key ? "asked" : "own") : "other",
            "stroke-width": isAsked ? 1 + 3 * strength(weight) : 1,
            "stroke-opacity": (isAsked ? 1 : 0.3) * Math.sqrt(strength(weight)),
          });
        });
    });
    canvas.replaceChildren(...lines);
    // Every key is as dark as its weight; the strongest, and no others, have it in figures too.
    const figures = new Set(top.map((each) => each.key));
    let unknown = false;
    for (const token of right.children) {
      const key = Number(token.dataset.token),
        weight = known.get(key);
      unknown ||= weight == null;
      token.lastChild.textContent = figures.has(key) ? ` ${brief(weight)}` : "";
      token.style.background = weight > 0 ? app.scale.css(weight, most) : "";
      token.style.color = weight > 0 ? app.scale.ink(weight, most) : "";
      token.classList.toggle("unknown", weight == null);
    }
    note.textContent = [
      queries.length < lengths[0]
        ? `Queries ${queries[0]} to ${queries.at(-1)} of ${lengths[0]}, keys near them and the strongest. The wheel moves on.`
        : "",
      unknown ? "Weights on the keys in grey were not kept." : "",
    ].join(" ");
  }

  function column(root, tokens, texts, current, kind) {
    const shown = `${tokens}`;
    if (root.dataset.shown !== shown) {
      root.dataset.shown = shown;
      root.replaceChildren(
        ...tokens.map((i, n) => {
          const token = make(
            "span",
            { class: "token", title: `${i} ${texts[i]}`, "data-token": i, [`data-${kind}`]: i },
            make("bdi", {}, texts[i]),
            make("small"),
          );
          if (n && tokens[n - 1] !== i - 1) token.classList.add("gap");
          return token;
        }),
      );
    }
    for (const token of root.children) {
      const i = Number(token.dataset.token);
      token.classList.toggle("current", i === current);
      token.classList.toggle("found", app.isFound(texts[i]));
    }
  }

  left.onpointerover = (event) =>
    pointed(event, "query", (query) => {
      if (!state.locked) app.look(query, null, head, state.middle);
    });
  left.onclick = (event) => pointed(event, "query", (query) => app.lock(query, null, head, state.middle));
  right.onpointerover = (event) =>
    pointed(event, "key", (key) => app.look(state.query, key, head, state.middle));
  right.onclick = (event) => pointed(event, "key", (key) => app.look(state.query, key, head, state.middle));
  right.onpointerleave = () => {
    if (!state.locked) app.look(state.query, null, head, state.middle);
  };
  element.onwheel = (event) => {
    if (lengths[0] <= ALL) return;
    const middle = clamp(state.middle + Math.sign(event.deltaY) * 3, 0, lengths[0] - 1);
    if (middle === state.middle) return; // at its end the page scrolls on
    event.preventDefault();
    app.look(state.query, state.key, head, middle);
  };
  return { element, draw };
}

function pointed(event, kind, then) {
  const token = event.target.closest?.(`[data-${kind}]`);
  if (token) then(Number(token.dataset[kind]));
}

let made = 0; // several explorers may share a notebook, and ids must differ

export function textOf(app, head) {
  const { state } = app,
    { lengths } = head.layer,
    same = head.queryTexts === head.keyTexts;
  const element = make("div", { class: "text" }),
    id = `manyheads-${++made}`;
  const blocks = [];
  if (!same) blocks.push(block("the queries' text", head.queryTexts, true, false));
  blocks.push(
    block(
      same ? "text: the outlined token reads the coloured ones" : "the keys' text",
      head.keyTexts,
      same,
      true,
    ),
  );
  element.append(...blocks.map((each) => each.root));

  function block(title, texts, areQueries, areKeys) {
    const heading = make("h3"),
      line = make("div", { class: "line" });
    if (areQueries)
      for (const [name, value] of Object.entries({
        role: "listbox",
        tabindex: 0,
        "aria-label": "the text; left and right choose a query",
      }))
        line.setAttribute(name, value);
    let shown = "";
    const draw = (query, row) => {
      const middle = areQueries ? Math.min(state.middle, texts.length - 1) : (row.top[0]?.key ?? 0);
      const [first, after] = near(texts.length, middle, 2 * NEAR + 1);
      if (shown !== `${first}-${after}`) {
        shown = `${first}-${after}`;
        heading.textContent =
          title + (after - first < texts.length ? `, ${first} to ${after - 1} of ${texts.length}` : "");
        line.replaceChildren(
          ...range(first, after).flatMap((i) => {
            const token = make(
              "span",
              { class: "token", "data-token": i, [areQueries ? "data-query" : "data-key"]: i },
              make("bdi", {}, texts[i]),
            );
            if (areQueries) {
              token.id = `${id}-${i}`;
              token.setAttribute("role", "option");
            }
            return [token, " "];
          }),
        );
      }
      for (const token of line.children) {
        const i = Number(token.dataset.token),
          weight = areKeys ? row.known.get(i) : null;
        token.style.background = weight > 0 ? app.scale.css(weight, app.most(head)) : "";
        token.style.color = weight > 0 ? app.scale.ink(weight, app.most(head)) : "";
        token.title = weight == null ? `${i}` : `${i}: ${weight.toFixed(4)}`;
        token.classList.toggle("current", areQueries && i === query);
        token.classList.toggle("found", app.isFound(texts[i]));
        if (!areQueries) continue;
        token.setAttribute("aria-selected", i === query);
        if (i === query) reveal(line, token);
      }
      if (areQueries) line.setAttribute("aria-activedescendant", `${id}-${query}`);
    };
    line.onkeydown = (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || !areQueries) return;
      event.preventDefault();
      event.stopPropagation();
      app.step(by, 0);
    };
    line.onpointerover = (event) => {
      pointed(event, "query", (query) => {
        if (!state.locked) app.look(query, null, head, state.middle);
      });
      pointed(event, "key", (key) => app.look(state.query, key, head, state.middle));
    };
    line.onclick = (event) => pointed(event, "query", (query) => app.lock(query, null, head, state.middle));
    return { root: make("section", {}, heading, line), draw };
  }

  function draw() {
    const query = nearestQuery(head, Math.min(state.query, lengths[0] - 1)),
      row = rowOf(head, query);
    for (const each of blocks) each.draw(query, row);
  }
  return { element, draw };
}
