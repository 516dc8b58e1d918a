// The keyboard: what each key does. frame.js names the keys to the reader.

// does: what is called for them: head, layer, query, key and zoom, by so much; pin, reading, find,
// bright, theme, letGo and help. Returns what ends the listening.
export function listen(place, does) {
  const KEYS = {
    ArrowLeft: () => does.head(-1),
    ArrowRight: () => does.head(1),
    ArrowUp: () => does.layer(-1),
    ArrowDown: () => does.layer(1),
    j: () => does.query(1),
    k: () => does.query(-1),
    h: () => does.key(-1),
    l: () => does.key(1),
    "+": () => does.zoom(1.5),
    "=": () => does.zoom(1.5),
    "-": () => does.zoom(1 / 1.5),
    0: () => does.zoom(0),
    c: does.pin,
    r: does.reading,
    b: does.bright,
    t: does.theme,
    "/": does.find,
    Escape: does.letGo,
    "?": does.help,
  };
  const onKey = (event) => {
    const isOurs = !event.ctrlKey && !event.metaKey && !event.altKey && Object.hasOwn(KEYS, event.key);
    if (!isOurs || /^(SELECT|INPUT)$/.test(event.target.tagName)) return;
    event.preventDefault();
    event.stopPropagation();
    KEYS[event.key]();
  };
  place.addEventListener("keydown", onKey);
  return () => place.removeEventListener("keydown", onKey);
}
