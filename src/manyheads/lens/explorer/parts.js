// Elements. Texts only ever become text nodes, so that no token is read as markup.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on") || name in { textContent: 0, value: 0, hidden: 0 }) element[name] = value;
    else if (value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A canvas as sharp as the screen, and its context in CSS pixels.
export function fit(canvas, width, height) {
  const sharp = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * sharp)) canvas.width = Math.round(width * sharp);
  if (canvas.height !== Math.round(height * sharp)) canvas.height = Math.round(height * sharp);
  const context = canvas.getContext("2d");
  context.setTransform(sharp, 0, 0, sharp, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// A token with its number; one that runs from the right must not turn what stands around it.
const FROM_THE_RIGHT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
export const quoted = (texts, i) =>
  `${i} “${FROM_THE_RIGHT.test(texts[i]) ? `\u2068${texts[i]}\u2069` : texts[i]}”`;
export const clamp = (number, low, high) => Math.min(Math.max(number, low), high);

// Scroll a box, and nothing around it, until something in it is in sight.
export function reveal(box, element) {
  const top = element.offsetTop,
    bottom = top + element.offsetHeight;
  if (top < box.scrollTop) box.scrollTop = top - 4;
  else if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight + 4;
}
