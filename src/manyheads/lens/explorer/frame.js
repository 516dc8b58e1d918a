// What stands around the heads: the choices above, the scale and the keys below.
import { make } from "./parts.js";

const HELP = [
  ["← →", "head"],
  ["↑ ↓", "layer"],
  ["j k", "query"],
  ["h l", "key"],
  ["+ − 0", "zoom"],
  ["c", "pin this head"],
  ["r", "next reading"],
  ["/", "find"],
  ["b", "brighter"],
  ["t", "light or dark"],
  ["esc", "let go"],
];

// chosen: what is called when something is chosen: order, reading, beside, search, letGo, theme, bright.
export function frameOf(root, content, orders, overview, chosen) {
  const { readings } = content,
    several = readings.length > 1 ? Object.entries(readings) : [];
  const select = (name, options, then) => {
    const made = options.map(([value, text]) => make("option", { value }, text));
    return make("select", { class: name, onchange: (event) => then(event.target.value) }, ...made);
  };
  const order = select("order", [["", "layer by layer"], ...Object.entries(orders)], chosen.order);
  const reading = select("reading", several, (number) => chosen.reading(Number(number)));
  const beside = select("beside", [["", "nothing"], ["pin", "this head, pinned"], ...several], chosen.beside);
  const find = make("input", { class: "find", type: "search", placeholder: "token", autocomplete: "off" });
  find.oninput = () => chosen.search(0);
  find.onkeydown = (event) => {
    event.stopPropagation();
    if (event.key === "Enter") chosen.search(event.shiftKey ? -1 : 1);
    if (event.key !== "Escape") return;
    chosen.letGo();
    find.blur();
  };
  const count = make("output", { class: "count" }),
    stage = make("div", { class: "panels" });
  const theme = make("button", { class: "theme", title: "light or dark (t)", onclick: chosen.theme }, "◐");
  const legend = make("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const most = make("span");
  const bright = make("button", { class: "bright", title: "a scale for each head (b)", onclick: chosen.bright });
  const keys = HELP.map(([key, does]) => make("span", {}, make("kbd", {}, key), ` ${does}`));
  const help = make("details", { class: "help" }, make("summary", {}, "keys"), ...keys);
  const labels = [
    ["order ", order],
    ["beside ", beside],
    ["find ", find, count],
  ];
  if (several.length) labels.unshift(["reading ", reading]);
  root.replaceChildren(
    make(
      "header",
      {},
      make("h1", {}, content.title),
      ...labels.map((each) => make("label", {}, ...each)),
      theme,
    ),
    make("main", {}, overview, stage),
    make("footer", {}, make("span", { class: "legend" }, "weight 0", legend, most, bright), help),
  );
  root.classList.add("manyheads");
  root.lang = "en";
  return { order, reading, beside, find, count, stage, legend, most, bright, help };
}
