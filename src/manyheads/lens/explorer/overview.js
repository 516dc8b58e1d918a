// All heads as thumbnails, layer by layer or sorted by a number.
import { difference, short } from "./data.js";
import { make, reveal } from "./parts.js";

const MEASURES = {
  effective_keys: "effective keys",
  peak: "peak",
  distance: "distance",
  previous: "previous token",
  next: "next token",
  itself: "itself",
  first: "first token",
  duplicate: "same token before",
  induction: "what followed last time",
};
// Where queries and keys are of two texts, no key is the query's own token.
const PLACES = { previous: "place before", next: "place after", itself: "same place" };
export const isBetweenTexts = (head) => head.queryTexts !== head.keyTexts;
// The numbers of heads by what they are called, the user's own behind ours.
export const measuresOf = (content, heads) => {
  const own = content.measures.map((name) => [name, name]);
  const all = { ...MEASURES, ...(heads.some(isBetweenTexts) ? PLACES : {}), ...Object.fromEntries(own) };
  return Object.entries(all).filter(([name]) => heads.some((head) => head.number(name) != null));
};
const ACROSS = 16; // thumbnails in a row, at most
const ROOMY = 6; // up to so many across, there is room for words below them

export function overviewOf(app) {
  const element = make("nav", { class: "overview", "aria-label": "all heads" });
  let shown = [];

  function draw() {
    const { order } = app.state,
      reading = app.reading(app.head());
    const own = app.heads.filter((head) => app.reading(head) === reading);
    const numberOf = (head) =>
      order === "difference" ? difference(head, app.partner(head)) : head.number(order);
    shown = order
      ? own
          .map((head) => [numberOf(head) ?? -Infinity, head])
          .sort(([a], [b]) => b - a)
          .map(([, head]) => head)
      : own;
    const names = shortened(own.map((head) => head.layer.layer));
    const label = (head) =>
      order
        ? `${short(numberOf(head))} · ${names.get(head.layer.layer)}:${head.head}`
        : `${head.head} ${head.does}`;
    const groups = order
      ? [shown]
      : [...new Set(own.map((head) => head.layer))].map((layer) =>
          own.filter((head) => head.layer === layer),
        );
    element.replaceChildren(
      ...groups.flatMap((heads) => {
        const across = order ? 0 : Math.min(heads.length, ACROSS);
        const row = make(
          "div",
          { class: across > ROOMY ? "row tight" : "row" },
          ...heads.map((head) => thumbnail(head, label(head))),
        );
        if (across) row.style.setProperty("--across", Math.max(across, ROOMY));
        return [
          make("h2", {}, order ? `${app.orders[order]}, highest first (layer:head)` : heads[0].layer.layer),
          row,
        ];
      }),
    );
    mark();
  }

  function thumbnail(head, label) {
    const { height, width } = head.layer,
      picture = app.scale.picture(head.cells, height, width, app.most(head));
    picture.className = width < 64 ? "crisp" : "";
    const tells = `${head.name}: ${head.does}, ${short(head.number("effective_keys"))} effective keys, peak ${short(head.number("peak"))}`;
    return make(
      "button",
      {
        "data-place": head.place,
        title: tells,
        "aria-label": `${tells}. ${label}`,
        onclick: () => app.choose(head),
      },
      picture,
      make("small", {}, label),
    );
  }

  function mark() {
    for (const button of element.querySelectorAll("button")) {
      const current = Number(button.dataset.place) === app.state.head;
      button.setAttribute("aria-current", current);
      if (current) reveal(element, button);
    }
  }

  return { element, draw, mark, shown: () => shown };
}

// Names without what all of them begin and end with: layers.0.attn, layers.1.attn -> 0, 1.
function shortened(names) {
  const parts = names.map((name) => name.split("."));
  const same = (at) => parts.every((each) => each.at(at) === parts[0].at(at));
  const least = Math.min(...parts.map((each) => each.length));
  let front = 0,
    back = 0;
  while (front < least - 1 && same(front)) front++;
  while (back < least - 1 - front && same(-1 - back)) back++;
  return new Map(parts.map((each, i) => [names[i], each.slice(front, each.length - back).join(".")]));
}
