// The page: what is chosen stands in its address, so that a link shows the same.
import { explore } from "./explorer.js";

const night = matchMedia("(prefers-color-scheme: dark)");
const embedded = (id) => document.getElementById(id).textContent;
const letters = atob(embedded("data").trim()),
  bytes = new Uint8Array(letters.length);
for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
const explorer = await explore(document.getElementById("explorer"), JSON.parse(embedded("content")), bytes, {
  dark: () => night.matches,
  recall: () => location.hash.slice(1),
  remember: (text) => history.replaceState(null, "", `#${text}`),
  ask: null,
  keys: document,
});
night.onchange = explorer.repaint;
window.onhashchange = explorer.recall;
